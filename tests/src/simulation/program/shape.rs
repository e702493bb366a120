//! The shape of a job: which vertices there are, how rows get from one to the next, with how many subtasks each.
//!
//! ```text
//! events-0..2 ──hash──────────────────▶ counts ──hash──▶ histogram ─▶ view
//!         └─rebalance─▶ relay ──hash──▶   ▲ (or counts ─▶ view)
//! control ──────────broadcast─────────────┘
//! events-0..2 ──in turn──▶ archive, which commits with checkpoints
//! events-0..2 ──hash──▶ windows ─▶ results
//! ```
//!
//! Each part but one source and `counts` is there or not, as the seed decides. A shape stays the same through a job's
//! life; its [`Layout`] does not.

use super::time::LATENESS;
use super::windows::{RESULTS, WINDOWS, Windows};
use fastrand::Rng;
use sluice_protocol::VertexId;
use sluice_protocol::graph::{Edge, JobGraph, OperatorInfo, OperatorKind, Partitioning, Vertex};

/// Number of key groups, where it does not change.
pub const KEY_GROUPS: u16 = 12;

/// At most so many sources of events.
pub const SOURCES: usize = 3;

/// Splits of different sources have numbers that are so far apart.
pub const SOURCE_STEP: u32 = 16;

/// The split of the control source.
pub const CONTROL_SPLIT: u32 = SOURCES as u32 * SOURCE_STEP;

/// Subtasks of every vertex that there may be, by [`Role::slot`].
pub type Parallelism = [u32; SOURCES + 6];

/// How a revision spreads and keeps what it works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Subtasks of each vertex.
    pub subtasks: Parallelism,
    /// Number of key groups.
    pub key_groups: u16,
    /// Whether keyed state lies on disk.
    pub disk: bool,
}

impl Layout {
    /// So many subtasks of each vertex, in memory.
    #[must_use]
    pub const fn alike(subtasks: u32) -> Self {
        Self { subtasks: [subtasks; SOURCES + 6], key_groups: KEY_GROUPS, disk: false }
    }
}

/// What a vertex is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A source of events.
    Source(usize),
    /// A source whose rows every subtask of `counts` sees, on an input of their own.
    Control,
    /// Passes rows on, in another order.
    Relay,
    /// Counts and sums by key.
    Counts,
    /// Counts how many keys have the same count.
    Histogram,
    /// Keeps all events, each once.
    Archive,
    /// Counts and sums by key and window.
    Windows,
}

impl Role {
    /// Its place in [`Parallelism`].
    #[must_use]
    pub const fn slot(self) -> usize {
        match self {
            Self::Source(source) => source,
            Self::Control => SOURCES,
            Self::Relay => SOURCES + 1,
            Self::Counts => SOURCES + 2,
            Self::Histogram => SOURCES + 3,
            Self::Archive => SOURCES + 4,
            Self::Windows => SOURCES + 5,
        }
    }
}

/// Which vertices and edges a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// Splits of each source; zero: there is none.
    pub splits: [u32; SOURCES],
    /// Which sources send their rows by way of the relay.
    pub relayed: [bool; SOURCES],
    /// Whether there is a control source.
    pub control: bool,
    /// Whether the counts are counted.
    pub histogram: bool,
    /// Whether there is an archive.
    pub archive: bool,
    /// The windows, if there are any.
    pub windows: Option<Windows>,
}

impl Shape {
    /// The shape of a seed. Where rows may count twice nothing is derived from a count: a row that is taken back may
    /// never have been given.
    pub fn new(rng: &mut Rng, splits: u32, at_least_once: bool) -> Self {
        let mut shape = Self { splits: [splits, 0, 0], ..Self::default() };
        if rng.u32(..10) < 3 {
            return shape;
        }
        for source in 1..rng.usize(1..=SOURCES) {
            shape.splits[source] = rng.u32(1..=2);
            shape.splits[0] = shape.splits[0].min(2);
        }
        for source in 0..SOURCES {
            shape.relayed[source] = rng.u32(..4) == 0;
        }
        shape.control = rng.u32(..3) == 0;
        shape.histogram = rng.u32(..3) == 0 && !at_least_once;
        shape
    }

    /// Subtasks of each vertex: alike in a third of all worlds.
    pub fn parallelism(rng: &mut Rng, common: u32) -> Parallelism {
        let is_uniform = rng.u32(..3) == 0;
        std::array::from_fn(|_| if is_uniform { common } else { rng.u32(1..=3) })
    }

    fn has_source(&self, source: usize) -> bool {
        self.splits[source] > 0
    }

    /// Whether the rows of this source go by way of the relay.
    #[must_use]
    pub fn is_relayed(&self, source: usize) -> bool {
        self.has_source(source) && self.relayed[source]
    }

    /// Whether there is a relay: behind it rows of one split come in any order.
    #[must_use]
    pub fn has_relay(&self) -> bool {
        (0..SOURCES).any(|source| self.is_relayed(source))
    }

    /// The vertices in the order of the graph.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        let sources = (0..SOURCES).filter(|source| self.has_source(*source)).map(Role::Source);
        let optional = [(self.control, Role::Control), (self.has_relay(), Role::Relay)];
        let optional = optional.into_iter().filter(|(is_there, _)| *is_there).map(|(_, role)| role);
        let histogram = self.histogram.then_some(Role::Histogram);
        let archive = self.archive.then_some(Role::Archive);
        let windows = self.windows.map(|_| Role::Windows);
        sources.chain(optional).chain([Role::Counts]).chain(histogram).chain(archive).chain(windows).collect()
    }

    /// The graph of a revision.
    #[must_use]
    pub fn graph(&self, layout: &Layout) -> JobGraph {
        let roles = self.roles();
        let vertices = roles.iter().zip(0..).map(|(role, id)| {
            let operators = self.operators(*role);
            let name = operators[0].description.clone();
            Vertex { id: VertexId(id), name, parallelism: layout.subtasks[role.slot()], operators }
        });
        let ways = roles.iter().zip(0..).flat_map(|(role, from)| {
            let by_key = Partitioning::Hash { keys: vec![0] };
            let beside = [(Role::Archive, Partitioning::Rebalance), (Role::Windows, by_key)];
            let beside = beside.into_iter().filter(|_| matches!(role, Role::Source(_)));
            self.edge(*role).into_iter().chain(beside).map(move |way| (role, from, way))
        });
        let edges = ways.filter_map(|(role, from, (to, partitioning))| {
            let to = roles.iter().zip(0..).find(|(role, _)| **role == to).map(|(_, to)| VertexId(to))?;
            Some(Edge { from: VertexId(from), to, partitioning, input: u8::from(*role == Role::Control) })
        });
        JobGraph { vertices: vertices.collect(), edges: edges.collect(), max_parallelism: layout.key_groups }
    }

    fn edge(&self, from: Role) -> Option<(Role, Partitioning)> {
        let hash = |key| Partitioning::Hash { keys: vec![key] };
        Some(match from {
            Role::Source(source) if self.is_relayed(source) => (Role::Relay, Partitioning::Rebalance),
            Role::Source(_) | Role::Relay => (Role::Counts, hash(0)),
            Role::Control => (Role::Counts, Partitioning::Broadcast),
            // By the count.
            Role::Counts => (Role::Histogram, hash(1)),
            Role::Histogram | Role::Archive | Role::Windows => return None,
        })
    }

    fn operators(&self, role: Role) -> Vec<OperatorInfo> {
        let operator = |uid: &str, kind| OperatorInfo { uid: uid.into(), kind, description: uid.to_owned() };
        let stateless = |uid: &str| operator(uid, OperatorKind::Stateless);
        let sink = operator("view", OperatorKind::Sink);
        match role {
            Role::Source(source) => vec![operator(&format!("events-{source}"), OperatorKind::Source)],
            Role::Control => vec![operator("control", OperatorKind::Source)],
            Role::Relay => vec![stateless(RELAYED)],
            Role::Counts => {
                let rules = self.control.then(|| stateless(RULES));
                let order = (!self.has_relay()).then(|| stateless("order"));
                let counts = operator(COUNTS, OperatorKind::Keyed);
                let sink = (!self.histogram).then_some(sink);
                rules
                    .into_iter()
                    .chain([stateless(LATENESS), stateless(TALLY)])
                    .chain(order)
                    .chain([counts])
                    .chain(sink)
                    .collect()
            }
            Role::Histogram => vec![operator(HISTOGRAM, OperatorKind::Keyed), sink],
            Role::Archive => vec![operator(ARCHIVE, OperatorKind::TransactionalSink)],
            Role::Windows => vec![operator(WINDOWS, OperatorKind::Keyed), operator(RESULTS, OperatorKind::Sink)],
        }
    }
}

/// The operator that keeps broadcast state.
pub const RULES: &str = "rules";

/// The operators that keep lists: before the counts, and in the relay.
pub const TALLY: &str = "tally";
/// See [`TALLY`].
pub const RELAYED: &str = "relayed";

/// The sink that commits with checkpoints.
pub const ARCHIVE: &str = "archive";

/// The keyed operators.
pub const COUNTS: &str = "counts";
/// See [`COUNTS`].
pub const HISTOGRAM: &str = "histogram";
