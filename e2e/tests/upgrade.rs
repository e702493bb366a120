//! The promise: a changed program goes on from the state of the one before, by a savepoint; changed options restart nothing.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::Cluster;
use sluice_e2e::job::{checkpoint, restored};
use sluice_e2e::story::Story;
use sluice_protocol::ledger::EntryKind;
use sluice_tests::harness::pageviews::Load;
use std::time::Duration;

const LOAD: Load = Load { seed: 5, events: 60_000, apps: 40, partitions: 4, duration: Duration::from_secs(25) };
const QUICKLY: &str = "  stability: {checkpoints: 1, duration: 2s}\n";

#[tokio::test(flavor = "multi_thread")]
async fn savepoint_upgrade_with_changed_sql_keeps_its_state() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let mut story = Story::begin(cluster, LOAD, QUICKLY).await;
    let first = story.wait_ready(1);
    let pods = story.job.pods("jobmanager").expect("pods");

    // In place: another interval, the same processes, and the JobManager says that it obeys it.
    story.edit("interval: 2s", "interval: 1s");
    story.job.wait_status("the options", Duration::from_secs(60), |_| {
        story.job.page_of(&pods[0]).is_some_and(|page| page["optionsId"].is_string())
    });
    let same = story.job.wait_checkpoint(checkpoint(&first));
    assert_eq!(
        (&same["revision"], &same["generation"], &same["attempt"]),
        (&1.into(), &1.into(), &1.into()),
        "{same:#}"
    );
    assert_eq!(story.job.pods("jobmanager").expect("pods"), pods);

    // By a savepoint: another program under the same operators.
    story.edit("FROM page_views GROUP", "FROM page_views WHERE url <> 'nowhere' GROUP");
    let second = story.wait_ready(2);
    assert_eq!(second["generation"], 2, "{second:#}");
    assert!(restored(&second) >= checkpoint(&same), "{second:#}");
    let ledger = story.ledger().await;
    let taken = ledger
        .entries()
        .iter()
        .any(|entry| matches!(&entry.kind, EntryKind::Savepoint { id, .. } if id == "upgrade-1-1"));
    assert!(taken, "{}", ledger.story());
    story.finish();
    story.check_counts_never_fall();
}
