//! Barriers that overtake, with sinks and outputs that are stuck; barriers with which a job ends.

use super::*;
use crate::channel::sending_channel;
use crate::in_flight::InFlight;
use sluice_protocol::ledger::Ends;
use sluice_protocol::message::Alignment;

fn overtaking(checkpoint: u64, after: u64) -> Barrier {
    Barrier { alignment: Alignment::Unaligned { after: TimeSpan(after) }, ..barrier(checkpoint) }
}

fn ending(checkpoint: u64, ends: Ends) -> Barrier {
    Barrier { ends, ..barrier(checkpoint) }
}

fn values(in_flight: &[InFlight]) -> Vec<String> {
    in_flight.iter().flat_map(InFlight::batches).flat_map(lines).collect()
}

/// The source of a job at full speed, and the only output of it leads to another process.
fn stuck_source() -> (Task, InputChannel) {
    let (output, sending) = sending_channel(id(0, 0), 40_000);
    let outputs = vec![EdgeOutput { partitioning: Partitioning::Forward, channels: vec![output] }];
    let program = source_program(Numbers { splits: 1, rows: 1_000_000, keys: 10 });
    let setup = Setup { vertex: 0, index: 0, parallelism: 1, program, inputs: Vec::new(), outputs, state: None };
    let mut task = task(setup);
    assert!(matches!(settle(&mut task, 0), Step::Blocked { .. }));
    (task, sending)
}

#[test]
fn a_full_output_does_not_hold_up_a_barrier_that_overtakes_and_what_it_overtook_is_the_senders() {
    let (mut task, sending) = stuck_source();
    let read = task.metrics().rows_in.load(Ordering::Relaxed);
    task.handle().trigger(overtaking(1, 0));
    settle(&mut task, 0);
    let snapshot = snapshots(task.take_events()).remove(0);
    assert_eq!(values(&snapshot.in_flight).len() as u64, read, "every row that was read is in flight");
    assert_eq!(snapshot.in_flight[0].first, 1, "behind the receiver's share");
    let mut no_credit = 0;
    let word = sending.pop_with_credit(&mut no_credit).unwrap();
    assert!(matches!(word.frame, Frame::Overtaking { first: 0, .. }));
    assert!(sending.pop_with_credit(&mut no_credit).is_none());
}

/// FLINK-27251: the timeout did not help a barrier that was stuck in an output.
#[test]
fn a_barrier_that_is_stuck_in_an_output_overtakes_when_its_time_is_up() {
    let (mut task, sending) = stuck_source();
    task.handle().trigger(overtaking(1, 100));
    assert_eq!(settle(&mut task, 40), Step::Blocked { until: Some(Timestamp(100)) });
    assert_eq!(names(&task.take_events()), ["running"], "the snapshot waits for the barrier to leave");
    settle(&mut task, 100);
    let snapshot = snapshots(task.take_events()).remove(0);
    assert!(values(&snapshot.in_flight).len() > 1000);
    assert!(matches!(sending.pop_with_credit(&mut 0).unwrap().frame, Frame::Overtaking { first: 0, .. }));
}

#[test]
fn a_barrier_that_leaves_in_time_has_overtaken_nothing() {
    let (mut task, sending) = stuck_source();
    task.handle().trigger(overtaking(1, 100));
    settle(&mut task, 40);
    while !matches!(sending.pop().unwrap().frame, Frame::Barrier(_)) {}
    settle(&mut task, 50);
    let snapshot = snapshots(task.take_events()).remove(0);
    assert!(snapshot.in_flight.is_empty());
}

/// A sink whose counterpart is slow must not hold up the barrier, nor its own part of the checkpoint.
#[test]
fn a_sink_without_room_does_not_hold_up_a_barrier_that_overtakes() {
    let kept: Arc<Kept> = Arc::default();
    let (mut task, inputs) = aggregate_task(&kept, 2);
    settle(&mut task, 0);
    kept.full.store(true, Ordering::SeqCst);
    inputs[0].push(row(1, 10));
    inputs[1].push(row(1, 20));
    assert!(matches!(settle(&mut task, 0), Step::Blocked { .. }));
    inputs[0].push_ahead(overtaking(1, 0));
    inputs[1].push_ahead(overtaking(1, 0));
    assert!(matches!(settle(&mut task, 3), Step::Blocked { .. }));
    let mut snapshot = snapshots(task.take_events()).remove(0);
    assert_eq!(values(&snapshot.in_flight), ["+I 1 10", "+I 1 20"]);
    snapshot.in_flight.clear();
    assert_eq!(groups(snapshot), [""; 0]);
    assert!(kept.take().0.is_empty());
}

#[test]
fn what_a_sink_was_given_before_the_cut_has_arrived_before_the_snapshot_is_complete() {
    let kept: Arc<Kept> = Arc::default();
    let (mut task, inputs) = aggregate_task(&kept, 1);
    kept.in_flight.store(true, Ordering::SeqCst);
    inputs[0].push(row(1, 1));
    settle(&mut task, 0);
    inputs[0].push(row(2, 2));
    inputs[0].push_ahead(overtaking(1, 0));
    assert!(matches!(settle(&mut task, 5), Step::Blocked { .. }), "meanwhile nothing is read");
    assert_eq!(kept.take().0.len(), 1);
    assert_eq!(names(&task.take_events()), ["running"]);
    kept.in_flight.store(false, Ordering::SeqCst);
    settle(&mut task, 9);
    let mut snapshot = snapshots(task.take_events()).remove(0);
    assert_eq!(values(&std::mem::take(&mut snapshot.in_flight)), ["+I 2 2"]);
    assert_eq!(groups(snapshot), ["+I 1 1 1"]);
    assert_eq!(kept.take().0.len(), 1);
}

/// A barrier passes through a task in the middle while its output is full: rows are neither lost nor read.
#[test]
fn a_task_that_is_back_pressured_passes_the_barrier_on_at_once() {
    let (output, sending) = sending_channel(id(0, 0), 1);
    let (inputs, receivers): (Vec<_>, Vec<_>) = (0..2).map(|from| channel(id(from, 0), 1 << 20)).unzip();
    let outputs = vec![EdgeOutput { partitioning: Partitioning::Forward, channels: vec![output] }];
    let program = VertexProgram { sink: None, ..aggregate_program(&Arc::default()) };
    let mut task =
        task(Setup { vertex: 1, index: 0, parallelism: 1, program, inputs: receivers, outputs, state: None });
    inputs[0].push(row(1, 1));
    settle(&mut task, 0);
    settle(&mut task, 50);
    inputs[0].push(row(2, 2));
    assert!(matches!(settle(&mut task, 60), Step::Blocked { .. }));
    inputs[0].push_ahead(overtaking(1, 0));
    settle(&mut task, 60);
    assert!(matches!(sending.pop_with_credit(&mut 0).unwrap().frame, Frame::Overtaking { first: 0, .. }));
    inputs[1].push(row(3, 3));
    inputs[1].push_ahead(overtaking(1, 0));
    settle(&mut task, 70);
    let mut snapshot = snapshots(task.take_events()).remove(0);
    let in_flight = std::mem::take(&mut snapshot.in_flight);
    assert_eq!(values(&in_flight), ["+I 1 1 1", "+I 2 2", "+I 3 3"], "its output, then its inputs");
    assert_eq!(snapshot.metrics.alignment_ms, 10);
    assert_eq!(groups(snapshot), ["+I 1 1 1"]);
}

/// FLINK-18063: a checkpoint that was given up in the middle of recording left its traces in the next one.
#[test]
fn an_overtaking_checkpoint_that_is_given_up_leaves_nothing_in_the_next_one() {
    let kept: Arc<Kept> = Arc::default();
    let (mut task, inputs) = aggregate_task(&kept, 2);
    inputs[0].push(row(1, 1));
    inputs[0].push_ahead(overtaking(1, 0));
    settle(&mut task, 0);
    task.handle().checkpoint_aborted(CheckpointId(1));
    inputs[1].push(row(1, 2));
    inputs[1].push_ahead(overtaking(1, 0));
    settle(&mut task, 0);
    assert_eq!(names(&task.take_events()), ["running"]);
    inputs[0].push_ahead(overtaking(2, 0));
    inputs[1].push_ahead(overtaking(2, 0));
    settle(&mut task, 0);
    let mut found = snapshots(task.take_events());
    assert_eq!(found.len(), 1);
    let snapshot = found.remove(0);
    assert!(snapshot.in_flight.is_empty());
    assert_eq!(groups(snapshot), ["+I 1 2 3"]);
}

#[test]
fn behind_a_barrier_with_which_the_job_stops_a_source_emits_nothing_until_that_is_given_up() {
    for released_by_abort in [true, false] {
        let (mut task, output) = source_task(Numbers { splits: 1, rows: 1000, keys: 10 }, 1 << 20);
        task.step(Timestamp(0));
        task.step(Timestamp(0));
        task.handle().trigger(ending(1, Ends::Stop));
        settle(&mut task, 0);
        settle(&mut task, 10_000);
        let events = task.take_events();
        assert_eq!(names(&events), ["running", "snapshot"], "nothing ends, though little input is left");
        let state = snapshots(events).remove(0).write(&WriteOptions::default()).unwrap();
        assert_eq!(state[0].1.splits[0].state, 100);
        let frames: Vec<Frame> = std::iter::from_fn(|| output.pop()).map(|numbered| numbered.frame).collect();
        assert!(matches!(frames.last(), Some(Frame::Barrier(_))), "nothing stands behind the barrier");
        task.handle().checkpoint_aborted(CheckpointId(7));
        settle(&mut task, 10_000);
        assert!(output.is_empty(), "another one that is given up changes nothing");
        if released_by_abort {
            task.handle().checkpoint_aborted(CheckpointId(1));
        } else {
            task.handle().trigger(barrier(2));
        }
        settle(&mut task, 10_000);
        assert_eq!(names(&task.take_events()).last(), Some(&"finished"), "the source goes on");
        let rows: usize = std::iter::from_fn(|| output.pop())
            .map(|numbered| if let Frame::Batch(batch) = numbered.frame { batch.len() } else { 0 })
            .sum();
        assert_eq!(rows, 900);
    }
}

/// Drain: the input ends first, operators and sinks finish, and then the barrier cuts.
#[test]
fn a_barrier_with_which_the_job_finishes_ends_the_input_before_it() {
    for alignment in [Alignment::Aligned, Alignment::Unaligned { after: TimeSpan(0) }] {
        let (mut task, output) = source_task(Numbers { splits: 1, rows: 1_000_000, keys: 10 }, 40_000);
        settle(&mut task, 0);
        task.handle().trigger(Barrier { alignment, ..ending(1, Ends::Finish) });
        settle(&mut task, 0);
        let events = task.take_events();
        assert_eq!(names(&events), ["running", "finished", "snapshot"]);
        let frames: Vec<Frame> = std::iter::from_fn(|| output.pop()).map(|numbered| numbered.frame).collect();
        assert!(matches!(frames[..], [.., Frame::EndOfInput, Frame::Barrier(_)]));
        settle(&mut task, 0);
        assert!(output.is_empty(), "no row follows");
    }
}
