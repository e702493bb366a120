//! Rows into messages.

use super::csv::{self, CsvOptions};
use super::raw::{BoundRaw, RawEncoder};
use super::{Format, debezium};
use crate::json::encode::{BoundEncoder, JsonEncoder};
use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use sluice_engine::batch::RowKind;

/// Writes some columns of a table in a format.
#[derive(Debug, Clone)]
pub(crate) enum RowEncoder {
    Json(JsonEncoder),
    Csv { options: CsvOptions, positions: Vec<usize> },
    Raw(RawEncoder),
    Debezium(JsonEncoder),
}

/// Writes the rows of one batch.
pub(crate) enum BoundRows<'a> {
    Json(BoundEncoder<'a>),
    /// All lines end to end, and where each ends.
    Csv {
        lines: Vec<u8>,
        ends: Vec<usize>,
    },
    Raw(BoundRaw),
    Debezium(BoundEncoder<'a>),
}

impl RowEncoder {
    pub(super) fn new(format: &Format, schema: &Schema, positions: &[usize]) -> Result<Self, String> {
        let not_json = |field: arrow::datatypes::Field| {
            format!("column '{}' of type {} cannot be written as JSON; cast it", field.name(), field.data_type())
        };
        Ok(match format {
            Format::Json(options) => {
                Self::Json(JsonEncoder::new(schema, positions, options.timestamp_format).map_err(not_json)?)
            }
            Format::Csv(options) => {
                csv::check(&schema.project(positions).map_err(|error| error.to_string())?)?;
                Self::Csv { options: options.clone(), positions: positions.to_vec() }
            }
            Format::Raw(options) => Self::Raw(RawEncoder::new(schema, positions, *options)?),
            Format::DebeziumJson(options) => {
                debezium::check_written(*options)?;
                Self::Debezium(debezium::encoder(schema, positions, *options).map_err(not_json)?)
            }
        })
    }

    /// Binds the encoder to a batch.
    ///
    /// # Errors
    /// The type of a column that is none of those of [`Format::encoder`].
    pub(crate) fn bind(&self, rows: &RecordBatch) -> Result<BoundRows<'_>, DataType> {
        Ok(match self {
            Self::Json(encoder) => BoundRows::Json(encoder.bind(rows)?),
            Self::Csv { options, positions } => lines(options, positions, rows)?,
            Self::Raw(encoder) => BoundRows::Raw(encoder.bind(rows)),
            Self::Debezium(encoder) => BoundRows::Debezium(encoder.bind(rows)?),
        })
    }
}

fn lines<'a>(options: &CsvOptions, positions: &[usize], rows: &RecordBatch) -> Result<BoundRows<'a>, DataType> {
    let written = rows.project(positions).map_err(|_| DataType::Null)?;
    let (lines, ends) = options.lines(&written)?;
    Ok(BoundRows::Csv { lines, ends })
}

impl BoundRows<'_> {
    /// Appends a row; whether there is a value, which a raw NULL is not.
    pub(crate) fn write(&self, row: usize, kind: RowKind, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Json(rows) => rows.write(row, out),
            Self::Csv { lines, ends } => {
                let start = row.checked_sub(1).map_or(0, |before| ends[before]);
                out.extend_from_slice(&lines[start..ends[row]]);
            }
            Self::Raw(rows) => return rows.write(row, out),
            Self::Debezium(rows) => debezium::write(rows, row, kind, out),
        }
        true
    }
}
