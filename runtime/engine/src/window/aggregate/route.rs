//! Which slice each row of a batch belongs to.

use super::super::kind::{RowTime, Span, WindowKind, milliseconds};
use super::super::progress::GroupProgress;
use super::Plan;
use crate::error::TaskError;
use crate::keys::HashedKeys;
use arrow::array::{Array, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::DataType;
use sluice_protocol::key_group;
use std::collections::BTreeMap;

/// Divides batches by slice. Reused from batch to batch.
#[derive(Debug, Default)]
pub(super) struct Router {
    parts: Vec<(Span, Vec<u32>)>,
    by_end: BTreeMap<(i64, i64), usize>,
    hashed: HashedKeys,
    /// Rows so far all of whose windows had fired, or without a time.
    pub(super) dropped: u64,
    /// Those of the last batch, where they are wanted.
    pub(super) late: Vec<u32>,
}

/// The slices of a batch with their rows.
type Parts = Vec<(Span, RecordBatch)>;

impl Router {
    /// Notes the rows of each slice; `now` is their time where windows go by the clock.
    pub(super) fn divide(
        &mut self,
        plan: &Plan,
        progress: &GroupProgress,
        now: i64,
        rows: &RecordBatch,
    ) -> Result<(), TaskError> {
        self.parts.clear();
        self.by_end.clear();
        self.late.clear();
        let all_closed = self.closed(plan, progress, rows)?;
        let closed = progress.least_closed();
        let closed_of = |row: usize| all_closed.as_ref().map_or(closed, |all| all[row]);
        let count = rows.num_rows();
        match (&plan.kind, plan.time) {
            (WindowKind::Attached { start, end }, _) => {
                let (starts, ends) = (milliseconds(rows.column(*start))?, milliseconds(rows.column(*end))?);
                let span = |row: usize| {
                    let is_there = starts.is_valid(row) && ends.is_valid(row);
                    is_there.then(|| Span { start: starts.value(row), end: ends.value(row) })
                };
                self.note(plan, count, span, closed_of);
            }
            (kind, RowTime::Processing) => {
                let slice = kind.slice_of(now);
                self.note(plan, count, |_| Some(slice), closed_of);
            }
            (kind, RowTime::Column(column)) => {
                let times = milliseconds(rows.column(column))?;
                let nulls = times.nulls().filter(|nulls| nulls.null_count() > 0);
                let mut current = Span { start: 0, end: 0 };
                let span = |row: usize| {
                    if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                        return None;
                    }
                    let time = times.value(row);
                    if !current.contains(time) {
                        current = kind.slice_of(time);
                    }
                    Some(current)
                };
                self.note(plan, count, span, closed_of);
            }
        }
        Ok(())
    }

    /// Up to where the windows of each row's key group take no rows any more, while that differs.
    fn closed(
        &mut self,
        plan: &Plan,
        progress: &GroupProgress,
        rows: &RecordBatch,
    ) -> Result<Option<Vec<i64>>, TaskError> {
        if progress.all_closed().is_some() {
            return Ok(None);
        }
        let keys = &plan.calls.keys;
        match keys.as_slice() {
            [key] if *rows.column(*key).data_type() == DataType::Int64 => self.hashed.hash_bigint(rows.column(*key)),
            _ => self.hashed.encode(rows, keys)?,
        }
        let of_hash = |hash: &u64| progress.closed_of(key_group::of_hash(*hash, progress.max_parallelism()));
        Ok(Some(self.hashed.hashes.iter().map(of_hash).collect()))
    }

    fn note(
        &mut self,
        plan: &Plan,
        rows: usize,
        mut span: impl FnMut(usize) -> Option<Span>,
        closed_of: impl Fn(usize) -> i64,
    ) {
        let mut current: Option<(Span, i64, usize)> = None;
        for row in 0..rows {
            let Some(span) = span(row) else {
                self.drop_row(plan, row);
                continue;
            };
            let (last, part) = match current {
                Some((known, last, part)) if known == span => (last, part),
                _ => (plan.kind.last_end(span), self.part(span)),
            };
            current = Some((span, last, part));
            if last <= closed_of(row) {
                self.drop_row(plan, row);
            } else {
                self.parts[part].1.push(row as u32);
            }
        }
    }

    fn drop_row(&mut self, plan: &Plan, row: usize) {
        self.dropped += 1;
        if plan.wide.is_some() {
            self.late.push(row as u32);
        }
    }

    fn part(&mut self, span: Span) -> usize {
        let next = self.parts.len();
        let part = *self.by_end.entry((span.end, span.start)).or_insert(next);
        if part == next {
            self.parts.push((span, Vec::new()));
        }
        part
    }

    /// The rows of each slice that has any.
    pub(super) fn parts(&mut self, rows: &RecordBatch) -> Result<Parts, TaskError> {
        let failed = |error| TaskError::Internal(format!("the rows of a slice do not make a batch: {error}"));
        let mut parts = Vec::with_capacity(self.parts.len());
        for (span, positions) in self.parts.drain(..).filter(|(_, positions)| !positions.is_empty()) {
            let part = if positions.len() == rows.num_rows() {
                rows.clone()
            } else {
                take_record_batch(rows, &UInt32Array::from(positions)).map_err(failed)?
            };
            parts.push((span, part));
        }
        Ok(parts)
    }
}
