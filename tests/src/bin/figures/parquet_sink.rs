//! `parquet_sink_mb_per_core`: datagen → Parquet files committed with checkpoints, megabytes of rows as they are in memory
//! (16 bytes of integers and a text of 32 each) per CPU second of the job, the generator's included.

use anyhow::Result;
use sluice_tests::harness::measure::{median, run_local};
use sluice_tests::harness::unique;

const ROWS: u64 = 20_000_000;
const ROW_BYTES: u64 = 16 + 32;
const ROUNDS: usize = 3;

fn manifest(directory: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: parquet-sink}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (k BIGINT, v BIGINT, t STRING) WITH ('connector'='datagen', 'rows-per-second'='1000000000', 'number-of-rows'='{ROWS}', 'fields.k.min'='0', 'fields.k.max'='99999', 'fields.v.min'='0', 'fields.v.max'='1000', 'fields.t.length'='32');
      CREATE TABLE files (k BIGINT, v BIGINT, t STRING) WITH ('connector'='filesystem', 'path'='file://{directory}/out', 'format'='parquet');
      INSERT INTO files SELECT k, v, t FROM numbers;
  parallelism: 2
  checkpointing: {{interval: 2s, storage: \"file://{directory}/checkpoints\"}}
"
    )
}

pub(crate) fn print() -> Result<()> {
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let directory = std::env::temp_dir().join(unique("figures-parquet"));
        std::fs::create_dir_all(&directory)?;
        let usage = run_local(&manifest(&directory.display().to_string()));
        let written = size_of(&directory.join("out"));
        std::fs::remove_dir_all(&directory)?;
        let usage = usage?;
        println!("# {ROWS} rows, files of {written:?} bytes: {usage:?}");
        rates.push((ROWS * ROW_BYTES) as f64 / 1e6 / usage.cpu);
    }
    println!("parquet_sink_mb_per_core {:.0} MB/s", median(rates));
    Ok(())
}

fn size_of(directory: &std::path::Path) -> std::io::Result<u64> {
    std::fs::read_dir(directory)?.map(|entry| entry?.metadata().map(|metadata| metadata.len())).sum()
}
