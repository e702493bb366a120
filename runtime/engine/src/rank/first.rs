//! The first row that arrives of each key, over rows that are not retracted: deduplication by processing time.
//!
//! What comes out is never taken back. With a TTL a key is forgotten so long after its first row.
//!
//! The state, version 1: table `keys`, the key columns by their names and `$first`, which is 1.

use super::open_table;
use crate::batch::Batch;
use crate::error::TaskError;
use crate::keys::can_be_key;
use crate::operator::{Clock, Collector, Operator, OperatorContext, OperatorFactory, RestoredState, SnapshotWriter};
use crate::state::frozen_tables::FrozenTables;
use crate::state::ttl::{self, Ttl};
use crate::state::{AccumulatorColumn, Fate, KeyedTable, TableLayout, TouchedKeys};
use arrow::array::BooleanArray;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, SchemaRef};
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};
use std::sync::Arc;

/// The name of the state within the operator.
const STATE_NAME: &str = "keys";

/// The word that says that a key was there.
const THERE: usize = 0;

/// Makes operators that pass the first row of each key.
pub struct FirstRowFactory {
    plan: Arc<Plan>,
}

struct Plan {
    input: SchemaRef,
    keys: Vec<usize>,
    layout: Arc<TableLayout>,
    ttl: Option<TimeSpan>,
}

impl FirstRowFactory {
    /// Of rows with these columns, by these keys.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] when a key column is not there or cannot be a key.
    pub fn new(input: SchemaRef, keys: Vec<usize>, ttl: Option<TimeSpan>) -> Result<Self, TaskError> {
        let mut fields = Vec::new();
        for key in &keys {
            let Some(field) = input.fields().get(*key) else {
                return Err(TaskError::BadProgram(format!("rows are told apart by column {key}, which is not there")));
            };
            if !can_be_key(field.data_type()) {
                let (name, data_type) = (field.name(), field.data_type());
                let message = format!("column '{name}' of type {data_type} cannot be a key; cast it to another type");
                return Err(TaskError::BadProgram(message));
            }
            fields.push(field.as_ref().clone());
        }
        let mut accumulators = vec![AccumulatorColumn {
            name: "$first".to_owned(),
            data_type: DataType::Int64,
            word: THERE,
            null_while_zero: None,
        }];
        let updated = ttl.map(|_| accumulators.len());
        accumulators.extend(updated.map(ttl::column));
        let words = accumulators.len();
        let layout = Arc::new(TableLayout { keys: fields, accumulators, words, prefix: None, updated });
        Ok(Self { plan: Arc::new(Plan { input, keys, layout, ttl }) })
    }
}

impl OperatorFactory for FirstRowFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(FirstRow {
            plan: Arc::clone(&self.plan),
            table: None,
            ttl: None,
            touched: TouchedKeys::default(),
            words: Vec::new(),
            fates: Vec::new(),
            clock: Arc::new(|| Timestamp(0)),
        }))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.plan.input)
    }
}

struct FirstRow {
    plan: Arc<Plan>,
    table: Option<Box<dyn KeyedTable>>,
    ttl: Option<Ttl>,
    touched: TouchedKeys,
    words: Vec<u64>,
    fates: Vec<Fate>,
    clock: Clock,
}

impl Operator for FirstRow {
    fn set_clock(&mut self, clock: &Clock) {
        self.clock = Clock::clone(clock);
    }

    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        let layout = &self.plan.layout;
        self.table = Some(open_table(STATE_NAME, "a deduplication by arrival", layout, context, &state)?);
        self.ttl = Ttl::of(self.plan.ttl, layout, &self.clock);
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        if batch.is_empty() {
            return Ok(());
        }
        let Some(table) = &mut self.table else {
            return Err(TaskError::Internal("a deduplication got rows before it was opened".to_owned()));
        };
        let width = self.plan.layout.words;
        table.touch(&batch.rows, &self.plan.keys, &mut self.touched)?;
        table.load(&self.touched, &mut self.words);
        if let Some(ttl) = &mut self.ttl {
            ttl.begin_batch();
            ttl.hide_expired(&mut self.words, width);
        }
        let mut firsts = vec![false; batch.len()];
        self.fates.clear();
        for (key, words) in self.touched.keys.iter().zip(self.words.chunks_exact_mut(width)) {
            if words[THERE] != 0 {
                self.fates.push(Fate::Keep);
                continue;
            }
            firsts[key.first as usize] = true;
            words[THERE] = 1;
            self.ttl.iter().for_each(|ttl| ttl.note(words));
            self.fates.push(Fate::Write);
        }
        table.store(&self.touched, &self.words, &self.fates)?;
        if let Some(ttl) = &self.ttl {
            ttl.sweep(table.as_mut())?;
        }
        if firsts.contains(&true) {
            let rows = filter_record_batch(&batch.rows, &BooleanArray::from(firsts));
            out.collect(Batch::inserts(rows.map_err(|error| TaskError::Internal(format!("first rows: {error}")))?));
        }
        Ok(())
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
