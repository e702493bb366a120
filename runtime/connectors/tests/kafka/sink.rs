//! The sinks: what arrives, where, and that a flush waits for it.

use crate::broker::{Record, bootstrap, create_topic, read_all, unique};
use crate::task::{Writer, table};
use arrow::array::{Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt8Array};
use arrow::datatypes::SchemaRef;
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::error::TaskError;
use std::collections::BTreeMap;
use std::sync::Arc;

fn batch(rows: &[(RowKind, &str, i64)]) -> Batch {
    let apps: StringArray = rows.iter().map(|(_, app, _)| Some(*app)).collect();
    let counts: Int64Array = rows.iter().map(|(.., count)| Some(*count)).collect();
    let times = TimestampMillisecondArray::from(vec![1_704_110_400_000; rows.len()]);
    let rows_batch = RecordBatch::try_from_iter_with_nullable([
        ("app_id", Arc::new(apps) as Arc<dyn Array>, true),
        ("pv", Arc::new(counts), true),
        ("ts", Arc::new(times), true),
    ])
    .unwrap();
    let kinds = UInt8Array::from_iter_values(rows.iter().map(|(kind, ..)| *kind as u8));
    Batch { rows: rows_batch, kinds: Some(kinds) }
}

fn schema() -> SchemaRef {
    batch(&[]).rows.schema()
}

fn upsert(bootstrap: &str, topic: &str, options: &[(&str, &str)]) -> Result<Writer, TaskError> {
    let mut all = vec![
        ("connector", "upsert-kafka"),
        ("topic", topic),
        ("properties.bootstrap.servers", bootstrap),
        ("key.format", "json"),
        ("value.format", "json"),
    ];
    all.extend_from_slice(options);
    Writer::open(&table(&schema(), &[0], &all))
}

/// The last value of each key.
fn materialise(records: &[Record]) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for (_, key, value) in records {
        match value {
            Some(value) => values.insert(key.clone().unwrap(), value.clone()),
            None => values.remove(key.as_ref().unwrap()),
        };
    }
    values
}

/// Murmur2 as Kafka's Java client has it (`Utils.murmur2`).
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ u32::try_from(data.len()).unwrap();
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().unwrap()).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (position, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * position);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[test]
fn the_test_itself_knows_murmur2() {
    // Vectors of Kafka's own UtilsTest.
    for (text, hash) in [("21", -973_932_308_i32), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)]
    {
        assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
    }
}

#[test]
fn the_last_value_of_a_key_stands_and_a_delete_removes_it() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "pv", 5);
    let mut writer = upsert(&bootstrap, &topic, &[]).unwrap();
    writer.write(batch(&[
        (RowKind::Insert, "app1", 1),
        (RowKind::Insert, "app2", 1),
        (RowKind::UpdateBefore, "app1", 1),
        (RowKind::UpdateAfter, "app1", 2),
        (RowKind::Insert, "app3", 7),
    ]));
    writer.write(batch(&[(RowKind::Delete, "app2", 1)]));
    writer.flush();
    let records = read_all(&bootstrap, &topic);
    assert_eq!(records.len(), 5, "no -U: {records:?}");
    let expected: BTreeMap<String, String> = [("app1", 2), ("app3", 7)]
        .map(|(app, count)| {
            let value = format!(r#"{{"app_id":"{app}","pv":{count},"ts":"2024-01-01 12:00:00"}}"#);
            (format!(r#"{{"app_id":"{app}"}}"#), value)
        })
        .into();
    assert_eq!(materialise(&records), expected);
    for (partition, key, _) in &records {
        let hash = murmur2(key.as_ref().unwrap().as_bytes()) & 0x7fff_ffff;
        assert_eq!(*partition, i32::try_from(hash % 5).unwrap(), "{key:?}");
    }
}

#[test]
fn the_key_can_be_left_out_of_the_value() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "except", 1);
    let options = [("value.fields-include", "EXCEPT_KEY"), ("value.json.timestamp-format.standard", "ISO-8601")];
    let mut writer = upsert(&bootstrap, &topic, &options).unwrap();
    writer.write(batch(&[(RowKind::Insert, "app1", 1)]));
    writer.flush();
    let expected =
        (0, Some(r#"{"app_id":"app1"}"#.to_owned()), Some(r#"{"pv":1,"ts":"2024-01-01T12:00:00"}"#.to_owned()));
    assert_eq!(read_all(&bootstrap, &topic), [expected]);
}

#[test]
fn a_flood_waits_for_room_and_all_of_it_arrives_in_order() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "flood", 3);
    let room = [("properties.queue.buffering.max.messages", "1000"), ("properties.linger.ms", "1")];
    let mut writer = upsert(&bootstrap, &topic, &room).unwrap();
    let apps: Vec<String> = (0..500).map(|number| format!("app{number}")).collect();
    for round in 0..100 {
        let rows: Vec<_> = apps.iter().map(|app| (RowKind::UpdateAfter, app.as_str(), round)).collect();
        writer.write(batch(&rows));
    }
    writer.flush();
    let records = read_all(&bootstrap, &topic);
    assert_eq!(records.len(), 50_000);
    let values = materialise(&records);
    assert_eq!(values.len(), 500);
    assert!(values.values().all(|value| value.contains(r#""pv":99,"#)), "{values:?}");
}

#[test]
fn the_kafka_sink_appends_rows_without_keys() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "append", 1);
    let options = [
        ("connector", "kafka"),
        ("topic", topic.as_str()),
        ("properties.bootstrap.servers", bootstrap.as_str()),
        ("format", "json"),
    ];
    let mut writer = Writer::open(&table(&schema(), &[], &options)).unwrap();
    writer.write(batch(&[(RowKind::Insert, "app1", 1), (RowKind::Insert, "app1", 1)]));
    writer.flush();
    let value = Some(r#"{"app_id":"app1","pv":1,"ts":"2024-01-01 12:00:00"}"#.to_owned());
    assert_eq!(read_all(&bootstrap, &topic), [(0, None, value.clone()), (0, None, value)]);
}

#[test]
fn a_missing_topic_is_named() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = unique("nowhere");
    let refused = upsert(&bootstrap, &topic, &[]).err().expect("refused");
    assert!(matches!(refused, TaskError::Unavailable(_)), "{refused:?}");
    assert!(refused.to_string().contains(&topic) && refused.to_string().contains(&bootstrap), "{refused}");
}

#[test]
fn a_record_that_the_broker_refuses_fails_the_flush() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "large", 1);
    // The client lets it pass, the broker's limit is about 1 MB.
    let large = "x".repeat(3_000_000);
    let mut writer = upsert(&bootstrap, &topic, &[("properties.max.request.size", "10000000")]).unwrap();
    // The answer may be there before the row was counted as written.
    let mut written = writer.sink.write(batch(&[(RowKind::Insert, &large, 1)]));
    let failed = loop {
        match written.and_then(|()| writer.sink.flush()) {
            Ok(true) => panic!("the flush passed over a lost row"),
            Ok(false) => std::thread::sleep(std::time::Duration::from_millis(10)),
            Err(error) => break error,
        }
        written = Ok(());
    };
    assert!(matches!(failed, TaskError::External(_)), "{failed:?}");
    assert!(failed.to_string().contains(&topic), "{failed}");
}

/// Rows linger at the client for longer than the test takes, as if no broker answered.
#[test]
fn without_a_guarantee_no_checkpoint_waits_for_rows_and_they_can_be_lost() {
    let Some(bootstrap) = bootstrap() else { return };
    let lingers = ("properties.linger.ms", "60000");
    let begun = |guarantee: &str| {
        let topic = create_topic(&bootstrap, "guarantee", 1);
        let options = [lingers, ("sink.delivery-guarantee", guarantee)];
        let mut writer = upsert(&bootstrap, &topic, &options).unwrap();
        writer.write(batch(&[(RowKind::Insert, "app1", 1)]));
        (topic, writer)
    };
    let (_, mut waiting) = begun("at-least-once");
    assert!(!waiting.sink.flush().unwrap(), "its checkpoint waits");

    // A process that is killed behind the checkpoint takes them along.
    let (topic, mut killed) = begun("none");
    assert!(killed.sink.flush().unwrap());
    std::mem::forget(killed);
    assert_eq!(read_all(&bootstrap, &topic), []);

    // The end of all input waits for them; one that is stopped sends them.
    let (topic, mut ended) = begun("none");
    assert!(!ended.sink.finish().unwrap());
    assert!(ended.sink.flush().unwrap());
    drop(ended);
    assert_eq!(read_all(&bootstrap, &topic).len(), 1);
}

/// More than the client has room for is written behind the last checkpoint, and the task ends.
#[test]
fn without_a_guarantee_the_end_of_a_task_sends_its_backlog_too() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = create_topic(&bootstrap, "backlog", 1);
    let options = [("sink.delivery-guarantee", "none"), ("properties.queue.buffering.max.messages", "1000")];
    let mut writer = upsert(&bootstrap, &topic, &options).unwrap();
    let rows: Vec<_> = (0..1_500).map(|number| (RowKind::Insert, "app1", number)).collect();
    for _ in 0..2 {
        writer.sink.write(batch(&rows)).unwrap();
    }
    assert!(writer.sink.flush().unwrap(), "its checkpoint waits for nothing");
    drop(writer);
    assert_eq!(read_all(&bootstrap, &topic).len(), 3_000);
}
