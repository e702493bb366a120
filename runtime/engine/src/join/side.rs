//! One side of a join: its rows by join key, with counts.

use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::operator::{Clock, OperatorContext, RestoredState, SnapshotWriter};
use crate::state::prefix::{FoundRows, Prefixes};
use crate::state::ttl::Ttl;
use crate::state::whole_rows::RowsLayout;
use crate::state::{Fate, KeyedTable, TouchedKeys};
use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use sluice_protocol::{CheckpointId, TimeSpan};
use std::sync::Arc;

/// The column with the number of matches of a row.
const MATCHES: &str = "$matches";

/// The word of how often a row is there.
const COUNT: usize = 0;

/// The word of how many rows match it, where that is counted.
const MATCHED: usize = 1;

/// What all subtasks share of one side.
pub(super) struct SidePlan {
    /// The name of the state.
    pub(super) name: &'static str,
    /// Positions of the join keys.
    pub(super) keys: Vec<usize>,
    rows: RowsLayout,
    ttl: Option<TimeSpan>,
}

impl SidePlan {
    pub(super) fn new(
        name: &'static str,
        schema: &SchemaRef,
        keys: &[usize],
        ttl: Option<TimeSpan>,
        counts_matches: bool,
    ) -> Result<Self, TaskError> {
        let counters: &[&str] = if counts_matches { &[MATCHES] } else { &[] };
        let whose = format!("the {name} side of");
        let rows = RowsLayout::new((&whose, "a join"), schema, keys, counters, ttl.is_some())?;
        Ok(Self { name, keys: keys.to_vec(), rows, ttl })
    }
}

/// One side in one subtask.
pub(super) struct Side {
    rows: RowsLayout,
    width: usize,
    table: Box<dyn KeyedTable>,
    ttl: Option<Ttl>,
    /// The distinct rows of the batch.
    pub(super) touched: TouchedKeys,
    /// How much more often each of them is there after the batch.
    pub(super) gains: Vec<i64>,
    /// The number of the join key of each of them, where it gains.
    pub(super) prefixes_of: Vec<u32>,
    prefixes: Prefixes,
    words: Vec<u64>,
    fates: Vec<Fate>,
    /// The rows that have the join keys of the other side's batch.
    pub(super) found: FoundRows,
    /// Which of them have each of these keys.
    pub(super) ranges: Vec<std::ops::Range<usize>>,
}

impl Side {
    pub(super) fn open(
        plan: &SidePlan,
        context: &OperatorContext,
        state: &RestoredState,
        clock: &Clock,
    ) -> Result<Self, TaskError> {
        let mut table = context.keyed_table(plan.name, Arc::clone(&plan.rows.layout))?;
        let own: Vec<_> = state.keyed.iter().filter(|file| file.name == plan.name).cloned().collect();
        table.restore(&context.uid, &own)?;
        let ttl = plan.ttl.zip(plan.rows.layout.updated);
        Ok(Self {
            rows: plan.rows.clone(),
            width: plan.rows.layout.words,
            table,
            ttl: ttl.map(|(ttl, word)| Ttl::new(ttl, word, Clock::clone(clock))),
            touched: TouchedKeys::default(),
            gains: Vec::new(),
            prefixes_of: Vec::new(),
            prefixes: Prefixes::default(),
            words: Vec::new(),
            fates: Vec::new(),
            found: FoundRows::default(),
            ranges: Vec::new(),
        })
    }

    /// Counts the rows of a batch, whose keys have no NULL; [`Side::store`] must follow.
    pub(super) fn count(&mut self, batch: &Batch) -> Result<(), TaskError> {
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
        }
        self.table.touch(&batch.rows, &self.rows.columns, &mut self.touched)?;
        self.table.load(&self.touched, &mut self.words);
        if let Some(ttl) = &mut self.ttl {
            ttl.hide_expired(&mut self.words, self.width);
        }
        let before = self.words.chunks_exact(self.width).map(|row| row[COUNT] as i64);
        self.gains.clear();
        self.gains.extend(before.map(|count| -count));
        let kinds = batch.kinds.as_ref().map(|kinds| kinds.values());
        for (row, slot) in self.touched.slots.iter().enumerate() {
            let count = &mut self.words[*slot as usize * self.width + COUNT];
            *count = match kinds.is_some_and(|kinds| goes(kinds[row])) {
                true => count.saturating_sub(1),
                false => *count + 1,
            };
        }
        self.prefixes.clear();
        self.prefixes_of.clear();
        for (slot, row) in self.words.chunks_exact(self.width).enumerate() {
            self.gains[slot] += row[COUNT] as i64;
            let number = match self.gains[slot] {
                0 => 0,
                _ => self.prefixes.number(&self.touched, self.touched.keys[slot].first),
            };
            self.prefixes_of.push(number);
        }
        Ok(())
    }

    /// Finds the rows that have the join keys of rows that gain on the other side.
    pub(super) fn find(&mut self, other: &Self) -> Result<(), TaskError> {
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
        }
        self.table.find_by_prefix(&other.prefixes, &mut self.found)?;
        self.table.load(&self.found.touched, &mut self.words);
        self.ranges = self.found.ranges(other.prefixes.len());
        Ok(())
    }

    /// How often each found row is there; 0 when it has expired.
    pub(super) fn counts(&self) -> Vec<i64> {
        let expired = |row: &[u64]| self.ttl.as_ref().is_some_and(|ttl| ttl.has_expired(row));
        self.words.chunks_exact(self.width).map(|row| if expired(row) { 0 } else { row[COUNT] as i64 }).collect()
    }

    /// How many rows match each found row.
    pub(super) fn matches(&self) -> Vec<i64> {
        if self.width <= MATCHED {
            return Vec::new();
        }
        self.words.chunks_exact(self.width).map(|row| row[MATCHED] as i64).collect()
    }

    /// The columns of the found rows.
    pub(super) fn found_columns(&self) -> Result<Vec<ArrayRef>, TaskError> {
        self.rows.found(&self.found)
    }

    /// The rows of the batch that come have so many matches.
    pub(super) fn set_matches(&mut self, matches: &[i64]) {
        let rows = self.words.chunks_exact_mut(self.width).zip(matches).zip(&self.gains);
        rows.filter(|(_, gain)| **gain > 0).for_each(|((row, matches), _)| row[MATCHED] = *matches as u64);
    }

    /// Found rows have so many more matches, or fewer.
    pub(super) fn add_matches(&mut self, gained: &[i64]) -> Result<(), TaskError> {
        self.fates.clear();
        for (row, gained) in self.words.chunks_exact_mut(self.width).zip(gained) {
            if *gained != 0 {
                row[MATCHED] = (row[MATCHED] as i64 + gained).max(0) as u64;
                if let Some(ttl) = &self.ttl {
                    ttl.note(row);
                }
            }
            self.fates.push(if *gained == 0 { Fate::Keep } else { Fate::Write });
        }
        self.table.store(&self.found.touched, &self.words, &self.fates)
    }

    /// Takes the counts of the batch's rows over.
    pub(super) fn store(&mut self) -> Result<(), TaskError> {
        self.fates.clear();
        for (row, gain) in self.words.chunks_exact_mut(self.width).zip(&self.gains) {
            self.fates.push(match (row[COUNT], gain, &self.ttl) {
                (0, _, _) => Fate::Remove,
                (_, 0, None) => Fate::Keep,
                (_, _, None) => Fate::Write,
                (_, _, Some(ttl)) => {
                    ttl.note(row);
                    Fate::Write
                }
            });
        }
        self.table.store(&self.touched, &self.words, &self.fates)
    }

    /// Looks for rows that have expired.
    pub(super) fn sweep(&mut self) -> Result<(), TaskError> {
        self.ttl.as_ref().map_or(Ok(()), |ttl| ttl.sweep(self.table.as_mut()))
    }

    pub(super) fn freeze(&mut self, checkpoint: CheckpointId) -> Result<Box<dyn SnapshotWriter>, TaskError> {
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
            ttl.sweep_before_freeze(self.table.as_mut())?;
        }
        self.table.freeze(checkpoint)
    }
}

/// Whether a row of this kind takes one back.
pub(super) const fn goes(kind: u8) -> bool {
    kind == RowKind::UpdateBefore as u8 || kind == RowKind::Delete as u8
}
