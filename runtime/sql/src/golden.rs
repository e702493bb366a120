//! Golden tests: SQL in, rows out, through the real planner, operators, task loop and channels.
//!
//! Each statement in `golden/*.sql` runs plainly, is cut by a checkpoint and restored in the middle, and is restored
//! under another parallelism; each time its sink must hold the rows of [`reference`], which evaluates the plan as
//! DataFusion resolved it, over the whole input at once and without our operators. Some are computed by [`views`] too,
//! without SQL, and all that DataFusion can execute by its own batch execution ([`batch`]). A new case is one more file;
//! `-- rows: N` in it sets how many page views there are.

mod batch;
mod changes;
mod job;
mod memory;
mod planned;
mod reference;
mod streams;
mod views;

use crate::PlanOptions;
use job::{Cut, Job};
use memory::{Connectors, SinkContent};
use sluice_protocol::TimeSpan;
use sluice_protocol::message::Alignment;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use views::View;

/// Key groups of every job here; few, so that each holds several keys.
const MAX_PARALLELISM: u16 = 16;

/// One statement.
struct Case {
    name: String,
    sql: String,
    rows: usize,
}

/// Computes the rows that a sink must hold.
type Computed = fn(&[View]) -> SinkContent;

/// The rows that a statement's sink must hold, computed without SQL.
const COMPUTED: [(&str, Computed); 10] = [
    ("count_per_app", views::count_per_app),
    ("sum_and_count", views::sum_and_count),
    ("filter_and_project", views::filter_and_project),
    ("global", views::global),
    ("two_keys", views::two_keys),
    ("computed_key", views::computed_key),
    ("derived_table", views::derived_table),
    ("decimals_and_floats", views::decimals_and_floats),
    ("having", views::having),
    ("counts_of_counts", views::counts_of_counts),
];

/// All files, in order of their names.
fn cases() -> Vec<Case> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{directory}: {error}"));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    let cases = paths.into_iter().map(|path| {
        let sql = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let rows = sql.lines().find_map(|line| line.strip_prefix("-- rows: ")).map(|rows| rows.parse().unwrap());
        Case { name: path.file_stem().unwrap().to_string_lossy().into_owned(), sql, rows: rows.unwrap_or(1500) }
    });
    cases.collect()
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap_or_else(|| panic!("there is no case '{name}'"))
}

/// A job over the statement with this parallelism.
fn job(case: &Case, connectors: &Connectors, parallelism: u32, seed: u64) -> Job {
    let options = PlanOptions { parallelism, max_parallelism: MAX_PARALLELISM };
    let program = crate::plan(&case.sql, &options, connectors).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    Job::new(program, seed)
}

fn for_all(run: impl Fn(&Case, &Connectors, u64) -> SinkContent) {
    for case in &cases() {
        let computed = COMPUTED.iter().find(|(name, _)| *name == case.name).map(|(_, computed)| computed);
        for seed in 0..if computed.is_some() { 4 } else { 8 } {
            let views = views::generate(seed, case.rows);
            let connectors = Connectors::new(&views);
            let content = run(case, &connectors, seed);
            let expected =
                computed.map_or_else(|| reference::content(&case.sql, &connectors), |computed| computed(&views));
            assert!(!expected.is_empty(), "{} expects nothing", case.name);
            assert_eq!(differences(&content, &expected), BTreeMap::new(), "{} with seed {seed}", case.name);
        }
    }
}

/// What the reference says is what row by row computation says.
#[test]
fn the_reference_is_right() {
    for (name, computed) in COMPUTED {
        let views = views::generate(3, 700);
        let expected = computed(&views);
        let found = reference::content(&case(name).sql, &Connectors::new(&views));
        assert_eq!(differences(&found, &expected), BTreeMap::new(), "{name}");
    }
}

/// Those that have nodes of ours, which DataFusion cannot execute: windows and UNNEST.
const NOT_BATCH: [&str; 22] = [
    "window_aligned_silent_split",
    "window_cumulate",
    "window_distinct",
    "window_distinct_global",
    "window_finished_source",
    "window_full_join",
    "window_global",
    "window_hop",
    "window_idle_source",
    "window_join",
    "window_join_aligned",
    "window_late_updates",
    "window_late_upserts",
    "window_of_windows",
    "window_rows",
    "window_session",
    "window_silent_split",
    "window_top_n",
    "window_top_n_of_counts",
    "window_tumble",
    "words",
    "words_kept",
];

/// Those that mean something else in a batch, and why.
const OTHERWISE: [(&str, &str); 1] =
    [("guards", "DataFusion evaluates both sides of AND for all rows, and so divides by zero where Flink does not")];

/// What the reference says is what DataFusion's own batch execution gives.
#[test]
fn the_reference_says_what_datafusion_gives() {
    let (mut without, mut wrong) = (Vec::new(), Vec::new());
    let is_meant = |case: &Case| OTHERWISE.iter().all(|(name, _)| *name != case.name);
    for case in cases().into_iter().filter(is_meant) {
        for seed in [1, 2] {
            let connectors = Connectors::new(&views::generate(seed, case.rows));
            let Some(found) = batch::content(&case.sql, &connectors) else {
                without.push(case.name.clone());
                break;
            };
            assert!(!found.is_empty(), "{} gives nothing", case.name);
            let expected = reference::content(&case.sql, &connectors);
            let differences = differences(&found, &expected);
            if !differences.is_empty() {
                wrong.push(format!("{} with seed {seed}: {differences:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(without, NOT_BATCH, "these are what DataFusion does not check");
}

/// Rows that are there (first) or should be there (second) another number of times.
fn differences(found: &SinkContent, expected: &SinkContent) -> BTreeMap<String, (i64, i64)> {
    let count = |content: &SinkContent, row: &str| content.get(row).copied().unwrap_or(0);
    let rows = found.keys().chain(expected.keys());
    let pairs = rows.map(|row| (row.clone(), (count(found, row), count(expected, row))));
    pairs.filter(|(_, (found, expected))| found != expected).collect()
}

#[test]
fn plain() {
    for_all(|case, connectors, seed| {
        let parallelism = 1 + u32::try_from(seed % 3).unwrap();
        job(case, connectors, parallelism, seed).run_to_end();
        connectors.content()
    });
}

#[test]
fn restored_in_the_middle() {
    for_all(|case, connectors, seed| {
        let cut = cut_in_the_middle(case, connectors, 2, seed, Alignment::Aligned);
        let mut restored = job(case, connectors, 2, seed + 1);
        restored.restore(&cut);
        restored.run_to_end();
        connectors.content()
    });
}

/// Barriers that overtake, at once and after a while; what was in flight is restored under another parallelism.
#[test]
fn overtaken_and_rescaled() {
    let in_flight = AtomicU64::new(0);
    for_all(|case, connectors, seed| {
        let (before, after) = [(2, 3), (3, 1), (1, 4), (2, 2)][usize::try_from(seed % 4).unwrap()];
        let after_time = TimeSpan([0, 30][usize::try_from(seed / 4 % 2).unwrap()]);
        let alignment = Alignment::Unaligned { after: after_time };
        let cut = cut_in_the_middle(case, connectors, before, seed, alignment);
        in_flight.fetch_add(cut.in_flight, Ordering::Relaxed);
        let mut restored = job(case, connectors, after, seed + 1);
        restored.restore(&cut);
        restored.run_to_end();
        connectors.content()
    });
    let in_flight = in_flight.into_inner();
    assert!(in_flight > 10_000, "only {in_flight} rows were ever in flight");
}

/// FLINK-35761, FLIP-547: a checkpoint is taken while the batches of the one before are still being read, and another
/// restore begins from it.
#[test]
fn overtaken_again_while_restored_batches_are_read() {
    let again = AtomicU64::new(0);
    for_all(|case, connectors, seed| {
        let overtaking = Alignment::Unaligned { after: TimeSpan(0) };
        let mut cut = cut_in_the_middle(case, connectors, 2, seed, overtaking);
        for parallelism in [3, 1, 2] {
            let mut restored = job(case, connectors, parallelism, seed + u64::from(parallelism));
            restored.restore(&cut);
            cut = restored.checkpoint(connectors, overtaking);
            again.fetch_add(cut.aged, Ordering::Relaxed);
            drop(restored);
            connectors.take_back(&cut);
        }
        let mut restored = job(case, connectors, 2, seed + 9);
        restored.restore(&cut);
        restored.run_to_end();
        connectors.content()
    });
    let again = again.into_inner();
    assert!(again > 1000, "only {again} rows were ever saved again");
}

#[test]
fn rescaled() {
    for_all(|case, connectors, seed| {
        let (before, after) = [(2, 3), (3, 1), (1, 4), (4, 2)][usize::try_from(seed % 4).unwrap()];
        let cut = cut_in_the_middle(case, connectors, before, seed, Alignment::Aligned);
        let mut restored = job(case, connectors, after, seed + 1);
        restored.restore(&cut);
        restored.run_to_end();
        connectors.content()
    });
}

/// Runs on after the checkpoint for a while, then dies; what was written after the cut is taken back, as by a
/// transactional sink.
fn cut_in_the_middle(case: &Case, connectors: &Connectors, parallelism: u32, seed: u64, alignment: Alignment) -> Cut {
    cut_of(job(case, connectors, parallelism, seed), connectors, alignment)
}

fn cut_of(mut job: Job, connectors: &Connectors, alignment: Alignment) -> Cut {
    let total = connectors.rows();
    job.run_until(|| connectors.rows_read() * 3 > total);
    let cut = job.checkpoint(connectors, alignment);
    job.run_until(|| connectors.rows_read() * 3 > total * 2);
    drop(job);
    connectors.take_back(&cut);
    cut
}

#[test]
fn upserts_that_are_written_again_change_nothing() {
    for seed in 0..8 {
        let views = views::generate(seed, 1500);
        let connectors = Connectors::new(&views);
        let case = &case("count_per_app");
        let mut first = job(case, &connectors, 2, seed);
        first.run_until(|| connectors.rows_read() > 500);
        let cut = first.checkpoint(&connectors, Alignment::Aligned);
        first.run_until(|| connectors.rows_read() > 1200);
        drop(first);
        let mut restored = job(case, &connectors, 3, seed + 1);
        restored.restore(&cut);
        restored.run_to_end();
        let expected = views::count_per_app(&views);
        assert_eq!(differences(&connectors.content(), &expected), BTreeMap::new(), "seed {seed}");
    }
}

/// Rows that were written before so much of the input was read, of a case and of the same without an option.
fn written_early(case: &Case, without: &str) -> [usize; 2] {
    let bare = case.sql.lines().filter(|line| !line.contains(without)).collect::<Vec<_>>().join("\n");
    assert_ne!(bare.trim_end(), case.sql.trim_end(), "{} lacks '{without}'", case.name);
    [case.sql.clone(), bare].map(|sql| {
        let connectors = Connectors::new(&views::generate(5, case.rows));
        let case = Case { name: case.name.clone(), sql, rows: case.rows };
        let mut job = job(&case, &connectors, 2, 5);
        job.run_until(|| connectors.rows_read() * 5 > connectors.rows() * 2);
        connectors.content().len()
    })
}

/// One silent partition: nobody waits for it (FLINK-5479).
#[test]
fn windows_fire_beside_a_silent_split() {
    let [early, waiting] = written_early(&case("window_silent_split"), "idle-timeout");
    assert_eq!(waiting, 0, "without a timeout the silent split holds all windows back");
    assert!(early > 20, "only {early} results came before the end");
}

/// A source that is at its end holds nobody back.
#[test]
fn windows_fire_behind_a_source_that_has_finished() {
    let case = case("window_finished_source");
    let connectors = Connectors::new(&views::generate(5, case.rows));
    let mut job = job(&case, &connectors, 2, 5);
    job.run_until(|| connectors.rows_read() * 20 > connectors.rows() * 19);
    let early = connectors.content().len();
    assert!(early > 20, "only {early} results came before the end");
}

/// A join of two sources of which one is slower holds what the other is ahead: aligned, that is bounded.
#[test]
fn aligned_sources_bound_the_state_of_a_join() {
    let case = case("window_join_aligned");
    let state = ["'3 s'", "'1 d'"].map(|drift| {
        let connectors = Connectors::new(&views::generate(5, case.rows)).with_poll_rows(5);
        let sql = case.sql.replace("'3 s'", drift);
        let mut job = job(&Case { name: case.name.clone(), sql, rows: case.rows }, &connectors, 2, 5);
        job.run_until(|| connectors.rows_read() > connectors.rows());
        job.checkpoint(&connectors, Alignment::Aligned).state_rows()
    });
    let [aligned, ahead] = state;
    assert!(aligned * 2 < ahead, "{aligned} rows of state with alignment, {ahead} without");
}
