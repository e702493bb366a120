//! What a JobManager knows before it has read anything.

use crate::graph::JobGraph;
use crate::ids::{Generation, JobId, OperatorUid, ProcessId};
use crate::options::JobOptions;
use crate::restart::FailureCounts;
use serde::{Deserialize, Serialize};

/// Everything a JobManager knows before it has read anything.
#[derive(Debug, Clone)]
pub struct JobMasterConfig {
    /// The job.
    pub job: JobId,
    /// Its generation.
    pub generation: Generation,
    /// Its random identity.
    pub process: ProcessId,
    /// Spec revision.
    pub revision: u64,
    /// What to start from (N3).
    pub directive: Directive,
    /// The graph that the program builds.
    pub graph: JobGraph,
    /// The options.
    pub options: JobOptions,
    /// URI of the root of checkpoint storage without a trailing slash; `None` with storage `JobManager`.
    pub storage_uri: Option<String>,
    /// The store's endpoint when it passed the probe of L7 before this start; recorded in `Started`.
    pub probed: Option<String>,
    /// The failures that the controller's status holds; merged with the ledger's (F1). Empty for a local run.
    pub failures: FailureCounts,
    #[doc(hidden)]
    pub planted: Planted,
}

/// Bugs planted on purpose, so that tests can prove that they would be found. All off outside tests.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Planted {
    /// L3, L4 broken: supersession is never noticed, first entries of generations are trimmed.
    pub no_fence: bool,
    /// L2 broken: an append without a clear answer counts as failed and its number is used again.
    pub unclear_append_is_failure: bool,
    /// L2 broken: 412 of an own put is taken for another's.
    pub own_append_is_foreign: bool,
    /// N3 broken: the directive's conditions are not checked.
    pub no_directive_check: bool,
    /// K4 broken: a savepoint whose entry is under way at its deadline has failed.
    pub deadline_decides: bool,
    /// K5 broken: savepoints and unaligned checkpoints are under way together.
    pub overlapping_savepoints: bool,
    /// K6 broken: what failed checkpoints and savepoints and older generations left is kept.
    pub keeps_dead: bool,
    /// K6 broken: with a checkpoint go all its files, whatever else refers to them.
    pub forgets_references: bool,
    /// K4 broken: after a drain that was given up the tasks go on without their sources.
    pub forgets_drains: bool,
    /// N3 broken: entries of an older revision beyond m stop a start again and again.
    pub insists_on_m: bool,
    /// L6, K4 broken: a closer ends the job as it was told, whatever the job had been asked to end with before.
    pub closes_unfinished: bool,
    /// K7 broken: what an upgrade went on from is displaced as any other checkpoint.
    pub ignores_pins: bool,
    /// K3 broken: a checkpoint does not carry the handles of those before it.
    pub forgets_handles: bool,
    /// K1 broken: sinks commit before the checkpoint's entry stands.
    pub commits_early: bool,
    /// G5 broken: another job's state is taken without an entry in its ledger.
    pub takes_over_unfenced: bool,
    /// L7 broken: a job whose checkpoints were in the memory of a lost JobManager starts empty.
    pub forgets_lost_memory: bool,
}

/// What a start carries (N3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Directive {
    /// Spec revision and nonces, as text.
    pub id: String,
    /// m: number of the last ledger entry that the controller has seen; 0 = none.
    pub seen: u64,
    /// What to do.
    pub start: StartFrom,
}

/// The kinds of start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartFrom {
    /// The job's latest retained checkpoint, or empty where there is no ledger yet.
    Continue,
    /// The latest checkpoint, only while the ledger ends exactly at `seen`.
    ResumeLatest,
    /// This snapshot, only while the ledger ends exactly at `seen`.
    #[serde(rename_all = "camelCase")]
    Path {
        /// URI of a checkpoint, savepoint or job directory, or of a `_metadata`.
        from: String,
        /// Drop state that no operator takes.
        allow_non_restored_state: bool,
        /// Give up what these sinks have staged and not committed (S5).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        abandon_sinks: Vec<OperatorUid>,
    },
    /// Nothing (stateless), only while the ledger ends exactly at `seen`.
    Empty,
    /// Nothing runs: the job is ended in its ledger, in the place of a JobManager that cannot be reached (L6).
    #[serde(rename_all = "camelCase")]
    Close {
        /// How, unless the job had reached the checkpoint that it ends with.
        end: CloseEnd,
    },
    /// Nothing runs: a savepoint of a job that has ended is removed (L5).
    #[serde(rename_all = "camelCase")]
    Dispose {
        /// URI of its directory or its `_metadata`.
        path: String,
    },
}

impl StartFrom {
    /// Whether no task will run: the process ends the job, or removes something, and goes.
    #[must_use]
    pub const fn is_helper(&self) -> bool {
        matches!(self, Self::Close { .. } | Self::Dispose { .. })
    }
}

/// How a closer ends a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CloseEnd {
    /// It can be resumed: the job is suspended, or its spec has changed.
    Stopped,
    /// For good, obeying `checkpointing.retention`: the job is deleted.
    Cancelled,
    /// It has failed, and all is retained: JobManagers were lost until the restart strategy gave up (F1).
    Failed,
}
