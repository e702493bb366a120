//! JSON objects into rows of a batch.

use super::options::JsonOptions;
use super::text_columns;
use crate::format::MAX_MESSAGES;
use crate::format::messages::{Collected, MessageFormat, Rows};
use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;
use arrow::json::reader::Decoder;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::sync::Arc;

/// Decodes objects.
pub(crate) struct JsonMessages {
    schema: SchemaRef,
    /// As `schema`, with text where arrow would read otherwise than Flink.
    text_schema: SchemaRef,
    options: JsonOptions,
    decoder: Decoder,
}

impl JsonMessages {
    /// Reads the columns of a schema; other fields of a message are skipped.
    ///
    /// # Errors
    /// When a column's type cannot be read from JSON.
    pub(crate) fn new(schema: SchemaRef, options: JsonOptions) -> Result<Self, ArrowError> {
        let fields: Vec<Field> = schema.fields().iter().map(|field| text_columns::decoded_field(field)).collect();
        let text_schema: SchemaRef = Arc::new(Schema::new(fields));
        let decoder = build(&text_schema, options, MAX_MESSAGES)?;
        Ok(Self { schema, text_schema, options, decoder })
    }

    fn find_missing(&self, payload: &[u8]) -> Result<(), String> {
        let names: Names = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        match self.schema.fields().iter().find(|field| !names.0.iter().any(|name| name == field.name())) {
            Some(field) => Err(format!("it has no field '{}'", field.name())),
            None => Ok(()),
        }
    }
}

impl MessageFormat for JsonMessages {
    fn take(&mut self, payload: &[u8], number: usize) -> bool {
        !self.options.fail_on_missing_field
            && matches!(self.decoder.decode(payload), Ok(read) if read == payload.len())
            && !self.decoder.has_partial_record()
            && self.decoder.len() == number
    }

    fn flush(&mut self, _: &Collected) -> Option<RecordBatch> {
        self.decoder.flush().ok().flatten()
    }

    fn alone(&self, payload: &[u8]) -> Result<RecordBatch, String> {
        if payload.trim_ascii().is_empty() {
            return Err("it is empty, where a JSON object was expected".to_owned());
        }
        if self.options.fail_on_missing_field {
            self.find_missing(payload)?;
        }
        let mut decoder = build(&self.text_schema, self.options, 2).map_err(|error| plain(&error))?;
        let read = decoder.decode(payload).map_err(|error| plain(&error))?;
        if decoder.has_partial_record() {
            return Err("it ends in the middle of a JSON value".to_owned());
        }
        if read != payload.len() || decoder.len() != 1 {
            return Err("it holds more than one JSON value, where one object was expected".to_owned());
        }
        let rows = decoder.flush().map_err(|error| plain(&error))?;
        rows.ok_or_else(|| "it holds no JSON object".to_owned())
    }

    fn convert(&self, rows: &RecordBatch) -> Result<Rows, String> {
        let columns = self.schema.fields().iter().zip(rows.columns());
        let columns = columns.map(|(field, column)| text_columns::convert(field, column, self.options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let rows = RecordBatch::try_new(self.schema.clone(), columns).map_err(|error| plain(&error))?;
        Ok(Rows { rows, kinds: None, messages: None })
    }

    fn clear(&mut self) {
        if let Ok(decoder) = build(&self.text_schema, self.options, MAX_MESSAGES) {
            self.decoder = decoder;
        }
    }
}

fn build(schema: &SchemaRef, options: JsonOptions, batch_size: usize) -> Result<Decoder, ArrowError> {
    ReaderBuilder::new(schema.clone())
        .with_batch_size(batch_size)
        // A number in a STRING column is read as its text, as Flink does.
        .with_coerce_primitive(true)
        .with_ignore_type_conflicts(options.ignore_parse_errors)
        .build_decoder()
}

/// The message without arrow's name of the kind of error.
fn plain(error: &ArrowError) -> String {
    match error {
        ArrowError::JsonError(message) | ArrowError::InvalidArgumentError(message) => message.clone(),
        other => other.to_string(),
    }
}

/// The names of an object's fields.
struct Names(Vec<String>);

impl<'de> serde::Deserialize<'de> for Names {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, IgnoredAny)) = map.next_entry()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
