//! Messages of each format become rows, and rows messages; what is wrong with one that is none; and lines of CSV end where
//! they end.

use super::csv::CsvOptions;
use super::records::record_length;
use super::*;
use crate::options::Known;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use sluice_engine::batch::RowKind;
use sluice_engine::table::{TableDescriptor, TableOption};

fn schema(columns: &[(&str, DataType)]) -> SchemaRef {
    let fields = columns.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn two() -> SchemaRef {
    schema(&[("n", DataType::Int64), ("t", DataType::Utf8)])
}

/// The format that these options name.
fn format(schema: &SchemaRef, options: &[(&str, &str)]) -> Result<Format, TableError> {
    let option = |(key, value): &(&str, &str)| TableOption { key: (*key).to_owned(), value: (*value).to_owned() };
    let table = TableDescriptor::new("t", schema.clone(), vec![], options.iter().map(option).collect());
    let known = Known { names: &["format"], formats: &[""], properties: false, refused: &[] };
    read(&Options::new(&table, &known)?, "format", "", &NAMES, "messages")
}

fn decode(format: &Format, read: &SchemaRef, declared: &SchemaRef, messages: &[&str]) -> Result<Decoded, BadMessage> {
    let on_bad = if format.ignores_errors() { OnBad::PassOver } else { OnBad::Fail };
    let mut decoder = format.decoder(read, declared, on_bad).unwrap_or_else(|what| panic!("{what}"));
    for (number, message) in messages.iter().enumerate() {
        decoder.push((1, number as i64), message.as_bytes());
    }
    decoder.finish()
}

/// `+I[1, a]` and so on.
fn rows(decoded: &Decoded) -> Vec<String> {
    let Some(batch) = &decoded.batch else { return Vec::new() };
    let options = FormatOptions::new().with_null("null");
    let columns: Vec<_> =
        batch.rows.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap()).collect();
    let row = |row: usize| {
        let values: Vec<String> = columns.iter().map(|column| column.value(row).to_string()).collect();
        let kind =
            batch.kinds.as_ref().map_or(RowKind::Insert, |kinds| RowKind::from_number(kinds.value(row)).unwrap());
        format!("{}[{}]", kind.short(), values.join(", "))
    };
    (0..batch.len()).map(row).collect()
}

fn encode(format: &Format, rows: &RecordBatch, kinds: &[RowKind]) -> Vec<Option<String>> {
    let positions: Vec<usize> = (0..rows.num_columns()).collect();
    let encoder = format.encoder(&rows.schema(), &positions).unwrap();
    let bound = encoder.bind(rows).unwrap();
    let message = |(row, kind): (usize, &RowKind)| {
        let mut out = Vec::new();
        bound.write(row, *kind, &mut out).then(|| String::from_utf8(out).unwrap())
    };
    kinds.iter().enumerate().map(message).collect()
}

fn some_rows() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a,\"b\"\nc"), Some("d"), None]));
    RecordBatch::try_new(two(), vec![numbers, texts]).unwrap()
}

#[test]
fn csv_comes_back_as_it_was_written() {
    for more in [&[][..], &[("csv.field-delimiter", ";")], &[("csv.quote-character", "'"), ("csv.null-literal", "n/a")]]
    {
        let format = format(&two(), &[&[("format", "csv")], more].concat()).unwrap();
        let messages = encode(&format, &some_rows(), &[RowKind::Insert; 3]);
        let messages: Vec<&str> = messages.iter().map(|message| message.as_deref().unwrap()).collect();
        let decoded = decode(&format, &two(), &two(), &messages).unwrap();
        assert_eq!(decoded.batch.unwrap().rows, some_rows(), "{messages:?}");
    }
}

/// What stands in the only or the last column would run into what follows, were an escape not escaped.
#[test]
fn csv_escapes_quotes_and_escapes() {
    let texts = [
        Some("\\"),
        Some("a\\"),
        Some("\\\""),
        Some("a,\\"),
        Some("C:\\dir"),
        Some("\"\n\\\\"),
        Some("\\N"),
        None,
        Some("z"),
    ];
    let column = || Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let numbers = || Arc::new(Int64Array::from_iter_values(-9..0)) as ArrayRef;
    for (columns, values) in [
        (vec![("t", DataType::Utf8)], vec![column()]),
        (vec![("t", DataType::Utf8), ("n", DataType::Int64)], vec![column(), numbers()]),
        (vec![("n", DataType::Int64), ("t", DataType::Utf8)], vec![numbers(), column()]),
    ] {
        let columns = schema(&columns);
        let written = RecordBatch::try_new(columns.clone(), values).unwrap();
        for (escape, null) in [("\\", "n/a"), ("-", "n/a"), ("\"", "n/a"), ("\\", "-\\-")] {
            let options = [("format", "csv"), ("csv.escape-character", escape), ("csv.null-literal", null)];
            let format = format(&columns, &options).unwrap();
            let messages = encode(&format, &written, &[RowKind::Insert; 9]);
            let messages: Vec<&str> = messages.iter().map(|message| message.as_deref().unwrap()).collect();
            let decoded = decode(&format, &columns, &columns, &messages).unwrap();
            assert_eq!(decoded.batch.unwrap().rows, written, "{options:?}: {messages:?}");
            // As lines of a file they end where they were ended.
            let Format::Csv(options) = &format else { panic!("{format:?}") };
            let mut lines = messages.join("\n");
            for message in messages {
                let length = record_length(lines.as_bytes(), options, true).unwrap();
                assert_eq!(lines[..length].trim_end_matches('\n'), message);
                lines.drain(..length);
            }
        }
    }
    let plain = format(&two(), &[("format", "csv"), ("csv.escape-character", "\\")]).unwrap();
    let messages = encode(&plain, &some_rows(), &[RowKind::Insert; 3]);
    assert_eq!(messages, [Some("1,\"a,\\\"b\\\"\nc\""), Some(",d"), Some("3,")].map(|line| line.map(str::to_owned)));
}

#[test]
fn csv_goes_by_position_whichever_columns_are_read() {
    let declared = schema(&[("a", DataType::Utf8), ("b", DataType::Int64), ("c", DataType::Utf8)]);
    let read = schema(&[("c", DataType::Utf8), ("b", DataType::Int64)]);
    let format = format(&declared, &[("format", "csv")]).unwrap();
    let decoded = decode(&format, &read, &declared, &["x,1,y", "\"x\",2,\n", "z,,w\r\n"]).unwrap();
    assert_eq!(rows(&decoded), ["+I[y, 1]", "+I[null, 2]", "+I[w, null]"]);
}

#[test]
fn a_line_that_is_no_csv_is_named_or_passed_over() {
    let strict = format(&two(), &[("format", "csv")]).unwrap();
    let bad = [
        ("x,a", "Int64"),
        ("1", "expected 2 got 1"),
        ("1,a,b", "expected 2 got 3"),
        ("1,\"a", "not closed"),
        ("1,a\n2,b", "more than one"),
        ("", "no whole line"),
    ];
    for (line, reason) in bad {
        let error = decode(&strict, &two(), &two(), &["1,a", line, "2,b"]).unwrap_err();
        assert_eq!((error.place, error.payload.as_slice()), ((1, 1), line.as_bytes()), "{error:?}");
        assert!(error.reason.contains(reason), "'{reason}' is not in {error:?}");
    }
    // As in Flink, a value that does not fit is NULL and the rest of the line stays.
    let lenient = format(&two(), &[("format", "csv"), ("csv.ignore-parse-errors", "true")]).unwrap();
    let decoded = decode(&lenient, &two(), &two(), &["1,a", "x,b", "3", "4,d"]).unwrap();
    assert_eq!(rows(&decoded), ["+I[1, a]", "+I[null, b]", "+I[4, d]"]);
    assert_eq!(decoded.messages, Some(vec![0, 1, 3]));
    assert_eq!(decoded.bad.iter().map(|bad| bad.place.1).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_record_of_csv_ends_outside_quotes() {
    let options =
        CsvOptions { delimiter: b',', quote: b'"', escape: None, null_literal: None, ignore_parse_errors: false };
    for (text, expected) in [
        ("a,b\nc", Some(4)),
        ("\"a\nb\",c\nd", Some(8)),
        ("\"a\"\"\nb\",c\nd", Some(10)),
        ("a\"b\nc\"", Some(4)),
        ("\"a\nb", None),
        ("a,b", None),
        ("", None),
    ] {
        assert_eq!(record_length(text.as_bytes(), &options, false), expected, "{text:?}");
    }
    assert_eq!(record_length(b"a,b", &options, true), Some(3));
    assert_eq!(record_length(b"", &options, true), None);
    let escaping = CsvOptions { escape: Some(b'\\'), ..options };
    assert_eq!(record_length(b"\"a\\\"\nb\"\nc", &escaping, false), Some(8));
}

#[test]
fn raw_is_the_value_of_the_only_column() {
    let text = schema(&[("line", DataType::Utf8)]);
    let raw = format(&text, &[("format", "raw"), ("raw.charset", "utf-8")]).unwrap();
    assert_eq!(rows(&decode(&raw, &text, &text, &["a b", "", "ü"]).unwrap()), ["+I[a b]", "+I[]", "+I[ü]"]);
    let mut decoder = raw.decoder(&text, &text, OnBad::Fail).unwrap();
    decoder.push((3, 4), b"\xff\xfe");
    assert!(decoder.finish().unwrap_err().reason.contains("UTF-8"));

    let number = schema(&[("n", DataType::Int64)]);
    let rows: RecordBatch =
        RecordBatch::try_new(number.clone(), vec![Arc::new(Int64Array::from(vec![Some(258), None]))]).unwrap();
    for (endianness, bytes) in [("big-endian", [0, 0, 0, 0, 0, 0, 1, 2]), ("little-endian", [2, 1, 0, 0, 0, 0, 0, 0])] {
        let raw = format(&number, &[("format", "raw"), ("raw.endianness", endianness)]).unwrap();
        let encoder = raw.encoder(&number, &[0]).unwrap();
        let bound = encoder.bind(&rows).unwrap();
        let mut out = Vec::new();
        assert!(bound.write(0, RowKind::Insert, &mut out));
        assert_eq!(out, bytes);
        assert!(!bound.write(1, RowKind::Insert, &mut out), "NULL is no value");
        let mut decoder = raw.decoder(&number, &number, OnBad::PassOver).unwrap();
        decoder.push((0, 0), &bytes);
        decoder.push((0, 1), &bytes[1..]);
        let decoded = decoder.finish().unwrap();
        let column = decoded.batch.unwrap().rows.column(0).as_primitive::<Int64Type>().clone();
        assert_eq!((column.values().to_vec(), decoded.bad.len()), (vec![258], 1));
        assert!(decoded.bad[0].reason.contains("7 bytes"), "{:?}", decoded.bad);
    }
    for (columns, options) in [
        (two(), [("format", "raw"), ("raw.endianness", "big-endian")]),
        (text, [("format", "raw"), ("raw.charset", "latin1")]),
    ] {
        let refused = format(&columns, &options).map_err(|error| error.to_string());
        let refused = refused.and_then(|format| format.decoder(&columns, &columns, OnBad::Fail).map(|_| ()));
        assert!(refused.is_err());
    }
}

const CHANGES: [&str; 4] = [
    r#"{"before":null,"after":{"n":1,"t":"a"},"source":{"db":"x"},"op":"r","ts_ms":1}"#,
    r#"{"before":{"n":1,"t":"a"},"after":{"n":1,"t":"b"},"op":"u"}"#,
    r#"{"op":"c","after":{"n":2,"t":null}}"#,
    r#"{"before":{"n":1,"t":"b"},"after":null,"op":"d"}"#,
];

#[test]
fn changes_of_debezium_become_rows_with_their_kinds() {
    let plain = format(&two(), &[("format", "debezium-json")]).unwrap();
    assert_eq!(plain.produced_kinds(), ProducedKinds::All);
    let expected = ["+I[1, a]", "-U[1, a]", "+U[1, b]", "+I[2, null]", "-D[1, b]"];
    let decoded = decode(&plain, &two(), &two(), &CHANGES).unwrap();
    assert_eq!(rows(&decoded), expected);
    assert_eq!(decoded.messages, Some(vec![0, 1, 1, 2, 3]));
    let with_schema = format(&two(), &[("format", "debezium-json"), ("debezium-json.schema-include", "true")]).unwrap();
    let messages: Vec<String> =
        CHANGES.iter().map(|change| format!(r#"{{"schema":{{"type":"x"}},"payload":{change}}}"#)).collect();
    let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
    assert_eq!(rows(&decode(&with_schema, &two(), &two(), &messages).unwrap()), expected);
    // Only the columns that are read, times as the format writes them.
    let times = schema(&[("at", DataType::Timestamp(TimeUnit::Millisecond, None))]);
    let change = r#"{"after":{"at":"2024-01-01 12:00:00.5","n":1},"op":"c"}"#;
    assert_eq!(rows(&decode(&plain, &times, &two(), &[change]).unwrap()), ["+I[2024-01-01T12:00:00.500]"]);
}

#[test]
fn a_message_that_is_no_change_is_named_or_passed_over() {
    let strict = format(&two(), &[("format", "debezium-json")]).unwrap();
    for (message, reason) in [
        (r#"{"before":null,"after":{"n":1},"op":"u"}"#, "REPLICA IDENTITY"),
        (r#"{"before":{"n":1},"after":null,"op":"u"}"#, "'after' is null"),
        (r#"{"before":null,"after":null,"op":"d"}"#, "'before' is null"),
        (r#"{"after":{"n":1},"op":"t"}"#, "'t'"),
        (r#"{"n":1,"t":"a"}"#, "no 'op'"),
        (r#"{"after":{"n":"many"},"op":"c"}"#, "n"),
        ("nonsense", "unexpected"),
    ] {
        let error = decode(&strict, &two(), &two(), &[CHANGES[0], message]).unwrap_err();
        assert_eq!(error.place, (1, 1), "{error:?}");
        assert!(error.reason.to_lowercase().contains(&reason.to_lowercase()), "'{reason}' is not in {error:?}");
    }
    let lenient =
        format(&two(), &[("format", "debezium-json"), ("debezium-json.ignore-parse-errors", "true")]).unwrap();
    let decoded = decode(&lenient, &two(), &two(), &["{}", CHANGES[1], "x", CHANGES[3]]).unwrap();
    assert_eq!(rows(&decoded), ["-U[1, a]", "+U[1, b]", "-D[1, b]"]);
    assert_eq!((decoded.messages, decoded.bad.len()), (Some(vec![1, 1, 3]), 2));
}

#[test]
fn what_is_written_as_a_change_is_read_as_one() {
    let changes = format(&two(), &[("format", "debezium-json")]).unwrap();
    let kinds = [RowKind::Insert, RowKind::UpdateBefore, RowKind::UpdateAfter];
    let messages = encode(&changes, &some_rows(), &kinds);
    assert_eq!(messages[1].as_deref(), Some(r#"{"before":{"n":null,"t":"d"},"after":null,"op":"d"}"#));
    let messages: Vec<&str> = messages.iter().map(|message| message.as_deref().unwrap()).collect();
    let decoded = decode(&changes, &two(), &two(), &messages).unwrap();
    assert_eq!(decoded.batch.as_ref().unwrap().rows, some_rows());
    assert_eq!(rows(&decoded).iter().map(|row| &row[..2]).collect::<Vec<_>>(), ["+I", "-D", "+I"]);
    let read_only = format(&two(), &[("format", "debezium-json"), ("debezium-json.schema-include", "true")]).unwrap();
    assert!(read_only.encoder(&two(), &[0, 1]).unwrap_err().contains("schema-include"));
}
