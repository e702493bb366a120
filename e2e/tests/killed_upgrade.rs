//! The promise: whoever is killed at whatever phase of an upgrade, the upgrade comes to its end with the job's state.
//!
//! CI runs some pairs of phase and victim, `cargo soak --cluster` all.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking, and says what it does")]

use serde_json::Value;
use sluice_e2e::Cluster;
use sluice_e2e::story::Story;
use sluice_tests::harness::pageviews::Load;
use std::time::{Duration, Instant};

/// How long a standby replica may take to lead.
const FAILOVER: Duration = Duration::from_secs(15);
const STABILITY: &str = "  stability: {checkpoints: 1, duration: 4s, deadline: 3m}\n";

/// Of an upgrade (docs/operator.md).
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The old revision is being stopped.
    Stop,
    /// The new one has no running tasks yet.
    Start,
    /// They run, and it is not stable.
    Trial,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    JobManager,
    TaskManagers,
    Controller,
    All,
}

use Phase::{Start, Stop, Trial};
use Victim::{All, Controller, JobManager, TaskManagers};

const IN_CI: [(Phase, Victim); 4] = [(Stop, Controller), (Stop, JobManager), (Start, All), (Trial, TaskManagers)];

fn all() -> Vec<(Phase, Victim)> {
    let victims = [JobManager, TaskManagers, Controller, All];
    [Stop, Start, Trial].iter().flat_map(|phase| victims.map(|victim| (*phase, victim))).collect()
}

fn phase_of(status: &Value, revision: u64) -> Option<Phase> {
    if !status["stop"].is_null() {
        return Some(Stop);
    }
    match (status["revision"] == revision, status["state"] == "Running") {
        (false, _) => None,
        (true, false) => Some(Start),
        (true, true) => (!status["trial"].is_null()).then_some(Trial),
    }
}

fn kill(story: &Story, victim: Victim) {
    let pods: Vec<String> = [("jobmanager", JobManager), ("taskmanager", TaskManagers)]
        .into_iter()
        .filter(|(_, who)| [*who, All].contains(&victim))
        .flat_map(|(role, _)| story.job.pods(role).unwrap_or_default())
        .collect();
    // One that has ended meanwhile need not be killed.
    let _ = story.job.kill_pods(&pods.iter().map(String::as_str).collect::<Vec<_>>());
    if [Controller, All].contains(&victim) {
        let begun = Instant::now();
        let dead = story.cluster.kill_leader().expect("killed");
        while story.cluster.leader().ok().is_none_or(|leader| leader.is_empty() || leader == dead) {
            assert!(begun.elapsed() < FAILOVER, "nobody leads {FAILOVER:?} after {dead} was killed");
            std::thread::sleep(Duration::from_millis(200));
        }
        println!("another controller leads after {:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_survives_the_death_of_anyone_at_any_phase() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let cases = if std::env::var_os("SLUICE_SOAK").is_some() { all() } else { IN_CI.to_vec() };
    let seconds = 15 * cases.len() as u64;
    let load =
        Load { seed: 9, events: 2000 * seconds, apps: 40, partitions: 4, duration: Duration::from_secs(seconds) };
    let mut story = Story::begin(cluster, load, STABILITY).await;
    story.wait_ready(1);
    for ((phase, victim), revision) in cases.into_iter().zip(2..) {
        println!("revision {revision}: {victim:?} is killed in {phase:?}");
        // One that was killed comes back after the kubelet's backoff; two are needed for one to stand by.
        story.cluster.wait_for_controllers().expect("two controllers");
        story.edit("FROM page_views GROUP", &format!("FROM page_views WHERE url <> '{revision}' GROUP"));
        story.job.wait_status(&format!("{phase:?}"), Duration::from_secs(60), |status| {
            phase_of(status, revision) == Some(phase)
        });
        kill(&story, victim);
        let status = story.wait_ready(revision);
        assert!(status["rolledBack"].is_null(), "{status:#}");
    }
    story.finish();
    let ledger = story.ledger().await;
    assert!(ledger.check_restores() > 4, "{}", ledger.story());
}
