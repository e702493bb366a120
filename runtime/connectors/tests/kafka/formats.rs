//! Keys, headers and what Kafka knows of a record as columns, and formats other than JSON, both ways.

use crate::broker::{bootstrap, create_topic, produce, read_all, send_record};
use crate::task::{Reader, Writer, source, table};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt8Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::sink::AcceptedKinds;
use sluice_engine::source::ProducedKinds;
use sluice_engine::table::{ConnectorCatalog as _, TableDescriptor, TableOption};
use std::sync::Arc;

fn schema(columns: &[(&str, DataType)]) -> SchemaRef {
    let fields = columns.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn bounded(schema: &SchemaRef, bootstrap: &str, topic: &str, options: &[(&str, &str)]) -> TableDescriptor {
    let mut all = vec![
        ("connector", "kafka"),
        ("topic", topic),
        ("properties.bootstrap.servers", bootstrap),
        ("scan.startup.mode", "earliest-offset"),
        ("scan.bounded.mode", "latest-offset"),
    ];
    all.extend_from_slice(options);
    table(schema, &[], &all)
}

/// All rows as text with their kinds, and how many records were passed over.
fn read(table: &TableDescriptor) -> (Vec<String>, u64) {
    let mut reader = Reader::open(&source(table), 0, 1, None).unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = reader.next(1000).unwrap() {
        let options = FormatOptions::new().with_null("null");
        let columns: Vec<_> = batch
            .rows
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap())
            .collect();
        for row in 0..batch.len() {
            let values: Vec<String> = columns.iter().map(|column| column.value(row).to_string()).collect();
            let kind = batch.kinds.as_ref().map_or(0, |kinds| kinds.value(row));
            rows.push(format!("{}{}", RowKind::from_number(kind).unwrap().short(), values.join(" ")));
        }
    }
    (rows, reader.source.malformed_records())
}

/// A topic of records with keys, headers and times, two of which cannot be read.
fn described_records(bootstrap: &str) -> String {
    let topic = create_topic(bootstrap, "metadata", 1);
    let send = |key: Option<&str>, value: Option<&str>, headers: &[(&str, &str)], time| {
        send_record(bootstrap, &topic, key, value, headers, time);
    };
    send(Some(r#"{"id":1}"#), Some("a,7"), &[("trace", "x"), ("trace", "y")], 1000);
    send(Some(r#"{"id":2}"#), None, &[], 2000);
    send(None, Some("b,8"), &[("other", "z")], 3000);
    send(Some("nonsense"), Some("c,9"), &[], 4000);
    send(Some(r#"{"id":4}"#), Some("broken"), &[], 5000);
    send(Some(r#"{"id":5}"#), Some("d,10"), &[], 6000);
    topic
}

/// All that Kafka knows of them, as columns.
fn described(bootstrap: &str, topic: &str) -> TableDescriptor {
    let columns = [
        ("name", DataType::Utf8),
        ("at", DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))),
        ("k_id", DataType::Int64),
        ("n", DataType::Int64),
        ("offset", DataType::Int64),
        ("place", DataType::Utf8),
        ("trace", DataType::Utf8),
        ("timestamp-type", DataType::Utf8),
        ("headers", DataType::Utf8),
    ];
    let options = [
        ("key.format", "json"),
        ("key.fields", "k_id"),
        ("key.fields-prefix", "k_"),
        ("value.fields-include", "EXCEPT_KEY"),
        ("value.format", "csv"),
        ("value.csv.ignore-parse-errors", "true"),
        ("key.json.ignore-parse-errors", "true"),
    ];
    let mut table = bounded(&schema(&columns), bootstrap, topic, &options);
    let metadata = [
        ("at", "timestamp"),
        ("offset", "offset"),
        ("place", "partition"),
        ("trace", "headers.trace"),
        ("timestamp-type", "timestamp-type"),
        ("headers", "headers"),
    ];
    table.metadata = metadata.map(|(column, key)| (column.to_owned(), key.to_owned())).into();
    table
}

#[test]
fn keys_headers_and_metadata_are_columns() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = described_records(&bootstrap);
    let table = described(&bootstrap, &topic);
    let (rows, malformed) = read(&table);
    let both = r#"[{"key":"trace","value":"x"},{"key":"trace","value":"y"}]"#;
    assert_eq!(
        rows,
        [
            format!("+Ia 1970-01-01T00:00:01Z 1 7 0 0 y CreateTime {both}"),
            r#"+Ib 1970-01-01T00:00:03Z null 8 2 0 null CreateTime [{"key":"other","value":"z"}]"#.to_owned(),
            "+Id 1970-01-01T00:00:06Z 5 10 5 0 null CreateTime null".to_owned(),
        ]
    );
    assert_eq!(malformed, 2, "a value and a key");
    // Of a part of the columns only those are read, wherever they stand.
    let part =
        TableDescriptor { schema: schema(&[("offset", DataType::Int64), ("n", DataType::Int64)]), ..table.clone() };
    assert_eq!(read(&part).0, ["+I0 7", "+I2 8", "+I3 9", "+I5 10"]);
    let only = TableDescriptor { schema: schema(&[("place", DataType::Utf8)]), ..table };
    assert_eq!(read(&only).0.len(), 4);
}

#[test]
fn what_is_passed_over_goes_along_where_a_table_wants_it() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = described_records(&bootstrap);
    let mut table = described(&bootstrap, &topic);
    table.options.push(TableOption { key: "dead-letter".to_owned(), value: "bad".to_owned() });
    let (rows, malformed) = read(&table);
    assert_eq!((rows.len(), malformed), (5, 2));
    let nulls = "null ".repeat(9);
    let place = |offset: u32| format!("{topic}-0@{offset}");
    let of_key = format!("+I{nulls}632c39 c,9 {} its key cannot be read: ", place(3));
    assert!(rows[3].starts_with(&of_key) && rows[3].ends_with("The key begins: nonsense"), "{rows:?}");
    assert!(rows[4].starts_with(&format!("+I{nulls}62726f6b656e broken {} ", place(4))), "{rows:?}");
}

/// Needs no broker: nobody is contacted.
#[test]
fn metadata_that_there_is_not_is_refused_by_name() {
    for (key, declared, says) in [
        ("leader-epoch", DataType::Int32, "leader-epoch"),
        ("ofset", DataType::Int64, "'offset'"),
        ("topic", DataType::Int64, "'topic'"),
    ] {
        let columns = schema(&[("n", DataType::Int64), ("m", declared)]);
        let mut wrong = bounded(&columns, "127.0.0.1:1", "t", &[("format", "csv")]);
        wrong.metadata = [("m".to_owned(), key.to_owned())].into();
        let refused = sluice_connectors::catalog().source(&wrong).err().expect("refused").to_string();
        assert!(refused.contains(says), "'{says}' is not in: {refused}");
    }
}

#[test]
fn the_sink_writes_keys_and_other_formats() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "formats", 1);
    let columns = schema(&[("id", DataType::Int64), ("t", DataType::Utf8)]);
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a,b"), None, Some("c")]));
    let rows = RecordBatch::try_new(columns.clone(), vec![ids, texts]).unwrap();
    let all = |options: &[(&'static str, &'static str)]| {
        let mut all = vec![
            ("connector", "kafka"),
            ("topic", topic.as_str()),
            ("properties.bootstrap.servers", bootstrap.as_str()),
        ];
        all.extend_from_slice(options);
        table(&columns, &[], &all)
    };
    let keyed =
        all(&[("key.format", "raw"), ("key.fields", "t"), ("value.format", "csv"), ("value.csv.field-delimiter", ";")]);
    let mut writer = Writer::open(&keyed).unwrap();
    writer.write(Batch::inserts(rows.clone()));
    writer.flush();
    let changes = all(&[
        ("key.format", "json"),
        ("key.fields", "id"),
        ("value.fields-include", "EXCEPT_KEY"),
        ("value.format", "debezium-json"),
    ]);
    assert_eq!(sluice_connectors::catalog().sink(&changes).unwrap().accepted_kinds(), AcceptedKinds::All);
    let mut writer = Writer::open(&changes).unwrap();
    let kinds = UInt8Array::from_iter_values([0, 1, 2]);
    writer.write(Batch { rows, kinds: Some(kinds) });
    writer.flush();
    let record = |key: Option<&str>, value: &str| (0, key.map(str::to_owned), Some(value.to_owned()));
    assert_eq!(
        read_all(&bootstrap, &topic),
        [
            record(Some("a,b"), "1;a,b"),
            record(None, "2;"),
            record(Some("c"), "3;c"),
            record(Some(r#"{"id":1}"#), r#"{"before":null,"after":{"t":"a,b"},"op":"c"}"#),
            record(Some(r#"{"id":2}"#), r#"{"before":{"t":null},"after":null,"op":"d"}"#),
            record(Some(r#"{"id":3}"#), r#"{"before":null,"after":{"t":"c"},"op":"c"}"#),
        ]
    );
}

/// What is written as a record's timestamp and headers is read back as that.
#[test]
fn timestamps_and_headers_are_written() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "written", 1);
    let columns =
        schema(&[("at", DataType::Int64), ("n", DataType::Int64), ("trace", DataType::Utf8), ("id", DataType::Utf8)]);
    let mut table = bounded(&columns, &bootstrap, &topic, &[("format", "json")]);
    let keys = [("at", "timestamp"), ("trace", "headers.trace"), ("id", "headers.other-id")];
    table.metadata = keys.map(|(column, key)| (column.to_owned(), key.to_owned())).into();
    let at: ArrayRef = Arc::new(Int64Array::from(vec![1000, 2000, 3000]));
    let n: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let trace: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, None]));
    let id: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), Some("y"), None]));
    let mut writer = Writer::open(&table).unwrap();
    writer.write(Batch::inserts(RecordBatch::try_new(columns, vec![at, n, trace, id]).unwrap()));
    writer.flush();
    let values: Vec<_> = read_all(&bootstrap, &topic).into_iter().map(|(_, _, value)| value.unwrap()).collect();
    assert_eq!(values, [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#]);
    assert_eq!(read(&table).0, ["+I1000 1 a x", "+I2000 2 null y", "+I3000 3 null null"]);
    table.metadata = [("at".to_owned(), "offset".to_owned())].into();
    let refused = sluice_connectors::catalog().sink(&table).err().unwrap().to_string();
    assert!(refused.contains("METADATA VIRTUAL"), "{refused}");
}

#[test]
fn changes_of_debezium_are_read_with_their_kinds() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "debezium", 1);
    let change =
        |before: &str, after: &str, op: &str| Some(format!(r#"{{"before":{before},"after":{after},"op":"{op}"}}"#));
    let (one, two) = (r#"{"id":1,"t":"a"}"#, r#"{"id":1,"t":"b"}"#);
    produce(&bootstrap, &topic, 0, &[change("null", one, "c"), change(one, two, "u"), change(two, "null", "d"), None]);
    let columns = schema(&[("id", DataType::Int64), ("t", DataType::Utf8)]);
    let table = bounded(&columns, &bootstrap, &topic, &[("format", "debezium-json")]);
    assert_eq!(source(&table).produced_kinds(), ProducedKinds::All);
    assert_eq!(read(&table), (vec!["+I1 a".into(), "-U1 a".into(), "+U1 b".into(), "-D1 b".into()], 0));
}
