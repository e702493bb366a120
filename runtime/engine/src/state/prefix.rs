//! Tables whose rows belong together by the beginning of their keys: the rows of a join key, the values of a group.
//!
//! The first key columns of such a table ([`super::TableLayout::prefix`]) are what the rows were partitioned by: they
//! decide the key group, and [`super::KeyedTable::find_by_prefix`] finds all rows that have them.

use super::{Touched, TouchedKeys};
use crate::keys::HashedKeys;
use hashbrown::HashTable;
use sluice_protocol::{KeyGroup, key_group};

/// Distinct prefixes, numbered. Reused from batch to batch.
#[derive(Debug, Default)]
pub struct Prefixes {
    hashes: Vec<u64>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    numbers: HashTable<u32>,
}

impl Prefixes {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.hashes.clear();
        self.bytes.clear();
        self.ends.clear();
        self.numbers.clear();
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The number of the prefix that this row of a batch has, whose keys were touched.
    pub fn number(&mut self, touched: &TouchedKeys, row: u32) -> u32 {
        let (hash, prefix) = touched.hashed.prefix(row as usize);
        let (bytes, ends) = (&self.bytes, &self.ends);
        if let Some(number) = self.numbers.find(hash, |number| nth(bytes, ends, *number as usize) == prefix) {
            return *number;
        }
        let number = self.hashes.len() as u32;
        self.hashes.push(hash);
        self.bytes.extend_from_slice(prefix);
        self.ends.push(self.bytes.len());
        let hashes = &self.hashes;
        self.numbers.insert_unique(hash, number, |number| hashes[*number as usize]);
        number
    }

    /// The key group of one.
    #[must_use]
    pub fn key_group(&self, number: usize, max_parallelism: u16) -> KeyGroup {
        key_group::of_hash(self.hashes[number], max_parallelism)
    }

    /// The bytes of one.
    #[must_use]
    pub fn bytes(&self, number: usize) -> &[u8] {
        nth(&self.bytes, &self.ends, number)
    }

    /// Hash and bytes of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (0..self.len()).map(|number| (self.hashes[number], nth(&self.bytes, &self.ends, number)))
    }
}

fn nth<'a>(bytes: &'a [u8], ends: &[usize], number: usize) -> &'a [u8] {
    let start = if number == 0 { 0 } else { ends[number - 1] };
    &bytes[start..ends[number]]
}

/// The rows of a table that begin with given prefixes, in the order of these. Reused from batch to batch.
///
/// They are touched: their accumulators are loaded and stored as those of [`TouchedKeys`].
#[derive(Debug, Default)]
pub struct FoundRows {
    /// The rows; [`Touched::first`] is the number of the prefix.
    pub touched: TouchedKeys,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl FoundRows {
    pub(super) fn clear(&mut self) {
        self.touched.slots.clear();
        self.touched.keys.clear();
        self.bytes.clear();
        self.ends.clear();
    }

    pub(super) fn push(&mut self, row: Touched, key: &[u8]) {
        self.touched.keys.push(row);
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.touched.keys.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.touched.keys.is_empty()
    }

    /// The encoded key of one, prefix and all.
    #[must_use]
    pub fn key(&self, row: usize) -> &[u8] {
        nth(&self.bytes, &self.ends, row)
    }

    /// The rows of each prefix, as ranges of positions: of `prefixes` prefixes.
    #[must_use]
    pub fn ranges(&self, prefixes: usize) -> Vec<std::ops::Range<usize>> {
        let mut ranges = vec![0..0; prefixes];
        for (position, row) in self.touched.keys.iter().enumerate() {
            let range = &mut ranges[row.first as usize];
            if range.start == range.end {
                *range = position..position + 1;
            } else {
                range.end = position + 1;
            }
        }
        ranges
    }
}

impl TouchedKeys {
    /// The encoded key of this row of a batch, whose keys were hashed: its prefix, and what follows.
    #[must_use]
    pub fn split(&self, row: u32) -> (&[u8], &[u8]) {
        self.hashed.key(row as usize).split_at(self.hashed.prefixes[row as usize] as usize)
    }
}

impl HashedKeys {
    /// Hash and bytes of the prefix of a row's key.
    fn prefix(&self, row: usize) -> (u64, &[u8]) {
        (self.group_hashes()[row], &self.key(row)[..self.prefixes[row] as usize])
    }
}
