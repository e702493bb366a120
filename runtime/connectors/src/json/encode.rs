//! Rows into messages, laid out as Flink's JSON format does: all columns in order, nulls written, timestamps in the
//! chosen standard, bytes in base64.

use super::timestamp::{self, TimestampFormat};
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{DataType, Decimal128Type, Field, Schema, TimeUnit};
use arrow::datatypes::{
    Date32Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

/// Writes some columns of a table.
#[derive(Debug, Clone)]
pub(crate) struct JsonEncoder {
    columns: Vec<EncodedColumn>,
    format: TimestampFormat,
}

#[derive(Debug, Clone)]
struct EncodedColumn {
    position: usize,
    /// `"name":`, escaped.
    name: Vec<u8>,
}

impl JsonEncoder {
    /// Writes the columns at these positions, in this order.
    ///
    /// # Errors
    /// The first column whose type cannot be written.
    pub(crate) fn new(schema: &Schema, positions: &[usize], format: TimestampFormat) -> Result<Self, Field> {
        let column = |&position: &usize| {
            let field = schema.field(position);
            if !is_supported(field.data_type()) {
                return Err(field.clone());
            }
            let mut name = Vec::new();
            push_json(&mut name, field.name());
            name.push(b':');
            Ok(EncodedColumn { position, name })
        };
        Ok(Self { columns: positions.iter().map(column).collect::<Result<_, _>>()?, format })
    }

    /// Binds the encoder to a batch.
    ///
    /// # Errors
    /// The type of a column that is none of those of [`JsonEncoder::new`].
    pub(crate) fn bind(&self, rows: &RecordBatch) -> Result<BoundEncoder<'_>, DataType> {
        let cells = self.columns.iter().map(|column| {
            let array = rows.column(column.position);
            Cells::of(array).ok_or_else(|| array.data_type().clone()).map(|cells| (column.name.as_slice(), cells))
        });
        Ok(BoundEncoder { cells: cells.collect::<Result<_, _>>()?, format: self.format })
    }
}

/// Writes the rows of one batch.
pub(crate) struct BoundEncoder<'a> {
    cells: Vec<(&'a [u8], Cells)>,
    format: TimestampFormat,
}

impl BoundEncoder<'_> {
    /// Appends a row as an object.
    pub(crate) fn write(&self, row: usize, out: &mut Vec<u8>) {
        out.push(b'{');
        for (position, (name, cells)) in self.cells.iter().enumerate() {
            if position > 0 {
                out.push(b',');
            }
            out.extend_from_slice(name);
            cells.write(row, self.format, out);
        }
        out.push(b'}');
    }
}

fn is_supported(data_type: &DataType) -> bool {
    use DataType::{Binary, Boolean, Date32, Decimal128, Float32, Float64, Int8, Int16, Int32, Int64};
    use DataType::{Time32, Time64, Timestamp, Utf8};
    if let DataType::List(element) = data_type {
        return is_supported(element.data_type());
    }
    matches!(
        data_type,
        Int8 | Int16
            | Int32
            | Int64
            | Float32
            | Float64
            | Boolean
            | Utf8
            | Binary
            | Decimal128(..)
            | Date32
            | Time32(_)
            | Time64(_)
            | Timestamp(..)
    )
}

/// A column by its type.
enum Cells {
    Int8(Int8Array),
    Int16(Int16Array),
    Int32(Int32Array),
    Int64(Int64Array),
    Float32(Float32Array),
    Float64(Float64Array),
    Boolean(BooleanArray),
    Text(StringArray),
    Binary(BinaryArray),
    Decimal(Decimal128Array),
    Date(ArrayRef, ScalarBuffer<i32>),
    /// Values of 32 bits and how many nanoseconds they count.
    Time32(ArrayRef, ScalarBuffer<i32>, i64),
    /// Values of 64 bits and how many nanoseconds they count.
    Time64(ArrayRef, ScalarBuffer<i64>, i64),
    /// Values, how many nanoseconds they count, and whether they are instants, which are written with a `Z`.
    Timestamp(ArrayRef, ScalarBuffer<i64>, i128, bool),
    /// Lists, and all their elements.
    List(ListArray, Box<Cells>),
}

impl Cells {
    fn of(array: &ArrayRef) -> Option<Self> {
        let kept = array.clone();
        Some(match array.data_type() {
            DataType::Int8 => Self::Int8(array.as_primitive::<Int8Type>().clone()),
            DataType::Int16 => Self::Int16(array.as_primitive::<Int16Type>().clone()),
            DataType::Int32 => Self::Int32(array.as_primitive::<Int32Type>().clone()),
            DataType::Int64 => Self::Int64(array.as_primitive::<Int64Type>().clone()),
            DataType::Float32 => Self::Float32(array.as_primitive::<Float32Type>().clone()),
            DataType::Float64 => Self::Float64(array.as_primitive::<Float64Type>().clone()),
            DataType::Boolean => Self::Boolean(array.as_boolean().clone()),
            DataType::Utf8 => Self::Text(array.as_string::<i32>().clone()),
            DataType::Binary => Self::Binary(array.as_binary::<i32>().clone()),
            DataType::Decimal128(..) => Self::Decimal(array.as_primitive::<Decimal128Type>().clone()),
            DataType::Date32 => Self::Date(kept, array.as_primitive::<Date32Type>().values().clone()),
            DataType::Time32(TimeUnit::Second) => {
                Self::Time32(kept, array.as_primitive::<Time32SecondType>().values().clone(), 1_000_000_000)
            }
            DataType::Time32(_) => {
                Self::Time32(kept, array.as_primitive::<Time32MillisecondType>().values().clone(), 1_000_000)
            }
            DataType::Time64(TimeUnit::Microsecond) => {
                Self::Time64(kept, array.as_primitive::<Time64MicrosecondType>().values().clone(), 1000)
            }
            DataType::Time64(_) => Self::Time64(kept, array.as_primitive::<Time64NanosecondType>().values().clone(), 1),
            DataType::Timestamp(unit, zone) => Self::timestamps(array, *unit, zone.is_some()),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                Self::List(list.clone(), Box::new(Self::of(list.values())?))
            }
            _ => return None,
        })
    }

    fn timestamps(array: &ArrayRef, unit: TimeUnit, zoned: bool) -> Self {
        let (values, nanos) = match unit {
            TimeUnit::Second => (array.as_primitive::<TimestampSecondType>().values(), 1_000_000_000),
            TimeUnit::Millisecond => (array.as_primitive::<TimestampMillisecondType>().values(), 1_000_000),
            TimeUnit::Microsecond => (array.as_primitive::<TimestampMicrosecondType>().values(), 1000),
            TimeUnit::Nanosecond => (array.as_primitive::<TimestampNanosecondType>().values(), 1),
        };
        Self::Timestamp(array.clone(), values.clone(), nanos, zoned)
    }

    fn array(&self) -> &dyn Array {
        match self {
            Self::Int8(array) => array,
            Self::Int16(array) => array,
            Self::Int32(array) => array,
            Self::Int64(array) => array,
            Self::Float32(array) => array,
            Self::Float64(array) => array,
            Self::Boolean(array) => array,
            Self::Text(array) => array,
            Self::Binary(array) => array,
            Self::Decimal(array) => array,
            Self::List(array, _) => array,
            Self::Date(array, _) | Self::Time32(array, ..) | Self::Time64(array, ..) | Self::Timestamp(array, ..) => {
                array.as_ref()
            }
        }
    }

    fn write(&self, row: usize, format: TimestampFormat, out: &mut Vec<u8>) {
        if self.array().is_null(row) {
            out.extend_from_slice(b"null");
            return;
        }
        match self {
            Self::Int8(array) => push_json(out, &array.value(row)),
            Self::Int16(array) => push_json(out, &array.value(row)),
            Self::Int32(array) => push_json(out, &array.value(row)),
            Self::Int64(array) => push_json(out, &array.value(row)),
            Self::Float32(array) => push_float(out, array.value(row), array.value(row).is_finite()),
            Self::Float64(array) => push_float(out, array.value(row), array.value(row).is_finite()),
            Self::Boolean(array) => push_json(out, &array.value(row)),
            Self::Text(array) => push_json(out, array.value(row)),
            Self::Binary(array) => push_json(out, &STANDARD.encode(array.value(row))),
            Self::Decimal(array) => out.extend_from_slice(array.value_as_string(row).as_bytes()),
            Self::Date(_, values) => quoted(out, |out| timestamp::write_date(out, i64::from(values[row]))),
            Self::Time32(_, values, nanos) => {
                quoted(out, |out| timestamp::write_time(out, i64::from(values[row]) * nanos));
            }
            Self::List(list, elements) => {
                let offsets = list.value_offsets();
                let range = offsets[row].unsigned_abs() as usize..offsets[row + 1].unsigned_abs() as usize;
                out.push(b'[');
                for element in range.clone() {
                    if element > range.start {
                        out.push(b',');
                    }
                    elements.write(element, format, out);
                }
                out.push(b']');
            }
            Self::Time64(_, values, nanos) => quoted(out, |out| timestamp::write_time(out, values[row] * nanos)),
            Self::Timestamp(_, values, nanos, zoned) => quoted(out, |out| {
                timestamp::write(out, i128::from(values[row]) * nanos, format);
                out.extend_from_slice(if *zoned { b"Z" } else { b"" });
            }),
        }
    }
}

fn quoted(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(b'"');
    write(out);
    out.push(b'"');
}

/// A number; what JSON has no number for is written as text: `"NaN"`, `"Infinity"`, `"-Infinity"`.
fn push_float<T: Serialize + Into<f64> + Copy>(out: &mut Vec<u8>, value: T, finite: bool) {
    if finite {
        push_json(out, &value);
        return;
    }
    let value: f64 = value.into();
    let text = if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    };
    push_json(out, text);
}

fn push_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Numbers, booleans and strings always serialise, and writing to a Vec cannot fail.
    let _ = serde_json::to_writer(out, value);
}
