//! The promise: a HorizontalPodAutoscaler sets the parallelism by a metric from outside the cluster, and state goes along.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use sluice_e2e::external_metrics::ExternalMetrics;
use sluice_e2e::job::{Job, checkpoint, restored};
use sluice_e2e::{Cluster, apply, counting, kubectl};
use std::time::Duration;

const PREFIX: &str = "autoscaling";

/// One replica for each hundred of lag, without the pauses that a real one should have.
const AUTOSCALER: &str = r#"apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: counts}
spec:
  scaleTargetRef: {apiVersion: sluice.dev/v1alpha1, kind: StreamJob, name: counts}
  minReplicas: 1
  maxReplicas: 3
  behavior: {scaleUp: {stabilizationWindowSeconds: 0}, scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
    - {type: External, external: {metric: {name: lag}, target: {type: AverageValue, averageValue: "100"}}}
"#;

fn wait_parallelism(job: &Job, parallelism: u64) -> Value {
    job.wait_status(&format!("parallelism {parallelism}"), Duration::from_secs(120), |status| {
        let own = checkpoint(status) > restored(status);
        status["parallelism"] == parallelism && status["state"] == "Running" && own
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn autoscaler_follows_the_lag_up_and_down_and_counts_go_on() {
    let Some((cluster, namespace)) = Cluster::with_namespace("autoscaling") else { return };
    let metrics = ExternalMetrics::start(&namespace.name, &cluster.s3_pods).await.expect("metrics");
    metrics.set(100);
    let extra = "  parallelism: 1\n  stability: {checkpoints: 1, duration: 1s}\n";
    let job = counting::start(&cluster, &namespace, "counts", PREFIX, extra);
    let one = wait_parallelism(&job, 1);
    apply(&namespace.name, AUTOSCALER).expect("an autoscaler");

    metrics.set(300);
    let three = wait_parallelism(&job, 3);
    assert!(restored(&three) >= checkpoint(&one), "{three:#}");
    assert_eq!(job.pods("taskmanager").expect("pods").len(), 3);

    metrics.set(0);
    let last = wait_parallelism(&job, 1);
    assert!(restored(&last) >= checkpoint(&three), "{last:#}");
    assert_eq!(last["restarts"].as_u64().unwrap_or(0), 0, "{last:#}");
    let says = ["-n", &namespace.name, "get", "hpa", "counts", "-o", "jsonpath={.status.conditions[*].status}"];
    let conditions = kubectl(&says).expect("an autoscaler");
    assert!(conditions.starts_with("True True"), "AbleToScale and ScalingActive: {conditions}");
    let ledger = counting::ledger(&cluster, &job, PREFIX).await;
    assert!(ledger.check_restores() >= 2, "{}", ledger.story());
}
