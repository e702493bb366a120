//! Plain processes: from SIGKILL of a TaskManager to output again with a spare one registered, and the memory of an
//! idle TaskManager.

use anyhow::Result;
use sluice_protocol::status::JobState;
use sluice_tests::harness::job::Job;
use sluice_tests::harness::measure::{median, pause, scratch};
use std::time::{Duration, Instant};

fn manifest(directory: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: recovery}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='2000', 'fields.k.min'='0', 'fields.k.max'='99');
      CREATE TABLE lines (k BIGINT, c BIGINT) WITH ('connector'='print');
      INSERT INTO lines SELECT k, COUNT(*) AS c FROM numbers GROUP BY k;
  parallelism: 2
  checkpointing: {{interval: 1s, storage: \"file://{directory}\"}}
  restartStrategy: {{fixedDelay: {{attempts: 100, delay: 1s}}}}
"
    )
}

fn output_bytes(job: &Job) -> usize {
    job.task_managers.values().map(|process| process.log().len()).sum()
}

pub(crate) fn print() -> Result<()> {
    let directory = scratch()?;
    let mut job = Job::new("recovery", &manifest(&directory.display().to_string()), None);
    job.start_generation(3);
    job.wait_checkpoint(1);
    let idle = job.task_managers.values().map(sluice_tests::harness::process::Process::rss_mb).fold(f64::MAX, f64::min);
    let mut seconds = Vec::new();
    for attempt in 2..5 {
        job.wait_checkpoint(0);
        let busy = busy_task_manager(&job);
        let started = Instant::now();
        job.kill_task_manager(busy);
        while !job.status().is_some_and(|status| status.attempt.0 >= attempt && status.state == JobState::Running) {
            anyhow::ensure!(started.elapsed() < Duration::from_secs(60), "no attempt {attempt} within 60 s");
            pause();
        }
        let before = output_bytes(&job);
        while output_bytes(&job) == before {
            anyhow::ensure!(started.elapsed() < Duration::from_secs(60), "no output within 60 s");
            pause();
        }
        seconds.push(started.elapsed().as_secs_f64());
        job.start_task_manager();
        job.wait_status("the spare one", Duration::from_secs(30), |status| status.task_managers.len() == 3);
    }
    println!("kill_to_output_seconds {:.2} s", median(seconds));
    println!("taskmanager_idle_rss_mb {idle:.1} MB");
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

/// The TaskManager that has printed most: it runs tasks.
fn busy_task_manager(job: &Job) -> u32 {
    job.task_managers.iter().max_by_key(|(_, process)| process.log().len()).map_or(0, |(index, _)| *index)
}
