//! Batches that were in flight at an unaligned cut: to the store, and back (B2, B3).
//!
//! All channels of a subtask share a few objects, of which each handle names its part; few bytes travel inline, as
//! other state does.

use super::restore::{self, Unfit};
use super::snapshot::{Place, Target, check_fits, upload_as};
use super::{Equipment, pool};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use sluice_engine::in_flight::{self, InFlight, RestoredChannel, Unreadable};
use sluice_protocol::SubtaskId;
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::graph::JobGraph;
use sluice_protocol::paths;
use sluice_protocol::state::{INLINE_LIMIT, InFlightHandle, StateData};
use std::collections::VecDeque;
use std::sync::Arc;

/// An object is closed when it has reached this many bytes.
const OBJECT_BYTES: usize = 64 << 20;

/// Reads of one task at once.
const PARALLEL: usize = 8;

/// Encoded batches that are stored together, and which part of them is whose.
struct Object {
    bytes: Vec<u8>,
    /// As they will be, but for where they lie.
    parts: Vec<InFlightHandle>,
    /// What did not fit in.
    rest: VecDeque<InFlight>,
}

/// Stores what a snapshot holds of it, object by object: in memory are what was recorded, and one of them.
///
/// # Errors
/// When it cannot be encoded or stored: the checkpoint is to be declined.
pub(super) async fn store(
    equipment: &Equipment,
    target: &Target,
    place: &Place,
    in_flight: Vec<InFlight>,
) -> Result<Vec<InFlightHandle>, Failure> {
    let (mut handles, mut rest, mut sequence) = (Vec::new(), VecDeque::from(in_flight), 0);
    while !rest.is_empty() {
        let job = Arc::clone(&equipment.job);
        let object = pool::run("encoding batches in flight", move || encode(&job.program.graph, rest)).await?;
        rest = object.rest;
        let is_small = sequence == 0 && rest.is_empty() && object.bytes.len() < INLINE_LIMIT;
        let Some((store, directory)) = target.directory.as_ref().filter(|_| !is_small) else {
            handles.extend(inline(target, object.bytes, object.parts)?);
            continue;
        };
        let name =
            paths::in_flight_file(place.run, place.checkpoint, place.subtask, sequence, &crate::edge::random_id());
        sequence += 1;
        let data = upload_as(store, directory, place, name, object.bytes.into()).await?;
        handles.extend(object.parts.into_iter().map(|part| InFlightHandle { data: data.clone(), ..part }));
    }
    Ok(handles)
}

/// As many batches as go into one object.
fn encode(graph: &JobGraph, mut rest: VecDeque<InFlight>) -> Result<Object, Failure> {
    let (mut bytes, mut parts) = (Vec::new(), Vec::new());
    while bytes.len() < OBJECT_BYTES
        && let Some(share) = rest.pop_front()
    {
        let encoded = share.encode().map_err(|error| error.to_failure())?;
        let nowhere = StateData::Inline { bytes: Vec::new() };
        let part = share.handle(graph, bytes.len() as u64, encoded.len() as u64, nowhere);
        parts.push(part.ok_or_else(|| unknown_edge(&share))?);
        bytes.extend(encoded);
    }
    Ok(Object { bytes, parts, rest })
}

/// Each with its own bytes.
fn inline(target: &Target, bytes: Vec<u8>, parts: Vec<InFlightHandle>) -> Result<Vec<InFlightHandle>, Failure> {
    let with_bytes = |handle: InFlightHandle| {
        if target.directory.is_none() {
            check_fits(
                &format!("what is in flight on {}", handle.edge),
                usize::try_from(handle.length).unwrap_or(usize::MAX),
            )?;
        }
        let bytes = part(&bytes, &handle)?.into();
        Ok(InFlightHandle { offset: 0, data: StateData::Inline { bytes }, ..handle })
    };
    parts.into_iter().map(with_bytes).collect()
}

fn unknown_edge(share: &InFlight) -> Failure {
    let text = format!("{}: the program has no such edge", share.channel);
    Failure::restart("UnknownEdge", Fault::Internal, text)
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
    let (job, handle) = (Arc::clone(&equipment.job), handle.clone());
    let restoring =
        move || in_flight::restore(&handle, &bytes, &job.program, subtask).map_err(|error| error.to_failure());
    pool::run("reading batches in flight", restoring).await
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
