//! The promise: what a user does wrong is said in the StreamJob's conditions, with the place and the way out, and no
//! restart is spent where a restart cannot help.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::job::{Job, condition};
use sluice_e2e::{Cluster, apply};
use std::time::Duration;

struct Case {
    name: &'static str,
    sql: String,
    storage: String,
    secret: &'static str,
    words: &'static [&'static str],
}

const DATAGEN: &str = "CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='10'); CREATE TABLE t (k BIGINT) WITH ('connector'='blackhole'); INSERT INTO t SELECT k FROM s;";

fn cases(cluster: &Cluster) -> Vec<Case> {
    let storage = format!("s3://{}/bad", cluster.bucket);
    let kafka = format!(
        "CREATE TABLE s (k BIGINT) WITH ('connector'='kafka', 'topic'='no-such-topic', 'properties.bootstrap.servers'='{}', 'format'='json', 'scan.startup.mode'='earliest-offset'); CREATE TABLE t (k BIGINT) WITH ('connector'='blackhole'); INSERT INTO t SELECT k FROM s;",
        cluster.kafka_pods
    );
    let case = |name, sql: &str, storage: &str, secret, words| Case {
        name,
        sql: sql.to_owned(),
        storage: storage.to_owned(),
        secret,
        words,
    };
    vec![
        case("bad-sql", "SELEC 1;", &storage, "s3", &["SELEC", "line 1"]),
        case("missing-topic", &kafka, &storage, "s3", &["no-such-topic"]),
        case("missing-bucket", DATAGEN, "s3://no-such-bucket-here/x", "s3", &["no-such-bucket-here"]),
        case("wrong-credentials", DATAGEN, &storage, "wrong", &["credentials"]),
    ]
}

#[test]
fn conditions_name_the_place_and_no_restart_is_spent() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let namespace = cluster.namespace("bad-input").expect("a namespace");
    sluice_e2e::kubectl(&[
        "-n",
        &namespace.name,
        "create",
        "secret",
        "generic",
        "wrong",
        "--from-literal=AWS_ACCESS_KEY_ID=nobody",
        "--from-literal=AWS_SECRET_ACCESS_KEY=nothing",
    ])
    .expect("a secret");
    let cases = cases(&cluster);
    for case in &cases {
        let Case { name, sql, storage, secret, .. } = case;
        let endpoint = &cluster.s3_pods;
        apply(&namespace.name, &format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: {name}}}\nspec:\n  program:\n    sql: |\n      {sql}\n  checkpointing: {{interval: 1s, storage: \"{storage}\", storageOptions: {{endpoint: \"{endpoint}\", pathStyle: true, credentialsSecret: {secret}}}}}\n"
        )).expect("applied");
    }
    for case in &cases {
        let job = Job { namespace: namespace.name.clone(), name: case.name.to_owned() };
        let status = job.wait_status(case.name, Duration::from_secs(90), |status| {
            ["Degraded", "Ready", "Progressing"]
                .iter()
                .filter_map(|kind| condition(status, kind))
                .any(|(_, _, message)| case.words.iter().all(|word| message.contains(word)))
        });
        assert_eq!(status["restarts"].as_u64().unwrap_or(0), 0, "{}: {status:#}", case.name);
    }
}

#[test]
fn typo_in_a_field_is_refused_by_the_api_server() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let namespace = cluster.namespace("typo").expect("a namespace");
    let manifest = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: typo}}\nspec:\n  paralelism: 2\n  program:\n    sql: \"{DATAGEN}\"\n"
    );
    let error = apply(&namespace.name, &manifest).expect_err("accepted a typo").to_string();
    assert!(error.contains("paralelism"), "{error}");
}
