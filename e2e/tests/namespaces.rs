//! The promise: an operator that watches listed namespaces sees nothing of others and needs no right there; upgrading
//! the operator restarts no job.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::{Cluster, apply, counting, kubectl};
use std::time::Duration;

const PREFIX: &str = "namespaces";

/// Installs the operator as it was before, whatever becomes of the test.
struct WatchesAll<'a>(&'a Cluster);

impl Drop for WatchesAll<'_> {
    fn drop(&mut self) {
        let _ = self.0.install_operator(&[]);
    }
}

fn may(verb: &str, resource: &str, namespace: &str) -> bool {
    let account = "--as=system:serviceaccount:sluice-system:sluice";
    kubectl(&["auth", "can-i", verb, resource, "-n", namespace, account]).is_ok()
}

#[test]
fn operator_of_listed_namespaces_sees_nothing_of_others_and_its_upgrade_restarts_no_job() {
    let Some((cluster, watched)) = Cluster::with_namespace("watched") else { return };
    let other = cluster.namespace("other").expect("a namespace");
    let job = counting::start(&cluster, &watched, "counts", PREFIX, "");
    let before = job.wait_checkpoint(1);
    let pods = || {
        let mut pods = kubectl(&["-n", &watched.name, "get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
        pods.as_mut().map(|uids| uids.trim().to_owned()).expect("pods")
    };
    let running = pods();

    let restore = WatchesAll(&cluster);
    cluster.install_operator(&[&format!("watchNamespaces={{{}}}", watched.name)]).expect("upgraded");
    let stranger = counting::start(&cluster, &other, "stranger", PREFIX, "");
    // What is watched is obeyed meanwhile.
    apply(&watched.name, &counting::manifest(&cluster, "counts", PREFIX, "  restartStrategy: {none: {}}\n"))
        .expect("applied");
    let after = job.wait_status("the change in place", Duration::from_secs(60), |status| {
        status["observedGeneration"].as_i64() > before["observedGeneration"].as_i64()
            && status["lastCheckpoint"]["id"].as_u64() > before["lastCheckpoint"]["id"].as_u64()
    });
    assert_eq!((&after["generation"], &after["attempt"]), (&before["generation"], &before["attempt"]), "{after:#}");
    assert_eq!(pods(), running, "pods were replaced");
    assert!(stranger.status().expect("the job").is_null(), "a namespace that is not watched was touched");
    let left = kubectl(&["-n", &other.name, "get", "pods,services", "-o", "name"]).expect("a list");
    assert_eq!(left.trim(), "");
    for (verb, resource) in [("list", "streamjobs.sluice.dev"), ("create", "pods"), ("get", "secrets")] {
        assert!(may(verb, resource, &watched.name), "{verb} {resource}");
        assert!(!may(verb, resource, &other.name), "the controller may {verb} {resource} in another namespace");
    }

    drop(restore);
    stranger.wait_checkpoint(0);
    assert_eq!(pods(), running, "pods were replaced");
}
