//! The promise: a JobManager that everyone believed dead and that wakes up commits, deletes and appends nothing; and
//! nobody without a certificate of the job's can command the living one.
//!
//! Needs the right to signal the pods' processes: on clusters whose nodes are elsewhere it skips.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use nix::sys::signal::{Signal, kill};
use sluice_e2e::client::{Forward, certificate};
use sluice_e2e::job::{Job, checkpoint};
use sluice_e2e::{Cluster, counting, kubectl};
use std::path::Path;
use std::time::Duration;

/// All that is said over port 6123 is mTLS, by role.
fn only_a_client_may_command(job: &Job) {
    let Job { namespace, name } = job;
    let pod = job.pods("jobmanager").expect("pods").pop().expect("a JobManager");
    // Each by a port forward of its own: a connection that the pod closes may end it.
    let run = |command: &[&str], certificate: Option<&Path>| {
        Forward::to(namespace, &pod).expect("a port forward").run(command, certificate)
    };
    let refused = run(&["cancel"], None).expect_err("a plain client is refused").to_string();
    assert!(!refused.contains("Connection refused"), "nothing was asked: {refused}");
    let task_manager = certificate(namespace, name, Some("taskmanager")).expect("the Secret");
    let refused = run(&["cancel"], Some(&task_manager)).expect_err("a TaskManager is refused").to_string();
    assert!(refused.contains("'taskmanager' may not"), "{refused}");
    let client = certificate(namespace, name, None).expect("the Secret");
    let path = run(&["checkpoint", "trigger"], Some(&client)).expect("a client may, and the job runs on");
    assert!(path.contains("chk-"), "{path}");
    for directory in [task_manager, client] {
        std::fs::remove_dir_all(directory).expect("removed");
    }
}

#[test]
fn woken_job_manager_is_superseded() {
    let Some((cluster, namespace)) = Cluster::with_namespace("zombie") else { return };
    let job = counting::start(&cluster, &namespace, "zombie", "zombie", "");
    job.wait_checkpoint(1);
    only_a_client_may_command(&job);
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
