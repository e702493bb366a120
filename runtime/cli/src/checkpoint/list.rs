//! `sluice checkpoint list`: what can be restored, and how the last checkpoints of each job went.

use super::find::{JobHistory, find_with_histories};
use super::place::Place;
use crate::error::CommandError;
use crate::output;
use sluice_node::edge::now;
use sluice_protocol::Timestamp;
use sluice_protocol::history::CheckpointRecord;
use std::fmt::Write as _;

pub(super) async fn list(place: &Place) -> Result<(), CommandError> {
    let (found, histories) = find_with_histories(place).await?;
    if found.is_empty() {
        let only = place.only.as_ref().map(|job| format!(" of {}/{}", job.namespace, job.name)).unwrap_or_default();
        output::print(&format!("no checkpoints{only} below {}\n", place.uri));
        return Ok(());
    }
    let now = now();
    let rows: Vec<Vec<String>> = found
        .into_iter()
        .map(|found| {
            vec![
                found.job,
                found.id.to_string(),
                if found.is_savepoint { "savepoint" } else { "checkpoint" }.to_owned(),
                output::time(found.at),
                output::age(now, found.at),
                output::bytes(found.bytes),
                found.job_state.map_or("no ledger".to_owned(), |state| format!("{state:?}").to_lowercase()),
                found.uri,
            ]
        })
        .collect();
    let header = ["JOB", "ID", "KIND", "COMPLETED", "AGE", "STATE SIZE", "JOB STATE", "PATH"];
    let mut text = output::table(&header, &rows, "");
    for history in histories.iter().filter(|history| !history.records.is_empty()) {
        text.push_str(&describe_history(history, now));
    }
    output::print(&text);
    Ok(())
}

fn describe_history(history: &JobHistory, now: Timestamp) -> String {
    let header = [
        "ID",
        "KIND",
        "STATE",
        "TRIGGERED",
        "TOOK",
        "DELAY",
        "ALIGNMENT",
        "SYNC",
        "ASYNC",
        "STORED",
        "FULL SIZE",
        "IN FLIGHT",
        "WHY",
    ];
    let rows: Vec<Vec<String>> = history.records.iter().rev().map(|record| cells(record, now)).collect();
    let mut text = String::new();
    let _ = writeln!(text, "\nthe last checkpoints of {}:", history.job);
    text.push_str(&output::table(&header, &rows, "  "));
    text
}

fn cells(record: &CheckpointRecord, now: Timestamp) -> Vec<String> {
    let millis = |millis: u64| format!("{millis} ms");
    let metrics = &record.metrics;
    vec![
        record.id.to_string(),
        format!("{:?}", record.kind),
        format!("{:?}", record.state),
        output::time(record.triggered_at),
        millis(record.duration_ms(now)),
        millis(metrics.start_delay_ms),
        millis(metrics.alignment_ms),
        millis(metrics.sync_ms),
        millis(metrics.async_ms),
        output::bytes(metrics.bytes),
        output::bytes(metrics.full_bytes),
        output::bytes(metrics.in_flight_bytes),
        record.failure.clone().unwrap_or_default(),
    ]
}
