//! All rows of one key group of a table, copied together: what an operator reads when a window fires.

use crate::error::TaskError;
use crate::keys::decode::{decode, stored_type};
use arrow::array::{ArrayRef, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::Field;
use hashbrown::HashTable;
use sluice_protocol::key_group;
use std::sync::Arc;

/// Whether a row is wanted, by its accumulators.
pub type Wanted<'a> = Option<&'a dyn Fn(&[u64]) -> bool>;

/// Keys of rows.
#[derive(Debug)]
pub enum RowKeys {
    /// Of a table whose key is one BIGINT.
    Bigint(Vec<Option<i64>>),
    /// Encoded, one after the other, and where each ends.
    Encoded(Vec<u8>, Vec<usize>),
}

impl Default for RowKeys {
    fn default() -> Self {
        Self::Bigint(Vec::new())
    }
}

impl RowKeys {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bigint(keys) => keys.len(),
            Self::Encoded(_, ends) => ends.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all; what comes is of this kind.
    pub fn clear(&mut self, is_bigint: bool) {
        match self {
            Self::Bigint(keys) if is_bigint => keys.clear(),
            Self::Encoded(bytes, ends) if !is_bigint => {
                bytes.clear();
                ends.clear();
            }
            _ if is_bigint => *self = Self::Bigint(Vec::new()),
            _ => *self = Self::Encoded(Vec::new(), Vec::new()),
        }
    }

    #[inline]
    pub(super) fn push_bigint(&mut self, key: Option<i64>) {
        if let Self::Bigint(keys) = self {
            keys.push(key);
        }
    }

    #[inline]
    pub(super) fn push_encoded(&mut self, key: &[u8]) {
        if let Self::Encoded(bytes, ends) = self {
            bytes.extend_from_slice(key);
            ends.push(bytes.len());
        }
    }

    /// Adds one of the keys of another, which is of the same kind.
    pub fn push_from(&mut self, other: &Self, row: usize) {
        match (self, other) {
            (Self::Bigint(keys), Self::Bigint(others)) => keys.push(others[row]),
            (Self::Encoded(bytes, ends), Self::Encoded(others, other_ends)) => {
                bytes.extend_from_slice(nth(others, other_ends, row));
                ends.push(bytes.len());
            }
            _ => debug_assert!(false, "keys of two kinds"),
        }
    }

    /// Adds keys of the same kind.
    pub fn append(&mut self, other: &Self) {
        match (self, other) {
            (Self::Bigint(keys), Self::Bigint(more)) => keys.extend_from_slice(more),
            (Self::Encoded(bytes, ends), Self::Encoded(more, more_ends)) => {
                let start = bytes.len();
                bytes.extend_from_slice(more);
                ends.extend(more_ends.iter().map(|end| start + end));
            }
            (_, more) => debug_assert!(more.is_empty(), "keys of two kinds"),
        }
    }

    /// Drops the keys of rows that `keep` does not want.
    fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let mut row = 0..;
        let mut is_kept = || row.next().is_some_and(&keep);
        match self {
            Self::Bigint(keys) => keys.retain(|_| is_kept()),
            Self::Encoded(bytes, ends) => {
                let (mut start, mut kept) = (0, 0);
                ends.retain_mut(|end| {
                    let key = std::mem::replace(&mut start, *end)..*end;
                    let is_kept = is_kept();
                    if is_kept {
                        bytes.copy_within(key.clone(), kept);
                        kept += key.len();
                        *end = kept;
                    }
                    is_kept
                });
                bytes.truncate(kept);
            }
        }
    }

    const fn bytes(&self) -> usize {
        match self {
            Self::Bigint(keys) => keys.capacity() * size_of::<Option<i64>>(),
            Self::Encoded(bytes, ends) => bytes.capacity() + ends.capacity() * size_of::<usize>(),
        }
    }

    /// These keys as columns of these fields.
    ///
    /// # Errors
    /// When they hold no such columns, which would be our fault.
    pub fn columns(&self, fields: &[Field]) -> Result<Vec<ArrayRef>, TaskError> {
        match self {
            Self::Bigint(keys) => Ok(vec![Arc::new(keys.iter().copied().collect::<Int64Array>())]),
            Self::Encoded(bytes, ends) => {
                let keys: Vec<&[u8]> = (0..ends.len()).map(|row| nth(bytes, ends, row)).collect();
                let types: Vec<_> = fields.iter().map(|field| stored_type(field.data_type())).collect();
                let restored = |(column, field): (ArrayRef, &Field)| {
                    if column.data_type() == field.data_type() {
                        return Ok(column);
                    }
                    let failed = |error| TaskError::Internal(format!("key '{}' of a window: {error}", field.name()));
                    cast(&column, field.data_type()).map_err(failed)
                };
                decode(&keys, &types)?.into_iter().zip(fields).map(restored).collect()
            }
        }
    }
}

fn nth<'a>(bytes: &'a [u8], ends: &[usize], row: usize) -> &'a [u8] {
    let start = if row == 0 { 0 } else { ends[row - 1] };
    &bytes[start..ends[row]]
}

/// Rows: their keys and, one after the other, their words.
#[derive(Debug, Default)]
pub struct GroupRows {
    /// Keys.
    pub keys: RowKeys,
    /// Accumulators.
    pub words: Vec<u64>,
}

impl GroupRows {
    /// Forgets all; what comes has such keys.
    pub fn clear(&mut self, is_bigint: bool) {
        self.keys.clear(is_bigint);
        self.words.clear();
    }

    /// Gives rows that [`RowIndex::find_or_add`] has added accumulators of 0.
    pub fn fill(&mut self, width: usize) {
        self.words.resize(self.keys.len() * width, 0);
    }

    /// Drops the rows whose accumulators `keep` does not want. Positions that a [`RowIndex`] gave are void afterwards.
    pub fn retain(&mut self, width: usize, keep: impl Fn(&[u64]) -> bool) {
        let Self { keys, words } = self;
        keys.retain(|row| keep(&words[row * width..][..width]));
        let mut kept = 0;
        for start in (0..words.len()).step_by(width) {
            if keep(&words[start..start + width]) {
                words.copy_within(start..start + width, kept);
                kept += width;
            }
        }
        words.truncate(kept);
    }

    /// What it takes of the memory.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.keys.bytes() + self.words.capacity() * size_of::<u64>()
    }
}

/// Finds rows of a [`GroupRows`] by their keys.
#[derive(Debug, Default)]
pub struct RowIndex {
    bigint: HashTable<(i64, u32)>,
    null: Option<u32>,
    encoded: HashTable<u32>,
    known: usize,
}

impl RowIndex {
    /// What it takes of the memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bigint.allocation_size() + self.encoded.allocation_size()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.bigint.clear();
        self.null = None;
        self.encoded.clear();
        self.known = 0;
    }

    /// Finds the rows of `keys` among those of `rows`, of which it knows all that it was given before; those that are not
    /// there are added, with no accumulators. `slots` gets the position of each.
    ///
    /// Keys often come in the order of the rows, as they do where each slice of time has the same ones: each is first looked
    /// for behind the last one, and nothing is hashed before that fails; where it fails often it is not tried further.
    pub fn find_or_add(&mut self, rows: &mut RowKeys, keys: &RowKeys, slots: &mut Vec<u32>) {
        slots.clear();
        slots.reserve(keys.len());
        match (rows, keys) {
            (RowKeys::Bigint(rows), RowKeys::Bigint(keys)) => {
                let (mut next, mut wrong) = (0, 0);
                for key in keys {
                    if rows.get(next) != Some(key) {
                        wrong += 1;
                        if wrong > wrong_guesses(slots) {
                            break;
                        }
                        self.know_bigints(rows);
                        next = self.add_bigint(rows, *key);
                    }
                    slots.push(next as u32);
                    next += 1;
                }
                if slots.len() < keys.len() {
                    self.know_bigints(rows);
                    for key in &keys[slots.len()..] {
                        slots.push(self.add_bigint(rows, *key) as u32);
                    }
                }
            }
            (RowKeys::Encoded(bytes, ends), RowKeys::Encoded(other_bytes, other_ends)) => {
                let (mut next, mut wrong) = (0, 0);
                for row in 0..other_ends.len() {
                    let key = nth(other_bytes, other_ends, row);
                    let is_tried = wrong <= wrong_guesses(slots);
                    if !is_tried || next >= ends.len() || nth(bytes, ends, next) != key {
                        wrong += 1;
                        self.know_encoded(bytes, ends);
                        next = self.add_encoded(bytes, ends, key);
                    }
                    slots.push(next as u32);
                    next += 1;
                }
            }
            // Two tables of one operator have keys of one kind.
            _ => debug_assert!(false, "keys of two kinds"),
        }
    }

    fn know_bigints(&mut self, rows: &[Option<i64>]) {
        for (row, key) in rows.iter().enumerate().skip(self.known) {
            self.bigint_slot(*key, row as u32);
        }
        self.known = rows.len();
    }

    /// The position of a key; it knows all rows.
    #[inline]
    fn add_bigint(&mut self, rows: &mut Vec<Option<i64>>, key: Option<i64>) -> usize {
        let slot = self.bigint_slot(key, rows.len() as u32) as usize;
        if slot == rows.len() {
            rows.push(key);
            self.known = rows.len();
        }
        slot
    }

    fn know_encoded(&mut self, bytes: &[u8], ends: &[usize]) {
        for row in self.known..ends.len() {
            let hash = key_group::hash(nth(bytes, ends, row));
            let rehash = |row: &u32| key_group::hash(nth(bytes, ends, *row as usize));
            self.encoded.insert_unique(hash, row as u32, rehash);
        }
        self.known = ends.len();
    }

    /// The position of a key; it knows all rows.
    fn add_encoded(&mut self, bytes: &mut Vec<u8>, ends: &mut Vec<usize>, key: &[u8]) -> usize {
        let hash = key_group::hash(key);
        if let Some(slot) = self.encoded.find(hash, |slot| nth(bytes, ends, *slot as usize) == key) {
            return *slot as usize;
        }
        let slot = ends.len();
        bytes.extend_from_slice(key);
        ends.push(bytes.len());
        let rehash = |row: &u32| key_group::hash(nth(bytes, ends, *row as usize));
        self.encoded.insert_unique(hash, slot as u32, rehash);
        self.known = ends.len();
        slot
    }

    #[inline]
    fn bigint_slot(&mut self, key: Option<i64>, next: u32) -> u32 {
        let Some(key) = key else { return *self.null.get_or_insert(next) };
        let entry = self.bigint.entry(spread(key), |(known, _)| *known == key, |(known, _)| spread(*known));
        entry.or_insert((key, next)).get().1
    }
}

/// How many keys may have been no guess, of these.
const fn wrong_guesses(slots: &[u32]) -> usize {
    8 + slots.len() / 4
}

/// Both ends of it depend on all bits of the key.
#[inline]
const fn spread(key: i64) -> u64 {
    let product = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

#[cfg(test)]
mod tests {
    use super::{GroupRows, RowIndex, RowKeys};
    use crate::testing::Random;

    /// In order, with keys between, in disorder, and with nulls: always the same as looking through all rows.
    #[test]
    fn each_key_is_found_or_added_whatever_the_order() {
        let mut random = Random(5);
        for _ in 0..200 {
            let (mut index, mut slots) = (RowIndex::default(), Vec::new());
            let (mut bigint, mut encoded) = (RowKeys::Bigint(Vec::new()), RowKeys::Encoded(Vec::new(), Vec::new()));
            let mut texts = RowIndex::default();
            let mut known: Vec<Option<i64>> = Vec::new();
            for _ in 0..4 {
                let mut keys: Vec<Option<i64>> = (0..60).filter(|_| random.below(5) > 0).map(Some).collect();
                keys.extend((random.below(3) == 0).then_some(None));
                if random.below(2) == 0 {
                    for last in (1..keys.len()).rev() {
                        keys.swap(last, random.below(last as u64 + 1) as usize);
                    }
                }
                let expected = keys.iter().map(|key| {
                    let slot = known.iter().position(|other| other == key);
                    slot.unwrap_or_else(|| {
                        known.push(*key);
                        known.len() - 1
                    }) as u32
                });
                let expected: Vec<u32> = expected.collect();
                index.find_or_add(&mut bigint, &RowKeys::Bigint(keys.clone()), &mut slots);
                assert_eq!(slots, expected);
                let mut more = RowKeys::Encoded(Vec::new(), Vec::new());
                keys.iter().for_each(|key| more.push_encoded(format!("{key:?}").as_bytes()));
                texts.find_or_add(&mut encoded, &more, &mut slots);
                assert_eq!(slots, expected, "encoded");
            }
            assert!(matches!(&bigint, RowKeys::Bigint(rows) if *rows == known));
        }
    }

    #[test]
    fn rows_that_are_not_wanted_go_with_their_keys() {
        let mut random = Random(6);
        for is_bigint in [true, false] {
            for _ in 0..100 {
                let mut rows = GroupRows::default();
                rows.clear(is_bigint);
                let (mut expected, mut words) = (GroupRows::default(), 0);
                expected.clear(is_bigint);
                for _ in 0..random.below(30) {
                    let counts = [words, random.below(2), words * 3];
                    words += 1;
                    let text = "x".repeat(random.below(5) as usize);
                    let into: &mut [&mut GroupRows] =
                        if counts[1] == 0 { &mut [&mut rows] } else { &mut [&mut rows, &mut expected] };
                    for into in into {
                        into.keys.push_bigint(Some(counts[2] as i64).filter(|_| words % 7 != 0));
                        into.keys.push_encoded(text.as_bytes());
                        into.words.extend(counts);
                    }
                }
                rows.retain(3, |words| words[1] != 0);
                assert_eq!(format!("{rows:?}"), format!("{expected:?}"));
            }
        }
    }
}
