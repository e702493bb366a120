//! Reads keyed state back: only row groups that overlap, only key groups that the subtask owns.

use super::file::{DELETED, KEY_GROUP, decimal_words, stored_schema};
use super::{AccumulatorColumn, Fate, KeyedTable, StateBytes, TableLayout, TouchedKeys};
use crate::error::TaskError;
use crate::operator::RestoredKeyed;
use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt16Array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type, Schema, UInt16Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::ChunkReader;
use parquet::file::statistics::Statistics;
use sluice_protocol::state::KeyedStateKind;
use sluice_protocol::{KeyGroup, KeyGroupRange, OperatorUid, key_group};
use std::fmt::Display;

/// Rows that are read at once.
const BATCH_ROWS: usize = 8192;

/// Takes the rows of a file that belong to the table's key groups.
pub(super) fn restore(table: &mut dyn KeyedTable, uid: &OperatorUid, file: &RestoredKeyed) -> Result<(), TaskError> {
    match &file.bytes {
        StateBytes::Memory(bytes) => restore_from(table, uid, file.kind, bytes.clone()),
        StateBytes::Spooled(spooled) => {
            let opened = spooled.open().map_err(|error| {
                let place = spooled.path().display();
                TaskError::External(format!("{place}, fetched to restore operator '{uid}', cannot be read: {error}"))
            })?;
            restore_from(table, uid, file.kind, opened)
        }
    }
}

fn restore_from(
    table: &mut dyn KeyedTable,
    uid: &OperatorUid,
    kind: KeyedStateKind,
    bytes: impl ChunkReader + 'static,
) -> Result<(), TaskError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(|error| unreadable(uid, error))?;
    check_columns(table.layout(), uid, builder.schema(), kind)?;
    let owned = table.key_groups();
    let overlapping = (builder.metadata().row_groups().iter().enumerate())
        .filter(|(_, group)| overlaps(group, owned))
        .map(|(index, _)| index)
        .collect();
    let builder = builder.with_row_groups(overlapping).with_batch_size(BATCH_ROWS);
    let reader = builder.build().map_err(|error| unreadable(uid, error))?;
    let mut restorer = Restorer { uid, kind, touched: TouchedKeys::default(), words: Vec::new() };
    for batch in reader {
        let batch = batch.map_err(|error| unreadable(uid, error))?;
        restorer.take(table, &batch)?;
    }
    Ok(())
}

fn check_columns(
    layout: &TableLayout,
    uid: &OperatorUid,
    found: &Schema,
    kind: KeyedStateKind,
) -> Result<(), TaskError> {
    let expected = stored_schema(layout, kind);
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

struct Restorer<'a> {
    uid: &'a OperatorUid,
    kind: KeyedStateKind,
    touched: TouchedKeys,
    words: Vec<u64>,
}

impl Restorer<'_> {
    fn take(&mut self, table: &mut dyn KeyedTable, batch: &RecordBatch) -> Result<(), TaskError> {
        let layout = table.layout().clone();
        let rows = self.owned(table.key_groups(), batch)?;
        let key_columns: Vec<usize> = (1..=layout.keys.len()).collect();
        self.touched.hash(&layout, &rows, &key_columns)?;
        self.check_groups(table.max_parallelism(), &rows)?;
        table.find(key_columns.first().map(|column| rows.column(*column).as_ref()), &mut self.touched)?;
        if self.touched.keys.len() != rows.num_rows() {
            return Err(unreadable(self.uid, "a key stands in it twice"));
        }
        let accumulators = &rows.columns()[1 + key_columns.len()..];
        self.read_words(&layout, accumulators, rows.num_rows());
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
        let groups = batch.column(0).as_primitive::<UInt16Type>().values();
        if groups.iter().all(|group| owned.contains(KeyGroup(*group))) {
            return Ok(batch.clone());
        }
        let mask: BooleanArray = groups.iter().map(|group| Some(owned.contains(KeyGroup(*group)))).collect();
        filter_record_batch(batch, &mask).map_err(|error| unreadable(self.uid, error))
    }

    /// The key groups in the file must be those that the keys hash to.
    fn check_groups(&self, max_parallelism: u16, rows: &RecordBatch) -> Result<(), TaskError> {
        let groups: &UInt16Array = rows.column(0).as_primitive();
        let computed = self.touched.hashed.hashes.iter().map(|hash| key_group::of_hash(*hash, max_parallelism).0);
        if computed.eq(groups.values().iter().copied()) {
            return Ok(());
        }
        Err(TaskError::IncompatibleState(format!(
            "the stored state of operator '{}' was divided otherwise than into {max_parallelism} key groups by {}; \
             restore it with the maxParallelism it was stored with",
            self.uid,
            key_group::NAME
        )))
    }

    /// The accumulators row by row, as the table lays them out. What is NULL is 0.
    fn read_words(&mut self, layout: &TableLayout, columns: &[ArrayRef], rows: usize) {
        self.words.clear();
        self.words.resize(rows * layout.words, 0);
        for (column, array) in layout.accumulators.iter().zip(columns) {
            read_column(&mut self.words, layout.words, column, array);
        }
    }
}

fn read_column(words: &mut [u64], width: usize, column: &AccumulatorColumn, array: &ArrayRef) {
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
            let values = array.as_primitive::<Int64Type>();
            rows.zip(values).for_each(|(words, value)| words[at] = value.unwrap_or_default() as u64);
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
        "a file with the state of operator '{uid}' is not a Parquet file with a {KEY_GROUP} column, keys, accumulators \
         and, if it is a delta, {DELETED}: {error}"
    ))
}
