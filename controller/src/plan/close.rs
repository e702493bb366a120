//! Helper pods: a JobManager of the next generation that runs no task, with image, program and credentials of the revision
//! that ran. A *closer* ends the job in its ledger where its own JobManager cannot (L6); `dispose`
//! has the other kind.
//!
//! Who calls sets the deadline: past it, whatever was waiting for the closer goes on without. A helper is told of by its
//! exit record, is started again when it is lost, and spends no restart.

use super::fate::Fate;
use super::stop::is_terminal;
use super::{Planner, rejection};
use crate::facts::{Helper, HelperTask, PodFacts, Rejection, Role, Stop};
use sluice_crds::{StopCause, StreamJobState};
use sluice_protocol::TimeSpan;
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::{CloseEnd, StartFrom};
use sluice_protocol::options::CheckpointingSpec;

/// A stop goes on without its closer after this time.
pub(super) const CLOSE_TIMEOUT: TimeSpan = TimeSpan::from_secs(60);
/// The least time from one helper to the next that takes its place, on average.
pub(super) const RETRY_GAP: TimeSpan = TimeSpan::from_secs(5);

/// How far a closer is.
#[derive(Debug)]
pub(super) enum Closing<'a> {
    /// It is at work, or another is about to be.
    UnderWay,
    /// The ledger has its terminal entry.
    Ended(&'a ExitRecord),
    /// It has said why it cannot be done.
    GivenUp(&'a ExitRecord),
}

impl Planner<'_> {
    /// Whether there is a ledger that a helper could append to, and a program to run it with.
    pub(super) fn has_ledger(&self) -> bool {
        let checkpointing = self.facts.frozen.as_ref().and_then(|spec| spec.checkpointing.as_ref());
        self.plan.memory.ledger_entry > 0 && checkpointing.is_some_and(|spec| !CheckpointingSpec::is_in_memory(spec))
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(&self.plan.memory.helper, Some(Helper { task: HelperTask::Close, .. }))
    }

    /// Starts a closer, because of this.
    pub(super) fn begin_closer(&mut self, cause: &Rejection) {
        self.begin_helper(HelperTask::Close);
        let generation = self.plan.memory.generation;
        let event = format!("generation {generation} ends the job in its ledger: {}", cause.message);
        self.tell(false, "Closing", event);
    }

    /// Starts a helper in the place of all that runs: max(status, reported) + 1 (C2).
    pub(super) fn begin_helper(&mut self, task: HelperTask) {
        let now = self.facts.now;
        let reported = self.facts.report.as_ref().map(|report| report.generation).unwrap_or_default();
        let memory = &mut self.plan.memory;
        let before = memory.helper.take().filter(|helper| helper.task == task);
        let (since, tries) = before.map_or((now, 0), |helper| (helper.since, helper.tries));
        memory.helper = Some(Helper { since, tries: tries + 1, task });
        memory.generation = memory.generation.max(reported).next();
        memory.job_manager_pod = None;
        memory.next_task_manager = 0;
        memory.next_restart_at = None;
        memory.deployed_program.clone_from(&memory.program);
        self.delete_pods(|_| true);
        self.remove_ended_of_earlier();
        self.create_helper();
    }

    pub(super) fn create_helper(&mut self) {
        self.plan.spec.clone_from(&self.facts.frozen);
        let helper = self.pod(Role::JobManager);
        self.plan.create.push(helper);
    }

    /// What a helper is told.
    pub(super) fn helper_start(&self) -> Option<StartFrom> {
        let end = match &self.plan.memory.stop {
            Some(stop) if stop.cause == StopCause::Delete => CloseEnd::Cancelled,
            Some(_) => CloseEnd::Stopped,
            None => CloseEnd::Failed,
        };
        Some(match &self.plan.memory.helper.as_ref()?.task {
            HelperTask::Close => StartFrom::Close { end },
            HelperTask::Dispose(disposal) => StartFrom::Dispose { path: disposal.path.clone() },
        })
    }

    /// Sees to it that the closer is there until it has ended.
    pub(super) fn follow_closer<'f>(&mut self, fate: Fate<'f>) -> Closing<'f> {
        let known = self.facts.memory.generation.0;
        match fate {
            Fate::NotCreated => self.create_helper(),
            Fate::Alive(_) => {}
            Fate::Exited(record) if is_terminal(record.kind) => return Closing::Ended(record),
            Fate::Exited(record)
                if record.kind == ExitKind::Superseded && record.by_generation.is_some_and(|by| by <= known) =>
            {
                self.close_again(&rejection(&record.reason, record.message.clone()));
            }
            Fate::Exited(record) => return Closing::GivenUp(record),
            Fate::Lost(cause) | Fate::Drained(cause) => self.close_again(&cause),
        }
        Closing::UnderWay
    }

    fn close_again(&mut self, cause: &Rejection) {
        let Some(helper) = &self.plan.memory.helper else { return };
        let due = helper.since.plus(TimeSpan(RETRY_GAP.0 * u64::from(helper.tries)));
        if self.facts.now < due {
            return self.wake_at(due);
        }
        self.begin_closer(cause);
    }

    /// Lost JobManagers have spent the restarts: what status says the ledger is to say too. A revision that never started has
    /// written nothing there, and its program may not know the sinks of the one before (L6).
    pub(super) fn begin_closer_of_failed(&mut self, cause: &Rejection) {
        let has_failed = self.plan.view.state == Some(StreamJobState::Failed);
        if has_failed && self.has_run() && self.has_ledger() && !self.facts.deleting {
            self.begin_closer(cause);
            self.wake_at(self.facts.now.plus(CLOSE_TIMEOUT));
        }
    }

    /// Sees to a closer of a job that has failed; whether it is at work.
    pub(super) fn closes_failed(&mut self) -> bool {
        let Some(Helper { task: HelperTask::Close, since, .. }) = self.plan.memory.helper else { return false };
        let deadline = since.plus(CLOSE_TIMEOUT);
        if self.facts.now >= deadline {
            self.tell_not_closed(&format!("its closer has not ended it within {CLOSE_TIMEOUT}"));
        } else {
            self.wake_at(deadline);
            match self.follow_closer(self.fate()) {
                Closing::UnderWay => return true,
                Closing::Ended(record) => self.tell_left(record),
                Closing::GivenUp(record) => self.tell_not_closed(&record.message),
            }
        }
        self.plan.memory.helper = None;
        false
    }

    /// What status says of a closer.
    pub(super) fn closer_message(&self) -> String {
        let generation = self.plan.memory.generation;
        let is_its = |pod: &&PodFacts| pod.generation == generation && pod.is_alive();
        let problem = self.facts.pods.iter().filter(is_its).find_map(|pod| pod.problem.as_ref());
        let problem = problem.map(|problem| format!("; {}", problem.message)).unwrap_or_default();
        format!(
            "a closer (generation {generation}) ends the job in its ledger, in the place of its JobManager{problem}"
        )
    }

    /// What an end has left behind is told of where nobody looks at a status any more (L6).
    pub(super) fn tell_left(&mut self, record: &ExitRecord) {
        if let Some(reason) = left_behind(record) {
            self.tell(true, reason, record.message.clone());
        }
    }

    /// Where the job is gone on from when its end left output uncommitted: its directory, whose ledger holds the handles, and
    /// whose latest checkpoint is the cut of the savepoint, which holds none (K4, L6). A rollback has what it returns to.
    pub(super) fn left_unsettled(&self, stop: &Stop, record: Option<&ExitRecord>) -> Option<String> {
        let left = record.is_some_and(|record| !record.unsettled.is_empty());
        let goes_on = stop.cause != StopCause::RollBack && self.has_ledger();
        (left && goes_on).then(|| self.job_directory())
    }

    /// The job goes on, or goes, without a terminal entry in its ledger.
    pub(super) fn tell_not_closed(&mut self, why: &str) {
        let message = format!("the job's ledger was left without a terminal entry: {why}");
        self.tell(true, "NotClosed", message);
    }
}

/// The name of what an end has left uncommitted, or open (L6); its message tells both.
pub(super) const fn left_behind(record: &ExitRecord) -> Option<&'static str> {
    match (record.unsettled.is_empty(), &record.left_open) {
        (false, _) => Some("OutputUnsettled"),
        (true, Some(_)) => Some("TransactionsLeftOpen"),
        (true, None) => None,
    }
}
