//! Every aggregate over columns of every type: random changelogs, killed and restored at another parallelism on the way,
//! in both backends, against results computed from the rows that are alive.

use super::*;
use crate::state::StateBackend;
use crate::testing::backends;
use arrow::array::{BooleanArray, Date32Array, TimestampMillisecondArray};
use arrow::util::display::array_value_to_string;

/// Columns of the input; each value is a number below 7 that the columns map to values in the same order.
const TYPES: [&str; 9] = ["k", "i", "f", "d", "s", "b", "t", "day", "g"];
const FLAG: usize = 9;
const NAN: i64 = 6;

#[derive(Debug, Clone)]
struct Row {
    key: i64,
    values: [Option<i64>; TYPES.len()],
    flag: Option<bool>,
    negative_zero: bool,
}

fn column(name: &str, values: &[(Option<i64>, bool)]) -> ArrayRef {
    let numbers = || values.iter().map(|(value, _)| *value);
    let float = |value: i64, negative: bool| match value {
        NAN => f64::NAN,
        3 if negative => -0.0,
        value => (value - 3) as f64 / 2.0,
    };
    match name {
        "i" => Arc::new(numbers().map(|value| value.map(|value| value as i32 - 3)).collect::<Int32Array>()),
        "f" => Arc::new(values.iter().map(|(value, sign)| Some(float((*value)?, *sign))).collect::<Float64Array>()),
        "d" => {
            let cents = numbers().map(|value| value.map(|value| i128::from(value) * 125 - 300));
            Arc::new(cents.collect::<Decimal128Array>().with_precision_and_scale(10, 2).unwrap())
        }
        "s" => {
            let text = |value: i64| ["", "a", "aa", "b", "ba", "z", "ä"][value as usize];
            Arc::new(numbers().map(|value| value.map(text)).collect::<StringArray>())
        }
        "b" => Arc::new(numbers().map(|value| value.map(|value| value >= 3)).collect::<BooleanArray>()),
        "t" => {
            Arc::new(numbers().map(|value| value.map(|value| value * 1000 - 1)).collect::<TimestampMillisecondArray>())
        }
        "day" => Arc::new(numbers().map(|value| value.map(|value| value as i32 - 2)).collect::<Date32Array>()),
        "g" => Arc::new(numbers().map(|value| value.map(|value| value as f64 / 4.0)).collect::<Float64Array>()),
        _ => Arc::new(numbers().collect::<Int64Array>()),
    }
}

fn batch_of(rows: &[Row]) -> RecordBatch {
    let values = |column: usize| -> Vec<_> { rows.iter().map(|row| (row.values[column], row.negative_zero)).collect() };
    let mut columns: Vec<(&str, ArrayRef, bool)> =
        vec![("k", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.key))), true)];
    columns.extend((1..TYPES.len()).map(|index| (TYPES[index], column(TYPES[index], &values(index)), true)));
    columns.push(("flag", Arc::new(rows.iter().map(|row| row.flag).collect::<BooleanArray>()), true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Aggregates over these columns.
fn calls(arguments: &[usize]) -> Vec<AggregateCall> {
    use AggregateKind::{Avg, Count, Max, Min, Sum};
    let mut calls = vec![call(Count, None, "n"), AggregateCall { filter: Some(FLAG), ..call(Count, None, "flagged") }];
    for argument in arguments.iter().copied() {
        for (kind, distinct, filter) in [
            (Min, false, None),
            (Max, false, None),
            (Count, true, None),
            (Max, true, Some(FLAG)),
            (Count, true, Some(FLAG)),
        ] {
            let name = format!("{kind:?}-{argument}-{distinct}-{filter:?}");
            calls.push(AggregateCall { distinct, filter, ..call(kind, argument, &name) });
        }
    }
    for argument in [1, 3, 8].into_iter().filter(|argument| arguments.contains(argument)) {
        for (kind, distinct, filter) in
            [(Sum, false, Some(FLAG)), (Sum, true, None), (Avg, false, None), (Avg, true, Some(FLAG))]
        {
            let name = format!("{kind:?}-{argument}-{distinct}-{filter:?}");
            calls.push(AggregateCall { distinct, filter, ..call(kind, argument, &name) });
        }
    }
    calls
}

fn factory(arguments: &[usize], changelog: bool) -> GroupAggregateFactory {
    let spec = GroupAggregateSpec {
        input: batch_of(&[]).schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: calls(arguments),
        emit_update_before: true,
        changelog,
        ttl: None,
    };
    GroupAggregateFactory::new(spec).unwrap()
}

fn text(array: &ArrayRef) -> String {
    if array.is_null(0) { "NULL".to_owned() } else { array_value_to_string(array, 0).unwrap() }
}

/// The result of a call over the rows of a group.
fn expected(call: &AggregateCall, rows: &[&Row]) -> String {
    let rows = rows.iter().filter(|row| call.filter.is_none() || row.flag == Some(true));
    let Some(argument) = call.argument else { return rows.count().to_string() };
    let name = TYPES[argument];
    let mut values: Vec<i64> = rows.filter_map(|row| row.values[argument]).collect();
    values.sort_unstable();
    if call.distinct {
        values.dedup_by_key(|value| text(&column(name, &[(Some(*value), false)])));
    }
    let sum =
        |value: fn(i64) -> i128| -> (i128, i128) { (values.iter().map(|one| value(*one)).sum(), values.len() as i128) };
    let one = |value: Option<&i64>| text(&column(name, &[(value.copied(), false)]));
    match (call.kind, name) {
        (AggregateKind::Count, _) => values.len().to_string(),
        (AggregateKind::Min, _) => one(values.first()),
        (AggregateKind::Max, _) => one(values.last()),
        _ if values.is_empty() => "NULL".to_owned(),
        (AggregateKind::Sum, "i") => sum(|value| (value - 3).into()).0.to_string(),
        (AggregateKind::Avg, "i") => {
            let (sum, count) = sum(|value| (value - 3).into());
            (sum / count).to_string()
        }
        (AggregateKind::Sum, "d") => {
            let (cents, _) = sum(|value| i128::from(value) * 125 - 300);
            text(&(Arc::new(Decimal128Array::from(vec![cents]).with_precision_and_scale(38, 2).unwrap()) as ArrayRef))
        }
        (AggregateKind::Avg, "d") => {
            let (cents, count) = sum(|value| i128::from(value) * 125 - 300);
            let half_up = (2 * cents * 10_000 + cents.signum() * count) / (2 * count);
            text(&(Arc::new(Decimal128Array::from(vec![half_up]).with_precision_and_scale(38, 6).unwrap()) as ArrayRef))
        }
        (kind, _) => {
            let quarters: i64 = values.iter().sum();
            let count = if kind == AggregateKind::Avg { values.len() as f64 } else { 1.0 };
            text(&(Arc::new(Float64Array::from(vec![quarters as f64 / 4.0 / count])) as ArrayRef))
        }
    }
}

struct Changelog {
    random: Random,
    alive: Vec<Row>,
    retracts: bool,
    arguments: &'static [usize],
}

impl Changelog {
    fn next_batch(&mut self, count: usize) -> Batch {
        let (mut kinds, mut rows) = (Vec::new(), Vec::new());
        for _ in 0..count {
            // Sometimes nearly all go, so that groups end.
            let goes = self.retracts && !self.alive.is_empty() && self.random.below(100) < 45;
            if goes {
                let at = self.random.below(self.alive.len() as u64) as usize;
                let mut row = self.alive.swap_remove(at);
                row.negative_zero ^= true;
                rows.push(row);
                kinds.push(if self.random.below(2) == 0 { Delete } else { UpdateBefore });
            } else {
                let mut row = Row {
                    key: self.random.below(12) as i64,
                    values: [None; TYPES.len()],
                    flag: [Some(true), Some(false), None][self.random.below(3) as usize],
                    negative_zero: self.random.below(2) == 0,
                };
                row.values.fill_with(|| (self.random.below(5) > 0).then(|| self.random.below(7) as i64));
                self.alive.push(row.clone());
                rows.push(row);
                kinds.push(if self.random.below(2) == 0 { Insert } else { UpdateAfter });
            }
        }
        changes(&kinds, batch_of(&rows))
    }

    fn expect(&self) -> BTreeMap<String, Vec<String>> {
        let mut groups: BTreeMap<i64, Vec<&Row>> = BTreeMap::new();
        self.alive.iter().for_each(|row| groups.entry(row.key).or_default().push(row));
        let calls = calls(self.arguments);
        let results = |rows: &Vec<&Row>| calls.iter().map(|call| expected(call, rows)).collect();
        groups.iter().map(|(key, rows)| (key.to_string(), results(rows))).collect()
    }
}

fn open_all(
    factory: &GroupAggregateFactory,
    backend: &StateBackend,
    parallelism: u32,
    state: &[OperatorState],
) -> Subtasks {
    let keyed: Vec<RestoredKeyed> = state.iter().flat_map(|state| &state.keyed).map(restored).collect();
    let state = RestoredState { restored: true, keyed, ..RestoredState::default() };
    let open = |index| {
        let mut operator = factory.create().unwrap();
        let context = OperatorContext { state_backend: backend.clone(), ..context(index, parallelism) };
        operator.open(&context, state.clone()).unwrap();
        operator
    };
    Subtasks((0..parallelism).map(open).collect())
}

fn compare(view: &View, log: &Changelog, place: &str) {
    let expected = log.expect();
    assert_eq!(view.0.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{place}");
    for (key, values) in &expected {
        for ((call, found), expected) in calls(log.arguments).iter().zip(&view.0[key]).zip(values) {
            assert_eq!(found, expected, "{place}: {} of group {key}", call.name);
        }
    }
}

const ALL: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8];

/// Each backend with the columns to aggregate: a table of the LSM takes long to make.
fn settings() -> [(StateBackend, &'static [usize], u32); 2] {
    let [hash, disk] = backends();
    [(hash, ALL, 8), (disk, &[4], 3)]
}

#[test]
fn every_aggregate_over_a_changelog_is_that_of_the_rows_alive_also_after_restores_at_another_parallelism() {
    for (seed, retracts) in [(3, true), (4, true), (5, false)] {
        for (backend, arguments, rounds) in settings() {
            let factory = factory(arguments, retracts);
            let mut log = Changelog { random: Random(seed * 1_000_003), alive: Vec::new(), retracts, arguments };
            let mut view = View::default();
            let mut subtasks = open_all(&factory, &backend, 1, &[]);
            for round in 0..rounds {
                for _ in 0..3 {
                    subtasks.process(&log.next_batch(1 + round as usize * 9), &mut view);
                    compare(&view, &log, &format!("seed {seed}, round {round}"));
                }
                let frozen = subtasks.freeze();
                let states: Vec<OperatorState> = frozen.iter().map(|writer| written(writer.as_ref())).collect();
                subtasks = open_all(&factory, &backend, 1 + (round * 2 + 1) % (rounds - 1), &states);
            }
        }
    }
}

#[test]
fn when_all_rows_are_retracted_no_state_is_left() {
    for (backend, arguments, _) in settings() {
        let factory = factory(arguments, true);
        let mut log = Changelog { random: Random(77), alive: Vec::new(), retracts: true, arguments };
        let mut view = View::default();
        let mut subtasks = open_all(&factory, &backend, 1, &[]);
        subtasks.process(&log.next_batch(200), &mut view);
        assert!(!view.0.is_empty());
        let rows = std::mem::take(&mut log.alive);
        subtasks.process(&changes(&vec![Delete; rows.len()], batch_of(&rows)), &mut view);
        assert_eq!(view.0, BTreeMap::new());
        let left = written(subtasks.freeze()[0].as_ref());
        assert_eq!(left.keyed.iter().map(|piece| (piece.name.clone(), piece.rows)).collect::<Vec<_>>(), []);
    }
}

#[test]
fn what_keeps_other_values_is_refused_by_name() {
    let spec = |distinct, changelog| GroupAggregateSpec {
        input: batch_of(&[]).schema(),
        keys: vec![0],
        key_names: vec!["k".to_owned()],
        calls: vec![AggregateCall { distinct, ..call(AggregateKind::Count, 1, "c") }, call(AggregateKind::Min, 1, "m")],
        emit_update_before: true,
        changelog,
        ttl: None,
    };
    let state_of = |distinct, changelog| {
        let factory = GroupAggregateFactory::new(spec(distinct, changelog)).unwrap();
        let mut operator = opened(&factory, 0, 1, RestoredState::default());
        let mut log = Changelog { random: Random(5), alive: Vec::new(), retracts: false, arguments: ALL };
        operator.process(log.next_batch(50), &mut Collected::default()).unwrap();
        let keyed = written(operator.snapshot(CheckpointId(1)).unwrap().unwrap().as_ref()).keyed;
        RestoredState { restored: true, keyed: keyed.iter().map(restored).collect(), ..RestoredState::default() }
    };
    let restore = |distinct, changelog, state| {
        let mut operator = GroupAggregateFactory::new(spec(distinct, changelog)).unwrap().create().unwrap();
        operator.open(&context(0, 1), state).map_err(|error| error.to_string())
    };
    assert_eq!(restore(true, true, state_of(true, true)), Ok(()));
    for (old, new, named) in [
        ((true, false), (false, false), "values-c"),
        ((false, false), (true, false), "c$distinct"),
        ((false, true), (false, false), "values-m"),
        ((false, false), (false, true), "m$min$"),
    ] {
        let error = restore(new.0, new.1, state_of(old.0, old.1)).unwrap_err();
        assert!(error.contains(named), "{old:?} -> {new:?}: {error}");
    }
}
