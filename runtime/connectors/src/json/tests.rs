//! Decoding and encoding as Flink does; bad messages are found, named and skipped.

use super::encode::JsonEncoder;
use super::options::JsonOptions;
use super::timestamp::{self, TimestampFormat};
use crate::format::{BadMessage, Decoder, Format, OnBad};
use arrow::array::{
    Array, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int64Array, RecordBatch,
    StringArray, Time32MillisecondArray, TimestampMicrosecondArray, TimestampMillisecondArray,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMillisecondType};
use std::sync::Arc;

const PLAIN: JsonOptions =
    JsonOptions { ignore_parse_errors: false, fail_on_missing_field: false, timestamp_format: TimestampFormat::Sql };

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("app_id", DataType::Utf8, true),
        Field::new("pv", DataType::Int64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ]))
}

fn decoder(schema: &SchemaRef, options: JsonOptions) -> Decoder {
    let on_bad = if options.ignore_parse_errors { OnBad::PassOver } else { OnBad::Fail };
    Format::Json(options).decoder(schema, schema, on_bad).unwrap()
}

fn rows(decoder: &mut Decoder) -> Option<RecordBatch> {
    decoder.finish().unwrap().batch.map(|batch| batch.rows)
}

fn decode(options: JsonOptions, messages: &[&[u8]]) -> Result<Option<RecordBatch>, BadMessage> {
    let mut decoder = self::decoder(&schema(), options);
    for (offset, message) in messages.iter().enumerate() {
        decoder.push((7, offset as i64), message);
    }
    Ok(decoder.finish()?.batch.map(|batch| batch.rows))
}

fn apps(rows: &RecordBatch) -> Vec<Option<&str>> {
    rows.column(0).as_string::<i32>().iter().collect()
}

#[test]
fn only_the_columns_of_the_table_are_read() {
    let rows = decode(
        PLAIN,
        &[
            br#"{"app_id":"app1","url":"/x","nested":{"a":[1,2]},"ts":"2024-01-01 12:00:00.123","pv":3}"#,
            br#" {"pv": null, "app_id": 5} "#,
            br#"{}"#,
        ],
    )
    .unwrap()
    .unwrap();
    assert_eq!(rows.schema(), schema());
    assert_eq!(apps(&rows), [Some("app1"), Some("5"), None]);
    assert_eq!(rows.column(1).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(3), None, None]);
    let times: Vec<_> = rows.column(2).as_primitive::<TimestampMillisecondType>().iter().collect();
    assert_eq!(times, [Some(1_704_110_400_123), None, None]);
}

#[test]
fn a_bad_message_is_named_by_its_place() {
    let good = br#"{"app_id":"a"}"#.as_slice();
    let cases: &[(&[u8], &str)] = &[
        (b"", "empty"),
        (br#"{"app_id":"a""#, "middle"),
        (br#"{"app_id":"a"}{"app_id":"b"}"#, "more than one"),
        (b"nonsense", "unexpected"),
        (br#"{"pv":"many"}"#, "pv"),
        (br#"{"ts":"2024-01-01T12:00:00"}"#, "SQL"),
        (br#"{"ts":"2024-02-30 12:00:00"}"#, "2024-02-30"),
        (b"[1,2]", "expected"),
        (b"17", "middle"),
        (b"{\"app_id\":\"\xff\xfe\"}", "UTF-8"),
    ];
    for (bad, reason) in cases {
        let error = decode(PLAIN, &[good, good, bad, good]).unwrap_err();
        assert_eq!(error.place, (7, 2), "{error:?}");
        let said = error.reason.to_lowercase();
        assert!(said.contains(&reason.to_lowercase()), "'{reason}' is not in {error:?}");
    }
}

#[test]
fn two_halves_do_not_make_a_row() {
    // Together these four messages are three valid objects, one of the messages holding two.
    let messages: &[&[u8]] = &[br#"{"app_id":"#, br#""a"}"#, br#"{"app_id":"b"}{"app_id":"c"}"#, br#"{"app_id":"d"}"#];
    let error = decode(PLAIN, messages).unwrap_err();
    assert_eq!(error.place, (7, 0));
    let skipped = decode(JsonOptions { ignore_parse_errors: true, ..PLAIN }, messages).unwrap().unwrap();
    assert_eq!(apps(&skipped), [Some("d")]);
}

#[test]
fn bad_messages_are_skipped_and_bad_fields_null_when_asked() {
    let ignore = JsonOptions { ignore_parse_errors: true, ..PLAIN };
    let rows = decode(
        ignore,
        &[br#"{"app_id":"a","pv":"many","ts":"soon"}"#, b"nonsense", br#"{"app_id":"b","pv":2}"#, b"\xff"],
    )
    .unwrap()
    .unwrap();
    assert_eq!(apps(&rows), [Some("a"), Some("b")]);
    assert_eq!(rows.column(1).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [None, Some(2)]);
    assert_eq!(decode(ignore, &[b"nonsense", b"more"]).unwrap(), None);
}

#[test]
fn the_decoder_goes_on_after_a_bad_batch() {
    let mut decoder = self::decoder(&schema(), PLAIN);
    decoder.push((0, 1), br#"{"app_id":"a","#);
    assert!(decoder.finish().is_err());
    decoder.push((0, 2), br#"{"app_id":"b"}"#);
    assert_eq!(apps(&rows(&mut decoder).unwrap()), [Some("b")]);
    assert_eq!(rows(&mut decoder), None);
}

#[test]
fn a_missing_field_fails_only_when_asked() {
    let strict = JsonOptions { fail_on_missing_field: true, ..PLAIN };
    let whole = br#"{"app_id":"a","pv":null,"ts":null}"#.as_slice();
    assert_eq!(decode(strict, &[whole]).unwrap().unwrap().num_rows(), 1);
    let error = decode(strict, &[whole, br#"{"app_id":"a","pv":1}"#]).unwrap_err();
    assert_eq!((error.place, error.reason.as_str()), ((7, 1), "it has no field 'ts'"));
}

#[test]
fn a_column_that_is_not_null_says_so() {
    let strict: SchemaRef = Arc::new(Schema::new(vec![Field::new("app_id", DataType::Utf8, false)]));
    let mut decoder = self::decoder(&strict, PLAIN);
    decoder.push((0, 0), b"{}");
    let error = decoder.finish().unwrap_err();
    assert!(error.reason.contains("app_id"), "{error:?}");
}

#[test]
fn the_excerpt_is_short_and_whole_characters() {
    let long = format!(r#"{{"app_id":"{}"#, "é".repeat(300));
    let error = decode(PLAIN, &[long.as_bytes()]).unwrap_err();
    assert!(error.excerpt().len() <= 204 && error.excerpt().ends_with("é…"), "{error:?}");
    assert_eq!(error.payload, long.as_bytes());
}

#[test]
fn timestamps_in_both_standards() {
    let cases = [
        ("1970-01-01 00:00:00", TimestampFormat::Sql, Some(0)),
        ("1969-12-31 23:59:59.5", TimestampFormat::Sql, Some(-500_000_000)),
        ("2000-02-29 00:00:00.000000001", TimestampFormat::Sql, Some(951_782_400_000_000_001)),
        ("2024-01-01T12:00:00.123", TimestampFormat::Iso8601, Some(1_704_110_400_123_000_000)),
        ("2024-01-01T12:00:00.123Z", TimestampFormat::Iso8601, Some(1_704_110_400_123_000_000)),
        ("2024-01-01T12:00", TimestampFormat::Iso8601, Some(1_704_110_400_000_000_000)),
        ("2024-01-01 12:00:00", TimestampFormat::Iso8601, None),
        ("2024-01-01 12:00:00Z", TimestampFormat::Sql, None),
        ("1900-02-29 00:00:00", TimestampFormat::Sql, None),
        ("2024-13-01 00:00:00", TimestampFormat::Sql, None),
        ("2024-01-01 24:00:00", TimestampFormat::Sql, None),
        ("2024-01-01 12:00:00.", TimestampFormat::Sql, None),
        ("2024-01-01 12:00:00.1234567890", TimestampFormat::Sql, None),
        ("", TimestampFormat::Sql, None),
    ];
    for (text, format, nanos) in cases {
        assert_eq!(timestamp::parse(text, format), nanos, "{text}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    // Every day of 1,000 years around the epoch, and odd instants within.
    for day in -182_500_i128..182_500 {
        let nanos = day * 86_400_000_000_000 + (day * 7_919_000_003).rem_euclid(86_400_000_000_000);
        for format in [TimestampFormat::Sql, TimestampFormat::Iso8601] {
            let mut text = Vec::new();
            timestamp::write(&mut text, nanos, format);
            let text = String::from_utf8(text).unwrap();
            assert_eq!(timestamp::parse(&text, format), Some(nanos), "{text}");
        }
    }
}

#[test]
fn rows_are_written_as_flink_writes_them() {
    let rows = RecordBatch::try_from_iter([
        ("s", Arc::new(StringArray::from(vec![Some("a\"\n\u{e9}"), None])) as Arc<dyn Array>),
        ("n", Arc::new(Int64Array::from(vec![i64::MIN, 0]))),
        ("d", Arc::new(Float64Array::from(vec![1.5, f64::NAN]))),
        ("b", Arc::new(BooleanArray::from(vec![true, false]))),
        (
            "m",
            Arc::new(Decimal128Array::from(vec![-150, 7]).with_precision_and_scale(10, 2).unwrap()) as Arc<dyn Array>,
        ),
        ("day", Arc::new(Date32Array::from(vec![19_723, -1]))),
        ("time", Arc::new(Time32MillisecondArray::from(vec![43_200_120, 0]))),
        ("ts", Arc::new(TimestampMillisecondArray::from(vec![1_704_110_400_100, 0]))),
        ("us", Arc::new(TimestampMicrosecondArray::from(vec![-1, 1]))),
        ("x", Arc::new(BinaryArray::from(vec![b"hi".as_slice(), b""]))),
    ])
    .unwrap();
    let all: Vec<usize> = (0..rows.num_columns()).collect();
    let encoder = JsonEncoder::new(&rows.schema(), &all, TimestampFormat::Sql).unwrap();
    let bound = encoder.bind(&rows).unwrap();
    let mut text = Vec::new();
    bound.write(0, &mut text);
    text.push(b'\n');
    bound.write(1, &mut text);
    assert_eq!(
        String::from_utf8(text).unwrap(),
        concat!(
            r#"{"s":"a\"\né","n":-9223372036854775808,"d":1.5,"b":true,"m":-1.50,"day":"2024-01-01","#,
            r#""time":"12:00:00.12","ts":"2024-01-01 12:00:00.1","us":"1969-12-31 23:59:59.999999","x":"aGk="}"#,
            "\n",
            r#"{"s":null,"n":0,"d":"NaN","b":false,"m":0.07,"day":"1969-12-31","#,
            r#""time":"00:00:00","ts":"1970-01-01 00:00:00","us":"1970-01-01 00:00:00.000001","x":""}"#
        )
    );
}

#[test]
fn a_key_holds_its_columns_only() {
    let encoder = JsonEncoder::new(&schema(), &[1, 0], TimestampFormat::Sql).unwrap();
    let rows = decode(PLAIN, &[br#"{"app_id":"a","pv":1}"#]).unwrap().unwrap();
    let mut text = Vec::new();
    encoder.bind(&rows).unwrap().write(0, &mut text);
    assert_eq!(String::from_utf8(text).unwrap(), r#"{"pv":1,"app_id":"a"}"#);
}

#[test]
fn instants_and_bytes_read_back_as_written() {
    let instants = TimestampMillisecondArray::from(vec![1_704_110_400_100, -1]).with_timezone("UTC");
    let bytes = BinaryArray::from(vec![b"\x00\xffhi".as_slice(), b""]);
    let rows =
        RecordBatch::try_from_iter([("at", Arc::new(instants) as Arc<dyn Array>), ("x", Arc::new(bytes))]).unwrap();
    for timestamp_format in [TimestampFormat::Sql, TimestampFormat::Iso8601] {
        let encoder = JsonEncoder::new(&rows.schema(), &[0, 1], timestamp_format).unwrap();
        let bound = encoder.bind(&rows).unwrap();
        let mut decoder = self::decoder(&rows.schema(), JsonOptions { timestamp_format, ..PLAIN });
        for row in 0..2 {
            let mut text = Vec::new();
            bound.write(row, &mut text);
            assert!(text.windows(2).any(|pair| pair == b"Z\""), "{}", String::from_utf8_lossy(&text));
            decoder.push((0, 0), &text);
        }
        assert_eq!(super::tests::rows(&mut decoder).unwrap(), rows);
    }
    let mut decoder = self::decoder(&rows.schema(), PLAIN);
    decoder.push((0, 3), br#"{"at":"2024-01-01 12:00:00","x":""}"#);
    let error = decoder.finish().unwrap_err();
    assert!(error.reason.contains("'Z'"), "{error:?}");
    decoder.push((0, 4), br#"{"at":"2024-01-01 12:00:00Z","x":"%%"}"#);
    let error = decoder.finish().unwrap_err();
    assert!(error.reason.contains("base64"), "{error:?}");
}

#[test]
fn arrays_are_read_and_written() {
    let of = |element: DataType| DataType::List(Arc::new(Field::new_list_field(element, true)));
    let millis = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        Field::new("words", of(DataType::Utf8), true),
        Field::new("times", of(millis), true),
        Field::new("grid", of(of(DataType::Int32)), true),
    ]));
    let messages = [
        r#"{"words":["a",null,"ä\"b"],"times":["2024-01-01 12:00:00.123Z"],"grid":[[1,2],[],null]}"#,
        r#"{"words":[],"times":null,"grid":[]}"#,
    ];
    let mut decoder = self::decoder(&schema, PLAIN);
    messages.iter().for_each(|message| decoder.push((0, 0), message.as_bytes()));
    let rows = rows(&mut decoder).unwrap();
    assert_eq!(rows.schema(), schema);
    let first = rows.column(0).as_list::<i32>().value(0);
    assert_eq!(first.as_string::<i32>().iter().collect::<Vec<_>>(), [Some("a"), None, Some("ä\"b")]);
    let times = rows.column(1).as_list::<i32>().value(0);
    assert_eq!(times.as_primitive::<TimestampMillisecondType>().value(0), 1_704_110_400_123);
    let encoder = JsonEncoder::new(&schema, &[0, 1, 2], TimestampFormat::Sql).unwrap();
    let part = rows.slice(1, 1);
    for (rows, expected) in [(&rows, messages.as_slice()), (&part, &messages[1..])] {
        let bound = encoder.bind(rows).unwrap();
        for (row, expected) in expected.iter().enumerate() {
            let mut out = Vec::new();
            bound.write(row, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), *expected);
        }
    }
    decoder.push((0, 7), br#"{"times":["noon"]}"#);
    let bad = decoder.finish().unwrap_err();
    assert!(bad.reason.contains("field 'times' is 'noon', which is no timestamp"), "{}", bad.reason);
}
