//! The format `raw`: a message is the value of the only column, text in UTF-8, bytes, or a number of fixed width.

use super::messages::{Collected, MessageFormat, Rows};
use crate::options::Options;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array,
    Int64Array, RecordBatch, StringArray,
};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema, SchemaRef,
};
use sluice_engine::table::TableError;
use std::sync::Arc;

/// How numbers stand in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawOptions {
    big_endian: bool,
}

/// Reads what stands under a prefix such as `raw` or `key.raw`.
pub(super) fn read(options: &Options<'_>, prefix: &str) -> Result<RawOptions, TableError> {
    options.choice(&format!("{prefix}.charset"), &[("UTF-8", ())])?;
    let endianness = [("big-endian", true), ("little-endian", false)];
    let big_endian = options.choice(&format!("{prefix}.endianness"), &endianness)?.unwrap_or(true);
    Ok(RawOptions { big_endian })
}

/// The only column must be one that bytes can hold.
fn check(declared: &Schema) -> Result<(), String> {
    use DataType::{Binary, Boolean, Float32, Float64, Int8, Int16, Int32, Int64, Utf8};
    match declared.fields().as_ref() {
        [field]
            if matches!(
                field.data_type(),
                Utf8 | Binary | Boolean | Int8 | Int16 | Int32 | Int64 | Float32 | Float64
            ) =>
        {
            Ok(())
        }
        fields => {
            let found: Vec<_> = fields.iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
            Err(format!(
                "the format 'raw' makes a record the value of one column of type STRING, BYTES, BOOLEAN or a number, but the \
                 columns are {}; declare one, or use another format",
                found.join(", ")
            ))
        }
    }
}

/// Decodes values.
pub(crate) struct RawMessages {
    schema: SchemaRef,
    declared: SchemaRef,
    options: RawOptions,
}

impl RawMessages {
    pub(super) fn new(schema: SchemaRef, declared: &SchemaRef, options: RawOptions) -> Result<Self, String> {
        check(declared)?;
        Ok(Self { schema, declared: Arc::clone(declared), options })
    }

    fn rows<'a>(&self, payloads: impl Iterator<Item = &'a [u8]>) -> Result<RecordBatch, String> {
        let column = values(self.declared.field(0).data_type(), self.options, payloads)?;
        let rows = RecordBatch::try_new(Arc::clone(&self.declared), vec![column]);
        rows.map_err(|error| error.to_string())
    }
}

fn values<'a>(
    data_type: &DataType,
    options: RawOptions,
    payloads: impl Iterator<Item = &'a [u8]>,
) -> Result<ArrayRef, String> {
    /// The values of numbers.
    macro_rules! numbers {
        ($array:ty, $number:ty) => {{
            let number = |payload: &[u8]| {
                let width = size_of::<$number>();
                let bytes = payload
                    .try_into()
                    .map_err(|_| format!("it has {} bytes, where {width} were expected", payload.len()))?;
                let big = options.big_endian;
                Ok::<_, String>(if big { <$number>::from_be_bytes(bytes) } else { <$number>::from_le_bytes(bytes) })
            };
            Arc::new(<$array>::from(payloads.map(number).collect::<Result<Vec<_>, _>>()?)) as ArrayRef
        }};
    }
    Ok(match data_type {
        DataType::Utf8 => {
            let text = |payload| std::str::from_utf8(payload).map_err(|error| format!("it is no UTF-8: {error}"));
            Arc::new(StringArray::from_iter_values(payloads.map(text).collect::<Result<Vec<_>, _>>()?))
        }
        DataType::Binary => Arc::new(BinaryArray::from_iter_values(payloads)),
        DataType::Boolean => {
            let is_set = |payload: &[u8]| match payload {
                [byte] => Ok(*byte != 0),
                _ => Err(format!("it has {} bytes, where 1 was expected", payload.len())),
            };
            Arc::new(BooleanArray::from(payloads.map(is_set).collect::<Result<Vec<_>, _>>()?))
        }
        DataType::Int8 => numbers!(Int8Array, i8),
        DataType::Int16 => numbers!(Int16Array, i16),
        DataType::Int32 => numbers!(Int32Array, i32),
        DataType::Int64 => numbers!(Int64Array, i64),
        DataType::Float32 => numbers!(Float32Array, f32),
        DataType::Float64 => numbers!(Float64Array, f64),
        other => return Err(format!("a column of type {other} cannot be read from raw bytes")),
    })
}

impl MessageFormat for RawMessages {
    fn take(&mut self, _: &[u8], _: usize) -> bool {
        true
    }

    fn flush(&mut self, messages: &Collected) -> Option<RecordBatch> {
        self.rows(messages.payloads()).ok()
    }

    fn alone(&self, payload: &[u8]) -> Result<RecordBatch, String> {
        self.rows(std::iter::once(payload))
    }

    /// The only column, or none of it.
    fn convert(&self, rows: &RecordBatch) -> Result<Rows, String> {
        let place = |field: &Arc<arrow::datatypes::Field>| self.declared.index_of(field.name());
        let places: Result<Vec<usize>, _> = self.schema.fields().iter().map(place).collect();
        let rows = places.and_then(|places| rows.project(&places)).map_err(|error| error.to_string())?;
        Ok(Rows { rows, kinds: None, messages: None })
    }

    fn clear(&mut self) {}
}

/// Writes one column as it is.
#[derive(Debug, Clone)]
pub(crate) struct RawEncoder {
    position: usize,
    options: RawOptions,
}

impl RawEncoder {
    pub(super) fn new(schema: &Schema, positions: &[usize], options: RawOptions) -> Result<Self, String> {
        let written = schema.project(positions).map_err(|error| error.to_string())?;
        check(&written)?;
        Ok(Self { position: positions[0], options })
    }

    pub(super) fn bind(&self, rows: &RecordBatch) -> BoundRaw {
        BoundRaw { column: Arc::clone(rows.column(self.position)), options: self.options }
    }
}

/// Writes the values of one batch.
pub(crate) struct BoundRaw {
    column: ArrayRef,
    options: RawOptions,
}

impl BoundRaw {
    /// Appends the value; whether there is one.
    pub(super) fn write(&self, row: usize, out: &mut Vec<u8>) -> bool {
        let column = &self.column;
        if column.is_null(row) {
            return false;
        }
        /// The bytes of a number.
        macro_rules! number {
            ($kind:ty) => {{
                let value = column.as_primitive::<$kind>().value(row);
                let bytes = if self.options.big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
                out.extend_from_slice(&bytes);
            }};
        }
        match column.data_type() {
            DataType::Utf8 => out.extend_from_slice(column.as_string::<i32>().value(row).as_bytes()),
            DataType::Binary => out.extend_from_slice(column.as_binary::<i32>().value(row)),
            DataType::Boolean => out.push(u8::from(column.as_boolean().value(row))),
            DataType::Int8 => number!(Int8Type),
            DataType::Int16 => number!(Int16Type),
            DataType::Int32 => number!(Int32Type),
            DataType::Int64 => number!(Int64Type),
            DataType::Float32 => number!(Float32Type),
            DataType::Float64 => number!(Float64Type),
            // Refused when the encoder was made.
            _ => return false,
        }
        true
    }
}
