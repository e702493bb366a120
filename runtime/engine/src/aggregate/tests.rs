//! Changelogs of a GROUP BY against counts and sums computed by plain maps.

mod kinds;
mod ttl;

use super::*;
use crate::batch::RowKind::{self, Delete, Insert, UpdateAfter, UpdateBefore};
use crate::operator::{OperatorState, RestoredKeyed};
use crate::testing::{Collected, Random, View, context, lines};
use crate::testing::{restored, written};
use arrow::array::{
    ArrayRef, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, UInt8Array,
};
use sluice_protocol::key_group::{self, encode};
use std::collections::BTreeMap;

fn call(kind: AggregateKind, argument: impl Into<Option<usize>>, name: &str) -> AggregateCall {
    AggregateCall::new(kind, argument.into(), name)
}

/// `SELECT k, COUNT(*) AS n, SUM(v) AS s FROM … GROUP BY k`.
fn count_and_sum(input: &SchemaRef, emit_update_before: bool) -> GroupAggregateFactory {
    let calls = vec![call(AggregateKind::Count, None, "n"), call(AggregateKind::Sum, 1, "s")];
    let input = SchemaRef::clone(input);
    let key_names = vec!["k".to_owned()];
    let spec =
        GroupAggregateSpec { input, keys: vec![0], key_names, calls, emit_update_before, changelog: true, ttl: None };
    GroupAggregateFactory::new(spec).unwrap()
}

fn opened(factory: &GroupAggregateFactory, index: u32, parallelism: u32, state: RestoredState) -> Box<dyn Operator> {
    let mut operator = factory.create().unwrap();
    operator.open(&context(index, parallelism), state).unwrap();
    operator
}

fn rows(rows: &[(i64, Option<i64>)]) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)));
    let values: ArrayRef = Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>());
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("v", values, true)]).unwrap()
}

fn changes(kinds: &[RowKind], batch: RecordBatch) -> Batch {
    let kinds = UInt8Array::from_iter_values(kinds.iter().map(|kind| *kind as u8));
    Batch { rows: batch, kinds: Some(kinds) }
}

fn process(operator: &mut dyn Operator, batch: Batch) -> Vec<String> {
    let mut out = Collected::default();
    operator.process(batch, &mut out).unwrap();
    out.0.iter().flat_map(lines).collect()
}

#[test]
fn a_batch_emits_the_net_change_of_each_key() {
    let factory = count_and_sum(&rows(&[]).schema(), true);
    let mut operator = opened(&factory, 0, 1, RestoredState::default());
    let first = process(operator.as_mut(), Batch::inserts(rows(&[(1, Some(10)), (2, None), (1, Some(5))])));
    assert_eq!(first, ["+I 1 2 15", "+I 2 1 NULL"]);
    let second = process(operator.as_mut(), Batch::inserts(rows(&[(2, Some(7)), (3, Some(1))])));
    assert_eq!(second, ["-U 2 1 NULL", "+U 2 2 7", "+I 3 1 1"]);
    let retracted = changes(&[Delete, Delete, Insert], rows(&[(3, Some(1)), (1, Some(10)), (1, Some(10))]));
    assert_eq!(process(operator.as_mut(), retracted), ["-D 3 1 1"], "1 is as it was");
    let back = changes(&[UpdateBefore, UpdateAfter], rows(&[(2, Some(7)), (2, Some(9))]));
    assert_eq!(process(operator.as_mut(), back), ["-U 2 2 7", "+U 2 2 9"]);
    let within = changes(&[Insert, Delete], rows(&[(4, Some(1)), (4, Some(1))]));
    assert_eq!(process(operator.as_mut(), within), [""; 0], "a group that came and went");
    assert_eq!(process(operator.as_mut(), changes(&[Delete], rows(&[(5, Some(1))]))), [""; 0]);
    assert_eq!(process(operator.as_mut(), Batch::inserts(rows(&[(5, Some(2))]))), ["+I 5 1 2"]);
}

#[test]
fn without_update_before_only_the_row_after_is_emitted() {
    let factory = count_and_sum(&rows(&[]).schema(), false);
    let mut operator = opened(&factory, 0, 1, RestoredState::default());
    process(operator.as_mut(), Batch::inserts(rows(&[(1, Some(10))])));
    assert_eq!(process(operator.as_mut(), Batch::inserts(rows(&[(1, Some(1))]))), ["+U 1 2 11"]);
    let gone = changes(&[Delete, Delete], rows(&[(1, Some(10)), (1, Some(1))]));
    assert_eq!(process(operator.as_mut(), gone), ["-D 1 2 11"]);
}

#[test]
fn sums_have_flink_types_and_wrap_or_become_null() {
    let columns: [(&str, ArrayRef); 4] = [
        ("k", Arc::new(StringArray::from(vec![Some("a"), Some("a"), None]))),
        ("i", Arc::new(Int32Array::from(vec![Some(i32::MAX), Some(i32::MAX), None]))),
        ("f", Arc::new(Float64Array::from(vec![Some(0.5), None, Some(-0.25)]))),
        ("d", Arc::new(Decimal128Array::from(vec![125, 250, -5]).with_precision_and_scale(10, 2).unwrap())),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
    let calls = vec![
        call(AggregateKind::Sum, 1, "i"),
        call(AggregateKind::Sum, 2, "f"),
        call(AggregateKind::Sum, 3, "d"),
        call(AggregateKind::Count, 1, "c"),
    ];
    let (input, key_names) = (batch.schema(), vec!["k".to_owned()]);
    let spec = GroupAggregateSpec {
        input,
        keys: vec![0],
        key_names,
        calls,
        emit_update_before: true,
        changelog: true,
        ttl: None,
    };
    let factory = GroupAggregateFactory::new(spec).unwrap();
    let types: Vec<DataType> = factory.output_schema().fields().iter().map(|field| field.data_type().clone()).collect();
    let decimal = DataType::Decimal128(38, 2);
    assert_eq!(types, [DataType::Utf8, DataType::Int64, DataType::Float64, decimal, DataType::Int64]);
    let mut operator = opened(&factory, 0, 1, RestoredState::default());
    let emitted = process(operator.as_mut(), Batch::inserts(batch));
    assert_eq!(emitted, ["+I a 4294967294 0.5 3.75 2", "+I NULL NULL -0.25 -0.05 0"]);

    let factory = count_and_sum(&rows(&[]).schema(), true);
    let mut operator = opened(&factory, 0, 1, RestoredState::default());
    let emitted = process(operator.as_mut(), Batch::inserts(rows(&[(1, Some(i64::MAX)), (1, Some(1))])));
    assert_eq!(emitted, [format!("+I 1 2 {}", i64::MIN)]);
}

#[test]
fn a_column_of_nulls_has_no_values_to_count() {
    let key: ArrayRef = Arc::new(Int64Array::from(vec![1, 1]));
    let nulls: ArrayRef = Arc::new(arrow::array::NullArray::new(2));
    let batch = RecordBatch::try_from_iter_with_nullable([("k", key, true), ("v", nulls, true)]).unwrap();
    let spec = GroupAggregateSpec {
        input: batch.schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![call(AggregateKind::Count, None, "n"), call(AggregateKind::Count, 1, "c")],
        emit_update_before: true,
        changelog: true,
        ttl: None,
    };
    let mut operator = opened(&GroupAggregateFactory::new(spec).unwrap(), 0, 1, RestoredState::default());
    assert_eq!(process(operator.as_mut(), Batch::inserts(batch)), ["+I 1 2 0"]);
}

#[test]
fn a_decimal_sum_of_39_digits_is_null() {
    let most = 10_i128.pow(38) - 1;
    let key: ArrayRef = Arc::new(Int64Array::from(vec![1, 1]));
    let values = Decimal128Array::from(vec![most, 1]).with_precision_and_scale(38, 0).unwrap();
    let batch = RecordBatch::try_from_iter([("k", key), ("v", Arc::new(values) as ArrayRef)]).unwrap();
    let factory = count_and_sum(&batch.schema(), true);
    let mut operator = opened(&factory, 0, 1, RestoredState::default());
    assert_eq!(process(operator.as_mut(), Batch::inserts(batch.slice(0, 1))), [format!("+I 1 1 {most}")]);
    let [before, after] = process(operator.as_mut(), Batch::inserts(batch.slice(1, 1))).try_into().unwrap();
    assert_eq!((before, after), (format!("-U 1 1 {most}"), "+U 1 2 NULL".to_owned()));
}

#[test]
fn without_keys_all_rows_are_one_group() {
    let batch = rows(&[(1, Some(10)), (2, Some(20))]);
    let calls = vec![call(AggregateKind::Sum, 1, "s")];
    let spec = GroupAggregateSpec {
        input: batch.schema(),
        keys: Vec::new(),
        key_names: Vec::new(),
        calls,
        emit_update_before: true,
        changelog: true,
        ttl: None,
    };
    let mut operator = opened(&GroupAggregateFactory::new(spec).unwrap(), 0, 1, RestoredState::default());
    assert_eq!(process(operator.as_mut(), Batch::inserts(batch.clone())), ["+I 30"]);
    assert_eq!(process(operator.as_mut(), Batch::inserts(batch)), ["-U 30", "+U 60"]);
}

#[test]
fn zeros_and_nans_are_one_key_and_look_alike() {
    let keys: ArrayRef = Arc::new(Float64Array::from(vec![-0.0, 0.0, f64::NAN, -f64::NAN]));
    let values: ArrayRef = Arc::new(Int64Array::from(vec![1, 1, 1, 1]));
    let batch = RecordBatch::try_from_iter([("k", keys), ("v", values)]).unwrap();
    let factory = count_and_sum(&batch.schema(), true);
    let mut operator = opened(&factory, 0, 1, RestoredState::default());
    assert_eq!(process(operator.as_mut(), Batch::inserts(batch)), ["+I 0.0 2 2", "+I NaN 2 2"]);
}

#[test]
fn bad_plans_are_refused_by_name() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let schema = RecordBatch::try_from_iter([("k", Arc::clone(&text)), ("v", text)]).unwrap().schema();
    let spec = |calls: Vec<AggregateCall>| GroupAggregateSpec {
        input: SchemaRef::clone(&schema),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls,
        emit_update_before: true,
        changelog: true,
        ttl: None,
    };
    let refused = |calls| GroupAggregateFactory::new(spec(calls)).err().unwrap().to_string();
    assert!(refused(vec![call(AggregateKind::Sum, 1, "s")]).contains("column 'v' is Utf8"));
    assert!(refused(vec![call(AggregateKind::Count, None, "k")]).contains("'k'"));
    assert!(refused(vec![call(AggregateKind::Sum, 9, "s")]).contains("column 9"));
}

/// Rows with keys and values drawn at random, retractions of rows given before among them.
struct Stream {
    random: Random,
    alive: Vec<(i64, Option<i64>)>,
    expected: BTreeMap<String, (i64, Option<i64>)>,
    keys: u64,
}

impl Stream {
    fn new(seed: u64, keys: u64) -> Self {
        Self { random: Random(seed), alive: Vec::new(), expected: BTreeMap::new(), keys }
    }

    fn next_batch(&mut self, rows_of_batch: usize) -> Batch {
        let (mut kinds, mut values) = (Vec::new(), Vec::new());
        for _ in 0..rows_of_batch {
            if !self.alive.is_empty() && self.random.below(5) < 2 {
                let at = self.random.below(self.alive.len() as u64) as usize;
                values.push(self.alive.swap_remove(at));
                kinds.push(if self.random.below(2) == 0 { Delete } else { UpdateBefore });
            } else {
                let value = (self.random.below(4) > 0).then(|| self.random.below(100) as i64 - 50);
                let row = (self.random.below(self.keys) as i64, value);
                values.push(row);
                self.alive.push(row);
                kinds.push(if self.random.below(2) == 0 { Insert } else { UpdateAfter });
            }
        }
        changes(&kinds, rows(&values))
    }

    /// Computed from the rows alive, not from changes.
    fn expect(&mut self) -> BTreeMap<String, Vec<String>> {
        self.expected.clear();
        for (key, value) in &self.alive {
            let group = self.expected.entry(key.to_string()).or_default();
            group.0 += 1;
            group.1 = match (group.1, value) {
                (sum, None) => sum,
                (sum, Some(value)) => Some(sum.unwrap_or(0) + value),
            };
        }
        let text = |sum: &Option<i64>| sum.map_or("NULL".to_owned(), |sum| sum.to_string());
        let row =
            |(key, (count, sum)): (&String, &(i64, Option<i64>))| (key.clone(), vec![count.to_string(), text(sum)]);
        self.expected.iter().map(row).collect()
    }
}

#[test]
fn a_random_changelog_comes_out_as_its_counts_and_sums() {
    for seed in 1..20 {
        let mut stream = Stream::new(seed, 1 + seed * 13);
        let factory = count_and_sum(&rows(&[]).schema(), true);
        let mut operator = opened(&factory, 0, 1, RestoredState::default());
        let mut view = View::default();
        for _ in 0..30 {
            let mut out = Collected::default();
            operator.process(stream.next_batch(200), &mut out).unwrap();
            view.apply_all(&out);
            assert_eq!(view.0, stream.expect(), "seed {seed}");
        }
    }
}

/// The operators of all subtasks, fed by key group as the exchange would.
struct Subtasks(Vec<Box<dyn Operator>>);

impl Subtasks {
    fn new(factory: &GroupAggregateFactory, parallelism: u32, states: &[OperatorState]) -> Self {
        let keyed: Vec<RestoredKeyed> = (states.iter().flat_map(|state| &state.keyed)).map(restored).collect();
        let state = RestoredState { restored: !states.is_empty(), keyed, ..RestoredState::default() };
        Self((0..parallelism).map(|index| opened(factory, index, parallelism, state.clone())).collect())
    }

    fn process(&mut self, batch: &Batch, view: &mut View) {
        let parallelism = self.0.len() as u32;
        let keys = batch.rows.column(0).as_any().downcast_ref::<Int64Array>().unwrap().values();
        let owner = |key: &i64| {
            key_group::owner(key_group::of_hash(key_group::hash(&encode::bigint(*key)), 128), parallelism, 128).0
        };
        for (index, operator) in (0_u32..).zip(&mut self.0) {
            let mine: arrow::array::BooleanArray = keys.iter().map(|key| Some(owner(key) == index)).collect();
            let rows = arrow::compute::filter_record_batch(&batch.rows, &mine).unwrap();
            let kinds = arrow::compute::filter(batch.kinds.as_ref().unwrap(), &mine).unwrap();
            let kinds = kinds.as_any().downcast_ref::<UInt8Array>().cloned();
            let mut out = Collected::default();
            operator.process(Batch { rows, kinds }, &mut out).unwrap();
            view.apply_all(&out);
        }
    }

    fn freeze(&mut self) -> Vec<Box<dyn SnapshotWriter>> {
        self.0.iter_mut().map(|operator| operator.snapshot(CheckpointId(1)).unwrap().unwrap()).collect()
    }
}

#[test]
fn state_restored_at_another_parallelism_goes_on_as_if_nothing_had_happened() {
    let factory = count_and_sum(&rows(&[]).schema(), true);
    for (seed, before, after) in [(1, 1, 2), (2, 2, 3), (3, 3, 1), (4, 2, 2), (5, 7, 128)] {
        let mut stream = Stream::new(seed * 77, 500);
        let mut view = View::default();
        let mut old = Subtasks::new(&factory, before, &[]);
        for _ in 0..20 {
            old.process(&stream.next_batch(300), &mut view);
        }
        let at_snapshot = View(view.0.clone());
        let frozen = old.freeze();
        let mut later = Stream { random: stream.random.clone(), alive: stream.alive.clone(), ..Stream::new(1, 500) };
        for _ in 0..5 {
            old.process(&later.next_batch(300), &mut view);
        }
        assert_eq!(view.0, later.expect(), "the frozen state does not disturb the live one");

        let states: Vec<OperatorState> = frozen.iter().map(|writer| written(writer.as_ref())).collect();
        let mut view = at_snapshot;
        let mut new = Subtasks::new(&factory, after, &states);
        for _ in 0..10 {
            new.process(&stream.next_batch(300), &mut view);
            assert_eq!(view.0, stream.expect(), "seed {seed}");
        }
    }
}

#[test]
fn state_with_other_columns_is_refused_naming_both_sides() {
    let factory = count_and_sum(&rows(&[]).schema(), true);
    let mut operator = opened(&factory, 0, 1, RestoredState::default());
    process(operator.as_mut(), Batch::inserts(rows(&[(1, Some(1))])));
    let state = written(operator.snapshot(CheckpointId(1)).unwrap().unwrap().as_ref());
    let spec = GroupAggregateSpec {
        input: rows(&[]).schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![call(AggregateKind::Count, None, "pv")],
        emit_update_before: true,
        changelog: true,
        ttl: None,
    };
    let mut other = GroupAggregateFactory::new(spec).unwrap().create().unwrap();
    let keyed = vec![restored(&state.keyed[0])];
    let error =
        other.open(&context(0, 1), RestoredState { restored: true, keyed, ..RestoredState::default() }).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, TaskError::IncompatibleState(_)));
    assert!(text.contains("n Int64, s Int64, s$values Int64") && text.contains("pv Int64"), "{text}");
}
