//! Rows into the bytes of one file, handed out as they come so that no file is in memory as a whole.

use super::options::{FileOptions, Format};
use crate::json::encode::JsonEncoder;
use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use sluice_engine::error::TaskError;

/// A row group of Parquet is written out when it has come to this many bytes in memory.
const ROW_GROUP: usize = 32 << 20;

/// As in JSON: `2026-11-30 10:00:00.5`.
const TIMESTAMP: &str = "%Y-%m-%d %H:%M:%S%.f";

/// The encoder of one file.
pub(super) enum Encoder {
    Json { rows: JsonEncoder, out: Vec<u8> },
    Csv { delimiter: u8, out: Vec<u8> },
    Parquet { file: Box<ArrowWriter<Vec<u8>>>, written: usize },
}

impl Encoder {
    pub(super) fn new(options: &FileOptions) -> Result<Self, TaskError> {
        let FileOptions { schema, format, table, .. } = options;
        match format {
            Format::Json(json) => {
                let positions: Vec<usize> = (0..schema.fields().len()).collect();
                let rows = JsonEncoder::new(schema, &positions, json.timestamp_format).map_err(|field| {
                    let kind = field.data_type();
                    TaskError::BadProgram(format!(
                        "table '{table}': column '{}' of type {kind} is not JSON",
                        field.name()
                    ))
                })?;
                Ok(Self::Json { rows, out: Vec::new() })
            }
            Format::Csv { delimiter } => Ok(Self::Csv { delimiter: *delimiter, out: Vec::new() }),
            Format::Parquet => {
                let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
                let file = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties));
                let file = Box::new(file.map_err(|error| unwritable(options, &error))?);
                Ok(Self::Parquet { file, written: 0 })
            }
        }
    }

    pub(super) fn write(&mut self, rows: &RecordBatch, options: &FileOptions) -> Result<(), TaskError> {
        match self {
            Self::Json { rows: encoder, out } => {
                let bound = encoder.bind(rows).map_err(|kind| unwritable(options, &kind))?;
                for row in 0..rows.num_rows() {
                    bound.write(row, out);
                    out.push(b'\n');
                }
                Ok(())
            }
            Self::Csv { delimiter, out } => {
                let writer = arrow_csv::WriterBuilder::new().with_header(false).with_delimiter(*delimiter);
                let writer = writer.with_timestamp_format(TIMESTAMP.to_owned());
                let mut writer = writer.with_timestamp_tz_format(format!("{TIMESTAMP}Z")).build(out);
                writer.write(rows).map_err(|error| unwritable(options, &error))
            }
            Self::Parquet { file, .. } => {
                let same =
                    rows.clone().with_schema(options.schema.clone()).map_err(|error| unwritable(options, &error))?;
                file.write(&same).map_err(|error| unwritable(options, &error))?;
                if file.in_progress_size() >= ROW_GROUP {
                    file.flush().map_err(|error| unwritable(options, &error))?;
                }
                Ok(())
            }
        }
    }

    /// What is ready to be stored, leaving nothing.
    pub(super) fn take(&mut self) -> Vec<u8> {
        match self {
            Self::Json { out, .. } | Self::Csv { out, .. } => std::mem::take(out),
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
            Self::Json { out, .. } | Self::Csv { out, .. } => out.len(),
            Self::Parquet { file, .. } => file.inner().len(),
        }
    }

    /// Bytes of the row group in memory.
    pub(super) fn unwritten(&self) -> usize {
        match self {
            Self::Json { .. } | Self::Csv { .. } => 0,
            Self::Parquet { file, .. } => file.in_progress_size(),
        }
    }

    /// The rest of the file.
    pub(super) fn finish(self, options: &FileOptions) -> Result<Vec<u8>, TaskError> {
        match self {
            Self::Json { out, .. } | Self::Csv { out, .. } => Ok(out),
            Self::Parquet { file, .. } => (*file).into_inner().map_err(|error| unwritable(options, &error)),
        }
    }
}

fn unwritable(options: &FileOptions, error: &dyn std::fmt::Display) -> TaskError {
    TaskError::Internal(format!("rows of table '{}' cannot be written to a file: {error}", options.table))
}
