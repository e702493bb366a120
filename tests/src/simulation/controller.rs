//! A controller as far as the protocol needs one: generations, directives with m, failure counts, pods (N2, N3, F1).
//!
//! It sees a JobManager's status now and then, believes a process dead when it is told so (rightly or not), and
//! replaces what is lost. It never talks to the store.

use crate::simulation::job_manager::JobManager;
use crate::simulation::people::SAVEPOINTS;
use crate::simulation::program;
use crate::simulation::program::shape::{KEY_GROUPS, Layout};
use crate::simulation::scenario::{Bug, Upgrade};
use crate::simulation::store::ROOT;
use crate::simulation::task_manager::{Setup, TaskManager};
use crate::simulation::world::{Event, Process, World, process_id};
use sluice_engine::program::Program;
use sluice_engine::state::StateBackend;
use sluice_engine::state::disk::DiskSpace;
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::{CloseEnd, Command, Directive, JobMasterConfig, StartFrom};
use sluice_protocol::ledger::SavepointKind;
use sluice_protocol::message::Alignment;
use sluice_protocol::options::{
    CheckpointingMode, CheckpointingSpec, FixedDelay, JobOptions, RestartStrategySpec, Retention, TolerableFailures,
    Unlimited,
};
use sluice_protocol::paths::JobPaths;
use sluice_protocol::restart::{CountedFailure, FailureCounts, RestartDecision, RestartPolicy};
use sluice_protocol::{Generation, JobId, ProcessId, TaskManagerId, TimeSpan, Timestamp};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Time between two looks at the world.
const PERIOD: u64 = 150;

/// The directive of the first revision.
const FIRST: &str = "1";

/// What the controller knows.
#[derive(Debug)]
pub struct Controller {
    generation: u64,
    current: Option<usize>,
    directive: Directive,
    failures: FailureCounts,
    restart_at: Option<u64>,
    /// The next generation is a closer.
    closing: Option<CloseEnd>,
    stopping: bool,
    stopped: bool,
    task_managers_created: u64,
    /// TaskManagers of the current generation that it believes to live.
    pods: Vec<usize>,
    /// When each replacement is due.
    replacements: Vec<u64>,
}

impl Default for Controller {
    fn default() -> Self {
        Self {
            generation: 0,
            current: None,
            directive: Directive { id: FIRST.to_owned(), seen: 0, start: StartFrom::Continue },
            failures: FailureCounts::new(1),
            restart_at: Some(0),
            closing: None,
            stopping: false,
            stopped: false,
            task_managers_created: 0,
            pods: vec![],
            replacements: vec![],
        }
    }
}

/// The job that a scenario runs, or the one that takes it over.
#[must_use]
pub fn job(epoch: usize) -> JobId {
    JobId { namespace: "default".into(), name: "counts".into(), uid: ["5eed", "7a4e"][epoch].into() }
}

impl World {
    /// One look at the world.
    pub(super) fn control(&mut self) {
        self.schedule(PERIOD, Event::Control);
        if self.verdict_at.is_some() {
            return;
        }
        self.take_over_when_due();
        if self.controller.restart_at.is_some_and(|at| at <= self.now) {
            self.start_generation();
        }
        self.observe_status();
        self.request_stop();
        self.ask();
        self.request_cancel();
        self.release();
        self.replace_task_managers();
    }

    /// The current JobManager, by what the controller believes.
    pub(super) const fn current(&self) -> Option<usize> {
        self.controller.current
    }

    fn layout(&self) -> Layout {
        self.scenario.layouts[usize::from(self.controller.stopped || self.epoch > 0)]
    }

    fn start_generation(&mut self) {
        self.controller.restart_at = None;
        self.controller.generation += 1;
        let generation = self.controller.generation;
        let mut directive = self.controller.directive.clone();
        let closing = self.controller.closing;
        match closing {
            Some(end) => directive.start = StartFrom::Close { end },
            None => {
                self.check.directives.insert(directive.id.clone(), (directive.start.clone(), directive.seen));
            }
        }
        self.trace(|| format!("controller starts generation {generation} with {directive:?}"));
        let index = self.start_job_manager(self.epoch, generation, directive);
        self.controller.current = Some(index);
        self.end_pods();
        let graph = self.scenario.shape.graph(&self.layout());
        let needed = graph.slots_needed().div_ceil(self.scenario.slots) + self.scenario.spares;
        let now = self.now;
        if closing.is_some() {
            self.controller.replacements.clear();
            return self.send_closer(index);
        }
        self.controller.replacements = (0..needed).map(|_| now + self.rng.u64(1..600)).collect();
    }

    /// Old pods go on for a while.
    fn end_pods(&mut self) {
        for pod in std::mem::take(&mut self.controller.pods) {
            let delay = self.rng.u64(..self.scenario.old_pods_millis);
            self.schedule(delay, Event::Kill(Process::TaskManager(pod), false));
        }
    }

    /// The cluster is out of reach, and what runs there goes on: another one is given the job's directory (G5).
    fn take_over_when_due(&mut self) {
        let fold = self.check.fold();
        let is_due = self.epoch == 0 && self.scenario.takeover.is_some_and(|at| at <= self.now);
        if !is_due || fold.state.is_terminal() || fold.retained.is_empty() {
            return;
        }
        self.end_pods();
        let left = std::mem::take(&mut self.controller);
        let from = format!("{ROOT}/{}", JobPaths::new(&job(0)).directory());
        self.controller.directive.start =
            StartFrom::Path { from, allow_non_restored_state: false, abandon_sinks: Vec::new() };
        self.begin_epoch();
        match (left.current, self.rng.u32(..10)) {
            (Some(index), 0..=2) => self.schedule(1, Event::Kill(Process::JobManager(index), false)),
            // Nobody there knows: its controller starts the next generation at the same time.
            (_, 3..=5) => {
                let seen = left.directive.seen;
                self.start_job_manager(0, left.generation + 1, Directive { seen, ..left.directive });
            }
            _ => {}
        }
    }

    /// A closer has no TaskManagers. Some die on the way, some are taken for dead.
    fn send_closer(&mut self, index: usize) {
        self.check.closers.insert(process_id(index));
        let (at, suspected) = (self.rng.u64(1..900), self.rng.u64(100..2000));
        match self.rng.u32(..10) {
            0..=2 => self.schedule(at, Event::Kill(Process::JobManager(index), false)),
            3 => {
                let millis = self.rng.u64(300..8000);
                self.schedule(at, Event::Pause(Process::JobManager(index), millis));
            }
            _ => return,
        }
        self.schedule(at + suspected, Event::JobManagerLost(index));
    }

    /// How a closer is to end the job in the place of its JobManager, if it is to end now.
    fn closing_end(&self) -> Option<CloseEnd> {
        let is_cancelled = self.scenario.cancel.is_some_and(|at| at <= self.now);
        let is_stopping = self.controller.stopping && !self.controller.stopped;
        // Nothing is known of a ledger that could be ended.
        let is_unknown = self.controller.directive.seen == 0;
        if !self.scenario.closes || is_unknown || !(is_cancelled || is_stopping) {
            return None;
        }
        Some(if is_cancelled { CloseEnd::Cancelled } else { CloseEnd::Stopped })
    }

    fn end_by_closer(&mut self, end: CloseEnd) {
        self.controller.closing = Some(end);
        self.controller.current = None;
        self.controller.restart_at = Some(self.now + 100);
    }

    /// The checkpoint that the job ends with stands: some JobManagers die before they have concluded the end.
    pub(super) fn on_last_checkpoint(&mut self) {
        let Some(index) = self.controller.current.filter(|_| self.closing_end().is_some()) else { return };
        if self.rng.bool() {
            let suspected = self.rng.u64(100..3000);
            self.schedule(1, Event::Kill(Process::JobManager(index), false));
            self.schedule(suspected, Event::JobManagerLost(index));
        }
    }

    /// Starts a JobManager process, also one that nobody should have started.
    pub(super) fn start_job_manager(&mut self, epoch: usize, generation: u64, directive: Directive) -> usize {
        let process = process_id(self.job_managers.len());
        let is_first = directive.id == FIRST;
        let layout = self.scenario.layouts[usize::from(!is_first || epoch > 0)];
        let revision = if is_first { 1 } else { 2 };
        let config = JobMasterConfig {
            job: job(epoch),
            generation: Generation(generation),
            process,
            revision,
            directive,
            graph: self.scenario.shape.graph(&layout),
            options: self.options(),
            storage_uri: (!self.scenario.in_memory).then(|| ROOT.to_owned()),
            probed: None,
            failures: self.controller.failures.clone(),
            planted: Bug::planted(self.scenario.bug),
        };
        let seed = self.rng.u64(..);
        self.job_managers.push(JobManager::new(config, epoch, seed));
        let index = self.job_managers.len() - 1;
        let delay = self.rng.u64(1..400);
        self.wake_job_manager_at(index, self.now + delay);
        let (percent, longest) = self.scenario.slow_starts;
        if self.rng.u32(..100) < percent {
            let (at, millis) = (delay + self.rng.u64(..150), self.rng.u64(300..longest));
            self.schedule(at, Event::Pause(Process::JobManager(index), millis));
            let suspected = at + self.rng.u64(100..3000);
            if !self.scenario.patient && self.rng.u32(..3) > 0 {
                self.schedule(suspected, Event::JobManagerLost(index));
            }
        }
        index
    }

    pub(super) fn options(&self) -> JobOptions {
        let scenario = &self.scenario;
        let tolerable =
            scenario.tolerable.map_or(TolerableFailures::Unlimited(Unlimited::Unlimited), TolerableFailures::Count);
        let alignment_timeout =
            if let Alignment::Unaligned { after } = scenario.alignment { Some(after) } else { None };
        let checkpointing = CheckpointingSpec {
            interval: TimeSpan(scenario.interval_millis),
            timeout: TimeSpan(scenario.timeout_millis),
            max_concurrent: scenario.max_concurrent,
            retained: scenario.retained,
            tolerable_failures: tolerable,
            mode: if scenario.alignment == Alignment::AtLeastOnce {
                CheckpointingMode::AtLeastOnce
            } else {
                CheckpointingMode::ExactlyOnce
            },
            min_pause: TimeSpan(scenario.min_pause_millis),
            unaligned: alignment_timeout.is_some(),
            alignment_timeout: alignment_timeout.unwrap_or_default(),
            retention: if scenario.deletes { Retention::DeleteOnCancellation } else { Retention::default() },
            storage: if scenario.in_memory { "JobManager" } else { ROOT }.to_owned(),
            savepoint_storage: Some(format!("{ROOT}/{SAVEPOINTS}")),
            storage_options: None,
        };
        let delay = FixedDelay { delay: TimeSpan(200), ..FixedDelay::default() };
        JobOptions {
            parallelism: 1,
            max_parallelism: KEY_GROUPS,
            slots: scenario.slots,
            checkpointing: Some(checkpointing),
            restart_strategy: Some(RestartStrategySpec { fixed_delay: Some(delay), ..RestartStrategySpec::default() }),
            heartbeat_timeout: TimeSpan(2000),
            ..JobOptions::default()
        }
    }

    /// Status arrives now and then: m in the directive is often old (N3).
    fn observe_status(&mut self) {
        let Some(index) = self.controller.current else { return };
        let process = Process::JobManager(index);
        if !self.job_managers[index].alive || self.is_paused(process) || self.rng.u32(..10) > 0 {
            return;
        }
        let status = self.job_managers[index].status().clone();
        self.controller.failures.merge(&status.failure_counts);
        self.controller.directive.seen = self.controller.directive.seen.max(status.ledger_entry);
    }

    fn request_stop(&mut self) {
        let Some((at, upgrade)) = self.scenario.upgrade else { return };
        if self.controller.stopped || at > self.now {
            return;
        }
        if self.controller.closing.is_some() {
            return;
        }
        if upgrade == Upgrade::LastState && !(self.scenario.closes && self.controller.directive.seen > 0) {
            return self.leave_revision();
        }
        self.controller.stopping = true;
        if let (Upgrade::LastState, Some(end)) = (upgrade, self.closing_end()) {
            // Whoever runs goes on beside the closer.
            return self.end_by_closer(end);
        }
        if self.rng.u32(..8) > 0 {
            return;
        }
        match upgrade {
            Upgrade::Savepoint => self.ask_to_stop(SavepointKind::Stop, |_| 8000),
            Upgrade::Drain { .. } if self.scenario.stops_beside && self.rng.u32(..6) == 0 => self.tell(Command::Stop),
            Upgrade::Drain { millis } => self.ask_to_stop(SavepointKind::Drain, |attempt| millis * attempt),
            _ => self.tell(Command::Stop),
        }
    }

    /// The next revision begins although the one before has not ended, and may go on for some time.
    fn leave_revision(&mut self) {
        let seen = self.controller.directive.seen;
        let start = if seen == 0 { StartFrom::Continue } else { StartFrom::ResumeLatest };
        self.controller.stopped = true;
        self.begin_revision(Directive { id: "2".to_owned(), seen, start });
    }

    fn begin_revision(&mut self, directive: Directive) {
        self.controller.directive = directive;
        self.controller.failures = FailureCounts::new(2);
        self.controller.closing = None;
        self.controller.current = None;
        self.controller.restart_at = Some(self.now + 50);
    }

    /// Whether the job was told to end: nothing else is asked for then.
    pub(super) fn controller_is_ending(&self) -> bool {
        self.scenario.cancel.is_some_and(|at| at <= self.now) || (self.controller.stopping && !self.controller.stopped)
    }

    fn request_cancel(&mut self) {
        if self.scenario.cancel.is_some_and(|at| at <= self.now) && self.rng.u32(..8) == 0 {
            self.tell(Command::Cancel);
        }
    }

    /// The second revision is stable after a while.
    fn release(&mut self) {
        let holds = |index: usize| !self.job_managers[index].status().pinned.is_empty();
        if self.controller.stopped && self.now.is_multiple_of(20) && self.current().is_some_and(holds) {
            self.tell(Command::Release);
        }
    }

    fn replace_task_managers(&mut self) {
        let (due, waiting) = self.controller.replacements.iter().partition(|at| **at <= self.now);
        self.controller.replacements = waiting;
        let due: Vec<u64> = due;
        for _ in due {
            self.create_task_manager();
        }
    }

    /// The program of a revision.
    pub(super) fn program(&self, layout: &Layout) -> Program {
        let (events, stalls) = (program::Events::new(&self.scenario), program::sink::Stalls::new(&self.scenario));
        program::program(events, layout, (&self.view, &self.archive, &self.results), stalls)
    }

    /// All processes of a world share one working directory, of which each has tables of its own.
    fn state_backend(&mut self) -> StateBackend {
        if !self.layout().disk {
            return StateBackend::Hash;
        }
        let space = self.disk.get_or_insert_with(|| {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let name = format!("simulation-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
            // Every new table is synced: where there is a file system in memory, it is taken.
            let memory = Path::new("/dev/shm");
            let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
            DiskSpace::create(&place, &name, 1 << 20).expect("a working directory for state on disk")
        });
        StateBackend::Disk(Arc::clone(space))
    }

    fn create_task_manager(&mut self) {
        self.controller.task_managers_created += 1;
        let generation = self.controller.generation;
        let uid = job(self.epoch).uid;
        let name = TaskManagerId(format!("{uid}-{generation}-tm-{}", self.controller.task_managers_created));
        let state_backend = self.state_backend();
        let setup = Setup {
            process: ProcessId(format!("{name}-process")),
            name,
            epoch: self.epoch,
            generation: Generation(generation),
            slots: self.scenario.slots,
            program: self.program(&self.layout()),
            state_backend,
            clock: self.clock_for_tasks(),
            inline_limit: if self.scenario.files { 0 } else { 1 << 20 },
            window: self.rng.usize(300..6000),
            bug: self.scenario.bug,
        };
        let seed = self.rng.u64(..);
        self.task_managers.push(TaskManager::new(setup, seed));
        let index = self.task_managers.len() - 1;
        self.controller.pods.push(index);
        self.schedule(1, Event::WakeTaskManager(index));
    }

    /// Another takes the place of one that was told to go.
    pub(super) fn replace_leaving(&mut self, index: usize) {
        let before = self.controller.pods.len();
        self.controller.pods.retain(|pod| *pod != index);
        if self.controller.pods.len() < before {
            let delay = self.rng.u64(1..2500);
            self.controller.replacements.push(self.now + delay);
        }
    }

    /// A TaskManager's pod is gone.
    pub(super) fn on_task_manager_gone(&mut self, index: usize) {
        let before = self.controller.pods.len();
        self.controller.pods.retain(|pod| *pod != index);
        if self.controller.pods.len() < before {
            let delay = self.rng.u64(100..1500);
            self.controller.replacements.push(self.now + delay);
        }
    }

    /// The controller believes that a JobManager is lost: rightly or not.
    pub(super) fn on_job_manager_lost(&mut self, index: usize) {
        if self.controller.current != Some(index) {
            return;
        }
        if let Some(end) = self.closing_end() {
            let gives_up = self.controller.closing.is_some() && end == CloseEnd::Stopped && self.rng.u32(..3) == 0;
            // Past its deadline nobody waits for a closer: the next revision begins all the same.
            return if gives_up { self.leave_revision() } else { self.end_by_closer(end) };
        }
        let lost = CountedFailure::JobManager(Generation(self.job_managers[index].generation));
        let policy = RestartPolicy::FixedDelay { attempts: 1_000_000, delay: TimeSpan(200) };
        let decision = policy.on_failure(&mut self.controller.failures, lost, None, Timestamp(self.now));
        if let RestartDecision::RestartAt(at) = decision {
            self.controller.restart_at = Some(at.0);
            self.controller.current = None;
        }
    }

    /// A JobManager has said why it ends.
    pub(super) fn on_job_manager_exited(&mut self, index: usize, record: &ExitRecord) {
        let generation = self.job_managers[index].generation;
        self.trace(|| format!("jm-{index} (generation {generation}) exits: {:?} {}", record.kind, record.message));
        if record.kind == ExitKind::Superseded {
            self.check.coverage.superseded += 1;
            let epoch = self.job_managers[index].epoch;
            if let Err(what) = self.check_of(epoch).on_superseded(generation, &process_id(index)) {
                self.violate(what);
            }
        }
        if self.controller.current != Some(index) {
            return;
        }
        let status = self.job_managers[index].status().clone();
        self.controller.failures.merge(&status.failure_counts);
        // A report may have raised m since it was started.
        let told = self.check.directives.get(&self.controller.directive.id).map_or(0, |(_, seen)| *seen);
        match record.kind {
            ExitKind::Finished if self.scenario.in_memory => {
                if let Err(what) = self.check.on_finished_in_memory() {
                    self.violate(what);
                }
                self.finish();
            }
            // The memory is gone with its process, rightly or not believed to be lost.
            ExitKind::StateLost if self.scenario.in_memory && generation > 1 => {
                self.check.coverage.lost += 1;
                self.end_world();
            }
            ExitKind::Finished => self.finish(),
            ExitKind::Stopped if self.scenario.cancel.is_some() => self.finish(),
            ExitKind::Stopped if self.controller.stopping && !self.controller.stopped => {
                // The last report may be missed: m of the next directive is too low then (N3).
                let last = if self.rng.bool() { status.ledger_entry } else { self.controller.directive.seen };
                self.resume(last);
            }
            ExitKind::StateMoved if record.ledger_entry > Some(told) => {
                let revision = self.job_managers[index].revision;
                if let Err(what) = self.check.on_moved(record.ledger_entry.unwrap_or_default(), revision) {
                    self.violate(what);
                }
                self.controller.directive.seen = record.ledger_entry.unwrap_or_default();
                self.controller.current = None;
                self.controller.restart_at = Some(self.now + 100);
            }
            ExitKind::Superseded if record.by_generation.is_some_and(|by| by <= self.controller.generation) => {
                self.controller.current = None;
                self.controller.restart_at = Some(self.now + 100);
            }
            kind => self.violate(format!("generation {generation} ended as {kind:?}: {}", record.message)),
        }
    }

    /// Stopped as asked: the next revision begins, from what the scenario says.
    fn resume(&mut self, last: u64) {
        self.controller.stopped = true;
        let Some((_, upgrade)) = self.scenario.upgrade else { return };
        let fold = self.check.fold();
        let place = |key: sluice_protocol::ledger::CheckpointKey| {
            let directory = format!("{ROOT}/{}/{}/chk-{}", job(0), key.generation, key.id);
            StartFrom::Path { from: directory, allow_non_restored_state: false, abandon_sinks: Vec::new() }
        };
        let start = match upgrade {
            Upgrade::ResumeLatest | Upgrade::LastState => StartFrom::ResumeLatest,
            Upgrade::Path => fold.retained.first().map_or(StartFrom::ResumeLatest, |one| place(one.key)),
            Upgrade::Empty => StartFrom::Empty,
            Upgrade::Savepoint | Upgrade::Drain { .. } => self.stopped_with().map_or(StartFrom::ResumeLatest, |from| {
                StartFrom::Path { from, allow_non_restored_state: false, abandon_sinks: Vec::new() }
            }),
        };
        self.begin_revision(Directive { id: "2".to_owned(), seen: last, start });
    }

    /// A process that nobody should have started: of this generation or an older one.
    pub(super) fn start_twin(&mut self, back: u64) {
        let generation = self.controller.generation.saturating_sub(back).max(1);
        let mut directive = self.controller.directive.clone();
        if back > 0 && self.controller.stopped {
            directive = Directive { id: FIRST.to_owned(), seen: 0, start: StartFrom::Continue };
        }
        if matches!(directive.start, StartFrom::Continue) {
            directive.seen = directive.seen.saturating_sub(self.rng.u64(..4));
        }
        if self.controller.generation > 0 {
            self.trace(|| format!("a twin of generation {generation} starts"));
            self.start_job_manager(self.epoch, generation, directive);
        }
    }
}
