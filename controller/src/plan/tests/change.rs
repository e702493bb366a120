//! The class of every field's change, as docs/operator.md tells it.

use super::job;
use crate::plan::change::{Change, classify};
use serde_json::{Value, json};
use sluice_crds::{StreamJob, StreamJobSpec};

fn with(changes: &[(&str, Value)]) -> StreamJobSpec {
    let mut written = serde_json::to_value(job()).expect("is JSON");
    for (field, value) in changes {
        let (parent, name) = field.rsplit_once('/').unwrap_or(("", field));
        let parent = if parent.is_empty() { "/spec".to_owned() } else { format!("/spec/{parent}") };
        let parent = written.pointer_mut(&parent).unwrap_or_else(|| panic!("no {parent}"));
        parent.as_object_mut().expect("is an object").insert((*name).to_owned(), value.clone());
    }
    serde_json::from_value::<StreamJob>(written).unwrap_or_else(|error| panic!("{changes:?}: {error}")).spec
}

#[test]
fn each_field_has_its_class() {
    let template = json!({"metadata": {"labels": {"a": "b"}}});
    let cases = [
        ("state", json!("Suspended"), Change::Nothing),
        ("upgrade", json!({"mode": "LastState", "fallback": "LastState", "maxCheckpointAge": "1m"}), Change::Nothing),
        ("stability", json!({"checkpoints": 3, "duration": "1m", "rollback": false}), Change::Nothing),
        ("deletion", json!({"savepoint": true}), Change::Nothing),
        ("savepoints", json!({"interval": "1h"}), Change::Nothing),
        ("restartStrategy", json!({"none": {}}), Change::InPlace),
        ("imagePullPolicy", json!("Never"), Change::InPlace),
        ("checkpointing/interval", json!("9s"), Change::InPlace),
        ("checkpointing/timeout", json!("9s"), Change::InPlace),
        ("checkpointing/minPause", json!("9s"), Change::InPlace),
        ("checkpointing/maxConcurrent", json!(2), Change::InPlace),
        ("checkpointing/tolerableFailures", json!("Unlimited"), Change::InPlace),
        ("checkpointing/unaligned", json!(true), Change::InPlace),
        ("checkpointing/alignmentTimeout", json!("9s"), Change::InPlace),
        ("checkpointing/retention", json!("DeleteOnCancellation"), Change::InPlace),
        ("checkpointing/retained", json!(3), Change::InPlace),
        ("checkpointing/savepointStorage", json!("s3://other/path"), Change::InPlace),
        ("parallelism", json!(3), Change::Rescale),
        ("taskManager/slots", json!(2), Change::Rescale),
        ("program/sql", json!("INSERT INTO c SELECT * FROM d;"), Change::Upgrade),
        ("image", json!("mine:1"), Change::Upgrade),
        ("maxParallelism", json!(64), Change::Upgrade),
        ("stateBackend", json!("Disk"), Change::Upgrade),
        ("checkpointing/mode", json!("AtLeastOnce"), Change::Upgrade),
        ("checkpointing/storage", json!("s3://other/path"), Change::Upgrade),
        ("checkpointing/storageOptions", json!({"region": "eu-1"}), Change::Upgrade),
        ("checkpointing", Value::Null, Change::Upgrade),
        ("taskManager/heartbeatTimeout", json!("9s"), Change::Upgrade),
        ("taskManager/resources", json!({"limits": {"cpu": "1"}}), Change::Upgrade),
        ("taskManager/podTemplate", template.clone(), Change::Upgrade),
        ("jobManager/resources", json!({"limits": {"cpu": "1"}}), Change::Upgrade),
        ("jobManager/podTemplate", template, Change::Upgrade),
        ("restartNonce", json!(1), Change::Upgrade),
        ("restore", json!({"from": "s3://bucket/chk-1"}), Change::Restore),
    ];
    for (field, value, class) in cases {
        let changed = with(&[(field, value)]);
        assert_eq!(classify(&job().spec, &changed), class, "{field}");
        assert_eq!(classify(&changed, &changed), Change::Nothing, "{field}");
    }
}

#[test]
fn the_highest_class_counts_and_removals_of_nonces_and_restore_are_nothing() {
    let both = with(&[("checkpointing/interval", json!("9s")), ("parallelism", json!(3))]);
    assert_eq!(classify(&job().spec, &both), Change::Rescale);
    let all = with(&[("parallelism", json!(3)), ("image", json!("mine:1"))]);
    assert_eq!(classify(&job().spec, &all), Change::Upgrade);
    let had = with(&[("restartNonce", json!(1)), ("restore", json!({"from": "s3://bucket/chk-1"}))]);
    assert_eq!(classify(&had, &job().spec), Change::Nothing);
    let allows = json!({"from": "s3://bucket/chk-1", "allowNonRestoredState": true});
    assert_eq!(classify(&had, &with(&[("restartNonce", json!(1)), ("restore", allows)])), Change::Nothing);
    let again = json!({"from": "s3://bucket/chk-1", "nonce": 2});
    assert_eq!(classify(&had, &with(&[("restartNonce", json!(1)), ("restore", again)])), Change::Restore);
}

/// FLINK-38479: an upgrade of the operator upgraded unchanged jobs. A manifest that an older operator has frozen, before
/// it knew the fields that have defaults now, is read as what it always meant.
#[test]
fn fields_that_a_later_operator_adds_with_a_default_change_nothing() {
    let mut older = serde_json::to_value(job()).expect("is JSON");
    let spec = older["spec"].as_object_mut().expect("is an object");
    for field in ["upgrade", "stability", "deletion", "stateBackend", "maxParallelism"] {
        assert!(spec.remove(field).is_some(), "{field} is written with its default");
    }
    spec["checkpointing"].as_object_mut().expect("is an object").remove("retained");
    let older: StreamJob = serde_json::from_value(older).expect("is a StreamJob");
    assert_eq!(classify(&older.spec, &job().spec), Change::Nothing);
}
