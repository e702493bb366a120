//! A TaskManager process: real tasks with real operators, stepped by the world instead of by threads.
//!
//! What is not the real code is what moves bytes: uploads and restores through the world's store, frames between
//! processes through its network. The process obeys N4: tasks of a new run only when the older ones have ended, and
//! silence for half the loss timeout ends its tasks.

use crate::simulation::check::RESTORE_UNAVAILABLE;
use sluice_engine::channel::{ChannelId, Frame, InputChannel, NumberedFrame, OutputChannel, channel};
use sluice_engine::operator::{Clock, OperatorState, RestoredKeyed, RestoredState};
use sluice_engine::partition::EdgeOutput;
use sluice_engine::program::Program;
use sluice_engine::task::{Step, Task, TaskDescription, TaskEvent, TaskOptions, TaskSnapshot};
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::graph::Partitioning;
use sluice_protocol::job_master::SessionId;
use sluice_protocol::message::{Deployment, FromTaskManager, Registration, ToTaskManager};
use sluice_protocol::paths::state_file;
use sluice_protocol::state::{KeyedStateHandle, OperatorSnapshot, StateData, SubtaskState};
use sluice_protocol::store::{StoreOperation, StoreReply};
use sluice_protocol::{
    CheckpointId, Generation, OperatorUid, ProcessId, Run, SubtaskId, SubtaskIndex, TaskManagerId, TimeSpan, VertexId,
};
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
}

enum Operation {
    Restore { run: Run, subtask: SubtaskId, uid: OperatorUid, name: String },
    Upload { run: Run, checkpoint: CheckpointId, subtask: SubtaskId, operation: StoreOperation, tries: u32 },
}

struct Loading {
    restored: bool,
    state: BTreeMap<OperatorUid, RestoredState>,
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
    state: SubtaskState,
    missing: usize,
}

/// The tasks of one run.
struct ActiveRun {
    deployment: Deployment,
    loading: BTreeMap<SubtaskId, Loading>,
    inputs: BTreeMap<SubtaskId, Vec<InputChannel>>,
    outputs: BTreeMap<SubtaskId, Vec<EdgeOutput>>,
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
    /// The generation it was started for.
    pub generation: Generation,
    /// Its slots.
    pub slots: u32,
    /// The program it builds.
    pub program: Program,
    /// The world's clock.
    pub clock: Clock,
    /// State up to this size travels inline.
    pub inline_limit: usize,
    /// Window of a channel in bytes.
    pub window: usize,
    /// Planted bug: barriers are not aligned.
    pub unaligned: bool,
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
            ToTaskManager::Heartbeat => {}
            ToTaskManager::Deploy(deployment) => self.deploy(*deployment),
            ToTaskManager::CancelTasks { run } => self.cancel(run, now),
            ToTaskManager::TriggerCheckpoint { run, barrier } => {
                self.each_task(run, |task| task.handle().trigger(barrier))
            }
            ToTaskManager::CheckpointCompleted { run, checkpoint } => {
                self.each_task(run, |task| task.handle().checkpoint_completed(checkpoint));
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

    // --- Deploying --------------------------------------------------------------------------------------------

    fn deploy(&mut self, deployment: Deployment) {
        if self.active.is_some() || self.ending.is_some() {
            let failure = Failure::restart("OldTasksRun", Fault::Internal, "N4: tasks of an older run have not ended");
            let (run, subtask) = (deployment.run, deployment.tasks[0].subtask);
            self.effects.push(Effect::Send(FromTaskManager::TaskFailed { run, subtask, failure }));
            return;
        }
        let mut active = self.connect_tasks(deployment);
        for task in active.deployment.tasks.clone() {
            let loading = self.load(active.deployment.run, task.subtask, task.restore);
            active.loading.insert(task.subtask, loading);
        }
        self.active = Some(active);
    }

    fn connect_tasks(&self, deployment: Deployment) -> ActiveRun {
        let mut active = ActiveRun {
            loading: BTreeMap::new(),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            tasks: vec![],
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            merged: vec![],
            acknowledgements: BTreeMap::new(),
            deployment,
        };
        let graph = &self.setup.program.graph;
        let place = |active: &ActiveRun, vertex: VertexId, index: u32| {
            let subtask = SubtaskId { vertex, index: SubtaskIndex(index) };
            let placement = active.deployment.placement.iter().find(|placement| placement.subtask == subtask);
            placement.map(|placement| (subtask, placement.task_manager.clone()))
        };
        for (number, edge) in graph.edges.iter().enumerate() {
            let parallelism = graph.vertices[edge.from.0 as usize].parallelism;
            for from in 0..parallelism {
                for to in 0..graph.vertices[edge.to.0 as usize].parallelism {
                    let id = ChannelId { edge: number as u32, from: SubtaskIndex(from), to: SubtaskIndex(to) };
                    let (Some(producer), Some(consumer)) =
                        (place(&active, edge.from, from), place(&active, edge.to, to))
                    else {
                        continue;
                    };
                    self.connect(&mut active, id, &edge.partitioning, producer, consumer);
                }
            }
        }
        if self.setup.unaligned {
            merge_inputs(&mut active, self.setup.window);
        }
        active
    }

    fn connect(
        &self,
        active: &mut ActiveRun,
        id: ChannelId,
        partitioning: &Partitioning,
        (producer, producer_at): (SubtaskId, TaskManagerId),
        (consumer, consumer_at): (SubtaskId, TaskManagerId),
    ) {
        let me = &self.setup.name;
        if producer_at != *me && consumer_at != *me {
            return;
        }
        let (output, input) = channel(id, self.setup.window);
        if producer_at == *me {
            let edges = active
                .outputs
                .entry(producer)
                .or_insert_with(|| vec![EdgeOutput { partitioning: partitioning.clone(), channels: vec![] }]);
            edges[0].channels.push(output);
        } else {
            active.receivers.insert(id, Receiver { from: producer_at.clone(), output });
        }
        if consumer_at == *me {
            active.inputs.entry(consumer).or_default().push(input);
        } else {
            active.senders.insert(id, Sender { to: consumer_at, input, credit: self.setup.window as i64 });
        }
    }

    fn load(&mut self, run: Run, subtask: SubtaskId, restore: Option<SubtaskState>) -> Loading {
        let restored = restore.is_some();
        let parallelism = self.setup.program.graph.vertices[subtask.vertex.0 as usize].parallelism;
        let source = self.setup.program.vertices[subtask.vertex.0 as usize].source.clone();
        let mut loading = Loading { restored, state: BTreeMap::new(), missing: 0 };
        for snapshot in restore.map(|state| state.operators).unwrap_or_default() {
            let OperatorSnapshot { uid, keyed, splits, .. } = snapshot;
            let state = loading.state.entry(uid.clone()).or_default();
            let owned = splits.into_iter().filter(|split| {
                source.as_ref().is_none_or(|(_, source)| source.owner(&split.split, parallelism) == subtask.index)
            });
            state.splits.extend(owned);
            for handle in keyed {
                match handle.data {
                    StateData::Inline { bytes } => {
                        state.keyed.push(RestoredKeyed { name: handle.name, bytes: bytes.into() });
                    }
                    StateData::File { path, .. } => {
                        loading.missing += 1;
                        let operation = StoreOperation::Get { key: path };
                        let purpose = Operation::Restore { run, subtask, uid: uid.clone(), name: handle.name };
                        store(&mut self.operations, &mut self.next_operation, &mut self.effects, purpose, operation);
                    }
                }
            }
        }
        loading
    }

    fn start_loaded(&mut self) {
        let Some(active) = &mut self.active else { return };
        let loaded: Vec<_> =
            active.loading.iter().filter(|(_, one)| one.missing == 0).map(|(subtask, _)| *subtask).collect();
        for subtask in loaded {
            let Some(loading) = active.loading.remove(&subtask) else { continue };
            let program = &self.setup.program;
            let description = TaskDescription {
                subtask,
                parallelism: program.graph.vertices[subtask.vertex.0 as usize].parallelism,
                max_parallelism: program.graph.max_parallelism,
                program: program.vertices[subtask.vertex.0 as usize].clone(),
                inputs: active.inputs.remove(&subtask).unwrap_or_default(),
                outputs: active.outputs.remove(&subtask).unwrap_or_default(),
                restored: loading.restored,
                state: loading.state,
                options: TaskOptions { batch_rows: 4, buffer_timeout: TimeSpan(20) },
                clock: Clock::clone(&self.setup.clock),
            };
            active.tasks.push(Task::new(description, Arc::new(|| {})));
        }
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

    // --- Snapshots --------------------------------------------------------------------------------------------

    fn upload(&mut self, run: Run, snapshot: TaskSnapshot) {
        let (checkpoint, subtask) = (snapshot.barrier.checkpoint, snapshot.subtask);
        let states = match snapshot.write() {
            Ok(states) => states,
            Err(error) => {
                let failure = error.to_failure();
                return self.effects.push(Effect::Send(FromTaskManager::Decline { run, subtask, checkpoint, failure }));
            }
        };
        let directory = self.active.as_ref().and_then(|active| active.deployment.state_directory.clone());
        let mut missing = 0;
        let mut operators = Vec::new();
        for (uid, OperatorState { keyed, splits }) in states {
            let mut handles = Vec::new();
            for piece in keyed {
                let size = piece.bytes.len();
                let data = match &directory {
                    Some(directory) if size > self.setup.inline_limit => {
                        let name = state_file(run, checkpoint, subtask, missing, &format!("{:08x}", self.rng.u32(..)));
                        let key = format!("{directory}/chk-{checkpoint}/{name}");
                        let operation = StoreOperation::PutIfAbsent { key, bytes: piece.bytes };
                        missing += 1;
                        let purpose =
                            Operation::Upload { run, checkpoint, subtask, operation: operation.clone(), tries: 1 };
                        store(&mut self.operations, &mut self.next_operation, &mut self.effects, purpose, operation);
                        StateData::File { path: name, size: size as u64 }
                    }
                    _ => StateData::Inline { bytes: piece.bytes },
                };
                handles.push(KeyedStateHandle {
                    name: piece.name,
                    key_groups: piece.key_groups,
                    rows: piece.rows,
                    data,
                });
            }
            operators.push(OperatorSnapshot { uid, subtask: subtask.index, keyed: handles, splits });
        }
        let state = SubtaskState { operators };
        if missing == 0 {
            return self.acknowledge(run, checkpoint, subtask, state);
        }
        if let Some(active) = &mut self.active {
            let waiting = Acknowledgement { state, missing: missing as usize };
            active.acknowledgements.insert((checkpoint, subtask), waiting);
        }
    }

    fn acknowledge(&mut self, run: Run, checkpoint: CheckpointId, subtask: SubtaskId, state: SubtaskState) {
        let metrics = Default::default();
        self.effects.push(Effect::Send(FromTaskManager::Acknowledge { run, subtask, checkpoint, state, metrics }));
    }

    /// A store operation has an answer. `is_latest` says whether its run's generation owns the ledger: only then
    /// must its files be there.
    pub fn on_store_reply(&mut self, id: u64, reply: StoreReply, is_latest: bool) -> Result<Vec<Effect>, String> {
        match self.operations.remove(&id) {
            Some(Operation::Restore { run, subtask, uid, name }) => {
                self.on_restored(run, subtask, &uid, name, reply, is_latest)?;
            }
            Some(Operation::Upload { run, checkpoint, subtask, operation, tries }) => {
                self.on_uploaded(run, checkpoint, subtask, operation, tries, reply);
            }
            None => {}
        }
        Ok(self.take_effects())
    }

    fn on_restored(
        &mut self,
        run: Run,
        subtask: SubtaskId,
        uid: &OperatorUid,
        name: String,
        reply: StoreReply,
        is_latest: bool,
    ) -> Result<(), String> {
        let Some(active) = self.active.as_mut().filter(|active| active.deployment.run == run) else { return Ok(()) };
        let Some(loading) = active.loading.get_mut(&subtask) else { return Ok(()) };
        let failure = match reply {
            StoreReply::Object(bytes) => {
                loading.missing -= 1;
                loading.state.entry(uid.clone()).or_default().keyed.push(RestoredKeyed { name, bytes: bytes.into() });
                return Ok(());
            }
            StoreReply::Absent if is_latest => return Err(format!("K6: a file that run {run} restores is missing")),
            StoreReply::Absent => Failure::restart("StateGone", Fault::Internal, "a file to restore is missing"),
            _ => Failure::external(RESTORE_UNAVAILABLE, "the store did not answer"),
        };
        self.effects.push(Effect::Send(FromTaskManager::TaskFailed { run, subtask, failure }));
        Ok(())
    }

    fn on_uploaded(
        &mut self,
        run: Run,
        checkpoint: CheckpointId,
        subtask: SubtaskId,
        operation: StoreOperation,
        tries: u32,
        reply: StoreReply,
    ) {
        let Some(active) = self.active.as_mut().filter(|active| active.deployment.run == run) else { return };
        if matches!(reply, StoreReply::Put | StoreReply::Exists) {
            let Some(waiting) = active.acknowledgements.get_mut(&(checkpoint, subtask)) else { return };
            waiting.missing -= 1;
            if waiting.missing == 0
                && let Some(done) = active.acknowledgements.remove(&(checkpoint, subtask))
            {
                self.acknowledge(run, checkpoint, subtask, done.state);
            }
        } else if tries < 3 {
            let purpose =
                Operation::Upload { run, checkpoint, subtask, operation: operation.clone(), tries: tries + 1 };
            store(&mut self.operations, &mut self.next_operation, &mut self.effects, purpose, operation);
        } else {
            active.acknowledgements.remove(&(checkpoint, subtask));
            let failure = Failure::restart("UploadFailed", Fault::External, "a file of state could not be stored");
            self.effects.push(Effect::Send(FromTaskManager::Decline { run, subtask, checkpoint, failure }));
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

fn merge_inputs(active: &mut ActiveRun, window: usize) {
    let inputs = std::mem::take(&mut active.inputs);
    for (subtask, inputs) in inputs {
        let (output, input) = channel(inputs[0].id(), window * 4);
        active.inputs.insert(subtask, vec![input]);
        active.merged.push(Merged { inputs, output, cut: CheckpointId(0), ended: 0 });
    }
}

impl Merged {
    fn pump(&mut self) {
        for input in &self.inputs {
            while let Some(numbered) = input.pop() {
                match numbered.frame {
                    Frame::Barrier(barrier) if barrier.checkpoint <= self.cut => {}
                    Frame::Barrier(barrier) => {
                        self.cut = barrier.checkpoint;
                        self.output.push(Frame::Barrier(barrier));
                    }
                    Frame::EndOfInput => {
                        self.ended += 1;
                        if self.ended == self.inputs.len() {
                            self.output.push(Frame::EndOfInput);
                        }
                    }
                    Frame::Batch(batch) => self.output.push(Frame::Batch(batch)),
                }
            }
        }
    }
}
