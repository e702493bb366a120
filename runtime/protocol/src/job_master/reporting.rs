//! Status: what people and the controller are told.

use super::cleanup::upsert_notice;
use super::start::reported_state;
use super::{JobMaster, Phase, StartFrom};
use crate::failure::{Failure, FailureRecord};
use crate::ids::{Attempt, CheckpointId};
use crate::ledger::{Ends, ForeignSnapshot};
use crate::paths;
use crate::status::{ForeignSnapshotStatus, JobState, Notice, TaskManagerStatus, VertexStatus};
use crate::store::{StoreFailure, StoreFailureKind};

/// Failures kept in status.
const FAILURES_LIMIT: usize = 16;

/// The notice that what is to be restored holds other bytes than were stored; it is read again and again.
pub const STATE_DAMAGED: &str = "StateDamaged";

/// Whether a notice is about the store: at most one stands at a time.
fn is_of_store(notice: &Notice) -> bool {
    notice.reason == STATE_DAMAGED || StoreFailureKind::ALL.iter().any(|kind| kind.reason() == notice.reason)
}

impl JobMaster {
    pub(super) fn set_notice(&mut self, reason: &str, message: String) {
        upsert_notice(&mut self.status.notices, reason, message);
    }

    pub(super) fn note_store_failure(&mut self, failure: &StoreFailure) {
        self.set_store_notice(failure.kind.reason(), failure.message.clone());
    }

    pub(super) fn note_damaged(&mut self, message: String) {
        self.set_store_notice(STATE_DAMAGED, message);
    }

    fn set_store_notice(&mut self, reason: &str, message: String) {
        self.remove_store_notices();
        self.set_notice(reason, message);
    }

    pub(super) fn clear_store_notice(&mut self) {
        self.store_failures = 0;
        self.remove_store_notices();
    }

    fn remove_store_notices(&mut self) {
        self.status.notices.retain(|notice| !is_of_store(notice));
    }

    pub(super) fn note_failure(&mut self, record: FailureRecord) {
        self.status.failures.insert(0, record);
        self.status.failures.truncate(FAILURES_LIMIT);
    }

    pub(super) fn clear_notice(&mut self, reason: &str) {
        self.status.notices.retain(|notice| notice.reason != reason);
    }

    pub(super) fn note_failed_checkpoint(&mut self, id: CheckpointId, failure: &Failure) {
        self.set_notice("CheckpointFailed", format!("checkpoint {id} failed: {}", failure.message));
    }

    pub(super) fn clear_checkpoint_notice(&mut self) {
        self.clear_notice("CheckpointFailed");
    }

    /// Derives status from what is.
    pub(super) fn refresh_status(&mut self) {
        let state = self.state();
        if state != self.status.state || self.status.since == crate::time::Timestamp::default() {
            self.status.since = self.now;
        }
        if !matches!(self.phase, Phase::Over) {
            self.status.message = self.message();
        }
        let counters = self.coordinator.as_ref().map(|one| one.counters()).unwrap_or_default();
        let requests = self.describe_requests();
        let uri = |pin: &crate::ledger::Pin| paths::uri(self.config.storage_uri.as_deref(), &pin.snapshot);
        self.status.pinned = self.journal.fold.pins.iter().map(uri).collect();
        self.status.pinned_by = self.journal.fold.pins.iter().map(|pin| pin.holder.clone()).collect();
        self.status.foreign_snapshot = self.describe_foreign_snapshot();
        self.status.lost_commits = self.lost_commits();
        self.status.unsettled.clone_from(&self.journal.fold.unsettled);
        let seen_entry = self.seen_entry();
        let graph = &self.config.graph;
        let status = &mut self.status;
        status.state = state;
        status.generation = self.config.generation;
        let deploys = !self.config.directive.start.is_helper();
        let has_ledger = self.journal.confirmed || self.journal.in_memory;
        status.attempt = if has_ledger && deploys { self.attempt } else { Attempt(0) };
        status.failed_attempts = self.failures.total();
        status.failure_counts.clone_from(&self.failures);
        status.ledger_entry = seen_entry;
        status.next_restart_at = match &self.phase {
            Phase::Preparing(preparing) if preparing.due > self.now => Some(preparing.due),
            _ => None,
        };
        status.requests = requests;
        status.completed_checkpoints = counters.completed;
        status.failed_checkpoints = counters.failed;
        status.failed_checkpoints_in_a_row = counters.failed_in_a_row;
        status.pending_checkpoints = self.coordinator.iter().flat_map(|one| one.pending()).collect();
        status.slots_needed = graph.slots_needed();
        status.tasks = graph.subtasks();
        status.tasks_running = self.execution.as_ref().map_or(0, super::execution::Execution::running);
        status.task_managers = self.task_managers.iter().map(describe_task_manager).collect();
        let describe = |vertex: &crate::graph::Vertex| {
            let mut described =
                VertexStatus { name: vertex.name.clone(), parallelism: vertex.parallelism, running: 0, finished: 0 };
            if let Some(execution) = &self.execution {
                execution.count_into(vertex.id, &mut described);
            }
            described
        };
        status.vertices = graph.vertices.iter().map(describe).collect();
    }

    fn describe_foreign_snapshot(&self) -> Option<ForeignSnapshotStatus> {
        let ForeignSnapshot { directory, released_at, released_by } = self.journal.fold.foreign.clone()?;
        let path = paths::uri(self.config.storage_uri.as_deref(), &directory);
        Some(ForeignSnapshotStatus { path, needed: released_at.is_none(), released_at, released_by })
    }

    fn state(&self) -> JobState {
        match &self.phase {
            Phase::New | Phase::Reading(_) | Phase::Loading | Phase::Claiming | Phase::Confirming => {
                match self.config.directive.start {
                    StartFrom::Close { .. } => JobState::Stopping,
                    _ => JobState::Starting,
                }
            }
            Phase::Disposing => reported_state(self.journal.fold.state),
            Phase::Preparing(_) | Phase::Deploying => {
                if self.attempt > Attempt(1) {
                    JobState::Restarting
                } else {
                    JobState::Starting
                }
            }
            Phase::Running if self.wanted_end.is_some() => JobState::Stopping,
            Phase::Running => {
                let finishing = self.execution.as_ref().is_some_and(|one| one.sources_finished(&self.config.graph));
                if finishing { JobState::Finishing } else { JobState::Running }
            }
            Phase::Ending(super::journal::EndKind::Finished) => JobState::Finishing,
            Phase::Ending(_) => JobState::Stopping,
            Phase::Exiting { .. } | Phase::Over => self.status.state,
        }
    }

    fn message(&self) -> String {
        if let Some(notice) = self.status.notices.iter().find(|notice| is_of_store(notice)) {
            return notice.message.clone();
        }
        let cause = self.status.failures.first().map(|record| record.failure.message.as_str());
        match &self.phase {
            Phase::New | Phase::Reading(_) => "reading the ledger".to_owned(),
            Phase::Loading => "reading the snapshot to restore".to_owned(),
            Phase::Claiming | Phase::Confirming => "taking the ledger".to_owned(),
            Phase::Preparing(preparing) if preparing.due > self.now => {
                format!("restarting after: {}", cause.unwrap_or("a failure"))
            }
            Phase::Preparing(preparing) if !preparing.loaded || !preparing.recorded => {
                "reading the snapshot to restore".to_owned()
            }
            Phase::Preparing(_) => {
                let (needed, free) = (self.config.graph.slots_needed(), self.task_managers.free_slots().len());
                format!("waiting for slots: {free} of {needed} are free")
            }
            Phase::Deploying => "deploying tasks".to_owned(),
            Phase::Running if self.journal.fold.ending == Ends::Finish => "waiting for the last tasks".to_owned(),
            Phase::Running if self.wanted_end.is_some() => "taking a last checkpoint".to_owned(),
            Phase::Running => match self.journal.fold.open_request() {
                Some(request) => format!("all tasks run; taking the savepoint of request '{}'", request.id),
                None => self.execution.as_ref().map_or_else(String::new, |one| one.progress(&self.config.graph)),
            },
            Phase::Disposing => "removing a savepoint".to_owned(),
            Phase::Ending(_) => self.end_progress(),
            Phase::Exiting { record, .. } => record.message.clone(),
            Phase::Over => self.status.message.clone(),
        }
    }
}

fn describe_task_manager(one: &super::task_managers::TaskManager) -> TaskManagerStatus {
    let registration = &one.registration;
    TaskManagerStatus { id: registration.task_manager.clone(), slots: registration.slots, last_heard: one.last_heard }
}
