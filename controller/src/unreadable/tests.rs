//! Deletions of what cannot be read, against an API server that is played by the test.

use super::*;
use crate::fake_api::{Calls, lines, server};
use crate::validate::frozen_manifest;
use http::Method;
use serde_json::Value;

/// A StreamJob of another version, deleted `ago` seconds ago, with this status.
fn raw(ago: u64, status: &Value) -> Value {
    let deleted = crate::time::to_time(sluice_protocol::Timestamp(crate::time::now().0 - ago * 1000));
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob",
        "metadata": {
            "name": "pv", "namespace": "ns", "uid": "u", "resourceVersion": "7", "deletionTimestamp": deleted,
            "finalizers": ["other/one", names::FINALIZER],
        },
        "spec": {"program": {"python": "a.py"}, "deletion": {"timeout": "1m"}},
        "status": status,
    })
}

fn job_manager_pod() -> Value {
    json!({
        "metadata": {
            "name": "pv-1-jm", "namespace": "ns", "uid": "p",
            "labels": {"sluice.dev/generation": "1", "app.kubernetes.io/component": "jobmanager"},
            "ownerReferences": [{"apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob", "name": "pv", "uid": "u", "controller": true}],
        },
        "spec": {"containers": [{"name": "jobmanager", "image": "runtime:1"}]},
        "status": {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [{
            "name": "jobmanager", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "image": "", "imageID": "", "ready": true, "restartCount": 0,
        }]},
    })
}

async fn pass(raw: Value) -> (Result<Action, ReconcileError>, Vec<String>, Value) {
    let (calls, done) = run(raw, Some(job_manager_pod())).await;
    let sent = calls.lock().expect("no panic").last().map(|call| call.2.clone()).unwrap_or_default();
    (done, lines(&calls), sent)
}

async fn run(raw: Value, pod: Option<Value>) -> (Calls, Result<Action, ReconcileError>) {
    let calls = Calls::default();
    let watched: WatchedJob = serde_json::from_value(raw.clone()).expect("is guarded");
    assert!(watched.0.is_err());
    let client = server(&calls, move |method, path| match path {
        _ if *method == Method::PATCH => Some((200, raw.clone())),
        "/apis/sluice.dev/v1alpha1/namespaces/ns/streamjobs/pv" => Some((200, raw.clone())),
        "/api/v1/namespaces/ns/pods/pv-1-jm" => pod.clone().map(|pod| (200, pod)),
        "/api/v1/namespaces/ns/configmaps/pv-program-1" => Some((200, program())),
        _ => None,
    });
    let done = delete(&watched, &Context::on(client)).await;
    (calls, done)
}

/// What ran, which this version can read.
fn program() -> Value {
    let manifest = frozen_manifest("pv", "ns", &crate::plan::tests::job().spec).expect("is written");
    json!({"metadata": {"name": "pv-program-1", "namespace": "ns"}, "data": {names::MANIFEST_KEY: manifest}})
}

const FINALIZER_CALL: &str = "PATCH /apis/sluice.dev/v1alpha1/namespaces/ns/streamjobs/pv";

#[tokio::test]
async fn one_of_which_nothing_can_be_read_is_let_go() {
    for status in [json!({"generation": "one"}), json!({})] {
        let (done, calls, sent) = pass(raw(1, &status)).await;
        done.expect("passes");
        assert_eq!(calls.last().map(String::as_str), Some(FINALIZER_CALL), "{calls:?}");
        assert_eq!(sent["metadata"]["finalizers"], json!(["other/one"]));
        assert_eq!(sent["metadata"]["resourceVersion"], "7");
    }
}

#[tokio::test]
async fn a_job_manager_that_can_be_asked_has_its_time_and_then_its_pod_goes() {
    let status = json!({"generation": 1, "revision": 1, "state": "Running", "jobManagerPod": "p"});
    let (done, calls, _) = pass(raw(1, &status)).await;
    assert_ne!(done.expect("passes"), Action::await_change(), "it is asked again");
    assert!(!calls.iter().any(|call| call.starts_with("PATCH") || call.starts_with("DELETE")), "{calls:?}");
    // The timeout of the deletion is over.
    let (done, calls, _) = pass(raw(61, &status)).await;
    done.expect("passes");
    let pod = calls.iter().position(|call| call == "DELETE /api/v1/namespaces/ns/pods/pv-1-jm").expect("goes");
    let finalizer = calls.iter().position(|call| call == FINALIZER_CALL).expect("goes");
    assert!(pod < finalizer, "{calls:?}");
}

/// L6: the spec is not needed to end the job, only what ran.
#[tokio::test]
async fn a_job_without_a_job_manager_is_closed_and_its_generation_is_noted_first() {
    let status = json!({
        "generation": 1, "revision": 1, "state": "Running", "jobManagerPod": "p", "program": "pv-program-1", "ledgerEntry": 7,
        "ofALaterVersion": true,
    });
    let (calls, done) = run(raw(1, &status), None).await;
    assert_ne!(done.expect("passes"), Action::await_change(), "it is looked at again");
    let calls = calls.lock().expect("no panic").clone();
    let changes: Vec<_> = calls.iter().filter(|call| call.0 != Method::GET).collect();
    let path = |call: &(Method, String, Value)| call.1.clone();
    let streamjob = "/apis/sluice.dev/v1alpha1/namespaces/ns/streamjobs/pv/status";
    let order = ["/api/v1/namespaces/ns/secrets", "/api/v1/namespaces/ns/pods"];
    assert_eq!(path(changes[0]), streamjob, "{changes:?}");
    let noted = &changes[0].2;
    assert_eq!((&noted["status"]["generation"], &noted["status"]["helper"]["task"]), (&json!(2), &json!("Close")));
    assert_eq!(noted["metadata"]["resourceVersion"], "7");
    assert!(
        noted["status"]["ofALaterVersion"].is_null() && noted["status"]["state"].is_null(),
        "the rest stays: {noted}"
    );
    assert_eq!(changes[1..].iter().map(|call| path(call)).collect::<Vec<_>>(), order);
    assert_eq!(changes[2].2["metadata"]["name"], "pv-2-jm");
    assert!(changes[2].2.to_string().contains("cancelled"), "{}", changes[2].2);
}

#[tokio::test]
async fn one_that_is_not_being_deleted_or_not_held_is_left_alone() {
    let mut alive = raw(1, &json!({}));
    alive["metadata"]["deletionTimestamp"] = Value::Null;
    let mut free = raw(1, &json!({}));
    free["metadata"]["finalizers"] = json!(["other/one"]);
    for raw in [alive, free] {
        let (done, calls, _) = pass(raw).await;
        assert_eq!((done.expect("passes"), calls), (Action::await_change(), vec![]));
    }
}
