//! The broker as tests see it: topics made, records produced and read, all with deadlines.

use super::process::free_port;
use super::unique;
use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A broker of a test's own, for tests that take it away: started by `tests/services/kafka.sh`. Its data stay until it is
/// dropped.
pub struct OwnKafka {
    directory: PathBuf,
    port: u16,
}

impl OwnKafka {
    /// Starts one.
    ///
    /// # Panics
    /// When the script fails.
    #[must_use]
    pub fn start() -> Self {
        let broker = Self { directory: std::env::temp_dir().join(unique("sluice-test-kafka")), port: free_ports() };
        broker.restart();
        broker
    }

    /// Starts it again on the same port with the same data.
    ///
    /// # Panics
    /// When the script fails.
    pub fn restart(&self) {
        self.script("start");
    }

    /// SIGKILL.
    ///
    /// # Panics
    /// When the script fails.
    pub fn kill(&self) {
        self.script("kill9");
    }

    /// Sends a signal: while SIGSTOP holds its connections stay, and nothing is answered.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, signal: Signal) {
        let pid = std::fs::read_to_string(self.directory.join("pid")).expect("its id");
        kill(Pid::from_raw(pid.trim().parse().expect("a number")), signal).expect("it runs");
    }

    /// Its bootstrap address.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn script(&self, action: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/services/kafka.sh");
        let output = Command::new("bash")
            .args([script, action])
            .env("SLUICE_KAFKA_DIR", &self.directory)
            .env("SLUICE_KAFKA_PORT", self.port.to_string())
            .output()
            .expect("bash");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kafka.sh {action}: {text}{}", String::from_utf8_lossy(&output.stdout));
    }
}

impl Drop for OwnKafka {
    fn drop(&mut self) {
        self.script("kill9");
        // It lies below the temporary directory in any case.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A port that is free, and so is the one behind it, which the broker takes for its controller.
fn free_ports() -> u16 {
    loop {
        let port = free_port();
        if port < u16::MAX && std::net::TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}

/// A record read back.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
}

fn config(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

/// Makes topics, each with so many partitions.
///
/// # Errors
/// When the broker refuses or does not answer.
pub async fn create_topics(bootstrap: &str, topics: &[(&str, i32)]) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> = config(bootstrap).create()?;
    let topics: Vec<_> =
        topics.iter().map(|(name, partitions)| NewTopic::new(name, *partitions, TopicReplication::Fixed(1))).collect();
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
    for result in admin.create_topics(&topics, &options).await? {
        result.map_err(|(topic, code)| anyhow::anyhow!("topic {topic}: {code}"))?;
    }
    Ok(())
}

/// A producer of test input.
pub struct Producer {
    producer: ThreadedProducer<DefaultProducerContext>,
}

impl Producer {
    /// Connects lazily.
    ///
    /// # Errors
    /// When the options are refused.
    pub fn new(bootstrap: &str) -> anyhow::Result<Self> {
        let producer = config(bootstrap)
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", "1000000")
            .create()?;
        Ok(Self { producer })
    }

    /// Sends one record, waiting for room in the queue.
    ///
    /// # Errors
    /// When the broker stays away.
    pub fn send(&self, topic: &str, partition: i32, value: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let mut record: BaseRecord<'_, (), str> = BaseRecord::to(topic).partition(partition).payload(value);
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if Instant::now() < deadline =>
                {
                    record = back;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err((error, _)) => return Err(error).context("producing test input"),
            }
        }
    }

    /// Waits until all is delivered.
    ///
    /// # Errors
    /// When it is not after the timeout.
    pub fn flush(&self) -> anyhow::Result<()> {
        self.producer.flush(TIMEOUT).context("flushing test input")
    }
}

/// Everything that a topic holds now, partition by partition.
///
/// # Errors
/// When the broker does not answer or the records do not come.
pub fn read_all(bootstrap: &str, topic: &str) -> anyhow::Result<Vec<Record>> {
    let consumer: BaseConsumer = config(bootstrap)
        .set("group.id", "sluice-test-reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "false")
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT)?;
    let partitions = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
    if partitions == 0 {
        bail!("topic {topic} does not exist");
    }
    let mut records = Vec::new();
    for partition in 0..i32::try_from(partitions)? {
        read_partition(&consumer, topic, partition, &mut records)?;
    }
    Ok(records)
}

fn read_partition(
    consumer: &BaseConsumer,
    topic: &str,
    partition: i32,
    records: &mut Vec<Record>,
) -> anyhow::Result<()> {
    let (low, high) = consumer.fetch_watermarks(topic, partition, TIMEOUT)?;
    if low >= high {
        return Ok(());
    }
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, partition, Offset::Offset(low))?;
    consumer.assign(&assignment)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if Instant::now() > deadline {
            bail!("reading {topic}-{partition}: {high} records expected, {} came within 60 s", records.len());
        }
        let Some(message) = consumer.poll(Duration::from_millis(200)) else { continue };
        let message = message?;
        if message.offset() < high {
            records
                .push(Record { key: message.key().map(<[u8]>::to_vec), value: message.payload().map(<[u8]>::to_vec) });
        }
        if message.offset() + 1 >= high {
            return Ok(());
        }
    }
}

/// The number of records that a topic has taken so far.
///
/// # Errors
/// When the broker does not answer.
pub fn end_offsets(bootstrap: &str, topic: &str) -> anyhow::Result<i64> {
    let consumer: BaseConsumer = config(bootstrap).set("group.id", "sluice-test-reader").create()?;
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT)?;
    let mut sum = 0;
    for partition in metadata.topics().first().into_iter().flat_map(|topic| topic.partitions()) {
        sum += consumer.fetch_watermarks(topic, partition.id(), TIMEOUT)?.1;
    }
    Ok(sum)
}

/// Where each partition of a topic ends now.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// For a reader of all records.
    pub all: Vec<i64>,
    /// For a reader with read_committed, which stops before the first open transaction.
    pub committed: Vec<i64>,
}

/// Asks for the ends.
///
/// # Errors
/// When the broker does not answer.
pub fn ends(bootstrap: &str, topic: &str) -> anyhow::Result<Ends> {
    let committed: BaseConsumer = config(bootstrap).set("isolation.level", "read_committed").create()?;
    let plain: BaseConsumer = config(bootstrap).set("isolation.level", "read_uncommitted").create()?;
    let metadata = plain.fetch_metadata(Some(topic), TIMEOUT)?;
    let mut ends = Ends::default();
    let told = metadata.topics().first().filter(|told| told.error().is_none() && !told.partitions().is_empty());
    for partition in told.with_context(|| format!("topic {topic} is not there"))?.partitions() {
        ends.all.push(plain.fetch_watermarks(topic, partition.id(), TIMEOUT)?.1);
        ends.committed.push(committed.fetch_watermarks(topic, partition.id(), TIMEOUT)?.1);
    }
    Ok(ends)
}

/// What a reader with read_committed sees of a topic now.
#[derive(Debug, Clone, Default)]
pub struct Committed {
    /// The values of all records, in the order of each partition.
    pub values: Vec<String>,
    /// How many partitions hold records of transactions that are open, which hold such readers up.
    pub held_up: usize,
}

/// Reads all that is committed.
///
/// # Errors
/// When the broker does not answer or the end of a partition does not come.
pub fn read_committed(bootstrap: &str, topic: &str) -> anyhow::Result<Committed> {
    let consumer: BaseConsumer = config(bootstrap)
        .set("group.id", "sluice-test-reader")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .create()?;
    let plain: BaseConsumer = config(bootstrap).set("isolation.level", "read_uncommitted").create()?;
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT)?;
    let partitions = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
    let mut committed = Committed::default();
    for partition in 0..i32::try_from(partitions)? {
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
        consumer.assign(&assignment)?;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match consumer.poll(Duration::from_millis(200)) {
                _ if Instant::now() > deadline => {
                    bail!("reading {topic}-{partition}: its end does not come within 60 s")
                }
                None => {}
                Some(Err(KafkaError::PartitionEOF(_))) => break,
                Some(message) => {
                    let value = message?.payload().map(<[u8]>::to_vec).unwrap_or_default();
                    committed.values.push(String::from_utf8(value)?);
                }
            }
        }
        // The end that each kind of reader is told: a reader of all, and one that stops before the first open transaction.
        if plain.fetch_watermarks(topic, partition, TIMEOUT)?.1
            > consumer.fetch_watermarks(topic, partition, TIMEOUT)?.1
        {
            committed.held_up += 1;
        }
    }
    Ok(committed)
}
