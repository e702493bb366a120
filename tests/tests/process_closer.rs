//! Helpers as real processes on a real S3 server: a closer on the ledger of a JobManager that was killed, or that wakes up
//! behind it (L6), and a disposal behind the end (L5).

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluice_protocol::ledger::{EntryKind, LedgerState, StartCause};
use sluice_storage::ObjectStore as _;
use sluice_tests::harness::Services;
use sluice_tests::harness::job::Job;
use sluice_tests::harness::ledger::{Ledger, open_store};
use sluice_tests::harness::s3::OwnS3;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(30);
const SQL: &str = "CREATE TABLE s (k BIGINT) WITH ('connector'='datagen', 'rows-per-second'='1000', 'fields.k.min'='1', \
                   'fields.k.max'='9'); CREATE TABLE t (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH \
                   ('connector'='blackhole'); INSERT INTO t SELECT k, COUNT(*) AS c FROM s GROUP BY k;";

/// A job on a server of its own, running, with completed checkpoints.
fn running(s3: &OwnS3, retention: &str) -> Job {
    let address = s3.address();
    let endpoint = &address.endpoint;
    let manifest = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: closed}}\nspec:\n  program:\n    sql: \"{SQL}\"\n  \
         checkpointing: {{interval: 200ms, retained: 2, retention: {retention}, storage: \"s3://test/jobs\", storageOptions: \
         {{endpoint: \"{endpoint}\", pathStyle: true}}}}\n"
    );
    let mut job = Job::new("closer", &manifest, Some(&address));
    job.start_generation(1);
    job.wait_checkpoint(2);
    job
}

/// Starts a helper as the next generation, without TaskManagers.
fn help(job: &mut Job, start: &Value) {
    job.set_directive(json!({"id": "r1", "seen": 1, "start": start}));
    drop(job.start_generation(0));
}

/// Waits for the end of the current generation: its exit code and its last word.
fn ended(job: &mut Job) -> (Option<i32>, Value) {
    let status = job.job_manager.as_mut().expect("it runs").wait(WAIT);
    (status.code(), job.exit_record(job.generation()))
}

async fn ledger(s3: &OwnS3, job: &Job) -> Ledger {
    Ledger::read(&open_store(&s3.address(), "jobs"), &job.job_directory()).await
}

fn state(ledger: &Ledger) -> LedgerState {
    ledger.entries().last().expect("an entry").folded().state
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closer_cancels_a_killed_job_and_removes_its_checkpoints_once_its_store_answers() {
    if Services::from_environment().is_none() {
        return;
    }
    let s3 = OwnS3::start();
    let mut job = running(&s3, "DeleteOnCancellation");
    job.kill_job_manager();
    s3.kill();
    help(&mut job, &json!({"close": {"end": "cancelled"}}));
    std::thread::sleep(Duration::from_secs(2));
    assert!(job.job_manager.as_mut().expect("it runs").ended().is_none(), "it waits for its store");
    s3.restart();
    let (code, record) = ended(&mut job);
    assert_eq!((code, &record["reason"]), (Some(0), &json!("Cancelled")), "{record}");
    let ledger = ledger(&s3, &job).await;
    assert_eq!(state(&ledger), LedgerState::Cancelled, "{}", ledger.story());
    let close = |kind: &EntryKind| matches!(kind, EntryKind::Started { cause: StartCause::Close, .. });
    assert_eq!(ledger.entries().iter().filter(|entry| close(&entry.kind)).count(), 1, "{}", ledger.story());
    assert_eq!(record["ledgerEntry"], json!(ledger.entries().last().expect("an entry").number));
    let left = open_store(&s3.address(), "jobs").list(&job.job_directory(), None).await.expect("the keys");
    assert!(left.iter().all(|key| key.contains("/ledger/")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_manager_that_wakes_up_behind_its_closer_changes_nothing_and_the_job_resumes() {
    if Services::from_environment().is_none() {
        return;
    }
    let s3 = OwnS3::start();
    let mut job = running(&s3, "RetainOnCancellation");
    let mut zombie = job.job_manager.take().expect("it runs");
    zombie.signal(Signal::SIGSTOP);
    help(&mut job, &json!({"close": {"end": "stopped"}}));
    let (code, record) = ended(&mut job);
    assert_eq!((code, &record["reason"]), (Some(0), &json!("Stopped")), "{record}");
    zombie.signal(Signal::SIGCONT);
    assert_eq!(zombie.wait(WAIT).code(), Some(10), "superseded:\n{}", zombie.log());
    let closed = ledger(&s3, &job).await;
    assert_eq!(state(&closed), LedgerState::Stopped, "{}", closed.story());
    job.set_directive(json!({"id": "r2", "seen": closed.entries().len(), "start": "resumeLatest"}));
    job.start_generation(1);
    job.wait_checkpoint(1);
    let resumed = ledger(&s3, &job).await;
    assert!(resumed.check_restores() >= 2, "{}", resumed.story());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_is_removed_behind_the_end_which_stays_what_it_was() {
    if Services::from_environment().is_none() {
        return;
    }
    let s3 = OwnS3::start();
    let mut job = running(&s3, "RetainOnCancellation");
    let path = job.ask(&["savepoint", "--to", "s3://test/archive"]);
    let store = open_store(&s3.address(), "archive");
    assert!(!store.list("", None).await.expect("the keys").is_empty());
    job.kill_job_manager();
    let dispose = json!({"dispose": {"path": path}});
    help(&mut job, &dispose);
    let (code, record) = ended(&mut job);
    assert_eq!((code, &record["reason"]), (Some(2), &json!("JobNotEnded")), "{record}");
    help(&mut job, &json!({"close": {"end": "stopped"}}));
    assert_eq!(ended(&mut job).0, Some(0));
    help(&mut job, &dispose);
    let (code, record) = ended(&mut job);
    assert_eq!((code, &record["reason"]), (Some(0), &json!("Disposed")), "{record}");
    assert_eq!(store.list("", None).await.expect("the keys"), Vec::<String>::new());
    let ledger = ledger(&s3, &job).await;
    assert!(matches!(&ledger.entries().last().expect("an entry").kind, EntryKind::Disposed { .. }));
    assert_eq!(state(&ledger), LedgerState::Stopped, "{}", ledger.story());
    help(&mut job, &json!("continue"));
    let (code, record) = ended(&mut job);
    assert_eq!((code, &record["reason"]), (Some(0), &json!("Stopped")), "the real end: {record}");
    // Asked for again it removes what may be left.
    help(&mut job, &dispose);
    assert_eq!(ended(&mut job).1["reason"], json!("Disposed"));
}
