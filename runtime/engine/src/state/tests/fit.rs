//! Files whose columns or key groups are others than the table's: taken where nothing is lost, else refused by name.

use super::{all, layout, table};
use crate::operator::RestoredKeyed;
use crate::state::{AccumulatorColumn, KeyedTable, TableLayout, TouchedKeys};
use arrow::array::{
    ArrayRef, Decimal128Array, Float32Array, Int32Array, Int64Array, RecordBatch, StringArray, UInt16Array,
};
use arrow::datatypes::{DataType, Field};
use parquet::arrow::ArrowWriter;
use sluice_protocol::key_group::{self, encode};
use sluice_protocol::state::KeyedStateKind;
use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskIndex};
use std::sync::Arc;

fn column(name: &str, data_type: DataType, word: usize, null_while_zero: Option<usize>) -> AccumulatorColumn {
    AccumulatorColumn { name: name.to_owned(), data_type, word, null_while_zero }
}

/// A table with the BIGINT key `k` and these accumulators.
fn table_of(accumulators: Vec<AccumulatorColumn>, words: usize) -> Box<dyn KeyedTable> {
    let keys = vec![Field::new("k", DataType::Int64, true)];
    table(&Arc::new(TableLayout { keys, accumulators, words, prefix: None, updated: None }), all(), 128)
}

/// A file with the keys 1, 2, 3 and these columns.
fn file(columns: Vec<(&str, ArrayRef)>) -> [RestoredKeyed; 1] {
    let group = |key: i64| key_group::of_hash(key_group::hash(&encode::bigint(key)), 128).0;
    let groups: ArrayRef = Arc::new(UInt16Array::from_iter_values([1, 2, 3].map(group)));
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    file_with([("key_group", groups), ("k", keys)].into_iter().chain(columns).collect())
}

fn file_with(columns: Vec<(&str, ArrayRef)>) -> [RestoredKeyed; 1] {
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, it)| (name, it, true))).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    [RestoredKeyed { name: "counts".to_owned(), kind: KeyedStateKind::Full, divided_into: None, bytes: bytes.into() }]
}

fn numbers(values: [i64; 3]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// The words of key 2 after a restore.
fn restored(mut table: Box<dyn KeyedTable>, files: &[RestoredKeyed]) -> Vec<u64> {
    table.restore(&OperatorUid::from("op"), files).unwrap();
    assert_eq!(table.len(), 3);
    let rows = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from(vec![2])) as ArrayRef)]).unwrap();
    let (mut touched, mut words) = (TouchedKeys::default(), Vec::new());
    table.touch(&rows, &[0], &mut touched).unwrap();
    table.load(&touched, &mut words);
    words
}

fn refusal(mut table: Box<dyn KeyedTable>, files: &[RestoredKeyed]) -> String {
    table.restore(&OperatorUid::from("op"), files).unwrap_err().to_string()
}

#[test]
fn wider_types_are_taken() {
    let decimals = Decimal128Array::from(vec![100, -250, 3]).with_precision_and_scale(10, 2).unwrap();
    let files = file(vec![
        ("n", Arc::new(Int32Array::from(vec![7, -8, 9]))),
        ("f", Arc::new(Float32Array::from(vec![0.5, -1.5, 2.5]))),
        ("d", Arc::new(decimals)),
    ]);
    let accumulators = vec![
        column("n", DataType::Int64, 0, None),
        column("f", DataType::Float64, 1, None),
        column("d", DataType::Decimal128(38, 2), 2, None),
    ];
    let [low, high] = crate::state::file::decimal_words(-250);
    assert_eq!(restored(table_of(accumulators, 4), &files), [(-8_i64) as u64, (-1.5_f64).to_bits(), low, high]);
}

#[test]
fn narrower_and_other_types_are_refused_naming_both() {
    for (name, stored, needed, words) in [
        (
            "n",
            Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef,
            DataType::Float64,
            "Int64 in the snapshot, but Float64",
        ),
        ("n", Arc::new(StringArray::from(vec!["1", "2", "3"])), DataType::Int64, "Utf8 in the snapshot, but Int64"),
        (
            "n",
            Arc::new(Decimal128Array::from(vec![1, 2, 3]).with_precision_and_scale(38, 2).unwrap()),
            DataType::Decimal128(38, 4),
            "Decimal128(38, 2) in the snapshot, but Decimal128(38, 4)",
        ),
    ] {
        let error = refusal(table_of(vec![column(name, needed, 0, None)], 2), &file(vec![(name, stored)]));
        assert!(error.contains("operator 'op'") && error.contains("state 'counts'"), "{error}");
        assert!(error.contains("column 'n'") && error.contains(words), "{error}");
        assert!(error.contains("Keep the column as it was, or give the changed operator another uid"), "{error}");
    }
}

/// A new sum begins at NULL: its count of values comes with it.
#[test]
fn an_added_column_that_may_be_null_is_null_and_others_are_refused() {
    let rows = || column("n", DataType::Int64, 0, None);
    let sum = vec![rows(), column("s", DataType::Int64, 1, Some(2)), column("s$values", DataType::Int64, 2, None)];
    assert_eq!(restored(table_of(sum, 3), &file(vec![("n", numbers([4, 5, 6]))])), [5, 0, 0]);
    let count = vec![rows(), column("c", DataType::Int64, 1, None)];
    let error = refusal(table_of(count, 2), &file(vec![("n", numbers([4, 5, 6]))]));
    assert!(error.contains("column 'c' (Int64) is not in the snapshot and cannot be NULL"), "{error}");
}

#[test]
fn a_column_that_the_program_does_not_have_is_refused() {
    let files = file(vec![("n", numbers([4, 5, 6])), ("s", numbers([1, 1, 1]))]);
    let error = refusal(table_of(vec![column("n", DataType::Int64, 0, None)], 1), &files);
    assert!(error.contains("column 's' (Int64) is not in the program any more"), "{error}");
}

#[test]
fn the_number_of_rows_is_found_under_either_name_and_columns_in_any_order() {
    for (stored, needed) in [("$rows", "COUNT(*)"), ("COUNT(*)", "$rows"), ("COUNT(*)", "COUNT(*)")] {
        let files = file(vec![(stored, numbers([4, 5, 6])), ("b", numbers([10, 20, 30])), ("a", numbers([7, 8, 9]))]);
        let accumulators = vec![
            column(needed, DataType::Int64, 0, None),
            column("a", DataType::Int64, 1, None),
            column("b", DataType::Int64, 2, None),
        ];
        assert_eq!(restored(table_of(accumulators, 3), &files), [5, 8, 20], "{stored} as {needed}");
    }
}

#[test]
fn a_key_keeps_its_name_and_type() {
    let groups: ArrayRef = Arc::new(UInt16Array::from(vec![1]));
    let files = file_with(vec![
        ("key_group", groups),
        ("k", Arc::new(Int32Array::from(vec![1]))),
        ("n", Arc::new(Int64Array::from(vec![1]))),
    ]);
    let error = refusal(table(&layout(&[("k", DataType::Int64)]), all(), 128), &files);
    assert!(error.contains("column 'k' is a key and is Int32 in the snapshot, but Int64 in the program"), "{error}");
    let error = refusal(table(&layout(&[("other", DataType::Int32)]), all(), 128), &files);
    assert!(error.contains("the key column 'other' (Int32) is not in the snapshot"), "{error}");
}

/// Whatever number of key groups a file was divided into, each key comes to its subtask and to no other. With so many keys
/// one key group fills thousands of rows, with so few each its own.
#[test]
fn a_file_of_another_number_of_key_groups_is_divided_anew() {
    let layout = layout(&[("k", DataType::Utf8)]);
    for keys in [150_000_u64, 20] {
        let mut stored = table(&layout, all(), 128);
        let rows = super::texts(&(0..keys).map(|key| format!("key {key}")).collect::<Vec<_>>());
        super::add(stored.as_mut(), &rows, 3);
        let pieces = crate::testing::written(super::freeze(stored.as_mut()).as_ref()).keyed;
        let anew = |piece| RestoredKeyed { divided_into: Some(128), ..crate::testing::restored(piece) };
        let files: Vec<RestoredKeyed> = pieces.iter().map(anew).collect();
        for (max_parallelism, parallelism) in [(64, 1), (64, 5), (300, 7), (32_768, 3), (1, 1)] {
            let mut total = 0;
            for index in 0..parallelism {
                let owned = KeyGroupRange::of_subtask(SubtaskIndex(index), parallelism, max_parallelism);
                let mut part = table(&layout, owned, max_parallelism);
                part.restore(&OperatorUid::from("op"), &files).unwrap();
                total += part.len();
            }
            assert_eq!(total, keys, "{max_parallelism} key groups over {parallelism} subtasks");
        }
    }
}
