//! The promise: `kubectl get savepoints` tells of every snapshot that was asked for, each is taken once whoever is lost
//! meanwhile, those of a schedule are made and limited, and files go with their object only when asked.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use sluice_e2e::job::{Job, checkpoint};
use sluice_e2e::{Cluster, Namespace, apply, kubectl};
use sluice_storage::ObjectStore as _;
use sluice_tests::harness::ledger::open_store;
use sluice_tests::harness::wait_for;
use std::collections::BTreeSet;
use std::time::Duration;

/// Below the bucket.
const PREFIX: &str = "savepoints";
const WAIT: Duration = Duration::from_secs(60);

struct Story {
    cluster: Cluster,
    namespace: Namespace,
    job: Job,
}

impl Story {
    /// A job that counts, with `extra` lines in its spec.
    fn begin(cluster: Cluster, name: &str, extra: &str) -> Self {
        let namespace = cluster.namespace(name).expect("a namespace");
        let story =
            Self { job: Job { namespace: namespace.name.clone(), name: "counts".to_owned() }, cluster, namespace };
        story.apply_job(extra);
        story.job.wait_checkpoint(1);
        story
    }

    fn apply_job(&self, extra: &str) {
        let (bucket, options) = (&self.cluster.services.s3.bucket, self.cluster.storage_options());
        let manifest = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: counts}}\nspec:\n  program:\n    sql: |\n      \
             CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='1000', 'fields.k.min'='1', \
             'fields.k.max'='9'); CREATE TABLE t (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH \
             ('connector'='blackhole'); INSERT INTO t SELECT k, COUNT(*) AS c FROM s GROUP BY k;\n  checkpointing: {{interval: \
             1s, storage: \"s3://{bucket}/{PREFIX}\", storageOptions: {options}}}\n{extra}"
        );
        apply(&self.namespace.name, &manifest).expect("applied");
    }

    fn ask(&self, name: &str, spec: &str) {
        let manifest = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: Savepoint\nmetadata: {{name: {name}}}\nspec: {{job: counts{spec}}}\n"
        );
        apply(&self.namespace.name, &manifest).expect("applied");
    }

    fn get(&self, name: &str) -> Option<Value> {
        let text = kubectl(&["-n", &self.namespace.name, "get", "savepoint", name, "-o", "json"]).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn wait_phase(&self, name: &str, phase: &str) -> Value {
        wait_for(&format!("{name} to be {phase}"), WAIT, || {
            let status = self.get(name)?["status"].take();
            (status["phase"] == phase).then_some(status)
        })
    }

    fn delete(&self, name: &str) {
        kubectl(&["-n", &self.namespace.name, "delete", "savepoint", name, "--timeout=60s"]).expect("deleted");
    }

    /// Whether the files of a savepoint are there.
    async fn has_files(&self, path: &str) -> bool {
        let bucket = &self.cluster.services.s3.bucket;
        let key = path.strip_prefix(&format!("s3://{bucket}/{PREFIX}/")).expect("is in the bucket");
        open_store(&self.cluster.services.s3, PREFIX)
            .get(&format!("{key}/_metadata"))
            .await
            .expect("the store")
            .is_some()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn savepoints_on_demand_are_taken_once_and_told_of() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let story = Story::begin(cluster, "savepoints", "");
    story.ask("first", "");
    let status = story.wait_phase("first", "Completed");
    let path = status["path"].as_str().expect("a path").to_owned();
    assert!(story.has_files(&path).await, "{path}");
    assert!(status["bytes"].as_u64().is_some_and(|bytes| bytes > 0) && status["duration"].is_string(), "{status:#}");
    let table = kubectl(&["-n", &story.namespace.name, "get", "sp"]).expect("a table");
    assert!(table.contains("counts") && table.contains("Completed") && table.contains(&path), "{table}");
    kubectl(&["-n", &story.namespace.name, "wait", "--for=condition=Complete", "savepoint/first", "--timeout=10s"])
        .expect("is complete");

    story.ask("check", ", kind: Checkpoint");
    let status = story.wait_phase("check", "Completed");
    assert!(status["path"].as_str().is_some_and(|path| path.contains("/chk-")), "{status:#}");

    // The controller and the JobManager go while a savepoint is asked for: it is taken all the same, once.
    let before = story.job.status().expect("a status");
    story.ask("through", ", timeout: 3m");
    kubectl(&[
        "-n",
        "sluice-system",
        "delete",
        "pod",
        "-l",
        "app.kubernetes.io/name=sluice-controller",
        "--wait=false",
    ])
    .expect("deleted");
    let generation = before["generation"].as_u64().expect("a generation");
    story.job.kill_pods(&[&format!("counts-{generation}-jm")]).expect("killed");
    let status = wait_for("the savepoint through two losses", Duration::from_secs(150), || {
        let status = story.get("through")?["status"].take();
        (status["phase"] == "Completed").then_some(status)
    });
    assert!(story.has_files(status["path"].as_str().expect("a path")).await, "{status:#}");

    // Deleting the object keeps the files, unless it says otherwise.
    story.delete("first");
    assert!(story.has_files(&path).await, "they were not asked to go");
    story.ask("brief", ", disposeOnDelete: true");
    let status = story.wait_phase("brief", "Completed");
    let path = status["path"].as_str().expect("a path");
    assert!(story.has_files(path).await);
    story.delete("brief");
    wait_gone(&story, path).await;
}

/// No JobManager runs any more: a helper pod removes the files, and the job resumes from its own checkpoint all the same.
#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_a_savepoint_go_with_it_also_after_the_job_has_ended() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let story = Story::begin(cluster, "savepoints-disposed", "");
    story.ask("late", ", disposeOnDelete: true");
    let status = story.wait_phase("late", "Completed");
    let path = status["path"].as_str().expect("a path");
    let desire = |state: &str| {
        let patch = json!({"spec": {"state": state}}).to_string();
        kubectl(&["-n", &story.namespace.name, "patch", "streamjob", "counts", "--type=merge", "-p", &patch])
            .expect("patched");
    };
    desire("Suspended");
    let ended = story.job.wait_status("Suspended", WAIT, |status| status["state"] == "Suspended");
    assert!(story.has_files(path).await, "{path}");
    story.delete("late");
    wait_gone(&story, path).await;
    let disposed = story.job.wait_status("the end as it was", WAIT, |status| status["helper"].is_null());
    assert_eq!((&disposed["state"], &disposed["message"]), (&ended["state"], &ended["message"]), "{disposed:#}");
    let entry = |status: &Value| status["ledgerEntry"].as_u64().unwrap_or_default();
    // What was removed behind the end is no news of the job.
    assert_eq!(entry(&disposed), entry(&ended), "{disposed:#}");
    desire("Running");
    let runs = story.job.wait_status("Running", WAIT, |status| status["state"] == "Running");
    assert!(checkpoint(&ended) > 0 && sluice_e2e::job::restored(&runs) >= checkpoint(&ended), "{runs:#}");
}

async fn wait_gone(story: &Story, path: &str) {
    for _ in 0..100 {
        if !story.has_files(path).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("the files of {path} are still there");
}

#[test]
fn a_savepoint_of_a_job_that_has_ended_is_abandoned_and_bad_ones_are_refused() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let story = Story::begin(cluster, "savepoints-ended", "");
    story.job.wait_checkpoint(1);
    kubectl(&[
        "-n",
        &story.namespace.name,
        "patch",
        "streamjob",
        "counts",
        "--type=merge",
        "-p",
        r#"{"spec":{"state":"Suspended"}}"#,
    ])
    .expect("patched");
    story.job.wait_status("Suspended", WAIT, |status| status["state"] == "Suspended");
    story.ask("late", "");
    let status = story.wait_phase("late", "Abandoned");
    assert!(status["error"].as_str().is_some_and(|error| error.contains("has ended")), "{status:#}");
    let bad = "apiVersion: sluice.dev/v1alpha1\nkind: Savepoint\nmetadata: {name: bad}\nspec: {job: counts, kind: Checkpoint, \
               directory: \"s3://b/p\"}\n";
    let error = apply(&story.namespace.name, bad).expect_err("is refused").to_string();
    assert!(error.contains("directory applies to kind Savepoint only"), "{error}");
    let patch = json!({"spec": {"job": "other"}}).to_string();
    let error = kubectl(&["-n", &story.namespace.name, "patch", "savepoint", "late", "--type=merge", "-p", &patch])
        .expect_err("is refused")
        .to_string();
    assert!(error.contains("job cannot be changed"), "{error}");
}

#[test]
fn periodic_savepoints_are_made_and_limited_without_a_restart() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let story = Story::begin(cluster, "savepoints-periodic", "");
    let before = story.job.status().expect("a status");
    story.apply_job("  savepoints: {interval: 10s, historyLimit: {count: 2}}\n");
    let mut seen = BTreeSet::new();
    let kept = wait_for("four savepoints, two of them kept", Duration::from_secs(120), || {
        let text = kubectl(&["-n", &story.namespace.name, "get", "savepoints", "-o", "json"]).ok()?;
        let list: Value = serde_json::from_str(&text).ok()?;
        let names: Vec<_> =
            list["items"].as_array()?.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect();
        seen.extend(names.iter().map(|name| (*name).to_owned()));
        (seen.len() >= 4 && names.len() <= 2).then_some(names.len())
    });
    assert!(kept >= 1, "the newest is kept");
    let after = story.job.status().expect("a status");
    assert_eq!(
        (&after["revision"], &after["generation"]),
        (&before["revision"], &before["generation"]),
        "nothing was restarted"
    );
    assert!(checkpoint(&after) > checkpoint(&before));
}
