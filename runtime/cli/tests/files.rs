//! Files in, files out, with the process killed again and again: a reader of the directory sees each row once, and at the
//! end nothing is left of what the killed processes had begun.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::Directory;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const ROWS: u64 = 600_000;
const FILES: u64 = 6;
/// Behind each of as many rows stands a line that is none.
const BROKEN: u64 = 500;

/// `from` as `to`, in directories of these names.
fn manifest(
    root: &Path,
    name: &str,
    (from, input): (&str, &str),
    (to, output): (&str, &str),
    parallelism: u32,
) -> String {
    let root = root.display();
    let broken = if input == "json" { ", 'dead-letter'='broken'" } else { "" };
    format!(
        "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: {name}}}
spec:
  program:
    sql: |
      CREATE TABLE orders (id BIGINT, customer STRING) WITH (
        'connector'='filesystem', 'path'='file://{root}/{from}', 'format'='{input}'{broken});
      CREATE TABLE broken (reason STRING, place STRING, record STRING) WITH (
        'connector'='filesystem', 'path'='file://{root}/broken', 'format'='json');
      CREATE TABLE copied (id BIGINT, customer STRING) WITH (
        'connector'='filesystem', 'path'='file://{root}/{to}', 'format'='{output}', 'sink.rolling-policy.file-size'='500 kb');
      INSERT INTO copied SELECT id, customer FROM orders;
  parallelism: {parallelism}
  checkpointing: {{interval: 20ms, tolerableFailures: 1000, storage: \"file://{root}/checkpoints-{name}\"}}
"
    )
}

fn write_orders(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for file in 0..FILES {
        let mut text = String::new();
        for id in (file..ROWS).step_by(usize::try_from(FILES).unwrap()) {
            writeln!(text, "{{\"id\": {id}, \"customer\": \"customer {id}\"}}").unwrap();
            if id.is_multiple_of(BROKEN) {
                writeln!(text, "{{\"id\": broken {id}}}").unwrap();
            }
        }
        fs::write(directory.join(format!("{file}.json")), text).unwrap();
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return vec![] };
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with('.')
}

/// The ids in all visible files of JSON lines.
fn ids(directory: &Path) -> Vec<u64> {
    let mut ids = vec![];
    for file in files(directory).into_iter().filter(|path| !is_hidden(path)) {
        for line in fs::read_to_string(file).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(row["customer"], format!("customer {}", row["id"]));
            ids.push(row["id"].as_u64().unwrap());
        }
    }
    ids.sort_unstable();
    ids
}

/// The records in a directory of dead letters, each with a reason and another place.
fn dead_letters(directory: &Path) -> Vec<String> {
    let (mut records, mut places) = (vec![], std::collections::BTreeSet::new());
    for file in files(directory).into_iter().filter(|path| !is_hidden(path)) {
        for line in fs::read_to_string(file).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(row["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{row}");
            let place = row["place"].as_str().unwrap().to_owned();
            assert!(place.contains(".json@"), "{row}");
            assert!(places.insert(place), "twice: {row}");
            records.push(row["record"].as_str().unwrap().to_owned());
        }
    }
    records.sort_unstable();
    records
}

/// Runs a job to its end, and kills it with SIGKILL before, up to `kills` times, each time once it has written to `out` for
/// some milliseconds more than the last time. Says how often it was killed.
fn run_through(directory: &Directory, manifest: &str, out: &Path, kills: u64, look: impl Fn()) -> usize {
    let mut killed = 0;
    let said = directory.path().join("said.log");
    for kill in 0..kills {
        // Before it is kept who it is there is nothing to resume.
        let job = manifest.trim_end_matches(".yaml");
        let has_begun = directory.path().join(format!("checkpoints-{job}/default/{job}.uid")).exists();
        let resume = if killed > 0 && has_begun { "--resume" } else { "" };
        let line = format!("run {manifest} --rest-port 0 {resume}");
        let mut child = directory.command(&line).stderr(File::create(&said).unwrap()).spawn().unwrap();
        let before = files(out);
        let deadline = Instant::now() + Duration::from_secs(30);
        while files(out) == before && child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(5 * kill));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{line}: {}", fs::read_to_string(&said).unwrap());
            return killed;
        }
        let _ = Command::new("kill").args(["-9", &child.id().to_string()]).status().unwrap();
        child.wait().unwrap();
        killed += 1;
        look();
    }
    let ran = directory.run(&format!("run {manifest} --rest-port 0 --resume"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    killed
}

#[test]
fn s1_each_row_is_seen_once_whatever_is_killed() {
    let directory = Directory::new("files");
    let root = directory.path().canonicalize().unwrap();
    write_orders(&root.join("in"));
    let jobs = [
        ("to-parquet", ("in", "json"), ("columns", "parquet"), 2),
        ("to-lines", ("columns", "parquet"), ("out", "json"), 3),
    ];
    for (name, from, to, parallelism) in jobs {
        let file = format!("{name}.yaml");
        fs::write(root.join(&file), manifest(&root, name, from, to, parallelism)).unwrap();
        let out = root.join(to.0);
        let look = || {
            if to.1 == "json" {
                let seen = ids(&out);
                assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "a row is seen twice");
            }
        };
        let killed = run_through(&directory, &file, &out, 8, look);
        println!("{name}: killed {killed} times");
        assert!(killed > 1, "it is over too soon to be killed");
        let left: Vec<_> = files(&out).into_iter().filter(|path| is_hidden(path)).collect();
        assert!(left.is_empty(), "left of what was killed: {left:?}");
    }
    assert!(ids(&root.join("out")).into_iter().eq(0..ROWS), "each row once");
    let mut broken: Vec<_> =
        (0..ROWS).filter(|id| id.is_multiple_of(BROKEN)).map(|id| format!("{{\"id\": broken {id}}}")).collect();
    broken.sort_unstable();
    assert_eq!(dead_letters(&root.join("broken")), broken, "each line that is no row once");
}

#[test]
fn a_job_without_checkpoints_refuses_the_sink_by_name() {
    let directory = Directory::new("files-refused");
    let root = directory.path().canonicalize().unwrap();
    let manifest = manifest(&root, "refused", ("in", "json"), ("out", "json"), 1);
    for (checkpointing, expected) in [
        ("", "takes no checkpoints"),
        ("  checkpointing: {interval: 1s, storage: JobManager}\n", "JobManager's memory"),
        ("  checkpointing: {interval: 1s, mode: AtLeastOnce, storage: \"file:///tmp/x\"}\n", "AtLeastOnce"),
    ] {
        let text: String =
            manifest.lines().filter(|line| !line.contains("checkpointing")).map(|line| format!("{line}\n")).collect();
        fs::write(root.join("job.yaml"), format!("{text}{checkpointing}")).unwrap();
        let ran = directory.run("run job.yaml --rest-port 0");
        assert_ne!(ran.code, Some(0));
        assert!(ran.err.contains(expected) && ran.err.contains("copied"), "{checkpointing}: {}", ran.err);
    }
}

#[test]
fn the_example_runs() {
    let directory = Directory::new("files-example");
    let root = directory.path().canonicalize().unwrap();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/files-to-parquet.yaml");
    let text = fs::read_to_string(example).unwrap().replace("/tmp/sluice", root.to_str().unwrap());
    fs::write(root.join("job.yaml"), text).unwrap();
    fs::create_dir(root.join("orders")).unwrap();
    let orders =
        "{\"id\": 1, \"customer\": \"ada\", \"amount\": 12.5}\n{\"id\": 2, \"customer\": \"bob\", \"amount\": 9}\n";
    fs::write(root.join("orders/1.json"), orders).unwrap();
    let ran = directory.run("run job.yaml --rest-port 0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let found = files(&root.join("large-orders"));
    assert_eq!(found.len(), 1, "{found:?}");
    let bytes = fs::read(&found[0]).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}

/// Arrays of JSON, as a column, taken apart and as a key, into a directory for each partition, and back from there.
#[test]
fn arrays_and_partitions_go_through_files() {
    let directory = Directory::new("partitions");
    let root = directory.path();
    fs::create_dir_all(root.join("in")).unwrap();
    let lines = r#"{"id": 1, "tags": ["a", "b"], "day": "2026-01-01"}
{"id": 2, "tags": [], "day": "2026-01-02"}
{"id": 3, "tags": null, "day": null}
{"id": 4, "tags": ["b", null], "day": "2026-01-01"}
"#;
    fs::write(root.join("in/orders.json"), lines).unwrap();
    let place = root.display();
    let job = |name: &str, statements: &str| {
        let manifest = format!(
            "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: {name}}}
spec:
  program:
    sql: |
      CREATE TABLE orders (id BIGINT, tags ARRAY<STRING>, day DATE) WITH (
        'connector'='filesystem', 'path'='file://{place}/in', 'format'='json');
      CREATE TABLE tagged (id BIGINT, day DATE, tags ARRAY<STRING>, tag STRING) PARTITIONED BY (day, tag) WITH (
        'connector'='filesystem', 'path'='file://{place}/tagged', 'format'='parquet');
      CREATE TABLE out (day DATE, tag STRING, tags ARRAY<STRING>, id BIGINT, first STRING) WITH (
        'connector'='filesystem', 'path'='file://{place}/out', 'format'='json');
      {statements}
  parallelism: 2
  checkpointing: {{interval: 100ms, storage: \"file://{place}/checkpoints-{name}\"}}
"
        );
        fs::write(root.join("job.yaml"), manifest).unwrap();
        let ran = directory.run("run job.yaml --rest-port 0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
    };
    job("apart", "INSERT INTO tagged SELECT id, day, tags, tag FROM orders LEFT JOIN UNNEST(tags) AS t(tag) ON TRUE;");
    let of_partition = |name: &str| files(&root.join("tagged").join(name)).len();
    let none = "__HIVE_DEFAULT_PARTITION__";
    assert_eq!(of_partition("day=2026-01-01"), 3, "a, b and NULL");
    assert!(of_partition(&format!("day={none}/tag={none}")) > 0, "{:?}", files(&root.join("tagged")));
    job("back", "INSERT INTO out SELECT day, tag, tags, id, tags[1] FROM tagged WHERE day IS NOT NULL;");
    let mut found: Vec<String> = files(&root.join("out"))
        .iter()
        .flat_map(|file| fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    found.sort();
    let expected = [
        r#"{"day":"2026-01-01","tag":"a","tags":["a","b"],"id":1,"first":"a"}"#,
        r#"{"day":"2026-01-01","tag":"b","tags":["a","b"],"id":1,"first":"a"}"#,
        r#"{"day":"2026-01-01","tag":"b","tags":["b",null],"id":4,"first":"b"}"#,
        r#"{"day":"2026-01-01","tag":null,"tags":["b",null],"id":4,"first":"b"}"#,
        r#"{"day":"2026-01-02","tag":null,"tags":[],"id":2,"first":null}"#,
    ];
    assert_eq!(found, expected);
}
