//! The steps of a checkpoint, from the trigger to the end of its commits, told to whoever watches.
//!
//! Tests watch, and stop or kill the process at exactly one of them. Whoever watches is named by the program that starts the
//! process; `sluice` names nobody, and no option or variable of it does.

use sluice_engine::program::Program;
use sluice_engine::sink::committer;
use sluice_protocol::JobId;
use sluice_protocol::commit::{CommitHandle, CommitOutcome};
use sluice_protocol::ledger::{Entry, EntryKind};
use sluice_protocol::state::SubtaskState;
use sluice_protocol::store::{StoreOperation, StoreReply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A step of the protocol, in the process that takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// JobManager: a barrier is decided on, and sources on this TaskManager are not told of it yet.
    BeforeBarrier,
    /// TaskManager: the first of its tasks has frozen its part of a checkpoint; others wait for barriers.
    Aligning,
    /// TaskManager: a sink has pre-committed and all is stored; the acknowledgement is not sent.
    PreCommitted,
    /// JobManager: all have acknowledged and `_metadata` is stored; the entry is not sent.
    BeforeEntry,
    /// JobManager: the entry stands, which it does not know yet.
    Appended,
    /// JobManager: a part of a checkpoint's transactions is committed, the rest is not asked for.
    AmidCommits,
    /// JobManager: all of a checkpoint's transactions are committed, which no entry says.
    Committed,
    /// The same as [`Step::AmidCommits`], of a successor that settles what it has found in the ledger (S5).
    AmidSettling,
    /// The same as [`Step::Committed`] of such a one.
    Settled,
    /// JobManager: all is settled for the end, the terminal entry is not sent (L6).
    BeforeEnd,
    /// JobManager: the terminal entry stands.
    Ended,
}

impl Step {
    /// All of them, in the order of a job's life.
    pub const ALL: [Self; 11] = [
        Self::BeforeBarrier,
        Self::Aligning,
        Self::PreCommitted,
        Self::BeforeEntry,
        Self::Appended,
        Self::AmidCommits,
        Self::Committed,
        Self::AmidSettling,
        Self::Settled,
        Self::BeforeEnd,
        Self::Ended,
    ];
}

type Watch = Arc<dyn Fn(Step) + Send + Sync>;

/// Who watches, if anybody does. What it is told of has not gone on when it returns.
#[derive(Clone, Default)]
pub struct Steps(Option<Watch>);

impl std::fmt::Debug for Steps {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.0.is_some() { "Steps(watched)" } else { "Steps" })
    }
}

impl Steps {
    /// Tells `watch`, which may be called on any thread.
    pub fn watched(watch: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(watch)))
    }

    pub(crate) fn reached(&self, step: Step) {
        if let Some(watch) = &self.0 {
            watch(step);
        }
    }

    /// An acknowledgement is about to be sent.
    pub(crate) fn acknowledging(&self, state: &SubtaskState) {
        if state.operators.iter().any(|operator| !operator.committables.is_empty()) {
            self.reached(Step::PreCommitted);
        }
    }
}

/// The steps of a JobManager.
#[derive(Clone, Default)]
pub(crate) struct JobManagerSteps {
    steps: Steps,
    /// Whether this process has completed a checkpoint: what is committed before is its predecessor's.
    has_completed: Arc<AtomicBool>,
}

impl JobManagerSteps {
    pub(crate) fn new(steps: Steps) -> Self {
        Self { steps, has_completed: Arc::default() }
    }

    pub(crate) fn triggering(&self) {
        self.steps.reached(Step::BeforeBarrier);
    }

    /// A store operation is about to be done. Says what it appends, where somebody watches.
    pub(crate) fn storing(&self, operation: &StoreOperation) -> Option<Appends> {
        self.steps.0.as_ref()?;
        let appends = appended_by(operation)?;
        self.steps.reached(match appends {
            Appends::Checkpoint => Step::BeforeEntry,
            Appends::End => Step::BeforeEnd,
        });
        Some(appends)
    }

    /// It was done.
    pub(crate) fn stored(&self, appends: Option<Appends>, reply: &StoreReply) {
        let Some(appends) = appends.filter(|_| matches!(reply, StoreReply::Put)) else { return };
        match appends {
            Appends::Checkpoint => {
                self.has_completed.store(true, Ordering::Release);
                self.steps.reached(Step::Appended);
            }
            Appends::End => self.steps.reached(Step::Ended),
        }
    }

    /// Commits; where somebody watches in two parts, so that there is something between them.
    pub(crate) fn commit(&self, program: &Program, job: &JobId, handles: &[CommitHandle]) -> Vec<CommitOutcome> {
        let (amid, done) = if self.has_completed.load(Ordering::Acquire) {
            (Step::AmidCommits, Step::Committed)
        } else {
            (Step::AmidSettling, Step::Settled)
        };
        let (first, rest) = handles.split_at(if self.steps.0.is_some() { handles.len() / 2 } else { 0 });
        let mut outcomes = committer::commit_all(program, job, first);
        if !first.is_empty() && are_settled(&outcomes) {
            self.steps.reached(amid);
        }
        outcomes.extend(committer::commit_all(program, job, rest));
        if are_settled(&outcomes) {
            self.steps.reached(done);
        }
        outcomes
    }
}

fn are_settled(outcomes: &[CommitOutcome]) -> bool {
    outcomes.iter().all(|outcome| *outcome == CommitOutcome::Settled)
}

/// What an entry of the ledger means for the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appends {
    /// A checkpoint is complete (K1).
    Checkpoint,
    /// The job has ended (L6).
    End,
}

fn appended_by(operation: &StoreOperation) -> Option<Appends> {
    let StoreOperation::PutIfAbsent { key, bytes } = operation else { return None };
    if !key.contains("/ledger/") {
        return None;
    }
    match Entry::from_bytes(bytes, key).ok()?.kind {
        EntryKind::Checkpoint { .. } => Some(Appends::Checkpoint),
        EntryKind::Stopped | EntryKind::Finished { .. } | EntryKind::Cancelled { .. } | EntryKind::Failed { .. } => {
            Some(Appends::End)
        }
        _ => None,
    }
}
