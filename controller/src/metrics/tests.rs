//! Tests of the metrics and of the page that lists them.

use super::*;
use std::collections::BTreeMap;

#[test]
fn metrics_are_written_with_their_labels() {
    let metrics = Metrics::default();
    metrics.count_pass(STREAM_JOB, "ok");
    metrics.set_seen(2, &["Running".to_owned(), "Running".to_owned(), "Failed".to_owned()]);
    let text = metrics.encode();
    assert!(text.contains(r#"sluice_controller_reconciles_total{kind="StreamJob",outcome="ok"} 1"#), "{text}");
    assert!(text.contains(r#"sluice_controller_stream_jobs{state="Running"} 2"#), "{text}");
    metrics.set_seen(0, &[]);
    assert!(!metrics.encode().contains("Running"));
}

/// One of each.
fn all() -> Metrics {
    let metrics = Metrics::default();
    metrics.count_pass(STREAM_JOB, "ok");
    metrics.observe_pass(SAVEPOINT, Duration::from_millis(3));
    metrics.set_queue(STREAM_JOB, 1);
    metrics.count_api_request("get", "200");
    metrics.count_status_write(STREAM_JOB);
    metrics.count_event("written");
    metrics.count_generation();
    metrics.count_restarts("JobManagerLost", 1);
    metrics.count_unreadable(STREAM_JOB);
    metrics.count_watch_error("Pod");
    metrics.set_leader(true);
    metrics.set_seen(1, &["Running".to_owned()]);
    metrics
}

/// Name to type and labels, as exported.
fn exported(text: &str) -> BTreeMap<String, (String, String)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let labels = |sample: &str| {
        let line =
            text.lines().find(|line| line.starts_with(sample)).unwrap_or_else(|| panic!("no sample of {sample}"));
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap());
        let names = labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name);
        names.filter(|name| *name != "le").collect::<Vec<_>>().join(", ")
    };
    types
        .map(|(name, kind)| {
            let sample = match kind {
                "counter" => format!("{name}_total"),
                "histogram" => format!("{name}_bucket"),
                _ => name.to_owned(),
            };
            let labels = labels(&sample);
            let name = if kind == "histogram" { name.to_owned() } else { sample };
            (name, (kind.to_owned(), labels))
        })
        .collect()
}

/// The same, as documented: `| name | type | labels | … |`.
fn documented(page: &str) -> BTreeMap<String, (String, String)> {
    let rows = page.lines().filter(|line| line.starts_with("| `sluice_controller_"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        (cells[1].clone(), (cells[2].clone(), cells[3].clone()))
    })
    .collect()
}

#[test]
fn the_page_lists_what_is_exported() {
    let page = include_str!("../../../docs/metrics.md");
    assert_eq!(documented(page), exported(&all().encode()));
}

#[test]
fn alerts_and_dashboard_ask_for_what_is_exported() {
    let exported = exported(&all().encode());
    let rules = include_str!("../../../charts/sluice/templates/prometheusrule.yaml");
    let dashboard = include_str!("../../../charts/sluice/dashboards/sluice.json");
    let asked: Vec<&str> = [rules, dashboard]
        .into_iter()
        .flat_map(|text| text.match_indices("sluice_controller_").map(|(at, _)| &text[at..]))
        .map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap())
        .collect();
    assert!(asked.len() > 10);
    for name in asked {
        assert!(exported.contains_key(name.trim_end_matches("_bucket")), "{name}");
    }
}
