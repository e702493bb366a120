//! The exactly-once sink stands the conformance suite, on the real broker.

use crate::broker::{bootstrap, committed_records, create_topic, read_committed, unique};
use crate::raw;
use crate::secure::{self, Secure};
use crate::task::table;
use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt8Array};
use sluice_connectors::SecretSource;
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::sink::conformance::{self, Subject};
use sluice_engine::sink::{Commit, CommitError, Committer, CommitterContext, DeliveryGuarantee, SinkFactory};
use sluice_engine::table::ConnectorCatalog as _;
use sluice_protocol::commit::StagedLife;
use sluice_protocol::state::Committable;
use sluice_protocol::{CheckpointId, JobId, OperatorUid, Timestamp};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A table of one topic, whose transactional ids begin with a name of its own.
pub(crate) struct Topic {
    bootstrap: String,
    pub(crate) topic: String,
    pub(crate) prefix: String,
    pub(crate) factory: Arc<dyn SinkFactory>,
}

fn batch(numbers: Range<i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    RecordBatch::try_from_iter([("n", column)]).unwrap()
}

impl Topic {
    pub(crate) fn fresh(bootstrap: &str) -> Self {
        Self::reached(bootstrap, bootstrap, &[], sluice_connectors::no_secrets())
    }

    /// One whose sink reaches the broker by this address, in this way.
    pub(crate) fn reached(bootstrap: &str, servers: &str, more: &[(&str, &str)], secrets: SecretSource) -> Self {
        let appends = [("connector", "kafka"), ("format", "json")];
        Self::written((bootstrap, servers), &[&appends, more].concat(), &[], secrets)
    }

    /// One that is written by key.
    fn upsert(bootstrap: &str) -> Self {
        let upserts = [("connector", "upsert-kafka"), ("key.format", "json"), ("value.format", "json")];
        Self::written((bootstrap, bootstrap), &upserts, &[0], sluice_connectors::no_secrets())
    }

    fn written(
        (bootstrap, servers): (&str, &str),
        by: &[(&str, &str)],
        primary_key: &[usize],
        secrets: SecretSource,
    ) -> Self {
        let topic = create_topic(bootstrap, "exactly-once", 2);
        let prefix = format!("{}-", unique("pool"));
        let options = [
            ("topic", topic.as_str()),
            ("properties.bootstrap.servers", servers),
            ("sink.delivery-guarantee", "exactly-once"),
            ("sink.transactional-id-prefix", prefix.as_str()),
        ];
        let described = table(&batch(0..0).schema(), primary_key, &[&options[..], by].concat());
        let factory =
            sluice_connectors::catalog_with(None, secrets).sink(&described).unwrap_or_else(|error| panic!("{error}"));
        Self { bootstrap: bootstrap.to_owned(), topic, prefix, factory }
    }

    fn open(&self) -> Vec<String> {
        let mut open = raw::open_transactions(&self.bootstrap);
        open.retain(|id| id.starts_with(&self.prefix));
        open
    }

    fn committer(&self) -> Box<dyn Committer> {
        let job = JobId { namespace: "default".into(), name: "conformance".into(), uid: "0c0ffee0-1".into() };
        let context = CommitterContext { job, sink: OperatorUid::from("out.sink") };
        self.factory.committer(context).unwrap().unwrap()
    }

    pub(crate) fn commit(&self, handle: &Committable) -> Result<Commit, CommitError> {
        self.committer().commit(handle)
    }

    /// How long what it stages lives.
    pub(crate) fn life(&self) -> Result<StagedLife, CommitError> {
        self.committer().life()
    }
}

pub(crate) fn text_of(handle: &Committable, field: &str) -> String {
    let handle: serde_json::Value = serde_json::from_slice(&handle.bytes).unwrap();
    handle[field].as_str().map_or_else(|| handle[field].to_string(), str::to_owned)
}

impl Subject for Topic {
    fn factory(&self) -> &dyn SinkFactory {
        &*self.factory
    }

    fn rows(&self, numbers: Range<i64>) -> Batch {
        Batch::inserts(batch(numbers))
    }

    fn visible(&self) -> Result<Vec<i64>, String> {
        let values = read_committed(&self.bootstrap, &self.topic);
        let number = |value: String| {
            let row: serde_json::Value = serde_json::from_str(&value).map_err(|error| error.to_string())?;
            row["n"].as_i64().ok_or(value)
        };
        values.into_iter().map(number).collect()
    }

    fn open_transactions(&self) -> Result<usize, String> {
        Ok(self.open().len())
    }

    fn destroy(&self, committable: &Committable) -> Result<(), String> {
        raw::initialise(&self.bootstrap, &text_of(committable, "transactionalId"));
        Ok(())
    }
}

#[test]
fn the_exactly_once_sink_stands_the_suite() {
    let Some(bootstrap) = bootstrap() else { return };
    raw::wait_for_transactions(&bootstrap);
    assert_eq!(Topic::fresh(&bootstrap).factory.guarantee(), DeliveryGuarantee::ExactlyOnce);
    conformance::check(|| Ok(Topic::fresh(&bootstrap))).unwrap();
}

/// The same with passwords and certificates that are secrets, for librdkafka's connections and those of commits.
#[test]
fn the_exactly_once_sink_stands_the_suite_by_secrets() {
    let (Some(bootstrap), Some(secure)) = (bootstrap(), Secure::find()) else { return };
    raw::wait_for_transactions(&bootstrap);
    let fresh = || {
        let options = secure.options("SCRAM-SHA-512", secure::SCRAM, &secure::IN_TEXT);
        Ok(Topic::reached(&bootstrap, &secure.address, &options, secure.source_of_secrets()))
    };
    conformance::check(fresh).unwrap();
}

/// What is written by key is in the transaction, tombstones too, and an old value is nothing.
#[test]
fn the_exactly_once_sink_stands_the_suite_by_key() {
    let Some(bootstrap) = bootstrap() else { return };
    raw::wait_for_transactions(&bootstrap);
    conformance::check(|| Ok(Topic::upsert(&bootstrap))).unwrap();

    let subject = Topic::upsert(&bootstrap);
    let mut writer = crate::task::Writer::of(&*subject.factory).unwrap();
    let mut stage = |checkpoint: u64, changes: &[(RowKind, i64)]| {
        let column: ArrayRef = Arc::new(changes.iter().map(|(_, n)| Some(*n)).collect::<Int64Array>());
        let kinds = UInt8Array::from_iter_values(changes.iter().map(|(kind, _)| *kind as u8));
        writer.write(Batch { rows: RecordBatch::try_from_iter([("n", column)]).unwrap(), kinds: Some(kinds) });
        writer.flush();
        let handles = writer.sink.committables(CheckpointId(checkpoint)).unwrap();
        writer.sink.checkpoint_completed(CheckpointId(checkpoint), None);
        handles
    };
    let handles =
        stage(1, &[(RowKind::Insert, 1), (RowKind::UpdateBefore, 1), (RowKind::UpdateAfter, 1), (RowKind::Delete, 1)]);
    assert_eq!(committed_records(&bootstrap, &subject.topic), []);
    assert_eq!((handles.len(), subject.commit(&handles[0])), (1, Ok(Commit::Committed)));
    let records =
        committed_records(&bootstrap, &subject.topic).into_iter().map(|(_, key, value)| (key.unwrap(), value));
    let row = r#"{"n":1}"#;
    let value = || Some(row.to_owned());
    assert_eq!(records.collect::<Vec<_>>(), [value(), value(), None].map(|value| (row.to_owned(), value)));

    assert_eq!(stage(2, &[(RowKind::UpdateBefore, 1)]), [], "nothing was sent");
    let after = stage(3, &[(RowKind::Insert, 2)]);
    assert_eq!((after.len(), subject.commit(&after[0])), (1, Ok(Commit::Committed)));
    assert_eq!(subject.open_transactions(), Ok(0));
}

/// The first thing that went wrong is told, not what the producer, which that ended, says of the rows behind it.
#[test]
fn a_writer_that_is_fenced_over_a_backlog_says_so() {
    let Some(bootstrap) = bootstrap() else { return };
    raw::wait_for_transactions(&bootstrap);
    // Little room, so that rows wait, and all of it lingers until the id is somebody else's.
    let small = [("properties.queue.buffering.max.messages", "10"), ("properties.linger.ms", "2000")];
    let subject = Topic::reached(&bootstrap, &bootstrap, &small, sluice_connectors::no_secrets());
    let mut writer = crate::task::Writer::of(&*subject.factory).unwrap();
    writer.write(subject.rows(0..1));
    let deadline = Instant::now() + Duration::from_secs(20);
    while subject.open().is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    writer.write(subject.rows(0..100));
    raw::initialise(&bootstrap, &subject.open()[0]);
    let failed = loop {
        match writer.sink.is_writable() {
            Ok(is_writable) => assert!(!is_writable && Instant::now() < deadline, "it is {is_writable}"),
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(failed.to_string().contains("old epoch"), "{failed}");
}

/// What a coordinator answers in each state, and what the committer makes of it.
#[test]
fn a_commit_is_judged_by_what_the_coordinator_describes() {
    let Some(bootstrap) = bootstrap() else { return };
    raw::wait_for_transactions(&bootstrap);
    let subject = Topic::fresh(&bootstrap);
    // The same handles under another table, which says to go on without what is lost.
    let skip = [("sink.commit-failure", "skip")];
    let skipping = Topic::reached(&bootstrap, &bootstrap, &skip, sluice_connectors::no_secrets());
    let mut writer = crate::task::Writer::of(&*subject.factory).unwrap();
    let mut stage = |checkpoint: u64| {
        writer.write(subject.rows(0..3));
        writer.flush();
        writer.sink.committables(CheckpointId(checkpoint)).unwrap().pop().unwrap()
    };
    let number = |handle: &Committable, field: &str| text_of(handle, field).parse::<i64>().unwrap();
    let end = |handle: &Committable, commits: bool| {
        let epoch = i16::try_from(number(handle, "epoch")).unwrap();
        raw::end(&bootstrap, &text_of(handle, "transactionalId"), number(handle, "producerId"), epoch, commits)
    };

    // Committed by somebody else, of whose answer nothing is known.
    let handle = stage(1);
    // By the sink's own clock, which shows 1970 here, whatever the brokers' does (S4).
    assert_eq!(handle.expires_at, Some(Timestamp(900_000)));
    assert_eq!(end(&handle, true), 0);
    assert_eq!(subject.commit(&handle), Ok(Commit::AlreadyCommitted));
    assert_eq!(skipping.commit(&handle), Ok(Commit::AlreadyCommitted));

    // Aborted.
    let handle = stage(2);
    assert_eq!(end(&handle, false), 0);
    assert!(matches!(subject.commit(&handle), Err(CommitError::Lost(reason)) if reason.contains("aborted")));
    assert!(matches!(skipping.commit(&handle), Err(CommitError::GivenUp(reason)) if reason.contains("aborted")));

    // Initialised by somebody else: the epoch is a higher one.
    let handle = stage(3);
    raw::initialise(&bootstrap, &text_of(&handle, "transactionalId"));
    assert!(matches!(subject.commit(&handle), Err(CommitError::Lost(reason)) if reason.contains("somebody else")));

    // Handles of 0.1 do not say in which cluster they are: they are judged alike.
    let mut old: serde_json::Value = serde_json::from_slice(&handle.bytes).unwrap();
    assert_eq!(old.as_object_mut().unwrap().remove("cluster").unwrap().as_str(), Some("sluice-test-cluster-01"));
    let old = Committable { bytes: old.to_string().into_bytes(), ..handle };
    assert!(matches!(subject.commit(&old), Err(CommitError::Lost(reason)) if reason.contains("somebody else")));

    // An id that the brokers do not know.
    let unknown = String::from_utf8(handle.bytes.clone()).unwrap().replace(&subject.prefix, "nobody-");
    let unknown = Committable { bytes: unknown.into_bytes(), ..handle };
    assert!(matches!(subject.commit(&unknown), Err(CommitError::Lost(reason)) if reason.contains("know nothing")));
    assert!(matches!(skipping.commit(&unknown), Err(CommitError::GivenUp(reason)) if reason.contains("know nothing")));
}

/// Slots that are settled serve again: ids are few, however many checkpoints there are.
#[test]
fn ids_come_from_a_small_pool() {
    let Some(bootstrap) = bootstrap() else { return };
    raw::wait_for_transactions(&bootstrap);
    let subject = Topic::fresh(&bootstrap);
    let mut writer = crate::task::Writer::of(&*subject.factory).unwrap();
    let mut ids = std::collections::BTreeSet::new();
    for checkpoint in 1..=20 {
        writer.write(subject.rows(0..3));
        writer.flush();
        let handles = writer.sink.committables(CheckpointId(checkpoint)).unwrap();
        for handle in &handles {
            ids.insert(text_of(handle, "transactionalId"));
            subject.commit(handle).unwrap();
        }
        writer.sink.checkpoint_completed(CheckpointId(checkpoint), Some(&[CheckpointId(checkpoint)]));
    }
    assert_eq!(subject.visible().unwrap().len(), 60);
    assert!(ids.len() <= 5, "{ids:?}");
}
