//! Credits, wakers and the wire format.

use super::codec::{FrameError, decode_frame, decode_header, encode_frame};
use super::*;
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int64Array, RecordBatch,
    StringArray, StringViewArray, TimestampMillisecondArray, UInt8Array,
};
use sluice_protocol::ledger::Ends;
use sluice_protocol::message::Alignment;
use sluice_protocol::{Attempt, CheckpointId, Generation, Run, TimeSpan, Timestamp};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const ID: ChannelId = ChannelId { edge: 3, from: SubtaskIndex(1), to: SubtaskIndex(2) };
const RUN: Run = Run { generation: Generation(7), attempt: Attempt(2) };

fn batch(rows: i64) -> Batch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    Batch::inserts(RecordBatch::try_from_iter([("k", column)]).unwrap())
}

fn barrier(checkpoint: u64) -> Frame {
    let base = checkpoint.checked_sub(1).filter(|base| *base > 0).map(CheckpointId);
    Frame::Barrier(Barrier {
        alignment: Alignment::Unaligned { after: TimeSpan(checkpoint) },
        ends: Ends::Stop,
        savepoint: Some("s3://bucket/savepoints/1-7".into()),
        ..Barrier::aligned(CheckpointId(checkpoint), Timestamp(1234), base)
    })
}

fn counter() -> (Waker, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let waker = move || {
        counted.fetch_add(1, Ordering::SeqCst);
    };
    (Arc::new(waker), count)
}

#[test]
fn frames_come_out_in_order_and_numbered() {
    let (output, input) = channel(ID, 1024);
    output.push(Frame::Batch(batch(1)));
    output.push(barrier(1));
    output.push(Frame::EndOfInput);
    let numbers: Vec<u64> = std::iter::from_fn(|| input.pop()).map(|frame| frame.sequence).collect();
    assert_eq!(numbers, [0, 1, 2]);
}

#[test]
fn one_batch_may_overdraw_and_room_returns_when_half_is_read() {
    let cost = batch(100).bytes();
    let (output, input) = channel(ID, 2 * cost - 1);
    let (waker, woken) = counter();
    output.set_waker(waker);
    output.push(Frame::Batch(batch(100)));
    assert!(output.has_room());
    output.push(Frame::Batch(batch(100)));
    assert!(!output.has_room());
    output.push(barrier(1));
    drop(input.pop());
    assert!(output.has_room());
    let before = woken.load(Ordering::SeqCst);
    drop(input.pop());
    assert!(woken.load(Ordering::SeqCst) > before, "falling below half the window wakes the writer");
    assert_eq!(output.take_consumed(), 2 * cost as u64);
    assert_eq!(output.take_consumed(), 0);
}

#[test]
fn the_reader_is_woken_by_the_first_frame_only() {
    let (output, input) = channel(ID, 1024);
    let (waker, woken) = counter();
    input.set_waker(waker);
    output.push(Frame::EndOfInput);
    output.push(Frame::EndOfInput);
    assert_eq!(woken.load(Ordering::SeqCst), 1);
    output.push(barrier(2));
    assert_eq!(woken.load(Ordering::SeqCst), 2, "and by a barrier that may come to overtake");
}

fn overtaking(checkpoint: u64) -> Barrier {
    Barrier {
        alignment: Alignment::Unaligned { after: TimeSpan(0) },
        ..Barrier::aligned(CheckpointId(checkpoint), Timestamp(0), None)
    }
}

fn names(input: &InputChannel) -> Vec<String> {
    let name = |numbered: NumberedFrame| match numbered.frame {
        Frame::Watermark(status) => format!("W{}", status.watermark),
        Frame::Batch(_) => numbered.sequence.to_string(),
        Frame::Barrier(barrier) => format!("|{}", barrier.checkpoint),
        Frame::Overtaking { barrier, first } => format!("^{} [{first}, {})", barrier.checkpoint, numbered.sequence),
        Frame::EndOfInput => "end".to_owned(),
    };
    std::iter::from_fn(|| input.pop()).map(name).collect()
}

#[test]
fn what_overtakes_comes_first_and_calls_for_attention() {
    let (output, input) = channel(ID, 1024);
    let attention = Arc::new(AtomicBool::new(false));
    input.set_attention(Arc::clone(&attention));
    output.push(Frame::Batch(batch(1)));
    output.push(Frame::Batch(batch(1)));
    assert!(!attention.load(Ordering::SeqCst));
    assert!(output.push_ahead(overtaking(1)).frames.is_empty(), "what is queued inside a process has arrived");
    output.push(Frame::Batch(batch(1)));
    assert!(attention.load(Ordering::SeqCst));
    assert_eq!(names(&input), ["^1 [2, 2)", "0", "1", "|1", "3"]);
}

/// Moves frames as the pumps do, without credit for batches.
fn pump(from: &InputChannel, to: &OutputChannel, credit: &mut i64) {
    while let Some(frame) = from.pop_with_credit(credit) {
        to.push_received(frame).unwrap();
    }
}

#[test]
fn a_barrier_without_credit_overtakes_and_the_sender_keeps_what_has_not_left() {
    let (output, sending) = sending_channel(ID, 1 << 20);
    let (receiving, input) = channel(ID, 1 << 20);
    for _ in 0..4 {
        output.push(Frame::Batch(batch(100)));
    }
    let mut credit = 1 + batch(100).bytes() as i64;
    pump(&sending, &receiving, &mut credit);
    let kept = output.push_ahead(overtaking(1));
    assert_eq!((kept.first, kept.frames.len()), (2, 2), "0 and 1 have left");
    output.push(Frame::Batch(batch(100)));
    pump(&sending, &receiving, &mut credit);
    let announced = input.pop_overtaking().unwrap();
    assert!(matches!(announced.frame, Frame::Overtaking { first: 2, .. }));
    assert_eq!(input.queued_frames(2).len(), 2, "the receiver's share");
    credit = 1 << 30;
    pump(&sending, &receiving, &mut credit);
    assert_eq!(input.queued_frames(2).len(), 2, "the sender's share came behind its barrier");
    assert_eq!(names(&input), ["0", "1", "2", "3", "|1", "5"]);
}

#[test]
fn word_of_a_barrier_that_does_not_fit_what_has_come_is_refused() {
    let (receiving, _input) = channel(ID, 1024);
    let frame = Frame::Overtaking { barrier: overtaking(1), first: 3 };
    let refused = receiving.push_received(NumberedFrame { sequence: 5, cost: 0, frame });
    assert_eq!(refused, Err(OutOfSequence { channel: ID, expected: 0, found: 3 }));
}

/// FLINK-27251: the timeout did not help a barrier that was stuck in an upstream output buffer.
#[test]
fn a_barrier_stuck_in_an_output_is_turned_there() {
    let (output, sending) = sending_channel(ID, 1 << 20);
    output.push(Frame::Batch(batch(100)));
    output.push(barrier(9));
    assert!(sending.pop_with_credit(&mut 0).is_none(), "without credit it is stuck");
    assert!(output.holds(CheckpointId(9)));
    let kept = output.turn(CheckpointId(9)).unwrap();
    assert_eq!((kept.first, kept.frames.len()), (0, 1));
    let frame = sending.pop_with_credit(&mut 0).unwrap().frame;
    assert!(matches!(frame, Frame::Overtaking { first: 0, .. }));
    assert_eq!(names(&sending), ["0", "|9"]);
    assert!(output.turn(CheckpointId(9)).is_none(), "it has left");
}

#[test]
fn without_credit_batches_wait_and_control_frames_pass_only_at_the_head() {
    let (output, input) = channel(ID, 1 << 20);
    output.push(barrier(1));
    output.push(Frame::Batch(batch(100)));
    output.push(Frame::Batch(batch(100)));
    output.push(barrier(2));
    let mut credit = 0;
    assert!(matches!(input.pop_with_credit(&mut credit).unwrap().frame, Frame::Barrier(_)));
    assert!(input.pop_with_credit(&mut credit).is_none());
    credit = 1;
    assert!(matches!(input.pop_with_credit(&mut credit).unwrap().frame, Frame::Batch(_)));
    assert_eq!(credit, 1 - batch(100).bytes() as i64);
    assert!(input.pop_with_credit(&mut credit).is_none(), "the barrier keeps its place behind the batch");
}

#[test]
fn a_gap_and_a_repetition_are_refused() {
    let (output, _input) = channel(ID, 1024);
    let frame = |sequence| NumberedFrame { sequence, cost: 0, frame: Frame::EndOfInput };
    output.push_received(frame(0)).unwrap();
    assert_eq!(output.push_received(frame(2)), Err(OutOfSequence { channel: ID, expected: 1, found: 2 }));
    assert_eq!(output.push_received(frame(0)), Err(OutOfSequence { channel: ID, expected: 1, found: 0 }));
    output.push_received(frame(1)).unwrap();
}

fn every_type() -> RecordBatch {
    let columns: [(&str, ArrayRef); 9] = [
        ("bigint", Arc::new(Int64Array::from(vec![Some(1), None, Some(i64::MIN)]))),
        ("boolean", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("double", Arc::new(Float64Array::from(vec![Some(1.5), None, Some(f64::NAN)]))),
        ("string", Arc::new(StringArray::from(vec![Some("a"), None, Some("a longer text than twelve bytes")]))),
        ("view", Arc::new(StringViewArray::from(vec![Some("a"), None, Some("a longer text than twelve bytes")]))),
        ("bytes", Arc::new(BinaryArray::from_opt_vec(vec![Some(b"x"), None, Some(b"")]))),
        ("date", Arc::new(Date32Array::from(vec![Some(1), None, Some(-1)]))),
        ("ts", Arc::new(TimestampMillisecondArray::from(vec![Some(1), None, Some(2)]))),
        ("decimal", Arc::new(Decimal128Array::from(vec![Some(10), None, Some(-7)]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn round_trip(rows: &RecordBatch, kinds: Option<Vec<u8>>) {
    let frame = Frame::Batch(Batch { rows: rows.clone(), kinds: kinds.map(UInt8Array::from) });
    let sent = NumberedFrame { sequence: 5, cost: 77, frame };
    let bytes = encode_frame(RUN, ID, &sent).unwrap();
    let (length, rest) = bytes.split_at(4);
    assert_eq!(u32::from_le_bytes(length.try_into().unwrap()) as usize, rest.len());
    let (header, received) = decode_frame(&bytes::Bytes::copy_from_slice(rest), &rows.schema()).unwrap();
    assert_eq!((header.run, header.channel, header.sequence, header.cost), (RUN, ID, 5, 77));
    let (Frame::Batch(sent), Frame::Batch(received)) = (sent.frame, received.frame) else { panic!("not rows") };
    assert_eq!(sent.rows, received.rows);
    assert_eq!(sent.kinds, received.kinds);
}

#[test]
fn batches_survive_the_wire() {
    let rows = every_type();
    round_trip(&rows, None);
    round_trip(&rows, Some(vec![0, 1, 3]));
    round_trip(&rows.slice(1, 2), Some(vec![2, 3]));
    round_trip(&rows.slice(0, 0), None);
}

#[test]
fn barriers_and_the_end_survive_the_wire() {
    let schema = batch(1).rows.schema();
    for checkpoint in [1, 9] {
        let frame = barrier(checkpoint);
        let Frame::Barrier(expected) = frame.clone() else { panic!() };
        let bytes = encode_frame(RUN, ID, &NumberedFrame { sequence: 0, cost: 0, frame }).unwrap();
        let (_, decoded) = decode_frame(&bytes::Bytes::copy_from_slice(&bytes[4..]), &schema).unwrap();
        assert!(matches!(decoded.frame, Frame::Barrier(found) if found == expected));
    }
    let frame = Frame::Overtaking { barrier: overtaking(3), first: 12 };
    let bytes = encode_frame(RUN, ID, &NumberedFrame { sequence: 17, cost: 0, frame }).unwrap();
    let (header, decoded) = decode_frame(&bytes::Bytes::copy_from_slice(&bytes[4..]), &schema).unwrap();
    assert_eq!(header.sequence, 17);
    assert!(matches!(decoded.frame, Frame::Overtaking { barrier, first: 12 } if barrier == overtaking(3)));
    let end = NumberedFrame { sequence: 1, cost: 0, frame: Frame::EndOfInput };
    let bytes = encode_frame(RUN, ID, &end).unwrap();
    let (_, decoded) = decode_frame(&bytes::Bytes::copy_from_slice(&bytes[4..]), &schema).unwrap();
    assert!(matches!(decoded.frame, Frame::EndOfInput));
}

#[test]
fn another_run_and_garbage_are_refused() {
    let numbered = NumberedFrame { sequence: 0, cost: 1, frame: Frame::Batch(batch(3)) };
    let bytes = encode_frame(RUN, ID, &numbered).unwrap();
    let header = decode_header(&bytes[4..]).unwrap();
    header.check_run(RUN).unwrap();
    let older = Run { attempt: Attempt(1), ..RUN };
    assert!(matches!(header.check_run(older), Err(FrameError::WrongRun { found: RUN, .. })));
    let schema = batch(1).rows.schema();
    for length in 0..bytes.len() - 4 - 16 {
        let cut = bytes::Bytes::copy_from_slice(&bytes[4..4 + length]);
        assert!(decode_frame(&cut, &schema).is_err(), "cut at {length}");
    }
    let mut newer = bytes[4..].to_vec();
    newer[0] = 2;
    assert!(matches!(decode_header(&newer), Err(FrameError::WrongVersion(2))));
}
