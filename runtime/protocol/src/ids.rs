//! Newtypes for every identity in the system (docs/protocol.md, N1 and N2).
//!
//! They are plain data; callers can rely on `Display` being the form that paths, logs and metrics use.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The one after this.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// One JobManager process of a job, numbered by the controller (N2). The first is 1.
    Generation(u64)
);
number!(
    /// One run of the tasks within a generation (N2). The first is 1.
    Attempt(u32)
);
number!(
    /// A checkpoint of a job (K2). The first is 1; 0 stands for none.
    CheckpointId(u64)
);
number!(
    /// A vertex of the job graph: its index in topological order, from 0.
    VertexId(u32)
);
number!(
    /// One parallel instance of a vertex, from 0.
    SubtaskIndex(u32)
);
number!(
    /// One of the job's `maxParallelism` key groups, from 0 (F3).
    KeyGroup(u16)
);
text!(
    /// The random identity of one process (N2).
    ProcessId
);
text!(
    /// The random identity of one ledger append (L1).
    AppendId
);
text!(
    /// The stable identity of an operator across restarts and upgrades.
    OperatorUid
);
text!(
    /// A TaskManager process: its pod's name, or one made up locally.
    TaskManagerId
);

/// A job: namespace, name and the uid of the StreamJob that defined it (N1).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId {
    /// Kubernetes namespace; `default` for a local run.
    pub namespace: String,
    /// The StreamJob's name.
    pub name: String,
    /// The StreamJob's uid; locally an id kept beside the checkpoints.
    pub uid: String,
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}-{}", self.namespace, self.name, self.uid)
    }
}

/// One run of the tasks: what every frame, acknowledgement and report carries (N2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Run {
    /// The JobManager's generation.
    pub generation: Generation,
    /// The attempt within it.
    pub attempt: Attempt,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.attempt)
    }
}

/// One subtask: a parallel instance of a vertex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SubtaskId {
    /// The vertex.
    pub vertex: VertexId,
    /// Its instance.
    pub index: SubtaskIndex,
}

impl fmt::Display for SubtaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vertex, self.index)
    }
}

/// A half-open range of key groups: `start` inclusive, `end` exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyGroupRange {
    /// First key group.
    pub start: u16,
    /// One past the last.
    pub end: u16,
}

impl KeyGroupRange {
    /// The key groups of one subtask: `[index * max / p, (index + 1) * max / p)`, rounded up as Flink does,
    /// so that [`crate::key_group::owner`] is its inverse.
    #[must_use]
    pub fn of_subtask(index: SubtaskIndex, parallelism: u32, max_parallelism: u16) -> Self {
        let max = u64::from(max_parallelism);
        let parallelism = u64::from(parallelism.max(1));
        let bound = |i: u64| -> u16 { u16::try_from((i * max).div_ceil(parallelism)).unwrap_or(max_parallelism) };
        Self { start: bound(u64::from(index.0)), end: bound(u64::from(index.0) + 1) }
    }

    /// Whether the range holds this key group.
    #[must_use]
    pub fn contains(self, group: KeyGroup) -> bool {
        (self.start..self.end).contains(&group.0)
    }

    /// How many key groups it holds.
    #[must_use]
    pub fn len(self) -> usize {
        usize::from(self.end.saturating_sub(self.start))
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The key groups in both; empty ranges where there are none.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }
}

impl fmt::Display for KeyGroupRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}
