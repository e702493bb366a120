//! `sluice checkpoint inspect`: one checkpoint, for people ([`text`]) or as JSON ([`json`]).
//!
//! What is shown is put together here, then written in either form: the operators with their state, and what was
//! [`in_flight`]. Reads only, and of the files only those whose rows are asked for.

mod in_flight;
mod json;
mod text;

use super::find::find;
use super::place::Place;
use super::rows::{Rows, read_rows};
use crate::error::CommandError;
use crate::output;
use clap::ValueEnum;
use in_flight::EdgeInFlight;
use sluice_protocol::OperatorUid;
use sluice_protocol::graph::OperatorInfo;
use sluice_protocol::metadata::Metadata;
use sluice_protocol::paths::METADATA;
use sluice_protocol::state::{KeyedStateHandle, OperatorSnapshot, StateData};
use std::collections::{BTreeMap, BTreeSet};

/// The forms of what is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
}

/// What is shown of a checkpoint.
struct Inspected<'a> {
    directory: &'a str,
    metadata: &'a Metadata,
    /// Those that stored something, in the order of the graph.
    operators: Vec<InspectedOperator<'a>>,
    /// What an unaligned barrier overtook, by edge.
    in_flight: Vec<EdgeInFlight<'a>>,
}

struct InspectedOperator<'a> {
    info: &'a OperatorInfo,
    /// What its subtasks stored.
    snapshots: Vec<&'a OperatorSnapshot>,
    /// The first rows of its keyed states by their names, when rows are asked for.
    rows: BTreeMap<&'a str, Rows>,
}

/// Prints the checkpoint at the place, or the newest one below it, with up to `rows` rows of each state and edge.
pub(super) async fn inspect(place: &Place, rows: usize, format: Format) -> Result<(), CommandError> {
    let (directory, metadata) = choose(place).await?;
    let mut operators = Vec::new();
    for (info, snapshots) in operators_of(&metadata) {
        let rows = state_rows(place, &directory, &snapshots, rows).await?;
        operators.push(InspectedOperator { info, snapshots, rows });
    }
    let in_flight = in_flight::by_edge(place, &directory, &metadata, rows).await?;
    let inspected = Inspected { directory: &directory, metadata: &metadata, operators, in_flight };
    output::print(&match format {
        Format::Text => text::describe(&inspected),
        Format::Json => json::describe(&inspected),
    });
    Ok(())
}

/// The checkpoint at the place, or the newest one below it.
pub(crate) async fn choose(place: &Place) -> Result<(String, Metadata), CommandError> {
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

/// Operators that stored something, in the order of the graph, each with what its subtasks stored.
pub(super) fn operators_of(metadata: &Metadata) -> Vec<(&OperatorInfo, Vec<&OperatorSnapshot>)> {
    let mut by_uid: BTreeMap<&OperatorUid, Vec<&OperatorSnapshot>> = BTreeMap::new();
    for snapshot in &metadata.operators {
        by_uid.entry(&snapshot.uid).or_default().push(snapshot);
    }
    let all = metadata.vertices.iter().flat_map(|vertex| &vertex.operators);
    all.filter_map(|info| by_uid.remove(&info.uid).map(|snapshots| (info, snapshots))).collect()
}

/// Up to `limit` rows of each keyed state, over all subtasks.
async fn state_rows<'a>(
    place: &Place,
    directory: &str,
    snapshots: &[&'a OperatorSnapshot],
    limit: usize,
) -> Result<BTreeMap<&'a str, Rows>, CommandError> {
    let mut tables = BTreeMap::new();
    if limit == 0 {
        return Ok(tables);
    }
    let names: BTreeSet<&str> = keyed(snapshots).map(|(_, handle)| handle.name.as_str()).collect();
    for name in names {
        let handles = keyed(snapshots).map(|(_, handle)| handle).filter(|handle| handle.name == name);
        tables.insert(name, read_rows(place, directory, handles, limit).await?);
    }
    Ok(tables)
}

/// The keyed state of all subtasks, each with its subtask's number.
pub(super) fn keyed<'a>(
    snapshots: &[&'a OperatorSnapshot],
) -> impl DoubleEndedIterator<Item = (u32, &'a KeyedStateHandle)> {
    snapshots.iter().flat_map(|snapshot| snapshot.keyed.iter().map(|handle| (snapshot.subtask.0, handle)))
}

/// Where a piece of state lies.
fn file(data: &StateData) -> String {
    match data {
        StateData::Inline { .. } => "in _metadata".to_owned(),
        StateData::File { path, .. } => path.clone(),
    }
}
