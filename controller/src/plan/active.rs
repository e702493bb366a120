//! A job with a generation under way: it runs, stops, or has lost its JobManager.

use super::fate::{Fate, HOLD, UNREACHABLE, UNRESPONSIVE};
use super::{Planner, View, reference};
use crate::facts::{PodFacts, Rejection, Role};
use sluice_crds::StreamJobState;
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::Command;
use sluice_protocol::options::DesiredState;
use sluice_protocol::restart::{CountedFailure, RestartDecision, RestartPolicy};
use sluice_protocol::status::JobState;
use sluice_protocol::{TimeSpan, Timestamp};

/// How often a stop is asked for again until the JobManager has taken it.
const STOP_AGAIN: TimeSpan = TimeSpan::from_secs(2);
/// How long a stop may take where no checkpoint timeout says it.
const STOP_TIMEOUT: TimeSpan = TimeSpan::from_secs(30);
/// A TaskManager that lived longer is replaced at once.
const YOUNG: TimeSpan = TimeSpan::from_secs(30);
/// Ended TaskManager pods that are kept, so that their logs can be read.
const KEPT: usize = 3;

impl Planner<'_> {
    pub(super) fn active(&mut self) {
        let stopping = self.facts.desired == DesiredState::Suspended
            || self.is_changed()
            || self.facts.memory.stop_requested_at.is_some();
        match (self.fate(), stopping) {
            (Fate::Alive(pod), true) => self.stop(pod),
            (Fate::Exited(record), true) => self.stopped(Some(record)),
            (_, true) => self.stopped(None),
            (Fate::NotCreated, false) => self.create_pods(),
            (Fate::Alive(_), false) => self.run(),
            (Fate::Exited(record), false) => self.exited(record),
            (Fate::Lost(cause), false) => self.lost(&cause),
        }
    }

    /// Asks for an end, until a deadline.
    fn stop(&mut self, pod: &PodFacts) {
        let now = self.facts.now;
        let since = *self.plan.memory.stop_requested_at.get_or_insert(now);
        let timeout = self.spec().and_then(|spec| spec.checkpointing.as_ref()).map_or(STOP_TIMEOUT, |c| c.timeout);
        let deadline = since.plus(timeout);
        if !pod.started || now >= deadline {
            return self.stopped(None);
        }
        self.plan.command = self.facts.connected.then_some(Command::Stop);
        self.wake_at(deadline.min(now.plus(STOP_AGAIN)));
        let reason = if self.facts.desired == DesiredState::Suspended { "Suspending" } else { "SpecChanged" };
        let message = "the JobManager was asked to stop after a last checkpoint";
        self.plan.view = View::progressing(StreamJobState::Stopping, reason, message);
    }

    /// No JobManager runs any more, as it was to be.
    fn stopped(&mut self, record: Option<&ExitRecord>) {
        self.plan.memory.stop_requested_at = None;
        self.delete_pods(|_| true);
        match (self.facts.desired, &self.facts.program, record) {
            (DesiredState::Suspended, _, Some(ExitRecord { kind: ExitKind::Finished, message, .. })) => {
                self.end(StreamJobState::Finished, "Finished", message);
            }
            (DesiredState::Suspended, ..) => self.end(StreamJobState::Suspended, "Suspended", "it keeps its state"),
            (DesiredState::Running, Ok(program), _) => self.begin_revision(program),
            (DesiredState::Running, Err(rejection), _) => {
                self.end(StreamJobState::Invalid, &rejection.reason, &rejection.message);
            }
        }
    }

    /// The JobManager ended by itself and said why.
    fn exited(&mut self, record: &ExitRecord) {
        let ExitRecord { kind, reason, message, by_generation, .. } = record;
        let generation = self.facts.memory.generation;
        match kind {
            ExitKind::Finished => self.end(StreamJobState::Finished, "Finished", message),
            ExitKind::Stopped if self.is_cancelled() => self.end(StreamJobState::Cancelled, "Cancelled", message),
            ExitKind::Stopped => self.end(StreamJobState::Suspended, "Stopped", message),
            ExitKind::Failed => self.end(StreamJobState::Failed, reason, message),
            ExitKind::UserError => self.end(StreamJobState::Invalid, reason, message),
            ExitKind::Superseded if by_generation.is_some_and(|by| by > generation.0) => {
                let by = by_generation.unwrap_or_default();
                let message = format!(
                    "generation {by} of this job runs, which this controller never started: do two clusters write to one \
                     checkpoint directory? {message}"
                );
                self.end(StreamJobState::Failed, "ForeignGeneration", &message);
            }
            ExitKind::Superseded => self.next_generation("Superseded", message),
            ExitKind::StateMoved => self.state_moved(message),
            ExitKind::StateMissing => self.end(StreamJobState::Failed, "StateMissing", message),
            ExitKind::StateLost => self.end(StreamJobState::Failed, "StateLost", message),
            ExitKind::Internal => self.lost(&Rejection { reason: reason.clone(), message: message.clone() }),
        }
    }

    fn is_cancelled(&self) -> bool {
        self.facts.report.as_ref().is_some_and(|report| report.state == JobState::Cancelled)
    }

    /// The ledger has moved on since the directive was written. Where that was only since its last entry was not
    /// known here, it is decided anew on what the JobManager read there (N3).
    fn state_moved(&mut self, message: &str) {
        let entry = self.plan.memory.ledger_entry;
        match &mut self.plan.memory.directive {
            Some(directive) if entry > directive.seen => {
                directive.seen = entry;
                self.next_generation("StateMoved", message);
            }
            _ => self.end(StreamJobState::Failed, "StateMoved", message),
        }
    }

    /// The JobManager is lost: counted once (F1), then the next generation, or the end.
    fn lost(&mut self, cause: &Rejection) {
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
                let failure = CountedFailure::JobManager(generation);
                match self.restart_policy().on_failure(&mut self.plan.memory.failures, failure, None, now) {
                    RestartDecision::RestartAt(due) => due,
                    RestartDecision::GiveUp { reason } => {
                        let message =
                            format!("JobManager of generation {generation} lost: {}; {reason}", cause.message);
                        return self.end(StreamJobState::Failed, &cause.reason, &message);
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

    /// With storage `JobManager` the checkpoints die with the JobManager (L7).
    fn is_state_lost(&self) -> bool {
        let in_memory = |spec: &sluice_crds::StreamJobSpec| {
            spec.checkpointing.as_ref().is_some_and(|checkpointing| checkpointing.storage == "JobManager")
        };
        self.plan.memory.last_checkpoint.is_some() && self.spec().is_some_and(in_memory)
    }

    fn restart_policy(&self) -> RestartPolicy {
        let spec = self.spec();
        let checkpointing = spec.is_some_and(|spec| spec.checkpointing.is_some());
        let strategy = spec.and_then(|spec| spec.restart_strategy.as_ref());
        // A frozen spec was validated; a strategy that is none all the same restarts nothing.
        RestartPolicy::from_spec(strategy, checkpointing).unwrap_or(RestartPolicy::None)
    }

    /// The JobManager lives: its Service and TaskManagers are kept.
    fn run(&mut self) {
        let generation = self.facts.memory.generation;
        self.plan.memory.next_restart_at = None;
        if self.facts.service_generation != Some(generation.0) {
            self.plan.service = Some(generation);
        }
        self.delete_pods(|pod| pod.generation < generation);
        self.keep_task_managers();
        self.plan.view = self.running_view();
        if let Some(since) = self.facts.unreachable_since {
            let looks = [TimeSpan::from_secs(10), UNREACHABLE, TimeSpan(UNREACHABLE.0 + HOLD.0)].map(|s| since.plus(s));
            looks.into_iter().filter(|at| *at > self.facts.now).take(1).for_each(|at| self.wake_at(at));
        }
        if self.plan.view.ready {
            let obsolete = self.facts.programs.iter().filter(|name| **name != self.facts.memory.program);
            self.plan.delete_programs = obsolete.cloned().collect();
        }
    }

    /// Lost TaskManagers are replaced under new indexes (C2).
    fn keep_task_managers(&mut self) {
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
        let surplus = ended.len().saturating_sub(KEPT);
        let missing = self.spec().map_or(0, |spec| spec.task_manager_count() as usize).saturating_sub(there);
        if missing == 0 {
            return;
        }
        self.plan.delete.extend(ended.iter().take(surplus).map(|pod| reference(pod)));
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
        let is_late = |since: Timestamp| self.facts.now.since(since.max(report.since)) >= UNRESPONSIVE;
        pod.unready_since.is_some_and(is_late) && !registered()
    }
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
