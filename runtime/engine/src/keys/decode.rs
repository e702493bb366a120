//! Encoded keys back to columns, for the files of a snapshot.
//!
//! Text of any Arrow kind comes back as plain Utf8, bytes as plain Binary: in the encoding they are the same (F3).

use crate::error::TaskError;
use arrow::array::{
    Array, ArrayRef, BinaryBuilder, BooleanBuilder, ListArray, PrimitiveBuilder, StringBuilder, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, FieldRef, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use std::sync::Arc;

/// The type that a key column has in stored state.
#[must_use]
pub fn stored_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::List(element) => {
            let stored = element.as_ref().clone().with_data_type(stored_type(element.data_type()));
            DataType::List(Arc::new(stored))
        }
        other => other.clone(),
    }
}

/// Reads columns of these (stored) types from encoded keys.
///
/// # Errors
/// When the keys do not hold such columns, which would be our fault.
pub fn decode(keys: &[&[u8]], types: &[DataType]) -> Result<Vec<ArrayRef>, TaskError> {
    let mut rest: Vec<&[u8]> = keys.to_vec();
    types.iter().map(|data_type| column(&mut rest, data_type)).collect()
}

fn broken() -> TaskError {
    TaskError::Internal("an encoded key in the state does not hold the columns of its operator".to_owned())
}

/// The next value of one key, `None` for NULL.
fn value<'a>(rest: &mut &'a [u8], width: usize) -> Result<Option<&'a [u8]>, TaskError> {
    let (tag, after) = rest.split_first().ok_or_else(broken)?;
    if *tag == 0 {
        *rest = after;
        return Ok(None);
    }
    let (value, after) = after.split_at_checked(width).ok_or_else(broken)?;
    *rest = after;
    Ok(Some(value))
}

/// The next text or bytes of one key.
fn sized<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, TaskError> {
    let Some(length) = value(rest, 4)? else { return Ok(None) };
    let length = u32::from_le_bytes(length.try_into().map_err(|_| broken())?) as usize;
    let (value, after) = rest.split_at_checked(length).ok_or_else(broken)?;
    *rest = after;
    Ok(Some(value))
}

fn column(keys: &mut [&[u8]], data_type: &DataType) -> Result<ArrayRef, TaskError> {
    match data_type {
        DataType::Int8 => primitive::<Int8Type, 1>(keys, i8::from_le_bytes),
        DataType::Int16 => primitive::<Int16Type, 2>(keys, i16::from_le_bytes),
        DataType::Int32 => primitive::<Int32Type, 4>(keys, i32::from_le_bytes),
        DataType::Int64 => primitive::<Int64Type, 8>(keys, i64::from_le_bytes),
        DataType::UInt8 => primitive::<UInt8Type, 1>(keys, u8::from_le_bytes),
        DataType::UInt16 => primitive::<UInt16Type, 2>(keys, u16::from_le_bytes),
        DataType::UInt32 => primitive::<UInt32Type, 4>(keys, u32::from_le_bytes),
        DataType::UInt64 => primitive::<UInt64Type, 8>(keys, u64::from_le_bytes),
        DataType::Float32 => primitive::<Float32Type, 4>(keys, f32::from_le_bytes),
        DataType::Float64 => primitive::<Float64Type, 8>(keys, f64::from_le_bytes),
        DataType::Decimal128(..) => retyped(primitive::<Decimal128Type, 16>(keys, i128::from_le_bytes)?, data_type),
        DataType::Date32 | DataType::Time32(_) => {
            retyped(primitive::<Int32Type, 4>(keys, i32::from_le_bytes)?, data_type)
        }
        DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) => {
            retyped(primitive::<Int64Type, 8>(keys, i64::from_le_bytes)?, data_type)
        }
        DataType::Boolean => boolean(keys),
        DataType::Utf8 => text(keys),
        DataType::Binary => binary(keys),
        DataType::List(element) => list(keys, element),
        _ => Err(broken()),
    }
}

/// How many bytes a value that is there takes behind its tag, unless it says so itself.
const fn width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Int8 | DataType::UInt8 | DataType::Boolean => Some(1),
        DataType::Int16 | DataType::UInt16 => Some(2),
        DataType::Int32 | DataType::UInt32 | DataType::Float32 | DataType::Date32 | DataType::Time32(_) => Some(4),
        DataType::Decimal128(..) => Some(16),
        DataType::Utf8 | DataType::Binary | DataType::List(_) => None,
        _ => Some(8),
    }
}

/// The length of a list, and so many elements of it follow.
fn count(rest: &mut &[u8]) -> Result<Option<u32>, TaskError> {
    let count = value(rest, 4)?.map(<[u8; 4]>::try_from).transpose().map_err(|_| broken())?;
    Ok(count.map(u32::from_le_bytes))
}

/// Passes over a value.
fn skip(rest: &mut &[u8], data_type: &DataType) -> Result<(), TaskError> {
    match (data_type, width(data_type)) {
        (DataType::List(element), _) => {
            (0..count(rest)?.unwrap_or(0)).try_for_each(|_| skip(rest, element.data_type()))
        }
        (_, Some(width)) => value(rest, width).map(|_| ()),
        (_, None) => sized(rest).map(|_| ()),
    }
}

fn list(keys: &mut [&[u8]], element: &FieldRef) -> Result<ArrayRef, TaskError> {
    let (mut elements, mut lengths, mut present) = (Vec::new(), Vec::new(), Vec::new());
    for key in keys {
        let count = count(key)?;
        present.push(count.is_some());
        lengths.push(count.unwrap_or(0) as usize);
        for _ in 0..count.unwrap_or(0) {
            elements.push(*key);
            skip(key, element.data_type())?;
        }
    }
    let values = column(&mut elements, element.data_type())?;
    let (offsets, nulls) = (OffsetBuffer::from_lengths(lengths), NullBuffer::from(present));
    let list = ListArray::try_new(Arc::clone(element), offsets, values, Some(nulls)).map_err(|_| broken())?;
    Ok(Arc::new(list))
}

fn primitive<T: ArrowPrimitiveType, const N: usize>(
    keys: &mut [&[u8]],
    read: fn([u8; N]) -> T::Native,
) -> Result<ArrayRef, TaskError> {
    let mut builder = PrimitiveBuilder::<T>::with_capacity(keys.len());
    for key in keys {
        let bytes = value(key, N)?.map(<[u8; N]>::try_from).transpose().map_err(|_| broken())?;
        builder.append_option(bytes.map(read));
    }
    Ok(Arc::new(builder.finish()))
}

/// The same values under another type of the same width.
fn retyped(array: ArrayRef, data_type: &DataType) -> Result<ArrayRef, TaskError> {
    if array.null_count() == array.len() {
        return Ok(new_null_array(data_type, array.len()));
    }
    let data = array.to_data().into_builder().data_type(data_type.clone()).build();
    match data {
        Ok(data) => Ok(arrow::array::make_array(data)),
        Err(_) => cast(&array, data_type).map_err(|_| broken()),
    }
}

fn boolean(keys: &mut [&[u8]]) -> Result<ArrayRef, TaskError> {
    let mut builder = BooleanBuilder::with_capacity(keys.len());
    for key in keys {
        builder.append_option(value(key, 1)?.map(|byte| byte[0] != 0));
    }
    Ok(Arc::new(builder.finish()))
}

fn text(keys: &mut [&[u8]]) -> Result<ArrayRef, TaskError> {
    let mut builder = StringBuilder::new();
    for key in keys {
        builder.append_option(sized(key)?.map(std::str::from_utf8).transpose().map_err(|_| broken())?);
    }
    Ok(Arc::new(builder.finish()))
}

fn binary(keys: &mut [&[u8]]) -> Result<ArrayRef, TaskError> {
    let mut builder = BinaryBuilder::new();
    for key in keys {
        builder.append_option(sized(key)?);
    }
    Ok(Arc::new(builder.finish()))
}
