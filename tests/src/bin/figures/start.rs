//! From the start of `sluice run` to its first output row.

use anyhow::Result;
use sluice_tests::harness::measure::{median, scratch};
use sluice_tests::harness::sluice_binary;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

const MANIFEST: &str = "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {name: start}
spec:
  program:
    sql: |
      CREATE TABLE numbers (k BIGINT) WITH ('connector'='datagen', 'number-of-rows'='1000');
      CREATE TABLE lines (k BIGINT, c BIGINT) WITH ('connector'='print');
      INSERT INTO lines SELECT k, COUNT(*) AS c FROM numbers GROUP BY k;
  checkpointing: {interval: 1s}
";

pub(crate) fn print() -> Result<()> {
    let mut seconds = Vec::new();
    for _ in 0..5 {
        let directory = scratch()?;
        std::fs::write(directory.join("job.yaml"), MANIFEST)?;
        let started = Instant::now();
        let mut child = Command::new(sluice_binary())
            .args(["run", "job.yaml", "--rest-port", "0"])
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
        seconds.push(started.elapsed().as_secs_f64());
        child.kill()?;
        child.wait()?;
        std::fs::remove_dir_all(&directory)?;
        anyhow::ensure!(!line.is_empty(), "sluice run printed nothing");
    }
    println!("local_start_seconds {:.3} s", median(seconds));
    Ok(())
}
