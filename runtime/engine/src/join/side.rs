//! One side of a join: its rows by join key, with counts.

use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::event_time::KeyGroupWatermarks;
use crate::operator::{Clock, OperatorContext, RestoredState, SnapshotWriter};
use crate::state::due::{self, DueRows};
use crate::state::prefix::{FoundRows, Prefixes};
use crate::state::ttl::Ttl;
use crate::state::whole_rows::RowsLayout;
use crate::state::{Fate, KeyedTable, TouchedKeys};
use crate::window::kind::milliseconds;
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::SchemaRef;
use sluice_protocol::{CheckpointId, TimeSpan};
use std::sync::Arc;

/// The column with the number of matches of a row.
const MATCHES: &str = "$matches";

/// The word of how often a row is there.
const COUNT: usize = 0;

/// The word of how many rows match it, where that is counted.
const MATCHED: usize = 1;

/// Until when the rows of a side can meet others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowBound {
    /// The column with the time of a row; a row without one meets no other.
    pub column: usize,
    /// A row at t is over when the watermark has come to t and so many milliseconds.
    pub keep: i64,
}

/// Rows of a side that are over.
pub(super) struct OverRows {
    /// Their columns.
    pub(super) columns: Vec<ArrayRef>,
    /// How often each comes out without a match.
    pub(super) lonely: Vec<i64>,
}

/// What all subtasks share of one side.
pub(super) struct SidePlan {
    /// The name of the state.
    pub(super) name: &'static str,
    /// Positions of the join keys.
    pub(super) keys: Vec<usize>,
    rows: RowsLayout,
    ttl: Option<TimeSpan>,
    bound: Option<RowBound>,
    /// The word of when a row is over, where that is bounded.
    over: usize,
    bucket: i64,
}

impl SidePlan {
    pub(super) fn new(
        name: &'static str,
        schema: &SchemaRef,
        keys: &[usize],
        ttl: Option<TimeSpan>,
        counts_matches: bool,
        (bound, bucket): (Option<RowBound>, i64),
    ) -> Result<Self, TaskError> {
        let mut counters = if counts_matches { vec![MATCHES] } else { Vec::new() };
        let over = 1 + counters.len();
        counters.extend(bound.map(|_| due::OVER));
        let whose = format!("the {name} side of");
        let rows = RowsLayout::new((&whose, "a join"), schema, keys, &counters, ttl.is_some())?;
        Ok(Self { name, keys: keys.to_vec(), rows, ttl, bound, over, bucket })
    }
}

/// One side in one subtask.
pub(super) struct Side {
    rows: RowsLayout,
    width: usize,
    table: Box<dyn KeyedTable>,
    ttl: Option<Ttl>,
    bound: Option<RowBound>,
    over: usize,
    due: Option<DueRows>,
    max_parallelism: u16,
    /// Whether each distinct row of the batch is over already, where that is bounded.
    pub(super) late: Vec<bool>,
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
        let due = plan.bound.map(|_| DueRows::open(table.as_ref(), plan.over, plan.bucket)).transpose()?;
        Ok(Self {
            rows: plan.rows.clone(),
            width: plan.rows.layout.words,
            table,
            ttl: Ttl::of(plan.ttl, &plan.rows.layout, clock),
            bound: plan.bound,
            over: plan.over,
            due,
            max_parallelism: context.max_parallelism,
            late: Vec::new(),
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

    /// Notes when the rows of the batch are over; those that are already gain nothing if they are dropped.
    pub(super) fn bound(
        &mut self,
        batch: &Batch,
        watermarks: &KeyGroupWatermarks,
        drops_late: bool,
    ) -> Result<u64, TaskError> {
        self.late.clear();
        let Some(bound) = self.bound else { return Ok(0) };
        let times = milliseconds(batch.rows.column(bound.column))?;
        let mut dropped = 0;
        for (slot, key) in self.touched.keys.iter().enumerate() {
            let row = key.first as usize;
            let over = times.is_valid(row).then(|| times.value(row).saturating_add(bound.keep));
            let watermark = || watermarks.of(self.touched.key_group(key.first, self.max_parallelism));
            let is_late = over.is_none_or(|over| over <= watermarks.uniform().unwrap_or_else(watermark));
            self.late.push(is_late);
            let words = &mut self.words[slot * self.width..][..self.width];
            words[self.over] = over.unwrap_or(i64::MIN) as u64;
            if is_late {
                // What was kept before of rows like it is over too, and waits to be taken out.
                words[COUNT] = (words[COUNT] as i64 - self.gains[slot]) as u64;
            }
            if is_late && drops_late {
                dropped += self.gains[slot].unsigned_abs();
                self.gains[slot] = 0;
            } else if !is_late && let (Some(due), Some(over)) = (&mut self.due, over) {
                due.note(over);
            }
        }
        Ok(dropped)
    }

    /// What is over of the next key group.
    pub(super) fn next_over(&mut self, watermarks: &KeyGroupWatermarks) -> Result<Option<OverRows>, TaskError> {
        let Some(due) = &mut self.due else { return Ok(None) };
        let Some(over) = due.next(self.table.as_mut(), watermarks)? else { return Ok(None) };
        let counts_matches = self.over > MATCHED;
        let count = |row: &[u64]| if counts_matches && row[MATCHED] == 0 { row[COUNT] as i64 } else { 0 };
        let lonely = over.words.chunks_exact(self.width).map(count).collect();
        Ok(Some(OverRows { columns: self.rows.in_order(&over.columns)?, lonely }))
    }

    /// Hides the found rows that are over, which the watermark has not removed yet.
    pub(super) fn hide_over(&mut self, other: &Self, watermarks: &KeyGroupWatermarks) {
        if self.bound.is_none() {
            return;
        }
        for (key, words) in self.found.touched.keys.iter().zip(self.words.chunks_exact_mut(self.width)) {
            let of_group = || watermarks.of(other.prefixes.key_group(key.first as usize, self.max_parallelism));
            if words[self.over] as i64 <= watermarks.uniform().unwrap_or_else(of_group) {
                words[COUNT] = 0;
            }
        }
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
        let is_bounded = self.bound.is_some();
        rows.filter(|(_, gain)| **gain > 0).for_each(|((row, matches), _)| {
            // What it matched may be over by now.
            row[MATCHED] = if is_bounded { row[MATCHED].max(*matches as u64) } else { *matches as u64 };
        });
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
        for (slot, (row, gain)) in self.words.chunks_exact_mut(self.width).zip(&self.gains).enumerate() {
            if self.late.get(slot).is_some_and(|late| *late) {
                self.fates.push(if row[COUNT] == 0 { Fate::Remove } else { Fate::Keep });
                continue;
            }
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
