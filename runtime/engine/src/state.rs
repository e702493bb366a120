//! Keyed state in memory: the `Hash` backend (design §4).
//!
//! A [`KeyedTable`] holds, for one subtask, a row of fixed width per key: the key and its accumulators as 64-bit
//! words. It is sharded by key group; the rows of a shard stand in chunks that a running snapshot shares
//! ([`cow::CopyOnWrite`]): freezing only marks chunks as shared, and a chunk is copied when it is first written
//! while the snapshot still holds it. So the pause of a checkpoint does not grow with the rows touched.
//!
//! The flow of a batch: [`KeyedTable::touch`] finds or makes the row of every input row and numbers the distinct
//! ones (*slots*); the operator reads [`KeyedTable::accumulators`], computes, and writes
//! [`KeyedTable::accumulators_mut`] once per key; [`KeyedTable::remove`] drops keys that are no more.
//!
//! The flow of a snapshot: [`KeyedTable::freeze`] on the task's thread, [`file::FrozenTable::encode`] elsewhere;
//! [`KeyedTable::restore`] reads such a file, of which it takes the key groups it owns.

mod arena;
pub mod cow;
pub mod file;
mod restore;
mod shard;
#[cfg(test)]
mod tests;

use crate::error::TaskError;
use crate::keys::{self, HashedKeys};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type};
use file::FrozenTable;
use shard::Shard;
use sluice_protocol::{KeyGroup, KeyGroupRange, key_group};
use std::sync::Arc;

/// What the words of a row mean.
#[derive(Debug, Clone)]
pub struct TableLayout {
    /// Key columns by their names in the state.
    pub keys: Vec<Field>,
    /// Accumulators by their names in the state.
    pub accumulators: Vec<AccumulatorColumn>,
    /// Words of all accumulators together.
    pub words: usize,
}

/// One accumulator as a column of the state.
#[derive(Debug, Clone)]
pub struct AccumulatorColumn {
    /// Its name.
    pub name: String,
    /// BIGINT or DOUBLE (one word), or a decimal of 128 bits (two words, the lower one first).
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
}

/// The keys of one subtask with their accumulators.
pub struct KeyedTable {
    layout: Arc<TableLayout>,
    bigint: bool,
    key_groups: KeyGroupRange,
    max_parallelism: u16,
    shards: Vec<Shard>,
    hashed: HashedKeys,
}

impl KeyedTable {
    /// An empty table for these key groups.
    #[must_use]
    pub fn new(layout: Arc<TableLayout>, key_groups: KeyGroupRange, max_parallelism: u16) -> Self {
        let types: Vec<DataType> = layout.keys.iter().map(|field| field.data_type().clone()).collect();
        let bigint = keys::is_bigint(&types);
        let shards = (0..key_groups.len()).map(|_| Shard::new(layout.words, bigint)).collect();
        Self { layout, bigint, key_groups, max_parallelism, shards, hashed: HashedKeys::default() }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(Shard::len).sum()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.len() == 0)
    }

    /// Finds the row of every input row's key; new keys get one with all words 0.
    ///
    /// # Errors
    /// When a row belongs to another subtask, which would be our fault, or a column cannot be a key.
    pub fn touch(&mut self, rows: &RecordBatch, columns: &[usize], touched: &mut TouchedKeys) -> Result<(), TaskError> {
        touched.slots.clear();
        touched.keys.clear();
        if self.bigint {
            self.hashed.hash_bigint(rows.column(columns[0]));
            self.touch_bigint(rows.column(columns[0]), touched)
        } else {
            self.hashed.encode(rows, columns)?;
            self.touch_encoded(touched)
        }
    }

    fn touch_bigint(&mut self, column: &dyn Array, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        let column = column.as_primitive::<Int64Type>();
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        for (row, (hash, value)) in self.hashed.hashes.iter().zip(column.values()).enumerate() {
            let group = key_group::of_hash(*hash, self.max_parallelism);
            let index = usize::from(group.0.wrapping_sub(self.key_groups.start));
            let Some(shard) = self.shards.get_mut(index) else { return Err(misrouted(group, self.key_groups)) };
            let null = nulls.is_some_and(|nulls| nulls.is_null(row));
            let entry = if null { shard.null_key() } else { shard.bigint_key(*hash, *value) };
            touched.note(index, entry, row);
        }
        Ok(())
    }

    fn touch_encoded(&mut self, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        for (row, hash) in self.hashed.hashes.iter().enumerate() {
            let group = key_group::of_hash(*hash, self.max_parallelism);
            let index = usize::from(group.0.wrapping_sub(self.key_groups.start));
            let Some(shard) = self.shards.get_mut(index) else { return Err(misrouted(group, self.key_groups)) };
            touched.note(index, shard.encoded_key(*hash, self.hashed.key(row)), row);
        }
        Ok(())
    }

    /// The words of a key's accumulators.
    #[must_use]
    pub fn accumulators(&self, key: Touched) -> &[u64] {
        self.shards[key.shard as usize].accumulators(key.row)
    }

    /// The words of a key's accumulators, to be changed.
    pub fn accumulators_mut(&mut self, key: Touched) -> &mut [u64] {
        self.shards[key.shard as usize].accumulators_mut(key.row)
    }

    /// Drops keys. What [`KeyedTable::touch`] has noted before is void afterwards.
    pub fn remove(&mut self, keys: &mut [Touched]) {
        // From the last row down: a removal moves the last row of a shard into the gap.
        keys.sort_unstable();
        for key in keys.iter().rev() {
            self.shards[key.shard as usize].remove(key.row);
        }
    }

    /// Shares all rows with a snapshot.
    pub fn freeze(&mut self) -> FrozenTable {
        let shards = self.shards.iter_mut().map(Shard::freeze).collect();
        FrozenTable::new(Arc::clone(&self.layout), self.key_groups, self.bigint, shards)
    }
}

impl TouchedKeys {
    /// Gives the entry a slot unless it has one in this batch; a slot of an earlier batch does not hold its row.
    #[inline]
    fn note(&mut self, shard: usize, entry: &mut shard::Entry, row: usize) {
        let shard = shard as u32;
        let noted = self.keys.get(entry.slot as usize).is_some_and(|key| key.row == entry.row && key.shard == shard);
        if !noted {
            entry.slot = self.keys.len() as u32;
            self.keys.push(Touched { shard, row: entry.row, first: row as u32 });
        }
        self.slots.push(entry.slot);
    }
}

#[cold]
fn misrouted(group: KeyGroup, owned: KeyGroupRange) -> TaskError {
    TaskError::Internal(format!("a row of key group {group} came to a subtask that owns the key groups {owned}"))
}
