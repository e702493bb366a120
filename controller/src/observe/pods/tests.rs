//! What is read off pods in the states that the kubelet and the scheduler write.

use super::*;
use serde_json::{Value, json};

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
