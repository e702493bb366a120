//! Kafka to Kafka under SIGKILL: with the exactly-once sink a reader with read_committed sees each result once, whatever dies
//! (docs/protocol.md, S1-S6, K3); at-least-once doubles some under the same kills, which shows that the harness would see it.
//!
//! Where a kill falls is chosen by what the job has written: the `_metadata` of a checkpoint lies there after every
//! pre-commit and before the ledger's entry, the entry before the commits.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_protocol::status::JobState;
use sluice_tests::harness::job::Job;
use sluice_tests::harness::kafka::{self, Committed, OwnKafka, Producer};
use sluice_tests::harness::{Services, unique, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 4;
const WAIT: Duration = Duration::from_secs(60);

/// A job from one topic to another, with its checkpoints in a directory.
struct Pipe {
    kafka: String,
    input: String,
    output: String,
    storage: PathBuf,
    job: Job,
}

impl Pipe {
    async fn start(kafka: &str, guarantee: &str) -> Self {
        let (input, output) = (unique("eo-in"), unique("eo-out"));
        let topics = [(input.as_str(), PARTITIONS), (output.as_str(), 2)];
        kafka::create_topics(kafka, &topics).await.expect("topics");
        let storage = std::env::temp_dir().join(unique("sluice-exactly-once"));
        std::fs::create_dir_all(&storage).expect("a directory for checkpoints");
        let kafka = kafka.to_owned();
        let manifest = format!(
            r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: pipe}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (n BIGINT, word STRING) WITH ('connector'='kafka', 'topic'='{input}', 'properties.bootstrap.servers'='{kafka}', 'format'='json', 'scan.startup.mode'='earliest-offset');
      CREATE TABLE results (n BIGINT, twice BIGINT) WITH ('connector'='kafka', 'topic'='{output}', 'properties.bootstrap.servers'='{kafka}', 'format'='json', 'sink.delivery-guarantee'='{guarantee}');
      INSERT INTO results SELECT n, n * 2 FROM numbers WHERE word <> 'skip';
  parallelism: 2
  taskManager: {{slots: 1}}
  checkpointing: {{interval: 300ms, storage: "file://{}", retained: 2, tolerableFailures: 100}}
  restartStrategy: {{fixedDelay: {{attempts: 100, delay: 100ms}}}}
"#,
            storage.display()
        );
        let mut job = Job::new("pipe", &manifest, None);
        job.start_generation(2);
        Self { kafka, input, output, storage, job }
    }

    fn wait_running(&self) -> u64 {
        let running = self.job.wait_status("it runs", WAIT, |status| {
            status.state == JobState::Running && status.completed_checkpoints > 0
        });
        running.completed_checkpoints
    }

    fn restart_job_manager(&mut self) {
        self.job.kill_job_manager();
        self.job.start_generation(2);
    }

    /// Waits until the job writes a file that `is_it`, which was not there before, and kills at once.
    fn kill_at(&mut self, is_it: fn(&str) -> bool) {
        self.wait_for_file(is_it);
        self.job.kill_job_manager();
    }

    fn wait_for_file(&self, is_it: fn(&str) -> bool) {
        let mut known = BTreeSet::new();
        files(&self.storage, &mut |file| known.extend([file.to_owned()]));
        let deadline = Instant::now() + WAIT;
        loop {
            let mut found = false;
            files(&self.storage, &mut |file| {
                found |= is_it(&file.to_string_lossy()) && !known.contains(file);
            });
            if found {
                return;
            }
            assert!(Instant::now() < deadline, "no such file within {WAIT:?}");
        }
    }

    fn committed(&self) -> Committed {
        kafka::read_committed(&self.kafka, &self.output).expect("the output")
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // It lies below the temporary directory in any case.
            let _ = std::fs::remove_dir_all(&self.storage);
        }
    }
}

/// Every file below a directory. What vanishes meanwhile is passed over.
fn files(directory: &Path, take: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files(&path, take) } else { take(&path) }
    }
}

/// Produces numbers until it is told to stop; says how many.
fn produce(kafka: &str, topic: &str, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    let (kafka, topic, stop) = (kafka.to_owned(), topic.to_owned(), Arc::clone(stop));
    std::thread::spawn(move || {
        let producer = Producer::new(&kafka).expect("a producer");
        let mut next: u64 = 0;
        while !stop.load(Ordering::Acquire) {
            for number in next..next + 20 {
                let word = if number % 7 == 0 { "skip" } else { "take" };
                let partition = i32::try_from(number % u64::from(PARTITIONS.unsigned_abs())).expect("small");
                let value = format!(r#"{{"n":{number},"word":"{word}"}}"#);
                producer.send(&topic, partition, &value).expect("room");
            }
            next += 20;
            std::thread::sleep(Duration::from_millis(10));
        }
        producer.flush().expect("delivered");
        next
    })
}

/// How often each result is there, by a reader of its own.
fn counted(committed: &Committed) -> BTreeMap<u64, u32> {
    let mut counts = BTreeMap::new();
    for value in &committed.values {
        let row: serde_json::Value = serde_json::from_str(value).expect("JSON");
        let number = row["n"].as_u64().expect("n");
        assert_eq!(row["twice"].as_u64(), Some(number * 2), "{value}");
        *counts.entry(number).or_insert(0) += 1;
    }
    counts
}

/// Ends the input, waits for all results, and compares.
fn expect_each_once(pipe: &mut Pipe, stop: &AtomicBool, producer: std::thread::JoinHandle<u64>) {
    stop.store(true, Ordering::Release);
    let produced = producer.join().expect("the producer");
    let expected: BTreeMap<u64, u32> =
        (0..produced).filter(|number| number % 7 != 0).map(|number| (number, 1)).collect();
    wait_for("all results", WAIT, || (counted(&pipe.committed()).len() >= expected.len()).then_some(()));
    let counts = counted(&pipe.committed());
    let wrong: Vec<_> = expected.keys().filter(|number| counts.get(number) != Some(&1)).take(20).collect();
    assert!(counts == expected, "of {} results these are wrong: {wrong:?}", expected.len());
    pipe.job.cancel();
    let left = pipe.committed();
    assert_eq!(left.held_up, 0, "transactions are left open behind the terminal entry (L6)");
    assert_eq!(counted(&left), expected, "the end changes nothing");
}

/// Plays the kills while numbers flow.
fn play(pipe: &mut Pipe) {
    pipe.wait_running();
    for round in 0..2 {
        // A TaskManager, while a transaction is open.
        let index = *pipe.job.task_managers.keys().next().expect("a TaskManager");
        pipe.job.kill_task_manager(index);
        pipe.job.start_task_manager();
        let completed =
            pipe.job.wait_status("it runs again", WAIT, |status| status.attempt.0 > 1).completed_checkpoints;
        pipe.job.wait_checkpoint(completed);
        // The JobManager: after the pre-commits and before the entry; right after the entry; at a moment of its own.
        pipe.kill_at(|file| file.ends_with("_metadata"));
        pipe.job.start_generation(2);
        pipe.wait_running();
        pipe.kill_at(|file| file.contains("/ledger/") && file.ends_with(".json"));
        pipe.job.start_generation(2);
        pipe.wait_running();
        std::thread::sleep(Duration::from_millis(137 * (round + 1)));
        pipe.restart_job_manager();
        pipe.wait_running();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_dies_a_reader_of_committed_results_sees_each_once() {
    let Some(services) = Services::from_environment() else { return };
    let mut pipe = Pipe::start(&services.kafka, "exactly-once").await;
    let stop = Arc::new(AtomicBool::new(false));
    let producer = produce(&pipe.kafka, &pipe.input, &stop);
    play(&mut pipe);
    expect_each_once(&mut pipe, &stop, producer);
}

/// A broker that dies right after it has answered a commit may forget its markers (KAFKA-20734).
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_in_the_middle_of_commits_loses_and_doubles_nothing() {
    if Services::from_environment().is_none() {
        return;
    }
    let broker = OwnKafka::start();
    let mut pipe = Pipe::start(&broker.address(), "exactly-once").await;
    let stop = Arc::new(AtomicBool::new(false));
    let producer = produce(&pipe.kafka, &pipe.input, &stop);
    pipe.wait_running();
    let kills = if std::env::var_os("SLUICE_SOAK").is_some() { 10 } else { 1 };
    for kill in 0..kills {
        pipe.wait_for_file(|file| file.contains("/ledger/") && file.ends_with(".json"));
        std::thread::sleep(Duration::from_millis(kill * 7));
        broker.kill();
        broker.restart();
        let completed = pipe.wait_running();
        pipe.job.wait_checkpoint(completed + 1);
    }
    expect_each_once(&mut pipe, &stop, producer);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_least_once_doubles_some_under_the_same_kills_and_loses_none() {
    let Some(services) = Services::from_environment() else { return };
    let mut pipe = Pipe::start(&services.kafka, "at-least-once").await;
    let stop = Arc::new(AtomicBool::new(false));
    let producer = produce(&pipe.kafka, &pipe.input, &stop);
    play(&mut pipe);
    stop.store(true, Ordering::Release);
    let produced = producer.join().expect("the producer");
    let expected = (0..produced).filter(|number| number % 7 != 0).count();
    wait_for("all results", WAIT, || (counted(&pipe.committed()).len() >= expected).then_some(()));
    assert!(counted(&pipe.committed()).values().any(|count| *count > 1), "no result is doubled: would it be seen?");
}
