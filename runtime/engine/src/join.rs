//! Regular equi-joins over changelogs, inner and outer: both sides are kept, each change of a side meets what the
//! other side holds (Flink's `StreamingJoinOperator`).
//!
//! Input 0 is the left side, input 1 the right one; both are partitioned by their join keys and carry full changelogs: a
//! row goes by `-U` or `-D` with all its columns. What comes out are `+I` and `-D` rows: of a batch first those that go,
//! then those that come. A row that comes and goes within a batch, or goes and comes again, is no change.
//!
//! A NULL in a join key matches nothing: such rows are kept nowhere; where their side is outer, they are passed on,
//! padded with NULLs. A row of an outer side (the left one of LEFT, the right one of RIGHT, both of FULL) is padded from
//! the moment when it has no match until the first comes, and again when the last has gone. Floats come out with one zero and one NaN, as keys do (F3). A retraction of a row that is not there (its
//! time to live may be over) is dropped.
//!
//! The state, version 1: tables `left` and `right` ([`side`]), one row per distinct row of that side: the key columns,
//! then the others, by their names (a key column that stands twice is `name$2` the second time), `$rows`: how often the
//! row is there, and of an outer side `$matches`: how many rows of the other side match it.
//!
//! With bounds ([`JoinBounds`]) each row has a time, `$over`, from which on the watermark forbids it a match; it then goes,
//! and where its side is outer and it has matched nothing, it comes out padded, once and for all. So all that comes out is
//! new rows. The watermark is part of the state (W1).
//!
//! The flow of a batch ([`Join::change`]): the own side counts the rows of the batch ([`side::Side::count`]); the other
//! side finds its rows with their keys ([`side::Side::find`]); pairs of both, as far as the condition holds, are the
//! change ([`pairs`]); what has changed goes back to both sides.

mod pairs;
mod side;
#[cfg(test)]
mod tests;

use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::event_time::KeyGroupWatermarks;
use crate::keys;
use crate::operator::{
    Clock, Collector, Operator, OperatorContext, OperatorFactory, Progress, RestoredState, SnapshotWriter,
};
use crate::operators::{ExpressionFactory, RowExpression};
use crate::state::frozen_tables::{FrozenTables, FrozenWithLists};
use crate::state::whole_rows::with_one_zero;
use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, UInt8Array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, SchemaRef};
use pairs::Pairs;
pub use side::RowBound;
use side::{Side, SidePlan};
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};
use std::sync::Arc;

/// Which rows come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// Pairs that match.
    Inner,
    /// These, and rows of the left side without a match.
    LeftOuter,
    /// Pairs, and rows of the right side without a match.
    RightOuter,
    /// Pairs, and rows of either side without a match.
    FullOuter,
}

impl JoinKind {
    /// Whether rows of this side, 0 or 1, come out without a match.
    #[must_use]
    pub const fn is_outer(self, side: usize) -> bool {
        match self {
            Self::Inner => false,
            Self::LeftOuter => side == 0,
            Self::RightOuter => side == 1,
            Self::FullOuter => true,
        }
    }
}

/// An equi-join.
pub struct JoinSpec {
    /// Which rows come out.
    pub kind: JoinKind,
    /// The rows of input 0.
    pub left: SchemaRef,
    /// The rows of input 1.
    pub right: SchemaRef,
    /// Positions of the key columns of the left side; at least one.
    pub left_keys: Vec<usize>,
    /// Positions of the key columns of the right side that must be equal to them, of the same types.
    pub right_keys: Vec<usize>,
    /// What else must hold: BOOLEAN over the columns of the left side, then those of the right one.
    pub condition: Option<ExpressionFactory>,
    /// The columns of the left side, then those of the right one; those of a side may be NULL when the other is outer.
    pub output: SchemaRef,
    /// How long a row of the left side is kept after its last change; `None`: for ever.
    pub left_ttl: Option<TimeSpan>,
    /// The same for the right side.
    pub right_ttl: Option<TimeSpan>,
    /// Until when rows can meet, where time bounds that.
    pub bounds: Option<JoinBounds>,
}

/// Bounds in event time: of an interval join, or a join of windows. Neither side may retract rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinBounds {
    /// For the rows of both sides.
    pub sides: [RowBound; 2],
    /// Whether rows that are over when they come are dropped and counted. Else they meet what is kept, and are not kept.
    pub drops_late: bool,
    /// How exactly rows that are over are found, in milliseconds: how late a row without a match comes out at most.
    pub bucket: i64,
}

/// Makes [`Join`]s.
pub struct JoinFactory {
    plan: Arc<Plan>,
    condition: Option<ExpressionFactory>,
}

/// What all subtasks share.
struct Plan {
    kind: JoinKind,
    sides: [SidePlan; 2],
    output: SchemaRef,
    bounds: Option<JoinBounds>,
}

impl JoinFactory {
    /// Checks the join and lays out its state.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] when keys or columns do not fit, or a column cannot be kept.
    pub fn new(spec: JoinSpec) -> Result<Self, TaskError> {
        check(&spec)?;
        let JoinSpec { kind, left, right, left_keys, right_keys, condition, output, left_ttl, right_ttl, bounds } =
            spec;
        let bound = |side: usize| (bounds.map(|bounds| bounds.sides[side]), bounds.map_or(1, |bounds| bounds.bucket));
        let sides = [
            SidePlan::new("left", &left, &left_keys, left_ttl, kind.is_outer(0), bound(0))?,
            SidePlan::new("right", &right, &right_keys, right_ttl, kind.is_outer(1), bound(1))?,
        ];
        Ok(Self { plan: Arc::new(Plan { kind, sides, output, bounds }), condition })
    }
}

fn check(spec: &JoinSpec) -> Result<(), TaskError> {
    let refused = |text: String| Err(TaskError::BadProgram(text));
    if spec.left_keys.is_empty() || spec.left_keys.len() != spec.right_keys.len() {
        let (left, right) = (spec.left_keys.len(), spec.right_keys.len());
        return refused(format!("a join needs as many keys on both sides, one at least, but has {left} and {right}"));
    }
    for (left, right) in spec.left_keys.iter().zip(&spec.right_keys) {
        let (Some(left), Some(right)) = (spec.left.fields().get(*left), spec.right.fields().get(*right)) else {
            return refused(format!("a join refers to key column {left} or {right}, which is not there"));
        };
        let (of_left, of_right) = (left.data_type(), right.data_type());
        if keys::decode::stored_type(of_left) != keys::decode::stored_type(of_right) {
            let (left, right) = (left.name(), right.name());
            return refused(format!(
                "a join compares column '{left}' ({of_left}) with '{right}' ({of_right}); cast one to the other's type"
            ));
        }
    }
    let columns = spec.left.fields().iter().chain(spec.right.fields());
    let types: Vec<&DataType> = columns.map(|field| field.data_type()).collect();
    let output: Vec<&DataType> = spec.output.fields().iter().map(|field| field.data_type()).collect();
    if types == output {
        return Ok(());
    }
    refused(format!("a join gives columns of the types {types:?}, but was planned with {output:?}"))
}

impl OperatorFactory for JoinFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(Join {
            plan: Arc::clone(&self.plan),
            condition: self.condition.as_ref().map(|make| make()).transpose()?,
            sides: None,
            watermarks: KeyGroupWatermarks::default(),
            late: 0,
            clock: Arc::new(|| Timestamp(0)),
        }))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.plan.output)
    }
}

/// One subtask of a join.
pub struct Join {
    plan: Arc<Plan>,
    condition: Option<Box<dyn RowExpression>>,
    /// Left and right, once it is opened.
    sides: Option<[Side; 2]>,
    watermarks: KeyGroupWatermarks,
    /// Rows so far that came when they were over.
    late: u64,
    clock: Clock,
}

impl Operator for Join {
    fn set_clock(&mut self, clock: &Clock) {
        self.clock = Clock::clone(clock);
    }

    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        let [left, right] = &self.plan.sides;
        if let Some(file) = state.keyed.iter().find(|file| file.name != left.name && file.name != right.name) {
            return Err(TaskError::IncompatibleState(format!(
                "operator '{}' is a join and keeps its state under the names '{}' and '{}', but the checkpoint holds a \
                 state '{}' for it; was the uid used for another kind of operator?",
                context.uid, left.name, right.name, file.name
            )));
        }
        if self.plan.bounds.is_some() {
            self.watermarks = KeyGroupWatermarks::open(context, &state)?;
        }
        self.sides =
            Some([Side::open(left, context, &state, &self.clock)?, Side::open(right, context, &state, &self.clock)?]);
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        self.process_input(0, batch, out)
    }

    fn process_input(&mut self, input: u8, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        if input > 1 {
            return Err(TaskError::BadProgram(format!("an edge leads to input {input} of a join, which has 0 and 1")));
        }
        let batch = Batch { rows: with_one_zero(batch.rows)?, ..batch };
        let Some(matchable) = self.matchable(usize::from(input), &batch.rows) else {
            return self.change(usize::from(input), &batch, out);
        };
        if self.plan.kind.is_outer(usize::from(input)) {
            let others: BooleanArray = matchable.values().iter().map(|matchable| Some(!matchable)).collect();
            pairs::emit_padded_rows(&self.plan.output, input == 0, &only(&batch, &others)?, out)?;
        }
        self.change(usize::from(input), &only(&batch, &matchable)?, out)
    }

    fn watermark(&mut self, watermark: i64, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        let (Some(sides), true) = (&mut self.sides, self.plan.bounds.is_some()) else { return Ok(Progress::Done) };
        self.watermarks.advance(watermark);
        for (index, side) in sides.iter_mut().enumerate() {
            if let Some(over) = side.next_over(&self.watermarks)? {
                if self.plan.kind.is_outer(index) {
                    pairs::emit_over(&self.plan.output, index == 0, &over, out)?;
                }
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done)
    }

    fn late_rows(&self) -> u64 {
        self.late
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let Some(sides) = &mut self.sides else { return Ok(None) };
        let frozen = sides.iter_mut().map(|side| side.freeze(checkpoint)).collect::<Result<_, _>>()?;
        let tables = FrozenTables(frozen);
        if self.plan.bounds.is_none() {
            return Ok(Some(Box::new(tables)));
        }
        Ok(Some(Box::new(FrozenWithLists { tables, lists: vec![self.watermarks.snapshot()?] })))
    }
}

impl Join {
    /// Which rows have no NULL in their keys; `None`: all.
    fn matchable(&self, side: usize, rows: &RecordBatch) -> Option<BooleanArray> {
        let keys = &self.plan.sides[side].keys;
        let nulls: Vec<_> =
            keys.iter().filter_map(|key| rows.column(*key).nulls()).filter(|nulls| nulls.null_count() > 0).collect();
        if nulls.is_empty() {
            return None;
        }
        Some((0..rows.num_rows()).map(|row| Some(nulls.iter().all(|nulls| nulls.is_valid(row)))).collect())
    }

    /// A batch of one side, whose keys have no NULL.
    fn change(&mut self, input: usize, batch: &Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let Some([left, right]) = &mut self.sides else {
            return Err(TaskError::Internal("a join got rows before it was opened".to_owned()));
        };
        if batch.is_empty() {
            return Ok(());
        }
        let (own, other) = if input == 0 { (left, right) } else { (right, left) };
        own.count(batch)?;
        if let Some(bounds) = &self.plan.bounds {
            self.late += own.bound(batch, &self.watermarks, bounds.drops_late)?;
        }
        other.find(own)?;
        other.hide_over(own, &self.watermarks);
        let condition = self.condition.as_deref();
        let pairs = Pairs::new(&self.plan.output, condition, input == 0, (&batch.rows, own), other)?;
        if self.plan.bounds.is_some() {
            // Nothing goes; a row without a match is padded when it is over.
            let late = &own.late;
            let matches =
                pairs.emit_or_pad(RowKind::Insert, |slot| self.plan.kind.is_outer(input) && late[slot], out)?;
            let gained = pairs.gained()?;
            if self.plan.kind.is_outer(input) {
                own.set_matches(&matches);
            }
            if self.plan.kind.is_outer(1 - input) {
                other.add_matches(&gained)?;
            }
            return own.store();
        }
        let (own_is_outer, other_is_outer) = (self.plan.kind.is_outer(input), self.plan.kind.is_outer(1 - input));
        // Of the own side those that go, paired or padded; of the other side those that are padded no more, then those
        // that are now; then those that come.
        if own_is_outer {
            pairs.emit_or_pad(RowKind::Delete, |_| true, out)?;
        } else {
            pairs.emit(RowKind::Delete, out)?;
        }
        let gained = if other_is_outer { pairs.gained()? } else { Vec::new() };
        if other_is_outer {
            pairs.emit_padded(&gained, RowKind::Delete, out)?;
            pairs.emit_padded(&gained, RowKind::Insert, out)?;
        }
        if own_is_outer {
            let matches = pairs.emit_or_pad(RowKind::Insert, |_| true, out)?;
            own.set_matches(&matches);
        } else {
            pairs.emit(RowKind::Insert, out)?;
        }
        if other_is_outer {
            other.add_matches(&gained)?;
        }
        own.store()?;
        own.sweep()?;
        other.sweep()
    }
}

/// The rows whose flag is set.
fn only(batch: &Batch, flags: &BooleanArray) -> Result<Batch, TaskError> {
    let internal = |error| TaskError::Internal(format!("a batch of a join cannot be filtered: {error}"));
    let rows = filter_record_batch(&batch.rows, flags).map_err(internal)?;
    let kinds = batch.kinds.as_ref().map(|kinds| arrow::compute::filter(kinds, flags)).transpose().map_err(internal)?;
    let kinds: Option<UInt8Array> = kinds.map(|kinds| kinds.as_primitive::<arrow::datatypes::UInt8Type>().clone());
    Ok(Batch { rows, kinds })
}
