//! A worked example of alignment: two sources of lines → flat map into digits → by parity → two sums.
//!
//! ```text
//! source A:  23 | 85          A→even: 2 | 8      A→odd: 3 | 5
//! source B:  41  6 | 7        B→even: 4 6 |      B→odd: 1 | 7
//! ```
//!
//! The barrier of A comes long before that of B. Each mode runs the same script; the content of channels, sums and
//! checkpoint is compared at each step, and the sums at the end after a restore of that checkpoint.

use super::*;
use crate::in_flight::{InFlight, RestoredChannel};
use crate::operator::{Collector, Operator, OperatorFactory};
use crate::source::SourceFactory;
use crate::testing::connectors::schema;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{Int64Type, SchemaRef};
use sluice_protocol::graph::{Edge, JobGraph, OperatorInfo, OperatorKind, Vertex};
use sluice_protocol::key_group;
use sluice_protocol::message::Alignment;
use sluice_protocol::state::SplitState;
use std::sync::atomic::AtomicUsize;

const LINES: [&[i64]; 2] = [&[23, 85], &[41, 6, 7]];

/// Reads line after line, as far as the script allows.
struct Lines(Arc<[AtomicUsize; 2]>);

struct LinesReader {
    allowed: Arc<[AtomicUsize; 2]>,
    split: usize,
    position: usize,
}

fn rows(pairs: Vec<(i64, i64)>) -> RecordBatch {
    let (keys, values): (Vec<i64>, Vec<i64>) = pairs.into_iter().unzip();
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(keys)), Arc::new(Int64Array::from(values))];
    RecordBatch::try_new(schema(), columns).unwrap()
}

impl Source for LinesReader {
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError> {
        self.split = context.operator.subtask.0 as usize;
        let own = state.splits.iter().find(|state| state.split == self.split.to_string());
        self.position = own.map_or(0, |state| state.state.as_u64().unwrap() as usize);
        Ok(())
    }

    fn poll(&mut self, _: usize) -> Result<SourcePoll, TaskError> {
        if self.position >= self.allowed[self.split].load(Ordering::SeqCst) {
            return Ok(SourcePoll::Pending);
        }
        self.position += 1;
        Ok(SourcePoll::Batch(Batch::inserts(rows(vec![(0, LINES[self.split][self.position - 1])]))))
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        Ok(vec![SplitState { split: self.split.to_string(), state: self.position.into() }])
    }
}

impl SourceFactory for Lines {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        Ok(Box::new(LinesReader { allowed: Arc::clone(&self.0), split: 0, position: 0 }))
    }

    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn owner(&self, split: &str, _: u32) -> SubtaskIndex {
        SubtaskIndex(split.parse().unwrap())
    }
}

/// A line becomes its digits, each with the key of its parity.
struct Digits {
    keys: [i64; 2],
}

impl Operator for Digits {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        for line in batch.rows.column(1).as_primitive::<Int64Type>().values() {
            let digits = line.to_string().into_bytes().into_iter().map(|digit| i64::from(digit - b'0'));
            let keyed = digits.map(|digit| (self.keys[(digit % 2) as usize], digit));
            out.collect(Batch::inserts(rows(keyed.collect())));
        }
        Ok(())
    }
}

struct DigitsFactory([i64; 2]);

impl OperatorFactory for DigitsFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(Digits { keys: self.0 }))
    }

    fn output_schema(&self) -> SchemaRef {
        schema()
    }
}

/// A key that the first sum owns, and one that the second owns.
fn keys() -> [i64; 2] {
    let owner = |key: &i64| {
        let group = key_group::of_hash(key_group::hash(&key_group::encode::bigint(*key)), 128);
        key_group::owner(group, 2, 128).0
    };
    [0, 1].map(|sum| (0..).find(|key| owner(key) == sum).unwrap())
}

fn graph() -> JobGraph {
    let operator = |uid: &str, kind| OperatorInfo { uid: uid.into(), kind, description: uid.to_owned() };
    let lines = vec![operator("lines", OperatorKind::Source), operator("digits", OperatorKind::Stateless)];
    let sums = vec![operator("groups", OperatorKind::Keyed), operator("kept", OperatorKind::Sink)];
    let vertex = |id, operators| Vertex { id: VertexId(id), name: String::new(), parallelism: 2, operators };
    let edge =
        Edge { from: VertexId(0), to: VertexId(1), partitioning: Partitioning::Hash { keys: vec![0] }, input: 0 };
    JobGraph { vertices: vec![vertex(0, lines), vertex(1, sums)], edges: vec![edge], max_parallelism: 128 }
}

/// The checkpoint, as a restore finds it.
#[derive(Default)]
struct Checkpoint {
    states: States,
    in_flight: Vec<InFlight>,
}

/// The four tasks: A, B, even, odd.
struct Example {
    tasks: Vec<Task>,
    /// By producer, then consumer.
    channels: Vec<InputChannel>,
    kept: [Arc<Kept>; 2],
    sums: [View; 2],
    allowed: Arc<[AtomicUsize; 2]>,
    snapshots: Vec<TaskSnapshot>,
}

const A: usize = 0;
const B: usize = 1;
const EVEN: usize = 2;
const ODD: usize = 3;

impl Example {
    fn new(restore: Option<Checkpoint>) -> Self {
        let allowed: Arc<[AtomicUsize; 2]> = Arc::default();
        let lines: Arc<dyn SourceFactory> = Arc::new(Lines(Arc::clone(&allowed)));
        let digits: Arc<dyn OperatorFactory> = Arc::new(DigitsFactory(keys()));
        let source = VertexProgram {
            source: Some(("lines".into(), lines)),
            operators: vec![("digits".into(), digits)],
            sink: None,
            output_schema: schema(),
        };
        let kept: [Arc<Kept>; 2] = Default::default();
        let sums = [0, 1].map(|index: usize| aggregate_program(&kept[index]));
        let pairs = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(from, to)| channel(id(from, to), 1 << 20));
        let channels = pairs.iter().map(|(_, input)| input.watch()).collect();
        let [(ae, ea), (ao, oa), (be, eb), (bo, ob)] = pairs;
        let edge = |channels| vec![EdgeOutput { partitioning: Partitioning::Hash { keys: vec![0] }, channels }];
        let Checkpoint { states, in_flight } = restore.unwrap_or_default();
        let make = |vertex, index, program: &VertexProgram, inputs, outputs| {
            let to_it = in_flight.iter().filter(|share| vertex == 1 && share.channel.to.0 == index);
            let read_back = |share: &InFlight| RestoredChannel {
                consumer: share.channel.to,
                channel: share.channel,
                producers: 0..2,
                input: 0,
                age: share.age,
                first: share.first,
                frames: share.frames.iter().cloned().collect(),
            };
            let description = TaskDescription {
                subtask: SubtaskId { vertex: VertexId(vertex), index: SubtaskIndex(index) },
                identity: crate::operator::TaskIdentity::default(),
                parallelism: 2,
                max_parallelism: 128,
                program: program.clone(),
                inputs,
                outputs,
                state: states.clone(),
                in_flight: to_it.map(read_back).collect(),
                options: TaskOptions { buffer_timeout: TimeSpan(0), ..TaskOptions::default() },
                state_backend: crate::state::StateBackend::default(),
                clock: Arc::new(|| Timestamp(0)),
                job_clock: Arc::new(|| Timestamp(0)),
                alignment: None,
            };
            Task::new(description, Arc::new(|| {}))
        };
        let tasks = vec![
            make(0, 0, &source, Vec::new(), edge(vec![ae, ao])),
            make(0, 1, &source, Vec::new(), edge(vec![be, bo])),
            make(1, 0, &sums[0], vec![ea, eb], Vec::new()),
            make(1, 1, &sums[1], vec![oa, ob], Vec::new()),
        ];
        let mut example = Self { tasks, channels, kept, sums: Default::default(), allowed, snapshots: Vec::new() };
        [A, B, EVEN, ODD].into_iter().for_each(|task| example.step(task));
        example
    }

    /// Steps a task until it has nothing to do.
    fn step(&mut self, task: usize) {
        // The second time sends on what lingered.
        settle(&mut self.tasks[task], 10);
        settle(&mut self.tasks[task], 10);
        self.snapshots.extend(snapshots(self.tasks[task].take_events()));
    }

    /// The source reads its next line.
    fn emit(&mut self, source: usize) {
        self.allowed[source].fetch_add(1, Ordering::SeqCst);
        self.step(source);
    }

    fn trigger(&mut self, source: usize, checkpoint: u64, alignment: Alignment) {
        self.tasks[source].handle().trigger(Barrier { alignment, ..barrier(checkpoint) });
        self.step(source);
    }

    /// What is queued from A and from B to a sum: `2 | 8`.
    fn queued(&self, sum: usize) -> [String; 2] {
        [A, B].map(|source| {
            let queue = &self.channels[source * 2 + sum - EVEN];
            let place = [1, 2].into_iter().find_map(|checkpoint| queue.place_of(CheckpointId(checkpoint)));
            let queued = |before: u64| -> Vec<String> {
                queue
                    .queued_frames(before)
                    .iter()
                    .filter_map(Frame::batch)
                    .flat_map(digits)
                    .map(|digit| digit.to_string())
                    .collect()
            };
            let (before, all) = (queued(place.unwrap_or(u64::MAX)), queued(u64::MAX));
            let bar = place.map(|_| "|".to_owned());
            let after = all[before.len()..].to_vec();
            before.into_iter().chain(bar).chain(after).collect::<Vec<_>>().join(" ")
        })
    }

    /// How many digits a sum has counted, and their sum.
    fn sum(&mut self, sum: usize) -> [String; 2] {
        let index = sum - EVEN;
        self.sums[index].apply_all(&self.kept[index].take());
        let found = self.sums[index].0.values().next().cloned().unwrap_or_else(|| vec!["0".into(), "0".into()]);
        found.try_into().unwrap()
    }

    /// The snapshot of a task: its state, and what was in flight from A and from B.
    fn cut(&mut self, task: usize, into: &mut Checkpoint) -> (Vec<String>, [String; 2]) {
        let subtask = self.tasks[task].subtask();
        let at = self.snapshots.iter().position(|snapshot| snapshot.subtask == subtask).expect("it has cut");
        let mut snapshot = self.snapshots.remove(at);
        let in_flight = std::mem::take(&mut snapshot.in_flight);
        let from = |source: usize| {
            let shares = in_flight.iter().filter(|share| share.channel.from.0 as usize == source);
            let digits = shares.flat_map(|share| share.batches()).flat_map(digits);
            digits.map(|digit| digit.to_string()).collect::<Vec<_>>().join(" ")
        };
        let in_flight_digits = [A, B].map(from);
        let mut states = States::new();
        collect(snapshot, &mut states);
        let state = states.values().flat_map(|state| {
            let splits = state.splits.iter().map(|split| split.state.to_string());
            splits.chain(state.keyed.iter().flat_map(|keyed| count_and_sum_of(in_memory(&keyed.bytes))))
        });
        let state = state.collect();
        for (uid, of_task) in states {
            let all = into.states.entry(uid).or_default();
            all.keyed.extend(of_task.keyed);
            all.splits.extend(of_task.splits);
        }
        into.in_flight.extend(in_flight);
        (state, in_flight_digits)
    }
}

fn digits(batch: &Batch) -> Vec<i64> {
    batch.rows.column(1).as_primitive::<Int64Type>().values().to_vec()
}

fn count_and_sum_of(bytes: &bytes::Bytes) -> Vec<String> {
    let batches = read_keyed_state(bytes, usize::MAX).unwrap();
    let groups = batches.iter().flat_map(|batch| lines(&Batch::inserts(batch.project(&[2, 3]).unwrap())));
    groups.map(|line| line.trim_start_matches("+I ").to_owned()).collect()
}

/// What differs between the modes.
struct Expected {
    alignment: Alignment,
    /// Even digits that were read, and what waits, after the barrier of A has come.
    first: ([&'static str; 2], [&'static str; 2]),
    /// The same after another digit of B.
    second: [&'static str; 2],
    /// State and digits in flight of the even sum in the checkpoint.
    even: (&'static [&'static str], [&'static str; 2]),
    odd: (&'static [&'static str], [&'static str; 2]),
    /// The sums after a restore and the rest of the input.
    restored: [&'static str; 2],
}

fn run(expected: &Expected) {
    let mut job = Example::new(None);
    // Lines arrive; nobody has read them.
    job.emit(A);
    job.emit(B);
    assert_eq!((job.queued(EVEN), job.queued(ODD)), (["2", "4"].map(Into::into), ["3", "1"].map(Into::into)));
    // The barrier reaches A alone, and A goes on.
    job.trigger(A, 1, expected.alignment);
    job.emit(A);
    assert_eq!(job.queued(EVEN), ["2 | 8", "4"]);
    assert_eq!(job.queued(ODD), ["3 | 5", "1"]);
    // The first barrier at the even sum.
    job.step(EVEN);
    assert_eq!(job.sum(EVEN), expected.first.0);
    assert_eq!(job.queued(EVEN), expected.first.1);
    assert!(job.snapshots.iter().all(|snapshot| snapshot.subtask.vertex == VertexId(0)), "the cut is not complete");
    // A row of the other input before its barrier.
    job.emit(B);
    job.step(EVEN);
    assert_eq!(job.sum(EVEN), expected.second);
    // The barrier reaches B, which goes on.
    job.trigger(B, 1, expected.alignment);
    job.emit(B);
    assert_eq!(job.queued(EVEN)[1], "|");
    assert_eq!(job.queued(ODD), ["3 | 5", "1 | 7"]);
    job.step(EVEN);
    job.step(ODD);
    // Everything has been read, whatever the mode.
    assert_eq!(job.sum(EVEN), ["4", "20"]);
    assert_eq!(job.sum(ODD), ["4", "16"]);
    // The checkpoint: positions behind 23 and behind 6, sums, and what was in flight.
    let mut checkpoint = Checkpoint::default();
    assert_eq!(job.cut(A, &mut checkpoint).0, ["1"]);
    assert_eq!(job.cut(B, &mut checkpoint).0, ["2"]);
    for (task, expected) in [(EVEN, &expected.even), (ODD, &expected.odd)] {
        let (state, in_flight) = job.cut(task, &mut checkpoint);
        assert_eq!(state, expected.0);
        assert_eq!(in_flight, expected.1);
    }
    drop(job);
    restore(checkpoint, expected.restored);
}

/// The job fails, begins again from the checkpoint, and reads to the end.
fn restore(checkpoint: Checkpoint, expected: [&str; 2]) {
    for share in &checkpoint.in_flight {
        let bytes = share.encode().unwrap();
        let handle = share.handle(&graph(), 0, bytes.len() as u64, sluice_protocol::state::StateData::Inline { bytes });
        assert_eq!(handle.unwrap().edge, "digits -> groups");
    }
    let mut job = Example::new(Some(checkpoint));
    for source in [A, B] {
        job.allowed[source].store(LINES[source].len(), Ordering::SeqCst);
        job.step(source);
        job.trigger(source, 2, Alignment::Aligned);
    }
    let mut end = Checkpoint::default();
    for (task, expected) in [EVEN, ODD].into_iter().zip(expected) {
        job.step(task);
        assert_eq!(job.cut(task, &mut end).0, [expected]);
    }
}

#[test]
fn aligned_a_row_behind_the_first_barrier_waits_and_counts_once() {
    run(&Expected {
        alignment: Alignment::Aligned,
        first: (["2", "6"], ["8", ""]),
        second: ["3", "12"],
        even: (&["3 12"], ["", ""]),
        odd: (&["2 4"], ["", ""]),
        restored: ["4 20", "4 16"],
    });
}

#[test]
fn at_least_once_a_row_behind_the_first_barrier_is_read_and_counts_twice_after_a_restore() {
    run(&Expected {
        alignment: Alignment::AtLeastOnce,
        first: (["3", "14"], ["", ""]),
        second: ["4", "20"],
        even: (&["4 20"], ["", ""]),
        odd: (&["2 4"], ["", ""]),
        // The 8, which A emits again.
        restored: ["5 28", "4 16"],
    });
}

#[test]
fn unaligned_the_first_barrier_cuts_and_rows_before_the_barriers_are_in_flight() {
    run(&Expected {
        alignment: Alignment::Unaligned { after: TimeSpan(0) },
        first: (["3", "14"], ["", ""]),
        second: ["4", "20"],
        even: (&[], ["2", "4 6"]),
        odd: (&[], ["3", "1"]),
        restored: ["4 20", "4 16"],
    });
}

#[test]
fn unaligned_after_a_timeout_that_passes_rows_that_were_read_count_and_the_rest_is_in_flight() {
    // The trigger was at 0, tasks are stepped at 10: the time is up from the beginning.
    run(&Expected {
        alignment: Alignment::Unaligned { after: TimeSpan(5) },
        first: (["3", "14"], ["", ""]),
        second: ["4", "20"],
        even: (&[], ["2", "4 6"]),
        odd: (&[], ["3", "1"]),
        restored: ["4 20", "4 16"],
    });
}
