//! Golden tests: SQL in, rows out, through the real planner, operators, task loop and channels.
//!
//! Each statement in `tests/golden/*.sql` runs plainly, is cut by a checkpoint and restored in the middle, and is
//! restored under another parallelism; each time its sink must hold the rows that [`views`] computes without SQL.

// A test's helper panics: that is how a test fails.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests")]

mod job;
mod memory;
mod views;

use job::{Cut, Job};
use memory::{Connectors, SinkContent};
use sluice_sql::PlanOptions;
use std::collections::BTreeMap;
use views::View;

/// Key groups of every job here; few, so that each holds several keys.
const MAX_PARALLELISM: u16 = 16;

/// One statement and the rows that its sink must hold: how often each row is there.
struct Case {
    name: &'static str,
    expected: fn(&[View]) -> SinkContent,
}

const CASES: [Case; 10] = [
    Case { name: "count_per_app", expected: views::count_per_app },
    Case { name: "sum_and_count", expected: views::sum_and_count },
    Case { name: "filter_and_project", expected: views::filter_and_project },
    Case { name: "global", expected: views::global },
    Case { name: "two_keys", expected: views::two_keys },
    Case { name: "computed_key", expected: views::computed_key },
    Case { name: "derived_table", expected: views::derived_table },
    Case { name: "decimals_and_floats", expected: views::decimals_and_floats },
    Case { name: "having", expected: views::having },
    Case { name: "counts_of_counts", expected: views::counts_of_counts },
];

fn sql(name: &str) -> String {
    let path = format!("{}/golden/{name}.sql", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A job over the statement with this parallelism.
fn job(case: &Case, connectors: &Connectors, parallelism: u32, seed: u64) -> Job {
    let options = PlanOptions { parallelism, max_parallelism: MAX_PARALLELISM };
    let program = sluice_sql::plan(&sql(case.name), &options, connectors).unwrap_or_else(|error| panic!("{error}"));
    Job::new(program, seed)
}

fn for_all(run: impl Fn(&Case, &Connectors, u64) -> SinkContent) {
    for case in &CASES {
        for seed in 0..8 {
            let views = views::generate(seed, 1500);
            let content = run(case, &Connectors::new(&views), seed);
            let expected = (case.expected)(&views);
            assert!(!expected.is_empty(), "{} expects nothing", case.name);
            assert_eq!(differences(&content, &expected), BTreeMap::new(), "{} with seed {seed}", case.name);
        }
    }
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
        let cut = cut_in_the_middle(case, connectors, 2, seed);
        let mut restored = job(case, connectors, 2, seed + 1);
        restored.restore(&cut);
        restored.run_to_end();
        connectors.content()
    });
}

#[test]
fn rescaled() {
    for_all(|case, connectors, seed| {
        let (before, after) = [(2, 3), (3, 1), (1, 4), (4, 2)][usize::try_from(seed % 4).unwrap()];
        let cut = cut_in_the_middle(case, connectors, before, seed);
        let mut restored = job(case, connectors, after, seed + 1);
        restored.restore(&cut);
        restored.run_to_end();
        connectors.content()
    });
}

/// Runs on after the checkpoint for a while, then dies; what was written after the cut is taken back, as by a
/// transactional sink.
fn cut_in_the_middle(case: &Case, connectors: &Connectors, parallelism: u32, seed: u64) -> Cut {
    let mut job = job(case, connectors, parallelism, seed);
    let total = connectors.rows();
    job.run_until(|| connectors.rows_read() * 3 > total);
    let cut = job.checkpoint(connectors);
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
        let case = &CASES[0];
        let mut first = job(case, &connectors, 2, seed);
        first.run_until(|| connectors.rows_read() > 500);
        let cut = first.checkpoint(&connectors);
        first.run_until(|| connectors.rows_read() > 1200);
        drop(first);
        let mut restored = job(case, &connectors, 3, seed + 1);
        restored.restore(&cut);
        restored.run_to_end();
        assert_eq!(differences(&connectors.content(), &(case.expected)(&views)), BTreeMap::new(), "seed {seed}");
    }
}
