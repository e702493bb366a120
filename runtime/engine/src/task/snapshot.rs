//! A task's part of a checkpoint, between the freeze on its thread and the upload elsewhere.

use crate::error::TaskError;
use crate::in_flight::InFlight;
use crate::operator::{KeyedPiece, OperatorState, SnapshotWriter, WriteOptions};
use sluice_protocol::message::{Barrier, CheckpointMetrics};
use sluice_protocol::{CheckpointId, OperatorUid, SubtaskId, TimeSpan, Timestamp};
use std::fmt;

/// The frozen state of a chain's operators, in their order; those without state are left out.
pub(super) type FrozenOperators = Vec<(OperatorUid, Box<dyn SnapshotWriter>)>;

/// A checkpoint whose barrier has been taken.
#[derive(Clone)]
pub(super) struct SnapshotDraft {
    pub(super) barrier: Barrier,
    pub(super) alignment: TimeSpan,
    pub(super) started_at: Timestamp,
    pub(super) flushed_from: Timestamp,
}

/// A checkpoint whose state is frozen and whose barrier has gone on, while not all that belongs to it is known.
pub(super) struct OpenCut {
    pub(super) draft: SnapshotDraft,
    pub(super) operators: FrozenOperators,
    pub(super) frozen_at: Timestamp,
    pub(super) in_flight: Vec<InFlight>,
    /// Whether all that it overtook in the inputs is known.
    pub(super) inputs_known: bool,
    /// Whether the sink has let go of everything that was written before.
    pub(super) sink_flushed: bool,
    /// Whether the handles of what it has staged are among the operators' state.
    pub(super) has_committables: bool,
    /// Whether all that it overtook in the outputs is known: its barrier has left or was turned.
    pub(super) outputs_known: bool,
}

impl OpenCut {
    pub(super) const fn checkpoint(&self) -> CheckpointId {
        self.draft.barrier.checkpoint
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.inputs_known && self.sink_flushed && self.outputs_known
    }

    pub(super) fn complete(self, subtask: SubtaskId) -> TaskSnapshot {
        let SnapshotDraft { barrier, alignment, started_at, flushed_from } = self.draft;
        let metrics = CheckpointMetrics {
            start_delay_ms: started_at.since(barrier.triggered_at).0,
            alignment_ms: alignment.0,
            sync_ms: self.frozen_at.since(flushed_from).0,
            ..CheckpointMetrics::default()
        };
        TaskSnapshot { barrier, subtask, metrics, in_flight: self.in_flight, operators: self.operators }
    }
}

/// Frozen state, to be written away from the task's thread.
pub struct TaskSnapshot {
    /// The cut.
    pub barrier: Barrier,
    /// Whose state.
    pub subtask: SubtaskId,
    /// What is known so far; `async_ms` and `bytes` are for whoever writes and uploads.
    pub metrics: CheckpointMetrics,
    /// The batches that the barrier overtook: take them before [`TaskSnapshot::write`], and store them with the state.
    pub in_flight: Vec<InFlight>,
    operators: FrozenOperators,
}

impl TaskSnapshot {
    /// Encodes the state of each operator that has any, in the order of the chain. Slow: not for the task's thread.
    ///
    /// # Errors
    /// When a state cannot be encoded; the checkpoint is then to be declined.
    pub fn write(&self, options: &WriteOptions) -> Result<Vec<(OperatorUid, OperatorState)>, TaskError> {
        let mut pieces: Vec<(OperatorUid, KeyedPiece)> = Vec::new();
        let mut states = self.write_pieces(options, &mut |uid, piece| {
            pieces.push((uid.clone(), piece));
            Ok(())
        })?;
        for (uid, piece) in pieces {
            states.iter_mut().filter(|(other, _)| *other == uid).for_each(|(_, state)| state.keyed.push(piece.clone()));
        }
        Ok(states)
    }

    /// As [`Self::write`], but pieces of keyed state are handed over one by one.
    ///
    /// # Errors
    /// As [`Self::write`], and when `take` fails.
    pub fn write_pieces(
        &self,
        options: &WriteOptions,
        take: &mut dyn FnMut(&OperatorUid, KeyedPiece) -> Result<(), TaskError>,
    ) -> Result<Vec<(OperatorUid, OperatorState)>, TaskError> {
        let write = |(uid, writer): &(OperatorUid, Box<dyn SnapshotWriter>)| {
            Ok((uid.clone(), writer.write(options, &mut |piece| take(uid, piece))?))
        };
        self.operators.iter().map(write).collect()
    }
}

impl fmt::Debug for TaskSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uids: Vec<&OperatorUid> = self.operators.iter().map(|(uid, _)| uid).collect();
        f.debug_struct("TaskSnapshot")
            .field("barrier", &self.barrier)
            .field("subtask", &self.subtask)
            .field("metrics", &self.metrics)
            .field("in_flight", &self.in_flight.len())
            .field("operators", &uids)
            .finish()
    }
}
