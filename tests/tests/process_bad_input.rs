//! Bad input through the command line: each error names the place and the way out; nothing panics, nothing loops.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_tests::harness::{sluice_binary, unique};
use std::process::{Command, Output};

fn manifest(sql: &str, checkpointing: &str) -> String {
    let sql = sql.replace('\n', "\n      ");
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {{name: bad}}\nspec:\n  program:\n    sql: |\n      {sql}\n{checkpointing}"
    )
}

const GOOD: &str = "CREATE TABLE numbers (k BIGINT) WITH ('connector'='datagen', 'number-of-rows'='10');
CREATE TABLE nothing (k BIGINT) WITH ('connector'='blackhole');
INSERT INTO nothing SELECT k FROM numbers;";

fn run(manifest: &str) -> Output {
    let directory = std::env::temp_dir().join(unique("sluice-bad-input"));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("job.yaml");
    std::fs::write(&path, manifest).expect("the manifest");
    let output = Command::new("timeout")
        .arg("60")
        .arg(sluice_binary())
        .arg("run")
        .arg(&path)
        .args(["--rest-port", "0"])
        .current_dir(&directory)
        .env("AWS_ACCESS_KEY_ID", "wrong")
        .env("AWS_SECRET_ACCESS_KEY", "wrong")
        .output()
        .expect("sluice");
    let _ = std::fs::remove_dir_all(&directory);
    output
}

/// Runs and expects a refusal that says each of `words`, without a panic.
fn refused(manifest: &str, words: &[&str]) {
    let output = run(manifest);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success(), "accepted:\n{text}");
    assert_ne!(output.status.code(), Some(124), "still running after 60 s:\n{text}");
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in:\n{text}");
    }
}

#[test]
fn good_manifest_runs_to_its_end() {
    let output = run(&manifest(GOOD, ""));
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
    let directory = std::env::temp_dir().join(unique("sluice-taken-port"));
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::write(directory.join("job.yaml"), manifest(GOOD, "")).expect("the manifest");
    let output = Command::new(sluice_binary())
        .args(["run", "job.yaml", "--rest-port", &port])
        .current_dir(&directory)
        .output()
        .expect("sluice");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("--rest-port") && text.contains(&port), "{text}");
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn checkpoint_of_a_newer_format_is_refused_by_version() {
    let directory = std::env::temp_dir().join(unique("sluice-newer"));
    let checkpoint = directory.join("default/bad-1/1/chk-5");
    std::fs::create_dir_all(&checkpoint).expect("a directory");
    std::fs::write(checkpoint.join("_metadata"), r#"{"version": 99}"#).expect("a file");
    let restore = format!(
        "  restore: {{from: \"file://{}\"}}\n  checkpointing: {{interval: 1s, storage: \"file://{}\"}}\n",
        checkpoint.display(),
        directory.join("own").display()
    );
    refused(&manifest(GOOD, &restore), &["99", "_metadata"]);
    let _ = std::fs::remove_dir_all(&directory);
}
