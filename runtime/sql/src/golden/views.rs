//! Page views, and what each statement makes of them: computed row by row, without SQL.

use super::memory::SinkContent;
use arrow::array::{Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One row of the table `page_views`.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) app_id: Option<String>,
    pub(crate) url: Option<String>,
    pub(crate) ms: Option<i32>,
    /// In cents.
    pub(crate) cost: Option<i128>,
    pub(crate) ratio: Option<f64>,
    /// Milliseconds since 1970, in disorder by less than a second.
    pub(crate) at: Option<i64>,
}

/// Random views: few apps and pages, some values missing; ratios are whole so that sums do not depend on order.
pub(crate) fn generate(seed: u64, rows: usize) -> Vec<View> {
    let mut random = fastrand::Rng::with_seed(seed);
    let view = |row: usize| View {
        app_id: (random.u8(..10) > 0).then(|| format!("app{}", random.u8(..23))),
        url: (random.u8(..5) > 0).then(|| format!("/{}/{}", ["a", "b"][random.usize(..2)], random.u8(..5))),
        ms: (random.u8(..7) > 0).then(|| random.i32(-50..1000)),
        cost: (random.u8(..7) > 0).then(|| random.i128(-1000..100_000)),
        ratio: (random.u8(..7) > 0).then(|| f64::from(random.i16(..))),
        at: Some(row as i64).filter(|row| row % 31 != 7).map(|row| row * 100 - 20_000 + row * 7919 % 1000),
    };
    (0..rows).map(view).collect()
}

/// The table `owners` (app_id STRING, owner STRING, quota INT): some apps have none, some several, some rows no app.
pub(crate) fn owners(seed: u64) -> Vec<RecordBatch> {
    let mut random = fastrand::Rng::with_seed(seed);
    let schema = Arc::new(Schema::new(vec![
        Field::new("app_id", DataType::Utf8, true),
        Field::new("owner", DataType::Utf8, true),
        Field::new("quota", DataType::Int32, true),
    ]));
    let split = |_| {
        let rows = random.usize(1..9);
        let app =
            (0..rows).map(|_| (random.u8(..8) > 0).then(|| format!("app{}", random.u8(..30)))).collect::<StringArray>();
        let owner = (0..rows).map(|_| (random.u8(..8) > 0).then(|| format!("owner{}", random.u8(..4))));
        let owner = owner.collect::<StringArray>();
        let quota = (0..rows).map(|_| (random.u8(..5) > 0).then(|| random.i32(-100..700))).collect::<Int32Array>();
        RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(app), Arc::new(owner), Arc::new(quota)])
            .expect("it fits")
    };
    (0..4).map(split).collect()
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

fn content(rows: impl IntoIterator<Item = Vec<String>>) -> SinkContent {
    let mut content = SinkContent::new();
    for row in rows {
        *content.entry(row.join(", ")).or_default() += 1;
    }
    content
}

/// Groups in order of their first view do not matter: a map by key.
fn groups<'a, K: Ord>(
    views: impl IntoIterator<Item = &'a View>,
    key: impl Fn(&View) -> K,
) -> BTreeMap<K, Vec<&'a View>> {
    let mut groups: BTreeMap<K, Vec<&View>> = BTreeMap::new();
    for view in views {
        groups.entry(key(view)).or_default().push(view);
    }
    groups
}

/// NULL when there is no value that is not NULL.
fn sum(values: impl IntoIterator<Item = Option<i128>>) -> Option<i128> {
    values.into_iter().flatten().reduce(|sum, value| sum + value)
}

pub(crate) fn count_per_app(views: &[View]) -> SinkContent {
    let known = views.iter().filter(|view| view.app_id.is_some());
    let groups = groups(known, |view| view.app_id.clone());
    content(groups.into_iter().map(|(app, views)| vec![text(app), views.len().to_string()]))
}

pub(crate) fn sum_and_count(views: &[View]) -> SinkContent {
    let slow = views.iter().filter(|view| view.ms.is_none_or(|ms| ms > 100));
    let groups = groups(slow, |view| view.app_id.clone());
    content(groups.into_iter().map(|(app, views)| {
        let total = sum(views.iter().map(|view| view.ms.map(i128::from)));
        let urls = views.iter().filter(|view| view.url.is_some()).count();
        vec![text(app), text(total), urls.to_string(), (views.len() + 1).to_string()]
    }))
}

pub(crate) fn filter_and_project(views: &[View]) -> SinkContent {
    let passes =
        |view: &&View| view.ms.is_some_and(|ms| ms >= 0) && view.url.as_ref().is_some_and(|url| url.starts_with("/a/"));
    content(views.iter().filter(passes).map(|view| {
        let app = view.app_id.as_ref().map(|app| app.to_uppercase());
        vec![text(app), text(view.ms.map(|ms| ms * 2 + 1)), text(view.url.as_deref())]
    }))
}

pub(crate) fn global(views: &[View]) -> SinkContent {
    let total = sum(views.iter().map(|view| view.ms.map(i128::from)));
    content([vec!["all".to_owned(), views.len().to_string(), text(total)]])
}

pub(crate) fn two_keys(views: &[View]) -> SinkContent {
    let groups = groups(views, |view| (view.url.clone(), view.app_id.clone()));
    content(groups.into_iter().map(|((url, app), views)| vec![text(app), text(url), views.len().to_string()]))
}

pub(crate) fn computed_key(views: &[View]) -> SinkContent {
    // Division of whole numbers truncates.
    let groups = groups(views, |view| view.ms.map(|ms| ms / 100));
    content(groups.into_iter().map(|(hundreds, views)| vec![text(hundreds), views.len().to_string()]))
}

pub(crate) fn derived_table(views: &[View]) -> SinkContent {
    let slow = views.iter().filter(|view| view.ms.is_some_and(|ms| ms + 1 > 500));
    let groups = groups(slow, |view| view.app_id.clone().unwrap_or_else(|| "none".to_owned()));
    content(groups.into_iter().map(|(app, views)| {
        let total = sum(views.iter().map(|view| view.ms.map(|ms| i128::from(ms) + 1)));
        vec![app, text(total.map(|total| total * 10))]
    }))
}

pub(crate) fn decimals_and_floats(views: &[View]) -> SinkContent {
    let groups = groups(views, |view| view.app_id.clone());
    content(groups.into_iter().map(|(app, views)| {
        let cents = sum(views.iter().map(|view| view.cost));
        let cost = cents.map(|cents| {
            let sign = if cents < 0 { "-" } else { "" };
            format!("{sign}{}.{:02}", cents.abs() / 100, cents.abs() % 100)
        });
        let ratios = views.iter().filter_map(|view| view.ratio).reduce(|sum, ratio| sum + ratio);
        vec![text(app), text(cost), text(ratios.map(|ratio| format!("{ratio:.1}")))]
    }))
}

pub(crate) fn having(views: &[View]) -> SinkContent {
    let groups = groups(views, |view| view.app_id.clone());
    let sums = groups.into_iter().map(|(app, views)| (app, sum(views.iter().map(|view| view.ms.map(i128::from)))));
    let passing = sums.filter(|(_, total)| total.is_some_and(|total| (1000..=24_000).contains(&total)));
    content(passing.map(|(app, total)| vec![text(app), text(total)]))
}

pub(crate) fn counts_of_counts(views: &[View]) -> SinkContent {
    let mut apps_by_size: BTreeMap<usize, usize> = BTreeMap::new();
    for views in groups(views, |view| view.app_id.clone()).values() {
        *apps_by_size.entry(views.len()).or_default() += 1;
    }
    let large = apps_by_size.into_iter().filter(|(size, _)| *size > 50);
    content(large.map(|(size, apps)| vec![size.to_string(), apps.to_string()]))
}
