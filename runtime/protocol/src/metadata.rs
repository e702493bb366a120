//! `_metadata`, version 1: what a snapshot holds and who gets what of it at a restore (docs/protocol.md, K1, K2, F3).
//!
//! JSON, the version first. Paths in it are relative to its own directory, so a directory can be copied elsewhere
//! and still be restored. Its last field is a checksum of all that stands before it; the first builds wrote none.
//! Callers rely on: an unknown version is refused by name before anything else is read, bytes that are not those that
//! were stored are told from a file that never was one, and [`assign_state`] drops nothing silently.

mod in_flight;

use crate::commit::CommitHandle;
use crate::graph::{JobGraph, OperatorInfo, OperatorKind};
use crate::history::CheckpointDetails;
use crate::ids::{CheckpointId, JobId, KeyGroupRange, OperatorUid, Run, SubtaskId, SubtaskIndex};
use crate::key_group;
use crate::state::{
    Checksum, Committable, InFlightHandle, KeyedStateHandle, OperatorSnapshot, OperatorStateHandle, Redistribution,
    StateData, SubtaskState,
};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// The version that is written, and the newest that can be read.
pub const VERSION: u32 = 1;

/// What every one begins with.
const HEAD: &[u8] = b"{\n  \"version\": ";
/// What stands behind the part that the checksum covers, around its digits.
const CHECKSUM: (&[u8], &[u8]) = (b",\n  \"xxh3\": \"", b"\"\n}");

/// A snapshot's description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Of this format.
    pub version: u32,
    /// Whose.
    pub job: JobId,
    /// The run that took it.
    pub run: Run,
    /// Its id.
    pub checkpoint: CheckpointId,
    /// Whether it is a savepoint's: self-contained, and removed by nobody but on request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub savepoint: bool,
    /// The directory of its job, in a savepoint of one whose sinks stage output: its ledger tells what of that is uncommitted
    /// (K4). A URI; nobody needs it to be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Names this very write of it (K2).
    pub nonce: String,
    /// When it was triggered.
    pub triggered_at: Timestamp,
    /// The function from key to key group (F3).
    pub key_group_function: String,
    /// Number of key groups.
    pub max_parallelism: u16,
    /// The vertices of the graph, for people and for checks.
    pub vertices: Vec<MetadataVertex>,
    /// What each operator of each subtask stored.
    pub operators: Vec<OperatorSnapshot>,
    /// What was in flight between subtasks at an unaligned cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_flight: Vec<InFlightHandle>,
    /// How it was taken, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<CheckpointDetails>>,
}

/// A vertex of the graph that a snapshot was taken of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetadataVertex {
    /// Its name.
    pub name: String,
    /// Its subtasks.
    pub parallelism: u32,
    /// Its operators.
    pub operators: Vec<OperatorInfo>,
}

/// A `_metadata` that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// Written by a newer release.
    #[error(
        "{place} has format version {found}; this release reads versions up to {VERSION}: restore it with the release \
         that wrote it or a newer one, or choose an older snapshot"
    )]
    NewerVersion {
        /// Its path.
        place: String,
        /// Its version.
        found: u64,
    },
    /// It was one, and holds other bytes now.
    #[error("{place} is damaged: {detail}; put it back as it was stored, or choose another snapshot")]
    Damaged {
        /// Its path.
        place: String,
        /// What tells so.
        detail: String,
    },
    /// Not what it should be.
    #[error(
        "{place} is not a snapshot's _metadata: {detail}; it may be damaged or another program's file: choose another snapshot"
    )]
    Unreadable {
        /// Its path.
        place: String,
        /// What the reader said.
        detail: String,
    },
    /// Its keys are spread by another function.
    #[error(
        "{place} spreads keys by the function '{found}'; this release knows '{}': restore it with the release that wrote it",
        key_group::NAME
    )]
    UnknownKeyGroupFunction {
        /// Its path.
        place: String,
        /// The function.
        found: String,
    },
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u64,
    xxh3: Option<serde_json::Value>,
}

impl Metadata {
    /// As it is stored: readable by people.
    ///
    /// # Errors
    /// When a value cannot be written as JSON, which would be a fault of ours.
    pub fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.truncate(bytes.len().saturating_sub(b"\n}".len()));
        let digits = Checksum::of(&bytes).to_string();
        let (before, after) = CHECKSUM;
        bytes.extend([before, digits.as_bytes(), after].concat());
        Ok(bytes)
    }

    /// Reads it; `place` is named in errors.
    ///
    /// # Errors
    /// When it is of a newer version, damaged, or of a key-group function that is not known.
    pub fn from_bytes(bytes: &[u8], place: &str) -> Result<Self, MetadataError> {
        let place = || place.to_owned();
        let damaged = |detail: String| MetadataError::Damaged { place: place(), detail };
        let stored = stored_checksum(bytes);
        if let Some((covered, expected)) = stored
            && Checksum::of(covered) != expected
        {
            let found = Checksum::of(covered);
            return Err(damaged(format!("its checksum is {found}, but {expected} was stored with it")));
        }
        let unreadable = |error: serde_json::Error| {
            let (place, detail) = (place(), error.to_string());
            if bytes.starts_with(HEAD) {
                MetadataError::Damaged { place, detail }
            } else {
                MetadataError::Unreadable { place, detail }
            }
        };
        let VersionOnly { version, xxh3 } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if version > u64::from(VERSION) {
            return Err(MetadataError::NewerVersion { place: place(), found: version });
        }
        if xxh3.is_some() && stored.is_none() {
            return Err(damaged("its checksum is not where it was stored".to_owned()));
        }
        let metadata: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        if metadata.key_group_function != key_group::NAME {
            let found = metadata.key_group_function;
            return Err(MetadataError::UnknownKeyGroupFunction { place: place(), found });
        }
        Ok(metadata)
    }

    /// Bytes of state it describes.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        let operators = self.operators.iter().flat_map(OperatorSnapshot::data).map(StateData::size);
        operators.chain(self.in_flight.iter().map(|handle| handle.length)).sum()
    }

    /// The files that it refers to, `directory` being its own.
    pub fn files<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = String> + 'a {
        let in_flight = self.in_flight.iter().map(|handle| &handle.data);
        let data = self.operators.iter().flat_map(OperatorSnapshot::data).chain(in_flight);
        data.filter_map(move |data| match data.resolve(directory) {
            StateData::File { path, .. } => Some(path),
            StateData::Inline { .. } => None,
        })
    }
}

/// What the checksum at the end covers, and the checksum; nothing where none stands.
fn stored_checksum(bytes: &[u8]) -> Option<(&[u8], Checksum)> {
    let (before, after) = CHECKSUM;
    let rest = bytes.trim_ascii_end().strip_suffix(after)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(16)?)?;
    let checksum = Checksum::try_from(String::from_utf8(digits.to_vec()).ok()?).ok()?;
    Some((rest.strip_suffix(before)?, checksum))
}

impl Metadata {
    /// The handles of sinks in it.
    pub fn handles(&self) -> impl Iterator<Item = CommitHandle> + '_ {
        self.operators.iter().flat_map(|snapshot| {
            let handle = |committable: &Committable| CommitHandle {
                sink: snapshot.uid.clone(),
                subtask: snapshot.subtask,
                committable: committable.clone(),
            };
            snapshot.committables.iter().map(handle)
        })
    }
}

/// The vertices of a graph as a snapshot describes them.
#[must_use]
pub fn describe_vertices(graph: &JobGraph) -> Vec<MetadataVertex> {
    let describe = |vertex: &crate::graph::Vertex| MetadataVertex {
        name: vertex.name.clone(),
        parallelism: vertex.parallelism,
        operators: vertex.operators.clone(),
    };
    graph.vertices.iter().map(describe).collect()
}

/// A snapshot that does not fit the program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// State would be lost.
    #[error(
        "the snapshot holds state that no operator of the program takes: {unmatched}. Stateful operators of the program: \
         {offered}. Give the operators their old ids, or allow the loss with allowNonRestoredState"
    )]
    UnmatchedState {
        /// Uids in the snapshot without an operator.
        unmatched: String,
        /// Uids in the program.
        offered: String,
    },
    /// Batches in flight would be lost.
    #[error(
        "the snapshot is unaligned and holds batches in flight on edges that the program does not have: {unmatched}. Edges \
         of the program: {offered}. Restore it with the program that took it, start a changed program from a savepoint, \
         which holds none, or allow the loss with allowNonRestoredState"
    )]
    UnmatchedInFlight {
        /// Edges in the snapshot that are not in the program.
        unmatched: String,
        /// Edges of the program.
        offered: String,
    },
    /// Rows in flight would reach the wrong subtask.
    #[error(
        "the snapshot is unaligned and holds batches in flight on edge '{edge}', which spread rows {found}; in the program \
         it spreads them {expected}. Restore it with the program that took it, or start the changed program from a \
         savepoint"
    )]
    EdgeChanged {
        /// Which.
        edge: String,
        /// In the snapshot.
        found: String,
        /// In the program.
        expected: String,
    },
}

/// Hands the snapshot out: to each subtask of the graph the state that it restores, at any parallelism.
///
/// Keyed state goes to every subtask whose key groups overlap a file's; the receiver takes its own rows. Where the job has
/// another number of key groups, the handles name those of its key groups into which the file's may fall
/// ([`key_group::rescaled`]). Lists go by their [`Redistribution`]. The splits of a source all go to each of its
/// subtasks, because only the source knows which subtask owns a split. What was in flight goes to the receivers
/// ([`in_flight`]). Paths become absolute below `directory`.
///
/// # Errors
/// When the number of key groups or an edge changed while batches are in flight, or state is left over and
/// `allow_non_restored_state` is not set.
pub fn assign_state(
    metadata: &Metadata,
    graph: &JobGraph,
    directory: &str,
    allow_non_restored_state: bool,
) -> Result<BTreeMap<SubtaskId, SubtaskState>, RestoreError> {
    if !allow_non_restored_state {
        check_all_matched(metadata, graph)?;
    }
    let mut in_flight = in_flight::assign(metadata, graph, directory, allow_non_restored_state)?;
    let divided_into = Some(metadata.max_parallelism).filter(|stored| *stored != graph.max_parallelism);
    let mut assigned = BTreeMap::new();
    for vertex in &graph.vertices {
        for index in (0..vertex.parallelism).map(SubtaskIndex) {
            let range = KeyGroupRange::of_subtask(index, vertex.parallelism, graph.max_parallelism);
            let (parallelism, max_parallelism) = (vertex.parallelism, graph.max_parallelism);
            let receiver = Receiver { index, parallelism, range, max_parallelism };
            let operators =
                vertex.operators.iter().flat_map(|operator| snapshots_for(metadata, operator, receiver, directory));
            let subtask = SubtaskId { vertex: vertex.id, index };
            let in_flight = in_flight.remove(&subtask).unwrap_or_default();
            assigned.insert(subtask, SubtaskState { operators: operators.collect(), in_flight, divided_into });
        }
    }
    Ok(assigned)
}

/// A subtask that state is handed out to.
#[derive(Debug, Clone, Copy)]
struct Receiver {
    index: SubtaskIndex,
    parallelism: u32,
    range: KeyGroupRange,
    /// Of how many.
    max_parallelism: u16,
}

fn snapshots_for<'a>(
    metadata: &'a Metadata,
    operator: &'a OperatorInfo,
    receiver: Receiver,
    directory: &'a str,
) -> impl Iterator<Item = OperatorSnapshot> + 'a {
    let of_operator = metadata.operators.iter().filter(move |snapshot| snapshot.uid == operator.uid);
    let vertex = metadata.vertices.iter().find(|vertex| vertex.operators.iter().any(|one| one.uid == operator.uid));
    let is_unchanged = vertex.is_some_and(|vertex| vertex.parallelism == receiver.parallelism);
    let lists = redistribute(of_operator.clone(), receiver, is_unchanged);
    let given = of_operator.zip(lists).map(move |(snapshot, lists)| {
        let key_groups = |handle: &KeyedStateHandle| {
            key_group::rescaled(handle.key_groups, metadata.max_parallelism, receiver.max_parallelism)
        };
        let overlapping =
            snapshot.keyed.iter().filter(|handle| !key_groups(handle).intersection(receiver.range).is_empty());
        let keyed = overlapping
            .map(|handle| KeyedStateHandle {
                key_groups: key_groups(handle),
                data: handle.data.resolve(directory),
                ..handle.clone()
            })
            .collect();
        let operator = lists
            .into_iter()
            .map(|handle| OperatorStateHandle { data: handle.data.resolve(directory), ..handle })
            .collect();
        let (uid, splits) = (snapshot.uid.clone(), snapshot.splits.clone());
        OperatorSnapshot { uid, subtask: snapshot.subtask, keyed, operator, splits, committables: Vec::new() }
    });
    given.filter(|snapshot| !snapshot.is_empty())
}

/// Of each snapshot of one operator the lists, or parts of them, that a subtask gets.
fn redistribute<'a>(
    snapshots: impl Iterator<Item = &'a OperatorSnapshot> + Clone,
    receiver: Receiver,
    is_unchanged: bool,
) -> Vec<Vec<OperatorStateHandle>> {
    let new = u64::from(receiver.parallelism);
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for handle in snapshots.clone().flat_map(|snapshot| &snapshot.operator) {
        *totals.entry(&handle.name).or_default() += handle.items;
    }
    let index = u64::from(receiver.index.0);
    let mut passed: BTreeMap<&str, u64> = BTreeMap::new();
    let mut given: BTreeSet<&str> = BTreeSet::new();
    let mut take = |subtask: SubtaskIndex, handle: &'a OperatorStateHandle| match handle.redistribution {
        Redistribution::Union => Some(handle.clone()),
        Redistribution::Broadcast => given.insert(&handle.name).then(|| handle.clone()),
        Redistribution::Split if is_unchanged => (subtask == receiver.index).then(|| handle.clone()),
        Redistribution::Split => {
            // All items in the order of the old subtasks, cut into as many parts as there are new ones.
            let total = totals.get(handle.name.as_str()).copied().unwrap_or_default();
            let start = passed.entry(&handle.name).or_default();
            let (from, to) = (total * index / new, total * (index + 1) / new);
            let (first, end) = (from.max(*start), to.min(*start + handle.items));
            let skipped = first.saturating_sub(*start);
            *start += handle.items;
            let part = OperatorStateHandle {
                first: handle.first + skipped,
                items: end.saturating_sub(first),
                ..handle.clone()
            };
            (part.items > 0).then_some(part)
        }
    };
    snapshots.map(|one| one.operator.iter().filter_map(|handle| take(one.subtask, handle)).collect()).collect()
}

/// The operators of the graph that keep state and were not part of what the snapshot was taken of, quoted and separated
/// by commas: they start empty.
#[must_use]
pub fn new_operators(metadata: &Metadata, graph: &JobGraph) -> String {
    let known: BTreeSet<&OperatorUid> =
        metadata.vertices.iter().flat_map(|vertex| &vertex.operators).map(|operator| &operator.uid).collect();
    let keeps_state = |operator: &&OperatorInfo| matches!(operator.kind, OperatorKind::Source | OperatorKind::Keyed);
    let new = operators(graph).filter(keeps_state).map(|operator| &operator.uid).filter(|uid| !known.contains(uid));
    new.map(|uid| format!("'{uid}'")).collect::<Vec<_>>().join(", ")
}

fn check_all_matched(metadata: &Metadata, graph: &JobGraph) -> Result<(), RestoreError> {
    let in_graph: BTreeSet<&OperatorUid> = operators(graph).map(|operator| &operator.uid).collect();
    let has_state = |snapshot: &&OperatorSnapshot| !snapshot.is_empty();
    let unmatched: BTreeSet<&OperatorUid> = metadata
        .operators
        .iter()
        .filter(has_state)
        .map(|snapshot| &snapshot.uid)
        .filter(|uid| !in_graph.contains(uid))
        .collect();
    if unmatched.is_empty() {
        return Ok(());
    }
    let stateful = operators(graph)
        .filter(|operator| matches!(operator.kind, OperatorKind::Source | OperatorKind::Keyed))
        .map(|operator| &operator.uid)
        .collect();
    Err(RestoreError::UnmatchedState { unmatched: names(&unmatched), offered: names(&stateful) })
}

fn operators(graph: &JobGraph) -> impl Iterator<Item = &OperatorInfo> {
    graph.vertices.iter().flat_map(|vertex| &vertex.operators)
}

fn names(uids: &BTreeSet<impl Display>) -> String {
    if uids.is_empty() {
        return "none".to_owned();
    }
    uids.iter().map(|uid| format!("'{uid}'")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
