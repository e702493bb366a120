//! Whose an object is decides whether it is touched, and what was refused is known not to be there.

use super::*;
use crate::fake_api::{Calls, lines, refusal, server};
use crate::plan::plan;
use crate::plan::tests::{facts, job};
use http::Method;
use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

fn named_job() -> StreamJob {
    let mut job = job();
    job.metadata.uid = Some("u".to_owned());
    job
}

fn owned_by(uid: &str, controller: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "pv-jm", "uid": "s", "ownerReferences": [
            {"apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob", "name": "pv", "uid": uid, "controller": controller},
        ]},
    })
}

/// Applies the Service of the job where `there` is; the result and the calls.
async fn apply_over(there: Option<Value>) -> (Result<(), ApplyError>, Vec<String>, Value) {
    let calls = Calls::default();
    let client =
        server(&calls, move |method, _| there.clone().filter(|_| *method == Method::GET).map(|there| (200, there)));
    let job = named_job();
    let service: Service = build_service(&job, Generation(1));
    let applied = apply_owned(&client, "ns", &job, service).await;
    let sent = calls.lock().expect("no panic").last().map(|call| call.2.clone()).unwrap_or_default();
    (applied, lines(&calls), sent)
}

#[tokio::test]
async fn a_service_that_belongs_to_somebody_else_is_not_taken_over() {
    let foreign = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pv-jm", "uid": "s"}});
    for there in [foreign, owned_by("another", true), owned_by("u", false)] {
        let (applied, calls, _) = apply_over(Some(there)).await;
        let error = applied.expect_err("is refused");
        assert_eq!(error.name(), "NameTaken");
        assert!(error.to_string().contains("Service pv-jm belongs to another owner"), "{error}");
        assert_eq!(calls.len(), 1, "{calls:?}");
    }
    let (applied, calls, sent) = apply_over(Some(owned_by("u", true))).await;
    applied.expect("is its own");
    assert_eq!(calls[1], "PATCH /api/v1/namespaces/ns/services/pv-jm");
    assert_eq!(sent["metadata"]["uid"], "s", "and no other that takes its place meanwhile");
    let (applied, calls, _) = apply_over(None).await;
    applied.expect("is made");
    assert_eq!(calls[1], "POST /api/v1/namespaces/ns/services");
}

/// Carries out the first plan of a job where creating `refused` is answered with `code`; the lowest unused index.
async fn unused_index(refused: &'static str, code: u16) -> Option<u32> {
    let calls = Calls::default();
    let client = server(&calls, move |method, _| {
        let message = format!("pods \"{refused}\" is forbidden: exceeded quota");
        (*method == Method::POST).then(|| (code, refusal(code, "Forbidden", &message)))
    });
    let plan = plan(&facts());
    let is_refused = |pod: &&PodPlan| match pod.role {
        Role::JobManager => refused == "pv-1-jm",
        Role::TaskManager(index) => refused == format!("pv-1-tm-{index}"),
    };
    let pod = plan.create.iter().find(is_refused).expect("is planned");
    let failed = |error| ApplyError::Pod { role: pod.role, error: Box::new(error) };
    let job = named_job();
    let built = build_pod(&job, plan.spec.as_ref().expect("starts"), pod, Security::Tls).expect("is right");
    let error = create_owned(&client, "ns", &job, &built).await.map_err(failed).expect_err("is refused");
    assert_eq!(error.name(), if code == 403 { "QuotaExceeded" } else { "ApiError" });
    error.unused_index(&plan.create)
}

#[tokio::test]
async fn a_task_manager_index_is_free_again_where_its_pod_was_refused_for_sure() {
    assert_eq!(unused_index("pv-1-jm", 403).await, Some(0));
    assert_eq!(unused_index("pv-1-tm-0", 403).await, Some(0));
    assert_eq!(unused_index("pv-1-tm-1", 403).await, Some(1), "that of index 0 is there");
    assert_eq!(unused_index("pv-1-tm-1", 422).await, Some(1));
    for unclear in [500, 504, 429] {
        assert_eq!(unused_index("pv-1-tm-1", unclear).await, None, "{unclear}: it may be there all the same");
    }
}
