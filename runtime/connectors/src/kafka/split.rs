//! Splits: a partition of a topic, its position, and which subtask reads it.

use serde::{Deserialize, Serialize};
use sluice_engine::error::TaskError;
use sluice_protocol::SubtaskIndex;
use sluice_protocol::state::SplitState;

/// The state of a split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SplitPosition {
    /// The topic.
    pub(super) topic: String,
    /// The partition.
    pub(super) partition: i32,
    /// The next offset to read: all records below it were consumed.
    pub(super) offset: i64,
    /// The first offset that is not read any more, when the source is bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<i64>,
}

/// A split that is about to be read.
#[derive(Debug, Clone)]
pub(super) struct NewSplit {
    /// Where it begins.
    pub(super) position: SplitPosition,
    /// The end of the partition before reading began.
    pub(super) latest: i64,
}

impl SplitPosition {
    /// `test-0`.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.topic, self.partition)
    }

    /// Whether everything up to the end was read.
    pub(super) fn is_finished(&self) -> bool {
        self.end.is_some_and(|end| self.offset >= end)
    }

    /// For a checkpoint.
    pub(super) fn to_state(&self) -> Result<SplitState, TaskError> {
        let state = serde_json::to_value(self)
            .map_err(|error| TaskError::Internal(format!("the position of a split cannot be written: {error}")))?;
        Ok(SplitState { split: self.name(), state })
    }

    /// From a checkpoint.
    pub(super) fn from_state(stored: &SplitState) -> Result<Self, TaskError> {
        let position: Self = serde_json::from_value(stored.state.clone()).map_err(|error| {
            TaskError::IncompatibleState(format!(
                "the state of split '{}' is {}, which is no position in a Kafka topic: {error}. Expected \
                 {{\"topic\": …, \"partition\": …, \"offset\": …}}. Was the table's connector changed? Give the source \
                 another uid, or restore without it",
                stored.split, stored.state
            ))
        })?;
        if position.name() == stored.split {
            return Ok(position);
        }
        Err(TaskError::IncompatibleState(format!(
            "the state of split '{}' is a position in '{}'; the checkpoint is damaged or was edited",
            stored.split,
            position.name()
        )))
    }
}

/// `a-b-7` as (`a-b`, 7).
pub(super) fn parse_name(split: &str) -> Option<(&str, i32)> {
    let (topic, partition) = split.rsplit_once('-')?;
    Some((topic, partition.parse().ok()?))
}

/// The subtask that reads a partition: `(((hash(topic) * 31) & 0x7fffffff) + partition) % parallelism`, as Flink's
/// `KafkaSourceEnumerator.getSplitOwner` has it, `hash` being that of a Java string.
pub(super) fn owner(topic: &str, partition: i32, parallelism: u32) -> SubtaskIndex {
    let parallelism = parallelism.max(1);
    let start = java_hash(topic).wrapping_mul(31).cast_unsigned() & 0x7fff_ffff;
    SubtaskIndex((start % parallelism).wrapping_add(partition.cast_unsigned()) % parallelism)
}

/// `String.hashCode()` of Java: over UTF-16 code units.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}
