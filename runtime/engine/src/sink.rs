//! Sinks: take rows to where they are read by others.
//!
//! A plain [`Sink`] hands over what it is given, and has done so when a checkpoint is acknowledged: a restore writes rows
//! again. One that commits with checkpoints is written as a [`TwoPhaseCommitSink`] and a [`Committer`] ([`two_phase`],
//! [`committer`]); [`conformance`] tries it out.

pub mod committer;
pub mod conformance;
pub mod two_phase;

pub use committer::{Commit, CommitError, Committer, CommitterContext};
pub use two_phase::{PreCommit, Staged, TransactionId, Transactional, TwoPhaseCommitSink};

use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{Clock, OperatorContext, TaskIdentity, Waker};
use sluice_protocol::CheckpointId;
use sluice_protocol::state::Committable;

/// What a sink is opened with.
#[derive(Clone)]
pub struct SinkContext {
    /// Where it stands.
    pub operator: OperatorContext,
    /// Of which job and attempt.
    pub identity: TaskIdentity,
    /// Wakes the task.
    pub waker: Waker,
    /// The JobManager's time as far as it is known, and never ahead of it: by it [`Staged::expires_at`] counts (S4).
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

    /// All input was read: whether all that was written has arrived; asked as [`Sink::flush`] is.
    ///
    /// # Errors
    /// As there.
    fn finish(&mut self) -> Result<bool, TaskError> {
        self.flush()
    }

    /// The handles of what was staged for this checkpoint, and of all before it that are not known to be in a complete
    /// one (K3). Called once per checkpoint, when all is flushed. A sink without transactions has none.
    ///
    /// # Errors
    /// When there are too many: the task must restart.
    fn committables(&mut self, checkpoint: CheckpointId) -> Result<Vec<Committable>, TaskError> {
        let _ = checkpoint;
        Ok(Vec::new())
    }

    /// A checkpoint is complete, and of this sink's subtask it holds the handles that were staged with `held`, no others;
    /// `None`: which they are is not known.
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId, held: Option<&[CheckpointId]>) {
        let _ = (checkpoint, held);
    }
}

/// What becomes of a row when a job fails and restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryGuarantee {
    /// It may be missing or there more than once: no checkpoint waits for it to arrive.
    None,
    /// It is written, perhaps more than once.
    AtLeastOnce,
    /// It becomes visible once, with its checkpoint (S1).
    ExactlyOnce,
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

    /// What it guarantees. One that says exactly once has a [`Committer`].
    fn guarantee(&self) -> DeliveryGuarantee {
        DeliveryGuarantee::AtLeastOnce
    }

    /// Bytes of rows that one writer holds back at most before they are out.
    fn buffered_bytes(&self) -> u64 {
        0
    }

    /// What commits and aborts the transactions of its writers, in the JobManager's process.
    ///
    /// # Errors
    /// When the options are wrong, or the counterpart cannot be reached: tried again.
    fn committer(&self, context: CommitterContext) -> Result<Option<Box<dyn Committer>>, TaskError> {
        let _ = context;
        Ok(None)
    }
}
