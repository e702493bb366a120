//! Rows are a function of seed and number; a restore goes on exactly, under any parallelism.

use super::{DatagenSourceFactory, SPLITS};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{
    DataType, Decimal128Type, Field, Float64Type, Int8Type, Int64Type, Schema, SchemaRef, TimeUnit,
    TimestampMillisecondType,
};
use sluice_engine::operator::{OperatorContext, RestoredState};
use sluice_engine::source::{Source, SourceContext, SourceFactory, SourcePoll};
use sluice_engine::table::{TableDescriptor, TableOption};
use sluice_protocol::state::SplitState;
use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskIndex, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn factory(fields: Vec<Field>, options: &[(&str, &str)]) -> DatagenSourceFactory {
    let option = |(key, value): &(&str, &str)| TableOption { key: (*key).to_owned(), value: (*value).to_owned() };
    let mut all = vec![option(&("connector", "datagen"))];
    all.extend(options.iter().map(option));
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let table = TableDescriptor::new("t", schema, vec![], all);
    DatagenSourceFactory::new(&table).unwrap_or_else(|error| panic!("{error}"))
}

fn bigint(name: &str) -> Field {
    Field::new(name, DataType::Int64, true)
}

fn context(subtask: u32, parallelism: u32) -> SourceContext {
    SourceContext {
        operator: OperatorContext {
            uid: OperatorUid::from("source"),
            subtask: SubtaskIndex(subtask),
            parallelism,
            key_groups: KeyGroupRange { start: 0, end: 128 },
            max_parallelism: 128,
            state_backend: sluice_engine::state::StateBackend::default(),
        },
        waker: Arc::new(|| ()),
        clock: Arc::new(|| Timestamp(0)),
        by_split: false,
    }
}

fn open(factory: &DatagenSourceFactory, subtask: u32, parallelism: u32, splits: &[SplitState]) -> Box<dyn Source> {
    let mut source = factory.create().unwrap();
    let owned = splits.iter().filter(|split| factory.owner(&split.split, parallelism).0 == subtask).cloned().collect();
    let state = RestoredState { restored: !splits.is_empty(), splits: owned, ..RestoredState::default() };
    source.open(context(subtask, parallelism), state).unwrap();
    source
}

/// Reads about `limit` rows; whether the end was met.
fn read(source: &mut dyn Source, limit: usize, out: &mut Vec<i64>) -> bool {
    let goal = out.len() + limit;
    while out.len() < goal {
        match source.poll((goal - out.len()).min(37)).unwrap() {
            SourcePoll::Batch(batch) => out.extend(batch.rows.column(0).as_primitive::<Int64Type>().values()),
            SourcePoll::Finished => return true,
            SourcePoll::Pending => panic!("an unthrottled source is never pending"),
        }
    }
    false
}

const FAST: (&str, &str) = ("rows-per-second", "9223372036854775807");

#[test]
fn one_subtask_hands_out_the_rows_in_order() {
    let sequence = factory(
        vec![bigint("n")],
        &[FAST, ("fields.n.kind", "sequence"), ("fields.n.start", "5"), ("fields.n.end", "3004")],
    );
    assert_eq!(sequence.number_of_rows(), Some(3000));
    let mut rows = Vec::new();
    assert!(read(open(&sequence, 0, 1, &[]).as_mut(), usize::MAX >> 1, &mut rows));
    assert_eq!(rows, (5..=3004).collect::<Vec<i64>>());
}

#[test]
fn a_restore_under_another_parallelism_goes_on_exactly() {
    let random = factory(vec![bigint("n")], &[FAST, ("number-of-rows", "20011"), ("seed", "7")]);
    let mut expected: Vec<i64> =
        random.rows(0..20_011, 0).unwrap().column(0).as_primitive::<Int64Type>().values().to_vec();
    expected.sort_unstable();
    for parallelisms in [[1, 2, 3], [4, 1, 2], [3, 5, 1], [70, 2, 64]] {
        let mut rows = Vec::new();
        let mut splits: Vec<SplitState> = Vec::new();
        for (step, parallelism) in parallelisms.into_iter().enumerate() {
            let mut stored = Vec::new();
            for subtask in 0..parallelism {
                let mut source = open(&random, subtask, parallelism, &splits);
                // Unequally far, and to the end in the last step.
                let limit = if step == 2 { usize::MAX >> 1 } else { 100 + 231 * subtask as usize % 1000 };
                read(source.as_mut(), limit, &mut rows);
                stored.extend(source.snapshot().unwrap());
            }
            assert_eq!(stored.len(), SPLITS as usize);
            splits = stored;
        }
        rows.sort_unstable();
        assert_eq!(rows, expected, "{parallelisms:?}");
    }
}

#[test]
fn a_seed_makes_other_rows() {
    let rows = |seed: &str| {
        let made = factory(vec![bigint("a"), bigint("b")], &[("seed", seed)]).rows(0..100, 0).unwrap();
        (made.column(0).as_primitive::<Int64Type>().clone(), made.column(1).as_primitive::<Int64Type>().clone())
    };
    assert_eq!(rows("1"), rows("1"));
    assert_ne!(rows("1").0, rows("2").0);
    assert_ne!(rows("1").0, rows("1").1, "columns differ");
}

#[test]
fn a_column_is_the_same_beside_others() {
    let both = factory(vec![bigint("a"), bigint("b")], &[]).rows(0..100, 0).unwrap();
    let alone = factory(vec![bigint("b")], &[]).rows(0..100, 0).unwrap();
    assert_eq!(both.column(1), alone.column(0));
}

fn sample(field: Field, options: &[(&str, &str)]) -> RecordBatch {
    let made = factory(vec![field], options);
    concat_batches(&made.schema(), &[made.rows(0..5_000, 77).unwrap(), made.rows(5_000..10_000, 77).unwrap()]).unwrap()
}

#[test]
fn values_stay_within_their_bounds_and_use_them() {
    let keys = sample(bigint("k"), &[("fields.k.min", "-3"), ("fields.k.max", "6")]);
    let seen: BTreeSet<i64> = keys.column(0).as_primitive::<Int64Type>().values().iter().copied().collect();
    assert_eq!(seen, (-3..=6).collect());

    let tiny = sample(Field::new("k", DataType::Int8, true), &[]);
    let seen: BTreeSet<i8> = tiny.column(0).as_primitive::<Int8Type>().values().iter().copied().collect();
    assert_eq!(seen.len(), 256);

    let doubles = sample(Field::new("d", DataType::Float64, true), &[("fields.d.min", "1"), ("fields.d.max", "2")]);
    let values = doubles.column(0).as_primitive::<Float64Type>();
    assert!(values.values().iter().all(|value| (1.0..2.0).contains(value)));
    let mean: f64 = values.values().iter().sum::<f64>() / 10_000.0;
    assert!((mean - 1.5).abs() < 0.02, "{mean}");

    let decimals = sample(
        Field::new("d", DataType::Decimal128(10, 2), true),
        &[("fields.d.min", "-1.50"), ("fields.d.max", "2.25")],
    );
    let values = decimals.column(0).as_primitive::<Decimal128Type>();
    assert!(values.values().iter().all(|value| (-150..=225).contains(value)));
    assert!(values.values().contains(&-150) && values.values().contains(&225));
}

#[test]
fn strings_are_chosen_or_made() {
    let apps = sample(Field::new("s", DataType::Utf8, true), &[("fields.s.values", "app1, app2,app3")]);
    let seen: BTreeSet<&str> = apps.column(0).as_string::<i32>().iter().flatten().collect();
    assert_eq!(seen, BTreeSet::from(["app1", "app2", "app3"]));

    let made = sample(Field::new("s", DataType::Utf8, true), &[("fields.s.length", "20")]);
    let seen: BTreeSet<&str> = made.column(0).as_string::<i32>().iter().flatten().collect();
    assert_eq!(seen.len(), 10_000, "20 hexadecimal digits do not repeat");
    assert!(seen.iter().all(|text| text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_hexdigit())));

    let counted = factory(
        vec![Field::new("s", DataType::Utf8, true)],
        &[("fields.s.kind", "sequence"), ("fields.s.start", "8"), ("fields.s.end", "20")],
    );
    let rows = counted.rows(0..3, 0).unwrap();
    assert_eq!(rows.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["8", "9", "10"]);
}

#[test]
fn nulls_come_at_their_rate() {
    let rows = sample(bigint("k"), &[("fields.k.null-rate", "0.25")]);
    let nulls = rows.column(0).null_count();
    assert!((2_300..2_700).contains(&nulls), "{nulls}");
}

#[test]
fn timestamps_lie_in_the_past_or_in_sequence() {
    let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
    let made = factory(vec![Field::new("ts", millis.clone(), true)], &[("fields.ts.max-past", "10 s")]);
    let rows = made.rows(0..1000, 50_000).unwrap();
    let values = rows.column(0).as_primitive::<TimestampMillisecondType>().values().to_vec();
    assert!(values.iter().all(|value| (40_000..=50_000).contains(value)));
    let made = factory(
        vec![Field::new("ts", millis, true)],
        &[("fields.ts.kind", "sequence"), ("fields.ts.start", "2024-01-01 00:00:00"), ("fields.ts.step", "250 ms")],
    );
    let rows = made.rows(2..4, 0).unwrap();
    let values = rows.column(0).as_primitive::<TimestampMillisecondType>().values().to_vec();
    assert_eq!(values, [1_704_067_200_500, 1_704_067_200_750]);
}

#[test]
fn a_throttled_source_keeps_its_rate_and_wakes_its_task() {
    let made = factory(vec![bigint("n")], &[("rows-per-second", "1000")]);
    let millis = Arc::new(AtomicU64::new(0));
    let woken = Arc::new(AtomicUsize::new(0));
    let (clock, waker) = (millis.clone(), woken.clone());
    let mut source = made.create().unwrap();
    let context = SourceContext {
        clock: Arc::new(move || Timestamp(clock.load(Ordering::SeqCst))),
        waker: Arc::new(move || {
            waker.fetch_add(1, Ordering::SeqCst);
        }),
        ..context(0, 2)
    };
    source.open(context, RestoredState::default()).unwrap();
    let mut rows = 0;
    for step in 0..=3000 {
        millis.store(step, Ordering::SeqCst);
        if let SourcePoll::Batch(batch) = source.poll(100).unwrap() {
            rows += batch.len();
        }
    }
    assert!((1500..=1502).contains(&rows), "half of 1000 rows a second for 3 s were {rows}");
    let deadline = Instant::now() + Duration::from_secs(5);
    while woken.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "the waker was not called");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn foreign_state_is_refused_by_name() {
    let made = factory(vec![bigint("n")], &[]);
    for (split, state) in [("test-0", serde_json::json!({"offset": 1})), ("datagen-1", serde_json::json!({"at": 1}))] {
        let mut source = made.create().unwrap();
        let splits = vec![SplitState { split: split.to_owned(), state }];
        let error = source
            .open(context(0, 1), RestoredState { restored: true, splits, ..RestoredState::default() })
            .unwrap_err();
        assert!(error.to_string().contains(split), "{error}");
    }
}
