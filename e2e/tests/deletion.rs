//! The promise: a deleted StreamJob goes, in good situations with a terminal entry in its ledger, in bad ones all the same.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::job::Job;
use sluice_e2e::{Cluster, Namespace, apply, counting, kubectl};
use sluice_protocol::ledger::{EntryKind, LedgerState, StartCause};
use sluice_test_s3::{Options, TestS3};
use sluice_tests::harness::ledger::{Ledger, open_store};
use sluice_tests::harness::wait_for;
use std::time::Duration;
use tokio::runtime::Runtime;

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

/// A store of one job's own, at the address where pods reach the S3 server of this machine. It goes with its runtime, and so
/// do the connections to it.
async fn start_store(cluster: &Cluster) -> Option<(TestS3, Runtime)> {
    let s3 = &cluster.services.s3;
    let host = cluster.s3_pods.trim_start_matches("http://").split(':').next().unwrap_or_default();
    let options = Options {
        address: format!("{host}:0"),
        access_key_id: s3.access_key.clone(),
        secret_access_key: s3.secret_key.clone(),
        ..Options::default()
    };
    let runtime = Runtime::new().expect("a runtime");
    match runtime.spawn(TestS3::start(options)).await.expect("no panic") {
        Ok(server) => Some((server, runtime)),
        Err(error) => {
            assert!(std::env::var("CI").is_err(), "pods reach no server of this process on {host}: {error}");
            runtime.shutdown_background();
            None
        }
    }
}

/// A job whose checkpoints lie in that store.
fn start_in(store: &TestS3, cluster: &Cluster, namespace: &Namespace, name: &str) -> Job {
    let (theirs, own) =
        (cluster.storage_options(), cluster.storage_options().replace(&cluster.s3_pods, &store.endpoint()));
    let manifest = counting::manifest(cluster, name, PREFIX, "  deletion: {timeout: 10s}\n");
    let bucket = format!("s3://{}/", cluster.services.s3.bucket);
    let manifest = manifest.replace(&theirs, &own).replace(&bucket, "s3://test/");
    apply(&namespace.name, &manifest).expect("applied");
    Job { namespace: namespace.name.clone(), name: name.to_owned() }
}

/// Nobody hears of the deletions at first, one job is in the middle of an upgrade that comes to nothing, and the store of
/// another is gone for good.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_were_deleted_while_no_controller_ran_go_also_in_mid_upgrade_and_without_their_store() {
    let Some((cluster, namespace)) = Cluster::with_namespace("deletion") else { return };
    let running = start(&cluster, &namespace, "unheard", "");
    let upgrading = start(&cluster, &namespace, "upgrading", "");
    let store = start_store(&cluster).await;
    let storeless = store.as_ref().map(|(store, _)| start_in(store, &cluster, &namespace, "storeless"));
    let ledgers = [&running, &upgrading].map(|job| job.directory().expect("the job"));
    for job in [&running, &upgrading].into_iter().chain(&storeless) {
        job.wait_checkpoint(1);
    }
    let bad = "  image: registry.invalid/no-such-image:1\n  deletion: {timeout: 15s}\n";
    apply(&namespace.name, &counting::manifest(&cluster, "upgrading", PREFIX, bad)).expect("applied");
    upgrading.wait_status("the new revision's pod", Duration::from_secs(60), |status| {
        status["revision"] == 2 && status["state"] == "Starting"
    });

    let away = cluster.without_controllers().expect("no controllers");
    if let Some((_, runtime)) = store {
        runtime.shutdown_background();
    }
    for job in [&running, &upgrading].into_iter().chain(&storeless) {
        delete(job);
    }
    drop(away);
    for job in [&running, &upgrading].into_iter().chain(&storeless) {
        wait_gone(job, Duration::from_secs(90));
    }
    let ends = [LedgerState::Cancelled, LedgerState::Stopped];
    for (directory, state) in ledgers.iter().zip(ends) {
        let ledger = Ledger::read(&open_store(&cluster.services.s3, PREFIX), directory).await;
        let last = ledger.entries().last().expect("an entry").folded();
        assert_eq!(last.state, state, "{}", ledger.story());
    }
    if storeless.is_some() {
        let of_it = r#"jsonpath={.items[?(@.regarding.name=="storeless")].reason}"#;
        let events = kubectl(&["-n", &namespace.name, "get", "events.events.k8s.io", "-o", of_it]);
        let events = events.expect("events");
        assert!(events.contains("NotClosed"), "{events}");
    }
}
