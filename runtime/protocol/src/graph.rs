//! The shape of a job: what JobManager, planner and status know of a program without running it (design §2).
//!
//! Every process builds the same graph from the same program; only its fingerprint travels.

use crate::ids::{OperatorUid, VertexId};
use serde::{Deserialize, Serialize};

/// Vertices in topological order and the edges between them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobGraph {
    /// `vertices[i].id == VertexId(i)`.
    pub vertices: Vec<Vertex>,
    /// Edges, ordered by (from, to, input); the position of an edge is its number on the wire.
    pub edges: Vec<Edge>,
    /// Number of key groups.
    pub max_parallelism: u16,
}

/// A chain of operators that runs as one task per subtask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vertex {
    /// Its index.
    pub id: VertexId,
    /// What a person calls it: the chained operators joined by ` -> `.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// The operators of the chain, first to last; a source only as the first, a sink only as the last.
    pub operators: Vec<OperatorInfo>,
}

/// One operator of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorInfo {
    /// Stable id (design §9).
    pub uid: OperatorUid,
    /// What it is.
    pub kind: OperatorKind,
    /// What it does, for people: `GroupAggregate[app_id; COUNT(*)]`.
    pub description: String,
}

/// What an operator is to checkpoints and restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperatorKind {
    /// Has splits with positions.
    Source,
    /// Has no state.
    Stateless,
    /// Has state by key group.
    Keyed,
    /// Ends a chain.
    Sink,
    /// Ends a chain with transactions: their handles are part of checkpoints (S1).
    TransactionalSink,
}

/// How rows get from one vertex to the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// The producer.
    pub from: VertexId,
    /// The consumer.
    pub to: VertexId,
    /// The rule.
    pub partitioning: Partitioning,
    /// Which input of the consumer's first operator: 0 the first (of a join the left one), 1 the second. Several edges to
    /// one input are a union.
    #[serde(default, skip_serializing_if = "is_first")]
    pub input: u8,
}

/// A job whose operators have one input each keeps its fingerprint.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_first(input: &u8) -> bool {
    *input == 0
}

/// The rule that picks the receiving subtask of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Partitioning {
    /// Subtask i to subtask i; both sides have the same parallelism.
    Forward,
    /// By the key group of these columns (positions in the producer's schema).
    Hash {
        /// Key columns in order.
        keys: Vec<usize>,
    },
    /// In turn.
    Rebalance,
    /// To all.
    Broadcast,
}

impl JobGraph {
    /// A fixed digest of the shape, compared when a TaskManager registers: 16 hex digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&text))
    }

    /// What an edge is called in snapshots, whatever its number and the parallelism: the last operator of the producer
    /// and the first of the consumer, at which input if it is not the first, and which of the edges of that name it is if
    /// there are several.
    #[must_use]
    pub fn edge_name(&self, edge: usize) -> Option<String> {
        let name = |edge: &Edge| {
            let from = self.vertices.get(edge.from.0 as usize)?.operators.last()?;
            let to = self.vertices.get(edge.to.0 as usize)?.operators.first()?;
            let input = if edge.input == 0 { String::new() } else { format!(", input {}", edge.input) };
            Some(format!("{} -> {}{input}", from.uid, to.uid))
        };
        let own = name(self.edges.get(edge)?)?;
        let before = self.edges[..edge].iter().filter(|other| name(other).as_ref() == Some(&own)).count();
        Some(if before == 0 { own } else { format!("{own} #{}", before + 1) })
    }

    /// The largest parallelism: how many slots the job needs, since subtasks of all vertices share slots.
    #[must_use]
    pub fn slots_needed(&self) -> u32 {
        self.vertices.iter().map(|vertex| vertex.parallelism).max().unwrap_or(0)
    }

    /// Number of subtasks over all vertices.
    #[must_use]
    pub fn subtasks(&self) -> u32 {
        self.vertices.iter().map(|vertex| vertex.parallelism).sum()
    }

    /// The sinks whose transactions checkpoints hold.
    pub fn transactional_sinks(&self) -> impl Iterator<Item = &OperatorUid> {
        let operators = self.vertices.iter().flat_map(|vertex| &vertex.operators);
        operators.filter(|operator| operator.kind == OperatorKind::TransactionalSink).map(|operator| &operator.uid)
    }

    /// The vertex of an operator.
    #[must_use]
    pub fn vertex_of(&self, uid: &OperatorUid) -> Option<VertexId> {
        let holds = |vertex: &Vertex| vertex.operators.iter().any(|operator| operator.uid == *uid);
        u32::try_from(self.vertices.iter().position(holds)?).ok().map(VertexId)
    }

    /// Whether this vertex begins with a source.
    #[must_use]
    pub fn is_source(&self, vertex: VertexId) -> bool {
        self.vertices
            .get(vertex.0 as usize)
            .and_then(|vertex| vertex.operators.first())
            .is_some_and(|operator| operator.kind == OperatorKind::Source)
    }
}
