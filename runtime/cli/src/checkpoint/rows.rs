//! Keyed state as rows of text, read by the engine's own reader.

use super::place::Place;
use crate::error::CommandError;
use arrow::array::RecordBatch;
use arrow::datatypes::FieldRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bytes::Bytes;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaDataReader;
use sluice_engine::state::file::DELETED;
use sluice_engine::state::merged::MergedState;
use sluice_protocol::state::{Checksum, KeyedStateHandle, KeyedStateKind, StateData};

/// How much of a file's end is read first: few have more columns and parts than this describes.
const FOOTER: u64 = 64 * 1024;

/// Rows with the names of their columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Names.
    pub(crate) columns: Vec<String>,
    /// Cells.
    pub(crate) rows: Vec<Vec<String>>,
}

/// Reads up to `limit` rows of one state, deltas laid over the files before them; `directory` is the checkpoint's.
pub(crate) async fn read_rows<'a>(
    place: &Place,
    directory: &str,
    handles: impl DoubleEndedIterator<Item = &'a KeyedStateHandle>,
    limit: usize,
) -> Result<Rows, CommandError> {
    let (mut table, mut merged) = (Rows::default(), MergedState::default());
    for handle in handles.rev() {
        let is_delta = handle.kind == KeyedStateKind::Delta;
        if table.rows.len() >= limit && !is_delta {
            continue;
        }
        let (source, bytes) = fetch(place, directory, handle).await?;
        let wanted = limit.saturating_sub(table.rows.len());
        decode(&bytes, (&mut merged, is_delta), wanted, &mut table)
            .map_err(|detail| CommandError::State { place: source, detail })?;
    }
    Ok(table)
}

/// All rows of one state as a restore would see them, in no order.
pub(crate) async fn read_batches<'a>(
    place: &Place,
    directory: &str,
    handles: impl DoubleEndedIterator<Item = &'a KeyedStateHandle>,
) -> Result<Vec<RecordBatch>, CommandError> {
    let (mut batches, mut merged) = (Vec::new(), MergedState::default());
    for handle in handles.rev() {
        let (place, bytes) = fetch(place, directory, handle).await?;
        let read = merged.read(&bytes, handle.kind == KeyedStateKind::Delta, usize::MAX);
        batches.extend(read.map_err(|error| CommandError::State { place, detail: error.to_string() })?);
    }
    Ok(batches)
}

/// The columns of a piece of state; of a file no more is read than its end, where they stand.
pub(crate) async fn read_columns(
    place: &Place,
    directory: &str,
    handle: &KeyedStateHandle,
) -> Result<Vec<FieldRef>, CommandError> {
    let data = handle.data.resolve(directory);
    let (uri, size) = match &data {
        StateData::Inline { bytes } => (format!("{directory}/_metadata"), bytes.len() as u64),
        StateData::File { path, size, .. } => (path.clone(), *size),
    };
    let unreadable = |detail: String| CommandError::State { place: uri.clone(), detail };
    let mut reader = ParquetMetaDataReader::new();
    let mut length = size.min(FOOTER);
    loop {
        let end = match &data {
            StateData::Inline { bytes } => Some(Bytes::from(bytes.clone())),
            StateData::File { path, .. } => place.get_range(path, size - length..size).await?,
        };
        let end = end.ok_or_else(|| unreadable("it does not exist".to_owned()))?;
        match reader.try_parse_sized(&end, size) {
            Ok(()) => break,
            Err(ParquetError::NeedMoreData(more))
                if (length..=size).contains(&(more as u64)) && more as u64 != length =>
            {
                length = more as u64;
            }
            Err(error) => return Err(unreadable(error.to_string())),
        }
    }
    let columns = reader.finish().and_then(|metadata| {
        let file = metadata.file_metadata();
        parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())
    });
    let columns = columns.map_err(|error| unreadable(error.to_string()))?;
    Ok(columns.fields().iter().filter(|field| field.name() != DELETED).cloned().collect())
}

/// The bytes of a piece of state, and where they lie.
async fn fetch(place: &Place, directory: &str, handle: &KeyedStateHandle) -> Result<(String, Bytes), CommandError> {
    match handle.data.resolve(directory) {
        StateData::Inline { bytes } => Ok((format!("{directory}/_metadata"), Bytes::from(bytes))),
        StateData::File { path, checksum, .. } => {
            let unreadable = |detail: &str| CommandError::State { place: path.clone(), detail: detail.to_owned() };
            let bytes = place.get(&path).await?.ok_or_else(|| unreadable("it does not exist"))?;
            if checksum.is_some_and(|checksum| checksum != Checksum::of(&bytes)) {
                return Err(unreadable("its bytes are not those that were stored"));
            }
            Ok((path, bytes))
        }
    }
}

fn decode(
    bytes: &Bytes,
    (merged, is_delta): (&mut MergedState, bool),
    wanted: usize,
    table: &mut Rows,
) -> Result<(), String> {
    for batch in merged.read(bytes, is_delta, wanted).map_err(|error| error.to_string())? {
        add_rows(&batch, table).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Adds the rows of a batch as text.
pub(crate) fn add_rows(batch: &RecordBatch, table: &mut Rows) -> Result<(), arrow::error::ArrowError> {
    let options = FormatOptions::new().with_null("NULL");
    let formatters = batch
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column.as_ref(), &options))
        .collect::<Result<Vec<_>, _>>()?;
    table.columns = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
    for row in 0..batch.num_rows() {
        table.rows.push(formatters.iter().map(|formatter| formatter.value(row).to_string()).collect());
    }
    Ok(())
}
