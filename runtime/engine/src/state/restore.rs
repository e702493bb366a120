//! Reads keyed state back: only row groups that overlap, only key groups that the subtask owns.
//!
//! A file may have been divided into another number of key groups than the job has ([`RestoredKeyed::divided_into`]): of
//! the row groups that overlap all rows are read, and each goes by what its key hashes to.

use super::file::{DELETED, KEY_GROUP, decimal_words};
use super::fit::{Fit, StateName};
use super::{AccumulatorColumn, Fate, KeyedTable, StateBytes, TableLayout, TouchedKeys};
use crate::error::TaskError;
use crate::operator::RestoredKeyed;
use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type, UInt16Type};
use arrow::error::ArrowError;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::ChunkReader;
use parquet::file::statistics::Statistics;
use sluice_protocol::state::KeyedStateKind;
use sluice_protocol::{KeyGroup, KeyGroupRange, OperatorUid, key_group};
use std::fmt::Display;
use std::sync::Arc;

/// Rows that are read at once.
const BATCH_ROWS: usize = 8192;

/// Takes the rows of a file that belong to the table's key groups.
pub(super) fn restore(table: &mut dyn KeyedTable, uid: &OperatorUid, file: &RestoredKeyed) -> Result<(), TaskError> {
    match &file.bytes {
        StateBytes::Memory(bytes) => restore_from(table, uid, file, || Ok(bytes.clone())),
        StateBytes::Spooled(spooled) => restore_from(table, uid, file, || {
            let place = spooled.path().display();
            let unreadable = |error| format!("{place}, fetched to restore operator '{uid}', cannot be read: {error}");
            spooled.open().map_err(|error| TaskError::External(unreadable(error)))
        }),
    }
}

fn restore_from<R: ChunkReader + 'static>(
    table: &mut dyn KeyedTable,
    uid: &OperatorUid,
    file: &RestoredKeyed,
    open: impl FnOnce() -> Result<R, TaskError>,
) -> Result<(), TaskError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(open()?).map_err(|error| unreadable(uid, error))?;
    let fit = Fit::new(StateName { uid, state: &file.name }, table.layout(), file.kind, builder.schema())?;
    let max_parallelism = table.max_parallelism();
    let divided_into = file.divided_into.unwrap_or(max_parallelism);
    let (touched, words) = (TouchedKeys::default(), Vec::new());
    let mut restorer = Restorer { uid, kind: file.kind, fit, divided_into, touched, words };
    let stored = key_group::rescaled(table.key_groups(), max_parallelism, divided_into);
    let needed = (builder.metadata().row_groups().iter().enumerate())
        .filter(|(_, group)| overlaps(group, stored))
        .map(|(index, _)| index)
        .collect();
    let reader = builder.with_row_groups(needed).with_batch_size(BATCH_ROWS).build();
    for batch in reader.map_err(|error| unreadable(uid, error))? {
        restorer.take(table, &batch.map_err(|error| unreadable(uid, error))?)?;
    }
    Ok(())
}

struct Restorer<'a> {
    uid: &'a OperatorUid,
    kind: KeyedStateKind,
    fit: Fit,
    /// Number of key groups by which the file's rows are divided.
    divided_into: u16,
    touched: TouchedKeys,
    words: Vec<u64>,
}

impl Restorer<'_> {
    fn take(&mut self, table: &mut dyn KeyedTable, batch: &RecordBatch) -> Result<(), TaskError> {
        let layout = table.layout().clone();
        let batch = self.fit.adapt(batch).map_err(|error| unreadable(self.uid, error))?;
        let key_columns = key_columns(&layout);
        let rows = if self.divided_into == table.max_parallelism() {
            let rows = self.owned(table.key_groups(), &batch)?;
            self.touched.hash(&layout, &rows, &key_columns)?;
            self.check_groups(&rows)?;
            rows
        } else {
            self.touched.hash(&layout, &batch, &key_columns)?;
            self.check_groups(&batch)?;
            let groups: Vec<u16> = self.computed_groups(table.max_parallelism()).collect();
            let rows = self.of_groups(table.key_groups(), &batch, &groups)?;
            self.touched.hash(&layout, &rows, &key_columns)?;
            rows
        };
        table.find(key_columns.first().map(|column| rows.column(*column).as_ref()), &mut self.touched)?;
        if self.touched.keys.len() != rows.num_rows() {
            return Err(unreadable(self.uid, "a key stands in it twice"));
        }
        let accumulators = &rows.columns()[1 + key_columns.len()..];
        let read = self.read_words(&layout, accumulators, rows.num_rows());
        read.map_err(|error| unreadable(self.uid, error))?;
        let fates = match (self.kind, accumulators.last()) {
            (KeyedStateKind::Delta, Some(deleted)) => {
                let fate = |deleted: Option<bool>| if deleted == Some(true) { Fate::Remove } else { Fate::Write };
                deleted.as_boolean().iter().map(fate).collect()
            }
            _ => vec![Fate::Write; rows.num_rows()],
        };
        table.store(&self.touched, &self.words, &fates)
    }

    fn owned(&self, owned: KeyGroupRange, batch: &RecordBatch) -> Result<RecordBatch, TaskError> {
        self.of_groups(owned, batch, batch.column(0).as_primitive::<UInt16Type>().values())
    }

    fn of_groups(&self, owned: KeyGroupRange, batch: &RecordBatch, groups: &[u16]) -> Result<RecordBatch, TaskError> {
        if groups.iter().all(|group| owned.contains(KeyGroup(*group))) {
            return Ok(batch.clone());
        }
        let mask: BooleanArray = groups.iter().map(|group| Some(owned.contains(KeyGroup(*group)))).collect();
        filter_record_batch(batch, &mask).map_err(|error| unreadable(self.uid, error))
    }

    /// The key groups that the hashed keys belong to.
    fn computed_groups(&self, max_parallelism: u16) -> impl Iterator<Item = u16> {
        self.touched.hashed.group_hashes().iter().map(move |hash| key_group::of_hash(*hash, max_parallelism).0)
    }

    /// The key groups in the file must be those that the keys hash to.
    fn check_groups(&self, rows: &RecordBatch) -> Result<(), TaskError> {
        let groups = rows.column(0).as_primitive::<UInt16Type>().values();
        if self.computed_groups(self.divided_into).eq(groups.iter().copied()) {
            return Ok(());
        }
        Err(TaskError::IncompatibleState(format!(
            "a file with the state of operator '{}' is damaged: keys stand in it under key groups that they do not have \
             by {}; choose another snapshot",
            self.uid,
            key_group::NAME
        )))
    }

    /// The accumulators row by row, as the table lays them out. What is NULL is 0.
    fn read_words(&mut self, layout: &TableLayout, columns: &[ArrayRef], rows: usize) -> Result<(), ArrowError> {
        self.words.clear();
        self.words.resize(rows * layout.words, 0);
        for (column, array) in layout.accumulators.iter().zip(columns) {
            read_column(&mut self.words, layout.words, column, array)?;
        }
        Ok(())
    }
}

/// Where the keys stand.
fn key_columns(layout: &TableLayout) -> Vec<usize> {
    (1..=layout.keys.len()).collect()
}

fn read_column(
    words: &mut [u64],
    width: usize,
    column: &AccumulatorColumn,
    array: &ArrayRef,
) -> Result<(), ArrowError> {
    let (at, rows) = (column.word, words.chunks_exact_mut(width));
    match &column.data_type {
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>();
            rows.zip(values).for_each(|(words, value)| words[at] = value.unwrap_or_default().to_bits());
        }
        DataType::Decimal128(..) => {
            let values = array.as_primitive::<Decimal128Type>();
            let set = |(words, value): (&mut [u64], Option<i128>)| {
                words[at..at + 2].copy_from_slice(&decimal_words(value.unwrap_or_default()));
            };
            rows.zip(values).for_each(set);
        }
        _ => {
            let numbers =
                if array.data_type() == &DataType::Int64 { Arc::clone(array) } else { cast(array, &DataType::Int64)? };
            let values = numbers.as_primitive::<Int64Type>();
            rows.zip(values).for_each(|(words, value)| words[at] = value.unwrap_or_default() as u64);
        }
    }
    Ok(())
}

/// Whether a row group may hold key groups of the range; without statistics it may.
fn overlaps(group: &RowGroupMetaData, owned: KeyGroupRange) -> bool {
    let Some(Statistics::Int32(statistics)) = group.column(0).statistics() else { return true };
    let (Some(first), Some(last)) = (statistics.min_opt(), statistics.max_opt()) else { return true };
    *first < i32::from(owned.end) && *last >= i32::from(owned.start)
}

fn unreadable(uid: &OperatorUid, error: impl Display) -> TaskError {
    TaskError::IncompatibleState(format!(
        "a file with the state of operator '{uid}' is not a Parquet file with a {KEY_GROUP} column, keys, accumulators \
         and, if it is a delta, {DELETED}: {error}"
    ))
}
