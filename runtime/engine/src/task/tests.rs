//! Tasks stepped by hand, with real operators: cuts, back-pressure, lingering rows, ends, restores.

mod event_time;
mod graphs;
mod modes;
mod worked;

use super::*;
use crate::batch::Batch;
use crate::channel::{ChannelId, Frame, OutputChannel, QueueGauge, channel};
use crate::operator::{OperatorState, WriteOptions};
use crate::state::file::read_keyed_state;
use crate::testing::connectors::{Kept, Numbers, aggregate_program, numbers, source_program};
use crate::testing::{Random, View, lines};
use sluice_protocol::graph::Partitioning;
use sluice_protocol::{SubtaskIndex, VertexId};
use std::sync::atomic::Ordering;

fn id(from: u32, to: u32) -> ChannelId {
    ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(to) }
}

fn barrier(checkpoint: u64) -> Barrier {
    Barrier::aligned(CheckpointId(checkpoint), Timestamp(0), None)
}

struct Setup {
    vertex: u32,
    index: u32,
    parallelism: u32,
    program: VertexProgram,
    inputs: Vec<InputChannel>,
    outputs: Vec<EdgeOutput>,
    state: Option<BTreeMap<OperatorUid, RestoredState>>,
}

fn task(setup: Setup) -> Task {
    Task::new(describe(setup), Arc::new(|| {}))
}

fn describe(setup: Setup) -> TaskDescription {
    TaskDescription {
        subtask: SubtaskId { vertex: VertexId(setup.vertex), index: SubtaskIndex(setup.index) },
        identity: crate::operator::TaskIdentity::default(),
        parallelism: setup.parallelism,
        max_parallelism: 128,
        program: setup.program,
        inputs: setup.inputs,
        outputs: setup.outputs,
        state: setup.state.unwrap_or_default(),
        in_flight: Vec::new(),
        options: TaskOptions { batch_rows: 100, buffer_timeout: TimeSpan(50), ..TaskOptions::default() },
        state_backend: crate::state::StateBackend::default(),
        clock: Arc::new(|| Timestamp(0)),
        job_clock: Arc::new(|| Timestamp(0)),
        alignment: None,
    }
}

fn aggregate_task(kept: &Arc<Kept>, channels: u32) -> (Task, Vec<OutputChannel>) {
    let (outputs, inputs) = (0..channels).map(|from| channel(id(from, 0), 1 << 20)).unzip();
    let program = aggregate_program(kept);
    let setup = Setup { vertex: 1, index: 0, parallelism: 1, program, inputs, outputs: Vec::new(), state: None };
    (task(setup), outputs)
}

fn source_task(source: Numbers, window: usize) -> (Task, InputChannel) {
    let (output, input) = channel(id(0, 0), window);
    let outputs = vec![EdgeOutput { partitioning: Partitioning::Forward, channels: vec![output] }];
    let program = source_program(source);
    let setup = Setup { vertex: 0, index: 0, parallelism: 1, program, inputs: Vec::new(), outputs, state: None };
    (task(setup), input)
}

/// Steps until there is nothing to do; returns the last step.
fn settle(task: &mut Task, now: u64) -> Step {
    loop {
        let step = task.step(Timestamp(now));
        if step != Step::Worked {
            return step;
        }
    }
}

fn names(events: &[TaskEvent]) -> Vec<&'static str> {
    events
        .iter()
        .map(|event| match event {
            TaskEvent::Running => "running",
            TaskEvent::Finished => "finished",
            TaskEvent::Snapshot(_) => "snapshot",
            TaskEvent::Declined { .. } => "declined",
            TaskEvent::Failed(_) => "failed",
        })
        .collect()
}

fn snapshots(events: Vec<TaskEvent>) -> Vec<TaskSnapshot> {
    let snapshot = |event| if let TaskEvent::Snapshot(snapshot) = event { Some(snapshot) } else { None };
    events.into_iter().filter_map(snapshot).collect()
}

/// Key, count and sum of every group in a snapshot of an aggregate task.
fn groups(snapshot: TaskSnapshot) -> Vec<String> {
    let states = snapshot.write(&WriteOptions::default()).unwrap();
    let mut groups = Vec::new();
    for piece in states.iter().flat_map(|(_, state)| &state.keyed) {
        for batch in read_keyed_state(&piece.bytes.clone().into(), usize::MAX).unwrap() {
            groups.extend(lines(&Batch::inserts(batch.project(&[1, 2, 3]).unwrap())));
        }
    }
    groups.sort();
    groups
}

fn in_memory(bytes: &crate::state::StateBytes) -> &bytes::Bytes {
    let crate::state::StateBytes::Memory(bytes) = bytes else { panic!("nothing is spooled here") };
    bytes
}

fn row(key: i64, value: i64) -> Frame {
    let keys: arrow::array::ArrayRef = Arc::new(arrow::array::Int64Array::from(vec![key]));
    let values: arrow::array::ArrayRef = Arc::new(arrow::array::Int64Array::from(vec![value]));
    let schema = crate::testing::connectors::schema();
    Frame::Batch(Batch::inserts(arrow::array::RecordBatch::try_new(schema, vec![keys, values]).unwrap()))
}

#[test]
fn a_cut_holds_the_rows_before_the_barrier_on_each_input_and_no_others() {
    let kept = Arc::default();
    let (mut task, inputs) = aggregate_task(&kept, 2);
    for frame in [row(1, 10), Frame::Barrier(barrier(1)), row(1, 1000)] {
        inputs[0].push(frame);
    }
    inputs[1].push(row(1, 20));
    settle(&mut task, 5);
    inputs[1].push(row(2, 30));
    settle(&mut task, 6);
    assert_eq!(names(&task.take_events()), ["running"]);
    inputs[1].push(Frame::Barrier(barrier(1)));
    inputs[1].push(row(2, 5000));
    settle(&mut task, 9);
    let snapshot = snapshots(task.take_events()).remove(0);
    assert_eq!((snapshot.metrics.start_delay_ms, snapshot.metrics.alignment_ms), (5, 4));
    assert_eq!(groups(snapshot), ["+I 1 2 30", "+I 2 1 30"]);
    let mut view = View::default();
    view.apply_all(&kept.take());
    assert_eq!(view.0["1"], ["3", "1030"]);
    assert_eq!(view.0["2"], ["2", "5030"]);
}

#[test]
fn a_source_cuts_between_two_batches_and_its_position_counts_what_was_handed_out() {
    let (mut task, output) = source_task(Numbers { splits: 1, rows: 1000, keys: 10 }, 1 << 20);
    task.step(Timestamp(0));
    for _ in 0..3 {
        assert_eq!(task.step(Timestamp(0)), Step::Worked);
    }
    task.handle().trigger(barrier(7));
    settle(&mut task, 0);
    let events = task.take_events();
    assert_eq!(names(&events), ["running", "snapshot", "finished"]);
    let states = snapshots(events).remove(0).write(&WriteOptions::default()).unwrap();
    assert_eq!(states[0].0.as_str(), "numbers");
    assert_eq!(states[0].1.splits[0].state, 300);
    let frames: Vec<Frame> = std::iter::from_fn(|| output.pop()).map(|numbered| numbered.frame).collect();
    let before: usize =
        frames.iter().map_while(|frame| if let Frame::Batch(batch) = frame { Some(batch.len()) } else { None }).sum();
    assert_eq!(before, 300, "lingering rows are flushed before the barrier, and none follow");
    assert!(matches!(frames.last(), Some(Frame::EndOfInput)));
    task.handle().trigger(barrier(8));
    settle(&mut task, 0);
    let states = snapshots(task.take_events()).remove(0).write(&WriteOptions::default()).unwrap();
    assert_eq!(states[0].1.splits[0].state, 1000, "a finished task takes part in checkpoints");
    assert!(matches!(output.pop().unwrap().frame, Frame::Barrier(found) if found == barrier(8)));
}

#[test]
fn a_full_output_stops_the_source_but_not_a_barrier() {
    let (mut task, output) = source_task(Numbers { splits: 1, rows: 1_000_000, keys: 10 }, 40_000);
    assert!(matches!(settle(&mut task, 0), Step::Blocked { .. }));
    let queued = output.queued_bytes();
    assert!(queued < 80_000, "{queued}");
    assert_eq!(task.metrics().outputs.iter().map(QueueGauge::queued_bytes).sum::<u64>(), queued);
    task.handle().trigger(barrier(1));
    assert!(matches!(settle(&mut task, 0), Step::Blocked { .. }));
    assert_eq!(names(&task.take_events()), ["running", "snapshot"]);
    while !matches!(output.pop().unwrap().frame, Frame::Barrier(_)) {}
    assert!(output.is_empty());
    assert!(matches!(settle(&mut task, 500), Step::Blocked { .. }), "it goes on when there is room");
    settle(&mut task, 700);
    let metrics = task.metrics();
    assert_eq!(metrics.back_pressured_ms.load(Ordering::Relaxed), 700);
    assert!(metrics.rows_in.load(Ordering::Relaxed) > 2000);
    let [rows, read, written] =
        [&metrics.rows_in, &metrics.bytes_in, &metrics.bytes_out].map(|count| count.load(Ordering::Relaxed));
    assert!(read >= rows * 16, "{read} bytes of {rows} rows of two BIGINTs");
    assert_eq!(written, read, "the source's rows go on as they are");
}

#[test]
fn few_rows_wait_for_the_buffer_timeout() {
    let (output, input) = channel(id(0, 0), 1 << 20);
    let (sender, receiver) = channel(id(0, 0), 1 << 20);
    let outputs = vec![EdgeOutput { partitioning: Partitioning::Forward, channels: vec![output] }];
    let program = VertexProgram { sink: None, ..aggregate_program(&Arc::default()) };
    let inputs = vec![receiver];
    let mut task = task(Setup { vertex: 1, index: 0, parallelism: 1, program, inputs, outputs, state: None });
    sender.push(row(1, 1));
    assert_eq!(settle(&mut task, 1000), Step::Idle { until: Some(Timestamp(1050)) });
    sender.push(row(1, 1));
    assert_eq!(settle(&mut task, 1049), Step::Idle { until: Some(Timestamp(1050)) });
    assert!(input.is_empty());
    assert_eq!(settle(&mut task, 1050), Step::Idle { until: None });
    let Frame::Batch(batch) = input.pop().unwrap().frame else { panic!("no rows") };
    assert_eq!(lines(&batch), ["+I 1 1 1", "-U 1 1 1", "+U 1 2 2"]);
}

#[test]
fn a_sink_flushes_before_the_cut_and_meanwhile_nothing_is_read() {
    let kept: Arc<Kept> = Arc::default();
    let (mut task, inputs) = aggregate_task(&kept, 1);
    kept.in_flight.store(true, Ordering::SeqCst);
    for frame in [row(1, 1), Frame::Barrier(barrier(1)), row(2, 2)] {
        inputs[0].push(frame);
    }
    assert!(matches!(settle(&mut task, 0), Step::Blocked { .. }));
    assert_eq!(names(&task.take_events()), ["running"]);
    assert_eq!(kept.take().0.len(), 1);
    kept.in_flight.store(false, Ordering::SeqCst);
    assert!(matches!(settle(&mut task, 30), Step::Idle { .. }));
    let snapshot = snapshots(task.take_events()).remove(0);
    assert_eq!(snapshot.metrics.sync_ms, 30);
    assert_eq!(groups(snapshot), ["+I 1 1 1"]);
    assert_eq!(kept.take().0.len(), 1);
}

#[test]
fn a_sink_without_room_stops_the_reading() {
    let kept: Arc<Kept> = Arc::default();
    let (mut task, inputs) = aggregate_task(&kept, 1);
    settle(&mut task, 0);
    kept.full.store(true, Ordering::SeqCst);
    inputs[0].push(row(1, 1));
    assert!(matches!(settle(&mut task, 0), Step::Blocked { .. }));
    assert!(!inputs[0].has_room() || kept.take().0.is_empty());
    kept.full.store(false, Ordering::SeqCst);
    settle(&mut task, 0);
    assert_eq!(kept.take().0.len(), 1);
}

#[test]
fn an_aborted_checkpoint_passes_on_its_barrier_but_freezes_nothing() {
    let (mut task, output) = source_task(Numbers { splits: 1, rows: 10, keys: 10 }, 1 << 20);
    settle(&mut task, 0);
    task.handle().checkpoint_aborted(CheckpointId(3));
    task.handle().trigger(barrier(3));
    task.handle().trigger(barrier(4));
    settle(&mut task, 0);
    let cut: Vec<u64> = snapshots(task.take_events()).iter().map(|snapshot| snapshot.barrier.checkpoint.0).collect();
    assert_eq!(cut, [4]);
    let barriers = std::iter::from_fn(|| output.pop()).filter(|numbered| matches!(numbered.frame, Frame::Barrier(_)));
    assert_eq!(barriers.count(), 2);
}

#[test]
fn a_barrier_that_is_overtaken_is_declined() {
    let kept = Arc::default();
    let (mut task, inputs) = aggregate_task(&kept, 2);
    inputs[0].push(Frame::Barrier(barrier(1)));
    settle(&mut task, 0);
    inputs[1].push(Frame::Barrier(barrier(2)));
    inputs[0].push(Frame::Barrier(barrier(2)));
    settle(&mut task, 0);
    let events = task.take_events();
    assert!(matches!(events[1], TaskEvent::Declined { checkpoint: CheckpointId(1), .. }));
    assert_eq!(names(&events), ["running", "declined", "snapshot"]);
}

#[test]
fn a_failure_and_a_cancel_end_a_task() {
    let (sender, receiver) = channel(id(0, 0), 1 << 20);
    let program = aggregate_program(&Arc::default());
    let inputs = vec![receiver];
    let setup = Setup { vertex: 1, index: 1, parallelism: 2, program, inputs, outputs: Vec::new(), state: None };
    let mut failing = task(setup);
    sender.push(Frame::Batch(Batch::inserts(numbers(0..100, 100))));
    assert_eq!(settle(&mut failing, 0), Step::Ended);
    assert_eq!(names(&failing.take_events()), ["running", "failed"], "rows of another subtask's key groups");
    let (mut cancelled, _) = source_task(Numbers { splits: 1, rows: 10, keys: 10 }, 1 << 20);
    cancelled.step(Timestamp(0));
    cancelled.handle().cancel();
    assert_eq!(cancelled.step(Timestamp(0)), Step::Ended);
    assert_eq!(names(&cancelled.take_events()), ["running"]);
}

/// A job of sources and aggregates joined by a hash edge, stepped in random order.
struct Job {
    tasks: Vec<Task>,
    kept: Arc<Kept>,
    sources: usize,
}

type States = BTreeMap<OperatorUid, RestoredState>;

impl Job {
    fn new(source: &Numbers, sources: u32, aggregates: u32, restore: Option<&States>) -> Self {
        let kept: Arc<Kept> = Arc::default();
        let mut tasks = Vec::new();
        let mut inputs: Vec<Vec<InputChannel>> = (0..aggregates).map(|_| Vec::new()).collect();
        for index in 0..sources {
            let mut channels = Vec::new();
            for to in 0..aggregates {
                let (output, input) = channel(id(index, to), 20_000);
                channels.push(output);
                inputs[to as usize].push(input);
            }
            let outputs = vec![EdgeOutput { partitioning: Partitioning::Hash { keys: vec![0] }, channels }];
            let program = source_program(source.clone());
            let state = restore.cloned();
            let inputs = Vec::new();
            tasks.push(task(Setup { vertex: 0, index, parallelism: sources, program, inputs, outputs, state }));
        }
        for (index, inputs) in (0..aggregates).zip(inputs) {
            let (program, state, outputs) = (aggregate_program(&kept), restore.cloned(), Vec::new());
            tasks.push(task(Setup { vertex: 1, index, parallelism: aggregates, program, inputs, outputs, state }));
        }
        Self { tasks, kept, sources: sources as usize }
    }

    /// Steps tasks at random; triggers a checkpoint after so many steps. Returns its states once all have cut.
    fn run(&mut self, random: &mut Random, trigger_after: Option<u32>, view: &mut View) -> Option<States> {
        let mut states = States::new();
        let (mut cut, mut finished, mut at_cut) = (0, 0, Vec::new());
        for step in 0_u32.. {
            if Some(step) == trigger_after {
                self.tasks[..self.sources].iter().for_each(|task| task.handle().trigger(barrier(1)));
            }
            let at = random.below(self.tasks.len() as u64) as usize;
            self.tasks[at].step(Timestamp(u64::from(step)));
            for event in self.tasks[at].take_events() {
                match event {
                    TaskEvent::Snapshot(snapshot) => {
                        collect(snapshot, &mut states);
                        cut += 1;
                        at_cut.push(at);
                    }
                    TaskEvent::Finished => finished += 1,
                    TaskEvent::Running => {}
                    other => panic!("{other:?}"),
                }
            }
            // Rows of an aggregate that has cut already belong to the time after the checkpoint.
            let kept = self.kept.take();
            if trigger_after.is_none() || !at_cut.contains(&at) {
                view.apply_all(&kept);
            }
            if cut == self.tasks.len() {
                return Some(states);
            }
            if trigger_after.is_none() && finished == self.tasks.len() {
                return None;
            }
        }
        None
    }
}

fn collect(snapshot: TaskSnapshot, states: &mut States) {
    for (uid, OperatorState { keyed, splits, .. }) in snapshot.write(&WriteOptions::default()).unwrap() {
        let state = states.entry(uid).or_default();
        state.keyed.extend(keyed.iter().map(crate::testing::restored));
        state.splits.extend(splits);
    }
}

/// A bounded source would otherwise take what it finds for what was read before, and read nothing.
#[test]
fn a_source_that_is_new_in_a_restored_program_is_told_so() {
    let (output, input) = channel(id(0, 0), 1 << 20);
    let outputs = vec![EdgeOutput { partitioning: Partitioning::Forward, channels: vec![output] }];
    let program = source_program(Numbers { splits: 1, rows: 10, keys: 10 });
    let state = Some(BTreeMap::from([("another".into(), RestoredState::default())]));
    let mut task = task(Setup { vertex: 0, index: 0, parallelism: 1, program, inputs: Vec::new(), outputs, state });
    settle(&mut task, 0);
    assert_eq!(names(&task.take_events()), ["running", "finished"]);
    assert!(!input.is_empty());
}

#[test]
fn a_job_killed_after_any_cut_and_restored_at_another_parallelism_counts_every_row_once() {
    let source = Numbers { splits: 3, rows: 7000, keys: 111 };
    let mut expected: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for n in 0..21_000_i64 {
        let group = expected.entry((n * 7919 % 111).to_string()).or_default();
        *group = (group.0 + 1, group.1 + n);
    }
    let expected: BTreeMap<String, Vec<String>> =
        expected.into_iter().map(|(key, (count, sum))| (key, vec![count.to_string(), sum.to_string()])).collect();
    let mut random = Random(99);
    for (trigger, before, after) in
        [(0, (1, 1), (2, 2)), (100, (2, 2), (1, 3)), (300, (3, 2), (2, 4)), (500, (2, 3), (3, 1))]
    {
        let mut view = View::default();
        let states = Job::new(&source, before.0, before.1, None).run(&mut random, Some(trigger), &mut view);
        let mut restored = Job::new(&source, after.0, after.1, states.as_ref());
        restored.run(&mut random, None, &mut view);
        assert_eq!(view.0, expected, "trigger after {trigger} steps");
    }
}
