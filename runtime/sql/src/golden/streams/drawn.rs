//! Drawn statements: windows, aggregates, keys, DISTINCT and FILTER at random, over random streams.
//!
//! The disorder of the rows stays within what the watermark bears, so whatever the batches, the parallelism, the kinds of
//! checkpoints and the kills, the results are those of [`reference`].

use super::super::memory::Connectors;
use super::super::{differences, reference};
use super::{DISORDER, run, seconds, stream, window};
use std::collections::{BTreeMap, BTreeSet};

/// Columns by which rows may be grouped, and what is computed of them.
const KEYS: [(&str, &str); 4] =
    [("app_id", "STRING"), ("url", "STRING"), ("ms", "INT"), ("CHAR_LENGTH(app_id) + 1", "INT")];

const FILTERS: [&str; 4] = ["ms > 300", "url IS NOT NULL", "cost < 200.00", "app_id <> 'app3'"];

/// What can be aggregated, with the type of its sum, of its average, and its own.
const VALUES: [(&str, [&str; 3]); 3] = [
    ("ms", ["BIGINT", "INT", "INT"]),
    ("cost", ["DECIMAL(38, 2)", "DECIMAL(38, 6)", "DECIMAL(10, 2)"]),
    ("ratio", ["DOUBLE", "DOUBLE", "DOUBLE"]),
];

/// What a statement selects, with its types.
type Columns = Vec<(String, &'static str)>;

struct Draw<'a> {
    random: &'a mut fastrand::Rng,
    /// Which features have been drawn, so that the test can say that all were.
    seen: &'a mut BTreeSet<&'static str>,
}

impl Draw<'_> {
    fn happens(&mut self, one_in: usize, what: &'static str) -> bool {
        let happens = self.random.usize(..one_in) == 0;
        if happens {
            self.seen.insert(what);
        }
        happens
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())]
    }

    fn filter(&mut self) -> String {
        let filter = self.one(&FILTERS);
        if self.happens(3, "FILTER") { format!(" FILTER (WHERE {filter})") } else { String::new() }
    }

    /// An aggregate of all values; an average only where it may stand.
    fn call(&mut self, may_average: bool) -> (String, &'static str) {
        let (value, [sum, average, own]) = self.one(&VALUES);
        let (call, data_type) = match self.random.u8(..6) {
            0 => ("COUNT(*)".to_owned(), "BIGINT"),
            1 => (format!("COUNT({value})"), "BIGINT"),
            2 => (format!("MIN({value})"), own),
            3 => (format!("MAX({value})"), own),
            4 if may_average => (format!("AVG({value})"), average),
            _ => (format!("SUM({value})"), sum),
        };
        (call + &self.filter(), data_type)
    }

    /// Aggregates of distinct values: all of the same ones.
    fn distinct(&mut self) -> Columns {
        let ((value, [sum, average, own]), filter) = (self.one(&VALUES), self.filter());
        let all = [("COUNT", "BIGINT"), ("SUM", sum), ("AVG", average), ("MIN", own)];
        let count = self.random.usize(1..=all.len());
        let calls = all.iter().take(count);
        calls.map(|(call, data_type)| (format!("{call}(DISTINCT {value}){filter}"), *data_type)).collect()
    }

    /// The window table function, and the keys beside its windows.
    fn windows(&mut self) -> (String, Columns, bool) {
        let is_session = self.happens(4, "SESSION");
        let mut keys: Columns = Vec::new();
        for (key, data_type) in &KEYS[..if is_session { 2 } else { KEYS.len() }] {
            if self.random.u8(..5) < 2 {
                keys.push(((*key).to_owned(), data_type));
            }
        }
        self.seen.insert(["no key", "a key", "keys"][keys.len().min(2)]);
        if !is_session {
            let function = window(self.random).0;
            let name = ["TUMBLE", "HOP", "CUMULATE"].into_iter().find(|name| function.starts_with(name));
            self.seen.extend(name);
            return (function, keys, false);
        }
        let columns: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
        let partition =
            if columns.is_empty() { String::new() } else { format!(" PARTITION BY ({})", columns.join(", ")) };
        let gap = seconds(self.random.i64(50..4000));
        (format!("SESSION(TABLE page_views{partition}, DESCRIPTOR(at), {gap})"), keys, true)
    }

    fn statement(&mut self) -> String {
        let (function, keys, is_session) = self.windows();
        let mut calls = if !is_session && self.happens(3, "DISTINCT") { self.distinct() } else { Vec::new() };
        let (is_distinct, first) = (!calls.is_empty(), usize::from(calls.is_empty()));
        for _ in 0..self.random.usize(first..4) {
            calls.push(self.call(!is_distinct));
        }
        let window = ["window_start", "window_end"].map(|column| (column.to_owned(), "TIMESTAMP(3)"));
        let grouped: Vec<String> = keys.iter().chain(&window).map(|(key, _)| key.clone()).collect();
        let columns: Columns = keys.into_iter().chain(window).chain(calls).collect();
        let declared = columns.iter().enumerate().map(|(column, (_, data_type))| format!("c{column} {data_type}"));
        let selected: Vec<&str> = columns.iter().map(|(text, _)| text.as_str()).collect();
        // What is left out of sessions still holds them together: such conditions are refused, unless they are of whole ones.
        let conditions = if is_session { &FILTERS[3..] } else { &FILTERS };
        let may_filter = !is_session || selected.contains(&"app_id");
        let is_filtered = self.happens(4, "WHERE") && may_filter;
        let filter = if is_filtered { format!("WHERE {}", self.one(conditions)) } else { String::new() };
        let having = if self.happens(5, "HAVING") { "HAVING COUNT(*) > 1" } else { "" };
        format!(
            "CREATE TABLE page_views (app_id STRING, url STRING, ms INT, cost DECIMAL(10, 2), ratio DOUBLE, at \
             TIMESTAMP(3), WATERMARK FOR at AS at - {}) WITH ('connector' = 'rows');\n\
             CREATE TABLE results ({}) WITH ('connector' = 'collect', 'kinds' = 'insert-only');\n\
             INSERT INTO results SELECT {} FROM {function} {filter} GROUP BY {} {having};",
            seconds(DISORDER as i64),
            declared.collect::<Vec<_>>().join(", "),
            selected.join(", "),
            grouped.join(", "),
        )
    }
}

#[test]
fn drawn_statements_give_what_all_rows_give() {
    let (mut seen, mut rows) = (BTreeSet::new(), 0);
    for seed in 0..120 {
        let mut random = fastrand::Rng::with_seed(7000 + seed);
        let sql = Draw { random: &mut random, seen: &mut seen }.statement();
        let views = stream(&mut random, 300);
        let connectors = Connectors::new(&views).with_poll_rows(random.usize(1..60));
        let found = run(sql.clone(), &connectors, &mut random, false);
        let expected = reference::content(&sql, &connectors);
        rows += expected.len();
        assert_eq!(differences(&found, &expected), BTreeMap::new(), "seed {seed}: {sql}");
    }
    assert!(rows > 5000, "only {rows} results");
    let all =
        ["TUMBLE", "HOP", "CUMULATE", "SESSION", "DISTINCT", "FILTER", "WHERE", "HAVING", "no key", "a key", "keys"];
    assert_eq!(seen, all.into_iter().collect::<BTreeSet<_>>());
}
