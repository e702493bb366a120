//! Interleavings of rows and barriers on two channels, worked by hand.

mod rescaled;

use super::*;
use crate::channel::{ChannelId, OutputChannel, channel};
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use sluice_protocol::SubtaskIndex;
use sluice_protocol::message::Alignment as Mode;
use std::sync::Arc;

fn gate(channels: u32) -> (Vec<OutputChannel>, InputGate) {
    let (outputs, inputs) = (0..channels)
        .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
        .unzip();
    (outputs, InputGate::new(inputs, Vec::new(), 1 << 20))
}

fn row(value: i64) -> Frame {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![value]));
    Frame::Batch(Batch::inserts(RecordBatch::try_from_iter([("v", column)]).unwrap()))
}

fn barrier(checkpoint: u64) -> Frame {
    let checkpoint = CheckpointId(checkpoint);
    Frame::Barrier(Barrier::aligned(checkpoint, Timestamp(0), None))
}

/// What was in flight, by channel: ` from 0: 1 2`.
fn recorded(in_flight: &[InFlight]) -> String {
    let value = |batch: &Batch| format!(" {}", batch.rows.column(0).as_primitive::<Int64Type>().value(0));
    let share = |one: &InFlight| {
        let age = if one.age > 0 { format!(" aged {}", one.age) } else { String::new() };
        format!(" from {}{age}:{}", one.channel.from, one.batches().map(value).collect::<String>())
    };
    in_flight.iter().map(share).collect()
}

/// Everything the gate has now, in short form: `5` a row, `|2` an aligned cut, `^2` an overtaking one, `=2 from 0: 7`
/// its recorded batches, `x1` ended by a later one, `>1` passed on, `!1` too much, `end`.
fn read(gate: &mut InputGate, now: u64) -> Vec<String> {
    std::iter::from_fn(|| gate.poll(Timestamp(now)))
        .map(|event| match event {
            GateEvent::Batch { batch, .. } => batch.rows.column(0).as_primitive::<Int64Type>().value(0).to_string(),
            GateEvent::Aligned { barrier, .. } => format!("|{}", barrier.checkpoint),
            GateEvent::Ended(checkpoint) => format!("x{checkpoint}"),
            GateEvent::EndOfInput => "end".to_owned(),
            GateEvent::Watermark(WatermarkStatus { watermark, idle }) => {
                format!("W{watermark}{}", if idle { " idle" } else { "" })
            }
            GateEvent::Overtaking { barrier, .. } => format!("^{}", barrier.checkpoint),
            GateEvent::Recorded { checkpoint, in_flight, .. } => format!("={checkpoint}{}", recorded(&in_flight)),
            GateEvent::TooMuchInFlight { checkpoint, .. } => format!("!{checkpoint}"),
            GateEvent::Passed(barrier) => format!(">{}", barrier.checkpoint),
        })
        .collect()
}

#[test]
fn a_barrier_blocks_its_channel_until_it_came_on_all() {
    let (outputs, mut gate) = gate(2);
    for frame in [row(1), barrier(1), row(3)] {
        outputs[0].push(frame);
    }
    outputs[1].push(row(2));
    assert_eq!(read(&mut gate, 10), ["1", "2"], "3 stands behind the barrier");
    outputs[1].push(row(4));
    assert_eq!(read(&mut gate, 20), ["4"]);
    outputs[1].push(barrier(1));
    outputs[1].push(row(5));
    match gate.poll(Timestamp(35)) {
        Some(GateEvent::Aligned { barrier, alignment, started_at }) => {
            assert_eq!((barrier.checkpoint.0, alignment.0, started_at.0), (1, 25, 10));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&mut gate, 40), ["3", "5"]);
}

#[test]
fn a_later_barrier_ends_an_earlier_alignment() {
    let (outputs, mut gate) = gate(2);
    for frame in [barrier(1), row(1), barrier(2), row(3)] {
        outputs[0].push(frame);
    }
    for frame in [row(2), barrier(2), row(4)] {
        outputs[1].push(frame);
    }
    assert_eq!(read(&mut gate, 0), ["2", "x1", "1", "|2", "4", "3"]);
    outputs[1].push(barrier(1));
    outputs[1].push(row(5));
    assert_eq!(read(&mut gate, 0), ["5"], "a barrier that was overtaken is dropped");
}

#[test]
fn finished_channels_count_as_aligned() {
    let (outputs, mut gate) = gate(2);
    outputs[0].push(Frame::EndOfInput);
    outputs[1].push(row(1));
    outputs[1].push(barrier(1));
    outputs[1].push(row(2));
    assert_eq!(read(&mut gate, 0), ["1", "|1", "2"]);
    outputs[0].push(barrier(1));
    outputs[0].push(barrier(2));
    assert_eq!(read(&mut gate, 0), [""; 0]);
    outputs[1].push(Frame::EndOfInput);
    assert_eq!(read(&mut gate, 0), ["|2", "end"], "the end of the last channel completes the alignment");
    outputs[1].push(barrier(3));
    assert_eq!(read(&mut gate, 0), ["|3"]);
    outputs[0].push(barrier(3));
    assert_eq!(read(&mut gate, 0), [""; 0]);
}

#[test]
fn a_gate_of_one_channel_aligns_at_once() {
    let (outputs, mut gate) = gate(1);
    for frame in [row(1), barrier(1), row(2), barrier(2), Frame::EndOfInput] {
        outputs[0].push(frame);
    }
    assert_eq!(read(&mut gate, 0), ["1", "|1", "2", "|2", "end"]);
}

fn with(mode: Mode, checkpoint: u64) -> Barrier {
    Barrier { alignment: mode, ..Barrier::aligned(CheckpointId(checkpoint), Timestamp(0), None) }
}

fn ahead(checkpoint: u64) -> Barrier {
    with(Mode::Unaligned { after: TimeSpan(0) }, checkpoint)
}

fn timed(checkpoint: u64, after: u64) -> Frame {
    Frame::Barrier(with(Mode::Unaligned { after: TimeSpan(after) }, checkpoint))
}

#[test]
fn at_least_once_blocks_nothing_and_cuts_with_the_last_barrier() {
    let (outputs, mut gate) = gate(2);
    let barrier = |checkpoint| Frame::Barrier(with(Mode::AtLeastOnce, checkpoint));
    for frame in [row(1), barrier(1), row(3), barrier(2), row(4)] {
        outputs[0].push(frame);
    }
    outputs[1].push(row(2));
    assert_eq!(read(&mut gate, 0), ["1", "2", "3", "4"], "3 and 4 stand behind the barriers");
    for frame in [barrier(1), row(5), barrier(2), row(6)] {
        outputs[1].push(frame);
    }
    assert_eq!(read(&mut gate, 0), ["|1", "5", "|2", "6"], "two at once do not end each other");
}

#[test]
fn the_first_barrier_that_overtakes_cuts_and_what_comes_before_the_others_is_recorded() {
    let (outputs, mut gate) = gate(3);
    outputs[0].push(row(1));
    outputs[0].push(row(2));
    outputs[1].push(row(10));
    outputs[0].push_ahead(ahead(1));
    outputs[0].push(row(3));
    assert_eq!(read(&mut gate, 5), ["^1", "1", "10", "2", "3"], "rows are read on after the cut");
    outputs[1].push(row(11));
    outputs[2].push(row(20));
    assert_eq!(read(&mut gate, 6), ["11", "20"]);
    outputs[1].push(row(12));
    outputs[1].push_ahead(ahead(1));
    outputs[1].push(row(13));
    assert_eq!(read(&mut gate, 7), ["12", "13"]);
    outputs[2].push(row(21));
    outputs[2].push(Frame::EndOfInput);
    outputs[2].push_ahead(ahead(1));
    let event = gate.poll_barriers(Timestamp(9));
    match &event {
        Some(GateEvent::Recorded { checkpoint: CheckpointId(1), alignment: TimeSpan(4), in_flight }) => {
            assert_eq!(self::recorded(in_flight), " from 0: 1 2 from 1: 10 11 12 from 2: 20 21");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&mut gate, 9), ["21"]);
}

#[test]
fn a_task_without_room_still_hears_of_a_barrier_that_overtakes() {
    let (outputs, mut gate) = gate(1);
    outputs[0].push(row(1));
    outputs[0].push_ahead(ahead(1));
    assert!(matches!(gate.poll_barriers(Timestamp(0)), Some(GateEvent::Overtaking { .. })));
    assert!(matches!(gate.poll_barriers(Timestamp(0)), Some(GateEvent::Recorded { .. })));
    assert!(gate.poll_barriers(Timestamp(0)).is_none());
    assert_eq!(read(&mut gate, 0), ["1"]);
}

#[test]
fn an_alignment_that_ends_in_time_stays_aligned() {
    let (outputs, mut gate) = gate(2);
    for frame in [timed(1, 100), row(3)] {
        outputs[0].push(frame);
    }
    outputs[1].push(row(1));
    assert_eq!(read(&mut gate, 50), ["1"]);
    assert_eq!(gate.wake_at(), Some(Timestamp(100)));
    outputs[1].push(timed(1, 100));
    assert_eq!(read(&mut gate, 99), ["|1", "3"]);
    assert_eq!(gate.wake_at(), None);
    assert_eq!(read(&mut gate, 101), [""; 0]);
}

/// FLINK-22638: after the timeout the channels that were blocked already were read again, and starved those on which
/// the barrier had not come.
#[test]
fn after_the_timeout_blocked_channels_stay_blocked_until_the_barrier_came_on_all() {
    let (outputs, mut gate) = gate(3);
    for frame in [row(1), timed(1, 100), row(4)] {
        outputs[0].push(frame);
    }
    for frame in [row(2), row(3)] {
        outputs[1].push(frame);
    }
    assert_eq!(read(&mut gate, 50), ["1", "2", "3"]);
    for frame in [row(5), timed(1, 100), row(6)] {
        outputs[1].push(frame);
    }
    assert_eq!(gate.wake_at(), Some(Timestamp(100)));
    assert_eq!(read(&mut gate, 100), ["^1", "5", "6"], "4 waits, 5 was overtaken, 6 stands behind the barrier");
    outputs[2].push(row(7));
    outputs[2].push(timed(1, 100));
    assert_eq!(read(&mut gate, 120), ["=1 from 1: 5 from 2: 7", "7", "4"]);
}

#[test]
fn a_barrier_that_is_queued_behind_rows_is_turned_where_it_stands() {
    let (outputs, mut gate) = gate(1);
    for frame in [row(1), row(2), timed(1, 100), row(3)] {
        outputs[0].push(frame);
    }
    assert!(gate.poll_barriers(Timestamp(99)).is_none());
    assert_eq!(read(&mut gate, 100), ["^1", "=1 from 0: 1 2", "1", "2", "3"]);
}

/// FLINK-33693: edges that must stay aligned did not go together with the barrier that overtakes after a timeout.
#[test]
fn a_channel_that_stays_aligned_is_waited_for_before_the_cut() {
    for after in [0, 100] {
        let id = |from| ChannelId { edge: from, from: SubtaskIndex(from), to: SubtaskIndex(0) };
        let (broadcast, first) = channel(id(0), 1 << 20);
        let (other, second) = channel(id(1), 1 << 20);
        let mut gate = InputGate::new(vec![first.staying_aligned(), second], Vec::new(), 1 << 20);
        let barrier = with(Mode::Unaligned { after: TimeSpan(after) }, 1);
        for frame in [row(1), row(2), Frame::Barrier(barrier.clone()), row(3)] {
            broadcast.push(frame);
        }
        other.push(row(10));
        other.push_ahead(barrier);
        other.push(row(11));
        assert_eq!(read(&mut gate, 200), ["1", "2", "^1", "=1 from 1: 10", "10", "3", "11"], "after {after}");
    }
}

/// FLINK-4975 and FLINK-18063: a checkpoint that is given up in the middle frees what it held, at once and cleanly.
#[test]
fn a_checkpoint_that_is_given_up_blocks_and_records_nothing_more() {
    let (outputs, mut gate) = gate(2);
    for frame in [row(1), barrier(1), row(2)] {
        outputs[0].push(frame);
    }
    assert_eq!(read(&mut gate, 0), ["1"]);
    gate.abandon(CheckpointId(1));
    assert_eq!(read(&mut gate, 0), [">1", "2"], "its barrier is passed on");
    outputs[1].push(barrier(1));
    outputs[1].push(row(3));
    assert_eq!(read(&mut gate, 0), ["3"]);
    gate.abandon(CheckpointId(2));
    outputs[1].push(row(4));
    outputs[1].push_ahead(ahead(2));
    assert_eq!(read(&mut gate, 0), [">2", "4"], "given up before its barrier came");
    outputs[0].push(row(5));
    outputs[0].push_ahead(ahead(3));
    assert_eq!(read(&mut gate, 0), ["^3", "5"]);
    gate.abandon(CheckpointId(3));
    outputs[1].push_ahead(ahead(3));
    outputs[1].push_ahead(ahead(4));
    assert_eq!(read(&mut gate, 0), ["^4"]);
    outputs[0].push_ahead(ahead(4));
    assert_eq!(read(&mut gate, 0), ["=4"]);
}

#[test]
fn a_later_barrier_ends_the_recording_of_an_earlier_one() {
    let (outputs, mut gate) = gate(2);
    outputs[0].push(row(1));
    outputs[0].push_ahead(ahead(1));
    assert_eq!(read(&mut gate, 0), ["^1", "1"]);
    outputs[1].push(row(2));
    outputs[1].push_ahead(ahead(2));
    assert_eq!(read(&mut gate, 0), ["x1", "^2", "2"]);
    outputs[0].push_ahead(ahead(2));
    assert_eq!(read(&mut gate, 0), ["=2 from 1: 2"]);
}

/// FLINK-4975: one slow channel, and the others were recorded without bound.
#[test]
fn recording_is_bounded() {
    let (outputs, inputs): (Vec<_>, Vec<_>) = (0..2)
        .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
        .unzip();
    let Frame::Batch(batch) = row(1) else { unreachable!() };
    let mut gate = InputGate::new(inputs, Vec::new(), 3 * batch.bytes());
    outputs[0].push_ahead(ahead(1));
    for value in 1..=4 {
        outputs[1].push(row(value));
    }
    assert_eq!(read(&mut gate, 0), ["^1", "1", "2", "3", "4", "!1"]);
    outputs[1].push_ahead(ahead(1));
    assert_eq!(read(&mut gate, 0), [""; 0]);
}

fn restored(edge: u32, age: u32, from: u32, first: u64, values: std::ops::Range<i64>) -> RestoredChannel {
    let channel = ChannelId { edge, from: SubtaskIndex(from), to: SubtaskIndex(0) };
    let frames = values.map(row).collect();
    RestoredChannel { channel, consumer: channel.to, producers: 0..0, input: 0, age, first, frames }
}

/// FLINK-35761 (FLIP-547): no checkpoint could complete until all restored batches were drained, for hours; and of
/// PR 14509: one that was taken meanwhile lost them.
#[test]
fn restored_batches_go_first_oldest_first_and_are_saved_again_by_a_checkpoint_meanwhile() {
    let id = ChannelId { edge: 0, from: SubtaskIndex(0), to: SubtaskIndex(0) };
    let (output, input) = channel(id, 1 << 20);
    let in_flight = vec![restored(0, 0, 0, 4, 30..32), restored(0, 0, 0, 0, 20..22), restored(0, 1, 7, 0, 10..12)];
    let mut gate = InputGate::new(vec![input], in_flight, 1 << 20);
    output.push(row(1));
    for expected in [10, 11, 20] {
        match gate.poll(Timestamp(0)) {
            Some(GateEvent::Batch { batch, .. }) => {
                assert_eq!(batch.rows.column(0).as_primitive::<Int64Type>().value(0), expected);
            }
            other => panic!("{other:?}"),
        }
    }
    output.push_ahead(ahead(1));
    output.push(row(2));
    assert_eq!(
        read(&mut gate, 0),
        ["^1", "=1 from 0 aged 1: 21 from 0 aged 1: 30 31 from 0: 1", "21", "30", "31", "1", "2"]
    );
}

#[test]
fn an_aligned_barrier_waits_until_restored_batches_are_read() {
    let id = ChannelId { edge: 0, from: SubtaskIndex(0), to: SubtaskIndex(0) };
    let (output, input) = channel(id, 1 << 20);
    let mut gate = InputGate::new(vec![input], vec![restored(0, 0, 0, 0, 1..3)], 1 << 20);
    output.push(barrier(1));
    output.push(Frame::EndOfInput);
    assert_eq!(read(&mut gate, 0), ["1", "2", "|1", "end"]);
}

const fn watermark(watermark: i64) -> Frame {
    Frame::Watermark(WatermarkStatus { watermark, idle: false })
}

const fn idle(watermark: i64) -> Frame {
    Frame::Watermark(WatermarkStatus { watermark, idle: true })
}

/// FLINK-7728 and FLINK-18934: what a channel says when it falls idle, and when all are.
#[test]
fn the_least_watermark_of_the_active_channels_is_handed_out_and_never_regresses() {
    let (outputs, mut gate) = gate(3);
    outputs[0].push(watermark(50));
    outputs[1].push(watermark(40));
    assert_eq!(read(&mut gate, 0), [""; 0], "the third has not said anything");
    outputs[2].push(idle(i64::MIN));
    assert_eq!(read(&mut gate, 0), ["W40"]);
    outputs[1].push(idle(40));
    assert_eq!(read(&mut gate, 0), ["W50"]);
    outputs[1].push(watermark(45));
    outputs[1].push(row(7));
    outputs[1].push(watermark(60));
    assert_eq!(read(&mut gate, 0), ["7"], "45 is less than what was said, and 0 holds 60 back");
    outputs[0].push(Frame::EndOfInput);
    assert_eq!(read(&mut gate, 0), ["W60"], "a channel that has ended gives no bound");
    outputs[1].push(idle(60));
    assert_eq!(read(&mut gate, 0), ["W60 idle"]);
    outputs[2].push(watermark(10));
    assert_eq!(read(&mut gate, 0), ["W60"]);
    outputs[1].push(Frame::EndOfInput);
    outputs[2].push(Frame::EndOfInput);
    assert_eq!(read(&mut gate, 0), ["end"]);
}

#[test]
fn an_end_raises_the_watermark_before_the_barrier_that_it_completes() {
    let (outputs, mut gate) = gate(2);
    outputs[0].push(watermark(50));
    outputs[0].push(barrier(1));
    outputs[1].push(watermark(20));
    assert_eq!(read(&mut gate, 0), ["W20"]);
    outputs[1].push(Frame::EndOfInput);
    assert_eq!(read(&mut gate, 0), ["W50", "|1"]);
}

/// W2: of a channel that ended before the others fell silent the last word counts, as it does where these did so first:
/// windows that fire here would be late for whoever reads the results of both tasks.
#[test]
fn among_silent_channels_those_count_that_have_ended() {
    for ends_first in [true, false] {
        let (outputs, mut gate) = gate(2);
        outputs[0].push(watermark(90));
        outputs[1].push(watermark(50));
        assert_eq!(read(&mut gate, 0), ["W50"]);
        let falls_silent = |gate: &mut InputGate| {
            outputs[1].push(idle(60));
            read(gate, 0)
        };
        if ends_first {
            outputs[0].push(Frame::EndOfInput);
            assert_eq!(read(&mut gate, 0), [""; 0]);
            assert_eq!(falls_silent(&mut gate), ["W90 idle"]);
        } else {
            assert_eq!(falls_silent(&mut gate), ["W90"]);
            outputs[0].push(Frame::EndOfInput);
            assert_eq!(read(&mut gate, 0), ["W90 idle"]);
        }
    }
}

/// What was in flight, as [`recorded`], with watermarks.
fn with_watermarks(in_flight: &[InFlight]) -> Vec<String> {
    let word = |frame: &Frame| match frame {
        Frame::Batch(batch) => batch.rows.column(0).as_primitive::<Int64Type>().value(0).to_string(),
        Frame::Watermark(WatermarkStatus { watermark, idle }) => {
            format!("W{watermark}{}", if *idle { " idle" } else { "" })
        }
        other => format!("{other:?}"),
    };
    let share = |one: &InFlight| {
        let words: Vec<String> = one.frames.iter().map(word).collect();
        format!("{} aged {}: {}", one.channel.from, one.age, words.join(" "))
    };
    in_flight.iter().map(share).collect()
}

fn record(gate: &mut InputGate) -> Vec<InFlight> {
    std::iter::from_fn(|| gate.poll(Timestamp(0)))
        .find_map(|event| if let GateEvent::Recorded { in_flight, .. } = event { Some(in_flight) } else { None })
        .unwrap()
}

fn again(in_flight: Vec<InFlight>, channels: u32) -> (Vec<OutputChannel>, InputGate) {
    let (outputs, inputs) = (0..channels)
        .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
        .unzip();
    let restored = in_flight.into_iter().map(|InFlight { channel, age, first, frames }| RestoredChannel {
        consumer: channel.to,
        channel,
        producers: 0..channels,
        input: 0,
        age,
        first,
        frames: frames.into(),
    });
    (outputs, InputGate::new(inputs, restored.collect(), 1 << 20))
}

/// W1, B3: of three channels one has rows and a watermark in flight, one is idle, one has nothing in flight; after a
/// restore the watermarks between the rows are handed out as they were, also after a second one.
#[test]
fn restored_channels_have_watermarks_of_their_own() {
    let (outputs, mut gate) = gate(3);
    outputs[0].push(watermark(10));
    outputs[1].push(idle(i64::MIN));
    outputs[2].push(watermark(30));
    assert_eq!(read(&mut gate, 0), ["W10"]);
    for frame in [row(1), watermark(20), row(2), watermark(25)] {
        outputs[0].push(frame);
    }
    for output in &outputs {
        output.push_ahead(with(Mode::Unaligned { after: TimeSpan(0) }, 1));
    }
    let in_flight = record(&mut gate);
    let expected =
        ["0 aged 0: W10 1 W20 2 W25".to_owned(), format!("1 aged 0: W{} idle", i64::MIN), "2 aged 0: W30".to_owned()];
    assert_eq!(with_watermarks(&in_flight), expected);

    let (outputs, mut gate) = again(in_flight, 2);
    outputs[0].push(watermark(90));
    outputs[1].push(watermark(90));
    for expected in ["W10", "1", "W20"] {
        let event = gate.poll(Timestamp(0)).unwrap();
        match event {
            GateEvent::Watermark(status) => assert_eq!(format!("W{}", status.watermark), expected),
            GateEvent::Batch { batch, .. } => {
                assert_eq!(batch.rows.column(0).as_primitive::<Int64Type>().value(0).to_string(), expected);
            }
            other => panic!("{other:?}"),
        }
    }
    for output in &outputs {
        output.push_ahead(with(Mode::Unaligned { after: TimeSpan(0) }, 2));
    }
    let in_flight = record(&mut gate);
    let unread = format!("W{} W90", i64::MIN);
    let expected = [
        "0 aged 1: W20 2 W25".to_owned(),
        format!("1 aged 1: W{} idle", i64::MIN),
        "2 aged 1: W30".to_owned(),
        format!("0 aged 0: {unread}"),
        format!("1 aged 0: {unread}"),
    ];
    assert_eq!(with_watermarks(&in_flight), expected);

    let (outputs, mut gate) = again(in_flight, 1);
    outputs[0].push(row(3));
    assert_eq!(read(&mut gate, 0), ["W20", "2", "W25", "W90", "3"]);
}

/// W1: after a rescale a subtask reads what one producer had sent to two of the old ones. Each has the watermark that it had:
/// the rows of the slower one are not late, also when they are saved and read again.
#[test]
fn channels_that_led_to_several_subtasks_have_a_watermark_each() {
    let of = |consumer: u32, frames: Vec<Frame>| RestoredChannel {
        consumer: SubtaskIndex(consumer),
        frames: frames.into(),
        ..restored(0, 0, 0, 0, 0..0)
    };
    let queues = || {
        let fast = of(0, vec![watermark(50), row(51), watermark(60), row(61)]);
        let slow = of(1, vec![watermark(10), row(11), watermark(20), row(21)]);
        let (output, input) = channel(ChannelId { edge: 0, from: SubtaskIndex(0), to: SubtaskIndex(0) }, 1 << 20);
        output.push(watermark(90));
        (output, InputGate::new(vec![input], vec![slow, fast], 1 << 20))
    };
    let (_output, mut gate) = queues();
    assert_eq!(read(&mut gate, 0), ["W10", "51", "61", "11", "W20", "21", "W90"]);

    let (output, mut gate) = queues();
    for _ in ["W10", "51", "61"] {
        assert!(gate.poll(Timestamp(0)).is_some());
    }
    output.push_ahead(with(Mode::Unaligned { after: TimeSpan(0) }, 1));
    let in_flight = record(&mut gate);
    assert_eq!(with_watermarks(&in_flight), ["0 aged 1: W10 11 21", &format!("0 aged 0: W{} W90", i64::MIN)]);
    let (_outputs, mut gate) = again(in_flight, 1);
    assert_eq!(read(&mut gate, 0), ["W10", "11", "21", "W90"]);
}

/// W1: of the two old subtasks one had heard that the channel is idle, and had its next rows still in flight; the other was
/// further. After a rescale those rows hold back the watermark, also when they are saved and read again.
#[test]
fn rows_of_an_idle_channel_are_not_late_beside_those_of_another_subtask() {
    let of = |consumer: u32, frames: Vec<Frame>| RestoredChannel {
        consumer: SubtaskIndex(consumer),
        frames: frames.into(),
        ..restored(0, 0, 0, 0, 0..0)
    };
    let queues = || {
        let behind = of(0, vec![idle(10), watermark(10), row(15), watermark(20)]);
        let ahead = of(1, vec![watermark(20), row(21)]);
        let (output, input) = channel(ChannelId { edge: 0, from: SubtaskIndex(0), to: SubtaskIndex(0) }, 1 << 20);
        output.push(watermark(90));
        (output, InputGate::new(vec![input], vec![behind, ahead], 1 << 20))
    };
    let (_output, mut gate) = queues();
    assert_eq!(read(&mut gate, 0), ["W10", "15", "W20", "21", "W90"]);

    let (output, mut gate) = queues();
    output.push_ahead(with(Mode::Unaligned { after: TimeSpan(0) }, 1));
    let in_flight = record(&mut gate);
    assert_eq!(with_watermarks(&in_flight), ["0 aged 1: W10 15 21", &format!("0 aged 0: W{} W90", i64::MIN)]);
    let (_outputs, mut gate) = again(in_flight, 1);
    assert_eq!(read(&mut gate, 0), ["W10", "15", "21", "W90"]);
}

/// W2: at the cut the receiver had heard no word of time. Of one channel a row was queued, and a word was still at the sender; of
/// the other nothing was in flight: it counts as active all the same.
#[test]
fn a_word_that_was_still_at_the_sender_says_nothing_of_channels_without_rows_in_flight() {
    let of =
        |first: u64, frames: Vec<Frame>| RestoredChannel { frames: frames.into(), ..restored(0, 0, 0, first, 0..0) };
    let (outputs, inputs): (Vec<_>, Vec<_>) = (0..2)
        .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
        .unzip();
    let queues = vec![of(0, vec![row(1)]), of(1, vec![row(2), watermark(70), row(71)])];
    let mut gate = InputGate::new(inputs, queues, 1 << 20);
    assert_eq!(read(&mut gate, 0), ["1", "2", "71"]);
    outputs[0].push(watermark(70));
    outputs[1].push(row(5));
    assert_eq!(read(&mut gate, 0), ["5"]);
    outputs[1].push(watermark(60));
    assert_eq!(read(&mut gate, 0), ["W60"]);
}

/// W1: the same where it is known whom the receiver heard: what the sender had still to say is heard at its place, as it would
/// have been, unless there is another channel that had said nothing yet.
#[test]
fn a_word_that_was_still_at_the_sender_keeps_its_place() {
    let of = |producers: u32, first: u64, frames: Vec<Frame>| RestoredChannel {
        frames: frames.into(),
        producers: 0..producers,
        ..restored(0, 0, 0, first, 0..0)
    };
    let gate = |producers: u32| {
        let (outputs, inputs): (Vec<_>, Vec<_>) = (0..producers)
            .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
            .unzip();
        let said = [row(2), watermark(70), row(71), watermark(72)];
        let queues = vec![of(producers, 0, vec![row(1)]), of(producers, 1, said.to_vec())];
        (outputs, InputGate::new(inputs, queues, 1 << 20))
    };
    let (outputs, mut alone) = gate(1);
    outputs[0].push(watermark(72));
    outputs[0].push(row(73));
    assert_eq!(read(&mut alone, 0), ["1", "2", "W70", "71", "W72", "73"]);
    let (outputs, mut beside) = gate(2);
    assert_eq!(read(&mut beside, 0), ["1", "2", "71"], "the other may say anything");
    outputs[0].push(watermark(72));
    outputs[1].push(watermark(60));
    assert_eq!(read(&mut beside, 0), ["W60"]);

    // The word is the first that the channel ever carried.
    let queue = of(2, 0, vec![watermark(70), row(71)]);
    let (outputs, inputs): (Vec<_>, Vec<_>) = (0..2)
        .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
        .unzip();
    let mut first = InputGate::new(inputs, vec![queue], 1 << 20);
    assert_eq!(read(&mut first, 0), ["71"], "of the other nothing is in flight");
    drop(outputs);
}

/// W2: a checkpoint is taken before the first word of restored channels is read. One still has a word in its queue, the other has
/// said nothing and has nothing queued: it counts as active after the next restore too, so its row is not late.
#[test]
fn restored_channels_that_have_said_nothing_yet_are_saved_as_silent() {
    let silent = i64::MIN;
    let of = |from: u32, frames: Vec<Frame>| RestoredChannel { frames: frames.into(), ..restored(0, 0, from, 0, 0..0) };
    let (outputs, inputs): (Vec<_>, Vec<_>) = (0..2)
        .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
        .unzip();
    let queues = vec![of(0, vec![watermark(silent), watermark(70), row(71)]), of(1, vec![watermark(silent)])];
    let mut gate = InputGate::new(inputs, queues, 1 << 20);
    for output in &outputs {
        output.push_ahead(with(Mode::Unaligned { after: TimeSpan(0) }, 1));
    }
    let in_flight = record(&mut gate);
    let expected = [
        format!("0 aged 1: W{silent} W70 71"),
        format!("1 aged 1: W{silent}"),
        format!("0 aged 0: W{silent}"),
        format!("1 aged 0: W{silent}"),
    ];
    assert_eq!(with_watermarks(&in_flight), expected);

    let (outputs, mut gate) = again(in_flight, 2);
    assert_eq!(read(&mut gate, 0), ["71"], "1 may still say anything");
    outputs[0].push(watermark(70));
    outputs[1].push(row(40));
    outputs[1].push(watermark(60));
    assert_eq!(read(&mut gate, 0), ["40", "W60"]);
}
