//! Keys of rows: their encoding and hash for a whole batch at once (protocol.md F3).
//!
//! Partitioning and keyed state both take the hash and the key group of a row from here, so they cannot differ.
//! One BIGINT column without nulls is hashed straight from its values; any other key is encoded row by row into
//! one buffer. No allocation per row, no dynamic call per row.

pub mod decode;
#[cfg(test)]
mod tests;

use crate::error::TaskError;
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, new_empty_array};
use arrow::array::{GenericByteArray, GenericByteViewArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    BinaryType, BinaryViewType, ByteArrayType, ByteViewType, DataType, Date32Type, Date64Type, Decimal128Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, LargeBinaryType, LargeUtf8Type,
    StringViewType, Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type, Utf8Type,
};
use sluice_protocol::key_group::{self, encode};

/// Keys of the rows of one batch; reused from batch to batch.
#[derive(Debug, Default)]
pub struct HashedKeys {
    /// The hash of each row's key.
    pub hashes: Vec<u64>,
    /// Encoded keys one after the other; empty when the key is one BIGINT column.
    pub encoded: Vec<u8>,
    /// Where each key begins in `encoded`, and the end of the last one; empty with `encoded`.
    pub offsets: Vec<u32>,
    /// Where a prefix of the key decides its key group: the hash of each row's prefix; else empty.
    groups: Vec<u64>,
    /// Bytes of each row's prefix; empty with `groups`.
    pub(crate) prefixes: Vec<u32>,
}

impl HashedKeys {
    /// The encoded key of a row.
    #[must_use]
    pub fn key(&self, row: usize) -> &[u8] {
        &self.encoded[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// What decides the key group of each row: the hash of the key, or of its prefix.
    #[must_use]
    pub const fn group_hashes(&self) -> &Vec<u64> {
        if self.groups.is_empty() { &self.hashes } else { &self.groups }
    }

    fn clear(&mut self) {
        self.hashes.clear();
        self.encoded.clear();
        self.offsets.clear();
        self.groups.clear();
        self.prefixes.clear();
    }

    /// Hashes the key of every row of one BIGINT column, without encoding it.
    pub fn hash_bigint(&mut self, column: &dyn Array) {
        let column = column.as_primitive::<Int64Type>();
        self.clear();
        match column.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => self.hashes.extend(column.values().iter().map(|value| key_group::hash(&encode::bigint(*value)))),
            Some(nulls) => self.hashes.extend(column.values().iter().zip(nulls).map(|(value, valid)| {
                if valid { key_group::hash(&encode::bigint(*value)) } else { key_group::hash(&[0]) }
            })),
        }
    }

    /// Encodes and hashes the key of every row. Without columns, every row has the same, empty key.
    ///
    /// # Errors
    /// When a column has a type that cannot be a key.
    pub fn encode(&mut self, rows: &RecordBatch, columns: &[usize]) -> Result<(), TaskError> {
        self.encode_with(rows, columns, |_, _| {})
    }

    /// As [`Self::encode`]; the first so many columns decide the key group.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_prefixed(&mut self, rows: &RecordBatch, columns: &[usize], prefix: usize) -> Result<(), TaskError> {
        let (mut groups, mut prefixes) = (std::mem::take(&mut self.groups), std::mem::take(&mut self.prefixes));
        groups.clear();
        prefixes.clear();
        let note = |written: &[u8], column: usize| {
            if column == prefix {
                groups.push(key_group::hash(written));
                prefixes.push(written.len() as u32);
            }
        };
        let encoded = self.encode_with(rows, columns, note);
        (self.groups, self.prefixes) = (groups, prefixes);
        encoded
    }

    /// `before` sees what was written of a key before each of its columns, and after the last.
    fn encode_with(
        &mut self,
        rows: &RecordBatch,
        columns: &[usize],
        mut before: impl FnMut(&[u8], usize),
    ) -> Result<(), TaskError> {
        self.clear();
        let columns = columns
            .iter()
            .map(|index| KeyColumn::new(rows.column(*index), rows.schema_ref().field(*index).name()))
            .collect::<Result<Vec<_>, _>>()?;
        self.offsets.push(0);
        for row in 0..rows.num_rows() {
            let start = self.encoded.len();
            for (number, column) in columns.iter().enumerate() {
                before(&self.encoded[start..], number);
                column.encode(row, &mut self.encoded);
            }
            before(&self.encoded[start..], columns.len());
            self.hashes.push(key_group::hash(&self.encoded[start..]));
            let end = u32::try_from(self.encoded.len())
                .map_err(|_| TaskError::BadData("the keys of one batch are longer than 4 GB".to_owned()))?;
            self.offsets.push(end);
        }
        Ok(())
    }
}

/// Whether these key columns are one BIGINT.
#[must_use]
pub fn is_bigint(types: &[DataType]) -> bool {
    matches!(types, [DataType::Int64])
}

/// Whether a column of this type can be a key.
#[must_use]
pub fn can_be_key(data_type: &DataType) -> bool {
    Values::new(&new_empty_array(data_type)).is_some()
}

/// One key column of a batch, its type resolved once.
struct KeyColumn<'a> {
    nulls: Option<&'a NullBuffer>,
    values: Values<'a>,
}

enum Values<'a> {
    Fixed8(&'a [i8]),
    Fixed16(&'a [i16]),
    Fixed32(&'a [i32]),
    Fixed64(&'a [i64]),
    Fixed128(&'a [i128]),
    Unsigned8(&'a [u8]),
    Unsigned16(&'a [u16]),
    Unsigned32(&'a [u32]),
    Unsigned64(&'a [u64]),
    Float(&'a [f32]),
    Double(&'a [f64]),
    Boolean(&'a BooleanArray),
    Text(&'a GenericByteArray<Utf8Type>),
    LargeText(&'a GenericByteArray<LargeUtf8Type>),
    TextView(&'a GenericByteViewArray<StringViewType>),
    Bytes(&'a GenericByteArray<BinaryType>),
    LargeBytes(&'a GenericByteArray<LargeBinaryType>),
    BytesView(&'a GenericByteViewArray<BinaryViewType>),
    /// Where the elements of each row begin, and all elements.
    List(&'a [i32], Box<KeyColumn<'a>>),
}

impl<'a> KeyColumn<'a> {
    fn new(array: &'a ArrayRef, name: &str) -> Result<Self, TaskError> {
        Self::of(array).ok_or_else(|| {
            let found = array.data_type();
            TaskError::BadProgram(format!("column '{name}' of type {found} cannot be a key; cast it to another type"))
        })
    }

    fn of(array: &'a dyn Array) -> Option<Self> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        Some(Self { nulls, values: Values::new(array)? })
    }

    #[inline]
    fn encode(&self, row: usize, out: &mut Vec<u8>) {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return encode::null(out);
        }
        match &self.values {
            Values::Fixed8(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Fixed16(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Fixed32(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Fixed64(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Fixed128(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Unsigned8(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Unsigned16(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Unsigned32(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Unsigned64(values) => encode::fixed(out, values[row].to_le_bytes()),
            Values::Float(values) => encode::float(out, values[row]),
            Values::Double(values) => encode::double(out, values[row]),
            Values::Boolean(values) => encode::fixed(out, [u8::from(values.value(row))]),
            Values::Text(values) => encode::bytes(out, bytes_of(values, row)),
            Values::LargeText(values) => encode::bytes(out, bytes_of(values, row)),
            Values::TextView(values) => encode::bytes(out, bytes_of_view(values, row)),
            Values::Bytes(values) => encode::bytes(out, bytes_of(values, row)),
            Values::LargeBytes(values) => encode::bytes(out, bytes_of(values, row)),
            Values::BytesView(values) => encode::bytes(out, bytes_of_view(values, row)),
            Values::List(offsets, elements) => {
                let (begin, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                encode::fixed(out, ((end - begin) as u32).to_le_bytes());
                (begin..end).for_each(|element| elements.encode(element, out));
            }
        }
    }
}

#[inline]
fn bytes_of<T: ByteArrayType>(array: &GenericByteArray<T>, row: usize) -> &[u8] {
    array.value(row).as_ref()
}

#[inline]
fn bytes_of_view<T: ByteViewType>(array: &GenericByteViewArray<T>, row: usize) -> &[u8] {
    array.value(row).as_ref()
}

impl<'a> Values<'a> {
    fn new(array: &'a dyn Array) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Int8 => Self::Fixed8(array.as_primitive::<Int8Type>().values()),
            DataType::Int16 => Self::Fixed16(array.as_primitive::<Int16Type>().values()),
            DataType::Int32 => Self::Fixed32(array.as_primitive::<Int32Type>().values()),
            DataType::Int64 => Self::Fixed64(array.as_primitive::<Int64Type>().values()),
            DataType::Decimal128(..) => Self::Fixed128(array.as_primitive::<Decimal128Type>().values()),
            DataType::UInt8 => Self::Unsigned8(array.as_primitive::<UInt8Type>().values()),
            DataType::UInt16 => Self::Unsigned16(array.as_primitive::<UInt16Type>().values()),
            DataType::UInt32 => Self::Unsigned32(array.as_primitive::<UInt32Type>().values()),
            DataType::UInt64 => Self::Unsigned64(array.as_primitive::<UInt64Type>().values()),
            DataType::Float32 => Self::Float(array.as_primitive::<Float32Type>().values()),
            DataType::Float64 => Self::Double(array.as_primitive::<Float64Type>().values()),
            DataType::Boolean => Self::Boolean(array.as_boolean()),
            DataType::Utf8 => Self::Text(array.as_bytes::<Utf8Type>()),
            DataType::LargeUtf8 => Self::LargeText(array.as_bytes::<LargeUtf8Type>()),
            DataType::Utf8View => Self::TextView(array.as_byte_view::<StringViewType>()),
            DataType::Binary => Self::Bytes(array.as_bytes::<BinaryType>()),
            DataType::LargeBinary => Self::LargeBytes(array.as_bytes::<LargeBinaryType>()),
            DataType::BinaryView => Self::BytesView(array.as_byte_view::<BinaryViewType>()),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                Self::List(list.value_offsets(), Box::new(KeyColumn::of(list.values())?))
            }
            _ => return Self::of_time(array),
        })
    }

    fn of_time(array: &'a dyn Array) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Date32 => Self::Fixed32(array.as_primitive::<Date32Type>().values()),
            DataType::Date64 => Self::Fixed64(array.as_primitive::<Date64Type>().values()),
            DataType::Time32(TimeUnit::Second) => Self::Fixed32(array.as_primitive::<Time32SecondType>().values()),
            DataType::Time32(TimeUnit::Millisecond) => {
                Self::Fixed32(array.as_primitive::<Time32MillisecondType>().values())
            }
            DataType::Time64(TimeUnit::Microsecond) => {
                Self::Fixed64(array.as_primitive::<Time64MicrosecondType>().values())
            }
            DataType::Time64(TimeUnit::Nanosecond) => {
                Self::Fixed64(array.as_primitive::<Time64NanosecondType>().values())
            }
            DataType::Timestamp(unit, _) => Self::Fixed64(match unit {
                TimeUnit::Second => array.as_primitive::<TimestampSecondType>().values(),
                TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().values(),
                TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().values(),
                TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().values(),
            }),
            _ => return None,
        })
    }
}
