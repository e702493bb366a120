//! Windows against a plain model: every row looked at for every window.

use super::kind::WindowKind;
use super::*;
use crate::aggregate::{AggregateCall, AggregateKind};
use crate::batch::Batch;
use crate::operator::{Operator, OperatorContext, OperatorFactory, Progress, RestoredList, RestoredState};
use crate::state::StateBackend;
use crate::testing::{Collected, Random, backends, context, lines, restored, written};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use sluice_protocol::key_group::{self, encode};
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Key, value, time.
type Row = (i64, Option<i64>, Option<i64>);

const TUMBLE: WindowKind = WindowKind::Tumble { size: 10, offset: 3 };
const HOP: WindowKind = WindowKind::Hop { slide: 5, size: 15, offset: -1 };
const CUMULATE: WindowKind = WindowKind::Cumulate { step: 4, size: 12, offset: 1 };

fn batch(rows: &[Row], text_keys: bool) -> RecordBatch {
    let keys: ArrayRef = if text_keys {
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| format!("k{}", row.0))))
    } else {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)))
    };
    let values: ArrayRef = Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>());
    let times: ArrayRef = Arc::new(rows.iter().map(|row| row.2).collect::<TimestampMillisecondArray>());
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("v", values, true), ("t", times, true)]).unwrap()
}

fn call(kind: AggregateKind, argument: impl Into<Option<usize>>, name: &str) -> AggregateCall {
    AggregateCall::new(kind, argument.into(), name)
}

fn factory(input: SchemaRef, keys: Vec<usize>, kind: WindowKind, time: RowTime) -> WindowAggregateFactory {
    factory_with(input, keys, kind, time, LateRows::default(), AggregateKind::Max)
}

fn factory_with(
    input: SchemaRef,
    keys: Vec<usize>,
    kind: WindowKind,
    time: RowTime,
    late: LateRows,
    third: AggregateKind,
) -> WindowAggregateFactory {
    let key_names = keys.iter().map(|key| input.field(*key).name().clone()).collect();
    let calls = vec![
        call(AggregateKind::Count, None, "n"),
        call(AggregateKind::Sum, 1, "s"),
        call(third, 1, "m"),
        call(AggregateKind::Avg, 1, "a"),
    ];
    let window_time = DataType::Timestamp(TimeUnit::Millisecond, None);
    WindowAggregateFactory::new(WindowAggregateSpec { input, keys, key_names, calls, kind, time, window_time, late })
        .unwrap()
}

/// Subtasks of a window over keyed rows.
struct Job {
    text_keys: bool,
    operators: Vec<Box<dyn Operator>>,
}

impl Job {
    fn start(
        (kind, third): (&WindowKind, AggregateKind),
        text_keys: bool,
        parallelism: u32,
        on: &StateBackend,
        state: &RestoredState,
    ) -> Self {
        let (schema, time) = (batch(&[], text_keys).schema(), RowTime::Column(2));
        let factory = factory_with(schema, vec![0], kind.clone(), time, LateRows::default(), third);
        let open = |index: u32| {
            let mut operator = factory.create().unwrap();
            let context = OperatorContext { state_backend: on.clone(), ..context(index, parallelism) };
            operator.open(&context, state.clone()).unwrap();
            operator
        };
        let operators = (0..parallelism).map(open).collect();
        Self { text_keys, operators }
    }

    fn process(&mut self, rows: &[Row]) {
        let parallelism = self.operators.len() as u32;
        let owner = |row: &Row| {
            let mut key = Vec::new();
            encode::bytes(&mut key, format!("k{}", row.0).as_bytes());
            let hash = if self.text_keys { key_group::hash(&key) } else { key_group::hash(&encode::bigint(row.0)) };
            key_group::owner(key_group::of_hash(hash, 128), parallelism, 128).0
        };
        for (index, operator) in (0..).zip(&mut self.operators) {
            let own: Vec<Row> = rows.iter().filter(|row| owner(row) == index).copied().collect();
            let mut out = Collected::default();
            operator.process(Batch::inserts(batch(&own, self.text_keys)), &mut out).unwrap();
            assert!(out.0.is_empty(), "a window waits for the watermark");
        }
    }

    /// At most so many slices of work per subtask.
    fn watermark(&mut self, watermark: i64, most: usize) -> Vec<String> {
        let mut out = Collected::default();
        for operator in &mut self.operators {
            for _ in 0..most {
                if operator.watermark(watermark, &mut out).unwrap() == Progress::Done {
                    break;
                }
            }
        }
        assert!(out.0.iter().all(|batch| batch.kinds.is_none()), "insert-only");
        out.0.iter().flat_map(lines).collect()
    }

    fn state(&mut self) -> RestoredState {
        let mut state = RestoredState { restored: true, ..RestoredState::default() };
        for operator in &mut self.operators {
            let own = written(operator.snapshot(CheckpointId(1)).unwrap().unwrap().as_ref());
            state.keyed.extend(own.keyed.iter().map(restored));
            for list in own.operator {
                let (name, redistribution, items) = (list.name, list.redistribution, list.items);
                state.operator.push(RestoredList { name, redistribution, items });
            }
        }
        state
    }
}

/// The model: rows by window and key, and which windows have fired.
#[derive(Default)]
struct Model {
    open: BTreeMap<(i64, i64, i64), Vec<Option<i64>>>,
    watermark: Option<i64>,
}

impl Model {
    fn process(&mut self, windows: impl Fn(i64) -> Vec<(i64, i64)>, rows: &[Row]) {
        for (key, value, time) in rows {
            for (start, end) in time.map(&windows).unwrap_or_default() {
                if self.watermark.is_none_or(|watermark| end - 1 > watermark) {
                    self.open.entry((end, start, *key)).or_default().push(*value);
                }
            }
        }
    }

    fn watermark(&mut self, watermark: i64, text_keys: bool, third: AggregateKind) -> Vec<String> {
        self.watermark = Some(watermark);
        let (fired, open) = std::mem::take(&mut self.open).into_iter().partition(|((end, ..), _)| end - 1 <= watermark);
        self.open = open;
        let fired: BTreeMap<(i64, i64, i64), Vec<Option<i64>>> = fired;
        let time = |time: i64| TimestampMillisecondArray::from(vec![time]).value_as_datetime(0).unwrap();
        let text = |time_of: i64| time(time_of).format("%Y-%m-%dT%H:%M:%S%.f").to_string();
        let line = |((end, start, key), values): ((i64, i64, i64), Vec<Option<i64>>)| {
            let given: Vec<i64> = values.iter().flatten().copied().collect();
            let or_null = |value: Option<i64>| value.map_or("NULL".to_owned(), |value| value.to_string());
            let sum = (!given.is_empty()).then(|| given.iter().sum::<i64>());
            let mean = sum.map(|sum| sum / given.len() as i64);
            let third = match third {
                AggregateKind::Max => or_null(given.iter().max().copied()),
                _ => given.len().to_string(),
            };
            let (n, sum, mean) = (values.len(), or_null(sum), or_null(mean));
            let key = if text_keys { format!("k{key}") } else { key.to_string() };
            format!("+I {key} {n} {sum} {third} {mean} {} {} {}", text(start), text(end), text(end - 1))
        };
        fired.into_iter().map(line).collect()
    }
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// Windows of a time, each tried.
fn brute(kind: &WindowKind, time: i64) -> Vec<(i64, i64)> {
    let mut windows = Vec::new();
    for begin in -100..200_i64 {
        for end in begin + 1..begin + 40 {
            let is_window = match kind {
                WindowKind::Tumble { size, offset } => (begin - offset) % size == 0 && end - begin == *size,
                WindowKind::Hop { slide, size, offset } => (begin - offset) % slide == 0 && end - begin == *size,
                WindowKind::Cumulate { step, size, offset } => {
                    (begin - offset) % size == 0 && (end - begin) % step == 0 && end - begin <= *size
                }
                WindowKind::Attached { .. } => false,
            };
            if is_window && begin <= time && time < end {
                windows.push((begin, end));
            }
        }
    }
    windows.sort_by_key(|window| window.1);
    windows
}

#[test]
fn a_time_has_the_windows_that_contain_it_also_with_offset_and_before_1970() {
    for kind in [TUMBLE, HOP, CUMULATE] {
        for time in -50..100 {
            assert_eq!(kind.windows_of(time).collect::<Vec<_>>(), brute(&kind, time), "{kind} at {time}");
        }
    }
}

/// At both ends of all time, too, they come to an end.
#[test]
fn the_windows_of_any_time_are_as_many_as_it_can_have() {
    for kind in [TUMBLE, HOP, CUMULATE] {
        for time in (0..40).flat_map(|step| [i64::MAX - step, i64::MIN + step]) {
            let windows: Vec<_> = kind.windows_of(time).take(10).collect();
            assert!(windows.len() <= 3, "{kind} at {time}: {windows:?}");
            assert!(windows.is_sorted_by_key(|window| window.1), "{kind} at {time}: {windows:?}");
        }
    }
}

#[test]
fn lengths_that_are_no_multiples_are_refused() {
    let refusal = |kind: WindowKind| kind.validate().unwrap_err().to_string();
    let hop = refusal(WindowKind::Hop { slide: 4, size: 10, offset: 0 });
    assert!(hop.contains("size of HOP (10 ms) must be a multiple of its slide (4 ms)"), "{hop}");
    let cumulate = refusal(WindowKind::Cumulate { step: 4, size: 10, offset: 0 });
    assert!(cumulate.contains("maximum size of CUMULATE (10 ms)"), "{cumulate}");
    let tumble = refusal(WindowKind::Tumble { size: 0, offset: 0 });
    assert!(tumble.contains("size of TUMBLE is 0 ms"), "{tumble}");
    assert!([TUMBLE, HOP, CUMULATE].iter().all(|kind| kind.validate().is_ok()));
}

#[test]
fn a_window_fires_at_its_end_less_a_millisecond_and_later_rows_of_it_are_dropped() {
    let [hash, _] = backends();
    let tumble = WindowKind::Tumble { size: 10, offset: 0 };
    let mut job = Job::start((&tumble, AggregateKind::Max), false, 1, &hash, &RestoredState::default());
    job.process(&[(1, Some(5), Some(0)), (1, None, Some(9)), (2, Some(1), Some(10)), (3, Some(1), None)]);
    assert_eq!(job.watermark(8, 9), [""; 0]);
    let first = job.watermark(9, 9);
    assert_eq!(first, ["+I 1 2 5 5 5 1970-01-01T00:00:00 1970-01-01T00:00:00.010 1970-01-01T00:00:00.009"]);
    job.process(&[(1, Some(7), Some(9)), (2, Some(7), Some(19))]);
    assert_eq!(job.operators[0].late_rows(), 2, "one is late, one has no time");
    let second = job.watermark(i64::MAX, 9);
    assert_eq!(second, ["+I 2 2 8 7 4 1970-01-01T00:00:00.010 1970-01-01T00:00:00.020 1970-01-01T00:00:00.019"]);
}

/// Random streams with disorder, killed and rescaled at random, also between two slices of one watermark.
#[test]
fn whatever_happens_windows_are_those_of_the_model() {
    let [hash, disk] = backends();
    // Each slice on disk is a table to be made, which takes its time.
    let of_hash =
        (1..=6).flat_map(|seed| [(seed, &hash, TUMBLE, false), (seed, &hash, HOP, true), (seed, &hash, HOP, false)]);
    let cumulated = (7..=10).flat_map(|seed| [(seed, &hash, CUMULATE, true), (seed, &hash, CUMULATE, false)]);
    let of_disk = [(11, &disk, HOP, false), (12, &disk, CUMULATE, true)];
    {
        for (seed, backend, kind, text_keys) in of_hash.chain(cumulated).chain(of_disk) {
            let mut random = Random(seed * 7919);
            // Beside a COUNT a HOP keeps a total, beside a MAX none.
            let third = [AggregateKind::Count, AggregateKind::Max][(seed % 2) as usize];
            let mut job = Job::start((&kind, third), text_keys, 2, backend, &RestoredState::default());
            let mut model = Model::default();
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            let mut time = -30_i64;
            for step in 0..if matches!(backend, StateBackend::Hash) { 25 } else { 6 } {
                let row = |_| {
                    let at = time - 20 + random.below(40) as i64;
                    let value = Some(random.below(100) as i64 - 50).filter(|value| value % 7 != 0);
                    (random.below(9) as i64, value, Some(at).filter(|at| at % 13 != 0))
                };
                let rows: Vec<Row> = (0..12).map(row).collect();
                job.process(&rows);
                model.process(|time| brute(&kind, time), &rows);
                time += random.below(9) as i64;
                let watermark = time - 8;
                expected.extend(model.watermark(watermark, text_keys, third));
                let most = if random.below(2) == 0 { usize::MAX } else { 1 + random.below(3) as usize };
                found.extend(job.watermark(watermark, most));
                if step % 3 == 0 || most < usize::MAX {
                    let state = job.state();
                    let parallelism = 1 + random.below(3) as u32;
                    job = Job::start((&kind, third), text_keys, parallelism, backend, &state);
                    found.extend(job.watermark(i64::MIN, usize::MAX));
                    found.extend(job.watermark(watermark, usize::MAX));
                }
            }
            expected.extend(model.watermark(1_000_000, text_keys, third));
            found.extend(job.watermark(i64::MAX, usize::MAX));
            let distinct: BTreeSet<&String> = found.iter().collect();
            assert_eq!(distinct.len(), found.len(), "a window fired twice: {kind}, seed {seed}");
            assert_eq!(sorted(found), sorted(expected), "{kind}, seed {seed}");
            assert_eq!(job.state().keyed.len(), 0, "nothing is left");
        }
    }
}

#[test]
fn windows_of_rows_fire_by_their_ends_and_without_keys() {
    let times = |times: &[i64]| -> ArrayRef { Arc::new(TimestampMillisecondArray::from(times.to_vec())) };
    let rows = |of: &[(i64, i64, i64)]| {
        let column = |get: fn(&(i64, i64, i64)) -> i64| of.iter().map(get).collect::<Vec<_>>();
        let values: ArrayRef = Arc::new(Int64Array::from(column(|row| row.0)));
        let (starts, ends) = (times(&column(|row| row.1)), times(&column(|row| row.2)));
        RecordBatch::try_from_iter([("x", Arc::clone(&values)), ("v", values), ("s", starts), ("e", ends)]).unwrap()
    };
    let attached = WindowKind::Attached { start: 2, end: 3 };
    let mut operator = factory(rows(&[]).schema(), vec![], attached, RowTime::Column(2)).create().unwrap();
    operator.open(&context(0, 1), RestoredState::default()).unwrap();
    let mut out = Collected::default();
    let input = rows(&[(4, 0, 10), (5, 5, 15), (6, 5, 15), (1, 0, 10)]);
    operator.process(Batch::inserts(input), &mut out).unwrap();
    while operator.watermark(14, &mut out).unwrap() == Progress::More {}
    let emitted: Vec<String> = out.0.iter().flat_map(lines).map(|line| line[..13].to_owned()).collect();
    assert_eq!(emitted, ["+I 2 5 4 2 19", "+I 2 11 6 5 1"]);
    let other = operator.process(Batch::inserts(rows(&[(1, 20, 30), (1, 10, 30)])), &mut out).unwrap_err();
    assert!(other.to_string().contains("two windows that end at 30 ms but begin at 20 ms and at 10 ms"), "{other}");
}

#[test]
fn windows_of_processing_time_go_by_the_clock() {
    let clock = Arc::new(AtomicU64::new(1003));
    let tumble = WindowKind::Tumble { size: 10, offset: 0 };
    let mut operator = factory(batch(&[], false).schema(), vec![0], tumble, RowTime::Processing).create().unwrap();
    let read = Arc::clone(&clock);
    operator.set_clock(&(Arc::new(move || Timestamp(read.load(Ordering::SeqCst))) as crate::operator::Clock));
    operator.open(&context(0, 1), RestoredState::default()).unwrap();
    let mut out = Collected::default();
    assert_eq!(operator.next_timer(), None);
    operator.process(Batch::inserts(batch(&[(1, Some(2), None)], false)), &mut out).unwrap();
    assert_eq!(operator.next_timer(), Some(Timestamp(1010)));
    assert_eq!(operator.watermark(5000, &mut out).unwrap(), Progress::Done);
    clock.store(1009, Ordering::SeqCst);
    operator.process(Batch::inserts(batch(&[(1, Some(3), Some(4))], false)), &mut out).unwrap();
    assert!(out.0.is_empty());
    while operator.on_timer(Timestamp(1010), &mut out).unwrap() == Progress::More {}
    // A clock that goes back does not open the window again.
    operator.process(Batch::inserts(batch(&[(1, Some(9), Some(4))], false)), &mut out).unwrap();
    while operator.watermark(i64::MAX, &mut out).unwrap() == Progress::More {}
    let emitted: Vec<String> = out.0.iter().flat_map(lines).collect();
    let end = |second: u32| format!("1970-01-01T00:00:01.{second:03}");
    let first = format!("+I 1 2 5 3 2 1970-01-01T00:00:01 {} {}", end(10), end(9));
    assert_eq!(emitted, [first, format!("+I 1 1 9 9 9 {} {} {}", end(10), end(20), end(19))]);
}

/// Keys with what is emitted of them, `+U 1 2 …`, the times of windows cut to their milliseconds.
fn step(operator: &mut dyn Operator, rows: &[Row], watermark: i64) -> Vec<String> {
    let mut out = Collected::default();
    operator.process(Batch::inserts(batch(rows, false)), &mut out).unwrap();
    while operator.watermark(watermark, &mut out).unwrap() == Progress::More {}
    let short = |line: String| line.split(' ').take(4).collect::<Vec<_>>().join(" ");
    out.0.iter().flat_map(lines).map(short).collect()
}

fn state_of(operator: &mut dyn Operator) -> RestoredState {
    let own = written(operator.snapshot(CheckpointId(1)).unwrap().unwrap().as_ref());
    let list = |list: crate::operator::ListPiece| RestoredList {
        name: list.name,
        redistribution: list.redistribution,
        items: list.items,
    };
    let operator = own.operator.into_iter().map(list).collect();
    RestoredState {
        restored: true,
        keyed: own.keyed.iter().map(restored).collect(),
        operator,
        ..RestoredState::default()
    }
}

/// Windows whose slices are dropped stay closed where the job goes on with a greater lateness: their results were right, and
/// could only be put together in part. Those behind them change by late rows, also after another restore.
#[test]
fn a_greater_lateness_opens_no_window_whose_slices_are_gone() {
    for older in [false, true] {
        let open = |kind: &WindowKind, lateness: u64, state: RestoredState| {
            let late =
                LateRows { allowed_lateness: TimeSpan(lateness), emit_update_before: false, ..LateRows::default() };
            let schema = batch(&[], false).schema();
            let made =
                factory_with(schema, vec![0], kind.clone(), RowTime::Column(2), late, AggregateKind::Max).create();
            let mut operator = made.unwrap();
            operator.open(&context(0, 1), state).unwrap();
            operator
        };
        let again = |operator: &mut dyn Operator| {
            let mut state = state_of(operator);
            let items = state.operator.iter_mut().flat_map(|list| &mut list.items).filter(|_| older);
            items.filter_map(|item| item.as_object_mut()).for_each(|item| drop(item.remove("dropped")));
            state
        };
        let tumble = WindowKind::Tumble { size: 10, offset: 0 };
        let mut strict = open(&tumble, 0, RestoredState::default());
        assert_eq!(step(strict.as_mut(), &[(1, Some(5), Some(0)), (1, Some(6), Some(3))], 9), ["+I 1 2 11"]);
        let mut lenient = open(&tumble, 20, again(strict.as_mut()));
        assert_eq!(step(lenient.as_mut(), &[(1, Some(7), Some(4)), (1, Some(1), Some(11))], 19), ["+I 1 1 1"]);
        assert_eq!(lenient.late_rows(), 1, "of the first window only a part would be known");
        let mut lenient = open(&tumble, 20, state_of(lenient.as_mut()));
        let changed = step(lenient.as_mut(), &[(1, Some(7), Some(4)), (1, Some(2), Some(12))], 19);
        assert_eq!((changed, lenient.late_rows()), (vec!["+U 1 2 3".to_owned()], 1));

        let hop = WindowKind::Hop { slide: 5, size: 15, offset: 0 };
        let mut strict = open(&hop, 0, RestoredState::default());
        let rows = [(1, Some(1), Some(0)), (1, Some(2), Some(7)), (1, Some(4), Some(12))];
        assert_eq!(step(strict.as_mut(), &rows, 14), ["+I 1 1 1", "+I 1 2 3", "+I 1 3 7"]);
        let mut lenient = open(&hop, 20, again(strict.as_mut()));
        let late = [(1, Some(100), Some(3)), (1, Some(8), Some(8))];
        assert_eq!(step(lenient.as_mut(), &late, 19), ["+I 1 3 14"], "[0, 15) lacks its first slice, [5, 20) none");
        assert_eq!(lenient.late_rows(), 1);
        assert_eq!(step(lenient.as_mut(), &[(1, Some(16), Some(9))], 19), ["+U 1 4 30"]);
    }
}

/// What a drain has dropped is not put together in part either.
#[test]
fn behind_a_drain_windows_that_had_fired_before_it_stay_closed() {
    let late = LateRows { allowed_lateness: TimeSpan(50), ..LateRows::default() };
    let open = |state: RestoredState| {
        let tumble = WindowKind::Tumble { size: 10, offset: 0 };
        let made =
            factory_with(batch(&[], false).schema(), vec![0], tumble, RowTime::Column(2), late, AggregateKind::Max);
        let mut operator = made.create().unwrap();
        operator.open(&context(0, 1), state).unwrap();
        operator
    };
    let mut drained = open(RestoredState::default());
    assert_eq!(step(drained.as_mut(), &[(1, Some(5), Some(0))], 9), ["+I 1 1 5"]);
    assert_eq!(step(drained.as_mut(), &[], i64::MAX), [""; 0]);
    let mut resumed = open(state_of(drained.as_mut()));
    assert_eq!(step(resumed.as_mut(), &[(1, Some(7), Some(1))], 9), [""; 0]);
    assert_eq!(resumed.late_rows(), 1);
}
