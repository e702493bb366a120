//! The table under churn, the isolation of snapshots, and the files.

use super::file::{KEY_GROUP, read_keyed_state};
use super::*;
use crate::testing::Random;
use arrow::array::{ArrayRef, Int32Array, Int64Array, StringArray};
use arrow::datatypes::UInt16Type;
use bytes::Bytes;
use sluice_protocol::{OperatorUid, SubtaskIndex};
use std::collections::BTreeMap;

fn layout(keys: &[(&str, DataType)]) -> Arc<TableLayout> {
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
    })
}

fn all() -> KeyGroupRange {
    KeyGroupRange::of_subtask(SubtaskIndex(0), 1, 128)
}

fn texts(keys: &[String]) -> RecordBatch {
    let column: ArrayRef = Arc::new(StringArray::from_iter_values(keys));
    RecordBatch::try_from_iter([("k", column)]).unwrap()
}

fn add(table: &mut KeyedTable, rows: &RecordBatch, amount: u64) {
    let mut touched = TouchedKeys::default();
    table.touch(rows, &[0], &mut touched).unwrap();
    for slot in &touched.slots {
        table.accumulators_mut(touched.keys[*slot as usize])[0] += amount;
    }
}

/// Key and count of every row of a file.
fn content(frozen: &FrozenTable) -> BTreeMap<String, i64> {
    let mut content = BTreeMap::new();
    for batch in read_keyed_state(&Bytes::from(frozen.encode().unwrap()), usize::MAX).unwrap() {
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
    let mut table = KeyedTable::new(layout(&[("k", DataType::Utf8)]), all(), 128);
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for round in 0..300 {
        let keys: Vec<String> = (0..100).map(|_| format!("a key of some length {}", random.below(3000))).collect();
        let rows = texts(&keys);
        if round % 3 < 2 {
            add(&mut table, &rows, 1);
            keys.into_iter().for_each(|key| *expected.entry(key).or_default() += 1);
        } else {
            let mut touched = TouchedKeys::default();
            table.touch(&rows, &[0], &mut touched).unwrap();
            table.remove(&mut touched.keys);
            keys.iter().for_each(|key| {
                expected.remove(key);
            });
        }
        assert_eq!(table.len(), expected.len());
    }
    assert_eq!(content(&table.freeze()), expected);
}

#[test]
fn bigint_keys_come_and_go_with_the_null_among_them() {
    let mut random = Random(7);
    let mut table = KeyedTable::new(layout(&[("k", DataType::Int64)]), all(), 128);
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for round in 0..400 {
        let keys: Vec<Option<i64>> = (0..100).map(|_| Some(random.below(900) as i64).filter(|key| *key > 5)).collect();
        let column: ArrayRef = Arc::new(Int64Array::from(keys.clone()));
        let rows = RecordBatch::try_from_iter_with_nullable([("k", column, true)]).unwrap();
        let text = |key: &Option<i64>| key.map_or(String::new(), |key| key.to_string());
        if round % 2 == 0 {
            add(&mut table, &rows, 1);
            keys.iter().for_each(|key| *expected.entry(text(key)).or_default() += 1);
        } else {
            let mut touched = TouchedKeys::default();
            table.touch(&rows, &[0], &mut touched).unwrap();
            table.remove(&mut touched.keys);
            keys.iter().for_each(|key| {
                expected.remove(&text(key));
            });
        }
    }
    assert_eq!(content(&table.freeze()), expected);
}

#[test]
fn a_snapshot_keeps_what_it_froze() {
    let mut table = KeyedTable::new(layout(&[("k", DataType::Utf8)]), all(), 128);
    let keys = |range: std::ops::Range<u32>| texts(&range.map(|key| key.to_string()).collect::<Vec<_>>());
    add(&mut table, &keys(0..5000), 1);
    let first = table.freeze();
    add(&mut table, &keys(0..6000), 10);
    let second = table.freeze();
    let mut touched = TouchedKeys::default();
    table.touch(&keys(0..4000), &[0], &mut touched).unwrap();
    table.remove(&mut touched.keys);
    assert!(content(&first).into_iter().eq((0..5000).map(|key| (key.to_string(), 1)).collect::<BTreeMap<_, _>>()));
    drop(first);
    add(&mut table, &keys(5999..6000), 100);
    let expected: BTreeMap<String, i64> =
        (0..6000).map(|key| (key.to_string(), if key < 5000 { 11 } else { 10 })).collect();
    assert_eq!(content(&second), expected);
    assert_eq!(table.len(), 2000);
    assert_eq!(content(&table.freeze())["5999"], 110);
}

#[test]
fn files_are_sorted_by_key_group_and_read_in_part() {
    let layout = layout(&[("a", DataType::Int32), ("b", DataType::Utf8View)]);
    let a: ArrayRef = Arc::new(Int32Array::from_iter((0..200_000).map(|n| (n % 7 != 0).then_some(n))));
    let b: ArrayRef = Arc::new(StringArray::from_iter((0..200_000).map(|n| (n % 5 != 0).then(|| format!("text {n}")))));
    let rows = RecordBatch::try_from_iter_with_nullable([("a", a, true), ("b", b, true)]).unwrap();
    let mut table = KeyedTable::new(Arc::clone(&layout), all(), 128);
    let mut touched = TouchedKeys::default();
    table.touch(&rows, &[0, 1], &mut touched).unwrap();
    for (row, slot) in touched.slots.iter().enumerate() {
        table.accumulators_mut(touched.keys[*slot as usize])[0] += row as u64;
    }
    let keys = table.len();
    let file = Bytes::from(table.freeze().encode().unwrap());
    let batches = read_keyed_state(&file, usize::MAX).unwrap();
    let schema = batches[0].schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, [KEY_GROUP, "a", "b", "n"]);
    let groups: Vec<u16> =
        batches.iter().flat_map(|batch| batch.column(0).as_primitive::<UInt16Type>().values().to_vec()).collect();
    assert!(groups.is_sorted());
    assert_eq!(groups.len(), keys);

    let uid = OperatorUid::from("op");
    let mut total = 0;
    for index in 0..5 {
        let owned = KeyGroupRange::of_subtask(SubtaskIndex(index), 5, 128);
        let mut part = KeyedTable::new(Arc::clone(&layout), owned, 128);
        part.restore(&uid, &file).unwrap();
        total += part.len();
    }
    assert_eq!(total, keys);
    let mut whole = KeyedTable::new(layout, all(), 128);
    whole.restore(&uid, &file).unwrap();
    whole.touch(&rows, &[0, 1], &mut touched).unwrap();
    assert_eq!(whole.len(), keys, "every key was found again");
    let error = KeyedTable::new(self::layout(&[("a", DataType::Int64)]), all(), 128).restore(&uid, &file).unwrap_err();
    assert!(error.to_string().contains("a Int32, b Utf8") && error.to_string().contains("a Int64"), "{error}");
    let mut other = KeyedTable::new(Arc::clone(&whole.layout), KeyGroupRange { start: 0, end: 64 }, 64);
    assert!(other.restore(&uid, &file).unwrap_err().to_string().contains("maxParallelism"));
}

#[test]
fn a_row_of_another_subtask_is_an_error() {
    let owned = KeyGroupRange { start: 3, end: 4 };
    let mut table = KeyedTable::new(layout(&[("k", DataType::Utf8)]), owned, 128);
    let rows = texts(&(0..100).map(|key| key.to_string()).collect::<Vec<_>>());
    let error = table.touch(&rows, &[0], &mut TouchedKeys::default()).unwrap_err();
    assert!(matches!(error, TaskError::Internal(_)), "{error}");
}
