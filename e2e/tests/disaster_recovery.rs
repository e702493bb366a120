//! The promise: when a cluster is gone, another one with the same manifests and `restore: {from: <job directory>}` goes on
//! from each job's latest checkpoint; and when the lost one comes back, it stays away from what has gone on elsewhere.
//!
//! The other cluster is another namespace here, and the loss of the first one the death of its pods while no controller
//! runs: nothing is written to the old ledger any more, least of all an end.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::Cluster;
use sluice_e2e::job::{Job, checkpoint, condition};
use sluice_e2e::story::{PREFIX, Story};
use sluice_protocol::ledger::LedgerState;
use sluice_tests::harness::ledger::{Ledger, open_store};
use sluice_tests::harness::pageviews::Load;
use std::time::Duration;

const LOAD: Load = Load { seed: 11, events: 60_000, apps: 40, partitions: 4, duration: Duration::from_secs(25) };

#[tokio::test(flavor = "multi_thread")]
async fn manifests_applied_elsewhere_with_the_job_directory_go_on_from_its_latest_checkpoint() {
    let Some((cluster, elsewhere)) = Cluster::with_namespace("elsewhere") else { return };
    let mut story = Story::begin(cluster, LOAD, "").await;
    let before = story.job.wait_checkpoint(2);
    let lost = story.job.directory().expect("the job");

    let away = story.cluster.without_controllers().expect("no controllers");
    let pods: Vec<_> =
        ["jobmanager", "taskmanager"].iter().flat_map(|role| story.job.pods(role).expect("pods")).collect();
    story.job.kill_pods(&pods.iter().map(String::as_str).collect::<Vec<_>>()).expect("killed");
    let bucket = &story.cluster.services.s3.bucket;
    let restore = format!("  restore: {{from: \"s3://{bucket}/{PREFIX}/{lost}\"}}\n");
    story.apply_in(&elsewhere, &restore);
    // The old cluster's StreamJob is still there, as it would be if that cluster came back.
    drop(away);

    let job = Job { namespace: elsewhere.name.clone(), name: story.job.name.clone() };
    let after = job.wait_checkpoint(checkpoint(&before));
    let restored = after["restoredFrom"]["path"].as_str().unwrap_or_default().to_owned();
    let directory = job.directory().expect("the job");
    let store = open_store(&story.cluster.services.s3, PREFIX);
    let old = Ledger::read(&store, &lost).await;
    let taken = old.entries().last().expect("an entry").folded();
    assert_eq!(taken.state, LedgerState::MovedTo, "{}", old.story());
    assert!(old.story().contains(&directory), "the old ledger does not say where it went:\n{}", old.story());

    // The lost cluster's controller finds that out and leaves it be.
    let moved = story.job.wait_status("the old job to be over", Duration::from_secs(90), |status| {
        status["message"].as_str().is_some_and(|message| message.contains(&directory))
    });
    assert_eq!(moved["state"], "Failed", "{moved:#}");
    let (_, reason, _) = condition(&moved, "Ready").expect("a condition");
    assert!(["MovedTo", "TakenOver"].contains(&reason.as_str()), "{moved:#}");
    story.finish();
    let ledger = Ledger::read(&store, &directory).await;
    assert!(restored.contains(&lost), "{after:#}");
    assert!(ledger.story().contains(&lost), "nothing of the lost job was restored:\n{}", ledger.story());
}
