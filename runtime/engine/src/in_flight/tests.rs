//! What was in flight survives storage, is divided by key group, and is refused where it does not fit.

use super::*;
use crate::testing::connectors::{numbers, schema};
use crate::testing::lines;
use arrow::array::UInt8Array;
use arrow::datatypes::{DataType, Field};
use sluice_protocol::SubtaskIndex;

fn in_flight() -> InFlight {
    let kinds = UInt8Array::from_iter_values((0..50).map(|row| row % 4));
    let changes = Batch { rows: numbers(100..150, 1000), kinds: Some(kinds) };
    let channel = ChannelId { edge: 0, from: SubtaskIndex(1), to: SubtaskIndex(0) };
    InFlight {
        channel,
        age: 0,
        first: 7,
        frames: [Batch::inserts(numbers(0..100, 1000)), changes].map(Frame::Batch).into(),
    }
}

fn read(partitioning: &Partitioning, subtask: u32, parallelism: u32) -> Vec<String> {
    let bytes = Bytes::from(in_flight().encode().unwrap());
    let share = Share { partitioning, subtask: SubtaskIndex(subtask), parallelism, max_parallelism: 128 };
    decode(&bytes, &schema(), share, "a -> b").unwrap().iter().filter_map(Frame::batch).flat_map(lines).collect()
}

#[test]
fn what_was_stored_is_read_back_with_its_row_kinds() {
    let stored: Vec<String> = in_flight().batches().flat_map(lines).collect();
    assert_eq!(stored.len(), 150);
    assert_eq!(read(&Partitioning::Rebalance, 0, 3), stored, "all rows of a channel that is not keyed");
    assert_eq!(read(&Partitioning::Hash { keys: vec![0] }, 0, 1), stored);
}

#[test]
fn each_row_goes_to_the_one_subtask_that_owns_its_key_group_and_keeps_its_order() {
    let keyed = Partitioning::Hash { keys: vec![0] };
    let stored: Vec<String> = in_flight().batches().flat_map(lines).collect();
    for parallelism in [2, 3, 7] {
        let shares: Vec<Vec<String>> = (0..parallelism).map(|subtask| read(&keyed, subtask, parallelism)).collect();
        assert!(shares.iter().all(|share| share.len() < stored.len()));
        for share in &shares {
            let in_order: Vec<&String> = stored.iter().filter(|line| share.contains(line)).collect();
            assert_eq!(in_order, share.iter().collect::<Vec<_>>());
        }
        let mut all: Vec<String> = shares.concat();
        all.sort();
        let mut expected = stored.clone();
        expected.sort();
        assert_eq!(all, expected, "at parallelism {parallelism}");
    }
}

#[test]
fn another_schema_and_damage_are_refused_by_name() {
    let bytes = Bytes::from(in_flight().encode().unwrap());
    let partitioning = &Partitioning::Rebalance;
    let share = Share { partitioning, subtask: SubtaskIndex(0), parallelism: 1, max_parallelism: 128 };
    let other: SchemaRef = Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true)]));
    let error = decode(&bytes, &other, share, "views -> counts").unwrap_err().to_string();
    assert!(error.contains("edge 'views -> counts' with columns (k Int64, v Int64)"), "{error}");
    assert!(error.contains("starts from a savepoint"), "{error}");
    for length in [0, 10, 20, 300, bytes.len() - 20] {
        let error = decode(&bytes.slice(..length), &schema(), share, "e").unwrap_err();
        assert!(matches!(error, TaskError::IncompatibleState(_)), "cut at {length}: {error}");
    }
    for at in [HEADER - 1, HEADER, 300, bytes.len() - 1] {
        let mut other = bytes.to_vec();
        other[at] ^= 1;
        let what = check(&other.into()).unwrap_err();
        assert!(
            matches!(&what, Unreadable::Damaged(text) if text.contains("checksum")),
            "another byte at {at}: {what}"
        );
    }
}

#[test]
fn a_newer_version_is_told_from_damage() {
    let mut newer = in_flight().encode().unwrap();
    newer[8] = 3;
    let newer = Bytes::from(newer);
    assert_eq!(check(&newer), Err(Unreadable::NewerVersion(3)));
    let error = super::read(&newer, "a -> b").unwrap_err();
    assert!(
        error.to_string().starts_with("stored batches of edge 'a -> b' cannot be read: they have format version 3")
    );
    assert!(error.to_string().ends_with("or choose an older snapshot") && !error.to_string().contains("damaged"));
}

#[test]
fn what_was_stored_is_shown_without_the_program() {
    let (stored, bytes) = (in_flight(), Bytes::from(in_flight().encode().unwrap()));
    let read = super::read(&bytes, "a -> b").unwrap();
    assert_eq!(read.iter().map(lines).collect::<Vec<_>>(), stored.batches().map(lines).collect::<Vec<_>>());
}
