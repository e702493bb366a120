//! When checkpoints are triggered, and when they are complete, given up or too many failures (docs/protocol.md, K1-K3).
//!
//! Pure: fed facts and time, answers with [`Output`]s. It knows nothing of stores and sessions. A checkpoint goes
//! through three stages: *collecting* acknowledgements, being *stored* (`_metadata`), being *appended* (its ledger
//! entry is sent). Callers rely on:
//! - an appended stage neither expires nor fails by itself: [`CheckpointCoordinator::completed`] or
//!   [`CheckpointCoordinator::refused`] ends it, when the ledger has answered (L2);
//! - after a counted failure nothing is triggered before [`CheckpointCoordinator::failure_recorded`] (K3);
//! - ids rise and are never used twice (K2).

use crate::failure::{Failure, Fault};
use crate::ids::{CheckpointId, SubtaskId};
use crate::ledger::Ends;
use crate::message::Barrier;
use crate::options::{CheckpointingSpec, TolerableFailures};
use crate::state::SubtaskState;
use crate::time::{TimeSpan, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// The first pause after a failed checkpoint; it doubles with each in a row, up to the checkpoint timeout (K3).
const FIRST_PAUSE: TimeSpan = TimeSpan::from_millis(100);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Tell the sources.
    Trigger {
        /// What they emit.
        barrier: Barrier,
        /// Whether the job ends with it.
        ends: Ends,
    },
    /// All subtasks have acknowledged: make it durable.
    Store(Collected),
    /// It is over: tell the tasks.
    Aborted {
        /// Which.
        id: CheckpointId,
        /// Whether the job would have ended with it.
        ends: Ends,
        /// Why, when it counts as failed; `None`: subsumed.
        failure: Option<Failure>,
        /// Whether its `CheckpointFailed` stands already; else one is to be appended, if it counts as failed.
        recorded: bool,
    },
    /// Its entry has been under way for longer than the timeout: give it up if it turns out not to stand (L2).
    GiveUp(CheckpointId),
    /// Too many failed in a row.
    FailJob(Failure),
}

/// A checkpoint whose parts are all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// Which.
    pub id: CheckpointId,
    /// When it was triggered.
    pub triggered_at: Timestamp,
    /// What each subtask stored.
    pub states: BTreeMap<SubtaskId, SubtaskState>,
}

/// Counters for status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Completed ones.
    pub completed: u64,
    /// Failed ones.
    pub failed: u64,
    /// Failed ones since the last completed one.
    pub failed_in_a_row: u64,
}

/// Triggers and follows checkpoints of one JobManager; lives through its attempts.
#[derive(Debug)]
pub struct CheckpointCoordinator {
    settings: CheckpointingSpec,
    last_id: CheckpointId,
    pending: BTreeMap<CheckpointId, Pending>,
    tasks: BTreeSet<SubtaskId>,
    active: bool,
    base: Option<CheckpointId>,
    next_periodic: Timestamp,
    last_completed_at: Option<Timestamp>,
    hold_until: Timestamp,
    unrecorded_failures: u32,
    requested: Option<Ends>,
    counters: Counters,
}

#[derive(Debug)]
struct Pending {
    triggered_at: Timestamp,
    ends: Ends,
    missing: BTreeSet<SubtaskId>,
    states: BTreeMap<SubtaskId, SubtaskState>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Collecting,
    Storing,
    Appending { given_up: bool },
}

impl CheckpointCoordinator {
    /// One that continues after checkpoint `last_id`.
    #[must_use]
    pub fn new(settings: CheckpointingSpec, last_id: CheckpointId) -> Self {
        Self {
            settings,
            last_id,
            pending: BTreeMap::new(),
            tasks: BTreeSet::new(),
            active: false,
            base: None,
            next_periodic: Timestamp::default(),
            last_completed_at: None,
            hold_until: Timestamp::default(),
            unrecorded_failures: 0,
            requested: None,
            counters: Counters::default(),
        }
    }

    /// All tasks of a new attempt run: the first trigger comes after one interval.
    pub fn activate(&mut self, tasks: BTreeSet<SubtaskId>, base: Option<CheckpointId>, now: Timestamp) {
        self.tasks = tasks;
        self.base = base;
        self.active = true;
        self.next_periodic = now.plus(self.settings.interval);
    }

    /// The attempt is over: what is not being appended is dropped, uncounted. Returns what was dropped.
    pub fn deactivate(&mut self) -> Vec<CheckpointId> {
        self.active = false;
        self.requested = None;
        let dropped: Vec<_> = self.pending.iter().filter(|(_, one)| !one.is_appending()).map(|(id, _)| *id).collect();
        self.pending.retain(|_, one| one.is_appending());
        dropped
    }

    /// Asks for a checkpoint as soon as there can be one, whatever interval and pause say. One that ends the job is
    /// asked for until it is complete.
    pub fn request(&mut self, ends: Ends) {
        if self.requested.is_none_or(|current| current == Ends::None) {
            self.requested = Some(ends);
        }
    }

    /// Lets time pass: expires, then triggers what is due.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Output> {
        let mut outputs = self.expire(now);
        if !outputs.iter().any(|output| matches!(output, Output::FailJob(_)))
            && self.trigger_time().is_some_and(|at| at <= now)
        {
            outputs.push(self.trigger(now));
        }
        outputs
    }

    /// When to call [`Self::tick`] next.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let expiries = self.pending.values().filter_map(|one| self.expiry(one));
        expiries.chain(self.trigger_time()).min()
    }

    /// A subtask has stored its part.
    pub fn acknowledge(&mut self, subtask: SubtaskId, id: CheckpointId, state: SubtaskState) -> Option<Output> {
        let one = self.pending.get_mut(&id).filter(|one| one.stage == Stage::Collecting)?;
        if !one.missing.remove(&subtask) {
            return None;
        }
        one.states.insert(subtask, state);
        if !one.missing.is_empty() {
            return None;
        }
        one.stage = Stage::Storing;
        let states = std::mem::take(&mut one.states);
        Some(Output::Store(Collected { id, triggered_at: one.triggered_at, states }))
    }

    /// A subtask declined it, or its `_metadata` could not be written: it has failed.
    pub fn fail(&mut self, id: CheckpointId, failure: Failure, now: Timestamp) -> Vec<Output> {
        match self.pending.get(&id) {
            Some(one) if !one.is_appending() => self.abort_counted(id, failure, now),
            _ => vec![],
        }
    }

    /// Its `_metadata` stands and its entry is sent: from here on only the ledger decides. `None`: it is over
    /// already, and nothing may be sent.
    #[must_use]
    pub fn appending(&mut self, id: CheckpointId) -> Option<Ends> {
        let one = self.pending.get_mut(&id).filter(|one| one.stage == Stage::Storing)?;
        one.stage = Stage::Appending { given_up: false };
        Some(one.ends)
    }

    /// Its entry stands: older ones that still collect are subsumed.
    pub fn completed(&mut self, id: CheckpointId, now: Timestamp) -> Vec<Output> {
        let ends = self.pending.remove(&id).map_or(Ends::None, |one| one.ends);
        if ends != Ends::None {
            self.requested = None;
        }
        self.base = Some(id);
        self.last_completed_at = Some(now);
        self.hold_until = now;
        self.counters.completed += 1;
        self.counters.failed_in_a_row = 0;
        let subsumed: Vec<_> =
            self.pending.range(..id).filter(|(_, one)| !one.is_appending()).map(|(id, one)| (*id, one.ends)).collect();
        self.pending.retain(|other, one| *other > id || one.is_appending());
        subsumed.into_iter().map(|(id, ends)| Output::Aborted { id, ends, failure: None, recorded: false }).collect()
    }

    /// Its entry does not stand, a `CheckpointFailed` does.
    pub fn refused(&mut self, id: CheckpointId, failure: Failure, now: Timestamp) -> Vec<Output> {
        if !self.pending.contains_key(&id) {
            return vec![];
        }
        let mut outputs = self.abort_counted(id, failure, now);
        self.failure_recorded();
        if let Some(Output::Aborted { recorded, .. }) = outputs.first_mut() {
            *recorded = true;
        }
        outputs
    }

    /// The `CheckpointFailed` of an aborted one stands: the store answers again (K3).
    pub fn failure_recorded(&mut self) {
        self.unrecorded_failures = self.unrecorded_failures.saturating_sub(1);
    }

    /// Those under way.
    pub fn pending(&self) -> impl Iterator<Item = CheckpointId> + '_ {
        self.pending.keys().copied()
    }

    /// Counters for status.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The timeout, and how many are kept: [`CheckpointingSpec`].
    #[must_use]
    pub const fn settings(&self) -> &CheckpointingSpec {
        &self.settings
    }

    fn expiry(&self, one: &Pending) -> Option<Timestamp> {
        let expires = one.stage != Stage::Appending { given_up: true };
        expires.then(|| one.triggered_at.plus(self.settings.timeout))
    }

    fn expire(&mut self, now: Timestamp) -> Vec<Output> {
        let due: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, one)| self.expiry(one).is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        let mut outputs = Vec::new();
        for id in due {
            let Some(one) = self.pending.get_mut(&id) else { continue };
            if one.is_appending() {
                one.stage = Stage::Appending { given_up: true };
                outputs.push(Output::GiveUp(id));
            } else {
                let failure = expired(id, one, self.settings.timeout);
                outputs.extend(self.abort_counted(id, failure, now));
            }
        }
        outputs
    }

    fn max_concurrent(&self) -> usize {
        if self.settings.min_pause.0 > 0 { 1 } else { self.settings.max_concurrent.max(1) as usize }
    }

    /// When the next one may be triggered, as far as time decides.
    fn trigger_time(&self) -> Option<Timestamp> {
        if !self.active || self.unrecorded_failures > 0 {
            return None;
        }
        let last_one_is_under_way = self.pending.values().any(|one| one.ends != Ends::None);
        let wants_end = self.requested.is_some_and(|ends| ends != Ends::None);
        let room = if wants_end { 1 } else { self.max_concurrent() };
        if last_one_is_under_way || self.pending.len() >= room {
            return None;
        }
        if self.requested.is_some() {
            return Some(self.hold_until);
        }
        let pause_over = self.last_completed_at.map(|at| at.plus(self.settings.min_pause)).unwrap_or_default();
        Some(self.next_periodic.max(self.hold_until).max(pause_over))
    }

    fn trigger(&mut self, now: Timestamp) -> Output {
        let ends = self.requested.unwrap_or_default();
        if ends == Ends::None {
            self.requested = None;
        }
        self.last_id = self.last_id.next();
        self.next_periodic = now.plus(self.settings.interval);
        let missing = self.tasks.clone();
        let one = Pending { triggered_at: now, ends, missing, states: BTreeMap::new(), stage: Stage::Collecting };
        self.pending.insert(self.last_id, one);
        Output::Trigger { barrier: Barrier { ends, ..Barrier::aligned(self.last_id, now, self.base) }, ends }
    }

    fn abort_counted(&mut self, id: CheckpointId, failure: Failure, now: Timestamp) -> Vec<Output> {
        let ends = self.pending.remove(&id).map_or(Ends::None, |one| one.ends);
        self.counters.failed += 1;
        self.counters.failed_in_a_row += 1;
        self.unrecorded_failures += 1;
        let doublings = u32::try_from(self.counters.failed_in_a_row - 1).unwrap_or(u32::MAX).min(20);
        let pause = TimeSpan(FIRST_PAUSE.0 << doublings).min(self.settings.timeout);
        self.hold_until = now.plus(pause);
        let mut outputs = vec![Output::Aborted { id, ends, failure: Some(failure.clone()), recorded: false }];
        outputs.extend(self.too_many(id, &failure).map(Output::FailJob));
        outputs
    }

    fn too_many(&self, id: CheckpointId, cause: &Failure) -> Option<Failure> {
        let TolerableFailures::Count(limit) = self.settings.tolerable_failures else { return None };
        let failed = self.counters.failed_in_a_row;
        (failed > u64::from(limit)).then(|| {
            let message = format!(
                "{}; checkpoint {id} is failed checkpoint {failed} in a row, checkpointing.tolerableFailures is {limit}",
                cause.message
            );
            Failure::restart("CheckpointFailuresExceeded", cause.fault, message)
        })
    }
}

impl Pending {
    const fn is_appending(&self) -> bool {
        matches!(self.stage, Stage::Appending { .. })
    }
}

fn expired(id: CheckpointId, one: &Pending, timeout: TimeSpan) -> Failure {
    let waits_for = match one.missing.first() {
        Some(first) => format!("{} subtasks did not acknowledge, the first is {first}", one.missing.len()),
        None => "its _metadata could not be written".to_owned(),
    };
    let message = format!("checkpoint {id} did not complete within checkpointing.timeout {timeout}: {waits_for}");
    Failure::restart("CheckpointExpired", Fault::External, message)
}

#[cfg(test)]
mod tests;
