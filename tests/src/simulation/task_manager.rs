//! A TaskManager process: real tasks with real operators, stepped by the world instead of by threads.
//!
//! What is not the real code is what moves bytes: uploads and restores through the world's store, frames between
//! processes through its network. The process obeys N4: tasks of a new run only when the older ones have ended, and
//! silence for half the loss timeout ends its tasks.

mod deploy;
mod upload;

use crate::simulation::program::operators::ORDER;
use crate::simulation::program::windows::WRONG;
use crate::simulation::scenario::Bug;
use sluice_engine::channel::{ChannelId, InputChannel, NumberedFrame, OutputChannel};
use sluice_engine::in_flight::RestoredChannel;
use sluice_engine::operator::{Clock, LayerRecorder, RestoredState};
use sluice_engine::partition::EdgeOutput;
use sluice_engine::program::Program;
use sluice_engine::state::StateBackend;
use sluice_engine::task::{Step, Task, TaskEvent};
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::job_master::SessionId;
use sluice_protocol::message::{Deployment, FromTaskManager, Held, Registration, ToTaskManager};
use sluice_protocol::state::{KeyedStateHandle, StateData, SubtaskState};
use sluice_protocol::store::StoreOperation;
use sluice_protocol::{CheckpointId, Generation, OperatorUid, ProcessId, Run, SubtaskId, TaskManagerId, TimeSpan};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the process does to the world.
pub enum Effect {
    /// Tell the JobManager, if there is a session.
    Send(FromTaskManager),
    /// A store operation.
    Store(u64, StoreOperation),
    /// A frame to another process.
    Frame(TaskManagerId, Run, ChannelId, NumberedFrame),
    /// Credit to the sender of a channel.
    Grant(TaskManagerId, Run, ChannelId, u64),
    /// Give the session up.
    Close,
    /// The process ends.
    Exit,
    /// Something happened that may not.
    Violate(String),
}

enum Operation {
    Restore { run: Run, subtask: SubtaskId, uid: OperatorUid, place: Place },
    Upload { run: Run, checkpoint: CheckpointId, subtask: SubtaskId, operation: StoreOperation, tries: u32 },
}

/// Where a file that is restored belongs in its operator's state.
enum Place {
    /// A file of keyed state, by its number.
    Keyed(usize),
    /// A list, by its number, of which so many items are skipped and taken.
    List(usize, u64, u64),
}

struct Loading {
    state: BTreeMap<OperatorUid, RestoredState>,
    in_flight: Vec<RestoredChannel>,
    missing: usize,
}

struct Sender {
    to: TaskManagerId,
    input: InputChannel,
    credit: i64,
}

struct Receiver {
    from: TaskManagerId,
    output: OutputChannel,
}

/// Planted bug: the frames of all producers in one channel, cut at the first barrier that comes.
struct Merged {
    inputs: Vec<InputChannel>,
    output: OutputChannel,
    cut: CheckpointId,
    ended: usize,
}

struct Acknowledgement {
    state: (SubtaskState, Option<SubtaskState>),
    missing: usize,
    /// To be told when all files are stored.
    recorders: Vec<(Arc<dyn LayerRecorder>, Vec<KeyedStateHandle>)>,
}

/// The tasks of one run.
struct ActiveRun {
    deployment: Deployment,
    loading: BTreeMap<SubtaskId, Loading>,
    inputs: BTreeMap<SubtaskId, Vec<InputChannel>>,
    outputs: BTreeMap<SubtaskId, Vec<(u32, EdgeOutput)>>,
    tasks: Vec<Task>,
    senders: BTreeMap<ChannelId, Sender>,
    receivers: BTreeMap<ChannelId, Receiver>,
    merged: Vec<Merged>,
    acknowledgements: BTreeMap<(CheckpointId, SubtaskId), Acknowledgement>,
}

/// How the process is set up.
#[derive(Clone)]
pub struct Setup {
    /// Its name.
    pub name: TaskManagerId,
    /// Its random identity.
    pub process: ProcessId,
    /// Of which job it is: a later one takes the directory of an earlier one over.
    pub epoch: usize,
    /// The generation it was started for.
    pub generation: Generation,
    /// Its slots.
    pub slots: u32,
    /// The program it builds.
    pub program: Program,
    /// Where its keyed state lives.
    pub state_backend: StateBackend,
    /// The world's clock.
    pub clock: Clock,
    /// State up to this size travels inline.
    pub inline_limit: usize,
    /// Window of a channel in bytes.
    pub window: usize,
    /// A planted bug.
    pub bug: Option<Bug>,
}

/// One process.
pub struct TaskManager {
    /// How it is set up.
    pub setup: Setup,
    /// Whether it lives.
    pub alive: bool,
    /// Its session, if any.
    pub session: Option<SessionId>,
    last_heard: u64,
    half_timeout: u64,
    next_heartbeat: u64,
    active: Option<ActiveRun>,
    /// A cancelled run whose threads have not ended yet.
    ending: Option<(Run, u64)>,
    operations: BTreeMap<u64, Operation>,
    next_operation: u64,
    /// Planted bug: the last whole file of each subtask, its rows and its run.
    stored: BTreeMap<SubtaskId, (StateData, u64, Run)>,
    rng: fastrand::Rng,
    effects: Vec<Effect>,
}

impl TaskManager {
    /// A new one.
    #[must_use]
    pub fn new(setup: Setup, seed: u64) -> Self {
        Self {
            setup,
            alive: true,
            session: None,
            last_heard: 0,
            half_timeout: 1000,
            next_heartbeat: 0,
            active: None,
            ending: None,
            operations: BTreeMap::new(),
            next_operation: 0,
            stored: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            effects: Vec::new(),
        }
    }

    /// The run whose tasks are here.
    #[must_use]
    pub fn run(&self) -> Option<Run> {
        self.active.as_ref().map(|active| active.deployment.run)
    }

    /// A connection to the JobManager was made.
    pub fn connected(&mut self, session: SessionId, now: u64) -> Vec<Effect> {
        self.session = Some(session);
        self.last_heard = now;
        let Setup { name, process, generation, slots, program, .. } = self.setup.clone();
        let fingerprint = program.graph.fingerprint();
        let data_address = format!("{name}:1");
        let registration = Registration { task_manager: name, process, generation, slots, data_address, fingerprint };
        vec![Effect::Send(FromTaskManager::Register(registration))]
    }

    /// A message from the JobManager.
    pub fn on_message(&mut self, message: ToTaskManager, now: u64) -> Vec<Effect> {
        self.last_heard = now;
        match message {
            ToTaskManager::Registered { heartbeat_timeout } => {
                self.half_timeout = heartbeat_timeout.0 / 2;
                self.next_heartbeat = now;
            }
            ToTaskManager::Refused(_) | ToTaskManager::Shutdown => {
                self.drop_tasks();
                self.effects.push(Effect::Exit);
            }
            // No source of the simulation waits for others.
            ToTaskManager::Heartbeat { .. } | ToTaskManager::AlignWatermarks { .. } => {}
            ToTaskManager::Deploy(deployment) => self.deploy(*deployment),
            ToTaskManager::CancelTasks { run } => self.cancel(run, now),
            ToTaskManager::TriggerCheckpoint { run, barrier } => {
                self.each_task(run, |task| task.handle().trigger(barrier.clone()))
            }
            ToTaskManager::CheckpointCompleted { run, checkpoint, held } => {
                self.each_task(run, |task| {
                    let own = |held: &Vec<Held>| {
                        let own = held.iter().find(|held| held.subtask == task.subtask());
                        own.map(|held| held.checkpoints.clone()).unwrap_or_default()
                    };
                    task.handle().checkpoint_completed(checkpoint, held.as_ref().map(own));
                });
            }
            ToTaskManager::CheckpointAborted { run, checkpoint } => {
                self.each_task(run, |task| task.handle().checkpoint_aborted(checkpoint));
            }
        }
        self.take_effects()
    }

    fn each_task(&self, run: Run, act: impl Fn(&Task)) {
        if let Some(active) = self.active.as_ref().filter(|active| active.deployment.run == run) {
            active.tasks.iter().for_each(act);
        }
    }

    fn cancel(&mut self, run: Run, now: u64) {
        if self.run() == Some(run) {
            self.drop_tasks();
            self.ending = Some((run, now + self.rng.u64(..300)));
        } else if self.ending.is_none_or(|(ending, _)| ending != run) {
            self.effects.push(Effect::Send(FromTaskManager::TasksEnded { run }));
        }
    }

    fn drop_tasks(&mut self) {
        self.active = None;
    }

    /// Lets some time pass: heartbeats, silence, tasks, frames. `ready` says which run other processes have.
    pub fn tick(&mut self, now: u64, ready: &BTreeMap<TaskManagerId, Run>) -> Vec<Effect> {
        if let Some((run, at)) = self.ending.filter(|(_, at)| *at <= now) {
            let _ = at;
            self.ending = None;
            self.effects.push(Effect::Send(FromTaskManager::TasksEnded { run }));
        }
        if self.session.is_some() && self.next_heartbeat <= now {
            self.next_heartbeat = now + self.half_timeout * 2 / 5;
            self.effects.push(Effect::Send(FromTaskManager::Heartbeat));
        }
        if now.saturating_sub(self.last_heard) > self.half_timeout {
            self.drop_tasks();
            if self.session.is_some() {
                self.effects.push(Effect::Close);
            }
        }
        self.start_loaded();
        self.step_tasks(now);
        self.pump(ready);
        self.take_effects()
    }

    fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    // --- Running ----------------------------------------------------------------------------------------------

    /// Steps tasks in an order and number that the seed decides, so that barriers meet rows in all ways.
    fn step_tasks(&mut self, now: u64) {
        let Some(active) = &mut self.active else { return };
        let mut order: Vec<usize> = (0..active.tasks.len()).collect();
        self.rng.shuffle(&mut order);
        let mut events = Vec::new();
        for at in order {
            let task = &mut active.tasks[at];
            for _ in 0..self.rng.u32(..6) {
                let step = task.step(sluice_protocol::Timestamp(now));
                events.extend(task.take_events().into_iter().map(|event| (task.subtask(), event)));
                if step != Step::Worked {
                    break;
                }
            }
        }
        for (subtask, event) in events {
            self.on_task_event(subtask, event);
        }
    }

    fn on_task_event(&mut self, subtask: SubtaskId, event: TaskEvent) {
        let Some(run) = self.run() else { return };
        let message = match event {
            TaskEvent::Failed(error) if [ORDER, WRONG].iter().any(|rule| error.to_string().starts_with(rule)) => {
                return self.effects.push(Effect::Violate(error.to_string()));
            }
            TaskEvent::Running => FromTaskManager::TaskRunning { run, subtask },
            TaskEvent::Finished => FromTaskManager::TaskFinished { run, subtask },
            TaskEvent::Failed(error) => FromTaskManager::TaskFailed { run, subtask, failure: error.to_failure() },
            TaskEvent::Declined { checkpoint, error } => {
                FromTaskManager::Decline { run, subtask, checkpoint, failure: error.to_failure() }
            }
            TaskEvent::Snapshot(snapshot) => return self.upload(run, snapshot),
        };
        self.effects.push(Effect::Send(message));
    }

    /// It is told to go after so long.
    pub fn leave(&mut self, millis: u64) -> Vec<Effect> {
        vec![Effect::Send(FromTaskManager::Leaving { within: TimeSpan(millis) })]
    }

    /// A task of the current run fails, as a fault of the world.
    pub fn fail_a_task(&mut self) -> Vec<Effect> {
        let subtask = self.active.as_ref().and_then(|active| active.tasks.first().map(Task::subtask));
        let (Some(run), Some(subtask)) = (self.run(), subtask) else { return vec![] };
        let failure = Failure::restart("Injected", Fault::Internal, "a task failed as the scenario says");
        vec![Effect::Send(FromTaskManager::TaskFailed { run, subtask, failure })]
    }

    fn pump(&mut self, ready: &BTreeMap<TaskManagerId, Run>) {
        let Some(active) = &mut self.active else { return };
        let run = active.deployment.run;
        for (id, sender) in &mut active.senders {
            if ready.get(&sender.to) != Some(&run) {
                continue;
            }
            while let Some(frame) = sender.input.pop_with_credit(&mut sender.credit) {
                self.effects.push(Effect::Frame(sender.to.clone(), run, *id, frame));
            }
        }
        for (id, receiver) in &active.receivers {
            let consumed = receiver.output.take_consumed();
            if consumed > 0 {
                self.effects.push(Effect::Grant(receiver.from.clone(), run, *id, consumed));
            }
        }
        for merged in &mut active.merged {
            merged.pump();
        }
    }

    /// A frame of another process; one of another run is refused (N2).
    pub fn on_frame(&mut self, run: Run, id: ChannelId, frame: NumberedFrame) -> Result<(), String> {
        let Some(active) = self.active.as_ref().filter(|active| active.deployment.run == run) else { return Ok(()) };
        let Some(receiver) = active.receivers.get(&id) else { return Ok(()) };
        receiver.output.push_received(frame).map_err(|error| error.to_string())
    }

    /// Credit for a channel.
    pub fn on_grant(&mut self, run: Run, id: ChannelId, bytes: u64) {
        let active = self.active.as_mut().filter(|active| active.deployment.run == run);
        if let Some(sender) = active.and_then(|active| active.senders.get_mut(&id)) {
            sender.credit += bytes as i64;
        }
    }
}

fn store(
    operations: &mut BTreeMap<u64, Operation>,
    next: &mut u64,
    effects: &mut Vec<Effect>,
    purpose: Operation,
    operation: StoreOperation,
) {
    *next += 1;
    operations.insert(*next, purpose);
    effects.push(Effect::Store(*next, operation));
}
