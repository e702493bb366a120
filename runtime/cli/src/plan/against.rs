//! What of a snapshot a changed program keeps: by the ids of operators alone (design §9), without reading any state.

use sluice_protocol::OperatorUid;
use sluice_protocol::graph::{JobGraph, OperatorInfo, OperatorKind};
use sluice_protocol::metadata::Metadata;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A line per operator with state: kept, new or dropped.
pub(super) fn compare(metadata: &Metadata, graph: &JobGraph) -> String {
    let stored = metadata.operators.iter().filter(|snapshot| !snapshot.is_empty());
    let stored: BTreeSet<&OperatorUid> = stored.map(|snapshot| &snapshot.uid).collect();
    let operators: Vec<&OperatorInfo> = graph.vertices.iter().flat_map(|vertex| &vertex.operators).collect();
    let mut text = String::new();
    for operator in &operators {
        let keeps_state = matches!(operator.kind, OperatorKind::Source | OperatorKind::Keyed);
        let _ = match (stored.contains(&operator.uid), keeps_state) {
            (true, _) => writeln!(text, "  kept     {}", operator.uid),
            (false, true) => writeln!(text, "  new      {} (starts empty)", operator.uid),
            (false, false) => Ok(()),
        };
    }
    for uid in stored.into_iter().filter(|uid| operators.iter().all(|operator| operator.uid != **uid)) {
        let _ = writeln!(text, "  dropped  {uid}");
    }
    text
}
