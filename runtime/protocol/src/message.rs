//! What JobManager and TaskManager say to each other (design §5, §6; N2, N4).
//!
//! Each message that concerns tasks carries its [`Run`]; the receiver refuses one of another run. The types
//! are the ones that decisions use; sluice-rpc puts them on the wire.

use crate::failure::Failure;
use crate::ids::{CheckpointId, ProcessId, Run, SubtaskId, TaskManagerId};
use crate::ledger::Ends;
use crate::state::SubtaskState;
use crate::time::{TimeSpan, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// From the JobManager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTaskManager {
    /// The registration was taken; the session lives while heartbeats come.
    Registered {
        /// Silence after which either side gives up the other.
        heartbeat_timeout: TimeSpan,
    },
    /// The registration was refused; the process should end with this failure.
    Refused(Failure),
    /// I am here.
    Heartbeat {
        /// By the JobManager's clock, which judges how long what sinks stage lives (S4).
        at: Timestamp,
    },
    /// Run these tasks; answered by `TaskRunning` for each. Older runs must have ended first (N4).
    Deploy(Box<Deployment>),
    /// End all tasks of this run; answered by `TasksEnded` when they have ended, also when none runs.
    CancelTasks {
        /// The run.
        run: Run,
    },
    /// Sources of this run: emit the barrier.
    TriggerCheckpoint {
        /// The run.
        run: Run,
        /// The checkpoint.
        barrier: Barrier,
    },
    /// Covers all earlier checkpoints too (B5).
    CheckpointCompleted {
        /// The run.
        run: Run,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// With which checkpoints the handles that it holds of sinks were staged, by the subtask that did: others are settled,
        /// and never sent again (S2, K3). `None`: it is not known.
        held: Option<Vec<Held>>,
    },
    /// Only this one (B5).
    CheckpointAborted {
        /// The run.
        run: Run,
        /// The checkpoint.
        checkpoint: CheckpointId,
    },
    /// How far the sources on all other TaskManagers are, of each alignment group that has any at work there: the answer to
    /// `ReportWatermarks`, once every TaskManager of the run has reported.
    AlignWatermarks {
        /// The run.
        run: Run,
        /// The least watermark of each group.
        groups: Vec<GroupWatermark>,
    },
    /// The job has ended; the process should end.
    Shutdown,
}

/// How far the sources of an alignment group are: those that are furthest behind, but for idle and finished ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupWatermark {
    /// The group's name.
    pub group: String,
    /// Milliseconds since 1970; `i64::MIN` before anything is known.
    pub watermark: i64,
}

/// Handles of a subtask's sink that a complete checkpoint holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The subtask.
    pub subtask: SubtaskId,
    /// With which they were staged.
    pub checkpoints: Vec<CheckpointId>,
}

/// What flows with the rows and cuts the stream (B1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// When the JobManager triggered it.
    pub triggered_at: Timestamp,
    /// The last completed checkpoint, whose objects this one may refer to (K6).
    pub base: Option<CheckpointId>,
    /// What it does where rows are queued before it.
    pub alignment: Alignment,
    /// Whether the job ends with it: sources emit nothing behind one that stops, until it is aborted; before one that
    /// finishes they end their input (K4).
    pub ends: Ends,
    /// Directory of the savepoint that is taken with it: a URI without a trailing slash. Each subtask writes all its
    /// state there as well, in files of the savepoint's own (K4).
    pub savepoint: Option<Arc<str>>,
}

/// What a barrier does at a task where it has not come on every channel (B1-B3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Alignment {
    /// Channels on which it came wait for the others: exactly once.
    #[default]
    Aligned,
    /// No channel waits: rows behind it may be part of the snapshot, and count twice after a restore.
    AtLeastOnce,
    /// It overtakes queued rows, which become part of the snapshot: exactly once.
    Unaligned {
        /// This long after the trigger; until then it is aligned. 0: at once.
        after: TimeSpan,
    },
}

impl Barrier {
    /// From when on it overtakes queued rows; `None`: never. One that ends the input does not, since what operators
    /// and sinks do at their end belongs before it.
    #[must_use]
    pub fn overtakes_from(&self) -> Option<Timestamp> {
        match self.alignment {
            Alignment::Unaligned { .. } if self.ends == Ends::Finish => None,
            // Also where this process's clock is behind the JobManager's.
            Alignment::Unaligned { after: TimeSpan(0) } => Some(Timestamp(0)),
            Alignment::Unaligned { after } => Some(self.triggered_at.plus(after)),
            Alignment::Aligned | Alignment::AtLeastOnce => None,
        }
    }

    /// An aligned barrier of a checkpoint after which the job goes on.
    #[must_use]
    pub const fn aligned(checkpoint: CheckpointId, triggered_at: Timestamp, base: Option<CheckpointId>) -> Self {
        Self { checkpoint, triggered_at, base, alignment: Alignment::Aligned, ends: Ends::None, savepoint: None }
    }
}

/// Tasks for one TaskManager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// The run they belong to.
    pub run: Run,
    /// Its tasks.
    pub tasks: Vec<TaskDeployment>,
    /// Where every subtask of the job runs.
    pub placement: Vec<Placement>,
    /// The directory for this run's files: `<generation>` below the job's directory, relative to the root of
    /// checkpoint storage. `None` with storage `JobManager`: all state travels inline.
    pub state_directory: Option<String>,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDeployment {
    /// The subtask.
    pub subtask: SubtaskId,
    /// What it restores; `None` starts empty. Paths are absolute URIs.
    pub restore: Option<SubtaskState>,
}

/// Where one subtask runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The subtask.
    pub subtask: SubtaskId,
    /// The process.
    pub task_manager: TaskManagerId,
    /// Its data address, `host:port`.
    pub data_address: String,
}

/// From a TaskManager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromTaskManager {
    /// The first message of a session.
    Register(Registration),
    /// I am here.
    Heartbeat,
    /// It was told to leave within this time: it wants no more tasks, and to be rid of those it has after a checkpoint.
    Leaving {
        /// From now.
        within: TimeSpan,
    },
    /// A task has restored its state and reads input.
    TaskRunning {
        /// The run.
        run: Run,
        /// The task.
        subtask: SubtaskId,
    },
    /// A task has read all its input, and its results are out. It lives on and takes part in checkpoints until
    /// the run ends, so finished sources do not stop checkpoints.
    TaskFinished {
        /// The run.
        run: Run,
        /// The task.
        subtask: SubtaskId,
    },
    /// A task has failed.
    TaskFailed {
        /// The run.
        run: Run,
        /// The task.
        subtask: SubtaskId,
        /// Why.
        failure: Failure,
    },
    /// No task of this run runs here any more.
    TasksEnded {
        /// The run.
        run: Run,
    },
    /// How far its sources are, of each alignment group that has any at work here. Sent again and again by every TaskManager
    /// of a job that has such groups.
    ReportWatermarks {
        /// The run.
        run: Run,
        /// The least watermark of each group.
        groups: Vec<GroupWatermark>,
    },
    /// A subtask's part of a checkpoint is safely stored.
    Acknowledge {
        /// The run.
        run: Run,
        /// The task.
        subtask: SubtaskId,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// Its state; paths relative to the checkpoint's directory.
        state: SubtaskState,
        /// Its state in the savepoint that goes along; paths relative to the savepoint's directory (K4).
        savepoint: Option<SubtaskState>,
        /// How long what took.
        metrics: CheckpointMetrics,
    },
    /// A subtask cannot take part in a checkpoint.
    Decline {
        /// The run.
        run: Run,
        /// The task.
        subtask: SubtaskId,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// Why.
        failure: Failure,
    },
}

/// How a TaskManager introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Its name.
    pub task_manager: TaskManagerId,
    /// Its random identity.
    pub process: ProcessId,
    /// The generation it was started for.
    pub generation: crate::ids::Generation,
    /// Tasks it runs at once per vertex.
    pub slots: u32,
    /// Where it takes data connections, `host:port`.
    pub data_address: String,
    /// Of the job graph it built.
    pub fingerprint: String,
}

/// How long the parts of a subtask's checkpoint took, in milliseconds, and its size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointMetrics {
    /// From the trigger to the first barrier.
    pub start_delay_ms: u64,
    /// From the first barrier to the last.
    pub alignment_ms: u64,
    /// In the task's thread.
    pub sync_ms: u64,
    /// Writing and uploading.
    pub async_ms: u64,
    /// Bytes that were stored for it: of an incremental one, what has changed.
    pub bytes: u64,
    /// Bytes of all the state that it holds.
    pub full_bytes: u64,
    /// Bytes of rows that its barriers have overtaken.
    pub in_flight_bytes: u64,
}

impl CheckpointMetrics {
    /// Of several subtasks: the longest times, the sums of the sizes.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        Self {
            start_delay_ms: self.start_delay_ms.max(other.start_delay_ms),
            alignment_ms: self.alignment_ms.max(other.alignment_ms),
            sync_ms: self.sync_ms.max(other.sync_ms),
            async_ms: self.async_ms.max(other.async_ms),
            bytes: self.bytes.saturating_add(other.bytes),
            full_bytes: self.full_bytes.saturating_add(other.full_bytes),
            in_flight_bytes: self.in_flight_bytes.saturating_add(other.in_flight_bytes),
        }
    }
}
