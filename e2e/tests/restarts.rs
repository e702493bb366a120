//! The promise: a job restarts as often as its strategy says, whoever of its processes died, and then it fails with the
//! reason and everything retained.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use sluice_crds::StreamJobStatus;
use sluice_e2e::job::{Job, condition};
use sluice_e2e::{Cluster, Namespace, counting};
use sluice_protocol::ledger::LedgerState;
use std::time::Duration;

const PREFIX: &str = "restarts";
/// Each allows two restarts. Jitter would hide what is waited.
const TWO: [(&str, &str); 3] = [
    ("fixed", "{fixedDelay: {attempts: 2, delay: 1s}}"),
    ("rate", "{failureRate: {maxFailures: 2, interval: 1h, delay: 1s}}"),
    ("backoff", "{exponentialDelay: {initialBackoff: 2s, multiplier: 3, jitter: 0, attempts: 2}}"),
];

fn start(cluster: &Cluster, namespace: &Namespace, name: &str, strategy: &str) -> Job {
    counting::start(cluster, namespace, name, PREFIX, &format!("  restartStrategy: {strategy}\n"))
}

fn kill(job: &Job, role: &str) {
    let pods = job.pods(role).expect("pods");
    job.kill_pods(&pods.iter().map(String::as_str).collect::<Vec<_>>()).expect("killed");
}

fn wait_restarted(job: &Job, times: u64) -> Value {
    job.wait_status(&format!("{} to run after restart {times}", job.name), Duration::from_secs(90), |status| {
        // A checkpoint of its own says that it really runs.
        let own = status["lastCheckpoint"]["id"].as_u64() > status["restoredFrom"]["id"].as_u64();
        status["state"] == "Running" && status["restarts"] == times && own
    })
}

fn wait_failed(job: &Job) -> Value {
    job.wait_status(&format!("{} to fail", job.name), Duration::from_secs(60), |status| status["state"] == "Failed")
}

/// Seconds from the newest failure to the restart that is planned.
fn wait_planned(job: &Job, failures: usize) -> f64 {
    let status = job.wait_status("a planned restart", Duration::from_secs(30), |status| {
        let known = status["failures"].as_array().map_or(0, Vec::len);
        known == failures && !status["nextRestartAt"].is_null()
    });
    let status: StreamJobStatus = serde_json::from_value(status).expect("a status");
    let planned = status.next_restart_at.expect("a time").0.as_microsecond();
    let failed = status.failures[0].at.as_ref().expect("a time").0.as_microsecond();
    (planned - failed) as f64 / 1e6
}

/// The JobManager that would have written `Failed` is gone: a closer does it, and the job has failed from the first moment on.
async fn wait_closed_as_failed(cluster: &Cluster, job: &Job) {
    wait_failed(job);
    job.wait_status("the closer to end", Duration::from_secs(90), |status| status["helper"].is_null());
    let ledger = counting::ledger(cluster, job, PREFIX).await;
    let last = ledger.entries().last().expect("an entry").folded();
    assert_eq!((last.state, last.retained.is_empty()), (LedgerState::Failed, false), "{}", ledger.story());
    assert_eq!(job.status().expect("a status")["state"], "Failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_strategy_restarts_as_often_as_it_says_and_then_the_job_fails() {
    let Some((cluster, namespace)) = Cluster::with_namespace("restarts") else { return };
    let none = start(&cluster, &namespace, "none", "{none: {}}");
    let lost = start(&cluster, &namespace, "lost", "{none: {}}");
    let jobs = TWO.map(|(name, strategy)| start(&cluster, &namespace, name, strategy));
    for job in jobs.iter().chain([&none, &lost]) {
        job.wait_checkpoint(1);
    }
    kill(&lost, "jobmanager");
    let [_, _, backoff] = &jobs;

    jobs.iter().chain([&none]).for_each(|job| kill(job, "taskmanager"));
    let first = wait_planned(backoff, 1);
    assert_eq!(wait_failed(&none)["restarts"].as_u64().unwrap_or(0), 0);
    jobs.iter().for_each(|job| drop(wait_restarted(job, 1)));

    // One budget, in place and redeployed.
    jobs.iter().for_each(|job| kill(job, "jobmanager"));
    let second = wait_planned(backoff, 2);
    wait_closed_as_failed(&cluster, &lost).await;
    jobs.iter().for_each(|job| drop(wait_restarted(job, 2)));
    // The status has whole seconds of when it failed.
    assert!((1.0..3.1).contains(&first), "the first restart after {first} s");
    assert!((5.0..7.1).contains(&second), "the second restart after {second} s");

    jobs.iter().for_each(|job| kill(job, "taskmanager"));
    for job in &jobs {
        let status = wait_failed(job);
        assert_eq!(status["failures"].as_array().map(Vec::len), Some(3), "{status:#}");
        let (ready, _, message) = condition(&status, "Ready").expect("a condition");
        assert_eq!(ready, "False", "{status:#}");
        assert!(message.contains("-tm-"), "{}: the lost pod is not named: {message}", job.name);
        let ledger = counting::ledger(&cluster, job, PREFIX).await;
        let last = ledger.entries().last().expect("an entry").folded();
        assert_eq!(last.state, LedgerState::Failed, "{}", ledger.story());
        assert!(!last.retained.is_empty(), "nothing is retained:\n{}", ledger.story());
        assert_eq!(ledger.check_restores(), 2, "{}", ledger.story());
    }
}
