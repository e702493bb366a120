//! What windows emit: the columns that say the window, and batches of so many rows.

use crate::aggregate::{Plan as Calls, results};
use crate::batch::Batch;
use crate::error::TaskError;
use crate::state::rows::RowKeys;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use std::sync::Arc;

/// Rows that are emitted at once.
pub(super) const ROWS_PER_BATCH: usize = if cfg!(test) { 4 } else { 4096 };

/// The columns of a window, behind what they are of.
const WINDOW_COLUMNS: [&str; 3] = ["window_start", "window_end", "window_time"];

/// These columns, then those of a window, of which the last, its last millisecond, has the type of the rows' own time.
pub(super) fn with_window(columns: &SchemaRef, window_time: DataType) -> SchemaRef {
    let at = DataType::Timestamp(TimeUnit::Millisecond, None);
    let types = [at.clone(), at, window_time];
    let own = WINDOW_COLUMNS.iter().zip(types).map(|(name, data_type)| Arc::new(Field::new(*name, data_type, false)));
    Arc::new(Schema::new(columns.fields().iter().cloned().chain(own).collect::<Vec<FieldRef>>()))
}

/// The rows of windows: keys, results, and the times of each row's window, in milliseconds.
pub(super) fn rows(
    calls: &Calls,
    output: &SchemaRef,
    (keys, words): (&RowKeys, &[u64]),
    times: [Int64Array; 3],
) -> Result<RecordBatch, TaskError> {
    let mut columns = if calls.keys.is_empty() { Vec::new() } else { keys.columns(&calls.layout.keys)? };
    columns.extend(results(&calls.calls, words, calls.layout.words)?);
    for times in times {
        columns.push(as_times(&times, output.field(columns.len()).data_type())?);
    }
    let internal = |error| TaskError::Internal(format!("the rows of a window do not make a batch: {error}"));
    RecordBatch::try_new(SchemaRef::clone(output), columns).map_err(internal)
}

/// Milliseconds as a column of times.
pub(super) fn as_times(times: &Int64Array, data_type: &DataType) -> Result<ArrayRef, TaskError> {
    let internal = |error| TaskError::Internal(format!("the times of a window as {data_type}: {error}"));
    let at = cast(times, &DataType::Timestamp(TimeUnit::Millisecond, None)).map_err(internal)?;
    if at.data_type() == data_type { Ok(at) } else { cast(&at, data_type).map_err(internal) }
}

/// All rows, so many at once.
pub(super) fn in_batches(rows: &RecordBatch) -> impl Iterator<Item = Batch> {
    let count = rows.num_rows();
    let starts = (0..count).step_by(ROWS_PER_BATCH);
    starts.map(move |start| Batch::inserts(rows.slice(start, ROWS_PER_BATCH.min(count - start))))
}
