//! `sluice checkpoint inspect`: one checkpoint for people.
//!
//! Positions of sources are shown by split: of a Kafka partition the last consumed offset and the next one, where a
//! restore reads on.

use super::find::find;
use super::place::Place;
use super::rows::read_rows;
use crate::error::CommandError;
use crate::output;
use serde_json::Value;
use sluice_node::edge::now;
use sluice_protocol::graph::OperatorInfo;
use sluice_protocol::history::VertexDetails;
use sluice_protocol::message::CheckpointMetrics;
use sluice_protocol::metadata::Metadata;
use sluice_protocol::paths::METADATA;
use sluice_protocol::state::{
    KeyedStateHandle, KeyedStateKind, OperatorSnapshot, OperatorStateHandle, Redistribution, StateData,
};
use sluice_protocol::{KeyGroupRange, OperatorUid};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The field of a split's state that holds the next offset to read.
const OFFSET: &str = "offset";

/// Prints the checkpoint at the place, or the newest one below it.
pub(super) async fn inspect(place: &Place, rows: usize) -> Result<(), CommandError> {
    let (directory, metadata) = choose(place).await?;
    let mut text = describe(&directory, &metadata);
    text.push_str(&describe_details(&metadata));
    for (info, snapshots) in operators(&metadata) {
        let _ = writeln!(text, "\n{}  ({:?})\n  uid {}", info.description, info.kind, info.uid);
        text.push_str(&describe_splits(&snapshots));
        text.push_str(&describe_keyed(&snapshots));
        text.push_str(&describe_lists(&snapshots));
        if rows > 0 {
            text.push_str(&show_rows(place, &directory, &snapshots, rows).await?);
        }
    }
    output::print(&text);
    Ok(())
}

async fn choose(place: &Place) -> Result<(String, Metadata), CommandError> {
    if let Some(metadata) = read_metadata(place, &place.uri).await? {
        return Ok((place.uri.clone(), metadata));
    }
    let found = find(place).await?;
    let jobs: BTreeSet<&str> = found.iter().map(|found| found.job.as_str()).collect();
    if jobs.len() > 1 {
        let names: Vec<&str> = jobs.into_iter().collect();
        let text = format!("several jobs have checkpoints below {}; name one: {}", place.uri, names.join(", "));
        return Err(CommandError::Usage(text));
    }
    let newest =
        found.last().ok_or_else(|| CommandError::Usage(format!("there is no checkpoint below {}", place.uri)))?;
    match read_metadata(place, &newest.uri).await? {
        Some(metadata) => Ok((newest.uri.clone(), metadata)),
        None => Err(CommandError::Usage(format!("{} was removed meanwhile; try again", newest.uri))),
    }
}

/// The `_metadata` of a checkpoint's directory, `None` when there is none.
pub(crate) async fn read_metadata(place: &Place, directory: &str) -> Result<Option<Metadata>, CommandError> {
    let key = format!("{directory}/{METADATA}");
    match place.get(&key).await? {
        Some(bytes) => Ok(Some(Metadata::from_bytes(&bytes, &key)?)),
        None => Ok(None),
    }
}

fn describe(directory: &str, metadata: &Metadata) -> String {
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

/// Operators that stored something, in the order of the graph, each with what its subtasks stored.
fn operators(metadata: &Metadata) -> Vec<(&OperatorInfo, Vec<&OperatorSnapshot>)> {
    let mut by_uid: BTreeMap<&OperatorUid, Vec<&OperatorSnapshot>> = BTreeMap::new();
    for snapshot in &metadata.operators {
        by_uid.entry(&snapshot.uid).or_default().push(snapshot);
    }
    let all = metadata.vertices.iter().flat_map(|vertex| &vertex.operators);
    all.filter_map(|info| by_uid.remove(&info.uid).map(|snapshots| (info, snapshots))).collect()
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

fn keyed<'a>(snapshots: &'a [&OperatorSnapshot]) -> impl DoubleEndedIterator<Item = (u32, &'a KeyedStateHandle)> {
    snapshots.iter().flat_map(|snapshot| snapshot.keyed.iter().map(|handle| (snapshot.subtask.0, handle)))
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

fn file(data: &StateData) -> String {
    match data {
        StateData::Inline { .. } => "in _metadata".to_owned(),
        StateData::File { path, .. } => path.clone(),
    }
}

/// Up to `limit` rows of each state, over all subtasks.
async fn show_rows(
    place: &Place,
    directory: &str,
    snapshots: &[&OperatorSnapshot],
    limit: usize,
) -> Result<String, CommandError> {
    let mut text = String::new();
    let names: BTreeSet<&str> = keyed(snapshots).map(|(_, handle)| handle.name.as_str()).collect();
    for name in names {
        let handles = keyed(snapshots).map(|(_, handle)| handle).filter(|handle| handle.name == name);
        let table = read_rows(place, directory, handles, limit).await?;
        let header: Vec<&str> = table.columns.iter().map(String::as_str).collect();
        let _ = writeln!(text, "  first {} rows of '{name}':", table.rows.len());
        text.push_str(&output::table(&header, &table.rows, "    "));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{describe_keyed, describe_splits};
    use serde_json::json;
    use sluice_protocol::state::{KeyedStateHandle, KeyedStateKind, OperatorSnapshot, SplitState, StateData};
    use sluice_protocol::{KeyGroupRange, OperatorUid, SubtaskIndex};

    fn snapshot(subtask: u32) -> OperatorSnapshot {
        OperatorSnapshot {
            uid: OperatorUid::from("pv"),
            subtask: SubtaskIndex(subtask),
            keyed: vec![],
            operator: vec![],
            splits: vec![],
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
            handle(KeyedStateKind::Delta, StateData::File { path: "../shared/1.parquet".to_owned(), size: 2048 }),
        ];
        let text = describe_keyed(&[&OperatorSnapshot { keyed, ..snapshot(3) }]);
        let expected = "  STATE   SUBTASK  KEY GROUPS  KIND   ROWS    SIZE     FILE\n  \
                        groups  3        0-63        full   12,345  100 B    in _metadata\n  \
                        groups  3        0-63        delta  12,345  2.0 KiB  ../shared/1.parquet\n";
        assert_eq!(text, expected);
    }
}
