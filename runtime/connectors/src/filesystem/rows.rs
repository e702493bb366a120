//! What is in a split, as batches of the table's columns, each with the position behind it.
//!
//! Lines: one that begins in a split's range belongs to it, wherever it ends. Parquet: row groups are read one after the
//! other, pages as they are needed.

use super::layout::File;
use super::options::{FileFormat, FileOptions};
use super::patience::patiently_read;
use super::splits::{Progress, Split};
use super::store_error;
use crate::format::records::record_length;
use crate::format::{BadMessage, Decoder, Format, OnBad};
use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::SchemaRef;
use bytes::{Buf, Bytes};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_storage::ObjectStore;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Bytes of a file that are fetched at once.
const CHUNK: u64 = 4 << 20;

/// Rows of a batch.
const ROWS: usize = 4096;

/// Where the bytes of a table lie, and the thread's way of waiting for them.
pub(super) struct Files {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) runtime: Arc<Runtime>,
    pub(super) options: Arc<FileOptions>,
}

/// The longest record of a file of lines.
const LONGEST: usize = 64 << 20;

/// Rows, and how many records before them were passed over.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) batch: Option<Batch>,
    pub(super) malformed: u64,
}

/// Takes rows and the progress behind them; says whether more is wanted.
pub(super) type Take<'a> = &'a mut dyn FnMut(Piece, Progress) -> bool;

impl Files {
    /// Reads a split from its progress to its end, or until no more is wanted.
    pub(super) fn read(&self, split: &Split, take: Take<'_>) -> Result<(), TaskError> {
        let path = format!("{}/{}", self.store.uri(), split.file);
        let (size, modified) = self.facts(&split.file)?;
        let file = File { path, key: split.file.clone(), size, modified };
        match &self.options.format {
            FileFormat::Lines(format) => self.read_lines((split, &file), format, take),
            FileFormat::Parquet => self.read_columns((split, &file), take),
        }
    }

    /// A file's size and the time of its last change, where a column asks for them.
    fn facts(&self, file: &str) -> Result<(Option<u64>, Option<i64>), TaskError> {
        let layout = &self.options.layout;
        let failed = |failure| store_error(&failure);
        let mut facts = (None, None);
        if layout.wants_size() {
            facts.0 = self.runtime.block_on(patiently_read(async || self.store.head(file).await)).map_err(failed)?;
        }
        if layout.wants_modification_time() {
            let modified = self.runtime.block_on(patiently_read(async || self.store.modified(file).await));
            facts.1 = modified.map_err(failed)?.and_then(|time| i64::try_from(time.0).ok());
        }
        Ok(facts)
    }

    fn fetch(&self, file: &str, from: u64, to: u64) -> Result<Bytes, TaskError> {
        let fetched = self.runtime.block_on(patiently_read(async || self.store.get_range(file, from..to).await));
        fetched.map_err(|failure| store_error(&failure))?.ok_or_else(|| self.vanished(file))
    }

    fn vanished(&self, file: &str) -> TaskError {
        TaskError::Unavailable(format!(
            "{}/{file} of table '{}' was there when the job found it, and is gone: bring it back, or start without this state",
            self.store.uri(),
            self.options.table
        ))
    }

    fn unreadable(&self, file: &str, what: &dyn std::fmt::Display) -> TaskError {
        TaskError::BadData(format!(
            "{}/{file} of table '{}' cannot be read: {what}",
            self.store.uri(),
            self.options.table
        ))
    }

    // --- Lines ------------------------------------------------------------------------------------------------

    fn read_lines(&self, (split, file): (&Split, &File), format: &Format, take: Take<'_>) -> Result<(), TaskError> {
        let passes_over = format.ignores_errors() || self.options.dead_letters.are_wanted();
        let on_bad = if passes_over { OnBad::PassOver } else { OnBad::Fail };
        let decoder = format.decoder(&self.options.layout.read, &self.options.layout.declared, on_bad);
        let mut decoder = decoder.map_err(|what| self.unreadable(&split.file, &what))?;
        // A line that began before the range is read by the split before.
        let (mut at, mut skips) = match split.progress.position {
            Some(position) => (position, false),
            None => (split.start.saturating_sub(1), split.start > 0),
        };
        let (mut rest, mut fetched_to, mut rows) = (Vec::<u8>::new(), at, 0);
        let mut is_last = false;
        while !is_last && at < split.end {
            let chunk = self.fetch(&split.file, fetched_to, fetched_to + CHUNK)?;
            fetched_to += chunk.len() as u64;
            is_last = (chunk.len() as u64) < CHUNK;
            rest.extend_from_slice(&chunk);
            let mut begun = 0;
            while at < split.end {
                let Some(length) = length_of_first(format, &rest[begun..], is_last) else { break };
                let line = without_end(&rest[begun..begun + length]);
                if !skips && !is_blank(format, line) {
                    decoder.push((0, i64::try_from(at).unwrap_or(i64::MAX)), line);
                    rows += 1;
                }
                skips = false;
                begun += length;
                at += length as u64;
                if rows == ROWS {
                    rows = 0;
                    let piece = self.finish(&mut decoder, (split, file), format)?;
                    if !take(piece, Progress { position: Some(at), finished: false }) {
                        return Ok(());
                    }
                }
            }
            rest.drain(..begun);
            if rest.len() > LONGEST {
                let what =
                    format!("the record at byte {at} is longer than {} MB: is a quote not closed?", LONGEST >> 20);
                return Err(self.unreadable(&split.file, &what));
            }
        }
        let piece = self.finish(&mut decoder, (split, file), format)?;
        take(piece, Progress { position: Some(at), finished: true });
        Ok(())
    }

    fn finish(
        &self,
        decoder: &mut Decoder,
        (split, file): (&Split, &File),
        format: &Format,
    ) -> Result<Piece, TaskError> {
        let made = decoder.finish().map_err(|bad| {
            let (byte, excerpt) = (bad.place.1, bad.excerpt());
            let advice = format.advice("");
            self.unreadable(&split.file, &format!("the line at byte {byte}: {}: {excerpt}. {advice}", bad.reason))
        })?;
        let malformed = made.bad.len() as u64;
        let bad: Vec<_> = made.bad.into_iter().map(|bad| (format!("{}@{}", file.path, bad.place.1), bad)).collect();
        Ok(Piece { batch: self.complete(made.batch, &bad, (split, file))?, malformed })
    }

    /// Rows of a file as those that the source hands out.
    fn complete(
        &self,
        rows: Option<Batch>,
        bad: &[(String, BadMessage)],
        (split, file): (&Split, &File),
    ) -> Result<Option<Batch>, TaskError> {
        let FileOptions { layout, dead_letters, .. } = self.options.as_ref();
        let rows = rows.map(|rows| layout.complete(rows, file)).transpose();
        let joined = rows.and_then(|rows| dead_letters.join(rows, bad));
        joined.map_err(|error| self.unreadable(&split.file, &error))
    }

    // --- Columns ----------------------------------------------------------------------------------------------

    fn read_columns(&self, (split, file): (&Split, &File), take: Take<'_>) -> Result<(), TaskError> {
        let unreadable = |error: &dyn std::fmt::Display| self.unreadable(&split.file, error);
        let object = Object { files: Arc::new(self.share()), file: split.file.clone(), size: split.end };
        let builder = ParquetRecordBatchReaderBuilder::try_new(object).map_err(|error| unreadable(&error))?;
        let mut position = split.progress.position.unwrap_or(0);
        let (mask, names) = self.projection(&builder, split)?;
        let offset = usize::try_from(position).unwrap_or(usize::MAX);
        let reader = builder.with_projection(mask).with_batch_size(ROWS).with_offset(offset).build();
        for batch in reader.map_err(|error| unreadable(&error))? {
            let batch = batch.map_err(|error| unreadable(&error))?;
            position += batch.num_rows() as u64;
            let rows = to_schema(&batch, &names, &self.options.schema).map_err(|what| unreadable(&what))?;
            let batch = self.complete(Some(Batch::inserts(rows)), &[], (split, file))?;
            let piece = Piece { batch, malformed: 0 };
            if !take(piece, Progress { position: Some(position), finished: false }) {
                return Ok(());
            }
        }
        take(Piece::default(), Progress { position: Some(position), finished: true });
        Ok(())
    }

    /// The columns of the table that the file must have, by name.
    fn projection(
        &self,
        builder: &ParquetRecordBatchReaderBuilder<Object>,
        split: &Split,
    ) -> Result<(ProjectionMask, Vec<String>), TaskError> {
        let found: Vec<String> = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
        let names: Vec<String> = self.options.schema.fields().iter().map(|field| field.name().clone()).collect();
        if let Some(missing) = names.iter().find(|name| !found.contains(name)) {
            let columns = found.join(", ");
            return Err(
                self.unreadable(&split.file, &format!("it has no column '{missing}'; its columns are {columns}"))
            );
        }
        let roots = found.iter().enumerate().filter(|(_, name)| names.contains(name)).map(|(index, _)| index);
        Ok((ProjectionMask::roots(builder.parquet_schema(), roots), names))
    }

    fn share(&self) -> Self {
        let Self { store, runtime, options } = self;
        Self { store: Arc::clone(store), runtime: Arc::clone(runtime), options: Arc::clone(options) }
    }
}

/// The length of the first record with its end; of the last one also without.
fn length_of_first(format: &Format, bytes: &[u8], is_last: bool) -> Option<usize> {
    match format {
        Format::Csv(options) => record_length(bytes, options, is_last),
        _ => line_length(bytes, is_last),
    }
}

/// Whether it is no record. Of raw lines an empty one is a value.
fn is_blank(format: &Format, line: &[u8]) -> bool {
    match format {
        Format::Raw(_) => false,
        Format::Csv(_) => line.is_empty(),
        Format::Json(_) | Format::DebeziumJson(_) => line.trim_ascii().is_empty(),
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The length of the first line with its end; of the last one also without.
fn line_length(bytes: &[u8], is_last: bool) -> Option<usize> {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => Some(end + 1),
        None => (is_last && !bytes.is_empty()).then_some(bytes.len()),
    }
}

fn to_schema(batch: &RecordBatch, names: &[String], schema: &SchemaRef) -> Result<RecordBatch, String> {
    let column = |(name, field): (&String, &arrow::datatypes::FieldRef)| {
        let column = batch.column_by_name(name).ok_or_else(|| format!("column '{name}' is missing"))?;
        cast(column, field.data_type()).map_err(|error| format!("column '{name}': {error}"))
    };
    let columns = names.iter().zip(schema.fields()).map(column).collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(schema.clone(), columns).map_err(|error| error.to_string())
}

/// A Parquet file that is fetched piece by piece.
struct Object {
    files: Arc<Files>,
    file: String,
    size: u64,
}

impl Object {
    fn get(&self, from: u64, to: u64) -> Result<Bytes, ParquetError> {
        self.files.fetch(&self.file, from, to).map_err(|error| ParquetError::External(Box::new(error)))
    }
}

impl Length for Object {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Object {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.get(start, self.size.min(start + CHUNK))?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.get(start, start + length as u64)
    }
}
