//! Snapshots of released formats are restored by every later version (`golden/README.md` tells how they were made). What
//! they hold, and what the restored jobs come to, is compared with what the numbers 0, 1, 2, … must come to: a row of the
//! source is a function of its number (docs/datagen.md), and the splits in `_metadata` tell which numbers were handed out.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::Directory;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Numbers that the whole input has.
const NUMBERS: u64 = 60_000;

/// Count and sum by key.
type Sums = BTreeMap<u64, (u64, u64)>;

/// Keys by count.
type Sizes = BTreeMap<u64, u64>;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// All that `sluice checkpoint inspect` tells of a snapshot.
fn inspect(directory: &Directory, place: &str) -> Value {
    let inspected = directory.run(&format!("checkpoint inspect {place} --rows 1000000 --output json"));
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    serde_json::from_str(&inspected.out).unwrap()
}

fn operator<'a>(snapshot: &'a Value, uid: &str) -> &'a Value {
    let operators = snapshot["operators"].as_array().unwrap();
    operators.iter().find(|operator| operator["uid"] == uid).unwrap_or_else(|| panic!("no '{uid}' in {operators:#?}"))
}

/// The rows of a table of `inspect` as text.
fn rows(table: &Value) -> Vec<Vec<&str>> {
    table["rows"].as_array().unwrap().iter().map(cells).collect()
}

fn cells(row: &Value) -> Vec<&str> {
    row.as_array().unwrap().iter().map(|cell| cell.as_str().unwrap()).collect()
}

/// The keyed state of an operator, each row without its key group.
fn state(snapshot: &Value, uid: &str) -> Vec<Vec<u64>> {
    let tables = operator(snapshot, uid)["rows"].as_object().unwrap();
    let table = tables.values().next().unwrap_or_else(|| panic!("'{uid}' has no keyed state"));
    let numbers = |row: Vec<&str>| row[1..].iter().map(|cell| cell.parse().unwrap()).collect();
    rows(table).into_iter().map(numbers).collect()
}

/// The rows in flight on an edge, each with its kind.
fn in_flight<'a>(snapshot: &'a Value, edge: &str) -> Vec<(&'a str, Vec<u64>)> {
    let edges = snapshot["inFlight"].as_array().unwrap();
    let found = edges.iter().find(|found| found["edge"] == edge).unwrap_or_else(|| panic!("no '{edge}' in {edges:#?}"));
    let numbers = |row: &[&str]| row.iter().map(|cell| cell.parse().unwrap()).collect();
    rows(&found["rows"]).into_iter().map(|row| (row[0], numbers(&row[1..]))).collect()
}

/// The numbers that a source had handed out: split s has the blocks of 16 numbers s, s + 64, s + 128, …
fn handed_out(snapshot: &Value, source: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    for split in operator(snapshot, source)["splits"].as_array().unwrap() {
        let first_block: u64 = split["split"].as_str().unwrap().strip_prefix("datagen-").unwrap().parse().unwrap();
        let offset = split["state"]["offset"].as_u64().unwrap();
        numbers.extend((0..offset).map(|row| (first_block + row / 16 * 64) * 16 + row % 16));
    }
    numbers.sort_unstable();
    numbers
}

fn sums(numbers: impl IntoIterator<Item = u64>, keys: u64) -> Sums {
    sums_by(numbers, |number| number % keys)
}

fn sums_by(numbers: impl IntoIterator<Item = u64>, key: impl Fn(u64) -> u64) -> Sums {
    let mut sums = Sums::new();
    for number in numbers {
        let (count, sum) = sums.entry(key(number)).or_default();
        (*count, *sum) = (*count + 1, *sum + number);
    }
    sums
}

fn sums_in(state: Vec<Vec<u64>>) -> Sums {
    state.into_iter().map(|row| (row[0], (row[1], row[2]))).collect()
}

fn sizes(counts: impl Iterator<Item = u64>) -> Sizes {
    let mut sizes = Sizes::new();
    counts.for_each(|count| *sizes.entry(count).or_default() += 1);
    sizes
}

/// Restores a golden snapshot by the program that it was taken of, at another speed, and runs to the end of the input.
fn restored(directory: &Directory, manifest: &str, snapshot: &str, (number, more): (usize, &str)) -> Value {
    let mut text = std::fs::read_to_string(golden(manifest)).unwrap();
    for (from, to) in [("'3000'", "'1000000'"), ("'10000'", "'1000000'"), ("'100'", "'1000000'"), ("'50'", "'1000000'")]
    {
        text = text.replace(from, to);
    }
    let text = text.replace("  parallelism: 2\n", more);
    std::fs::write(directory.path().join("job.yaml"), text).unwrap();
    let to = format!("restored-{number}");
    let line = format!("run job.yaml --rest-port 0 --checkpoint-dir {to} -s {}", golden(snapshot).display());
    let ran = directory.run(&line);
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    inspect(directory, &to)
}

const NARROWED: &str = "counts.group-aggregate(k)";

/// Base and deltas: what newer files say of a key stands.
#[test]
fn the_golden_checkpoint_of_a_base_and_deltas_of_version_1_is_restored() {
    let directory = Directory::new("golden-incremental");
    let place = golden("incremental-v1").join("1/chk-20");
    let snapshot = inspect(&directory, place.to_str().unwrap());
    let keyed = operator(&snapshot, NARROWED)["keyed"].as_array().unwrap();
    let deltas = keyed.iter().filter(|piece| piece["kind"] == "delta").count();
    assert!(deltas >= 4 && deltas < keyed.len(), "{keyed:#?}");
    let key = |number: u64| if number < 20_000 { number % 5000 } else { number % 40 };
    let numbers = handed_out(&snapshot, "counts.source(numbers)");
    assert_eq!(sums_in(state(&snapshot, NARROWED)), sums_by(numbers, key));
    for (number, more) in ["  parallelism: 3\n", "  parallelism: 1\n  stateBackend: Disk\n"].into_iter().enumerate() {
        let end = restored(&directory, "incremental.yaml", place.to_str().unwrap(), (number, more));
        assert!(sums_in(state(&end, NARROWED)) == sums_by(0..NUMBERS, key), "{more}: other counts");
    }
}

const GROUPS: &str = "counts.group-aggregate(n % 5000)";

/// It was written before checksums were: its files are read by their sizes alone.
#[test]
fn the_golden_checkpoint_of_version_1_is_restored() {
    holds_and_comes_to("checkpoint-v1", &["  parallelism: 1\n", "  parallelism: 3\n  maxParallelism: 32\n"]);
}

#[test]
fn the_golden_savepoint_of_version_1_is_restored_on_either_backend() {
    let directory = Directory::new("golden-savepoint-kind");
    let savepoint = inspect(&directory, golden("savepoint-v1").to_str().unwrap());
    assert_eq!(savepoint["savepoint"], true);
    let files: Vec<&Value> =
        operator(&savepoint, GROUPS)["keyed"].as_array().unwrap().iter().map(|piece| &piece["file"]).collect();
    assert!(files.iter().all(|file| file.as_str().is_some_and(|file| !file.contains('/'))), "its own: {files:?}");
    holds_and_comes_to("savepoint-v1", &["  parallelism: 3\n", "  parallelism: 1\n  stateBackend: Disk\n"]);
}

/// An aligned snapshot of `savepoint.yaml`: its state is what its numbers come to, and so is that of the jobs that it
/// starts.
fn holds_and_comes_to(name: &str, settings: &[&str]) {
    let directory = Directory::new(&format!("golden-{name}"));
    let snapshot = inspect(&directory, golden(name).to_str().unwrap());
    let numbers = handed_out(&snapshot, "counts.source(numbers)");
    assert!(numbers.len() > 5000 && numbers.len() < NUMBERS as usize, "{} numbers", numbers.len());
    assert_eq!(sums_in(state(&snapshot, GROUPS)), sums(numbers, 5000));
    for (number, more) in settings.iter().enumerate() {
        let end = restored(&directory, "savepoint.yaml", name, (number, more));
        assert!(
            sums_in(state(&end, GROUPS)) == sums(0..NUMBERS, 5000),
            "{more}: other counts than those of all numbers"
        );
    }
}

#[test]
fn a_plan_says_what_of_a_snapshot_is_kept() {
    let directory = Directory::new("golden-plan");
    let manifest = std::fs::read_to_string(golden("savepoint.yaml")).unwrap();
    let against = format!("plan job.yaml --against {}", golden("savepoint-v1").display());
    std::fs::write(directory.path().join("job.yaml"), &manifest).unwrap();
    let same = directory.run(&against);
    assert_eq!(same.code, Some(0), "{same:?}");
    for line in ["  kept     counts.source(numbers)\n", "  kept     counts.group-aggregate(n % 5000)\n"] {
        assert!(same.out.contains(line), "{same:?}");
    }
    assert!(!same.out.contains("dropped") && !same.out.contains("new "), "{same:?}");
    // Other keys: the counts would be lost.
    let changed = manifest.replace("n % 5000", "n % 50");
    assert_ne!(changed, manifest);
    std::fs::write(directory.path().join("job.yaml"), &changed).unwrap();
    let lost = directory.run(&against);
    assert_eq!(lost.code, Some(2), "{lost:?}");
    for line in
        ["  new      counts.group-aggregate(n % 50) (starts empty)\n", "  dropped  counts.group-aggregate(n % 5000)\n"]
    {
        assert!(lost.out.contains(line), "{lost:?}");
    }
    assert!(lost.err.contains("counts.group-aggregate(n % 5000)"), "{lost:?}");
    assert_eq!(directory.run(&format!("{against} --allow-non-restored-state")).code, Some(0));
}

const COUNTS: &str = "counts.group-aggregate(n % 50)";
const SIZES: &str = "sizes.group-aggregate(n % 50).group-aggregate(c)";

/// An unaligned cut: state and what was in flight are together what the numbers before the cut come to.
#[test]
fn the_golden_unaligned_checkpoint_of_version_1_holds_every_number_once() {
    let directory = Directory::new("golden-unaligned");
    let snapshot = inspect(&directory, golden("unaligned-v1").to_str().unwrap());
    // Rows and their sums: what was counted, and what was on its way to be.
    let numbers = handed_out(&snapshot, "counts.source(numbers)");
    let mut counted = sums_in(state(&snapshot, COUNTS));
    let overtaken = in_flight(&snapshot, "counts.calc(1) -> counts.group-aggregate(n % 50)");
    assert!(overtaken.len() > 100, "{} rows were in flight", overtaken.len());
    for (kind, row) in overtaken {
        let [key, number] = row[..] else { panic!("{row:?}") };
        assert_eq!((kind, key), ("+I", number % 50));
        let (count, sum) = counted.entry(key).or_default();
        (*count, *sum) = (*count + 1, *sum + number);
    }
    assert_eq!(counted, sums(numbers, 50));
    // The first aggregation of the other statement, in the same way.
    let counts = state(&snapshot, "sizes.group-aggregate(n % 50)");
    let mut counted: Sizes = counts.iter().map(|row| (row[0], row[1])).collect();
    for (_, row) in in_flight(&snapshot, "sizes.calc(1) -> sizes.group-aggregate(n % 50)") {
        *counted.entry(row[0]).or_default() += 1;
    }
    let numbers = handed_out(&snapshot, "sizes.source(numbers)");
    assert_eq!(counted, sums(numbers, 50).into_iter().map(|(key, (count, _))| (key, count)).collect());
    // A changelog: what was taken back and added on its way to the second aggregation.
    let mut known: BTreeMap<u64, i64> =
        state(&snapshot, SIZES).into_iter().map(|row| (row[0], i64::try_from(row[1]).unwrap())).collect();
    let changes = in_flight(&snapshot, &format!("sizes.calc(2) -> {SIZES}"));
    let kinds: std::collections::BTreeSet<&str> = changes.iter().map(|(kind, _)| *kind).collect();
    assert!(kinds.contains("-U") && kinds.contains("+U"), "{kinds:?}");
    for (kind, row) in changes {
        *known.entry(row[0]).or_default() += if kind.starts_with('+') { 1 } else { -1 };
    }
    known.retain(|_, number| *number != 0);
    let expected: BTreeMap<u64, i64> =
        sizes(counts.iter().map(|row| row[1])).into_iter().map(|(count, number)| (count, number as i64)).collect();
    assert_eq!(known, expected);
}

#[test]
fn the_golden_unaligned_checkpoint_of_version_1_is_restored() {
    let directory = Directory::new("golden-unaligned-restored");
    let settings = ["  parallelism: 2\n  stateBackend: Disk\n", "  parallelism: 1\n", "  parallelism: 3\n"];
    for (number, more) in settings.into_iter().enumerate() {
        let end = restored(&directory, "unaligned.yaml", "unaligned-v1", (number, more));
        let expected = sums(0..NUMBERS, 50);
        assert_eq!(sums_in(state(&end, COUNTS)), expected, "{more}");
        let found: Sizes = state(&end, SIZES).into_iter().map(|row| (row[0], row[1])).collect();
        assert_eq!(found, sizes(expected.values().map(|(count, _)| *count)), "{more}");
    }
}

const WINDOWED: &str = "totals.window-aggregate(TUMBLE(7000 ms),n % 50)";

/// Rows of all slices of windows, results of windows, and rows on the way to both, as count and sum by key.
fn windowed(snapshot: &Value) -> Sums {
    let totals = format!("{WINDOWED}.group-aggregate(k)");
    let mut found = Sums::new();
    let mut add = |key: &str, count: &str, sum: &str| {
        let [key, count, sum] = [key, count, sum].map(|cell| cell.parse::<u64>().unwrap());
        let entry = found.entry(key).or_default();
        *entry = (entry.0 + count, entry.1 + sum);
    };
    for table in operator(snapshot, WINDOWED)["rows"].as_object().unwrap().values() {
        rows(table).iter().for_each(|row| add(row[1], row[2], row[3]));
    }
    for table in operator(snapshot, &totals)["rows"].as_object().unwrap().values() {
        rows(table).iter().for_each(|row| add(row[1], row[3], row[5]));
    }
    for edge in snapshot["inFlight"].as_array().unwrap() {
        let is_result = edge["edge"].as_str().unwrap().ends_with(&totals);
        for row in rows(&edge["rows"]) {
            if is_result { add(row[1], row[2], row[3]) } else { add(row[1], "1", row[2]) }
        }
    }
    found
}

/// Windows that are open, of which the watermark says when they fire, with rows and results in flight.
#[test]
fn the_golden_checkpoint_of_windows_of_version_1_is_restored() {
    let directory = Directory::new("golden-windows");
    let snapshot = inspect(&directory, golden("windows-v1").to_str().unwrap());
    let slices = operator(&snapshot, WINDOWED)["rows"].as_object().unwrap();
    assert_eq!(slices.keys().collect::<Vec<_>>(), ["slice_84000_91000", "slice_91000_98000"]);
    let numbers = handed_out(&snapshot, "totals.source(numbers)");
    assert_eq!(windowed(&snapshot), sums(numbers, 50));
    let uid = format!("{WINDOWED}.group-aggregate(k)");
    let settings = ["  parallelism: 2\n", "  parallelism: 1\n  stateBackend: Disk\n", "  parallelism: 3\n"];
    for (number, more) in settings.into_iter().enumerate() {
        let end = restored(&directory, "windows.yaml", "windows-v1", (number, more));
        let found: BTreeMap<u64, [u64; 3]> =
            state(&end, &uid).into_iter().map(|row| (row[0], [row[1], row[2], row[4]])).collect();
        // A window has 700 numbers, of each key some.
        let windows = NUMBERS.div_ceil(700);
        let expected = sums(0..NUMBERS, 50).into_iter().map(|(key, (count, sum))| (key, [windows, count, sum]));
        assert_eq!(found, expected.collect(), "{more}");
    }
}

/// Batches in flight are read in part of a file, which tells itself whether it is whole, and of which version it is.
#[test]
fn a_file_of_batches_in_flight_with_another_byte_is_named_and_nothing_is_restored() {
    let (code, last, name) = with_damage("damaged", 1, |bytes| {
        let at = bytes.len() / 4;
        bytes[at] ^= 1;
    });
    assert_eq!(code, Some(1), "{last}");
    assert!(last.contains("StateUnreadable") && last.contains(&name) && last.contains("their checksum is"), "{last}");
}

#[test]
fn a_file_of_batches_in_flight_that_is_cut_off_is_named_and_nothing_is_restored() {
    let (code, last, name) = with_damage("cut-off", 1, |bytes| bytes.truncate(bytes.len() / 2));
    assert_eq!(code, Some(1), "{last}");
    assert!(last.contains("StateUnreadable") && last.contains(&name), "{last}");
}

/// A newer release will not be here after another try.
#[test]
fn a_file_of_batches_in_flight_of_a_newer_version_is_refused_by_name_and_not_tried_again() {
    let (code, last, name) = with_damage("newer", 60, |bytes| bytes[9] ^= 1);
    assert_eq!(code, Some(2), "a person must act: {last}");
    assert!(last.contains("SnapshotUnreadable") && last.contains(&name), "{last}");
    let what =
        "format version 257; this release reads versions up to 2: restore the snapshot with the release that wrote it";
    assert!(last.contains(what), "{last}");
}

/// Exit code and last line of a run from the unaligned checkpoint whose first file was changed so, and that file's name.
fn with_damage(name: &str, timeout: u32, damage: impl Fn(&mut Vec<u8>)) -> (Option<i32>, String, String) {
    let directory = Directory::new(&format!("golden-{name}"));
    let damaged = directory.path().join("damaged");
    assert!(Command::new("cp").arg("-r").args([golden("unaligned-v1"), damaged.clone()]).status().unwrap().success());
    let files = std::fs::read_dir(&damaged).unwrap().map(|entry| entry.unwrap().path());
    let file = files.filter(|path| path.to_str().unwrap().contains("in-flight-")).min().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    damage(&mut bytes);
    std::fs::write(&file, bytes).unwrap();
    let line = format!("run {} --rest-port 0 --start-timeout {timeout} -s damaged", golden("unaligned.yaml").display());
    let ran = directory.run(&line);
    (ran.code, ran.err.lines().last().unwrap().to_owned(), file.file_name().unwrap().to_str().unwrap().to_owned())
}

fn query(directory: &Directory, place: &Path, sql: Option<&str>) -> common::Ran {
    let mut command = directory.command("checkpoint query --output json");
    common::Ran::from(command.arg(place).args(sql).output().unwrap())
}

/// What tables there are is known from the end of a file: of the copy all else is another's bytes.
#[test]
fn tables_are_listed_without_reading_the_state() {
    let directory = Directory::new("golden-tables");
    let copy = directory.path().join("copy");
    assert!(Command::new("cp").arg("-r").args([golden("checkpoint-v1"), copy.clone()]).status().unwrap().success());
    let whole = query(&directory, &copy, None);
    for file in std::fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "parquet") {
            let mut bytes = std::fs::read(&file).unwrap();
            bytes[4..104].fill(0);
            std::fs::write(&file, bytes).unwrap();
        }
    }
    let listed = query(&directory, &copy, None);
    assert_eq!((listed.code, &listed.out), (Some(0), &whole.out), "{listed:?}");
    let counted = query(&directory, &golden("checkpoint-v1"), Some("SELECT COUNT(*) AS keys FROM state1"));
    let counted: Vec<BTreeMap<String, u64>> = serde_json::from_str(&counted.out).unwrap();
    let rows = &listed.out.lines().find(|line| line.contains("state1 ")).unwrap();
    let said = rows.split_once("  ").unwrap().1;
    assert!(said.replace(',', "").contains(&format!(" {} ", counted[0]["keys"])), "{counted:?}: {listed:?}");
    assert!(rows.contains("key_group UInt16, "), "{listed:?}");
    let damaged = query(&directory, &copy, Some("SELECT * FROM state1"));
    assert!(damaged.err.contains("cannot be read as state"), "{damaged:?}");
}

#[test]
fn a_query_tells_null_from_nothing_and_an_operator_without_rows_from_none() {
    let directory = Directory::new("golden-query");
    let ask = |sql: &str| query(&directory, &golden("checkpoint-v1"), Some(sql));
    assert_eq!(ask("SELECT CAST(NULL AS BIGINT) AS a, 1 AS b").out, "[{\"a\":null,\"b\":1}]\n");
    let splits: Vec<BTreeMap<String, u64>> =
        serde_json::from_str(&ask("SELECT COUNT(*) AS splits FROM splits").out).unwrap();
    assert!(splits[0]["splits"] > 0, "{splits:?}");
    let stateless = ask("SELECT * FROM `counts.source(numbers)`");
    assert!(stateless.err.contains("'counts.source(numbers)' keeps no state by key"), "{stateless:?}");
    let unknown = ask("SELECT * FROM state9");
    assert!(unknown.err.contains("there are state1") && unknown.err.contains("splits"), "{unknown:?}");
}
