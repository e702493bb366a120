//! The slow half of a snapshot: encode what the task froze, upload what is large, say where it lies (K2, design §4).

use super::Equipment;
use futures::{StreamExt as _, TryStreamExt as _};
use sluice_engine::error::TaskError;
use sluice_engine::operator::{KeyedPiece, OperatorState};
use sluice_engine::task::TaskSnapshot;
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::message::CheckpointMetrics;
use sluice_protocol::paths::{self, JobPaths};
use sluice_protocol::state::{INLINE_LIMIT, KeyedStateHandle, OperatorSnapshot, StateData, SubtaskState};
use sluice_protocol::{CheckpointId, OperatorUid, Run, SubtaskId};
use sluice_storage::PutOutcome;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Uploads of one subtask at once.
const PARALLEL: usize = 4;

/// Most bytes of one state that fit into the JobManager's memory.
const JOB_MANAGER_LIMIT: usize = 5 * 1024 * 1024;

/// What a subtask acknowledges.
pub(crate) struct Stored {
    pub(crate) state: SubtaskState,
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

/// Encodes and uploads.
///
/// # Errors
/// When it cannot be encoded or stored: the checkpoint is to be declined.
pub(crate) async fn store(equipment: &Equipment, place: Place, snapshot: TaskSnapshot) -> Result<Stored, Failure> {
    let started = Instant::now();
    let mut metrics = snapshot.metrics;
    place.check_wanted()?;
    let written = tokio::task::spawn_blocking(move || snapshot.write()).await;
    let operators = written
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("writing the snapshot failed: {error}"))))
        .map_err(|error| error.to_failure())?;
    let operators: Vec<OperatorSnapshot> = futures::stream::iter(number_pieces(operators))
        .map(|numbered| store_operator(equipment, &place, numbered))
        .buffered(PARALLEL)
        .try_collect()
        .await?;
    let keyed = operators.iter().flat_map(|operator| &operator.keyed);
    metrics.bytes = keyed.map(|keyed| keyed.data.size()).sum();
    metrics.async_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Stored { state: SubtaskState { operators }, metrics })
}

struct Numbered {
    uid: OperatorUid,
    state: OperatorState,
    /// Number of its first piece within the subtask.
    first: u32,
}

fn number_pieces(operators: Vec<(OperatorUid, OperatorState)>) -> Vec<Numbered> {
    let mut next = 0;
    let number = |(uid, state): (OperatorUid, OperatorState)| {
        let first = next;
        next += u32::try_from(state.keyed.len()).unwrap_or(u32::MAX);
        Numbered { uid, state, first }
    };
    operators.into_iter().map(number).collect()
}

async fn store_operator(equipment: &Equipment, place: &Place, numbered: Numbered) -> Result<OperatorSnapshot, Failure> {
    let Numbered { uid, state, first } = numbered;
    let mut keyed = Vec::with_capacity(state.keyed.len());
    for (sequence, piece) in (first..).zip(state.keyed) {
        keyed.push(store_piece(equipment, place, &uid, sequence, piece).await?);
    }
    Ok(OperatorSnapshot { uid, subtask: place.subtask.index, keyed, splits: state.splits })
}

async fn store_piece(
    equipment: &Equipment,
    place: &Place,
    uid: &OperatorUid,
    sequence: u32,
    piece: KeyedPiece,
) -> Result<KeyedStateHandle, Failure> {
    let KeyedPiece { name, key_groups, rows, bytes } = piece;
    let data = if !place.has_store {
        check_fits(uid, bytes.len())?;
        StateData::Inline { bytes }
    } else if bytes.len() < INLINE_LIMIT {
        StateData::Inline { bytes }
    } else {
        upload(equipment, place, sequence, bytes).await?
    };
    Ok(KeyedStateHandle { name, key_groups, rows, data })
}

fn check_fits(uid: &OperatorUid, size: usize) -> Result<(), Failure> {
    if size <= JOB_MANAGER_LIMIT {
        return Ok(());
    }
    let text = format!(
        "state of operator '{uid}' takes {size} bytes, but storage JobManager holds at most {JOB_MANAGER_LIMIT} per state; \
         set spec.checkpointing.storage to a file:/// or s3:// address"
    );
    Err(Failure::restart("StateTooLarge", Fault::User, text))
}

async fn upload(equipment: &Equipment, place: &Place, sequence: u32, bytes: Vec<u8>) -> Result<StateData, Failure> {
    place.check_wanted()?;
    let Place { run, subtask, checkpoint, .. } = *place;
    let nonce = crate::edge::random_id();
    let name = paths::state_file(run, checkpoint, subtask, sequence, &nonce);
    let directory = JobPaths::new(&equipment.job.job).checkpoint_directory(run.generation, checkpoint);
    let key = format!("{directory}/{name}");
    let size = bytes.len() as u64;
    let failed = |message: String| {
        Failure::restart(
            "UploadFailed",
            Fault::External,
            format!("checkpoint {checkpoint}, subtask {subtask}: {message}"),
        )
    };
    match equipment.storage.executor.home().put_if_absent(&key, bytes.into()).await {
        // The nonce makes the name ours alone: who finds it taken has put it before, with these bytes.
        Ok(PutOutcome::Created | PutOutcome::Exists) => Ok(StateData::File { path: name, size }),
        Err(failure) => Err(failed(failure.to_string())),
    }
}
