//! Batches that were in flight at an unaligned cut: to the store, and back (B2, B3).
//!
//! All channels of a subtask share a few objects, of which each handle names its part; few bytes travel inline, as
//! other state does.

use super::Equipment;
use super::restore::{self, Unfit};
use super::snapshot::{Place, Target, check_fits, upload_as};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use sluice_engine::error::TaskError;
use sluice_engine::in_flight::{self, InFlight, RestoredChannel, Unreadable};
use sluice_protocol::SubtaskId;
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::paths;
use sluice_protocol::state::{INLINE_LIMIT, InFlightHandle, StateData};

/// An object is closed when it has reached this many bytes.
const OBJECT_BYTES: usize = 64 << 20;

/// Reads of one task at once.
const PARALLEL: usize = 8;

/// Stores what a snapshot holds of it.
///
/// # Errors
/// When it cannot be encoded or stored: the checkpoint is to be declined.
pub(super) async fn store(
    equipment: &Equipment,
    target: &Target,
    place: &Place,
    in_flight: Vec<InFlight>,
) -> Result<Vec<InFlightHandle>, Failure> {
    if in_flight.is_empty() {
        return Ok(Vec::new());
    }
    let encoding = tokio::task::spawn_blocking(move || {
        in_flight.into_iter().map(|share| Ok((share.encode()?, share))).collect::<Result<Vec<_>, TaskError>>()
    });
    let encoded = encoding
        .await
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("writing batches in flight failed: {error}"))))
        .map_err(|error| error.to_failure())?;
    let total: usize = encoded.iter().map(|(bytes, _)| bytes.len()).sum();
    if target.directory.is_some() && total >= INLINE_LIMIT {
        return store_in_objects(equipment, target, place, encoded).await;
    }
    let graph = &equipment.job.program.graph;
    let inline = encoded.into_iter().map(|(bytes, share)| {
        if target.directory.is_none() {
            check_fits(&format!("what is in flight on {}", share.channel), bytes.len())?;
        }
        let length = bytes.len() as u64;
        share.handle(graph, 0, length, StateData::Inline { bytes }).ok_or_else(|| unknown_edge(&share))
    });
    inline.collect()
}

fn unknown_edge(share: &InFlight) -> Failure {
    let text = format!("{}: the program has no such edge", share.channel);
    Failure::restart("UnknownEdge", Fault::Internal, text)
}

async fn store_in_objects(
    equipment: &Equipment,
    target: &Target,
    place: &Place,
    encoded: Vec<(Vec<u8>, InFlight)>,
) -> Result<Vec<InFlightHandle>, Failure> {
    let Some((store, directory)) = &target.directory else { return Ok(Vec::new()) };
    let graph = &equipment.job.program.graph;
    let mut handles = Vec::with_capacity(encoded.len());
    let mut rest = encoded.into_iter().peekable();
    let mut sequence = 0;
    while rest.peek().is_some() {
        let mut object = Vec::new();
        let mut parts = Vec::new();
        while object.len() < OBJECT_BYTES
            && let Some((bytes, share)) = rest.next()
        {
            parts.push((object.len() as u64, bytes.len() as u64, share));
            object.extend(bytes);
        }
        let name =
            paths::in_flight_file(place.run, place.checkpoint, place.subtask, sequence, &crate::edge::random_id());
        sequence += 1;
        let data = upload_as(store, directory, place, name, object.into()).await?;
        for (offset, length, share) in parts {
            let handle = share.handle(graph, offset, length, data.clone());
            handles.push(handle.ok_or_else(|| unknown_edge(&share))?);
        }
    }
    Ok(handles)
}

/// Fetches what was in flight on the input edges of a task, and leaves the rows that are its own.
///
/// # Errors
/// When a file cannot be read, by its name, or does not fit the program.
pub(super) async fn fetch(
    equipment: &Equipment,
    subtask: SubtaskId,
    handles: &[InFlightHandle],
) -> Result<Vec<RestoredChannel>, Failure> {
    let reads: Vec<_> = handles.iter().map(|handle| read(equipment, subtask, handle)).collect();
    futures::stream::iter(reads).buffered(PARALLEL).try_collect().await
}

async fn read(equipment: &Equipment, subtask: SubtaskId, handle: &InFlightHandle) -> Result<RestoredChannel, Failure> {
    let bytes = match &handle.data {
        StateData::Inline { bytes } => part(bytes, handle)?,
        StateData::File { path, .. } => {
            let end = handle.offset.saturating_add(handle.length);
            restore::fetch_range(equipment, path, handle.offset..end, |bytes| check(bytes, handle)).await?
        }
    };
    in_flight::restore(handle, &bytes, &equipment.job.program, subtask).map_err(|error| error.to_failure())
}

fn check(bytes: &Bytes, handle: &InFlightHandle) -> Result<(), Unfit> {
    in_flight::check(bytes).map_err(|error| match error {
        Unreadable::Damaged(what) => Unfit::Damaged(what),
        Unreadable::NewerVersion(_) => {
            let (edge, offset) = (&handle.edge, handle.offset);
            Unfit::Never(format!("it holds batches in flight on edge '{edge}' from byte {offset} on, and {error}"))
        }
    })
}

fn part(bytes: &[u8], handle: &InFlightHandle) -> Result<Bytes, Failure> {
    let start = usize::try_from(handle.offset).unwrap_or(usize::MAX);
    let end = usize::try_from(handle.offset.saturating_add(handle.length)).unwrap_or(usize::MAX);
    bytes.get(start..end).map(Bytes::copy_from_slice).ok_or_else(|| {
        let text = format!("the batches in flight on edge '{}' are cut off in the snapshot's _metadata", handle.edge);
        Failure::user("StateDamaged", text)
    })
}
