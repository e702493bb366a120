//! The promise: what Kubernetes refuses (an image, a quota, a node, a Secret) is named in the conditions within seconds,
//! spends no restart, and the job runs once it is mended.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::job::{Job, condition};
use sluice_e2e::{Cluster, Namespace, apply, counting, kubectl};
use std::time::Duration;

const PREFIX: &str = "refusals";
const NO_SUCH_IMAGE: &str = "  image: registry.invalid/no-such-image:1\n";
const NO_SUCH_NODE: &str = "  taskManager: {podTemplate: {spec: {nodeSelector: {no-such: node}}}}\n";

/// Degraded with one of these reasons and these words, within seconds, and without a restart.
fn expect_degraded(job: &Job, reasons: &[&str], words: &[&str]) {
    let status = job.wait_status(&format!("{} to say {reasons:?}", job.name), Duration::from_secs(20), |status| {
        condition(status, "Degraded").is_some_and(|(value, said, message)| {
            value == "True" && reasons.contains(&said.as_str()) && words.iter().all(|word| message.contains(word))
        })
    });
    assert_eq!(status["restarts"].as_u64().unwrap_or(0), 0, "{}: {status:#}", job.name);
}

fn expect_running(job: &Job) {
    let status = job.wait_checkpoint(0);
    assert_eq!(status["restarts"].as_u64().unwrap_or(0), 0, "{}: {status:#}", job.name);
    job.wait_status("nothing degraded", Duration::from_secs(60), |status| {
        condition(status, "Degraded").is_some_and(|(value, ..)| value == "False")
    });
}

fn start(cluster: &Cluster, namespace: &Namespace, name: &str, extra: &str) -> Job {
    counting::start(cluster, namespace, name, PREFIX, extra)
}

#[test]
fn what_kubernetes_refuses_is_named_and_the_job_runs_once_it_is_mended() {
    let Some((cluster, namespace)) = Cluster::with_namespace("refusals") else { return };
    let small = cluster.namespace("quota").expect("a namespace");
    apply(&small.name, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: small}\nspec: {hard: {pods: \"1\"}}\n")
        .expect("a quota");
    let image = start(&cluster, &namespace, "image", NO_SUCH_IMAGE);
    let node = start(&cluster, &namespace, "node", NO_SUCH_NODE);
    let secret = {
        let manifest = counting::manifest(&cluster, "secret", PREFIX, "")
            .replace("credentialsSecret: s3", "credentialsSecret: later");
        apply(&namespace.name, &manifest).expect("applied");
        Job { namespace: namespace.name.clone(), name: "secret".to_owned() }
    };
    let quota = start(&cluster, &small, "quota", "");

    expect_degraded(&quota, &["QuotaExceeded"], &["exceeded quota: small"]);
    expect_degraded(&node, &["Unschedulable"], &["-tm-"]);
    expect_degraded(&secret, &["CreateContainerConfigError"], &["later"]);
    // The kubelet says the one or the other, in turns.
    expect_degraded(&image, &["ErrImagePull", "ImagePullBackOff"], &["no-such-image"]);

    kubectl(&["-n", &small.name, "delete", "resourcequota", "small"]).expect("the quota lifted");
    namespace
        .create_secret("later", &cluster.services.s3.access_key, &cluster.services.s3.secret_key)
        .expect("a secret");
    for (job, name) in [(&image, "image"), (&node, "node")] {
        apply(&job.namespace, &counting::manifest(&cluster, name, PREFIX, "")).expect("mended");
    }
    for job in [&quota, &secret, &image, &node] {
        expect_running(job);
    }
}
