//! Keyed state as Parquet files that DuckDB or pandas can read (design §4).
//!
//! Columns: `key_group` (UInt16), the key columns by name, the accumulators by name; a delta has one more,
//! `$deleted` (Boolean): the key is gone, its accumulators mean nothing. Sorted by key group; in a delta a key stands
//! once. The file's metadata names the key columns under [`KEY_COLUMNS`] (a JSON array), so that files can be laid
//! over each other without the program.
//!
//! A row group holds at most [`ROW_GROUP_ROWS`] rows, with the range of its key groups in the statistics, so that a
//! restore reads only those that it needs. State is written in pieces of about [`FILE_BYTES`].

use super::history::Plan;
use super::{AccumulatorColumn, TableLayout};
use crate::error::TaskError;
use crate::keys::decode::{decode, stored_type};
use crate::operator::{KeyedPiece, TakePiece};
use arrow::array::{ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, RecordBatch, UInt16Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use sluice_protocol::KeyGroupRange;
use sluice_protocol::state::KeyedStateKind;
use std::fmt::Display;
use std::sync::Arc;

/// The name of the first column.
pub const KEY_GROUP: &str = "key_group";

/// The name of the last column of a delta.
pub const DELETED: &str = "$deleted";

/// The name of a group's number of rows, unless the program names it.
pub const ROWS: &str = "$rows";

/// Under this key a file's metadata names its key columns.
pub const KEY_COLUMNS: &str = "sluice.key_columns";

/// Most rows of a row group.
pub(super) const ROW_GROUP_ROWS: usize = 64 * 1024;

/// A file is closed when it has this many bytes.
const FILE_BYTES: usize = 32 * 1024 * 1024;

/// Rows of a table, for one row group.
pub(super) struct Rows<'a> {
    groups: Vec<u16>,
    keys: RowKeys<'a>,
    words: Vec<&'a [u64]>,
    /// Per row, in a delta.
    deleted: Option<Vec<bool>>,
}

enum RowKeys<'a> {
    Bigint(Vec<Option<i64>>),
    Encoded(Vec<&'a [u8]>),
}

impl<'a> Rows<'a> {
    pub(super) fn new(bigint: bool, kind: KeyedStateKind) -> Self {
        let keys = if bigint { RowKeys::Bigint(Vec::new()) } else { RowKeys::Encoded(Vec::new()) };
        let deleted = (kind == KeyedStateKind::Delta).then(Vec::new);
        Self { groups: Vec::new(), keys, words: Vec::new(), deleted }
    }

    pub(super) const fn len(&self) -> usize {
        self.groups.len()
    }

    #[inline]
    pub(super) fn push_bigint(&mut self, group: u16, key: Option<i64>, words: &'a [u64]) {
        self.push_key_bigint(key);
        self.push_words(group, words, false);
    }

    #[inline]
    pub(super) fn push_encoded(&mut self, group: u16, key: &'a [u8], words: &'a [u64]) {
        self.push_key_encoded(key);
        self.push_words(group, words, false);
    }

    pub(super) fn push_deleted_bigint(&mut self, group: u16, key: Option<i64>, zeros: &'a [u64]) {
        self.push_key_bigint(key);
        self.push_words(group, zeros, true);
    }

    pub(super) fn push_deleted_encoded(&mut self, group: u16, key: &'a [u8], zeros: &'a [u64]) {
        self.push_key_encoded(key);
        self.push_words(group, zeros, true);
    }

    #[inline]
    fn push_key_bigint(&mut self, key: Option<i64>) {
        if let RowKeys::Bigint(keys) = &mut self.keys {
            keys.push(key);
        }
    }

    #[inline]
    fn push_key_encoded(&mut self, key: &'a [u8]) {
        if let RowKeys::Encoded(keys) = &mut self.keys {
            keys.push(key);
        }
    }

    #[inline]
    fn push_words(&mut self, group: u16, words: &'a [u64], deleted: bool) {
        self.groups.push(group);
        self.words.push(words);
        if let Some(all) = &mut self.deleted {
            all.push(deleted);
        }
    }

    fn clear(&mut self) {
        self.groups.clear();
        self.words.clear();
        match &mut self.keys {
            RowKeys::Bigint(keys) => keys.clear(),
            RowKeys::Encoded(keys) => keys.clear(),
        }
        if let Some(deleted) = &mut self.deleted {
            deleted.clear();
        }
    }

    fn to_batch(&self, layout: &TableLayout, schema: &SchemaRef) -> Result<RecordBatch, TaskError> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt16Array::from(self.groups.clone()))];
        match &self.keys {
            RowKeys::Bigint(keys) => columns.push(Arc::new(keys.iter().copied().collect::<Int64Array>())),
            RowKeys::Encoded(keys) => {
                let types: Vec<DataType> = layout.keys.iter().map(|field| stored_type(field.data_type())).collect();
                columns.extend(decode(keys, &types)?);
            }
        }
        for column in &layout.accumulators {
            columns.push(accumulators(&self.words, column)?);
        }
        if let Some(deleted) = &self.deleted {
            columns.push(Arc::new(BooleanArray::from(deleted.clone())));
        }
        RecordBatch::try_new(SchemaRef::clone(schema), columns).map_err(cannot_write)
    }
}

fn accumulators(rows: &[&[u64]], column: &AccumulatorColumn) -> Result<ArrayRef, TaskError> {
    let nulls = column.null_while_zero.map(|zero| rows.iter().map(|words| words[zero] != 0).collect::<NullBuffer>());
    let at = column.word;
    Ok(match &column.data_type {
        DataType::Int64 => Arc::new(Int64Array::new(rows.iter().map(|words| words[at] as i64).collect(), nulls)),
        DataType::Float64 => {
            Arc::new(Float64Array::new(rows.iter().map(|words| f64::from_bits(words[at])).collect(), nulls))
        }
        DataType::Decimal128(precision, scale) => {
            let values = rows.iter().map(|words| decimal_of(&words[at..at + 2])).collect();
            let array = Decimal128Array::new(values, nulls).with_precision_and_scale(*precision, *scale);
            Arc::new(array.map_err(cannot_write)?)
        }
        other => {
            let values = Int64Array::new(rows.iter().map(|words| words[at] as i64).collect(), nulls);
            cast(&values, other).map_err(cannot_write)?
        }
    })
}

/// Writes rows, which come sorted by key group, as pieces.
pub(super) struct FileWriter<'a> {
    name: Arc<str>,
    layout: Arc<TableLayout>,
    kind: KeyedStateKind,
    inline_before: u64,
    schema: SchemaRef,
    open: Option<OpenFile>,
    take: TakePiece<'a>,
}

struct OpenFile {
    writer: ArrowWriter<Vec<u8>>,
    key_groups: KeyGroupRange,
    rows: u64,
}

impl<'a> FileWriter<'a> {
    pub(super) fn new<C>(name: &Arc<str>, layout: &Arc<TableLayout>, plan: &Plan<C>, take: TakePiece<'a>) -> Self {
        let (kind, inline_before) = (plan.kind(), plan.inline_bytes());
        let schema = stored_schema(layout, kind);
        Self { name: Arc::clone(name), layout: Arc::clone(layout), kind, inline_before, schema, open: None, take }
    }

    /// Writes rows as one row group, and empties them.
    pub(super) fn write(&mut self, rows: &mut Rows<'_>) -> Result<(), TaskError> {
        let (Some(first), Some(last)) = (rows.groups.first().copied(), rows.groups.last().copied()) else {
            return Ok(());
        };
        let batch = rows.to_batch(&self.layout, &self.schema)?;
        rows.clear();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.open_file(first)?,
        };
        open.writer.write(&batch).map_err(cannot_write)?;
        if open.writer.in_progress_rows() >= ROW_GROUP_ROWS {
            open.writer.flush().map_err(cannot_write)?;
        }
        open.key_groups.end = last + 1;
        open.rows += batch.num_rows() as u64;
        if open.writer.bytes_written() + open.writer.in_progress_size() >= FILE_BYTES {
            return self.close(open);
        }
        self.open = Some(open);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(), TaskError> {
        match self.open.take() {
            Some(open) => self.close(open),
            None => Ok(()),
        }
    }

    fn open_file(&self, first: u16) -> Result<OpenFile, TaskError> {
        let properties = properties(&self.layout)?;
        let writer = ArrowWriter::try_new(Vec::new(), SchemaRef::clone(&self.schema), Some(properties));
        let key_groups = KeyGroupRange { start: first, end: first };
        Ok(OpenFile { writer: writer.map_err(cannot_write)?, key_groups, rows: 0 })
    }

    fn close(&mut self, open: OpenFile) -> Result<(), TaskError> {
        let OpenFile { writer, key_groups, rows } = open;
        let bytes = writer.into_inner().map_err(cannot_write)?;
        let Self { kind, inline_before, .. } = *self;
        (self.take)(KeyedPiece { name: self.name.to_string(), key_groups, rows, kind, inline_before, bytes })
    }
}

fn properties(layout: &TableLayout) -> Result<WriterProperties, TaskError> {
    let keys: Vec<&String> = layout.keys.iter().map(Field::name).collect();
    let keys = serde_json::to_string(&keys).map_err(cannot_write)?;
    Ok(WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_column_dictionary_enabled(ColumnPath::from(KEY_GROUP), true)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_statistics_enabled(ColumnPath::from(KEY_GROUP), EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_key_value_metadata(Some(vec![KeyValue::new(KEY_COLUMNS.to_owned(), keys)]))
        .build())
}

/// A decimal from its two words.
#[must_use]
pub fn decimal_of(words: &[u64]) -> i128 {
    (i128::from(words[1] as i64) << 64) | i128::from(words[0])
}

/// The two words of a decimal.
#[must_use]
pub const fn decimal_words(value: i128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

/// The columns of a file.
pub(super) fn stored_schema(layout: &TableLayout, kind: KeyedStateKind) -> SchemaRef {
    let keys = layout.keys.iter().map(|field| Field::new(field.name(), stored_type(field.data_type()), true));
    let accumulators = layout
        .accumulators
        .iter()
        .map(|column| Field::new(&column.name, column.data_type.clone(), column.null_while_zero.is_some()));
    let group = Field::new(KEY_GROUP, DataType::UInt16, false);
    let deleted = (kind == KeyedStateKind::Delta).then(|| Field::new(DELETED, DataType::Boolean, false));
    Arc::new(Schema::new(std::iter::once(group).chain(keys).chain(accumulators).chain(deleted).collect::<Vec<_>>()))
}

fn cannot_write(error: impl Display) -> TaskError {
    TaskError::Internal(format!("keyed state cannot be written as Parquet: {error}"))
}

/// Reads the first `limit` rows of a file of keyed state, for people.
///
/// # Errors
/// When it is none.
pub fn read_keyed_state(bytes: &bytes::Bytes, limit: usize) -> Result<Vec<RecordBatch>, TaskError> {
    let unreadable =
        |error: String| TaskError::IncompatibleState(format!("a file of keyed state cannot be read: {error}"));
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())
        .and_then(|builder| builder.with_limit(limit).build())
        .map_err(|error| unreadable(error.to_string()))?;
    reader.map(|batch| batch.map_err(|error| unreadable(error.to_string()))).collect()
}
