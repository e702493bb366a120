//! What is refused and how it is said, as tables.

use super::{duration, is_secret, nearest};
use crate::catalog;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use sluice_engine::table::{ConnectorCatalog, TableDescriptor, TableError, TableOption};
use std::sync::Arc;
use std::time::Duration;

fn table(primary_key: &[usize], options: &[(&str, &str)]) -> TableDescriptor {
    let schema = Arc::new(Schema::new(vec![
        Field::new("app_id", DataType::Utf8, true),
        Field::new("pv", DataType::Int64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ]));
    let options =
        options.iter().map(|(key, value)| TableOption { key: (*key).to_owned(), value: (*value).to_owned() }).collect();
    TableDescriptor::new("t", schema, primary_key.to_vec(), options)
}

fn source_error(options: &[(&str, &str)]) -> TableError {
    catalog().source(&table(&[], options)).err().expect("refused")
}

fn sink_error(primary_key: &[usize], options: &[(&str, &str)]) -> TableError {
    catalog().sink(&table(primary_key, options)).err().expect("refused")
}

const KAFKA: [(&str, &str); 4] =
    [("connector", "kafka"), ("topic", "test"), ("properties.bootstrap.servers", "broker:9092"), ("format", "json")];

const UPSERT: [(&str, &str); 5] = [
    ("connector", "upsert-kafka"),
    ("topic", "pv"),
    ("properties.bootstrap.servers", "broker:9092"),
    ("key.format", "json"),
    ("value.format", "json"),
];

fn with<'a>(base: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all: Vec<_> = base.iter().filter(|(key, _)| !more.iter().any(|(other, _)| other == key)).copied().collect();
    all.extend_from_slice(more);
    all
}

fn without<'a>(base: &[(&'a str, &'a str)], key: &str) -> Vec<(&'a str, &'a str)> {
    base.iter().filter(|(name, _)| *name != key).copied().collect()
}

/// Options, the option at fault, what the message says.
type Case<'a> = (Vec<(&'a str, &'a str)>, Option<&'a str>, &'a [&'a str]);

fn check(case: &Case<'_>, error: &TableError) {
    let (options, option, parts) = case;
    assert_eq!(error.option.as_deref(), *option, "{options:?}: {error}");
    for part in *parts {
        assert!(error.to_string().contains(part), "{options:?}: '{part}' is not in: {error}");
    }
}

fn check_sources(cases: &[Case<'_>]) {
    for case in cases {
        check(case, &source_error(&case.0));
    }
}

#[test]
fn what_is_right_is_taken() {
    let group = ("properties.group.id", "g");
    let sources: Vec<Vec<(&str, &str)>> = vec![
        with(&KAFKA, &[("scan.startup.mode", "earliest-offset")]),
        with(&KAFKA, &[group]),
        with(&KAFKA, &[group, ("scan.startup.mode", "group-offsets"), ("properties.auto.offset.reset", "earliest")]),
        with(&KAFKA, &[("scan.startup.mode", "timestamp"), ("scan.startup.timestamp-millis", "1700000000000")]),
        with(
            &KAFKA,
            &[("scan.startup.mode", "specific-offsets"), ("scan.startup.specific-offsets", "partition:0,offset:42")],
        ),
        with(&KAFKA, &[("scan.startup.mode", "latest-offset"), ("scan.bounded.mode", "latest-offset")]),
        with(&KAFKA, &[("scan.startup.mode", "latest-offset"), ("scan.topic-partition-discovery.interval", "0")]),
        with(&KAFKA, &[("scan.startup.mode", "latest-offset"), ("properties.fetch.max.wait.ms", "100")]),
        with(&KAFKA, &[("scan.startup.mode", "latest-offset"), ("json.timestamp-format.standard", "ISO-8601")]),
        with(
            &without(&KAFKA, "format"),
            &[
                ("value.format", "json"),
                ("value.json.ignore-parse-errors", "true"),
                ("scan.startup.mode", "latest-offset"),
            ],
        ),
        vec![("connector", "datagen")],
        vec![
            ("connector", "datagen"),
            ("fields.pv.kind", "sequence"),
            ("fields.pv.start", "1"),
            ("fields.pv.end", "9"),
        ],
    ];
    for options in sources {
        if let Err(error) = catalog().source(&table(&[], &options)) {
            panic!("{options:?}: {error}");
        }
    }
    let sinks: Vec<Vec<(&str, &str)>> = vec![
        UPSERT.to_vec(),
        with(&UPSERT, &[("value.fields-include", "EXCEPT_KEY"), ("properties.compression.type", "lz4")]),
        KAFKA.to_vec(),
        vec![("connector", "print"), ("print-identifier", "p"), ("standard-error", "true")],
        vec![("connector", "blackhole")],
    ];
    for options in sinks {
        let key: &[usize] = if options[0].1 == "upsert-kafka" || options.contains(&UPSERT[0]) { &[0] } else { &[] };
        if let Err(error) = catalog().sink(&table(key, &options)) {
            panic!("{options:?}: {error}");
        }
    }
}

#[test]
fn a_wrong_source_names_the_option_and_the_way_out() {
    let started = with(&KAFKA, &[("scan.startup.mode", "latest-offset")]);
    check_sources(&[
        (vec![], None, &["'connector' is missing", "'kafka'"]),
        (vec![("connector", "kafak")], Some("connector"), &["'kafak'", "did you mean 'kafka'?"]),
        (vec![("connector", "print")], Some("connector"), &["cannot be read from", "'datagen'"]),
        (
            with(&started, &[("scan.startup.mod", "x")]),
            Some("scan.startup.mod"),
            &["has no option", "did you mean 'scan.startup.mode'?", "'topic'"],
        ),
        (without(&started, "topic"), Some("topic"), &["'topic' is missing"]),
        (without(&started, "format"), Some("format"), &["'format' is missing", "json"]),
        (with(&started, &[("format", "avro")]), Some("format"), &["'avro'", "'json'"]),
        (
            without(&started, "properties.bootstrap.servers"),
            Some("properties.bootstrap.servers"),
            &["'properties.bootstrap.servers' is missing"],
        ),
    ]);
}

#[test]
fn a_wrong_start_or_property_is_named() {
    let started = with(&KAFKA, &[("scan.startup.mode", "latest-offset")]);
    check_sources(&[
        (
            with(&started, &[("scan.startup.mode", "earliest")]),
            Some("scan.startup.mode"),
            &["'earliest'", "'earliest-offset'", "'group-offsets'"],
        ),
        (KAFKA.to_vec(), Some("properties.group.id"), &["group-offsets", "'properties.group.id'", "scan.startup.mode"]),
        (
            with(&started, &[("scan.startup.mode", "timestamp")]),
            Some("scan.startup.timestamp-millis"),
            &["'scan.startup.timestamp-millis' is missing"],
        ),
        (
            with(&started, &[("scan.startup.timestamp-millis", "17")]),
            Some("scan.startup.timestamp-millis"),
            &["only", "'timestamp'"],
        ),
        (
            with(
                &started,
                &[("scan.startup.mode", "specific-offsets"), ("scan.startup.specific-offsets", "partition:0;offset:1")],
            ),
            Some("scan.startup.specific-offsets"),
            &["'partition:0;offset:1'", "partition:0,offset:42"],
        ),
        (
            with(&started, &[("properties.key.deserializer", "x")]),
            Some("properties.key.deserializer"),
            &["format", "remove"],
        ),
        (
            with(&started, &[("properties.partition.discovery.interval.ms", "10")]),
            Some("properties.partition.discovery.interval.ms"),
            &["scan.topic-partition-discovery.interval"],
        ),
        (
            with(&started, &[("properties.fetch.wait.mx.ms", "10")]),
            Some("properties.fetch.wait.mx.ms"),
            &["fetch.wait.mx.ms"],
        ),
        (
            with(&started, &[("json.ignore-parse-errors", "true"), ("json.fail-on-missing-field", "true")]),
            Some("json.fail-on-missing-field"),
            &["json.ignore-parse-errors"],
        ),
        (with(&started, &[("key.format", "json")]), Some("key.fields"), &["'key.fields' is missing"]),
        (with(&started, &[("key.fields", "pv")]), Some("key.fields"), &["needs 'key.format'"]),
        (
            with(&started, &[("key.format", "json"), ("key.fields", "app_id;pw")]),
            Some("key.fields"),
            &["'pw'", "'app_id'"],
        ),
        (
            with(&started, &[("key.format", "debezium-json"), ("key.fields", "pv")]),
            Some("key.format"),
            &["'debezium-json'", "'raw'"],
        ),
        (
            with(&started, &[("key.format", "json"), ("key.fields", "pv"), ("key.fields-prefix", "p")]),
            Some("key.fields-prefix"),
            &["EXCEPT_KEY"],
        ),
        (with(&started, &[("csv.null-literal", "n")]), Some("csv.null-literal"), &["does not use", "'json.*'"]),
        (
            with(&started, &[("value.json.ignore-parse-errors", "true")]),
            Some("value.json.ignore-parse-errors"),
            &["'json.*'"],
        ),
        (with(&started, &[("csv.allow-comments", "true")]), Some("csv.allow-comments"), &["not supported", "filter"]),
        (with(&without(&started, "format"), &[("format", "raw")]), None, &["'raw'", "one column"]),
        (with(&started, &[("topic", "a"), ("topic", "b")]), Some("topic"), &["given twice"]),
    ]);
}

#[test]
fn a_wrong_generator_is_named() {
    check_sources(&[
        (
            vec![("connector", "datagen"), ("fields.pw.kind", "random")],
            Some("fields.pw.kind"),
            &["column 'pw'", "'pv'"],
        ),
        (
            vec![("connector", "datagen"), ("fields.pv.kind", "sequence")],
            Some("fields.pv.start"),
            &["'fields.pv.start' is missing"],
        ),
        (
            vec![("connector", "datagen"), ("fields.pv.min", "9"), ("fields.pv.max", "3")],
            Some("fields.pv.max"),
            &["'3'", "9"],
        ),
        (vec![("connector", "datagen"), ("rows-per-second", "fast")], Some("rows-per-second"), &["'fast'"]),
    ]);
}

#[test]
fn a_wrong_sink_names_the_option_and_the_way_out() {
    let cases: Vec<(&[usize], Case<'_>)> = vec![
        (&[], (UPSERT.to_vec(), None, &["PRIMARY KEY"])),
        (&[0], (with(&UPSERT, &[("sink.parallelism", "2")]), Some("sink.parallelism"), &["not supported"])),
        (
            &[0],
            (
                with(&UPSERT, &[("properties.transactional.id", "x")]),
                Some("properties.transactional.id"),
                &["sink.transactional-id-prefix"],
            ),
        ),
        (&[0], (without(&UPSERT, "key.format"), Some("key.format"), &["'key.format' is missing"])),
        (&[0], (with(&UPSERT, &[("topic", "a;b")]), Some("topic"), &["one topic"])),
        (&[0], (with(&UPSERT, &[("scan.startup.mode", "x")]), Some("scan.startup.mode"), &["has no option"])),
        (&[0], (KAFKA.to_vec(), Some("connector"), &["PRIMARY KEY", "upsert-kafka"])),
        (
            &[],
            (
                with(&KAFKA, &[("sink.delivery-guarantee", "twice")]),
                Some("sink.delivery-guarantee"),
                &["at-least-once", "exactly-once"],
            ),
        ),
        (&[], (with(&KAFKA, &[("dead-letter", "bad")]), Some("dead-letter"), &["tables that are read"])),
        (&[0], (with(&UPSERT, &[("dead-letter", "bad")]), Some("dead-letter"), &["tables that are read"])),
        (
            &[],
            (
                vec![("connector", "filesystem"), ("path", "/out"), ("format", "json"), ("dead-letter", "bad")],
                Some("dead-letter"),
                &["tables that are read"],
            ),
        ),
        (&[], (vec![("connector", "datagen")], Some("connector"), &["cannot be written to", "'print'"])),
        (
            &[],
            (
                vec![("connector", "print"), ("print-identifer", "x")],
                Some("print-identifer"),
                &["did you mean 'print-identifier'?"],
            ),
        ),
        (&[], (vec![("connector", "blackhole"), ("x", "y")], Some("x"), &["has no option 'x'. Its options are"])),
    ];
    for (key, case) in cases {
        check(&case, &sink_error(key, &case.0));
    }
}

#[test]
fn a_secret_is_never_printed() {
    let secret = "hunter2-hunter2";
    let started = with(&KAFKA, &[("scan.startup.mode", "latest-offset")]);
    for (key, value) in [
        ("properties.sasl.jaas.config", secret),
        ("properties.ssl.truststore.password", secret),
        ("properties.sasl.oauthbearer.client.secret.x", secret),
    ] {
        let error = source_error(&with(&started, &[(key, value)]));
        assert_eq!(error.option.as_deref(), Some(key), "{error}");
        assert!(!error.to_string().contains(secret), "{error}");
    }
    for name in ["properties.sasl.password", "properties.ssl.key.password", "properties.sasl.jaas.config"] {
        assert!(is_secret(name), "{name}");
    }
    assert!(!is_secret("properties.bootstrap.servers"));
}

#[test]
fn spans_of_time_read_as_in_flink() {
    for (text, millis) in [
        ("5 min", 300_000),
        ("10s", 10_000),
        ("500 ms", 500),
        ("0", 0),
        ("250", 250),
        ("1 h", 3_600_000),
        ("2days", 172_800_000),
    ] {
        assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
    }
    for text in ["", "min", "5 fortnights", "-1 s", "1.5 s"] {
        assert_eq!(duration(text), None, "{text}");
    }
}

#[test]
fn a_name_that_is_like_none_has_no_neighbour() {
    assert_eq!(nearest("qqqq", ["topic", "format"]), None);
    assert_eq!(nearest("Topics", ["topic", "format"]), Some("topic"));
}
