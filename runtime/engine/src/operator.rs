//! Operators: synchronous, they see batches and a [`Collector`], never a socket or the JobManager (design §3).

use crate::batch::Batch;
use crate::error::TaskError;
use arrow::datatypes::SchemaRef;
use sluice_protocol::state::SplitState;
use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskIndex, Timestamp};
use std::sync::Arc;

/// Takes what an operator emits. Never blocks; the task loop stops feeding a chain whose output is full (B4).
pub trait Collector {
    /// Emits rows.
    fn collect(&mut self, batch: Batch);
}

/// Where an operator stands.
#[derive(Debug, Clone)]
pub struct OperatorContext {
    /// Its uid.
    pub uid: OperatorUid,
    /// Which subtask.
    pub subtask: SubtaskIndex,
    /// Of how many.
    pub parallelism: u32,
    /// The key groups of the subtask.
    pub key_groups: KeyGroupRange,
    /// Number of key groups of the job.
    pub max_parallelism: u16,
}

/// Keyed state as read back: a Parquet file as [`sluice_protocol::state::KeyedStateHandle`] describes. It may
/// hold key groups that belong to other subtasks; the operator takes its own.
#[derive(Debug, Clone)]
pub struct RestoredKeyed {
    /// Name of the state within the operator.
    pub name: String,
    /// The file.
    pub bytes: bytes::Bytes,
}

/// What one operator is given at a restore; empty when it starts empty.
#[derive(Debug, Clone, Default)]
pub struct RestoredState {
    /// Whether the job was restored at all: a source that starts without splits then knows which are new.
    pub restored: bool,
    /// Keyed state from every old subtask whose key groups overlap.
    pub keyed: Vec<RestoredKeyed>,
    /// All splits of the operator in the checkpoint that this subtask owns.
    pub splits: Vec<SplitState>,
}

/// A piece of keyed state to be stored.
#[derive(Debug, Clone)]
pub struct KeyedPiece {
    /// Name of the state within the operator.
    pub name: String,
    /// Key groups in the file.
    pub key_groups: KeyGroupRange,
    /// Rows in the file.
    pub rows: u64,
    /// The Parquet file.
    pub bytes: Vec<u8>,
}

/// An operator's state as written out.
#[derive(Debug, Clone, Default)]
pub struct OperatorState {
    /// Keyed state.
    pub keyed: Vec<KeyedPiece>,
    /// Source splits.
    pub splits: Vec<SplitState>,
}

/// The second, slow half of a snapshot: runs off the task's thread.
pub trait SnapshotWriter: Send {
    /// Encodes what the first half froze.
    ///
    /// # Errors
    /// When the state cannot be encoded; the checkpoint is then declined.
    fn write(self: Box<Self>) -> Result<OperatorState, TaskError>;
}

impl SnapshotWriter for OperatorState {
    fn write(self: Box<Self>) -> Result<OperatorState, TaskError> {
        Ok(*self)
    }
}

/// One operator of one subtask.
pub trait Operator: Send {
    /// Called once before any input.
    ///
    /// # Errors
    /// When the state does not fit.
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError>;

    /// Takes rows.
    ///
    /// # Errors
    /// When a row cannot be processed.
    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError>;

    /// Emits what lingers: before a barrier, after the buffer timeout, and at the end of input (B1).
    ///
    /// # Errors
    /// As [`Operator::process`].
    fn flush(&mut self, out: &mut dyn Collector) -> Result<(), TaskError> {
        let _ = out;
        Ok(())
    }

    /// Whether something lingers that [`Operator::flush`] would emit.
    fn lingers(&self) -> bool {
        false
    }

    /// All input was read; called after a last flush.
    ///
    /// # Errors
    /// As [`Operator::process`].
    fn finish(&mut self, out: &mut dyn Collector) -> Result<(), TaskError> {
        let _ = out;
        Ok(())
    }

    /// Freezes the state; must be fast, whatever its size. `None`: no state.
    ///
    /// # Errors
    /// The checkpoint is declined.
    fn snapshot(&mut self) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        Ok(None)
    }
}

/// Makes the operator of each subtask.
pub trait OperatorFactory: Send + Sync {
    /// A new one.
    ///
    /// # Errors
    /// When the program is wrong.
    fn create(&self) -> Result<Box<dyn Operator>, TaskError>;

    /// The schema of what it emits.
    fn output_schema(&self) -> SchemaRef;
}

/// Wakes a task that sleeps for want of input or room: callable from any thread, cheap when the task is awake.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The clock of a process, passed to those who need the time between two steps.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
