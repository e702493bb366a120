//! Lines as Flink prints them.

use super::{prefix, render};
use arrow::array::{Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt8Array};
use sluice_engine::batch::Batch;
use sluice_engine::operator::OperatorContext;
use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskIndex};
use std::sync::Arc;

fn context(subtask: u32, parallelism: u32) -> OperatorContext {
    OperatorContext {
        uid: OperatorUid::from("print"),
        subtask: SubtaskIndex(subtask),
        parallelism,
        key_groups: KeyGroupRange { start: 0, end: 128 },
        max_parallelism: 128,
        state_backend: sluice_engine::state::StateBackend::default(),
    }
}

#[test]
fn a_line_per_row_with_its_kind() {
    let rows = RecordBatch::try_from_iter([
        ("app", Arc::new(StringArray::from(vec![Some("app1"), None])) as Arc<dyn Array>),
        ("pv", Arc::new(Int64Array::from(vec![3, 4]))),
        ("ts", Arc::new(TimestampMillisecondArray::from(vec![1_704_110_400_123, 0]))),
    ])
    .unwrap();
    let batch = Batch { rows, kinds: Some(UInt8Array::from(vec![0, 3])) };
    assert_eq!(render("", &batch).unwrap(), "+I[app1, 3, 2024-01-01T12:00:00.123]\n-D[null, 4, 1970-01-01T00:00:00]\n");
}

#[test]
fn the_prefix_says_who_printed() {
    assert_eq!(prefix("", &context(0, 1)), "");
    assert_eq!(prefix("", &context(1, 2)), "2> ");
    assert_eq!(prefix("counts", &context(0, 1)), "counts> ");
    assert_eq!(prefix("counts", &context(1, 2)), "counts:2> ");
}
