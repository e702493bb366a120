//! Turns filtered updates into what a sink by key takes: of a pair only the row after, of a row that no longer passes a
//! deletion.
//!
//! Rests on an updating operator emitting `-U` and `+U` of a key one after the other in one batch, and on nothing but
//! filters and projections in between, which keep the order.

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt8Array};
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::{SchemaRef, UInt8Type};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::error::TaskError;
use sluice_engine::operator::{Collector, Operator, OperatorContext, OperatorFactory, RestoredState};
use std::sync::Arc;

/// Makes the operator of each subtask.
pub(crate) struct UpsertFactory {
    /// Positions of the key columns.
    pub(crate) keys: Vec<usize>,
    /// The columns, which stay.
    pub(crate) schema: SchemaRef,
}

impl OperatorFactory for UpsertFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        let fields = self.keys.iter().map(|key| SortField::new(self.schema.field(*key).data_type().clone()));
        let converter = RowConverter::new(fields.collect());
        let converter = converter.map_err(|error| TaskError::BadProgram(format!("the sink's key: {error}")))?;
        Ok(Box::new(Upsert { keys: self.keys.clone(), converter }))
    }

    fn output_schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// One subtask.
struct Upsert {
    keys: Vec<usize>,
    converter: RowConverter,
}

impl Upsert {
    fn convert(&self, rows: &RecordBatch, kinds: &UInt8Array) -> Result<Batch, ArrowError> {
        let columns: Vec<ArrayRef> = self.keys.iter().map(|key| Arc::clone(rows.column(*key))).collect();
        let keys = self.converter.convert_columns(&columns)?;
        let is = |row: usize, kind: RowKind| kinds.value(row) == kind as u8;
        let is_replaced = |row: usize| {
            row + 1 < kinds.len() && is(row + 1, RowKind::UpdateAfter) && keys.row(row) == keys.row(row + 1)
        };
        let kept: BooleanArray =
            (0..kinds.len()).map(|row| Some(!(is(row, RowKind::UpdateBefore) && is_replaced(row)))).collect();
        let made = (0..kinds.len()).map(|row| match is(row, RowKind::UpdateBefore) {
            true => RowKind::Delete as u8,
            false => kinds.value(row),
        });
        let made = UInt8Array::from_iter_values(made);
        let kinds = filter(&made, &kept)?.as_primitive::<UInt8Type>().clone();
        Ok(Batch { rows: filter_record_batch(rows, &kept)?, kinds: Some(kinds) })
    }
}

impl Operator for Upsert {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let Some(kinds) = &batch.kinds else {
            out.collect(batch);
            return Ok(());
        };
        let made = self.convert(&batch.rows, kinds);
        let made = made.map_err(|error| TaskError::Internal(format!("updates cannot be told by key: {error}")))?;
        if !made.is_empty() {
            out.collect(made);
        }
        Ok(())
    }
}
