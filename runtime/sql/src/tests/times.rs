//! WATERMARK FOR: what of it a source gets, whatever columns the query needs, and which of its options are mistakes.

use super::{mistake, plan};
use arrow::array::{
    ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray, new_null_array,
};
use arrow::datatypes::{DataType, SchemaRef, TimestampMillisecondType};
use sluice_engine::event_time::alignment::WatermarkAlignment;
use sluice_engine::program::Program;
use sluice_engine::table::with_dead_letters;
use sluice_protocol::TimeSpan;
use std::sync::Arc;

const INTO: &str = "INSERT INTO two SELECT 'a', CAST(v AS STRING) FROM t";

fn table(columns: &str, options: &str) -> String {
    format!("CREATE TABLE t ({columns}) WITH ('connector' = 'source'{options});")
}

/// Rows of the numbers 1000 and 2000 in each column.
fn rows(schema: &SchemaRef) -> RecordBatch {
    let column = |data_type: &DataType| -> ArrayRef {
        match data_type {
            DataType::Int64 => Arc::new(Int64Array::from(vec![1000, 2000])),
            _ => Arc::new(TimestampMillisecondArray::from(vec![1000, 2000])),
        }
    };
    let columns = schema.fields().iter().map(|field| column(field.data_type())).collect();
    RecordBatch::try_new(Arc::clone(schema), columns).unwrap()
}

/// Time and watermark of both rows, and the idle timeout.
fn times(program: &Program) -> ([Vec<i64>; 2], Option<TimeSpan>) {
    let (_, source) = program.vertices[0].source.as_ref().unwrap();
    let strategy = source.watermarks().expect("watermarks");
    let rows = rows(&source.schema());
    let values = [&strategy.time, &strategy.watermark].map(|make| {
        let values = make().unwrap().evaluate(&rows).unwrap();
        values.as_primitive::<TimestampMillisecondType>().values().to_vec()
    });
    (values, strategy.idle_timeout)
}

#[test]
fn the_time_is_read_although_no_query_needs_it() {
    let physical = table("v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '0.4' SECOND", "");
    let program = plan(&format!("{physical}{INTO}"));
    assert_eq!(times(&program), ([vec![1000, 2000], vec![600, 1600]], None));
    let computed = table("v BIGINT, b BIGINT, at AS TO_TIMESTAMP_LTZ(b, 3), WATERMARK FOR at AS at", "");
    assert_eq!(times(&plan(&format!("{computed}{INTO}"))), ([vec![1000, 2000], vec![1000, 2000]], None));
    let twice = "v BIGINT, at AS TO_TIMESTAMP_LTZ(v, 3), WATERMARK FOR at AS CASE WHEN at > TO_TIMESTAMP_LTZ(1500, 3) THEN at - INTERVAL '1' SECOND ELSE at END";
    assert_eq!(times(&plan(&format!("{}{INTO}", table(twice, "")))), ([vec![1000, 2000], vec![1000, 1000]], None));
}

/// Rows that could not be read, on their way to another table, are NULL in every column, and say nothing of time.
#[test]
fn dead_letters_have_no_time() {
    let columns =
        "v BIGINT, ts TIMESTAMP(3) NOT NULL, WATERMARK FOR ts AS COALESCE(ts, TO_TIMESTAMP('2020-01-01 00:00:00'))";
    let program = plan(&format!("{}{INTO}", table(columns, "")));
    let (_, source) = program.vertices[0].source.as_ref().unwrap();
    let strategy = source.watermarks().unwrap();
    let handed_out = with_dead_letters(&source.schema());
    let columns = handed_out.fields().iter().map(|field| -> ArrayRef {
        match field.data_type() {
            DataType::Int64 => Arc::new(Int64Array::from(vec![Some(1), None])),
            DataType::Timestamp(..) => Arc::new(TimestampMillisecondArray::from(vec![Some(1000), None])),
            DataType::Utf8 => Arc::new(StringArray::from(vec![None, Some("there")])),
            other => new_null_array(other, 2),
        }
    });
    let rows = RecordBatch::try_new(Arc::clone(&handed_out), columns.collect()).unwrap();
    for make in [&strategy.time, &strategy.watermark] {
        let values = make().unwrap().evaluate(&rows).unwrap();
        let values = values.as_primitive::<TimestampMillisecondType>();
        assert_eq!(values.iter().collect::<Vec<_>>(), [Some(1000), None]);
    }
}

#[test]
fn idle_timeouts_are_set_for_all_tables_or_one() {
    let columns = "v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts";
    let set = "SET 'table.exec.source.idle-timeout' = '30 s';";
    let of = |text: String| times(&plan(&text)).1;
    assert_eq!(of(format!("{set}{}{INTO}", table(columns, ""))), Some(TimeSpan(30_000)));
    let own = table(columns, ", 'scan.watermark.idle-timeout' = '5 s'");
    assert_eq!(of(format!("{set}{own}{INTO}")), Some(TimeSpan(5000)), "and the connector does not see it");
    let never = table(columns, ", 'scan.watermark.idle-timeout' = '0'");
    assert_eq!(of(format!("{set}{never}{INTO}")), None);
}

#[test]
fn options_of_watermarks_that_are_mistakes() {
    let columns = "v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts";
    let wrong = |columns: &str, option: &str| mistake(&format!("{}{INTO}", table(columns, option))).message;
    assert_eq!(
        wrong(columns, ", 'scan.watermark.idle-timeuot' = '5 s'"),
        "table 't': option 'scan.watermark.idle-timeuot' does not exist; did you mean 'scan.watermark.idle-timeout'?"
    );
    assert_eq!(
        wrong("v BIGINT", ", 'scan.watermark.idle-timeout' = '5 s'"),
        "table 't': 'scan.watermark.idle-timeout' needs WATERMARK FOR in CREATE TABLE"
    );
    assert!(wrong(columns, ", 'scan.watermark.idle-timeout' = 'soon'").contains("is no duration"));
}

#[test]
fn sources_are_aligned_as_in_flink() {
    let columns = "v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts";
    let alignment = |options: &str| {
        let program = plan(&format!("{}{INTO}", table(columns, options)));
        program.vertices[0].source.as_ref().unwrap().1.watermarks().unwrap().alignment.clone()
    };
    let options = ", 'scan.watermark.alignment.group' = 'g', 'scan.watermark.alignment.max-drift' = '20 s'";
    let expected = |update_interval| {
        let (group, max_drift) = ("g".to_owned(), TimeSpan(20_000));
        Some(WatermarkAlignment { group, max_drift, update_interval: TimeSpan(update_interval) })
    };
    assert_eq!(alignment(options), expected(1000));
    let interval = format!("{options}, 'scan.watermark.alignment.update-interval' = '200 ms'");
    assert_eq!(alignment(&interval), expected(200));
    assert_eq!(alignment(""), None);

    let wrong = |option: &str| mistake(&format!("{}{INTO}", table(columns, option))).message;
    assert_eq!(
        wrong(", 'scan.watermark.alignment.group' = 'g'"),
        "table 't': option 'scan.watermark.alignment.group' needs 'scan.watermark.alignment.max-drift': how far the source \
         may be ahead of its group"
    );
    assert!(wrong(", 'scan.watermark.alignment.max-drift' = '1 s'").contains("needs 'scan.watermark.alignment.group'"));
    let never = format!("{options}, 'scan.watermark.alignment.update-interval' = '0'");
    assert!(wrong(&never).contains("must be more than 0"));
}
