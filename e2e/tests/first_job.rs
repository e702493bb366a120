//! The promise: a StreamJob counts real page views on a real cluster, and a kill does not change one count.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use sluice_e2e::client::sluice;
use sluice_e2e::job::{Job, checkpoint, condition, restored};
use sluice_e2e::story::Story;
use sluice_e2e::{Cluster, Namespace, kubectl};
use sluice_protocol::ledger::CheckpointKey;
use sluice_protocol::{CheckpointId, Generation};
use sluice_tests::harness::pageviews::Load;
use sluice_tests::harness::wait_for;
use std::time::Duration;

const LOAD: Load = Load { seed: 3, events: 200_000, apps: 60, partitions: 4, duration: Duration::from_secs(60) };
/// How often both pods are killed at most, until a kill falls into a checkpoint.
const TRIES: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn killed_pods_change_no_count() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let mut story = Story::begin_as(cluster, LOAD, with_credentials_from_a_secret).await;
    command_by_name(&story);
    kill_task_manager(&story.job);
    kill_job_manager(&story.job);
    let tries = kill_both_in_checkpoint(&story).await;
    story.finish();

    let ledger = story.ledger().await;
    assert_eq!(ledger.check_restores() as u64, 2 + tries, "{}", ledger.story());
    check_what_a_person_sees(&story, 2 + tries);

    // Deletion removes Kubernetes objects.
    let Story { namespace, job, .. } = &story;
    kubectl(&["-n", &namespace.name, "delete", "streamjob", "pageviews", "--timeout=60s"]).expect("deleted");
    wait_for("no pods", Duration::from_secs(60), || {
        (job.pods("jobmanager").ok()?.is_empty() && job.pods("taskmanager").ok()?.is_empty()).then_some(())
    });
}

/// Kafka's tables take credentials from a Secret, though this broker asks for none: without its value no client is made.
fn with_credentials_from_a_secret(namespace: &Namespace, manifest: String) -> String {
    let jaas = "--from-literal=jaas=org.apache.kafka.common.security.plain.PlainLoginModule required \
                username=\"reader\" password=\"of nobody\";";
    kubectl(&["-n", &namespace.name, "create", "secret", "generic", "kafka", jaas]).expect("made");
    let options = "'properties.sasl.jaas.config'='${secret:kafka/jaas}', 'properties.bootstrap.servers'=";
    let edited = manifest.replace("'properties.bootstrap.servers'=", options);
    assert_ne!(edited, manifest);
    edited
}

/// `sluice -n NAMESPACE JOB` through the kubeconfig, with the job's certificate and without a port forward of one's own.
fn command_by_name(story: &Story) {
    let namespace = story.namespace.name.as_str();
    story.job.wait_checkpoint(1);
    let listed = sluice(&["list", "-n", namespace]).expect("listed");
    let line = listed.lines().find(|line| line.contains("pageviews")).unwrap_or_else(|| panic!("{listed}"));
    assert!(line.contains(namespace) && line.contains("Running"), "{listed}");
    sluice(&["log-level", "info,sluice_node=debug", "-n", namespace, "pageviews"]).expect("changed");
    let path = sluice(&["checkpoint", "trigger", "-n", namespace, "pageviews"]).expect("taken");
    assert!(path.starts_with("s3://") && path.contains("/chk-"), "{path}");
    let logs = sluice(&["logs", "-n", namespace, "pageviews", "--tail", "2000"]).expect("logs");
    for pod in ["pageviews-1-jm", "pageviews-1-tm-0", "pageviews-1-tm-1"] {
        let lines = logs.lines().filter(|line| line.starts_with(pod)).count();
        assert!(lines > 0, "no line of {pod} in:\n{logs}");
    }
    assert!(logs.contains("DEBUG"), "the level was not changed:\n{logs}");
    for (command, said) in [("cancel", "has no StreamJob 'pageview'"), ("logs", "has no StreamJob 'pageview'")] {
        let refused = sluice(&[command, "-n", namespace, "pageview"]).expect_err("there is no such job").to_string();
        assert!(refused.contains(said), "{refused}");
    }
}

/// A TaskManager pod: replaced within the generation.
fn kill_task_manager(job: &Job) {
    let status = job.wait_checkpoint(1);
    assert_eq!(status["generation"], 1);
    let victims = job.pods("taskmanager").expect("pods");
    assert_eq!(victims.len(), 2);
    job.kill_pods(&[&victims[0]]).expect("killed");
    let after = job.wait_status("the second attempt", Duration::from_secs(90), |status| {
        status["state"] == "Running" && status["attempt"] == 2
    });
    assert!(restored(&after) >= checkpoint(&status), "{after:#}");
    assert_eq!(after["generation"], 1);
    let pods = job.pods("taskmanager").expect("pods");
    assert!(pods.contains(&"pageviews-1-tm-2".to_owned()), "the next index was not used: {pods:?}");
}

/// The JobManager pod: the next generation.
fn kill_job_manager(job: &Job) {
    let status = job.status().expect("a status");
    let before = checkpoint(&job.wait_checkpoint(checkpoint(&status)));
    job.kill_pods(&["pageviews-1-jm"]).expect("killed");
    let after = wait_generation(job, 2);
    assert!(restored(&after) >= before, "{after:#}");
}

fn wait_generation(job: &Job, generation: u64) -> Value {
    job.wait_status("the next generation", Duration::from_secs(90), |status| {
        status["state"] == "Running" && status["generation"] == generation && restored(status) > 0
    })
}

/// Both pods, the kill falling into a checkpoint: it is pending then, neither complete nor given up. Says how many
/// kills that took.
async fn kill_both_in_checkpoint(story: &Story) -> u64 {
    let job = &story.job;
    for number in 1..=TRIES {
        let before = job.status().expect("a status");
        let before = job.wait_checkpoint(checkpoint(&before));
        let pending = kill_both(job, &before);
        let status = wait_generation(job, pending.generation.0 + 1);
        let ledger = story.ledger().await;
        let generation = Generation(pending.generation.0 + 1);
        assert_eq!(restored(&status), ledger.restored_by(generation).0, "{status:#}");
        if ledger.ended_pending(pending) {
            return number;
        }
    }
    panic!("in {TRIES} tries no kill fell into a pending checkpoint");
}

/// Kills a TaskManager and the JobManager while a checkpoint is pending, and says which.
fn kill_both(job: &Job, status: &Value) -> CheckpointKey {
    let generation = status["generation"].as_u64().expect("a generation");
    let job_manager = format!("pageviews-{generation}-jm");
    let task_manager = job.pods("taskmanager").expect("pods").pop().expect("a pod");
    // A TaskManager that hangs acknowledges nothing, so that the next checkpoint stays pending.
    job.suspend_pod(&task_manager).expect("suspended");
    let id = wait_for("a pending checkpoint", Duration::from_secs(20), || {
        job.page_of(&job_manager)?["pendingCheckpoints"].as_array()?.last()?.as_u64()
    });
    // The JobManager first, so that it does not see the other go and give the checkpoint up.
    job.kill_pods(&[&job_manager, &task_manager]).expect("killed");
    CheckpointKey { generation: Generation(generation), id: CheckpointId(id) }
}

fn check_what_a_person_sees(story: &Story, kills: u64) {
    let Story { namespace, job, .. } = story;
    let line = kubectl(&["-n", &namespace.name, "get", "streamjobs"]).expect("a table");
    assert!(line.contains("Running"), "{line}");
    let ready = job.wait_status("Ready", Duration::from_secs(60), |status| {
        condition(status, "Ready").is_some_and(|(value, ..)| value == "True")
    });
    assert!(condition(&ready, "Degraded").is_none_or(|(value, ..)| value == "False"), "{ready:#}");
    assert_eq!(ready["restarts"].as_u64(), Some(kills), "{ready:#}");
    let events = kubectl(&["-n", &namespace.name, "get", "events"]).expect("events");
    // Whether the lost TaskManager's own connection or one between TaskManagers breaks first, nobody can say.
    for word in ["TaskManagerReplaced", "JobManagerLost", "restored from checkpoint"] {
        assert!(events.contains(word), "no '{word}' in:\n{events}");
    }
}
