//! The promise: a change that does not work is taken back by itself, and nothing of the job is lost by it.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::Cluster;
use sluice_e2e::job::condition;
use sluice_e2e::story::Story;
use sluice_tests::harness::pageviews::Load;
use std::time::Duration;

const LOAD: Load = Load { seed: 6, events: 60_000, apps: 40, partitions: 4, duration: Duration::from_secs(30) };
const QUICKLY: &str = "  stability: {checkpoints: 1, duration: 2s, deadline: 20s}\n";

#[tokio::test(flavor = "multi_thread")]
async fn failed_upgrade_rolls_back_and_the_next_edit_is_tried_anew() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let mut story = Story::begin(cluster, LOAD, QUICKLY).await;
    story.wait_ready(1);

    // A program that cannot be planned ends at once.
    story.edit("COUNT(*) AS pv FROM", "COUNT(*) AS pv, nothing FROM");
    let back = story.wait_ready(3);
    assert_eq!(back["rolledBack"]["revision"], 2, "{back:#}");
    let (value, reason, message) = condition(&back, "Degraded").expect("a condition");
    assert_eq!((value.as_str(), reason.as_str()), ("True", "RolledBack"), "{back:#}");
    assert!(message.contains("nothing"), "the cause is not named: {message}");
    let spec = story.job.get().expect("the job")["spec"]["program"]["sql"].to_string();
    assert!(spec.contains("pv, nothing FROM"), "the user's spec is the user's: {spec}");

    // One whose pods never start is taken back at its deadline.
    story.edit("spec:\n", "spec:\n  image: registry.invalid/no-such-image:1\n");
    let back = story.wait_ready(5);
    assert_eq!(
        (&back["rolledBack"]["revision"], &back["rolledBack"]["reason"]),
        (&4.into(), &"NotStable".into()),
        "{back:#}"
    );

    // The next edit is tried, and what was given up is forgotten.
    story.edit("FROM page_views GROUP", "FROM page_views WHERE url <> 'nowhere' GROUP");
    let mended = story.wait_ready(6);
    assert!(mended["rolledBack"].is_null(), "{mended:#}");
    assert_eq!(condition(&mended, "Degraded").expect("a condition").0, "False", "{mended:#}");
    story.finish();
    story.check_counts_never_fall();
}
