//! WHERE and SELECT: rows that pass the filter, with computed columns. Row kinds stay with their rows.

use super::RowExpression;
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{Collector, Operator, OperatorContext, OperatorFactory, RestoredState};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{FilterBuilder, prep_null_mask_filter};
use arrow::datatypes::{DataType, SchemaRef, UInt8Type};
use arrow::error::ArrowError;

/// Makes an expression for each subtask.
pub type ExpressionFactory = Box<dyn Fn() -> Result<Box<dyn RowExpression>, TaskError> + Send + Sync>;

/// Makes [`FilterProject`]s.
pub struct FilterProjectFactory {
    /// A BOOLEAN expression over the input; rows where it is true stay. `None`: all stay.
    pub filter: Option<ExpressionFactory>,
    /// The output columns, computed over the rows that stay. `None`: those of the input.
    pub projection: Option<Vec<ExpressionFactory>>,
    /// The schema of the output.
    pub output: SchemaRef,
}

impl OperatorFactory for FilterProjectFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        let projection = self.projection.as_ref();
        Ok(Box::new(FilterProject {
            filter: self.filter.as_ref().map(|make| make()).transpose()?,
            projection: projection.map(|makes| makes.iter().map(|make| make()).collect()).transpose()?,
            output: SchemaRef::clone(&self.output),
        }))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.output)
    }
}

/// One subtask of a filter with projection.
pub struct FilterProject {
    filter: Option<Box<dyn RowExpression>>,
    projection: Option<Vec<Box<dyn RowExpression>>>,
    output: SchemaRef,
}

impl FilterProject {
    fn keep(&self, batch: Batch) -> Result<Batch, TaskError> {
        let Some(filter) = &self.filter else { return Ok(batch) };
        let keep = filter.evaluate(&batch.rows)?;
        if keep.data_type() != &DataType::Boolean || keep.len() != batch.len() {
            let (found, rows) = (keep.data_type(), batch.len());
            return Err(TaskError::Internal(format!("a filter gave {} {found} values for {rows} rows", keep.len())));
        }
        let keep = without_nulls(keep.as_boolean());
        if keep.true_count() == keep.len() {
            return Ok(batch);
        }
        filtered(&batch, &keep).map_err(|error| TaskError::Internal(format!("a batch cannot be filtered: {error}")))
    }
}

/// NULL does not pass.
fn without_nulls(keep: &BooleanArray) -> BooleanArray {
    if keep.null_count() > 0 { prep_null_mask_filter(keep) } else { keep.clone() }
}

fn filtered(batch: &Batch, keep: &BooleanArray) -> Result<Batch, ArrowError> {
    let predicate = FilterBuilder::new(keep).optimize().build();
    let rows = predicate.filter_record_batch(&batch.rows)?;
    let kinds = batch.kinds.as_ref().map(|kinds| predicate.filter(kinds)).transpose()?;
    Ok(Batch { rows, kinds: kinds.map(|kinds| kinds.as_primitive::<UInt8Type>().clone()) })
}

impl Operator for FilterProject {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let batch = self.keep(batch)?;
        if batch.is_empty() {
            return Ok(());
        }
        let Some(projection) = &self.projection else {
            out.collect(batch);
            return Ok(());
        };
        let columns: Vec<ArrayRef> =
            projection.iter().map(|expression| expression.evaluate(&batch.rows)).collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.len()));
        let rows = RecordBatch::try_new_with_options(SchemaRef::clone(&self.output), columns, &options)
            .map_err(|error| TaskError::Internal(format!("a projection does not give its columns: {error}")))?;
        out.collect(Batch { rows, kinds: batch.kinds });
        Ok(())
    }
}
