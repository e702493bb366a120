//! A checkpoint under way, and its stages.

use super::{Aborted, PendingSavepoint};
use crate::failure::{Failure, Fault};
use crate::ids::{CheckpointId, SubtaskId};
use crate::ledger::Ends;
use crate::message::{Alignment, Barrier};
use crate::state::SubtaskState;
use crate::time::{TimeSpan, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) triggered_at: Timestamp,
    /// As it was obeyed when this one was triggered.
    pub(super) timeout: TimeSpan,
    pub(super) alignment: Alignment,
    pub(super) base: Option<CheckpointId>,
    pub(super) ends: Ends,
    pub(super) missing: BTreeSet<SubtaskId>,
    pub(super) states: BTreeMap<SubtaskId, SubtaskState>,
    pub(super) savepoint: Option<PendingSavepoint>,
    pub(super) savepoint_states: BTreeMap<SubtaskId, SubtaskState>,
    pub(super) stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Collecting,
    Storing,
    Appending { given_up: bool },
}

impl Pending {
    pub(super) fn new(
        barrier: &Barrier,
        timeout: TimeSpan,
        missing: BTreeSet<SubtaskId>,
        savepoint: Option<PendingSavepoint>,
    ) -> Self {
        Self {
            triggered_at: barrier.triggered_at,
            timeout,
            alignment: barrier.alignment,
            base: barrier.base,
            ends: barrier.ends,
            missing,
            states: BTreeMap::new(),
            savepoint,
            savepoint_states: BTreeMap::new(),
            stage: Stage::Collecting,
        }
    }

    pub(super) fn aborted(self, id: CheckpointId, failure: Option<Failure>) -> Aborted {
        Aborted { id, ends: self.ends, savepoint: self.savepoint, failure, recorded: false }
    }

    pub(super) const fn is_appending(&self) -> bool {
        matches!(self.stage, Stage::Appending { .. })
    }
}

pub(super) fn expired(id: CheckpointId, one: &Pending) -> Failure {
    let timeout = one.timeout;
    let waits_for = match one.missing.first() {
        Some(first) => format!("{} subtasks did not acknowledge, the first is {first}", one.missing.len()),
        None => "its _metadata could not be written".to_owned(),
    };
    let message = format!("checkpoint {id} did not complete within checkpointing.timeout {timeout}: {waits_for}");
    Failure::restart("CheckpointExpired", Fault::External, message)
}
