//! Phase 1 of every transition: the running revision is stopped, by a savepoint or a last checkpoint, or it is held
//! (docs/operator.md). What is started afterwards is decided when nothing runs any more.

use super::change::Change;
use super::close::{CLOSE_TIMEOUT, Closing, left_behind};
use super::fate::Fate;
use super::{Planner, View, rejection};
use crate::facts::{Held, PodFacts, Program, Rejection, Stop};
use sluice_crds::{StopCause, StreamJobSpec, StreamJobState, UpgradeFallback, UpgradeMode};
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::{Command, NOTHING_BEGUN, SavepointRequest};
use sluice_protocol::ledger::SavepointKind;
use sluice_protocol::options::{CheckpointingSpec, DesiredState};
use sluice_protocol::status::{JobState, RequestState, RequestStatus};
use sluice_protocol::{TimeSpan, Timestamp};

/// How often a stop is asked for again until the JobManager has taken it.
const STOP_AGAIN: TimeSpan = TimeSpan::from_secs(2);
/// How long a stop may take where there is no state to save.
const STOP_TIMEOUT: TimeSpan = TimeSpan::from_secs(30);
/// How much longer than its savepoint a stop may take: the JobManager's answer has to arrive.
const GRACE: TimeSpan = TimeSpan::from_secs(30);
/// The first time and the longest for which a change is held.
const HOLD_FIRST: TimeSpan = TimeSpan::from_secs(60);
const HOLD_LONGEST: TimeSpan = TimeSpan::from_secs(600);

impl Planner<'_> {
    // --- Whether -------------------------------------------------------------------------------------------------

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
            Err(wrong) => {
                self.held = Some(wrong);
                return;
            }
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

    /// Whether only a savepoint saves what must not be lost, or why that cannot be had.
    fn needs_savepoint(&self, cause: StopCause) -> Result<bool, Rejection> {
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
    fn moves_storage(&self) -> bool {
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
    fn fall_back(&self) -> Result<(), Option<Rejection>> {
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

    // --- Held ----------------------------------------------------------------------------------------------------

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
    fn savepoint_failed(&mut self, pod: &PodFacts, wrong: Rejection) {
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

    // --- How -----------------------------------------------------------------------------------------------------

    /// A stop is under way: what follows from what became of the JobManager.
    pub(super) fn stopping(&mut self, fate: Fate<'_>, stop: &Stop) {
        if self.is_closing() {
            return self.close_stopped(fate, stop);
        }
        let waits_for_savepoint = stop.savepoint_request.is_some() && stop.savepoint.is_none() && self.has_run();
        let needs_savepoint = waits_for_savepoint && self.fall_back().is_err();
        let needs_end = needs_savepoint || self.needs_terminal_entry(stop);
        match fate {
            Fate::Alive(pod) => self.stop(pod, needs_end),
            Fate::Exited(record) if needs_end && !is_terminal(record.kind) => self.exited(record),
            Fate::Exited(record) => self.stopped(Some(record)),
            // The next generation carries the request out (K4).
            Fate::Lost(cause) if needs_savepoint => self.lost(&cause),
            Fate::Drained(cause) if needs_savepoint => self.drained(&cause),
            Fate::NotCreated if needs_end => self.create_pods(),
            Fate::Lost(cause) | Fate::Drained(cause) => self.end_unreachable(stop, &cause),
            Fate::NotCreated => self.end_unreachable(stop, &rejection("NotCreated", "its pod was not made".to_owned())),
        }
    }

    /// No JobManager can be asked for an end: a closer writes it (L6), where the revision has run and has a ledger.
    pub(super) fn end_unreachable(&mut self, stop: &Stop, cause: &Rejection) {
        if (self.has_run() && self.has_ledger()) || self.may_have_begun_elsewhere(stop) {
            self.begin_closer(cause);
            return self.tell_closing(stop);
        }
        if self.needs_terminal_entry(stop) {
            return self.lost(cause);
        }
        self.stopped(None);
    }

    /// A closer is at work, until its deadline where the change may go on without a terminal entry.
    fn close_stopped(&mut self, fate: Fate<'_>, stop: &Stop) {
        let needs_end = self.needs_terminal_entry(stop);
        let since = self.plan.memory.helper.as_ref().map(|helper| helper.since).unwrap_or_default();
        let deadline = since.plus(CLOSE_TIMEOUT);
        // What it has found counts, however late it is heard.
        let has_ended = matches!(fate, Fate::Exited(record) if is_terminal(record.kind));
        if !needs_end && !has_ended && self.facts.now >= deadline {
            self.tell_not_closed(&format!("its closer has not ended it within {CLOSE_TIMEOUT}"));
            return self.stopped(None);
        }
        match self.follow_closer(fate) {
            Closing::UnderWay => {
                if !needs_end {
                    self.wake_at(deadline);
                }
                self.tell_closing(stop);
            }
            Closing::Ended(record) => self.stopped(Some(record)),
            Closing::GivenUp(record) if needs_end => self.exited(record),
            Closing::GivenUp(record) => {
                self.tell_not_closed(&record.message);
                self.stopped(Some(record));
            }
        }
    }

    fn tell_closing(&mut self, stop: &Stop) {
        let message = self.closer_message();
        self.tell_stopping(stop, &message);
    }

    /// A ledger that the job leaves behind must say that it has ended: nothing else fences what may still write to it.
    fn needs_terminal_entry(&self, stop: &Stop) -> bool {
        let has_ledger = stop.cause != StopCause::RollBack || self.has_ledger();
        self.has_run() && has_ledger && self.leaves_storage(stop)
    }

    /// Whether what follows keeps its ledger in another place.
    fn leaves_storage(&self, stop: &Stop) -> bool {
        match stop.cause {
            StopCause::Upgrade | StopCause::Restore => self.moves_storage(),
            StopCause::RollBack => self.facts.stable.as_ref().is_some_and(|stable| self.moves_to(stable)),
            StopCause::Rescale | StopCause::Suspend | StopCause::Delete => false,
        }
    }

    /// Whether a revision that is left for another storage may have begun its ledger although nothing was heard of it: a
    /// closer finds out, and fences it. Not where its container cannot have started.
    pub(super) fn may_have_begun_elsewhere(&self, stop: &Stop) -> bool {
        let memory = &self.plan.memory;
        // That there are entries tells nothing: they may be of an earlier stay.
        let is_first_seen = memory.directive.as_ref().is_some_and(|directive| directive.seen == 0);
        let is_unknown = !self.has_run() && is_first_seen && memory.job_manager_pod.is_some();
        let is_in_memory = self.checkpointing().is_none_or(CheckpointingSpec::is_in_memory);
        let cannot_start = self.job_manager().is_some_and(|pod| !pod.started && pod.problem.is_some());
        // Where the spec may go to while it is suspended, nobody knows yet.
        let may_leave = stop.cause == StopCause::Suspend || self.leaves_storage(stop);
        is_unknown && !is_in_memory && !cannot_start && may_leave
    }

    /// Asks for an end, until a deadline.
    fn stop(&mut self, pod: &PodFacts, needs_end: bool) {
        let Some(stop) = self.plan.memory.stop.clone() else { return };
        // One that has not started has nothing to save, unless it is there to carry out this very end.
        if !pod.started && !needs_end {
            let cause = rejection("NotStarted", format!("pod {} has not started", pod.name));
            return self.end_unreachable(&stop, &cause);
        }
        match &stop.savepoint_request {
            Some(id) => self.stop_with_savepoint(pod, &stop, id),
            None => self.stop_with_checkpoint(pod, &stop),
        }
    }

    fn stop_with_checkpoint(&mut self, pod: &PodFacts, stop: &Stop) {
        let now = self.facts.now;
        let saves = self.has_run() && stop.cause != StopCause::RollBack;
        let timeout = self.checkpointing().filter(|_| saves);
        // A JobManager that only came to end the ledger has the whole time too.
        let since = if self.needs_terminal_entry(stop) { stop.since.max(pod.created_at) } else { stop.since };
        let deadline = since.plus(timeout.map_or(STOP_TIMEOUT, |checkpointing| checkpointing.timeout));
        if now >= deadline {
            let message = "its JobManager did not end in time".to_owned();
            return self.end_unreachable(stop, &rejection("StopTimedOut", message));
        }
        self.plan.command = self.facts.connected.then_some(Command::Stop);
        self.wait_for_end(deadline);
        self.tell_stopping(stop, "the JobManager was asked to stop after a last checkpoint");
    }

    fn stop_with_savepoint(&mut self, pod: &PodFacts, stop: &Stop, id: &str) {
        let now = self.facts.now;
        let timeout = self.savepoint_timeout();
        let deadline = stop.since.plus(timeout).plus(GRACE);
        let answer = self.answer(id);
        match answer.map(|answer| answer.state) {
            Some(RequestState::Failed) => {
                let failure = answer.and_then(|answer| answer.failure.as_ref());
                let wrong = match failure {
                    Some(failure) => rejection(&failure.reason, failure.message.clone()),
                    None => rejection("SavepointFailed", "the savepoint failed".to_owned()),
                };
                return self.savepoint_failed(pod, wrong);
            }
            Some(RequestState::Completed) if now >= deadline => {
                let message = "its JobManager did not end after the savepoint".to_owned();
                return self.end_unreachable(stop, &rejection("StopTimedOut", message));
            }
            _ if now >= deadline => {
                let wrong = match (answer, self.facts.connected) {
                    (None, false) => rejection("JobManagerUnreachable", "the JobManager did not answer".to_owned()),
                    _ => rejection("SavepointExpired", format!("the savepoint was not there within {timeout}")),
                };
                return self.savepoint_failed(pod, wrong);
            }
            None if self.facts.connected => self.plan.command = Some(savepoint_command(id, timeout)),
            _ => {}
        }
        self.wait_for_end(deadline);
        self.tell_stopping(stop, "the JobManager was asked to stop with a savepoint");
    }

    /// Meanwhile a lost TaskManager is replaced: a last snapshot needs all tasks.
    fn wait_for_end(&mut self, deadline: Timestamp) {
        if self.has_run() {
            self.keep_task_managers();
        }
        self.wake_at(deadline.min(self.facts.now.plus(STOP_AGAIN)));
    }

    fn savepoint_timeout(&self) -> TimeSpan {
        let checkpointing = self.checkpointing();
        let wanted = self.facts.lifecycle.upgrade.savepoint_timeout;
        wanted.unwrap_or_else(|| checkpointing.map_or(STOP_TIMEOUT, |checkpointing| checkpointing.timeout))
    }

    /// What the JobManager says of a request.
    pub(super) fn answer(&self, id: &str) -> Option<&RequestStatus> {
        self.facts.report.as_ref()?.requests.iter().find(|request| request.id == id)
    }

    /// The savepoint to stop with is remembered as soon as it is there: the JobManager goes right after it.
    pub(super) fn absorb_savepoint(&mut self) {
        let Some(id) = self.plan.memory.stop.as_ref().and_then(|stop| stop.savepoint_request.clone()) else { return };
        let taken = self.answer(&id).filter(|answer| answer.state == RequestState::Completed);
        if let (Some(path), Some(stop)) = (taken.and_then(|answer| answer.path.clone()), &mut self.plan.memory.stop) {
            stop.savepoint = Some(path);
        }
    }

    fn tell_stopping(&mut self, stop: &Stop, message: &str) {
        let reason = match stop.cause {
            StopCause::Upgrade => "Upgrading",
            StopCause::Rescale => "Rescaling",
            StopCause::Restore => "Restoring",
            StopCause::Suspend => "Suspending",
            StopCause::RollBack => "RollingBack",
            StopCause::Delete => "Deleting",
        };
        self.plan.view = View::progressing(StreamJobState::Stopping, reason, message);
    }

    // --- Then ----------------------------------------------------------------------------------------------------

    /// No JobManager runs any more, as it was to be.
    pub(super) fn stopped(&mut self, record: Option<&ExitRecord>) {
        record.into_iter().for_each(|record| self.tell_left(record));
        let mut stop = self.plan.memory.stop.take();
        let found_nothing = self.absorb_closed(record);
        let rolls_back = stop.as_ref().is_some_and(|stop| stop.cause == StopCause::RollBack);
        self.delete_pods(|_| true);
        if let Some(stop) = &mut stop {
            stop.savepoint = self.left_unsettled(stop, record).or_else(|| stop.savepoint.take());
        }
        let savepoint = stop.as_ref().and_then(|stop| stop.savepoint.clone()).or_else(|| self.late_savepoint());
        self.plan.memory.stopped_with.clone_from(&savepoint);
        if self.is_lost_with_job_manager(stop.as_ref().map(|stop| stop.cause), record) {
            let message = "the job was stopped with a savepoint, and the controller has not heard where it is; its checkpoints \
                           were in the JobManager's memory: look for the newest directory below checkpointing.savepointStorage \
                           and set restore.from to it";
            return self.end(StreamJobState::Failed, "StateLost", message);
        }
        match (self.facts.desired, &self.facts.program, record) {
            (DesiredState::Suspended, _, Some(ExitRecord { kind: ExitKind::Finished, message, .. })) => {
                self.end(StreamJobState::Finished, "Finished", message);
            }
            (DesiredState::Suspended, ..) => match record.and_then(|record| Some((left_behind(record)?, record))) {
                Some((reason, record)) => self.end(StreamJobState::Suspended, reason, &record.message),
                None => self.suspended(found_nothing),
            },
            _ if rolls_back && self.change() <= Change::InPlace && self.can_roll_back() => self.roll_back_stopped(),
            (DesiredState::Running, Ok(program), _) => self.begin_revision(&self.startable(program), stop.as_ref()),
            (DesiredState::Running, Err(rejection), _) => match self.running_program() {
                // The spec was broken while the job was being stopped for an earlier one: what ran goes on.
                Some(program) => self.begin_revision(&program, stop.as_ref()),
                None => self.end(StreamJobState::Invalid, &rejection.reason, &rejection.message),
            },
        }
    }

    /// What a closer has found out of a revision of which nothing was heard; whether nothing had begun.
    fn absorb_closed(&mut self, record: Option<&ExitRecord>) -> bool {
        let closer = self.plan.memory.helper.take().filter(|_| !self.has_run());
        let Some(record) = record.filter(|record| closer.is_some() && is_terminal(record.kind)) else { return false };
        if record.reason == NOTHING_BEGUN {
            // What the closer wrote is no state: it is where the revision was to be started from.
            self.plan.memory.ledger_entry = 0;
            return true;
        }
        self.note_started();
        false
    }

    /// The job rests; what a closer that found nothing says of its own entries is not heard again.
    fn suspended(&mut self, found_nothing: bool) {
        if found_nothing {
            let memory = &mut self.plan.memory;
            memory.generation = memory.generation.next();
            memory.job_manager_pod = None;
        }
        self.end(StreamJobState::Suspended, "Suspended", "it keeps its state");
    }

    /// The savepoint of a stop that was given up and came to its end all the same.
    fn late_savepoint(&self) -> Option<String> {
        let completed = |request: &&RequestStatus| request.state == RequestState::Completed;
        self.own_requests().filter(completed).find_map(|request| request.path.clone())
    }

    /// What the JobManager says of the savepoints to stop with that it was asked for under this revision.
    fn own_requests(&self) -> impl Iterator<Item = &RequestStatus> {
        let prefix = format!("upgrade-{}-", self.plan.memory.revision);
        let requests = self.facts.report.iter().flat_map(|report| &report.requests);
        requests.filter(move |request| request.id.starts_with(&prefix))
    }

    /// Whether a JobManager that stopped did so for a request of the controller's own that it had given up: not when it is
    /// known that each of them has failed.
    pub(super) fn was_asked_to_stop(&self) -> bool {
        let failed = self.own_requests().filter(|request| request.state == RequestState::Failed).count();
        usize::try_from(self.plan.memory.savepoint_requests).is_ok_and(|asked| asked > failed)
    }

    /// Whether the state that was to be saved is nowhere that is known.
    fn is_lost_with_job_manager(&self, cause: Option<StopCause>, record: Option<&ExitRecord>) -> bool {
        let memory = &self.plan.memory;
        let gives_up = matches!(cause, Some(StopCause::Restore | StopCause::RollBack))
            || (self.facts.lifecycle.upgrade.mode == UpgradeMode::Stateless && cause != Some(StopCause::Rescale))
            || record.is_some_and(|record| record.kind == ExitKind::Finished);
        let kept = memory.last_checkpoint.is_some() && self.has_run() && self.leaves_nothing();
        kept && !gives_up && memory.stopped_with.is_none()
    }

    /// The wanted program, or in place of one that was given up the one that runs.
    fn startable(&self, program: &Program) -> Program {
        let stable = || self.running_program().filter(|_| self.is_given_up(program));
        stable().unwrap_or_else(|| program.clone())
    }

    /// The frozen program of the revision that runs.
    fn running_program(&self) -> Option<Program> {
        let spec = self.facts.frozen.clone()?;
        Some(Program { spec, config_map: self.plan.memory.program.clone() })
    }
}

/// Asks for the savepoint to stop with.
pub(super) fn savepoint_command(id: &str, timeout: TimeSpan) -> Command {
    Command::Savepoint(SavepointRequest { id: id.to_owned(), kind: SavepointKind::Stop, directory: None, timeout })
}

/// Whether a process that ended like this has left a terminal entry.
pub(super) const fn is_terminal(kind: ExitKind) -> bool {
    matches!(kind, ExitKind::Stopped | ExitKind::Finished | ExitKind::Failed)
}

/// When a stop for a deletion is over at the latest.
pub(super) fn deletion_deadline(stop: &Stop, timeout: TimeSpan) -> Timestamp {
    stop.since.plus(timeout)
}
