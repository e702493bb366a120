//! What the coordinator is asked for and what it answers with.

use crate::failure::Failure;
use crate::ids::{CheckpointId, SubtaskId};
use crate::ledger::Ends;
use crate::message::Barrier;
use crate::state::SubtaskState;
use crate::time::Timestamp;
use std::collections::BTreeMap;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Tell the sources.
    Trigger(Barrier),
    /// All subtasks have acknowledged: make it durable.
    Store(Collected),
    /// It is over: tell the tasks.
    Aborted(Aborted),
    /// Its entry has been under way for longer than the timeout: give it up if it turns out not to stand (L2).
    GiveUp(CheckpointId),
    /// One was due and could not even be triggered: counted as failed.
    NotTriggered(Failure),
    /// Too many failed in a row.
    FailJob(Failure),
}

/// A checkpoint that will not be complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aborted {
    /// Which.
    pub id: CheckpointId,
    /// Whether the job would have ended with it.
    pub ends: Ends,
    /// The savepoint that was taken with it.
    pub savepoint: Option<PendingSavepoint>,
    /// Why, when it counts as failed; `None`: subsumed.
    pub failure: Option<Failure>,
    /// Whether its `CheckpointFailed` stands already; else one is to be appended, if it counts as failed.
    pub recorded: bool,
}

/// A checkpoint whose attempt is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Which.
    pub id: CheckpointId,
    /// URI of the directory of the savepoint that was taken with it.
    pub savepoint: Option<String>,
}

/// A checkpoint whose parts are all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// Which.
    pub id: CheckpointId,
    /// When it was triggered.
    pub triggered_at: Timestamp,
    /// What each subtask stored.
    pub states: BTreeMap<SubtaskId, SubtaskState>,
    /// The savepoint that was taken with it, and what each subtask stored for that.
    pub savepoint: Option<(PendingSavepoint, BTreeMap<SubtaskId, SubtaskState>)>,
}

/// A savepoint that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavepointOrder {
    /// Id of the request.
    pub request: String,
    /// Whether the job ends with it.
    pub ends: Ends,
    /// What its directory's URI begins with: `<savepoint dir>/<namespace>/<name>-<uid>/<generation>-`; the checkpoint's id
    /// follows.
    pub directory_prefix: String,
}

/// A savepoint under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSavepoint {
    /// Id of the request.
    pub request: String,
    /// URI of its directory.
    pub directory: String,
}

/// Counters for status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Completed ones.
    pub completed: u64,
    /// Failed ones.
    pub failed: u64,
    /// Failed ones since the last completed one.
    pub failed_in_a_row: u64,
}
