//! The end of a StreamJob that is being deleted: its JobManager is asked to end the ledger, until a deadline; then the
//! finalizer goes. Nothing is created, whatever state the job was in.

use super::fate::Fate;
use super::stop::{deletion_deadline, savepoint_command};
use super::{Finalizer, Planner, View};
use crate::facts::Stop;
use sluice_crds::{StopCause, StreamJobState};
use sluice_protocol::TimeSpan;
use sluice_protocol::job_master::Command;
use sluice_protocol::status::RequestState;

/// How often an end is asked for again.
const ASK_AGAIN: TimeSpan = TimeSpan::from_secs(2);
/// The request for the savepoint to end with.
const REQUEST: &str = "deletion";

impl Planner<'_> {
    /// A StreamJob that is being deleted.
    pub(super) fn delete(&mut self) {
        let stop = self.deletion_stop();
        let deadline = deletion_deadline(&stop, self.facts.lifecycle.deletion.timeout);
        let rests = self.facts.told.state.is_some_and(StreamJobState::is_terminal) && self.facts.memory.stop.is_none();
        let can_answer = matches!(self.fate(), Fate::Alive(pod) if pod.started) && !rests;
        if !can_answer || self.facts.now >= deadline {
            self.delete_pods(|_| true);
            self.plan.finalizer = Some(Finalizer::Remove);
            self.plan.view =
                View::progressing(StreamJobState::Stopping, "Deleting", "nothing of the job runs any more");
            return;
        }
        let command = self.deletion_command(&stop, deadline.since(self.facts.now));
        self.plan.command = command.filter(|_| self.facts.connected);
        self.plan.memory.stop = Some(stop);
        self.wake_at(deadline.min(self.facts.now.plus(ASK_AGAIN)));
        let message = "the JobManager was asked to end the job";
        self.plan.view = View::progressing(StreamJobState::Stopping, "Deleting", message);
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
        let savepoint_request = wanted.then(|| REQUEST.to_owned());
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
