//! An S3 server that goes away for 30 seconds: checkpoints fail and are counted, the job runs on and recovers; when
//! it is away at a restart, no attempt is spent (docs/protocol.md, F2).

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_protocol::status::JobState;
use sluice_tests::harness::Services;
use sluice_tests::harness::job::Job;
use sluice_tests::harness::s3::OwnS3;
use std::time::Duration;

fn manifest(endpoint: &str) -> String {
    format!(
        r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: outage}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (k BIGINT, v BIGINT) WITH ('connector'='datagen', 'rows-per-second'='2000', 'fields.k.min'='1', 'fields.k.max'='100');
      CREATE TABLE nothing (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole');
      INSERT INTO nothing SELECT k, COUNT(*) AS c FROM numbers GROUP BY k;
  parallelism: 1
  checkpointing: {{interval: 500ms, timeout: 5s, storage: "s3://test/outage", retained: 3, tolerableFailures: 100, storageOptions: {{endpoint: "{endpoint}", pathStyle: true}}}}
  restartStrategy: {{fixedDelay: {{attempts: 3, delay: 500ms}}}}
"#
    )
}

#[test]
fn store_away_for_half_a_minute_fails_checkpoints_and_nothing_else() {
    if Services::from_environment().is_none() {
        return;
    }
    let server = OwnS3::start();
    let mut job = Job::new("outage", &manifest(&server.address().endpoint), Some(&server.address()));
    job.start_generation(1);
    let before = job.wait_checkpoint(2);

    server.kill();
    std::thread::sleep(Duration::from_secs(30));
    let during = job.status().expect("the JobManager answers while the store is away");
    assert_eq!(during.state, JobState::Running, "{during:#?}");
    assert!(during.failed_checkpoints > before.failed_checkpoints, "{during:#?}");
    assert_eq!(during.attempt, before.attempt, "a failed checkpoint restarted the job");
    server.restart();
    let after = job.wait_checkpoint(during.completed_checkpoints + 1);
    assert_eq!(after.attempt, before.attempt);
    assert_eq!(after.failed_checkpoints_in_a_row, 0);

    // Away at a restart: the tasks wait for the store, and one failure is counted, the killed TaskManager's.
    server.kill();
    let index = *job.task_managers.keys().next().expect("a TaskManager");
    job.kill_task_manager(index);
    job.start_task_manager();
    std::thread::sleep(Duration::from_secs(12));
    server.restart();
    let restored = job.wait_status("running again", Duration::from_secs(60), |status| {
        status.state == JobState::Running && status.completed_checkpoints > after.completed_checkpoints
    });
    assert_eq!(restored.failed_attempts, 1, "{restored:#?}");
}
