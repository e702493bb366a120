//! State files are open: DuckDB reads a checkpoint by what docs/checkpoints.md says of the format, and finds the rows that
//! `sluice checkpoint query` finds; both are those that the input comes to.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking, and says why it is skipped")]

use serde_json::Value;
use sluice_tests::harness::{sluice_binary, unique};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROWS: u64 = 400_000;
const KEYS: u64 = 20_000;

/// In the last quarter few keys change, so the last checkpoints are deltas. The second state loses and gains a key for each
/// count that changes, so its deltas hold deletions.
fn manifest() -> String {
    format!(
        r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: open}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (n BIGINT) WITH ('connector'='datagen', 'rows-per-second'='120000', 'fields.n.kind'='sequence', 'fields.n.start'='0', 'fields.n.end'='{}');
      CREATE TABLE counts (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole');
      CREATE VIEW keyed AS SELECT CASE WHEN n < {} THEN n % {KEYS} ELSE n % 100 END AS k, n FROM numbers;
      INSERT INTO counts
        SELECT k, COUNT(*) AS c
        FROM (SELECT k * 10000 + c AS k FROM (SELECT k, COUNT(*) AS c, SUM(n) AS s FROM keyed GROUP BY k) WHERE s >= 0)
        GROUP BY k;
  parallelism: 2
  checkpointing: {{interval: 300ms, retained: 1}}
"#,
        ROWS - 1,
        ROWS / 4 * 3
    )
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Directory {
    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let output = Command::new(program).current_dir(&self.0).args(arguments).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {arguments:?}: {said}", program.display());
        output
    }

    fn query(&self, sql: &str) -> Value {
        let output =
            self.run(&sluice_binary(), &["checkpoint", "query", "sluice-checkpoints", sql, "--output", "json"]);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The directory of the one checkpoint.
    fn checkpoint(&self) -> String {
        let listed = self.run(&sluice_binary(), &["checkpoint", "list", "sluice-checkpoints"]);
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let found = text.split_whitespace().find(|word| word.contains("/chk-")).expect("a checkpoint");
        found.strip_prefix("file://").expect("a path").to_owned()
    }
}

/// Python with DuckDB, as `cargo verify` names it.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("SLUICE_TEST_DUCKDB").map(PathBuf::from);
    if named.is_none() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI=true, but SLUICE_TEST_DUCKDB is not set");
        println!("skipped: no Python with DuckDB named (SLUICE_TEST_DUCKDB); `cargo verify` installs it");
    }
    named
}

/// Rows as numbers by their columns' names.
fn rows_of_query(found: &Value) -> Vec<BTreeMap<String, i64>> {
    let number = |(name, value): (&String, &Value)| (name.clone(), value.as_i64().expect("a number"));
    let row = |row: &Value| row.as_object().expect("an object").iter().map(number).collect();
    let mut rows: Vec<_> = found.as_array().expect("an array").iter().map(row).collect();
    rows.sort();
    rows
}

fn rows_of_duckdb(state: &Value) -> Vec<BTreeMap<String, i64>> {
    let names: Vec<&str> = state["columns"].as_array().expect("names").iter().filter_map(Value::as_str).collect();
    let row = |row: &Value| {
        let cells = row.as_array().expect("cells").iter().map(|cell| cell.as_i64().expect("a number"));
        names.iter().map(|name| (*name).to_owned()).zip(cells).collect()
    };
    let mut rows: Vec<_> = state["rows"].as_array().expect("rows").iter().map(row).collect();
    rows.sort();
    rows
}

#[test]
fn duckdb_reads_what_checkpoint_query_reads() {
    let Some(python) = python() else { return };
    let directory = Directory(std::env::temp_dir().join(unique("sluice-duckdb")));
    std::fs::create_dir_all(&directory.0).expect("a directory");
    std::fs::write(directory.0.join("job.yaml"), manifest()).expect("a file");
    directory.run(&sluice_binary(), &["run", "job.yaml", "--rest-port", "0"]);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("duckdb/read_state.py");
    let script = script.to_str().expect("a path");
    let read = directory.run(&python, &[script, &directory.checkpoint()]);
    let states: BTreeMap<String, Value> = serde_json::from_slice(&read.stdout).expect("JSON");
    assert_eq!(states.len(), 2, "{:?}", states.keys());
    let (mut deltas, mut deletions) = (0, 0);
    for (name, state) in &states {
        let (uid, state_name) = name.rsplit_once('/').expect("uid/state");
        let found = rows_of_query(&directory.query(&format!("SELECT * FROM `{uid}`.`{state_name}`")));
        assert_eq!(found.len() as u64, KEYS, "{name}");
        assert!(rows_of_duckdb(state) == found, "{name}: DuckDB and the query read other rows");
        deltas += state["files"]["delta"].as_u64().expect("a count");
        deletions += state["deletions"].as_u64().expect("a count");
    }
    assert!(deltas > 0 && deletions > 0, "no delta was laid over, or none with deletions: {deltas}, {deletions}");

    let counted =
        directory.query("SELECT COUNT(*) AS keys, SUM(`COUNT(*)`) AS rows_counted, SUM(`SUM(n)`) AS total FROM state1");
    let expected = serde_json::json!([{"keys": KEYS, "rows_counted": ROWS, "total": ROWS * (ROWS - 1) / 2}]);
    assert_eq!(counted, expected);
    let read_on = directory.query("SELECT COUNT(DISTINCT split) AS splits FROM splits");
    assert!(read_on[0]["splits"].as_u64().is_some_and(|splits| splits > 0), "{read_on}");
}
