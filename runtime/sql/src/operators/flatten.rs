//! The operator of UNNEST: repeats rows by the elements of an array. Row kinds go with their rows.

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, RecordBatch, RecordBatchOptions, UInt8Array, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{SchemaRef, UInt8Type};
use arrow::error::ArrowError;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::{Collector, Operator, OperatorContext, OperatorFactory, RestoredState};
use sluice_engine::operators::{ExpressionFactory, RowExpression};
use std::sync::Arc;

/// The most rows that it emits in one batch.
const MOST_ROWS: usize = 8192;

/// Makes the operator of each subtask.
pub(crate) struct FlattenFactory {
    /// The array, over the input.
    pub(crate) list: ExpressionFactory,
    /// Whether the number of the element follows it.
    pub(crate) has_ordinality: bool,
    /// Whether a row without elements stays.
    pub(crate) is_outer: bool,
    /// The columns of the input, the element, and its number.
    pub(crate) output: SchemaRef,
}

impl OperatorFactory for FlattenFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        Ok(Box::new(FlattenOperator {
            list: (self.list)()?,
            has_ordinality: self.has_ordinality,
            is_outer: self.is_outer,
            output: Arc::clone(&self.output),
        }))
    }

    fn output_schema(&self) -> SchemaRef {
        Arc::clone(&self.output)
    }
}

/// One subtask.
struct FlattenOperator {
    list: Box<dyn RowExpression>,
    has_ordinality: bool,
    is_outer: bool,
    output: SchemaRef,
}

/// Rows to emit: which row, which element, and its number.
#[derive(Default)]
struct Picks {
    rows: Vec<u32>,
    elements: Vec<Option<u32>>,
    numbers: Vec<Option<i32>>,
}

impl Picks {
    fn add(&mut self, row: usize, element: Option<usize>, number: Option<usize>) {
        self.rows.push(u32::try_from(row).unwrap_or(u32::MAX));
        self.elements.push(element.and_then(|element| u32::try_from(element).ok()));
        self.numbers.push(number.and_then(|number| i32::try_from(number).ok()));
    }
}

impl FlattenOperator {
    fn emit(
        &self,
        batch: &Batch,
        values: &ArrayRef,
        picks: &mut Picks,
        out: &mut dyn Collector,
    ) -> Result<(), ArrowError> {
        let Picks { rows, elements, numbers } = std::mem::take(picks);
        if rows.is_empty() {
            return Ok(());
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let rows = UInt32Array::from(rows);
        let column = |column: &ArrayRef| take(column, &rows, None);
        let mut columns = batch.rows.columns().iter().map(column).collect::<Result<Vec<ArrayRef>, _>>()?;
        columns.push(take(values, &UInt32Array::from(elements), None)?);
        if self.has_ordinality {
            columns.push(Arc::new(Int32Array::from(numbers)));
        }
        let kinds = batch.kinds.as_ref().map(|kinds| take(kinds, &rows, None)).transpose()?;
        let kinds: Option<UInt8Array> = kinds.map(|kinds| kinds.as_primitive::<UInt8Type>().clone());
        let rows = RecordBatch::try_new_with_options(Arc::clone(&self.output), columns, &options)?;
        out.collect(Batch { rows, kinds });
        Ok(())
    }
}

impl Operator for FlattenOperator {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let internal = |error: ArrowError| TaskError::Internal(format!("UNNEST does not give its columns: {error}"));
        let lists = self.list.evaluate(&batch.rows)?;
        let Some(lists) = lists.as_list_opt::<i32>() else {
            return Err(TaskError::Internal(format!("UNNEST was given {}", lists.data_type())));
        };
        let mut picks = Picks::default();
        for row in 0..batch.len() {
            let elements = if lists.is_valid(row) {
                let offsets = lists.value_offsets();
                offsets[row].unsigned_abs() as usize..offsets[row + 1].unsigned_abs() as usize
            } else {
                0..0
            };
            if elements.is_empty() && self.is_outer {
                picks.add(row, None, None);
            }
            let first = elements.start;
            for element in elements {
                picks.add(row, Some(element), Some(element - first + 1));
                if picks.rows.len() == MOST_ROWS {
                    self.emit(&batch, lists.values(), &mut picks, out).map_err(internal)?;
                }
            }
        }
        self.emit(&batch, lists.values(), &mut picks, out).map_err(internal)
    }
}
