//! The promise: the packaged charts are installed by the README's commands; jobs go on when the operator is removed and are
//! taken up again when it is back; `kubectl` lists and explains them.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::job::{Job, checkpoint};
use sluice_e2e::{Cluster, counting, kubectl};
use sluice_tests::harness::wait_for;
use std::time::Duration;

const PREFIX: &str = "install";
const COLUMNS: [&str; 9] =
    ["NAME", "STATE", "READY", "RESTARTS", "CHECKPOINT", "CHECKPOINTED", "REVISION", "AGE", "MESSAGE"];
const FIELDS: [(&str, &str); 3] = [
    ("streamjob.spec.checkpointing.interval", "Time between two triggers"),
    ("streamjob.status.lastCheckpoint.completedAt", "When it was complete"),
    ("savepoint.spec.job", "StreamJob"),
];

/// Installs the operator as it was before, whatever becomes of the test.
struct Installed<'a>(&'a Cluster);

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        let _ = self.0.install();
    }
}

/// Ids of its pods, in the order of their names.
fn pods(job: &Job) -> String {
    let label = format!("sluice.dev/job={}", job.name);
    let ids = ["get", "pods", "-l", &label, "-o", "jsonpath={.items[*].metadata.uid}"];
    kubectl(&[&["-n", job.namespace.as_str()] as &[&str], &ids].concat()).expect("pods")
}

/// What of the cluster's own kinds belongs to the release.
fn left_of_release() -> String {
    let kinds = "clusterroles,clusterrolebindings";
    let label = "app.kubernetes.io/instance=sluice";
    kubectl(&["get", kinds, "-l", label, "-o", "name"]).expect("a list")
}

fn check_what_kubectl_shows(job: &Job) {
    let namespace = &job.namespace;
    let list = kubectl(&["-n", namespace, "get", "sj", "-o", "wide"]).expect("a table");
    let header: Vec<&str> = list.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, COLUMNS, "{list}");
    let row = list.lines().nth(1).unwrap_or_default();
    assert!(row.starts_with("counts ") && row.contains("Running"), "{list}");
    let all = kubectl(&["-n", namespace, "get", "sluice", "-o", "name"]).expect("the category");
    assert_eq!(all.trim(), "streamjob.sluice.dev/counts");
    for (field, says) in FIELDS {
        let text = kubectl(&["explain", field]).expect("an explanation");
        assert!(text.contains(says) && !text.contains("<empty>"), "{text}");
    }
}

#[test]
fn packaged_charts_are_installed_and_jobs_go_on_while_there_is_no_operator() {
    let Some((cluster, namespace)) = Cluster::with_namespace("install") else { return };
    let job = counting::start(&cluster, &namespace, "counts", PREFIX, "");
    let leaving = counting::start(&cluster, &namespace, "leaving", PREFIX, "");
    let before = job.wait_checkpoint(1);
    leaving.wait_checkpoint(1);
    let running = pods(&job);
    let page = || job.page_of("counts-1-jm").and_then(|page| page["lastCheckpoint"]["id"].as_u64());
    let packages = cluster.package_charts().expect("packages");

    let installed = Installed(&cluster);
    cluster.uninstall().expect("uninstalled");
    assert_eq!(left_of_release(), "", "rights that nobody needs any more");
    kubectl(&["-n", &namespace.name, "delete", "streamjob", "leaving", "--wait=false"]).expect("deleted");
    let heard = checkpoint(&job.status().expect("the StreamJob is kept"));
    wait_for("checkpoints without an operator", Duration::from_secs(20), || (page()? > heard + 2).then_some(()));
    assert_eq!(checkpoint(&job.status().expect("a status")), heard, "there is an operator still");
    assert!(leaving.get().is_ok_and(|job| job["metadata"]["deletionTimestamp"].is_string()), "its finalizer holds it");

    cluster.install_packages(&packages).expect("installed");
    let after = job.wait_checkpoint(heard + 2);
    assert_eq!((&after["generation"], &after["attempt"]), (&before["generation"], &before["attempt"]), "{after:#}");
    assert_eq!(pods(&job), running, "pods were replaced");
    wait_for("the deleted job to be gone", Duration::from_secs(60), || {
        let left = kubectl(&["-n", &namespace.name, "get", "sj", "leaving", "--ignore-not-found", "-o", "name"]);
        left.ok()?.trim().is_empty().then_some(())
    });
    check_what_kubectl_shows(&job);
    drop(installed);
    assert_eq!(pods(&job), running, "pods were replaced");
}
