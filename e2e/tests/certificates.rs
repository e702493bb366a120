//! The promise: a Secret with a job's certificates that somebody deletes or damages is mended before pods rest on it, and
//! the processes that run go on with theirs.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use sluice_e2e::job::{Job, checkpoint, restored};
use sluice_e2e::{Cluster, counting, kubectl};
use std::time::Duration;

const PREFIX: &str = "certificates";
const JOB: &str = "counts";
const SECRET: &str = "counts-tls";

fn data(namespace: &str) -> Value {
    let text = kubectl(&["-n", namespace, "get", "secret", SECRET, "-o", "json"]).expect("the Secret");
    serde_json::from_str::<Value>(&text).expect("JSON")["data"].take()
}

fn kill(job: &Job, role: &str) {
    let pods = job.pods(role).expect("pods");
    job.kill_pods(&pods.iter().map(String::as_str).collect::<Vec<_>>()).expect("killed");
}

fn wait_restarted(job: &Job, times: u64) {
    job.wait_status(&format!("restart {times}"), Duration::from_secs(90), |status| {
        status["state"] == "Running" && status["restarts"] == times && checkpoint(status) > restored(status)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_deleted_or_damaged_is_made_again_before_pods_rest_on_it() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let namespace = cluster.namespace("certificates").expect("a namespace");
    let job = counting::start(&cluster, &namespace, JOB, PREFIX, "");
    let running = job.wait_checkpoint(1);
    let before = data(&namespace.name);

    kubectl(&["-n", &namespace.name, "delete", "secret", SECRET]).expect("deleted");
    job.wait_checkpoint(checkpoint(&running) + 2);
    kill(&job, "taskmanager");
    wait_restarted(&job, 1);
    assert_eq!(
        data(&namespace.name),
        before,
        "the same authority: the JobManager, which went on, believes the new TaskManager"
    );

    let damage = r#"{"data": {"jobmanager.crt": "bm9uZQ==", "signer.key": null}}"#;
    kubectl(&["-n", &namespace.name, "patch", "secret", SECRET, "--type=merge", "-p", damage]).expect("damaged");
    kill(&job, "jobmanager");
    wait_restarted(&job, 2);
    assert_eq!(data(&namespace.name)["ca.crt"], before["ca.crt"]);
    let ledger = counting::ledger(&cluster, &job, PREFIX).await;
    assert!(ledger.check_restores() >= 2, "{}", ledger.story());
}
