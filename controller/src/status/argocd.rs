//! The health scripts for Argo CD (docs/argocd), run by a Lua engine over statuses as the controller writes them.

use super::*;
use crate::facts::Rejection;
use crate::plan::plan;
use crate::plan::tests::{facts, job, running};
use mlua::{Lua, Table};
use serde_json::{Value, json};
use sluice_protocol::options::DesiredState;
use sluice_protocol::status::JobState;

const STREAM_JOB: &str = include_str!("../../../docs/argocd/sluice.dev_StreamJob/health.lua");
const SAVEPOINT: &str = include_str!("../../../docs/argocd/sluice.dev_Savepoint/health.lua");

fn lua_value(lua: &Lua, value: &Value) -> mlua::Value {
    match value {
        Value::Null => mlua::Value::Nil,
        Value::Bool(value) => mlua::Value::Boolean(*value),
        Value::Number(number) => mlua::Value::Number(number.as_f64().expect("is finite")),
        Value::String(text) => mlua::Value::String(lua.create_string(text).expect("is text")),
        Value::Array(items) => {
            let items = items.iter().map(|item| lua_value(lua, item));
            mlua::Value::Table(lua.create_sequence_from(items).expect("is a list"))
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.as_str(), lua_value(lua, value)));
            mlua::Value::Table(lua.create_table_from(fields).expect("is a table"))
        }
    }
}

/// As Argo CD runs it: the object is the global `obj`, the answer is `{status, message}`.
fn health(script: &str, object: &Value) -> (String, String) {
    let lua = Lua::new();
    lua.globals().set("obj", lua_value(&lua, object)).expect("is set");
    let answer: Table = lua.load(script).eval().expect("runs");
    (answer.get("status").expect("has a status"), answer.get("message").expect("has a message"))
}

fn health_of(facts: &Facts) -> (String, String) {
    let mut job = job();
    job.metadata.generation = Some(facts.spec_generation);
    job.status = Some(build_status(&job, facts, &plan(facts)));
    health(STREAM_JOB, &serde_json::to_value(&job).expect("is JSON"))
}

#[track_caller]
fn assert_health(facts: &Facts, status: &str, words: &str) {
    let (found, message) = health_of(facts);
    assert!(found == status && message.contains(words), "{found}: {message}");
}

#[test]
fn a_stream_job_is_as_healthy_as_its_status() {
    let unseen = serde_json::to_value(job()).expect("is JSON");
    assert_eq!(health(STREAM_JOB, &unseen).0, "Progressing");
    assert_health(&facts(), "Progressing", "Starting");
    assert_health(&running(), "Healthy", "Running");
    assert_health(&Facts { desired: DesiredState::Suspended, ..facts() }, "Suspended", "Suspended");
    let message = "spec.parallelism: is 200".to_owned();
    let rejected = Facts { program: Err(Rejection { reason: "InvalidSpec".to_owned(), message }), ..facts() };
    assert_health(&rejected, "Degraded", "Invalid: spec.parallelism");
}

#[test]
fn what_a_running_job_reports_counts() {
    let report = |change: &dyn Fn(&mut sluice_protocol::status::JobStatus)| {
        let mut facts = running();
        change(facts.report.as_mut().expect("there is one"));
        facts
    };
    assert_health(&report(&|report| report.failed_checkpoints_in_a_row = 3), "Degraded", "CheckpointsFail");
    assert_health(&report(&|report| report.state = JobState::Restarting), "Progressing", "Restarting");
    assert_health(&report(&|report| report.state = JobState::Finishing), "Progressing", "Finishing");
}

#[test]
fn a_changed_spec_is_in_progress_until_it_was_seen() {
    let facts = running();
    let mut job = job();
    job.status = Some(build_status(&job, &facts, &plan(&facts)));
    job.metadata.generation = Some(facts.spec_generation + 1);
    let (status, message) = health(STREAM_JOB, &serde_json::to_value(&job).expect("is JSON"));
    assert!(status == "Progressing" && message.contains("changed spec"), "{message}");
}

#[test]
fn ended_jobs() {
    for (state, health_status) in [
        (StreamJobState::Finished, "Healthy"),
        (StreamJobState::Cancelled, "Suspended"),
        (StreamJobState::Failed, "Degraded"),
        (StreamJobState::Restarting, "Progressing"),
    ] {
        let object = json!({"metadata": {"generation": 1}, "status": {"state": state, "observedGeneration": 1}});
        assert_eq!(health(STREAM_JOB, &object).0, health_status, "{state:?}");
    }
}

#[test]
fn savepoints() {
    for (status, expected) in [
        (json!({}), "Progressing"),
        (json!({"phase": "InProgress", "message": "asked"}), "Progressing"),
        (json!({"phase": "Completed", "message": "taken"}), "Healthy"),
        (json!({"phase": "Failed", "message": "no"}), "Degraded"),
        (json!({"phase": "Abandoned", "message": "no"}), "Degraded"),
    ] {
        assert_eq!(health(SAVEPOINT, &json!({"status": status})).0, expected);
    }
}

/// The page shows the files as they are.
#[test]
fn the_documentation_shows_these_scripts() {
    let page = include_str!("../../../docs/argocd.md");
    for script in [STREAM_JOB, SAVEPOINT] {
        let indented: String = script.lines().map(|line| format!("    {line}\n")).collect();
        assert!(page.contains(&indented), "docs/argocd.md shows another script");
    }
}
