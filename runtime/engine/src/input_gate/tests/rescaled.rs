//! Random channels in flight, some idle, restored twice at other parallelisms: no row comes behind what its channel had said
//! of time before it.

use super::{channel, record, row, with};
use crate::channel::{ChannelId, Frame, OutputChannel};
use crate::event_time::WatermarkStatus;
use crate::in_flight::{InFlight, RestoredChannel};
use crate::input_gate::{GateEvent, InputGate};
use crate::testing::Random;
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use sluice_protocol::message::Alignment as Mode;
use sluice_protocol::{SubtaskIndex, TimeSpan, Timestamp};
use std::collections::VecDeque;

const PRODUCERS: u32 = 3;

fn number(frame: &Frame) -> Option<i64> {
    match frame {
        Frame::Batch(batch) => Some(batch.rows.column(0).as_primitive::<Int64Type>().value(0)),
        _ => None,
    }
}

/// What a producer has said to one consumer, and its rows by their numbers; `said` gets the watermark before each.
fn spoken(random: &mut Random, said: &mut Vec<i64>) -> VecDeque<Frame> {
    let mut watermark = random.below(60) as i64;
    let mut idle = random.below(2) == 0;
    let status = |watermark, idle| Frame::Watermark(WatermarkStatus { watermark, idle });
    let mut frames = VecDeque::from([status(watermark, idle)]);
    for _ in 0..random.below(7) {
        if random.below(3) == 0 {
            // It comes no nearer while it is idle.
            watermark += if idle { 0 } else { random.below(30) as i64 };
            idle = !idle;
            frames.push_back(status(watermark, idle));
        } else {
            if std::mem::take(&mut idle) {
                frames.push_back(status(watermark, false));
            }
            frames.push_back(row(said.len() as i64));
            said.push(watermark);
        }
    }
    frames
}

/// A subtask that reads these queues, of their rows those that it owns.
fn subtask(queues: &[RestoredChannel], owns: impl Fn(i64) -> bool) -> (Vec<OutputChannel>, InputGate) {
    let (outputs, inputs) = (0..PRODUCERS)
        .map(|from| channel(ChannelId { edge: 0, from: SubtaskIndex(from), to: SubtaskIndex(0) }, 1 << 20))
        .unzip();
    let own = queues.iter().map(|queue| RestoredChannel {
        frames: queue.frames.iter().filter(|frame| number(frame).is_none_or(&owns)).cloned().collect(),
        producers: queue.producers.clone(),
        ..*queue
    });
    (outputs, InputGate::new(inputs, own.collect(), 1 << 20))
}

/// Reads so many events; says which rows were among them.
fn check(gate: &mut InputGate, events: usize, said: &[i64], what: &str) -> Vec<i64> {
    let (mut watermark, mut rows) = (i64::MIN, Vec::new());
    for _ in 0..events {
        match gate.poll(Timestamp(0)) {
            None => break,
            Some(GateEvent::Watermark(status)) => watermark = status.watermark,
            Some(GateEvent::Batch { batch, .. }) => {
                let row = number(&Frame::Batch(batch)).unwrap();
                let before = said[row as usize];
                assert!(watermark <= before, "{what}: row {row}, behind {before}, comes behind {watermark}");
                rows.push(row);
            }
            Some(other) => panic!("{what}: {other:?}"),
        }
    }
    rows
}

fn saved(subtask: u32, in_flight: Vec<InFlight>) -> impl Iterator<Item = RestoredChannel> {
    in_flight.into_iter().map(move |InFlight { channel, age, first, frames }| RestoredChannel {
        consumer: SubtaskIndex(subtask),
        channel,
        producers: 0..PRODUCERS,
        input: 0,
        age,
        first,
        frames: frames.into(),
    })
}

#[test]
fn rows_in_flight_stay_in_time_through_two_restores_at_other_parallelisms() {
    for seed in 1..400 {
        let (mut random, mut said) = (Random(seed * 7919), Vec::new());
        let first = (0..PRODUCERS).flat_map(|from| (0..3).map(move |consumer| (from, consumer)));
        let first: Vec<RestoredChannel> = first
            .map(|(from, consumer)| RestoredChannel {
                consumer: SubtaskIndex(consumer),
                frames: spoken(&mut random, &mut said),
                producers: 0..PRODUCERS,
                ..super::restored(0, 0, from, 0, 0..0)
            })
            .collect();
        let (mut second, mut read) = (Vec::new(), Vec::new());
        let halves = 1 + random.below(2) as i64;
        for half in 0..halves {
            let (outputs, mut gate) = subtask(&first, |row| row % halves == half);
            read.extend(check(&mut gate, random.below(20) as usize, &said, &format!("seed {seed}, first")));
            for output in &outputs {
                output.push_ahead(with(Mode::Unaligned { after: TimeSpan(0) }, 1));
            }
            second.extend(saved(half as u32, record(&mut gate)));
        }
        let parts = 1 + random.below(3) as i64;
        for part in 0..parts {
            let (_outputs, mut gate) = subtask(&second, |row| row / 2 % parts == part);
            read.extend(check(&mut gate, usize::MAX, &said, &format!("seed {seed}, second")));
        }
        read.sort_unstable();
        assert!(read.iter().copied().eq(0..said.len() as i64), "seed {seed}: each row once: {read:?}");
    }
}
