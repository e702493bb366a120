//! Rows that expire: time to live, counted in processing time from a row's last write (Flink's `OnCreateAndWrite`,
//! `NeverReturnExpired`).
//!
//! The time of the last write stands in the row ([`super::TableLayout::updated`]), in the column [`UPDATED`] of the
//! state's files, so it survives a restore, and another TTL may be set then. A row without the time, from a snapshot of a
//! program without TTL, counts as written when it is first looked at.
//!
//! An operator calls [`Ttl::hide_expired`] on what it has loaded, [`Ttl::note`] on what it writes, [`Ttl::sweep`] after
//! each batch and [`Ttl::sweep_before_freeze`]: a bounded number of rows is looked at, in turn, and removed if expired.
//! After a batch these are several times as many as it brought new keys, so a table that only gets new keys holds at most
//! a third more than those that live.

use super::{AccumulatorColumn, KeyedTable, TableLayout};
use crate::error::TaskError;
use crate::operator::Clock;
use arrow::datatypes::DataType;
use sluice_protocol::{TimeSpan, Timestamp};

/// The name of the column with the time of the last write, in milliseconds.
pub const UPDATED: &str = "$updated";

/// Rows that are looked at after a batch at least.
const ROWS_PER_BATCH: usize = 64;

/// Rows that are looked at after a batch for each key that it brought.
const ROWS_PER_NEW_KEY: usize = 4;

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
    /// Keys that the batch brought.
    new_keys: usize,
}

impl Ttl {
    /// For a table of this layout; `None`: its rows do not expire.
    #[must_use]
    pub fn of(ttl: Option<TimeSpan>, layout: &TableLayout, clock: &Clock) -> Option<Self> {
        let (ttl, word) = ttl.zip(layout.updated)?;
        Some(Self { ttl, clock: Clock::clone(clock), word, now: Timestamp(0), new_keys: 0 })
    }

    /// A batch begins: its time.
    pub fn begin_batch(&mut self) {
        self.begin_batch_at((self.clock)());
    }

    /// A batch begins at a time that was read already: what several tables hold of one group lives equally long.
    pub const fn begin_batch_at(&mut self, now: Timestamp) {
        self.now = now;
        self.new_keys = 0;
    }

    /// When the batch began.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether this row, as loaded, has expired.
    #[must_use]
    pub fn has_expired(&self, row: &[u64]) -> bool {
        Expiry { now: self.now, ttl: self.ttl }.has_expired(row[self.word])
    }

    /// Clears the accumulators that have expired, as if their keys were new.
    pub fn hide_expired(&mut self, words: &mut [u64], width: usize) {
        for row in words.chunks_exact_mut(width) {
            self.new_keys += usize::from(row[self.word] == 0);
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
        let rows = ROWS_PER_BATCH.max(ROWS_PER_NEW_KEY * self.new_keys);
        table.expire(Expiry { now: self.now, ttl: self.ttl }, rows)
    }

    /// Before a freeze, which has begun like a batch: looks for more of them.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn sweep_before_freeze(&self, table: &mut dyn KeyedTable) -> Result<(), TaskError> {
        table.expire(Expiry { now: self.now, ttl: self.ttl }, ROWS_PER_FREEZE)
    }
}
