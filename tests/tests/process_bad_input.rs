//! Bad input through the command line: each error names the place and the way out; nothing panics, nothing loops.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_test_s3::{Options, TestS3};
use sluice_tests::harness::{Services, kafka, sluice_binary, unique};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

fn manifest(sql: &str, checkpointing: &str) -> String {
    let sql = sql.replace('\n', "\n      ");
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: bad}}\nspec:\n  program:\n    sql: |\n      {sql}\n{checkpointing}"
    )
}

const GOOD: &str = "CREATE TABLE numbers (k BIGINT) WITH ('connector'='datagen', 'number-of-rows'='10');
CREATE TABLE nothing (k BIGINT) WITH ('connector'='blackhole');
INSERT INTO nothing SELECT k FROM numbers;";

/// A directory of a test's own, with a manifest in it.
struct Place {
    directory: PathBuf,
    access_key: String,
}

impl Place {
    fn new(manifest: &str) -> Self {
        let directory = std::env::temp_dir().join(unique("sluice-bad-input"));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("job.yaml"), manifest).expect("the manifest");
        Self { directory, access_key: Options::default().access_key_id }
    }

    /// `sluice run job.yaml` with these arguments, ended after a minute.
    fn run(&self, arguments: &[&str]) -> Output {
        self.run_for(60, arguments)
    }

    fn run_for(&self, seconds: u32, arguments: &[&str]) -> Output {
        Command::new("timeout")
            .arg(seconds.to_string())
            .arg(sluice_binary())
            .args(["run", "job.yaml"])
            .args(if arguments.contains(&"--rest-port") { &[] as &[&str] } else { &["--rest-port", "0"] })
            .args(arguments)
            .current_dir(&self.directory)
            .env("AWS_ACCESS_KEY_ID", &self.access_key)
            .env("AWS_SECRET_ACCESS_KEY", Options::default().secret_access_key)
            .output()
            .expect("sluice")
    }

    /// Runs and expects a refusal that says each of `words`, without a panic.
    fn refused(&self, arguments: &[&str], words: &[&str]) {
        let output = self.run(arguments);
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "accepted:\n{text}");
        assert_ne!(output.status.code(), Some(124), "still running after 60 s:\n{text}");
        assert!(!text.contains("panicked"), "{text}");
        for word in words {
            assert!(text.contains(word), "'{word}' is missing in:\n{text}");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn refused(manifest: &str, words: &[&str]) {
    Place::new(manifest).refused(&[], words);
}

/// Checkpoints in an S3 server of the test's own.
fn in_s3(server: &TestS3, bucket: &str) -> String {
    let endpoint = server.endpoint();
    format!(
        "  checkpointing: {{interval: 1s, storage: \"s3://{bucket}/x\", storageOptions: {{endpoint: \"{endpoint}\", pathStyle: true}}}}\n"
    )
}

#[test]
fn good_manifest_runs_to_its_end() {
    let output = Place::new(&manifest(GOOD, "")).run(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn typo_in_a_field_is_named_with_the_nearest_field() {
    refused(&manifest(GOOD, "  paralelism: 2\n"), &["paralelism", "parallelism"]);
    refused(&manifest(GOOD, "  checkpointing: {intervall: 1s}\n"), &["checkpointing", "intervall", "interval"]);
}

#[test]
fn sql_that_does_not_parse_shows_line_and_column() {
    refused(&manifest("CREATE TABEL t (k BIGINT);", ""), &["TABEL", "line 1"]);
    refused(&manifest(&GOOD.replace("SELECT k", "SELECT kk"), ""), &["kk", "line 3"]);
}

#[test]
fn unknown_option_is_refused_with_the_nearest_name() {
    refused(&manifest(&GOOD.replace("number-of-rows", "number-of-row"), ""), &["number-of-row", "number-of-rows"]);
}

#[test]
fn unsupported_sql_is_refused_by_name_and_place() {
    let sql = GOOD.replace("FROM numbers", "FROM numbers a JOIN numbers b ON a.k = b.k");
    refused(&manifest(&sql, ""), &["JOIN", "line 3"]);
}

#[test]
fn taken_rest_port_names_the_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    Place::new(&manifest(GOOD, "")).refused(&["--rest-port", &port], &["--rest-port", &port]);
}

/// It may be made any moment, so it is waited for and told meanwhile; before a person not for ever.
#[test]
fn missing_topic_is_named_with_its_broker_and_ends_the_run_in_time() {
    let Some(services) = Services::from_environment() else { return };
    let broker = &services.kafka;
    let kafka = format!(
        "'connector'='kafka', 'topic'='no-such-topic', 'properties.bootstrap.servers'='{broker}', 'format'='json', 'scan.startup.mode'='earliest-offset'"
    );
    let sql = GOOD.replace("'connector'='datagen', 'number-of-rows'='10'", &kafka);
    let output = Place::new(&manifest(&sql, CHECKPOINTING)).run_for(40, &["--start-timeout", "5"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("'no-such-topic'")).collect();
    assert!(lines.len() > 1, "it is told while it is waited for, and at the end:\n{text}");
    for line in &lines {
        for word in ["table 'numbers'", "does not exist", broker, "Create it"] {
            assert!(line.contains(word), "'{word}' is missing in:\n{line}");
        }
    }
    let last = lines.last().expect("a line");
    assert!(last.starts_with("error: ") && last.contains("did not start within 5 s"), "{last}");
}

/// A topic that comes while it is waited for is read.
#[tokio::test(flavor = "multi_thread")]
async fn topic_that_is_made_while_the_run_waits_for_it_is_read() {
    let Some(services) = Services::from_environment() else { return };
    let (broker, topic) = (services.kafka.clone(), unique("late"));
    let kafka = format!(
        "'connector'='kafka', 'topic'='{topic}', 'properties.bootstrap.servers'='{broker}', 'format'='json', 'scan.startup.mode'='earliest-offset', 'scan.bounded.mode'='latest-offset'"
    );
    let sql = GOOD.replace("'connector'='datagen', 'number-of-rows'='10'", &kafka);
    let place = Place::new(&manifest(&sql, CHECKPOINTING));
    let running = tokio::task::spawn_blocking(move || place.run_for(60, &["--start-timeout", "30"]));
    tokio::time::sleep(Duration::from_secs(4)).await;
    kafka::create_topics(&broker, &[(topic.as_str(), 1)]).await.expect("the topic");
    let output = running.await.expect("sluice");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("does not exist"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_name_the_store_and_the_variables() {
    let server = TestS3::start(Options::default()).await.expect("a server");
    let mut place = Place::new(&manifest(GOOD, &in_s3(&server, "test")));
    place.access_key = "nobody".to_owned();
    place.refused(&[], &["s3://test/x", "credentials"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_bucket_is_named() {
    let server = TestS3::start(Options::default()).await.expect("a server");
    refused(&manifest(GOOD, &in_s3(&server, "absent")), &["'absent'", "create it"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_that_ignores_if_none_match_is_refused_before_anything_is_stored() {
    let options = Options { ignore_if_none_match: true, ..Options::default() };
    let server = TestS3::start(options).await.expect("a server");
    refused(&manifest(GOOD, &in_s3(&server, "test")), &["s3://test/x", "If-None-Match", "use such a server"]);
    let keys = server.keys("test");
    assert!(keys.iter().all(|key| key.ends_with(".uid")), "left behind: {keys:?}");
}

const CHECKPOINTING: &str = "  checkpointing: {interval: 1s}\n";

#[test]
fn checkpoint_of_a_newer_format_is_refused_by_version() {
    let place = Place::new(&manifest(GOOD, CHECKPOINTING));
    let checkpoint = place.directory.join("default/bad-1/1/chk-5");
    std::fs::create_dir_all(&checkpoint).expect("a directory");
    std::fs::write(checkpoint.join("_metadata"), r#"{"version": 99}"#).expect("a file");
    let words = ["version 99", "chk-5/_metadata", "newer"];
    let restore = format!("  restore: {{from: \"file://{}\"}}\n{CHECKPOINTING}", checkpoint.display());
    refused(&manifest(GOOD, &restore), &words);
    place.refused(&["-s", "default/bad-1/1/chk-5"], &words);
    place.refused(&["-s", "default/bad-1/1/chk-5/_metadata"], &words);
}

#[test]
fn ledger_of_a_newer_format_is_refused_by_version() {
    let place = Place::new(&manifest(GOOD, CHECKPOINTING));
    assert!(place.run(&[]).status.success());
    let jobs = std::fs::read_dir(place.directory.join("sluice-checkpoints/default")).expect("the job's directory");
    let job = jobs.filter_map(|entry| Some(entry.ok()?.path())).find(|path| path.is_dir()).expect("a job");
    let mut entries: Vec<_> =
        std::fs::read_dir(job.join("ledger")).expect("a ledger").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    let last = entries.last().expect("an entry");
    let text = std::fs::read_to_string(last).expect("its text");
    let mut entry: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    entry["version"] = 99.into();
    std::fs::write(last, entry.to_string()).expect("written");
    let name = last.file_name().and_then(std::ffi::OsStr::to_str).expect("a name");
    place.refused(&["--resume"], &["version 99", name, "newer"]);
}
