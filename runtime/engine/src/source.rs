//! Sources: read splits, remember positions.

use crate::batch::Batch;
use crate::error::TaskError;
use crate::event_time::WatermarkStrategy;
use crate::operator::{Clock, OperatorContext, RestoredState, Waker};
use arrow::datatypes::SchemaRef;
use sluice_protocol::state::SplitState;
use sluice_protocol::{CheckpointId, SubtaskIndex};

/// What a poll brought.
#[derive(Debug)]
pub enum SourcePoll {
    /// Rows, not empty.
    Batch(Batch),
    /// Nothing now; the waker will be called when there may be more.
    Pending,
    /// All splits are read to their end, and there will be no new ones.
    Finished,
}

/// News of the splits of a source, for their watermarks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitChange {
    /// The subtask is to read this split, from the beginning or as restored.
    Added {
        /// Its id.
        split: String,
        /// Whether it may have nothing for a while, and others need not wait for it then (W2).
        may_idle: bool,
    },
    /// It is read to its end.
    Finished {
        /// Its id.
        split: String,
    },
}

/// What a source is opened with.
#[derive(Clone)]
pub struct SourceContext {
    /// Where it stands.
    pub operator: OperatorContext,
    /// Wakes the task.
    pub waker: Waker,
    /// The time.
    pub clock: Clock,
    /// Whether rows of one poll are to be of one split, for its watermark.
    pub by_split: bool,
}

/// How far behind the end of a split its reader is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitLag {
    /// The split's id, such as `test-0`.
    pub split: String,
    /// Records in it that were not handed out yet.
    pub records: u64,
}

/// One subtask's reader.
pub trait Source: Send {
    /// Called once before any poll.
    ///
    /// # Errors
    /// When the counterpart cannot be reached or the state does not fit.
    fn open(&mut self, context: SourceContext, state: RestoredState) -> Result<(), TaskError>;

    /// The next rows, about `max_rows` at most. Never blocks for long (some milliseconds).
    ///
    /// # Errors
    /// When reading fails.
    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError>;

    /// News of its splits since the last call, first of all those that it was opened with; asked for after it was opened and
    /// after each poll. A split is new at the latest with its first rows, and finished at the earliest with its last.
    /// `None`: it has no splits of which to tell, and its rows have one watermark.
    fn take_split_changes(&mut self) -> Option<Vec<SplitChange>> {
        None
    }

    /// Of which split the rows of the last poll were. Where watermarks are wanted ([`SourceContext::by_split`]) they are of
    /// one, and as many polls as there are splits give rows of each that has any.
    fn polled_split(&self) -> Option<&str> {
        None
    }

    /// Nothing of these splits is to be read until the next call, and all others are; called when that changes. What was fetched
    /// of them already is kept. `false`: it cannot hold splits back by themselves, and goes on as before.
    fn hold_splits(&mut self, held: &[&str]) -> bool {
        let _ = held;
        false
    }

    /// The state of every split of this subtask: all rows handed out so far are before it, none after.
    ///
    /// # Errors
    /// The checkpoint is declined.
    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError>;

    /// Records that could not be read and were passed over since the source was opened.
    fn malformed_records(&self) -> u64 {
        0
    }

    /// How far behind the end of its splits it is, as far as it knows; empty where there is no such thing. Asked about once
    /// a second: cheap, and asks nobody.
    fn lag(&self) -> Vec<SplitLag> {
        Vec::new()
    }

    /// A checkpoint is complete: a place to commit offsets for others to see.
    fn checkpoint_completed(&mut self, checkpoint: CheckpointId) {
        let _ = checkpoint;
    }
}

/// Which rows a source hands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProducedKinds {
    /// Only inserts.
    InsertOnly,
    /// All four; of an update the row before and the row after, one right behind the other in one batch.
    All,
}

/// Makes the readers of a source, and says which subtask reads which split.
pub trait SourceFactory: Send + Sync {
    /// A new reader.
    ///
    /// # Errors
    /// When the options are wrong.
    fn create(&self) -> Result<Box<dyn Source>, TaskError>;

    /// The schema of its rows.
    fn schema(&self) -> SchemaRef;

    /// The subtask that owns a split: a fixed function, so that a restore under another parallelism needs no
    /// coordination (each reader discovers the splits it owns).
    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex;

    /// Which rows it hands out.
    fn produced_kinds(&self) -> ProducedKinds {
        ProducedKinds::InsertOnly
    }

    /// How its rows give watermarks; `None`: not at all.
    fn watermarks(&self) -> Option<&WatermarkStrategy> {
        None
    }

    /// Bytes of records that one reader holds back at most before the task takes them.
    fn buffered_bytes(&self) -> u64 {
        0
    }

    /// What a plan should say of it to people.
    fn note(&self) -> Option<&'static str> {
        None
    }
}
