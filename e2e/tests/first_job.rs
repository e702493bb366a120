//! The promise: a StreamJob counts real page views on a real cluster, and a kill does not change one count.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_e2e::job::{Job, checkpoint, condition};
use sluice_e2e::{Cluster, apply, kubectl};
use sluice_tests::harness::kafka::{self, Producer};
use sluice_tests::harness::pageviews::{event, expected_counts, materialised_counts};
use sluice_tests::harness::{unique, wait_for};
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 4;
const APPS: u64 = 60;
const EVENTS: u64 = 200_000;

fn manifest(cluster: &Cluster, input: &str, output: &str) -> String {
    let Cluster { kafka_pods, s3_pods, bucket, .. } = cluster;
    format!(
        r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: pageviews}}
spec:
  program:
    sql: |
      CREATE TABLE page_views (app_id STRING, url STRING, ts TIMESTAMP(3)) WITH ('connector'='kafka', 'topic'='{input}', 'properties.bootstrap.servers'='{kafka_pods}', 'format'='json', 'scan.startup.mode'='earliest-offset');
      CREATE TABLE pv (app_id STRING, pv BIGINT, PRIMARY KEY (app_id) NOT ENFORCED) WITH ('connector'='upsert-kafka', 'topic'='{output}', 'properties.bootstrap.servers'='{kafka_pods}', 'key.format'='json', 'value.format'='json');
      INSERT INTO pv SELECT app_id, COUNT(*) AS pv FROM page_views GROUP BY app_id;
  parallelism: 2
  taskManager: {{slots: 1}}
  checkpointing: {{interval: 2s, storage: "s3://{bucket}/demo", retained: 3, tolerableFailures: 100, storageOptions: {{endpoint: "{s3_pods}", pathStyle: true, credentialsSecret: s3}}}}
  restartStrategy: {{fixedDelay: {{attempts: 10, delay: 1s}}}}
"#
    )
}

fn produce(bootstrap: String, topic: String) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let producer = Producer::new(&bootstrap).expect("a producer");
        let started = Instant::now();
        for number in 0..EVENTS {
            let partition = i32::try_from(number % PARTITIONS as u64).expect("small");
            producer.send(&topic, partition, &event(3, number, APPS).1).expect("room in the queue");
            if number % 1000 == 0 {
                std::thread::sleep(Duration::from_millis(60_000 * number / EVENTS).saturating_sub(started.elapsed()));
            }
        }
        producer.flush().expect("all delivered");
    })
}

fn restored(status: &serde_json::Value) -> u64 {
    status["restoredFrom"]["id"].as_u64().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_pods_change_no_count() {
    let Some(cluster) = Cluster::from_environment() else { return };
    let namespace = cluster.namespace("pageviews").expect("a namespace");
    let (input, output) = (unique("test"), unique("pv"));
    kafka::create_topics(&cluster.kafka, &[(&input, PARTITIONS), (&output, 2)]).await.expect("topics");
    let producer = produce(cluster.kafka.clone(), input.clone());
    apply(&namespace.name, &manifest(&cluster, &input, &output)).expect("applied");
    let job = Job { namespace: namespace.name.clone(), name: "pageviews".to_owned() };

    let mut status = job.wait_checkpoint(1);
    assert_eq!(status["generation"], 1);

    // A TaskManager pod: replaced within the generation, restored from the latest checkpoint.
    let victims = job.pods("taskmanager").expect("pods");
    assert_eq!(victims.len(), 2);
    let before = checkpoint(&status);
    job.kill_pod(&victims[0]).expect("killed");
    status = job.wait_status("the second attempt", Duration::from_secs(90), |status| {
        status["state"] == "Running" && status["attempt"] == 2
    });
    assert!(restored(&status) >= before, "{status:#}");
    assert_eq!(status["generation"], 1);
    let pods = job.pods("taskmanager").expect("pods");
    assert!(pods.contains(&"pageviews-1-tm-2".to_owned()), "the next index was not used: {pods:?}");

    // The JobManager pod: the next generation.
    let before = checkpoint(&job.wait_checkpoint(checkpoint(&status)));
    job.kill_pod("pageviews-1-jm").expect("killed");
    status = job.wait_status("the second generation", Duration::from_secs(90), |status| {
        status["state"] == "Running" && status["generation"] == 2
    });
    assert!(restored(&status) >= before, "{status:#}");

    // Both at once.
    let before = checkpoint(&job.wait_checkpoint(checkpoint(&status)));
    let task_manager = job.pods("taskmanager").expect("pods").pop().expect("a pod");
    job.kill_pod(&task_manager).expect("killed");
    job.kill_pod("pageviews-2-jm").expect("killed");
    status = job.wait_status("the third generation", Duration::from_secs(90), |status| {
        status["state"] == "Running" && status["generation"] == 3
    });
    assert!(restored(&status) >= before, "{status:#}");
    assert!(status["restarts"].as_u64().unwrap_or(0) >= 3, "{status:#}");

    producer.join().expect("the producer");
    let expected = expected_counts(&cluster.kafka, &input).expect("the input");
    assert_eq!(expected.values().sum::<u64>(), EVENTS);
    wait_for("the counts", Duration::from_secs(90), || {
        (materialised_counts(&cluster.kafka, &output).ok()? == expected).then_some(())
    });

    // What a person sees.
    let line = kubectl(&["-n", &namespace.name, "get", "streamjobs"]).expect("a table");
    assert!(line.contains("Running"), "{line}");
    let ready = job.wait_status("Ready", Duration::from_secs(30), |status| {
        condition(status, "Ready").is_some_and(|(value, ..)| value == "True")
    });
    assert!(condition(&ready, "Degraded").is_none_or(|(value, ..)| value == "False"), "{ready:#}");
    let events = kubectl(&["-n", &namespace.name, "get", "events"]).expect("events");
    assert!(events.contains("Restart") || events.contains("Lost"), "{events}");

    // Deletion removes Kubernetes objects.
    kubectl(&["-n", &namespace.name, "delete", "streamjob", "pageviews", "--timeout=60s"]).expect("deleted");
    wait_for("no pods", Duration::from_secs(60), || {
        (job.pods("jobmanager").ok()?.is_empty() && job.pods("taskmanager").ok()?.is_empty()).then_some(())
    });
}
