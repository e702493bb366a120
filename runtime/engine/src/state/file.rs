//! Keyed state as a Parquet file that DuckDB or pandas can read (design §4).
//!
//! Columns: `key_group` (UInt16), the key columns by name, the accumulators by name. Sorted by key group; a row group
//! holds a run of whole key groups, so that a restore reads only those that it owns.

use super::arena::frozen_key;
use super::shard::FrozenShard;
use super::{AccumulatorColumn, TableLayout};
use crate::error::TaskError;
use crate::keys::decode::{decode, stored_type};
use crate::operator::{KeyedPiece, OperatorState, SnapshotWriter};
use arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array, RecordBatch, UInt16Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use sluice_protocol::KeyGroupRange;
use std::fmt::Display;
use std::sync::Arc;

/// The name of the first column.
pub const KEY_GROUP: &str = "key_group";

/// A row group is closed at the first end of a key group past this many rows.
const ROW_GROUP_ROWS: usize = 64 * 1024;

/// A table as it was when it was frozen.
pub struct FrozenTable {
    layout: Arc<TableLayout>,
    key_groups: KeyGroupRange,
    bigint: bool,
    shards: Vec<FrozenShard>,
}

impl FrozenTable {
    pub(super) const fn new(
        layout: Arc<TableLayout>,
        key_groups: KeyGroupRange,
        bigint: bool,
        shards: Vec<FrozenShard>,
    ) -> Self {
        Self { layout, key_groups, bigint, shards }
    }

    /// Number of keys.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shards.iter().map(|shard| shard.rows).sum()
    }

    /// The file.
    ///
    /// # Errors
    /// When Arrow or Parquet refuse.
    pub fn encode(&self) -> Result<Vec<u8>, TaskError> {
        let schema = stored_schema(&self.layout);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            .set_column_dictionary_enabled(ColumnPath::from(KEY_GROUP), true)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_column_statistics_enabled(ColumnPath::from(KEY_GROUP), EnabledStatistics::Chunk)
            .set_max_row_group_row_count(None)
            .build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), SchemaRef::clone(&schema), Some(properties)).map_err(cannot_write)?;
        let mut first = 0;
        while first < self.shards.len() {
            let mut rows = 0;
            let full = |rows: &mut usize, shard: &FrozenShard| {
                *rows += shard.rows;
                *rows >= ROW_GROUP_ROWS
            };
            let end = self.shards[first..].iter().position(|shard| full(&mut rows, shard));
            let end = end.map_or(self.shards.len(), |position| first + position + 1);
            if rows > 0 {
                writer.write(&self.batch(first..end, &schema)?).map_err(cannot_write)?;
                writer.flush().map_err(cannot_write)?;
            }
            first = end;
        }
        writer.into_inner().map_err(cannot_write)
    }

    /// The rows of a run of key groups.
    fn batch(&self, shards: std::ops::Range<usize>, schema: &SchemaRef) -> Result<RecordBatch, TaskError> {
        let start = self.key_groups.start;
        let run = &self.shards[shards.clone()];
        let groups = shards.zip(run).flat_map(|(index, shard)| std::iter::repeat_n(start + index as u16, shard.rows));
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt16Array::from_iter_values(groups))];
        columns.extend(self.keys(run)?);
        let width = self.layout.words + 1;
        for column in &self.layout.accumulators {
            columns.push(accumulators(run, width, column)?);
        }
        RecordBatch::try_new(SchemaRef::clone(schema), columns).map_err(cannot_write)
    }

    fn keys(&self, run: &[FrozenShard]) -> Result<Vec<ArrayRef>, TaskError> {
        let width = self.layout.words + 1;
        if self.bigint {
            let keys = run.iter().flat_map(|shard| {
                let rows = (0_u32..).zip(rows_of(shard, width));
                rows.map(|(row, words)| (shard.null_row != Some(row)).then_some(words[0] as i64))
            });
            return Ok(vec![Arc::new(keys.collect::<Int64Array>())]);
        }
        let keys: Vec<&[u8]> = run
            .iter()
            .flat_map(|shard| rows_of(shard, width).map(|words| frozen_key(&shard.arena, words[0])))
            .collect();
        let types: Vec<DataType> = self.layout.keys.iter().map(|field| stored_type(field.data_type())).collect();
        decode(&keys, &types)
    }
}

fn rows_of(shard: &FrozenShard, width: usize) -> impl Iterator<Item = &[u64]> {
    shard.chunks.iter().flat_map(move |chunk| chunk.chunks_exact(width))
}

fn accumulators(run: &[FrozenShard], width: usize, column: &AccumulatorColumn) -> Result<ArrayRef, TaskError> {
    let words = || run.iter().flat_map(|shard| rows_of(shard, width)).map(|words| &words[1..]);
    let nulls = column.null_while_zero.map(|zero| words().map(|words| words[zero] != 0).collect::<NullBuffer>());
    let at = column.word;
    Ok(match &column.data_type {
        DataType::Int64 => Arc::new(Int64Array::new(words().map(|words| words[at] as i64).collect(), nulls)),
        DataType::Float64 => {
            Arc::new(Float64Array::new(words().map(|words| f64::from_bits(words[at])).collect(), nulls))
        }
        DataType::Decimal128(precision, scale) => {
            let values = words().map(|words| decimal_of(&words[at..at + 2])).collect();
            let array = Decimal128Array::new(values, nulls).with_precision_and_scale(*precision, *scale);
            Arc::new(array.map_err(cannot_write)?)
        }
        other => return Err(cannot_write(format!("an accumulator of type {other} has no stored form"))),
    })
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

/// The columns of the file.
pub(super) fn stored_schema(layout: &TableLayout) -> SchemaRef {
    let keys = layout.keys.iter().map(|field| Field::new(field.name(), stored_type(field.data_type()), true));
    let accumulators = layout
        .accumulators
        .iter()
        .map(|column| Field::new(&column.name, column.data_type.clone(), column.null_while_zero.is_some()));
    let group = Field::new(KEY_GROUP, DataType::UInt16, false);
    Arc::new(Schema::new(std::iter::once(group).chain(keys).chain(accumulators).collect::<Vec<_>>()))
}

fn cannot_write(error: impl Display) -> TaskError {
    TaskError::Internal(format!("keyed state cannot be written as Parquet: {error}"))
}

/// The second half of a snapshot of one table.
pub struct TableWriter {
    /// Name of the state within the operator.
    pub name: String,
    /// The table.
    pub table: FrozenTable,
}

impl SnapshotWriter for TableWriter {
    fn write(self: Box<Self>) -> Result<OperatorState, TaskError> {
        let rows = self.table.rows() as u64;
        if rows == 0 {
            return Ok(OperatorState::default());
        }
        let bytes = self.table.encode()?;
        let piece = KeyedPiece { name: self.name, key_groups: self.table.key_groups, rows, bytes };
        Ok(OperatorState { keyed: vec![piece], splits: Vec::new() })
    }
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
