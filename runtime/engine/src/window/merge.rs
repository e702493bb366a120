//! The rows of several slices of one key group, put together.

use crate::aggregate::{Plan as Calls, ROWS};
use crate::state::rows::{GroupRows, RowIndex, RowKeys};

/// The rows of slices of one key group: others are added, and taken away again.
#[derive(Debug, Default)]
pub(super) struct Total {
    pub(super) rows: GroupRows,
    index: RowIndex,
}

impl Total {
    /// Adds the rows of a slice, which are void afterwards, as `slots` are.
    pub(super) fn add(&mut self, slice: &mut GroupRows, calls: &Calls, slots: &mut Vec<u32>) {
        if self.rows.keys.is_empty() {
            std::mem::swap(&mut self.rows, slice);
            return;
        }
        let width = calls.layout.words;
        self.index.find_or_add(&mut self.rows.keys, &slice.keys, slots);
        self.rows.fill(width);
        for (slot, from) in slots.iter().zip(slice.words.chunks_exact(width)) {
            let count = &mut self.rows.words[*slot as usize * width + ROWS];
            *count = count.wrapping_add(from[ROWS]);
        }
        for call in &calls.calls {
            call.accumulator.merge(&mut self.rows.words, width, slots, &slice.words);
        }
    }

    /// Takes the rows of a slice away that was added; `slots` are void afterwards.
    pub(super) fn retract(&mut self, slice: &GroupRows, calls: &Calls, slots: &mut Vec<u32>) {
        let width = calls.layout.words;
        self.index.find_or_add(&mut self.rows.keys, &slice.keys, slots);
        debug_assert_eq!(self.rows.keys.len() * width, self.rows.words.len(), "a slice that was not added");
        self.rows.fill(width);
        let mut some_are_over = false;
        for (slot, from) in slots.iter().zip(slice.words.chunks_exact(width)) {
            let count = &mut self.rows.words[*slot as usize * width + ROWS];
            *count = count.wrapping_sub(from[ROWS]);
            some_are_over |= *count == 0;
        }
        for call in &calls.calls {
            call.accumulator.retract(&mut self.rows.words, width, slots, &slice.words);
        }
        if some_are_over {
            self.rows.retain(width, |words| words[ROWS] != 0);
            self.index.clear();
        }
    }

    /// What it takes of the memory.
    pub(super) fn bytes(&self) -> usize {
        self.rows.bytes() + self.index.bytes()
    }

    fn clear(&mut self) {
        self.index.clear();
        let is_bigint = matches!(self.rows.keys, RowKeys::Bigint(_));
        self.rows.clear(is_bigint);
    }
}

/// Rows of a window, one after the other: those of finished key groups, then those of the current one.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// Of the current key group.
    group: Total,
    pub(super) slots: Vec<u32>,
    /// Of finished ones.
    pub(super) keys: RowKeys,
    pub(super) words: Vec<u64>,
}

impl Merged {
    /// Adds the rows of a slice to the current key group; `rows` is void afterwards.
    pub(super) fn add(&mut self, rows: &mut GroupRows, calls: &Calls) {
        self.group.add(rows, calls, &mut self.slots);
    }

    /// The current key group is finished.
    pub(super) fn finish_group(&mut self) {
        let rows = &mut self.group.rows;
        if self.keys.is_empty() {
            std::mem::swap(&mut self.keys, &mut rows.keys);
            std::mem::swap(&mut self.words, &mut rows.words);
        } else {
            self.keys.append(&rows.keys);
            self.words.extend_from_slice(&rows.words);
        }
        self.group.clear();
    }

    /// These are the rows of a key group.
    pub(super) fn append(&mut self, rows: &GroupRows) {
        if self.keys.is_empty() {
            self.keys.clear(matches!(rows.keys, RowKeys::Bigint(_)));
        }
        self.keys.append(&rows.keys);
        self.words.extend_from_slice(&rows.words);
    }

    /// Forgets the finished ones.
    pub(super) fn clear(&mut self) {
        let is_bigint = matches!(self.keys, RowKeys::Bigint(_));
        self.keys.clear(is_bigint);
        self.words.clear();
    }
}
