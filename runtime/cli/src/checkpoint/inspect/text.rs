//! A checkpoint for people.
//!
//! Positions of sources are shown by split: of a Kafka partition the last consumed offset and the next one, where a
//! restore reads on.

use super::in_flight::EdgeInFlight;
use super::{Inspected, InspectedOperator, file, keyed};
use crate::checkpoint::rows::Rows;
use crate::output;
use serde_json::Value;
use sluice_node::edge::now;
use sluice_protocol::KeyGroupRange;
use sluice_protocol::history::VertexDetails;
use sluice_protocol::message::CheckpointMetrics;
use sluice_protocol::metadata::Metadata;
use sluice_protocol::state::{InFlightHandle, KeyedStateKind, OperatorSnapshot, OperatorStateHandle, Redistribution};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The field of a split's state that holds the next offset to read.
const OFFSET: &str = "offset";

/// The whole text.
pub(super) fn describe(inspected: &Inspected<'_>) -> String {
    let mut text = describe_checkpoint(inspected.directory, inspected.metadata);
    text.push_str(&describe_details(inspected.metadata));
    for InspectedOperator { info, snapshots, rows } in &inspected.operators {
        let _ = writeln!(text, "\n{}  ({:?})\n  uid {}", info.description, info.kind, info.uid);
        text.push_str(&describe_splits(snapshots));
        text.push_str(&describe_keyed(snapshots));
        text.push_str(&describe_lists(snapshots));
        for (name, rows) in rows {
            text.push_str(&describe_rows(&format!("'{name}'"), rows));
        }
    }
    inspected.in_flight.iter().for_each(|edge| text.push_str(&describe_in_flight(edge)));
    text
}

fn describe_checkpoint(directory: &str, metadata: &Metadata) -> String {
    let age = output::age(now(), metadata.triggered_at);
    format!(
        "{} {} of {}\n  path       {directory}\n  triggered  {} ({age} ago), by generation {} attempt {}\n  \
         state      {}, {} key groups\n",
        if metadata.savepoint { "savepoint" } else { "checkpoint" },
        metadata.checkpoint,
        metadata.job,
        output::time(metadata.triggered_at),
        metadata.run.generation,
        metadata.run.attempt,
        output::bytes(metadata.state_bytes()),
        metadata.max_parallelism,
    )
}

/// How it was taken, by vertex.
fn describe_details(metadata: &Metadata) -> String {
    let Some(details) = &metadata.details else { return String::new() };
    let row = |vertex: &VertexDetails| {
        let CheckpointMetrics { start_delay_ms, alignment_ms, sync_ms, async_ms, bytes, full_bytes, in_flight_bytes } =
            vertex.metrics;
        let mut cells = vec![vertex.name.clone(), vertex.subtasks.len().to_string()];
        cells.extend([start_delay_ms, alignment_ms, sync_ms, async_ms].map(|millis| format!("{millis} ms")));
        cells.extend([bytes, full_bytes, in_flight_bytes].map(output::bytes));
        cells
    };
    let rows: Vec<Vec<String>> = details.vertices.iter().map(row).collect();
    let header = ["TASK", "SUBTASKS", "DELAY", "ALIGNMENT", "SYNC", "ASYNC", "STORED", "FULL SIZE", "IN FLIGHT"];
    format!("\n{}", output::table(&header, &rows, "  "))
}

fn describe_rows(of: &str, rows: &Rows) -> String {
    let header: Vec<&str> = rows.columns.iter().map(String::as_str).collect();
    format!("  first {} rows of {of}:\n{}", rows.rows.len(), output::table(&header, &rows.rows, "    "))
}

/// What a barrier overtook on an edge, channel by channel.
fn describe_in_flight(edge: &EdgeInFlight<'_>) -> String {
    let sum = |number: fn(&InFlightHandle) -> u64| edge.parts.iter().map(|part| number(part)).sum::<u64>();
    let mut text = format!(
        "\nin flight on {}\n  {} batches, {} rows, {}\n",
        edge.name,
        output::thousands(sum(|part| part.batches)),
        output::thousands(sum(|part| part.rows)),
        output::bytes(sum(|part| part.length))
    );
    let row = |part: &&InFlightHandle| {
        vec![
            part.from.to_string(),
            part.to.to_string(),
            part.age.to_string(),
            output::thousands(part.batches),
            output::thousands(part.rows),
            output::bytes(part.length),
            file(&part.data),
        ]
    };
    let rows: Vec<Vec<String>> = edge.parts.iter().map(row).collect();
    text.push_str(&output::table(&["FROM", "TO", "RESTORES", "BATCHES", "ROWS", "SIZE", "FILE"], &rows, "  "));
    if let Some(rows) = &edge.rows {
        text.push_str(&describe_rows("the batches", rows));
    }
    text
}

/// Titles and values.
type Fields = Vec<(String, String)>;

fn describe_splits(snapshots: &[&OperatorSnapshot]) -> String {
    let splits: BTreeMap<(&str, u64), (&str, Fields)> = snapshots
        .iter()
        .flat_map(|snapshot| &snapshot.splits)
        .map(|split| (numbered(&split.split), (split.split.as_str(), fields_of(&split.state))))
        .collect();
    if splits.is_empty() {
        return String::new();
    }
    let mut titles: Vec<&str> = Vec::new();
    for (title, _) in splits.values().flat_map(|(_, fields)| fields) {
        if !titles.contains(&title.as_str()) {
            titles.push(title);
        }
    }
    let header: Vec<&str> = std::iter::once("SPLIT").chain(titles.iter().copied()).collect();
    let rows: Vec<Vec<String>> = splits
        .values()
        .map(|(split, fields)| {
            let cell = |title: &&str| fields.iter().find(|(name, _)| name == title).map_or("-", |(_, value)| value);
            std::iter::once((*split).to_owned()).chain(titles.iter().map(cell).map(str::to_owned)).collect()
        })
        .collect();
    output::table(&header, &rows, "  ")
}

/// A split's name and number, so that `test-2` comes before `test-10`.
fn numbered(split: &str) -> (&str, u64) {
    let parts = split.rsplit_once('-').and_then(|(name, number)| Some((name, number.parse().ok()?)));
    parts.unwrap_or((split, 0))
}

/// A split's state as titles and values. An `offset` is the next one to read, as Kafka counts; people ask for the last
/// one that was consumed, so both are shown, first of all.
fn fields_of(state: &Value) -> Fields {
    let Some(object) = state.as_object() else { return vec![("STATE".to_owned(), cell(state))] };
    let mut fields = Vec::new();
    if let Some(next) = object.get(OFFSET).and_then(Value::as_i64) {
        let last = if next > 0 { (next - 1).to_string() } else { "none".to_owned() };
        fields.push(("LAST CONSUMED OFFSET".to_owned(), last));
        fields.push(("NEXT OFFSET".to_owned(), next.to_string()));
    }
    let others = object.iter().filter(|(name, _)| name.as_str() != OFFSET);
    fields.extend(others.map(|(name, value)| (title_of(name), cell(value))));
    fields
}

/// `maxPast` as `MAX PAST`.
fn title_of(field: &str) -> String {
    let mut title = String::new();
    for letter in field.chars() {
        if letter.is_uppercase() {
            title.push(' ');
        }
        title.extend(letter.to_uppercase());
    }
    title
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn describe_keyed(snapshots: &[&OperatorSnapshot]) -> String {
    let rows: Vec<Vec<String>> = keyed(snapshots)
        .map(|(subtask, handle)| {
            let KeyGroupRange { start, end } = handle.key_groups;
            vec![
                handle.name.clone(),
                subtask.to_string(),
                format!("{start}-{}", end.saturating_sub(1)),
                match handle.kind {
                    KeyedStateKind::Full => "full".to_owned(),
                    KeyedStateKind::Delta => "delta".to_owned(),
                },
                output::thousands(handle.rows),
                output::bytes(handle.data.size()),
                file(&handle.data),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    output::table(&["STATE", "SUBTASK", "KEY GROUPS", "KIND", "ROWS", "SIZE", "FILE"], &rows, "  ")
}

fn describe_lists(snapshots: &[&OperatorSnapshot]) -> String {
    let lists = snapshots.iter().flat_map(|one| one.operator.iter().map(|handle| (one.subtask.0, handle)));
    let row = |(subtask, handle): (u32, &OperatorStateHandle)| {
        vec![
            handle.name.clone(),
            subtask.to_string(),
            match handle.redistribution {
                Redistribution::Split => "split".to_owned(),
                Redistribution::Union => "union".to_owned(),
                Redistribution::Broadcast => "broadcast".to_owned(),
            },
            output::thousands(handle.items),
            output::bytes(handle.data.size()),
            file(&handle.data),
        ]
    };
    let rows: Vec<Vec<String>> = lists.map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    output::table(&["LIST", "SUBTASK", "GOES", "ITEMS", "SIZE", "FILE"], &rows, "  ")
}

#[cfg(test)]
mod tests {
    use super::{describe_in_flight, describe_keyed, describe_splits};
    use crate::checkpoint::inspect::in_flight::EdgeInFlight;
    use serde_json::json;
    use sluice_protocol::graph::Partitioning;
    use sluice_protocol::state::{
        InFlightHandle, KeyedStateHandle, KeyedStateKind, OperatorSnapshot, SplitState, StateData,
    };
    use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskIndex};

    fn snapshot(subtask: u32) -> OperatorSnapshot {
        OperatorSnapshot {
            uid: OperatorUid::from("pv"),
            subtask: SubtaskIndex(subtask),
            keyed: vec![],
            operator: vec![],
            splits: vec![],
            committables: vec![],
        }
    }

    #[test]
    fn the_last_consumed_offset_and_the_next_are_shown() {
        let split = |name: &str, state| SplitState { split: name.to_owned(), state };
        let splits = vec![
            split("test-10", json!({"topic": "test", "partition": 10, "offset": 0})),
            split("test-2", json!({"topic": "test", "partition": 2, "offset": 1001, "end": 2000})),
        ];
        let text = describe_splits(&[&OperatorSnapshot { splits, ..snapshot(0) }, &snapshot(1)]);
        let expected = "  SPLIT    LAST CONSUMED OFFSET  NEXT OFFSET  END   PARTITION  TOPIC\n  \
                        test-2   1000                  1001         2000  2          test\n  \
                        test-10  none                  0            -     10         test\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn keyed_state_is_shown_by_subtask() {
        let handle = |kind, data| KeyedStateHandle {
            name: "groups".to_owned(),
            key_groups: KeyGroupRange { start: 0, end: 64 },
            rows: 12_345,
            kind,
            data,
        };
        let keyed = vec![
            handle(KeyedStateKind::Full, StateData::Inline { bytes: vec![0; 100] }),
            handle(KeyedStateKind::Delta, StateData::file("../shared/1.parquet".to_owned(), &[0; 2048])),
        ];
        let text = describe_keyed(&[&OperatorSnapshot { keyed, ..snapshot(3) }]);
        let expected = "  STATE   SUBTASK  KEY GROUPS  KIND   ROWS    SIZE     FILE\n  \
                        groups  3        0-63        full   12,345  100 B    in _metadata\n  \
                        groups  3        0-63        delta  12,345  2.0 KiB  ../shared/1.parquet\n";
        assert_eq!(text, expected);
    }
    #[test]
    fn what_was_in_flight_is_shown_by_channel() {
        let handle = |to, batches, data| InFlightHandle {
            edge: "source -> count".to_owned(),
            partitioning: Partitioning::Rebalance,
            from: SubtaskIndex(1),
            to: SubtaskIndex(to),
            receivers: 2,
            producers: 2,
            age: to,
            first: 0,
            batches,
            rows: 1500,
            offset: 0,
            length: 1024,
            data,
        };
        let handles = [
            handle(0, 3, StateData::Inline { bytes: vec![0; 1024] }),
            handle(1, 1, StateData::file("in-flight-1".to_owned(), &[0; 4096])),
        ];
        let parts = handles.iter().collect();
        let text = describe_in_flight(&EdgeInFlight { name: "source -> count", parts, rows: None });
        let expected = "\nin flight on source -> count\n  4 batches, 3,000 rows, 2.0 KiB\n  \
                        FROM  TO  RESTORES  BATCHES  ROWS   SIZE     FILE\n  \
                        1     0   0         3        1,500  1.0 KiB  in _metadata\n  \
                        1     1   1         1        1,500  1.0 KiB  in-flight-1\n";
        assert_eq!(text, expected);
    }
}
