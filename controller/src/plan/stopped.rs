//! What follows when no JobManager runs any more, as it was to be: the wanted spec, the one that ran, or rest.

use super::Planner;
use super::change::Change;
use super::close::left_behind;
use super::stop::is_terminal;
use crate::facts::Program;
use sluice_crds::{StopCause, StreamJobState, UpgradeMode};
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::NOTHING_BEGUN;
use sluice_protocol::options::DesiredState;
use sluice_protocol::status::{RequestState, RequestStatus};

impl Planner<'_> {
    /// No JobManager runs any more, as it was to be.
    pub(super) fn stopped(&mut self, record: Option<&ExitRecord>) {
        record.into_iter().for_each(|record| self.tell_left(record));
        let mut stop = self.plan.memory.stop.take();
        let found_nothing = self.absorb_closed(record);
        let rolls_back = stop.as_ref().is_some_and(|stop| stop.cause == StopCause::RollBack);
        self.delete_pods(|_| true);
        if let Some(stop) = &mut stop {
            stop.savepoint = self.left_unsettled(stop, record).or_else(|| stop.savepoint.take());
        }
        let savepoint = stop.as_ref().and_then(|stop| stop.savepoint.clone()).or_else(|| self.late_savepoint());
        self.plan.memory.stopped_with.clone_from(&savepoint);
        if self.is_lost_with_job_manager(stop.as_ref().map(|stop| stop.cause), record) {
            let message = "the job was stopped with a savepoint, and the controller has not heard where it is; its checkpoints \
                           were in the JobManager's memory: look for the newest directory below checkpointing.savepointStorage \
                           and set restore.from to it";
            return self.end(StreamJobState::Failed, "StateLost", message);
        }
        let forgets = self.forgets_state();
        let goes_on = self.change() <= Change::InPlace || forgets.is_some();
        match (self.facts.desired, &self.facts.program, record) {
            // What came to its end meanwhile has ended, whatever it was to be stopped for.
            (desired, _, Some(ExitRecord { kind: ExitKind::Finished, message, .. }))
                if goes_on || desired == DesiredState::Suspended =>
            {
                self.settle();
                self.end(StreamJobState::Finished, "Finished", message);
            }
            (DesiredState::Suspended, ..) => match record.and_then(|record| Some((left_behind(record)?, record))) {
                Some((reason, record)) => self.end(StreamJobState::Suspended, reason, &record.message),
                None => self.suspended(found_nothing),
            },
            _ if rolls_back && goes_on && self.can_roll_back() => self.roll_back_stopped(),
            (DesiredState::Running, Ok(program), _) => match (self.startable(program), forgets) {
                (Some(program), _) => self.begin_revision(&program, stop.as_ref()),
                (None, wrong) => {
                    self.suspended(found_nothing);
                    self.plan.view.degraded = wrong;
                }
            },
            (DesiredState::Running, Err(rejection), _) => match self.running_program() {
                // The spec was broken while the job was being stopped for an earlier one: what ran goes on.
                Some(program) => self.begin_revision(&program, stop.as_ref()),
                None => self.end(StreamJobState::Invalid, &rejection.reason, &rejection.message),
            },
        }
    }

    /// What a closer has found out of a revision of which nothing was heard; whether nothing had begun.
    fn absorb_closed(&mut self, record: Option<&ExitRecord>) -> bool {
        let closer = self.plan.memory.helper.take().filter(|_| !self.has_run());
        let Some(record) = record.filter(|record| closer.is_some() && is_terminal(record.kind)) else { return false };
        if record.reason == NOTHING_BEGUN {
            // What the closer wrote is no state: it is where the revision was to be started from.
            self.plan.memory.ledger_entry = 0;
            return true;
        }
        self.note_started();
        false
    }

    /// The job rests; what a closer that found nothing says of its own entries is not heard again.
    fn suspended(&mut self, found_nothing: bool) {
        if found_nothing {
            let memory = &mut self.plan.memory;
            memory.generation = memory.generation.next();
            memory.job_manager_pod = None;
        }
        self.end(StreamJobState::Suspended, "Suspended", "it keeps its state");
    }

    /// The savepoint of a stop that was given up and came to its end all the same.
    fn late_savepoint(&self) -> Option<String> {
        let completed = |request: &&RequestStatus| request.state == RequestState::Completed;
        self.own_requests().filter(completed).find_map(|request| request.path.clone())
    }

    /// What the JobManager says of the savepoints to stop with that it was asked for under this revision.
    fn own_requests(&self) -> impl Iterator<Item = &RequestStatus> {
        let prefix = format!("upgrade-{}-", self.plan.memory.revision);
        let requests = self.facts.report.iter().flat_map(|report| &report.requests);
        requests.filter(move |request| request.id.starts_with(&prefix))
    }

    /// Whether a JobManager that stopped did so for a request of the controller's own that it had given up: not when it is
    /// known that each of them has failed.
    pub(super) fn was_asked_to_stop(&self) -> bool {
        let failed = self.own_requests().filter(|request| request.state == RequestState::Failed).count();
        usize::try_from(self.plan.memory.savepoint_requests).is_ok_and(|asked| asked > failed)
    }

    /// Whether the state that was to be saved is nowhere that is known.
    fn is_lost_with_job_manager(&self, cause: Option<StopCause>, record: Option<&ExitRecord>) -> bool {
        let memory = &self.plan.memory;
        let gives_up = matches!(cause, Some(StopCause::Restore | StopCause::RollBack))
            || (self.facts.lifecycle.upgrade.mode == UpgradeMode::Stateless && cause != Some(StopCause::Rescale))
            || record.is_some_and(|record| record.kind == ExitKind::Finished);
        let kept = memory.last_checkpoint.is_some() && self.has_run() && self.leaves_nothing();
        kept && !gives_up && memory.stopped_with.is_none()
    }

    /// The wanted program, or in place of one that was given up, or would forget the job's state, the one that runs; `None`
    /// where that is gone and the state would be forgotten.
    fn startable(&self, program: &Program) -> Option<Program> {
        let forgets = self.forgets_state().is_some();
        let running = self.running_program().filter(|_| forgets || self.is_given_up(program));
        running.or_else(|| Some(program.clone()).filter(|_| !forgets))
    }

    /// The frozen program of the revision that runs.
    fn running_program(&self) -> Option<Program> {
        let spec = self.facts.frozen.clone()?;
        Some(Program { spec, config_map: self.plan.memory.program.clone() })
    }
}
