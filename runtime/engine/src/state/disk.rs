//! The `Disk` backend: tables larger than memory, in an embedded LSM on the local disk (design §4).
//!
//! The LSM is `fjall`. It serves as working memory only: a start never reads what an earlier process left there, all
//! state comes from a checkpoint. A snapshot of the LSM is taken at once and is read while the table goes on; its files
//! are not uploaded, since they hold the tables of all subtasks of a process. What a checkpoint stores has the format
//! of the `Hash` backend, whole or as a delta, so that each is restored on either.
//!
//! Two keyspaces for each table: *rows*, from (key group, encoded key) to (accumulators, period of the last change), and
//! *changes*, (period, key group, encoded key) for each key that a period has changed. A period lies between two
//! freezes.

mod frozen;
mod space;
#[cfg(test)]
mod tests;

use super::history::{Changes, History};
use super::prefix::{FoundRows, Prefixes};
use super::rows::{GroupRows, Wanted};
use super::ttl::Expiry;
use super::{Fate, KeyedTable, TableLayout, Touched, TouchedKeys, misrouted};
use crate::error::TaskError;
use crate::operator::SnapshotWriter;
use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use fjall::Keyspace;
use frozen::FrozenDiskTable;
use hashbrown::HashTable;
use sluice_protocol::key_group::encode;
use sluice_protocol::{CheckpointId, KeyGroup, KeyGroupRange, key_group};
pub use space::DiskSpace;
use space::{Keyspaces, failed};
use std::ops::Bound;
use std::sync::Arc;

/// The period of rows that were restored: no checkpoint of this run is older.
const RESTORED: u64 = 0;

/// Bytes before the encoded key in the key of a row.
const GROUP_BYTES: usize = 2;

/// Bytes of the period in a change's key and a row's value.
const PERIOD_BYTES: usize = 8;

/// A table on disk.
pub(super) struct DiskKeyedTable {
    name: Arc<str>,
    layout: Arc<TableLayout>,
    key_groups: KeyGroupRange,
    max_parallelism: u16,
    keyspaces: Arc<Keyspaces>,
    history: Arc<History<DiskChanges>>,
    rows: u64,
    period: u64,
    /// Keys that the period has changed.
    changed: u64,
    found: Found,
    /// The last row that was looked at for having expired; empty: none in this round.
    expired_to: Vec<u8>,
}

/// The distinct keys of the batch that was touched last.
#[derive(Default)]
struct Found {
    /// Keys of rows, one after the other, and where each ends.
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// Accumulators; 0 for new keys.
    words: Vec<u64>,
    /// The period in which each was changed last, `None` for new keys.
    periods: Vec<Option<u64>>,
    /// Slots in the order of their keys: neighbours lie in the same blocks and in the same places of the write buffer.
    sorted: Vec<u32>,
    /// Slots by the hashes of their keys.
    slots: HashTable<(u64, u32)>,
}

impl Found {
    fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.words.clear();
        self.periods.clear();
        self.sorted.clear();
        self.slots.clear();
    }

    /// Reads what the table holds of all keys.
    fn read(&mut self, rows: &Keyspace, width: usize) -> Result<(), TaskError> {
        let count = self.ends.len();
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.extend(0..count as u32);
        sorted.sort_unstable_by(|a, b| self.key(*a as usize).cmp(self.key(*b as usize)));
        self.words.resize(count * width, 0);
        self.periods.resize(count, None);
        for slot in &sorted {
            let slot = *slot as usize;
            if let Some(value) = rows.get(self.key(slot)).map_err(failed)? {
                self.periods[slot] = Some(read_value(&value, &mut self.words[slot * width..][..width])?);
            }
        }
        self.sorted = sorted;
        Ok(())
    }

    /// Adds a row that was read.
    fn push(&mut self, key: &[u8], value: &[u8], width: usize) -> Result<(), TaskError> {
        let slot = self.ends.len();
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        self.words.resize((slot + 1) * width, 0);
        self.periods.push(Some(read_value(value, &mut self.words[slot * width..])?));
        self.sorted.push(slot as u32);
        Ok(())
    }

    fn key(&self, slot: usize) -> &[u8] {
        let start = if slot == 0 { 0 } else { self.ends[slot - 1] };
        &self.keys[start..self.ends[slot]]
    }
}

/// What changed between two freezes: it stands in the LSM.
#[derive(Debug)]
pub(super) struct DiskChanges {
    periods: Vec<u64>,
    count: u64,
    keyspaces: Arc<Keyspaces>,
}

impl Changes for DiskChanges {
    fn merge(&self, newer: &Self) -> Self {
        let periods = self.periods.iter().chain(&newer.periods).copied().collect();
        Self { periods, count: self.count + newer.count, keyspaces: Arc::clone(&self.keyspaces) }
    }

    fn count(&self) -> Option<u64> {
        Some(self.count)
    }

    fn forget(&self) {
        self.keyspaces.discard(&self.periods);
    }
}

impl DiskKeyedTable {
    pub(super) fn new(
        name: &str,
        layout: Arc<TableLayout>,
        (key_groups, max_parallelism): (KeyGroupRange, u16),
        space: &Arc<DiskSpace>,
    ) -> Result<Self, TaskError> {
        Ok(Self {
            name: Arc::from(name),
            layout,
            key_groups,
            max_parallelism,
            keyspaces: Arc::new(Keyspaces::create(space)?),
            history: Arc::default(),
            rows: 0,
            period: RESTORED,
            changed: 0,
            found: Found::default(),
            expired_to: Vec::new(),
        })
    }

    /// Finds the slot of a key that hashes so, or makes one.
    fn slot(
        &mut self,
        (hash, group_hash): (u64, u64),
        key: &[u8],
        row: usize,
        touched: &mut Vec<Touched>,
    ) -> Result<u32, TaskError> {
        let group = key_group::of_hash(group_hash, self.max_parallelism);
        if !self.key_groups.contains(group) {
            return Err(misrouted(group, self.key_groups));
        }
        let found = &self.found;
        let known = found.slots.find(hash, |(_, slot)| &found.key(*slot as usize)[GROUP_BYTES..] == key);
        if let Some((_, slot)) = known {
            return Ok(*slot);
        }
        let slot = touched.len() as u32;
        touched.push(Touched { shard: u32::from(group.0), row: slot, first: row as u32 });
        let found = &mut self.found;
        found.keys.extend_from_slice(&group.0.to_be_bytes());
        found.keys.extend_from_slice(key);
        found.ends.push(found.keys.len());
        found.slots.insert_unique(hash, (hash, slot), |(hash, _)| *hash);
        Ok(slot)
    }

    fn find_bigint(&mut self, column: &dyn Array, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        let TouchedKeys { slots, keys, hashed } = touched;
        let column = column.as_primitive::<Int64Type>();
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        for (row, (hash, value)) in hashed.hashes.iter().zip(column.values()).enumerate() {
            let is_null = nulls.is_some_and(|nulls| nulls.is_null(row));
            let encoded = encode::bigint(*value);
            let key = if is_null { &[0][..] } else { &encoded[..] };
            slots.push(self.slot((*hash, *hash), key, row, keys)?);
        }
        Ok(())
    }

    fn find_encoded(&mut self, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        let TouchedKeys { slots, keys, hashed } = touched;
        for (row, hashes) in hashed.hashes.iter().copied().zip(hashed.group_hashes().iter().copied()).enumerate() {
            slots.push(self.slot(hashes, hashed.key(row), row, keys)?);
        }
        Ok(())
    }
}

impl KeyedTable for DiskKeyedTable {
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
        self.rows
    }

    fn find(&mut self, key: Option<&dyn Array>, touched: &mut TouchedKeys) -> Result<(), TaskError> {
        self.found.clear();
        match key {
            Some(column) if self.layout.is_bigint() => self.find_bigint(column, touched)?,
            _ => self.find_encoded(touched)?,
        }
        self.found.read(&self.keyspaces.rows, self.layout.words)
    }

    fn find_by_prefix(&mut self, prefixes: &Prefixes, found: &mut FoundRows) -> Result<(), TaskError> {
        found.clear();
        self.found.clear();
        let mut begin = Vec::new();
        for (number, (hash, prefix)) in prefixes.iter().enumerate() {
            let group = key_group::of_hash(hash, self.max_parallelism);
            if !self.key_groups.contains(group) {
                return Err(misrouted(group, self.key_groups));
            }
            begin.clear();
            begin.extend_from_slice(&group.0.to_be_bytes());
            begin.extend_from_slice(prefix);
            for row in self.keyspaces.rows.prefix(&begin) {
                let (key, value) = row.into_inner().map_err(failed)?;
                let slot = found.len() as u32;
                found.push(Touched { shard: u32::from(group.0), row: slot, first: number as u32 }, &key[GROUP_BYTES..]);
                self.found.push(&key, &value, self.layout.words)?;
            }
        }
        Ok(())
    }

    fn read_group(&self, group: KeyGroup, wanted: Wanted<'_>, rows: &mut GroupRows) -> Result<(), TaskError> {
        let (is_bigint, width) = (self.layout.is_bigint(), self.layout.words);
        rows.clear(is_bigint);
        for row in self.keyspaces.rows.prefix(group.0.to_be_bytes()) {
            let (key, value) = row.into_inner().map_err(failed)?;
            let key = &key[GROUP_BYTES..];
            let start = rows.words.len();
            rows.words.resize(start + width, 0);
            read_value(&value, &mut rows.words[start..])?;
            if wanted.is_some_and(|wanted| !wanted(&rows.words[start..])) {
                rows.words.truncate(start);
                continue;
            }
            if is_bigint {
                let bytes = key.get(1..).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
                rows.keys.push_bigint(bytes.map(i64::from_le_bytes));
            } else {
                rows.keys.push_encoded(key);
            }
        }
        Ok(())
    }

    fn expire(&mut self, expiry: Expiry, rows: usize) -> Result<(), TaskError> {
        let Some(word) = self.layout.updated else { return Ok(()) };
        self.found.clear();
        let start = (Bound::Excluded(self.expired_to.clone()), Bound::Unbounded);
        let mut fates = Vec::new();
        for row in self.keyspaces.rows.range::<Vec<u8>, _>(start).take(rows) {
            let (key, value) = row.into_inner().map_err(failed)?;
            self.found.push(&key, &value, self.layout.words)?;
            let last = self.found.words.len() - self.layout.words;
            let updated = &mut self.found.words[last + word];
            fates.push(match *updated {
                0 => Fate::Write,
                updated if expiry.has_expired(updated) => Fate::Remove,
                _ => Fate::Keep,
            });
            if *updated == 0 {
                *updated = expiry.now.0;
            }
        }
        self.expired_to.clear();
        if fates.len() == rows && rows > 0 {
            self.expired_to.extend_from_slice(self.found.key(rows - 1));
        }
        let words = std::mem::take(&mut self.found.words);
        self.store(&TouchedKeys::default(), &words, &fates)
    }

    fn load(&self, _: &TouchedKeys, words: &mut Vec<u64>) {
        words.clear();
        words.extend_from_slice(&self.found.words);
    }

    fn store(&mut self, _: &TouchedKeys, words: &[u64], fates: &[Fate]) -> Result<(), TaskError> {
        let mut writes = self.keyspaces.writes();
        for slot in &self.found.sorted {
            let slot = *slot as usize;
            let words = &words[slot * self.layout.words..][..self.layout.words];
            let (fate, key, last) = (&fates[slot], self.found.key(slot), self.found.periods[slot]);
            let is_gone = *fate == Fate::Remove;
            if *fate == Fate::Keep || (is_gone && last.is_none()) {
                continue;
            }
            if is_gone {
                self.rows -= 1;
                writes.remove_row(key);
            } else {
                self.rows += u64::from(last.is_none());
                writes.insert_row(key, value_of(words, self.period));
            }
            if self.period != RESTORED && last != Some(self.period) {
                self.changed += 1;
                writes.insert_change(change_key(self.period, key));
            }
        }
        writes.commit()
    }

    fn freeze(&mut self, checkpoint: CheckpointId) -> Result<Box<dyn SnapshotWriter>, TaskError> {
        let (keyspaces, count) = (Arc::clone(&self.keyspaces), std::mem::take(&mut self.changed));
        self.history.frozen(checkpoint, DiskChanges { periods: vec![self.period], count, keyspaces });
        self.period += 1;
        Ok(Box::new(FrozenDiskTable {
            name: Arc::clone(&self.name),
            layout: Arc::clone(&self.layout),
            rows: self.rows,
            checkpoint,
            snapshot: self.keyspaces.snapshot(),
            keyspaces: Arc::clone(&self.keyspaces),
            history: Arc::clone(&self.history),
        }))
    }

    fn forget_changes(&mut self) {
        self.period = RESTORED + 1;
    }
}

/// The key of a change.
fn change_key(period: u64, key: &[u8]) -> Vec<u8> {
    let mut change = Vec::with_capacity(PERIOD_BYTES + key.len());
    change.extend_from_slice(&period.to_be_bytes());
    change.extend_from_slice(key);
    change
}

/// The value of a row.
fn value_of(words: &[u64], period: u64) -> Vec<u8> {
    words.iter().chain([&period]).flat_map(|word| word.to_le_bytes()).collect()
}

/// Reads the accumulators in a row's value; returns the period.
fn read_value(value: &[u8], words: &mut [u64]) -> Result<u64, TaskError> {
    let (read, rest) = value.as_chunks::<8>();
    let Some((period, accumulators)) = read.split_last().filter(|(_, read)| read.len() == words.len()) else {
        let (found, width) = (value.len() + rest.len(), words.len());
        return Err(TaskError::Internal(format!("a row of keyed state on disk has {found} bytes, not {width} words")));
    };
    words.iter_mut().zip(accumulators).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    Ok(u64::from_le_bytes(*period))
}
