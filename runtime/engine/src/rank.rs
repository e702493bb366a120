//! The first N rows of each partition by an order, over rows or a changelog: ROW_NUMBER() with a bound on it, which is
//! Flink's top-N and deduplication.
//!
//! Input 0 is partitioned by the partition columns; with `-U` and `-D` rows come all columns. The order is total, so the
//! result does not depend on how rows are batched, or in which order they come: rows that tie are ordered by their
//! columns. [`RankBy::LastArrival`] is the exception, since it says that the order of arrival decides. A row that is
//! there several times takes as many places. Floats come out with one zero and one NaN, as keys do (F3). A retraction of
//! a row that is not there is dropped.
//!
//! With the number in the output, a place whose row changes is `-U` and `+U`, one that is filled `+I`, one that is empty
//! again `-D`. Without, rows that leave the first N are `-D`, rows that enter `+I`; where N is 1, both are an update.
//!
//! The state, version 1: table `rows`, one row per distinct row of a partition: the partition columns, then the others,
//! by their names, and `$rows`, how often it is there. Over a changelog all rows of a partition are kept, since those
//! before may go; otherwise the first N only. With a TTL a partition that nothing came to for so long is as if it had
//! never been.
//!
//! The flow of a batch ([`Rank::process`]): the partitions that it touches are loaded; [`entries`] puts their rows and
//! those of the batch in order, before and after it; [`changes`] compares; what has changed goes back to the table.
//! [`first`] is the operator for the first row that arrives, [`window`] the one for rows of windows.

mod changes;
mod entries;
mod first;
#[cfg(test)]
mod tests;
mod window;

pub use first::FirstRowFactory;
pub use window::WindowRankFactory;

use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{Clock, Collector, Operator, OperatorContext, OperatorFactory, RestoredState, SnapshotWriter};
use crate::state::frozen_tables::FrozenTables;
use crate::state::prefix::{FoundRows, Prefixes};
use crate::state::ttl::Ttl;
use crate::state::whole_rows::{RowsLayout, with_one_zero};
use crate::state::{Fate, KeyedTable, TouchedKeys};
use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use changes::Changes;
use entries::{Entries, Sorter};
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};
use std::sync::Arc;

/// The name of the state within the operator.
pub const STATE_NAME: &str = "rows";

/// The word of how often a row is there.
const COUNT: usize = 0;

/// A column that rows are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankOrder {
    /// Its position.
    pub column: usize,
    /// The largest value first.
    pub descending: bool,
    /// NULL before all values.
    pub nulls_first: bool,
}

/// What decides which row stands before which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankBy {
    /// Columns, the first one first; at least one.
    Columns(Vec<RankOrder>),
    /// The row that came last is the first; for a limit of 1 over rows that are not retracted.
    LastArrival,
}

/// The first rows of each partition.
#[derive(Debug, Clone)]
pub struct RankSpec {
    /// The rows that come in.
    pub input: SchemaRef,
    /// Positions of the partition columns; none: all rows are one partition.
    pub keys: Vec<usize>,
    /// The order.
    pub by: RankBy,
    /// How many rows of each partition come out; at least 1.
    pub limit: u64,
    /// The name of a BIGINT column behind the others with the place of each row, from 1; `None`: there is none.
    pub number: Option<String>,
    /// Whether `-U` rows are emitted.
    pub emit_update_before: bool,
    /// Whether rows that come may retract others.
    pub changelog: bool,
    /// How long a partition lives after its last row; `None`: for ever.
    pub ttl: Option<TimeSpan>,
}

/// Makes [`Rank`]s.
pub struct RankFactory {
    plan: Arc<Plan>,
}

/// What all subtasks share.
struct Plan {
    by: RankBy,
    limit: u64,
    has_number: bool,
    emit_update_before: bool,
    changelog: bool,
    ttl: Option<TimeSpan>,
    rows: RowsLayout,
    input: SchemaRef,
    output: SchemaRef,
}

impl RankFactory {
    /// Checks the rank and lays out its state.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] when columns are not there or cannot be kept, or the order does not fit the limit.
    pub fn new(spec: RankSpec) -> Result<Self, TaskError> {
        check(&spec)?;
        let RankSpec { input, keys, by, limit, number, emit_update_before, changelog, ttl } = spec;
        let rows = RowsLayout::new(("the input of", "a rank"), &input, &keys, &[], ttl.is_some())?;
        let has_number = number.is_some();
        let fields = input.fields().iter().cloned();
        let fields = fields.chain(number.map(|name| Arc::new(Field::new(name, DataType::Int64, false))));
        let output = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let plan = Plan { by, limit, has_number, emit_update_before, changelog, ttl, rows, input, output };
        Ok(Self { plan: Arc::new(plan) })
    }
}

fn check(spec: &RankSpec) -> Result<(), TaskError> {
    let refused = |text: String| Err(TaskError::BadProgram(text));
    let ordered: &[RankOrder] = if let RankBy::Columns(order) = &spec.by { order } else { &[] };
    let named = spec.keys.iter().chain(ordered.iter().map(|order| &order.column));
    if let Some(missing) = named.into_iter().find(|column| **column >= spec.input.fields().len()) {
        return refused(format!("a rank refers to column {missing}, which is not there"));
    }
    match &spec.by {
        _ if spec.limit == 0 => refused("a rank has the limit 0: at least one row must come out".to_owned()),
        RankBy::Columns(order) if order.is_empty() => refused("a rank has no order".to_owned()),
        RankBy::LastArrival if spec.limit != 1 || spec.changelog => {
            refused("rows can be ranked by their arrival where the last one is kept and none is retracted".to_owned())
        }
        _ => Ok(()),
    }
}

impl OperatorFactory for RankFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(Rank {
            plan: Arc::clone(&self.plan),
            sorter: Sorter::new(&self.plan.by, &self.plan.input)?,
            table: None,
            ttl: None,
            touched: TouchedKeys::default(),
            prefixes: Prefixes::default(),
            found: FoundRows::default(),
            words: Vec::new(),
            fates: Vec::new(),
            clock: Arc::new(|| Timestamp(0)),
        }))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.plan.output)
    }
}

/// One subtask of a rank.
pub struct Rank {
    plan: Arc<Plan>,
    sorter: Sorter,
    /// Once it is opened.
    table: Option<Box<dyn KeyedTable>>,
    ttl: Option<Ttl>,
    /// The distinct rows of the batch.
    touched: TouchedKeys,
    /// The partitions of the batch.
    prefixes: Prefixes,
    /// Their rows.
    found: FoundRows,
    words: Vec<u64>,
    fates: Vec<Fate>,
    clock: Clock,
}

impl Operator for Rank {
    fn set_clock(&mut self, clock: &Clock) {
        self.clock = Clock::clone(clock);
    }

    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        let layout = &self.plan.rows.layout;
        self.table = Some(open_table(STATE_NAME, "a rank", layout, context, &state)?);
        self.ttl = Ttl::of(self.plan.ttl, layout, &self.clock);
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        if batch.is_empty() {
            return Ok(());
        }
        let batch = Batch { rows: with_one_zero(batch.rows)?, ..batch };
        self.load(&batch.rows)?;
        let mut entries = self.entries(&batch)?;
        let limit = if self.plan.changelog { None } else { Some(self.plan.limit) };
        entries.sort(&self.sorter, self.prefixes.len(), limit)?;
        let number = self.plan.has_number;
        let mut changes = Changes::new(number, self.plan.limit, self.plan.emit_update_before);
        entries.partitions().for_each(|partition| changes.compare(&entries, partition));
        changes.emit(entries.columns(), &self.plan.output, out)?;
        self.store(&entries)
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let Some(table) = &mut self.table else { return Ok(None) };
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
            ttl.sweep_before_freeze(table.as_mut())?;
        }
        Ok(Some(Box::new(FrozenTables(vec![table.freeze(checkpoint)?]))))
    }
}

impl Rank {
    /// Finds the partitions of a batch and all that is kept of them.
    fn load(&mut self, rows: &RecordBatch) -> Result<(), TaskError> {
        let table = opened(&mut self.table)?;
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
        }
        self.touched.hash(table.layout(), rows, &self.plan.rows.columns)?;
        self.prefixes.clear();
        for row in 0..rows.num_rows() as u32 {
            self.prefixes.number(&self.touched, row);
        }
        table.find_by_prefix(&self.prefixes, &mut self.found)?;
        table.load(&self.found.touched, &mut self.words);
        if let Some(ttl) = &mut self.ttl {
            ttl.hide_expired(&mut self.words, self.plan.rows.layout.words);
        }
        Ok(())
    }

    /// The rows of these partitions before the batch and after it.
    fn entries(&mut self, batch: &Batch) -> Result<Entries, TaskError> {
        let width = self.plan.rows.layout.words;
        let mut entries = Entries::default();
        for (row, words) in self.words.chunks_exact(width).enumerate() {
            entries.keep(self.found.touched.keys[row].first, words[COUNT] as i64);
        }
        let (touched, prefixes) = (&self.touched, &mut self.prefixes);
        entries.change(batch, &self.found, touched, |row| prefixes.number(touched, row));
        entries.take_columns(&batch.rows, self.plan.rows.found(&self.found)?)?;
        Ok(entries)
    }

    /// Takes over how often each row is there.
    fn store(&mut self, entries: &Entries) -> Result<(), TaskError> {
        let (table, width) = (opened(&mut self.table)?, self.plan.rows.layout.words);
        self.fates.clear();
        for (entry, words) in entries.found().zip(self.words.chunks_exact_mut(width)) {
            self.fates.push(match (entry.after, &self.ttl) {
                // Those of the batch are stored below.
                _ if entry.in_batch => Fate::Keep,
                (0, _) => Fate::Remove,
                (after, None) if after == entry.before => Fate::Keep,
                (after, ttl) => {
                    words[COUNT] = after as u64;
                    ttl.iter().for_each(|ttl| ttl.note(words));
                    Fate::Write
                }
            });
        }
        table.store(&self.found.touched, &self.words, &self.fates)?;
        table.find(None, &mut self.touched)?;
        table.load(&self.touched, &mut self.words);
        self.fates.clear();
        for (key, words) in self.touched.keys.iter().zip(self.words.chunks_exact_mut(width)) {
            let after = entries.of_row(key.first).after;
            let is_same = after == words[COUNT] as i64 && self.ttl.is_none();
            words[COUNT] = after as u64;
            self.ttl.iter().for_each(|ttl| ttl.note(words));
            self.fates.push(match after {
                0 => Fate::Remove,
                _ if is_same => Fate::Keep,
                _ => Fate::Write,
            });
        }
        table.store(&self.touched, &self.words, &self.fates)?;
        self.ttl.as_ref().map_or(Ok(()), |ttl| ttl.sweep(table.as_mut()))
    }
}

fn opened(table: &mut Option<Box<dyn KeyedTable>>) -> Result<&mut Box<dyn KeyedTable>, TaskError> {
    table.as_mut().ok_or_else(|| TaskError::Internal("a rank got rows before it was opened".to_owned()))
}

/// The only table of an operator, with what a snapshot holds of it.
fn open_table(
    name: &str,
    operator: &str,
    layout: &Arc<crate::state::TableLayout>,
    context: &OperatorContext,
    state: &RestoredState,
) -> Result<Box<dyn KeyedTable>, TaskError> {
    if let Some(file) = state.keyed.iter().find(|file| file.name != name) {
        return Err(TaskError::IncompatibleState(format!(
            "operator '{}' is {operator} and keeps its state under the name '{name}', but the checkpoint holds a state \
             '{}' for it; was the uid used for another kind of operator?",
            context.uid, file.name
        )));
    }
    let mut table = context.keyed_table(name, Arc::clone(layout))?;
    table.restore(&context.uid, &state.keyed)?;
    Ok(table)
}
