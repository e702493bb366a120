//! Attempts: deploying, running, failing, restarting in place (N2, N4, F1, F2).
//!
//! An attempt is deployed when four things are there: its entry (`Started` or `Restarted`), its time, the state it
//! restores, and slots of TaskManagers whose older tasks have ended.

use super::checkpoints::StoredState;
use super::execution::{Execution, TaskState};
use super::journal::{EndKind, Intent};
use super::{JobMaster, Phase, Preparing, SessionId};
use crate::failure::{Failure, FailureRecord, Fault, Retry};
use crate::ids::{Run, SubtaskId};
use crate::ledger::Ends;
use crate::ledger::append::backoff;
use crate::message::{FromTaskManager, GroupWatermark, Registration, ToTaskManager};
use crate::restart::{CountedFailure, RestartDecision};
use crate::time::{TimeSpan, Timestamp};

/// Heartbeats are sent this many times per loss timeout.
const HEARTBEATS_PER_TIMEOUT: u64 = 5;

/// Tasks that are deployed must run within this time, or within the checkpoint timeout if that is longer: restoring
/// reads what a checkpoint wrote.
const DEPLOY_TIMEOUT: TimeSpan = TimeSpan::from_secs(600);

/// A TaskManager that cannot end its tasks within this many loss timeouts is given up.
const CANCEL_TIMEOUTS: u64 = 6;

impl JobMaster {
    // --- TaskManagers -----------------------------------------------------------------------------------------

    pub(super) fn on_message(&mut self, session: SessionId, message: FromTaskManager) {
        if let FromTaskManager::Register(registration) = message {
            return self.register(session, registration);
        }
        if self.task_managers.get(session).is_none() {
            return;
        }
        self.task_managers.heard(session, self.now);
        match message {
            FromTaskManager::Register(_) | FromTaskManager::Heartbeat => {}
            FromTaskManager::Leaving { within } => self.on_leaving(session, within),
            FromTaskManager::TasksEnded { run } => self.task_managers.ended(session, run),
            FromTaskManager::TaskRunning { run, subtask } => self.on_task(session, run, subtask, TaskState::Running),
            FromTaskManager::TaskFinished { run, subtask } => self.on_task(session, run, subtask, TaskState::Finished),
            FromTaskManager::TaskFailed { run, subtask, failure } => {
                if self.is_current(session, run, subtask) {
                    self.fail_attempt(failure, Some((session, subtask)));
                }
            }
            FromTaskManager::ReportWatermarks { run, groups } => self.align_watermarks(session, run, groups),
            FromTaskManager::Acknowledge { run, subtask, checkpoint, state, savepoint, metrics } => {
                if self.is_current(session, run, subtask) {
                    self.on_acknowledged(subtask, checkpoint, StoredState { state, savepoint, metrics });
                }
            }
            FromTaskManager::Decline { run, subtask, checkpoint, failure } => {
                if self.is_current(session, run, subtask) {
                    self.on_declined(checkpoint, failure);
                }
            }
        }
    }

    /// Tells a TaskManager how far the others are, by their last reports; none is answered before all have reported.
    fn align_watermarks(&mut self, session: SessionId, run: Run, groups: Vec<GroupWatermark>) {
        let execution = self.execution.as_mut().filter(|execution| execution.run == run);
        if let Some(groups) = execution.and_then(|execution| execution.align(session, groups)) {
            self.send(session, ToTaskManager::AlignWatermarks { run, groups });
        }
    }

    /// Whether a message is of the attempt that runs, and from where its task was sent (N2).
    fn is_current(&self, session: SessionId, run: Run, subtask: SubtaskId) -> bool {
        matches!(self.phase, Phase::Deploying | Phase::Running)
            && self.execution.as_ref().is_some_and(|one| one.run == run && one.session_of(subtask) == Some(session))
    }

    fn register(&mut self, session: SessionId, registration: Registration) {
        if let Some(refusal) = self.refusal(&registration) {
            self.send(session, ToTaskManager::Refused(refusal));
            return self.close(session);
        }
        for other in self.task_managers.others_of(&registration) {
            self.lose_task_manager(other, "it has registered anew");
            self.close(other);
        }
        let older = self.task_managers.register(session, registration, self.now);
        let heartbeat_timeout = self.config.options.heartbeat_timeout;
        self.send(session, ToTaskManager::Registered { heartbeat_timeout });
        // Before it deploys anything it knows the time.
        self.send(session, ToTaskManager::Heartbeat { at: self.now });
        if let Some(run) = older {
            self.cancel_tasks(session, run);
        }
    }

    fn refusal(&self, registration: &Registration) -> Option<Failure> {
        if self.is_over() || matches!(self.phase, Phase::Exiting { .. }) {
            return Some(Failure::restart("JobEnded", Fault::Internal, "the job has ended"));
        }
        if registration.generation != self.config.generation {
            let message = format!(
                "TaskManager {} was started for generation {}, this JobManager is generation {}: it must end",
                registration.task_manager, registration.generation, self.config.generation
            );
            return Some(Failure::restart("WrongGeneration", Fault::Internal, message));
        }
        let fingerprint = self.config.graph.fingerprint();
        (registration.fingerprint != fingerprint).then(|| {
            let message = format!(
                "TaskManager {} built a job graph with fingerprint {}, the JobManager one with {fingerprint}: both must \
                 run the same image with the same program",
                registration.task_manager, registration.fingerprint
            );
            Failure::user("WrongProgram", message)
        })
    }

    pub(super) fn on_session_closed(&mut self, session: SessionId) {
        self.lose_task_manager(session, "its connection broke");
    }

    pub(super) fn tick_task_managers(&mut self) {
        let timeout = self.config.options.heartbeat_timeout;
        for (session, is_silent) in self.task_managers.lost(timeout, self.now) {
            let why = if is_silent { "it was silent for too long" } else { "it could not end its tasks" };
            self.lose_task_manager(session, why);
            self.close(session);
        }
        if self.next_heartbeat <= self.now {
            self.next_heartbeat = self.now.plus(TimeSpan((timeout.0 / HEARTBEATS_PER_TIMEOUT).max(1)));
            for session in self.task_managers.sessions().collect::<Vec<_>>() {
                self.send(session, ToTaskManager::Heartbeat { at: self.now });
            }
        }
    }

    fn lose_task_manager(&mut self, session: SessionId, why: &str) {
        let Some(lost) = self.task_managers.remove(session) else { return };
        let hosts = self.execution.as_ref().is_some_and(|execution| execution.sessions().contains(&session));
        if hosts && matches!(self.phase, Phase::Deploying | Phase::Running | Phase::Ending(_)) {
            let message = format!("TaskManager {} was lost: {why}", lost.registration.task_manager);
            if lost.leaving.is_some() && self.may_move() {
                return self.move_tasks(message);
            }
            let failure = Failure::restart("TaskManagerLost", Fault::External, message);
            self.fail_attempt_on(failure, Some(lost.registration.task_manager), None);
        }
    }

    // --- Deploying --------------------------------------------------------------------------------------------

    /// Deploys the attempt that is prepared, as soon as everything is there.
    pub(super) fn deploy_when_ready(&mut self) {
        let Phase::Preparing(preparing) = &self.phase else { return };
        let is_ready = preparing.recorded && preparing.loaded && preparing.due <= self.now;
        // The first checkpoint carries what is unsettled (S5): it must be known.
        if !is_ready || self.commits.is_loading() {
            return;
        }
        let slots = self.task_managers.free_slots();
        if slots.len() < self.config.graph.slots_needed() as usize {
            return;
        }
        let run = Run { generation: self.config.generation, attempt: self.attempt };
        let keeps_files = !self.journal.in_memory && self.coordinator.is_some();
        let directory = keeps_files.then(|| self.journal.paths.generation_directory(self.config.generation));
        let states = self.restored.as_mut().map(|restored| std::mem::take(&mut restored.states));
        let timeout = self.deploy_timeout();
        let Some((execution, deployments)) =
            Execution::plan((run, self.now.plus(timeout)), &self.config.graph, &slots, states, directory.as_deref())
        else {
            return;
        };
        for (session, deployment) in deployments {
            self.task_managers.deployed(session, run);
            self.send(session, ToTaskManager::Deploy(Box::new(deployment)));
        }
        self.status.restored_from = self.restored.as_ref().map(|restored| restored.info.clone());
        self.execution = Some(execution);
        self.phase = Phase::Deploying;
    }

    fn deploy_timeout(&self) -> TimeSpan {
        self.config.options.checkpointing.as_ref().map_or(DEPLOY_TIMEOUT, |one| one.timeout.max(DEPLOY_TIMEOUT))
    }

    /// When an attempt that is being deployed has failed.
    pub(super) fn deploy_deadline(&self) -> Option<Timestamp> {
        let execution = self.execution.as_ref().filter(|_| matches!(self.phase, Phase::Deploying))?;
        Some(execution.deadline)
    }

    /// Tasks that never say that they run fail the attempt.
    pub(super) fn check_deployment(&mut self) {
        if self.deploy_deadline().is_none_or(|deadline| deadline > self.now) {
            return;
        }
        let Some(execution) = &self.execution else { return };
        let late: Vec<_> = execution.deploying().collect();
        let Some(first) = late.first().copied() else { return };
        let message = format!(
            "{} of {} tasks have not begun to run within {} of their deployment, the first of them {first}: look at the \
             log of its TaskManager; reading the state to restore may take too long (checkpointing.timeout allows more)",
            late.len(),
            execution.subtasks().len(),
            self.deploy_timeout()
        );
        let session = execution.session_of(first);
        let failure = Failure::restart("DeploymentTimeout", Fault::External, message);
        self.fail_attempt(failure, session.map(|session| (session, first)));
    }

    fn on_task(&mut self, session: SessionId, run: Run, subtask: SubtaskId, state: TaskState) {
        let is_ending = matches!(self.phase, Phase::Ending(_));
        if !is_ending && !self.is_current(session, run, subtask) {
            return;
        }
        let Some(execution) = self.execution.as_mut().filter(|one| one.run == run && one.contains(subtask)) else {
            return;
        };
        execution.set(subtask, state);
        if matches!(self.phase, Phase::Deploying) && execution.all_run() {
            if self.attempt.0 > 1 || self.config.generation.0 > 1 {
                // Older tasks have ended where these run; elsewhere they do within the time after which they count as lost (N4).
                self.abort_leftovers();
                self.abort_leftovers_after(self.config.options.heartbeat_timeout);
            }
            self.run();
        }
    }

    fn run(&mut self) {
        let Some(execution) = &self.execution else { return };
        let tasks = execution.subtasks();
        self.phase = Phase::Running;
        self.external_failures = 0;
        let base = self.journal.fold.latest().map(|latest| latest.key.id);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.activate(tasks, base, self.now);
        }
        self.ask_for_checkpoints();
    }

    /// Behind the last row checkpoints go on while the tasks empty their queues. When all tasks have, a last checkpoint,
    /// which waits for no row; when that is complete, or there are no checkpoints, `Finished`.
    pub(super) fn finish_when_all_have(&mut self) {
        let Some(execution) = &self.execution else { return };
        if !matches!(self.phase, Phase::Running) || !execution.sources_finished(&self.config.graph) {
            return;
        }
        let have_all = execution.all_finished();
        match &mut self.coordinator {
            Some(coordinator) if self.journal.fold.ending != Ends::Finish => {
                coordinator.input_ended();
                if have_all && !coordinator.has_drained() {
                    coordinator.request(Ends::Finish);
                }
            }
            _ if have_all => self.end(self.reached_end()),
            _ => {}
        }
    }

    // --- Failing and restarting -------------------------------------------------------------------------------

    pub(super) fn fail_attempt(&mut self, failure: Failure, at: Option<(SessionId, SubtaskId)>) {
        let task_manager = at.and_then(|(session, _)| self.task_managers.get(session));
        let task_manager = task_manager.map(|one| one.registration.task_manager.clone());
        self.fail_attempt_on(failure, task_manager, at.map(|(_, subtask)| subtask));
    }

    /// The current attempt has failed: decide, record, cancel what is left of it.
    fn fail_attempt_on(
        &mut self,
        failure: Failure,
        task_manager: Option<crate::ids::TaskManagerId>,
        subtask: Option<SubtaskId>,
    ) {
        let Some(run) = self.execution.as_ref().map(|execution| execution.run) else { return };
        if self.explains(&failure) {
            return self.move_tasks(failure.message);
        }
        let record = FailureRecord { at: self.now, run, task_manager, subtask, failure: failure.clone() };
        self.note_failure(record);
        if matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        let was_deploying = matches!(self.phase, Phase::Deploying);
        self.cancel_execution();
        if self.is_ending() || self.journal.fold.ending != Ends::None {
            return self.end_after_failure();
        }
        match failure.retry {
            Retry::Never => self.end(EndKind::Failed { failure, is_users: true }),
            // F2: out of reach while restoring spends nothing.
            Retry::Backoff if was_deploying => {
                let pause = self.external_backoff();
                self.prepare_restart(failure, self.now.plus(pause));
            }
            Retry::Backoff | Retry::Restart => self.restart_by_policy(failure, run),
        }
    }

    fn restart_by_policy(&mut self, failure: Failure, run: Run) {
        let counted = CountedFailure::Attempt(run.generation, run.attempt);
        match self.policy.on_failure(&mut self.failures, counted, None, self.now) {
            RestartDecision::RestartAt(due) => self.prepare_restart(failure, due),
            RestartDecision::GiveUp { reason } => {
                let message = format!("{}; not restarted: {reason}", failure.message);
                self.end(EndKind::Failed { failure: Failure { message, ..failure }, is_users: false });
            }
        }
    }

    pub(super) fn prepare_restart(&mut self, cause: Failure, due: crate::time::Timestamp) {
        self.attempt = self.attempt.next();
        self.restored = None;
        self.phase = Phase::Preparing(Preparing { due, recorded: false, loaded: false });
        self.append(Intent::Restart { cause });
    }

    /// `Restarted` stands: what it names is loaded.
    pub(super) fn on_restart_recorded(&mut self) {
        self.abort_leftovers();
        let reference = self.restore_reference();
        let Phase::Preparing(preparing) = &mut self.phase else { return };
        preparing.recorded = true;
        match reference {
            None => preparing.loaded = true,
            Some(reference) => self.load(&reference),
        }
    }

    pub(super) fn external_backoff(&mut self) -> TimeSpan {
        let failures = self.external_failures;
        self.external_failures += 1;
        backoff(failures, TimeSpan::from_secs(1), TimeSpan::from_secs(30), &mut *self.random)
    }

    /// Ends all tasks of the current attempt, wherever they may be.
    pub(super) fn cancel_execution(&mut self) {
        let dropped = self.coordinator.as_mut().map(|one| one.deactivate()).unwrap_or_default();
        self.drop_checkpoints(dropped);
        let Some(execution) = self.execution.take() else { return };
        for session in execution.sessions() {
            self.cancel_tasks(session, execution.run);
        }
    }

    fn cancel_tasks(&mut self, session: SessionId, run: Run) {
        if self.task_managers.get(session).is_none() {
            return;
        }
        let patience = TimeSpan(self.config.options.heartbeat_timeout.0 * CANCEL_TIMEOUTS);
        self.task_managers.ending(session, self.now.plus(patience));
        self.send(session, ToTaskManager::CancelTasks { run });
    }
}
