//! Putting the slices of a window together when it fires, and running totals of windows that share slices.
//!
//! A running total holds, of one key group, the rows of the slices that the window which fired last shares with the next
//! one. So a window costs the slice that has come, and of HOP the one that leaves, whatever the number of its slices. HOP
//! keeps totals where all aggregates can be taken back without a trace ([`Accumulator::is_retractable`]), CUMULATE always;
//! with MIN, MAX or a sum of floats a HOP merges all slices of each window.
//!
//! Totals are no state. Behind a restore, and when rows come for slices that are in it already, a total is put together
//! again. They stand in memory beside the slices, as large as the keys of a window; with the backend on disk, and when they
//! would take more memory than there is, there are none.
//!
//! [`Accumulator::is_retractable`]: crate::aggregate::accumulate::Accumulator::is_retractable

use super::super::kind::{Span, WindowKind};
use super::super::merge::Total;
use super::{Plan, WindowAggregate};
use crate::error::TaskError;
use crate::operator::OperatorContext;
use crate::state::memory::Share;
use crate::state::{StateBackend, TouchedKeys};
use sluice_protocol::KeyGroup;
use std::sync::Arc;

/// The running totals of a subtask.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Of the key group that is the first of the subtask, and so on; empty: none are kept.
    of_groups: Vec<RunningTotal>,
    first: u16,
    max_parallelism: u16,
    /// The greatest `next` of all.
    next: i64,
    share: Option<Share>,
}

#[derive(Debug, Default)]
struct RunningTotal {
    total: Total,
    /// It has all slices but the last of the window that ends so; `None`: of no window.
    next: Option<i64>,
}

impl Totals {
    pub(super) fn open(plan: &Plan, context: &OperatorContext) -> Self {
        let are_useful = match plan.kind {
            // Two slices are put together as cheaply as one is added and one taken away.
            WindowKind::Hop { slide, size, .. } => {
                size / slide > 2 && plan.calls.calls.iter().all(|call| call.accumulator.is_retractable())
            }
            WindowKind::Cumulate { step, size, .. } => size > step,
            WindowKind::Tumble { .. } | WindowKind::Attached { .. } => false,
        };
        let share = match &context.state_backend {
            StateBackend::Hash => None,
            StateBackend::HashWithin(memory) => Some(Share::new(Arc::clone(memory))),
            StateBackend::Disk(_) => return Self::default(),
        };
        let groups = if are_useful { context.key_groups.start..context.key_groups.end } else { 0..0 };
        Self {
            first: groups.start,
            of_groups: groups.map(|_| RunningTotal::default()).collect(),
            max_parallelism: context.max_parallelism,
            next: i64::MIN,
            share,
        }
    }

    /// Rows of these keys have come for a slice: totals that have it already are no longer right.
    pub(super) fn forget(&mut self, slice: Span, touched: &TouchedKeys) {
        if slice.end >= self.next || self.of_groups.is_empty() {
            return;
        }
        for key in &touched.keys {
            let group = touched.key_group(key.first, self.max_parallelism);
            let total = group.0.checked_sub(self.first).and_then(|at| self.of_groups.get_mut(usize::from(at)));
            if let Some(total) = total.filter(|total| total.next.is_some_and(|next| slice.end < next)) {
                *total = RunningTotal::default();
            }
        }
    }

    /// A window has fired: says what the totals take of the memory, and gives them up where that is too much.
    pub(super) fn settle(&mut self) {
        let bytes: usize = self.of_groups.iter().map(|group| group.total.bytes()).sum();
        let Some(share) = &mut self.share else { return };
        if share.settle(bytes as u64, "totals of windows").is_err() {
            *self = Self::default();
        }
        self.make_room();
    }

    /// Gives the totals up while there is still room for what tables need: a quarter of the memory.
    pub(super) fn make_room(&mut self) {
        if self.share.as_ref().is_some_and(Share::is_short) {
            *self = Self::default();
        }
    }
}

impl WindowAggregate {
    /// Puts the rows of a window together, of the key group at this position of the subtask.
    pub(super) fn merge(&mut self, position: usize, group: KeyGroup, window: Span) -> Result<(), TaskError> {
        let (calls, kind) = (&self.plan.calls, &self.plan.kind);
        let first = kind.first_slice_end(window);
        let Some(running) = self.totals.of_groups.get_mut(position) else {
            for (_, slice) in self.slices.range(first..=window.end) {
                slice.table.read_group(group, None, &mut self.read)?;
                self.merged.add(&mut self.read, calls);
            }
            self.merged.finish_group();
            return Ok(());
        };
        let from = if running.next == Some(window.end) { window.end } else { first };
        if from == first {
            running.total = Total::default();
        }
        for (_, slice) in self.slices.range(from..=window.end) {
            slice.table.read_group(group, None, &mut self.read)?;
            running.total.add(&mut self.read, calls, &mut self.merged.slots);
        }
        self.merged.append(&running.total.rows);
        let leaving = self.slices.get(&first).filter(|_| !running.total.rows.keys.is_empty());
        if let (WindowKind::Hop { .. }, Some(slice)) = (kind, leaving) {
            slice.table.read_group(group, None, &mut self.read)?;
            running.total.retract(&self.read, calls, &mut self.merged.slots);
        }
        let next = kind.next_of(window);
        if next.is_none() || running.total.rows.keys.is_empty() {
            running.total = Total::default();
        }
        running.next = next;
        self.totals.next = self.totals.next.max(next.unwrap_or(i64::MIN));
        Ok(())
    }
}
