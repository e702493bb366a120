//! The CEL rules as the API server would evaluate them: each refuses what its message says, and nothing else does.

use super::*;
use cel::objects::{Key, Map};
use cel::{Context, Env};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// As the API server sees JSON: whole numbers are ints.
fn cel_value(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| cel::Value::Float(number.as_f64().expect("is a number")), cel::Value::Int)
        }
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => cel::Value::List(Arc::new(items.iter().map(cel_value).collect())),
        Value::Object(fields) => {
            let fields: HashMap<Key, cel::Value> =
                fields.iter().map(|(name, value)| (name.as_str().into(), cel_value(value))).collect();
            cel::Value::Map(Map::from(fields))
        }
    }
}

/// Fills in defaults, as the API server does before it evaluates rules.
fn set_defaults(schema: &Value, value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if let (None, Some(default)) = (fields.get(name), property.get("default")) {
            fields.insert(name.clone(), default.clone());
        }
        if let Some(value) = fields.get_mut(name) {
            set_defaults(property, value);
        }
    }
}

/// `duration()`, of which rules only compare the results. The API server's knows no days, which would be an error there.
fn nanoseconds(text: Arc<String>) -> Result<i64, cel::ExecutionError> {
    let span = text.parse::<sluice_protocol::TimeSpan>().ok().filter(|_| !text.contains('d'));
    let wrong = || cel::ExecutionError::function_error("duration", format!("'{text}' is no duration"));
    span.and_then(|span| i64::try_from(span.0).ok()?.checked_mul(1_000_000)).ok_or_else(wrong)
}

/// Messages of the rules that refuse `new`, in place of `old`.
fn refusals(schema: &Value, old: Option<&Value>, new: &Value) -> Vec<String> {
    let mut messages = Vec::new();
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = rule["rule"].as_str().expect("has a rule");
        // A rule on a transition is not evaluated without an old value.
        if text.contains("oldSelf") && old.is_none() {
            continue;
        }
        let env = Arc::new(Env::stdlib());
        let program = env.compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut context = Context::with_env(env);
        context.add_function("duration", nanoseconds).expect("a function");
        context.add_variable_from_value("self", cel_value(new));
        if let Some(old) = old {
            context.add_variable_from_value("oldSelf", cel_value(old));
        }
        match program.execute(&context) {
            Ok(cel::Value::Bool(true)) => {}
            Ok(cel::Value::Bool(false)) => messages.push(rule["message"].as_str().expect("has a message").to_owned()),
            other => panic!("{text}: {other:?}"),
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = new.get(name) {
            messages.extend(refusals(property, old.and_then(|old| old.get(name)), value));
        }
    }
    messages
}

fn job(changes: &[(&str, Value)]) -> Value {
    let spec = json!({"program": {"sql": "a"}, "checkpointing": {"interval": "2s", "storage": "s3://b/p"}});
    changed(json!({"metadata": {"name": "pv"}, "spec": spec}), changes)
}

fn savepoint(changes: &[(&str, Value)]) -> Value {
    changed(json!({"metadata": {"name": "pv-1"}, "spec": {"job": "pv"}}), changes)
}

/// Null removes.
fn changed(mut object: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        let (parent, name) = pointer.rsplit_once('/').expect("is a pointer");
        let parent = object.pointer_mut(parent).and_then(Value::as_object_mut).expect("the parent is there");
        match value {
            Value::Null => parent.remove(name),
            value => parent.insert(name.to_owned(), value.clone()),
        };
    }
    object
}

struct Case {
    old: Option<Value>,
    new: Value,
    words: &'static str,
}

fn refused(new: Value, words: &'static str) -> Case {
    Case { old: None, new, words }
}

fn stream_job_cases() -> Vec<Case> {
    let (one, both) = (json!({"fixedDelay": {}}), json!({"fixedDelay": {}, "none": {}}));
    let stored = json!({"interval": "2s", "storageOptions": {}});
    vec![
        refused(job(&[("/metadata/name", json!("a".repeat(41)))]), "metadata.name must be at most 40 characters"),
        refused(job(&[("/metadata/name", json!("1a"))]), "metadata.name must be at most 40 characters"),
        refused(job(&[("/spec/parallelism", json!(200))]), "parallelism must not be greater than maxParallelism"),
        refused(job(&[("/spec/program", json!({}))]), "exactly one of sql and sqlFrom"),
        refused(job(&[("/spec/program/sqlFrom", json!({}))]), "exactly one of sql and sqlFrom"),
        refused(job(&[("/spec/restartStrategy", both)]), "exactly one of fixedDelay, failureRate"),
        refused(
            job(&[("/spec/restartStrategy", one), ("/spec/checkpointing/tolerableFailures", json!("Few"))]),
            "tolerableFailures",
        ),
        refused(job(&[("/spec/checkpointing/tolerableFailures", json!(-1))]), "tolerableFailures"),
        refused(job(&[("/spec/checkpointing", stored)]), "storageOptions apply to s3:// only"),
        refused(
            job(&[("/spec/savepoints", json!({"interval": "1h"})), ("/spec/checkpointing", Value::Null)]),
            "savepoints needs checkpointing",
        ),
        refused(job(&[("/spec/savepoints", json!({}))]), "exactly one of interval and schedule"),
        refused(
            job(&[("/spec/savepoints", json!({"interval": "1h", "schedule": "0 3 * * *"}))]),
            "exactly one of interval and schedule",
        ),
    ]
    .into_iter()
    .chain(span_cases())
    .chain(checkpointing_cases())
    .collect()
}

/// Spans of time that are too short, or in the wrong order.
fn span_cases() -> Vec<Case> {
    let checkpointing = |field: &str, span: &str| job(&[(&format!("/spec/checkpointing/{field}"), json!(span))]);
    let savepoints = |value: Value| job(&[("/spec/savepoints", value)]);
    let strategy = |value: Value| job(&[("/spec/restartStrategy", value)]);
    let exponential = |value: Value| strategy(json!({"exponentialDelay": value}));
    vec![
        refused(checkpointing("interval", "0s"), "checkpointing.interval and checkpointing.timeout"),
        refused(checkpointing("timeout", "0m0s"), "checkpointing.interval and checkpointing.timeout"),
        refused(savepoints(json!({"interval": "0d"})), "savepoints.interval and savepoints.timeout"),
        refused(savepoints(json!({"interval": "1h", "timeout": "0s"})), "savepoints.interval and savepoints.timeout"),
        refused(savepoints(json!({"interval": "1h", "historyLimit": {"age": "0h"}})), "historyLimit.age"),
        refused(strategy(json!({"failureRate": {"interval": "0s"}})), "failureRate.interval"),
        refused(exponential(json!({"initialBackoff": "2m"})), "maxBackoff must not be shorter than initialBackoff"),
        refused(exponential(json!({"maxBackoff": "90m"})), "resetAfter must be longer than maxBackoff"),
        refused(job(&[("/spec/upgrade", json!({"savepointTimeout": "0s"}))]), "upgrade.savepointTimeout"),
        refused(
            job(&[("/spec/stability", json!({"deadline": "1m", "duration": "60s"}))]),
            "stability.deadline must be longer than stability.duration",
        ),
        refused(job(&[("/spec/taskManager", json!({"heartbeatTimeout": "0s"}))]), "heartbeatTimeout"),
    ]
}

fn checkpointing_cases() -> Vec<Case> {
    let with = |value: Value| {
        let mut checkpointing = json!({"interval": "2s", "storage": "s3://b/p"});
        checkpointing.as_object_mut().expect("is one").extend(value.as_object().expect("is one").clone());
        job(&[("/spec/checkpointing", checkpointing)])
    };
    vec![
        refused(with(json!({"unaligned": true, "mode": "AtLeastOnce"})), "unaligned needs mode ExactlyOnce"),
        refused(with(json!({"unaligned": true, "maxConcurrent": 2})), "unaligned needs maxConcurrent 1"),
        refused(with(json!({"alignmentTimeout": "5s"})), "alignmentTimeout needs unaligned"),
        refused(
            job(&[
                ("/spec/checkpointing/storage", json!("JobManager")),
                ("/spec/savepoints", json!({"interval": "1h"})),
            ]),
            "savepoints needs savepoints.directory or checkpointing.savepointStorage",
        ),
    ]
}

fn savepoint_cases() -> Vec<Case> {
    let change = |field: &'static str, value: Value, words| Case {
        old: Some(savepoint(&[])),
        new: savepoint(&[(field, value)]),
        words,
    };
    let checkpoint =
        |field: &'static str, value: Value| savepoint(&[("/spec/kind", json!("Checkpoint")), (field, value)]);
    vec![
        change("/spec/job", json!("other"), "job cannot be changed"),
        change("/spec/kind", json!("Checkpoint"), "kind cannot be changed"),
        change("/spec/directory", json!("s3://b/other"), "directory cannot be changed"),
        change("/spec/timeout", json!("1m"), "timeout and backoffLimit cannot be changed"),
        change("/spec/backoffLimit", json!(9), "timeout and backoffLimit cannot be changed"),
        refused(savepoint(&[("/spec/timeout", json!("0s"))]), "timeout must be longer than 0s"),
        refused(checkpoint("/spec/directory", json!("s3://b/p")), "directory applies to kind Savepoint only"),
        refused(checkpoint("/spec/disposeOnDelete", json!(true)), "disposeOnDelete applies to kind Savepoint only"),
    ]
}

#[test]
fn each_rule_refuses_what_it_says_and_nothing_else() {
    let right = [
        vec![
            job(&[]),
            job(&[("/spec/restartStrategy", json!({"none": {}})), ("/spec/savepoints", json!({"interval": "1h"}))]),
            job(&[
                ("/spec/restartStrategy", json!({"exponentialDelay": {}})),
                ("/spec/stability", json!({"deadline": "1d"})),
            ]),
            // Days are left to the controller.
            job(&[("/spec/restartStrategy", json!({"exponentialDelay": {"maxBackoff": "1d", "resetAfter": "1h"}}))]),
            job(&[(
                "/spec/checkpointing",
                json!({"interval": "2s", "unaligned": true, "alignmentTimeout": "5s", "maxConcurrent": 2, "minPause": "1s",
                       "savepointStorage": "s3://b/p", "storageOptions": {}}),
            )]),
        ],
        vec![savepoint(&[("/spec/directory", json!("s3://b/p")), ("/spec/disposeOnDelete", json!(true))])],
    ];
    for (((mut crd, adjustments), cases), right) in
        all().into_iter().zip([stream_job_cases(), savepoint_cases()]).zip(right)
    {
        let schema = schema_of(&mut crd);
        let with_defaults = |mut value: Value| {
            set_defaults(schema, &mut value);
            value
        };
        for value in right {
            let value = with_defaults(value);
            assert_eq!(refusals(schema, Some(&value), &value), [""; 0], "{value}");
        }
        let mut seen = BTreeSet::new();
        for Case { old, new, words } in cases {
            let new = with_defaults(new);
            let messages = refusals(schema, old.map(with_defaults).as_ref(), &new);
            assert!(messages.len() == 1 && messages[0].contains(words), "{words}: {messages:?} for {new}");
            seen.extend(messages);
        }
        let untested: Vec<_> = adjustments.rules.iter().filter(|rule| !seen.contains(rule.message)).collect();
        assert!(untested.is_empty(), "no case breaks: {:?}", untested.iter().map(|rule| rule.rule).collect::<Vec<_>>());
    }
}

#[test]
fn what_may_be_changed_may_be() {
    let (mut crd, _) = all().into_iter().nth(1).expect("a Savepoint");
    let schema = schema_of(&mut crd);
    let (mut old, mut new) = (savepoint(&[]), savepoint(&[("/spec/disposeOnDelete", json!(true))]));
    set_defaults(schema, &mut old);
    set_defaults(schema, &mut new);
    assert_eq!(refusals(schema, Some(&old), &new), [""; 0]);
}
