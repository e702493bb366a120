//! A job with a generation under way: it runs, stops, or has lost its JobManager.

use super::change::Change;
use super::fate::{Fate, HOLD, NODE_LOST, UNREACHABLE, UNRESPONSIVE};
use super::{LostJobManager, ObjectIdentity, Planner, View, reference, rejection};
use crate::facts::{PROGRAM_MISSING, PodFacts, Rejection, Role};
use sluice_crds::StreamJobState;
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::{Command, Reconfiguration};
use sluice_protocol::options::{CheckpointingSpec, TolerableFailures};
use sluice_protocol::restart::{CountedFailure, RestartDecision, RestartPolicy};
use sluice_protocol::status::{JobState, JobStatus};
use sluice_protocol::{TimeSpan, Timestamp};

/// What a JobManager that was cancelled says at its end.
const CANCELLED: &str = "Cancelled";
/// A TaskManager that lived longer is replaced at once.
const YOUNG: TimeSpan = TimeSpan::from_secs(30);

impl Planner<'_> {
    pub(super) fn active(&mut self) {
        self.forget_given_up();
        self.watch_trial();
        self.consider_stop();
        let fate = self.fate();
        if let Some(stop) = self.plan.memory.stop.clone() {
            return self.stopping(fate, &stop);
        }
        match fate {
            Fate::NotCreated => self.create_pods(),
            Fate::Alive(_) => match self.stuck().filter(|_| self.restarts_stuck()) {
                Some(cause) => self.lost(&cause),
                None => self.run(),
            },
            // A savepoint that was given up for lost, or a person, has stopped it: a change need not wait any longer, and
            // what nobody wants any more does not end the job.
            Fate::Exited(record) if record.kind == ExitKind::Stopped && self.goes_on_when_stopped(record) => {
                self.stopped(Some(record));
            }
            Fate::Exited(record) => self.exited(record),
            Fate::Drained(cause) => self.drained(&cause),
            Fate::Lost(cause) => self.lost(&cause),
        }
    }

    fn goes_on_when_stopped(&self, record: &ExitRecord) -> bool {
        let is_changed = self.change() > Change::InPlace && self.forgets_state().is_none();
        is_changed || (self.was_asked_to_stop() && !self.is_cancelled(record))
    }

    /// The JobManager ended by itself and said why.
    pub(super) fn exited(&mut self, record: &ExitRecord) {
        let ExitRecord { kind, reason, message, by_generation, .. } = record;
        self.tell_left(record);
        let generation = self.facts.memory.generation;
        match kind {
            ExitKind::Finished => {
                // What came to its end is as good as what ran for a while.
                self.settle();
                self.end(StreamJobState::Finished, "Finished", message);
            }
            ExitKind::Stopped if self.is_cancelled(record) => self.end(StreamJobState::Cancelled, "Cancelled", message),
            ExitKind::Stopped => self.end(StreamJobState::Suspended, "Stopped", message),
            ExitKind::Failed => self.fail(StreamJobState::Failed, reason, message),
            ExitKind::UserError => self.fail(StreamJobState::Invalid, reason, message),
            // Another job goes on with its state (G5): nothing here may start again by itself.
            ExitKind::StateMoved if reason == "MovedTo" => self.end(StreamJobState::Failed, "MovedTo", message),
            ExitKind::Superseded if reason == "TakenOver" && by_generation.is_some_and(|by| by > generation.0) => {
                self.end(StreamJobState::Failed, "TakenOver", message);
            }
            ExitKind::Superseded if by_generation.is_some_and(|by| by > generation.0) => {
                let by = by_generation.unwrap_or_default();
                let message = format!(
                    "generation {by} of this job runs, which this controller never started: do two clusters write to one \
                     checkpoint directory? {message}"
                );
                self.end(StreamJobState::Failed, "ForeignGeneration", &message);
            }
            ExitKind::Superseded => self.restart("Superseded", message),
            ExitKind::StateMoved => self.state_moved(message),
            ExitKind::StateMissing => self.end(StreamJobState::Failed, "StateMissing", message),
            ExitKind::StateLost => self.end(StreamJobState::Failed, "StateLost", message),
            ExitKind::Internal => self.lost(&Rejection { reason: reason.clone(), message: message.clone() }),
        }
    }

    /// Its last report may not have arrived, or was heard by another replica.
    fn is_cancelled(&self, record: &ExitRecord) -> bool {
        let is_told = self.facts.report.as_ref().is_some_and(|report| report.state == JobState::Cancelled);
        is_told || record.reason == CANCELLED
    }

    /// The ledger has moved on since the directive was written. Where that was only since its last entry was not
    /// known here, it is decided anew on what the JobManager read there (N3).
    fn state_moved(&mut self, message: &str) {
        let entry = self.plan.memory.ledger_entry;
        match &mut self.plan.memory.directive {
            Some(directive) if entry > directive.seen => {
                directive.seen = entry;
                self.restart("StateMoved", message);
            }
            _ => self.end(StreamJobState::Failed, "StateMoved", message),
        }
    }

    /// The JobManager had to leave its node: the next generation follows at once and nothing is counted (F1).
    pub(super) fn drained(&mut self, cause: &Rejection) {
        if self.is_state_lost() {
            return self.lost(cause);
        }
        self.restart(&cause.reason, &cause.message);
    }

    /// The next generation follows without a failure of the job's.
    fn restart(&mut self, reason: &str, message: &str) {
        self.note_restart(reason);
        self.next_generation(reason, message);
    }

    /// The JobManager is lost: counted once (F1), then the next generation, or the end.
    pub(super) fn lost(&mut self, cause: &Rejection) {
        let (now, generation) = (self.facts.now, self.facts.memory.generation);
        self.delete_pods(|_| true);
        if self.is_state_lost() {
            let message = format!("{}; its checkpoints were in its memory (storage JobManager)", cause.message);
            return self.end(StreamJobState::Failed, "StateLost", &message);
        }
        let planned = self.plan.memory.next_restart_at;
        let due = match planned {
            Some(due) => due,
            None => {
                self.note_lost(cause);
                let failure = CountedFailure::JobManager(generation);
                match self.restart_policy().on_failure(&mut self.plan.memory.failures, failure, None, now) {
                    RestartDecision::RestartAt(due) => {
                        self.note_restart(&cause.reason);
                        due
                    }
                    RestartDecision::GiveUp { reason } => {
                        let message =
                            format!("JobManager of generation {generation} lost: {}; {reason}", cause.message);
                        self.fail(StreamJobState::Failed, &cause.reason, &message);
                        return self.begin_closer_of_failed(cause);
                    }
                }
            }
        };
        if now >= due {
            return self.next_generation(&cause.reason, &cause.message);
        }
        if planned.is_none() {
            self.tell(true, &cause.reason, format!("JobManager of generation {generation} lost: {}", cause.message));
        }
        self.plan.memory.next_restart_at = Some(due);
        self.wake_at(due);
        let message = format!("JobManager of generation {generation} lost: {}", cause.message);
        self.plan.view = View::progressing(StreamJobState::Restarting, &cause.reason, &message);
    }

    fn note_lost(&mut self, cause: &Rejection) {
        let generation = self.facts.memory.generation;
        let pod = self.facts.pods.iter().find(|pod| pod.role == Role::JobManager && pod.generation == generation);
        let says_why = pod.and_then(|pod| pod.ended.as_ref()).is_some_and(|end| end.record.is_some());
        let fault = if says_why { "Internal" } else { "External" };
        let pod = pod.map(|pod| pod.name.clone());
        self.plan.lost = Some(LostJobManager { generation, cause: cause.clone(), fault, pod });
    }

    /// With storage `JobManager` the checkpoints die with the JobManager (L7).
    fn is_state_lost(&self) -> bool {
        let in_memory = self.checkpointing().is_some_and(CheckpointingSpec::is_in_memory);
        self.plan.memory.last_checkpoint.is_some() && in_memory
    }

    fn restart_policy(&self) -> RestartPolicy {
        let spec = self.spec();
        let checkpointing = self.checkpointing().is_some();
        let strategy = spec.and_then(|spec| spec.restart_strategy.as_ref());
        // A frozen spec was validated; a strategy that is none all the same restarts nothing.
        RestartPolicy::from_spec(strategy, checkpointing).unwrap_or(RestartPolicy::None)
    }

    /// The JobManager lives: its Service and TaskManagers are kept.
    pub(super) fn run(&mut self) {
        let generation = self.facts.memory.generation;
        self.plan.memory.next_restart_at = None;
        if self.facts.service_generation != Some(generation.0) {
            self.plan.service = Some(generation);
        }
        self.delete_pods(|pod| pod.generation < generation);
        self.remove_ended_of_earlier();
        self.restore_program();
        self.take_over();
        self.keep_task_managers();
        self.plan.view = self.running_view();
        self.next_slow_start().into_iter().for_each(|at| self.wake_at(at));
        self.release_pins();
        let stuck = self.stuck();
        self.plan.view.degraded = self.plan.view.degraded.take().or(stuck);
        if let Some(since) = self.silent_since() {
            let looks = [self.patience(), UNREACHABLE, TimeSpan(UNREACHABLE.0 + HOLD.0)].map(|span| since.plus(span));
            looks.into_iter().filter(|at| *at > self.facts.now).take(1).for_each(|at| self.wake_at(at));
        }
        if self.plan.view.ready {
            self.plan.delete_programs = self.obsolete_programs();
        }
    }

    /// Tasks run, but no checkpoint has come for longer than its failures could explain.
    fn stuck(&mut self) -> Option<Rejection> {
        let report = self.facts.report.as_ref().filter(|report| report.state == JobState::Running)?;
        let patience = self.checkpointing().map(checkpoint_patience)?;
        let last = report.last_checkpoint.as_ref().map(|last| last.completed_at).unwrap_or_default();
        let due = last.max(report.since).plus(patience);
        if self.facts.now < due {
            self.wake_at(due);
            return None;
        }
        let message = format!(
            "all tasks run, but no checkpoint was completed within {patience}, which is the longer of checkpointing.interval \
             and timeout times (tolerableFailures + 2): look at back-pressure and at what the last checkpoint waited for"
        );
        Some(rejection("CheckpointsStuck", message))
    }

    /// What the last upgrade went on from is kept until the revision is stable (K7); asked until the report shows it.
    fn release_pins(&mut self) {
        let memory = &self.plan.memory;
        let holds = |report: &JobStatus| report.generation == memory.generation && !report.pinned.is_empty();
        let may = memory.trial.is_none() && self.facts.connected && self.plan.command.is_none();
        if may && self.facts.report.as_ref().is_some_and(holds) {
            self.plan.command = Some(Command::Release);
        }
    }

    /// Whether a stuck job is restarted. Not on what is known of it from before its stream went down, nor where that would
    /// cost the checkpoints that it has.
    fn restarts_stuck(&self) -> bool {
        let in_memory = self.checkpointing().is_some_and(CheckpointingSpec::is_in_memory);
        self.facts.lifecycle.stability.restart_stuck && self.facts.connected && !in_memory
    }

    fn obsolete_programs(&self) -> Vec<ObjectIdentity> {
        let memory = &self.plan.memory;
        let stable = memory.stable.as_ref().map(|stable| &stable.program);
        let given_up = memory.rolled_back.as_ref().map(|given_up| &given_up.program);
        let kept: Vec<_> =
            [Some(&memory.program), Some(&memory.deployed_program), stable, given_up].into_iter().flatten().collect();
        self.facts.programs.iter().filter(|program| !kept.contains(&&program.name)).cloned().collect()
    }

    /// The ConfigMap that pods made later mount is put back, where somebody has deleted it.
    fn restore_program(&mut self) {
        let is_missing = self.facts.frozen_problem.as_ref().is_some_and(|problem| problem.reason == PROGRAM_MISSING);
        let wanted = self.facts.program.as_ref().ok();
        self.plan.program =
            wanted.filter(|wanted| is_missing && wanted.config_map == self.plan.memory.program).cloned();
    }

    /// What the running job takes over without a restart: its manifest is frozen anew for later generations, and the
    /// JobManager is told until it says that it obeys it.
    fn take_over(&mut self) {
        if let (Change::InPlace, Ok(program)) = (self.change(), &self.facts.program) {
            let memory = &mut self.plan.memory;
            if let Some(stable) = memory.stable.as_mut().filter(|stable| stable.revision == memory.revision) {
                stable.program.clone_from(&program.config_map);
            }
            memory.program.clone_from(&program.config_map);
            self.plan.program = Some(program.clone());
            self.plan.spec = Some(program.spec.clone());
            self.tell(false, "Reconfigured", "the changed options are taken over without a restart".to_owned());
        }
        let memory = &self.plan.memory;
        let report = self.facts.report.as_ref().filter(|report| self.facts.connected && report.attempt.0 > 0);
        let Some(report) = report else { return };
        let obeyed = report.options_id.as_ref().unwrap_or(&memory.deployed_program);
        let (false, Some(spec)) = (*obeyed == memory.program, self.spec()) else { return };
        self.plan.command = Some(Command::Reconfigure(Box::new(Reconfiguration {
            id: memory.program.clone(),
            checkpointing: spec.checkpointing.clone(),
            restart_strategy: spec.restart_strategy.clone(),
        })));
    }

    /// Lost TaskManagers are replaced under new indexes (C2).
    pub(super) fn keep_task_managers(&mut self) {
        let state = self.facts.report.as_ref().map(|report| report.state).unwrap_or_default();
        if matches!(state, JobState::Finishing | JobState::Stopping) || state.is_terminal() {
            return;
        }
        let generation = self.facts.memory.generation;
        let own = || self.facts.pods.iter().filter(|pod| pod.generation == generation && pod.role != Role::JobManager);
        let lost: Vec<_> = own().filter(|pod| pod.is_alive() && self.is_unresponsive(pod)).map(reference).collect();
        let there = own().filter(|pod| is_there(pod)).count() - lost.len();
        self.plan.delete.extend(lost);
        let ended: Vec<_> = own().filter(|pod| pod.ended.is_some() && !pod.terminating).collect();
        self.remove_ended_task_managers(is_there);
        let missing = self.spec().map_or(0, |spec| spec.task_manager_count() as usize).saturating_sub(there);
        if missing == 0 {
            return;
        }
        match replacement_due(&ended) {
            Some(due) if due > self.facts.now => self.wake_at(due),
            _ => self.create_task_managers(u32::try_from(missing).unwrap_or(u32::MAX)),
        }
    }

    /// A TaskManager that does not answer, or does not find its JobManager, is given up when the JobManager is there
    /// and has given it up as well.
    fn is_unresponsive(&self, pod: &PodFacts) -> bool {
        let Some(report) = self.facts.report.as_ref().filter(|_| self.facts.connected) else { return false };
        let registered = || report.task_managers.iter().any(|known| known.id.as_str() == pod.name);
        let patience = if pod.on_lost_node { NODE_LOST } else { UNRESPONSIVE };
        let is_late = |since: Timestamp| self.facts.now.since(since.max(report.since)) >= patience;
        pod.unready_since.is_some_and(is_late) && !registered()
    }
}

/// For how long a job that runs may be without a new checkpoint. Any number of failures may be tolerable, but not for ever
/// without a word: they count as eight.
fn checkpoint_patience(checkpointing: &CheckpointingSpec) -> TimeSpan {
    let tolerable = match checkpointing.tolerable_failures {
        TolerableFailures::Count(count) => u64::from(count),
        TolerableFailures::Unlimited(_) => 8,
    };
    let longest = checkpointing.interval.max(checkpointing.timeout).0;
    TimeSpan(longest.saturating_mul(tolerable.saturating_add(2)))
}

/// Whether a pod counts as one of the TaskManagers: it lives, or it ended as it was told to.
fn is_there(pod: &PodFacts) -> bool {
    let regular = |kind: ExitKind| matches!(kind, ExitKind::Finished | ExitKind::Stopped);
    match &pod.ended {
        None => !pod.terminating,
        Some(end) => !pod.terminating && end.record.as_ref().is_some_and(|record| regular(record.kind)),
    }
}

/// TaskManagers that die young are replaced at growing intervals: 1, 2, 4 … 32 seconds after the last.
fn replacement_due(ended: &[&PodFacts]) -> Option<Timestamp> {
    let ends = || ended.iter().filter_map(|pod| Some((pod.ended.as_ref()?.at, pod.created_at)));
    let young = ends().filter(|(at, created)| at.since(*created) < YOUNG);
    let count = u32::try_from(young.clone().count()).unwrap_or(u32::MAX);
    let last = young.map(|(at, _)| at).max()?;
    (count > 1).then(|| last.plus(TimeSpan::from_secs(1 << (count - 2).min(5))))
}
