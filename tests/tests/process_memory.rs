//! A process with little memory: state that outgrows its part fails the job by name, before the kernel would have to
//! end the process without a word; rows that nobody takes wait where they are. In a cgroup of its own the kernel watches.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking, and says why it is skipped")]

use sluice_tests::harness::kafka::{self, Producer};
use sluice_tests::harness::process::Process;
use sluice_tests::harness::{Services, sluice_binary, unique};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
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
    assert!(log.contains("keyed state needs at least 8 MiB, so this process needs "), "{log}");
}

/// Far more records than a reader may hold, in many partitions, and nobody who takes the rows.
#[tokio::test(flavor = "multi_thread")]
async fn many_partitions_of_a_topic_share_what_their_reader_may_hold() {
    const PARTITIONS: i32 = 64;
    const RECORDS: i32 = 64 * 300;
    let Some(services) = Services::from_environment() else { return };
    let topic = unique("many-partitions");
    kafka::create_topics(&services.kafka, &[(&topic, PARTITIONS)]).await.expect("topics");
    let producer = Producer::new(&services.kafka).expect("a producer");
    let value = format!(r#"{{"text": "{}"}}"#, "x".repeat(10_000));
    for number in 0..RECORDS {
        producer.send(&topic, number % PARTITIONS, &value).expect("sent");
    }
    producer.flush().expect("all are there");
    let directory = Directory(std::env::temp_dir().join(unique("sluice-memory-partitions")));
    std::fs::create_dir_all(&directory.0).expect("a directory");
    let manifest = format!(
        r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: partitions}}
spec:
  program:
    sql: |
      CREATE TABLE texts (text STRING) WITH ('connector'='kafka', 'topic'='{topic}', 'properties.bootstrap.servers'='{}',
        'format'='json', 'scan.startup.mode'='earliest-offset', 'scan.bounded.mode'='latest-offset');
      CREATE TABLE printed (text STRING) WITH ('connector'='print');
      INSERT INTO printed SELECT text FROM texts;
  parallelism: 1
"#,
        services.kafka
    );
    std::fs::write(directory.0.join("job.yaml"), manifest).expect("a file");
    let mut command = Command::new(sluice_binary());
    command.current_dir(&directory.0).args(["run", "job.yaml", "--rest-port", "0", "--memory", "256Mi"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut job = command.spawn().expect("sluice run");
    std::thread::sleep(Duration::from_secs(6));
    assert!(job.try_wait().expect("a state").is_none(), "it has ended, though nobody took its rows");
    let held = allocated_mib(job.id()).expect("its memory");
    let lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let rows = lines.map_while(Result::ok).filter(|line| line.contains("+I[")).count();
    assert_eq!((rows, job.wait().expect("its end").code()), (RECORDS as usize, Some(0)));
    // The records are 183 MiB.
    assert!(held < 100, "{held} MiB");
}

/// A cgroup with a memory limit, which goes away.
struct Cgroup {
    path: PathBuf,
    version: u8,
}

impl Cgroup {
    /// None where this process may not make one, which CI's may.
    fn new(limit: u64) -> Option<Self> {
        let made = [(1, "/sys/fs/cgroup/memory", "memory.limit_in_bytes"), (2, "/sys/fs/cgroup", "memory.max")];
        for (version, mount, file) in made {
            let path = Path::new(mount).join(unique("sluice-memory"));
            if version == 2 {
                // The controller must be on for children; where others hold the root this is refused.
                let _ = std::fs::write(Path::new(mount).join("cgroup.subtree_control"), "+memory");
            }
            let is_there = Path::new(mount).join("cgroup.procs").exists() && std::fs::create_dir(&path).is_ok();
            let cgroup = Self { path, version };
            if is_there && std::fs::write(cgroup.path.join(file), limit.to_string()).is_ok() {
                let _ = std::fs::write(cgroup.path.join("memory.swap.max"), "0");
                return Some(cgroup);
            }
        }
        println!(
            "skipped: no cgroup with a memory limit can be made here (it takes root and a writable /sys/fs/cgroup)"
        );
        None
    }

    /// The command, in it.
    fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new("sh");
        let enter = r#"echo $$ > "$0/cgroup.procs" && exec "$@""#;
        command.current_dir(directory).env("RUST_LOG", "info").args(["-c", enter]).arg(&self.path).arg(sluice_binary());
        command.args(["run", "job.yaml", "--rest-port", "0"]);
        command
    }

    /// How many processes the kernel has killed for want of memory.
    fn killed(&self) -> u64 {
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        let text = std::fs::read_to_string(self.path.join(file)).expect("the kernel counts kills");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).expect("a count")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has ended may be in it for a moment.
        for _ in 0..50 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn in_a_cgroup_state_that_outgrows_its_part_fails_by_name_and_the_kernel_kills_nothing() {
    const LIMIT: u64 = 160 << 20;
    let Some(cgroup) = Cgroup::new(LIMIT) else { return };
    let directory = Directory(std::env::temp_dir().join(unique("sluice-memory-cgroup")));
    std::fs::create_dir_all(&directory.0).expect("a directory");
    std::fs::write(directory.0.join("job.yaml"), manifest("Hash")).expect("a file");
    let mut job = Process::start("grows", &directory.0, &mut cgroup.command(&directory.0)).expect("sluice run");
    let status = job.wait(Duration::from_secs(100));
    let log = job.log();
    assert_eq!(cgroup.killed(), 0, "the kernel has killed it:\n{log}");
    assert_eq!(status.code(), Some(1), "{status}:\n{log}");
    assert!(log.contains("memory 160 MiB (the limit of the cgroup): keyed state "), "{log}");
    assert!(log.contains("error: MemoryExceeded: the keyed state of this process takes "), "{log}");
}

/// More bytes of rows than the limit, into a pipe that nobody reads at first.
#[test]
fn in_a_cgroup_rows_that_nobody_takes_wait_and_all_come_when_somebody_does() {
    const ROWS: usize = 400_000;
    let Some(cgroup) = Cgroup::new(128 << 20) else { return };
    let directory = Directory(std::env::temp_dir().join(unique("sluice-memory-stalled")));
    std::fs::create_dir_all(&directory.0).expect("a directory");
    let manifest = format!(
        r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: stalled}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (n BIGINT, text STRING) WITH ('connector'='datagen', 'fields.n.kind'='sequence', 'fields.n.start'='1', 'fields.n.end'='{ROWS}', 'fields.text.length'='400');
      CREATE TABLE texts (n BIGINT, text STRING) WITH ('connector'='print');
      INSERT INTO texts SELECT n, text FROM numbers;
  parallelism: 2
  checkpointing: {{interval: 500ms, retained: 1}}
"#
    );
    std::fs::write(directory.0.join("job.yaml"), manifest).expect("a file");
    let mut command = cgroup.command(&directory.0);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut job = command.spawn().expect("sluice run");
    std::thread::sleep(Duration::from_secs(4));
    assert!(job.try_wait().expect("a state").is_none(), "it has ended, though nobody took its rows");
    assert_eq!(cgroup.killed(), 0, "the kernel has killed it while it waited");
    let lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let rows = lines.map_while(Result::ok).filter(|line| line.contains("+I[")).count();
    let status = job.wait().expect("its end");
    assert_eq!((rows, status.code(), cgroup.killed()), (ROWS, Some(0), 0));
}
