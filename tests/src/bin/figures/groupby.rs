//! datagen → GROUP BY a BIGINT key of 100 k values, COUNT and SUM, changelog out → blackhole, parallelism 2.
//!
//! The ratios are taken over runs of more than ten seconds on an idle machine, with aligned, unaligned and without
//! checkpoints in turn, the order rotated from round to round: what drifts (heat, a neighbour) weighs on all alike.

use anyhow::Result;
use sluice_tests::harness::measure::{Usage, median, run_local};

const ROWS: u64 = 240_000_000;
/// Odd, so that the median is a run.
const ROUNDS: usize = 5;

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
    let checkpointing = ["  checkpointing: {interval: 1s}\n", "", "  checkpointing: {interval: 1s, unaligned: true}\n"];
    let mut usages: [Vec<Usage>; 3] = Default::default();
    for round in 0..ROUNDS {
        for turn in 0..3 {
            let side = (round + turn) % 3;
            usages[side].push(run_local(&manifest(checkpointing[side]))?);
        }
        let [with, without, unaligned] = usages.each_ref().map(|side| side[round]);
        println!("# with a checkpoint per second: {with:?}, unaligned: {unaligned:?}, without: {without:?}");
    }
    let [with, without, unaligned] = usages;
    let cpu = |side: &[Usage]| median(side.iter().map(|usage| usage.cpu).collect());
    let wall = |side: &[Usage]| median(side.iter().map(|usage| usage.wall).collect());
    let ratio = wall(&without) / wall(&with);
    println!("groupby_rows_per_core {:.0} rows/s", ROWS as f64 / cpu(&with));
    println!("groupby_checkpoint_ratio {ratio:.3} ratio");
    println!("aligned_checkpoint_ratio {ratio:.3} ratio");
    println!("unaligned_checkpoint_ratio {:.3} ratio", wall(&without) / wall(&unaligned));
    let by_cpu = |side: &[Usage]| cpu(&without) / cpu(side);
    println!("# by CPU time, which a busy machine changes less: {:.3}, {:.3}", by_cpu(&with), by_cpu(&unaligned));
    Ok(())
}
