//! Kafka to Kafka: what exactly once costs over at least once, when committed results can be read, and how soon after the
//! kill of a TaskManager. Rows are about 100 bytes of JSON.

use anyhow::{Context as _, Result, ensure};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};
use sluice_protocol::status::JobState;
use sluice_tests::harness::job::Job;
use sluice_tests::harness::kafka::{Producer, create_topics};
use sluice_tests::harness::measure::{median, pause, run_local, scratch};
use sluice_tests::harness::unique;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const EVENTS: u64 = 3_000_000;
const PARTITIONS: i32 = 4;
const INTERVAL: Duration = Duration::from_secs(1);

struct Topics {
    kafka: String,
    input: String,
    output: String,
}

impl Topics {
    fn make(kafka: &str) -> Result<Self> {
        let (input, output) = (unique("figures-in"), unique("figures-out"));
        let wanted = [(input.as_str(), PARTITIONS), (output.as_str(), PARTITIONS)];
        tokio::runtime::Runtime::new()?.block_on(create_topics(kafka, &wanted))?;
        Ok(Self { kafka: kafka.to_owned(), input, output })
    }

    fn manifest(&self, guarantee: &str, is_bounded: bool, storage: &Path) -> String {
        let Self { kafka, input, output } = self;
        let bounded = if is_bounded { ", 'scan.bounded.mode'='latest-offset'" } else { "" };
        format!(
            "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: exactly-once}}
spec:
  program:
    sql: |
      CREATE TABLE events (n BIGINT, pad STRING) WITH ('connector'='kafka', 'topic'='{input}', 'properties.bootstrap.servers'='{kafka}', 'format'='json', 'scan.startup.mode'='earliest-offset'{bounded});
      CREATE TABLE results (n BIGINT, pad STRING) WITH ('connector'='kafka', 'topic'='{output}', 'properties.bootstrap.servers'='{kafka}', 'format'='json', 'sink.delivery-guarantee'='{guarantee}');
      INSERT INTO results SELECT n, pad FROM events;
  parallelism: 2
  checkpointing: {{interval: {}s, storage: \"file://{}\"}}
  restartStrategy: {{fixedDelay: {{attempts: 100, delay: 100ms}}}}
",
            INTERVAL.as_secs(),
            storage.display()
        )
    }

    fn send(&self, producer: &Producer, number: u64, partition: u64) -> Result<()> {
        let value = format!(r#"{{"n":{number},"pad":"{:0>70}"}}"#, number % 1000);
        producer.send(&self.input, i32::try_from(partition % u64::from(PARTITIONS.unsigned_abs()))?, &value)
    }
}

fn broker(figures: &str) -> Option<String> {
    let kafka = std::env::var("SLUICE_TEST_KAFKA").ok();
    if kafka.is_none() {
        println!("# {figures} skipped: no broker named (SLUICE_TEST_KAFKA)");
    }
    kafka
}

/// The wall time of the same rows with either guarantee, in turn.
pub(crate) fn print_ratio() -> Result<()> {
    let Some(kafka) = broker("exactly_once_ratio") else { return Ok(()) };
    let topics = Topics::make(&kafka)?;
    let producer = Producer::new(&kafka)?;
    (0..EVENTS).try_for_each(|number| topics.send(&producer, number, number))?;
    producer.flush()?;
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let mut walls = Vec::new();
        for guarantee in ["at-least-once", "exactly-once"] {
            let storage = scratch()?;
            let usage = run_local(&topics.manifest(guarantee, true, &storage))?;
            println!("# {guarantee}: {EVENTS} events: {usage:?}");
            walls.push(usage.wall);
            std::fs::remove_dir_all(&storage)?;
        }
        ratios.push(walls[0] / walls[1]);
    }
    println!("exactly_once_ratio {:.2}", median(ratios));
    Ok(())
}

/// A result that a reader with read_committed has seen: when it was produced, in milliseconds since the epoch, and how long
/// after that it came.
type Seen = (u64, Duration);

/// Reads committed results until it is told to stop.
fn watch(topics: &Topics, stop: &Arc<AtomicBool>) -> Result<Receiver<Seen>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &topics.kafka)
        .set("group.id", "sluice-figures")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "20")
        .create()?;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        assignment.add_partition_offset(&topics.output, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    let (sender, seen) = channel();
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) else { continue };
            let row: serde_json::Value =
                serde_json::from_slice(message.payload().unwrap_or_default()).unwrap_or_default();
            let produced = row["n"].as_u64().unwrap_or_default();
            if sender.send((produced, Duration::from_millis(now().saturating_sub(produced)))).is_err() {
                return;
            }
        }
    });
    Ok(seen)
}

/// Milliseconds since the epoch.
#[expect(clippy::disallowed_methods, reason = "the rows' own time, which two threads of a program of figures compare")]
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}

/// Produces a row every few milliseconds, whose number is the time.
fn produce(topics: &Topics, stop: &Arc<AtomicBool>) -> Result<std::thread::JoinHandle<()>> {
    let topics = Topics { kafka: topics.kafka.clone(), input: topics.input.clone(), output: topics.output.clone() };
    let (producer, stop) = (Producer::new(&topics.kafka)?, Arc::clone(stop));
    Ok(std::thread::spawn(move || {
        for partition in 0.. {
            if stop.load(Ordering::Acquire) || topics.send(&producer, now(), partition).is_err() {
                return;
            }
            pause();
        }
    }))
}

/// How long after the interval a result can be read, and how soon after the kill of a TaskManager, a spare one registered.
pub(crate) fn print_visible() -> Result<()> {
    let Some(kafka) = broker("visible_after_interval_p99_ms, kill_to_committed_seconds") else { return Ok(()) };
    let (topics, storage) = (Topics::make(&kafka)?, scratch()?);
    let stop = Arc::new(AtomicBool::new(false));
    let mut job = Job::new("visible", &topics.manifest("exactly-once", false, &storage), None);
    job.start_generation(2);
    let (seen, producer) = (watch(&topics, &stop)?, produce(&topics, &stop)?);
    job.wait_checkpoint(3);
    // A spare one: it takes over from the oldest, and the next that is started is the spare one then.
    job.start_task_manager();
    while seen.try_recv().is_ok() {}
    let until = Instant::now() + Duration::from_secs(20);
    let mut late = Vec::new();
    while Instant::now() < until {
        late.push(seen.recv_timeout(Duration::from_secs(20)).context("no committed result within 20 s")?.1);
    }
    late.sort_unstable();
    let p99 = late[(late.len() - 1) * 99 / 100];
    println!("# {} results: median {:?}, p99 {p99:?} after they were produced", late.len(), late[late.len() / 2]);
    println!("visible_after_interval_p99_ms {} ms", p99.saturating_sub(INTERVAL).as_millis());

    let mut seconds = Vec::new();
    for attempt in 2..5 {
        job.wait_status("a spare TaskManager", Duration::from_secs(30), |status| {
            status.state == JobState::Running && status.task_managers.len() == 3
        });
        let oldest = *job.task_managers.keys().next().context("no TaskManager")?;
        job.kill_task_manager(oldest);
        let (killed, started) = (now(), Instant::now());
        while seen.recv_timeout(Duration::from_secs(60)).context("no committed result after a kill")?.0 <= killed {}
        seconds.push(started.elapsed().as_secs_f64());
        ensure!(job.status().is_some_and(|status| status.attempt.0 >= attempt), "nothing has restarted");
        job.start_task_manager();
        job.wait_checkpoint(0);
    }
    println!("kill_to_committed_seconds {:.2} s", median(seconds));
    stop.store(true, Ordering::Release);
    producer.join().map_err(|_| anyhow::anyhow!("the producer failed"))?;
    job.cancel();
    std::fs::remove_dir_all(&storage)?;
    Ok(())
}
