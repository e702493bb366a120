//! The promise: a change that does not work is taken back by itself, and nothing of the job is lost by it.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::job::{Job, checkpoint, condition, restored};
use sluice_e2e::story::Story;
use sluice_e2e::{Cluster, apply, counting};
use sluice_tests::harness::pageviews::Load;
use std::time::{Duration, Instant};

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

/// SIGKILL to the TaskManager whenever the revision runs, until it is given up: how often.
fn crash_until_given_up(job: &Job, revision: u64) -> u32 {
    let deadline = Instant::now() + Duration::from_secs(90);
    let mut crashes = 0;
    let mut attempt = 0;
    while Instant::now() < deadline {
        let status = job.status().expect("a status");
        if !status["rolledBack"].is_null() || status["revision"].as_u64() > Some(revision) {
            return crashes;
        }
        let runs = status["revision"] == revision && status["state"] == "Running";
        if runs && status["attempt"].as_u64() > Some(attempt) {
            attempt = status["attempt"].as_u64().expect("an attempt");
            let pods = job.pods("taskmanager").expect("pods");
            job.kill_pods(&pods.iter().map(String::as_str).collect::<Vec<_>>()).expect("killed");
            crashes += 1;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the revision was not given up after {crashes} crashes: {:#}", job.status().expect("a status"));
}

#[tokio::test(flavor = "multi_thread")]
async fn revision_that_runs_and_crashes_again_and_again_rolls_back() {
    let Some((cluster, namespace)) = Cluster::with_namespace("crashes") else { return };
    let extra = "  stability: {checkpoints: 1, duration: 5s, deadline: 20s}\n  restartStrategy: {fixedDelay: {attempts: 100, delay: 500ms}}\n";
    let job = counting::start(&cluster, &namespace, "counts", "crashes", extra);
    let ready = |revision: u64| {
        job.wait_status(&format!("revision {revision} to be ready"), Duration::from_secs(60), |status| {
            let ready = condition(status, "Ready").is_some_and(|(value, ..)| value == "True");
            ready && status["revision"] == revision && status["state"] == "Running"
        })
    };
    let first = ready(1);

    let changed =
        counting::manifest(&cluster, "counts", "crashes", extra).replace("FROM s GROUP", "FROM s WHERE k <> 0 GROUP");
    apply(&namespace.name, &changed).expect("applied");
    let crashes = crash_until_given_up(&job, 2);
    assert!(crashes >= 2, "{crashes} crashes make no loop");
    let back = ready(3);
    let given_up = &back["rolledBack"];
    assert_eq!((&given_up["revision"], &given_up["reason"]), (&2.into(), &"NotStable".into()), "{back:#}");
    assert!(restored(&back) >= checkpoint(&first), "{back:#}");
    assert_eq!(back["restarts"].as_u64().unwrap_or(0), 0, "its failures are not this revision's: {back:#}");
    let ledger = counting::ledger(&cluster, &job, "crashes").await;
    assert!(ledger.check_restores() >= 3, "{}", ledger.story());
}
