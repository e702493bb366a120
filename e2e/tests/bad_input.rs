//! The promise: what a user does wrong is said in the StreamJob's conditions, with the place and the way out, and no
//! restart is spent where a restart cannot help.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking, and says when it skips")]

use serde_json::Value;
use sluice_e2e::job::{Job, condition};
use sluice_e2e::{Cluster, Namespace, apply};
use sluice_protocol::paths::JobPaths;
use sluice_storage::{ObjectStore as _, PutOutcome};
use sluice_test_s3::{Options, TestS3};
use sluice_tests::harness::ledger::open_store;
use sluice_tests::harness::{Services, unique};
use std::time::Duration;

const DATAGEN: &str = "CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='10'); CREATE TABLE t (k BIGINT) WITH ('connector'='blackhole'); INSERT INTO t SELECT k FROM s;";

/// A job, and where its checkpoints go.
struct Input {
    name: &'static str,
    sql: String,
    storage: String,
    endpoint: String,
    secret: &'static str,
    restore: String,
}

impl Input {
    fn new(cluster: &Cluster, name: &'static str) -> Self {
        Self {
            name,
            sql: DATAGEN.to_owned(),
            storage: format!("s3://{}/bad", cluster.services.s3.bucket),
            endpoint: cluster.s3_pods.clone(),
            secret: "s3",
            restore: String::new(),
        }
    }

    fn apply(&self, namespace: &Namespace) -> Job {
        let Self { name, sql, storage, endpoint, secret, restore } = self;
        apply(&namespace.name, &format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: {name}}}\nspec:\n  program:\n    sql: |\n      {sql}\n  checkpointing: {{interval: 1s, storage: \"{storage}\", storageOptions: {{endpoint: \"{endpoint}\", pathStyle: true, credentialsSecret: {secret}}}}}\n{restore}"
        )).expect("applied");
        Job { namespace: namespace.name.clone(), name: (*name).to_owned() }
    }
}

/// Waits until one condition says all these words; nothing must have been restarted for it.
fn expect_condition(job: &Job, words: &[&str]) {
    let status = job.wait_status(&job.name, Duration::from_secs(90), |status| {
        let mut conditions = ["Degraded", "Ready", "Progressing"].iter().filter_map(|kind| condition(status, kind));
        conditions.any(|(_, _, message)| words.iter().all(|word| message.contains(word)))
    });
    assert_eq!(status["restarts"].as_u64().unwrap_or(0), 0, "{}: {status:#}", job.name);
}

#[test]
fn conditions_name_the_place_and_no_restart_is_spent() {
    let Some((cluster, namespace)) = Cluster::with_namespace("bad-input") else { return };
    namespace.create_secret("wrong", "nobody", "nothing").expect("a secret");
    let input = |name| Input::new(&cluster, name);
    let kafka = format!(
        "'connector'='kafka', 'topic'='no-such-topic', 'properties.bootstrap.servers'='{}', 'format'='json', 'scan.startup.mode'='earliest-offset'",
        cluster.kafka_pods
    );
    let missing_topic = DATAGEN.replace("'connector'='datagen', 'rows-per-second'='10'", &kafka);
    let cases: [(Input, &[&str]); 5] = [
        (Input { sql: "SELEC 1;".to_owned(), ..input("bad-sql") }, &["SELEC", "line 1"]),
        (
            Input { sql: DATAGEN.replace("'datagen'", "'datagem'"), ..input("unknown-connector") },
            &["datagem", "datagen"],
        ),
        (Input { sql: missing_topic, ..input("missing-topic") }, &["no-such-topic", "Create it"]),
        (
            Input { storage: "s3://no-such-bucket-here/x".to_owned(), ..input("missing-bucket") },
            &["no-such-bucket-here", "create it"],
        ),
        (Input { secret: "wrong", ..input("unknown-key") }, &["s3://", "check the credentials", "credentialsSecret"]),
    ];
    let jobs: Vec<Job> = cases.iter().map(|(input, _)| input.apply(&namespace)).collect();
    for (job, (_, words)) in jobs.iter().zip(&cases) {
        expect_condition(job, words);
    }
    // Nor later.
    std::thread::sleep(Duration::from_secs(5));
    for job in &jobs {
        let status = job.status().expect("a status");
        assert_eq!(status["restarts"].as_u64().unwrap_or(0), 0, "{}: {status:#}", job.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_of_a_newer_format_is_named_with_its_version() {
    let Some((cluster, namespace)) = Cluster::with_namespace("newer") else { return };
    let s3 = &cluster.services.s3;
    let directory = format!("{}/default/other-1/1/chk-5", unique("newer"));
    let key = format!("{directory}/_metadata");
    open_store(s3, "").put_if_absent(&key, br#"{"version": 99}"#.as_slice().into()).await.expect("stored");
    let restore = format!("  restore: {{from: \"s3://{}/{directory}\"}}\n", s3.bucket);
    let job = Input { restore, ..Input::new(&cluster, "newer-checkpoint") }.apply(&namespace);
    expect_condition(&job, &["version 99", "chk-5/_metadata", "newer"]);
}

/// Somebody ran a newer release on the same directory.
#[tokio::test(flavor = "multi_thread")]
async fn ledger_of_a_newer_format_is_named_with_its_version() {
    let Some((cluster, namespace)) = Cluster::with_namespace("newer") else { return };
    let job = Input::new(&cluster, "newer-ledger").apply(&namespace);
    job.wait_checkpoint(1);
    let paths = JobPaths::of_directory(&job.directory().expect("the job"));
    let store = open_store(&cluster.services.s3, "bad");
    // The running job appends too: whose number is taken tries the next one.
    let number = loop {
        let last = store.list(&paths.ledger_prefix(), None).await.expect("a list").pop().expect("an entry");
        let number = paths.parse_ledger_entry(&last).expect("a number") + 1;
        let bytes = store.get(&last).await.expect("an answer").expect("the entry");
        let mut entry: Value = serde_json::from_slice(&bytes).expect("JSON");
        (entry["version"], entry["number"], entry["appendId"]) = (99.into(), number.into(), unique("newer").into());
        let put = store.put_if_absent(&paths.ledger_entry(number), entry.to_string().into()).await;
        if put.expect("an answer") == PutOutcome::Created {
            break number;
        }
    };
    expect_condition(&job, &["version 99", &format!("{number:010}.json"), "newer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_that_ignores_if_none_match_is_refused() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let Some(server) = start_careless_store(&cluster).await else { return };
    let namespace = cluster.namespace("careless").expect("a namespace");
    let input = Input::new(&cluster, "careless-store");
    let job = Input { storage: "s3://test/x".to_owned(), endpoint: server.endpoint(), ..input }.apply(&namespace);
    expect_condition(&job, &["s3://test/x", "If-None-Match", "use such a server"]);
    assert_eq!(server.keys("test"), Vec::<String>::new(), "something was stored in spite of the refusal");
}

/// A store that loses ledgers, at the address where pods reach the S3 server of this machine.
async fn start_careless_store(cluster: &Cluster) -> Option<TestS3> {
    let Services { s3, .. } = &cluster.services;
    let host = cluster.s3_pods.trim_start_matches("http://").split(':').next().unwrap_or_default();
    let options = Options {
        address: format!("{host}:0"),
        access_key_id: s3.access_key.clone(),
        secret_access_key: s3.secret_key.clone(),
        ignore_if_none_match: true,
        ..Options::default()
    };
    match TestS3::start(options).await {
        Ok(server) => Some(server),
        Err(error) => {
            assert!(std::env::var("CI").is_err(), "pods reach no server of this process on {host}: {error}");
            println!("skipped: pods reach no server of this process on {host}: {error}");
            None
        }
    }
}

#[test]
fn typo_in_a_field_is_refused_by_the_api_server() {
    let Some((_, namespace)) = Cluster::with_namespace("typo") else { return };
    let manifest = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: typo}}\nspec:\n  paralelism: 2\n  program:\n    sql: \"{DATAGEN}\"\n"
    );
    let error = apply(&namespace.name, &manifest).expect_err("accepted a typo").to_string();
    assert!(error.contains("paralelism"), "{error}");
}
