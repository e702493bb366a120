//! The status of a StreamJob: what the controller answers, and what it must remember (N2, N3, F1).
//!
//! The controller is its only writer. Every field is optional: an older status reads under a newer version.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluice_protocol::restart::FailureCounts;

/// What is known of a StreamJob.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamJobStatus {
    /// What the job does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StreamJobState>,
    /// What the job waits for, or why it ended; the root cause first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The last metadata.generation of the StreamJob that was acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of the JobManager process, counted over the job's whole life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Run of the tasks within the generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Number of the effective spec that runs: it grows with every change that the job must be redeployed for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The newest revision whose tasks were seen to be deployed: its directive is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_revision: Option<u64>,
    /// The ConfigMap that holds this revision's frozen manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// What this revision was told to start from, with the ledger's entry it was decided on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directive: Option<Value>,
    /// Restarts under this revision: of the tasks and of the JobManager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    /// Failures under this revision by generation: what the restart strategy decides on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_counts: Option<FailureCounts>,
    /// Number of the last entry of the job's ledger that the controller knows of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger_entry: Option<u64>,
    /// The uid of this generation's JobManager pod; absent until it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_manager_pod: Option<String>,
    /// The lowest index that a new TaskManager pod of this generation may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_task_manager: Option<u32>,
    /// The last completed checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<LastCheckpoint>,
    /// What the running attempt was restored from; absent when it started empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<LastCheckpoint>,
    /// The snapshot that the job was started from, if it is none of its own checkpoints, and whether it still needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_snapshot: Option<ForeignSnapshot>,
    /// When the next restart is due, while one is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_restart_at: Option<MicroTime>,
    /// Whether nextRestartAt is when the controller starts the next generation, rather than when the JobManager
    /// restarts the tasks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_restart: bool,
    /// The ConfigMap whose manifest the generation's JobManager was started with; another than program while it runs with
    /// options that it has taken over since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployed_program: Option<String>,
    /// The stop that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopUnderWay>,
    /// The pod that ends the job in its ledger, or removes a savepoint of it, in the place of a JobManager that cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helper: Option<HelperUnderWay>,
    /// Savepoints to stop with that were asked for under the revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub savepoint_requests: Option<u32>,
    /// The savepoint that the job was stopped with, until it starts again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_with: Option<String>,
    /// The places of spec.restore that the job has started from, the last 16: none of them is gone back to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub used_restores: Vec<UsedRestore>,
    /// The change of the spec that could not be carried out and waits, while the job runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldUpgrade>,
    /// The revision's time until it is stable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
    /// The last revision that was stable: what a rollback runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable: Option<StableRevision>,
    /// The spec that was given up for the stable one; it is tried again when it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<GivenUp>,
    /// Subtasks per vertex of the revision that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<u32>,
    /// Label selector of the job's TaskManager pods, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The last failures, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<StatusFailure>,
    /// Ready, Progressing and Degraded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl StreamJobState {
    /// Whether nothing of the job runs any more until its spec changes.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Suspended | Self::Cancelled | Self::Failed | Self::Invalid)
    }
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StreamJobState {
    /// Its pods start, or its tasks are deployed for the first time.
    Starting,
    /// All tasks run.
    Running,
    /// A failure is being recovered from.
    Restarting,
    /// All input was read: tasks work on what is queued, then a last checkpoint is taken.
    Finishing,
    /// A stop is under way: the job is to be suspended, or its spec has changed.
    Stopping,
    /// All results are out.
    Finished,
    /// Stopped on request; it keeps its state.
    Suspended,
    /// Cancelled on request.
    Cancelled,
    /// The restart strategy is spent, or state is missing. A change of the spec starts it again.
    Failed,
    /// The manifest or the program is wrong: it waits for a change of the spec.
    Invalid,
}

/// A stop, from the decision to the end of the JobManager.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StopUnderWay {
    /// When it was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<MicroTime>,
    /// What for.
    pub cause: StopCause,
    /// Id of the request for the savepoint to stop with; absent when a last checkpoint does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub savepoint_request: Option<String>,
    /// The savepoint, once it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub savepoint: Option<String>,
}

/// A JobManager that runs no task; the generation is its.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HelperUnderWay {
    /// What it does.
    pub task: HelperTask,
    /// When the first one for it was decided on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<MicroTime>,
    /// Pods so far.
    pub tries: u32,
    /// For Dispose: the uid of the Savepoint whose files are removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub savepoint: Option<String>,
    /// For Dispose: where they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// For Dispose: how it ended, as CamelCase; Disposed when they are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// For Dispose: the same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What a helper does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum HelperTask {
    /// It ends the job in its ledger.
    #[default]
    Close,
    /// It removes the files of a savepoint.
    Dispose,
}

/// What a job is stopped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum StopCause {
    /// Another spec.
    #[default]
    Upgrade,
    /// Another number of subtasks or slots.
    Rescale,
    /// Another place to restore from.
    Restore,
    /// `state: Suspended`.
    Suspend,
    /// The revision was not stable in time.
    RollBack,
    /// The StreamJob is being deleted.
    Delete,
}

/// A `spec.restore` that the job has started from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UsedRestore {
    /// What it was restored from.
    pub from: String,
    /// Under which nonce.
    pub nonce: u64,
}

/// A change that waits.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeldUpgrade {
    /// The ConfigMap that the new spec would be frozen in: it names the spec.
    pub program: String,
    /// CamelCase name of the cause.
    pub reason: String,
    /// Why, and what to do.
    pub message: String,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<MicroTime>,
    /// Tries so far.
    pub tries: u32,
}

/// A revision that is not stable yet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Trial {
    /// When its first generation was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<MicroTime>,
    /// The snapshot that it was started from, which a rollback can return to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Generation of the run that is being watched.
    pub generation: u64,
    /// Attempt of the run that is being watched.
    pub attempt: u32,
    /// Checkpoints that the generation had completed before that run.
    pub checkpoints_before: u64,
}

/// A revision that was stable.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StableRevision {
    /// Its number.
    pub revision: u64,
    /// The ConfigMap that holds its frozen manifest.
    pub program: String,
}

/// A spec that was given up for the last stable one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GivenUp {
    /// The revision that it ran as.
    pub revision: u64,
    /// The ConfigMap that holds its frozen manifest.
    pub program: String,
    /// CamelCase name of the cause.
    pub reason: String,
    /// Why, and which output is written again.
    pub message: String,
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// The metadata.generation of the spec then: any later one is tried anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A completed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LastCheckpoint {
    /// Its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// URI of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// When it was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// A snapshot that the job was started from and does not own: another job's checkpoint, a copy, a savepoint. The job never
/// removes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ForeignSnapshot {
    /// URI of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether it must stay: the job would restore it again.
    pub needed: bool,
    /// Since when the job needs it no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
    /// Id of the job's own checkpoint with which that came; absent when a start from something else did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_by: Option<u64>,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusFailure {
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Whose fault: User, External or Internal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// What the kubelet says of its pod's end, where it has one: `OOMKilled (exit code 137)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_end: Option<String>,
    /// The end of that pod's log, where its process could not say why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_log_lines: Option<String>,
    /// In which generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// In which attempt of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// On which pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// CamelCase name of the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was wrong, where, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
