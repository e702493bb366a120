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
//! - ids rise and are never used twice (K2).

use crate::failure::{Failure, Fault};
use crate::ids::{CheckpointId, SubtaskId};
use crate::ledger::Ends;
use crate::message::{Alignment, Barrier};
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
    Trigger(Barrier),
    /// All subtasks have acknowledged: make it durable.
    Store(Collected),
    /// It is over: tell the tasks.
    Aborted(Aborted),
    /// Its entry has been under way for longer than the timeout: give it up if it turns out not to stand (L2).
    GiveUp(CheckpointId),
    /// One was due and could not even be triggered: counted as failed.
    NotTriggered(Failure),
    /// Too many failed in a row.
    FailJob(Failure),
}

/// A checkpoint that will not be complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aborted {
    /// Which.
    pub id: CheckpointId,
    /// Whether the job would have ended with it.
    pub ends: Ends,
    /// The savepoint that was taken with it.
    pub savepoint: Option<PendingSavepoint>,
    /// Why, when it counts as failed; `None`: subsumed.
    pub failure: Option<Failure>,
    /// Whether its `CheckpointFailed` stands already; else one is to be appended, if it counts as failed.
    pub recorded: bool,
}

/// A checkpoint whose attempt is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Which.
    pub id: CheckpointId,
    /// URI of the directory of the savepoint that was taken with it.
    pub savepoint: Option<String>,
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
    /// The savepoint that was taken with it, and what each subtask stored for that.
    pub savepoint: Option<(PendingSavepoint, BTreeMap<SubtaskId, SubtaskState>)>,
}

/// A savepoint that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavepointOrder {
    /// Id of the request.
    pub request: String,
    /// Whether the job ends with it.
    pub ends: Ends,
    /// What its directory's URI begins with: `<savepoint dir>/<namespace>/<name>-<uid>/<generation>-`; the checkpoint's id
    /// follows.
    pub directory_prefix: String,
}

/// A savepoint under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSavepoint {
    /// Id of the request.
    pub request: String,
    /// URI of its directory.
    pub directory: String,
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
    /// Since when a trigger has been due that the store's silence holds up.
    held_since: Option<Timestamp>,
    requested: Option<Ends>,
    savepoint: Option<Ordered>,
    /// K5: a savepoint has failed; a checkpoint comes first.
    checkpoint_first: bool,
    /// The sources have been told to end for a savepoint.
    drained: bool,
    counters: Counters,
    overlapping_savepoints: bool,
}

#[derive(Debug)]
struct Ordered {
    order: SavepointOrder,
    failures: u32,
    hold_until: Timestamp,
}

/// What the next trigger is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Periodic,
    Requested(Ends),
    Savepoint(Ends),
}

#[derive(Debug)]
struct Pending {
    triggered_at: Timestamp,
    base: Option<CheckpointId>,
    ends: Ends,
    missing: BTreeSet<SubtaskId>,
    states: BTreeMap<SubtaskId, SubtaskState>,
    savepoint: Option<PendingSavepoint>,
    savepoint_states: BTreeMap<SubtaskId, SubtaskState>,
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
            held_since: None,
            requested: None,
            savepoint: None,
            checkpoint_first: false,
            drained: false,
            counters: Counters::default(),
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
        let expiries = self.pending.values().filter_map(|one| self.expiry(one));
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
                self.held_since.get_or_insert(now);
                outputs.push(Output::GiveUp(id));
            } else {
                let failure = expired(id, one, self.settings.timeout);
                outputs.extend(self.abort_counted(id, failure, now));
            }
        }
        outputs
    }

    /// Whether nothing can be triggered because the store does not answer (K3, L2).
    fn is_held_up(&self) -> bool {
        self.unrecorded_failures > 0
            || self.pending.values().any(|one| one.stage == Stage::Appending { given_up: true })
    }

    fn held_up_until(&self) -> Option<Timestamp> {
        let since = self.held_since.filter(|_| self.active && self.is_held_up())?;
        Some(since.plus(self.settings.timeout))
    }

    /// What was due a timeout ago and could not be triggered since counts as failed: the job must not run on for ever
    /// without a checkpoint, and without a word.
    fn count_held_up(&mut self, now: Timestamp) -> Vec<Output> {
        if self.held_up_until().is_none_or(|until| until > now) {
            return vec![];
        }
        self.held_since = Some(now);
        self.counters.failed += 1;
        self.counters.failed_in_a_row += 1;
        let message = format!(
            "no checkpoint could be triggered within checkpointing.timeout {}: the object store has not answered about the \
             one before; look at its address, its credentials and the network",
            self.settings.timeout
        );
        let failure = Failure::restart("CheckpointNotTriggered", Fault::External, message);
        let too_many = self.too_many(self.last_id.next(), &failure).map(Output::FailJob);
        std::iter::once(Output::NotTriggered(failure)).chain(too_many).collect()
    }

    /// Whether a savepoint waits for the checkpoints under way, and a failed one for the next (K5).
    fn excludes_savepoints(&self) -> bool {
        matches!(self.settings.alignment(), Alignment::Unaligned { .. })
    }

    fn wish(&self) -> (Timestamp, Wish) {
        let pause_over = self.last_completed_at.map(|at| at.plus(self.settings.min_pause)).unwrap_or_default();
        let periodic = (self.next_periodic.max(self.hold_until).max(pause_over), Wish::Periodic);
        let requested = self.requested.map(|ends| (self.hold_until, Wish::Requested(ends)));
        match (requested, &self.savepoint) {
            (Some(last), _) if self.requested != Some(Ends::None) => last,
            (_, Some(_)) if self.checkpoint_first => (self.hold_until, Wish::Requested(Ends::None)),
            (_, Some(ordered)) => {
                let savepoint = (self.hold_until.max(ordered.hold_until), Wish::Savepoint(ordered.order.ends));
                // Between two tries of it checkpoints go on.
                [Some(savepoint), requested, Some(periodic)]
                    .into_iter()
                    .flatten()
                    .min_by_key(|(at, _)| *at)
                    .unwrap_or(periodic)
            }
            (requested, None) => requested.unwrap_or(periodic),
        }
    }

    /// How many may be under way already. None is triggered behind one that ends the job or a savepoint: entries stand in
    /// the order of ids (K2).
    fn has_room(&self, wish: Wish) -> bool {
        if self.overlapping_savepoints && matches!(wish, Wish::Savepoint(_)) {
            return !self.pending.values().any(|one| one.savepoint.is_some());
        }
        let goes_alone = match wish {
            Wish::Periodic => false,
            Wish::Requested(ends) => ends != Ends::None,
            Wish::Savepoint(ends) => ends != Ends::None || self.excludes_savepoints(),
        };
        let room = if goes_alone { 1 } else { self.settings.effective_max_concurrent() as usize };
        let is_last = |one: &Pending| one.ends != Ends::None || one.savepoint.is_some();
        self.pending.len() < room && !self.pending.values().any(is_last)
    }

    /// When the next one may be triggered, as far as time decides, and what for.
    fn next_trigger(&self) -> Option<(Timestamp, Wish)> {
        if !self.active || self.unrecorded_failures > 0 {
            return None;
        }
        let (at, wish) = self.wish();
        self.has_room(wish).then_some((at, wish))
    }

    fn trigger(&mut self, wish: Wish, now: Timestamp) -> Output {
        let id = self.last_id.next();
        self.last_id = id;
        self.next_periodic = now.plus(self.settings.interval);
        if self.requested == Some(Ends::None) {
            self.requested = None;
        }
        let (ends, ordered) = match wish {
            Wish::Periodic => (Ends::None, None),
            Wish::Requested(ends) => (ends, None),
            Wish::Savepoint(ends) => (ends, self.savepoint.as_ref()),
        };
        let savepoint = ordered.map(|Ordered { order, .. }| PendingSavepoint {
            request: order.request.clone(),
            directory: format!("{}{id}", order.directory_prefix),
        });
        // Behind the last row nothing is to be overtaken, and the job ends without what would be.
        let is_aligned = savepoint.is_some() || ends == Ends::Finish;
        let alignment = if is_aligned { Alignment::Aligned } else { self.settings.alignment() };
        self.drained |= savepoint.is_some() && ends == Ends::Finish;
        let directory = savepoint.as_ref().map(|savepoint| savepoint.directory.as_str().into());
        let barrier = Barrier { alignment, ends, savepoint: directory, ..Barrier::aligned(id, now, self.base) };
        self.pending.insert(id, Pending::new(now, self.base, ends, self.tasks.clone(), savepoint));
        Output::Trigger(barrier)
    }

    /// It has failed. One without a savepoint counts against the job.
    fn abort_counted(&mut self, id: CheckpointId, failure: Failure, now: Timestamp) -> Vec<Output> {
        let Some(one) = self.pending.remove(&id) else { return vec![] };
        self.counters.failed += 1;
        self.unrecorded_failures += 1;
        let counts = one.savepoint.is_none();
        if counts {
            self.counters.failed_in_a_row += 1;
            self.hold_until = now.plus(self.pause_after(self.counters.failed_in_a_row));
        } else {
            self.hold_savepoint(now);
        }
        self.held_since.get_or_insert(self.next_periodic.max(self.hold_until).max(now));
        let too_many = if counts { self.too_many(id, &failure) } else { None };
        let aborted = Output::Aborted(one.aborted(id, Some(failure)));
        std::iter::once(aborted).chain(too_many.map(Output::FailJob)).collect()
    }

    fn hold_savepoint(&mut self, now: Timestamp) {
        self.checkpoint_first = self.excludes_savepoints();
        let failures = self.savepoint.as_mut().map_or(1, |ordered| {
            ordered.failures += 1;
            ordered.failures
        });
        let pause = self.pause_after(u64::from(failures));
        if let Some(ordered) = &mut self.savepoint {
            ordered.hold_until = now.plus(pause);
        }
    }

    fn pause_after(&self, failures: u64) -> TimeSpan {
        let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
        TimeSpan(FIRST_PAUSE.0 << doublings).min(self.settings.timeout)
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
    fn new(
        triggered_at: Timestamp,
        base: Option<CheckpointId>,
        ends: Ends,
        missing: BTreeSet<SubtaskId>,
        savepoint: Option<PendingSavepoint>,
    ) -> Self {
        let (states, savepoint_states) = (BTreeMap::new(), BTreeMap::new());
        Self { triggered_at, base, ends, missing, states, savepoint, savepoint_states, stage: Stage::Collecting }
    }

    fn aborted(self, id: CheckpointId, failure: Option<Failure>) -> Aborted {
        Aborted { id, ends: self.ends, savepoint: self.savepoint, failure, recorded: false }
    }

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
