//! The promise: `kubectl drain` empties a node of a job, the budget lets its TaskManagers go one after the other, the job
//! goes on elsewhere, and no restart is spent.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::{Cluster, counting, kubectl};
use std::time::Duration;

const PREFIX: &str = "drain";
const JOB: &str = "counts";

/// A node that takes pods again when the guard is dropped.
struct Drained(String);

impl Drop for Drained {
    fn drop(&mut self) {
        let _ = kubectl(&["uncordon", &self.0]);
    }
}

fn node_of(namespace: &str, pod: &str) -> String {
    kubectl(&["-n", namespace, "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}"]).expect("a pod")
}

fn drain(node: &str) -> Drained {
    let drained = Drained(node.to_owned());
    // Only this job's pods: the node has others, of other tests and of the cluster itself.
    let selector = format!("--pod-selector=sluice.dev/job={JOB}");
    let how = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=25s"];
    kubectl(&[&["drain", node, selector.as_str()] as &[&str], &how].concat()).expect("drained");
    drained
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_is_left_behind_a_checkpoint_and_no_restart_is_spent() {
    let Some(cluster) = Cluster::from_environment() else { return };
    if cluster.nodes().expect("nodes").len() < 2 {
        println!("skipped: a drain takes a second node");
        return;
    }
    let namespace = cluster.namespace("drain").expect("a namespace");
    let extra = "  parallelism: 2\n  stability: {checkpoints: 1, duration: 1s}\n";
    let job = counting::start(&cluster, &namespace, JOB, PREFIX, extra);
    let before = job.wait_checkpoint(2);
    // The JobManager's, so that it goes too.
    let job_manager = job.pods("jobmanager").expect("pods").remove(0);
    let node = node_of(&namespace.name, &job_manager);

    let _drained = drain(&node);
    let status = job.wait_status("a run elsewhere", Duration::from_secs(90), |status| {
        let pods = [job.pods("jobmanager"), job.pods("taskmanager")].map(Result::unwrap_or_default).concat();
        let own = status["lastCheckpoint"]["id"].as_u64() > status["restoredFrom"]["id"].as_u64();
        let elsewhere = pods.len() == 3 && pods.iter().all(|pod| node_of(&namespace.name, pod) != node);
        status["state"] == "Running"
            && own
            && elsewhere
            && status["generation"].as_u64() > before["generation"].as_u64()
    });
    assert_eq!(status["restarts"].as_u64().unwrap_or(0), 0, "{status:#}");
    let ledger = counting::ledger(&cluster, &job, PREFIX).await;
    assert!(ledger.check_restores() >= 1, "{}", ledger.story());
}
