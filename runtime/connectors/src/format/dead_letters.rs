//! What could not be read, as rows of the source: behind the table's own columns stand those of dead letters, and of each row
//! either the ones or the others are NULL. The program divides them again, so both are of one position of the source.

use super::messages::BadMessage;
use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray, UInt8Array, new_null_array};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::table::{DEAD_LETTER, TableDescriptor, with_dead_letters};
use std::sync::Arc;

/// Puts rows and dead letters together, when the table wants that.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetters {
    /// The columns of rows, then those of dead letters; `None`: what cannot be read goes nowhere.
    wide: Option<SchemaRef>,
    schema: SchemaRef,
}

impl DeadLetters {
    pub(crate) fn new(table: &TableDescriptor) -> Self {
        let wide = table.option(DEAD_LETTER).map(|_| with_dead_letters(&table.schema));
        Self { wide, schema: Arc::clone(&table.schema) }
    }

    /// Whether what cannot be read goes somewhere.
    pub(crate) const fn are_wanted(&self) -> bool {
        self.wide.is_some()
    }

    /// The columns that come out.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(self.wide.as_ref().unwrap_or(&self.schema))
    }

    /// Rows with what could not be read, each with its place.
    pub(crate) fn join(&self, rows: Option<Batch>, bad: &[(String, BadMessage)]) -> Result<Option<Batch>, ArrowError> {
        let Some(wide) = &self.wide else { return Ok(rows) };
        let rows = rows.map(|batch| widened(wide, batch)).transpose()?;
        if bad.is_empty() {
            return Ok(rows);
        }
        let letters = letters(wide, bad)?;
        let Some(Batch { rows, kinds }) = rows else { return Ok(Some(Batch::inserts(letters))) };
        let kinds = kinds.map(|kinds| {
            let of_letters = (0..letters.num_rows()).map(|_| RowKind::Insert as u8);
            UInt8Array::from_iter_values(kinds.values().iter().copied().chain(of_letters))
        });
        Ok(Some(Batch { rows: concat_batches(wide, [&rows, &letters])?, kinds }))
    }
}

fn widened(wide: &SchemaRef, Batch { rows, kinds }: Batch) -> Result<Batch, ArrowError> {
    let count = rows.num_rows();
    let mut columns = rows.columns().to_vec();
    columns.extend(wide.fields().iter().skip(columns.len()).map(|field| new_null_array(field.data_type(), count)));
    Ok(Batch { rows: RecordBatch::try_new(Arc::clone(wide), columns)?, kinds })
}

fn letters(wide: &SchemaRef, bad: &[(String, BadMessage)]) -> Result<RecordBatch, ArrowError> {
    let payloads = || bad.iter().map(|(_, message)| message.payload.as_slice());
    let own: [ArrayRef; 4] = [
        Arc::new(BinaryArray::from_iter_values(payloads())),
        Arc::new(StringArray::from_iter_values(payloads().map(String::from_utf8_lossy))),
        Arc::new(StringArray::from_iter_values(bad.iter().map(|(place, _)| place))),
        Arc::new(StringArray::from_iter_values(bad.iter().map(|(_, message)| &message.reason))),
    ];
    let others = wide.fields().len() - own.len();
    let nulls = wide.fields().iter().take(others).map(|field| new_null_array(field.data_type(), bad.len()));
    RecordBatch::try_new(Arc::clone(wide), nulls.chain(own).collect())
}
