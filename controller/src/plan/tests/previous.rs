//! Runtimes of the previous minor version, which an operator of this one drives: what they say is read, and they are told
//! nothing that they do not know.

use super::upgrade::{SAVEPOINT, edit};
use super::*;
use crate::validate::frozen_manifest;
use sluice_protocol::job_master::{Reconfiguration, SavepointRequest};
use sluice_protocol::ledger::SavepointKind;

const REPORT: &str = include_str!("previous/report-0.1.json");
const MANIFEST: &str = include_str!("previous/manifest-0.1.yaml");

fn report() -> JobStatus {
    serde_json::from_str(REPORT).expect("is read")
}

#[test]
fn a_report_without_the_fields_that_came_later_leaves_a_job_as_it_runs() {
    let facts = Facts { report: Some(report()), ..running() };
    let next = plan(&facts);
    assert!(!next.acts() && next.command.is_none() && next.view.ready, "{next:?}");
    assert_eq!((next.memory.ledger_entry, next.view.degraded), (9, None));
    // Its answers are understood too.
    let wanted = edit(Facts { lifecycle: by_mode(UpgradeMode::Savepoint), ..facts }, |job| {
        job.spec.program.sql = Some("INSERT INTO a SELECT c FROM b;".to_owned());
    });
    let stopping = after(&wanted, &plan(&wanted));
    let taken = plan(&stopping).memory.stop.and_then(|stop| stop.savepoint);
    assert_eq!(taken.as_deref(), Some(SAVEPOINT));
}

#[test]
fn fields_of_a_later_report_are_ignored_and_missing_ones_have_their_defaults() {
    let mut later: serde_json::Value = serde_json::from_str(REPORT).expect("is JSON");
    later["ofALaterVersion"] = json!({"a": [1]});
    later["lastCheckpoint"]["ofALaterVersion"] = json!(true);
    later["failures"][0]["failure"]["ofALaterVersion"] = json!("b");
    later["taskManagers"][0]["ofALaterVersion"] = json!(3);
    later["requests"][0]["ofALaterVersion"] = json!([]);
    assert_eq!(serde_json::from_value::<JobStatus>(later).expect("is read"), report());
    let least: JobStatus = serde_json::from_str("{}").expect("is read");
    assert_eq!(least, JobStatus::default());
}

/// An older process refuses a field that it does not know: one that this version adds is left out until a spec sets it.
#[test]
fn a_manifest_that_uses_nothing_new_says_nothing_new() {
    let program = facts().program.expect("is right");
    assert_eq!(frozen_manifest("pv", "ns", &program.spec).expect("is written"), MANIFEST);
    assert_eq!(program.config_map, "pv-program-274f0a603b", "its name, too, or all jobs would be frozen anew");
}

#[test]
fn commands_are_what_they_were() {
    let savepoint = SavepointRequest {
        id: "upgrade-1-1".to_owned(),
        kind: SavepointKind::Stop,
        directory: None,
        timeout: TimeSpan::from_secs(60),
    };
    let options = Reconfiguration { id: "p".to_owned(), checkpointing: None, restart_strategy: None };
    let cases = [
        (Command::Stop, json!("stop")),
        (Command::Cancel, json!("cancel")),
        (Command::TriggerCheckpoint { id: "a".to_owned() }, json!({"triggerCheckpoint": {"id": "a"}})),
        (Command::Savepoint(savepoint), json!({"savepoint": {"id": "upgrade-1-1", "kind": "stop", "timeout": "1m"}})),
        (Command::Reconfigure(Box::new(options)), json!({"reconfigure": {"id": "p"}})),
    ];
    for (command, text) in cases {
        assert_eq!(serde_json::to_value(&command).expect("is JSON"), text);
    }
}
