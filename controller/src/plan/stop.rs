//! Phase 1 of every transition: the running revision is stopped, by a savepoint or a last checkpoint
//! (docs/operator.md). Whether it begins is `hold`'s, what follows when nothing runs any more is `stopped`'s.

use super::close::{CLOSE_TIMEOUT, Closing};
use super::fate::Fate;
use super::{Planner, View, rejection};
use crate::facts::{PodFacts, Rejection, Stop};
use sluice_crds::{StopCause, StreamJobState};
use sluice_protocol::failure::ExitKind;
use sluice_protocol::job_master::{Command, SavepointRequest};
use sluice_protocol::ledger::SavepointKind;
use sluice_protocol::options::CheckpointingSpec;
use sluice_protocol::status::{RequestState, RequestStatus};
use sluice_protocol::{TimeSpan, Timestamp};

/// How often a stop is asked for again until the JobManager has taken it.
const STOP_AGAIN: TimeSpan = TimeSpan::from_secs(2);
/// How long a stop may take where there is no state to save.
const STOP_TIMEOUT: TimeSpan = TimeSpan::from_secs(30);
/// How much longer than its savepoint a stop may take: the JobManager's answer has to arrive.
const GRACE: TimeSpan = TimeSpan::from_secs(30);

impl Planner<'_> {
    /// A stop is under way: what follows from what became of the JobManager.
    pub(super) fn stopping(&mut self, fate: Fate<'_>, stop: &Stop) {
        if self.is_closing() {
            return self.close_stopped(fate, stop);
        }
        let waits_for_savepoint = stop.savepoint_request.is_some() && stop.savepoint.is_none() && self.has_run();
        let needs_savepoint = waits_for_savepoint && self.fall_back().is_err();
        let needs_end = needs_savepoint || self.needs_terminal_entry(stop);
        match fate {
            Fate::Alive(pod) => self.stop(pod, needs_end),
            Fate::Exited(record) if needs_end && !is_terminal(record.kind) => self.exited(record),
            Fate::Exited(record) => self.stopped(Some(record)),
            // The next generation carries the request out (K4).
            Fate::Lost(cause) if needs_savepoint => self.lost(&cause),
            Fate::Drained(cause) if needs_savepoint => self.drained(&cause),
            Fate::NotCreated if needs_end => self.create_pods(),
            Fate::Lost(cause) | Fate::Drained(cause) => self.end_unreachable(stop, &cause),
            Fate::NotCreated => self.end_unreachable(stop, &rejection("NotCreated", "its pod was not made".to_owned())),
        }
    }

    /// No JobManager can be asked for an end: a closer writes it (L6), where the revision has run and has a ledger.
    pub(super) fn end_unreachable(&mut self, stop: &Stop, cause: &Rejection) {
        if (self.has_run() && self.has_ledger()) || self.may_have_begun_elsewhere(stop) {
            self.begin_closer(cause);
            return self.tell_closing(stop);
        }
        if self.needs_terminal_entry(stop) {
            return self.lost(cause);
        }
        self.stopped(None);
    }

    /// A closer is at work, until its deadline where the change may go on without a terminal entry.
    fn close_stopped(&mut self, fate: Fate<'_>, stop: &Stop) {
        let needs_end = self.needs_terminal_entry(stop);
        let since = self.plan.memory.helper.as_ref().map(|helper| helper.since).unwrap_or_default();
        let deadline = since.plus(CLOSE_TIMEOUT);
        // What it has found counts, however late it is heard.
        let has_ended = matches!(fate, Fate::Exited(record) if is_terminal(record.kind));
        if !needs_end && !has_ended && self.facts.now >= deadline {
            self.tell_not_closed(&format!("its closer has not ended it within {CLOSE_TIMEOUT}"));
            return self.stopped(None);
        }
        match self.follow_closer(fate) {
            Closing::UnderWay => {
                if !needs_end {
                    self.wake_at(deadline);
                }
                self.tell_closing(stop);
            }
            Closing::Ended(record) => self.stopped(Some(record)),
            Closing::GivenUp(record) if needs_end => self.exited(record),
            Closing::GivenUp(record) => {
                self.tell_not_closed(&record.message);
                self.stopped(Some(record));
            }
        }
    }

    fn tell_closing(&mut self, stop: &Stop) {
        let message = self.closer_message();
        self.tell_stopping(stop, &message);
    }

    /// A ledger that the job leaves behind must say that it has ended: nothing else fences what may still write to it.
    fn needs_terminal_entry(&self, stop: &Stop) -> bool {
        let has_ledger = stop.cause != StopCause::RollBack || self.has_ledger();
        self.has_run() && has_ledger && self.leaves_storage(stop)
    }

    /// Whether what follows keeps its ledger in another place.
    fn leaves_storage(&self, stop: &Stop) -> bool {
        match stop.cause {
            StopCause::Upgrade | StopCause::Restore => self.moves_storage(),
            StopCause::RollBack => self.facts.stable.as_ref().is_some_and(|stable| self.moves_to(stable)),
            StopCause::Rescale | StopCause::Suspend | StopCause::Delete => false,
        }
    }

    /// Whether a revision that is left for another storage may have begun its ledger although nothing was heard of it: a
    /// closer finds out, and fences it. Not where its container cannot have started.
    pub(super) fn may_have_begun_elsewhere(&self, stop: &Stop) -> bool {
        let memory = &self.plan.memory;
        // That there are entries tells nothing: they may be of an earlier stay.
        let is_first_seen = memory.directive.as_ref().is_some_and(|directive| directive.seen == 0);
        let is_unknown = !self.has_run() && is_first_seen && memory.job_manager_pod.is_some();
        let is_in_memory = self.checkpointing().is_none_or(CheckpointingSpec::is_in_memory);
        let cannot_start = self.job_manager().is_some_and(|pod| !pod.started && pod.problem.is_some());
        // Where the spec may go to while it is suspended, nobody knows yet.
        let may_leave = stop.cause == StopCause::Suspend || self.leaves_storage(stop);
        is_unknown && !is_in_memory && !cannot_start && may_leave
    }

    /// Asks for an end, until a deadline.
    pub(super) fn stop(&mut self, pod: &PodFacts, needs_end: bool) {
        let Some(stop) = self.plan.memory.stop.clone() else { return };
        // One that has not started has nothing to save, unless it is there to carry out this very end.
        if !pod.started && !needs_end {
            let cause = rejection("NotStarted", format!("pod {} has not started", pod.name));
            return self.end_unreachable(&stop, &cause);
        }
        match &stop.savepoint_request {
            Some(id) => self.stop_with_savepoint(pod, &stop, id),
            None => self.stop_with_checkpoint(pod, &stop),
        }
    }

    fn stop_with_checkpoint(&mut self, pod: &PodFacts, stop: &Stop) {
        let now = self.facts.now;
        let saves = self.has_run() && stop.cause != StopCause::RollBack;
        let timeout = self.checkpointing().filter(|_| saves);
        // A JobManager that only came to end the ledger has the whole time too.
        let since = if self.needs_terminal_entry(stop) { stop.since.max(pod.created_at) } else { stop.since };
        let deadline = since.plus(timeout.map_or(STOP_TIMEOUT, |checkpointing| checkpointing.timeout));
        if now >= deadline {
            let message = "its JobManager did not end in time".to_owned();
            return self.end_unreachable(stop, &rejection("StopTimedOut", message));
        }
        self.plan.command = self.facts.connected.then_some(Command::Stop);
        self.wait_for_end(deadline);
        self.tell_stopping(stop, "the JobManager was asked to stop after a last checkpoint");
    }

    fn stop_with_savepoint(&mut self, pod: &PodFacts, stop: &Stop, id: &str) {
        let now = self.facts.now;
        let timeout = self.savepoint_timeout();
        let deadline = stop.since.plus(timeout).plus(GRACE);
        let answer = self.answer(id);
        match answer.map(|answer| answer.state) {
            Some(RequestState::Failed) => {
                let failure = answer.and_then(|answer| answer.failure.as_ref());
                let wrong = match failure {
                    Some(failure) => rejection(&failure.reason, failure.message.clone()),
                    None => rejection("SavepointFailed", "the savepoint failed".to_owned()),
                };
                return self.savepoint_failed(pod, wrong);
            }
            Some(RequestState::Completed) if now >= deadline => {
                let message = "its JobManager did not end after the savepoint".to_owned();
                return self.end_unreachable(stop, &rejection("StopTimedOut", message));
            }
            _ if now >= deadline => {
                let wrong = match (answer, self.facts.connected) {
                    (None, false) => rejection("JobManagerUnreachable", "the JobManager did not answer".to_owned()),
                    _ => rejection("SavepointExpired", format!("the savepoint was not there within {timeout}")),
                };
                return self.savepoint_failed(pod, wrong);
            }
            None if self.facts.connected => self.plan.command = Some(savepoint_command(id, timeout)),
            _ => {}
        }
        self.wait_for_end(deadline);
        self.tell_stopping(stop, "the JobManager was asked to stop with a savepoint");
    }

    /// Meanwhile a lost TaskManager is replaced: a last snapshot needs all tasks.
    fn wait_for_end(&mut self, deadline: Timestamp) {
        if self.has_run() {
            self.keep_task_managers();
        }
        self.wake_at(deadline.min(self.facts.now.plus(STOP_AGAIN)));
    }

    fn savepoint_timeout(&self) -> TimeSpan {
        let checkpointing = self.checkpointing();
        let wanted = self.facts.lifecycle.upgrade.savepoint_timeout;
        wanted.unwrap_or_else(|| checkpointing.map_or(STOP_TIMEOUT, |checkpointing| checkpointing.timeout))
    }

    /// What the JobManager says of a request.
    pub(super) fn answer(&self, id: &str) -> Option<&RequestStatus> {
        self.facts.report.as_ref()?.requests.iter().find(|request| request.id == id)
    }

    /// The savepoint to stop with is remembered as soon as it is there: the JobManager goes right after it.
    pub(super) fn absorb_savepoint(&mut self) {
        let Some(id) = self.plan.memory.stop.as_ref().and_then(|stop| stop.savepoint_request.clone()) else { return };
        let taken = self.answer(&id).filter(|answer| answer.state == RequestState::Completed);
        if let (Some(path), Some(stop)) = (taken.and_then(|answer| answer.path.clone()), &mut self.plan.memory.stop) {
            stop.savepoint = Some(path);
        }
    }

    fn tell_stopping(&mut self, stop: &Stop, message: &str) {
        let reason = match stop.cause {
            StopCause::Upgrade => "Upgrading",
            StopCause::Rescale => "Rescaling",
            StopCause::Restore => "Restoring",
            StopCause::Suspend => "Suspending",
            StopCause::RollBack => "RollingBack",
            StopCause::Delete => "Deleting",
        };
        self.plan.view = View::progressing(StreamJobState::Stopping, reason, message);
    }
}

/// Asks for the savepoint to stop with.
pub(super) fn savepoint_command(id: &str, timeout: TimeSpan) -> Command {
    Command::Savepoint(SavepointRequest { id: id.to_owned(), kind: SavepointKind::Stop, directory: None, timeout })
}

/// Whether a process that ended like this has left a terminal entry.
pub(super) const fn is_terminal(kind: ExitKind) -> bool {
    matches!(kind, ExitKind::Stopped | ExitKind::Finished | ExitKind::Failed)
}

/// When a stop for a deletion is over at the latest.
pub(super) fn deletion_deadline(stop: &Stop, timeout: TimeSpan) -> Timestamp {
    stop.since.plus(timeout)
}
