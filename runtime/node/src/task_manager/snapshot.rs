//! The slow half of a snapshot: encode what the task froze, upload what is large, say where it lies (K2, design §4).
//!
//! With a savepoint everything is stored twice: for recovery, and in files of the savepoint's own, which need no other
//! (K4).

use super::{Equipment, in_flight};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use sluice_engine::error::TaskError;
use sluice_engine::operator::{KeyedPiece, OperatorState};
use sluice_engine::task::TaskSnapshot;
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::message::CheckpointMetrics;
use sluice_protocol::paths::{self, JobPaths};
use sluice_protocol::state::{INLINE_LIMIT, KeyedStateHandle, OperatorSnapshot, SplitState, StateData, SubtaskState};
use sluice_protocol::store::{StoreFailure, StoreFailureKind};
use sluice_protocol::{CheckpointId, KeyGroupRange, OperatorUid, Run, SubtaskId};
use sluice_storage::{ObjectStore, PutOutcome};
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Uploads of one subtask at once.
const PARALLEL: usize = 4;

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

/// Where the files of one snapshot go.
pub(super) struct Target {
    /// The store and the key of the directory in it; `None`: all state travels inline.
    pub(super) directory: Option<(Arc<dyn ObjectStore>, String)>,
}

impl Target {
    fn of_checkpoint(equipment: &Equipment, place: &Place) -> Self {
        let paths = JobPaths::new(&equipment.job.job);
        let directory = paths.checkpoint_directory(place.run.generation, place.checkpoint);
        let store = || Arc::clone(equipment.storage.executor.home());
        Self { directory: place.has_store.then(|| (store(), directory)) }
    }

    fn of_savepoint(equipment: &Equipment, place: &Place, uri: &str) -> Result<Self, Failure> {
        let resolved = equipment.storage.executor.resolve(uri);
        Ok(Self { directory: Some(resolved.map_err(|failure| not_stored(place, &failure))?) })
    }
}

/// Encodes and uploads.
///
/// # Errors
/// When it cannot be encoded or stored: the checkpoint is to be declined.
pub(crate) async fn store(equipment: &Equipment, place: Place, mut snapshot: TaskSnapshot) -> Result<Stored, Failure> {
    let started = Instant::now();
    let mut metrics = snapshot.metrics;
    place.check_wanted()?;
    let savepoint = snapshot.barrier.savepoint.clone();
    let in_flight = std::mem::take(&mut snapshot.in_flight);
    let written = tokio::task::spawn_blocking(move || snapshot.write()).await;
    let operators = written
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("writing the snapshot failed: {error}"))))
        .map_err(|error| error.to_failure())?;
    let operators = number_pieces(operators);
    let savepoint = match savepoint {
        None => None,
        Some(uri) => {
            let target = Target::of_savepoint(equipment, &place, &uri)?;
            Some(store_operators(&target, &place, operators.clone()).await?)
        }
    };
    let target = Target::of_checkpoint(equipment, &place);
    let mut state = store_operators(&target, &place, operators).await?;
    state.in_flight = in_flight::store(equipment, &target, &place, in_flight).await?;
    metrics.in_flight_bytes = state.in_flight.iter().map(|handle| handle.length).sum();
    let keyed = state.operators.iter().flat_map(|operator| &operator.keyed);
    metrics.bytes = keyed.map(|keyed| keyed.data.size()).sum::<u64>() + metrics.in_flight_bytes;
    metrics.full_bytes = metrics.bytes;
    metrics.async_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Stored { state, savepoint, metrics })
}

/// What one operator stores; cheap to clone.
#[derive(Clone)]
struct Numbered {
    uid: OperatorUid,
    pieces: Vec<Piece>,
    splits: Vec<SplitState>,
}

#[derive(Clone)]
struct Piece {
    /// Its number within the subtask.
    sequence: u32,
    name: String,
    key_groups: KeyGroupRange,
    rows: u64,
    bytes: Bytes,
}

fn number_pieces(operators: Vec<(OperatorUid, OperatorState)>) -> Vec<Numbered> {
    let mut next = 0;
    let mut number = |KeyedPiece { name, key_groups, rows, bytes }: KeyedPiece| {
        let sequence = next;
        next += 1;
        Piece { sequence, name, key_groups, rows, bytes: bytes.into() }
    };
    let number = |(uid, state): (OperatorUid, OperatorState)| {
        let pieces = state.keyed.into_iter().map(&mut number).collect();
        Numbered { uid, pieces, splits: state.splits }
    };
    operators.into_iter().map(number).collect()
}

async fn store_operators(target: &Target, place: &Place, operators: Vec<Numbered>) -> Result<SubtaskState, Failure> {
    let operators = futures::stream::iter(operators)
        .map(|numbered| store_operator(target, place, numbered))
        .buffered(PARALLEL)
        .try_collect()
        .await?;
    Ok(SubtaskState { operators, in_flight: Vec::new() })
}

async fn store_operator(target: &Target, place: &Place, numbered: Numbered) -> Result<OperatorSnapshot, Failure> {
    let Numbered { uid, pieces, splits } = numbered;
    let mut keyed = Vec::with_capacity(pieces.len());
    for piece in pieces {
        keyed.push(store_piece(target, place, &uid, piece).await?);
    }
    Ok(OperatorSnapshot { uid, subtask: place.subtask.index, keyed, splits })
}

async fn store_piece(
    target: &Target,
    place: &Place,
    uid: &OperatorUid,
    piece: Piece,
) -> Result<KeyedStateHandle, Failure> {
    let Piece { sequence, name, key_groups, rows, bytes } = piece;
    let data = match &target.directory {
        None => {
            check_fits(&format!("state of operator '{uid}'"), bytes.len())?;
            StateData::Inline { bytes: bytes.to_vec() }
        }
        Some(_) if bytes.len() < INLINE_LIMIT => StateData::Inline { bytes: bytes.to_vec() },
        Some((store, directory)) => upload(store, directory, place, sequence, bytes).await?,
    };
    Ok(KeyedStateHandle { name, key_groups, rows, data })
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
    sequence: u32,
    bytes: Bytes,
) -> Result<StateData, Failure> {
    let Place { run, subtask, checkpoint, .. } = *place;
    let nonce = crate::edge::random_id();
    upload_as(store, directory, place, paths::state_file(run, checkpoint, subtask, sequence, &nonce), bytes).await
}

/// Uploads under a name that nobody else uses.
pub(super) async fn upload_as(
    store: &Arc<dyn ObjectStore>,
    directory: &str,
    place: &Place,
    name: String,
    bytes: Bytes,
) -> Result<StateData, Failure> {
    place.check_wanted()?;
    let size = bytes.len() as u64;
    match store.put_if_absent(&format!("{directory}/{name}"), bytes).await {
        // The nonce makes the name ours alone: who finds it taken has put it before, with these bytes.
        Ok(PutOutcome::Created | PutOutcome::Exists) => Ok(StateData::File { path: name, size }),
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
