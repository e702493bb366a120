//! `hop_rows_per_core`, `hop_tumble_ratio`, `session_rows_per_core`: COUNT and SUM per key and window, 1 M BIGINT keys, rows per
//! CPU second. The operators are driven directly, on one thread, in batches of 4096 rows, with a watermark every 200 ms of
//! event time.
//!
//! HOP of 10 s by 1 s against TUMBLE of 10 s, over the same 10 s of event time behind 10 s of the same: each key has
//! [`ROWS_PER_KEY`] rows in a second, and each window that fires has all keys, so HOP emits ten times as many rows as TUMBLE.
//! SESSION with a gap of 5 s: each key has a row in each of ten seconds, then none for six, when its session fires.

use anyhow::{Result, ensure};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use sluice_engine::aggregate::{AggregateCall, AggregateKind};
use sluice_engine::batch::Batch;
use sluice_engine::operator::{Collector, Operator, OperatorContext, OperatorFactory, Progress, RestoredState};
use sluice_engine::state::StateBackend;
use sluice_engine::window::{
    LateRows, RowTime, SessionAggregateFactory, SessionAggregateSpec, WindowAggregateFactory, WindowAggregateSpec,
    WindowKind,
};
use sluice_protocol::{KeyGroupRange, SubtaskIndex};
use sluice_tests::harness::measure::{median, own_cpu};
use std::sync::Arc;

const KEYS: i64 = 1_000_000;
/// Rows of a key in a second.
const ROWS_PER_KEY: i64 = 4;
const BATCH: i64 = 4096;
const ROUNDS: usize = 3;
/// Milliseconds of event time between two watermarks.
const WATERMARKS: i64 = 200;

struct Count(i64);

impl Collector for Count {
    fn collect(&mut self, batch: Batch) {
        self.0 += batch.len() as i64;
    }
}

fn at() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, None)
}

fn schema() -> SchemaRef {
    let field = |name: &str, data_type| Field::new(name, data_type, false);
    Arc::new(Schema::new(vec![field("k", DataType::Int64), field("v", DataType::Int64), field("t", at())]))
}

fn calls() -> Vec<AggregateCall> {
    vec![AggregateCall::new(AggregateKind::Count, None, "n"), AggregateCall::new(AggregateKind::Sum, Some(1), "s")]
}

fn of_slices(kind: WindowKind) -> Result<Box<dyn Operator>> {
    let (input, key_names, time) = (schema(), vec!["k".to_owned()], RowTime::Column(2));
    let (window_time, late) = (at(), LateRows::default());
    let spec = WindowAggregateSpec { input, keys: vec![0], key_names, calls: calls(), kind, time, window_time, late };
    opened(&WindowAggregateFactory::new(spec)?)
}

fn of_sessions(gap: i64) -> Result<Box<dyn Operator>> {
    let (input, key_names, time) = (schema(), vec!["k".to_owned()], RowTime::Column(2));
    let spec = SessionAggregateSpec { input, keys: vec![0], key_names, calls: calls(), gap, time, window_time: at() };
    opened(&SessionAggregateFactory::new(spec)?)
}

fn opened(factory: &dyn OperatorFactory) -> Result<Box<dyn Operator>> {
    let mut operator = factory.create()?;
    let context = OperatorContext {
        uid: "window".into(),
        subtask: SubtaskIndex(0),
        parallelism: 1,
        key_groups: KeyGroupRange { start: 0, end: 128 },
        max_parallelism: 128,
        state_backend: StateBackend::Hash,
    };
    operator.open(&context, RestoredState::default())?;
    Ok(operator)
}

/// Rows by their number: each key once in [`KEYS`] rows, in another order than their own.
struct Rows {
    keys: Vec<(ArrayRef, ArrayRef)>,
}

impl Rows {
    fn new() -> Self {
        let batch = |start: i64| {
            let rows = start..KEYS.min(start + BATCH);
            let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row * 7919 % KEYS)));
            (keys, Arc::new(Int64Array::from_iter_values(rows)) as ArrayRef)
        };
        Self { keys: (0..KEYS).step_by(4096).map(batch).collect() }
    }

    /// All keys once, at times that pass evenly from `start` on; a watermark whenever it is time for one.
    fn pass(&self, operator: &mut dyn Operator, start: i64, takes: i64, out: &mut Count) -> Result<()> {
        let (mut done, mut told) = (0, start.div_euclid(WATERMARKS));
        for (keys, values) in &self.keys {
            let count = keys.len() as i64;
            let times =
                TimestampMillisecondArray::from_iter_values((done..done + count).map(|row| start + row * takes / KEYS));
            done += count;
            let rows = vec![Arc::clone(keys), Arc::clone(values), Arc::new(times) as ArrayRef];
            operator.process(Batch::inserts(RecordBatch::try_new(schema(), rows)?), out)?;
            let now = start + done * takes / KEYS;
            if now.div_euclid(WATERMARKS) > told {
                told = now.div_euclid(WATERMARKS);
                advance(operator, told * WATERMARKS - 1, out)?;
            }
        }
        Ok(())
    }
}

fn advance(operator: &mut dyn Operator, watermark: i64, out: &mut Count) -> Result<()> {
    while operator.watermark(watermark, out)? == Progress::More {}
    Ok(())
}

/// Rows per CPU second over the second 10 s of event time.
fn slices(rows: &Rows, kind: WindowKind, windows: i64) -> Result<f64> {
    let mut operator = of_slices(kind)?;
    let mut out = Count(0);
    let passes = 10 * ROWS_PER_KEY;
    let takes = 1000 / ROWS_PER_KEY;
    for pass in 0..passes {
        rows.pass(operator.as_mut(), pass * takes, takes, &mut out)?;
    }
    let (emitted, before) = (out.0, own_cpu());
    for pass in passes..2 * passes {
        rows.pass(operator.as_mut(), pass * takes, takes, &mut out)?;
    }
    let cpu = own_cpu() - before;
    let emitted = out.0 - emitted;
    ensure!(emitted == windows * KEYS, "{emitted} rows came out, not {windows} of each key");
    Ok((passes * KEYS) as f64 / cpu)
}

/// Rows per CPU second over two sessions of each key, behind one.
fn sessions(rows: &Rows) -> Result<f64> {
    let mut operator = of_sessions(5000)?;
    let (mut out, mut before) = (Count(0), 0.0);
    for session in 0..3 {
        if session == 1 {
            before = own_cpu();
        }
        for second in 0..10 {
            rows.pass(operator.as_mut(), session * 16_000 + second * 1000, 1000, &mut out)?;
        }
        advance(operator.as_mut(), session * 16_000 + 15_999, &mut out)?;
    }
    let cpu = own_cpu() - before;
    ensure!(out.0 == 3 * KEYS, "{} sessions came out, not three of each key", out.0);
    Ok((20 * KEYS) as f64 / cpu)
}

pub(crate) fn print_slices() -> Result<()> {
    let rows = Rows::new();
    let (mut hops, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let hop = slices(&rows, WindowKind::Hop { slide: 1000, size: 10_000, offset: 0 }, 10)?;
        let tumble = slices(&rows, WindowKind::Tumble { size: 10_000, offset: 0 }, 1)?;
        println!("# round {round}: HOP {hop:.0} rows/s, TUMBLE {tumble:.0} rows/s");
        hops.push(hop);
        ratios.push(hop / tumble);
    }
    println!("hop_rows_per_core {:.0} rows/s", median(hops));
    println!("hop_tumble_ratio {:.3} ratio", median(ratios));
    Ok(())
}

pub(crate) fn print_sessions() -> Result<()> {
    let rows = Rows::new();
    let rates = (0..ROUNDS).map(|_| sessions(&rows)).collect::<Result<Vec<_>>>()?;
    println!("# rounds: {rates:?}");
    println!("session_rows_per_core {:.0} rows/s", median(rates));
    Ok(())
}
