//! A task's part of a checkpoint, between the freeze on its thread and the upload elsewhere.

use crate::error::TaskError;
use crate::operator::{OperatorState, SnapshotWriter};
use sluice_protocol::message::{Barrier, CheckpointMetrics};
use sluice_protocol::{OperatorUid, SubtaskId, TimeSpan, Timestamp};
use std::fmt;

/// The frozen state of a chain's operators, in their order; those without state are left out.
pub(super) type FrozenOperators = Vec<(OperatorUid, Box<dyn SnapshotWriter>)>;

/// A checkpoint that waits for the sink.
pub(super) struct SnapshotDraft {
    pub(super) barrier: Barrier,
    pub(super) alignment: TimeSpan,
    pub(super) started_at: Timestamp,
    pub(super) flushed_from: Timestamp,
}

impl SnapshotDraft {
    pub(super) fn complete(&self, subtask: SubtaskId, operators: FrozenOperators, now: Timestamp) -> TaskSnapshot {
        let metrics = CheckpointMetrics {
            start_delay_ms: self.started_at.since(self.barrier.triggered_at).0,
            alignment_ms: self.alignment.0,
            sync_ms: now.since(self.flushed_from).0,
            ..CheckpointMetrics::default()
        };
        TaskSnapshot { barrier: self.barrier.clone(), subtask, metrics, operators }
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
    operators: FrozenOperators,
}

impl TaskSnapshot {
    /// Encodes the state of each operator that has any, in the order of the chain. Slow: not for the task's thread.
    ///
    /// # Errors
    /// When a state cannot be encoded; the checkpoint is then to be declined.
    pub fn write(self) -> Result<Vec<(OperatorUid, OperatorState)>, TaskError> {
        self.operators.into_iter().map(|(uid, writer)| Ok((uid, writer.write()?))).collect()
    }
}

impl fmt::Debug for TaskSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uids: Vec<&OperatorUid> = self.operators.iter().map(|(uid, _)| uid).collect();
        f.debug_struct("TaskSnapshot")
            .field("barrier", &self.barrier)
            .field("subtask", &self.subtask)
            .field("metrics", &self.metrics)
            .field("operators", &uids)
            .finish()
    }
}
