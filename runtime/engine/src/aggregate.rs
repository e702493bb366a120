//! GROUP BY with COUNT, SUM, AVG, MIN and MAX over rows or a changelog, emitting the net change of each key per batch.
//!
//! A group begins with its first row (`+I`), changes when an aggregate's value does (`-U` and `+U`, or `+U` alone when
//! nobody needs the row before), and ends when its last row is retracted (`-D`). A batch that changes nothing of a
//! key emits nothing for it. A retraction of a row that was never counted is dropped with its group, as in Flink.
//! Without keys all rows are one group; it too begins with the first row.
//!
//! Result types: COUNT is BIGINT; SUM is BIGINT for integers, DOUBLE for floats, DECIMAL(38, s) for decimals; AVG has the
//! type of its argument, of a decimal DECIMAL(38, max(6, s)); MIN and MAX have the type of their argument. All but COUNT
//! are NULL while a group has no value that is not NULL. A BIGINT sum that overflows wraps around, as in Flink; a decimal
//! sum of more than 38 digits is NULL. Any aggregate may have a FILTER, COUNT, SUM and AVG be of DISTINCT values.
//!
//! With a TTL a group that got no row for so long is as if it had never been, and its state goes ([`crate::state::ttl`]).
//!
//! The state, version 1: `groups` has a row per group, the keys and per aggregate `name` its columns: `name` (COUNT, SUM,
//! with `name$values`), `name$filtered` (COUNT(*) with FILTER), `name$sum` and `name$values` (AVG), `name$min` or
//! `name$max` and a flag; `…$distinct` of DISTINCT values. `values-name` has a row per group and value, with its count,
//! for DISTINCT, for MIN and MAX over a changelog and of text ([`values`]).
//!
//! The flow of a batch ([`GroupAggregate::process`]): the table numbers the distinct keys; their accumulators are
//! copied together twice, as `old` and `new`; each aggregate runs over the batch once, adding to `new`; [`emit`]
//! compares; what has changed goes back to the table.

pub(crate) mod accumulate;
mod emit;
mod extremum;
#[cfg(test)]
mod tests;
mod values;

use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{Clock, Collector, Operator, OperatorContext, OperatorFactory, RestoredState, SnapshotWriter};
use crate::state::file::{DELETED, KEY_GROUP};
use crate::state::frozen_tables::FrozenTables;
use crate::state::hash::HashKeyedTable;
use crate::state::ttl::{self, Ttl};
use crate::state::{AccumulatorColumn, Fate, KeyedTable, TableLayout, TouchedKeys};
use accumulate::{Accumulator, Signs};
use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use emit::Changes;
pub(crate) use emit::{changes, results};
use extremum::Extremum;
use sluice_protocol::{CheckpointId, KeyGroupRange, TimeSpan, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use values::{Role, Values, ValuesPlan};

/// The name of the state within the operator.
pub const STATE_NAME: &str = "groups";

/// The word that counts a group's rows.
pub(crate) const ROWS: usize = 0;

/// An aggregate function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateKind {
    /// COUNT: of rows, or of values that are not NULL.
    Count,
    /// SUM.
    Sum,
    /// MIN.
    Min,
    /// MAX.
    Max,
    /// AVG.
    Avg,
}

/// One aggregate of a GROUP BY.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateCall {
    /// The function.
    pub kind: AggregateKind,
    /// The column that it is of; only COUNT(*) has none.
    pub argument: Option<usize>,
    /// Whether each distinct value counts once.
    pub distinct: bool,
    /// A BOOLEAN column; rows where it is true count.
    pub filter: Option<usize>,
    /// The result's column.
    pub name: String,
}

impl AggregateCall {
    /// Of all rows, and of all values.
    #[must_use]
    pub fn new(kind: AggregateKind, argument: Option<usize>, name: &str) -> Self {
        Self { kind, argument, distinct: false, filter: None, name: name.to_owned() }
    }
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
    /// Whether rows that come may retract others: MIN and MAX then keep all values.
    pub changelog: bool,
    /// How long a group lives after its last row; `None`: for ever.
    pub ttl: Option<TimeSpan>,
}

/// Makes [`GroupAggregate`]s.
pub struct GroupAggregateFactory {
    pub(crate) plan: Arc<Plan>,
}

/// What all subtasks share.
pub(crate) struct Plan {
    pub(crate) keys: Vec<usize>,
    emit_update_before: bool,
    ttl: Option<TimeSpan>,
    pub(crate) calls: Vec<Call>,
    pub(crate) layout: Arc<TableLayout>,
    pub(crate) output: SchemaRef,
}

/// One aggregate, planned.
pub(crate) struct Call {
    pub(crate) accumulator: Accumulator,
    pub(crate) filter: Option<usize>,
    values: Option<Arc<ValuesPlan>>,
}

impl Call {
    /// Whether its words are all that it keeps.
    pub(crate) const fn keeps_words_only(&self) -> bool {
        self.values.is_none()
    }
}

impl GroupAggregateFactory {
    /// Checks the GROUP BY and lays out its state.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] for a column of a type that the function does not take, a position out of range, or a
    /// repeated name.
    pub fn new(spec: GroupAggregateSpec) -> Result<Self, TaskError> {
        check_names(&spec.keys, &spec.key_names, &spec.calls)?;
        let key = |(key, name): (&usize, &String)| Ok(field(&spec.input, *key)?.clone().with_name(name));
        let key_fields: Vec<Field> =
            spec.keys.iter().zip(&spec.key_names).map(key).collect::<Result<_, TaskError>>()?;
        let (mut calls, mut words, mut output) = (Vec::new(), ROWS + 1, key_fields.clone());
        let is_count = |call: &&AggregateCall| call.kind == AggregateKind::Count && call.counts_all();
        let rows_name = spec.calls.iter().find(is_count).map_or(crate::state::file::ROWS, |call| call.name.as_str());
        let mut columns = vec![bigint(rows_name, ROWS)];
        for call in &spec.calls {
            let planned = call.plan(&spec, &key_fields, words)?;
            let (accumulator, keeps_values) = (&planned.accumulator, planned.values.is_some());
            output.push(Field::new(&call.name, accumulator.result_type(), accumulator.is_nullable()));
            columns.extend(accumulator.stored_columns(&call.name, keeps_values));
            words += accumulator.words();
            calls.push(planned);
        }
        let updated = spec.ttl.map(|_| words);
        columns.extend(updated.map(ttl::column));
        words += usize::from(updated.is_some());
        let layout = TableLayout { keys: key_fields, accumulators: columns, words, prefix: None, updated };
        let GroupAggregateSpec { keys, emit_update_before, ttl, .. } = spec;
        let (layout, output) = (Arc::new(layout), Arc::new(Schema::new(output)));
        Ok(Self { plan: Arc::new(Plan { keys, emit_update_before, ttl, calls, layout, output }) })
    }
}

impl AggregateCall {
    /// COUNT(*) without a FILTER.
    const fn counts_all(&self) -> bool {
        self.argument.is_none() && self.filter.is_none()
    }

    fn plan(&self, spec: &GroupAggregateSpec, key_fields: &[Field], word: usize) -> Result<Call, TaskError> {
        if let Some(filter) = self.filter
            && *field(&spec.input, filter)?.data_type() != DataType::Boolean
        {
            let name = spec.input.field(filter).name();
            return Err(TaskError::BadProgram(format!("the FILTER of '{}' is column '{name}', no BOOLEAN", self.name)));
        }
        let Some(column) = self.argument else {
            if self.kind != AggregateKind::Count || self.distinct {
                return Err(TaskError::BadProgram(format!("the aggregate '{}' needs an argument", self.name)));
            }
            let accumulator = if self.filter.is_none() { Accumulator::Count } else { Accumulator::CountRows { word } };
            return Ok(Call { accumulator, filter: self.filter, values: None });
        };
        let argument = field(&spec.input, column)?;
        let accumulator = self.accumulator(argument, column, word)?;
        let role = match accumulator {
            Accumulator::Text { most, .. } => Some(Role::Text { most, alone: !spec.changelog }),
            Accumulator::Extremum(_) => spec.changelog.then_some(Role::Extremum),
            _ => self.distinct.then_some(Role::Distinct),
        };
        let keys = (spec.keys.as_slice(), key_fields);
        let values =
            role.map(|role| Arc::new(ValuesPlan::new(role, &self.name, keys, (column, argument), spec.ttl.is_some())));
        Ok(Call { accumulator, filter: self.filter, values })
    }

    fn accumulator(&self, argument: &Field, column: usize, word: usize) -> Result<Accumulator, TaskError> {
        let most = self.kind == AggregateKind::Max;
        let result = argument.data_type();
        match self.kind {
            AggregateKind::Count => Ok(Accumulator::CountColumn { column, word }),
            AggregateKind::Sum => Accumulator::sum(argument, column, word, false),
            AggregateKind::Avg => Accumulator::sum(argument, column, word, true),
            AggregateKind::Min | AggregateKind::Max => {
                use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
                let extremum = Extremum::new(most, argument, column, word).map(Accumulator::Extremum);
                let is_text = matches!(result, Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView);
                let text = is_text.then(|| Accumulator::Text { most, result: result.clone() });
                extremum.or(text).ok_or_else(|| {
                    let (name, function) = (argument.name(), if most { "MAX" } else { "MIN" });
                    TaskError::BadProgram(format!(
                        "{function} cannot compare column '{name}' of type {result}; cast it to another type"
                    ))
                })
            }
        }
    }
}

fn field(input: &SchemaRef, index: usize) -> Result<&Field, TaskError> {
    let missing = || TaskError::BadProgram(format!("a GROUP BY refers to column {index}, which is not there"));
    input.fields().get(index).map(AsRef::as_ref).ok_or_else(missing)
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
        if name == KEY_GROUP || name == DELETED || name == ttl::UPDATED || !seen.insert(name) {
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
            filtered: Signs::default(),
            news: Signs::default(),
            values: Vec::new(),
            ttl: None,
            clock: Arc::new(|| Timestamp(0)),
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
    /// The signs of one aggregate's rows: with its FILTER, and of values that come or go.
    filtered: Signs,
    news: Signs,
    /// Per aggregate, where it keeps values.
    values: Vec<Option<Values>>,
    ttl: Option<Ttl>,
    clock: Clock,
}

impl GroupAggregate {
    /// Copies the accumulators of the touched keys together.
    fn load(&mut self) {
        self.table.load(&self.touched, &mut self.old);
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
            ttl.hide_expired(&mut self.old, self.plan.layout.words);
            self.values.iter_mut().flatten().for_each(|values| values.begin_batch_at(ttl.now()));
        }
        self.new.clear();
        self.new.extend_from_slice(&self.old);
    }

    /// Lets one aggregate see the batch.
    fn add(&mut self, call: &Call, values: Option<&mut Values>, rows: &RecordBatch) -> Result<(), TaskError> {
        let words = self.plan.layout.words;
        let slots = &self.touched.slots;
        let mut signs = &self.signs;
        if let Some(filter) = call.filter {
            self.filtered.filter(&self.signs, rows.column(filter));
            signs = &self.filtered;
        }
        let Some(values) = values else { return call.accumulator.add(&mut self.new, words, slots, signs, rows) };
        match (values.role(), &call.accumulator) {
            (Role::Text { most, alone }, _) => {
                let lives = |group: usize| self.old[group * words + ROWS] as i64 > 0;
                values.count_text((most, alone), rows, &self.touched, signs, lives)
            }
            (_, Accumulator::Extremum(extremum)) => {
                values.count(rows, signs, &mut self.news)?;
                call.accumulator.add(&mut self.new, words, slots, signs, rows)?;
                values.replace_gone(extremum, rows, &self.touched, (&mut self.new, words))
            }
            _ => {
                values.count(rows, signs, &mut self.news)?;
                call.accumulator.add(&mut self.new, words, slots, &self.news, rows)
            }
        }
    }

    /// Writes back what has changed and drops groups without rows.
    fn store(&mut self) -> Result<(), TaskError> {
        let words = self.plan.layout.words;
        if let Some(ttl) = &self.ttl {
            self.new.chunks_exact_mut(words).for_each(|group| ttl.note(group));
        }
        self.fates.clear();
        let accumulators = self.old.chunks_exact(words).zip(self.new.chunks_exact(words));
        self.fates.extend(accumulators.map(|(old, new)| match new[ROWS] as i64 {
            ..=0 => Fate::Remove,
            _ if old != new => Fate::Write,
            _ => Fate::Keep,
        }));
        self.table.store(&self.touched, &self.new, &self.fates)?;
        if let Some(ttl) = &self.ttl {
            ttl.sweep(self.table.as_mut())?;
        }
        self.values.iter_mut().flatten().try_for_each(Values::sweep)
    }

    /// No state in the checkpoint is unknown.
    fn check_names(&self, context: &OperatorContext, state: &RestoredState) -> Result<(), TaskError> {
        let is_known = |name: &str| name == STATE_NAME || self.values.iter().flatten().any(|one| one.name() == name);
        let Some(file) = state.keyed.iter().find(|file| !is_known(&file.name)) else { return Ok(()) };
        let own: Vec<&str> =
            std::iter::once(STATE_NAME).chain(self.values.iter().flatten().map(Values::name)).collect();
        Err(TaskError::IncompatibleState(format!(
            "operator '{}' keeps its state under the name '{}', but the checkpoint holds a state '{}' for it; was the uid \
             used for another kind of operator, or an aggregate removed or changed that keeps values?",
            context.uid,
            own.join("', '"),
            file.name
        )))
    }
}

impl Operator for GroupAggregate {
    fn set_clock(&mut self, clock: &Clock) {
        self.clock = Clock::clone(clock);
    }

    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        let plan = Arc::clone(&self.plan);
        let ttl = plan.ttl.map(|ttl| (ttl, &self.clock));
        self.values.clear();
        for call in &plan.calls {
            let values = call.values.as_ref().map(|values| Values::open(values, context, &state, ttl));
            self.values.push(values.transpose()?);
        }
        self.check_names(context, &state)?;
        self.ttl = Ttl::of(plan.ttl, &plan.layout, &self.clock);
        self.table = context.keyed_table(STATE_NAME, Arc::clone(&plan.layout))?;
        let own: Vec<_> = state.keyed.into_iter().filter(|file| file.name == STATE_NAME).collect();
        self.table.restore(&context.uid, &own)
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let plan = Arc::clone(&self.plan);
        self.table.touch(&batch.rows, &plan.keys, &mut self.touched)?;
        self.load();
        self.signs.set(&batch);
        let words = plan.layout.words;
        accumulate::count(&mut self.new, words, ROWS, &self.touched.slots, &self.signs);
        let mut values = std::mem::take(&mut self.values);
        let added = plan
            .calls
            .iter()
            .zip(&mut values)
            .try_for_each(|(call, values)| self.add(call, values.as_mut(), &batch.rows));
        self.values = values;
        added?;
        self.changes.find(&plan, &self.touched, (&self.old, &self.new), &self.values);
        if !self.changes.is_empty() {
            let changed = self.changes.take_batch(&plan, &batch.rows, (&self.old, &self.new), &self.values)?;
            out.collect(changed);
        }
        self.store()
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
            ttl.sweep_before_freeze(self.table.as_mut())?;
            self.values.iter_mut().flatten().for_each(|values| values.begin_batch_at(ttl.now()));
        }
        let groups = self.table.freeze(checkpoint)?;
        if self.values.iter().all(Option::is_none) {
            return Ok(Some(groups));
        }
        let mut frozen = vec![groups];
        for values in self.values.iter_mut().flatten() {
            frozen.push(values.freeze(checkpoint)?);
        }
        Ok(Some(Box::new(FrozenTables(frozen))))
    }
}
