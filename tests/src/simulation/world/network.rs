//! Sessions between JobManagers and TaskManagers, and links between TaskManagers: first in, first out, and slow.

use super::{Event, World};
use crate::simulation::task_manager::Setup;
use sluice_protocol::TaskManagerId;
use sluice_protocol::job_master::{Event as MasterEvent, SessionId};
use sluice_protocol::message::{FromTaskManager, ToTaskManager};

/// A connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) job_manager: usize,
    pub(super) task_manager: usize,
    pub(super) open: bool,
    pub(super) last_up: u64,
    pub(super) last_down: u64,
    pub(super) held_until: u64,
}

impl World {
    /// Looks for the JobManager of its generation.
    pub(super) fn connect(&mut self, index: usize) {
        let Setup { epoch, generation, .. } = self.task_managers[index].setup;
        let of_generation = |at: &usize| {
            let one = &self.job_managers[*at];
            one.alive && (one.epoch, one.generation) == (epoch, generation.0)
        };
        let current = self.current().filter(of_generation);
        let Some(job_manager) = current.or_else(|| (0..self.job_managers.len()).rev().find(of_generation)) else {
            return;
        };
        let session = SessionId(self.order);
        self.order += 1;
        let (now, task_manager) = (self.now, index);
        let one = Session { job_manager, task_manager, open: true, last_up: now, last_down: now, held_until: 0 };
        self.sessions.insert(session, one);
        let effects = self.task_managers[index].connected(session, now);
        self.effect(index, effects);
    }

    pub(super) fn send_down(&mut self, session: SessionId, message: Option<ToTaskManager>) {
        let latency = self.rng.u64(1..30);
        let Some(one) = self.sessions.get_mut(&session).filter(|one| one.open) else { return };
        one.last_down = one.last_down.max(self.now + latency).max(one.held_until);
        let (delay, index) = (one.last_down - self.now, one.task_manager);
        self.schedule(delay, Event::ToTaskManager(index, session, message));
    }

    pub(super) fn send_up(&mut self, session: SessionId, message: FromTaskManager) {
        let latency = self.rng.u64(1..30);
        let Some(one) = self.sessions.get_mut(&session).filter(|one| one.open) else { return };
        one.last_up = one.last_up.max(self.now + latency).max(one.held_until);
        let (delay, index) = (one.last_up - self.now, one.job_manager);
        self.schedule(delay, Event::Master(index, MasterEvent::Message { session, message }));
    }

    /// Ends a session after what was sent; the other side sees it.
    pub(super) fn close(&mut self, session: SessionId, by_job_manager: bool) {
        if by_job_manager {
            self.send_down(session, None);
        } else if let Some(one) = self.sessions.get_mut(&session).filter(|one| one.open) {
            let (delay, index) = (one.last_up.max(self.now + 1) - self.now, one.job_manager);
            self.schedule(delay, Event::Master(index, MasterEvent::SessionClosed { session }));
        }
        if let Some(one) = self.sessions.get_mut(&session) {
            one.open = false;
        }
    }

    /// The way between two TaskManagers: first in, first out.
    pub(super) fn link(&mut self, from: usize, to: &TaskManagerId) -> Option<(usize, u64)> {
        let to = self.task_managers.iter().position(|one| one.setup.name == *to)?;
        let arrives = self.now + self.rng.u64(1..40);
        let last = self.links.entry((from, to)).or_default();
        *last = (*last).max(arrives);
        Some((to, *last - self.now))
    }
}
