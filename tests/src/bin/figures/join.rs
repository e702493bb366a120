//! `join_rows_per_core`: an inner equi-join of two append-only sides, 1 M keys on each, one row a key, in an order of its
//! own: rows of both sides per CPU second, keeping them in state and emitting 1 M pairs. The operator is driven directly, on
//! one thread, in batches of 4096.

use anyhow::{Result, ensure};
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use sluice_engine::batch::Batch;
use sluice_engine::join::{JoinFactory, JoinKind, JoinSpec};
use sluice_engine::operator::{Collector, OperatorContext, OperatorFactory as _, RestoredState};
use sluice_engine::state::StateBackend;
use sluice_protocol::{KeyGroupRange, SubtaskIndex};
use sluice_tests::harness::measure::{median, own_cpu};
use std::sync::Arc;

const KEYS: i64 = 1_000_000;
const BATCH: i64 = 4096;
const ROUNDS: usize = 3;

struct Count(usize);

impl Collector for Count {
    fn collect(&mut self, batch: Batch) {
        self.0 += batch.len();
    }
}

fn schema(names: &[&str]) -> SchemaRef {
    Arc::new(Schema::new(names.iter().map(|name| Field::new(*name, DataType::Int64, false)).collect::<Vec<_>>()))
}

/// Row n of a side has the key n times a number that is prime to that of the keys.
fn batches(names: &[&str], step: i64) -> Result<Vec<Batch>> {
    let batch = |start: i64| {
        let rows = start..KEYS.min(start + BATCH);
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row * step % KEYS)));
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(rows));
        Ok(Batch::inserts(RecordBatch::try_new(schema(names), vec![keys, values])?))
    };
    (0..KEYS).step_by(usize::try_from(BATCH)?).map(batch).collect()
}

fn run(sides: [&[Batch]; 2]) -> Result<f64> {
    let factory = JoinFactory::new(JoinSpec {
        kind: JoinKind::Inner,
        left: schema(&["k", "v"]),
        right: schema(&["id", "w"]),
        left_keys: vec![0],
        right_keys: vec![0],
        condition: None,
        output: schema(&["k", "v", "id", "w"]),
        left_ttl: None,
        right_ttl: None,
        bounds: None,
    })?;
    let mut operator = factory.create()?;
    let context = OperatorContext {
        uid: "join".into(),
        subtask: SubtaskIndex(0),
        parallelism: 1,
        key_groups: KeyGroupRange { start: 0, end: 128 },
        max_parallelism: 128,
        state_backend: StateBackend::Hash,
    };
    operator.open(&context, RestoredState::default())?;
    let (mut pairs, before) = (Count(0), own_cpu());
    for (left, right) in sides[0].iter().zip(sides[1]) {
        operator.process_input(0, left.clone(), &mut pairs)?;
        operator.process_input(1, right.clone(), &mut pairs)?;
    }
    let cpu = own_cpu() - before;
    ensure!(pairs.0 as i64 == KEYS, "{} pairs came out, not {KEYS}", pairs.0);
    Ok(2.0 * KEYS as f64 / cpu)
}

pub(crate) fn print() -> Result<()> {
    let (left, right) = (batches(&["k", "v"], 7919)?, batches(&["id", "w"], 104_729)?);
    let rates = (0..ROUNDS).map(|_| run([&left, &right])).collect::<Result<Vec<_>>>()?;
    println!("# rounds: {rates:?}");
    println!("join_rows_per_core {:.0} rows/s", median(rates));
    Ok(())
}
