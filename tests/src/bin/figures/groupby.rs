//! datagen → GROUP BY a BIGINT key of 100 k values, COUNT and SUM, changelog out → blackhole, parallelism 2.
//!
//! The ratio is taken over runs of more than ten seconds on an idle machine, with and without checkpoints in turn, the
//! order of the two swapped from pair to pair: what drifts (heat, a neighbour) weighs on both sides alike.

use crate::measure::{Usage, median, run_local};
use anyhow::Result;

const ROWS: u64 = 240_000_000;
/// Odd, so that the median is a run.
const PAIRS: usize = 5;

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
    let sides = [manifest("  checkpointing: {interval: 1s}\n"), manifest("")];
    let mut usages: [Vec<Usage>; 2] = Default::default();
    for pair in 0..PAIRS {
        for turn in 0..2 {
            let side = (pair + turn) % 2;
            usages[side].push(run_local(&sides[side])?);
        }
        let [with, without] = usages.each_ref().map(|side| side[pair]);
        println!("# with a checkpoint per second: {with:?}, without: {without:?}");
    }
    let [with, without] = usages;
    let cpu = |side: &[Usage]| median(side.iter().map(|usage| usage.cpu).collect());
    let wall = |side: &[Usage]| median(side.iter().map(|usage| usage.wall).collect());
    println!("groupby_rows_per_core {:.0} rows/s", ROWS as f64 / cpu(&with));
    println!("groupby_checkpoint_ratio {:.3} ratio", wall(&without) / wall(&with));
    println!("# the same by CPU time, which a busy machine changes less: {:.3}", cpu(&without) / cpu(&with));
    Ok(())
}
