//! Rows into the bytes of one file, handed out as they come so that no file is in memory as a whole.

use super::options::{FileFormat, FileOptions};
use crate::format::RowEncoder;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::error::TaskError;

/// A row group of Parquet is written out when it takes this many bytes of memory.
pub(super) const ROW_GROUP: usize = 32 << 20;

/// The encoder of one file.
pub(super) enum Encoder {
    Lines { rows: RowEncoder, out: Vec<u8> },
    Parquet { file: Box<ArrowWriter<Vec<u8>>>, written: usize },
}

impl Encoder {
    pub(super) fn new(options: &FileOptions) -> Result<Self, TaskError> {
        let FileOptions { schema, format, table, .. } = options;
        match format {
            FileFormat::Lines(format) => {
                let positions: Vec<usize> = (0..schema.fields().len()).collect();
                let rows = format.encoder(schema, &positions);
                let rows = rows.map_err(|what| TaskError::BadProgram(format!("table '{table}': {what}")))?;
                Ok(Self::Lines { rows, out: Vec::new() })
            }
            FileFormat::Parquet => {
                let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
                let file = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties));
                let file = Box::new(file.map_err(|error| unwritable(options, &error))?);
                Ok(Self::Parquet { file, written: 0 })
            }
        }
    }

    pub(super) fn write(&mut self, batch: &Batch, options: &FileOptions) -> Result<(), TaskError> {
        let rows = &batch.rows;
        match self {
            Self::Lines { rows: encoder, out } => {
                let bound = encoder.bind(rows).map_err(|kind| unwritable(options, &kind))?;
                for row in 0..rows.num_rows() {
                    let kind = batch.kinds.as_ref().and_then(|kinds| RowKind::from_number(kinds.value(row)));
                    // A raw NULL is an empty line.
                    let _ = bound.write(row, kind.unwrap_or(RowKind::Insert), out);
                    out.push(b'\n');
                }
                Ok(())
            }
            Self::Parquet { file, .. } => {
                let same =
                    rows.clone().with_schema(options.schema.clone()).map_err(|error| unwritable(options, &error))?;
                file.write(&same).map_err(|error| unwritable(options, &error))?;
                if file.memory_size() >= ROW_GROUP {
                    file.flush().map_err(|error| unwritable(options, &error))?;
                }
                Ok(())
            }
        }
    }

    /// What is ready to be stored, leaving nothing.
    pub(super) fn take(&mut self) -> Vec<u8> {
        match self {
            Self::Lines { out, .. } => std::mem::take(out),
            Self::Parquet { file, written } => {
                let bytes = std::mem::take(file.inner_mut());
                *written += bytes.len();
                bytes
            }
        }
    }

    /// Bytes that are ready.
    pub(super) fn ready(&self) -> usize {
        match self {
            Self::Lines { out, .. } => out.len(),
            Self::Parquet { file, .. } => file.inner().len(),
        }
    }

    /// Bytes that the rest is likely to come to in the file.
    pub(super) fn unwritten(&self) -> usize {
        match self {
            Self::Lines { .. } => 0,
            Self::Parquet { file, .. } => file.in_progress_size(),
        }
    }

    /// Bytes of memory: those of Parquet are more than come into the file, since every column has a dictionary.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Lines { out, .. } => out.capacity(),
            Self::Parquet { file, .. } => file.inner().capacity() + file.memory_size(),
        }
    }

    /// The rest of the file.
    pub(super) fn finish(self, options: &FileOptions) -> Result<Vec<u8>, TaskError> {
        match self {
            Self::Lines { out, .. } => Ok(out),
            Self::Parquet { file, .. } => (*file).into_inner().map_err(|error| unwritable(options, &error)),
        }
    }
}

fn unwritable(options: &FileOptions, error: &dyn std::fmt::Display) -> TaskError {
    TaskError::Internal(format!("rows of table '{}' cannot be written to a file: {error}", options.table))
}
