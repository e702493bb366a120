//! The promise: a JobManager that everyone believed dead and that wakes up commits, deletes and appends nothing.
//!
//! Needs the right to signal the pods' processes: on clusters whose nodes are elsewhere it skips.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use nix::sys::signal::{Signal, kill};
use sluice_e2e::job::{Job, checkpoint};
use sluice_e2e::{Cluster, apply, kubectl};
use std::time::Duration;

#[test]
fn woken_job_manager_is_superseded() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let namespace = cluster.namespace("zombie").expect("a namespace");
    let (bucket, options) = (&cluster.services.s3.bucket, cluster.storage_options());
    apply(&namespace.name, &format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: zombie}}\nspec:\n  program:\n    sql: |\n      CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='1000', 'fields.k.min'='1', 'fields.k.max'='9'); CREATE TABLE t (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole'); INSERT INTO t SELECT k, COUNT(*) AS c FROM s GROUP BY k;\n  checkpointing: {{interval: 1s, storage: \"s3://{bucket}/zombie\", storageOptions: {options}}}\n"
    )).expect("applied");
    let job = Job { namespace: namespace.name.clone(), name: "zombie".to_owned() };
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
