//! The end of a StreamJob that is being deleted: its JobManager is asked to end the ledger, or a closer does it where there
//! is none to ask (L6), until a deadline; then the finalizer goes.

use super::close::Closing;
use super::fate::Fate;
use super::stop::{deletion_deadline, is_terminal, savepoint_command};
use super::{Finalizer, Planner, View, rejection};
use crate::facts::{Rejection, Stop};
use sluice_crds::{StopCause, StreamJobState};
use sluice_protocol::failure::{ExitKind, ExitRecord, STOPPED_BEFORE_START};
use sluice_protocol::job_master::Command;
use sluice_protocol::status::RequestState;
use sluice_protocol::{TimeSpan, Timestamp};

/// How often an end is asked for again.
const ASK_AGAIN: TimeSpan = TimeSpan::from_secs(2);
/// The request for the savepoint to end with.
pub const DELETION_REQUEST: &str = "deletion";

impl Planner<'_> {
    /// A StreamJob that is being deleted.
    pub(super) fn delete(&mut self) {
        let rests = self.facts.told.state.is_some_and(StreamJobState::is_terminal) && self.facts.memory.stop.is_none();
        let stop = self.deletion_stop();
        let deadline = deletion_deadline(&stop, self.facts.lifecycle.deletion.timeout);
        let fate = self.fate();
        self.plan.memory.stop = Some(stop.clone());
        if self.facts.now >= deadline || self.facts.namespace_goes {
            return self.let_go(rests);
        }
        self.wake_at(deadline.min(self.facts.now.plus(ASK_AGAIN)));
        if self.is_closing() {
            return self.close_deleted(fate);
        }
        match fate {
            Fate::Alive(pod) if pod.started && !rests && !self.is_out_of_reach(&stop, deadline) => {
                self.ask_for_end(&stop, deadline);
            }
            fate => match self.needs_closer(&fate, rests) {
                Some(cause) => {
                    self.begin_closer(&cause);
                    self.tell_closing_deleted();
                }
                None => {
                    if let Fate::Exited(record) = fate {
                        self.tell_left(record);
                    }
                    self.let_go(true);
                }
            },
        }
    }

    fn ask_for_end(&mut self, stop: &Stop, deadline: Timestamp) {
        let command = self.deletion_command(stop, deadline.since(self.facts.now));
        self.plan.command = command.filter(|_| self.facts.connected);
        let message = "the JobManager was asked to end the job";
        self.plan.view = View::progressing(StreamJobState::Stopping, "Deleting", message);
    }

    /// Half of the time is left for a closer where a JobManager cannot be asked.
    fn is_out_of_reach(&self, stop: &Stop, deadline: Timestamp) -> bool {
        let half = stop.since.plus(TimeSpan(deadline.since(stop.since).0 / 2));
        !self.facts.connected && self.facts.now >= half && self.has_ledger()
    }

    /// Why the job's ledger needs a closer; `None`: it has its terminal entry, or there is none, or nobody could write it.
    fn needs_closer(&self, fate: &Fate<'_>, rests: bool) -> Option<Rejection> {
        let has_ended = matches!(
            self.facts.told.state,
            Some(StreamJobState::Finished | StreamJobState::Cancelled | StreamJobState::Suspended)
        );
        if !self.has_ledger() || (rests && has_ended) {
            return None;
        }
        match fate {
            Fate::Exited(record) if has_left_end(record) || is_foreign(record, self.facts.memory.generation.0) => None,
            // The program of a revision that never ran cannot be built, for one; the one before it has ended.
            Fate::Exited(record) if record.kind == ExitKind::UserError && !self.has_run() => None,
            Fate::Lost(_) if rests && self.facts.told.state == Some(StreamJobState::Invalid) && !self.has_run() => None,
            Fate::Exited(record) => Some(rejection(&record.reason, record.message.clone())),
            Fate::Lost(cause) | Fate::Drained(cause) => Some(cause.clone()),
            Fate::NotCreated => Some(rejection("NotCreated", "its JobManager's pod was not made".to_owned())),
            Fate::Alive(pod) if pod.started => {
                Some(rejection("JobManagerUnreachable", format!("pod {} does not answer", pod.name)))
            }
            Fate::Alive(pod) => Some(rejection("NotStarted", format!("pod {} has not started", pod.name))),
        }
    }

    fn close_deleted(&mut self, fate: Fate<'_>) {
        match self.follow_closer(fate) {
            Closing::UnderWay => self.tell_closing_deleted(),
            Closing::Ended(record) => {
                self.tell_left(record);
                self.let_go(true);
            }
            Closing::GivenUp(record) => {
                self.tell_not_closed(&record.message);
                self.let_go(true);
            }
        }
    }

    fn tell_closing_deleted(&mut self) {
        let message = self.closer_message();
        self.plan.view = View::progressing(StreamJobState::Stopping, "Deleting", &message);
    }

    /// Nothing of the job is left to run.
    fn let_go(&mut self, is_told: bool) {
        if !is_told && self.has_ledger() {
            self.tell_not_closed("it did not end in time");
        }
        self.delete_pods(|_| true);
        self.plan.finalizer = Some(Finalizer::Remove);
        self.plan.view = View::progressing(StreamJobState::Stopping, "Deleting", "nothing of the job runs any more");
    }

    /// The stop for the deletion, in place of one for anything else.
    fn deletion_stop(&self) -> Stop {
        if let Some(stop) = self.plan.memory.stop.clone().filter(|stop| stop.cause == StopCause::Delete) {
            return stop;
        }
        let checkpoints = self.spec().is_some_and(|spec| {
            spec.checkpointing.as_ref().is_some_and(|checkpointing| checkpointing.savepoint_root().is_some())
        });
        let wanted = self.facts.lifecycle.deletion.savepoint && checkpoints && self.has_run();
        let savepoint_request = wanted.then(|| DELETION_REQUEST.to_owned());
        Stop { since: self.facts.now, cause: StopCause::Delete, savepoint_request, savepoint: None }
    }

    fn deletion_command(&self, stop: &Stop, timeout: TimeSpan) -> Option<Command> {
        let Some(id) = &stop.savepoint_request else { return Some(Command::Cancel) };
        match self.answer(id).map(|answer| answer.state) {
            // Some of the time is left for cancelling, should it fail.
            None => Some(savepoint_command(id, TimeSpan(timeout.0 / 4 * 3))),
            Some(RequestState::Pending | RequestState::Completed) => None,
            // It was wanted, but a deletion does not wait for what cannot be had.
            Some(RequestState::Failed) => Some(Command::Cancel),
        }
    }
}

/// Whether a JobManager that ended like this has left a terminal entry. One that was stopped before it could use its
/// storage has touched nothing.
fn has_left_end(record: &ExitRecord) -> bool {
    is_terminal(record.kind) && record.reason != STOPPED_BEFORE_START
}

/// Whether the ledger belongs to a generation that nobody numbered here, or is not there: a closer could do nothing.
fn is_foreign(record: &ExitRecord, known: u64) -> bool {
    let superseded = record.kind == ExitKind::Superseded && record.by_generation.is_some_and(|by| by > known);
    superseded || record.kind == ExitKind::StateMissing
}
