//! Keyed state: what operators see of it, whatever backend keeps it (design §4).
//!
//! A [`KeyedTable`] holds, for one subtask, a row of fixed width per key: the key and its accumulators as 64-bit
//! words. The backends are [`hash`] (in memory) and [`disk`] (larger than memory); what they store at a checkpoint
//! has one format ([`file`]), so a snapshot taken on one is restored on the other.
//!
//! The flow of a batch: [`KeyedTable::touch`] finds or makes the row of every input row and numbers the distinct
//! keys (*slots*); [`KeyedTable::load`] copies their accumulators together; the operator computes, and
//! [`KeyedTable::store`] takes back what has changed and drops keys that are no more.
//!
//! The flow of a snapshot: [`KeyedTable::freeze`] on the task's thread, [`SnapshotWriter::write`] elsewhere. What is
//! written is all rows, or those that changed since the files of an earlier checkpoint ([`history`] decides).
//! [`restore`] reads files back, of which a table takes the key groups it owns.

mod arena;
pub mod cow;
pub mod disk;
pub mod due;
mod fetched;
pub mod file;
mod fit;
pub mod frozen_tables;
pub mod hash;
mod history;
mod links;
pub mod list;
pub mod memory;
pub mod merged;
pub mod prefix;
mod restore;
pub mod rows;
mod shard;
#[cfg(test)]
mod tests;
pub mod ttl;
pub mod whole_rows;

pub use fetched::{SpooledFile, StateBytes};

use crate::error::TaskError;
use crate::keys::HashedKeys;
use crate::operator::{OperatorContext, RestoredKeyed, SnapshotWriter};
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Field};
use disk::{DiskKeyedTable, DiskSpace};
use hash::HashKeyedTable;
use memory::StateMemory;
use prefix::{FoundRows, Prefixes};
use rows::{GroupRows, Wanted};
use sluice_protocol::{CheckpointId, KeyGroup, KeyGroupRange, OperatorUid, key_group};
use std::sync::Arc;
use ttl::Expiry;

/// What the words of a row mean.
#[derive(Debug, Clone)]
pub struct TableLayout {
    /// Key columns by their names in the state.
    pub keys: Vec<Field>,
    /// Accumulators by their names in the state.
    pub accumulators: Vec<AccumulatorColumn>,
    /// Words of all accumulators together.
    pub words: usize,
    /// So many of the keys, from the first on, decide the key group of a row and find it ([`prefix`]); `None`: all, and
    /// rows are found by whole keys only.
    pub prefix: Option<usize>,
    /// The word with the time of the last write in milliseconds, when rows expire ([`ttl`]); 0: not known.
    pub updated: Option<usize>,
}

impl TableLayout {
    /// Whether the key is one BIGINT, which is kept without an encoding.
    #[must_use]
    pub fn is_bigint(&self) -> bool {
        self.prefix.is_none() && matches!(self.keys.as_slice(), [key] if *key.data_type() == DataType::Int64)
    }
}

/// One accumulator as a column of the state.
#[derive(Debug, Clone)]
pub struct AccumulatorColumn {
    /// Its name.
    pub name: String,
    /// BIGINT or DOUBLE (one word), a decimal of 128 bits (two words, the lower one first), or BOOLEAN or a type of time, of
    /// which the word is the number.
    pub data_type: DataType,
    /// Its first word.
    pub word: usize,
    /// The value is NULL while this word is 0.
    pub null_while_zero: Option<usize>,
}

/// One distinct key of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touched {
    shard: u32,
    row: u32,
    /// The first input row with this key.
    pub first: u32,
}

/// The distinct keys of a batch, and which of them each input row has. Reused from batch to batch.
#[derive(Debug, Default)]
pub struct TouchedKeys {
    /// Per input row: a position in `keys`.
    pub slots: Vec<u32>,
    /// The distinct keys in the order of their first rows.
    pub keys: Vec<Touched>,
    hashed: HashedKeys,
}

impl TouchedKeys {
    /// The encoded key of this row of a batch, whose keys were hashed, unless it is one BIGINT.
    pub(crate) fn key(&self, row: u32) -> &[u8] {
        self.hashed.key(row as usize)
    }

    /// What decides the key group of each row of the batch.
    pub(crate) const fn group_hashes(&self) -> &Vec<u64> {
        self.hashed.group_hashes()
    }

    /// The key group of this row of a batch, whose keys were hashed.
    pub(crate) fn key_group(&self, row: u32, max_parallelism: u16) -> KeyGroup {
        key_group::of_hash(self.hashed.group_hashes()[row as usize], max_parallelism)
    }

    /// Hashes, and unless they are BIGINTs encodes, the keys of a batch.
    pub(crate) fn hash(
        &mut self,
        layout: &TableLayout,
        rows: &RecordBatch,
        columns: &[usize],
    ) -> Result<(), TaskError> {
        self.slots.clear();
        self.keys.clear();
        if layout.is_bigint() {
            self.hashed.hash_bigint(rows.column(columns[0]));
            return Ok(());
        }
        match layout.prefix {
            None => self.hashed.encode(rows, columns),
            Some(prefix) => self.hashed.encode_prefixed(rows, columns, prefix),
        }
    }
}

/// What becomes of a touched key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It stays as it was.
    Keep,
    /// Its accumulators are replaced.
    Write,
    /// It is dropped.
    Remove,
}

/// The keys of one subtask with their accumulators.
pub trait KeyedTable: Send {
    /// What its words mean.
    fn layout(&self) -> &Arc<TableLayout>;

    /// The key groups that it takes.
    fn key_groups(&self) -> KeyGroupRange;

    /// Number of key groups of the job.
    fn max_parallelism(&self) -> u16;

    /// Number of keys.
    fn len(&self) -> u64;

    /// Whether there is no key.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers the distinct keys of a batch whose keys were hashed into `touched`. Every key must get a fate by
    /// [`KeyedTable::store`] before the next batch; new ones are not to be kept.
    ///
    /// # Errors
    /// When a row belongs to another subtask, which would be our fault, or the backend fails.
    fn find(&mut self, key: Option<&dyn Array>, touched: &mut TouchedKeys) -> Result<(), TaskError>;

    /// Finds all rows whose keys begin with these prefixes, in a table that has them. What was touched before is void
    /// afterwards; what is found may be loaded and stored.
    ///
    /// # Errors
    /// When the backend fails.
    fn find_by_prefix(&mut self, prefixes: &Prefixes, found: &mut FoundRows) -> Result<(), TaskError>;

    /// Reads the rows of one of its key groups, in no order; what `rows` held is void. With `wanted` only those whose
    /// accumulators it accepts.
    ///
    /// # Errors
    /// When the backend fails.
    fn read_group(&self, group: KeyGroup, wanted: Wanted<'_>, rows: &mut GroupRows) -> Result<(), TaskError>;

    /// Looks at the next `rows` rows, in turn, and removes those that have expired, for a table whose rows do; not
    /// between [`KeyedTable::find`] and [`KeyedTable::store`].
    ///
    /// # Errors
    /// When the backend fails.
    fn expire(&mut self, expiry: Expiry, rows: usize) -> Result<(), TaskError>;

    /// Copies the accumulators of the touched keys together, in their order. Those of new keys are 0.
    fn load(&self, touched: &TouchedKeys, words: &mut Vec<u64>);

    /// Takes back the accumulators of the touched keys, as [`KeyedTable::load`] lays them out. What was touched before
    /// is void afterwards.
    ///
    /// # Errors
    /// When the backend fails.
    fn store(&mut self, touched: &TouchedKeys, words: &[u64], fates: &[Fate]) -> Result<(), TaskError>;

    /// Freezes all rows for a checkpoint. Fast, whatever its size.
    ///
    /// # Errors
    /// When the backend fails.
    fn freeze(&mut self, checkpoint: CheckpointId) -> Result<Box<dyn SnapshotWriter>, TaskError>;

    /// What has been stored so far was restored: no change since a checkpoint.
    fn forget_changes(&mut self);
}

impl dyn KeyedTable + '_ {
    /// Numbers the distinct keys of a batch.
    ///
    /// # Errors
    /// As [`KeyedTable::find`], and when a column cannot be a key.
    pub fn touch(&mut self, rows: &RecordBatch, columns: &[usize], touched: &mut TouchedKeys) -> Result<(), TaskError> {
        touched.hash(self.layout(), rows, columns)?;
        self.find(columns.first().map(|column| rows.column(*column).as_ref()), touched)
    }

    /// Takes the rows of files that belong to its key groups. `uid` is for errors.
    ///
    /// # Errors
    /// [`TaskError::IncompatibleState`] when a file has other columns than the table, or is no such file.
    pub fn restore(&mut self, uid: &OperatorUid, files: &[RestoredKeyed]) -> Result<(), TaskError> {
        files.iter().try_for_each(|file| restore::restore(self, uid, file))?;
        self.forget_changes();
        Ok(())
    }
}

/// Where keyed state lives.
#[derive(Debug, Clone, Default)]
pub enum StateBackend {
    /// In memory.
    #[default]
    Hash,
    /// In memory, as much of it as this allows.
    HashWithin(Arc<StateMemory>),
    /// In the LSM of this process.
    Disk(Arc<DiskSpace>),
}

impl StateBackend {
    pub(crate) fn create(
        &self,
        context: &OperatorContext,
        name: &str,
        layout: Arc<TableLayout>,
    ) -> Result<Box<dyn KeyedTable>, TaskError> {
        match self {
            Self::Hash => Ok(Box::new(HashKeyedTable::new(name, layout, context.key_groups, context.max_parallelism))),
            Self::HashWithin(memory) => {
                let table = HashKeyedTable::new(name, layout, context.key_groups, context.max_parallelism);
                Ok(Box::new(table.within(memory)))
            }
            Self::Disk(space) => {
                let keys = (context.key_groups, context.max_parallelism);
                Ok(Box::new(DiskKeyedTable::new(name, layout, keys, space)?))
            }
        }
    }
}

#[cold]
fn misrouted(group: KeyGroup, owned: KeyGroupRange) -> TaskError {
    TaskError::Internal(format!("a row of key group {group} came to a subtask that owns the key groups {owned}"))
}
