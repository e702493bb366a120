//! `filter_project_rows_per_core`: datagen → WHERE on one column, two computed ones → blackhole, parallelism 2.

use anyhow::Result;
use sluice_tests::harness::measure::{median, run_local};

const ROWS: u64 = 400_000_000;
const ROUNDS: usize = 3;

fn manifest() -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: filter-project}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (k BIGINT, v BIGINT) WITH ('connector'='datagen', 'rows-per-second'='1000000000', 'number-of-rows'='{ROWS}', 'fields.k.min'='0', 'fields.k.max'='99999', 'fields.v.min'='0', 'fields.v.max'='1000');
      CREATE TABLE nothing (k BIGINT, w BIGINT, x BIGINT) WITH ('connector'='blackhole');
      INSERT INTO nothing SELECT k, v * 2 + 1 AS w, k + v AS x FROM numbers WHERE v < 500;
  parallelism: 2
"
    )
}

pub(crate) fn print() -> Result<()> {
    let usages = (0..ROUNDS).map(|_| run_local(&manifest())).collect::<Result<Vec<_>>>()?;
    println!("# rounds: {usages:?}");
    let rates = usages.iter().map(|usage| ROWS as f64 / usage.cpu).collect();
    println!("filter_project_rows_per_core {:.0} rows/s", median(rates));
    Ok(())
}
