//! Whether the columns of a file of keyed state fit a table, and how they come to its columns.
//!
//! Columns are found by name. Taken are: the same columns; values of a wider type (INT to BIGINT, FLOAT to DOUBLE, a
//! DECIMAL of more digits); a new accumulator that may be NULL, which is NULL then. All else is refused by its name:
//! nothing that was stored is dropped, and nothing is made up. A key keeps its type, since its bytes decide which
//! subtask holds it. The column with the time of a row's last write may come and go with the TTL.

use super::file::{DELETED, KEY_GROUP, ROWS, stored_schema};
use super::ttl::UPDATED;
use super::{AccumulatorColumn, TableLayout};
use crate::error::TaskError;
use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use sluice_protocol::OperatorUid;
use sluice_protocol::state::KeyedStateKind;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Whose state a file holds, for errors.
#[derive(Clone, Copy)]
pub(super) struct StateName<'a> {
    pub(super) uid: &'a OperatorUid,
    pub(super) state: &'a str,
}

/// Of each column of the table the one of the file, if there is one.
pub(super) struct Fit {
    columns: Vec<Option<usize>>,
    schema: SchemaRef,
}

impl Fit {
    /// Compares the columns of a file with those of a table.
    ///
    /// # Errors
    /// [`TaskError::IncompatibleState`] when they do not fit.
    pub(super) fn new(
        name: StateName<'_>,
        layout: &TableLayout,
        kind: KeyedStateKind,
        found: &Schema,
    ) -> Result<Self, TaskError> {
        let needed = stored_schema(layout, kind);
        let columns = Matching { layout, needed: &needed, found }.columns();
        let columns = columns.map_err(|reason| misfit(name, &reason, found, &needed))?;
        let nullable = needed.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        Ok(Self { columns, schema: Arc::new(Schema::new(nullable.collect::<Vec<_>>())) })
    }

    /// Rows of the file with the table's columns.
    pub(super) fn adapt(&self, rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let columns = self.columns.iter().zip(self.schema.fields()).map(|(from, field)| match from {
            None => Ok(new_null_array(field.data_type(), rows.num_rows())),
            Some(index) if rows.column(*index).data_type() == field.data_type() => Ok(Arc::clone(rows.column(*index))),
            Some(index) => cast(rows.column(*index), field.data_type()),
        });
        RecordBatch::try_new(SchemaRef::clone(&self.schema), columns.collect::<Result<Vec<ArrayRef>, _>>()?)
    }
}

struct Matching<'a> {
    layout: &'a TableLayout,
    needed: &'a Schema,
    found: &'a Schema,
}

impl Matching<'_> {
    fn columns(&self) -> Result<Vec<Option<usize>>, String> {
        let keys = 1 + self.layout.keys.len();
        let mut columns = Vec::new();
        for (index, needed) in self.needed.fields().iter().enumerate() {
            let column = if index < keys { Some(self.key(index, needed)?) } else { self.value(index, needed)? };
            columns.push(column);
        }
        let taken: BTreeSet<usize> = columns.iter().flatten().copied().collect();
        let left = self
            .found
            .fields()
            .iter()
            .enumerate()
            .find(|(index, field)| !taken.contains(index) && field.name() != UPDATED);
        match left {
            None => Ok(columns),
            Some((_, field)) => {
                Err(format!("column '{}' ({}) is not in the program any more", field.name(), field.data_type()))
            }
        }
    }

    /// Keys stand first, in their order.
    fn key(&self, index: usize, needed: &Field) -> Result<usize, String> {
        let found = self.found.fields().get(index).map(AsRef::as_ref);
        let Some(found) = found.filter(|found| found.name() == needed.name()) else {
            return Err(format!("the key column '{}' ({}) is not in the snapshot", needed.name(), needed.data_type()));
        };
        let (old, new) = (found.data_type(), needed.data_type());
        let same_bytes = old == new || (matches!(old, DataType::Decimal128(..)) && is_wider(old, new));
        if same_bytes {
            return Ok(index);
        }
        Err(format!(
            "column '{}' is a key and is {old} in the snapshot, but {new} in the program; the type of a key cannot be \
             changed, since it decides which subtask holds the row",
            needed.name()
        ))
    }

    fn value(&self, index: usize, needed: &Field) -> Result<Option<usize>, String> {
        let Some((at, found)) = self.found_value(index, needed.name()) else { return self.added(needed) };
        let (old, new) = (found.data_type(), needed.data_type());
        if old == new || is_wider(old, new) {
            return Ok(Some(at));
        }
        Err(format!(
            "column '{}' is {old} in the snapshot, but {new} in the program; only wider types are taken: INT to BIGINT, \
             FLOAT to DOUBLE, a DECIMAL of more digits with the same scale",
            needed.name()
        ))
    }

    /// By name. The number of rows of a group stands first, under the name of a COUNT(*) when the program has one.
    fn found_value(&self, index: usize, name: &str) -> Option<(usize, &Field)> {
        let by_name = self.found.column_with_name(name);
        let first = 1 + self.layout.keys.len();
        let counts_rows = |field: &Field| field.name() == ROWS || name == ROWS;
        let by_place = || self.found.fields().get(index).map(|field| (index, field.as_ref()));
        by_name.or_else(|| by_place().filter(|(_, field)| index == first && counts_rows(field)))
    }

    /// What the snapshot does not have: NULL, if the program takes that.
    fn added(&self, needed: &Field) -> Result<Option<usize>, String> {
        let accumulators = &self.layout.accumulators;
        let is_absent = |column: &AccumulatorColumn| self.found.column_with_name(&column.name).is_none();
        let may_be_absent = accumulators.iter().find(|column| column.name == *needed.name()).is_some_and(|column| {
            // The count of values that makes a new sum NULL is absent with it.
            let belongs = |other: &AccumulatorColumn| other.null_while_zero == Some(column.word) && is_absent(other);
            column.null_while_zero.is_some() || accumulators.iter().any(belongs)
        });
        if may_be_absent {
            return Ok(None);
        }
        let (name, needed_type) = (needed.name(), needed.data_type());
        if name == DELETED || name == KEY_GROUP {
            return Err(format!("it has no column '{name}' ({needed_type})"));
        }
        Err(format!("column '{name}' ({needed_type}) is not in the snapshot and cannot be NULL in the program"))
    }
}

/// Whether every value of the one type is a value of the other.
fn is_wider(old: &DataType, new: &DataType) -> bool {
    use DataType::{Decimal128, Float32, Float64, Int8, Int16, Int32, Int64};
    match (old, new) {
        (Int8, Int16 | Int32 | Int64) | (Int16, Int32 | Int64) | (Int32, Int64) | (Float32, Float64) => true,
        (Decimal128(digits, scale), Decimal128(more_digits, same_scale)) => {
            digits <= more_digits && scale == same_scale
        }
        _ => false,
    }
}

fn misfit(name: StateName<'_>, reason: &str, found: &Schema, needed: &Schema) -> TaskError {
    let list = |schema: &Schema| {
        let columns = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
        columns.collect::<Vec<_>>().join(", ")
    };
    let StateName { uid, state } = name;
    TaskError::IncompatibleState(format!(
        "operator '{uid}' cannot take its stored state '{state}': {reason}. Keep the column as it was, or give the changed \
         operator another uid, which starts it empty. The snapshot holds ({}), the program needs ({})",
        list(found),
        list(needed)
    ))
}
