//! The `Hash` backend: a table in memory (design §4).
//!
//! It is sharded by key group; the rows of a shard stand in chunks that a running snapshot shares
//! ([`super::cow::CopyOnWrite`]): freezing only marks chunks as shared, and a chunk is copied when it is first written
//! while the snapshot still holds it. So the pause of a checkpoint does not grow with the rows touched.
//!
//! Each chunk notes which of its rows were written since the last freeze, by position. A row that moves into a gap
//! counts as written there, so the rows that differ from an earlier freeze are always among the noted positions;
//! removed keys are listed. That is all a delta needs.

mod changes;
mod frozen;

use super::history::History;
use super::memory::{Share, StateMemory};
use super::prefix::{FoundRows, Prefixes};
use super::rows::{GroupRows, Wanted};
use super::shard::{self, Shard};
use super::ttl::Expiry;
use super::{Fate, KeyedTable, TableLayout, Touched, TouchedKeys, misrouted};
use crate::error::TaskError;
use crate::operator::SnapshotWriter;
use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
pub(super) use changes::ShardChanges;
use changes::TableChanges;
use frozen::FrozenTable;
use sluice_protocol::{CheckpointId, KeyGroup, KeyGroupRange, key_group};
use std::sync::Arc;

/// A table in memory.
pub struct HashKeyedTable {
    name: Arc<str>,
    layout: Arc<TableLayout>,
    bigint: bool,
    key_groups: KeyGroupRange,
    max_parallelism: u16,
    shards: Vec<Shard>,
    dead: Vec<Touched>,
    /// Where to look next for rows that have expired: a shard, and the row above the next one.
    expired_to: (usize, usize),
    history: Arc<History<TableChanges>>,
    /// Where it says how large it is, if it may not grow without limit.
    share: Option<Share>,
}

impl HashKeyedTable {
    /// An empty table for these key groups; `name` is the state's within its operator.
    #[must_use]
    pub fn new(name: &str, layout: Arc<TableLayout>, key_groups: KeyGroupRange, max_parallelism: u16) -> Self {
        let bigint = layout.is_bigint();
        let shards = (0..key_groups.len()).map(|_| Shard::new(layout.words, bigint, layout.prefix.is_some())).collect();
        let (dead, expired_to, history) = (Vec::new(), (0, 0), Arc::default());
        let (name, share) = (Arc::from(name), None);
        Self { name, layout, bigint, key_groups, max_parallelism, shards, dead, expired_to, history, share }
    }

    /// The table takes its memory from this part.
    #[must_use]
    pub fn within(self, memory: &Arc<StateMemory>) -> Self {
        Self { share: Some(Share::new(Arc::clone(memory))), ..self }
    }

    fn find_bigint(&mut self, column: &dyn Array, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        let TouchedKeys { slots, keys, hashed } = touched;
        let column = column.as_primitive::<Int64Type>();
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        for (row, (hash, value)) in hashed.hashes.iter().zip(column.values()).enumerate() {
            let group = key_group::of_hash(*hash, self.max_parallelism);
            let index = usize::from(group.0.wrapping_sub(self.key_groups.start));
            let Some(shard) = self.shards.get_mut(index) else { return Err(misrouted(group, self.key_groups)) };
            let null = nulls.is_some_and(|nulls| nulls.is_null(row));
            let entry = if null { shard.null_key() } else { shard.bigint_key(*hash, *value) };
            slots.push(note(keys, index, entry, row));
        }
        Ok(())
    }

    fn find_encoded(&mut self, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        let TouchedKeys { slots, keys, hashed } = touched;
        for (row, hash) in hashed.hashes.iter().enumerate() {
            let group = key_group::of_hash(*hash, self.max_parallelism);
            let index = usize::from(group.0.wrapping_sub(self.key_groups.start));
            let Some(shard) = self.shards.get_mut(index) else { return Err(misrouted(group, self.key_groups)) };
            slots.push(note(keys, index, shard.encoded_key(*hash, hashed.key(row)), row));
        }
        Ok(())
    }
}

impl HashKeyedTable {
    fn find_prefixed(&mut self, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        let TouchedKeys { slots, keys, hashed } = touched;
        let hashes = hashed.hashes.iter().zip(hashed.group_hashes()).zip(&hashed.prefixes);
        for (row, ((hash, group_hash), prefix)) in hashes.enumerate() {
            let group = key_group::of_hash(*group_hash, self.max_parallelism);
            let index = usize::from(group.0.wrapping_sub(self.key_groups.start));
            let Some(shard) = self.shards.get_mut(index) else { return Err(misrouted(group, self.key_groups)) };
            let entry = shard.prefixed_key(*hash, hashed.key(row), *group_hash, *prefix);
            slots.push(note(keys, index, entry, row));
        }
        Ok(())
    }
}

/// Gives the entry a slot unless it has one in this batch; a slot of an earlier batch does not hold its row.
#[inline]
fn note(keys: &mut Vec<Touched>, shard: usize, entry: &mut shard::Entry, row: usize) -> u32 {
    let shard = shard as u32;
    let noted = keys.get(entry.slot as usize).is_some_and(|key| key.row == entry.row && key.shard == shard);
    if !noted {
        entry.slot = keys.len() as u32;
        keys.push(Touched { shard, row: entry.row, first: row as u32 });
    }
    entry.slot
}

impl KeyedTable for HashKeyedTable {
    fn layout(&self) -> &Arc<TableLayout> {
        &self.layout
    }

    fn key_groups(&self) -> KeyGroupRange {
        self.key_groups
    }

    fn max_parallelism(&self) -> u16 {
        self.max_parallelism
    }

    fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.len() as u64).sum()
    }

    fn find(&mut self, key: Option<&dyn Array>, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        match key {
            Some(column) if self.bigint => self.find_bigint(column, touched),
            _ if self.layout.prefix.is_some() => self.find_prefixed(touched),
            _ => self.find_encoded(touched),
        }
    }

    fn find_by_prefix(&mut self, prefixes: &Prefixes, found: &mut FoundRows) -> Result<(), TaskError> {
        found.clear();
        for (number, (hash, prefix)) in prefixes.iter().enumerate() {
            let group = key_group::of_hash(hash, self.max_parallelism);
            let index = usize::from(group.0.wrapping_sub(self.key_groups.start));
            let Some(shard) = self.shards.get(index) else { return Err(misrouted(group, self.key_groups)) };
            for (row, key) in shard.with_prefix(hash, prefix) {
                found.push(Touched { shard: index as u32, row, first: number as u32 }, key);
            }
        }
        Ok(())
    }

    fn read_group(&self, group: KeyGroup, wanted: Wanted<'_>, rows: &mut GroupRows) -> Result<(), TaskError> {
        rows.clear(self.bigint);
        let shard = self.shards.get(usize::from(group.0.wrapping_sub(self.key_groups.start)));
        shard.ok_or_else(|| misrouted(group, self.key_groups))?.read(wanted, rows);
        Ok(())
    }

    fn expire(&mut self, expiry: Expiry, rows: usize) -> Result<(), TaskError> {
        let Some(word) = self.layout.updated else { return Ok(()) };
        let mut left = rows;
        // Every shard once at most, from its last row down: a removal moves the last row, which was looked at.
        for _ in 0..=self.shards.len() {
            let Some(shard) = self.shards.get_mut(self.expired_to.0) else { break };
            self.expired_to.1 = self.expired_to.1.min(shard.len());
            while left > 0 && self.expired_to.1 > 0 {
                left -= 1;
                self.expired_to.1 -= 1;
                let row = self.expired_to.1 as u32;
                match shard.accumulators(row)[word] {
                    0 => shard.accumulators_mut(row)[word] = expiry.now.0,
                    updated if expiry.has_expired(updated) => shard.remove(row),
                    _ => {}
                }
            }
            if left == 0 {
                break;
            }
            self.expired_to.0 = (self.expired_to.0 + 1) % self.shards.len();
            self.expired_to.1 = self.shards[self.expired_to.0].len();
        }
        Ok(())
    }

    fn load(&self, touched: &TouchedKeys, words: &mut Vec<u64>) {
        let width = self.layout.words;
        words.clear();
        words.resize(touched.keys.len() * width, 0);
        for (words, key) in words.chunks_exact_mut(width).zip(&touched.keys) {
            words.copy_from_slice(self.shards[key.shard as usize].accumulators(key.row));
        }
    }

    fn store(&mut self, touched: &TouchedKeys, words: &[u64], fates: &[Fate]) -> Result<(), TaskError> {
        self.dead.clear();
        let words = words.chunks_exact(self.layout.words);
        for ((key, words), fate) in touched.keys.iter().zip(words).zip(fates) {
            match fate {
                Fate::Keep => {}
                Fate::Write => {
                    self.shards[key.shard as usize].accumulators_mut(key.row).copy_from_slice(words);
                }
                Fate::Remove => self.dead.push(*key),
            }
        }
        // From the last row down: a removal moves the last row of a shard into the gap.
        self.dead.sort_unstable();
        for key in self.dead.iter().rev() {
            self.shards[key.shard as usize].remove(key.row);
        }
        match &mut self.share {
            Some(share) => share.settle(self.shards.iter().map(Shard::bytes).sum(), &self.name),
            None => Ok(()),
        }
    }

    fn freeze(&mut self, checkpoint: CheckpointId) -> Result<Box<dyn SnapshotWriter>, TaskError> {
        let (shards, changes) = self.shards.iter_mut().map(Shard::freeze).unzip();
        self.history.frozen(checkpoint, TableChanges::new(changes));
        Ok(Box::new(FrozenTable {
            name: Arc::clone(&self.name),
            layout: Arc::clone(&self.layout),
            bigint: self.bigint,
            key_groups: self.key_groups,
            shards,
            checkpoint,
            history: Arc::clone(&self.history),
        }))
    }

    fn forget_changes(&mut self) {
        self.shards.iter_mut().for_each(Shard::forget_changes);
    }
}
