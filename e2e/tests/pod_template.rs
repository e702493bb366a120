//! The promise: each role's `podTemplate` is merged into its pods, which then run where, as whom and beside what it says; a
//! container that is added and runs on keeps neither a lost TaskManager nor an ended job alive.
//!
//! CI looks at the end of the job, `cargo soak --cluster` also at that of its pods.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use sluice_e2e::job::Job;
use sluice_e2e::{Cluster, Namespace, apply, counting, create_raw, kubectl};
use sluice_tests::harness::wait_for;
use std::time::Duration;

const PREFIX: &str = "pod-template";
const JOB: &str = "counts";
/// At 1,000 a second: long enough for a loss and what follows it.
const ROWS: &str = "'rows-per-second'='1000', 'number-of-rows'='30000'";
/// Where EKS puts the token by which S3 knows a service account.
const TOKEN: &str = "/var/run/secrets/eks.amazonaws.com/serviceaccount";
const AUDIENCE: &str = "sts.amazonaws.com";
/// What the container beside the job's own one runs, without an end.
const SIDE: &str = "CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='1'); CREATE TABLE t (k BIGINT) WITH ('connector'='print'); INSERT INTO t SELECT k FROM s;";

/// A `podTemplate` in one line: a service account, a node, a volume with a token of that account, and a container.
fn template(cluster: &Cluster, main: &str, node: &str) -> Value {
    let side = json!({
        "name": "side", "image": cluster.runtime_image(), "imagePullPolicy": "IfNotPresent",
        "args": ["run", "/side/job.yaml", "--rest-port", "0"],
        "volumeMounts": [{"name": "side", "mountPath": "/side"}],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    let token = json!({"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"});
    json!({
        "metadata": {"labels": {"team": "web"}},
        "spec": {
            "serviceAccountName": main,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "volumes": [
                {"name": "side", "configMap": {"name": "side"}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
            ],
            "containers": [
                {"name": main, "env": [{"name": "RUST_LOG", "value": "info,sluice_node=debug"}],
                 "volumeMounts": [{"name": "token", "mountPath": TOKEN}]},
                side,
            ],
        },
    })
}

fn prepare(namespace: &Namespace) {
    let side = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: side}}\nspec: {{program: {{sql: \"{SIDE}\"}}}}\n"
    );
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "side"}, "data": {"job.yaml": side}});
    apply(&namespace.name, &config.to_string()).expect("a ConfigMap");
    for account in ["jobmanager", "taskmanager"] {
        kubectl(&["-n", &namespace.name, "create", "serviceaccount", account]).expect("a service account");
    }
}

/// The pod as the API server has it: what the template says is there, and so is what it does not say.
fn check_pod(namespace: &str, name: &str, main: &str, node: &str) {
    let pod = kubectl(&["-n", namespace, "get", "pod", name, "-o", "json"]).expect("a pod");
    let pod: Value = serde_json::from_str(&pod).expect("JSON");
    let (spec, labels) = (&pod["spec"], &pod["metadata"]["labels"]);
    assert_eq!((&labels["team"], &labels["sluice.dev/job"]), (&"web".into(), &JOB.into()), "{pod:#}");
    assert_eq!((&spec["nodeName"], &spec["serviceAccountName"]), (&node.into(), &main.into()), "{pod:#}");
    assert_eq!((&spec["automountServiceAccountToken"], &spec["restartPolicy"]), (&false.into(), &"Never".into()));
    let statuses = pod["status"]["containerStatuses"].as_array().expect("statuses");
    let running =
        |name: &str| statuses.iter().any(|status| status["name"] == name && status["state"]["running"].is_object());
    assert!(running(main) && running("side"), "{statuses:#?}");
}

/// What the containers themselves see.
fn check_containers(job: &Job, pod: &str, main: &str) {
    let logs = |container: &str| kubectl(&["-n", &job.namespace, "logs", pod, "-c", container]).expect("logs");
    assert!(logs(main).contains("DEBUG"), "RUST_LOG has not reached {pod}");
    wait_for("rows beside the job", Duration::from_secs(10), || logs("side").contains("+I[").then_some(()));
    // Where the node is this machine.
    let Some(process) = job.process_of(pod) else { return };
    let token = std::fs::read_to_string(format!("/proc/{process}/root{TOKEN}/token")).expect("the token");
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]}});
    let review = create_raw("/apis/authentication.k8s.io/v1/tokenreviews", &review.to_string()).expect("a review");
    let review: Value = serde_json::from_str(&review).expect("JSON");
    let account = format!("system:serviceaccount:{}:{main}", job.namespace);
    assert_eq!(review["status"]["user"]["username"], account.as_str(), "{}", review["status"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_as_their_templates_say_and_a_container_that_runs_on_holds_up_nothing() {
    let Some((cluster, namespace)) = Cluster::with_namespace("template") else { return };
    let nodes = cluster.nodes().expect("nodes");
    let (first, last) = (nodes.first().expect("a node"), nodes.last().expect("a node"));
    prepare(&namespace);
    let roles = [("jobManager", "jobmanager", last), ("taskManager", "taskmanager", first)];
    let extra = roles
        .map(|(field, main, node)| format!("  {field}: {}\n", json!({"podTemplate": template(&cluster, main, node)})));
    let manifest = counting::manifest(&cluster, JOB, PREFIX, &extra.concat());
    apply(&namespace.name, &manifest.replace("'rows-per-second'='1000'", ROWS)).expect("applied");
    let job = Job { namespace: namespace.name.clone(), name: JOB.to_owned() };
    job.wait_checkpoint(1);
    for (_, main, node) in roles {
        let pod = job.pods(main).expect("pods").pop().expect("a pod");
        check_pod(&namespace.name, &pod, main, node);
        check_containers(&job, &pod, main);
    }

    let lost = job.pods("taskmanager").expect("pods").pop().expect("a pod");
    job.kill_pods(&[&lost]).expect("killed");
    job.wait_status("another attempt", Duration::from_secs(60), |status| {
        status["state"] == "Running" && status["attempt"] == 2 && status["restarts"] == 1
    });
    job.wait_status("the end", Duration::from_secs(90), |status| status["state"] == "Finished");
    // They go a minute after the end.
    if std::env::var_os("SLUICE_SOAK").is_some() {
        wait_for("no pods", Duration::from_secs(120), || {
            let pods = kubectl(&["-n", &namespace.name, "get", "pods", "-o", "name"]);
            pods.ok()?.trim().is_empty().then_some(())
        });
    }
    let ledger = counting::ledger(&cluster, &job, PREFIX).await;
    assert!(ledger.check_restores() >= 1, "{}", ledger.story());
}
