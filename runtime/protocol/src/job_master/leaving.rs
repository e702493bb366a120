//! TaskManagers that were told to leave (a drained node, a spot instance that is taken back): a checkpoint where time
//! allows, then the tasks run elsewhere from there. That is no failure: no restart is spent (F1).

use super::task_managers::Leaving;
use super::{JobMaster, Phase, SessionId};
use crate::coordinator::CheckpointCoordinator;
use crate::failure::{Failure, Fault};
use crate::ledger::Ends;
use crate::time::{TimeSpan, Timestamp};

impl JobMaster {
    pub(super) fn on_leaving(&mut self, session: SessionId, within: TimeSpan) {
        // One that was triggered before saves less than the one that is asked for now.
        let after = self.coordinator.as_ref().map(CheckpointCoordinator::last_triggered);
        if !self.task_managers.leave(session, Leaving { until: self.now.plus(within), after }) || !self.hosts(session) {
            return;
        }
        if let Some(coordinator) = self.coordinator.as_mut().filter(|_| matches!(self.phase, Phase::Running)) {
            coordinator.request(Ends::None);
        }
    }

    /// When tasks are moved at the latest.
    pub(super) fn leaving_deadline(&self) -> Option<Timestamp> {
        self.leaving().map(|(_, leaving)| leaving.until).min().filter(|_| self.may_move())
    }

    /// Tasks of those that leave are moved once a checkpoint saves what they have done and there is room elsewhere, or
    /// when their time is up.
    pub(super) fn move_from_leaving(&mut self) {
        if !self.may_move() {
            return;
        }
        let latest = self.journal.fold.latest().map(|latest| latest.key.id);
        let is_saved = |leaving: &Leaving| latest > leaving.after;
        let has_room = self.task_managers.lasting_slots() >= self.config.graph.slots_needed() as usize;
        let is_due = |leaving: &Leaving| (has_room && is_saved(leaving)) || leaving.until <= self.now;
        let Some((name, _)) = self.leaving().find(|(_, leaving)| is_due(leaving)) else { return };
        let message = format!("TaskManager {name} leaves: its tasks run elsewhere");
        self.move_tasks(message);
    }

    /// All tasks run again from the latest checkpoint; nothing is counted.
    pub(super) fn move_tasks(&mut self, message: String) {
        self.cancel_execution();
        self.prepare_restart(Failure::restart("TaskManagerLeft", Fault::External, message), self.now);
    }

    /// Whether tasks are at work that may be moved: not once the job ends, and not without checkpoints, where tasks that
    /// run again repeat all results. Those stay until their process goes, and the restart strategy decides.
    pub(super) fn may_move(&self) -> bool {
        let at_work = matches!(self.phase, Phase::Deploying | Phase::Running) && self.execution.is_some();
        at_work && self.coordinator.is_some() && !self.is_ending() && self.journal.fold.ending == Ends::None
    }

    /// Whether what failed may be blamed on one that leaves: its peers may notice its end before its session does.
    pub(super) fn explains(&self, failure: &Failure) -> bool {
        failure.fault == Fault::External && self.may_move() && self.leaving().next().is_some()
    }

    fn hosts(&self, session: SessionId) -> bool {
        self.execution.as_ref().is_some_and(|execution| execution.sessions().contains(&session))
    }

    /// Those that leave and have tasks, by name.
    fn leaving(&self) -> impl Iterator<Item = (&crate::ids::TaskManagerId, &Leaving)> {
        self.task_managers.sessions().filter(|session| self.hosts(*session)).filter_map(|session| {
            let one = self.task_managers.get(session)?;
            Some((&one.registration.task_manager, one.leaving.as_ref()?))
        })
    }
}
