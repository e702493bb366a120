//! The values of each group, for aggregates that need them: how often each came, in a table of their own.
//!
//! Keys of the table are the group's keys and the value; the group's keys decide the key group, as those of the group do.
//! - DISTINCT: a value counts when its count leaves 0, and is retracted when it comes to 0.
//! - MIN and MAX over a changelog: when the extremum goes, the values of its group are looked through for the next one.
//!   That costs as many steps as the group has distinct values, as in Flink; all other rows cost one look-up.
//! - MIN and MAX of text: the extremum is one of the kept values ([`text`]); where rows only come, no other is kept.

#[cfg(test)]
mod tests;
mod text;

use super::accumulate::Signs;
use super::extremum::Extremum;
use crate::error::TaskError;
use crate::keys::decode::{decode, stored_type};
use crate::operator::{Clock, OperatorContext, RestoredState, SnapshotWriter};
use crate::state::file::ROWS;
use crate::state::prefix::{FoundRows, Prefixes};
use crate::state::ttl::{self, Ttl};
use crate::state::{Fate, KeyedTable, TableLayout, TouchedKeys};
use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};
use std::sync::Arc;
use text::Recent;

/// What the values of a call are kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Each counts once.
    Distinct,
    /// One of them is the extremum, which the group holds.
    Extremum,
    /// One of them is the extremum; `alone`: no other is kept.
    Text { most: bool, alone: bool },
}

/// What all subtasks share of one call's values.
pub(super) struct ValuesPlan {
    /// The name of the state.
    pub(super) name: String,
    pub(super) role: Role,
    /// The keys of the group, then the argument.
    columns: Vec<usize>,
    layout: Arc<TableLayout>,
}

impl ValuesPlan {
    pub(super) fn new(
        role: Role,
        call: &str,
        (keys, key_fields): (&[usize], &[Field]),
        (argument, field): (usize, &Field),
        expires: bool,
    ) -> Self {
        let mut fields = key_fields.to_vec();
        fields.push(field.clone().with_name(call));
        let mut accumulators = vec![super::bigint(ROWS, 0)];
        let updated = expires.then_some(1);
        accumulators.extend(updated.map(ttl::column));
        let layout =
            TableLayout { words: accumulators.len(), keys: fields, accumulators, prefix: Some(keys.len()), updated };
        let columns = keys.iter().copied().chain([argument]).collect();
        Self { name: format!("values-{call}"), role, columns, layout: Arc::new(layout) }
    }

    fn argument(&self) -> usize {
        self.columns[self.columns.len() - 1]
    }
}

/// The values of one call in one subtask.
pub(super) struct Values {
    plan: Arc<ValuesPlan>,
    table: Box<dyn KeyedTable>,
    ttl: Option<Ttl>,
    touched: TouchedKeys,
    /// Counts as they were loaded and are to be stored.
    words: Vec<u64>,
    written: Vec<bool>,
    fates: Vec<Fate>,
    prefixes: Prefixes,
    found: FoundRows,
    /// Of text: the encoded extremum of each group of the batch, before it and after.
    pub(super) before: Vec<Option<Vec<u8>>>,
    pub(super) after: Vec<Option<Vec<u8>>>,
    recent: Recent,
}

impl Values {
    pub(super) fn open(
        plan: &Arc<ValuesPlan>,
        context: &OperatorContext,
        state: &RestoredState,
        ttl: Option<(TimeSpan, &Clock)>,
    ) -> Result<Self, TaskError> {
        let mut table = context.keyed_table(&plan.name, Arc::clone(&plan.layout))?;
        let own: Vec<_> = state.keyed.iter().filter(|file| file.name == plan.name).cloned().collect();
        table.restore(&context.uid, &own)?;
        Ok(Self {
            plan: Arc::clone(plan),
            table,
            ttl: ttl.and_then(|(ttl, clock)| Ttl::of(Some(ttl), &plan.layout, clock)),
            touched: TouchedKeys::default(),
            words: Vec::new(),
            written: Vec::new(),
            fates: Vec::new(),
            prefixes: Prefixes::default(),
            found: FoundRows::default(),
            before: Vec::new(),
            after: Vec::new(),
            recent: Recent::default(),
        })
    }

    /// A batch, or a freeze, begins at the time at which it begins for the groups.
    pub(super) fn begin_batch_at(&mut self, now: Timestamp) {
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch_at(now);
        }
    }

    /// Counts the values of the rows that count. `news` learns which of them made a value come (+1) or go (−1).
    pub(super) fn count(&mut self, rows: &RecordBatch, signs: &Signs, news: &mut Signs) -> Result<(), TaskError> {
        self.tally(rows, signs, news)?;
        self.store()
    }

    /// As [`Self::count`], but [`Self::store`] must follow.
    fn tally(&mut self, rows: &RecordBatch, signs: &Signs, news: &mut Signs) -> Result<(), TaskError> {
        let width = self.plan.layout.words;
        self.table.touch(rows, &self.plan.columns, &mut self.touched)?;
        self.table.load(&self.touched, &mut self.words);
        if let Some(ttl) = &mut self.ttl {
            ttl.hide_expired(&mut self.words, width);
        }
        self.written.clear();
        self.written.resize(self.touched.keys.len(), false);
        news.signs.clear();
        let nulls = rows.column(self.plan.argument()).logical_nulls();
        for (row, slot) in self.touched.slots.iter().enumerate() {
            let sign = if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) { 0 } else { signs.of_row(row) };
            let entry = &mut self.words[*slot as usize * width..][..width];
            let before = entry[0] as i64;
            let after = (before + sign).max(0);
            entry[0] = after as u64;
            self.written[*slot as usize] |= sign != 0;
            news.signs.push(i64::from(after > 0) - i64::from(before > 0));
        }
        Ok(())
    }

    fn store(&mut self) -> Result<(), TaskError> {
        self.fates.clear();
        for (entry, written) in self.words.chunks_exact_mut(self.plan.layout.words).zip(&self.written) {
            self.fates.push(match (entry[0], written) {
                (0, _) => Fate::Remove,
                (_, true) => {
                    if let Some(ttl) = &self.ttl {
                        ttl.note(entry);
                    }
                    Fate::Write
                }
                (_, false) => Fate::Keep,
            });
        }
        self.table.store(&self.touched, &self.words, &self.fates)
    }

    /// After [`Self::count`] and after the group took the values that came: where the extremum of a group has gone, the
    /// next one is looked for.
    pub(super) fn replace_gone(
        &mut self,
        extremum: &Extremum,
        rows: &RecordBatch,
        groups: &TouchedKeys,
        (new, words): (&mut [u64], usize),
    ) -> Result<(), TaskError> {
        let holds = extremum.holds(rows.column(extremum.column))?;
        let mut bereft: Vec<u32> = Vec::new();
        for (value, entry) in self.touched.keys.iter().zip(self.words.chunks_exact(self.plan.layout.words)) {
            let group = groups.slots[value.first as usize];
            if entry[0] == 0 && holds(&new[group as usize * words..][..words], value.first as usize) {
                bereft.push(group);
            }
        }
        drop(holds);
        if bereft.is_empty() {
            return Ok(());
        }
        bereft.sort_unstable();
        bereft.dedup();
        self.prefixes.clear();
        for group in &bereft {
            extremum.clear(&mut new[*group as usize * words..][..words]);
            self.prefixes.number(&self.touched, groups.keys[*group as usize].first);
        }
        self.find()?;
        let slots: Vec<u32> = self.found.touched.keys.iter().map(|row| bereft[row.first as usize]).collect();
        let keys: Vec<&[u8]> = (0..self.found.len()).map(|row| self.found.key(row)).collect();
        let types: Vec<DataType> = self.plan.layout.keys.iter().map(|key| stored_type(key.data_type())).collect();
        let Some(values) = decode(&keys, &types)?.pop() else { return Ok(()) };
        extremum.add(new, words, &slots, &self.living(), &values)
    }

    /// Finds the kept values of the noted groups, with their counts.
    fn find(&mut self) -> Result<(), TaskError> {
        self.table.find_by_prefix(&self.prefixes, &mut self.found)?;
        self.table.load(&self.found.touched, &mut self.words);
        Ok(())
    }

    /// Which of the found values count: those that have not expired.
    fn living(&self) -> Signs {
        let entries = self.words.chunks_exact(self.plan.layout.words);
        let expired = |entry: &[u64]| self.ttl.as_ref().is_some_and(|ttl| ttl.has_expired(entry));
        Signs { signs: entries.map(|entry| i64::from(!expired(entry))).collect() }
    }

    /// Looks for values that have expired.
    pub(super) fn sweep(&mut self) -> Result<(), TaskError> {
        self.ttl.as_ref().map_or(Ok(()), |ttl| ttl.sweep(self.table.as_mut()))
    }

    pub(super) fn freeze(&mut self, checkpoint: CheckpointId) -> Result<Box<dyn SnapshotWriter>, TaskError> {
        if let Some(ttl) = &self.ttl {
            ttl.sweep_before_freeze(self.table.as_mut())?;
        }
        self.table.freeze(checkpoint)
    }

    pub(super) fn role(&self) -> Role {
        self.plan.role
    }

    pub(super) fn name(&self) -> &str {
        &self.plan.name
    }
}

/// Encoded texts as a column.
pub(super) fn texts<'a>(
    values: impl Iterator<Item = Option<&'a [u8]>>,
    result: &DataType,
) -> Result<ArrayRef, TaskError> {
    let values: Vec<&[u8]> = values.map(|value| value.unwrap_or(&[0])).collect();
    let stored = stored_type(result);
    let column = decode(&values, std::slice::from_ref(&stored))?.pop();
    let column = column.ok_or_else(|| TaskError::Internal("texts make no column".to_owned()))?;
    cast(&column, result).map_err(|error| TaskError::Internal(format!("the result of MIN or MAX: {error}")))
}
