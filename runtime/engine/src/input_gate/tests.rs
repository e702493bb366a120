//! Interleavings of rows and barriers on two channels, worked by hand.

use super::*;
use crate::channel::{ChannelId, OutputChannel, channel};
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use sluice_protocol::SubtaskIndex;
use std::sync::Arc;

fn gate(channels: u32) -> (Vec<OutputChannel>, InputGate) {
    let (outputs, inputs) = (0..channels)
        .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
        .unzip();
    (outputs, InputGate::new(inputs))
}

fn row(value: i64) -> Frame {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![value]));
    Frame::Batch(Batch::inserts(RecordBatch::try_from_iter([("v", column)]).unwrap()))
}

fn barrier(checkpoint: u64) -> Frame {
    let checkpoint = CheckpointId(checkpoint);
    Frame::Barrier(Barrier::aligned(checkpoint, Timestamp(0), None))
}

/// Everything the gate has now, in short form: `5` a row, `|2` a barrier, `x1` overtaken, `end`.
fn read(gate: &mut InputGate, now: u64) -> Vec<String> {
    std::iter::from_fn(|| gate.poll(Timestamp(now)))
        .map(|event| match event {
            GateEvent::Batch(batch) => batch.rows.column(0).as_primitive::<Int64Type>().value(0).to_string(),
            GateEvent::Aligned { barrier, .. } => format!("|{}", barrier.checkpoint),
            GateEvent::Overtaken(checkpoint) => format!("x{checkpoint}"),
            GateEvent::EndOfInput => "end".to_owned(),
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
