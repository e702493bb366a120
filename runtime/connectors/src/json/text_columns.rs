//! Columns whose text arrow would read otherwise than Flink: timestamps in exactly one standard, bytes in base64.
//! They are decoded as text first and converted here.

use super::options::JsonOptions;
use super::timestamp;
use crate::format::messages::excerpt;
use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, ListArray, StringArray};
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::sync::Arc;

/// The field as it is decoded.
pub(crate) fn decoded_field(field: &Field) -> Field {
    match field.data_type() {
        DataType::Timestamp(..) | DataType::Binary => field.clone().with_data_type(DataType::Utf8),
        DataType::List(element) => field.clone().with_data_type(DataType::List(Arc::new(decoded_field(element)))),
        _ => field.clone(),
    }
}

/// The column as the table has it; `column` is what [`decoded_field`] made.
pub(crate) fn convert(field: &Field, column: &ArrayRef, options: JsonOptions) -> Result<ArrayRef, String> {
    if let DataType::List(element) = field.data_type() {
        return elements(field.name(), element, column, options);
    }
    let Some(texts) = column.as_any().downcast_ref::<StringArray>() else { return Ok(column.clone()) };
    match field.data_type() {
        DataType::Timestamp(unit, zone) => {
            let values = timestamps(field.name(), *unit, zone.is_some(), texts, options)?;
            Ok(timestamp::to_array(&values, *unit, zone.clone()))
        }
        DataType::Binary => binary(field.name(), texts, options),
        _ => Ok(column.clone()),
    }
}

fn elements(name: &str, element: &FieldRef, column: &ArrayRef, options: JsonOptions) -> Result<ArrayRef, String> {
    let Some(list) = column.as_list_opt::<i32>() else { return Ok(column.clone()) };
    // What is wrong with an element is told with the column's name.
    let named = element.as_ref().clone().with_name(name);
    let values = convert(&named, list.values(), options)?;
    let made = ListArray::try_new(Arc::clone(element), list.offsets().clone(), values, list.nulls().cloned());
    made.map(|list| Arc::new(list) as ArrayRef).map_err(|error| format!("field '{name}': {error}"))
}

/// `zoned`: an instant, written in UTC with a `Z`.
fn timestamps(
    name: &str,
    unit: TimeUnit,
    zoned: bool,
    texts: &StringArray,
    options: JsonOptions,
) -> Result<Int64Array, String> {
    let format = options.timestamp_format;
    let parse = |text: &str| {
        let local = if zoned { text.strip_suffix('Z')? } else { text };
        in_unit(timestamp::parse(local, format)?, unit)
    };
    let mut values = Vec::with_capacity(texts.len());
    for text in texts {
        let value = text.and_then(parse);
        if value.is_none() && text.is_some() && !options.ignore_parse_errors {
            return Err(format!(
                "field '{name}' is '{}', which is no timestamp of the form {}{}; the option \
                 'json.timestamp-format.standard' chooses between 'SQL' and 'ISO-8601'",
                excerpt(text.unwrap_or_default().as_bytes()),
                format.example(),
                if zoned { " with a 'Z' behind" } else { "" }
            ));
        }
        values.push(value);
    }
    Ok(Int64Array::from(values))
}

fn in_unit(nanos: i128, unit: TimeUnit) -> Option<i64> {
    let divisor = match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1,
    };
    i64::try_from(nanos.div_euclid(divisor)).ok()
}

fn binary(name: &str, texts: &StringArray, options: JsonOptions) -> Result<ArrayRef, String> {
    let mut values: Vec<Option<Vec<u8>>> = Vec::with_capacity(texts.len());
    for text in texts {
        let value = text.map(|text| STANDARD.decode(text)).transpose();
        match value {
            Ok(value) => values.push(value),
            Err(_) if options.ignore_parse_errors => values.push(None),
            Err(error) => {
                let shown = excerpt(text.unwrap_or_default().as_bytes());
                return Err(format!("field '{name}' is '{shown}', which is no base64: {error}"));
            }
        }
    }
    Ok(Arc::new(BinaryArray::from_iter(values)))
}
