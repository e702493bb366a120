//! Snapshots as a person handles them: named in every way, moved, given to other jobs, damaged. The counts of the restored
//! job are compared with what the numbers 0, 1, 2, … must come to.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::{Directory, wait_for_line};
use sluice_protocol::metadata::Metadata;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// So many that state is too large for `_metadata` and lies in files of its own.
const KEYS: u64 = 5000;
const NUMBERS: u64 = 60_000;

/// Counts and sums by key of the numbers below [`NUMBERS`], as SQL text of a manifest.
fn manifest(name: &str, rate: u64, more: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1
kind: StreamJob
metadata: {{name: {name}}}
spec:
  program:
    sql: |
      CREATE TABLE numbers (n BIGINT) WITH ('connector'='datagen', 'rows-per-second'='{rate}',
        'fields.n.kind'='sequence', 'fields.n.start'='0', 'fields.n.end'='{}');
      CREATE TABLE counts (k BIGINT, c BIGINT, s BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector'='blackhole');
      INSERT INTO counts SELECT n % {KEYS} AS k, COUNT(*) AS c, SUM(n) AS s FROM numbers GROUP BY n % {KEYS};
  checkpointing: {{interval: 200ms}}
{more}",
        NUMBERS - 1
    )
}

fn write(directory: &Directory, name: &str, manifest: &str) {
    std::fs::write(directory.path().join(name), manifest).unwrap();
}

/// A job that was interrupted in the middle, and the directory of its last checkpoint.
fn interrupted(name: &str) -> (Directory, PathBuf) {
    let directory = Directory::new(name);
    write(&directory, "job.yaml", &manifest("numbers", NUMBERS / 6, "  parallelism: 2\n"));
    let mut child = directory.command("run job.yaml --rest-port 0").stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !holds_state_file(directory.path()) {
        assert!(begun.elapsed() < Duration::from_secs(30), "no state was stored");
        std::thread::sleep(Duration::from_millis(50));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(child.wait().unwrap().success());
    let listed = directory.run("checkpoint list ./sluice-checkpoints").out;
    let checkpoint = listed.split_whitespace().rfind(|word| word.contains("/chk-")).unwrap();
    let checkpoint = PathBuf::from(checkpoint.strip_prefix("file://").unwrap());
    let counted: u64 = counts(&directory, checkpoint.to_str().unwrap()).values().map(|(count, _)| count).sum();
    assert!(counted > 0 && counted < NUMBERS, "it was interrupted in the middle, at {counted}");
    assert!(!state_files(&checkpoint).is_empty(), "its state lies in files");
    (directory, checkpoint)
}

/// The files that the `_metadata` of a checkpoint names, in its directory or shared by the checkpoints of its generation.
fn state_files(checkpoint: &Path) -> Vec<PathBuf> {
    let place = checkpoint.join("_metadata");
    let metadata = Metadata::from_bytes(&std::fs::read(&place).unwrap(), place.to_str().unwrap()).unwrap();
    metadata.files(checkpoint.to_str().unwrap()).map(PathBuf::from).collect()
}

fn holds_state_file(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    paths.any(|path| path.extension().is_some_and(|extension| extension == "parquet") || holds_state_file(&path))
}

/// Count and sum of each key in the newest checkpoint below a place, as `sluice checkpoint inspect` reads them.
fn counts(directory: &Directory, place: &str) -> BTreeMap<u64, (u64, u64)> {
    let inspected = directory.run(&format!("checkpoint inspect {place} --rows 1000000"));
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    let rows = inspected.out.lines().skip_while(|line| !line.contains("rows of '")).skip(2);
    let numbers =
        rows.map(|row| row.split_whitespace().skip(1).map_while(|cell| cell.parse().ok()).collect::<Vec<u64>>());
    numbers.filter(|row| row.len() >= 3).map(|row| (row[0], (row[1], row[2]))).collect()
}

fn expected() -> BTreeMap<u64, (u64, u64)> {
    let mut counts: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for number in 0..NUMBERS {
        let (count, sum) = counts.entry(number % KEYS).or_default();
        (*count, *sum) = (*count + 1, *sum + number);
    }
    counts
}

/// Restores a place by the job of this manifest and runs it to its end.
fn restore(directory: &Directory, manifest: &str, from: &str, number: usize) {
    let line = format!("run {manifest} --rest-port 0 --checkpoint-dir restored-{number} -s {from}");
    let ran = directory.run(&line);
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    assert!(
        counts(directory, &format!("restored-{number}")) == expected(),
        "{line}: other counts than those of all numbers"
    );
}

#[test]
fn a_checkpoint_its_metadata_and_a_job_directory_start_another_job_at_another_parallelism() {
    let (directory, checkpoint) = interrupted("ways");
    write(&directory, "other.yaml", &manifest("other", 1_000_000, "  parallelism: 3\n"));
    let job = checkpoint.parent().unwrap().parent().unwrap();
    let metadata = checkpoint.join("_metadata");
    for (number, from) in [checkpoint.as_path(), &metadata, job].into_iter().enumerate() {
        restore(&directory, "other.yaml", from.to_str().unwrap(), number);
    }
    assert!(metadata.is_file(), "a foreign snapshot is never removed");
}

#[test]
fn a_checkpoint_that_was_moved_with_its_generation_starts_where_it_is_now() {
    let (directory, checkpoint) = interrupted("moved");
    let backup = directory.path().join("elsewhere");
    assert!(Command::new("cp").arg("-r").args([checkpoint.parent().unwrap(), &backup]).status().unwrap().success());
    std::fs::remove_dir_all(directory.path().join("sluice-checkpoints")).unwrap();
    write(&directory, "fast.yaml", &manifest("numbers", 1_000_000, "  parallelism: 1\n"));
    let name = checkpoint.file_name().unwrap().to_str().unwrap();
    restore(&directory, "fast.yaml", &format!("elsewhere/{name}"), 0);
}

/// F2: it is tried again for as long as it is missing, and nothing is restored without it.
#[test]
fn a_state_file_that_is_gone_is_named_and_waited_for() {
    let (directory, checkpoint) = interrupted("gone");
    let file = state_files(&checkpoint).remove(0);
    let aside = directory.path().join("aside");
    std::fs::rename(&file, &aside).unwrap();
    write(&directory, "fast.yaml", &manifest("numbers", 1_000_000, "  parallelism: 3\n"));
    let line = format!("run fast.yaml --rest-port 0 --checkpoint-dir restored-0 -s {}", checkpoint.display());
    let mut child = directory.command(&line).env("RUST_LOG", "warn").stderr(Stdio::piped()).spawn().unwrap();
    wait_for_line(&mut child, "try 4 of 4");
    assert!(child.try_wait().unwrap().is_none(), "it goes on trying");
    std::fs::rename(&aside, &file).unwrap();
    let begun = Instant::now();
    assert!(child.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    assert!(counts(&directory, "restored-0") == expected(), "other counts than those of all numbers");
}

/// A part of a file is no file: it is waited for as if nothing were there.
#[test]
fn a_state_file_that_was_cut_off_is_named_with_its_sizes() {
    let (directory, checkpoint) = interrupted("cut");
    let file = state_files(&checkpoint).remove(0);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    write(&directory, "fast.yaml", &manifest("numbers", 1_000_000, "  parallelism: 2\n"));
    let line = format!("run fast.yaml --rest-port 0 --checkpoint-dir restored-0 -s {}", checkpoint.display());
    let mut child = directory.command(&line).env("RUST_LOG", "warn").stderr(Stdio::piped()).spawn().unwrap();
    wait_for_line(&mut child, &format!("it has {} bytes, but the checkpoint says {}", whole.len() / 2, whole.len()));
    std::fs::write(&file, &whole).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(counts(&directory, "restored-0") == expected(), "other counts than those of all numbers");
}

/// As many bytes as there should be, but one of them another: it is not taken for state.
#[test]
fn a_state_file_with_another_byte_is_named_and_waited_for() {
    let (directory, checkpoint) = interrupted("damaged");
    let file = state_files(&checkpoint).remove(0);
    let whole = std::fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&file, &damaged).unwrap();
    write(&directory, "fast.yaml", &manifest("numbers", 1_000_000, "  parallelism: 2\n"));
    let line = format!("run fast.yaml --rest-port 0 --checkpoint-dir restored-0 -s {}", checkpoint.display());
    let mut child = directory.command(&line).env("RUST_LOG", "warn").stderr(Stdio::piped()).spawn().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    wait_for_line(&mut child, &format!("{name}, try 4 of 4: its checksum is "));
    assert!(child.try_wait().unwrap().is_none(), "it goes on trying");
    let inspected = directory.run(&format!("checkpoint inspect {} --rows 1000000", checkpoint.display()));
    assert!(inspected.err.contains(name) && inspected.err.contains("not those that were stored"), "{inspected:?}");
    std::fs::write(&file, &whole).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(counts(&directory, "restored-0") == expected(), "other counts than those of all numbers");
}

/// The description of the snapshot itself: a byte of a position is not taken for another position.
#[test]
fn a_metadata_with_another_byte_or_cut_off_is_named_and_waited_for() {
    let (directory, checkpoint) = interrupted("metadata");
    let file = checkpoint.join("_metadata");
    let whole = std::fs::read_to_string(&file).unwrap();
    write(&directory, "fast.yaml", &manifest("numbers", 1_000_000, "  parallelism: 2\n"));
    let line = format!("run fast.yaml --rest-port 0 --checkpoint-dir restored-0 -s {}", checkpoint.display());
    let other_byte = whole.replacen("\"checkpoint\": ", "\"checkpoint\": 1", 1);
    for (damaged, what) in [(&whole[..whole.len() / 2], "EOF while parsing"), (&other_byte, "its checksum")] {
        std::fs::write(&file, damaged).unwrap();
        let ran = directory.run(&format!("{line} --start-timeout 2"));
        let last = ran.err.lines().last().unwrap();
        let said = format!("/_metadata is damaged: {what}");
        assert!(last.starts_with("error: StateDamaged: ") && last.contains(&said), "{last}");
    }
    let mut child = directory.command(&line).env("RUST_LOG", "warn").stderr(Stdio::piped()).spawn().unwrap();
    wait_for_line(&mut child, "/_metadata is damaged: its checksum is ");
    std::fs::write(&file, &whole).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(counts(&directory, "restored-0") == expected(), "other counts than those of all numbers");
}

/// What stays out of reach ends the run: a person waits for it.
#[test]
fn a_run_whose_snapshot_stays_damaged_ends_and_names_the_file() {
    let (directory, checkpoint) = interrupted("hopeless");
    let file = state_files(&checkpoint).remove(0);
    std::fs::remove_file(&file).unwrap();
    write(&directory, "fast.yaml", &manifest("numbers", 1_000_000, "  parallelism: 2\n"));
    let ran = directory.run(&format!(
        "run fast.yaml --rest-port 0 --checkpoint-dir restored-0 --start-timeout 2 -s {}",
        checkpoint.display()
    ));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let last = ran.err.lines().last().unwrap();
    assert!(last.starts_with("error: StateUnreadable: state file file://"), "{last}");
    assert!(last.contains(file.file_name().unwrap().to_str().unwrap()) && last.contains("within 2 s"), "{last}");
}
