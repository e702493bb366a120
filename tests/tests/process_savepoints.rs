//! Savepoints by the command line, with real processes: taken while a job runs, stopped with, copied elsewhere, started
//! from by another job at another parallelism; every count is right. One test needs the real S3 server.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use sluice_storage::{ObjectStore as _, PutOutcome};
use sluice_tests::harness::ledger::open_store;
use sluice_tests::harness::process::{Process, free_port};
use sluice_tests::harness::s3::{ACCESS_KEY, OwnS3, SECRET_KEY};
use sluice_tests::harness::{S3Address, Services, http, sluice_binary, unique, wait_for};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const ROWS: u64 = 120_000;
const KEYS: u64 = 11;

fn manifest(name: &str, extra: &str) -> String {
    format!(
        r#"apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: {name}}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (n BIGINT) WITH ('connector'='datagen', 'rows-per-second'='20000', 'fields.n.kind'='sequence', 'fields.n.start'='0', 'fields.n.end'='{}');
      CREATE TABLE counts (k BIGINT, c BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='print');
      INSERT INTO counts SELECT n % {KEYS} AS k, COUNT(*) AS c FROM numbers GROUP BY n % {KEYS};
  parallelism: 2
  checkpointing: {{interval: 200ms, retained: 2{extra}}}
"#,
        ROWS - 1
    )
}

/// A directory of its own for each test, gone afterwards.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(unique(&format!("sluice-savepoints-{name}")));
        std::fs::create_dir_all(&directory).expect("a directory");
        Self(directory)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// Starts `sluice run` and waits for its control endpoint.
    fn run(&self, name: &str, manifest: &Path, arguments: &[&str]) -> Job {
        let rest = free_port();
        let mut command = Command::new(sluice_binary());
        command.current_dir(&self.0).arg("run").arg(manifest).args(["--rest-port", &rest.to_string()]).args(arguments);
        command.envs([("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]);
        let process = Process::start(name, &self.0, &mut command).expect("sluice run");
        let endpoint = wait_for("the control endpoint", Duration::from_secs(20), || {
            let log = process.log();
            let rest = log.split("control endpoint: ").nth(1)?;
            rest.split_whitespace().next().map(ToOwned::to_owned)
        });
        Job { process, endpoint, rest }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Job {
    process: Process,
    endpoint: String,
    rest: u16,
}

impl Job {
    fn ask(&self, arguments: &[&str]) -> Output {
        Command::new(sluice_binary()).args(arguments).args(["--jobmanager", &self.endpoint]).output().expect("sluice")
    }

    /// What a command that must succeed prints.
    fn answer(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.ask(arguments);
        let complaint = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{arguments:?}: {complaint}\n{}", self.process.log());
        String::from_utf8(stdout).expect("text").trim().to_owned()
    }

    fn wait_for_rows(&self, rows: u64) {
        wait_for("rows", Duration::from_secs(60), || {
            (printed(&self.process.log()).values().sum::<u64>() > rows).then_some(())
        });
    }
}

/// The last printed count of each key.
fn printed(log: &str) -> BTreeMap<u64, u64> {
    let row = |line: &str| -> Option<(u64, u64)> {
        let (_, row) = line.split_once("[")?;
        let (key, count) = row.strip_suffix(']')?.split_once(", ")?;
        let is_row = line.contains("+I[") || line.contains("+U[");
        is_row.then_some((key.parse().ok()?, count.parse().ok()?))
    };
    log.lines().filter_map(row).collect()
}

fn expected(keys: u64) -> BTreeMap<u64, u64> {
    (0..ROWS).fold(BTreeMap::new(), |mut counts, n| {
        *counts.entry(n % keys).or_default() += 1;
        counts
    })
}

/// As a person copies it. A savepoint is flat: nothing of it lies elsewhere.
fn copy_savepoint(from: &Path, to: &Path) {
    let mut entries = std::fs::read_dir(from).expect("the savepoint").map(|entry| entry.expect("an entry").path());
    assert!(entries.all(|path| path.is_file()), "{} holds directories", from.display());
    assert!(Command::new("cp").arg("-r").args([from, to]).status().expect("cp").success());
}

#[test]
fn stopped_with_a_savepoint_and_started_from_a_copy_at_another_parallelism_every_count_is_right() {
    let place = Place::new("stop");
    let first = place.write("first.yaml", &manifest("first", ""));
    let mut job = place.run("first", &first, &[]);
    job.wait_for_rows(5_000);
    let archive = place.0.join("archive");
    let path = job.answer(&["stop", "--savepoint-to", archive.to_str().expect("text"), "--request-id", "stop-1"]);
    assert!(job.process.wait(Duration::from_secs(20)).success());
    let stopped_at = printed(&job.process.log());
    assert!(stopped_at.values().sum::<u64>() < ROWS, "it was stopped on its way");
    let savepoint = PathBuf::from(path.strip_prefix("file://").expect("a file address"));
    assert!(savepoint.starts_with(&archive) && savepoint.join("_metadata").exists(), "{path}");
    let copy = place.0.join("elsewhere");
    copy_savepoint(&savepoint, &copy);
    std::fs::remove_dir_all(&archive).expect("the original is gone");
    std::fs::remove_dir_all(place.0.join("sluice-checkpoints")).expect("and the job's own directory");
    let second = place.write("second.yaml", &manifest("second", ""));
    let from = copy.to_str().expect("text");
    let mut job = place.run("second", &second, &["-s", from, "--parallelism", "3"]);
    assert!(job.process.wait(Duration::from_secs(60)).success(), "{}", job.process.log());
    assert_eq!(printed(&job.process.log()), expected(KEYS));
}

#[test]
fn a_savepoint_a_checkpoint_on_demand_and_a_disposal_while_the_job_runs_on() {
    let place = Place::new("live");
    let manifest = place.write("job.yaml", &manifest("live", ", savepointStorage: \"file:///proc/nowhere\""));
    let mut job = place.run("live", &manifest, &[]);
    job.wait_for_rows(1_000);
    let refused = job.ask(&["savepoint", "--timeout", "5s"]);
    assert!(!refused.status.success(), "a failed savepoint is told by the exit code");
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("/proc/nowhere"), "{complaint}");
    let to = place.0.join("savepoints");
    let to = to.to_str().expect("text");
    let taken = job.answer(&["savepoint", "--to", to, "--request-id", "one"]);
    assert_eq!(job.answer(&["savepoint", "--to", to, "--request-id", "one"]), taken, "asked again, not taken again");
    let directory = PathBuf::from(taken.strip_prefix("file://").expect("a file address"));
    assert!(directory.join("_metadata").exists());
    let checkpoint = job.answer(&["checkpoint", "trigger"]);
    assert!(checkpoint.contains("/chk-"), "{checkpoint}");
    let in_use = job.ask(&["savepoint", "dispose", &checkpoint]);
    assert!(String::from_utf8_lossy(&in_use.stderr).contains("is no savepoint of this job"), "{in_use:?}");
    job.answer(&["savepoint", "dispose", &taken]);
    wait_for("the removal", Duration::from_secs(10), || (!directory.join("_metadata").exists()).then_some(()));
    let checkpoints = http::get(&format!("127.0.0.1:{}", job.rest), "/checkpoints").expect("the history");
    let checkpoints: serde_json::Value = serde_json::from_str(&checkpoints).expect("JSON");
    let kinds: Vec<_> =
        checkpoints["history"].as_array().expect("a list").iter().map(|one| one["kind"].clone()).collect();
    assert!(kinds.contains(&serde_json::json!("Savepoint")), "{checkpoints}");
    assert!(job.process.wait(Duration::from_secs(60)).success(), "{}", job.process.log());
    assert_eq!(printed(&job.process.log()), expected(KEYS), "nothing of this has changed a count");
}

#[test]
fn a_cancelled_job_leaves_nothing_when_it_is_told_to_and_its_savepoint_stays() {
    let place = Place::new("cancel");
    let manifest = place.write("job.yaml", &manifest("gone", ", retention: DeleteOnCancellation"));
    let mut job = place.run("gone", &manifest, &[]);
    job.wait_for_rows(1_000);
    let taken = job.answer(&["savepoint"]);
    job.answer(&["cancel"]);
    job.process.wait(Duration::from_secs(20));
    let mut left = Vec::new();
    let mut open = vec![place.0.join("sluice-checkpoints")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
            if entry.path().is_dir() { open.push(entry.path()) } else { left.push(entry.path().display().to_string()) }
        }
    }
    let directory = taken.strip_prefix("file://").expect("a file address");
    left.retain(|path| !path.contains("/ledger/") && !path.ends_with(".uid") && !path.starts_with(directory));
    assert_eq!(left, Vec::<String>::new());
    assert!(Path::new(directory).join("_metadata").exists());
}

/// Every object below a place of one server, to another place of another.
async fn copy_objects(from: (&S3Address, &str), to: (&S3Address, &str)) -> usize {
    let (source, target) = (open_store(from.0, from.1), open_store(to.0, to.1));
    let keys = source.list("", None).await.expect("the savepoint's keys");
    for key in &keys {
        let bytes = source.get(key).await.expect("an answer").expect("an object");
        assert_eq!(target.put_if_absent(key, bytes).await.expect("an answer"), PutOutcome::Created);
    }
    keys.len()
}

/// From a bucket to one of another name on another server, and the first server is gone when the second job starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_copied_to_another_bucket_starts_another_job_there() {
    if Services::from_environment().is_none() {
        return;
    }
    let (home, archive) = (OwnS3::start_with("home"), OwnS3::start_with("archive"));
    let place = Place::new("buckets");
    let manifest = |name: &str, server: &S3Address| {
        let storage = format!("s3://{}/jobs", server.bucket);
        let options = format!("storageOptions: {{endpoint: \"{}\", pathStyle: true}}", server.endpoint);
        manifest(name, &format!(", storage: \"{storage}\", {options}")).replace("n % 11", "n % 20011")
    };
    let first = place.write("first.yaml", &manifest("first", &home.address()));
    let mut job = place.run("first", &first, &[]);
    job.wait_for_rows(40_000);
    let path = job.answer(&["stop", "--savepoint-to", "s3://home/savepoints"]);
    assert!(job.process.wait(Duration::from_secs(20)).success());
    let savepoint = path.strip_prefix("s3://home/").expect("an address in the bucket");
    let objects = copy_objects((&home.address(), savepoint), (&archive.address(), "2026/november")).await;
    assert!(objects > 2, "state in files of its own beside _metadata, not {objects} objects");
    drop(home);
    let second = place.write("second.yaml", &manifest("second", &archive.address()));
    let mut job = place.run("second", &second, &["-s", "s3://archive/2026/november", "--parallelism", "3"]);
    assert!(job.process.wait(Duration::from_secs(60)).success(), "{}", job.process.log());
    assert_eq!(printed(&job.process.log()), expected(20011));
    let kept = open_store(&archive.address(), "2026/november").list("", None).await.expect("its keys");
    assert_eq!(kept.len(), objects, "a foreign snapshot is never removed");
}
