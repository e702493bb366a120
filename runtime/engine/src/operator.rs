//! Operators: synchronous, they see batches and a [`Collector`], never a socket or the JobManager (design §3).

use crate::batch::Batch;
use crate::error::TaskError;
use crate::state::{KeyedTable, StateBackend, StateBytes, TableLayout};
use arrow::datatypes::SchemaRef;
use sluice_protocol::state::{Committable, KeyedStateHandle, KeyedStateKind, Redistribution, SplitState};
use sluice_protocol::{CheckpointId, JobId, KeyGroupRange, OperatorUid, Run, SubtaskIndex, Timestamp};
use std::fmt;
use std::sync::Arc;

/// Takes what an operator emits. Never blocks; the task loop stops feeding a chain whose output is full (B4).
pub trait Collector {
    /// Emits rows.
    fn collect(&mut self, batch: Batch);
}

/// Where an operator stands.
#[derive(Debug, Clone)]
pub struct OperatorContext {
    /// Its uid.
    pub uid: OperatorUid,
    /// Which subtask.
    pub subtask: SubtaskIndex,
    /// Of how many.
    pub parallelism: u32,
    /// The key groups of the subtask.
    pub key_groups: KeyGroupRange,
    /// Number of key groups of the job.
    pub max_parallelism: u16,
    /// Where keyed state lives.
    pub state_backend: StateBackend,
}

impl OperatorContext {
    /// An empty table of keyed state in the job's state backend. `name` is the state's within the operator.
    ///
    /// # Errors
    /// When the backend cannot make it.
    pub fn keyed_table(&self, name: &str, layout: Arc<TableLayout>) -> Result<Box<dyn KeyedTable>, TaskError> {
        self.state_backend.create(self, name, layout)
    }
}

/// Whose task it is: what tells the transactions of one attempt from those of any other (S3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskIdentity {
    /// The job.
    pub job: JobId,
    /// The generation and attempt.
    pub run: Run,
}

impl Default for TaskIdentity {
    /// Of a job that nobody else has: for tests.
    fn default() -> Self {
        let job = JobId { namespace: "default".to_owned(), name: "job".to_owned(), uid: "0".to_owned() };
        Self { job, run: Run::default() }
    }
}

/// Keyed state as read back: a file as [`KeyedStateHandle`] describes. It may hold key groups that belong to other
/// subtasks; the operator takes its own.
#[derive(Debug, Clone)]
pub struct RestoredKeyed {
    /// Name of the state within the operator.
    pub name: String,
    /// What its rows are.
    pub kind: KeyedStateKind,
    /// Number of key groups by which its rows are divided, where it is not the job's.
    pub divided_into: Option<u16>,
    /// The file.
    pub bytes: StateBytes,
}

/// A list as read back, as far as this subtask gets it.
#[derive(Debug, Clone)]
pub struct RestoredList {
    /// Name of the state within the operator.
    pub name: String,
    /// How the items came here.
    pub redistribution: Redistribution,
    /// The items.
    pub items: Vec<serde_json::Value>,
}

/// What one operator is given at a restore; empty when it starts empty.
#[derive(Debug, Clone, Default)]
pub struct RestoredState {
    /// Whether the snapshot holds anything of this operator, of whichever subtask: a source that owns no splits then knows
    /// whether it is new itself.
    pub restored: bool,
    /// Keyed state from every old subtask whose key groups overlap, of each in the order of its snapshot.
    pub keyed: Vec<RestoredKeyed>,
    /// Lists and broadcast state: of one name there may be several pieces.
    pub operator: Vec<RestoredList>,
    /// All splits of the operator in the checkpoint that this subtask owns.
    pub splits: Vec<SplitState>,
}

/// A file of keyed state to be stored.
#[derive(Debug, Clone)]
pub struct KeyedPiece {
    /// Name of the state within the operator.
    pub name: String,
    /// Key groups in the file.
    pub key_groups: KeyGroupRange,
    /// Rows in the file.
    pub rows: u64,
    /// What the rows are.
    pub kind: KeyedStateKind,
    /// Bytes of the files that it builds on, as far as they lie in `_metadata`.
    pub inline_before: u64,
    /// The Parquet file.
    pub bytes: Vec<u8>,
}

/// A list to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ListPiece {
    /// Name of the state within the operator.
    pub name: String,
    /// Who gets its items at a restore.
    pub redistribution: Redistribution,
    /// The items.
    pub items: Vec<serde_json::Value>,
}

/// Learns under which handles the pieces of a keyed state were stored, so that later checkpoints can build on them.
pub trait LayerRecorder: Send + Sync {
    /// All pieces are stored.
    fn stored(&self, pieces: Vec<KeyedStateHandle>);
}

/// How the stored files of one keyed state are put together: those that are stored already, then the new pieces.
#[derive(Clone)]
pub struct KeyedLayers {
    /// Name of the state within the operator.
    pub name: String,
    /// Files of the base that the new pieces build on, in order.
    pub reused: Vec<KeyedStateHandle>,
    /// To be told when the pieces are stored, before the checkpoint is acknowledged.
    pub recorder: Arc<dyn LayerRecorder>,
}

impl fmt::Debug for KeyedLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLayers").field("name", &self.name).field("reused", &self.reused).finish_non_exhaustive()
    }
}

/// An operator's state as written out.
#[derive(Debug, Clone, Default)]
pub struct OperatorState {
    /// Pieces of keyed state, unless they were taken one by one.
    pub keyed: Vec<KeyedPiece>,
    /// What belongs to the pieces, for each keyed state that can be stored incrementally.
    pub layers: Vec<KeyedLayers>,
    /// Lists and broadcast state.
    pub operator: Vec<ListPiece>,
    /// Source splits.
    pub splits: Vec<SplitState>,
    /// Transactions of a sink that are staged and not known to be committed.
    pub committables: Vec<Committable>,
}

/// What a written snapshot may leave out.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// The checkpoint whose files may be part of this one (K6); `None`: all state is written.
    pub base: Option<CheckpointId>,
    /// State of fewer bytes is written whole in any case.
    pub whole_below: u64,
}

/// Takes pieces of keyed state one by one, so that not all of them are in memory at once.
pub type TakePiece<'a> = &'a mut dyn FnMut(KeyedPiece) -> Result<(), TaskError>;

/// The second, slow half of a snapshot: runs off the task's thread. It can be written more than once, such as for a
/// checkpoint and for a savepoint.
pub trait SnapshotWriter: Send + Sync {
    /// Encodes what the first half froze: pieces of keyed state go to `take`, the rest is returned.
    ///
    /// # Errors
    /// When the state cannot be encoded, or `take` fails; the checkpoint is then declined.
    fn write(&self, options: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError>;
}

impl SnapshotWriter for OperatorState {
    fn write(&self, _: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError> {
        self.keyed.iter().cloned().try_for_each(take)?;
        Ok(OperatorState { keyed: Vec::new(), ..self.clone() })
    }
}

/// How far an operator has come with what a watermark or a timer makes due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is due any more.
    Done,
    /// More is due than was worth doing at once (B4): the same call comes again, before any row.
    More,
}

/// One operator of one subtask.
pub trait Operator: Send {
    /// Told before [`Operator::open`] by what clock rows expire.
    fn set_clock(&mut self, clock: &Clock) {
        let _ = clock;
    }

    /// Called once before any input.
    ///
    /// # Errors
    /// When the state does not fit.
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError>;

    /// Takes rows.
    ///
    /// # Errors
    /// When a row cannot be processed.
    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError>;

    /// Takes rows of one of several inputs ([`sluice_protocol::graph::Edge::input`]); only the first operator of a chain
    /// has more than one. Those of input 0 may come through [`Operator::process`].
    ///
    /// # Errors
    /// As [`Operator::process`].
    fn process_input(&mut self, input: u8, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        if input == 0 {
            return self.process(batch, out);
        }
        Err(TaskError::BadProgram(format!("an edge leads to input {input} of an operator that has one input, 0")))
    }

    /// No row with a time at or before `watermark` (milliseconds since 1970) is to come: what waited for that is due. Such a
    /// row that comes all the same is late.
    ///
    /// - Called when the minimum over the operator's active inputs has risen, and first of all, before any row, with
    ///   `i64::MIN`: what a snapshot between two slices left due is then emitted (B4). It may be less than what the operator
    ///   has restored, which then counts: an operator keeps its watermark in its state, per range of key groups, and goes
    ///   by the higher one (W1).
    /// - `i64::MAX`: all inputs have ended, also by a drain; everything is due. A job that stops without a drain never
    ///   calls it.
    /// - [`Progress::More`]: called again with the same watermark when the outputs have room (B4). A snapshot may be taken
    ///   in between; it holds the new watermark and what is still due.
    /// - The watermark is passed on after [`Progress::Done`], behind everything that was emitted.
    ///
    /// # Errors
    /// As [`Operator::process`].
    fn watermark(&mut self, watermark: i64, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        let _ = (watermark, out);
        Ok(Progress::Done)
    }

    /// When [`Operator::on_timer`] is to be called, by the clock of [`Operator::set_clock`]; asked after each call of the
    /// others.
    fn next_timer(&self) -> Option<Timestamp> {
        None
    }

    /// The time of [`Operator::next_timer`] has come. [`Progress`] as for [`Operator::watermark`].
    ///
    /// # Errors
    /// As [`Operator::process`].
    fn on_timer(&mut self, now: Timestamp, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        let _ = (now, out);
        Ok(Progress::Done)
    }

    /// Rows that were dropped since it was opened because they came too late, or had no time.
    fn late_rows(&self) -> u64 {
        0
    }

    /// Emits what lingers: before a barrier, after the buffer timeout, and at the end of input (B1).
    ///
    /// # Errors
    /// As [`Operator::process`].
    fn flush(&mut self, out: &mut dyn Collector) -> Result<(), TaskError> {
        let _ = out;
        Ok(())
    }

    /// Whether something lingers that [`Operator::flush`] would emit.
    fn lingers(&self) -> bool {
        false
    }

    /// All input was read; called after a last flush.
    ///
    /// # Errors
    /// As [`Operator::process`].
    fn finish(&mut self, out: &mut dyn Collector) -> Result<(), TaskError> {
        let _ = out;
        Ok(())
    }

    /// Freezes the state for this checkpoint; must be fast, whatever its size. `None`: no state.
    ///
    /// # Errors
    /// The checkpoint is declined.
    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let _ = checkpoint;
        Ok(None)
    }
}

/// Makes the operator of each subtask.
pub trait OperatorFactory: Send + Sync {
    /// A new one.
    ///
    /// # Errors
    /// When the program is wrong.
    fn create(&self) -> Result<Box<dyn Operator>, TaskError>;

    /// The schema of what it emits.
    fn output_schema(&self) -> SchemaRef;
}

/// Wakes a task that sleeps for want of input or room: callable from any thread, cheap when the task is awake.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The clock of a process, passed to those who need the time between two steps.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
