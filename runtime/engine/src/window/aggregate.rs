//! GROUP BY window_start, window_end and keys: accumulators per slice and key, merged when a window fires.
//!
//! The output: the keys, the aggregates, then `window_start`, `window_end` (TIMESTAMP(3)) and `window_time`, the last
//! millisecond of the window, as a time of the rows' own type.
//!
//! The flow of a batch ([`Operator::process`]): [`Router`] divides its rows by slice and leaves out the late ones; each slice
//! adds its rows to its table. With an allowed lateness slices stay for so much longer, and rows of windows that have fired
//! change the result ([`late`]). The flow of a watermark ([`Operator::watermark`]): [`WindowAggregate::next_window`] is the
//! first window that is due; [`WindowAggregate::fire`] puts its slices together ([`totals`]), so many key groups at once as
//! make a batch; slices that no window needs any more are dropped.

mod late;
mod route;
#[cfg(test)]
mod tests;
mod totals;

use super::kind::{RowTime, Span, WindowKind};
use super::merge::Merged;
use super::output::{self, ROWS_PER_BATCH, in_batches, with_window};
use super::progress::GroupProgress;
use crate::aggregate::accumulate::{Signs, count};
use crate::aggregate::{AggregateCall, GroupAggregateFactory, GroupAggregateSpec, Plan as Calls, ROWS};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{
    Clock, Collector, ListPiece, Operator, OperatorContext, OperatorFactory, OperatorState, Progress, RestoredKeyed,
    RestoredState, SnapshotWriter, TakePiece, WriteOptions,
};
use crate::state::frozen_tables::FrozenTables;
use crate::state::rows::GroupRows;
use crate::state::{Fate, KeyedTable, TouchedKeys};
use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use route::Router;
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use totals::Totals;

/// A GROUP BY window_start, window_end and keys.
#[derive(Debug, Clone)]
pub struct WindowAggregateSpec {
    /// The rows that come in.
    pub input: SchemaRef,
    /// Positions of the key columns; none: one group of all rows.
    pub keys: Vec<usize>,
    /// Names of the key columns in the output and in the state, as many.
    pub key_names: Vec<String>,
    /// The aggregates; they follow the keys in the output. All output names differ.
    pub calls: Vec<AggregateCall>,
    /// The windows.
    pub kind: WindowKind,
    /// The time of a row, unless the rows say their window.
    pub time: RowTime,
    /// The type of `window_time`.
    pub window_time: DataType,
    /// What becomes of rows that come when their window has fired.
    pub late: LateRows,
}

/// What becomes of rows that come when their window has fired; by default they are dropped and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LateRows {
    /// For how long after that they still count.
    pub allowed_lateness: TimeSpan,
    /// Whether changes of results that were emitted already hold the result before, too.
    pub emit_update_before: bool,
    /// Whether those that do not count are emitted themselves ([`LATE`]).
    pub emit: bool,
}

/// The column by which late rows are told from results: true. Columns of results are NULL in them; before it stand the input's
/// columns, which are NULL in results.
pub const LATE: &str = "$late";

/// What all subtasks share.
pub(super) struct Plan {
    pub(super) calls: Arc<Calls>,
    pub(super) kind: WindowKind,
    pub(super) time: RowTime,
    /// Of results.
    pub(super) output: SchemaRef,
    /// For how long a window's results may change, in milliseconds.
    pub(super) lateness: i64,
    /// With the columns of late rows, where they are emitted.
    pub(super) wide: Option<SchemaRef>,
}

/// Makes [`WindowAggregate`]s.
pub struct WindowAggregateFactory {
    plan: Arc<Plan>,
}

impl WindowAggregateFactory {
    /// Checks the windows and the aggregates, and lays out their state.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] as for a GROUP BY without windows, for windows that cannot be, and for aggregates that
    /// keep more than a few numbers per group.
    pub fn new(spec: WindowAggregateSpec) -> Result<Self, TaskError> {
        let WindowAggregateSpec { input, keys, key_names, calls, kind, time, window_time, late } = spec;
        kind.validate()?;
        let calls = plan_calls(GroupAggregateSpec {
            input: SchemaRef::clone(&input),
            keys,
            key_names,
            calls,
            emit_update_before: late.emit_update_before,
            changelog: false,
            ttl: None,
        })?;
        let output = with_window(&calls.output, window_time);
        let lateness = i64::try_from(late.allowed_lateness.0).unwrap_or(i64::MAX);
        let wide = late.emit.then(|| late::wide(&output, &input));
        Ok(Self { plan: Arc::new(Plan { calls, kind, time, output, lateness, wide }) })
    }
}

/// Lays out the accumulators of a window's keys.
pub(super) fn plan_calls(spec: GroupAggregateSpec) -> Result<Arc<Calls>, TaskError> {
    let names: Vec<String> = spec.calls.iter().map(|call| call.name.clone()).collect();
    let calls = GroupAggregateFactory::new(spec)?.plan;
    match names.iter().zip(&calls.calls).find(|(_, call)| !call.keeps_words_only()) {
        Some((name, _)) => Err(TaskError::BadProgram(format!(
            "the aggregate '{name}' is not supported in a window yet: DISTINCT, and MIN and MAX of text, keep values"
        ))),
        None => Ok(calls),
    }
}

impl WindowAggregateFactory {
    /// The columns of results, without those of late rows.
    #[must_use]
    pub fn results(&self) -> &SchemaRef {
        &self.plan.output
    }

    fn build(&self) -> WindowAggregate {
        WindowAggregate {
            plan: Arc::clone(&self.plan),
            context: None,
            slices: BTreeMap::new(),
            progress: GroupProgress::default(),
            firing: None,
            router: Router::default(),
            touched: TouchedKeys::default(),
            words: Vec::new(),
            fates: Vec::new(),
            filtered: Signs::default(),
            read: GroupRows::default(),
            merged: Merged::default(),
            totals: Totals::default(),
            clock: Arc::new(|| Timestamp(0)),
        }
    }
}

impl OperatorFactory for WindowAggregateFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(self.build()))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(self.plan.wide.as_ref().unwrap_or(&self.plan.output))
    }
}

/// One subtask of a windowed GROUP BY.
pub struct WindowAggregate {
    plan: Arc<Plan>,
    context: Option<OperatorContext>,
    /// By their ends.
    slices: BTreeMap<i64, Slice>,
    progress: GroupProgress,
    firing: Option<Firing>,
    router: Router,
    touched: TouchedKeys,
    words: Vec<u64>,
    fates: Vec<Fate>,
    filtered: Signs,
    read: GroupRows,
    merged: Merged,
    totals: Totals,
    clock: Clock,
}

struct Slice {
    start: i64,
    table: Box<dyn KeyedTable>,
}

/// A window that is firing.
struct Firing {
    window: Span,
    /// The next key group, by its position among those of the subtask.
    next: usize,
}

impl WindowAggregate {
    /// The table of a slice; made when it is not there.
    fn slice(&mut self, span: Span) -> Result<&mut Slice, TaskError> {
        let context = self.context.as_ref().ok_or_else(not_opened)?;
        let slice = match self.slices.entry(span.end) {
            std::collections::btree_map::Entry::Occupied(slice) => slice.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                let table = context.keyed_table(&slice_name(span), Arc::clone(&self.plan.calls.layout))?;
                vacant.insert(Slice { start: span.start, table })
            }
        };
        if slice.start == span.start {
            return Ok(slice);
        }
        Err(TaskError::BadProgram(format!(
            "rows come with two windows that end at {} ms but begin at {} ms and at {} ms; aggregate each kind of window by \
             itself",
            span.end, slice.start, span.start
        )))
    }

    /// Adds rows, all of one slice.
    fn add(&mut self, span: Span, rows: &RecordBatch) -> Result<(), TaskError> {
        let calls = Arc::clone(&self.plan.calls);
        let words = calls.layout.words;
        let (mut touched, mut new) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.words));
        let mut fates = std::mem::take(&mut self.fates);
        let mut filtered = std::mem::take(&mut self.filtered);
        self.totals.make_room();
        let slice = self.slice(span)?;
        slice.table.touch(rows, &calls.keys, &mut touched)?;
        slice.table.load(&touched, &mut new);
        let all = Signs::default();
        count(&mut new, words, ROWS, &touched.slots, &all);
        for call in &calls.calls {
            let mut signs = &all;
            if let Some(filter) = call.filter {
                filtered.filter(&all, rows.column(filter));
                signs = &filtered;
            }
            call.accumulator.add(&mut new, words, &touched.slots, signs, rows)?;
        }
        fates.clear();
        fates.resize(touched.keys.len(), Fate::Write);
        slice.table.store(&touched, &new, &fates)?;
        self.totals.forget(span, &touched);
        (self.touched, self.words, self.fates, self.filtered) = (touched, new, fates, filtered);
        Ok(())
    }

    /// The first window that is due in some key group.
    fn next_window(&self) -> Option<Span> {
        let of_group = |progress: crate::window::progress::Progress| {
            let next = self.first_after(progress.fired)?;
            (next.end.saturating_sub(1) <= progress.watermark).then_some(next)
        };
        self.progress.distinct().filter_map(of_group).min_by_key(|window| window.end)
    }

    /// The first window that ends after `fired` and has a slice.
    fn first_after(&self, fired: i64) -> Option<Span> {
        let kind = &self.plan.kind;
        self.slices.iter().find_map(|(end, slice)| {
            let span = Span { start: slice.start, end: *end };
            let end = kind.next_end(span, fired)?;
            Some(Span { start: kind.start(end, span), end })
        })
    }

    /// Fires what is due, a batch at most.
    fn fire(&mut self, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        if self.firing.is_none() {
            let Some(window) = self.next_window() else {
                self.progress.all_fired();
                self.drop_slices();
                return Ok(Progress::Done);
            };
            self.firing = Some(Firing { window, next: 0 });
        }
        let Some(Firing { window, mut next }) = self.firing.take() else { return Ok(Progress::Done) };
        let mut is_over = false;
        while self.merged.keys.len() < ROWS_PER_BATCH {
            let Some((group, progress)) = self.progress.nth(next) else {
                is_over = true;
                break;
            };
            if progress.fired < window.end && window.end.saturating_sub(1) <= progress.watermark {
                self.merge(next, group, window)?;
                self.progress.fired(next, window.end);
            }
            next += 1;
        }
        self.emit(window, out)?;
        if is_over {
            self.totals.settle();
            self.drop_slices();
        } else {
            self.firing = Some(Firing { window, next });
        }
        Ok(Progress::More)
    }

    fn emit(&mut self, window: Span, out: &mut dyn Collector) -> Result<(), TaskError> {
        let merged = &mut self.merged;
        let count = merged.keys.len();
        if count == 0 {
            return Ok(());
        }
        let times = window_times(window).map(|time| Int64Array::from_value(time, count));
        let rows = output::rows(&self.plan.calls, &self.plan.output, (&merged.keys, &merged.words), times)?;
        merged.clear();
        for results in in_batches(&rows) {
            out.collect(self.plan.widened(results)?);
        }
        Ok(())
    }

    /// Drops slices whose last window has fired in all key groups, and is not to change any more.
    fn drop_slices(&mut self) {
        let (kind, fired) = (&self.plan.kind, self.progress.least_fired());
        while let Some(slice) = self.slices.first_entry() {
            let last = kind.last_end(Span { start: slice.get().start, end: *slice.key() });
            if last > fired.saturating_sub(self.plan.lateness) {
                break;
            }
            slice.remove();
        }
    }

    fn restore(&mut self, context: &OperatorContext, keyed: Vec<RestoredKeyed>) -> Result<(), TaskError> {
        let mut by_name: BTreeMap<String, Vec<RestoredKeyed>> = BTreeMap::new();
        for file in keyed {
            by_name.entry(file.name.clone()).or_default().push(file);
        }
        for (name, files) in by_name {
            let span = span_of(&name).ok_or_else(|| unknown_state(context, &name))?;
            self.slice(span)?.table.restore(&context.uid, &files)?;
        }
        self.slices.retain(|_, slice| !slice.table.is_empty());
        Ok(())
    }

    /// The time of rows that come now, when windows go by the clock.
    fn now(&self) -> i64 {
        let now = i64::try_from((self.clock)().0).unwrap_or(i64::MAX);
        now.max(self.progress.greatest().saturating_add(1))
    }
}

impl Operator for WindowAggregate {
    fn set_clock(&mut self, clock: &Clock) {
        self.clock = Clock::clone(clock);
    }

    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        if let Some(other) = state.operator.iter().find(|list| !GroupProgress::is_own(&list.name)) {
            return Err(unknown_state(context, &other.name));
        }
        self.progress = GroupProgress::open(context, &state, self.plan.lateness)?;
        self.totals = Totals::open(&self.plan, context);
        self.context = Some(context.clone());
        self.restore(context, state.keyed)
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        if batch.kinds.is_some() {
            return Err(TaskError::Internal("a window got changes of rows: it takes new rows only".to_owned()));
        }
        let mut router = std::mem::take(&mut self.router);
        router.divide(&self.plan, &self.progress, self.now(), &batch.rows)?;
        for (span, rows) in router.parts(&batch.rows)? {
            let fired = self.fired_windows(span);
            if fired.is_empty() {
                self.add(span, &rows)?;
            } else {
                self.add_late(span, &rows, &fired, out)?;
            }
        }
        if let Some(late) = router.late_rows(&batch.rows, &self.plan)? {
            out.collect(late);
        }
        self.router = router;
        Ok(())
    }

    fn watermark(&mut self, watermark: i64, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        if self.plan.time == RowTime::Processing && watermark != i64::MAX {
            return Ok(Progress::Done);
        }
        self.progress.raise(watermark);
        self.fire(out)
    }

    fn late_rows(&self) -> u64 {
        self.router.dropped
    }

    fn next_timer(&self) -> Option<Timestamp> {
        if self.plan.time != RowTime::Processing {
            return None;
        }
        let window = self.progress.distinct().filter_map(|group| self.first_after(group.fired)).map(|w| w.end).min()?;
        Some(Timestamp(u64::try_from(window).unwrap_or(0)))
    }

    fn on_timer(&mut self, now: Timestamp, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        self.progress.raise(i64::try_from(now.0).unwrap_or(i64::MAX).saturating_sub(1));
        self.fire(out)
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let tables = self.slices.values_mut().map(|slice| slice.table.freeze(checkpoint)).collect::<Result<_, _>>()?;
        Ok(Some(Box::new(FrozenWindows {
            tables: FrozenTables(tables),
            progress: self.progress.snapshot(self.slices.is_empty())?,
        })))
    }
}

/// Slices and how far they have been merged, frozen together.
pub(super) struct FrozenWindows {
    pub(super) tables: FrozenTables,
    pub(super) progress: Vec<ListPiece>,
}

impl SnapshotWriter for FrozenWindows {
    fn write(&self, options: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError> {
        let state = self.tables.write(options, take)?;
        Ok(OperatorState { operator: self.progress.clone(), ..state })
    }
}

fn slice_name(span: Span) -> String {
    format!("slice_{}_{}", span.start, span.end)
}

fn span_of(name: &str) -> Option<Span> {
    let (start, end) = name.strip_prefix("slice_")?.split_once('_')?;
    Some(Span { start: start.parse().ok()?, end: end.parse().ok()? })
}

fn not_opened() -> TaskError {
    TaskError::Internal("a window got rows before it was opened".to_owned())
}

pub(super) fn unknown_state(context: &OperatorContext, name: &str) -> TaskError {
    TaskError::IncompatibleState(format!(
        "operator '{}' aggregates windows, but the checkpoint holds a state '{name}' for it, which it does not know; was the uid \
         used for another kind of operator?",
        context.uid
    ))
}

/// What the columns of a window say.
const fn window_times(window: Span) -> [i64; 3] {
    [window.start, window.end, window.end.saturating_sub(1)]
}
