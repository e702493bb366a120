//! Rows that are over when the watermark has come to a time of their own: found, handed out and removed, one key group
//! after the other (B4, W1).
//!
//! The time stands in a word of the row. In memory there are only the times at which something is due, to the length of a
//! bucket: when the watermark has passed one, the key groups are read through. What was handed out is removed before, so a
//! snapshot between two key groups holds just what is still due.

use super::rows::GroupRows;
use super::{AccumulatorColumn, Fate, KeyedTable, TouchedKeys};
use crate::error::TaskError;
use crate::event_time::KeyGroupWatermarks;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Schema};
use sluice_protocol::KeyGroup;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The column with the time at which a row is over, in milliseconds since 1970.
pub const OVER: &str = "$over";

/// The column of a table's layout, with the word that it takes.
#[must_use]
pub fn column(word: usize) -> AccumulatorColumn {
    AccumulatorColumn { name: OVER.to_owned(), data_type: DataType::Int64, word, null_while_zero: None }
}

/// Finds the rows of one table that are due.
#[derive(Debug)]
pub struct DueRows {
    word: usize,
    bucket: i64,
    /// Beginnings of buckets in which rows are over.
    buckets: BTreeSet<i64>,
    /// The next key group to be read, while some are due.
    next: Option<u16>,
    read: GroupRows,
    touched: TouchedKeys,
}

/// Rows that are over, all of one key group.
#[derive(Debug)]
pub struct Over {
    /// Their columns, as the table has them.
    pub columns: Vec<ArrayRef>,
    /// Their words, one row after the other.
    pub words: Vec<u64>,
}

impl DueRows {
    /// Of a table as it was restored, whose word `word` is the time; it is kept to `bucket` milliseconds, at least 1.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn open(table: &dyn KeyedTable, word: usize, bucket: i64) -> Result<Self, TaskError> {
        let mut due = Self {
            word,
            bucket: bucket.max(1),
            buckets: BTreeSet::new(),
            next: None,
            read: GroupRows::default(),
            touched: TouchedKeys::default(),
        };
        let (groups, width) = (table.key_groups(), table.layout().words);
        for group in groups.start..groups.end {
            table.read_group(KeyGroup(group), None, &mut due.read)?;
            let times: BTreeSet<i64> = due.read.words.chunks_exact(width).map(|row| row[word] as i64).collect();
            times.into_iter().for_each(|time| due.note(time));
        }
        Ok(due)
    }

    /// A row that is over at this time is kept now.
    pub fn note(&mut self, time: i64) {
        self.buckets.insert(time.div_euclid(self.bucket) * self.bucket);
    }

    /// The rows of the next key group that has some that are over; they are not in the table any more. `None`: all that
    /// is due was handed out.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn next(
        &mut self,
        table: &mut dyn KeyedTable,
        watermarks: &KeyGroupWatermarks,
    ) -> Result<Option<Over>, TaskError> {
        let groups = table.key_groups();
        if self.next.is_none() {
            let highest = match watermarks.uniform() {
                Some(watermark) => watermark,
                None => {
                    (groups.start..groups.end).map(|group| watermarks.of(KeyGroup(group))).max().unwrap_or(i64::MIN)
                }
            };
            if !self.buckets.first().is_some_and(|first| self.ends_by(*first, highest)) {
                return Ok(None);
            }
            self.next = Some(groups.start);
        }
        while let Some(group) = self.next.filter(|group| *group < groups.end) {
            self.next = Some(group + 1);
            let over = self.take(table, KeyGroup(group), watermarks.of(KeyGroup(group)))?;
            if over.is_some() {
                return Ok(over);
            }
        }
        self.next = None;
        // What all key groups have passed is over everywhere.
        let least = watermarks.current();
        while self.buckets.first().is_some_and(|first| self.ends_by(*first, least)) {
            self.buckets.pop_first();
        }
        Ok(None)
    }

    /// Whether the watermark has passed a bucket.
    const fn ends_by(&self, bucket: i64, watermark: i64) -> bool {
        bucket.saturating_add(self.bucket - 1) <= watermark
    }

    fn take(&mut self, table: &mut dyn KeyedTable, group: KeyGroup, watermark: i64) -> Result<Option<Over>, TaskError> {
        let layout = Arc::clone(table.layout());
        let word = self.word;
        table.read_group(group, Some(&|row: &[u64]| row[word] as i64 <= watermark), &mut self.read)?;
        if self.read.keys.is_empty() {
            return Ok(None);
        }
        let columns = self.read.keys.columns(&layout.keys)?;
        let words = std::mem::take(&mut self.read.words);
        let fields: Vec<_> = layout.keys.iter().map(|field| field.clone().with_nullable(true)).collect();
        let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.clone());
        let rows = rows.map_err(|error| TaskError::Internal(format!("rows that are over: {error}")))?;
        let all: Vec<usize> = (0..columns.len()).collect();
        table.touch(&rows, &all, &mut self.touched)?;
        let mut nothing = Vec::new();
        table.load(&self.touched, &mut nothing);
        table.store(&self.touched, &nothing, &vec![Fate::Remove; self.touched.keys.len()])?;
        Ok(Some(Over { columns, words }))
    }
}
