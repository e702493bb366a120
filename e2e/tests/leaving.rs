//! The promise: a TaskManager that has to leave its node (a drain, a spot instance taken back) takes a checkpoint first,
//! its tasks go on elsewhere, and no restart is spent.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::story::Story;
use sluice_e2e::{Cluster, create_raw};
use sluice_tests::harness::pageviews::Load;
use std::time::Duration;

const LOAD: Load = Load { seed: 8, events: 60_000, apps: 40, partitions: 4, duration: Duration::from_secs(20) };

/// What `kubectl drain` asks for each pod, so that the budget is asked too.
fn evict(namespace: &str, pod: &str) -> anyhow::Result<String> {
    let eviction = format!(r#"{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{pod}"}}}}"#);
    create_raw(&format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction"), &eviction)
}

#[tokio::test(flavor = "multi_thread")]
async fn evicted_task_manager_leaves_behind_a_checkpoint_and_spends_no_restart() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let mut story = Story::begin(cluster, LOAD, "").await;
    story.wait_ready(1);
    let namespace = &story.namespace.name;
    let before = story.job.pods("taskmanager").expect("pods");
    let [first, second] = &before[..] else { panic!("two TaskManagers: {before:?}") };

    evict(namespace, first).expect("evicted");
    let refused = evict(namespace, second).expect_err("the budget lets one go at a time").to_string();
    assert!(refused.contains("disruption budget"), "{refused}");

    let status = story.job.wait_status("a run without the pod", Duration::from_secs(90), |status| {
        let pods = story.job.pods("taskmanager").unwrap_or_default();
        let own = status["lastCheckpoint"]["id"].as_u64() > status["restoredFrom"]["id"].as_u64();
        pods.len() == 2 && !pods.contains(first) && status["attempt"] == 2 && status["state"] == "Running" && own
    });
    assert_eq!(status["restarts"].as_u64().unwrap_or(0), 0, "{status:#}");
    story.finish();
    // Nothing was written again: the tasks left from the checkpoint that was taken for it.
    let ledger = story.ledger().await;
    assert_eq!(ledger.check_restores(), 1, "{}", ledger.story());
}
