//! Test: nothing of a Secret's value reaches what the controller writes. It names Secrets and never reads them.

use crate::context::Context;
use crate::fake_api::{Calls, server};
use crate::reconcile::reconcile;
use crate::watches::WatchedJob;
use http::Method;
use kube::core::DeserializeGuard;
use serde_json::{Value, json};
use sluice_crds::StreamJob;
use std::sync::Arc;

/// Of the Secrets `s3` and `broker`, as the API server would give it to whoever asks.
const VALUE: &str = "c2VjcmV0LW9mLXRoZS11c2Vy";

fn job(status: &Value) -> StreamJob {
    let sql = "CREATE TABLE b (k BIGINT) WITH ('connector'='kafka', 'properties.sasl.password'='${secret:broker/password}'); \
               INSERT INTO a SELECT * FROM b;";
    serde_json::from_value(json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob",
        "metadata": {
            "name": "pv", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 1,
            "finalizers": [crate::build::names::FINALIZER],
        },
        "spec": {
            "program": {"sql": sql},
            "checkpointing": {
                "interval": "2s", "storage": "s3://bucket/path", "storageOptions": {"credentialsSecret": "s3"},
            },
        },
        "status": status,
    }))
    .expect("is a StreamJob")
}

/// A pass over the job; what was sent and where.
async fn pass(job: StreamJob, refuses_pods: bool) -> Vec<(Method, String, Value)> {
    let calls = Calls::default();
    let answer = serde_json::to_value(&job).expect("is JSON");
    let client = server(&calls, move |method, path| {
        let secret = || json!({"apiVersion": "v1", "kind": "Secret", "data": {"password": VALUE, "AWS_SECRET_ACCESS_KEY": VALUE}});
        if path.contains("/secrets/s3") || path.contains("/secrets/broker") {
            return Some((200, secret()));
        }
        if path.ends_with("/pods") && *method == Method::GET {
            return Some((200, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []})));
        }
        if path.ends_with("/pods") && refuses_pods {
            return Some((403, crate::fake_api::refusal(403, "Forbidden", "exceeded quota")));
        }
        (path.contains("/streamjobs/") && *method == Method::PATCH).then(|| (200, answer.clone()))
    });
    let watched: WatchedJob = DeserializeGuard(Ok(job));
    // One that is refused is a failed pass, which tells of it as well.
    let _ = reconcile(Arc::new(watched), Arc::new(Context::on(client))).await;
    let calls = calls.lock().expect("no panic");
    calls.clone()
}

#[tokio::test]
async fn pods_name_secrets_and_nobody_reads_them() {
    let started = pass(job(&json!(null)), false).await;
    let refused = pass(job(&json!(null)), true).await;
    let failed = json!({
        "state": "Running", "generation": 1, "revision": 1, "startedRevision": 1, "program": "pv-program-0",
        "jobManagerPod": "gone", "ledgerEntry": 5,
    });
    let lost = pass(job(&failed), false).await;
    for calls in [&started, &refused, &lost] {
        assert!(calls.iter().any(|(_, path, _)| path.ends_with("/status")), "{calls:?}");
        for (method, path, body) in calls {
            assert!(!path.contains("/secrets/s3") && !path.contains("/secrets/broker"), "{method} {path}");
            assert!(!body.to_string().contains(VALUE), "{method} {path}: {body}");
        }
    }
    let pods: Vec<_> =
        started.iter().filter(|(method, path, _)| *method == Method::POST && path.ends_with("/pods")).collect();
    assert_eq!(pods.len(), 2);
    for (_, _, pod) in pods {
        let secrets = &pod["spec"]["containers"][0]["envFrom"];
        assert_eq!(secrets, &json!([{"secretRef": {"name": "s3", "optional": false}}]));
        let projected = pod["spec"]["volumes"][0]["projected"]["sources"].as_array().expect("is a list");
        let mounted = json!({"secret": {
            "name": "broker", "optional": false, "items": [{"key": "password", "path": "secrets/broker/password"}],
        }});
        assert!(projected.contains(&mounted), "{projected:?}");
    }
    // The program keeps the reference, for the job's processes to resolve.
    let frozen = started.iter().find(|(_, path, _)| path.ends_with("/configmaps")).expect("is frozen");
    assert!(frozen.2["data"]["job.yaml"].as_str().expect("is text").contains("${secret:broker/password}"));
}
