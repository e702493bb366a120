//! The rows of several slices of one key group, put together.

use crate::aggregate::{Call, ROWS};
use crate::state::rows::{GroupRows, RowIndex, RowKeys};

/// Rows of a window, one after the other: those of finished key groups, then those of the current one.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// Of the current key group.
    group: GroupRows,
    index: RowIndex,
    slots: Vec<u32>,
    /// Of finished ones.
    pub(super) keys: RowKeys,
    pub(super) words: Vec<u64>,
}

impl Merged {
    /// Adds the rows of a slice to the current key group; `rows` is void afterwards.
    pub(super) fn add(&mut self, rows: &mut GroupRows, calls: &[Call], width: usize) {
        if self.group.keys.is_empty() {
            std::mem::swap(&mut self.group, rows);
            return;
        }
        self.index.find_or_add(&mut self.group.keys, &rows.keys, &mut self.slots);
        self.group.fill(width);
        for (slot, from) in self.slots.iter().zip(rows.words.chunks_exact(width)) {
            let count = &mut self.group.words[*slot as usize * width + ROWS];
            *count = count.wrapping_add(from[ROWS]);
        }
        for call in calls {
            call.accumulator.merge(&mut self.group.words, width, &self.slots, &rows.words);
        }
    }

    /// The current key group is finished.
    pub(super) fn finish_group(&mut self) {
        self.index.clear();
        if self.keys.is_empty() {
            std::mem::swap(&mut self.keys, &mut self.group.keys);
            std::mem::swap(&mut self.words, &mut self.group.words);
        } else {
            self.keys.append(&self.group.keys);
            self.words.extend_from_slice(&self.group.words);
        }
        let is_bigint = matches!(self.keys, RowKeys::Bigint(_));
        self.group.clear(is_bigint);
    }

    /// Forgets the finished ones.
    pub(super) fn clear(&mut self) {
        let is_bigint = matches!(self.keys, RowKeys::Bigint(_));
        self.keys.clear(is_bigint);
        self.words.clear();
    }
}
