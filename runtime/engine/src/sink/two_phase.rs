//! Two-phase commit, the first half: from rows to handles in a checkpoint (S1, S3, K3).
//!
//! A sink implements [`TwoPhaseCommitSink`]; [`Transactional`] makes a [`Sink`] of it and owns what is alike for all: when
//! a transaction begins, its name, and carrying handles until a checkpoint that holds them is complete. Callers rely on: an
//! empty transaction is never begun, and a handle is in every checkpoint from the one it was staged with on.

use super::{Sink, SinkContext};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{Clock, TaskIdentity};
use sluice_protocol::commit::COMMIT_ALLOWANCE;
use sluice_protocol::state::Committable;
use sluice_protocol::{Attempt, CheckpointId, Generation, JobId, OperatorUid, Run, SubtaskIndex, Timestamp};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Of so many checkpoints in a row that did not complete a writer carries handles; with one more its task fails and begins
/// again behind the last complete checkpoint, which loses nothing (K3).
pub const CARRIED_CHECKPOINTS: usize = 16;

/// The writer of a sink that commits with checkpoints.
///
/// One transaction at a time: `begin`, `write`…, `pre_commit`, and from then on it belongs to the [`super::Committer`].
///
/// Duties:
/// - what is written is invisible to readers, and survives this process, from `pre_commit` on until it is committed;
/// - dropping the writer, at any moment, neither commits nor aborts anything (S1);
/// - everything that it leaves outside before `pre_commit` is named so that [`TransactionId::is_older`] finds it by its name.
pub trait TwoPhaseCommitSink: Send {
    /// Called once before anything else.
    ///
    /// # Errors
    /// When the counterpart cannot be reached.
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError>;

    /// A transaction begins; rows follow.
    ///
    /// # Errors
    /// When it cannot begin.
    fn begin(&mut self, transaction: &TransactionId) -> Result<(), TaskError>;

    /// Takes rows into the transaction; only called when [`Self::is_writable`] said so.
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

    /// Makes all that was written durable, so that another process can commit it by the handles, and ends the transaction.
    /// Asked again and again while it says [`PreCommit::Pending`], never blocking; the waker is called when it may have
    /// changed. No rows come meanwhile.
    ///
    /// # Errors
    /// When rows are lost: the task must restart.
    fn pre_commit(&mut self) -> Result<PreCommit, TaskError>;

    /// A complete checkpoint is without this handle: it is committed, or was given up, and nobody sends its commit again.
    /// What it occupied may be used anew (S2).
    fn settled(&mut self, handle: &Committable) {
        let _ = handle;
    }
}

/// How far a pre-commit is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreCommit {
    /// Not all is durable yet.
    Pending,
    /// It is. The handles are few, and a few hundred bytes each: they travel in every checkpoint until they are committed.
    Staged(Vec<Staged>),
}

/// The handle of something staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// Of the sink's own format of the bytes: raised when it changes, so that an older release can refuse it by name.
    pub version: u32,
    /// When it is gone unless it is committed before, by the clock that the writer was opened with (S4): reckon from a moment
    /// before the target's own reckoning begins, since the target's clock may be any. `None`: it keeps.
    pub expires_at: Option<Timestamp>,
    /// What the committer needs to find it.
    pub bytes: Vec<u8>,
}

/// Names one transaction for ever: no other writer, attempt or job uses the same name (S3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionId {
    /// The job.
    pub job: JobId,
    /// The sink.
    pub sink: OperatorUid,
    /// The attempt.
    pub run: Run,
    /// The writer.
    pub subtask: SubtaskIndex,
    /// The writer's transactions are numbered.
    pub slot: u64,
}

impl TransactionId {
    /// What the names of all transactions of a sink of a job begin with.
    #[must_use]
    pub fn prefix(job: &JobId, sink: &OperatorUid) -> String {
        format!("{}-{}-", plain(&job.uid), plain(sink.as_str()))
    }

    /// Whether this is the name of a transaction of this sink, begun by an attempt before `run`.
    #[must_use]
    pub fn is_older(name: &str, job: &JobId, sink: &OperatorUid, run: Run) -> bool {
        let Some(rest) = name.strip_prefix(&Self::prefix(job, sink)) else { return false };
        let numbers: Vec<Option<u64>> = rest.split('-').map(|number| number.parse().ok()).collect();
        let [Some(generation), Some(attempt), Some(_), Some(_)] = numbers[..] else { return false };
        let attempt = Attempt(u32::try_from(attempt).unwrap_or(u32::MAX));
        Run { generation: Generation(generation), attempt } < run
    }
}

impl fmt::Display for TransactionId {
    /// `<job uid>-<sink uid>-<generation>-<attempt>-<subtask>-<slot>`: letters, digits, `.`, `_` and `-` only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { generation, attempt } = self.run;
        let prefix = Self::prefix(&self.job, &self.sink);
        write!(f, "{prefix}{generation}-{attempt}-{}-{}", self.subtask, self.slot)
    }
}

/// Text that can stand in any name. Where something had to be replaced, a digest keeps it apart from others.
fn plain(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.chars().all(is_plain) {
        return text.to_owned();
    }
    let replaced: String = text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    format!("{replaced}.{:08x}", sluice_protocol::state::Checksum::of(text.as_bytes()).0 & 0xffff_ffff)
}

/// A [`Sink`] of a [`TwoPhaseCommitSink`].
pub struct Transactional<S> {
    sink: S,
    writer: Option<(TaskIdentity, OperatorUid, SubtaskIndex)>,
    slot: u64,
    is_open: bool,
    staged: Vec<Staged>,
    carried: Vec<Committable>,
    /// Handed over with a complete checkpoint, and not known to be settled.
    unsettled: Vec<Committable>,
    clock: Option<Clock>,
}

impl<S: TwoPhaseCommitSink> Transactional<S> {
    /// Of this writer.
    pub const fn new(sink: S) -> Self {
        Self {
            sink,
            writer: None,
            slot: 0,
            is_open: false,
            staged: Vec::new(),
            carried: Vec::new(),
            unsettled: Vec::new(),
            clock: None,
        }
    }

    fn begin(&mut self) -> Result<(), TaskError> {
        let Some((TaskIdentity { job, run }, sink, subtask)) = self.writer.clone() else {
            return Err(TaskError::Internal("a sink was written to before it was opened".to_owned()));
        };
        self.sink.begin(&TransactionId { job, sink, run, subtask, slot: self.slot })?;
        self.slot += 1;
        self.is_open = true;
        Ok(())
    }
}

impl<S: TwoPhaseCommitSink> Sink for Transactional<S> {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        let SinkContext { operator, identity, .. } = &context;
        self.clock = Some(Arc::clone(&context.clock));
        self.writer = Some((identity.clone(), operator.uid.clone(), operator.subtask));
        self.sink.open(context)
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        if !self.is_open {
            self.begin()?;
        }
        self.sink.write(batch)
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        self.sink.is_writable()
    }

    fn flush(&mut self) -> Result<bool, TaskError> {
        if !self.is_open {
            return Ok(true);
        }
        match self.sink.pre_commit()? {
            PreCommit::Pending => Ok(false),
            PreCommit::Staged(staged) => {
                self.is_open = false;
                self.staged.extend(staged);
                Ok(true)
            }
        }
    }

    fn committables(&mut self, checkpoint: CheckpointId) -> Result<Vec<Committable>, TaskError> {
        let staged = std::mem::take(&mut self.staged).into_iter();
        self.carried.extend(staged.map(|Staged { version, expires_at, bytes }| Committable {
            version,
            checkpoint,
            expires_at,
            bytes,
        }));
        let checkpoints: BTreeSet<_> = self.carried.iter().map(|one| one.checkpoint).collect();
        if checkpoints.len() > CARRIED_CHECKPOINTS {
            return Err(TaskError::External(format!(
                "sink '{}' has staged rows with {} checkpoints in a row that did not complete; it begins again behind the last \
                 complete one, which loses nothing. Look at why checkpoints fail",
                self.writer.as_ref().map(|(_, sink, _)| sink.as_str()).unwrap_or_default(),
                checkpoints.len()
            )));
        }
        let by = self.clock.as_ref().map_or_else(Timestamp::default, |clock| clock()).plus(COMMIT_ALLOWANCE);
        if let Some(old) = self.carried.iter().find(|one| one.expires_at.is_some_and(|at| at < by)) {
            return Err(TaskError::External(format!(
                "sink '{}' has staged rows with checkpoint {} that its target gives up within {COMMIT_ALLOWANCE}, and no \
                 checkpoint with them is complete; it begins again behind the last complete one, which loses nothing. Give \
                 transactions a longer timeout, or look at why checkpoints fail or take so long",
                self.writer.as_ref().map(|(_, sink, _)| sink.as_str()).unwrap_or_default(),
                old.checkpoint
            )));
        }
        Ok(self.carried.clone())
    }

    /// From here on they are the JobManager's to commit and to carry.
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId, held: Option<&[CheckpointId]>) {
        self.unsettled.extend(self.carried.extract_if(.., |one| one.checkpoint <= checkpoint));
        let Some(held) = held else { return };
        let settled: Vec<_> = self.unsettled.extract_if(.., |one| !held.contains(&one.checkpoint)).collect();
        settled.iter().for_each(|handle| self.sink.settled(handle));
    }
}

#[cfg(test)]
mod tests;
