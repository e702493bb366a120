//! The promise: a Secret with a job's certificates that somebody deletes or damages is mended before pods rest on it, one
//! whose certificates or authority have served their time is renewed, and the processes that run go on with theirs.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use sluice_e2e::job::{Job, checkpoint, restored};
use sluice_e2e::{Cluster, counting, kubectl};
use std::time::Duration;

const PREFIX: &str = "certificates";
const JOB: &str = "counts";
const SECRET: &str = "counts-tls";

/// What stays when certificates are made anew.
const AUTHORITY: [&str; 3] = ["ca.crt", "signer.crt", "signer.key"];
const LEAVES: [&str; 3] = ["tls.crt", "jobmanager.crt", "taskmanager.crt"];
/// The kubelet brings a changed Secret into pods within a minute and a half.
const REFRESH: Duration = Duration::from_secs(100);
const DAY_MS: u64 = 86_400_000;

fn data(namespace: &str) -> Value {
    let text = kubectl(&["-n", namespace, "get", "secret", SECRET, "-o", "json"]).expect("the Secret");
    serde_json::from_str::<Value>(&text).expect("JSON")["data"].take()
}

fn assert_is_same(before: &Value, after: &Value, keys: &[&str]) {
    for key in keys {
        assert!(before[key].is_string() && before[key] == after[key], "{key} has changed");
    }
}

/// Makes what the Secret says of its age older by so many milliseconds: `authoritySince`, `leavesSince`, `nextSince`.
fn age(namespace: &str, ages: &[(&str, u64)]) {
    let path = r"jsonpath={.metadata.annotations.sluice\.dev/certificates}";
    let text = kubectl(&["-n", namespace, "get", "secret", SECRET, "-o", path]).expect("the Secret");
    let mut held: Value = serde_json::from_str(&text).expect("JSON");
    for (field, by) in ages {
        held[field] = json!(held[field].as_u64().expect("a time") - by);
    }
    let note = format!("sluice.dev/certificates={held}");
    kubectl(&["-n", namespace, "annotate", "--overwrite", "secret", SECRET, &note]).expect("annotated");
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
    let Some((cluster, namespace)) = Cluster::with_namespace("certificates") else { return };
    let job = counting::start(&cluster, &namespace, JOB, PREFIX, "");
    let running = job.wait_checkpoint(1);
    let before = data(&namespace.name);

    kubectl(&["-n", &namespace.name, "delete", "secret", SECRET]).expect("deleted");
    job.wait_checkpoint(checkpoint(&running) + 2);
    kill(&job, "taskmanager");
    wait_restarted(&job, 1);
    // The same authority: the JobManager, which went on, believes the new TaskManager.
    assert_is_same(&before, &data(&namespace.name), &AUTHORITY);

    let damage = r#"{"data": {"jobmanager.crt": "bm9uZQ==", "signer.key": null}}"#;
    kubectl(&["-n", &namespace.name, "patch", "secret", SECRET, "--type=merge", "-p", damage]).expect("damaged");
    kill(&job, "jobmanager");
    wait_restarted(&job, 2);
    assert_is_same(&before, &data(&namespace.name), &AUTHORITY[..1]);
    let ledger = counting::ledger(&cluster, &job, PREFIX).await;
    assert!(ledger.check_restores() >= 2, "{}", ledger.story());
}

/// The controller looks at the Secret when it makes pods; what it finds due it does.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_have_served_their_time_are_renewed_and_the_job_manager_goes_on() {
    let Some((cluster, namespace)) = Cluster::with_namespace("renewal") else { return };
    let job = counting::start(&cluster, &namespace, JOB, PREFIX, "");
    job.wait_checkpoint(1);
    let job_manager = job.pods("jobmanager").expect("pods");
    let first = data(&namespace.name);

    age(&namespace.name, &[("leavesSince", 21 * DAY_MS)]);
    kill(&job, "taskmanager");
    wait_restarted(&job, 1);
    let renewed = data(&namespace.name);
    assert_is_same(&first, &renewed, &AUTHORITY);
    assert!(LEAVES.iter().all(|key| renewed[key].is_string() && renewed[key] != first[key]), "all are new");

    if std::env::var_os("SLUICE_SOAK").is_some() {
        follow_authority(&job, &renewed);
    }
    assert_eq!(job.pods("jobmanager").expect("pods"), job_manager, "it takes what is new without a restart");
    let ledger = counting::ledger(&cluster, &job, PREFIX).await;
    assert!(ledger.check_restores() >= 1, "{}", ledger.story());
}

/// The next authority is believed, signs, and is believed alone, each with time for the pods to hear of it.
fn follow_authority(job: &Job, renewed: &Value) {
    let namespace = &job.namespace;
    age(namespace, &[("authoritySince", 245 * DAY_MS)]);
    kill(job, "taskmanager");
    wait_restarted(job, 2);
    let introduced = data(namespace);
    assert!(introduced["next.crt"].is_string() && introduced["ca.crt"] != renewed["ca.crt"], "a next one is believed");
    assert_is_same(renewed, &introduced, &AUTHORITY[1..]);
    std::thread::sleep(REFRESH);
    age(namespace, &[("nextSince", DAY_MS)]);
    kill(job, "taskmanager");
    wait_restarted(job, 3);
    let switched = data(namespace);
    assert_eq!((&switched["signer.crt"], &switched["next.crt"]), (&introduced["next.crt"], &Value::Null));
}
