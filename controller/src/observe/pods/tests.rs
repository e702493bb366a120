//! What is read off pods in the states that the kubelet and the scheduler write.

use super::*;
use serde_json::{Value, json};
use sluice_protocol::failure::ExitKind;

fn pod(status: &Value) -> PodFacts {
    let pod = json!({
        "metadata": {
            "name": "pv-3-jm", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"sluice.dev/generation": "3", "app.kubernetes.io/component": "jobmanager"},
        },
        "spec": {"containers": [{"name": "jobmanager", "image": "runtime:1"}]},
        "status": status,
    });
    pod_facts(&serde_json::from_value(pod).expect("is a pod")).expect("is a job's pod")
}

fn container(state: &Value) -> Value {
    json!([{"name": "jobmanager", "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0}])
}

#[test]
fn a_new_pod_is_alive_and_has_not_started() {
    let facts = pod(&json!({"phase": "Pending"}));
    assert!(facts.is_alive() && !facts.started && facts.problem.is_none());
    assert_eq!((facts.generation, facts.role, facts.image.as_str()), (Generation(3), Role::JobManager, "runtime:1"));
}

#[test]
fn a_pod_that_ends_says_why() {
    let message = r#"{"kind":"UserError","reason":"InvalidSql","message":"line 1: no such table"}"#;
    let state = json!({"terminated": {"exitCode": 2, "reason": "Error", "message": message, "finishedAt": "2026-01-01T00:01:00Z"}});
    let end = pod(&json!({"phase": "Failed", "containerStatuses": container(&state)})).ended.expect("has ended");
    assert_eq!(end.record.expect("has a record").reason, "InvalidSql");
    assert_eq!(end.account, "Error (exit code 2)");

    let state = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": ""}});
    let end = pod(&json!({"phase": "Failed", "containerStatuses": container(&state)})).ended.expect("has ended");
    assert_eq!((end.record, end.account.as_str()), (None, "OOMKilled (exit code 137)"));

    let log = "WARN a\npanicked at b\n";
    let state = json!({"terminated": {"exitCode": 101, "reason": "Error", "message": log}});
    let end = pod(&json!({"phase": "Failed", "containerStatuses": container(&state)})).ended.expect("has ended");
    assert_eq!((end.record, end.last_log_lines.as_deref()), (None, Some(log.trim())));

    let end = pod(&json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"})).ended;
    assert_eq!(end.expect("has ended").account, "Evicted low on memory");
}

#[test]
fn a_pod_whose_sidecars_run_on_lingers() {
    let ended = container(&json!({"terminated": {"exitCode": 0, "reason": "Completed"}}));
    let lingers =
        |phase: &str, containers: &Value| pod(&json!({"phase": phase, "containerStatuses": containers})).lingers;
    assert!(lingers("Running", &ended));
    assert!(!lingers("Succeeded", &ended) && !lingers("Failed", &ended));
    assert!(!lingers("Running", &container(&json!({"running": {}}))));
}

#[test]
fn what_keeps_a_pod_from_starting() {
    let state = json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"s3\" not found"}});
    let facts = pod(&json!({"phase": "Pending", "containerStatuses": container(&state)}));
    let problem = facts.problem.expect("has a problem");
    assert_eq!(problem.reason, "CreateContainerConfigError");
    assert_eq!(problem.message, "pod pv-3-jm: secret \"s3\" not found");

    let condition =
        json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]);
    let problem = pod(&json!({"phase": "Pending", "conditions": condition})).problem.expect("has a problem");
    assert_eq!((problem.reason.as_str(), problem.message.as_str()), ("Unschedulable", "pod pv-3-jm: 0/1 nodes"));

    let state = json!({"waiting": {"reason": "ContainerCreating"}});
    assert_eq!(pod(&json!({"phase": "Pending", "containerStatuses": container(&state)})).problem, None);

    // What `podTemplate` adds holds the pod up as well; the job's own container is named first.
    let waits = |name: &str, reason: &str| {
        let state = json!({"waiting": {"reason": reason, "message": format!("{name} waits")}});
        json!({"name": name, "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0})
    };
    let main = waits("jobmanager", "PodInitializing");
    let told = |first: &Value, containers: &[&Value]| {
        let status = json!({"phase": "Pending", "initContainerStatuses": [first], "containerStatuses": containers});
        pod(&status).problem.map(|problem| (problem.reason, problem.message))
    };
    let bad = waits("fetch", "ImagePullBackOff");
    let expected = ("ImagePullBackOff".to_owned(), "pod pv-3-jm: fetch waits".to_owned());
    assert_eq!(told(&bad, &[&main]), Some(expected));
    let sidecar = waits("proxy", "CreateContainerConfigError");
    let expected = ("CreateContainerConfigError".to_owned(), "pod pv-3-jm: proxy waits".to_owned());
    assert_eq!(told(&waits("fetch", "ContainerCreating"), &[&sidecar, &main]), Some(expected));
    let own = waits("jobmanager", "ErrImagePull");
    assert_eq!(told(&bad, &[&sidecar, &own]).expect("has one").0, "ErrImagePull");
}

/// The words of the kubelet and of the scheduler are the conditions': each is documented.
#[test]
fn what_keeps_a_pod_from_starting_is_a_documented_reason() {
    for reason in [
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    ] {
        let state = json!({"waiting": {"reason": reason, "message": "what"}});
        let problem = pod(&json!({"phase": "Pending", "containerStatuses": container(&state)})).problem;
        let problem = problem.expect("has a problem");
        assert!(problem.reason == reason && crate::status::reason::Reason::parse(reason).is_some(), "{reason}");
    }
}

/// What a process of another version says at its end is read as far as it can be.
#[test]
fn an_exit_record_of_another_version_is_read() {
    let ended = |message: &str| {
        let state = json!({"terminated": {"exitCode": 70, "reason": "Error", "message": message}});
        pod(&json!({"phase": "Failed", "containerStatuses": container(&state)})).ended.expect("has ended")
    };
    // The first version said no more than this.
    let first = ended(include_str!("tests/exit-0.1.json")).record.expect("is read");
    assert_eq!((first.kind, first.reason.as_str(), first.ledger_entry), (ExitKind::Failed, "BadData", None));
    let later = r#"{"kind":"Failed","reason":"BadData","message":"m","ledgerEntry":7,"ofALaterVersion":{"a":1}}"#;
    assert_eq!(ended(later).record.expect("is read").ledger_entry, Some(7));
    // An end that this version does not know is one that is not the job's fault to end by: another generation follows.
    let unknown = ended(r#"{"kind":"OfALaterVersion","reason":"What","message":"m","ledgerEntry":7}"#);
    let record = unknown.record.expect("is read");
    assert_eq!((record.kind, record.reason.as_str(), record.ledger_entry), (ExitKind::Internal, "What", Some(7)));
    assert_eq!(unknown.last_log_lines, None);
    let log = r#"{"kind":"event","level":"INFO"}"#;
    assert_eq!((ended(log).record, ended(log).last_log_lines.as_deref()), (None, Some(log)));
}

#[test]
fn readiness_counts_from_the_start_of_the_container() {
    let state = json!({"running": {"startedAt": "2026-01-01T00:00:30Z"}});
    let ready = |status: &str, at: &str| {
        let conditions = json!([{"type": "Ready", "status": status, "lastTransitionTime": at}]);
        pod(&json!({"phase": "Running", "conditions": conditions, "containerStatuses": container(&state)}))
            .unready_since
    };
    let second = |n: u64| Timestamp(1_767_225_600_000 + n * 1000);
    assert_eq!(ready("False", "2026-01-01T00:00:00Z"), Some(second(30)));
    assert_eq!(ready("False", "2026-01-01T00:05:00Z"), Some(second(300)));
    assert_eq!(ready("True", "2026-01-01T00:05:00Z"), None);
}

#[test]
fn a_pod_on_a_node_that_does_not_answer_is_told_from_one_that_does_not_answer_itself() {
    let since = "2026-01-01T00:05:00Z";
    let pod = |ready: bool, reason: &str| {
        let mut containers = container(&json!({"running": {"startedAt": "2026-01-01T00:00:10Z"}}));
        containers[0]["ready"] = json!(ready);
        let words = if ready { "True" } else { "False" };
        pod(&json!({
            "phase": "Running", "containerStatuses": containers,
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": since, "reason": reason},
                {"type": "ContainersReady", "status": words},
            ],
        }))
    };
    let lost = pod(true, "");
    assert!(lost.on_lost_node && lost.unready_since.is_some());
    assert!(!pod(false, "ContainersNotReady").on_lost_node);
    assert!(!pod(true, "ReadinessGatesNotReady").on_lost_node);
}

#[test]
fn a_drain_is_told_from_an_eviction_for_what_the_pod_used() {
    let target = json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]);
    assert!(pod(&json!({"phase": "Running", "conditions": target})).drained);
    assert!(!pod(&json!({"phase": "Failed", "reason": "Evicted", "conditions": target})).drained);
    assert!(!pod(&json!({"phase": "Running"})).drained);
}

#[test]
fn since_when_a_pod_is_ready() {
    let since = |status: &str| {
        let conditions = json!([{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        pod(&json!({"conditions": conditions})).ready_since
    };
    assert_eq!((since("True"), since("False")), (Some(Timestamp(1_767_225_600_000)), None));
}
