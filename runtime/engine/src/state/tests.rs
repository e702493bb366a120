//! The table under churn, the isolation of snapshots, and the files.

mod all_kinds;
mod conformance;
mod fit;
mod memory;
mod prefix;

use super::file::{KEY_GROUP, read_keyed_state};
use super::*;
use crate::testing::{Random, restored, written};
use arrow::array::AsArray;
use arrow::array::{ArrayRef, Int32Array, Int64Array, StringArray};
use arrow::datatypes::Int64Type;
use arrow::datatypes::UInt16Type;
use bytes::Bytes;
use sluice_protocol::{OperatorUid, SubtaskIndex};
use std::collections::BTreeMap;

pub(super) fn layout(keys: &[(&str, DataType)]) -> Arc<TableLayout> {
    let column = |name: &str, word| AccumulatorColumn {
        name: name.to_owned(),
        data_type: DataType::Int64,
        word,
        null_while_zero: None,
    };
    Arc::new(TableLayout {
        keys: keys.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect(),
        accumulators: vec![column("n", 0)],
        words: 1,
        prefix: None,
        updated: None,
    })
}

fn all() -> KeyGroupRange {
    KeyGroupRange::of_subtask(SubtaskIndex(0), 1, 128)
}

pub(super) fn texts(keys: &[String]) -> RecordBatch {
    let column: ArrayRef = Arc::new(StringArray::from_iter_values(keys));
    RecordBatch::try_from_iter([("k", column)]).unwrap()
}

fn table(layout: &Arc<TableLayout>, key_groups: KeyGroupRange, max_parallelism: u16) -> Box<dyn KeyedTable> {
    Box::new(HashKeyedTable::new("counts", Arc::clone(layout), key_groups, max_parallelism))
}

/// Adds an amount to word 0 of the key of each row.
pub(super) fn add(table: &mut dyn KeyedTable, rows: &RecordBatch, amount: u64) {
    let columns: Vec<usize> = (0..table.layout().keys.len()).collect();
    let (mut touched, mut words) = (TouchedKeys::default(), Vec::new());
    table.touch(rows, &columns, &mut touched).unwrap();
    table.load(&touched, &mut words);
    let width = table.layout().words;
    touched.slots.iter().for_each(|slot| words[*slot as usize * width] += amount);
    table.store(&touched, &words, &vec![Fate::Write; touched.keys.len()]).unwrap();
}

fn remove(table: &mut dyn KeyedTable, rows: &RecordBatch) {
    let (mut touched, mut words) = (TouchedKeys::default(), Vec::new());
    table.touch(rows, &[0], &mut touched).unwrap();
    table.load(&touched, &mut words);
    table.store(&touched, &words, &vec![Fate::Remove; touched.keys.len()]).unwrap();
}

fn freeze(table: &mut dyn KeyedTable) -> Box<dyn SnapshotWriter> {
    table.freeze(CheckpointId(1)).unwrap()
}

/// Key and count of every row of a file.
fn content(frozen: &dyn SnapshotWriter) -> BTreeMap<String, i64> {
    let mut content = BTreeMap::new();
    let pieces = written(frozen).keyed;
    for batch in pieces.into_iter().flat_map(|piece| read_keyed_state(&Bytes::from(piece.bytes), usize::MAX).unwrap()) {
        for row in 0..batch.num_rows() {
            let key = arrow::util::display::array_value_to_string(batch.column(1), row).unwrap();
            let count = batch.column_by_name("n").unwrap().as_primitive::<Int64Type>().value(row);
            assert_eq!(content.insert(key, count), None, "a key stands once");
        }
    }
    content
}

#[test]
fn keys_come_and_go_at_random() {
    let mut random = Random(42);
    let mut table = table(&layout(&[("k", DataType::Utf8)]), all(), 128);
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for round in 0..300 {
        let keys: Vec<String> = (0..100).map(|_| format!("a key of some length {}", random.below(3000))).collect();
        let rows = texts(&keys);
        if round % 3 < 2 {
            add(table.as_mut(), &rows, 1);
            keys.into_iter().for_each(|key| *expected.entry(key).or_default() += 1);
        } else {
            remove(table.as_mut(), &rows);
            keys.iter().for_each(|key| {
                expected.remove(key);
            });
        }
        assert_eq!(table.len(), expected.len() as u64);
    }
    assert_eq!(content(freeze(table.as_mut()).as_ref()), expected);
}

#[test]
fn bigint_keys_come_and_go_with_the_null_among_them() {
    let mut random = Random(7);
    let mut table = table(&layout(&[("k", DataType::Int64)]), all(), 128);
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for round in 0..400 {
        let keys: Vec<Option<i64>> = (0..100).map(|_| Some(random.below(900) as i64).filter(|key| *key > 5)).collect();
        let column: ArrayRef = Arc::new(Int64Array::from(keys.clone()));
        let rows = RecordBatch::try_from_iter_with_nullable([("k", column, true)]).unwrap();
        let text = |key: &Option<i64>| key.map_or(String::new(), |key| key.to_string());
        if round % 2 == 0 {
            add(table.as_mut(), &rows, 1);
            keys.iter().for_each(|key| *expected.entry(text(key)).or_default() += 1);
        } else {
            remove(table.as_mut(), &rows);
            keys.iter().for_each(|key| {
                expected.remove(&text(key));
            });
        }
    }
    assert_eq!(content(freeze(table.as_mut()).as_ref()), expected);
}

#[test]
fn a_snapshot_keeps_what_it_froze() {
    let mut table = table(&layout(&[("k", DataType::Utf8)]), all(), 128);
    let keys = |range: std::ops::Range<u32>| texts(&range.map(|key| key.to_string()).collect::<Vec<_>>());
    add(table.as_mut(), &keys(0..5000), 1);
    let first = freeze(table.as_mut());
    add(table.as_mut(), &keys(0..6000), 10);
    let second = freeze(table.as_mut());
    remove(table.as_mut(), &keys(0..4000));
    assert!(
        content(first.as_ref()).into_iter().eq((0..5000).map(|key| (key.to_string(), 1)).collect::<BTreeMap<_, _>>())
    );
    drop(first);
    add(table.as_mut(), &keys(5999..6000), 100);
    let expected: BTreeMap<String, i64> =
        (0..6000).map(|key| (key.to_string(), if key < 5000 { 11 } else { 10 })).collect();
    assert_eq!(content(second.as_ref()), expected);
    assert_eq!(table.len(), 2000);
    assert_eq!(content(freeze(table.as_mut()).as_ref())["5999"], 110);
}

#[test]
fn files_are_sorted_by_key_group_and_read_in_part() {
    let layout = layout(&[("a", DataType::Int32), ("b", DataType::Utf8View)]);
    let a: ArrayRef = Arc::new(Int32Array::from_iter((0..200_000).map(|n| (n % 7 != 0).then_some(n))));
    let b: ArrayRef = Arc::new(StringArray::from_iter((0..200_000).map(|n| (n % 5 != 0).then(|| format!("text {n}")))));
    let rows = RecordBatch::try_from_iter_with_nullable([("a", a, true), ("b", b, true)]).unwrap();
    let mut table = self::table(&layout, all(), 128);
    add(table.as_mut(), &rows, 1);
    let keys = table.len();
    let piece = written(freeze(table.as_mut()).as_ref()).keyed.remove(0);
    let batches = read_keyed_state(&Bytes::from(piece.bytes.clone()), usize::MAX).unwrap();
    let files = [restored(&piece)];
    let schema = batches[0].schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, [KEY_GROUP, "a", "b", "n"]);
    let groups: Vec<u16> =
        batches.iter().flat_map(|batch| batch.column(0).as_primitive::<UInt16Type>().values().to_vec()).collect();
    assert!(groups.is_sorted());
    assert_eq!(groups.len() as u64, keys);

    let uid = OperatorUid::from("op");
    let mut total = 0;
    for index in 0..5 {
        let owned = KeyGroupRange::of_subtask(SubtaskIndex(index), 5, 128);
        let mut part = self::table(&layout, owned, 128);
        part.restore(&uid, &files).unwrap();
        total += part.len();
    }
    assert_eq!(total, keys);
    let mut whole = self::table(&layout, all(), 128);
    whole.restore(&uid, &files).unwrap();
    add(whole.as_mut(), &rows, 0);
    assert_eq!(whole.len(), keys, "every key was found again");
    let mut other = self::table(&self::layout(&[("a", DataType::Int64)]), all(), 128);
    let error = other.restore(&uid, &files).unwrap_err();
    assert!(error.to_string().contains("a Int32, b Utf8") && error.to_string().contains("a Int64"), "{error}");
    let mut groups = groups;
    *groups.last_mut().unwrap() = 0;
    let damaged = RestoredKeyed { bytes: with_groups(&batches, groups).into(), ..files[0].clone() };
    let error = self::table(&layout, all(), 128).restore(&uid, &[damaged]).unwrap_err();
    assert!(error.to_string().contains("'op' is damaged"), "{error}");
}

/// The file that these rows make with other key groups.
fn with_groups(batches: &[RecordBatch], groups: Vec<u16>) -> Vec<u8> {
    let rows = arrow::compute::concat_batches(batches[0].schema_ref(), batches).unwrap();
    let mut columns = rows.columns().to_vec();
    columns[0] = Arc::new(arrow::array::UInt16Array::from(groups));
    let rows = RecordBatch::try_new(rows.schema(), columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn a_row_of_another_subtask_is_an_error() {
    let owned = KeyGroupRange { start: 3, end: 4 };
    let mut table = table(&layout(&[("k", DataType::Utf8)]), owned, 128);
    let rows = texts(&(0..100).map(|key| key.to_string()).collect::<Vec<_>>());
    let error = table.touch(&rows, &[0], &mut TouchedKeys::default()).unwrap_err();
    assert!(matches!(error, TaskError::Internal(_)), "{error}");
}
