//! What befalls a world: processes die, pause and go on; the controller suspects; the store goes away.

use super::network::Session;
use super::{Event, Process, World};
use crate::simulation::scenario::Fault;

impl World {
    pub(super) fn befall(&mut self, fault: Fault) {
        self.trace(|| format!("fault: {fault:?}"));
        let current = self.current();
        match fault {
            Fault::KillJobManager => {
                if let Some(index) = current {
                    self.kill(Process::JobManager(index), false);
                    self.suspect(index);
                }
            }
            Fault::PauseJobManager { millis, suspected } => {
                if let Some(index) = current {
                    self.pause(Process::JobManager(index), millis);
                    if suspected {
                        self.suspect(index);
                    }
                }
            }
            Fault::SuspectJobManager => {
                if let Some(index) = current {
                    self.suspect(index);
                }
            }
            Fault::KillTaskManager { silently } => {
                if let Some(index) = self.any_task_manager() {
                    self.kill(Process::TaskManager(index), silently);
                }
            }
            Fault::PauseTaskManager { millis } => {
                if let Some(index) = self.any_task_manager() {
                    self.pause(Process::TaskManager(index), millis);
                }
            }
            Fault::Leave { millis } => {
                if let Some(index) = self.any_task_manager() {
                    let effects = self.task_managers[index].leave(millis);
                    self.effect(index, effects);
                    self.schedule(millis, Event::Kill(Process::TaskManager(index), false));
                    self.replace_leaving(index);
                }
            }
            Fault::FailTask => {
                if let Some(index) = self.any_task_manager() {
                    let effects = self.task_managers[index].fail_a_task();
                    self.effect(index, effects);
                }
            }
            Fault::StallSession { millis } => {
                let open: Vec<_> = self.sessions.iter().filter(|(_, one)| one.open).map(|(id, _)| *id).collect();
                if let Some(session) = self.rng.choice(open) {
                    let until = self.now + millis;
                    self.sessions.entry(session).and_modify(|one| one.held_until = until);
                }
            }
            Fault::StoreOutage { millis } => self.outage_until = self.now + millis,
            Fault::StartTwin { back } => self.start_twin(back),
        }
    }

    pub(super) fn suspect(&mut self, index: usize) {
        let delay = self.rng.u64(100..3000);
        self.schedule(delay, Event::JobManagerLost(index));
    }

    pub(super) fn any_task_manager(&mut self) -> Option<usize> {
        let alive: Vec<_> = (0..self.task_managers.len()).filter(|index| self.task_managers[*index].alive).collect();
        self.rng.choice(alive)
    }

    pub(super) fn pause(&mut self, process: Process, millis: u64) {
        if self.is_alive(process) && !self.is_paused(process) {
            self.paused.insert(process, vec![]);
            self.schedule(millis, Event::Resume(process));
        }
    }

    /// It goes on where it stopped, with all that has arrived meanwhile.
    pub(super) fn resume_process(&mut self, process: Process) {
        let Some(waiting) = self.paused.remove(&process) else { return };
        self.trace(|| format!("{process:?} goes on with {} events", waiting.len()));
        for event in waiting {
            self.deliver(process, event);
        }
    }

    pub(super) fn kill(&mut self, process: Process, silently: bool) {
        if !self.is_alive(process) {
            return;
        }
        self.trace(|| format!("{process:?} ends"));
        self.paused.remove(&process);
        let mine = |one: &Session| match process {
            Process::JobManager(index) => one.job_manager == index,
            Process::TaskManager(index) => one.task_manager == index,
        };
        let sessions: Vec<_> =
            self.sessions.iter().filter(|(_, one)| one.open && mine(one)).map(|(id, _)| *id).collect();
        for session in sessions {
            if silently {
                self.sessions.entry(session).and_modify(|one| one.open = false);
            } else {
                self.close(session, matches!(process, Process::JobManager(_)));
            }
        }
        match process {
            Process::JobManager(index) => self.job_managers[index].alive = false,
            Process::TaskManager(index) => {
                self.task_managers[index].alive = false;
                let delay = self.rng.u64(50..1000);
                self.schedule(delay, Event::TaskManagerGone(index));
            }
        }
    }
}
