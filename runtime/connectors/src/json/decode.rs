//! Messages into batches: a batch is decoded as a whole; only when that fails its messages are looked at one by
//! one, to skip the bad ones or to say which one is bad and why.

use super::options::JsonOptions;
use super::text_columns;
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;
use arrow::json::reader::Decoder;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::sync::Arc;

/// Most messages of a batch.
pub(crate) const MAX_MESSAGES: usize = 16_384;

/// How much of a bad message is shown, in bytes.
const EXCERPT: usize = 200;

/// A message that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadMessage {
    /// What the caller called the message.
    pub(crate) place: (u32, i64),
    /// What is wrong with it.
    pub(crate) reason: String,
    /// Its beginning.
    pub(crate) excerpt: String,
}

/// Collects messages and makes them a batch.
pub(crate) struct JsonDecoder {
    schema: SchemaRef,
    /// As `schema`, with text where arrow would read otherwise than Flink.
    text_schema: SchemaRef,
    options: JsonOptions,
    decoder: Decoder,
    /// The messages of this batch, end to end.
    bytes: Vec<u8>,
    messages: Vec<Message>,
    /// A message of this batch did not decode to exactly one row.
    suspicious: bool,
}

#[derive(Clone, Copy)]
struct Message {
    place: (u32, i64),
    end: usize,
}

impl JsonDecoder {
    /// Reads the columns of a schema; other fields of a message are skipped.
    ///
    /// # Errors
    /// When a column's type cannot be read from JSON.
    pub(crate) fn new(schema: SchemaRef, options: JsonOptions) -> Result<Self, ArrowError> {
        let fields: Vec<Field> = schema.fields().iter().map(|field| text_columns::decoded_field(field)).collect();
        let text_schema: SchemaRef = Arc::new(Schema::new(fields));
        let decoder = build(&text_schema, options, MAX_MESSAGES)?;
        let (bytes, messages) = (Vec::new(), Vec::new());
        Ok(Self { schema, text_schema, options, decoder, bytes, messages, suspicious: false })
    }

    /// Takes a message; `place` is handed back should it be bad.
    pub(crate) fn push(&mut self, place: (u32, i64), payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.messages.push(Message { place, end: self.bytes.len() });
        // A message may hold two values or half of one; together with the next it could look right.
        self.suspicious = self.suspicious
            || !matches!(self.decoder.decode(payload), Ok(read) if read == payload.len())
            || self.decoder.has_partial_record()
            || self.decoder.len() != self.messages.len();
    }

    /// The rows of the messages; `None` when all were skipped or there were none.
    ///
    /// # Errors
    /// The first message that cannot be read, unless such messages are to be skipped.
    pub(crate) fn finish(&mut self) -> Result<Option<RecordBatch>, BadMessage> {
        if self.messages.is_empty() {
            return Ok(None);
        }
        let together = if self.suspicious || self.options.fail_on_missing_field {
            None
        } else {
            self.decoder.flush().ok().flatten().and_then(|rows| self.convert(&rows).ok())
        };
        let rows = match together {
            Some(rows) => Ok(Some(rows)),
            None => self.one_by_one(),
        };
        self.bytes.clear();
        self.messages.clear();
        self.suspicious = false;
        rows
    }

    fn one_by_one(&mut self) -> Result<Option<RecordBatch>, BadMessage> {
        let mut rows = Vec::with_capacity(self.messages.len());
        let mut start = 0;
        let fresh = |batch_size| build(&self.text_schema, self.options, batch_size);
        let mut bad = None;
        for message in &self.messages {
            let payload = &self.bytes[start..message.end];
            start = message.end;
            let row = fresh(2).map_err(|error| error.to_string()).and_then(|decoder| self.decode_one(decoder, payload));
            match row {
                Ok(row) => rows.push(row),
                Err(_) if self.options.ignore_parse_errors => {}
                Err(reason) => {
                    bad = Some(BadMessage { place: message.place, reason, excerpt: excerpt(payload) });
                    break;
                }
            }
        }
        // What the common decoder has seen of this batch is of no use any more.
        if let Ok(decoder) = fresh(MAX_MESSAGES) {
            self.decoder = decoder;
        }
        match bad {
            Some(bad) => Err(bad),
            None if rows.is_empty() => Ok(None),
            None => concat_batches(&self.schema, &rows).map(Some).map_err(|error| BadMessage {
                place: self.messages[0].place,
                reason: error.to_string(),
                excerpt: String::new(),
            }),
        }
    }

    fn decode_one(&self, mut decoder: Decoder, payload: &[u8]) -> Result<RecordBatch, String> {
        if payload.trim_ascii().is_empty() {
            return Err("it is empty, where a JSON object was expected".to_owned());
        }
        if self.options.fail_on_missing_field {
            self.find_missing(payload)?;
        }
        let read = decoder.decode(payload).map_err(|error| plain(&error))?;
        if decoder.has_partial_record() {
            return Err("it ends in the middle of a JSON value".to_owned());
        }
        if read != payload.len() || decoder.len() != 1 {
            return Err("it holds more than one JSON value, where one object was expected".to_owned());
        }
        let rows = decoder.flush().map_err(|error| plain(&error))?;
        rows.ok_or_else(|| "it holds no JSON object".to_owned()).and_then(|rows| self.convert(&rows))
    }

    fn find_missing(&self, payload: &[u8]) -> Result<(), String> {
        let names: Names = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        match self.schema.fields().iter().find(|field| !names.0.iter().any(|name| name == field.name())) {
            Some(field) => Err(format!("it has no field '{}'", field.name())),
            None => Ok(()),
        }
    }

    fn convert(&self, rows: &RecordBatch) -> Result<RecordBatch, String> {
        let columns = self.schema.fields().iter().zip(rows.columns());
        let columns = columns.map(|(field, column)| text_columns::convert(field, column, self.options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_new(self.schema.clone(), columns).map_err(|error| plain(&error))
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

/// At most [`EXCERPT`] bytes of a message, as text.
pub(super) fn excerpt(payload: &[u8]) -> String {
    if payload.len() <= EXCERPT {
        return String::from_utf8_lossy(payload).into_owned();
    }
    let text = String::from_utf8_lossy(&payload[..EXCERPT]);
    format!("{}…", text.trim_end_matches('\u{fffd}'))
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
