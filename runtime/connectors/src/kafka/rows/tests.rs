//! Records that make no row: each is told of once, with its place and its value, and takes no other with it.

use super::*;
use crate::kafka::options::read_source;
use arrow::datatypes::{DataType, Int64Type};
use rdkafka::Timestamp;
use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};
use sluice_engine::table::TableOption;

/// Where the record of this number stands.
const fn place(record: usize) -> (u32, i64) {
    (3, 100 + record as i64)
}

fn table(columns: &[(&str, DataType, bool)], options: &[(&str, &str)]) -> TableDescriptor {
    let fields = columns.iter().map(|(name, data_type, nullable)| Field::new(*name, data_type.clone(), *nullable));
    let base = [
        ("connector", "kafka"),
        ("topic", "t"),
        ("properties.bootstrap.servers", "broker:9092"),
        ("scan.startup.mode", "earliest-offset"),
        ("format", "json"),
    ];
    let options = base
        .iter()
        .chain(options)
        .map(|(key, value)| TableOption { key: (*key).to_owned(), value: (*value).to_owned() });
    TableDescriptor::new("t", Arc::new(Schema::new(fields.collect::<Vec<_>>())), vec![], options.collect())
}

const KEYED: [(&str, &str); 3] = [("key.format", "json"), ("key.fields", "k"), ("value.fields-include", "EXCEPT_KEY")];

/// A table whose column `k` stands in the key.
fn keyed(nullable: bool, more: &[(&str, &str)]) -> TableDescriptor {
    table(&[("v", DataType::Int64, true), ("k", DataType::Int64, nullable)], &[&KEYED[..], more].concat())
}

fn record(key: Option<&str>, value: Option<&str>) -> OwnedMessage {
    let bytes = |text: &str| text.as_bytes().to_vec();
    OwnedMessage::new(value.map(bytes), key.map(bytes), "t".to_owned(), Timestamp::NotAvailable, 0, 0, None)
}

fn read(table: &TableDescriptor, records: &[OwnedMessage]) -> Result<ReadRows, NoRows> {
    let options = read_source(table).unwrap();
    let mut reader = options.layout.reader(&options.dead_letters).unwrap();
    // What was read before leaves nothing behind.
    reader.push((0, 7), &record(Some(r#"{"k": 70}"#), Some(r#"{"v": 7}"#)));
    let _ = reader.finish();
    records.iter().enumerate().for_each(|(number, record)| reader.push(place(number), record));
    reader.finish()
}

/// `(v, k)` of each row.
fn pairs(batch: Option<&Batch>) -> Vec<(Option<i64>, Option<i64>)> {
    let Some(batch) = batch else { return Vec::new() };
    let [values, keys] = [0, 1].map(|column| batch.rows.column(column).as_primitive::<Int64Type>());
    values.iter().zip(keys.iter()).collect()
}

/// With a good key, a bad one, none, one without the column, one that is bad with its value, again a good one.
fn mixed() -> [OwnedMessage; 7] {
    [
        record(Some(r#"{"k": 10}"#), Some(r#"{"v": 0}"#)),
        record(Some("bad key"), Some(r#"{"v": 1}"#)),
        record(None, Some(r#"{"v": 2}"#)),
        record(Some("{}"), Some(r#"{"v": 3}"#)),
        record(Some("bad too"), Some("bad value")),
        record(Some("a bad tombstone"), None),
        record(Some(r#"{"k": 16}"#), Some(r#"{"v": 6}"#)),
    ]
}

const IGNORED: [(&str, &str); 2] = [("key.json.ignore-parse-errors", "true"), ("json.ignore-parse-errors", "true")];

#[test]
fn a_record_with_a_bad_key_is_passed_over_alone_and_once() {
    for more in [&IGNORED[..], &[("dead-letter", "bad")]] {
        let ReadRows { batch, bad } = read(&keyed(false, more), &mixed()).unwrap();
        assert_eq!(pairs(batch.as_ref()), [(Some(0), Some(10)), (Some(6), Some(16))], "{more:?}");
        assert_eq!(bad.iter().map(|bad| bad.place).collect::<Vec<_>>(), [1, 2, 3, 4].map(place), "{bad:?}");
        let payloads: Vec<_> = bad.iter().map(|bad| String::from_utf8_lossy(&bad.payload)).collect();
        assert_eq!(payloads, [r#"{"v": 1}"#, r#"{"v": 2}"#, r#"{"v": 3}"#, "bad value"]);
        for (bad, parts) in bad.iter().zip([
            &["its key cannot be read", "bad key"][..],
            &["its key holds nothing for column 'k'"],
            &["its key holds nothing for column 'k'"],
            &["; and its key cannot be read", "bad too"],
        ]) {
            assert!(parts.iter().all(|part| bad.reason.contains(part)), "{parts:?} is not in {bad:?}");
        }
    }
}

#[test]
fn a_key_that_may_be_null_is_so_where_there_is_none() {
    let ReadRows { batch, bad } = read(&keyed(true, &[("dead-letter", "bad")]), &mixed()).unwrap();
    let expected = [(Some(0), Some(10)), (Some(2), None), (Some(3), None), (Some(6), Some(16))];
    assert_eq!(pairs(batch.as_ref()), expected);
    assert_eq!(bad.iter().map(|bad| bad.place).collect::<Vec<_>>(), [1, 4].map(place), "{bad:?}");
    // All keys bad, all values bad, nothing at all.
    let bad_keys = [record(Some("x"), Some(r#"{"v": 1}"#)), record(None, Some("y"))];
    let made = read(&keyed(false, &[("dead-letter", "bad")]), &bad_keys).unwrap();
    assert_eq!((pairs(made.batch.as_ref()), made.bad.len()), (vec![], 2));
    let made = read(&keyed(false, &[]), &[]).unwrap();
    assert!(made.batch.is_none() && made.bad.is_empty());
}

#[test]
fn a_record_without_a_key_that_must_be_there_fails_by_its_place() {
    let [good, bad_key, no_key, no_column, _, tombstone, _] = mixed();
    for (bad, what, reason) in [
        (bad_key, What::Key, "expected"),
        (no_key, What::NoKey, "column 'k', which cannot be NULL"),
        (no_column, What::NoKey, "column 'k', which cannot be NULL"),
    ] {
        // The value's option speaks of values alone.
        for more in [&[][..], &[("json.ignore-parse-errors", "true")]] {
            let records = [good.clone(), tombstone.clone(), bad.clone()];
            let failed = match read(&keyed(false, more), &records) {
                Err(NoRows::Bad(failed)) => failed,
                Err(NoRows::Internal(error)) => panic!("{error}"),
                Ok(_) => panic!("{bad:?} was read"),
            };
            assert_eq!((failed.what, failed.message.place), (what, place(2)), "{failed:?}");
            assert!(failed.message.reason.contains(reason), "{failed:?}");
        }
    }
}

#[test]
fn a_record_without_metadata_that_must_be_there_is_bad() {
    let with = |more: &[(&str, &str)]| {
        let mut table =
            table(&[("v", DataType::Int64, true), ("k", DataType::Int64, true), ("h", DataType::Utf8, false)], more);
        table.metadata =
            [("h", "headers.trace"), ("k", "offset")].map(|(name, key)| (name.to_owned(), key.to_owned())).into();
        table
    };
    let header = OwnedHeaders::new().insert(Header { key: "trace", value: Some("a") });
    let traced = OwnedMessage::new(
        Some(br#"{"v": 1}"#.to_vec()),
        None,
        "t".to_owned(),
        Timestamp::NotAvailable,
        0,
        42,
        Some(header),
    );
    let records = [record(None, Some(r#"{"v": 0}"#)), traced, record(None, Some("bad value"))];
    let ReadRows { batch, bad } = read(&with(&[("dead-letter", "bad")]), &records).unwrap();
    assert_eq!(pairs(batch.as_ref()), [(Some(1), Some(42))]);
    assert_eq!(bad.iter().map(|bad| bad.place).collect::<Vec<_>>(), [0, 2].map(place), "{bad:?}");
    assert!(bad[0].reason.contains("metadata holds nothing for column 'h'"), "{bad:?}");
    let failed = read(&with(&[]), &records[..2]);
    assert!(
        matches!(failed, Err(NoRows::Bad(BadRecord { what: What::NoMetadata, ref message })) if message.place == place(0))
    );
}

#[test]
fn an_offset_fits_its_column() {
    for (declared, fits) in [(DataType::Int32, false), (DataType::Int64, true), (DataType::Utf8, true)] {
        assert_eq!(Key::new("offset", &declared).is_ok(), fits, "{declared}");
        assert!(Key::new("partition", &declared).is_ok(), "{declared}");
    }
}
