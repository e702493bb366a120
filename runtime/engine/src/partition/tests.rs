//! Every row reaches the subtask that owns its key group, once, in order.

use super::*;
use crate::channel::{ChannelId, InputChannel, channel};
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use sluice_protocol::key_group::{self, encode};
use sluice_protocol::{KeyGroupRange, SubtaskIndex};
use std::sync::Arc;

fn writer(partitioning: Partitioning, targets: u32) -> (EdgeWriter, Vec<InputChannel>) {
    let (outputs, inputs) = (0..targets)
        .map(|to| channel(ChannelId { edge: 0, from: SubtaskIndex(0), to: SubtaskIndex(to) }, 1 << 20))
        .unzip();
    (EdgeWriter::new(EdgeOutput { partitioning, channels: outputs }, 128), inputs)
}

fn numbers(range: std::ops::Range<i64>) -> Batch {
    let key: ArrayRef = Arc::new(Int64Array::from_iter_values(range.clone().map(|n| n % 97)));
    let value: ArrayRef = Arc::new(Int64Array::from_iter_values(range));
    Batch::inserts(RecordBatch::try_from_iter([("k", key), ("v", value)]).unwrap())
}

fn drain(input: &InputChannel) -> Vec<Batch> {
    std::iter::from_fn(|| input.pop())
        .map(|numbered| match numbered.frame {
            Frame::Batch(batch) => batch,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn column(batches: &[Batch], index: usize) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.rows.column(index).as_primitive::<Int64Type>().values().to_vec()).collect()
}

#[test]
fn a_hash_edge_sends_each_key_to_the_owner_of_its_key_group() {
    let (mut writer, inputs) = writer(Partitioning::Hash { keys: vec![0] }, 3);
    for start in [0, 5000, 5010] {
        writer.write(numbers(start..start + 3000)).unwrap();
    }
    writer.flush().unwrap();
    let mut total = 0;
    for (index, input) in (0_u32..).zip(&inputs) {
        let owned = KeyGroupRange::of_subtask(SubtaskIndex(index), 3, 128);
        let batches = drain(input);
        let (keys, values) = (column(&batches, 0), column(&batches, 1));
        assert!(keys.iter().all(|k| owned.contains(key_group::of_hash(key_group::hash(&encode::bigint(*k)), 128))));
        let expected: Vec<i64> = [0, 5000, 5010]
            .into_iter()
            .flat_map(|start| start..start + 3000)
            .filter(|n| owned.contains(key_group::of_hash(key_group::hash(&encode::bigint(n % 97)), 128)))
            .collect();
        assert_eq!(values, expected);
        total += values.len();
    }
    assert_eq!(total, 9000);
}

#[test]
fn rows_of_one_target_pass_without_a_copy() {
    let (mut writer, inputs) = writer(Partitioning::Hash { keys: vec![0] }, 2);
    let key: ArrayRef = Arc::new(Int64Array::from(vec![5; 2000]));
    let batch = Batch::inserts(RecordBatch::try_from_iter([("k", Arc::clone(&key))]).unwrap());
    writer.write(batch).unwrap();
    let sent: Vec<Batch> = inputs.iter().flat_map(drain).collect();
    assert_eq!(sent.len(), 1);
    let original = key.as_primitive::<Int64Type>().values().as_ptr();
    assert_eq!(sent[0].rows.column(0).as_primitive::<Int64Type>().values().as_ptr(), original);
}

#[test]
fn small_pieces_linger_until_there_are_enough_or_a_control_frame_comes() {
    let (mut writer, inputs) = writer(Partitioning::Forward, 1);
    for start in 0..10 {
        writer.write(numbers(start * 100..start * 100 + 100)).unwrap();
    }
    assert!(writer.lingers() && inputs[0].is_empty());
    writer.write(numbers(1000..1100)).unwrap();
    assert!(!writer.lingers());
    writer.write(numbers(1100..1101)).unwrap();
    writer.control(&Frame::EndOfInput).unwrap();
    let frames: Vec<Frame> = std::iter::from_fn(|| inputs[0].pop()).map(|numbered| numbered.frame).collect();
    let [Frame::Batch(first), Frame::Batch(second), Frame::EndOfInput] = frames.as_slice() else {
        panic!("{frames:?}")
    };
    assert_eq!(column(&[first.clone(), second.clone()], 1), (0..1101).collect::<Vec<_>>());
}

#[test]
fn kinds_stay_with_their_rows() {
    let (mut writer, inputs) = writer(Partitioning::Hash { keys: vec![0] }, 4);
    let key: ArrayRef = Arc::new(StringArray::from_iter_values((0..100).map(|n| format!("key {n}"))));
    let value: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let rows = RecordBatch::try_from_iter([("k", key), ("v", value)]).unwrap();
    let kinds = UInt8Array::from_iter_values((0..100).map(|n| n % 4));
    writer.write(Batch { rows: rows.clone(), kinds: Some(kinds) }).unwrap();
    writer.write(Batch::inserts(rows)).unwrap();
    writer.flush().unwrap();
    for batch in inputs.iter().flat_map(drain) {
        let values = batch.rows.column(1).as_primitive::<Int64Type>().values().to_vec();
        let half = values.len() / 2;
        let expected: Vec<u8> =
            values.iter().enumerate().map(|(at, n)| if at < half { (n % 4) as u8 } else { 0 }).collect();
        assert_eq!(batch.kinds.unwrap().values().to_vec(), expected);
    }
}

#[test]
fn rebalance_takes_turns_and_broadcast_sends_to_all() {
    let (mut writer, inputs) = writer(Partitioning::Rebalance, 2);
    for start in 0..4 {
        writer.write(numbers(start * 2000..start * 2000 + 2000)).unwrap();
    }
    assert_eq!(column(&drain(&inputs[0]), 1), (0..2000).chain(4000..6000).collect::<Vec<_>>());
    assert_eq!(drain(&inputs[1]).len(), 2);
    let (mut writer, inputs) = self::writer(Partitioning::Broadcast, 2);
    writer.write(numbers(0..2000)).unwrap();
    assert_eq!(inputs.iter().map(|input| column(&drain(input), 1).len()).collect::<Vec<_>>(), [2000, 2000]);
}
