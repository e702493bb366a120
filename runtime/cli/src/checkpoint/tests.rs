//! Checkpoints as a job leaves them, on a directory of their own: what is found, chosen and decoded.

use super::find::find;
use super::place::Place;
use super::rows::read_rows;
use super::{gc, inspect, read_metadata};
use crate::error::CommandError;
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt16Array};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use sluice_protocol::ledger::entry::CheckpointKey;
use sluice_protocol::ledger::{Ends, Entry, EntryKind, Fold, LedgerState, RetainedCheckpoint, StartCause};
use sluice_protocol::metadata::Metadata;
use sluice_protocol::paths::JobPaths;
use sluice_protocol::state::{KeyedStateHandle, KeyedStateKind, OperatorSnapshot, StateData};
use sluice_protocol::{
    AppendId, Attempt, CheckpointId, Generation, JobId, KeyGroupRange, OperatorUid, ProcessId, Run, SubtaskIndex,
    Timestamp, key_group,
};
use sluice_storage::{FileStore, ObjectStore, StoreDeadlines};
use std::path::PathBuf;
use std::sync::Arc;

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sluice-cli-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::new(FileStore::new(&self.0, StoreDeadlines::default()))
    }

    fn uri(&self) -> String {
        format!("file://{}", self.0.display())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn job(name: &str) -> JobId {
    JobId { namespace: "default".to_owned(), name: name.to_owned(), uid: "0a1b".to_owned() }
}

fn entry(number: u64, kind: EntryKind, fold: Fold) -> Entry {
    Entry {
        version: 1,
        number,
        append_id: AppendId::from("append"),
        process: ProcessId::from("process"),
        generation: Generation(1),
        attempt: Attempt(1),
        revision: 1,
        directive: "r1".to_owned(),
        time: Timestamp(1_000),
        kind,
        unsettled: Vec::new(),
        left_open: None,
        fold,
    }
}

fn state_file(apps: &[(&str, i64)]) -> Vec<u8> {
    let columns: [(&str, ArrayRef); 3] = [
        ("key_group", Arc::new(UInt16Array::from(vec![7; apps.len()]))),
        ("app_id", Arc::new(StringArray::from_iter_values(apps.iter().map(|(app, _)| app)))),
        ("pv", Arc::new(Int64Array::from_iter_values(apps.iter().map(|(_, count)| *count)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

fn metadata(job: &JobId, id: u64) -> Metadata {
    let handle = |subtask, data| OperatorSnapshot {
        uid: OperatorUid::from("pv.aggregate"),
        subtask: SubtaskIndex(subtask),
        keyed: vec![KeyedStateHandle {
            name: "groups".to_owned(),
            key_groups: KeyGroupRange { start: 0, end: 128 },
            rows: 2,
            kind: KeyedStateKind::Full,
            data,
        }],
        operator: Vec::new(),
        splits: Vec::new(),
        committables: Vec::new(),
    };
    let file = state_file(&[("app1", 50_000), ("app2", 10_000)]);
    let operators = vec![
        handle(0, StateData::Inline { bytes: state_file(&[("app3", 3)]) }),
        handle(1, StateData::file("state.parquet".to_owned(), &file)),
    ];
    Metadata {
        version: 1,
        job: job.clone(),
        run: Run { generation: Generation(1), attempt: Attempt(1) },
        checkpoint: CheckpointId(id),
        savepoint: false,
        details: None,
        origin: None,
        nonce: "nonce".to_owned(),
        triggered_at: Timestamp(id * 1_000),
        key_group_function: key_group::NAME.to_owned(),
        max_parallelism: 128,
        vertices: Vec::new(),
        operators,
        in_flight: Vec::new(),
    }
}

/// A job whose ledger retains 2 of the 3 checkpoints that lie in its directory.
async fn write_job(store: &dyn ObjectStore, job: &JobId) {
    let paths = JobPaths::new(job);
    let put = async |key: String, bytes: Vec<u8>| store.put_if_absent(&key, Bytes::from(bytes)).await.unwrap();
    let started = entry(
        1,
        EntryKind::Started { cause: StartCause::Start, restored_from: None, probed: None, taker: None },
        Fold::default(),
    );
    put(paths.ledger_entry(1), started.to_bytes().unwrap()).await;
    let mut last = started;
    for id in [1, 2, 3] {
        let directory = paths.checkpoint_directory(Generation(1), CheckpointId(id));
        put(format!("{directory}/_metadata"), metadata(job, id).to_bytes().unwrap()).await;
        put(format!("{directory}/state.parquet"), state_file(&[("app1", 50_000), ("app2", 10_000)])).await;
        let key = CheckpointKey { generation: Generation(1), id: CheckpointId(id) };
        let at = Timestamp(id * 1_000);
        let checkpoint = RetainedCheckpoint { key, triggered_at: at, completed_at: at, bytes: 100 * id };
        let drops = if id == 3 { vec![CheckpointKey { id: CheckpointId(1), ..key }] } else { vec![] };
        let kind = EntryKind::Checkpoint { checkpoint, savepoint: None, ends: Ends::None, drops, record: None };
        last = entry(id + 1, kind, last.folded());
        put(paths.ledger_entry(id + 1), last.to_bytes().unwrap()).await;
    }
}

fn ids(found: &[super::find::Found]) -> Vec<(String, u64)> {
    found.iter().map(|found| (found.job.clone(), found.id.0)).collect()
}

#[tokio::test]
async fn a_ledger_says_which_checkpoints_are_retained() {
    let directory = Directory::new("ledger");
    write_job(&*directory.store(), &job("pv")).await;
    let root = directory.uri();
    for uri in [root.clone(), format!("{root}/default"), format!("{root}/default/pv-0a1b/")] {
        let found = find(&Place::open(&uri, None, None).unwrap()).await.unwrap();
        assert_eq!(ids(&found), [("default/pv-0a1b".to_owned(), 2), ("default/pv-0a1b".to_owned(), 3)], "below {uri}");
        assert_eq!(found[1].uri, format!("{root}/default/pv-0a1b/1/chk-3"));
        assert_eq!((found[1].bytes, found[1].job_state), (300, Some(LedgerState::Running)));
    }
}

#[tokio::test]
async fn snapshots_without_a_ledger_are_found_too() {
    let directory = Directory::new("alone");
    write_job(&*directory.store(), &job("pv")).await;
    let generation = format!("{}/default/pv-0a1b/1", directory.uri());
    let found = find(&Place::open(&generation, None, None).unwrap()).await.unwrap();
    assert_eq!(found.iter().map(|found| found.id.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(found.iter().all(|found| found.job_state.is_none()));
}

#[tokio::test]
async fn only_the_job_of_a_manifest_is_shown() {
    let directory = Directory::new("only");
    for name in ["pv", "pv2"] {
        write_job(&*directory.store(), &job(name)).await;
    }
    let only = JobId { uid: String::new(), ..job("pv") };
    let found = find(&Place::open(&directory.uri(), None, Some(only)).unwrap()).await.unwrap();
    assert_eq!(ids(&found), [("default/pv-0a1b".to_owned(), 2), ("default/pv-0a1b".to_owned(), 3)]);
}

#[tokio::test]
async fn rows_are_read_from_metadata_and_from_files() {
    let directory = Directory::new("rows");
    write_job(&*directory.store(), &job("pv")).await;
    let place = Place::open(&format!("{}/default/pv-0a1b/1/chk-3/_metadata", directory.uri()), None, None).unwrap();
    let metadata = read_metadata(&place, &place.uri).await.unwrap().unwrap();
    let handles = || metadata.operators.iter().flat_map(|operator| &operator.keyed);
    let table = read_rows(&place, &place.uri, handles(), usize::MAX).await.unwrap();
    assert_eq!(table.columns, ["key_group", "app_id", "pv"]);
    // The last file first: what it says of a key overrules those before it.
    assert_eq!(table.rows, [["7", "app1", "50000"], ["7", "app2", "10000"], ["7", "app3", "3"]]);
    assert_eq!(read_rows(&place, &place.uri, handles(), 2).await.unwrap().rows.len(), 2);
}

#[tokio::test]
async fn what_cannot_be_chosen_or_read_is_said() {
    let directory = Directory::new("errors");
    let store = directory.store();
    let inspect = async |uri: &str| {
        let place = Place::open(uri, None, None).unwrap();
        inspect::inspect(&place, 0, inspect::Format::Text).await.unwrap_err().to_string()
    };
    assert!(inspect(&directory.uri()).await.contains("there is no checkpoint below file:///"));
    for name in ["a", "b"] {
        write_job(&*store, &job(name)).await;
    }
    let several = inspect(&directory.uri()).await;
    assert!(several.contains("default/a-0a1b, default/b-0a1b"), "{several}");
    store.put_if_absent("new/chk-9/_metadata", Bytes::from_static(b"{\"version\": 99}")).await.unwrap();
    let newer = inspect(&format!("{}/new/chk-9", directory.uri())).await;
    assert!(newer.contains("chk-9/_metadata has format version 99"), "{newer}");
    store.put_if_absent("x/ledger/0000000001.json", Bytes::from_static(b"{}")).await.unwrap();
    let damaged = inspect(&format!("{}/x", directory.uri())).await;
    assert!(damaged.contains("x/ledger/0000000001.json"), "{damaged}");
}

async fn collect(uri: &str, is_dry: bool, force: Option<&str>) -> Result<u8, CommandError> {
    let options = gc::Options { is_dry, roots: Vec::new(), force: force.map(str::to_owned) };
    gc::gc(&Place::open(uri, None, None)?, &options).await
}

/// A job that may still run cleans up by itself, and knows better what is under way.
#[tokio::test]
async fn litter_is_removed_when_the_job_has_ended_or_somebody_answers_for_it() {
    let directory = Directory::new("gc");
    let store = directory.store();
    write_job(&*store, &job("pv")).await;
    let put = async |key: &str| store.put_if_absent(key, Bytes::from_static(b"litter")).await.unwrap();
    let litter = [
        "default/pv-0a1b/1/shared/1-1.1-0.0-0-ab.parquet",
        "default/pv-0a1b/1/chk-9/state.parquet",
        "default/pv-0a1b/probe-ab12/0000000001",
        "savepoints/default/pv-0a1b/1-7/state.parquet",
    ];
    let foreign = ["default/pv-0a1b/2/chk-9/state.parquet", "default/pv-0a1b/notes", "default/pv2-0a1b/1/chk-9/x"];
    for key in litter.iter().chain(&foreign) {
        put(key).await;
    }
    let half = directory.0.join(format!("default/pv-0a1b/1/chk-3/.sluice-put-{}-_metadata", "a".repeat(32)));
    std::fs::write(&half, b"half").unwrap();
    let uri = format!("{}/default/pv-0a1b", directory.uri());
    let all = store.list("", None).await.unwrap();

    let refused = collect(&uri, false, None).await.unwrap_err().to_string();
    assert!(refused.contains("Running since entry 4") && refused.contains("--force"), "{refused}");
    assert!(collect(&uri, false, Some(" ")).await.is_err(), "a reason is wanted");
    assert_eq!(collect(&uri, true, Some("its cluster is gone")).await.unwrap(), 0);
    assert_eq!(store.list("", None).await.unwrap(), all, "a dry run removes nothing");
    assert!(half.exists());

    assert_eq!(collect(&uri, false, Some("its cluster is gone")).await.unwrap(), 0);
    let left = store.list("", None).await.unwrap();
    let gone: Vec<_> = all.iter().filter(|key| !left.contains(key)).map(String::as_str).collect();
    let displaced = ["default/pv-0a1b/1/chk-1/_metadata", "default/pv-0a1b/1/chk-1/state.parquet"];
    let mut expected: Vec<_> = litter.into_iter().chain(displaced).collect();
    expected.sort_unstable();
    assert_eq!(gone, expected);
    assert!(!half.exists());
    let place = Place::open(&uri, None, None).unwrap();
    for id in [2, 3] {
        assert!(read_metadata(&place, &format!("{uri}/1/chk-{id}")).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn what_cannot_be_told_from_litter_is_left() {
    let directory = Directory::new("gc-damaged");
    let store = directory.store();
    write_job(&*store, &job("pv")).await;
    let nothing = collect(&format!("{}/default/none", directory.uri()), false, Some("gone")).await.unwrap_err();
    assert!(nothing.to_string().contains("<storage>/<namespace>/<name>-<uid>"), "{nothing}");
    store.delete(&["default/pv-0a1b/1/chk-2/_metadata".to_owned()]).await.unwrap();
    let before = store.list("", None).await.unwrap();
    let refused = collect(&directory.uri(), false, Some("gone")).await.unwrap_err().to_string();
    assert!(refused.contains("1/chk-2/_metadata") && refused.contains("nothing was removed"), "{refused}");
    assert_eq!(store.list("", None).await.unwrap(), before);
    write_job(&*store, &job("other")).await;
    let several = collect(&directory.uri(), false, Some("gone")).await.unwrap_err().to_string();
    assert!(several.contains("default/other-0a1b") && several.contains("default/pv-0a1b"), "{several}");
}
