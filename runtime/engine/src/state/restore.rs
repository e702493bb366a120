//! Reads keyed state back: only row groups that overlap, only key groups that the subtask owns.

use super::file::{KEY_GROUP, decimal_words, stored_schema};
use super::{AccumulatorColumn, KeyedTable, TouchedKeys};
use crate::error::TaskError;
use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, UInt16Array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type, Schema, UInt16Type};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;
use sluice_protocol::{KeyGroup, KeyGroupRange, OperatorUid, key_group};
use std::fmt::Display;

impl KeyedTable {
    /// Takes the rows of a file that belong to its key groups. `uid` is for errors.
    ///
    /// # Errors
    /// [`TaskError::IncompatibleState`] when the file has other columns than the table, or is no such file.
    pub fn restore(&mut self, uid: &OperatorUid, file: &Bytes) -> Result<(), TaskError> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(|error| unreadable(uid, error))?;
        self.check_columns(uid, builder.schema())?;
        let owned = self.key_groups;
        let overlapping = (builder.metadata().row_groups().iter().enumerate())
            .filter(|(_, group)| overlaps(group, owned))
            .map(|(index, _)| index)
            .collect();
        let reader = builder.with_row_groups(overlapping).build().map_err(|error| unreadable(uid, error))?;
        for batch in reader {
            let batch = batch.map_err(|error| unreadable(uid, error))?;
            self.restore_batch(uid, &batch)?;
        }
        Ok(())
    }

    fn check_columns(&self, uid: &OperatorUid, found: &Schema) -> Result<(), TaskError> {
        let expected = stored_schema(&self.layout);
        let columns = |schema: &Schema| -> Vec<(String, DataType)> {
            schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
        };
        let (expected, found) = (columns(&expected), columns(found));
        if expected == found {
            return Ok(());
        }
        let list = |columns: &[(String, DataType)]| {
            let columns: Vec<String> = columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
            columns.join(", ")
        };
        Err(TaskError::IncompatibleState(format!(
            "operator '{uid}' cannot take its stored state: the checkpoint holds the columns ({}), the program needs \
             ({}); restore a program with the same keys and aggregates, or give the changed operator another uid",
            list(&found),
            list(&expected)
        )))
    }

    fn restore_batch(&mut self, uid: &OperatorUid, batch: &RecordBatch) -> Result<(), TaskError> {
        let groups = batch.column(0).as_primitive::<UInt16Type>();
        let owned: BooleanArray =
            groups.values().iter().map(|group| Some(self.key_groups.contains(KeyGroup(*group)))).collect();
        let rows = filter_record_batch(batch, &owned).map_err(|error| unreadable(uid, error))?;
        let key_columns: Vec<usize> = (1..=self.layout.keys.len()).collect();
        let mut touched = TouchedKeys::default();
        self.check_groups(uid, &rows, &key_columns)?;
        self.touch(&rows, &key_columns, &mut touched)?;
        for (position, column) in self.layout.clone().accumulators.iter().enumerate() {
            self.restore_column(&touched, rows.column(1 + key_columns.len() + position), column);
        }
        Ok(())
    }

    /// The key groups in the file must be those that the keys hash to.
    fn check_groups(&mut self, uid: &OperatorUid, rows: &RecordBatch, keys: &[usize]) -> Result<(), TaskError> {
        let groups: &UInt16Array = rows.column(0).as_primitive();
        self.hashed.encode(rows, keys)?;
        let computed = self.hashed.hashes.iter().map(|hash| key_group::of_hash(*hash, self.max_parallelism).0);
        if computed.eq(groups.values().iter().copied()) {
            return Ok(());
        }
        Err(TaskError::IncompatibleState(format!(
            "the stored state of operator '{uid}' was divided otherwise than into {} key groups by {}; restore it \
             with the maxParallelism it was stored with",
            self.max_parallelism,
            key_group::NAME
        )))
    }

    fn restore_column(&mut self, touched: &TouchedKeys, array: &dyn Array, column: &AccumulatorColumn) {
        let at = column.word;
        for (row, slot) in touched.slots.iter().enumerate().filter(|(row, _)| array.is_valid(*row)) {
            let words = self.accumulators_mut(touched.keys[*slot as usize]);
            match &column.data_type {
                DataType::Float64 => words[at] = array.as_primitive::<Float64Type>().value(row).to_bits(),
                DataType::Decimal128(..) => {
                    words[at..at + 2]
                        .copy_from_slice(&decimal_words(array.as_primitive::<Decimal128Type>().value(row)));
                }
                _ => words[at] = array.as_primitive::<Int64Type>().value(row) as u64,
            }
        }
    }
}

/// Whether a row group may hold key groups of the range; without statistics it may.
fn overlaps(group: &RowGroupMetaData, owned: KeyGroupRange) -> bool {
    let Some(Statistics::Int32(statistics)) = group.column(0).statistics() else { return true };
    let (Some(first), Some(last)) = (statistics.min_opt(), statistics.max_opt()) else { return true };
    *first < i32::from(owned.end) && *last >= i32::from(owned.start)
}

fn unreadable(uid: &OperatorUid, error: impl Display) -> TaskError {
    TaskError::IncompatibleState(format!(
        "a file with the state of operator '{uid}' is not a Parquet file with a {KEY_GROUP} column: {error}"
    ))
}
