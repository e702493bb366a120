//! Changed programs over one checkpoint (design §9): what keeps its state, what starts empty, what is refused.
//!
//! The expected rows come from the views that were read before the cut and those after it, counted without SQL.

use super::job::{Cut, Job};
use super::memory::{Connectors, SinkContent, read_before};
use super::views::{self, View};
use super::{MAX_PARALLELISM, cut_of, differences};
use crate::PlanOptions;
use sluice_protocol::message::Alignment;
use sluice_protocol::metadata::RestoreError;
use std::collections::BTreeMap;

const COUNTS: &str = "SELECT app_id, COUNT(*) AS n FROM page_views GROUP BY app_id";

/// A statement into a sink that takes all kinds of changes.
fn program(sink: &str, columns: &str, query: &str) -> String {
    format!(
        "CREATE TABLE page_views (app_id STRING, url STRING, ms INT, cost DECIMAL(10, 2), ratio DOUBLE)
         WITH ('connector' = 'rows');
         CREATE TABLE {sink} ({columns}) WITH ('connector' = 'collect', 'kinds' = 'all');
         INSERT INTO {sink} {query};"
    )
}

fn counts(query: &str) -> String {
    program("counts", "app_id STRING, n BIGINT", query)
}

fn job(sql: &str, connectors: &Connectors, parallelism: u32, seed: u64) -> Job {
    job_of(sql, connectors, PlanOptions { parallelism, max_parallelism: MAX_PARALLELISM }, seed)
}

fn job_of(sql: &str, connectors: &Connectors, options: PlanOptions, seed: u64) -> Job {
    Job::new(crate::plan(sql, &options, connectors).unwrap_or_else(|error| panic!("{error}\n{sql}")), seed)
}

/// A job that was cut in the middle.
struct Before {
    all: Vec<View>,
    connectors: Connectors,
    cut: Cut,
}

impl Before {
    fn new(sql: &str, seed: u64) -> Self {
        let all = views::generate(seed, 1500);
        let connectors = Connectors::new(&all);
        let cut = cut_of(job(sql, &connectors, 2, seed), &connectors, Alignment::Aligned);
        Self { all, connectors, cut }
    }

    /// The views before the cut and those after it.
    fn split(&self) -> (Vec<View>, Vec<View>) {
        read_before(&self.all, &self.cut)
    }

    /// Runs another program on from the cut, into the same sink.
    fn go_on(&self, sql: &str, allow_non_restored_state: bool) -> Result<SinkContent, RestoreError> {
        let mut job = job(sql, &self.connectors, 3, 7);
        job.try_restore(&self.cut, allow_non_restored_state)?;
        job.run_to_end();
        Ok(self.connectors.content())
    }

    /// The same into a sink of its own.
    fn go_on_apart(&self, sql: &str, allow_non_restored_state: bool) -> Result<SinkContent, RestoreError> {
        let connectors = Connectors::new(&self.all);
        let mut job = job(sql, &connectors, 3, 7);
        job.try_restore(&self.cut, allow_non_restored_state)?;
        job.run_to_end();
        Ok(connectors.content())
    }
}

/// Rows `app, count`.
fn counted<'a>(views: impl IntoIterator<Item = &'a View>) -> SinkContent {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for view in views {
        *counts.entry(view.app_id.clone().unwrap_or_else(|| "NULL".to_owned())).or_default() += 1;
    }
    counts.into_iter().map(|(app, count)| (format!("{app}, {count}"), 1)).collect()
}

fn assert_same(found: Result<SinkContent, RestoreError>, expected: &SinkContent) {
    assert_eq!(differences(&found.unwrap(), expected), BTreeMap::new());
}

fn refusal(found: Result<SinkContent, RestoreError>) -> String {
    found.expect_err("it is refused").to_string()
}

#[test]
fn stateless_parts_added_removed_and_reordered_keep_the_state() {
    let plain = counts(COUNTS);
    let dressed = counts(
        "SELECT app_id, n FROM (SELECT COUNT(*) AS n, app_id FROM
           (SELECT url, ms, app_id FROM page_views WHERE ms IS NULL OR ms > -1000000) AS inner_views
         GROUP BY app_id) AS outer_counts WHERE n > 0",
    );
    for (seed, first, second) in [(1, &plain, &dressed), (2, &dressed, &plain), (3, &plain, &plain)] {
        let before = Before::new(first, seed);
        assert_same(before.go_on(second, false), &counted(&before.all));
    }
}

#[test]
fn an_added_stateful_operator_starts_empty_and_the_source_goes_on() {
    let before = Before::new(&counts("SELECT app_id, CAST(ms AS BIGINT) FROM page_views"), 4);
    let (read, rest) = before.split();
    assert!(!read.is_empty() && !rest.is_empty());
    assert_same(before.go_on_apart(&counts(COUNTS), false), &counted(&rest));
}

/// What was there keeps its counts: a group of 60 views grows on, it does not begin at 1.
#[test]
fn a_stateful_operator_put_on_top_starts_empty_and_the_one_below_keeps_its_state() {
    let before = Before::new(&program("sizes", "app_id STRING, n BIGINT", COUNTS), 5);
    let (read, rest) = before.split();
    let on_top = format!("SELECT n, COUNT(*) FROM ({COUNTS}) AS counts GROUP BY n");
    let found = before.go_on_apart(&program("sizes", "n BIGINT, apps BIGINT", &on_top), false).unwrap();
    let sizes = |views: &[View]| -> Vec<u64> {
        counted(views).into_keys().map(|row| row.rsplit(", ").next().unwrap().parse().unwrap()).collect()
    };
    let grown = sizes(&before.all);
    assert!(!read.is_empty() && !rest.is_empty() && !found.is_empty());
    for row in found.keys() {
        let size: u64 = row.split(", ").next().unwrap().parse().unwrap();
        assert!(grown.contains(&size), "{size} is no final count, {grown:?}");
    }
}

#[test]
fn a_removed_stateful_operator_refuses_the_start_until_its_loss_is_allowed() {
    let before = Before::new(&counts(COUNTS), 6);
    let stateless = counts("SELECT app_id, CAST(ms AS BIGINT) FROM page_views");
    let error = refusal(before.go_on_apart(&stateless, false));
    assert!(error.contains("'counts.group-aggregate(app_id)'"), "what is not taken: {error}");
    assert!(error.contains("'counts.source(page_views)'"), "what is offered: {error}");
    assert!(error.contains("allowNonRestoredState"), "what to do: {error}");
    let (_, rest) = before.split();
    let found = before.go_on_apart(&stateless, true).unwrap();
    assert_eq!(found.values().sum::<i64>(), i64::try_from(rest.len()).unwrap(), "the source goes on where it was");
}

#[test]
fn another_key_is_another_operator() {
    let before = Before::new(&counts(COUNTS), 7);
    let by_url = counts("SELECT url, COUNT(*) FROM page_views GROUP BY url");
    let error = refusal(before.go_on_apart(&by_url, false));
    assert!(error.contains("'counts.group-aggregate(app_id)'") && error.contains("'counts.group-aggregate(url)'"));
    let (_, rest) = before.split();
    let by_url_of = |view: &View| View { app_id: view.url.clone(), ..view.clone() };
    assert_same(before.go_on_apart(&by_url, true), &counted(&rest.iter().map(by_url_of).collect::<Vec<_>>()));
}

/// An operator put below changes what the state above it would mean.
#[test]
fn an_operator_put_below_gives_the_one_above_another_id() {
    let before = Before::new(&counts(COUNTS), 8);
    let pairs = "SELECT app_id, url, COUNT(*) AS visits FROM page_views GROUP BY app_id, url";
    let pages_per_app = counts(&format!("SELECT app_id, COUNT(*) FROM ({pairs}) AS pairs GROUP BY app_id"));
    let error = refusal(before.go_on_apart(&pages_per_app, false));
    assert!(error.contains("'counts.group-aggregate(app_id,url).group-aggregate(app_id)'"), "{error}");
}

#[test]
fn changed_logic_under_the_same_id_and_columns_is_restored() {
    let before = Before::new(&counts(COUNTS), 9);
    let (read, rest) = before.split();
    let slow = |view: &&View| view.ms.is_some_and(|ms| ms > 500);
    let expected = counted(read.iter().chain(rest.iter().filter(slow)));
    let changed = counts("SELECT app_id, COUNT(*) AS n FROM page_views WHERE ms > 500 GROUP BY app_id");
    assert_same(before.go_on(&changed, false), &expected);
}

#[test]
fn a_hint_keeps_the_id_when_the_sink_is_renamed() {
    let hinted = COUNTS.replacen("SELECT", "SELECT /*+ UID('views') */", 1);
    let before = Before::new(&counts(&hinted), 10);
    let renamed = program("totals", "app STRING, total BIGINT", &hinted);
    before.connectors.rename("counts", "totals");
    assert_same(before.go_on(&renamed, false), &counted(&before.all));
    let without = program("totals", "app STRING, total BIGINT", COUNTS);
    assert!(refusal(before.go_on_apart(&without, false)).contains("'views"));
}

#[test]
fn another_max_parallelism_divides_the_keys_anew() {
    for (seed, max_parallelism) in [(11, 7), (12, 128), (13, 3)] {
        let before = Before::new(&counts(COUNTS), seed);
        let options = PlanOptions { parallelism: 3, max_parallelism };
        let mut job = job_of(&counts(COUNTS), &before.connectors, options, seed);
        job.restore(&before.cut);
        job.run_to_end();
        assert_same(Ok(before.connectors.content()), &counted(&before.all));
    }
}

/// What was not summed before the cut is unknown: the sum begins at NULL.
#[test]
fn an_added_sum_begins_at_null_beside_the_count_that_goes_on() {
    let by_app = |select: &str, columns: &str| {
        let query = format!("SELECT {select} FROM page_views WHERE app_id IS NOT NULL GROUP BY app_id");
        program("counts", &format!("{columns}, PRIMARY KEY (app_id) NOT ENFORCED"), &query)
            .replace("'kinds' = 'all'", "'kinds' = 'upsert'")
    };
    let before = Before::new(&by_app("app_id, COUNT(*)", "app_id STRING, n BIGINT"), 14);
    let summed = by_app("app_id, COUNT(*), SUM(ms)", "app_id STRING, n BIGINT, total BIGINT");
    let found = before.go_on_apart(&summed, false).unwrap();
    let (_, rest) = before.split();
    let mut expected = SinkContent::new();
    for app in rest.iter().filter_map(|view| view.app_id.clone()) {
        let of_app = |view: &&View| view.app_id.as_ref() == Some(&app);
        let count = before.all.iter().filter(of_app).count();
        let total = rest.iter().filter(of_app).filter_map(|view| view.ms).map(i64::from).reduce(|sum, ms| sum + ms);
        let total = total.map_or_else(|| "NULL".to_owned(), |total| total.to_string());
        expected.insert(format!("{app}, {count}, {total}"), 1);
    }
    assert_same(Ok(found), &expected);
}
