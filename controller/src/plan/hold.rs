//! Whether a stop begins now (docs/operator.md, phase 1), or the change is held and the job runs on: what must not be lost
//! decides. How a stop goes on is `stop`'s.

use super::change::Change;
use super::{Planner, rejection};
use crate::facts::{Held, PodFacts, Rejection, Stop};
use sluice_crds::{StopCause, StreamJobSpec, UpgradeFallback, UpgradeMode};
use sluice_protocol::TimeSpan;
use sluice_protocol::job_master::{Directive, StartFrom};
use sluice_protocol::options::{CheckpointingSpec, DesiredState};
use sluice_protocol::status::JobState;

/// The first time and the longest for which a change is held.
const HOLD_FIRST: TimeSpan = TimeSpan::from_secs(60);
const HOLD_LONGEST: TimeSpan = TimeSpan::from_secs(600);

impl Planner<'_> {
    /// Remembers a stop where the job should not go on as it is, unless one is under way or it cannot be carried out now.
    pub(super) fn consider_stop(&mut self) {
        if self.plan.memory.stop.is_some() {
            return;
        }
        let asked = match (self.facts.desired, self.change()) {
            (DesiredState::Suspended, _) => Some(StopCause::Suspend),
            (_, Change::Upgrade) => Some(StopCause::Upgrade),
            (_, Change::Rescale) => Some(StopCause::Rescale),
            (_, Change::Restore) => Some(StopCause::Restore),
            (_, Change::InPlace | Change::Nothing) => None,
        };
        match asked {
            Some(cause) => self.begin_stop(cause),
            None => self.plan.memory.held = None,
        }
        if self.plan.memory.stop.is_none() && self.is_overdue() {
            self.begin_stop(StopCause::RollBack);
        }
    }

    fn begin_stop(&mut self, cause: StopCause) {
        let with_savepoint = match self.needs_savepoint(cause) {
            Ok(with_savepoint) => with_savepoint,
            Err(wrong) => return self.hold(wrong),
        };
        let with_savepoint = with_savepoint && !self.falls_back_at_once();
        if with_savepoint && self.is_held(cause) {
            return;
        }
        let savepoint_request = with_savepoint.then(|| {
            let memory = &mut self.plan.memory;
            memory.savepoint_requests += 1;
            format!("upgrade-{}-{}", memory.revision, memory.savepoint_requests)
        });
        self.plan.memory.stop = Some(Stop { since: self.facts.now, cause, savepoint_request, savepoint: None });
    }

    /// The change waits until the spec is another one; told of once.
    pub(super) fn hold(&mut self, wrong: Rejection) {
        let is_told = self.facts.told.degraded.as_ref().is_some_and(|told| told.reason == wrong.reason);
        if !is_told {
            self.tell(true, &wrong.reason, wrong.message.clone());
        }
        self.held = Some(wrong);
    }

    /// Why the wanted spec is not started: the job would lose the state that it has, which nobody has asked for.
    pub(super) fn forgets_state(&self) -> Option<Rejection> {
        let spec = &self.facts.program.as_ref().ok()?.spec;
        let is_asked = self.facts.lifecycle.upgrade.mode == UpgradeMode::Stateless
            || spec.restore.as_ref().is_some_and(|restore| self.is_due(spec, restore));
        if is_asked || spec.checkpointing.is_some() || !self.has_state() {
            return None;
        }
        let message = "the spec has no checkpointing any more, and the job would start without the state that it has: put \
                       spec.checkpointing back, or set upgrade.mode to Stateless, which forgets the state";
        Some(rejection("CheckpointingDisabled", message.to_owned()))
    }

    /// Whether there is, or may be, state that a start could go on from.
    fn has_state(&self) -> bool {
        let memory = &self.plan.memory;
        let starts_from = matches!(&memory.directive, Some(Directive { start: StartFrom::Path { .. }, .. }));
        let is_kept = memory.ledger_entry > 0
            || memory.last_checkpoint.is_some()
            || memory.stopped_with.is_some()
            || (starts_from && memory.revision > 0);
        let is_lost = self.facts.told.reason == "StateLost";
        match &self.facts.frozen {
            Some(frozen) => frozen.checkpointing.is_some() && !is_lost && (is_kept || self.has_run()),
            None => is_kept && !is_lost,
        }
    }

    /// Whether only a savepoint saves what must not be lost, or why that cannot be had.
    fn needs_savepoint(&self, cause: StopCause) -> Result<bool, Rejection> {
        if let (StopCause::Upgrade, Some(wrong)) = (cause, self.forgets_state()) {
            return Err(wrong);
        }
        let upgrade = &self.facts.lifecycle.upgrade;
        let by_mode = matches!(cause, StopCause::Upgrade | StopCause::Suspend);
        // A rollback goes back to what was before the trial, or to a checkpoint that is there.
        let gives_up = matches!(cause, StopCause::Restore | StopCause::RollBack)
            || (by_mode && upgrade.mode == UpgradeMode::Stateless);
        let Some(checkpointing) = self.checkpointing() else { return Ok(false) };
        if gives_up || !self.has_run() {
            return Ok(false);
        }
        self.check_storage(checkpointing)?;
        if !checkpointing.is_in_memory() {
            return Ok(by_mode && upgrade.mode == UpgradeMode::Savepoint && self.has_more_to_save());
        }
        if checkpointing.savepoint_root().is_some() {
            return Ok(true);
        }
        let message = "checkpoints are kept in the JobManager's memory (checkpointing.storage) and would be lost with it: set \
                       checkpointing.storage with upgrade.mode Stateless, which starts empty once, or undo the change";
        Err(rejection("NoSavepointStorage", message.to_owned()))
    }

    /// Whether a savepoint holds more than the latest checkpoint is known to. Without any checkpoint nothing was committed;
    /// a revision on trial that does not run is left for its latest checkpoint by a rollback too.
    fn has_more_to_save(&self) -> bool {
        let memory = &self.plan.memory;
        let runs = self.facts.report.as_ref().is_some_and(|report| report.state == JobState::Running);
        memory.last_checkpoint.is_some() && (runs || memory.trial.is_none())
    }

    /// Whether the next revision can read what this one leaves.
    fn check_storage(&self, runs: &CheckpointingSpec) -> Result<(), Rejection> {
        let Ok(program) = &self.facts.program else { return Ok(()) };
        let Some(wanted) = program.spec.checkpointing.as_ref().filter(|_| self.moves_storage()) else { return Ok(()) };
        let endpoint =
            |spec: &CheckpointingSpec| spec.storage_options.as_ref().and_then(|options| options.endpoint.clone());
        let left_in = runs.savepoint_root().unwrap_or_default();
        if !left_in.starts_with("s3://") || endpoint(runs) == endpoint(wanted) {
            return Ok(());
        }
        let message = format!(
            "checkpointing.storage goes from {} to {} behind another storageOptions.endpoint, and a job reaches one only: \
             take a savepoint, copy it to the new place, and set restore.from to the copy",
            runs.storage, wanted.storage
        );
        Err(rejection("StorageUnreachable", message))
    }

    /// Whether tasks of this revision were ever deployed, so that there is something to save.
    pub(super) fn has_run(&self) -> bool {
        self.plan.memory.started_revision == self.plan.memory.revision
    }

    /// Whether the wanted spec keeps its checkpoints, and so its ledger, in another place.
    pub(super) fn moves_storage(&self) -> bool {
        let wanted = self.facts.program.as_ref().ok().filter(|program| !self.is_given_up(program));
        wanted.is_some_and(|program| self.moves_to(&program.spec))
    }

    /// The same of any spec.
    pub(super) fn moves_to(&self, wanted: &StreamJobSpec) -> bool {
        let storage =
            |spec: &StreamJobSpec| spec.checkpointing.as_ref().map(|checkpointing| checkpointing.storage.clone());
        let runs = self.facts.frozen.as_ref().and_then(storage);
        runs.is_some() && storage(wanted).is_some() && runs != storage(wanted)
    }

    /// With the fallback nobody waits for a savepoint that a job in trouble cannot take.
    fn falls_back_at_once(&self) -> bool {
        let runs = self.facts.report.as_ref().is_some_and(|report| report.state == JobState::Running);
        let is_held = self.plan.memory.held.is_some();
        (is_held || !runs || !self.facts.connected) && self.fall_back().is_ok()
    }

    /// Whether the latest checkpoint may stand in for a savepoint, or why not; a word of what is wrong with the
    /// savepoint is the caller's.
    pub(super) fn fall_back(&self) -> Result<(), Option<Rejection>> {
        let upgrade = &self.facts.lifecycle.upgrade;
        let in_memory = self.checkpointing().is_some_and(CheckpointingSpec::is_in_memory);
        if upgrade.fallback == UpgradeFallback::None || in_memory {
            return Err(None);
        }
        let Some(most) = upgrade.max_checkpoint_age else { return Ok(()) };
        let age = self.plan.memory.last_checkpoint.as_ref().map(|last| self.facts.now.since(last.completed_at));
        if age.is_some_and(|age| age <= most) {
            return Ok(());
        }
        let age = age.map_or_else(|| "there is none".to_owned(), |age| format!("it was completed {age} ago"));
        let message = format!(
            "the latest checkpoint is older than upgrade.maxCheckpointAge, which is {most}: {age}; raise the age, or wait for \
             a checkpoint"
        );
        Err(Some(rejection("CheckpointTooOld", message)))
    }

    /// What names the change that is wanted.
    fn wanted_key(&self) -> String {
        match (self.facts.desired, &self.facts.program) {
            (DesiredState::Suspended, _) => "Suspended".to_owned(),
            (DesiredState::Running, Ok(program)) => program.config_map.clone(),
            (DesiredState::Running, Err(_)) => String::new(),
        }
    }

    /// Whether this very change has failed and is not due again; another one is not held.
    fn is_held(&mut self, cause: StopCause) -> bool {
        let Some(held) = self.plan.memory.held.clone() else { return false };
        if held.program != self.wanted_key() || cause == StopCause::RollBack {
            self.plan.memory.held = None;
            return false;
        }
        if self.facts.now >= held.retry_at {
            return false;
        }
        self.wake_at(held.retry_at);
        self.held = Some(Rejection { reason: held.reason, message: held.message });
        true
    }

    /// No savepoint: by the fallback, or the job runs on and the change waits.
    pub(super) fn savepoint_failed(&mut self, pod: &PodFacts, wrong: Rejection) {
        let problem = match self.fall_back() {
            Ok(()) => {
                self.tell(true, &wrong.reason, format!("upgrade.fallback is LastState: {}", wrong.message));
                if let Some(stop) = &mut self.plan.memory.stop {
                    *stop = Stop { since: self.facts.now, savepoint_request: None, savepoint: None, cause: stop.cause };
                }
                return self.stop(pod, false);
            }
            Err(None) => wrong,
            Err(Some(too_old)) => Rejection { message: format!("{}; {}", wrong.message, too_old.message), ..too_old },
        };
        let tries = self.plan.memory.held.as_ref().map_or(0, |held| held.tries);
        let wait = TimeSpan(HOLD_FIRST.0 << tries.min(4)).min(HOLD_LONGEST);
        let message = format!(
            "the job runs on as it was and the change waits: {}. It is tried again in {wait}, or at once when the spec \
             changes; upgrade.fallback LastState would start it from the latest checkpoint",
            problem.message
        );
        self.tell(true, &problem.reason, message.clone());
        self.held = Some(Rejection { reason: problem.reason.clone(), message: message.clone() });
        self.plan.memory.held = Some(Held {
            program: self.wanted_key(),
            reason: problem.reason,
            message,
            retry_at: self.facts.now.plus(wait),
            tries: tries + 1,
        });
        self.plan.memory.stop = None;
        self.wake_at(self.facts.now.plus(wait));
        self.run();
    }
}
