//! The rows of a batch, gathered into sessions as far as the batch tells.

use crate::aggregate::accumulate::{Signs, count};
use crate::aggregate::{Plan as Calls, ROWS};
use crate::error::TaskError;
use arrow::array::RecordBatch;

/// Rows of one key that are one session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) slot: u32,
    pub(super) start: i64,
    pub(super) end: i64,
    /// The first of its rows.
    pub(super) first: u32,
}

/// The segments of a batch, in the order of their first rows. Reused from batch to batch.
#[derive(Debug, Default)]
pub(super) struct Segments {
    all: Vec<Segment>,
    /// Per row: its segment.
    of_rows: Vec<u32>,
    /// Per key: its last segment.
    latest: Vec<u32>,
    /// Per key: whether a row of it may be late, so that each stands for itself.
    careful: Vec<bool>,
    words: Vec<u64>,
    width: usize,
    filtered: Signs,
}

const NONE: u32 = u32::MAX;

impl Segments {
    pub(super) fn gather(
        &mut self,
        (slots, keys): (&[u32], usize),
        times: &[i64],
        gap: i64,
        watermark_of: &impl Fn(usize) -> i64,
    ) {
        self.all.clear();
        self.of_rows.clear();
        self.latest.clear();
        self.latest.resize(keys, NONE);
        self.careful.clear();
        self.careful.resize(keys, false);
        for (row, (slot, time)) in slots.iter().zip(times).enumerate() {
            if time.saturating_add(gap).saturating_sub(1) <= watermark_of(row) {
                self.careful[*slot as usize] = true;
            }
        }
        for (row, (slot, start)) in slots.iter().zip(times.iter().copied()).enumerate() {
            let (end, latest) = (start.saturating_add(gap), self.latest[*slot as usize]);
            let open = self.all.get_mut(latest as usize).filter(|_| !self.careful[*slot as usize]);
            if let Some(segment) = open.filter(|segment| segment.start <= end && start <= segment.end) {
                segment.start = segment.start.min(start);
                segment.end = segment.end.max(end);
                self.of_rows.push(latest);
                continue;
            }
            let number = self.all.len() as u32;
            self.all.push(Segment { slot: *slot, start, end, first: row as u32 });
            self.latest[*slot as usize] = number;
            self.of_rows.push(number);
        }
    }

    /// Adds the rows to the accumulators of their segments.
    pub(super) fn accumulate(&mut self, calls: &Calls, rows: &RecordBatch) -> Result<(), TaskError> {
        self.width = calls.layout.words;
        self.words.clear();
        self.words.resize(self.all.len() * self.width, 0);
        let all = Signs::default();
        count(&mut self.words, self.width, ROWS, &self.of_rows, &all);
        for call in &calls.calls {
            let mut signs = &all;
            if let Some(filter) = call.filter {
                self.filtered.filter(&all, rows.column(filter));
                signs = &self.filtered;
            }
            call.accumulator.add(&mut self.words, self.width, &self.of_rows, signs, rows)?;
        }
        Ok(())
    }

    /// Each with its accumulators.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Segment, &[u64])> {
        self.all.iter().copied().zip(self.words.chunks_exact(self.width))
    }
}
