//! Window table functions whose rows are not aggregated right away: each row once per window it belongs to, with the columns
//! `window_start`, `window_end` and `window_time` behind its own. A row without a time has no window and is dropped.

use super::kind::{WindowKind, milliseconds};
use super::output::{as_times, with_window};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::operator::{Collector, Operator, OperatorContext, OperatorFactory, RestoredState};
use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};

/// Makes the operators of a window table function.
pub struct WindowTableFunctionFactory {
    kind: WindowKind,
    time: usize,
    output: SchemaRef,
}

impl WindowTableFunctionFactory {
    /// For rows with these columns, of which `time` is the row's.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] for windows that cannot be, or a time that is none.
    pub fn new(input: &SchemaRef, kind: WindowKind, time: usize) -> Result<Self, TaskError> {
        kind.validate()?;
        let field = input.fields().get(time);
        let Some(field) = field.filter(|field| matches!(field.data_type(), DataType::Timestamp(..))) else {
            return Err(TaskError::BadProgram(format!("column {time}, the time of a window, is no TIMESTAMP")));
        };
        let output = with_window(input, field.data_type().clone());
        Ok(Self { kind, time, output })
    }
}

impl OperatorFactory for WindowTableFunctionFactory {
    fn create(&self) -> Result<Box<dyn Operator>, TaskError> {
        let Self { kind, time, output } = self;
        Ok(Box::new(WindowTableFunction { kind: kind.clone(), time: *time, output: SchemaRef::clone(output) }))
    }

    fn output_schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.output)
    }
}

/// Adds the columns of windows.
struct WindowTableFunction {
    kind: WindowKind,
    time: usize,
    output: SchemaRef,
}

impl Operator for WindowTableFunction {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, batch: Batch, out: &mut dyn Collector) -> Result<(), TaskError> {
        let internal = |error| TaskError::Internal(format!("the rows of windows do not make a batch: {error}"));
        let times = milliseconds(batch.rows.column(self.time))?;
        let (mut rows, mut starts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for row in (0..times.len()).filter(|row| times.is_valid(*row)) {
            for (start, end) in self.kind.windows_of(times.value(row)) {
                rows.push(row as u32);
                starts.push(start);
                ends.push(end);
            }
        }
        let last: Int64Array = ends.iter().map(|end| end - 1).collect();
        let rows = UInt32Array::from(rows);
        let taken = batch.rows.columns().iter().map(|column| take(column, &rows, None));
        let mut columns = taken.collect::<Result<Vec<ArrayRef>, _>>().map_err(internal)?;
        for times in [Int64Array::from(starts), Int64Array::from(ends), last] {
            columns.push(as_times(&times, self.output.field(columns.len()).data_type())?);
        }
        let rows = RecordBatch::try_new(SchemaRef::clone(&self.output), columns).map_err(internal)?;
        out.collect(Batch::inserts(rows));
        Ok(())
    }
}
