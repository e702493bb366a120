//! The format `csv`: values between delimiters, without a header; an empty value is NULL unless `csv.null-literal` names
//! another text for that.

use super::messages::{Collected, MAX_MESSAGES, MessageFormat, Rows};
use crate::options::Options;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_csv::ReaderBuilder;
use arrow_csv::reader::Decoder;
use regex::Regex;
use sluice_engine::table::TableError;
use std::sync::Arc;

/// As in JSON: `2026-11-30 10:00:00.5`.
const TIMESTAMP: &str = "%Y-%m-%d %H:%M:%S%.f";

/// An instant.
const TIMESTAMP_LTZ: &str = "%Y-%m-%d %H:%M:%S%.fZ";

/// How values stand in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CsvOptions {
    pub(crate) delimiter: u8,
    pub(crate) quote: u8,
    /// Stands within quotes before a quote and before itself; `None`: quotes are doubled.
    pub(crate) escape: Option<u8>,
    /// What stands for NULL; `None`: nothing does.
    pub(crate) null_literal: Option<String>,
    /// A value that cannot be read becomes null, a line that cannot be read is passed over.
    pub(crate) ignore_parse_errors: bool,
}

/// Reads what stands under a prefix such as `csv` or `value.csv`.
pub(super) fn read(options: &Options<'_>, prefix: &str) -> Result<CsvOptions, TableError> {
    let quote = character(options, &format!("{prefix}.quote-character"))?.unwrap_or(b'"');
    let escape = character(options, &format!("{prefix}.escape-character"))?;
    Ok(CsvOptions {
        delimiter: character(options, &format!("{prefix}.field-delimiter"))?.unwrap_or(b','),
        quote,
        escape: escape.filter(|escape| *escape != quote),
        null_literal: options.text(&format!("{prefix}.null-literal")).map(str::to_owned),
        ignore_parse_errors: options.boolean(&format!("{prefix}.ignore-parse-errors"))?.unwrap_or(false),
    })
}

/// One ASCII character.
fn character(options: &Options<'_>, key: &str) -> Result<Option<u8>, TableError> {
    let Some(value) = options.text(key) else { return Ok(None) };
    let value = if value == "\\t" { "\t" } else { value };
    let is_delimiter = key.ends_with("field-delimiter");
    match *value.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r') && !(is_delimiter && byte == b'"') => {
            Ok(Some(byte))
        }
        _ => Err(options.wrong(key, value, "one ASCII character other than a quote and the ends of lines")),
    }
}

/// Says which column no text can hold.
pub(super) fn check(schema: &Schema) -> Result<(), String> {
    let word = |field: &Field| match field.data_type() {
        DataType::Binary => Some("BYTES"),
        DataType::List(_) => Some("ARRAY"),
        _ => None,
    };
    match schema.fields().iter().find_map(|field| Some((field.name(), word(field)?))) {
        None => Ok(()),
        Some((name, word)) => Err(format!(
            "the format 'csv' cannot hold column '{name}' of type {word}; use another format, or declare it STRING"
        )),
    }
}

impl CsvOptions {
    /// All lines of a batch, and where each ends.
    ///
    /// # Errors
    /// The type of a column that cannot be written.
    pub(super) fn lines(&self, rows: &RecordBatch) -> Result<(Vec<u8>, Vec<usize>), DataType> {
        let options = FormatOptions::new()
            .with_null(self.null_literal.as_deref().unwrap_or_default())
            .with_timestamp_format(Some(TIMESTAMP))
            .with_timestamp_tz_format(Some(TIMESTAMP_LTZ));
        let formatters = rows
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column.as_ref(), &options).map_err(|_| column.data_type().clone()));
        let formatters = formatters.collect::<Result<Vec<_>, _>>()?;
        let (mut lines, mut ends, mut value) = (Vec::new(), Vec::with_capacity(rows.num_rows()), String::new());
        for row in 0..rows.num_rows() {
            for (position, (formatter, column)) in formatters.iter().zip(rows.columns()).enumerate() {
                value.clear();
                formatter.value(row).write(&mut value).map_err(|_| column.data_type().clone())?;
                lines.extend((position > 0).then_some(self.delimiter));
                self.append(value.as_bytes(), &mut lines);
            }
            if lines.len() == ends.last().copied().unwrap_or_default() {
                // Without anything it would be no line.
                lines.extend([self.quote, self.quote]);
            }
            ends.push(lines.len());
        }
        Ok((lines, ends))
    }

    /// Appends a value, within quotes where it would not be read back otherwise.
    fn append(&self, value: &[u8], line: &mut Vec<u8>) {
        let is_escaped = |byte: u8| byte == self.quote || self.escape == Some(byte);
        let is_special = |byte: &u8| is_escaped(*byte) || *byte == self.delimiter || matches!(byte, b'\n' | b'\r');
        if !value.iter().any(is_special) {
            line.extend_from_slice(value);
            return;
        }
        line.push(self.quote);
        for byte in value {
            line.extend(is_escaped(*byte).then_some(self.escape.unwrap_or(self.quote)));
            line.push(*byte);
        }
        line.push(self.quote);
    }

    fn decoder(&self, declared: &SchemaRef, projection: &[usize], batch_size: usize) -> Result<Decoder, String> {
        let mut builder = ReaderBuilder::new(Arc::clone(declared))
            .with_header(false)
            .with_delimiter(self.delimiter)
            .with_quote(self.quote)
            .with_batch_size(batch_size)
            .with_projection(projection.to_vec());
        if let Some(escape) = self.escape {
            builder = builder.with_escape(escape);
        }
        if let Some(literal) = &self.null_literal {
            let exactly = Regex::new(&format!("^{}$", regex::escape(literal))).map_err(|error| error.to_string())?;
            builder = builder.with_null_regex(exactly);
        }
        Ok(builder.build_decoder())
    }
}

/// Decodes lines.
pub(crate) struct CsvMessages {
    schema: SchemaRef,
    declared: SchemaRef,
    /// Where the columns of `schema` stand in a line.
    projection: Vec<usize>,
    options: CsvOptions,
    decoder: Decoder,
}

impl CsvMessages {
    pub(super) fn new(schema: SchemaRef, declared: &SchemaRef, options: &CsvOptions) -> Result<Self, String> {
        check(declared)?;
        let place = |field: &Arc<Field>| declared.index_of(field.name()).map_err(|error| error.to_string());
        let projection = schema.fields().iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let decoder = options.decoder(declared, &projection, MAX_MESSAGES + 1)?;
        Ok(Self { schema, declared: Arc::clone(declared), projection, options: options.clone(), decoder })
    }

    /// The columns of one line, of this type each or as declared.
    fn line(&self, declared: &SchemaRef, payload: &[u8]) -> Result<RecordBatch, String> {
        let mut decoder = self.options.decoder(declared, &self.projection, 2)?;
        let capacity = decoder.capacity();
        decoder.decode(trimmed(payload)).and_then(|_| decoder.decode(b"\n")).map_err(|error| plain(&error))?;
        match capacity - decoder.capacity() {
            1 => decoder.flush().map_err(|error| plain(&error))?.ok_or_else(|| "it is empty".to_owned()),
            0 => Err("it is no whole line: a quote is not closed, or nothing stands in it".to_owned()),
            _ => Err("it holds more than one line".to_owned()),
        }
    }

    /// The line with NULL where a value does not fit its column.
    fn with_nulls(&self, payload: &[u8]) -> Result<RecordBatch, String> {
        let text = |field: &Arc<Field>| field.as_ref().clone().with_data_type(DataType::Utf8).with_nullable(true);
        let texts: SchemaRef = Arc::new(Schema::new(self.declared.fields().iter().map(text).collect::<Vec<_>>()));
        let line = self.line(&texts, payload)?;
        let column = |(field, column): (&Arc<Field>, &ArrayRef)| cast(column, field.data_type());
        let columns: Result<Vec<_>, _> = self.schema.fields().iter().zip(line.columns()).map(column).collect();
        let row = columns.and_then(|columns| RecordBatch::try_new(Arc::clone(&self.schema), columns));
        row.map_err(|error| plain(&error))
    }
}

impl MessageFormat for CsvMessages {
    fn take(&mut self, payload: &[u8], number: usize) -> bool {
        let taken = self.decoder.decode(trimmed(payload)).and_then(|_| self.decoder.decode(b"\n"));
        taken.is_ok() && self.decoder.capacity() + number == MAX_MESSAGES + 1
    }

    fn flush(&mut self, _: &Collected) -> Option<RecordBatch> {
        self.decoder.flush().ok().flatten()
    }

    fn alone(&self, payload: &[u8]) -> Result<RecordBatch, String> {
        let line = self.line(&self.declared, payload);
        if self.options.ignore_parse_errors && line.is_err() { self.with_nulls(payload) } else { line }
    }

    fn convert(&self, rows: &RecordBatch) -> Result<Rows, String> {
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), rows.columns().to_vec());
        Ok(Rows { rows: rows.map_err(|error| plain(&error))?, kinds: None, messages: None })
    }

    fn clear(&mut self) {
        if let Ok(decoder) = self.options.decoder(&self.declared, &self.projection, MAX_MESSAGES + 1) {
            self.decoder = decoder;
        }
    }
}

/// Without the end of line.
fn trimmed(payload: &[u8]) -> &[u8] {
    let payload = payload.strip_suffix(b"\n").unwrap_or(payload);
    payload.strip_suffix(b"\r").unwrap_or(payload)
}

fn plain(error: &ArrowError) -> String {
    match error {
        ArrowError::CsvError(message) | ArrowError::ParseError(message) | ArrowError::InvalidArgumentError(message) => {
            message.clone()
        }
        other => other.to_string(),
    }
}
