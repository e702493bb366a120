//! Rows that expire: time to live, counted in processing time from a row's last write (Flink's `OnCreateAndWrite`,
//! `NeverReturnExpired`).
//!
//! The time of the last write stands in the row ([`super::TableLayout::updated`]), in the column [`UPDATED`] of the
//! state's files, so it survives a restore, and another TTL may be set then. A row without the time, from a snapshot of a
//! program without TTL, counts as written when it is first looked at.
//!
//! An operator calls [`Ttl::hide_expired`] on what it has loaded, [`Ttl::note`] on what it writes, and [`Ttl::sweep`]
//! after each batch and before each freeze: a bounded number of rows is looked at, in turn, and removed if expired.

use super::{AccumulatorColumn, KeyedTable};
use crate::error::TaskError;
use crate::operator::Clock;
use arrow::datatypes::DataType;
use sluice_protocol::{TimeSpan, Timestamp};

/// The name of the column with the time of the last write, in milliseconds.
pub const UPDATED: &str = "$updated";

/// Rows that are looked at after a batch.
const ROWS_PER_BATCH: usize = 64;

/// Rows that are looked at before a freeze.
const ROWS_PER_FREEZE: usize = 4096;

/// Which rows have expired.
#[derive(Debug, Clone, Copy)]
pub struct Expiry {
    /// The time.
    pub now: Timestamp,
    /// How long a row lives after its last write.
    pub ttl: TimeSpan,
}

impl Expiry {
    /// Whether a row that was written then has expired. One whose time is not known has not.
    #[must_use]
    pub const fn has_expired(&self, updated: u64) -> bool {
        updated != 0 && updated.saturating_add(self.ttl.0) <= self.now.0
    }
}

/// The column of a table's layout, with the word that it takes.
#[must_use]
pub fn column(word: usize) -> AccumulatorColumn {
    AccumulatorColumn { name: UPDATED.to_owned(), data_type: DataType::Int64, word, null_while_zero: Some(word) }
}

/// Lets the rows of a table expire.
pub struct Ttl {
    ttl: TimeSpan,
    clock: Clock,
    word: usize,
    now: Timestamp,
}

impl Ttl {
    /// For a table whose word `word` is the time of the last write.
    #[must_use]
    pub fn new(ttl: TimeSpan, word: usize, clock: Clock) -> Self {
        Self { ttl, clock, word, now: Timestamp(0) }
    }

    /// A batch begins: its time.
    pub fn begin_batch(&mut self) {
        self.now = (self.clock)();
    }

    /// Whether this row, as loaded, has expired.
    #[must_use]
    pub fn has_expired(&self, row: &[u64]) -> bool {
        Expiry { now: self.now, ttl: self.ttl }.has_expired(row[self.word])
    }

    /// Clears the accumulators that have expired, as if their keys were new.
    pub fn hide_expired(&self, words: &mut [u64], width: usize) {
        for row in words.chunks_exact_mut(width) {
            if self.has_expired(row) {
                row.fill(0);
            }
        }
    }

    /// This row is written now.
    pub fn note(&self, row: &mut [u64]) {
        row[self.word] = self.now.0.max(1);
    }

    /// After a batch: looks for rows that have expired.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn sweep(&self, table: &mut dyn KeyedTable) -> Result<(), TaskError> {
        table.expire(Expiry { now: self.now, ttl: self.ttl }, ROWS_PER_BATCH)
    }

    /// Before a freeze: looks for more of them.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn sweep_before_freeze(&mut self, table: &mut dyn KeyedTable) -> Result<(), TaskError> {
        self.begin_batch();
        table.expire(Expiry { now: self.now, ttl: self.ttl }, ROWS_PER_FREEZE)
    }
}
