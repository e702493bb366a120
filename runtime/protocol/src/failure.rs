//! Whose fault a failure is and how it may be retried: carried from the place it happens to status, events,
//! metrics and exit codes (design §6, style).

use crate::commit::UnsettledOutput;
use crate::ids::{Run, SubtaskId, TaskManagerId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Whose fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fault {
    /// The manifest, the program or the data: retrying the same does not help.
    User,
    /// A store, a broker, a node: waiting may help.
    External,
    /// Ours.
    Internal,
}

/// Retry how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Retry {
    /// Only after the spec changed.
    Never,
    /// By the restart strategy.
    Restart,
    /// With backoff, spending no restart (F2).
    Backoff,
}

/// A failure as people and decisions see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// CamelCase name: event reason, condition reason and metric label.
    pub reason: String,
    /// What was wrong, where, what was expected, and what to do.
    pub message: String,
    /// Whose fault.
    pub fault: Fault,
    /// Retry how.
    pub retry: Retry,
}

impl Failure {
    /// A user's error that only a changed spec mends.
    #[must_use]
    pub fn user(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into(), fault: Fault::User, retry: Retry::Never }
    }

    /// Something outside that did not answer; retried with backoff and without spending a restart at start.
    #[must_use]
    pub fn external(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into(), fault: Fault::External, retry: Retry::Backoff }
    }

    /// A failure while running that the restart strategy decides about.
    #[must_use]
    pub fn restart(reason: &str, fault: Fault, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into(), fault, retry: Retry::Restart }
    }
}

/// A failure with its place and time, for status and history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureRecord {
    /// When.
    pub at: Timestamp,
    /// In which run.
    pub run: Run,
    /// On which TaskManager, when on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_manager: Option<TaskManagerId>,
    /// In which subtask, when in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtask: Option<SubtaskId>,
    /// What.
    pub failure: Failure,
}

/// What a process says when it ends: the termination message of its pod, and its exit code (design §7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitRecord {
    /// How it ended.
    pub kind: ExitKind,
    /// Why: reason and message of the failure, or a sentence.
    pub reason: String,
    /// For people.
    pub message: String,
    /// For [`ExitKind::Superseded`]: the generation that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_generation: Option<u64>,
    /// Number of the last ledger entry that it read or appended (N3's m), when it knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_entry: Option<u64>,
    /// Output that the job's end leaves uncommitted (L6).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsettled: Vec<UnsettledOutput>,
    /// Why the job's end may leave transactions open that are in no checkpoint (L6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_open: Option<String>,
}

impl ExitRecord {
    /// The record of a process that knows nothing of a ledger.
    #[must_use]
    pub fn new(kind: ExitKind, reason: impl Into<String>, message: impl Into<String>) -> Self {
        let (reason, message) = (reason.into(), message.into());
        Self { kind, reason, message, by_generation: None, ledger_entry: None, unsettled: Vec::new(), left_open: None }
    }
}

/// Reason of a process that was told to stop while it waited for its storage: the ledger was not touched.
pub const STOPPED_BEFORE_START: &str = "StoppedBeforeStart";

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExitKind {
    /// All input was read and all results are out.
    Finished,
    /// Stopped or cancelled on request.
    Stopped,
    /// The restart strategy was spent.
    Failed,
    /// A user's error: wait for a change of the spec.
    UserError,
    /// A later generation owns the ledger (L3).
    Superseded,
    /// The ledger moved on since the directive was written (N3).
    StateMoved,
    /// The ledger ends before what the controller has seen of it (N3).
    StateMissing,
    /// Storage `JobManager` and the JobManager was lost (L7).
    StateLost,
    /// Anything else.
    Internal,
}

impl ExitKind {
    /// The process's exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Finished | Self::Stopped => 0,
            Self::Failed => 1,
            Self::UserError => 2,
            Self::Superseded => 10,
            Self::StateMoved => 11,
            Self::StateMissing => 12,
            Self::StateLost => 13,
            Self::Internal => 70,
        }
    }
}
