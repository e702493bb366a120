//! The slow half of a snapshot: encode what the task froze, upload what is large, say where it lies (K2, design §4).
//!
//! Pieces of keyed state are encoded on a thread of the pool and uploaded as they come, so that only a few of them are
//! in memory at once. A checkpoint writes what changed since the base that its barrier names (K6).
//!
//! With a savepoint everything is stored twice: for recovery, and in files of the savepoint's own, which hold all state
//! and need no other (K4).

use super::{Equipment, in_flight, pool};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use sluice_engine::error::TaskError;
use sluice_engine::operator::{KeyedLayers, KeyedPiece, ListPiece, OperatorState, WriteOptions};
use sluice_engine::task::TaskSnapshot;
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::message::CheckpointMetrics;
use sluice_protocol::paths::{self, JobPaths};
use sluice_protocol::state::{
    INLINE_LIMIT, KeyedStateHandle, OperatorSnapshot, OperatorStateHandle, StateData, SubtaskState,
};
use sluice_protocol::store::{StoreFailure, StoreFailureKind};
use sluice_protocol::{CheckpointId, OperatorUid, Run, SubtaskId};
use sluice_storage::{ObjectStore, PutOutcome};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// Uploads of one subtask at once.
const PARALLEL: usize = 2;

/// Most bytes of one state that fit into the JobManager's memory.
const JOB_MANAGER_LIMIT: usize = 5 * 1024 * 1024;

/// What a subtask acknowledges.
pub(crate) struct Stored {
    pub(crate) state: SubtaskState,
    /// Its part of the savepoint that goes along.
    pub(crate) savepoint: Option<SubtaskState>,
    pub(crate) metrics: CheckpointMetrics,
}

/// Where a snapshot belongs.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) run: Run,
    pub(crate) subtask: SubtaskId,
    pub(crate) checkpoint: CheckpointId,
    /// Whether there is a store to upload to.
    pub(crate) has_store: bool,
    /// Cancelled when the checkpoint is: what is not begun by then is left.
    pub(crate) aborted: CancellationToken,
}

impl Place {
    /// Nothing of an aborted checkpoint is begun.
    pub(crate) fn check_wanted(&self) -> Result<(), Failure> {
        if !self.aborted.is_cancelled() {
            return Ok(());
        }
        let message =
            format!("checkpoint {} was aborted while subtask {} stored its state", self.checkpoint, self.subtask);
        Err(Failure::restart("CheckpointAborted", Fault::External, message))
    }
}

/// Where the files of one snapshot go, and how they are named.
#[derive(Clone)]
pub(super) struct Target {
    /// The store and the key of the snapshot's directory in it; `None`: all state travels inline.
    pub(super) directory: Option<(Arc<dyn ObjectStore>, String)>,
    /// Whether later checkpoints may build on it: its files lie where they are shared.
    is_base: bool,
    /// Whether it is a savepoint's.
    is_savepoint: bool,
}

impl Target {
    fn of_checkpoint(equipment: &Equipment, place: &Place) -> Self {
        let paths = JobPaths::new(&equipment.job.job);
        let directory = paths.checkpoint_directory(place.run.generation, place.checkpoint);
        let store = || Arc::clone(equipment.storage.executor.home());
        Self { directory: place.has_store.then(|| (store(), directory)), is_base: place.has_store, is_savepoint: false }
    }

    fn of_savepoint(equipment: &Equipment, place: &Place, uri: &str) -> Result<Self, Failure> {
        let resolved = equipment.storage.executor.resolve(uri);
        Ok(Self {
            directory: Some(resolved.map_err(|failure| not_stored(place, &failure))?),
            is_base: false,
            is_savepoint: true,
        })
    }
}

/// Encodes and uploads.
///
/// # Errors
/// When it cannot be encoded or stored: the checkpoint is to be declined.
pub(crate) async fn store(equipment: &Equipment, place: Place, mut snapshot: TaskSnapshot) -> Result<Stored, Failure> {
    let started = Instant::now();
    let mut metrics = snapshot.metrics;
    let _right = equipment.writers.acquire().await;
    place.check_wanted()?;
    let in_flight = std::mem::take(&mut snapshot.in_flight);
    let snapshot = Arc::new(snapshot);
    let savepoint = match &snapshot.barrier.savepoint {
        None => None,
        Some(uri) => {
            let target = Target::of_savepoint(equipment, &place, uri)?;
            let stored = store_operators(&target, &place, &snapshot, WriteOptions::default()).await?;
            Some(SubtaskState { operators: stored.operators, ..SubtaskState::default() })
        }
    };
    let base = snapshot.barrier.base.filter(|_| place.has_store);
    let options = WriteOptions { base, whole_below: INLINE_LIMIT as u64 };
    let target = Target::of_checkpoint(equipment, &place);
    let stored = store_operators(&target, &place, &snapshot, options).await?;
    let in_flight = in_flight::store(equipment, &target, &place, in_flight).await?;
    metrics.in_flight_bytes = in_flight.iter().map(|handle| handle.length).sum();
    metrics.bytes = stored.new_bytes + metrics.in_flight_bytes;
    let operators = stored.operators.iter().flat_map(OperatorSnapshot::data).map(StateData::size);
    metrics.full_bytes = operators.sum::<u64>() + metrics.in_flight_bytes;
    metrics.async_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let state = SubtaskState { operators: stored.operators, in_flight, divided_into: None };
    Ok(Stored { state, savepoint, metrics })
}

/// What the operators of a subtask have become.
struct StoredOperators {
    operators: Vec<OperatorSnapshot>,
    /// Bytes that were stored for them now.
    new_bytes: u64,
}

/// Writes all operators of the subtask to one target. What the pieces became is remembered for later checkpoints.
async fn store_operators(
    target: &Target,
    place: &Place,
    snapshot: &Arc<TaskSnapshot>,
    options: WriteOptions,
) -> Result<StoredOperators, Failure> {
    let (pieces, taken) = mpsc::channel::<(OperatorUid, KeyedPiece)>(1);
    let snapshot = Arc::clone(snapshot);
    let writing = tokio::task::spawn_blocking(move || {
        snapshot.write_pieces(&options, &mut |uid, piece| {
            // An upload that failed says why itself.
            let gone = |_| TaskError::Internal("the upload of the snapshot has ended".to_owned());
            pieces.blocking_send((uid.clone(), piece)).map_err(gone)
        })
    });
    let handles: Vec<(OperatorUid, KeyedStateHandle)> = ReceiverStream::new(taken)
        .zip(futures::stream::iter(0_u32..))
        .map(|((uid, piece), sequence)| async move {
            let handle = store_piece(target, place, &uid, sequence, piece).await?;
            Ok::<_, Failure>((uid, handle))
        })
        .buffered(PARALLEL)
        .try_collect()
        .await?;
    let states = writing
        .await
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("writing the snapshot failed: {error}"))))
        .map_err(|error| error.to_failure())?;
    let mut sequence = u32::try_from(handles.len()).unwrap_or(u32::MAX);
    let is_savepoint = target.is_savepoint;
    let mut new_bytes = handles.iter().map(|(_, handle)| handle.data.size()).sum();
    let mut operators = Vec::with_capacity(states.len());
    for (uid, OperatorState { layers, operator, splits, committables, .. }) in states {
        let own = || handles.iter().filter(|(owner, _)| *owner == uid).map(|(_, handle)| handle.clone());
        let keyed = put_together(own().collect(), layers, target.is_base);
        let mut lists = Vec::with_capacity(operator.len());
        for list in operator {
            let handle = store_list(target, place, &uid, sequence, list).await?;
            new_bytes += handle.data.size();
            lists.push(handle);
            sequence += 1;
        }
        // Nobody who starts from a savepoint settles what was staged before it (K4).
        let committables = if is_savepoint { Vec::new() } else { committables };
        let subtask = place.subtask.index;
        operators.push(OperatorSnapshot { uid, subtask, keyed, operator: lists, splits, committables });
    }
    Ok(StoredOperators { operators, new_bytes })
}

/// Each state's files in order: those of the base that it builds on, then the new ones.
fn put_together(new: Vec<KeyedStateHandle>, layers: Vec<KeyedLayers>, is_base: bool) -> Vec<KeyedStateHandle> {
    let mut all = Vec::new();
    for KeyedLayers { name, reused, recorder } in &layers {
        let own: Vec<_> = new.iter().filter(|handle| handle.name == *name).cloned().collect();
        if is_base {
            recorder.stored(own.clone());
        }
        all.extend(reused.iter().cloned().chain(own));
    }
    all.extend(new.into_iter().filter(|handle| !layers.iter().any(|layers| layers.name == handle.name)));
    all
}

async fn store_piece(
    target: &Target,
    place: &Place,
    uid: &OperatorUid,
    sequence: u32,
    piece: KeyedPiece,
) -> Result<KeyedStateHandle, Failure> {
    let KeyedPiece { name, key_groups, rows, kind, inline_before, bytes } = piece;
    let data = store_bytes(target, place, uid, sequence, (inline_before, bytes)).await?;
    Ok(KeyedStateHandle { name, key_groups, rows, kind, data })
}

async fn store_list(
    target: &Target,
    place: &Place,
    uid: &OperatorUid,
    sequence: u32,
    list: ListPiece,
) -> Result<OperatorStateHandle, Failure> {
    let ListPiece { name, redistribution, items } = list;
    let count = items.len() as u64;
    let what = format!("state '{name}' of operator '{uid}'");
    let encoding = move || {
        serde_json::to_vec(&items).map_err(|error| {
            let text = format!("{what} cannot be written as JSON: {error}");
            Failure::restart("StateUnwritable", Fault::Internal, text)
        })
    };
    let bytes = pool::run("encoding operator state", encoding).await?;
    let data = store_bytes(target, place, uid, sequence, (0, bytes)).await?;
    Ok(OperatorStateHandle { name, redistribution, first: 0, items: count, data })
}

/// Inline if it is small, together with what lies inline before it.
async fn store_bytes(
    target: &Target,
    place: &Place,
    uid: &OperatorUid,
    sequence: u32,
    (inline_before, bytes): (u64, Vec<u8>),
) -> Result<StateData, Failure> {
    match &target.directory {
        None => {
            check_fits(&format!("state of operator '{uid}'"), bytes.len())?;
            Ok(StateData::Inline { bytes })
        }
        Some(_) if bytes.len() as u64 + inline_before < INLINE_LIMIT as u64 => Ok(StateData::Inline { bytes }),
        Some((store, directory)) => upload(store, directory, place, (sequence, target.is_base), bytes).await,
    }
}

pub(super) fn check_fits(what: &str, size: usize) -> Result<(), Failure> {
    if size <= JOB_MANAGER_LIMIT {
        return Ok(());
    }
    let text = format!(
        "{what} takes {size} bytes, but storage JobManager holds at most {JOB_MANAGER_LIMIT} per state; \
         set spec.checkpointing.storage to a file:/// or s3:// address"
    );
    Err(Failure::restart("StateTooLarge", Fault::User, text))
}

async fn upload(
    store: &Arc<dyn ObjectStore>,
    directory: &str,
    place: &Place,
    (sequence, is_shared): (u32, bool),
    bytes: Vec<u8>,
) -> Result<StateData, Failure> {
    let Place { run, subtask, checkpoint, .. } = *place;
    let name = if is_shared { paths::shared_file } else { paths::state_file };
    let path = name(run, checkpoint, subtask, sequence, &crate::edge::random_id());
    upload_as(store, directory, place, path, bytes.into()).await
}

/// Uploads under a path, relative to the snapshot's directory, that nobody else uses.
pub(super) async fn upload_as(
    store: &Arc<dyn ObjectStore>,
    directory: &str,
    place: &Place,
    path: String,
    bytes: Bytes,
) -> Result<StateData, Failure> {
    place.check_wanted()?;
    let data = StateData::file(path, &bytes);
    let StateData::File { path: key, .. } = data.resolve(directory) else { return Ok(data) };
    match store.put_if_absent(&key, bytes).await {
        // The nonce makes the name ours alone: who finds it taken has put it before, with these bytes.
        Ok(PutOutcome::Created | PutOutcome::Exists) => Ok(data),
        Err(failure) => Err(not_stored(place, &failure)),
    }
}

/// Waiting may help with a store that does not answer; a missing bucket or permission is for a person.
fn not_stored(place: &Place, failure: &StoreFailure) -> Failure {
    let Place { subtask, checkpoint, .. } = place;
    let fault = match failure.kind {
        StoreFailureKind::Unreachable => Fault::External,
        StoreFailureKind::Denied | StoreFailureKind::MissingBucket | StoreFailureKind::Unsuitable => Fault::User,
    };
    Failure::restart("UploadFailed", fault, format!("checkpoint {checkpoint}, subtask {subtask}: {failure}"))
}
