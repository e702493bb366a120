//! Registered TaskManagers: who is there, who is silent, whose slots are free (N4).
//!
//! A TaskManager gets tasks only when its older ones have ended; the registry remembers that per process, also
//! across a reconnection.

use crate::ids::{CheckpointId, ProcessId, Run};
use crate::job_master::SessionId;
use crate::message::Registration;
use crate::time::{TimeSpan, Timestamp};
use std::collections::BTreeMap;

/// One that is registered.
#[derive(Debug, Clone)]
pub(super) struct TaskManager {
    pub(super) registration: Registration,
    pub(super) last_heard: Timestamp,
    /// It was told to leave: it gets no more tasks.
    pub(super) leaving: Option<Leaving>,
    registered: u64,
    ending_until: Option<Timestamp>,
}

/// How long one that leaves keeps its tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) until: Timestamp,
    /// The latest checkpoint when it said so: a later one saves what it has done.
    pub(super) after: Option<CheckpointId>,
}

/// A slot: one subtask of every vertex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) session: SessionId,
    pub(super) registration: Registration,
}

/// All that are registered.
#[derive(Debug, Default)]
pub(super) struct TaskManagers {
    sessions: BTreeMap<SessionId, TaskManager>,
    registrations: u64,
    /// Processes that may still run tasks, with the last run that was deployed to them.
    hosting: BTreeMap<ProcessId, Run>,
}

impl TaskManagers {
    /// Takes one in. Returns the run whose tasks it must end first, if it may still have some.
    pub(super) fn register(&mut self, session: SessionId, registration: Registration, now: Timestamp) -> Option<Run> {
        let older = self.hosting.get(&registration.process).copied();
        self.registrations += 1;
        let registered = self.registrations;
        let one = TaskManager { registration, last_heard: now, leaving: None, registered, ending_until: None };
        self.sessions.insert(session, one);
        older
    }

    /// Sessions of the same TaskManager name or process, other than this one.
    pub(super) fn others_of(&self, registration: &Registration) -> Vec<SessionId> {
        let is_same = |one: &TaskManager| {
            one.registration.process == registration.process
                || one.registration.task_manager == registration.task_manager
        };
        self.sessions.iter().filter(|(_, one)| is_same(one)).map(|(session, _)| *session).collect()
    }

    pub(super) fn get(&self, session: SessionId) -> Option<&TaskManager> {
        self.sessions.get(&session)
    }

    pub(super) fn remove(&mut self, session: SessionId) -> Option<TaskManager> {
        self.sessions.remove(&session)
    }

    pub(super) fn heard(&mut self, session: SessionId, now: Timestamp) {
        if let Some(one) = self.sessions.get_mut(&session) {
            one.last_heard = now;
        }
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.keys().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &TaskManager> {
        self.sessions.values()
    }

    /// Tasks of this run are being sent there.
    pub(super) fn deployed(&mut self, session: SessionId, run: Run) {
        if let Some(one) = self.sessions.get(&session) {
            self.hosting.insert(one.registration.process.clone(), run);
        }
    }

    /// It was told to end its tasks; when it has not by `deadline`, it is given up.
    pub(super) fn ending(&mut self, session: SessionId, deadline: Timestamp) {
        if let Some(one) = self.sessions.get_mut(&session) {
            one.ending_until = Some(deadline);
        }
    }

    /// It says that no task of this run runs there any more.
    pub(super) fn ended(&mut self, session: SessionId, run: Run) {
        let Some(one) = self.sessions.get_mut(&session) else { return };
        if self.hosting.get(&one.registration.process) == Some(&run) {
            self.hosting.remove(&one.registration.process);
            one.ending_until = None;
        }
    }

    /// Whether a session may still run tasks.
    pub(super) fn host_tasks(&self) -> bool {
        self.sessions.values().any(|one| self.hosting.contains_key(&one.registration.process))
    }

    /// Those to be given up: silent for too long, or unable to end their tasks.
    pub(super) fn lost(&self, timeout: TimeSpan, now: Timestamp) -> Vec<(SessionId, bool)> {
        let state = |one: &TaskManager| {
            let is_silent = one.last_heard.plus(timeout) <= now;
            let is_stuck = one.ending_until.is_some_and(|deadline| deadline <= now);
            (is_silent || is_stuck).then_some(is_silent)
        };
        self.sessions.iter().filter_map(|(session, one)| Some((*session, state(one)?))).collect()
    }

    /// When [`Self::lost`] may next name one.
    pub(super) fn next_loss(&self, timeout: TimeSpan) -> Option<Timestamp> {
        let silence = self.sessions.values().map(|one| one.last_heard.plus(timeout));
        silence.chain(self.sessions.values().filter_map(|one| one.ending_until)).min()
    }

    /// It was told to leave. Says so once.
    pub(super) fn leave(&mut self, session: SessionId, leaving: Leaving) -> bool {
        let Some(one) = self.sessions.get_mut(&session).filter(|one| one.leaving.is_none()) else { return false };
        one.leaving = Some(leaving);
        true
    }

    /// How many slots stay.
    pub(super) fn lasting_slots(&self) -> usize {
        let stay = self.sessions.values().filter(|one| one.leaving.is_none() && one.ending_until.is_none());
        stay.map(|one| one.registration.slots as usize).sum()
    }

    /// Free slots, in order of registration.
    pub(super) fn free_slots(&self) -> Vec<Slot> {
        let mut ready: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, one)| one.leaving.is_none())
            .filter(|(_, one)| one.ending_until.is_none() && !self.hosting.contains_key(&one.registration.process))
            .collect();
        ready.sort_by_key(|(_, one)| one.registered);
        let slots = |(session, one): (&SessionId, &TaskManager)| {
            let slot = Slot { session: *session, registration: one.registration.clone() };
            std::iter::repeat_n(slot, one.registration.slots as usize)
        };
        ready.into_iter().flat_map(slots).collect()
    }
}
