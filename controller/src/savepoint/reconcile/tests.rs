//! Passes against an API server that is played by the test: which calls are made, and which are not.

use super::*;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Method, path and body of the calls for Savepoints; events are taken and not recorded.
type Calls = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// Answers with `code`; 200 gives back what was sent, with a spec.
fn server(calls: &Calls, code: u16) -> Client {
    let calls = Arc::clone(calls);
    let service = tower::service_fn(move |request: Request<Body>| {
        let calls = Arc::clone(&calls);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("a body");
            let path = parts.uri.path().to_owned();
            let is_event = path.contains("/events");
            let mut json: Value = serde_json::from_slice(&body).unwrap_or_default();
            if !is_event {
                calls.lock().expect("no panic").push((parts.method, path, json.clone()));
                json["spec"] = json!({"job": "pv"});
            }
            let refusal =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": code});
            let answer = if is_event || code == 200 { json.to_string() } else { refusal.to_string() };
            let code = if is_event { 200 } else { code };
            Ok::<_, kube::Error>(
                Response::builder().status(code).body(Body::from(answer.into_bytes())).expect("a response"),
            )
        }
    });
    Client::new(service, "ns")
}

fn shared(client: Client) -> Shared {
    Shared { context: Arc::new(Context::on(client)), jobs: store().0 }
}

/// Just made, of a StreamJob that is not there yet.
fn savepoint(spec: &Value) -> Savepoint {
    let now = time::to_time(time::now());
    serde_json::from_value(json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "Savepoint",
        "metadata": {"name": "s", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 1, "creationTimestamp": now},
        "spec": spec,
    }))
    .expect("is a Savepoint")
}

async fn pass(savepoint: &Savepoint, shared: Shared) -> Result<Action, ApplyError> {
    reconcile(Arc::new(DeserializeGuard(Ok(savepoint.clone()))), Arc::new(shared)).await
}

#[tokio::test]
async fn a_status_is_written_once_over_the_object_that_was_read() {
    let calls = Calls::default();
    let mut savepoint = savepoint(&json!({"job": "pv"}));
    pass(&savepoint, shared(server(&calls, 200))).await.expect("passes");
    let (method, path, body) = calls.lock().expect("no panic").pop().expect("one call");
    assert_eq!((method, path.as_str()), (Method::PATCH, "/apis/sluice.dev/v1alpha1/namespaces/ns/savepoints/s/status"));
    assert_eq!((&body["metadata"]["resourceVersion"], &body["status"]["phase"]), (&json!("7"), &json!("Pending")));
    savepoint.status = serde_json::from_value(body["status"].clone()).expect("is a status");
    pass(&savepoint, shared(server(&calls, 200))).await.expect("passes");
    assert_eq!(calls.lock().expect("no panic").len(), 0, "nothing has changed");
}

#[tokio::test]
async fn a_conflict_is_an_error_that_is_tried_again() {
    let calls = Calls::default();
    let error = pass(&savepoint(&json!({"job": "pv"})), shared(server(&calls, 409))).await.expect_err("fails");
    assert!(error.is_conflict(), "{error}");
    assert_eq!(calls.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn the_finalizer_comes_before_the_request_and_goes_with_the_job() {
    let calls = Calls::default();
    let mut savepoint = savepoint(&json!({"job": "pv", "disposeOnDelete": true}));
    savepoint.metadata.finalizers = Some(vec!["other/one".to_owned()]);
    pass(&savepoint, shared(server(&calls, 200))).await.expect("passes");
    {
        let mut calls = calls.lock().expect("no panic");
        let (_, path, body) = calls.pop().expect("one call");
        assert!(calls.is_empty() && !path.ends_with("/status"), "{path}");
        assert_eq!(body["metadata"]["finalizers"], json!(["other/one", FINALIZER]));
    }
    savepoint.metadata.finalizers = Some(vec!["other/one".to_owned(), FINALIZER.to_owned()]);
    savepoint.metadata.deletion_timestamp = Some(time::to_time(time::now()));
    savepoint.status =
        serde_json::from_value(json!({"phase": "Completed", "path": "s3://b/p", "jobUid": "gone"})).expect("is one");
    pass(&savepoint, shared(server(&calls, 200))).await.expect("passes");
    let (_, _, body) = calls.lock().expect("no panic").pop().expect("one call");
    assert_eq!(body["metadata"]["finalizers"], json!(["other/one"]));
}

#[tokio::test]
async fn one_that_cannot_be_read_is_let_go_when_it_is_deleted() {
    let calls = Calls::default();
    let mut raw = serde_json::to_value(savepoint(&json!({"job": "pv"}))).expect("is JSON");
    raw["spec"] = json!({"job": 7});
    raw["metadata"]["finalizers"] = json!(["other/one", FINALIZER]);
    let watched = |raw: &Value| Arc::new(serde_json::from_value::<WatchedSavepoint>(raw.clone()).expect("is guarded"));
    let shared = Arc::new(shared(server(&calls, 200)));
    reconcile(watched(&raw), Arc::clone(&shared)).await.expect("passes");
    assert_eq!(calls.lock().expect("no panic").len(), 0, "not before");
    raw["metadata"]["deletionTimestamp"] = json!(time::to_time(time::now()));
    reconcile(watched(&raw), shared).await.expect("passes");
    let (method, _, body) = calls.lock().expect("no panic").pop().expect("one call");
    assert_eq!((method, &body["metadata"]["finalizers"]), (Method::PATCH, &json!(["other/one"])));
}
