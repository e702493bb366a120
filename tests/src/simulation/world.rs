//! Time, events and processes of one simulated world.
//!
//! One queue of events in the order of time, ties in the order of their making; every choice is the seed's. What
//! arrives at a paused process waits for it; what arrives at a dead one is lost.

mod commits;
mod faults;
mod memory;
mod network;

use crate::simulation::check::Check;
use crate::simulation::controller::{Controller, job};
use crate::simulation::job_manager::JobManager;
use crate::simulation::program::Events;
use crate::simulation::program::archive::Archive;
use crate::simulation::program::sink::View;
use crate::simulation::program::windows::Results;
use crate::simulation::scenario::{Bug, Fault, Scenario};
use crate::simulation::store::{ObjectStore, no_answer, relative};
use crate::simulation::task_manager::{Effect, TaskManager};
use crate::simulation::{Coverage, Violation};
use network::Session;
use sluice_engine::channel::{ChannelId, NumberedFrame};
use sluice_engine::operator::Clock;
use sluice_engine::state::disk::DiskSpace;
use sluice_protocol::commit::{CommitHandle, CommitId, Leftovers};
use sluice_protocol::failure::ExitRecord;
use sluice_protocol::job_master::{Action, Event as MasterEvent, SessionId};
use sluice_protocol::message::{Alignment, FromTaskManager, ToTaskManager};
use sluice_protocol::state::SubtaskState;
use sluice_protocol::store::{OperationId, StoreOperation, StoreReply, UnfinishedUpload};
use sluice_protocol::{CheckpointId, ProcessId, Run, SubtaskId, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// A job that has not ended by then never will.
const LIMIT: u64 = 400_000;

/// How long the world goes on after the job has ended: zombies may still do something that they may not.
const QUIET: u64 = 5000;

/// A JobManager that needs this long to end after its terminal entry has given up cleaning up.
const CLEANING: u64 = 5000;

/// A process, by its place in the world's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Process {
    /// A JobManager.
    JobManager(usize),
    /// A TaskManager.
    TaskManager(usize),
}

/// What happens at a moment.
#[derive(Debug, Clone)]
pub enum Event {
    /// The controller looks.
    Control,
    /// Something befalls the world.
    Fault(Fault),
    /// Something for a JobMaster.
    Master(usize, MasterEvent),
    /// A JobMaster wants to be woken.
    WakeJobManager(usize),
    /// A message for a TaskManager; `None`: the connection is gone.
    ToTaskManager(usize, SessionId, Option<ToTaskManager>),
    /// A TaskManager's threads go on.
    WakeTaskManager(usize),
    /// A store operation takes effect; the process hears of it after so long, if it hears clearly.
    Effect(Process, u64, StoreOperation, Option<u64>),
    /// The store's answer arrives.
    Answer(Process, u64, StoreReply),
    /// A frame arrives.
    Frame(usize, Run, ChannelId, NumberedFrame),
    /// Credit arrives.
    Grant(usize, Run, ChannelId, u64),
    /// Transactions are committed for a JobManager, also when that has gone.
    Commit(usize, CommitId, Vec<CommitHandle>),
    /// What older attempts left open is aborted for it.
    Abort(usize, CommitId, Leftovers),
    /// A process stops for so long.
    Pause(Process, u64),
    /// A paused process goes on.
    Resume(Process),
    /// A process dies; silently: nobody sees its connections break.
    Kill(Process, bool),
    /// The controller believes that a JobManager is lost.
    JobManagerLost(usize),
    /// The controller reads an exit record.
    JobManagerExited(usize, ExitRecord),
    /// The controller sees that a TaskManager is gone.
    TaskManagerGone(usize),
}

struct Scheduled {
    at: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// One simulated world.
pub struct World {
    pub(super) scenario: Scenario,
    pub(super) rng: fastrand::Rng,
    /// Of which files go in parts, so that the rest of the course is as it would be otherwise.
    upload_rng: fastrand::Rng,
    pub(super) now: u64,
    pub(super) check: Check,
    /// The checks of the job that was taken over.
    former: Option<Box<Check>>,
    /// How many jobs there were before this one.
    pub(super) epoch: usize,
    pub(super) controller: Controller,
    pub(super) job_managers: Vec<JobManager>,
    pub(super) task_managers: Vec<TaskManager>,
    pub(super) view: View,
    pub(super) archive: Archive,
    pub(super) results: Results,
    /// The working directory of all processes that keep state on disk.
    pub(super) disk: Option<Arc<DiskSpace>>,
    /// When the verdict is spoken, once the job has ended.
    pub(super) verdict_at: Option<u64>,
    /// What tasks have told, by generation and checkpoint, where checkpoints lie in the JobManager's memory.
    acknowledged: BTreeMap<(u64, CheckpointId), BTreeMap<SubtaskId, SubtaskState>>,
    /// When the terminal entry took effect.
    terminal_at: u64,
    /// Whether the JobManager that appended it was done with cleaning up when it ended.
    cleaned: bool,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    store: ObjectStore,
    /// The uploads that puts under way are.
    uploads: BTreeMap<(Process, u64), UnfinishedUpload>,
    outage_until: u64,
    sessions: BTreeMap<SessionId, Session>,
    links: BTreeMap<(usize, usize), u64>,
    paused: BTreeMap<Process, Vec<Event>>,
    clock: Arc<AtomicU64>,
    tracing: bool,
    violation: Option<String>,
}

impl World {
    /// The world of a scenario, before its first moment.
    #[must_use]
    pub fn new(scenario: Scenario, tracing: bool) -> Self {
        let check = new_check(&scenario, 0);
        let mut world = Self {
            rng: fastrand::Rng::with_seed(scenario.seed),
            upload_rng: fastrand::Rng::with_seed(!scenario.seed),
            now: 0,
            check,
            former: None,
            epoch: 0,
            controller: Controller::default(),
            job_managers: vec![],
            task_managers: vec![],
            view: View::default(),
            archive: Archive::default(),
            results: Results::default(),
            disk: None,
            verdict_at: None,
            acknowledged: BTreeMap::new(),
            terminal_at: 0,
            cleaned: false,
            queue: BinaryHeap::new(),
            order: 0,
            store: ObjectStore::default(),
            uploads: BTreeMap::new(),
            outage_until: 0,
            sessions: BTreeMap::new(),
            links: BTreeMap::new(),
            paused: BTreeMap::new(),
            clock: Arc::default(),
            tracing,
            violation: None,
            scenario,
        };
        world.trace(|| format!("{:?}", world.scenario));
        world.schedule(0, Event::Control);
        for (at, fault) in world.scenario.faults.clone() {
            world.schedule(at, Event::Fault(fault));
        }
        world
    }

    /// Lets it run until the job has ended.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(mut self) -> Result<Coverage, Violation> {
        while let Some(Reverse(Scheduled { at, event, .. })) = self.queue.pop() {
            self.now = at;
            self.clock.store(at, Ordering::Relaxed);
            self.dispatch(event);
            let is_over = self.verdict_at.is_some_and(|at| at <= self.now);
            if is_over && self.violation.is_none() {
                self.violation = self.verdict().err();
            }
            if self.now > LIMIT && self.violation.is_none() {
                let status = self.current().map(|index| self.job_managers[index].status().clone());
                self.violation = Some(format!("the job does not end; its last status: {status:?}"));
            }
            if let Some(what) = self.violation.take() {
                return Err(Violation { seed: self.scenario.seed, at: self.now, what });
            }
            if is_over {
                break;
            }
        }
        let mut coverage = self.check.coverage;
        if let Some(former) = &self.former {
            coverage.add(&former.coverage);
        }
        coverage.runs = 1;
        coverage.millis = self.now;
        Ok(coverage)
    }

    /// Another job begins, which takes this one over.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch += 1;
        let check = new_check(&self.scenario, self.epoch);
        self.former = Some(Box::new(std::mem::replace(&mut self.check, check)));
    }

    /// The checks of one of the jobs.
    pub(super) fn check_of(&mut self, epoch: usize) -> &mut Check {
        match &mut self.former {
            Some(former) if epoch < self.epoch => former,
            _ => &mut self.check,
        }
    }

    fn verdict(&mut self) -> Result<(), String> {
        if self.scenario.in_memory {
            return Ok(());
        }
        self.check.on_finished(&self.store)?;
        self.commit_what_is_left()?;
        self.check_archive()?;
        if self.cleaned { self.check.on_quiet(&self.store) } else { Ok(()) }
    }

    /// The verdict is spoken after a while.
    pub(super) fn end_world(&mut self) {
        self.verdict_at.get_or_insert(self.now + QUIET);
    }

    /// The current JobManager says that all is done.
    pub(super) fn finish(&mut self) {
        self.end_world();
        if self.check.is_read_to_its_end(self.scenario.in_memory && self.scenario.cancel.is_none())
            && let Err(what) = Events::new(&self.scenario).check_results(&self.results)
        {
            self.violate(what);
        }
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.scenario.has_no_zombies() && self.scenario.cancel.is_none() && view != self.check.last_view {
            self.violate(format!("readers of the sink see {view:?}, the job counted {:?}", self.check.last_view));
        }
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>7} {}", self.now, what());
        }
    }

    pub(super) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(super) fn schedule(&mut self, delay: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Scheduled { at: self.now + delay, order: self.order, event }));
    }

    pub(super) fn is_paused(&self, process: Process) -> bool {
        self.paused.contains_key(&process)
    }

    pub(super) fn clock_for_tasks(&self) -> Clock {
        let clock = Arc::clone(&self.clock);
        Arc::new(move || Timestamp(clock.load(Ordering::Relaxed)))
    }

    fn is_alive(&self, process: Process) -> bool {
        match process {
            Process::JobManager(index) => self.job_managers[index].alive,
            Process::TaskManager(index) => self.task_managers[index].alive,
        }
    }

    /// Gives an event to a process: now, when it goes on, or never.
    pub(super) fn deliver(&mut self, process: Process, event: Event) {
        if !self.is_alive(process) {
            return;
        }
        if let Some(waiting) = self.paused.get_mut(&process) {
            return waiting.push(event);
        }
        match event {
            Event::Master(index, event) => self.drive(index, event),
            Event::WakeJobManager(index) => {
                self.job_managers[index].wakes_at = None;
                self.drive(index, MasterEvent::Tick);
            }
            Event::ToTaskManager(index, session, message) => self.on_task_manager_message(index, session, message),
            Event::WakeTaskManager(index) => self.tick_task_manager(index),
            Event::Answer(Process::JobManager(index), id, reply) => {
                self.drive(index, MasterEvent::StoreReply { id: OperationId(id), reply });
            }
            Event::Answer(Process::TaskManager(index), id, reply) => self.on_task_manager_answer(index, id, reply),
            Event::Frame(index, run, id, frame) => {
                if let Err(error) = self.task_managers[index].on_frame(run, id, frame) {
                    self.violate(error);
                }
            }
            Event::Grant(index, run, id, bytes) => self.task_managers[index].on_grant(run, id, bytes),
            _ => {}
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Control => self.control(),
            Event::Fault(fault) => self.befall(fault),
            Event::Effect(process, id, operation, answer) => self.take_effect(process, id, &operation, answer),
            Event::Commit(index, id, handles) => self.commit(index, id, &handles),
            Event::Abort(index, id, leftovers) => self.abort(index, id, &leftovers),
            Event::Pause(process, millis) => self.pause(process, millis),
            Event::Resume(process) => self.resume_process(process),
            Event::Kill(process, silently) => self.kill(process, silently),
            Event::JobManagerLost(index) => self.on_job_manager_lost(index),
            Event::JobManagerExited(index, record) => self.on_job_manager_exited(index, &record),
            Event::TaskManagerGone(index) => self.on_task_manager_gone(index),
            Event::Master(index, _) | Event::WakeJobManager(index) => self.deliver(Process::JobManager(index), event),
            Event::Answer(process, ..) => self.deliver(process, event),
            Event::ToTaskManager(index, ..)
            | Event::WakeTaskManager(index)
            | Event::Frame(index, ..)
            | Event::Grant(index, ..) => self.deliver(Process::TaskManager(index), event),
        }
    }

    // --- The store --------------------------------------------------------------------------------------------

    fn submit(&mut self, process: Process, id: u64, operation: StoreOperation) {
        if let Err(what) = self.may_ask(process, &operation) {
            self.violate(what);
        }
        let is_out = self.outage_until > self.now;
        let failures = if self.now > LIMIT / 2 { 0 } else { self.scenario.store_failures };
        let fate = ObjectStore::fate(&mut self.rng, &operation, failures, is_out);
        let answer = fate.clear.then_some(fate.answer_after);
        if let StoreOperation::PutIfAbsent { key, .. } = &operation
            && !fate.repeated
        {
            self.begin_upload((process, id), key, fate.effect_after.is_some());
        }
        if let Some(delay) = fate.effect_after {
            if fate.repeated {
                self.schedule(delay, Event::Effect(process, id, operation.clone(), None));
            }
            self.schedule(delay, Event::Effect(process, id, operation, answer.map(|after| after - delay)));
        }
        if !fate.clear {
            self.schedule(fate.answer_after, Event::Answer(process, id, no_answer()));
        }
    }

    fn take_effect(&mut self, process: Process, id: u64, operation: &StoreOperation, answer: Option<u64>) {
        if let StoreOperation::Delete { keys } = operation {
            for key in keys.iter().filter(|key| self.store.get(key).is_some()).cloned().collect::<Vec<_>>() {
                for epoch in 0..=self.epoch {
                    if let Err(what) = self.check_of(epoch).on_delete(relative(&key)) {
                        self.violate(format!("{process:?}: {what}"));
                    }
                }
            }
        }
        if let (Process::JobManager(index), Some(_)) = (process, answer) {
            match operation {
                StoreOperation::List { prefix, .. } => self.check.on_list(&process_id(index), prefix),
                StoreOperation::ListUploads { prefix } => self.check.on_list_uploads(&process_id(index), prefix),
                _ => {}
            }
        }
        if let StoreOperation::AbortUploads { uploads } = operation {
            for upload in uploads {
                if let Err(what) = self.check.on_abort(relative(&upload.key)) {
                    self.violate(format!("{process:?}: {what}"));
                }
            }
        }
        let given_up = self.uploads.remove(&(process, id)).is_some_and(|upload| !self.store.end_upload(&upload));
        let keeps = self.scenario.bug == Some(Bug::Uploads) && matches!(operation, StoreOperation::AbortUploads { .. });
        let reply = match (given_up, keeps) {
            (true, _) => no_answer(),
            (false, true) => StoreReply::Deleted,
            (false, false) => self.store.apply(operation),
        };
        if let (StoreOperation::PutIfAbsent { key, bytes }, StoreReply::Put) = (operation, &reply) {
            self.trace(|| format!("{process:?} put {key}{}", describe(key, bytes)));
            if answer.is_none() && key.contains("/ledger/") {
                self.check.coverage.unclear_appends += 1;
            }
            if let Err(what) = self.on_put(key, bytes) {
                self.violate(what);
            }
            let is_own = self.check.owns_entry(key);
            if is_own && self.check.fold().has_stopped_with_savepoint() {
                self.on_last_checkpoint();
            }
            if is_own && self.check.fold().state.is_terminal() {
                self.terminal_at = self.now;
            }
        }
        if let Some(after) = answer {
            self.schedule(after, Event::Answer(process, id, reply));
        }
    }

    /// Some files go in parts. Those without effect are left unfinished: their process died, or was told nothing.
    fn begin_upload(&mut self, put: (Process, u64), key: &str, has_effect: bool) {
        if key.contains("/ledger/") || self.upload_rng.u32(..3) > 0 {
            return;
        }
        self.order += 1;
        let upload = self.store.begin_upload(key, self.order);
        self.check.on_upload(&upload);
        if has_effect {
            self.uploads.insert(put, upload);
        }
    }

    fn on_put(&mut self, key: &str, bytes: &[u8]) -> Result<(), String> {
        if let Some(former) = &mut self.former {
            former.on_put(key, bytes, &self.store)?;
            self.check.on_former(former, key)?;
        }
        self.check.on_put(key, bytes, &self.store)
    }

    // --- JobManagers ------------------------------------------------------------------------------------------

    pub(super) fn wake_job_manager_at(&mut self, index: usize, at: u64) {
        if self.job_managers[index].wakes_at.is_none_or(|planned| at < planned) {
            self.job_managers[index].wakes_at = Some(at);
            let delay = at.saturating_sub(self.now);
            self.schedule(delay, Event::WakeJobManager(index));
        }
    }

    fn drive(&mut self, index: usize, event: MasterEvent) {
        if self.tracing && !is_noise(&event) {
            self.trace(|| format!("jm-{index} <- {}", short(&format!("{event:?}"))));
        }
        let actions = self.job_managers[index].handle(self.now, event);
        self.check_memory(index);
        self.check_triggers(index, &actions);
        for action in actions {
            self.act(index, action);
        }
        if let Some(at) = self.job_managers[index].next_wakeup() {
            // Never at once: a wakeup that is due but not served would stop the world.
            self.wake_job_manager_at(index, at.max(self.now + 1));
        }
    }

    fn check_triggers(&mut self, index: usize, actions: &[Action]) {
        for action in actions {
            let Action::Send { message: ToTaskManager::TriggerCheckpoint { barrier, .. }, .. } = action else {
                continue;
            };
            let status = self.job_managers[index].status();
            let (pending, tasks) = (status.pending_checkpoints.len(), status.tasks);
            let run = Run { generation: status.generation, attempt: status.attempt };
            let alignment = self.options().checkpointing.map(|settings| settings.alignment()).unwrap_or_default();
            let epoch = self.job_managers[index].epoch;
            if let Err(what) = self.check_of(epoch).on_trigger(run, barrier, (pending, tasks), alignment) {
                self.violate(what);
            }
        }
    }

    fn act(&mut self, index: usize, action: Action) {
        match action {
            Action::Store { id, operation } => self.submit(Process::JobManager(index), id.0, operation),
            Action::Send { session, message } => {
                if let ToTaskManager::Deploy(deployment) = &message {
                    self.check_deployment(index, deployment);
                }
                if !matches!(message, ToTaskManager::Heartbeat { .. }) {
                    self.trace(|| format!("jm-{index} -> {session:?} {}", short(&format!("{message:?}"))));
                }
                self.send_down(session, Some(message));
            }
            Action::Close { session } => self.close(session, true),
            Action::Commit { id, handles } => self.commit_later(index, id, handles),
            Action::AbortLeftovers { id, leftovers } => self.abort_later(index, id, leftovers),
            Action::Exit(record) => {
                if self.check.has_ended(&process_id(index)) {
                    self.cleaned = self.now < self.terminal_at + CLEANING;
                }
                self.kill(Process::JobManager(index), false);
                let delay = self.rng.u64(20..400);
                self.schedule(delay, Event::JobManagerExited(index, record));
            }
        }
    }

    // --- TaskManagers -----------------------------------------------------------------------------------------

    fn tick_task_manager(&mut self, index: usize) {
        let period = self.rng.u64(15..60);
        self.schedule(period, Event::WakeTaskManager(index));
        if self.task_managers[index].session.is_none() {
            self.connect(index);
        }
        let ready = self.task_managers.iter().filter(|one| one.alive);
        let ready = ready.filter_map(|one| Some((one.setup.name.clone(), one.run()?))).collect();
        let effects = self.task_managers[index].tick(self.now, &ready);
        self.effect(index, effects);
    }

    fn on_task_manager_message(&mut self, index: usize, session: SessionId, message: Option<ToTaskManager>) {
        if self.task_managers[index].session != Some(session) {
            return;
        }
        let Some(message) = message else {
            self.task_managers[index].session = None;
            return;
        };
        let effects = self.task_managers[index].on_message(message, self.now);
        self.effect(index, effects);
    }

    fn on_task_manager_answer(&mut self, index: usize, id: u64, reply: StoreReply) {
        let epoch = self.task_managers[index].setup.epoch;
        let latest = self.check_of(epoch).latest_run();
        match self.task_managers[index].on_store_reply(id, reply, latest) {
            Ok(effects) => self.effect(index, effects),
            Err(what) => self.violate(what),
        }
    }

    fn effect(&mut self, index: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(message) => {
                    self.note_acknowledged(&message);
                    if let FromTaskManager::TaskFinished { run, subtask } = &message {
                        let epoch = self.task_managers[index].setup.epoch;
                        self.check_of(epoch).on_task_finished(*run, *subtask);
                    }
                    if let Some(session) = self.task_managers[index].session {
                        self.send_up(session, message);
                    }
                }
                Effect::Store(id, operation) => self.submit(Process::TaskManager(index), id, operation),
                Effect::Frame(to, run, id, frame) => {
                    if let Some((to, delay)) = self.link(index, &to) {
                        self.schedule(delay, Event::Frame(to, run, id, frame));
                    }
                }
                Effect::Grant(to, run, id, bytes) => {
                    if let Some((to, delay)) = self.link(index, &to) {
                        self.schedule(delay, Event::Grant(to, run, id, bytes));
                    }
                }
                Effect::Violate(what) => self.violate(what),
                Effect::Close => {
                    if let Some(session) = self.task_managers[index].session.take() {
                        self.close(session, false);
                    }
                }
                Effect::Exit => self.kill(Process::TaskManager(index), false),
            }
        }
    }
}

fn new_check(scenario: &Scenario, epoch: usize) -> Check {
    let mut check = Check::new(job(epoch), Events::new(scenario));
    check.may_stop = scenario.cancel.is_some();
    check.at_least_once = scenario.alignment == Alignment::AtLeastOnce;
    check
}

fn describe(key: &str, bytes: &[u8]) -> String {
    let entry = key.contains("/ledger/").then(|| sluice_protocol::ledger::Entry::from_bytes(bytes, key).ok()).flatten();
    entry.map_or_else(String::new, |entry| {
        format!(" generation {} attempt {}: {}", entry.generation, entry.attempt, short(&format!("{:?}", entry.kind)))
    })
}

fn short(text: &str) -> String {
    text.chars().take(300).collect()
}

const fn is_noise(event: &MasterEvent) -> bool {
    matches!(event, MasterEvent::Tick | MasterEvent::Message { message: FromTaskManager::Heartbeat, .. })
}

/// The identity of a JobManager's process.
pub(super) fn process_id(index: usize) -> ProcessId {
    ProcessId(format!("jm-{index}"))
}
