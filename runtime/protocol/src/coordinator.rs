//! When checkpoints are triggered, and when they are complete, given up or too many failures (docs/protocol.md, K1-K5).
//!
//! Pure: fed facts and time, answers with [`Output`]s. It knows nothing of stores and sessions. A checkpoint goes
//! through three stages: *collecting* acknowledgements, being *stored* (`_metadata`), being *appended* (its ledger
//! entry is sent). Callers rely on:
//! - an appended stage neither expires nor fails by itself: [`CheckpointCoordinator::completed`] or
//!   [`CheckpointCoordinator::refused`] ends it, when the ledger has answered (L2);
//! - after a failure nothing is triggered before [`CheckpointCoordinator::failure_recorded`] (K3); what is due meanwhile
//!   and cannot be triggered for as long as the timeout counts as one more;
//! - a savepoint is asked for until it is complete or [`CheckpointCoordinator::withdraw_savepoint`] gives it up; tries of
//!   it that fail are not counted against the job;
//! - behind the end of all input a checkpoint that expires does not count against the job, one that the job ends with
//!   does;
//! - ids rise and are never used twice (K2).

mod failing;
mod output;
mod pending;
mod triggering;

pub use output::{Aborted, Collected, Counters, Dropped, Output, PendingSavepoint, SavepointOrder};

use crate::failure::Failure;
use crate::ids::{CheckpointId, SubtaskId};
use crate::ledger::Ends;
use crate::options::CheckpointingSpec;
use crate::state::SubtaskState;
use crate::time::Timestamp;
use pending::{Pending, Stage};
use std::collections::{BTreeMap, BTreeSet};

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
    /// Since when a trigger has been due that the store's silence holds up.
    held_since: Option<Timestamp>,
    requested: Option<Ends>,
    savepoint: Option<Ordered>,
    /// K5: a savepoint has failed; a checkpoint comes first.
    checkpoint_first: bool,
    /// The sources have been told to end for a savepoint.
    drained: bool,
    /// All sources have ended: tasks only empty their queues.
    input_ended: bool,
    counters: Counters,
    /// Sinks have not committed what too many checkpoints hold.
    commits_behind: bool,
    overlapping_savepoints: bool,
}

#[derive(Debug)]
struct Ordered {
    order: SavepointOrder,
    failures: u32,
    hold_until: Timestamp,
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
            held_since: None,
            requested: None,
            savepoint: None,
            checkpoint_first: false,
            drained: false,
            input_ended: false,
            counters: Counters::default(),
            commits_behind: false,
            overlapping_savepoints: false,
        }
    }

    /// Planted bug: K5 broken, savepoints exclude nothing.
    pub(crate) const fn plant_overlapping_savepoints(&mut self) {
        self.overlapping_savepoints = true;
    }

    /// All tasks of a new attempt run: the first trigger comes after one interval.
    pub fn activate(&mut self, tasks: BTreeSet<SubtaskId>, base: Option<CheckpointId>, now: Timestamp) {
        self.tasks = tasks;
        self.base = base;
        self.active = true;
        self.drained = false;
        self.input_ended = false;
        self.next_periodic = now.plus(self.settings.interval);
        self.held_since = self.held_since.map(|_| self.next_periodic);
    }

    /// The attempt is over: what is not being appended is dropped, uncounted. Returns what was dropped.
    pub fn deactivate(&mut self) -> Vec<Dropped> {
        self.active = false;
        self.requested = None;
        self.savepoint = None;
        self.checkpoint_first = false;
        let (kept, dropped) = std::mem::take(&mut self.pending).into_iter().partition(|(_, one)| one.is_appending());
        self.pending = kept;
        let dropped: BTreeMap<CheckpointId, Pending> = dropped;
        let directory = |one: Pending| one.savepoint.map(|savepoint| savepoint.directory);
        dropped.into_iter().map(|(id, one)| Dropped { id, savepoint: directory(one) }).collect()
    }

    /// Asks for a checkpoint as soon as there can be one, whatever interval and pause say. One that ends the job is
    /// asked for until it is complete.
    pub fn request(&mut self, ends: Ends) {
        if self.requested.is_none_or(|current| current == Ends::None) {
            self.requested = Some(ends);
        }
    }

    /// All sources of this attempt have ended. From now on a checkpoint that expires in a queue counts as failed, but not
    /// against the job.
    pub const fn input_ended(&mut self) {
        self.input_ended = true;
    }

    /// Asks for a savepoint until it is complete or withdrawn; one at a time.
    pub fn request_savepoint(&mut self, order: SavepointOrder) {
        if self.savepoint.as_ref().is_none_or(|ordered| ordered.order.request != order.request) {
            self.savepoint = Some(Ordered { order, failures: 0, hold_until: Timestamp::default() });
        }
    }

    /// Whether the sources of this attempt were told to end for a savepoint.
    #[must_use]
    pub const fn has_drained(&self) -> bool {
        self.drained
    }

    /// Gives a savepoint up. `None`: its entry is under way, and only the ledger decides (K4); ask again when that is
    /// answered.
    pub fn withdraw_savepoint(&mut self, request: &str, failure: &Failure, now: Timestamp) -> Option<Vec<Output>> {
        let is_it = |one: &Pending| one.savepoint.as_ref().is_some_and(|savepoint| savepoint.request == request);
        let mine: Vec<_> =
            self.pending.iter().filter(|(_, one)| is_it(one)).map(|(id, one)| (*id, one.is_appending())).collect();
        if mine.iter().any(|(_, is_appending)| *is_appending) {
            return None;
        }
        self.savepoint.take_if(|ordered| ordered.order.request == request);
        Some(mine.into_iter().flat_map(|(id, _)| self.abort_counted(id, failure.clone(), now)).collect())
    }

    /// Lets time pass: expires, then triggers what is due.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Output> {
        let mut outputs = self.expire(now);
        outputs.extend(self.count_held_up(now));
        if !outputs.iter().any(|output| matches!(output, Output::FailJob(_)))
            && let Some((_, wish)) = self.next_trigger().filter(|(at, _)| *at <= now)
        {
            outputs.push(self.trigger(wish, now));
        }
        outputs
    }

    /// When to call [`Self::tick`] next.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let expiries = self.pending.values().filter_map(Self::expiry);
        expiries.chain(self.next_trigger().map(|(at, _)| at)).chain(self.held_up_until()).min()
    }

    /// A subtask has stored its part; with a savepoint, its part of that too.
    pub fn acknowledge(
        &mut self,
        subtask: SubtaskId,
        id: CheckpointId,
        state: SubtaskState,
        savepoint: Option<SubtaskState>,
    ) -> Option<Output> {
        let one = self.pending.get_mut(&id).filter(|one| one.stage == Stage::Collecting)?;
        if !one.missing.remove(&subtask) {
            return None;
        }
        one.states.insert(subtask, state);
        one.savepoint_states.extend(savepoint.map(|state| (subtask, state)));
        if !one.missing.is_empty() {
            return None;
        }
        one.stage = Stage::Storing;
        let states = std::mem::take(&mut one.states);
        let savepoint_states = std::mem::take(&mut one.savepoint_states);
        let savepoint = one.savepoint.clone().map(|savepoint| (savepoint, savepoint_states));
        Some(Output::Store(Collected { id, triggered_at: one.triggered_at, states, savepoint }))
    }

    /// A subtask declined it, or its `_metadata` could not be written: it has failed.
    pub fn fail(&mut self, id: CheckpointId, failure: Failure, now: Timestamp) -> Vec<Output> {
        match self.pending.get(&id) {
            Some(one) if !one.is_appending() => self.abort_counted(id, failure, now),
            _ => vec![],
        }
    }

    /// Its `_metadata` stands and its entry is sent: from here on only the ledger decides. Whether the job ends with it,
    /// and its savepoint. `None`: it is over already, and nothing may be sent.
    #[must_use]
    pub fn appending(&mut self, id: CheckpointId) -> Option<(Ends, Option<PendingSavepoint>)> {
        let one = self.pending.get_mut(&id).filter(|one| one.stage == Stage::Storing)?;
        one.stage = Stage::Appending { given_up: false };
        Some((one.ends, one.savepoint.clone()))
    }

    /// Its entry stands: older ones that still collect are subsumed.
    pub fn completed(&mut self, id: CheckpointId, now: Timestamp) -> Vec<Output> {
        let completed = self.pending.remove(&id);
        if completed.as_ref().is_some_and(|one| one.ends != Ends::None) {
            self.requested = None;
        }
        if let Some(savepoint) = completed.and_then(|one| one.savepoint) {
            self.savepoint.take_if(|ordered| ordered.order.request == savepoint.request);
        }
        self.base = Some(id);
        self.last_completed_at = Some(now);
        self.hold_until = now;
        self.checkpoint_first = false;
        self.counters.completed += 1;
        self.counters.failed_in_a_row = 0;
        if !self.is_held_up() {
            self.held_since = None;
        }
        let subsumed: Vec<_> =
            self.pending.range(..id).filter(|(_, one)| !one.is_appending()).map(|(id, _)| *id).collect();
        let subsumed = subsumed.into_iter().filter_map(|id| self.pending.remove(&id).map(|one| (id, one)));
        subsumed.map(|(id, one)| Output::Aborted(one.aborted(id, None))).collect()
    }

    /// Its entry does not stand, a `CheckpointFailed` does.
    pub fn refused(&mut self, id: CheckpointId, failure: Failure, now: Timestamp) -> Vec<Output> {
        if !self.pending.contains_key(&id) {
            return vec![];
        }
        let mut outputs = self.abort_counted(id, failure, now);
        self.failure_recorded();
        if let Some(Output::Aborted(aborted)) = outputs.first_mut() {
            aborted.recorded = true;
        }
        outputs
    }

    /// The `CheckpointFailed` of an aborted one stands: the store answers again (K3).
    pub fn failure_recorded(&mut self) {
        self.unrecorded_failures = self.unrecorded_failures.saturating_sub(1);
        if !self.is_held_up() {
            self.held_since = None;
        }
    }

    /// Whether sinks are so far behind with their commits that nothing more is triggered (K3).
    pub fn commits_behind(&mut self, are_behind: bool, now: Timestamp) {
        if self.commits_behind == are_behind {
            return;
        }
        self.commits_behind = are_behind;
        if are_behind {
            self.held_since.get_or_insert(self.next_periodic.max(now));
        } else if !self.is_held_up() {
            self.held_since = None;
        }
    }

    /// Those under way.
    pub fn pending(&self) -> impl Iterator<Item = CheckpointId> + '_ {
        self.pending.keys().copied()
    }

    /// Checkpoints whose files those under way may refer to (K6).
    pub fn bases(&self) -> impl Iterator<Item = CheckpointId> + '_ {
        self.pending.values().filter_map(|one| one.base)
    }

    /// Counters for status.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The last one that was triggered.
    #[must_use]
    pub const fn last_triggered(&self) -> CheckpointId {
        self.last_id
    }

    /// Obeys other options from now on; checkpoints under way keep theirs.
    pub fn reconfigure(&mut self, settings: CheckpointingSpec, now: Timestamp) {
        self.next_periodic = self.next_periodic.min(now.plus(settings.interval));
        self.settings = settings;
    }

    /// The timeout, and how many are kept: [`CheckpointingSpec`].
    #[must_use]
    pub const fn settings(&self) -> &CheckpointingSpec {
        &self.settings
    }
}

#[cfg(test)]
mod tests;
