//! Each limit by a spec that breaks it and nothing else.

use super::*;
use crate::parse_manifest;
use serde_json::{Value, json};

fn spec_with(changes: &[(&str, Value)]) -> StreamJobSpec {
    let mut spec = json!({
        "program": {"sql": "INSERT INTO a SELECT * FROM b;"},
        "checkpointing": {"interval": "2s", "storage": "s3://bucket/path"},
    });
    for (pointer, value) in changes {
        let (parent, name) = pointer.rsplit_once('/').expect("is a pointer");
        let parent = spec.pointer_mut(parent).expect("the parent is there");
        parent.as_object_mut().expect("is an object").insert(name.to_owned(), value.clone());
    }
    let manifest = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "job"}, "spec": spec,
    });
    parse_manifest(&manifest.to_string()).expect("reads").spec
}

#[track_caller]
fn assert_refused(changes: &[(&str, Value)], field: &str, message: &str) {
    let problems = validate(&spec_with(changes));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].field, field);
    assert!(problems[0].message.contains(message), "{}", problems[0]);
}

#[test]
fn a_right_spec_has_no_problems() {
    assert_eq!(validate(&spec_with(&[])), []);
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"tolerations": [], "containers": []}});
    assert_eq!(validate(&spec_with(&[("/jobManager", json!({"podTemplate": template}))])), []);
}

#[test]
fn exclusive_options() {
    assert_refused(&[("/program/sql", Value::Null)], "spec.program", "names no program");
    let from = json!({"configMapKeyRef": {"name": "a", "key": "b"}});
    assert_refused(&[("/program/sqlFrom", from)], "spec.program", "exclude each other");
    assert_refused(&[("/program/sql", json!(" \n"))], "spec.program.sql", "is empty");
    let both = json!({"fixedDelay": {}, "none": {}});
    assert_refused(&[("/restartStrategy", both)], "spec.restartStrategy", "sets fixedDelay and none");
    assert_refused(&[("/restartStrategy", json!({}))], "spec.restartStrategy", "is empty");
}

#[test]
fn ranges() {
    assert_refused(&[("/parallelism", json!(0))], "spec.parallelism", "at least 1");
    assert_refused(&[("/parallelism", json!(200))], "spec.parallelism", "is 200 and greater than maxParallelism");
    assert_refused(&[("/maxParallelism", json!(32_769))], "spec.maxParallelism", "from 1 to 32768");
    assert_refused(&[("/taskManager", json!({"slots": 0}))], "spec.taskManager.slots", "at least 1");
    let field = "spec.checkpointing.interval";
    assert_refused(&[("/checkpointing/interval", json!("9ms"))], field, "is 9ms, must be at least 10ms");
    assert_refused(&[("/checkpointing/timeout", json!("0s"))], "spec.checkpointing.timeout", "at least 10ms");
    let field = "spec.checkpointing.retained";
    assert_refused(&[("/checkpointing/retained", json!(0))], field, "is 0, must be at least 1");
    assert_refused(&[("/checkpointing/retained", json!(65))], field, "is 65, must be at least 1 and at most 64");
    assert_eq!(validate(&spec_with(&[("/checkpointing/retained", json!(64))])), []);
    assert_refused(&[("/checkpointing/maxConcurrent", json!(0))], "spec.checkpointing.maxConcurrent", "at least 1");
    let wide = json!({"failureRate": {"maxFailures": 64}});
    assert_refused(&[("/restartStrategy", wide)], "spec.restartStrategy", "at most 63 failures");
    let field = "spec.restartStrategy.failureRate.interval";
    assert_refused(&[("/restartStrategy", json!({"failureRate": {"interval": "0s"}}))], field, "longer than 0s");
}

#[test]
fn places_of_storage() {
    let field = "spec.checkpointing.storage";
    for wrong in ["bucket/path", "s3:///path", "file://relative", "jobmanager", "https://host/bucket", ""] {
        assert_refused(&[("/checkpointing/storage", json!(wrong))], field, "s3://bucket/path");
    }
    for right in ["s3://bucket", "s3://bucket/", "file:///var/checkpoints", "JobManager"] {
        assert_eq!(validate(&spec_with(&[("/checkpointing/storage", json!(right))])), [], "{right}");
    }
    let restore = json!({"from": "chk-50"});
    assert_refused(&[("/restore", restore)], "spec.restore.from", "a checkpoint, a savepoint or a job directory");
    let options = [("/checkpointing/storage", json!("JobManager")), ("/checkpointing/storageOptions", json!({}))];
    assert_refused(&options, "spec.checkpointing.storageOptions", "s3:// storage only");
    let options = json!({"endpoint": "minio:9000"});
    let field = "spec.checkpointing.storageOptions.endpoint";
    assert_refused(&[("/checkpointing/storageOptions", options)], field, "http://");
}

#[test]
fn contradictions_about_alignment_name_both_fields() {
    let of = |options: Value| validate(&spec_with(&[("/checkpointing", options)]));
    let refused = |options: Value, field: &str, words: &[&str]| {
        let problems = of(options);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].field, field);
        words.iter().for_each(|word| assert!(problems[0].message.contains(word), "{}", problems[0]));
    };
    let field = "spec.checkpointing.unaligned";
    let both = json!({"interval": "1s", "unaligned": true, "mode": "AtLeastOnce"});
    refused(both, field, &["AtLeastOnce", "set mode to ExactlyOnce, or unaligned to false"]);
    let many = json!({"interval": "1s", "unaligned": true, "maxConcurrent": 3});
    refused(many, field, &["maxConcurrent is 3", "set maxConcurrent to 1"]);
    let paused = json!({"interval": "1s", "unaligned": true, "maxConcurrent": 3, "minPause": "1s"});
    assert_eq!(of(paused), [], "its effective maxConcurrent is 1");
    let alone = json!({"interval": "1s", "alignmentTimeout": "1s"});
    refused(alone, "spec.checkpointing.alignmentTimeout", &["unaligned is false", "set unaligned to true"]);
    assert_eq!(of(json!({"interval": "1s", "alignmentTimeout": "1s", "unaligned": true})), []);
    assert_eq!(of(json!({"interval": "1s", "mode": "AtLeastOnce", "maxConcurrent": 3})), []);
}

#[test]
fn a_pause_that_overrules_max_concurrent_is_warned_of() {
    let spec = |options: Value| spec_with(&[("/checkpointing", options)]);
    let both = spec(json!({"interval": "1s", "minPause": "1s", "maxConcurrent": 2}));
    assert_eq!(validate(&both), []);
    let warnings = warnings(&both);
    assert!(warnings.len() == 1 && warnings[0].message.contains("maxConcurrent is 2, but minPause 1s"), "{warnings:?}");
    assert_eq!(super::warnings(&spec(json!({"interval": "1s", "minPause": "1s"}))), []);
}

#[test]
fn savepoints_may_lie_elsewhere() {
    let options = json!({
        "interval": "1s", "storage": "file:///checkpoints", "savepointStorage": "s3://savepoints",
        "storageOptions": {"pathStyle": true},
    });
    assert_eq!(validate(&spec_with(&[("/checkpointing", options)])), []);
    let field = "spec.checkpointing.savepointStorage";
    assert_refused(&[("/checkpointing/savepointStorage", json!("here"))], field, "where savepoints are kept");
}

#[test]
fn pod_templates_are_read_strictly() {
    let unknown = json!({"podTemplate": {"spec": {"containers": [{"name": "jobmanager", "imag": "x"}]}}});
    let field = "spec.jobManager.podTemplate.spec.containers[0].imag";
    assert_refused(&[("/jobManager", unknown)], field, "not a field");
    let wrong = json!({"podTemplate": {"spec": {"containers": [], "hostNetwork": "yes"}}});
    let field = "spec.taskManager.podTemplate.spec.hostNetwork";
    assert_refused(&[("/taskManager", wrong)], field, "boolean");
    let quantity = json!({"resources": {"limits": {"memory": "lots"}}});
    assert_refused(&[("/taskManager", quantity)], "spec.taskManager.resources.limits.memory", "not a quantity");
}

#[test]
fn quantities() {
    for right in ["1", "0.5", "500m", "2Gi", "1e3", "1E", ".5", "128974848"] {
        assert!(is_quantity(right), "{right}");
    }
    for wrong in ["", "Gi", "1 Gi", "1gi", "-1", "1e", "1.2.3"] {
        assert!(!is_quantity(wrong), "{wrong}");
    }
}

#[test]
fn names() {
    for right in ["a", "page-views-2", &"a".repeat(40)] {
        assert_eq!(validate_name(right), Ok(()), "{right}");
    }
    for wrong in ["", "2a", "-a", "a-", "A", "a_b", "a.b", &"a".repeat(41)] {
        assert!(validate_name(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_deadline_that_no_job_can_keep() {
    let deadline = |text: &str| ("/stability", json!({"checkpoints": 30, "duration": "20s", "deadline": text}));
    let words = "is 1m, but stability.duration and stability.checkpoints at checkpointing.interval take 1m even";
    assert_refused(&[deadline("1m")], "spec.stability.deadline", words);
    assert_eq!(validate(&spec_with(&[deadline("61s")])), []);
    let without = [("/checkpointing", Value::Null), deadline("21s")];
    assert_eq!(validate(&spec_with(&without)), [], "no checkpoints are waited for");
}

#[test]
fn exponential_delays() {
    let wrong = json!({"exponentialDelay": {"maxBackoff": "100ms"}});
    assert_refused(&[("/restartStrategy", wrong)], "spec.restartStrategy", "shorter than initialBackoff, which is 1s");
    let both = json!({"exponentialDelay": {}, "none": {}});
    assert_refused(&[("/restartStrategy", both)], "spec.restartStrategy", "sets exponentialDelay and none");
}
