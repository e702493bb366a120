//! Savepoints of a job that has ended are removed by a helper pod (L5), one after the other, while the job rests.
//!
//! Who wants one removed is a Savepoint object that is being deleted. What became of it is remembered until that object is
//! gone; past its deadline it is gone too.

use super::close::RETRY_GAP;
use super::fate::Fate;
use super::{Planner, reference};
use crate::facts::{Disposal, Helper, HelperTask, PodFacts, Rejection, Role, WantedDisposal};
use sluice_protocol::TimeSpan;
use sluice_protocol::failure::ExitKind;
use sluice_protocol::job_master::{Directive, StartFrom};

/// How often it is looked again whether a start still needs a savepoint.
const LOOK_AGAIN: TimeSpan = TimeSpan::from_secs(30);

impl Planner<'_> {
    /// Sees to what is to be removed of a job that has ended; whether a helper is at work.
    pub(super) fn dispose(&mut self) -> bool {
        if let Some(disposal) = self.disposal() {
            let wanted = self.facts.disposals.iter().find(|wanted| wanted.savepoint == disposal.savepoint);
            match wanted {
                Some(wanted) if disposal.outcome.is_none() => return self.follow_disposal(wanted, &disposal),
                // Its object has not heard of it yet.
                Some(_) => return false,
                None => self.plan.memory.helper = None,
            }
        }
        let (needed, free): (Vec<_>, Vec<_>) = self.facts.disposals.iter().partition(|one| self.depends_on(&one.path));
        if !needed.is_empty() {
            self.wake_at(self.facts.now.plus(LOOK_AGAIN));
        }
        match free.first() {
            Some(wanted) => self.begin_disposal(wanted),
            None => false,
        }
    }

    fn disposal(&self) -> Option<Disposal> {
        match &self.plan.memory.helper {
            Some(Helper { task: HelperTask::Dispose(disposal), .. }) => Some(disposal.clone()),
            _ => None,
        }
    }

    fn begin_disposal(&mut self, wanted: &WantedDisposal) -> bool {
        let (savepoint, path) = (wanted.savepoint.clone(), wanted.path.clone());
        let disposal = Disposal { savepoint, path, outcome: None };
        if !self.has_ledger() {
            let message = "the job has ended and keeps no ledger that knows it".to_owned();
            self.conclude(&disposal, "NoLedger", message);
            return false;
        }
        self.begin_helper(HelperTask::Dispose(disposal));
        let generation = self.plan.memory.generation;
        self.tell(
            false,
            "Disposing",
            format!("generation {generation} removes {}, since the job has ended", wanted.path),
        );
        self.wake_at(wanted.deadline);
        true
    }

    fn follow_disposal(&mut self, wanted: &WantedDisposal, disposal: &Disposal) -> bool {
        self.wake_at(wanted.deadline);
        let known = self.facts.memory.generation.0;
        match self.fate() {
            Fate::NotCreated => self.create_helper(),
            Fate::Alive(_) => {}
            Fate::Exited(record)
                if record.kind == ExitKind::Superseded && record.by_generation.is_some_and(|by| by <= known) =>
            {
                self.dispose_again(disposal);
            }
            Fate::Exited(record) => {
                self.conclude(disposal, &record.reason, record.message.clone());
                self.delete_helper();
                return false;
            }
            Fate::Lost(_) | Fate::Drained(_) => self.dispose_again(disposal),
        }
        true
    }

    fn dispose_again(&mut self, disposal: &Disposal) {
        let Some(helper) = &self.plan.memory.helper else { return };
        let due = helper.since.plus(TimeSpan(RETRY_GAP.0 * u64::from(helper.tries)));
        if self.facts.now < due {
            return self.wake_at(due);
        }
        self.begin_helper(HelperTask::Dispose(disposal.clone()));
    }

    fn conclude(&mut self, disposal: &Disposal, reason: &str, message: String) {
        let outcome = Some(Rejection { reason: reason.to_owned(), message });
        let before = self.plan.memory.helper.take();
        let (since, tries) = before.map_or((self.facts.now, 0), |helper| (helper.since, helper.tries));
        let task = HelperTask::Dispose(Disposal { outcome, ..disposal.clone() });
        self.plan.memory.helper = Some(Helper { since, tries, task });
    }

    /// Its record was read, and is remembered first (C2).
    fn delete_helper(&mut self) {
        let generation = self.facts.memory.generation;
        let is_it = |pod: &&PodFacts| pod.role == Role::JobManager && pod.generation == generation && !pod.terminating;
        let pods = self.facts.pods.iter().filter(is_it).map(reference);
        self.plan.delete.extend(pods);
    }

    /// Whether the next start would restore it: what the last revision was to start from and has not, what the job was
    /// stopped with, and what the spec names.
    fn depends_on(&self, path: &str) -> bool {
        let memory = &self.plan.memory;
        let is_it = |from: &String| place(from) == place(path);
        let unused = memory.directive.as_ref().filter(|_| !self.has_run());
        let wanted = self.facts.program.as_ref().ok().map(|program| &program.spec);
        let restore = wanted.and_then(|spec| spec.restore.as_ref().filter(|restore| self.is_due(spec, restore)));
        matches!(unused, Some(Directive { start: StartFrom::Path { from, .. }, .. }) if is_it(from))
            || memory.stopped_with.as_ref().is_some_and(is_it)
            || restore.is_some_and(|restore| is_it(&restore.from))
    }
}

/// A snapshot's directory, however it was written.
fn place(path: &str) -> &str {
    path.trim_end_matches("/_metadata").trim_end_matches('/')
}
