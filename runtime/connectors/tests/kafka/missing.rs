//! Topics of a pattern that are missing, go, or cannot be looked up, and brokers that take nothing: on brokers within this process
//! (librdkafka's own), since a real one does not lose a leader when it is told to.

use crate::broker::{numbered, produce};
use crate::source::{EARLIEST, range, read, schema};
use crate::task::{Reader, Writer, source, table};
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::RDKafkaRespErr::{RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::source::SourceFactory;
use sluice_protocol::state::SplitState;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

type Brokers = MockCluster<'static, DefaultProducerContext>;

fn matching(brokers: &Brokers, topics: (&str, &str)) -> Arc<dyn SourceFactory> {
    let options = [
        ("connector", "kafka"),
        topics,
        ("properties.bootstrap.servers", &*brokers.bootstrap_servers()),
        // Soon, not in minutes.
        ("properties.topic.metadata.refresh.interval.ms", "300"),
        ("properties.topic.metadata.propagation.max.ms", "600"),
        ("scan.topic-partition-discovery.interval", "300 ms"),
        ("format", "json"),
        EARLIEST,
    ];
    source(&table(&schema(), &[], &options))
}

fn position(topic: &str, offset: i64) -> SplitState {
    let state = serde_json::json!({"topic": topic, "partition": 0, "offset": offset});
    SplitState { split: format!("{topic}-0"), state }
}

/// The warnings of a thread, field by field.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Line(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Opens a reader, and what was warned of meanwhile.
fn open(factory: &Arc<dyn SourceFactory>, restored: Option<&[SplitState]>) -> (Result<Reader, TaskError>, String) {
    let warnings = Warnings::default();
    let opened = tracing::subscriber::with_default(warnings.clone(), || Reader::open(factory, 0, 1, restored));
    let said = warnings.0.lock().unwrap().clone();
    (opened, said)
}

#[test]
fn a_topic_that_cannot_be_looked_up_keeps_no_other_back() {
    let brokers = MockCluster::new(1).unwrap();
    let (reader, said) = open(&matching(&brokers, ("topic-pattern", "m-.*")), None);
    let mut reader = reader.unwrap();
    for words in ["no topic matches", "'topic-pattern' is 'm-.*'", "every 300ms"] {
        assert!(said.contains(words), "no {words:?} in {said:?}");
    }
    brokers.topic_error("m-a", RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE).unwrap();
    // By now the look is at that topic, and knows nothing yet of the others.
    std::thread::sleep(Duration::from_millis(800));
    brokers.create_topic("m-b", 2, 1).unwrap();
    brokers.partition_leader("m-b", 0, None).unwrap();
    produce(&brokers.bootstrap_servers(), "m-b", 1, &numbered(0, 5));
    brokers.create_topic("m-c", 1, 1).unwrap();
    produce(&brokers.bootstrap_servers(), "m-c", 0, &numbered(10, 5));
    let mut found = read(&mut reader, 10);
    found.sort_unstable();
    assert_eq!(found, [range(0, 5), range(10, 5)].concat());
    let splits: Vec<_> = reader.source.snapshot().unwrap().into_iter().map(|split| split.split).collect();
    assert_eq!(splits, ["m-b-1", "m-c-0"]);
}

#[test]
fn a_deleted_topic_of_a_pattern_is_dropped_with_a_warning() {
    let brokers = MockCluster::new(1).unwrap();
    brokers.create_topic("m-kept", 1, 1).unwrap();
    produce(&brokers.bootstrap_servers(), "m-kept", 0, &numbered(0, 5));
    let stored = [position("m-gone", 71), position("m-kept", 2)];
    let (reader, said) = open(&matching(&brokers, ("topic-pattern", "m-.*")), Some(&stored));
    let mut reader = reader.unwrap();
    for words in ["m-gone", "offset=71", "does not exist any more"] {
        assert!(said.contains(words), "no {words:?} in {said:?}");
    }
    assert!(!said.contains("m-kept") && !said.contains("no topic matches"), "{said}");
    assert_eq!(read(&mut reader, 3), range(2, 3));
    assert_eq!(reader.source.snapshot().unwrap(), [position("m-kept", 5)]);

    let (named, _) = open(&matching(&brokers, ("topic", "m-gone;m-kept")), Some(&stored));
    let error = named.err().expect("a topic that is named must exist");
    assert!(matches!(&error, TaskError::Unavailable(said) if said.contains("'m-gone' does not exist")), "{error:?}");
}

#[test]
fn a_topic_that_is_deleted_while_it_is_read_fails_the_task_once() {
    let brokers = MockCluster::new(1).unwrap();
    for topic in ["m-gone", "m-kept"] {
        brokers.create_topic(topic, 1, 1).unwrap();
        produce(&brokers.bootstrap_servers(), topic, 0, &numbered(0, 5));
    }
    let factory = matching(&brokers, ("topic-pattern", "m-.*"));
    let mut reader = Reader::open(&factory, 0, 1, None).unwrap();
    read(&mut reader, 10);
    let stored = reader.source.snapshot().unwrap();
    assert_eq!(stored, [position("m-gone", 5), position("m-kept", 5)]);
    brokers.topic_error("m-gone", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
    let error = reader.next(1).expect_err("it is told");
    assert!(matches!(&error, TaskError::Unavailable(said) if said.contains("begins again without it")), "{error:?}");
    let mut reader = Reader::open(&factory, 0, 1, Some(&stored)).unwrap();
    produce(&brokers.bootstrap_servers(), "m-kept", 0, &numbered(5, 2));
    assert_eq!(read(&mut reader, 2), range(5, 2));
    assert_eq!(reader.source.snapshot().unwrap(), [position("m-kept", 7)]);
}

/// The client has room for 100 rows, and no broker takes any.
#[test]
fn rows_without_a_guarantee_that_the_end_of_a_task_leaves_are_counted() {
    let brokers = MockCluster::new(1).unwrap();
    brokers.create_topic("m-out", 1, 1).unwrap();
    let options = [
        ("connector", "kafka"),
        ("topic", "m-out"),
        ("properties.bootstrap.servers", &*brokers.bootstrap_servers()),
        ("properties.queue.buffering.max.messages", "100"),
        ("format", "json"),
        ("sink.delivery-guarantee", "none"),
    ];
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..250));
    let rows = RecordBatch::try_from_iter([("n", column)]).unwrap();
    let mut writer = Writer::open(&table(&rows.schema(), &[], &options)).unwrap();
    brokers.broker_down(1).unwrap();
    writer.sink.write(Batch::inserts(rows)).unwrap();
    assert!(writer.sink.flush().unwrap());
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || drop(writer));
    let said = warnings.0.lock().unwrap().clone();
    for words in ["rows=250", "250 rows had not arrived in topic 'm-out'", "may be lost"] {
        assert!(said.contains(words), "no {words:?} in {said:?}");
    }
}
