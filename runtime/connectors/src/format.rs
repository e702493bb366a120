//! Formats: how rows stand in messages, lines and files, the same for all connectors, under Flink's names.
//!
//! Owns the choice of a format with its options, and hands out decoders and encoders for it. Knows no connector: where a
//! message came from is a number that is handed back. What decodes gives, besides rows, the number of the message that each
//! row is from, and the messages that were passed over with the reason.
//!
//! - `messages`: messages into batches, together or one by one. - `json` (beside this module), `csv`, `raw`, `debezium`: the
//!   formats. - `encode`: rows into messages. - `dead_letters`: what could not be read, as rows. - `records`: where a record of CSV ends.

pub(crate) mod csv;
pub(crate) mod dead_letters;
pub(crate) mod debezium;
pub(crate) mod encode;
pub(crate) mod messages;
mod raw;
pub(crate) mod records;
#[cfg(test)]
mod tests;

pub(crate) use dead_letters::DeadLetters;
pub(crate) use encode::RowEncoder;
pub(crate) use messages::{BadMessage, Decoded, MAX_MESSAGES, OnBad};

use crate::json::decode::JsonMessages;
use crate::json::options::{self as json, JsonOptions};
use crate::options::Options;
use arrow::datatypes::{Schema, SchemaRef};
use csv::{CsvMessages, CsvOptions};
use debezium::{DebeziumMessages, DebeziumOptions};
use messages::Messages;
use raw::{RawMessages, RawOptions};
use sluice_engine::source::ProducedKinds;
use sluice_engine::table::TableError;
use std::sync::Arc;

/// All options of formats, under the prefix that the connector gives them: none beside `format`, `value.` beside
/// `value.format`, `key.` beside `key.format`.
pub(crate) const OPTIONS: [&str; 17] = [
    "json.ignore-parse-errors",
    "json.fail-on-missing-field",
    "json.timestamp-format.standard",
    "csv.field-delimiter",
    "csv.quote-character",
    "csv.escape-character",
    "csv.null-literal",
    "csv.ignore-parse-errors",
    "raw.charset",
    "raw.endianness",
    "debezium-json.schema-include",
    "debezium-json.ignore-parse-errors",
    "debezium-json.timestamp-format.standard",
    "csv.disable-quote-character",
    "csv.allow-comments",
    "csv.array-element-delimiter",
    "json.encode.decimal-as-plain-number",
];

/// Of these, what Flink has and Sluice has not, with what to do instead.
const REFUSED: [(&str, &str); 4] = [
    ("csv.disable-quote-character", "'csv.quote-character' may be one that never occurs"),
    ("csv.allow-comments", "skip such lines with 'csv.ignore-parse-errors', or filter them"),
    ("csv.array-element-delimiter", "a column of CSV cannot be an array; declare it STRING and use SPLIT"),
    ("json.encode.decimal-as-plain-number", "decimals are always written as plain numbers; remove it"),
];

/// A format's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Json,
    Csv,
    Raw,
    DebeziumJson,
}

/// All of them.
pub(crate) const NAMES: [Name; 4] = [Name::Json, Name::Csv, Name::Raw, Name::DebeziumJson];

impl Name {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Raw => "raw",
            Self::DebeziumJson => "debezium-json",
        }
    }
}

/// A format with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    /// An object per row.
    Json(JsonOptions),
    /// Values between delimiters, without a header.
    Csv(CsvOptions),
    /// The message is the value of the only column.
    Raw(RawOptions),
    /// An object per change of a row, as Debezium writes it.
    DebeziumJson(DebeziumOptions),
}

/// Reads the format that stands under `key`, such as `value.format`; its options begin with `prefix`, such as `value.`.
pub(crate) fn read(
    options: &Options<'_>,
    key: &str,
    prefix: &str,
    allowed: &[Name],
    whose: &str,
) -> Result<Format, TableError> {
    let names: Vec<&str> = allowed.iter().map(|name| name.text()).collect();
    let list = crate::options::list(&names);
    let given = options.required(key, &format!("the format of {whose}; the formats are {list}"))?;
    let Some(name) = allowed.iter().find(|name| name.text() == given) else {
        return Err(options.wrong(key, given, &format!("one of {list}")));
    };
    Ok(match name {
        Name::Json => Format::Json(json::read(options, &format!("{prefix}json"))?),
        Name::Csv => Format::Csv(csv::read(options, &format!("{prefix}csv"))?),
        Name::Raw => Format::Raw(raw::read(options, &format!("{prefix}raw"))?),
        Name::DebeziumJson => Format::DebeziumJson(debezium::read(options, &format!("{prefix}debezium-json"))?),
    })
}

/// Refuses options of formats that are not in use, each in use given by its prefix and name.
pub(crate) fn check_used(options: &Options<'_>, used: &[(&str, &str)]) -> Result<(), TableError> {
    for option in &options.table().options {
        let key = option.key.as_str();
        let is_of = |prefix: &str, name: &str| {
            key.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('.'))
        };
        let bare = ["key.", "value."].iter().find_map(|prefix| key.strip_prefix(prefix)).unwrap_or(key);
        let is_format_option = OPTIONS.contains(&bare);
        if let Some((_, reason)) = REFUSED.iter().find(|(name, _)| *name == bare) {
            return Err(options.error(key, format!("the option '{key}' is not supported: {reason}")));
        }
        if is_format_option && !used.iter().any(|(prefix, name)| is_of(prefix, name)) {
            let names: Vec<String> = used.iter().map(|(prefix, name)| format!("'{prefix}{name}.*'")).collect();
            let message = format!(
                "the option '{key}' belongs to a format that the table does not use there; options of its format are {}",
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            );
            return Err(options.error(key, message));
        }
    }
    Ok(())
}

impl Format {
    pub(crate) const fn name(&self) -> Name {
        match self {
            Self::Json(_) => Name::Json,
            Self::Csv(_) => Name::Csv,
            Self::Raw(_) => Name::Raw,
            Self::DebeziumJson(_) => Name::DebeziumJson,
        }
    }

    /// Whether messages that cannot be read are passed over.
    pub(crate) const fn ignores_errors(&self) -> bool {
        match self {
            Self::Json(options) => options.ignore_parse_errors,
            Self::Csv(options) => options.ignore_parse_errors,
            Self::Raw(_) => false,
            Self::DebeziumJson(options) => options.json.ignore_parse_errors,
        }
    }

    /// Which rows come out of messages.
    pub(crate) const fn produced_kinds(&self) -> ProducedKinds {
        match self {
            Self::DebeziumJson(_) => ProducedKinds::All,
            _ => ProducedKinds::InsertOnly,
        }
    }

    /// How to have bad messages passed over, for messages about them.
    pub(crate) fn advice(&self, prefix: &str) -> String {
        match self {
            Self::Raw(_) => "Correct the table's column".to_owned(),
            _ => format!(
                "Correct the table's columns, or skip such records with '{prefix}{}.ignore-parse-errors' = 'true'",
                self.name().text()
            ),
        }
    }

    /// A decoder of the columns of `schema`, where `declared` are all that a message has.
    ///
    /// # Errors
    /// When a column cannot be read from this format.
    pub(crate) fn decoder(&self, schema: &SchemaRef, declared: &SchemaRef, on_bad: OnBad) -> Result<Decoder, String> {
        let schema = Arc::clone(schema);
        Ok(match self {
            Self::Json(options) => {
                let format = JsonMessages::new(schema, *options).map_err(|error| error.to_string())?;
                Decoder::Json(Messages::new(format, on_bad))
            }
            Self::Csv(options) => {
                let format = CsvMessages::new(schema, declared, options)?;
                Decoder::Csv(Box::new(Messages::new(format, on_bad)))
            }
            Self::Raw(options) => Decoder::Raw(Messages::new(RawMessages::new(schema, declared, *options)?, on_bad)),
            Self::DebeziumJson(options) => {
                Decoder::Debezium(Messages::new(DebeziumMessages::new(schema, *options)?, on_bad))
            }
        })
    }

    /// An encoder of the columns at these positions.
    ///
    /// # Errors
    /// When a column cannot be written in this format.
    pub(crate) fn encoder(&self, schema: &Schema, positions: &[usize]) -> Result<RowEncoder, String> {
        RowEncoder::new(self, schema, positions)
    }
}

/// Makes messages of one format batches.
pub(crate) enum Decoder {
    Json(Messages<JsonMessages>),
    Csv(Box<Messages<CsvMessages>>),
    Raw(Messages<RawMessages>),
    Debezium(Messages<DebeziumMessages>),
}

impl Decoder {
    /// Takes a message, [`MAX_MESSAGES`] at most between two calls of [`Decoder::finish`]; `place` is handed back should it be
    /// bad.
    pub(crate) fn push(&mut self, place: (u32, i64), payload: &[u8]) {
        match self {
            Self::Json(messages) => messages.push(place, payload),
            Self::Csv(messages) => messages.push(place, payload),
            Self::Raw(messages) => messages.push(place, payload),
            Self::Debezium(messages) => messages.push(place, payload),
        }
    }

    /// A message since the last call of [`Decoder::finish`], counted from 0.
    pub(crate) fn payload(&self, number: usize) -> &[u8] {
        match self {
            Self::Json(messages) => messages.payload(number),
            Self::Csv(messages) => messages.payload(number),
            Self::Raw(messages) => messages.payload(number),
            Self::Debezium(messages) => messages.payload(number),
        }
    }

    /// The rows of the messages since the last call.
    ///
    /// # Errors
    /// The first message that cannot be read, unless such messages are passed over.
    pub(crate) fn finish(&mut self) -> Result<Decoded, BadMessage> {
        match self {
            Self::Json(messages) => messages.finish(),
            Self::Csv(messages) => messages.finish(),
            Self::Raw(messages) => messages.finish(),
            Self::Debezium(messages) => messages.finish(),
        }
    }
}
