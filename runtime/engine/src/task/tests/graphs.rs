//! A graph with several output and several input edges at a vertex, stepped in random order: killed after a cut of each
//! exactly-once mode, restored at another parallelism, and read to its end.
//!
//! ```text
//!          ┌─ hash ─────────────────────▶ input 0 ┐
//! numbers ─┼─ rebalance ─▶ swap ─ hash ─▶ input 1 ┴ sides
//!          └─ forward ──▶ total
//! ```
//!
//! `sides` counts and sums the rows of each key, of each input apart; what comes at input 1 has other columns.

use super::*;
use crate::in_flight;
use crate::operator::{Collector, ListPiece, Operator, OperatorFactory, RestoredKeyed, SnapshotWriter};
use crate::program::Program;
use crate::source::SourceFactory;
use crate::state::{AccumulatorColumn, Fate, KeyedTable, TableLayout, TouchedKeys};
use crate::testing::connectors::schema;
use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use sluice_protocol::graph::{Edge, JobGraph, OperatorInfo, OperatorKind, Vertex};
use sluice_protocol::message::Alignment;
use sluice_protocol::state::{InFlightHandle, Redistribution, StateData};

const NUMBERS: u32 = 0;
const TOTAL: u32 = 1;
const SWAP: u32 = 2;
const SIDES: u32 = 3;
const WINDOW: usize = 20_000;

fn swapped_schema() -> SchemaRef {
    let fields = [("note", DataType::Utf8), ("v", DataType::Int64), ("k", DataType::Int64)];
    Arc::new(Schema::new(fields.map(|(name, kind)| Field::new(name, kind, true)).to_vec()))
}

fn swap(rows: &RecordBatch) -> RecordBatch {
    let notes: ArrayRef = Arc::new(StringArray::from(vec!["swapped"; rows.num_rows()]));
    RecordBatch::try_new(swapped_schema(), vec![notes, rows.column(1).clone(), rows.column(0).clone()]).unwrap()
}

/// One of the operators, by the name of its vertex.
struct Node {
    kind: u32,
    tables: Vec<Box<dyn KeyedTable>>,
    total: i64,
}

fn layout() -> Arc<TableLayout> {
    let column = |name: &str, word| AccumulatorColumn {
        name: name.to_owned(),
        data_type: DataType::Int64,
        word,
        null_while_zero: None,
    };
    let accumulators = vec![column("rows", 0), column("sum", 1)];
    Arc::new(TableLayout {
        keys: vec![Field::new("k", DataType::Int64, true)],
        accumulators,
        words: 2,
        prefix: None,
        updated: None,
    })
}

impl Node {
    fn count(&mut self, input: usize, key: usize, rows: &RecordBatch) -> Result<(), TaskError> {
        let (mut touched, mut words) = (TouchedKeys::default(), Vec::new());
        self.tables[input].touch(rows, &[key], &mut touched)?;
        self.tables[input].load(&touched, &mut words);
        for (slot, value) in touched.slots.iter().zip(rows.column(1).as_primitive::<Int64Type>().values()) {
            words[*slot as usize * 2] += 1;
            words[*slot as usize * 2 + 1] += *value as u64;
        }
        self.tables[input].store(&touched, &words, &vec![Fate::Write; touched.keys.len()])
    }
}

struct BothSides(Vec<Box<dyn SnapshotWriter>>);

impl SnapshotWriter for BothSides {
    fn write(&self, options: &WriteOptions, take: crate::operator::TakePiece<'_>) -> Result<OperatorState, TaskError> {
        let mut state = OperatorState::default();
        for side in &self.0 {
            state.layers.extend(side.write(options, take)?.layers);
        }
        Ok(state)
    }
}

impl Operator for Node {
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        if self.kind == SIDES {
            for name in ["first", "second"] {
                let mut table = context.keyed_table(name, layout())?;
                let own: Vec<_> = state.keyed.iter().filter(|file| file.name == name).cloned().collect();
                table.restore(&context.uid, &own)?;
                self.tables.push(table);
            }
        } else if context.subtask.0 == 0 {
            self.total = state.operator.iter().flat_map(|list| &list.items).map(|item| item.as_i64().unwrap()).sum();
        }
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        match self.kind {
            SWAP => out.collect(Batch::inserts(swap(&batch.rows))),
            SIDES => self.count(0, 0, &batch.rows)?,
            _ => self.total += batch.rows.column(1).as_primitive::<Int64Type>().values().iter().sum::<i64>(),
        }
        Ok(())
    }

    fn process_input(&mut self, input: u8, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        assert_eq!(batch.rows.schema(), if input == 0 { schema() } else { swapped_schema() });
        if input == 0 { self.process(batch, out) } else { self.count(1, 2, &batch.rows) }
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        if self.kind == SWAP {
            return Ok(None);
        }
        if self.kind == SIDES {
            let frozen = self.tables.iter_mut().map(|table| table.freeze(checkpoint)).collect::<Result<_, _>>()?;
            return Ok(Some(Box::new(BothSides(frozen))));
        }
        let redistribution = Redistribution::Split;
        let list = ListPiece { name: "total".to_owned(), redistribution, items: vec![self.total.into()] };
        Ok(Some(Box::new(OperatorState { operator: vec![list], ..OperatorState::default() })))
    }
}

struct NodeFactory(u32);

impl OperatorFactory for NodeFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(Node { kind: self.0, tables: Vec::new(), total: 0 }))
    }

    fn output_schema(&self) -> SchemaRef {
        if self.0 == SWAP { swapped_schema() } else { schema() }
    }
}

fn program(source: &Numbers, [numbers, swaps, sides]: [u32; 3]) -> Program {
    let info = |uid: &str, kind| OperatorInfo { uid: uid.into(), kind, description: String::new() };
    let vertex = |id, parallelism, operator| Vertex {
        id: VertexId(id),
        name: String::new(),
        parallelism,
        operators: vec![operator],
    };
    let edge = |from, to, partitioning, input| Edge { from: VertexId(from), to: VertexId(to), partitioning, input };
    let graph = JobGraph {
        vertices: vec![
            vertex(NUMBERS, numbers, info("numbers", OperatorKind::Source)),
            vertex(TOTAL, numbers, info("total", OperatorKind::Stateless)),
            vertex(SWAP, swaps, info("swap", OperatorKind::Stateless)),
            vertex(SIDES, sides, info("sides", OperatorKind::Keyed)),
        ],
        edges: vec![
            edge(NUMBERS, TOTAL, Partitioning::Forward, 0),
            edge(NUMBERS, SWAP, Partitioning::Rebalance, 0),
            edge(NUMBERS, SIDES, Partitioning::Hash { keys: vec![0] }, 0),
            edge(SWAP, SIDES, Partitioning::Hash { keys: vec![2] }, 1),
        ],
        max_parallelism: 128,
    };
    let factory: Arc<dyn SourceFactory> = Arc::new(source.clone());
    let mut vertices =
        vec![VertexProgram { source: Some(("numbers".into(), factory)), ..vertex_program(&NodeFactory(NUMBERS)) }];
    for (kind, uid) in [(TOTAL, "total"), (SWAP, "swap"), (SIDES, "sides")] {
        let factory = NodeFactory(kind);
        let program = vertex_program(&factory);
        let operators: Vec<(OperatorUid, Arc<dyn OperatorFactory>)> = vec![(uid.into(), Arc::new(factory))];
        vertices.push(VertexProgram { operators, ..program });
    }
    Program { graph, vertices }
}

fn vertex_program(factory: &NodeFactory) -> VertexProgram {
    VertexProgram { source: None, operators: Vec::new(), sink: None, output_schema: factory.output_schema() }
}

/// What a checkpoint holds.
#[derive(Default)]
struct Checkpoint {
    states: States,
    in_flight: Vec<InFlightHandle>,
}

struct Graph {
    program: Program,
    tasks: Vec<Task>,
}

impl Graph {
    fn new(program: Program, restore: Option<&Checkpoint>) -> Self {
        let graph = &program.graph;
        let parallelism = |vertex: VertexId| graph.vertices[vertex.0 as usize].parallelism;
        let mut inputs: BTreeMap<SubtaskId, Vec<InputChannel>> = BTreeMap::new();
        let mut outputs: BTreeMap<SubtaskId, Vec<EdgeOutput>> = BTreeMap::new();
        for (number, edge) in (0..).zip(&graph.edges) {
            for from in (0..parallelism(edge.from)).map(SubtaskIndex) {
                let mut channels = Vec::new();
                for to in (0..parallelism(edge.to)).map(SubtaskIndex) {
                    if edge.partitioning == Partitioning::Forward && from != to {
                        continue;
                    }
                    let (output, input) = channel(ChannelId { edge: number, from, to }, WINDOW);
                    channels.push(output);
                    let consumer = SubtaskId { vertex: edge.to, index: to };
                    inputs.entry(consumer).or_default().push(input.at_input(edge.input));
                }
                let producer = SubtaskId { vertex: edge.from, index: from };
                outputs
                    .entry(producer)
                    .or_default()
                    .push(EdgeOutput { partitioning: edge.partitioning.clone(), channels });
            }
        }
        let subtasks = graph.vertices.iter().flat_map(|vertex| {
            (0..vertex.parallelism).map(|index| SubtaskId { vertex: vertex.id, index: SubtaskIndex(index) })
        });
        let tasks = subtasks.map(|subtask| {
            let description = TaskDescription {
                subtask,
                identity: crate::operator::TaskIdentity::default(),
                parallelism: parallelism(subtask.vertex),
                max_parallelism: program.graph.max_parallelism,
                program: program.vertices[subtask.vertex.0 as usize].clone(),
                inputs: inputs.remove(&subtask).unwrap_or_default(),
                outputs: outputs.remove(&subtask).unwrap_or_default(),
                state: restore.map(|checkpoint| checkpoint.states.clone()).unwrap_or_default(),
                in_flight: restore.map_or_else(Vec::new, |checkpoint| checkpoint.in_flight_of(&program, subtask)),
                options: TaskOptions { batch_rows: 100, buffer_timeout: TimeSpan(50), ..TaskOptions::default() },
                state_backend: crate::state::StateBackend::default(),
                clock: Arc::new(|| Timestamp(0)),
                job_clock: Arc::new(|| Timestamp(0)),
                alignment: None,
            };
            Task::new(description, Arc::new(|| {}))
        });
        let tasks = tasks.collect();
        Self { program, tasks }
    }

    /// Steps tasks at random; triggers a checkpoint after so many steps and returns it, or else the one of the end.
    fn run(&mut self, random: &mut Random, trigger: Option<(u64, Barrier)>) -> Checkpoint {
        let (mut cut, mut finished, mut checkpoint) = (0, 0, Checkpoint::default());
        let mut trigger = trigger;
        for step in 0.. {
            if let Some((_, barrier)) = trigger.take_if(|(after, _)| *after <= step) {
                let sources = self.tasks.iter().filter(|task| task.subtask().vertex.0 == NUMBERS);
                sources.for_each(|task| task.handle().trigger(barrier.clone()));
            }
            // The first tasks run more often than the last: queues fill.
            let at = (random.below(self.tasks.len() as u64) * random.below(3) / 2) as usize % self.tasks.len();
            let at = if random.below(2) == 0 { at } else { random.below(self.tasks.len() as u64) as usize };
            self.tasks[at].step(Timestamp(step));
            for event in self.tasks[at].take_events() {
                match event {
                    TaskEvent::Snapshot(snapshot) => {
                        cut += 1;
                        checkpoint.take(snapshot, &self.program.graph);
                    }
                    TaskEvent::Finished => finished += 1,
                    TaskEvent::Running => {}
                    other => panic!("{other:?}"),
                }
            }
            if cut == self.tasks.len() {
                return checkpoint;
            }
            if finished == self.tasks.len() && trigger.is_none() {
                finished = 0;
                trigger = Some((0, barrier(100)));
            }
        }
        checkpoint
    }
}

impl Checkpoint {
    fn take(&mut self, mut snapshot: TaskSnapshot, graph: &JobGraph) {
        for share in std::mem::take(&mut snapshot.in_flight) {
            let bytes = share.encode().unwrap();
            let handle = share.handle(graph, 0, bytes.len() as u64, StateData::Inline { bytes });
            self.in_flight.push(handle.unwrap());
        }
        for (uid, state) in snapshot.write(&WriteOptions::default()).unwrap() {
            let all = self.states.entry(uid).or_default();
            let divided_into = Some(graph.max_parallelism);
            let restored = |piece| RestoredKeyed { divided_into, ..crate::testing::restored(piece) };
            all.keyed.extend(state.keyed.iter().map(restored));
            all.splits.extend(state.splits);
            all.operator.extend(state.operator.into_iter().map(|list| crate::operator::RestoredList {
                name: list.name,
                redistribution: list.redistribution,
                items: list.items,
            }));
        }
    }

    fn in_flight_of(&self, program: &Program, subtask: SubtaskId) -> Vec<RestoredChannel> {
        let parallelism = program.graph.vertices[subtask.vertex.0 as usize].parallelism;
        let mut own = Vec::new();
        for handle in &self.in_flight {
            let edges = 0..program.graph.edges.len();
            let edge = edges.into_iter().find(|edge| program.graph.edge_name(*edge).unwrap() == handle.edge).unwrap();
            let is_hash = matches!(handle.partitioning, Partitioning::Hash { .. });
            if program.graph.edges[edge].to != subtask.vertex
                || !(is_hash || handle.to.0 % parallelism == subtask.index.0)
            {
                continue;
            }
            let StateData::Inline { bytes } = &handle.data else { panic!("in a file") };
            own.push(in_flight::restore(handle, &bytes.clone().into(), program, subtask).unwrap());
        }
        own
    }

    /// Rows and sums over all keys at each input, and the total.
    fn sums(&self) -> ([(i64, i64); 2], i64) {
        let mut sums = [(0, 0); 2];
        for file in &self.states[&OperatorUid::from("sides")].keyed {
            for batch in read_keyed_state(in_memory(&file.bytes), usize::MAX).unwrap() {
                let sum = |column: usize| batch.column(column).as_primitive::<Int64Type>().values().iter().sum::<i64>();
                let side = &mut sums[usize::from(file.name == "second")];
                *side = (side.0 + sum(2), side.1 + sum(3));
            }
        }
        let totals = &self.states[&OperatorUid::from("total")].operator;
        (sums, totals.iter().flat_map(|list| &list.items).map(|item| item.as_i64().unwrap()).sum())
    }
}

#[test]
fn every_row_counts_once_at_each_input_whatever_the_mode_and_the_parallelism_after_a_restore() {
    let source = Numbers { splits: 3, rows: 4000, keys: 97 };
    let sum = 12_000 * 11_999 / 2;
    let unaligned = [0, 20].map(|after| Alignment::Unaligned { after: TimeSpan(after) });
    let modes = [Alignment::Aligned, unaligned[0], unaligned[1]];
    let (mut random, mut in_flight) = (Random(7), 0);
    for (mode, alignment) in modes.into_iter().enumerate() {
        for (after, before, then) in
            [(40, [1, 1, 1], [2, 1, 3]), (150, [2, 3, 2], [1, 1, 1]), (300, [3, 2, 4], [3, 2, 3])]
        {
            let mut job = Graph::new(program(&source, before), None);
            let barrier = Barrier { alignment, triggered_at: Timestamp(after), ..barrier(1) };
            let checkpoint = job.run(&mut random, Some((after, barrier)));
            if alignment == Alignment::Aligned {
                assert!(checkpoint.in_flight.is_empty());
            } else {
                let at_second = checkpoint.in_flight.iter().filter(|handle| handle.edge == "swap -> sides, input 1");
                in_flight += at_second.count();
            }
            for max_parallelism in [128, 96] {
                let mut program = program(&source, then);
                program.graph.max_parallelism = max_parallelism;
                let end = Graph::new(program, Some(&checkpoint)).run(&mut random, None);
                let how = format!("mode {mode} after {after} steps, {max_parallelism} key groups");
                assert_eq!(end.sums(), ([(12_000, sum); 2], sum), "{how}");
            }
        }
    }
    assert!(in_flight > 0, "nothing was in flight at the second input");
}

/// A source with one slow consumer keeps to its window on every edge, and stops for all.
#[test]
fn a_full_output_edge_stops_the_source_for_all_edges_but_no_barrier() {
    let edges = [Partitioning::Hash { keys: vec![0] }, Partitioning::Forward, Partitioning::Rebalance];
    let (outputs, inputs): (Vec<_>, Vec<_>) = (0..)
        .zip(edges)
        .map(|(edge, partitioning)| {
            let (output, input) = channel(ChannelId { edge, from: SubtaskIndex(0), to: SubtaskIndex(0) }, WINDOW);
            (EdgeOutput { partitioning, channels: vec![output] }, input)
        })
        .unzip();
    let program = source_program(Numbers { splits: 1, rows: 1_000_000, keys: 10 });
    let setup = Setup { vertex: 0, index: 0, parallelism: 1, program, inputs: Vec::new(), outputs, state: None };
    let mut task = task(setup);
    assert!(matches!(settle(&mut task, 0), Step::Blocked { .. }));
    let rows = |input: &InputChannel| {
        let frames = std::iter::from_fn(|| input.pop());
        frames.map(|numbered| if let Frame::Batch(batch) = numbered.frame { batch.len() } else { 0 }).sum::<usize>()
    };
    let first = rows(&inputs[0]);
    assert!((100..5000).contains(&first), "{first}");
    assert_eq!(rows(&inputs[1]), first);
    assert!(matches!(settle(&mut task, 0), Step::Blocked { .. }), "the third edge is still full");
    assert!(inputs[0].is_empty());
    task.handle().trigger(Barrier { alignment: Alignment::Unaligned { after: TimeSpan(0) }, ..barrier(1) });
    settle(&mut task, 0);
    assert_eq!(names(&task.take_events()), ["running", "snapshot"]);
    for input in &inputs {
        assert!(input.pop_overtaking().is_some());
    }
    assert_eq!(rows(&inputs[2]), first);
    settle(&mut task, 0);
    assert!(inputs.iter().all(|input| rows(input) > 0), "it goes on when there is room");
}
