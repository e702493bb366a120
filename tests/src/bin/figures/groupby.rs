//! datagen → GROUP BY a BIGINT key of 100 k values, COUNT and SUM, changelog out → blackhole, parallelism 2.

use crate::measure::{Usage, median, run_local};
use anyhow::Result;

const ROWS: u64 = 60_000_000;
const RUNS: usize = 3;

fn manifest(checkpointing: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: groupby}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (k BIGINT, v BIGINT) WITH ('connector'='datagen', 'rows-per-second'='1000000000', 'number-of-rows'='{ROWS}', 'fields.k.min'='0', 'fields.k.max'='99999', 'fields.v.min'='0', 'fields.v.max'='1000');
      CREATE TABLE nothing (k BIGINT, c BIGINT, s BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole');
      INSERT INTO nothing SELECT k, COUNT(*) AS c, SUM(v) AS s FROM numbers GROUP BY k;
  parallelism: 2
{checkpointing}"
    )
}

pub(crate) fn print() -> Result<()> {
    let with = manifest("  checkpointing: {interval: 1s}\n");
    let without = manifest("");
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let checkpointed = run_local(&with)?;
        let bare = run_local(&without)?;
        let rate = |usage: Usage| ROWS as f64 / usage.cpu;
        rates.push(rate(checkpointed));
        ratios.push(bare.wall / checkpointed.wall);
        println!("# with a checkpoint per second: {checkpointed:?}, without: {bare:?}");
    }
    println!("groupby_rows_per_core {:.0} rows/s", median(rates));
    println!("groupby_checkpoint_ratio {:.3} ratio", median(ratios));
    Ok(())
}
