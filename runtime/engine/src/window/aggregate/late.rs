//! Rows that come when their window has fired.
//!
//! With an allowed lateness they change its result, which is emitted as a change: of the keys that a batch touches the
//! accumulators of the window are put together from its slices before the batch and after it ([`WindowAggregate::add_late`]).
//! Rows that are later still may be emitted themselves, beside the results ([`super::LATE`]).

use super::super::kind::Span;
use super::super::output::as_times;
use super::route::Router;
use super::{LATE, Plan, WindowAggregate, window_times};
use crate::aggregate::{ROWS, changes};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::Collector;
use crate::state::Fate;
use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use std::sync::Arc;

/// The columns of results, then those of rows that come in, then [`LATE`]; all may be NULL.
pub(super) fn wide(output: &SchemaRef, input: &SchemaRef) -> SchemaRef {
    let row = input.fields().iter().map(|field| field.as_ref().clone().with_name(format!("$late.{}", field.name())));
    let all = output.fields().iter().map(|field| field.as_ref().clone()).chain(row);
    let all = all.chain([Field::new(LATE, DataType::Boolean, true)]).map(|field| field.with_nullable(true));
    Arc::new(Schema::new(all.collect::<Vec<_>>()))
}

fn internal(error: &arrow::error::ArrowError) -> TaskError {
    TaskError::Internal(format!("the late rows of a window do not make a batch: {error}"))
}

impl Plan {
    /// Results with the columns of late rows beside them, where those are emitted.
    pub(super) fn widened(&self, results: Batch) -> Result<Batch, TaskError> {
        let Some(wide) = &self.wide else { return Ok(results) };
        let Batch { rows, kinds } = results;
        let rest = wide.fields().iter().skip(rows.num_columns());
        let nulls = rest.map(|field| new_null_array(field.data_type(), rows.num_rows()));
        let columns = rows.columns().iter().cloned().chain(nulls).collect();
        let rows = RecordBatch::try_new(SchemaRef::clone(wide), columns).map_err(|error| internal(&error))?;
        Ok(Batch { rows, kinds })
    }
}

impl Router {
    /// The rows that the last batch had for no window any more, as the operator emits them.
    pub(super) fn late_rows(&mut self, rows: &RecordBatch, plan: &Plan) -> Result<Option<Batch>, TaskError> {
        let Some(wide) = plan.wide.as_ref().filter(|_| !self.late.is_empty()) else { return Ok(None) };
        let late = UInt32Array::from(std::mem::take(&mut self.late));
        let late = take_record_batch(rows, &late).map_err(|error| internal(&error))?;
        let count = late.num_rows();
        let results = wide.fields().iter().take(plan.output.fields().len());
        let marker: ArrayRef = Arc::new(BooleanArray::from(vec![true; count]));
        let columns = results.map(|field| new_null_array(field.data_type(), count));
        let columns = columns.chain(late.columns().iter().cloned()).chain([marker]).collect();
        let rows = RecordBatch::try_new(SchemaRef::clone(wide), columns).map_err(|error| internal(&error))?;
        Ok(Some(Batch::inserts(rows)))
    }
}

impl WindowAggregate {
    /// The windows of a slice that have fired in some key group and may still change.
    pub(super) fn fired_windows(&self, span: Span) -> Vec<Span> {
        let (kind, fired) = (&self.plan.kind, self.progress.greatest_fired());
        if self.plan.lateness == 0 || span.end > fired {
            return Vec::new();
        }
        let first = kind.next_end(span, i64::MIN);
        let ends = std::iter::successors(first, |end| kind.next_end(span, *end)).take_while(|end| *end <= fired);
        let closed = self.progress.least_closed();
        let ends = ends.filter(|end| *end > closed);
        ends.map(|end| Span { start: kind.start(end, span), end }).collect()
    }

    /// Adds rows, all of one slice, of which these windows have fired, and emits what changes of them.
    pub(super) fn add_late(
        &mut self,
        span: Span,
        rows: &RecordBatch,
        fired: &[Span],
        out: &mut dyn Collector,
    ) -> Result<(), TaskError> {
        let mut before = Vec::with_capacity(fired.len());
        for window in fired {
            before.push(self.words_of(*window, rows)?);
        }
        self.add(span, rows)?;
        for (window, mut old) in fired.iter().zip(before) {
            let new = self.words_of(*window, rows)?;
            self.leave_out(*window, &mut old, &new);
            let calls = &self.plan.calls;
            let Some(Batch { rows: results, kinds }) = changes(calls, rows, &self.touched, (&old, &new))? else {
                continue;
            };
            let (count, output) = (results.num_rows(), &self.plan.output);
            let mut columns = results.columns().to_vec();
            for time in window_times(*window) {
                let times = Int64Array::from_value(time, count);
                columns.push(as_times(&times, output.field(columns.len()).data_type())?);
            }
            let rows = RecordBatch::try_new(SchemaRef::clone(output), columns).map_err(|error| internal(&error))?;
            out.collect(self.plan.widened(Batch { rows, kinds })?);
        }
        Ok(())
    }

    /// Keys in whose key group the window has not fired yet, or is over, are as they were.
    fn leave_out(&self, window: Span, old: &mut [u64], new: &[u64]) {
        let width = self.plan.calls.layout.words;
        for (slot, key) in self.touched.keys.iter().enumerate() {
            let group = self.touched.key_group(key.first, self.progress.max_parallelism());
            let has_fired = self
                .progress
                .of(group)
                .is_some_and(|progress| progress.fired >= window.end && window.end > self.progress.closed_of(group));
            if !has_fired {
                let words = slot * width..(slot + 1) * width;
                old[words.clone()].copy_from_slice(&new[words]);
            }
        }
    }

    /// The accumulators of a window, of the keys of these rows, which are touched then.
    fn words_of(&mut self, window: Span, rows: &RecordBatch) -> Result<Vec<u64>, TaskError> {
        let calls = Arc::clone(&self.plan.calls);
        let width = calls.layout.words;
        let from = self.plan.kind.first_slice_end(window);
        let (mut sum, mut words): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        let (mut slots, mut present) = (Vec::new(), Vec::new());
        for (_, slice) in self.slices.range_mut(from..=window.end) {
            slice.table.touch(rows, &calls.keys, &mut self.touched)?;
            slice.table.load(&self.touched, &mut words);
            sum.resize(words.len(), 0);
            slots.clear();
            present.clear();
            self.fates.clear();
            for (slot, own) in words.chunks_exact(width).enumerate() {
                let is_there = own[ROWS] > 0;
                self.fates.push(if is_there { Fate::Keep } else { Fate::Remove });
                if is_there {
                    slots.push(slot as u32);
                    present.extend_from_slice(own);
                    sum[slot * width + ROWS] = sum[slot * width + ROWS].wrapping_add(own[ROWS]);
                }
            }
            for call in &calls.calls {
                call.accumulator.merge(&mut sum, width, &slots, &present);
            }
            slice.table.store(&self.touched, &words, &self.fates)?;
        }
        if sum.is_empty() {
            // No slice is there yet: the keys are numbered all the same.
            sum.resize(rows.num_rows() * width, 0);
        }
        Ok(sum)
    }
}
