//! GROUP BY window_start, window_end and keys over SESSION: windows of each key that end `gap` after its last row.
//!
//! A row at t has the window from t to t + gap; windows of one key that meet or overlap are one. A row is late when what it
//! would become part of is over: when its window joins no session and has ended at the watermark. Rows are taken in their
//! order, so the result does not depend on how they are divided into batches.
//!
//! The state, version 1: `sessions` has a row per key with one of its sessions (mostly the only one), its accumulators,
//! `window_start`, `window_end`, and how many sessions more the key has; `more-sessions` has these, keyed by the key and
//! their start. `fired` and `watermarks` as for other windows.
//!
//! The flow of a batch ([`Operator::process`]): its rows are gathered into [`segments`], sessions as far as the batch tells;
//! these join the sessions of their keys. The flow of a watermark: key group by key group, where a session may be due,
//! its rows are looked through.

mod more;
mod segments;
#[cfg(test)]
mod tests;

use super::aggregate::unknown_state;
use super::kind::{RowTime, milliseconds};
use super::output::{self, ROWS_PER_BATCH, as_times, in_batches, with_window};
use super::progress::GroupProgress;
use crate::aggregate::{AggregateCall, Call, GroupAggregateSpec, Plan as Calls, ROWS};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{
    Clock, Collector, Operator, OperatorContext, OperatorFactory, Progress, RestoredState, SnapshotWriter,
};
use crate::state::frozen_tables::FrozenTables;
use crate::state::rows::{GroupRows, RowKeys};
use crate::state::{AccumulatorColumn, Fate, KeyedTable, TableLayout, TouchedKeys};
use arrow::array::{Array, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use more::MoreSessions;
use segments::Segments;
use sluice_protocol::{CheckpointId, KeyGroup, Timestamp, key_group};
use std::cell::Cell;
use std::sync::Arc;

/// The name of the state with a session of each key.
pub const STATE_NAME: &str = "sessions";

/// A GROUP BY over sessions.
#[derive(Debug, Clone)]
pub struct SessionAggregateSpec {
    /// The rows that come in.
    pub input: SchemaRef,
    /// Positions of the key columns; none: one session of all rows at a time.
    pub keys: Vec<usize>,
    /// Names of the key columns in the output and in the state, as many.
    pub key_names: Vec<String>,
    /// The aggregates; they follow the keys in the output. All output names differ.
    pub calls: Vec<AggregateCall>,
    /// How long after the last row a session ends, in milliseconds.
    pub gap: i64,
    /// The time of a row.
    pub time: RowTime,
    /// The type of `window_time`.
    pub window_time: DataType,
}

/// What all subtasks share.
struct Plan {
    calls: Arc<Calls>,
    gap: i64,
    time: RowTime,
    layout: Arc<TableLayout>,
    more: Arc<TableLayout>,
    output: SchemaRef,
}

/// Words of a row of `sessions`, behind the accumulators.
#[derive(Debug, Clone, Copy)]
struct Words {
    start: usize,
    end: usize,
    more: usize,
    all: usize,
}

impl Plan {
    fn words(&self) -> Words {
        let all = self.layout.words;
        Words { start: all - 3, end: all - 2, more: all - 1, all }
    }
}

/// Makes [`SessionAggregate`]s.
pub struct SessionAggregateFactory {
    plan: Arc<Plan>,
}

impl SessionAggregateFactory {
    /// Checks the aggregates and lays out their state.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] as for other windows.
    pub fn new(spec: SessionAggregateSpec) -> Result<Self, TaskError> {
        let SessionAggregateSpec { input, keys, key_names, calls, gap, time, window_time } = spec;
        if gap <= 0 {
            return Err(TaskError::BadProgram(format!("the gap of SESSION is {gap} ms: it must be positive")));
        }
        let calls = super::aggregate::plan_calls(GroupAggregateSpec {
            input,
            keys,
            key_names,
            calls,
            emit_update_before: false,
            changelog: false,
            ttl: None,
        })?;
        let at = DataType::Timestamp(TimeUnit::Millisecond, None);
        let column = |name: &str, data_type: &DataType, word| AccumulatorColumn {
            name: name.to_owned(),
            data_type: data_type.clone(),
            word,
            null_while_zero: None,
        };
        let TableLayout { keys, accumulators, words, .. } = calls.layout.as_ref().clone();
        let (mut main, mut more) = (accumulators.clone(), accumulators);
        main.push(column("window_start", &at, words));
        main.push(column("window_end", &at, words + 1));
        main.push(column("$more", &DataType::Int64, words + 2));
        more.push(column("window_end", &at, words));
        let mut more_keys = keys.clone();
        more_keys.push(Field::new("window_start", at, false));
        let prefix = Some(keys.len());
        let more = TableLayout { keys: more_keys, accumulators: more, words: words + 1, prefix, updated: None };
        let layout = TableLayout { keys, accumulators: main, words: words + 3, prefix: None, updated: None };
        let output = with_window(&calls.output, window_time);
        let plan = Plan { calls, gap, time, layout: Arc::new(layout), more: Arc::new(more), output };
        Ok(Self { plan: Arc::new(plan) })
    }
}

impl OperatorFactory for SessionAggregateFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(SessionAggregate { plan: Arc::clone(&self.plan), opened: None, clock: Arc::new(|| Timestamp(0)) }))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.plan.output)
    }
}

/// One subtask of a GROUP BY over sessions.
pub struct SessionAggregate {
    plan: Arc<Plan>,
    opened: Option<Opened>,
    clock: Clock,
}

/// A session of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Session {
    start: i64,
    end: i64,
    /// The accumulators alone.
    words: Vec<u64>,
}

impl Session {
    const fn meets(&self, start: i64, end: i64) -> bool {
        self.start <= end && start <= self.end
    }
}

/// Accumulators of `from` come to those of `into`.
fn merge(calls: &[Call], into: &mut [u64], from: &[u64]) {
    let width = from.len();
    into[ROWS] = into[ROWS].wrapping_add(from[ROWS]);
    calls.iter().for_each(|call| call.accumulator.merge(&mut into[..width], width, &[0], from));
}

/// What is there once the operator was opened.
struct Opened {
    plan: Arc<Plan>,
    context: OperatorContext,
    sessions: Box<dyn KeyedTable>,
    more: MoreSessions,
    progress: GroupProgress,
    /// Per key group: no session ends before.
    least_end: Vec<i64>,
    /// The next key group to look through.
    next: usize,
    segments: Segments,
    touched: TouchedKeys,
    words: Vec<u64>,
    fates: Vec<Fate>,
    due: Emitted,
    read: GroupRows,
    /// Rows so far that came too late, or without a time.
    dropped: u64,
}

/// Sessions to be emitted.
#[derive(Default)]
struct Emitted {
    keys: RowKeys,
    /// Accumulators alone.
    words: Vec<u64>,
    starts: Vec<i64>,
    ends: Vec<i64>,
}

impl Opened {
    fn new(plan: &Arc<Plan>, context: &OperatorContext, state: RestoredState) -> Result<Self, TaskError> {
        let is_known = |name: &str| name == STATE_NAME || name == more::STATE_NAME;
        let keyed = state.keyed.iter().map(|file| &file.name).find(|name| !is_known(name));
        let list = state.operator.iter().map(|list| &list.name).find(|name| !GroupProgress::is_own(name));
        if let Some(other) = keyed.or(list) {
            return Err(unknown_state(context, other));
        }
        let progress = GroupProgress::open(context, &state, 0)?;
        let mut sessions = context.keyed_table(STATE_NAME, Arc::clone(&plan.layout))?;
        let (own, others): (Vec<_>, Vec<_>) = state.keyed.into_iter().partition(|file| file.name == STATE_NAME);
        sessions.restore(&context.uid, &own)?;
        let more = MoreSessions::open(context, &plan.more, &others)?;
        // What was restored is looked through once.
        let least = if sessions.is_empty() { i64::MAX } else { i64::MIN };
        let least_end = vec![least; context.key_groups.len()];
        Ok(Self {
            plan: Arc::clone(plan),
            context: context.clone(),
            sessions,
            more,
            progress,
            least_end,
            next: 0,
            segments: Segments::default(),
            touched: TouchedKeys::default(),
            words: Vec::new(),
            fates: Vec::new(),
            due: Emitted::default(),
            read: GroupRows::default(),
            dropped: 0,
        })
    }

    /// Takes rows with their times.
    fn add(&mut self, rows: &RecordBatch, times: &[i64]) -> Result<(), TaskError> {
        let plan = Arc::clone(&self.plan);
        let at = plan.words();
        self.sessions.touch(rows, &plan.calls.keys, &mut self.touched)?;
        self.sessions.load(&self.touched, &mut self.words);
        let watermark = self.progress.watermark();
        let watermarks = self.progress.uniform().is_none().then(|| self.watermarks());
        let watermark_of = |row: usize| watermarks.as_ref().map_or(watermark, |all| all[row]);
        let keys = self.touched.keys.len();
        self.segments.gather((&self.touched.slots, keys), times, plan.gap, &watermark_of);
        self.segments.accumulate(&plan.calls, rows)?;
        let has_more = |slot: &usize| self.words[slot * at.all + at.more] != 0;
        let slots: Vec<usize> = (0..keys).filter(has_more).collect();
        self.more.load(&plan, (rows, &plan.calls.keys), &self.touched, &slots, &self.words)?;
        for (segment, words) in self.segments.iter() {
            let slot = segment.slot as usize;
            let row = &mut self.words[slot * at.all..][..at.all];
            let group =
                key_group::of_hash(self.touched.group_hashes()[segment.first as usize], self.context.max_parallelism);
            let is_over = segment.end.saturating_sub(1) <= watermark_of(segment.first as usize);
            let taken = self.more.place(&plan, row, slot, (segment.start, segment.end, words), is_over);
            if !taken {
                self.dropped += words[ROWS];
                continue;
            }
            let least = &mut self.least_end[usize::from(group.0 - self.context.key_groups.start)];
            *least = (*least).min(segment.end);
        }
        self.more.give_back(&plan, &mut self.words);
        self.fates.clear();
        let fate = |row: &[u64]| if row[ROWS] == 0 { Fate::Remove } else { Fate::Write };
        self.fates.extend(self.words.chunks_exact(at.all).map(fate));
        self.sessions.store(&self.touched, &self.words, &self.fates)?;
        self.more.store(rows, &plan.calls.keys, &self.touched)
    }

    /// The watermark of each row's key group.
    fn watermarks(&self) -> Vec<i64> {
        let of = |hash: &u64| self.progress.watermark_of(key_group::of_hash(*hash, self.context.max_parallelism));
        self.touched.group_hashes().iter().map(of).collect()
    }

    /// Emits sessions that are over, a batch at most.
    fn fire(&mut self, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        while let Some((group, progress)) = self.progress.nth(self.next) {
            if self.due.ends.len() >= ROWS_PER_BATCH {
                self.emit(out)?;
                return Ok(Progress::More);
            }
            if self.least_end[self.next].saturating_sub(1) <= progress.watermark {
                self.look_through(group, progress.watermark)?;
            }
            self.next += 1;
        }
        self.next = 0;
        self.emit(out)?;
        Ok(Progress::Done)
    }

    /// Takes the sessions of a key group that are over.
    fn look_through(&mut self, group: KeyGroup, watermark: i64) -> Result<(), TaskError> {
        let plan = Arc::clone(&self.plan);
        let at = plan.words();
        let least = Cell::new(i64::MAX);
        let wanted = |row: &[u64]| {
            let end = row[at.end] as i64;
            let is_wanted = row[at.more] != 0 || end.saturating_sub(1) <= watermark;
            if !is_wanted {
                least.set(least.get().min(end));
            }
            is_wanted
        };
        self.sessions.read_group(group, Some(&wanted), &mut self.read)?;
        let mut left = least.get();
        if !self.read.keys.is_empty() {
            let keys = key_batch(&plan, &self.read.keys)?;
            let columns: Vec<usize> = (0..plan.layout.keys.len()).collect();
            self.sessions.touch(&keys, &columns, &mut self.touched)?;
            self.sessions.load(&self.touched, &mut self.words);
            let has_more = |slot: &usize| self.words[slot * at.all + at.more] != 0;
            let slots: Vec<usize> = (0..self.touched.keys.len()).filter(has_more).collect();
            self.more.load(&plan, (&keys, &columns), &self.touched, &slots, &self.words)?;
            if self.due.ends.is_empty() {
                self.due.keys.clear(matches!(self.read.keys, RowKeys::Bigint(_)));
            }
            for slot in 0..self.touched.keys.len() {
                let row = &mut self.words[slot * at.all..][..at.all];
                let (due, read) = (&mut self.due, &self.read.keys);
                let over = |start: i64, end: i64, words: &[u64]| {
                    due.keys.push_from(read, slot);
                    due.words.extend_from_slice(words);
                    due.starts.push(start);
                    due.ends.push(end);
                };
                left = left.min(self.more.take_over(&plan, row, slot, watermark, over));
            }
            self.more.give_back(&plan, &mut self.words);
            self.fates.clear();
            let fate = |row: &[u64]| if row[ROWS] == 0 { Fate::Remove } else { Fate::Write };
            self.fates.extend(self.words.chunks_exact(at.all).map(fate));
            self.sessions.store(&self.touched, &self.words, &self.fates)?;
            self.more.store(&keys, &columns, &self.touched)?;
        }
        self.least_end[self.next] = left;
        Ok(())
    }

    fn emit(&mut self, out: &mut dyn Collector) -> Result<(), TaskError> {
        let (plan, due) = (&self.plan, &mut self.due);
        if due.ends.is_empty() {
            return Ok(());
        }
        let last: Int64Array = due.ends.iter().map(|end| end.saturating_sub(1)).collect();
        let times = [std::mem::take(&mut due.starts).into(), std::mem::take(&mut due.ends).into(), last];
        let rows = output::rows(&plan.calls, &plan.output, (&due.keys, &due.words), times)?;
        due.keys.clear(matches!(due.keys, RowKeys::Bigint(_)));
        due.words.clear();
        in_batches(&rows).for_each(|batch| out.collect(batch));
        Ok(())
    }
}

/// Keys with an empty place for the start of a session.
fn key_batch(plan: &Plan, keys: &RowKeys) -> Result<RecordBatch, TaskError> {
    let fields = &plan.layout.keys;
    let mut columns = if fields.is_empty() { Vec::new() } else { keys.columns(fields)? };
    columns.push(as_times(&Int64Array::from_value(0, keys.len()), plan.more.keys[fields.len()].data_type())?);
    let internal = |error| TaskError::Internal(format!("the keys of sessions do not make a batch: {error}"));
    let nullable = plan.more.keys.iter().map(|field| field.clone().with_nullable(true)).collect::<Vec<_>>();
    RecordBatch::try_new(Arc::new(Schema::new(nullable)), columns).map_err(internal)
}

fn not_opened() -> TaskError {
    TaskError::Internal("sessions got rows before they were opened".to_owned())
}

impl Operator for SessionAggregate {
    fn set_clock(&mut self, clock: &Clock) {
        self.clock = Clock::clone(clock);
    }

    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        self.opened = Some(Opened::new(&self.plan, context, state)?);
        Ok(())
    }

    fn process(&mut self, batch: Batch, _: &mut dyn Collector) -> Result<(), TaskError> {
        if batch.kinds.is_some() {
            return Err(TaskError::Internal("a window got changes of rows: it takes new rows only".to_owned()));
        }
        let now = i64::try_from((self.clock)().0).unwrap_or(i64::MAX);
        let opened = self.opened.as_mut().ok_or_else(not_opened)?;
        let RowTime::Column(column) = self.plan.time else {
            let now = now.max(opened.progress.greatest().saturating_add(1));
            return opened.add(&batch.rows, &vec![now; batch.len()]);
        };
        let times = milliseconds(batch.rows.column(column))?;
        if times.null_count() == 0 {
            return opened.add(&batch.rows, times.values());
        }
        opened.dropped += times.null_count() as u64;
        let is_there: BooleanArray = times.iter().map(|time| Some(time.is_some())).collect();
        let failed = |error| TaskError::Internal(format!("rows without a time cannot be left out: {error}"));
        let rows = filter_record_batch(&batch.rows, &is_there).map_err(failed)?;
        let times: Vec<i64> = times.iter().flatten().collect();
        if times.is_empty() { Ok(()) } else { opened.add(&rows, &times) }
    }

    fn watermark(&mut self, watermark: i64, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        if self.plan.time == RowTime::Processing && watermark != i64::MAX {
            return Ok(Progress::Done);
        }
        let opened = self.opened.as_mut().ok_or_else(not_opened)?;
        opened.progress.raise(watermark);
        opened.fire(out)
    }

    fn late_rows(&self) -> u64 {
        self.opened.as_ref().map_or(0, |opened| opened.dropped)
    }

    fn next_timer(&self) -> Option<Timestamp> {
        let opened = self.opened.as_ref().filter(|_| self.plan.time == RowTime::Processing)?;
        let least = opened.least_end.iter().copied().min().filter(|least| *least != i64::MAX)?;
        Some(Timestamp(u64::try_from(least).unwrap_or(0)))
    }

    fn on_timer(&mut self, now: Timestamp, out: &mut dyn Collector) -> Result<Progress, TaskError> {
        let opened = self.opened.as_mut().ok_or_else(not_opened)?;
        opened.progress.raise(i64::try_from(now.0).unwrap_or(i64::MAX).saturating_sub(1));
        opened.fire(out)
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let opened = self.opened.as_mut().ok_or_else(not_opened)?;
        // What is over has left its tables already: it is emitted before the snapshot of the next slice, if any.
        let tables = vec![opened.sessions.freeze(checkpoint)?, opened.more.freeze(checkpoint)?];
        let progress = opened.progress.snapshot(opened.sessions.is_empty())?;
        Ok(Some(Box::new(super::aggregate::FrozenWindows { tables: FrozenTables(tables), progress })))
    }
}
