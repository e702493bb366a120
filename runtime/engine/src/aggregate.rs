//! GROUP BY with COUNT and SUM over rows or a changelog, emitting the net change of each key per batch.
//!
//! A group begins with its first row (`+I`), changes when an aggregate's value does (`-U` and `+U`, or `+U` alone when
//! nobody needs the row before), and ends when its last row is retracted (`-D`). A batch that changes nothing of a
//! key emits nothing for it. A retraction of a row that was never counted is dropped with its group, as in Flink.
//! Without keys all rows are one group; it too begins with the first row.
//!
//! Result types: COUNT is BIGINT; SUM is BIGINT for integers, DOUBLE for floats, DECIMAL(38, s) for decimals, and
//! NULL while a group has no value that is not NULL. A BIGINT sum that overflows wraps around, as in Flink; a decimal
//! sum of more than 38 digits is NULL.
//!
//! The flow of a batch ([`GroupAggregate::process`]): the table numbers the distinct keys; their accumulators are
//! copied together twice, as `old` and `new`; each aggregate runs over the batch once, adding to `new`; [`emit`]
//! compares; what has changed goes back to the table.

mod accumulate;
mod emit;
#[cfg(test)]
mod tests;

use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{Collector, Operator, OperatorContext, OperatorFactory, RestoredState, SnapshotWriter};
use crate::state::file::{DELETED, KEY_GROUP};
use crate::state::hash::HashKeyedTable;
use crate::state::{AccumulatorColumn, Fate, KeyedTable, TableLayout, TouchedKeys};
use accumulate::{Accumulator, Signs};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use emit::Changes;
use sluice_protocol::{CheckpointId, KeyGroupRange};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The name of the state within the operator.
pub const STATE_NAME: &str = "groups";

/// The word that counts a group's rows.
const ROWS: usize = 0;

/// An aggregate function over columns of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateKind {
    /// COUNT(*).
    Count,
    /// COUNT(column): values that are not NULL.
    CountColumn(usize),
    /// SUM(column).
    Sum(usize),
}

/// One aggregate of a GROUP BY.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateCall {
    /// The function.
    pub kind: AggregateKind,
    /// The result's column.
    pub name: String,
}

/// A GROUP BY.
#[derive(Debug, Clone)]
pub struct GroupAggregateSpec {
    /// The rows that come in.
    pub input: SchemaRef,
    /// Positions of the key columns; none: one group of all rows.
    pub keys: Vec<usize>,
    /// Names of the key columns in the output and in the state, as many.
    pub key_names: Vec<String>,
    /// The aggregates; they follow the keys in the output. All output names differ.
    pub calls: Vec<AggregateCall>,
    /// Whether `-U` rows are emitted.
    pub emit_update_before: bool,
}

/// Makes [`GroupAggregate`]s.
pub struct GroupAggregateFactory {
    plan: Arc<Plan>,
}

/// What all subtasks share.
struct Plan {
    keys: Vec<usize>,
    emit_update_before: bool,
    accumulators: Vec<Accumulator>,
    layout: Arc<TableLayout>,
    output: SchemaRef,
}

impl GroupAggregateFactory {
    /// Checks the GROUP BY and lays out its state.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] for a column that cannot be summed, a position out of range, or a repeated name.
    pub fn new(spec: GroupAggregateSpec) -> Result<Self, TaskError> {
        let GroupAggregateSpec { input, keys, key_names, calls, emit_update_before } = spec;
        check_names(&keys, &key_names, &calls)?;
        let field = |index: usize| -> Result<&Field, TaskError> {
            let missing = || TaskError::BadProgram(format!("a GROUP BY refers to column {index}, which is not there"));
            input.fields().get(index).map(AsRef::as_ref).ok_or_else(missing)
        };
        let mut output = Vec::new();
        let mut key_fields = Vec::new();
        for (key, name) in keys.iter().zip(&key_names) {
            output.push(field(*key)?.clone().with_name(name));
            key_fields.push(field(*key)?.clone().with_name(name));
        }
        let (mut accumulators, mut columns, mut words) = (Vec::new(), Vec::new(), ROWS + 1);
        let count_rows = calls.iter().find(|call| call.kind == AggregateKind::Count);
        columns.push(bigint(count_rows.map_or(crate::state::file::ROWS, |call| call.name.as_str()), ROWS));
        for call in &calls {
            let accumulator = match call.kind {
                AggregateKind::Count => Accumulator::Count,
                AggregateKind::CountColumn(column) => Accumulator::CountColumn { column, word: words },
                AggregateKind::Sum(column) => Accumulator::sum(field(column)?, column, words)?,
            };
            output.push(Field::new(&call.name, accumulator.result_type(), accumulator.is_nullable()));
            columns.extend(accumulator.stored_columns(&call.name));
            words += accumulator.words();
            accumulators.push(accumulator);
        }
        let layout = Arc::new(TableLayout { keys: key_fields, accumulators: columns, words });
        let output = Arc::new(Schema::new(output));
        Ok(Self { plan: Arc::new(Plan { keys, emit_update_before, accumulators, layout, output }) })
    }
}

fn bigint(name: &str, word: usize) -> AccumulatorColumn {
    AccumulatorColumn { name: name.to_owned(), data_type: DataType::Int64, word, null_while_zero: None }
}

fn check_names(keys: &[usize], key_names: &[String], calls: &[AggregateCall]) -> Result<(), TaskError> {
    if keys.len() != key_names.len() {
        let (keys, names) = (keys.len(), key_names.len());
        return Err(TaskError::BadProgram(format!("a GROUP BY has {keys} key columns but {names} names for them")));
    }
    let mut seen = BTreeSet::new();
    let names = key_names.iter().chain(calls.iter().map(|call| &call.name));
    for name in names {
        if name == KEY_GROUP || name == DELETED || !seen.insert(name) {
            return Err(TaskError::BadProgram(format!(
                "a GROUP BY cannot name a column '{name}': it has another of that name; give it an alias with AS"
            )));
        }
    }
    Ok(())
}

impl OperatorFactory for GroupAggregateFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        let nothing = KeyGroupRange { start: 0, end: 0 };
        Ok(Box::new(GroupAggregate {
            plan: Arc::clone(&self.plan),
            table: Box::new(HashKeyedTable::new(STATE_NAME, Arc::clone(&self.plan.layout), nothing, 0)),
            touched: TouchedKeys::default(),
            signs: Signs::default(),
            old: Vec::new(),
            new: Vec::new(),
            fates: Vec::new(),
            changes: Changes::default(),
        }))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.plan.output)
    }
}

/// One subtask of a GROUP BY.
pub struct GroupAggregate {
    plan: Arc<Plan>,
    table: Box<dyn KeyedTable>,
    touched: TouchedKeys,
    signs: Signs,
    /// The accumulators of the touched keys before the batch, and after.
    old: Vec<u64>,
    new: Vec<u64>,
    fates: Vec<Fate>,
    changes: Changes,
}

impl GroupAggregate {
    /// Copies the accumulators of the touched keys together.
    fn load(&mut self) {
        self.table.load(&self.touched, &mut self.old);
        self.new.clear();
        self.new.extend_from_slice(&self.old);
    }

    /// Writes back what has changed and drops groups without rows.
    fn store(&mut self) -> Result<(), TaskError> {
        let words = self.plan.layout.words;
        self.fates.clear();
        let accumulators = self.old.chunks_exact(words).zip(self.new.chunks_exact(words));
        self.fates.extend(accumulators.map(|(old, new)| match new[ROWS] as i64 {
            ..=0 => Fate::Remove,
            _ if old != new => Fate::Write,
            _ => Fate::Keep,
        }));
        self.table.store(&self.touched, &self.new, &self.fates)
    }
}

impl Operator for GroupAggregate {
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        if let Some(file) = state.keyed.iter().find(|file| file.name != STATE_NAME) {
            return Err(TaskError::IncompatibleState(format!(
                "operator '{}' keeps its state under the name '{STATE_NAME}', but the checkpoint holds a state \
                 '{}' for it; was the uid used for another kind of operator?",
                context.uid, file.name
            )));
        }
        self.table = context.keyed_table(STATE_NAME, Arc::clone(&self.plan.layout))?;
        self.table.restore(&context.uid, &state.keyed)
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let plan = Arc::clone(&self.plan);
        self.table.touch(&batch.rows, &plan.keys, &mut self.touched)?;
        self.load();
        self.signs.set(&batch);
        let words = plan.layout.words;
        accumulate::count(&mut self.new, words, ROWS, &self.touched.slots, &self.signs);
        for accumulator in &plan.accumulators {
            accumulator.add(&mut self.new, words, &self.touched.slots, &self.signs, &batch.rows)?;
        }
        self.changes.find(&plan, &self.touched, &self.old, &self.new);
        if !self.changes.is_empty() {
            out.collect(self.changes.take_batch(&plan, &batch.rows, &self.old, &self.new)?);
        }
        self.store()
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        self.table.freeze(checkpoint).map(Some)
    }
}
