//! Makes the engine's operators out of planned ones: the seam between DataFusion's expressions and the engine.
//!
//! A plain column is handed on as it is, without evaluation or copy.

mod flatten;
mod upsert;
mod values;

pub(crate) use flatten::FlattenFactory;
pub(crate) use upsert::UpsertFactory;
pub(crate) use values::ValuesFactory;

use crate::calc::{Calc, Output, Value};
use crate::written;
use arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion_physical_expr::PhysicalExpr;
use sluice_engine::error::TaskError;
use sluice_engine::operator::OperatorFactory;
use sluice_engine::operators::{ExpressionFactory, FilterProjectFactory, RowExpression};
use std::sync::Arc;

/// A column of the batch.
struct ColumnValue(usize);

impl RowExpression for ColumnValue {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        Ok(Arc::clone(batch.column(self.0)))
    }
}

/// An expression of DataFusion's.
struct Computed(Arc<dyn PhysicalExpr>);

impl RowExpression for Computed {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        let value = self.0.evaluate(batch).and_then(|value| value.into_array(batch.num_rows()));
        value.map_err(|error| {
            let message = crate::diagnose::message(&error);
            TaskError::BadData(format!("{} cannot be computed for a row: {message}", written::sql(&self.0)))
        })
    }
}

/// A value that must not be null, and the place that says so.
struct NotNull {
    value: Box<dyn RowExpression>,
    place: String,
}

impl RowExpression for NotNull {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError> {
        let values = self.value.evaluate(batch)?;
        match values.null_count() {
            0 => Ok(values),
            nulls => Err(TaskError::BadData(format!(
                "{} is NOT NULL, but the query gave NULL for {nulls} of {} rows: filter them out with WHERE … IS NOT \
                 NULL, or give them a value with COALESCE",
                self.place,
                values.len(),
            ))),
        }
    }
}

/// The operator of a filter and projection.
pub(crate) fn filter_project(calc: &Calc) -> Arc<dyn OperatorFactory> {
    let filter = calc.condition.clone().map(computed);
    let keeps_all = calc.keeps_columns() && calc.schema().fields() == calc.input.fields();
    let projection = (!keeps_all).then(|| calc.outputs.iter().cloned().map(output).collect());
    Arc::new(FilterProjectFactory { filter, projection, output: calc.schema() })
}

/// An expression for each subtask.
pub(crate) fn computed(expression: Arc<dyn PhysicalExpr>) -> ExpressionFactory {
    Box::new(move || Ok(Box::new(Computed(Arc::clone(&expression)))))
}

/// An output column for each subtask.
pub(crate) fn output(output: Output) -> ExpressionFactory {
    let value: ExpressionFactory = match output.value {
        Value::Column(index) => Box::new(move || Ok(Box::new(ColumnValue(index)))),
        Value::Computed(expression) => computed(expression),
    };
    match output.not_null {
        None => value,
        Some(place) => Box::new(move || Ok(Box::new(NotNull { value: value()?, place: place.clone() }))),
    }
}
