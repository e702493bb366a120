//! The broker as a plain client sees it.

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A record read back: partition, key, value.
pub(crate) type Record = (i32, Option<String>, Option<String>);

/// The broker that this run may use, or `None`: the test returns.
pub(crate) fn bootstrap() -> Option<String> {
    let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let found = read("SLUICE_TEST_KAFKA");
    if found.is_none() {
        assert!(read("CI").is_none_or(|ci| ci != "true"), "CI=true, but SLUICE_TEST_KAFKA is not set");
        println!("skipped: no broker named (SLUICE_TEST_KAFKA); `cargo verify` starts one");
    }
    found
}

fn config(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

/// Waits for an answer of the admin client, whose own thread brings it.
fn wait<T>(question: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut question = pin!(question);
    loop {
        match question.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park_timeout(TIMEOUT),
        }
    }
}

/// A name that no earlier run has used.
pub(crate) fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let started = std::fs::metadata("/proc/self").and_then(|process| process.modified()).unwrap();
    let millis = started.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    format!("{prefix}-{millis}-{}-{number}", std::process::id())
}

/// Makes a topic.
pub(crate) fn create_topic(bootstrap: &str, prefix: &str, partitions: i32) -> String {
    let name = unique(prefix);
    let admin: AdminClient<DefaultClientContext> = config(bootstrap).create().unwrap();
    let topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
    for result in wait(admin.create_topics(&[topic], &options)).unwrap() {
        result.unwrap();
    }
    wait_for_topic(&admin, &name, partitions);
    name
}

/// The controller answers when it has made a topic, and its broker may hear of it later.
fn wait_for_topic(admin: &AdminClient<DefaultClientContext>, name: &str, partitions: i32) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let known = admin.inner().fetch_metadata(Some(name), TIMEOUT).unwrap();
        let topic = &known.topics()[0];
        if topic.error().is_none() && topic.partitions().len() == usize::try_from(partitions).unwrap() {
            return;
        }
        assert!(Instant::now() < deadline, "the broker does not hear of the topic '{name}'");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Adds partitions to a topic.
pub(crate) fn grow_topic(bootstrap: &str, topic: &str, partitions: usize) {
    let admin: AdminClient<DefaultClientContext> = config(bootstrap).create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
    let more = NewPartitions::new(topic, partitions);
    for result in wait(admin.create_partitions(&[more], &options)).unwrap() {
        result.unwrap();
    }
}

/// Deletes the records of partition 0 below an offset.
pub(crate) fn delete_records(bootstrap: &str, topic: &str, before: i64) {
    let admin: AdminClient<DefaultClientContext> = config(bootstrap).create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(topic, 0, Offset::Offset(before)).unwrap();
    wait(admin.delete_records(&offsets, &options)).unwrap();
}

/// Sends records to a partition and waits until they are there. `None` is a tombstone.
pub(crate) fn produce(bootstrap: &str, topic: &str, partition: i32, values: &[Option<String>]) {
    let producer: ThreadedProducer<DefaultProducerContext> =
        config(bootstrap).set("queue.buffering.max.messages", "2000000").create().unwrap();
    send(&producer, topic, partition, values);
    producer.flush(TIMEOUT).unwrap();
}

fn send(producer: &ThreadedProducer<DefaultProducerContext>, topic: &str, partition: i32, values: &[Option<String>]) {
    for value in values {
        let mut record = BaseRecord::<[u8], str>::to(topic).partition(partition);
        record.payload = value.as_deref();
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
}

/// Sends one record with all that it can have, and waits until it is there.
pub(crate) fn send_record(
    bootstrap: &str,
    topic: &str,
    key: Option<&str>,
    value: Option<&str>,
    headers: &[(&str, &str)],
    timestamp: i64,
) {
    let producer: ThreadedProducer<DefaultProducerContext> = config(bootstrap).create().unwrap();
    let mut record = BaseRecord::<str, str>::to(topic).partition(0).timestamp(timestamp);
    record.key = key;
    record.payload = value;
    if !headers.is_empty() {
        let add = |all: OwnedHeaders, (key, value): &(&str, &str)| all.insert(Header { key, value: Some(*value) });
        record = record.headers(headers.iter().fold(OwnedHeaders::new(), add));
    }
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(TIMEOUT).unwrap();
}

/// Sends records in a transaction, which leaves an offset without a record behind them.
pub(crate) fn produce_transaction(bootstrap: &str, topic: &str, partition: i32, values: &[Option<String>]) {
    let producer: ThreadedProducer<DefaultProducerContext> =
        config(bootstrap).set("transactional.id", unique("transaction")).create().unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer.begin_transaction().unwrap();
    send(&producer, topic, partition, values);
    producer.commit_transaction(TIMEOUT).unwrap();
}

/// Page views numbered from `first` on.
pub(crate) fn numbered(first: usize, count: usize) -> Vec<Option<String>> {
    (first..first + count)
        .map(|number| Some(format!(r#"{{"app_id":"app{}","url":"/page/{number}","n":{number}}}"#, number % 50)))
        .collect()
}

/// The end of each partition.
pub(crate) fn end_offset(bootstrap: &str, topic: &str, partition: i32) -> i64 {
    let consumer: BaseConsumer = config(bootstrap).create().unwrap();
    consumer.fetch_watermarks(topic, partition, TIMEOUT).unwrap().1
}

/// The committed offset of a group, once there is one.
pub(crate) fn committed(bootstrap: &str, group: &str, topic: &str, partition: i32) -> i64 {
    let consumer: BaseConsumer = config(bootstrap).set("group.id", group).create().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut question = TopicPartitionList::new();
        question.add_partition(topic, partition);
        let answer = consumer.committed_offsets(question, TIMEOUT).unwrap();
        if let Offset::Offset(offset) = answer.elements()[0].offset() {
            return offset;
        }
        assert!(Instant::now() < deadline, "group {group} has committed nothing");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn record_of(message: &BorrowedMessage<'_>) -> Record {
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    (message.partition(), text(message.key()), text(message.payload()))
}

/// Everything that a topic holds now, partition by partition.
pub(crate) fn read_all(bootstrap: &str, topic: &str) -> Vec<Record> {
    let consumer: BaseConsumer =
        config(bootstrap).set("group.id", "sluice-test-reader").set("enable.auto.commit", "false").create().unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT).unwrap();
    let mut records = Vec::new();
    for partition in metadata.topics()[0].partitions() {
        let (low, high) = consumer.fetch_watermarks(topic, partition.id(), TIMEOUT).unwrap();
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(topic, partition.id(), Offset::Offset(low)).unwrap();
        consumer.assign(&assignment).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        let mut next = low;
        while next < high {
            assert!(Instant::now() < deadline, "{high} records expected");
            let Some(message) = consumer.poll(Duration::from_millis(200)) else { continue };
            let message = message.unwrap();
            records.push(record_of(&message));
            next = message.offset() + 1;
        }
    }
    records
}

/// The values of all records that a reader with read_committed sees now.
pub(crate) fn read_committed(bootstrap: &str, topic: &str) -> Vec<String> {
    committed_records(bootstrap, topic).into_iter().filter_map(|(.., value)| value).collect()
}

/// All records that such a reader sees.
pub(crate) fn committed_records(bootstrap: &str, topic: &str) -> Vec<Record> {
    let consumer: BaseConsumer = config(bootstrap)
        .set("group.id", "sluice-test-reader")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("fetch.wait.max.ms", "20")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT).unwrap();
    let mut assignment = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        assignment.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();
    let mut left = assignment.count();
    let mut records = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while left > 0 {
        assert!(Instant::now() < deadline, "the end of {left} partitions of {topic} does not come");
        match consumer.poll(Duration::from_millis(200)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(_))) => left -= 1,
            Some(message) => records.push(record_of(&message.unwrap())),
        }
    }
    records
}
