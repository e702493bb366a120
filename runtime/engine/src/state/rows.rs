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
    /// Keys often come in the order of the rows, as they do when each slice of time has the same ones: each is first looked
    /// for behind the last one, and nothing is hashed before that fails.
    pub fn find_or_add(&mut self, rows: &mut RowKeys, keys: &RowKeys, slots: &mut Vec<u32>) {
        slots.clear();
        slots.reserve(keys.len());
        let mut guess = Guess::default();
        match (rows, keys) {
            (RowKeys::Bigint(rows), RowKeys::Bigint(keys)) => {
                for key in keys {
                    let slot = match guess.next().filter(|next| rows.get(*next as usize) == Some(key)) {
                        Some(next) => next,
                        None => self.bigint_slot_of(rows, *key),
                    };
                    guess.was(slot);
                    slots.push(slot);
                }
            }
            (RowKeys::Encoded(bytes, ends), RowKeys::Encoded(other_bytes, other_ends)) => {
                for row in 0..other_ends.len() {
                    let key = nth(other_bytes, other_ends, row);
                    let is_key = |next: &u32| (*next as usize) < ends.len() && nth(bytes, ends, *next as usize) == key;
                    let slot = match guess.next().filter(is_key) {
                        Some(next) => next,
                        None => self.encoded_slot_of(bytes, ends, key),
                    };
                    guess.was(slot);
                    slots.push(slot);
                }
            }
            // Two tables of one operator have keys of one kind.
            _ => debug_assert!(false, "keys of two kinds"),
        }
    }

    fn bigint_slot_of(&mut self, rows: &mut Vec<Option<i64>>, key: Option<i64>) -> u32 {
        for (row, known) in rows.iter().enumerate().skip(self.known) {
            self.bigint_slot(*known, row as u32);
        }
        let slot = self.bigint_slot(key, rows.len() as u32);
        if slot as usize == rows.len() {
            rows.push(key);
        }
        self.known = rows.len();
        slot
    }

    fn encoded_slot_of(&mut self, bytes: &mut Vec<u8>, ends: &mut Vec<usize>, key: &[u8]) -> u32 {
        for row in self.known..ends.len() {
            let hash = key_group::hash(nth(bytes, ends, row));
            let rehash = |row: &u32| key_group::hash(nth(bytes, ends, *row as usize));
            self.encoded.insert_unique(hash, row as u32, rehash);
        }
        let hash = key_group::hash(key);
        let found = self.encoded.find(hash, |slot| nth(bytes, ends, *slot as usize) == key).copied();
        let slot = found.unwrap_or_else(|| {
            let slot = ends.len() as u32;
            bytes.extend_from_slice(key);
            ends.push(bytes.len());
            let rehash = |row: &u32| key_group::hash(nth(bytes, ends, *row as usize));
            self.encoded.insert_unique(hash, slot, rehash);
            slot
        });
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

/// The row behind the last one, as long as that is often right.
#[derive(Debug, Default)]
struct Guess {
    next: u32,
    wrong: u32,
    right: u32,
}

impl Guess {
    #[inline]
    fn next(&self) -> Option<u32> {
        (self.wrong <= self.right + 8).then_some(self.next)
    }

    #[inline]
    const fn was(&mut self, slot: u32) {
        if slot == self.next {
            self.right += 1;
        } else {
            self.wrong += 1;
        }
        self.next = slot + 1;
    }
}

/// Both ends of it depend on all bits of the key.
#[inline]
const fn spread(key: i64) -> u64 {
    let product = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}
