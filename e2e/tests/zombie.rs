//! The promise: a JobManager that everyone believed dead and that wakes up commits, deletes and appends nothing.
//!
//! Needs the right to signal the pods' processes: on clusters whose nodes are elsewhere it skips.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use nix::sys::signal::{Signal, kill};
use sluice_e2e::job::checkpoint;
use sluice_e2e::{Cluster, counting, kubectl};
use std::time::Duration;

#[test]
fn woken_job_manager_is_superseded() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let namespace = cluster.namespace("zombie").expect("a namespace");
    let job = counting::start(&cluster, &namespace, "zombie", "zombie", "");
    job.wait_checkpoint(1);
    let pod = job.pods("jobmanager").expect("pods").pop().expect("a JobManager");
    let Some(process) = job.process_of(&pod) else {
        println!("skipped: the nodes' processes are not on this machine");
        return;
    };
    kill(process, Signal::SIGSTOP).expect("suspended");
    // The pod does not answer its readiness probe; an impatient person deletes it, and it cannot hear that.
    kubectl(&["-n", &namespace.name, "delete", "pod", &pod, "--grace-period=0", "--force"]).expect("deleted");
    let status = job.wait_status("the next generation", Duration::from_secs(120), |status| {
        status["state"] == "Running" && status["generation"] == 2 && checkpoint(status) > 0
    });
    let _ = kill(process, Signal::SIGCONT);
    let later = job.wait_checkpoint(checkpoint(&status) + 2);
    assert_eq!(later["generation"], 2, "{later:#}");
}
