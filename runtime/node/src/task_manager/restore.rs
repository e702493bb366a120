//! Fetches the state that a deployment's tasks restore, each file once.
//!
//! A file that cannot be read, or whose bytes are not those that were stored, is tried again a few times, then fails the
//! restore by its name; that spends no restart (F2). One of a newer format version is refused by name. Nothing is restored
//! without it.

use super::{Equipment, in_flight, pool};
use crate::job_manager::store::jittered;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use sluice_engine::in_flight::RestoredChannel;
use sluice_engine::operator::{RestoredKeyed, RestoredList, RestoredState};
use sluice_engine::program::Program;
use sluice_engine::state::{SpooledFile, StateBackend, StateBytes};
use sluice_protocol::failure::Failure;
use sluice_protocol::message::TaskDeployment;
use sluice_protocol::state::{Checksum, OperatorSnapshot, OperatorStateHandle, StateData, SubtaskState};
use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const PARALLEL: usize = 4;

/// What was fetched, by path.
type Files = BTreeMap<String, StateBytes>;

/// What the checkpoint tells of a file, by path.
type Expected = (u64, Option<Checksum>);

/// What one task restores.
#[derive(Default)]
pub(crate) struct TaskState {
    /// The state of each operator.
    pub(crate) operators: BTreeMap<OperatorUid, RestoredState>,
    /// What was in flight on its input edges.
    pub(crate) in_flight: Vec<RestoredChannel>,
}

/// Fetches everything that these tasks restore.
///
/// # Errors
/// When a file cannot be read, by its name.
pub(crate) async fn fetch(
    equipment: &Equipment,
    tasks: &[TaskDeployment],
) -> Result<BTreeMap<SubtaskId, TaskState>, Failure> {
    let paths: BTreeMap<String, Expected> =
        tasks.iter().filter_map(|task| task.restore.as_ref()).flat_map(file_paths).collect();
    let files: Files = futures::stream::iter(paths)
        .map(|(path, expected)| async move {
            let bytes = fetch_file(equipment, &path, expected).await?;
            Ok::<_, Failure>((path, spool(equipment, bytes).await?))
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await?;
    let files = Arc::new(files);
    let mut states = BTreeMap::new();
    for task in tasks {
        if let Some(restore) = &task.restore {
            let (job, files, restore_of) = (Arc::clone(&equipment.job), Arc::clone(&files), restore.clone());
            let subtask = task.subtask;
            let assembling = move || assemble(&job.program, subtask, &restore_of, &files);
            let operators = pool::run("decoding operator state", assembling).await?;
            let in_flight = in_flight::fetch(equipment, task.subtask, &restore.in_flight).await?;
            states.insert(task.subtask, TaskState { operators, in_flight });
        }
    }
    Ok(states)
}

fn file_paths(state: &SubtaskState) -> impl Iterator<Item = (String, Expected)> {
    state.operators.iter().flat_map(OperatorSnapshot::data).filter_map(|data| match data {
        StateData::File { path, size, checksum } => Some((path.clone(), (*size, *checksum))),
        StateData::Inline { .. } => None,
    })
}

/// With backend Disk, what was fetched waits on the disk for being read: state may be larger than memory.
async fn spool(equipment: &Equipment, bytes: Bytes) -> Result<StateBytes, Failure> {
    let StateBackend::Disk(space) = &equipment.state_backend else { return Ok(bytes.into()) };
    let path = space.directory().join(format!("restore-{}", crate::edge::random_id()));
    let written = tokio::fs::write(&path, bytes).await;
    let file = StateBytes::Spooled(Arc::new(SpooledFile::new(path)));
    written.map(|()| file).map_err(|error| {
        let place = space.directory().display();
        Failure::external("StateUnreadable", format!("fetched state cannot be written to {place}: {error}"))
    })
}

async fn fetch_file(equipment: &Equipment, path: &str, (size, checksum): Expected) -> Result<Bytes, Failure> {
    let check = |bytes: &Bytes| match (checksum, Checksum::of(bytes)) {
        (Some(expected), found) if expected != found => {
            Err(Unfit::Damaged(format!("its checksum is {found}, but the checkpoint says {expected}: it is damaged")))
        }
        _ => Ok(()),
    };
    fetch_checked(equipment, path, None, size, check).await
}

/// Why bytes that were fetched are not taken.
pub(super) enum Unfit {
    /// They are not those that were stored: fetching them again may help.
    Damaged(String),
    /// Nothing but another program or another snapshot helps.
    Never(String),
}

/// A part of a file, whose bytes tell themselves whether they are as they were stored.
///
/// # Errors
/// When it cannot be read, by its name.
pub(super) async fn fetch_range(
    equipment: &Equipment,
    path: &str,
    range: Range<u64>,
    check: impl Fn(&Bytes) -> Result<(), Unfit>,
) -> Result<Bytes, Failure> {
    let size = range.end.saturating_sub(range.start);
    fetch_checked(equipment, path, Some(range), size, check).await
}

async fn fetch_checked(
    equipment: &Equipment,
    path: &str,
    range: Option<Range<u64>>,
    size: u64,
    check: impl Fn(&Bytes) -> Result<(), Unfit>,
) -> Result<Bytes, Failure> {
    let mut pause = FIRST_PAUSE;
    let mut last = String::new();
    for attempt in 1..=TRIES {
        let fetched = try_fetch(equipment, path, range.clone()).await;
        let sized = fetched.and_then(|bytes| check_size(&bytes, size).map(|()| bytes)).map_err(Unfit::Damaged);
        last = match sized.and_then(|bytes| check(&bytes).map(|()| bytes)) {
            Ok(bytes) => return Ok(bytes),
            Err(Unfit::Damaged(message)) => message,
            Err(Unfit::Never(message)) => {
                return Err(Failure::user(
                    "SnapshotUnreadable",
                    format!("state file {path} cannot be read: {message}"),
                ));
            }
        };
        warn!("state file {path}, try {attempt} of {TRIES}: {last}");
        if attempt < TRIES {
            tokio::time::sleep(jittered(pause)).await;
            pause *= 2;
        }
    }
    Err(Failure::external("StateUnreadable", format!("state file {path} cannot be read: {last}")))
}

fn check_size(bytes: &Bytes, size: u64) -> Result<(), String> {
    if bytes.len() as u64 == size {
        return Ok(());
    }
    Err(format!("it has {} bytes, but the checkpoint says {size}", bytes.len()))
}

async fn try_fetch(equipment: &Equipment, path: &str, range: Option<Range<u64>>) -> Result<Bytes, String> {
    let (store, key) = equipment.storage.executor.resolve(path).map_err(|failure| failure.to_string())?;
    let got = match range {
        Some(range) => store.get_range(&key, range).await,
        None => store.get(&key).await,
    };
    match got {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err("it does not exist, though the checkpoint refers to it".to_owned()),
        Err(failure) => Err(failure.to_string()),
    }
}

/// Sorts the pieces by operator: key groups that overlap the subtask's own, and the splits that it owns.
fn assemble(
    program: &Program,
    subtask: SubtaskId,
    restore: &SubtaskState,
    files: &Files,
) -> Result<BTreeMap<OperatorUid, RestoredState>, Failure> {
    let vertex = subtask.vertex.0 as usize;
    let parallelism = program.graph.vertices.get(vertex).map_or(1, |vertex| vertex.parallelism);
    let own = KeyGroupRange::of_subtask(subtask.index, parallelism, program.graph.max_parallelism);
    let source = program.vertices.get(vertex).and_then(|vertex| vertex.source.as_ref());
    let mut state: BTreeMap<OperatorUid, RestoredState> = BTreeMap::new();
    for operator in &restore.operators {
        let restored = state.entry(operator.uid.clone()).or_default();
        for keyed in &operator.keyed {
            if keyed.key_groups.intersection(own).is_empty() {
                continue;
            }
            let bytes = bytes_of(&keyed.data, files)?;
            let (name, divided_into) = (keyed.name.clone(), restore.divided_into);
            restored.keyed.push(RestoredKeyed { name, kind: keyed.kind, divided_into, bytes });
        }
        for list in &operator.operator {
            restored.operator.push(read_list(&operator.uid, list, files)?);
        }
        let owned = operator.splits.iter().filter(|split| {
            source.is_none_or(|(_, factory)| factory.owner(&split.split, parallelism) == subtask.index)
        });
        restored.splits.extend(owned.cloned());
    }
    Ok(state)
}

fn bytes_of(data: &StateData, files: &Files) -> Result<StateBytes, Failure> {
    match data {
        StateData::Inline { bytes } => Ok(StateBytes::from(bytes.clone())),
        StateData::File { path, .. } => files
            .get(path)
            .cloned()
            .ok_or_else(|| Failure::external("StateUnreadable", format!("state file {path} was not fetched"))),
    }
}

/// The items of a list that the subtask gets.
fn read_list(uid: &OperatorUid, list: &OperatorStateHandle, files: &Files) -> Result<RestoredList, Failure> {
    let OperatorStateHandle { name, redistribution, first, items, data } = list;
    let read = match bytes_of(data, files)? {
        StateBytes::Memory(bytes) => Ok(bytes),
        StateBytes::Spooled(file) => std::fs::read(file.path()).map(Bytes::from),
    };
    let read = read.map_err(|error| Failure::external("StateUnreadable", format!("state '{name}': {error}")))?;
    let all: Vec<serde_json::Value> = serde_json::from_slice(&read).map_err(|error| {
        let place = match data {
            StateData::Inline { .. } => "_metadata",
            StateData::File { path, .. } => path,
        };
        let text = format!("state '{name}' of operator '{uid}' in {place} is not a JSON array: {error}");
        Failure::user("StateUnreadable", text)
    })?;
    let skip = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let items = all.into_iter().skip(skip(*first)).take(skip(*items)).collect();
    Ok(RestoredList { name: name.clone(), redistribution: *redistribution, items })
}
