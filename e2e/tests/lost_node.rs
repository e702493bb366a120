//! The promise: when a node is lost, its pods running on where nobody hears them, the job goes on elsewhere, and what is
//! left on the node does nothing to it.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking, and says what it skips")]

use sluice_e2e::story::Story;
use sluice_e2e::{Cluster, kubectl};
use sluice_tests::harness::pageviews::Load;
use sluice_tests::harness::wait_for;
use std::time::{Duration, Instant};

const LOAD: Load = Load { seed: 10, events: 80_000, apps: 40, partitions: 4, duration: Duration::from_secs(40) };
/// From when the cluster knows that the node is lost.
const GOES_ON: Duration = Duration::from_secs(30);

fn node_of(namespace: &str, pod: &str) -> String {
    kubectl(&["-n", namespace, "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}"]).expect("the pod")
}

fn is_ready(node: &str) -> bool {
    let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    kubectl(&["get", "node", node, "-o", path]).is_ok_and(|ready| ready == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn job_goes_on_within_seconds_after_its_node_is_lost() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let nodes = cluster.nodes().expect("nodes");
    // The one that the cluster's own pods do not need.
    let node = nodes.last().expect("a node").clone();
    let prefers = format!(
        "{{podTemplate: {{spec: {{affinity: {{nodeAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: [{{weight: 100, preference: {{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]}}}}]}}}}}}}}}}"
    );
    let mut story = Story::begin(cluster, LOAD, &format!("  jobManager: {prefers}\n")).await;
    let before = story.wait_ready(1);
    let namespace = &story.namespace.name;
    assert_eq!(node_of(namespace, "pageviews-1-jm"), node, "the JobManager is not where it prefers to be");

    let Some(lost) = story.cluster.stop_kubelet(&node).expect("stopped") else {
        assert!(std::env::var("CI").is_err(), "CI=true, but SLUICE_TEST_KUBELET names no program that stops a kubelet");
        println!("skipped: SLUICE_TEST_KUBELET names no program that stops a kubelet");
        return;
    };
    wait_for("the node not to be ready", Duration::from_secs(120), || (!is_ready(&node)).then_some(()));
    let known = Instant::now();
    let after = story.job.wait_status("the job elsewhere", Duration::from_secs(120), |status| {
        let own = status["lastCheckpoint"]["id"].as_u64() > before["lastCheckpoint"]["id"].as_u64();
        status["state"] == "Running" && status["generation"] == 2 && own
    });
    let taken = known.elapsed();
    println!("the job went on {taken:?} after the node was NotReady");
    assert!(taken < GOES_ON, "{taken:?}: {after:#}");
    for pod in story.job.pods("taskmanager").expect("pods").iter().filter(|pod| pod.contains("-2-tm-")) {
        assert_ne!(node_of(namespace, pod), node, "{pod} was placed on the lost node");
    }
    story.finish();

    // The node comes back, and with it whatever ran there.
    drop(lost);
    wait_for("the node to be ready", Duration::from_secs(120), || is_ready(&node).then_some(()));
    story.job.wait_checkpoint(after["lastCheckpoint"]["id"].as_u64().expect("a checkpoint") + 2);
    let ledger = story.ledger().await;
    let last = ledger.entries().last().expect("an entry").generation;
    assert_eq!(last.0, 2, "{}", ledger.story());
    assert!(ledger.check_restores() >= 1, "{}", ledger.story());
}
