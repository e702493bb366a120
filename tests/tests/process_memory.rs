//! A process with little memory: state that outgrows its part fails the job by name, before the kernel would have to
//! end the process without a word.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_tests::harness::process::Process;
use sluice_tests::harness::{sluice_binary, unique};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const LIMIT_MIB: u64 = 128;

/// A count for each of more numbers than fit.
fn manifest(backend: &str) -> String {
    format!(
        r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: grows}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (n BIGINT) WITH ('connector'='datagen', 'fields.n.kind'='sequence', 'fields.n.start'='0', 'fields.n.end'='8000000');
      CREATE TABLE counts (n STRING, c BIGINT, PRIMARY KEY (n) NOT ENFORCED) WITH ('connector'='blackhole');
      CREATE VIEW texts AS SELECT CONCAT('a key of some length, by which state grows fast: ', CAST(n AS STRING)) AS n FROM numbers;
      INSERT INTO counts SELECT n, COUNT(*) AS c FROM texts GROUP BY n;
  parallelism: 2
  stateBackend: {backend}
  checkpointing: {{interval: 500ms, retained: 1}}
  restartStrategy: {{none: {{}}}}
"#
    )
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a process has allocated, in MiB: not the pages of its program, which the kernel takes back where memory is short.
fn allocated_mib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

#[test]
fn state_that_outgrows_its_part_fails_by_name_and_within_the_limit() {
    let directory = Directory(std::env::temp_dir().join(unique("sluice-memory")));
    std::fs::create_dir_all(&directory.0).expect("a directory");
    std::fs::write(directory.0.join("job.yaml"), manifest("Hash")).expect("a file");
    let mut command = Command::new(sluice_binary());
    command.current_dir(&directory.0).env("RUST_LOG", "info").args(["run", "job.yaml", "--rest-port", "0", "--memory"]);
    let mut job = Process::start("grows", &directory.0, command.arg(format!("{LIMIT_MIB}Mi"))).expect("sluice run");
    let (mut peak, mut waited) = (0, Duration::ZERO);
    while job.ended().is_none() && waited < Duration::from_secs(100) {
        peak = peak.max(allocated_mib(job.id()).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(20));
        waited += Duration::from_millis(20);
    }
    let status = job.wait(Duration::from_secs(1));
    let log = job.log();
    assert_ne!(status.code(), Some(0), "it cannot have fitted:\n{log}");
    assert!(log.contains("error: MemoryExceeded: the keyed state of this process takes "), "{log}");
    assert!(log.contains(&format!("memory {LIMIT_MIB} MiB (--memory): keyed state ")), "{log}");
    assert!(peak > 30, "{peak} MiB: too little for a state of some size");
    assert!(peak < LIMIT_MIB, "{peak} MiB at most, of {LIMIT_MIB}");
}

#[test]
fn with_too_little_memory_a_job_is_refused_by_name() {
    let directory = Directory(std::env::temp_dir().join(unique("sluice-memory-refused")));
    std::fs::create_dir_all(&directory.0).expect("a directory");
    std::fs::write(directory.0.join("job.yaml"), manifest("Hash")).expect("a file");
    let mut command = Command::new(sluice_binary());
    command.current_dir(&directory.0).args(["run", "job.yaml", "--rest-port", "0", "--memory", "40Mi"]);
    let mut job = Process::start("refused", &directory.0, &mut command).expect("sluice run");
    assert_ne!(job.wait(Duration::from_secs(30)).code(), Some(0));
    let log = job.log();
    assert!(log.contains("keyed state needs at least 8 MiB"), "{log}");
}
