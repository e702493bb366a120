//! The source: where it starts, stops and goes on, and what it says when it cannot.

use crate::broker::{
    bootstrap, committed, create_topic, delete_records, end_offset, grow_topic, numbered, produce, produce_transaction,
    unique,
};
use crate::task::{Reader, source, table};
use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use sluice_engine::error::TaskError;
use sluice_engine::source::{SourceFactory, SourcePoll};
use sluice_protocol::CheckpointId;
use sluice_protocol::state::SplitState;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const EARLIEST: (&str, &str) = ("scan.startup.mode", "earliest-offset");
const TO_LATEST: (&str, &str) = ("scan.bounded.mode", "latest-offset");

pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("app_id", DataType::Utf8, true)]))
}

fn kafka(bootstrap: &str, topic: &str, options: &[(&str, &str)]) -> Arc<dyn SourceFactory> {
    let mut all =
        vec![("connector", "kafka"), ("topic", topic), ("properties.bootstrap.servers", bootstrap), ("format", "json")];
    all.extend_from_slice(options);
    source(&table(&schema(), &[], &all))
}

/// Reads `count` numbers, at most 37 at a time.
pub(crate) fn read(reader: &mut Reader, count: usize) -> Vec<i64> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let batch = reader.next((count - numbers.len()).min(37)).unwrap().expect("more rows");
        numbers.extend(batch.rows.column(0).as_primitive::<Int64Type>().values());
    }
    numbers
}

/// Reads to the end.
fn read_to_end(reader: &mut Reader) -> Vec<i64> {
    let mut numbers = Vec::new();
    while let Some(batch) = reader.next(1000).unwrap() {
        numbers.extend(batch.rows.column(0).as_primitive::<Int64Type>().values());
    }
    numbers
}

pub(crate) fn range(first: i64, count: i64) -> Vec<i64> {
    (first..first + count).collect()
}

fn error(result: Result<Reader, TaskError>) -> TaskError {
    result.err().expect("refused")
}

#[test]
fn after_a_thousand_events_the_state_holds_offset_1000() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "textbook", 1);
    produce(&bootstrap, &topic, 0, &numbered(0, 1000));
    let factory = kafka(&bootstrap, &topic, &[EARLIEST]);
    for parallelism in [1, 2] {
        let split = format!("{topic}-0");
        let owner = factory.owner(&split, parallelism).0;
        let mut reader = Reader::open(&factory, owner, parallelism, None).unwrap();
        assert_eq!(read(&mut reader, 1000), range(0, 1000));
        let stored = reader.source.snapshot().unwrap();
        let expected = serde_json::json!({"topic": topic, "partition": 0, "offset": 1000});
        assert_eq!(stored, [SplitState { split: split.clone(), state: expected }]);
        if parallelism == 2 {
            let mut other = Reader::open(&factory, 1 - owner, 2, None).unwrap();
            assert!(other.is_quiet(Duration::from_millis(300)), "a subtask without a split reads nothing");
            assert_eq!(other.source.snapshot().unwrap(), []);
        }
        // The record after the barrier is the first that a restore reads, whoever restores.
        let next = end_offset(&bootstrap, &topic, 0);
        produce(&bootstrap, &topic, 0, &numbered(usize::try_from(next).unwrap(), 3));
        let mut again = Reader::open(&factory, 0, 1, Some(&stored)).unwrap();
        assert_eq!(read(&mut again, 3), range(1000, 3));
    }
}

#[test]
fn an_idle_source_sleeps_and_is_woken() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "idle", 2);
    let mut reader = Reader::open(&kafka(&bootstrap, &topic, &[EARLIEST]), 0, 1, None).unwrap();
    assert!(reader.is_quiet(Duration::from_millis(700)));
    let started = Instant::now();
    produce(&bootstrap, &topic, 1, &numbered(5, 1));
    assert_eq!(read(&mut reader, 1), [5]);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let polled = Instant::now();
    assert!(matches!(reader.source.poll(1000).unwrap(), SourcePoll::Pending));
    assert!(polled.elapsed() < Duration::from_millis(50), "a poll of nothing took {:?}", polled.elapsed());
}

#[test]
fn each_startup_mode_begins_where_it_says() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "startup", 1);
    produce(&bootstrap, &topic, 0, &numbered(0, 10));
    std::thread::sleep(Duration::from_millis(20));
    let clock = std::process::Command::new("date").arg("+%s%3N").output().unwrap();
    let middle = String::from_utf8(clock.stdout).unwrap().trim().to_owned();
    std::thread::sleep(Duration::from_millis(20));
    produce(&bootstrap, &topic, 0, &numbered(10, 10));

    let mut latest =
        Reader::open(&kafka(&bootstrap, &topic, &[("scan.startup.mode", "latest-offset")]), 0, 1, None).unwrap();
    let stored = latest.source.snapshot().unwrap();
    assert_eq!(stored[0].state["offset"], 20, "known before anything was read");
    produce(&bootstrap, &topic, 0, &numbered(20, 1));
    assert_eq!(read(&mut latest, 1), [20]);

    let to_end = |options: &[(&str, &str)]| {
        let options = [&[TO_LATEST], options].concat();
        read_to_end(&mut Reader::open(&kafka(&bootstrap, &topic, &options), 0, 1, None).unwrap())
    };
    assert_eq!(to_end(&[EARLIEST]), range(0, 21));
    assert_eq!(
        to_end(&[("scan.startup.mode", "timestamp"), ("scan.startup.timestamp-millis", &middle)]),
        range(10, 11)
    );
    assert_eq!(
        to_end(&[("scan.startup.mode", "timestamp"), ("scan.startup.timestamp-millis", "99999999999999")]),
        range(0, 0)
    );
    let specific = ("scan.startup.mode", "specific-offsets");
    assert_eq!(to_end(&[specific, ("scan.startup.specific-offsets", "partition:0,offset:15")]), range(15, 6));
    let beyond = kafka(&bootstrap, &topic, &[specific, ("scan.startup.specific-offsets", "partition:0,offset:500")]);
    let refused = error(Reader::open(&beyond, 0, 1, None)).to_string();
    assert!(refused.contains("500") && refused.contains("0 to 21"), "{refused}");
}

#[test]
fn the_group_sees_what_checkpoints_hold_and_another_job_begins_there() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "group", 1);
    produce(&bootstrap, &topic, 0, &numbered(0, 30));
    let group = unique("group");
    let group_id = ("properties.group.id", group.as_str());

    let refused = error(Reader::open(&kafka(&bootstrap, &topic, &[group_id]), 0, 1, None));
    assert!(matches!(refused, TaskError::BadProgram(_)), "{refused:?}");
    assert!(refused.to_string().contains("'properties.auto.offset.reset'"), "{refused}");

    let reset = ("properties.auto.offset.reset", "earliest");
    let mut first = Reader::open(&kafka(&bootstrap, &topic, &[group_id, reset]), 0, 1, None).unwrap();
    assert_eq!(read(&mut first, 12), range(0, 12));
    let stored = first.source.snapshot().unwrap();
    first.source.checkpoint_completed(CheckpointId(1));
    assert_eq!(committed(&bootstrap, &group, &topic, 0), 12);

    let mut second = Reader::open(&kafka(&bootstrap, &topic, &[group_id, TO_LATEST]), 0, 1, None).unwrap();
    assert_eq!(read_to_end(&mut second), range(12, 18));
    // State goes before the group's offset.
    let mut third = Reader::open(&kafka(&bootstrap, &topic, &[group_id, EARLIEST]), 0, 1, Some(&stored)).unwrap();
    assert_eq!(read(&mut third, 18), range(12, 18));

    // Another source ends where the group stands.
    let bounded = kafka(&bootstrap, &topic, &[group_id, EARLIEST, ("scan.bounded.mode", "group-offsets")]);
    assert_eq!(read_to_end(&mut Reader::open(&bounded, 0, 1, None).unwrap()), range(0, 12));
}

#[test]
fn a_bounded_source_ends_where_it_says() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "bounded", 1);
    produce(&bootstrap, &topic, 0, &numbered(0, 5));
    let specific = ("scan.bounded.mode", "specific-offsets");
    let to = |options: &[(&str, &str)]| kafka(&bootstrap, &topic, &[&[EARLIEST], options].concat());
    let three = to(&[specific, ("scan.bounded.specific-offsets", "partition:0,offset:3")]);
    assert_eq!(read_to_end(&mut Reader::open(&three, 0, 1, None).unwrap()), range(0, 3));

    let latest = to(&[TO_LATEST]);
    let mut reader = Reader::open(&latest, 0, 1, None).unwrap();
    assert_eq!(read(&mut reader, 2), range(0, 2));
    let stored = reader.source.snapshot().unwrap();
    assert_eq!(stored[0].state["end"], 5);
    // What comes later does not count, nor does it after a restore.
    produce(&bootstrap, &topic, 0, &numbered(5, 5));
    assert_eq!(read_to_end(&mut reader), range(2, 3));
    let mut restored = Reader::open(&latest, 0, 1, Some(&stored)).unwrap();
    assert_eq!(read_to_end(&mut restored), range(2, 3));
    let finished = restored.source.snapshot().unwrap();
    assert_eq!(read_to_end(&mut Reader::open(&latest, 0, 1, Some(&finished)).unwrap()), range(0, 0));

    // An end that lies ahead is waited for.
    let ahead = to(&[specific, ("scan.bounded.specific-offsets", "partition:0,offset:12")]);
    let mut reader = Reader::open(&ahead, 0, 1, None).unwrap();
    assert_eq!(read(&mut reader, 10), range(0, 10));
    assert!(reader.is_quiet(Duration::from_millis(700)));
    produce(&bootstrap, &topic, 0, &numbered(10, 4));
    assert_eq!(read_to_end(&mut reader), range(10, 2));
}

#[test]
fn offsets_without_records_do_not_keep_a_bounded_source_from_ending() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "markers", 1);
    produce_transaction(&bootstrap, &topic, 0, &numbered(0, 4));
    assert_eq!(end_offset(&bootstrap, &topic, 0), 5, "four records and a marker");
    let factory = kafka(&bootstrap, &topic, &[EARLIEST, TO_LATEST]);
    let mut reader = Reader::open(&factory, 0, 1, None).unwrap();
    assert_eq!(read_to_end(&mut reader), range(0, 4));
    assert_eq!(reader.source.snapshot().unwrap()[0].state["offset"], 5);

    // The same where the end lay ahead when reading began, and is a marker when it comes.
    let ahead = [
        EARLIEST,
        ("scan.bounded.mode", "specific-offsets"),
        ("scan.bounded.specific-offsets", "partition:0,offset:8"),
    ];
    let mut reader = Reader::open(&kafka(&bootstrap, &topic, &ahead), 0, 1, None).unwrap();
    assert_eq!(read(&mut reader, 4), range(0, 4));
    assert!(reader.is_quiet(Duration::from_millis(700)));
    produce_transaction(&bootstrap, &topic, 0, &numbered(5, 2));
    assert_eq!(read_to_end(&mut reader), range(5, 2));
}

#[test]
fn every_partition_is_read_once_under_any_parallelism() {
    let Some(bootstrap) = bootstrap() else { return };
    let topics = [create_topic(&bootstrap, "many", 4), create_topic(&bootstrap, "more", 3)];
    let mut expected = Vec::new();
    for (number, (topic, partitions)) in topics.iter().zip([4, 3]).enumerate() {
        for partition in 0..partitions {
            let first = number * 10_000 + partition * 1000;
            produce(&bootstrap, topic, i32::try_from(partition).unwrap(), &numbered(first, 500));
            expected.extend(range(i64::try_from(first).unwrap(), 500));
        }
    }
    let factory = kafka(&bootstrap, &topics.join(";"), &[EARLIEST, TO_LATEST]);
    for parallelisms in [[1, 3], [3, 1], [2, 9]] {
        let (mut numbers, mut stored) = (Vec::new(), Vec::new());
        for subtask in 0..parallelisms[0] {
            let mut reader = Reader::open(&factory, subtask, parallelisms[0], None).unwrap();
            numbers.extend(read(&mut reader, 400));
            stored.extend(reader.source.snapshot().unwrap());
        }
        assert_eq!(stored.len(), 7);
        for subtask in 0..parallelisms[1] {
            let mut reader = Reader::open(&factory, subtask, parallelisms[1], Some(&stored)).unwrap();
            numbers.extend(read_to_end(&mut reader));
        }
        numbers.sort_unstable();
        assert_eq!(numbers, expected, "{parallelisms:?}");
    }
}

#[test]
fn new_partitions_are_found_while_it_runs_and_at_a_restore() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "growing", 1);
    let interval = ("scan.topic-partition-discovery.interval", "300 ms");
    // What is new is read from its beginning, whatever the startup mode.
    let factory = kafka(&bootstrap, &topic, &[("scan.startup.mode", "latest-offset"), interval]);
    let mut reader = Reader::open(&factory, 0, 1, None).unwrap();
    let stored = reader.source.snapshot().unwrap();
    grow_topic(&bootstrap, &topic, 2);
    produce(&bootstrap, &topic, 1, &numbered(0, 7));
    assert_eq!(read(&mut reader, 7), range(0, 7));
    assert_eq!(reader.source.snapshot().unwrap().len(), 2);
    let mut restored = Reader::open(&factory, 0, 1, Some(&stored)).unwrap();
    assert_eq!(read(&mut restored, 7), range(0, 7));
}

#[test]
fn a_pattern_reads_the_topics_that_match_and_those_that_come() {
    let Some(bootstrap) = bootstrap() else { return };
    let name = unique("matched");
    let options = [
        ("connector", "kafka"),
        ("topic-pattern", &*format!("{name}-(a|b)[0-9]*-.*")),
        ("properties.bootstrap.servers", &bootstrap),
        ("format", "json"),
        EARLIEST,
    ];
    let of = |more: &[(&str, &str)]| source(&table(&schema(), &[], &[&options, more].concat()));
    let empty = error(Reader::open(&of(&[TO_LATEST]), 0, 1, None));
    assert!(matches!(empty, TaskError::Unavailable(_)), "{empty:?}");
    assert!(empty.to_string().contains(&format!("'{name}-(a|b)[0-9]*-.*'")), "{empty}");

    let factory = of(&[("scan.topic-partition-discovery.interval", "300 ms")]);
    let mut reader = Reader::open(&factory, 0, 1, None).unwrap();
    assert_eq!(reader.source.snapshot().unwrap().len(), 0);
    for (number, which) in ["a1", "b", "c"].iter().enumerate() {
        let topic = create_topic(&bootstrap, &format!("{name}-{which}"), 1);
        produce(&bootstrap, &topic, 0, &numbered(number * 10, 5));
    }
    let mut found = read(&mut reader, 10);
    found.sort_unstable();
    assert_eq!(found, [range(0, 5), range(10, 5)].concat());
    let stored = reader.source.snapshot().unwrap();
    assert_eq!(stored.len(), 2);
    let topic = create_topic(&bootstrap, &format!("{name}-b2"), 1);
    produce(&bootstrap, &topic, 0, &numbered(100, 3));
    let mut restored = Reader::open(&factory, 0, 1, Some(&stored)).unwrap();
    assert_eq!(read(&mut restored, 3), range(100, 3));
    let mut bounded = Reader::open(&of(&[TO_LATEST]), 0, 1, None).unwrap();
    assert_eq!(read_to_end(&mut bounded).len(), 13);
}

#[test]
fn bad_messages_are_named_or_skipped_and_tombstones_are_no_rows() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "bad", 1);
    produce(&bootstrap, &topic, 0, &numbered(0, 3));
    produce(&bootstrap, &topic, 0, &[None, Some("{\"n\": nonsense}".to_owned()), None]);
    produce(&bootstrap, &topic, 0, &numbered(3, 2));
    let mut reader = Reader::open(&kafka(&bootstrap, &topic, &[EARLIEST]), 0, 1, None).unwrap();
    let failed = loop {
        match reader.next(1000) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a bad message was passed over"),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, TaskError::BadData(_)), "{failed:?}");
    for part in ["offset 4", &topic, "partition 0", "nonsense", "json.ignore-parse-errors"] {
        assert!(failed.to_string().contains(part), "'{part}' is not in: {failed}");
    }
    let skipping = kafka(&bootstrap, &topic, &[EARLIEST, TO_LATEST, ("json.ignore-parse-errors", "true")]);
    let mut reader = Reader::open(&skipping, 0, 1, None).unwrap();
    assert_eq!(read_to_end(&mut reader), range(0, 5));
    assert_eq!(reader.source.snapshot().unwrap()[0].state["offset"], 8);
}

#[test]
fn what_is_missing_is_named() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = unique("missing");
    let refused = error(Reader::open(&kafka(&bootstrap, &topic, &[EARLIEST]), 0, 1, None));
    assert!(matches!(refused, TaskError::Unavailable(_)), "{refused:?}");
    for part in [&topic, &bootstrap, "does not exist", "Create it"] {
        assert!(refused.to_string().contains(part), "'{part}' is not in: {refused}");
    }

    let started = Instant::now();
    let refused = error(Reader::open(&kafka("127.0.0.1:1", &topic, &[EARLIEST]), 0, 1, None));
    assert!(matches!(refused, TaskError::Unavailable(_)), "{refused:?}");
    for part in ["127.0.0.1:1", "properties.bootstrap.servers", "refused"] {
        assert!(refused.to_string().contains(part), "'{part}' is not in: {refused}");
    }
    assert!((8..20).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
}

#[test]
fn a_position_that_is_gone_fails_and_is_never_reset() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "gone", 1);
    produce(&bootstrap, &topic, 0, &numbered(0, 20));
    let factory = kafka(&bootstrap, &topic, &[EARLIEST]);
    let mut reader = Reader::open(&factory, 0, 1, None).unwrap();
    read(&mut reader, 5);
    let stored = reader.source.snapshot().unwrap();
    delete_records(&bootstrap, &topic, 9);
    let refused = error(Reader::open(&factory, 0, 1, Some(&stored)));
    assert!(matches!(refused, TaskError::IncompatibleState(_)), "{refused:?}");
    for part in ["offset 5", "9 to 20", &topic] {
        assert!(refused.to_string().contains(part), "'{part}' is not in: {refused}");
    }
    let other = kafka(&bootstrap, &create_topic(&bootstrap, "other", 1), &[EARLIEST]);
    let refused = error(Reader::open(&other, 0, 1, Some(&stored)));
    assert!(refused.to_string().contains(&topic), "{refused}");
}

#[test]
fn the_source_says_how_many_records_of_each_partition_it_has_not_read() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "lag", 2);
    produce(&bootstrap, &topic, 0, &numbered(0, 500));
    produce(&bootstrap, &topic, 1, &numbered(500, 20));
    let mut reader = Reader::open(&kafka(&bootstrap, &topic, &[EARLIEST]), 0, 1, None).unwrap();
    assert_eq!(reader.source.lag(), [], "nothing is known yet");
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut read = 0;
    loop {
        // One row each time, so that rows are left when the brokers' ends become known.
        if let SourcePoll::Batch(batch) = reader.source.poll(1).unwrap() {
            read += batch.len() as u64;
        }
        let lag = reader.source.lag();
        if lag.len() == 2 {
            assert_eq!(lag.iter().map(|split| split.records).sum::<u64>() + read, 520, "{lag:?}");
            assert!(lag.iter().all(|split| split.split.starts_with(&topic)), "{lag:?}");
            break;
        }
        assert!(Instant::now() < deadline, "the ends of both partitions never became known: {lag:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
