//! Runs a program's tasks by stepping them in a seeded order, on one thread.
//!
//! Everything between the source and the sink is real; a checkpoint goes through the format of `_metadata` and is
//! handed out as a JobManager would.

use crate::memory::Connectors;
use sluice_engine::channel::{ChannelId, DEFAULT_WINDOW, InputChannel, OutputChannel, channel};
use sluice_engine::operator::{OperatorState, RestoredKeyed, RestoredState};
use sluice_engine::partition::EdgeOutput;
use sluice_engine::program::Program;
use sluice_engine::task::{Step, Task, TaskDescription, TaskEvent, TaskOptions};
use sluice_protocol::graph::{Edge, JobGraph};
use sluice_protocol::message::Barrier;
use sluice_protocol::metadata::{self, Metadata};
use sluice_protocol::state::{KeyedStateHandle, OperatorSnapshot, StateData};
use sluice_protocol::{
    Attempt, CheckpointId, Generation, JobId, OperatorUid, Run, SubtaskId, SubtaskIndex, Timestamp, VertexId, key_group,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A checkpoint, as the next job finds it, and what the sink had been given at its cut.
pub(crate) struct Cut {
    metadata: Vec<u8>,
    pub(crate) written_by: BTreeMap<SubtaskIndex, usize>,
}

/// A program and its tasks, which are made when it first runs.
pub(crate) struct Job {
    program: Program,
    random: fastrand::Rng,
    now: Timestamp,
    restored: Option<BTreeMap<SubtaskId, BTreeMap<OperatorUid, RestoredState>>>,
    tasks: Vec<Task>,
    finished: usize,
}

impl Job {
    pub(crate) fn new(program: Program, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { program, random, now: Timestamp(1_000), restored: None, tasks: Vec::new(), finished: 0 }
    }

    /// Begins from a checkpoint, which may be of another parallelism.
    pub(crate) fn restore(&mut self, cut: &Cut) {
        let metadata = Metadata::from_bytes(&cut.metadata, "the checkpoint").expect("it was just written");
        let assigned = metadata::assign_state(&metadata, &self.program.graph, "file:///none", false).expect("it fits");
        let states = assigned.into_iter().map(|(subtask, state)| {
            let mut operators: BTreeMap<OperatorUid, RestoredState> = BTreeMap::new();
            for snapshot in state.operators {
                self.take_snapshot(subtask, snapshot, &mut operators);
            }
            (subtask, operators)
        });
        self.restored = Some(states.collect());
    }

    fn take_snapshot(
        &self,
        subtask: SubtaskId,
        snapshot: OperatorSnapshot,
        operators: &mut BTreeMap<OperatorUid, RestoredState>,
    ) {
        let vertex = &self.program.vertices[subtask.vertex.0 as usize];
        let parallelism = self.program.graph.vertices[subtask.vertex.0 as usize].parallelism;
        let restored = operators.entry(snapshot.uid).or_default();
        for handle in snapshot.keyed {
            let StateData::Inline { bytes } = handle.data else { panic!("all state is inline here") };
            restored.keyed.push(RestoredKeyed { name: handle.name, bytes: bytes.into() });
        }
        let owner = |split: &str| vertex.source.as_ref().map(|(_, source)| source.owner(split, parallelism));
        restored.splits.extend(snapshot.splits.into_iter().filter(|state| owner(&state.split) == Some(subtask.index)));
    }

    /// Runs until all tasks have finished.
    pub(crate) fn run_to_end(&mut self) {
        self.start();
        while self.finished < self.tasks.len() {
            self.step(&mut |_, _| {});
        }
    }

    /// Runs until a condition holds, which it must before the job ends.
    pub(crate) fn run_until(&mut self, condition: impl Fn() -> bool) {
        self.start();
        while !condition() {
            assert!(self.finished < self.tasks.len(), "the job ended before it came to the middle");
            self.step(&mut |_, _| {});
        }
    }

    /// Takes a checkpoint while rows go on flowing.
    pub(crate) fn checkpoint(&mut self, connectors: &Connectors) -> Cut {
        let barrier = Barrier::aligned(CheckpointId(1), self.now, None);
        for task in &self.tasks {
            task.handle().trigger(barrier.clone());
        }
        let mut operators = Vec::new();
        let mut written_by = BTreeMap::new();
        let mut snapshots = 0;
        let sinks: Vec<bool> = self.program.vertices.iter().map(|vertex| vertex.sink.is_some()).collect();
        while snapshots < self.tasks.len() {
            self.step(&mut |subtask, event| match event {
                TaskEvent::Snapshot(snapshot) => {
                    snapshots += 1;
                    if sinks[subtask.vertex.0 as usize] {
                        written_by.insert(subtask.index, connectors.written_by(subtask.index));
                    }
                    let states = snapshot.write().expect("state can be written");
                    operators.extend(states.into_iter().map(|(uid, state)| handles(uid, subtask.index, state)));
                }
                TaskEvent::Declined { error, .. } => panic!("a checkpoint was declined: {error}"),
                _ => {}
            });
        }
        Cut { metadata: self.metadata(operators).to_bytes().expect("it can be written"), written_by }
    }

    fn metadata(&self, operators: Vec<OperatorSnapshot>) -> Metadata {
        Metadata {
            version: metadata::VERSION,
            job: JobId { namespace: "default".to_owned(), name: "golden".to_owned(), uid: "1".to_owned() },
            run: Run { generation: Generation(1), attempt: Attempt(1) },
            checkpoint: CheckpointId(1),
            savepoint: false,
            details: None,
            nonce: "n".to_owned(),
            triggered_at: self.now,
            key_group_function: key_group::NAME.to_owned(),
            max_parallelism: self.program.graph.max_parallelism,
            vertices: metadata::describe_vertices(&self.program.graph),
            operators,
        }
    }

    /// Steps one task, chosen at random, and lets it tell.
    fn step(&mut self, on_event: &mut dyn FnMut(SubtaskId, TaskEvent)) {
        self.now = Timestamp(self.now.0 + self.random.u64(0..20));
        let index = self.random.usize(0..self.tasks.len());
        let task = &mut self.tasks[index];
        let subtask = task.subtask();
        let step = task.step(self.now);
        let events = task.take_events();
        for event in events {
            match event {
                TaskEvent::Failed(error) => panic!("subtask {subtask} failed: {error}"),
                TaskEvent::Finished => self.finished += 1,
                other => on_event(subtask, other),
            }
        }
        assert_ne!(step, Step::Ended, "subtask {subtask} ended");
    }

    fn start(&mut self) {
        if !self.tasks.is_empty() {
            return;
        }
        let mut channels = Channels::of(&self.program.graph);
        let restored = self.restored.take();
        let was_restored = restored.is_some();
        let mut states = restored.unwrap_or_default();
        for (vertex, program) in self.program.graph.vertices.iter().zip(&self.program.vertices) {
            for index in (0..vertex.parallelism).map(SubtaskIndex) {
                let subtask = SubtaskId { vertex: vertex.id, index };
                let description = TaskDescription {
                    subtask,
                    parallelism: vertex.parallelism,
                    max_parallelism: self.program.graph.max_parallelism,
                    program: program.clone(),
                    inputs: channels.inputs.remove(&subtask).unwrap_or_default(),
                    outputs: channels.outputs(&self.program.graph, subtask),
                    restored: was_restored,
                    state: states.remove(&subtask).unwrap_or_default(),
                    options: TaskOptions::default(),
                    clock: Arc::new(|| Timestamp(0)),
                };
                self.tasks.push(Task::new(description, Arc::new(|| {})));
            }
        }
    }
}

fn handles(uid: OperatorUid, subtask: SubtaskIndex, state: OperatorState) -> OperatorSnapshot {
    let keyed = state.keyed.into_iter().map(|piece| KeyedStateHandle {
        name: piece.name,
        key_groups: piece.key_groups,
        rows: piece.rows,
        data: StateData::Inline { bytes: piece.bytes },
    });
    OperatorSnapshot { uid, subtask, keyed: keyed.collect(), splits: state.splits }
}

/// All channels of a graph, before tasks take their ends.
struct Channels {
    inputs: BTreeMap<SubtaskId, Vec<InputChannel>>,
    outputs: BTreeMap<(usize, SubtaskIndex), Vec<OutputChannel>>,
}

impl Channels {
    fn of(graph: &JobGraph) -> Self {
        let mut channels = Self { inputs: BTreeMap::new(), outputs: BTreeMap::new() };
        let parallelism = |vertex: VertexId| graph.vertices[vertex.0 as usize].parallelism;
        for (number, Edge { from, to, .. }) in graph.edges.iter().enumerate() {
            for producer in (0..parallelism(*from)).map(SubtaskIndex) {
                for consumer in (0..parallelism(*to)).map(SubtaskIndex) {
                    let edge = u32::try_from(number).expect("few edges");
                    let id = ChannelId { edge, from: producer, to: consumer };
                    let (output, input) = channel(id, DEFAULT_WINDOW);
                    channels.outputs.entry((number, producer)).or_default().push(output);
                    channels.inputs.entry(SubtaskId { vertex: *to, index: consumer }).or_default().push(input);
                }
            }
        }
        channels
    }

    fn outputs(&mut self, graph: &JobGraph, subtask: SubtaskId) -> Vec<EdgeOutput> {
        let edges = graph.edges.iter().enumerate().filter(|(_, edge)| edge.from == subtask.vertex);
        let output = |(number, edge): (usize, &Edge)| EdgeOutput {
            partitioning: edge.partitioning.clone(),
            channels: self.outputs.remove(&(number, subtask.index)).unwrap_or_default(),
        };
        edges.map(output).collect()
    }
}
