//! What needs no broker: owners, positions, properties, offsets in options.

use super::committer::handle_of;
use super::offset_options::{Startup, Stop, read_bounded, read_startup};
use super::options::read_append_sink;
use super::properties::ClientProperties;
use super::split::{SplitPosition, owner, parse_name};
use crate::options::{Known, Options};
use arrow::datatypes::{DataType, Field, Schema};
use sluice_engine::table::{TableDescriptor, TableError, TableOption};
use sluice_protocol::state::{Committable, SplitState};
use sluice_protocol::{CheckpointId, SubtaskIndex};
use std::sync::Arc;
use std::time::Duration;

fn table(options: &[(&str, &str)]) -> TableDescriptor {
    let option = |(key, value): &(&str, &str)| TableOption { key: (*key).to_owned(), value: (*value).to_owned() };
    TableDescriptor::new("t", Arc::new(Schema::empty()), vec![], options.iter().map(option).collect())
}

const KNOWN: Known<'static> = Known {
    names: &[
        "scan.startup.mode",
        "scan.startup.specific-offsets",
        "scan.startup.timestamp-millis",
        "scan.bounded.mode",
        "scan.bounded.specific-offsets",
        "scan.bounded.timestamp-millis",
    ],
    formats: &[],
    properties: true,
    refused: &[],
};

fn properties(more: &[(&str, &str)]) -> Result<ClientProperties, TableError> {
    let mut all = vec![("properties.bootstrap.servers", "broker:9092")];
    all.extend_from_slice(more);
    ClientProperties::read(&Options::new(&table(&all), &KNOWN)?)
}

#[test]
fn a_partition_has_the_owner_that_flink_gives_it() {
    // "test".hashCode() is 3556498 in Java; times 31 it is 110251438, which is 0 modulo 2 and 3 modulo 7.
    for (partition, parallelism, expected) in [(0, 1, 0), (0, 2, 0), (1, 2, 1), (0, 7, 3), (3, 7, 6), (6, 7, 2)] {
        assert_eq!(owner("test", partition, parallelism), SubtaskIndex(expected), "{partition} of {parallelism}");
    }
    // "polygenelubricants".hashCode() is Integer.MIN_VALUE; times 31 that is Integer.MIN_VALUE again, masked 0.
    assert_eq!(owner("polygenelubricants", 5, 4), SubtaskIndex(1));
}

#[test]
fn partitions_spread_evenly() {
    for parallelism in 1..9 {
        let mut owned = vec![0; parallelism as usize];
        for partition in 0..64 {
            owned[owner("events-v2", partition, parallelism).0 as usize] += 1;
        }
        let (least, most) = (owned.iter().min().unwrap(), owned.iter().max().unwrap());
        assert!(most - least <= 1, "{owned:?}");
    }
}

#[test]
fn a_topic_may_hold_dashes() {
    assert_eq!(parse_name("page-views-12"), Some(("page-views", 12)));
    assert_eq!(parse_name("nothing"), None);
}

#[test]
fn a_position_reads_back_and_tells_what_it_is() {
    let position = SplitPosition { topic: "test".to_owned(), partition: 0, offset: 1000, end: None };
    let state = position.to_state().unwrap();
    assert_eq!(state.split, "test-0");
    assert_eq!(state.state, serde_json::json!({"topic": "test", "partition": 0, "offset": 1000}));
    assert_eq!(SplitPosition::from_state(&state).unwrap(), position);
    let bounded = SplitPosition { end: Some(1000), ..position };
    assert!(bounded.is_finished());
    assert_eq!(SplitPosition::from_state(&bounded.to_state().unwrap()).unwrap(), bounded);

    for (split, json) in [
        ("datagen-0", serde_json::json!({"offset": 5})),
        ("test-1", serde_json::json!({"topic": "test", "partition": 0, "offset": 5})),
    ] {
        let error = SplitPosition::from_state(&SplitState { split: split.to_owned(), state: json }).unwrap_err();
        assert!(error.to_string().contains(split), "{error}");
    }
}

#[test]
fn properties_get_the_names_of_the_client() {
    let read = properties(&[
        ("properties.fetch.max.wait.ms", "70"),
        ("properties.buffer.memory", "33554432"),
        ("properties.group.id", "g"),
        ("properties.enable.auto.commit", "false"),
        ("properties.ssl.endpoint.identification.algorithm", ""),
        ("properties.security.protocol", "SASL_SSL"),
        ("properties.sasl.mechanism", "PLAIN"),
        (
            "properties.sasl.jaas.config",
            "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"u\" password='p;w';",
        ),
    ])
    .unwrap();
    assert_eq!(read.group_id.as_deref(), Some("g"));
    let config = read
        .to_config(&[("fetch.wait.max.ms", "500"), ("client.id", "d")], &[("enable.auto.commit", "false")])
        .unwrap();
    for (name, value) in [
        ("bootstrap.servers", "broker:9092"),
        ("fetch.wait.max.ms", "70"),
        ("client.id", "d"),
        ("queue.buffering.max.kbytes", "32768"),
        ("enable.auto.commit", "false"),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("sasl.username", "u"),
        ("sasl.password", "p;w"),
    ] {
        assert_eq!(config.get(name), Some(value), "{name}");
    }
    assert_eq!(config.get("group.id"), None);
    assert!(!format!("{read:?}").contains("p;w"), "{read:?}");
}

#[test]
fn a_wrong_property_is_refused_with_the_reason() {
    for (key, value, part) in [
        ("properties.enable.auto.commit", "true", "checkpoints"),
        ("properties.enable.idempotence", "false", "order"),
        ("properties.auto.offset.reset", "middle", "'earliest'"),
        ("properties.fetch.wait.max.ms", "soon", "fetch.wait.max.ms"),
        ("properties.ssl.truststore.location", "/x.jks", "properties.ssl.truststore.certificates"),
        ("properties.buffer.memory", "much", "bytes"),
    ] {
        let error = properties(&[(key, value)]).unwrap_err();
        assert_eq!(error.option.as_deref(), Some(key));
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn offsets_in_options() {
    let started = |options: &[(&str, &str)]| {
        let table = table(options);
        read_startup(&Options::new(&table, &KNOWN).unwrap(), Some(1), true)
    };
    assert_eq!(started(&[]).unwrap(), Startup::GroupOffsets);
    let specific = ("scan.startup.mode", "specific-offsets");
    let read = started(&[specific, ("scan.startup.specific-offsets", "partition:0,offset:42; partition:3,offset:7;")]);
    assert_eq!(read.unwrap(), Startup::SpecificOffsets([(0, 42), (3, 7)].into()));
    for wrong in
        ["", "0:42", "partition:0,offset:-1", "partition:0,offset:1;partition:0,offset:2", "offset:1,partition:0"]
    {
        assert!(started(&[specific, ("scan.startup.specific-offsets", wrong)]).is_err(), "{wrong}");
    }

    let bounded = |options: &[(&str, &str)], group| {
        let table = table(options);
        read_bounded(&Options::new(&table, &KNOWN).unwrap(), Some(1), group)
    };
    assert_eq!(bounded(&[], false).unwrap(), None);
    assert_eq!(bounded(&[("scan.bounded.mode", "latest-offset")], false).unwrap(), Some(Stop::Latest));
    assert!(bounded(&[("scan.bounded.mode", "group-offsets")], false).is_err());
    let time = [("scan.bounded.mode", "timestamp"), ("scan.bounded.timestamp-millis", "5")];
    assert_eq!(bounded(&time, false).unwrap(), Some(Stop::Timestamp(5)));
}

#[test]
fn a_timeout_of_transactions_into_which_no_commit_fits_is_refused() {
    let read = |millis: &str| {
        let options = [
            ("connector", "kafka"),
            ("topic", "t"),
            ("properties.bootstrap.servers", "broker:9092"),
            ("format", "json"),
            ("sink.delivery-guarantee", "exactly-once"),
            ("properties.transaction.timeout.ms", millis),
        ];
        let schema = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
        let table = TableDescriptor { schema: Arc::new(schema), ..table(&options) };
        read_append_sink(&table).map(|options| options.transaction_timeout)
    };
    assert_eq!(read("30000").unwrap(), Some(Duration::from_secs(30)));
    for wrong in ["29999", "0", "-1", "soon"] {
        let error = read(wrong).unwrap_err();
        assert_eq!(error.option.as_deref(), Some("properties.transaction.timeout.ms"));
        assert!(error.to_string().contains("at least 30000"), "{error}");
    }
}

/// Golden: what checkpoints hold of a transaction, as 0.1 wrote it first and as it is written now.
#[test]
fn handles_of_every_release_are_read() {
    let first = r#"{"transactionalId":"u-out-1-1-0-0","producerId":7,"epoch":2,"startedAt":1790000000000,"partitions":{"t":[0,1]}}"#;
    let now = format!(r#"{{"cluster":"sluice-test-cluster-01",{}"#, &first[1..]);
    for (bytes, cluster) in [(first, None), (&now, Some("sluice-test-cluster-01"))] {
        let handle = Committable { version: 1, checkpoint: CheckpointId(1), expires_at: None, bytes: bytes.into() };
        let read = handle_of(&handle).unwrap();
        assert_eq!((read.cluster.as_deref(), read.producer_id, read.epoch), (cluster, 7, 2));
        assert_eq!((read.transactional_id.as_str(), read.started_at), ("u-out-1-1-0-0", 1_790_000_000_000));
        assert_eq!(read.partitions["t"], [0, 1]);
        assert_eq!(serde_json::to_string(&read).unwrap(), bytes);
    }
}
