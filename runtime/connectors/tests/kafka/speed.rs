//! Rows per second of CPU time of this process, with librdkafka's threads. Run by hand:
//! `cargo test --profile sluice -p sluice-connectors --test kafka -- --ignored --nocapture speed`.

use crate::broker::{bootstrap, create_topic, produce};
use crate::task::{Reader, source, table};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use sluice_engine::source::SourcePoll;
use std::sync::Arc;
use std::time::Instant;

/// User and system time of the process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // Fields 14 and 15 of the whole line, in ticks of 10 ms.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[test]
#[ignore = "measures"]
fn speed_of_page_views_from_the_broker() {
    let Some(bootstrap) = bootstrap() else { return };
    const ROWS: usize = 2_000_000;
    let topic = create_topic(&bootstrap, "speed", 4);
    let views: Vec<Option<String>> = (0..ROWS / 4)
        .map(|number| {
            Some(format!(
                r#"{{"app_id":"app{}","url":"https://example.org/page/{number}","ts":"2024-01-01 12:{:02}:{:02}.{:03}"}}"#,
                number % 50,
                number / 60_000 % 60,
                number / 1000 % 60,
                number % 1000
            ))
        })
        .collect();
    for partition in 0..4 {
        produce(&bootstrap, &topic, partition, &views);
    }
    drop(views);
    let schema = Arc::new(Schema::new(vec![
        Field::new("app_id", DataType::Utf8, true),
        Field::new("url", DataType::Utf8, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ]));
    let options = [
        ("connector", "kafka"),
        ("topic", topic.as_str()),
        ("properties.bootstrap.servers", bootstrap.as_str()),
        ("format", "json"),
        ("scan.startup.mode", "earliest-offset"),
        ("scan.bounded.mode", "latest-offset"),
    ];
    let factory = source(&table(&schema, &[], &options));
    let mut reader = Reader::open(&factory, 0, 1, None).unwrap();
    let (cpu, started) = (cpu_seconds(), Instant::now());
    let (mut rows, mut batches) = (0, 0);
    while let Some(batch) = reader.next(4096).unwrap() {
        rows += batch.len();
        batches += 1;
    }
    assert_eq!(rows, ROWS);
    let (cpu, wall) = (cpu_seconds() - cpu, started.elapsed().as_secs_f64());
    println!("kafka_source_rows_per_cpu_second {:.0} rows/s", ROWS as f64 / cpu);
    println!("kafka_source_rows_per_second {:.0} rows/s ({batches} batches)", ROWS as f64 / wall);
}

#[test]
#[ignore = "measures"]
fn speed_of_datagen() {
    let schema =
        Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true), Field::new("v", DataType::Int64, true)]));
    let options = [
        ("connector", "datagen"),
        ("rows-per-second", "9223372036854775807"),
        ("number-of-rows", "300000000"),
        ("fields.k.min", "0"),
        ("fields.k.max", "99999"),
    ];
    for parallelism in [1, 2] {
        let factory = source(&table(&schema, &[], &options));
        let mut reader = Reader::open(&factory, 0, parallelism, None).unwrap();
        let cpu = cpu_seconds();
        let mut rows = 0;
        while let SourcePoll::Batch(batch) = reader.source.poll(4096).unwrap() {
            rows += std::hint::black_box(&batch).len();
        }
        let speed = rows as f64 / (cpu_seconds() - cpu);
        println!("datagen_rows_per_core {speed:.0} rows/s (parallelism {parallelism}, two BIGINT columns)");
    }
}
