//! Sinks: take rows to where they are read by others.

use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{Clock, OperatorContext, Waker};
use sluice_protocol::CheckpointId;

/// What a sink is opened with.
#[derive(Clone)]
pub struct SinkContext {
    /// Where it stands.
    pub operator: OperatorContext,
    /// Wakes the task.
    pub waker: Waker,
    /// The time.
    pub clock: Clock,
}

/// One subtask's writer.
pub trait Sink: Send {
    /// Called once before any row.
    ///
    /// # Errors
    /// When the counterpart cannot be reached.
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError>;

    /// Takes rows; only called when [`Sink::is_writable`] said so.
    ///
    /// # Errors
    /// When writing fails.
    fn write(&mut self, batch: Batch) -> Result<(), TaskError>;

    /// Whether there is room. When not, the waker is called as soon as there is (B4).
    ///
    /// # Errors
    /// When an earlier write has failed meanwhile.
    fn is_writable(&mut self) -> Result<bool, TaskError> {
        Ok(true)
    }

    /// Whether all that was written has arrived; asked again and again before a snapshot, and never blocking.
    /// While it says no, the waker is called when it may have changed.
    ///
    /// # Errors
    /// When a write has failed: the rows are lost and the task must restart.
    fn flush(&mut self) -> Result<bool, TaskError> {
        Ok(true)
    }

    /// A checkpoint is complete.
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) {
        let _ = checkpoint;
    }
}

/// Which rows a sink takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedKinds {
    /// Only inserts.
    InsertOnly,
    /// Inserts, updates after, deletes by key: no `-U`.
    Upsert,
    /// All four.
    All,
}

/// Makes the writers of a sink.
pub trait SinkFactory: Send + Sync {
    /// A new writer.
    ///
    /// # Errors
    /// When the options are wrong.
    fn create(&self) -> Result<Box<dyn Sink>, TaskError>;

    /// Which rows it takes (S7).
    fn accepted_kinds(&self) -> AcceptedKinds;
}
