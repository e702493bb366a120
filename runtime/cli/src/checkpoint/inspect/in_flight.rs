//! What an unaligned barrier overtook, by edge and channel, and its rows on request.

use crate::checkpoint::place::Place;
use crate::checkpoint::rows::{Rows, add_rows};
use crate::error::CommandError;
use bytes::Bytes;
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::in_flight;
use sluice_protocol::metadata::Metadata;
use sluice_protocol::state::{InFlightHandle, StateData};
use std::collections::BTreeMap;

/// The column of row kinds, before those of the edge.
const KIND: &str = "$kind";

/// Batches of one edge.
pub(super) struct EdgeInFlight<'a> {
    pub(super) name: &'a str,
    /// By channel, what waited longest first; each part was saved by one subtask.
    pub(super) parts: Vec<&'a InFlightHandle>,
    /// The first rows, when they are asked for, after their kinds.
    pub(super) rows: Option<Rows>,
}

/// Everything that was in flight, with up to `limit` rows of each edge.
pub(super) async fn by_edge<'a>(
    place: &Place,
    directory: &str,
    metadata: &'a Metadata,
    limit: usize,
) -> Result<Vec<EdgeInFlight<'a>>, CommandError> {
    let mut handles: BTreeMap<&str, Vec<&InFlightHandle>> = BTreeMap::new();
    for handle in &metadata.in_flight {
        handles.entry(&handle.edge).or_default().push(handle);
    }
    let mut edges = Vec::with_capacity(handles.len());
    for (name, mut parts) in handles {
        // As a restore reads them.
        parts.sort_by_key(|part| (part.from, part.to, std::cmp::Reverse(part.age), part.first));
        let rows = if limit > 0 { Some(read_rows(place, directory, &parts, limit).await?) } else { None };
        edges.push(EdgeInFlight { name, parts, rows });
    }
    Ok(edges)
}

async fn read_rows(
    place: &Place,
    directory: &str,
    handles: &[&InFlightHandle],
    limit: usize,
) -> Result<Rows, CommandError> {
    let mut table = Rows::default();
    for handle in handles {
        if table.rows.len() >= limit {
            break;
        }
        let (source, bytes) = fetch(place, directory, handle).await?;
        let unreadable = |detail: String| CommandError::State { place: source.clone(), detail };
        for batch in in_flight::read(&bytes, &handle.edge).map_err(|error| unreadable(error.to_string()))? {
            add_batch(&batch, &mut table).map_err(|error| unreadable(error.to_string()))?;
        }
    }
    table.rows.truncate(limit);
    Ok(table)
}

/// The bytes of a handle, and where they come from.
async fn fetch(place: &Place, directory: &str, handle: &InFlightHandle) -> Result<(String, Bytes), CommandError> {
    let (source, bytes) = match handle.data.resolve(directory) {
        StateData::Inline { bytes } => (format!("{directory}/_metadata"), Some(Bytes::from(bytes))),
        StateData::File { path, .. } => {
            let bytes = place.get(&path).await?;
            (path, bytes)
        }
    };
    let range = || {
        let start = usize::try_from(handle.offset).ok()?;
        let end = usize::try_from(handle.offset.checked_add(handle.length)?).ok()?;
        bytes.filter(|bytes| end <= bytes.len()).map(|bytes| bytes.slice(start..end))
    };
    match range() {
        Some(bytes) => Ok((source, bytes)),
        None => Err(CommandError::State { place: source, detail: "it does not exist or is cut off".to_owned() }),
    }
}

/// Adds rows with their kinds.
fn add_batch(batch: &Batch, table: &mut Rows) -> Result<(), arrow::error::ArrowError> {
    let mut rows = Rows::default();
    add_rows(&batch.rows, &mut rows)?;
    table.columns = std::iter::once(KIND.to_owned()).chain(rows.columns).collect();
    for (row, cells) in rows.rows.into_iter().enumerate() {
        let number = batch.kinds.as_ref().map_or(RowKind::Insert as u8, |kinds| kinds.value(row));
        let kind = RowKind::from_number(number).map_or("?", RowKind::short);
        table.rows.push(std::iter::once(kind.to_owned()).chain(cells).collect());
    }
    Ok(())
}
