//! The promise: a deleted StreamJob goes, in good situations with a terminal entry in its ledger, in bad ones all the same.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::job::Job;
use sluice_e2e::{Cluster, Namespace, counting, kubectl};
use sluice_protocol::ledger::{EntryKind, LedgerState, StartCause};
use sluice_tests::harness::ledger::{Ledger, open_store};
use sluice_tests::harness::wait_for;
use std::time::Duration;

const PREFIX: &str = "deletion";

fn start(cluster: &Cluster, namespace: &Namespace, name: &str, extra: &str) -> Job {
    counting::start(cluster, namespace, name, PREFIX, extra)
}

fn delete(job: &Job) {
    kubectl(&["-n", &job.namespace, "delete", "streamjob", &job.name, "--wait=false"]).expect("deleted");
}

fn wait_gone(job: &Job, timeout: Duration) {
    wait_for(&format!("{} to be gone", job.name), timeout, || {
        let left = kubectl(&["-n", &job.namespace, "get", "streamjob", &job.name, "--ignore-not-found", "-o", "name"]);
        left.ok()?.trim().is_empty().then_some(())
    });
}

/// It is suspended while its JobManager is gone, and a closer ends it; no restart is spent.
fn suspend_without_job_manager(job: &Job) {
    let patch = r#"{"spec":{"state":"Suspended"}}"#;
    job.kill_pods(&[&format!("{}-1-jm", job.name)]).expect("killed");
    kubectl(&["-n", &job.namespace, "patch", "streamjob", &job.name, "--type=merge", "-p", patch]).expect("patched");
    let status = job.wait_status("the suspension", Duration::from_secs(60), |status| status["state"] == "Suspended");
    assert_eq!(status["helper"], serde_json::Value::Null, "{status:#}");
    assert!(status["generation"].as_u64().is_some_and(|generation| generation >= 2), "{status:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_job_ends_its_ledger_and_goes_also_in_bad_situations() {
    let Some((cluster, namespace)) = Cluster::with_namespace("deletion") else { return };
    let running = start(&cluster, &namespace, "running", "");
    let saved = start(&cluster, &namespace, "saved", "  deletion: {savepoint: true}\n");
    let lost = start(&cluster, &namespace, "lost", "");
    let suspending = start(&cluster, &namespace, "suspending", "  upgrade: {mode: LastState}\n");
    let invalid = start(&cluster, &namespace, "invalid", "  image: registry.invalid/no-such-image:1\n");
    let suspended = start(&cluster, &namespace, "suspended", "  state: Suspended\n");
    let ledgers = [&running, &saved, &lost, &suspending].map(|job| job.directory().expect("the job"));
    for job in [&running, &saved, &lost, &suspending] {
        job.wait_checkpoint(1);
    }
    // A JobManager that is gone is asked for nothing: a closer ends the job in its place.
    suspend_without_job_manager(&suspending);
    lost.kill_pods(&["lost-1-jm"]).expect("killed");
    for job in [&lost, &running, &saved, &invalid, &suspended, &suspending] {
        delete(job);
    }
    for job in [&running, &saved, &lost, &invalid, &suspended, &suspending] {
        wait_gone(job, Duration::from_secs(60));
    }
    let store = open_store(&cluster.services.s3, PREFIX);
    let ends = [LedgerState::Cancelled, LedgerState::Stopped, LedgerState::Cancelled, LedgerState::Stopped];
    for (directory, state) in ledgers.iter().zip(ends) {
        let ledger = Ledger::read(&store, directory).await;
        let last = ledger.entries().last().expect("an entry").folded();
        assert_eq!(last.state, state, "{}", ledger.story());
        let taken = last.savepoints.len();
        assert_eq!(taken, usize::from(*directory == ledgers[1]), "{}", ledger.story());
        let close = |kind: &EntryKind| matches!(kind, EntryKind::Started { cause: StartCause::Close, .. });
        let closed = ledger.entries().iter().any(|entry| close(&entry.kind));
        assert_eq!(closed, *directory == ledgers[2] || *directory == ledgers[3], "{}", ledger.story());
    }
    wait_for("no pods", Duration::from_secs(60), || {
        let pods = kubectl(&["-n", &namespace.name, "get", "pods", "-o", "name"]);
        pods.ok()?.trim().is_empty().then_some(())
    });
}

#[test]
fn a_namespace_goes_with_a_job_that_runs_in_it() {
    let Some((cluster, namespace)) = Cluster::with_namespace("deletion") else { return };
    start(&cluster, &namespace, "running", "").wait_checkpoint(1);
    kubectl(&["delete", "namespace", &namespace.name, "--wait=false"]).expect("deleted");
    wait_for("the namespace to be gone", Duration::from_secs(90), || {
        let left = kubectl(&["get", "namespace", &namespace.name, "--ignore-not-found", "-o", "name"]);
        left.ok()?.trim().is_empty().then_some(())
    });
}
