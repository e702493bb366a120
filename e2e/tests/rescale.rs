//! The promise: `kubectl scale` changes the parallelism, and suspending gives the pods back; counts go on from where they
//! were.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::job::{checkpoint, restored};
use sluice_e2e::story::Story;
use sluice_e2e::{Cluster, kubectl};
use sluice_tests::harness::pageviews::Load;
use sluice_tests::harness::wait_for;
use std::time::Duration;

const LOAD: Load = Load { seed: 7, events: 60_000, apps: 40, partitions: 4, duration: Duration::from_secs(30) };
const QUICKLY: &str = "  stability: {checkpoints: 1, duration: 1s}\n";

#[tokio::test(flavor = "multi_thread")]
async fn rescale_suspend_and_resume_keep_the_state() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let mut story = Story::begin(cluster, LOAD, QUICKLY).await;
    let first = story.wait_ready(1);
    let selector = first["selector"].as_str().expect("a selector");
    let namespace = story.namespace.name.clone();
    let pods = kubectl(&["-n", &namespace, "get", "pods", "-l", selector, "-o", "name"]).expect("pods");
    assert_eq!(pods.lines().count(), 2, "an autoscaler counts the TaskManagers: {pods}");

    kubectl(&["-n", &namespace, "scale", "streamjob/pageviews", "--replicas=3"]).expect("scaled");
    let second = story.wait_ready(2);
    assert_eq!(second["parallelism"], 3, "{second:#}");
    assert!(restored(&second) >= checkpoint(&first), "{second:#}");
    assert_eq!(story.job.pods("taskmanager").expect("pods").len(), 3);

    story.patch(r#"{"spec": {"state": "Suspended"}}"#);
    let suspended =
        story.job.wait_status("Suspended", Duration::from_secs(60), |status| status["state"] == "Suspended");
    wait_for("no pods", Duration::from_secs(60), || {
        (story.job.pods("jobmanager").ok()?.is_empty() && story.job.pods("taskmanager").ok()?.is_empty()).then_some(())
    });
    story.patch(r#"{"spec": {"state": "Running"}}"#);
    let third = story.wait_ready(3);
    assert!(restored(&third) >= checkpoint(&suspended), "{third:#}");
    story.finish();
    story.check_counts_never_fall();
}
