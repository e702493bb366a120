//! Runs a program's tasks by stepping them in a seeded order, on one thread.
//!
//! Everything between the source and the sink is real; a checkpoint goes through the format of `_metadata` and is
//! handed out as a JobManager would. Half of the channels lead to another process, as it were: through two queues,
//! and frames as bytes between them.

use super::memory::{Connectors, Writer};
use arrow::datatypes::SchemaRef;
use sluice_engine::channel::{ChannelId, InputChannel, OutputChannel, channel, codec, sending_channel};
use sluice_engine::event_time::alignment::{AlignmentGroups, AlignmentMember, WatermarkAlignment};
use sluice_engine::in_flight::{self, InFlight, RestoredChannel};
use sluice_engine::operator::{OperatorState, RestoredKeyed, RestoredList, RestoredState, TaskIdentity, WriteOptions};
use sluice_engine::partition::EdgeOutput;
use sluice_engine::program::{Program, VertexProgram};
use sluice_engine::state::StateBackend;
use sluice_engine::task::{Step, Task, TaskDescription, TaskEvent, TaskOptions};
use sluice_protocol::graph::{Edge, JobGraph};
use sluice_protocol::message::{Alignment, Barrier};
use sluice_protocol::metadata::{self, Metadata, RestoreError};
use sluice_protocol::state::{InFlightHandle, KeyedStateHandle, OperatorSnapshot, OperatorStateHandle, StateData};
use sluice_protocol::{
    Attempt, CheckpointId, Generation, JobId, OperatorUid, Run, SubtaskId, SubtaskIndex, Timestamp, VertexId, key_group,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Window of every channel in bytes: small, so that rows are in flight.
const WINDOW: usize = 6000;

/// A checkpoint, as the next job finds it, and what the sink had been given at its cut.
pub(crate) struct Cut {
    metadata: Vec<u8>,
    /// Rows that were in flight.
    pub(crate) in_flight: u64,
    /// Those of them that had been in flight at an earlier cut already.
    pub(crate) aged: u64,
    pub(crate) written_by: BTreeMap<Writer, usize>,
}

impl Cut {
    /// Rows of the first table that its sources had not read.
    pub(crate) fn left(&self, rows: usize) -> usize {
        let metadata = self.metadata();
        let splits = metadata.operators.iter().flat_map(|operator| &operator.splits);
        let read = splits.filter_map(|split| split.state["position"].as_u64()).sum::<u64>();
        rows.saturating_sub(usize::try_from(read).expect("few rows"))
    }

    /// Rows of keyed state.
    pub(crate) fn state_rows(&self) -> u64 {
        self.metadata().operators.iter().flat_map(|operator| &operator.keyed).map(|handle| handle.rows).sum()
    }

    /// As the next job reads it.
    pub(crate) fn metadata(&self) -> Metadata {
        Metadata::from_bytes(&self.metadata, "the checkpoint").expect("it was just written")
    }
}

/// What one subtask restores.
#[derive(Default)]
struct Restored {
    operators: BTreeMap<OperatorUid, RestoredState>,
    in_flight: Vec<RestoredChannel>,
}

/// What moves the frames of a channel to another process.
struct Pump {
    from: InputChannel,
    to: OutputChannel,
    schema: SchemaRef,
    credit: i64,
}

impl Pump {
    /// Moves at most one frame.
    fn step(&mut self) {
        self.credit += i64::try_from(self.to.take_consumed()).expect("few bytes");
        let Some(frame) = self.from.pop_with_credit(&mut self.credit) else { return };
        let bytes = codec::encode_frame(Run::default(), self.from.id(), &frame).expect("it can be written");
        let (_, frame) = codec::decode_frame(&bytes[4..].to_vec().into(), &self.schema).expect("it was just written");
        self.to.push_received(frame).expect("frames follow each other");
    }
}

/// A program and its tasks, which are made when it first runs.
pub(crate) struct Job {
    program: Program,
    random: fastrand::Rng,
    now: Timestamp,
    restored: Option<BTreeMap<SubtaskId, Restored>>,
    batch_rows: usize,
    tasks: Vec<Task>,
    pumps: Vec<Pump>,
    finished: usize,
    checkpoints: u64,
    /// The sources that wait for each other, as if subtasks with even and odd numbers were in two processes.
    alignment: [Arc<AlignmentGroups>; 2],
}

impl Job {
    pub(crate) fn new(program: Program, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self {
            program,
            random,
            now: Timestamp(1_000),
            restored: None,
            batch_rows: 64,
            tasks: Vec::new(),
            pumps: Vec::new(),
            finished: 0,
            checkpoints: 0,
            alignment: [true, true].map(|waits| Arc::new(AlignmentGroups::new(waits))),
        }
    }

    /// Its sources are asked for so many rows at once.
    pub(crate) fn with_batch_rows(self, batch_rows: usize) -> Self {
        Self { batch_rows, ..self }
    }

    /// Begins from a checkpoint, which may be of another parallelism.
    pub(crate) fn restore(&mut self, cut: &Cut) {
        self.try_restore(cut, false).expect("it fits");
    }

    /// The same of another program, which may not fit.
    pub(crate) fn try_restore(&mut self, cut: &Cut, allow_non_restored_state: bool) -> Result<(), RestoreError> {
        let metadata = cut.metadata();
        let graph = &self.program.graph;
        let assigned = metadata::assign_state(&metadata, graph, "file:///none", allow_non_restored_state)?;
        let states = assigned.into_iter().map(|(subtask, state)| {
            let mut operators: BTreeMap<OperatorUid, RestoredState> = BTreeMap::new();
            for snapshot in state.operators {
                self.take_snapshot(subtask, snapshot, state.divided_into, &mut operators);
            }
            let read = |handle: &InFlightHandle| {
                let StateData::Inline { bytes } = &handle.data else { panic!("all state is inline here") };
                in_flight::restore(handle, &bytes.clone().into(), &self.program, subtask).expect("it fits")
            };
            (subtask, Restored { operators, in_flight: state.in_flight.iter().map(read).collect() })
        });
        self.restored = Some(states.collect());
        Ok(())
    }

    fn take_snapshot(
        &self,
        subtask: SubtaskId,
        snapshot: OperatorSnapshot,
        divided_into: Option<u16>,
        operators: &mut BTreeMap<OperatorUid, RestoredState>,
    ) {
        let vertex = &self.program.vertices[subtask.vertex.0 as usize];
        let parallelism = self.program.graph.vertices[subtask.vertex.0 as usize].parallelism;
        let restored = operators.entry(snapshot.uid).or_default();
        for handle in snapshot.keyed {
            let StateData::Inline { bytes } = handle.data else { panic!("all state is inline here") };
            let (name, kind, bytes) = (handle.name, handle.kind, bytes.into());
            restored.keyed.push(RestoredKeyed { name, kind, divided_into, bytes });
        }
        for OperatorStateHandle { name, redistribution, data, .. } in snapshot.operator {
            let StateData::Inline { bytes } = data else { panic!("all state is inline here") };
            let items = serde_json::from_slice(&bytes).expect("it was just written");
            restored.operator.push(RestoredList { name, redistribution, items });
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
    pub(crate) fn checkpoint(&mut self, connectors: &Connectors, alignment: Alignment) -> Cut {
        self.start();
        self.checkpoints += 1;
        let checkpoint = CheckpointId(self.checkpoints);
        let barrier = Barrier { alignment, ..Barrier::aligned(checkpoint, self.now, None) };
        for task in &self.tasks {
            task.handle().trigger(barrier.clone());
        }
        let (mut operators, mut in_flight) = (Vec::new(), Vec::new());
        let mut written_by = BTreeMap::new();
        let mut snapshots = 0;
        let graph = self.program.graph.clone();
        while snapshots < self.tasks.len() {
            self.step(&mut |subtask, event| match event {
                TaskEvent::Snapshot(mut snapshot) => {
                    snapshots += 1;
                    in_flight.extend(snapshot.in_flight.drain(..).map(|share| handle(&share, &graph)));
                    let states = snapshot.write(&WriteOptions::default()).expect("state can be written");
                    operators.extend(states.into_iter().map(|(uid, state)| handles(uid, subtask.index, state)));
                }
                TaskEvent::Declined { error, .. } => panic!("a checkpoint was declined: {error}"),
                _ => {}
            });
            self.note_cuts(checkpoint, connectors, &mut written_by);
        }
        for earlier in connectors.writers() {
            written_by.entry(earlier.clone()).or_insert_with(|| connectors.written_by(&earlier));
        }
        let rows = in_flight.iter().map(|handle| handle.rows).sum();
        let aged = in_flight.iter().filter(|handle| handle.age > 0).map(|handle| handle.rows).sum();
        let metadata = self.metadata(operators, in_flight).to_bytes().expect("it can be written");
        Cut { metadata, in_flight: rows, aged, written_by }
    }

    /// What sinks have been given at the moment their state was frozen.
    fn note_cuts(&self, checkpoint: CheckpointId, connectors: &Connectors, written_by: &mut BTreeMap<Writer, usize>) {
        for task in &self.tasks {
            let subtask = task.subtask();
            let name = &self.program.graph.vertices[subtask.vertex.0 as usize].name;
            let Some((_, table)) = name.rsplit_once("Sink: ") else { continue };
            if task.metrics().last_cut.load(Ordering::Relaxed) == checkpoint.0 {
                let writer = (table.to_owned(), subtask.index);
                written_by.entry(writer.clone()).or_insert_with(|| connectors.written_by(&writer));
            }
        }
    }

    fn metadata(&self, operators: Vec<OperatorSnapshot>, in_flight: Vec<InFlightHandle>) -> Metadata {
        Metadata {
            version: metadata::VERSION,
            job: JobId { namespace: "default".to_owned(), name: "golden".to_owned(), uid: "1".to_owned() },
            run: Run { generation: Generation(1), attempt: Attempt(1) },
            checkpoint: CheckpointId(1),
            savepoint: false,
            details: None,
            origin: None,
            nonce: "n".to_owned(),
            triggered_at: self.now,
            key_group_function: key_group::NAME.to_owned(),
            max_parallelism: self.program.graph.max_parallelism,
            vertices: metadata::describe_vertices(&self.program.graph),
            operators,
            in_flight,
        }
    }

    /// Steps one task, chosen at random, and lets it tell.
    fn step(&mut self, on_event: &mut dyn FnMut(SubtaskId, TaskEvent)) {
        self.now = Timestamp(self.now.0 + self.random.u64(0..20));
        if !self.pumps.is_empty() {
            let pump = self.random.usize(0..self.pumps.len());
            self.pumps[pump].step();
        }
        if self.random.u8(..32) == 0 {
            let [even, odd] = &self.alignment;
            even.hear(&odd.report());
            odd.hear(&even.report());
        }
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
        let mut channels = Channels::of(&self.program);
        let mut states = self.restored.take().unwrap_or_default();
        for (vertex, program) in self.program.graph.vertices.iter().zip(&self.program.vertices) {
            for index in (0..vertex.parallelism).map(SubtaskIndex) {
                let subtask = SubtaskId { vertex: vertex.id, index };
                let state = states.remove(&subtask).unwrap_or_default();
                let description = TaskDescription {
                    subtask,
                    identity: TaskIdentity::default(),
                    parallelism: vertex.parallelism,
                    max_parallelism: self.program.graph.max_parallelism,
                    program: program.clone(),
                    inputs: channels.inputs.remove(&subtask).unwrap_or_default(),
                    outputs: channels.outputs(&self.program.graph, subtask),
                    state: state.operators,
                    in_flight: state.in_flight,
                    options: TaskOptions { batch_rows: self.batch_rows, ..TaskOptions::default() },
                    state_backend: StateBackend::Hash,
                    clock: Arc::new(|| Timestamp(0)),
                    job_clock: Arc::new(|| Timestamp(0)),
                    alignment: aligned(program).map(|one| {
                        AlignmentMember::new(Arc::clone(&self.alignment[index.0 as usize % 2]), subtask, one)
                    }),
                };
                self.tasks.push(Task::new(description, Arc::new(|| {})));
            }
        }
        self.pumps = channels.pumps;
    }
}

fn aligned(program: &VertexProgram) -> Option<WatermarkAlignment> {
    program.source.as_ref()?.1.watermarks()?.alignment.clone()
}

fn handle(share: &InFlight, graph: &JobGraph) -> InFlightHandle {
    let bytes = share.encode().expect("it can be written");
    share.handle(graph, 0, bytes.len() as u64, StateData::Inline { bytes }).expect("the edge is there")
}

fn handles(uid: OperatorUid, subtask: SubtaskIndex, state: OperatorState) -> OperatorSnapshot {
    let keyed = state.keyed.into_iter().map(|piece| KeyedStateHandle {
        name: piece.name,
        key_groups: piece.key_groups,
        rows: piece.rows,
        kind: piece.kind,
        data: StateData::Inline { bytes: piece.bytes },
    });
    let lists = state.operator.into_iter().map(|list| OperatorStateHandle {
        name: list.name,
        redistribution: list.redistribution,
        first: 0,
        items: list.items.len() as u64,
        data: StateData::Inline { bytes: serde_json::to_vec(&list.items).expect("it can be written") },
    });
    OperatorSnapshot {
        uid,
        subtask,
        keyed: keyed.collect(),
        operator: lists.collect(),
        splits: state.splits,
        committables: vec![],
    }
}

/// All channels of a graph, before tasks take their ends.
struct Channels {
    pumps: Vec<Pump>,
    inputs: BTreeMap<SubtaskId, Vec<InputChannel>>,
    outputs: BTreeMap<(usize, SubtaskIndex), Vec<OutputChannel>>,
}

impl Channels {
    fn of(program: &Program) -> Self {
        let graph = &program.graph;
        let mut channels = Self { pumps: Vec::new(), inputs: BTreeMap::new(), outputs: BTreeMap::new() };
        let parallelism = |vertex: VertexId| graph.vertices[vertex.0 as usize].parallelism;
        for (number, Edge { from, to, input: ordinal, .. }) in graph.edges.iter().enumerate() {
            for producer in (0..parallelism(*from)).map(SubtaskIndex) {
                for consumer in (0..parallelism(*to)).map(SubtaskIndex) {
                    let edge = u32::try_from(number).expect("few edges");
                    let id = ChannelId { edge, from: producer, to: consumer };
                    let is_local = (producer.0 + consumer.0) % 2 == 0;
                    let schema = &program.vertices[from.0 as usize].output_schema;
                    let (output, input) = if is_local { channel(id, WINDOW) } else { channels.remote(id, schema) };
                    let input = input.at_input(*ordinal);
                    channels.outputs.entry((number, producer)).or_default().push(output);
                    channels.inputs.entry(SubtaskId { vertex: *to, index: consumer }).or_default().push(input);
                }
            }
        }
        channels
    }

    /// A channel to another process.
    fn remote(&mut self, id: ChannelId, schema: &SchemaRef) -> (OutputChannel, InputChannel) {
        let (output, from) = sending_channel(id, WINDOW);
        let (to, input) = channel(id, WINDOW);
        let credit = i64::try_from(WINDOW).expect("a small window");
        self.pumps.push(Pump { from, to, schema: SchemaRef::clone(schema), credit });
        (output, input)
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
