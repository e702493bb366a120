//! The second half of two-phase commit: transactions of sinks on their way from a complete checkpoint to the outside (S1-S6).
//!
//! What the JobMaster hands to the sinks' own code in its process, and what comes back. The first half, from a row to a
//! [`Committable`] in a checkpoint, is the engine's.

use crate::ids::{JobId, OperatorUid, Run, SubtaskIndex};
use crate::state::Committable;
use crate::time::{TimeSpan, Timestamp};
use serde::{Deserialize, Serialize};

/// What a commit may take from the moment that a checkpoint's entry is sent, with margin: a checkpoint with a handle that may
/// be gone sooner is not completed (S4).
pub const COMMIT_ALLOWANCE: TimeSpan = TimeSpan::from_secs(15);

/// Names one [`crate::job_master::Action::Commit`] or [`crate::job_master::Action::AbortLeftovers`] and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitId(pub u64);

/// A staged transaction and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitHandle {
    /// The sink.
    pub sink: OperatorUid,
    /// The subtask that staged it, under the parallelism of then.
    pub subtask: SubtaskIndex,
    /// The handle.
    pub committable: Committable,
}

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It is committed, now or before.
    Settled,
    /// Not yet, for this reason; it is to be tried again.
    Retry(String),
    /// It never will be: what was staged is gone, and was not committed (S6).
    Lost(String),
    /// The same, and the table says to go on without it.
    GivenUp(String),
}

/// Output of a sink that a job's end leaves uncommitted (L6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnsettledOutput {
    /// The sink.
    pub sink: OperatorUid,
    /// Of so many staged transactions; 0: of how many could not be read.
    pub transactions: u64,
    /// When its target gives the first of them up, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// So many further sinks are not named, besides the last that is.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_sinks: u64,
}

/// How long what a sink stages lives, as its committer has found out (S4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkLife {
    /// The sink.
    pub sink: OperatorUid,
    /// How long.
    pub life: StagedLife,
}

/// How long a sink's target keeps what is staged and not committed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StagedLife {
    /// Until it is committed or aborted.
    #[default]
    Unlimited,
    /// It is given up after this time.
    Limited {
        /// From its beginning.
        span: TimeSpan,
        /// What says so: an option and its place.
        by: String,
    },
    /// The target does not tell, for this reason; what to do.
    Unknown(String),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What attempts before `older_than` may have left open in the sinks of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftovers {
    /// The job.
    pub job: JobId,
    /// Only what older runs began is meant.
    pub older_than: Run,
    /// Unsettled handles: these transactions are spared (S3).
    pub spared: Vec<CommitHandle>,
}
