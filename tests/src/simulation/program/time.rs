//! Event time in the simulated jobs (W1): when rows happened, what each split's watermark is, and which rows are late.
//!
//! Rows of a split are out of order by more than the watermark waits for, so some are late. What is checked:
//! - *The watermark of a split* in every snapshot is that of its rows before the position.
//! - *The operator's watermark* at an aligned barrier is the least of the splits that are not read to their end.
//! - *Which rows are late* depends on the order of the rows alone where all come from one split, whatever died; behind an
//!   unaligned checkpoint a late row may pass, but none is late that is not.

use super::archive::Row;
use super::shape::{CONTROL_SPLIT, Layout, Shape};
use super::{Events, column};
use crate::simulation::scenario::{Scenario, Upgrade};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::event_time::{KeyGroupWatermarks, WatermarkStrategy};
use sluice_engine::operator::{
    Collector, Operator, OperatorContext, OperatorState, Progress, RestoredState, SnapshotWriter,
};
use sluice_engine::operators::RowExpression;
use sluice_engine::state::list::ListState;
use sluice_protocol::message::Alignment;
use sluice_protocol::{CheckpointId, key_group};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;

/// The operator that judges lateness.
pub const LATENESS: &str = "lateness";
/// Its list of late rows counted.
const LATE: &str = "late";

/// Rows are out of order by less than so many gaps.
pub(super) const DISORDER: i64 = 8;
/// The watermark waits for so many gaps.
pub(super) const DELAY: i64 = 4;

/// What can be foretold of time in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Foretold {
    /// The watermark of an operator at a cut.
    pub watermark: bool,
    /// Which rows are late.
    pub lateness: bool,
}

impl Foretold {
    /// Where barriers do not keep their place, channels have watermarks of their own; behind a drain inputs have ended in
    /// any order. Several splits, or ways of a split, are read in any order.
    #[must_use]
    pub fn new(scenario: &Scenario) -> Self {
        let drains = matches!(scenario.upgrade, Some((_, Upgrade::Drain { .. })));
        let is_exact = scenario.alignment != Alignment::AtLeastOnce;
        let Shape { splits, control, .. } = scenario.shape;
        let is_one = splits == [1, 0, 0] && !control && !scenario.shape.has_relay();
        let has_one_reader = scenario.layouts.iter().all(|layout: &Layout| layout.subtasks[0] == 1);
        Self {
            watermark: scenario.alignment == Alignment::Aligned && !drains,
            lateness: is_exact && is_one && has_one_reader,
        }
    }
}

/// A column of numbers, less a delay.
struct Time(i64);

impl RowExpression for Time {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        let times = batch.column(4).as_primitive::<Int64Type>();
        Ok(Arc::new(times.unary::<_, Int64Type>(|time| time - self.0)))
    }
}

impl Events {
    /// How the rows of all sources give watermarks.
    #[must_use]
    pub fn watermarks(&self) -> WatermarkStrategy {
        let delay = self.delay();
        WatermarkStrategy {
            time: Box::new(|| Ok(Box::new(Time(0)))),
            watermark: Box::new(move || Ok(Box::new(Time(delay)))),
            idle_timeout: None,
            alignment: None,
        }
    }

    fn delay(&self) -> i64 {
        DELAY * self.gap_millis as i64
    }

    /// When a row happened.
    #[must_use]
    pub fn time(&self, split: u32, position: u64) -> i64 {
        let gaps = if split == CONTROL_SPLIT { position * super::CONTROL_GAP } else { position };
        let (key, value) = self.row(split, position);
        let gap = self.gap_millis as i64;
        gaps as i64 * gap + (key * 31 + value * 7) % (DISORDER * gap)
    }

    /// The watermark of a split behind these many rows.
    pub(super) fn watermark_of(&self, split: u32, position: u64) -> Option<i64> {
        (0..position).map(|at| self.time(split, at) - self.delay()).max()
    }

    /// The least watermark of the splits that are not read to their end; `None`: all are.
    pub(super) fn least(&self, positions: &BTreeMap<u32, u64>) -> Option<i64> {
        let open = positions.iter().filter(|(split, position)| **position < self.rows_of(**split));
        open.map(|(split, position)| self.watermark_of(*split, *position).unwrap_or(i64::MIN)).min()
    }

    /// The rows before a position that are late by those before them.
    fn late(&self, split: u32, position: u64) -> impl Iterator<Item = u64> + '_ {
        let mut watermark = i64::MIN;
        (0..position).filter(move |at| {
            let time = self.time(split, *at);
            let is_late = time <= watermark;
            watermark = watermark.max(time - self.delay());
            is_late
        })
    }
}

/// Counts the rows that come behind the watermark of their key group, and passes all on.
#[derive(Default)]
pub struct Lateness(Option<(KeyGroupWatermarks, ListState<i64>)>, u16);

impl Operator for Lateness {
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        let late = ListState::split(LATE, context, &state)?;
        self.0 = Some((KeyGroupWatermarks::open(context, &state)?, late));
        self.1 = context.max_parallelism;
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        if let Some((watermarks, late)) = &mut self.0 {
            let is_late = |(key, time): &(i64, i64)| {
                let hash = key_group::hash(&key_group::encode::bigint(*key));
                *time <= watermarks.of(key_group::of_hash(hash, self.1))
            };
            let count = column(&batch, 0).into_iter().zip(column(&batch, 4)).filter(is_late).count();
            late.update(vec![late.get().iter().sum::<i64>() + count as i64]);
        }
        out.collect(batch);
        Ok(())
    }

    fn watermark(&mut self, watermark: i64, _: &mut dyn Collector) -> Result<Progress, TaskError> {
        if let Some((watermarks, _)) = &mut self.0 {
            watermarks.advance(watermark);
        }
        Ok(Progress::Done)
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let Some((watermarks, late)) = &self.0 else { return Ok(None) };
        let operator = vec![watermarks.snapshot()?, late.snapshot()?];
        Ok(Some(Box::new(OperatorState { operator, ..OperatorState::default() })))
    }
}

/// The watermarks that an operator stores of its key groups.
pub(super) fn read_watermarks(bytes: &[u8], into: &mut BTreeSet<i64>) -> Result<(), String> {
    let items: Vec<serde_json::Value> =
        serde_json::from_slice(bytes).map_err(|error| format!("a list of watermarks: {error}"))?;
    let watermarks = items.iter().map(|item| item["watermark"].as_i64().ok_or("an item without a watermark"));
    into.extend(watermarks.collect::<Result<Vec<_>, _>>()?);
    Ok(())
}

/// Whether an operator's watermark is not above what its inputs say, if that can be foretold. It may be below for a moment:
/// a source whose splits have ended says so only when it was asked for more in vain.
pub(super) fn check_watermarks(found: &BTreeSet<i64>, foretold: Option<i64>) -> Result<(), String> {
    match foretold.filter(|least| found.iter().any(|one| one > least)) {
        None => Ok(()),
        Some(least) => Err(format!("the operator's watermark is {found:?}, the splits say {least}")),
    }
}

/// What a snapshot holds of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// The watermark of each split, where one is stored.
    pub splits: BTreeMap<u32, i64>,
    /// The watermarks of the operator's key groups.
    watermarks: BTreeSet<i64>,
    /// Late rows.
    late: i64,
    /// Rows in flight on the way to the operator.
    pub in_flight: BTreeSet<Row>,
}

impl Times {
    /// One of the operator's lists.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_list(&mut self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let unreadable = |error: serde_json::Error| format!("list {name} of {LATENESS}: {error}");
        if name == LATE {
            let items: Vec<i64> = serde_json::from_slice(bytes).map_err(unreadable)?;
            self.late += items.iter().sum::<i64>();
            return Ok(());
        }
        read_watermarks(bytes, &mut self.watermarks)
    }

    /// Whether it is what the rows before these positions say.
    ///
    /// # Errors
    /// What it holds, and what the rows say.
    pub fn verify(&self, events: &Events, positions: &BTreeMap<u32, u64>) -> Result<(), String> {
        let of = |split: &u32, position: u64| events.watermark_of(*split, position);
        for (split, position) in positions {
            let (found, expected) = (self.splits.get(split).copied(), of(split, *position));
            if found != expected {
                return Err(format!(
                    "W1: at row {position} of split {split} its watermark is {found:?}, its rows say {expected:?}"
                ));
            }
        }
        check_watermarks(&self.watermarks, events.foretold.watermark.then(|| events.least(positions)).flatten())
            .map_err(|what| format!("W1: at {positions:?} {what}"))?;
        if let (true, Some((split, position))) = (events.foretold.lateness, positions.first_key_value()) {
            let is_judged = |at: &u64| !self.in_flight.contains(&(i64::from(*split), *at as i64));
            let expected = events.late(*split, *position).filter(is_judged).count() as i64;
            // Of what was in flight the words of time may be lost where nobody had heard any: then a late row passes. None may
            // ever be late that is not.
            let is_wrong = if events.foretold.watermark { self.late != expected } else { self.late > expected };
            if is_wrong {
                let found = self.late;
                return Err(format!(
                    "W1: at row {position} {found} rows were late, {expected} are by those before them"
                ));
            }
        }
        Ok(())
    }
}
