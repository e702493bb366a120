//! The files of one keyed state laid over each other, for people: full ones and deltas become the rows that a
//! restore would see. Needs no program: each file says which columns are its keys.

use super::file::{DELETED, KEY_COLUMNS};
use crate::error::TaskError;
use crate::keys::HashedKeys;
use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::collections::HashSet;
use std::fmt::Display;

/// Reads files of one subtask's state, newest first, and keeps of each what no newer one has overwritten.
#[derive(Debug, Default)]
pub struct MergedState {
    seen: HashSet<Vec<u8>>,
}

impl MergedState {
    /// The first `limit` rows of the next older file that stand, without the column `$deleted`. `remember` its keys,
    /// all of them, when files are to be read that it may overwrite: it is a delta.
    ///
    /// # Errors
    /// When it is no file of keyed state.
    pub fn read(&mut self, file: &Bytes, remember: bool, limit: usize) -> Result<Vec<RecordBatch>, TaskError> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(unreadable)?;
        let keys = key_columns(&builder)?;
        let (mut batches, mut left) = (Vec::new(), limit);
        for batch in builder.build().map_err(unreadable)? {
            if left == 0 && !remember {
                break;
            }
            let rows = self.standing(&batch.map_err(unreadable)?, &keys, remember)?;
            let taken = rows.num_rows().min(left);
            batches.push(rows.slice(0, taken));
            left -= taken;
        }
        Ok(batches)
    }

    fn standing(&mut self, batch: &RecordBatch, keys: &[usize], remember: bool) -> Result<RecordBatch, TaskError> {
        let deleted = batch.schema().index_of(DELETED).ok();
        let deletes = deleted.map(|index| batch.column(index).as_boolean().clone());
        let mut rows = batch.clone();
        if let Some(index) = deleted {
            rows.remove_column(index);
        }
        if !remember && self.seen.is_empty() {
            return Ok(rows);
        }
        let mut hashed = HashedKeys::default();
        hashed.encode(batch, keys)?;
        let stands = |row: usize| {
            let key = hashed.key(row);
            let is_new = if remember { self.seen.insert(key.to_vec()) } else { !self.seen.contains(key) };
            is_new && !deletes.as_ref().is_some_and(|deletes| deletes.value(row))
        };
        let mask: BooleanArray = (0..batch.num_rows()).map(stands).map(Some).collect();
        filter_record_batch(&rows, &mask).map_err(unreadable)
    }
}

fn key_columns(builder: &ParquetRecordBatchReaderBuilder<Bytes>) -> Result<Vec<usize>, TaskError> {
    let metadata = builder.metadata().file_metadata().key_value_metadata();
    let named = metadata.into_iter().flatten().find(|pair| pair.key == KEY_COLUMNS);
    let names = named.and_then(|pair| pair.value.as_deref()).unwrap_or("[]");
    let names: Vec<String> = serde_json::from_str(names).map_err(unreadable)?;
    names.iter().map(|name| builder.schema().index_of(name).map_err(unreadable)).collect()
}

fn unreadable(error: impl Display) -> TaskError {
    TaskError::IncompatibleState(format!("a file of keyed state cannot be read: {error}"))
}
