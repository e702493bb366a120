//! Tables that keep whole rows, found by the columns that they were partitioned by: what joins and ranks remember.
//!
//! The key of such a table is the whole row, the partitioning columns first ([`super::prefix`]); its words count how
//! often the row is there, and what else its operator counts. Rows come back from the encoded keys, so floats have one
//! zero and one NaN ([`with_one_zero`]), and a row that is found looks like the one that came.

use super::file::{DELETED, KEY_GROUP, ROWS};
use super::prefix::FoundRows;
use super::{AccumulatorColumn, TableLayout, ttl};
use crate::error::TaskError;
use crate::keys::can_be_key;
use crate::keys::decode::{decode, stored_type};
use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How the rows of one input lie in a table.
#[derive(Debug, Clone)]
pub struct RowsLayout {
    /// Where each column of the table stands among those of the rows: the partitioning ones, then the others.
    pub columns: Vec<usize>,
    /// Where each column of the rows stands among those of the table.
    positions: Vec<usize>,
    types: Vec<DataType>,
    /// The table's own.
    pub layout: Arc<TableLayout>,
}

impl RowsLayout {
    /// Rows of this schema, partitioned by `keys`; word 0 counts a row ([`ROWS`]), the next ones are `counters`, and the
    /// last one is the time of the last write when they expire. `whose` and `operator` are for errors: `the left side of`
    /// and `a join`.
    ///
    /// # Errors
    /// [`TaskError::BadProgram`] when two columns have one name, or a column cannot be kept.
    pub fn new(
        (whose, operator): (&str, &str),
        schema: &SchemaRef,
        keys: &[usize],
        counters: &[&str],
        expires: bool,
    ) -> Result<Self, TaskError> {
        let others = (0..schema.fields().len()).filter(|column| !keys.contains(column));
        let columns: Vec<usize> = keys.iter().copied().chain(others).collect();
        let reserved = [KEY_GROUP, DELETED, ROWS, ttl::UPDATED];
        let (mut fields, mut seen) = (Vec::new(), BTreeSet::from(reserved));
        seen.extend(counters);
        for (position, column) in columns.iter().enumerate() {
            let field = schema.field(*column);
            let times = columns[..position].iter().filter(|other| *other == column).count() + 1;
            if times == 1 && !seen.insert(field.name()) {
                return Err(TaskError::BadProgram(format!(
                    "{whose} {operator} has two columns '{}', or one of a name that is taken; give it an alias",
                    field.name()
                )));
            }
            if !can_be_key(field.data_type()) {
                return Err(TaskError::BadProgram(format!(
                    "column '{}' of {whose} {operator} is of type {}, which {operator} cannot keep; cast it",
                    field.name(),
                    field.data_type()
                )));
            }
            let own = if times == 1 { field.name().clone() } else { format!("{}${times}", field.name()) };
            fields.push(field.clone().with_name(own));
        }
        let bigint = |(word, name): (usize, &&str)| AccumulatorColumn {
            name: (*name).to_owned(),
            data_type: DataType::Int64,
            word,
            null_while_zero: None,
        };
        let mut accumulators: Vec<_> = [ROWS].iter().chain(counters).enumerate().map(bigint).collect();
        let updated = expires.then_some(accumulators.len());
        accumulators.extend(updated.map(ttl::column));
        let (words, prefix) = (accumulators.len(), Some(keys.len()));
        let layout = Arc::new(TableLayout { keys: fields, accumulators, words, prefix, updated });
        let position = |column| columns.iter().position(|other| *other == column).unwrap_or(0);
        let positions = (0..schema.fields().len()).map(position).collect();
        let types = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        Ok(Self { columns, positions, types, layout })
    }

    /// The columns of found rows, in the order of the input.
    ///
    /// # Errors
    /// When the keys do not hold them, which would be our fault.
    pub fn found(&self, found: &FoundRows) -> Result<Vec<ArrayRef>, TaskError> {
        let keys: Vec<&[u8]> = (0..found.len()).map(|row| found.key(row)).collect();
        let types: Vec<DataType> = self.columns.iter().map(|column| stored_type(&self.types[*column])).collect();
        self.in_order(&decode(&keys, &types)?)
    }

    /// Columns of the table in the order, and of the types, of the input.
    ///
    /// # Errors
    /// When they have other types, which would be our fault.
    pub fn in_order(&self, stored: &[ArrayRef]) -> Result<Vec<ArrayRef>, TaskError> {
        let column = |(position, data_type): (&usize, &DataType)| {
            let column = &stored[*position];
            if column.data_type() == data_type {
                return Ok(Arc::clone(column));
            }
            cast(column, data_type).map_err(|error| TaskError::Internal(format!("a row of the state: {error}")))
        };
        self.positions.iter().zip(&self.types).map(column).collect()
    }
}

/// Floats as the state gives them back, so that a row goes as it came.
///
/// # Errors
/// When the batch cannot be made, which would be our fault.
pub fn with_one_zero(rows: RecordBatch) -> Result<RecordBatch, TaskError> {
    let is_float = |column: &ArrayRef| matches!(column.data_type(), DataType::Float32 | DataType::Float64);
    if !rows.columns().iter().any(is_float) {
        return Ok(rows);
    }
    let columns = rows.columns().iter().map(|column| match column.data_type() {
        DataType::Float64 => {
            let one = |value: f64| if value.is_nan() { f64::NAN } else { value + 0.0 };
            Arc::new(column.as_primitive::<Float64Type>().unary::<_, Float64Type>(one)) as ArrayRef
        }
        DataType::Float32 => {
            let one = |value: f32| if value.is_nan() { f32::NAN } else { value + 0.0 };
            Arc::new(column.as_primitive::<Float32Type>().unary::<_, Float32Type>(one))
        }
        _ => Arc::clone(column),
    });
    RecordBatch::try_new(rows.schema(), columns.collect())
        .map_err(|error| TaskError::Internal(format!("a batch cannot be made anew: {error}")))
}
