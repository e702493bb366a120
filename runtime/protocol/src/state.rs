//! Handles of state: what a subtask acknowledges, `_metadata` holds, and a restore hands out (design §4).
//!
//! Every object is named by a path relative to the directory of the `_metadata` that lists it, so a directory
//! can be copied elsewhere and still be read. A [`StateData::File`] travels to TaskManagers with an absolute
//! URI instead; [`StateData::resolve`] makes one of the other.

use crate::graph::Partitioning;
use crate::ids::{CheckpointId, KeyGroupRange, OperatorUid, SubtaskIndex};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// State below this many bytes travels in the acknowledgement and lives in `_metadata`.
pub const INLINE_LIMIT: usize = 20 * 1024;

/// Where the bytes of a piece of state are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "in")]
pub enum StateData {
    /// In the handle itself.
    #[serde(rename = "metadata")]
    Inline {
        /// The bytes, in base64 when written as JSON.
        #[serde(with = "base64_bytes")]
        bytes: Vec<u8>,
    },
    /// In an object of their own.
    File {
        /// Relative to the `_metadata`'s directory, or an absolute URI.
        path: String,
        /// Size in bytes.
        size: u64,
        /// Of the bytes; none in snapshots of the first builds.
        #[serde(rename = "xxh3", default, skip_serializing_if = "Option::is_none")]
        checksum: Option<Checksum>,
    },
}

/// What tells bytes from others of the same length: XXH3 with 64 bits and seed 0, written as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Checksum(pub u64);

impl Checksum {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(bytes))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> Self {
        checksum.to_string()
    }
}

impl TryFrom<String> for Checksum {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = Some(text.as_str()).filter(|text| text.len() == 16);
        let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.map(Self).ok_or_else(|| format!("'{text}' is no checksum: expected 16 hexadecimal digits"))
    }
}

impl StateData {
    /// A file with these bytes under this path.
    #[must_use]
    pub fn file(path: String, bytes: &[u8]) -> Self {
        Self::File { path, size: bytes.len() as u64, checksum: Some(Checksum::of(bytes)) }
    }

    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Inline { bytes } => bytes.len() as u64,
            Self::File { size, .. } => *size,
        }
    }

    /// The same data with its path made absolute below `directory` (a URI without a trailing slash).
    #[must_use]
    pub fn resolve(&self, directory: &str) -> Self {
        match self {
            Self::File { path, size, checksum } if !path.contains("://") => {
                let mut base = directory.trim_end_matches('/');
                let mut rest = path.as_str();
                while let Some(shorter) = rest.strip_prefix("../") {
                    base = base.rsplit_once('/').map_or(base, |(parent, _)| parent);
                    rest = shorter;
                }
                Self::File { path: format!("{base}/{rest}"), size: *size, checksum: *checksum }
            }
            other => other.clone(),
        }
    }
}

/// What the rows of a file of keyed state are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KeyedStateKind {
    /// Each key of its key groups once, unless another full file of the same subtask holds it.
    #[default]
    Full,
    /// Keys that changed since the files before it: with their new values, or deleted.
    Delta,
}

impl KeyedStateKind {
    fn is_full(&self) -> bool {
        *self == Self::Full
    }
}

/// A file of keyed state of one operator subtask: Parquet, sorted by key group, its first column `key_group`
/// (UInt16). A snapshot lists the files of a state in the order in which they are to be read: first the full ones,
/// whose keys differ, then deltas from the oldest on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyedStateHandle {
    /// Name of the state within the operator.
    pub name: String,
    /// Key groups in the file.
    pub key_groups: KeyGroupRange,
    /// Rows in the file.
    pub rows: u64,
    /// What the rows are.
    #[serde(default, skip_serializing_if = "KeyedStateKind::is_full")]
    pub kind: KeyedStateKind,
    /// The bytes.
    pub data: StateData,
}

/// Who gets which items of an operator's list at a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Redistribution {
    /// Each item goes to one subtask; at the old parallelism each subtask gets its own items back.
    Split,
    /// Each subtask gets all items.
    Union,
    /// All subtasks held the same items; each gets them once.
    Broadcast,
}

/// A list of one operator subtask that is not divided by key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorStateHandle {
    /// Name of the state within the operator.
    pub name: String,
    /// Who gets its items.
    pub redistribution: Redistribution,
    /// Position of the first item that is meant: 0, but for a part that a restore hands out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first: u64,
    /// How many items are meant, from the first on.
    pub items: u64,
    /// A JSON array of the items.
    pub data: StateData,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_unknown(number: &u32) -> bool {
    *number == 0
}

/// The state of one source split: readable in `_metadata`, so that people see where a restore reads on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SplitState {
    /// The split's id, such as `test-0`.
    pub split: String,
    /// Position, watermark, idle, finished: the source's own fields (W1).
    pub state: serde_json::Value,
}

/// The handle of one transaction of a sink that is staged and not confirmed to be committed (S1, K3): few and small.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Committable {
    /// Of the sink's own format of the bytes.
    pub version: u32,
    /// The checkpoint with which it was staged; later ones carry it until its commit is confirmed.
    pub checkpoint: CheckpointId,
    /// When what is staged is gone unless it is committed before, by the clock of day of the JobManager of then, which counts
    /// suspension (S4); `None`: it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// What the sink's committer needs to find the transaction.
    #[serde(with = "base64_bytes")]
    pub bytes: Vec<u8>,
}

/// What one operator of one subtask stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorSnapshot {
    /// Whose state.
    pub uid: OperatorUid,
    /// Which subtask stored it.
    pub subtask: SubtaskIndex,
    /// State by key group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keyed: Vec<KeyedStateHandle>,
    /// Lists and broadcast state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operator: Vec<OperatorStateHandle>,
    /// Source splits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<SplitState>,
    /// Transactions of a sink that are staged and not confirmed to be committed. No task gets them at a restore: the
    /// JobManager settles them (S5).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub committables: Vec<Committable>,
}

impl OperatorSnapshot {
    /// Whether it holds no state that a task restores.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keyed.is_empty() && self.operator.is_empty() && self.splits.is_empty()
    }

    /// Where the bytes of all its pieces are.
    pub fn data(&self) -> impl Iterator<Item = &StateData> {
        self.keyed.iter().map(|handle| &handle.data).chain(self.operator.iter().map(|handle| &handle.data))
    }
}

/// Batches of one channel that an unaligned barrier overtook (B2, B3), in the format of `sluice_engine::in_flight`.
///
/// A channel may have several: what had arrived is saved by the receiver, what had not left by the sender, and what was
/// restored and not read yet is saved again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InFlightHandle {
    /// The edge, by a name that another parallelism does not change ([`crate::graph::JobGraph::edge_name`]).
    pub edge: String,
    /// How the edge spreads rows.
    pub partitioning: Partitioning,
    /// The producer's subtask.
    pub from: SubtaskIndex,
    /// The consumer's subtask.
    pub to: SubtaskIndex,
    /// Number of the consumer's subtasks.
    pub receivers: u32,
    /// Number of the producer's subtasks; 0: not known, as of older snapshots.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub producers: u32,
    /// How many restores the batches have waited through: older ones go first.
    pub age: u32,
    /// Orders the handles of one channel and age.
    pub first: u64,
    /// How many batches.
    pub batches: u64,
    /// Rows in the batches.
    pub rows: u64,
    /// Where they begin in the data, in bytes: several channels may share a file.
    pub offset: u64,
    /// Their length in bytes.
    pub length: u64,
    /// The bytes.
    pub data: StateData,
}

/// What one subtask acknowledges, and what it is given at a restore: the state of its chain's operators, and what was
/// in flight.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubtaskState {
    /// In the order of the chain; operators without state are left out. At a restore, several snapshots of one
    /// uid may be given, from subtasks that the receiving one takes over.
    pub operators: Vec<OperatorSnapshot>,
    /// Batches of its input and output edges; at a restore of its input edges only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_flight: Vec<InFlightHandle>,
    /// At a restore, where the job has another number of key groups than the snapshot: the snapshot's, by which the rows
    /// in files of keyed state are divided. Handles name the job's key groups all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divided_into: Option<u16>,
}

mod base64_bytes {
    //! Bytes as base64 text.
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}
