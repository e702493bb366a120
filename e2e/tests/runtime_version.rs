//! The promise: a job moves to the image of another version through a savepoint and back, and the operator drives it there
//! as it does its own.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use sluice_e2e::job::{checkpoint, restored};
use sluice_e2e::story::Story;
use sluice_e2e::{Cluster, kubectl};
use sluice_protocol::ledger::EntryKind;
use sluice_tests::harness::pageviews::Load;
use std::time::Duration;

const LOAD: Load = Load { seed: 12, events: 60_000, apps: 40, partitions: 4, duration: Duration::from_secs(30) };
const QUICKLY: &str = "  stability: {checkpoints: 1, duration: 1s}\n";

/// Each of the job's pods runs this image.
fn check_images(story: &Story, image: &str) {
    let pods = ["jobmanager", "taskmanager"].map(|role| story.job.pods(role).expect("pods")).concat();
    assert_eq!(pods.len(), 3, "{pods:?}");
    for pod in pods {
        let path = "jsonpath={.spec.containers[0].image}";
        let runs = kubectl(&["-n", &story.namespace.name, "get", "pod", &pod, "-o", path]).expect("a pod");
        assert_eq!(runs, image, "{pod}");
    }
}

/// It was lost, and the operator puts another one of the same version in its place.
fn lose_job_manager(story: &Story, generation: u64) -> Value {
    let before = checkpoint(&story.job.status().expect("a status"));
    story.job.kill_pods(&[&format!("pageviews-{generation}-jm")]).expect("killed");
    story.job.wait_status("the next generation", Duration::from_secs(60), |status| {
        let own = checkpoint(status) > restored(status) && restored(status) >= before;
        status["state"] == "Running" && status["generation"] == generation + 1 && own
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_moves_to_another_version_through_a_savepoint_and_back() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let Some(other) = cluster.other_runtime_image() else { return };
    let own = cluster.runtime_image().to_owned();
    let mut story = Story::begin(cluster, LOAD, QUICKLY).await;
    let first = story.wait_ready(1);
    check_images(&story, &own);

    story.edit("spec:\n", &format!("spec:\n  image: {other}\n"));
    let second = story.wait_ready(2);
    assert!(restored(&second) >= checkpoint(&first), "{second:#}");
    check_images(&story, &other);
    let third = lose_job_manager(&story, 2);
    assert_eq!((&third["revision"], &third["restarts"]), (&2.into(), &1.into()), "{third:#}");
    check_images(&story, &other);

    // The manifest as it was.
    story.edit("spec:\n", "spec:\n");
    let back = story.wait_ready(3);
    assert!(restored(&back) >= checkpoint(&third), "{back:#}");
    check_images(&story, &own);
    let ledger = story.ledger().await;
    let savepoints = ledger.entries().iter().filter(|entry| matches!(entry.kind, EntryKind::Savepoint { .. })).count();
    assert_eq!(savepoints, 2, "one on the way there, one on the way back:\n{}", ledger.story());
    // Without its state it would have counted from 1. What the lost JobManager had not checkpointed was written again.
    story.finish();
}
