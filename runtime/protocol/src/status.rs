//! The status of a job as the JobManager pushes it to the controller, to `sluice run`'s progress line and to
//! the JSON on port 8081. Readers ignore fields they do not know; writers only add.

use crate::commit::UnsettledOutput;
use crate::failure::{Failure, FailureRecord};
use crate::ids::{Attempt, CheckpointId, Generation, TaskManagerId};
use crate::ledger::SavepointKind;
use crate::restart::FailureCounts;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum JobState {
    /// Reading its ledger, waiting for slots, or deploying for the first time.
    #[default]
    Starting,
    /// All tasks run.
    Running,
    /// Waiting for the delay of the restart strategy, or deploying again.
    Restarting,
    /// All input was read: tasks work on what is queued, then the last checkpoint is taken.
    Finishing,
    /// A stop or cancel is under way.
    Stopping,
    /// All results are out.
    Finished,
    /// Stopped on request; it can be resumed.
    Stopped,
    /// Cancelled on request.
    Cancelled,
    /// Ended by a failure; everything retained.
    Failed,
}

impl JobState {
    /// Whether the job has ended.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Stopped | Self::Cancelled | Self::Failed)
    }
}

/// The whole of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// State.
    pub state: JobState,
    /// One sentence: what it waits for, or why it ended; the root cause first.
    pub message: String,
    /// This JobManager's generation.
    pub generation: Generation,
    /// The current attempt within it; 0 before the first deployment.
    pub attempt: Attempt,
    /// Failed attempts so far under this revision of the spec (F1).
    pub failed_attempts: u64,
    /// The counts behind it: what the controller merges into its own and hands to the next generation (F1).
    pub failure_counts: FailureCounts,
    /// URIs of the job's own checkpoints that are kept for a rollback, until the controller releases them (K7).
    pub pinned: Vec<String>,
    /// On whose behalf each of them is, such as `revision 3`; runtimes of 0.1 do not say.
    pub pinned_by: Vec<String>,
    /// Number of the last ledger entry known (N3's m); 0 = none.
    pub ledger_entry: u64,
    /// Since when the state is what it is.
    pub since: Timestamp,
    /// When the next restart is due, while it waits for one.
    pub next_restart_at: Option<Timestamp>,
    /// What the current attempt was restored from; absent when it started empty.
    pub restored_from: Option<CheckpointInfo>,
    /// The snapshot that the job was started from, if it is none of its own checkpoints, and whether it still needs it.
    pub foreign_snapshot: Option<ForeignSnapshotStatus>,
    /// The last completed checkpoint.
    pub last_checkpoint: Option<CheckpointInfo>,
    /// Checkpoints completed by this generation.
    pub completed_checkpoints: u64,
    /// Checkpoints failed in this generation.
    pub failed_checkpoints: u64,
    /// Failed ones since the last completed one.
    pub failed_checkpoints_in_a_row: u64,
    /// Staged transactions of sinks that were found lost by this generation: their rows are in no result (S6).
    pub lost_commits: u64,
    /// Output that the job's end has left uncommitted (L6).
    pub unsettled: Vec<UnsettledOutput>,
    /// Checkpoints under way.
    pub pending_checkpoints: Vec<CheckpointId>,
    /// The last failures, newest first, at most 16.
    pub failures: Vec<FailureRecord>,
    /// Registered TaskManagers.
    pub task_managers: Vec<TaskManagerStatus>,
    /// Slots that the job needs.
    pub slots_needed: u32,
    /// Tasks that run, of all.
    pub tasks_running: u32,
    /// Number of tasks.
    pub tasks: u32,
    /// Vertices, for the page and for people.
    pub vertices: Vec<VertexStatus>,
    /// Requests with their answers: savepoints as the ledger tells them, the last 50; checkpoints, disposals and refusals
    /// as this process remembers them.
    pub requests: Vec<RequestStatus>,
    /// The id of the options that were last taken over without a restart; absent while those of the manifest are obeyed.
    pub options_id: Option<String>,
    /// Notes that a condition should show: `(reason, message)`, such as an older directory of the same name (N1).
    pub notices: Vec<Notice>,
}

/// A completed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointInfo {
    /// Its id.
    pub id: CheckpointId,
    /// URI of its directory.
    pub path: String,
    /// When it was triggered.
    pub triggered_at: Timestamp,
    /// When its ledger entry stood.
    pub completed_at: Timestamp,
    /// Bytes of state.
    pub bytes: u64,
}

/// A snapshot that the job was started from and does not own: another job's checkpoint, a copy, a savepoint. The job
/// never removes it (K7).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForeignSnapshotStatus {
    /// URI of its directory.
    pub path: String,
    /// Whether the job would restore it again, or reads it: then it must stay.
    pub needed: bool,
    /// Since when it is not needed any more.
    pub released_at: Option<Timestamp>,
    /// The job's own checkpoint with which that came; absent when a start from something else did it.
    pub released_by: Option<CheckpointId>,
}

/// What somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestStatus {
    /// Its id.
    pub id: String,
    /// What for.
    pub kind: RequestKind,
    /// How far.
    pub state: RequestState,
    /// URI of what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The snapshot that came of it: its id, size and times, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<CheckpointInfo>,
    /// Why nothing came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestKind {
    /// A savepoint.
    Savepoint,
    /// A savepoint to stop with.
    Stop,
    /// A savepoint to drain and stop with.
    Drain,
    /// A checkpoint now.
    Checkpoint,
    /// That a savepoint is removed.
    Dispose,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestState {
    /// Not answered.
    Pending,
    /// Done.
    Completed,
    /// Given up or refused.
    Failed,
}

impl From<SavepointKind> for RequestKind {
    fn from(kind: SavepointKind) -> Self {
        match kind {
            SavepointKind::Savepoint => Self::Savepoint,
            SavepointKind::Stop => Self::Stop,
            SavepointKind::Drain => Self::Drain,
        }
    }
}

/// One TaskManager.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskManagerStatus {
    /// Its name.
    pub id: TaskManagerId,
    /// Its slots.
    pub slots: u32,
    /// When it was last heard.
    pub last_heard: Timestamp,
}

/// One vertex.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VertexStatus {
    /// Its name.
    pub name: String,
    /// Subtasks.
    pub parallelism: u32,
    /// Subtasks that run.
    pub running: u32,
    /// Subtasks that have read all input.
    pub finished: u32,
}

/// Something that a condition should show.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Notice {
    /// CamelCase.
    pub reason: String,
    /// A sentence.
    pub message: String,
}
