//! Windows over random streams: what comes out never depends on batches, parallelism, kinds of checkpoints, or kills.
//!
//! Where the disorder of the rows stays within what the watermark bears, over any number of splits, the results are those of
//! [`reference`], which looks at all rows at once. Where it does not, and all rows come from one split, they are those of
//! [`Model`] and [`sessions`], which take row by row in their order and have one watermark. [`drawn`] draws the statement, too.

mod drawn;

use super::memory::{Connectors, SinkContent};
use super::views::{self, View};
use super::{Case, differences, job, reference};
use arrow::array::{Array, TimestampMillisecondArray};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use sluice_engine::window::WindowKind;
use sluice_protocol::TimeSpan;
use sluice_protocol::message::Alignment;
use std::collections::BTreeMap;

/// Disorder of the rows, in milliseconds.
const DISORDER: u64 = 3000;

/// Views with gaps and disorder of their own.
fn stream(random: &mut fastrand::Rng, rows: usize) -> Vec<View> {
    let mut views = views::generate(random.u64(..), rows);
    let (mut clock, gap) = (-20_000_i64, random.i64(1..400));
    for view in &mut views {
        clock += if random.u8(..50) == 0 { random.i64(0..9000) } else { random.i64(0..=gap) };
        view.at = view.at.map(|_| clock - random.i64(0..DISORDER as i64));
    }
    views
}

fn seconds(milliseconds: i64) -> String {
    format!("INTERVAL '{}.{:03}' SECOND", milliseconds / 1000, milliseconds % 1000)
}

fn statement(window: &str, delay: u64, before: &str) -> String {
    format!(
        "CREATE TABLE page_views (app_id STRING, url STRING, ms INT, cost DECIMAL(10, 2), ratio DOUBLE, at TIMESTAMP(3), \
         WATERMARK FOR at AS at - {}) WITH ('connector' = 'rows');\n\
         CREATE TABLE counts (app STRING, s TIMESTAMP(3), e TIMESTAMP(3), n BIGINT, total BIGINT) \
         WITH ('connector' = 'collect');\n{before}\n\
         INSERT INTO counts SELECT app_id, window_start, window_end, COUNT(*), SUM(ms) FROM {window} \
         GROUP BY app_id, window_start, window_end;",
        seconds(delay as i64)
    )
}

fn window(random: &mut fastrand::Rng) -> (String, WindowKind) {
    let (step, times, offset) = (random.i64(200..3000), random.i64(1..6), random.i64(-500..500));
    let size = step * times;
    let (kind, lengths) = match random.u8(..3) {
        0 => (WindowKind::Tumble { size: step, offset }, seconds(step)),
        1 => (WindowKind::Hop { slide: step, size, offset }, format!("{}, {}", seconds(step), seconds(size))),
        _ => (WindowKind::Cumulate { step, size, offset }, format!("{}, {}", seconds(step), seconds(size))),
    };
    let name = ["TUMBLE", "HOP", "CUMULATE"][match kind {
        WindowKind::Tumble { .. } => 0,
        WindowKind::Hop { .. } => 1,
        _ => 2,
    }];
    let sign = if offset < 0 { "-" } else { "" };
    let offset = format!("{sign}{}", seconds(offset.abs()));
    (format!("{name}(TABLE page_views, DESCRIPTOR(at), {lengths}, {offset})"), kind)
}

fn session(gap: i64) -> String {
    format!("SESSION(TABLE page_views PARTITION BY app_id, DESCRIPTOR(at), {})", seconds(gap))
}

/// Runs the statement to its end, killed and restored at random moments; `is_row_wise`: without other subtasks, which may say
/// late that they have no splits.
fn run(sql: String, connectors: &Connectors, random: &mut fastrand::Rng, is_row_wise: bool) -> SinkContent {
    let case = Case { name: sql.clone(), sql, rows: 0 };
    let total = connectors.rows();
    let next = |random: &mut fastrand::Rng| {
        let parallelism = if is_row_wise { 1 } else { random.u32(1..=4) };
        job(&case, connectors, parallelism, random.u64(..)).with_batch_rows(random.usize(1..200))
    };
    let (mut running, mut left) = (next(random), total);
    for _ in 0..random.usize(0..4) {
        let modes = [Alignment::Aligned, unaligned(0), unaligned(30)];
        let alignment = modes[random.usize(..3)];
        let before = connectors.rows_read();
        let to = before + random.usize(0..=left / 3);
        running.run_until(|| connectors.rows_read() >= to);
        let cut = running.checkpoint(connectors, alignment);
        // It runs on for a while before it dies.
        let now = connectors.rows_read();
        let to = now + random.usize(0..=(left - (now - before)) / 2);
        running.run_until(|| connectors.rows_read() >= to);
        connectors.take_back(&cut);
        left = cut.left(total);
        running = next(random);
        running.restore(&cut);
    }
    running.run_to_end();
    connectors.content()
}

fn unaligned(after: u64) -> Alignment {
    Alignment::Unaligned { after: TimeSpan(after) }
}

#[test]
fn within_the_bound_of_the_watermark_results_are_those_of_all_rows() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let views = stream(&mut random, 400);
        let windows = if seed % 4 == 0 { session(random.i64(100..5000)) } else { window(&mut random).0 };
        let sql = statement(&windows, DISORDER, "");
        let connectors = Connectors::new(&views).with_poll_rows(random.usize(1..60));
        let found = run(sql.clone(), &connectors, &mut random, false);
        let expected = reference::content(&sql, &connectors);
        assert_eq!(differences(&found, &expected), BTreeMap::new(), "seed {seed}: {sql}");
    }
}

/// The app, and start and end of a window.
type Group<'a> = (Option<&'a String>, i64, i64);
/// Rows, and the sum of what they say.
type Counted = (i64, Option<i64>);

/// Rows in their order, one watermark behind each.
struct Model {
    kind: WindowKind,
    delay: i64,
    lateness: i64,
}

impl Model {
    /// The results, and the rows that were too late for all of them.
    fn content(&self, views: &[View]) -> (SinkContent, usize) {
        let mut watermark = i64::MIN;
        let mut late = 0;
        let mut groups: BTreeMap<Group<'_>, Counted> = BTreeMap::new();
        for view in views {
            let Some(at) = view.at else {
                late += 1;
                continue;
            };
            let open = self.kind.windows_of(at).filter(|(_, end)| (end - 1).saturating_add(self.lateness) > watermark);
            let open: Vec<(i64, i64)> = open.collect();
            late += usize::from(open.is_empty());
            for (start, end) in open {
                let (count, total) = groups.entry((view.app_id.as_ref(), start, end)).or_default();
                *count += 1;
                *total = view.ms.map(i64::from).into_iter().chain(*total).reduce(|one, other| one + other);
            }
            watermark = watermark.max(at - self.delay);
        }
        (groups.into_iter().map(|(group, counted)| line(group, counted)).collect(), late)
    }
}

/// Sessions of rows in their order, as [`Model`] has windows: the results, and the rows that were too late.
fn sessions(views: &[View], gap: i64, delay: i64) -> (SinkContent, usize) {
    type Session = (i64, i64, Counted);
    let (mut watermark, mut late) = (i64::MIN, 0);
    let mut open: BTreeMap<Option<&String>, Vec<Session>> = BTreeMap::new();
    let mut over = SinkContent::new();
    for view in views {
        let Some(at) = view.at else {
            late += 1;
            continue;
        };
        for (app, sessions) in &mut open {
            let fired = sessions.extract_if(.., |(_, end, _)| *end - 1 <= watermark);
            over.extend(fired.map(|(start, end, counted)| line((*app, start, end), counted)));
        }
        let sessions = open.entry(view.app_id.as_ref()).or_default();
        let mut own = (at, at + gap, (1, view.ms.map(i64::from)));
        let met: Vec<Session> = sessions.extract_if(.., |(start, end, _)| *start <= own.1 && own.0 <= *end).collect();
        if met.is_empty() && own.1 - 1 <= watermark {
            late += 1;
        } else {
            for (start, end, (count, total)) in met {
                let sum = own.2.1.into_iter().chain(total).reduce(|one, other| one + other);
                own = (own.0.min(start), own.1.max(end), (own.2.0 + count, sum));
            }
            sessions.push(own);
        }
        watermark = watermark.max(at - delay);
    }
    for (app, sessions) in open {
        over.extend(sessions.into_iter().map(|(start, end, counted)| line((app, start, end), counted)));
    }
    (over, late)
}

/// Whether two rows of an app are just so far apart: whether they are one session hangs on when the first one's fires.
fn has_just(views: &[View], gap: i64) -> bool {
    let times: std::collections::BTreeSet<_> = views.iter().filter_map(|view| Some((&view.app_id, view.at?))).collect();
    times.iter().any(|(app, at)| times.contains(&(app, at + gap)))
}

/// A row of the sink, once.
fn line((app, start, end): Group<'_>, (count, total): Counted) -> (String, i64) {
    let null = || "NULL".to_owned();
    let (app, total) = (app.cloned().unwrap_or_else(null), total.map_or_else(null, |total| total.to_string()));
    (format!("{app}, {}, {}, {count}, {total}", time(start), time(end)), 1)
}

/// As a sink is given it.
fn time(at: i64) -> String {
    let array = TimestampMillisecondArray::from(vec![at]);
    let formatter = ArrayFormatter::try_new(&array as &dyn Array, &FormatOptions::default()).expect("a time");
    formatter.value(0).to_string()
}

/// What of the rows is too late is decided row by row, and so is what of it still counts.
#[test]
fn beyond_the_bound_late_rows_of_one_split_are_the_same_in_each_run() {
    let mut dropped = 0;
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(1000 + seed);
        let views = stream(&mut random, 400);
        let (windows, kind) = window(&mut random);
        let (delay, lateness) = (random.u64(0..DISORDER / 2), [0, 700][random.usize(..2)]);
        let allow = format!("SET 'table.exec.emit.allow-lateness' = '{lateness} ms';");
        let sql = statement(&windows, delay, &allow);
        let connectors = Connectors::in_one_split(&views, random.usize(1..60));
        let found = run(sql.clone(), &connectors, &mut random, true);
        let (expected, late) = Model { kind, delay: delay as i64, lateness }.content(&views);
        dropped += late;
        assert_eq!(differences(&found, &expected), BTreeMap::new(), "seed {seed}: {sql}");
    }
    assert!(dropped > 1000, "only {dropped} rows were ever late");
}

#[test]
fn beyond_the_bound_sessions_of_one_split_are_the_same_in_each_run() {
    let mut dropped = 0;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(3000 + seed);
        let views = stream(&mut random, 400);
        let gap = std::iter::repeat_with(|| random.i64(50..1500)).find(|gap| !has_just(&views, *gap)).expect("some");
        let delay = random.u64(0..DISORDER / 2);
        let sql = statement(&session(gap), delay, "");
        let connectors = Connectors::in_one_split(&views, random.usize(1..60));
        let found = run(sql.clone(), &connectors, &mut random, true);
        let (expected, late) = sessions(&views, gap, delay as i64);
        dropped += late;
        assert_eq!(differences(&found, &expected), BTreeMap::new(), "seed {seed}: {sql}");
    }
    assert!(dropped > 500, "only {dropped} rows were ever late");
}

/// Each row counts once: in its window or among the late rows, whatever is killed.
#[test]
fn late_rows_go_to_their_table() {
    let mut late = 0;
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(2000 + seed);
        let views = stream(&mut random, 400);
        let size = random.i64(200..2000);
        let windows = format!("TUMBLE(TABLE page_views, DESCRIPTOR(at), {})", seconds(size));
        let before = "CREATE TABLE late (app_id STRING, row_time TIMESTAMP(3), ms INT, operator STRING) \
                      WITH ('connector' = 'collect', 'kinds' = 'insert-only');\n\
                      SET 'table.exec.window-aggregate.late-rows' = 'late';";
        let sql = statement(&windows, 200, before);
        let connectors = Connectors::new(&views).with_poll_rows(random.usize(1..60));
        let found = run(sql.clone(), &connectors, &mut random, false);
        let mut per_app: BTreeMap<String, i64> = BTreeMap::new();
        for (row, times) in &found {
            let (table, columns) = row.split_once(": ").expect("two tables");
            let columns: Vec<&str> = columns.split(", ").collect();
            let count = match table {
                "counts" => columns[3].parse::<i64>().expect("a count"),
                _ => {
                    assert_eq!(columns[3], format!("counts.window-aggregate(TUMBLE({size} ms),app_id)"));
                    late += times;
                    1
                }
            };
            *per_app.entry(columns[0].to_owned()).or_default() += count * times;
        }
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for view in &views {
            *expected.entry(view.app_id.clone().unwrap_or_else(|| "NULL".to_owned())).or_default() += 1;
        }
        assert_eq!(per_app, expected, "seed {seed}: {sql}");
    }
    assert!(late > 500, "only {late} rows were ever late");
}
