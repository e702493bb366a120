//! Who reads the batches that were in flight (B3): always a receiver, whoever saved them.
//!
//! Of a hash edge each subtask that may own a row of the old receiver's key groups gets the handle, and takes its own
//! rows, also where the number of key groups has changed. Of another edge the old receiver's number, modulo the
//! parallelism, is the new one's. Which operators an edge joins and how it spreads rows must be as they were.

use super::{Metadata, RestoreError, names};
use crate::graph::{JobGraph, Partitioning};
use crate::ids::{KeyGroupRange, SubtaskId, SubtaskIndex, VertexId};
use crate::key_group;
use crate::state::InFlightHandle;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn assign(
    metadata: &Metadata,
    graph: &JobGraph,
    directory: &str,
    allow_non_restored_state: bool,
) -> Result<BTreeMap<SubtaskId, Vec<InFlightHandle>>, RestoreError> {
    let mut assigned: BTreeMap<SubtaskId, Vec<InFlightHandle>> = BTreeMap::new();
    if metadata.in_flight.is_empty() {
        return Ok(assigned);
    }
    let by_name = (0..graph.edges.len()).filter_map(|edge| Some((graph.edge_name(edge)?, edge)));
    let by_name: BTreeMap<String, usize> = by_name.collect();
    let mut unmatched = BTreeSet::new();
    for handle in &metadata.in_flight {
        let Some(edge) = by_name.get(&handle.edge).map(|edge| &graph.edges[*edge]) else {
            unmatched.insert(&handle.edge);
            continue;
        };
        check_unchanged(handle, &edge.partitioning)?;
        let resolved = InFlightHandle { data: handle.data.resolve(directory), ..handle.clone() };
        for index in receivers(handle, metadata.max_parallelism, graph, edge.to) {
            assigned.entry(SubtaskId { vertex: edge.to, index }).or_default().push(resolved.clone());
        }
    }
    if unmatched.is_empty() || allow_non_restored_state {
        return Ok(assigned);
    }
    let offered = by_name.keys().collect();
    Err(RestoreError::UnmatchedInFlight { unmatched: names(&unmatched), offered: names(&offered) })
}

fn check_unchanged(handle: &InFlightHandle, partitioning: &Partitioning) -> Result<(), RestoreError> {
    if handle.partitioning == *partitioning {
        return Ok(());
    }
    let describe = |partitioning: &Partitioning| match partitioning {
        Partitioning::Forward => "one to one".to_owned(),
        Partitioning::Hash { keys } => format!("by columns {keys:?}"),
        Partitioning::Rebalance => "in turn".to_owned(),
        Partitioning::Broadcast => "to all".to_owned(),
    };
    let (found, expected) = (describe(&handle.partitioning), describe(partitioning));
    Err(RestoreError::EdgeChanged { edge: handle.edge.clone(), found, expected })
}

/// The subtasks of `to` that are to read these batches, which were saved when there were `key_groups` of them.
fn receivers(handle: &InFlightHandle, key_groups: u16, graph: &JobGraph, to: VertexId) -> Vec<SubtaskIndex> {
    let parallelism = graph.vertices.get(to.0 as usize).map_or(1, |vertex| vertex.parallelism.max(1));
    if !matches!(handle.partitioning, Partitioning::Hash { .. }) {
        return vec![SubtaskIndex(handle.to.0 % parallelism)];
    }
    let old = KeyGroupRange::of_subtask(handle.to, handle.receivers.max(1), key_groups);
    let old = key_group::rescaled(old, key_groups, graph.max_parallelism);
    let own = |index| KeyGroupRange::of_subtask(index, parallelism, graph.max_parallelism);
    (0..parallelism).map(SubtaskIndex).filter(|index| !own(*index).intersection(old).is_empty()).collect()
}
