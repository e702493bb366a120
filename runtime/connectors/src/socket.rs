//! The `socket` source: lines that a TCP server sends, for trying things out.
//!
//! A socket cannot be read again: what came between the last checkpoint and a restart is lost, and the source says so in
//! the plan ([`SourceFactory::note`]). One subtask reads, by a thread of its own ([`connection`]); the others have nothing.
//! The source ends when the server closes the connection.

mod connection;
mod reader;
#[cfg(test)]
mod tests;

use crate::json::decode::JsonDecoder;
use crate::json::options::{self as json, JsonOptions};
use crate::options::{Known, Options};
use arrow::datatypes::{DataType, SchemaRef};
use sluice_engine::error::TaskError;
use sluice_engine::source::{Source, SourceFactory};
use sluice_engine::table::{TableDescriptor, TableError};
use sluice_protocol::SubtaskIndex;
use std::sync::Arc;

/// The name of the only split.
const SPLIT: &str = "socket";

const HOSTNAME: &str = "hostname";
const PORT: &str = "port";
const DELIMITER: &str = "byte-delimiter";
const FORMAT: &str = "format";

/// What a line holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// The value of the only column.
    Raw,
    /// An object.
    Json(JsonOptions),
}

/// A table's options.
#[derive(Debug)]
struct SocketOptions {
    table: String,
    schema: SchemaRef,
    hostname: String,
    port: u16,
    delimiter: u8,
    format: Format,
}

/// Makes the readers of a table.
pub(crate) struct SocketSourceFactory {
    options: Arc<SocketOptions>,
}

impl SocketSourceFactory {
    /// Checks the options.
    ///
    /// # Errors
    /// One is missing, unknown or wrong.
    pub(crate) fn new(table: &TableDescriptor) -> Result<Self, TableError> {
        let names = [
            HOSTNAME,
            PORT,
            DELIMITER,
            FORMAT,
            "json.ignore-parse-errors",
            "json.fail-on-missing-field",
            "json.timestamp-format.standard",
        ];
        let options = Options::new(table, &Known { names: &names, properties: false, refused: &[] })?;
        let hostname = options.required(HOSTNAME, "the server's name or address")?.to_owned();
        options.required(PORT, "the server's port")?;
        let port = options.parse::<u16>(PORT, "a number from 1 to 65535")?.unwrap_or_default();
        if port == 0 {
            return Err(options.wrong(PORT, "0", "a number from 1 to 65535"));
        }
        let delimiter = options.parse::<u8>(DELIMITER, "the number of a byte, such as 10 for the end of a line")?;
        let format = match options.required(FORMAT, "what a line holds: 'raw' or 'json'")? {
            "raw" => raw(&options)?,
            "json" => Format::Json(json::read(&options, "json")?),
            other => return Err(options.wrong(FORMAT, other, "one of 'raw', 'json'")),
        };
        let (table, schema) = (table.name.clone(), Arc::clone(&table.schema));
        let delimiter = delimiter.unwrap_or(b'\n');
        Ok(Self { options: Arc::new(SocketOptions { table, schema, hostname, port, delimiter, format }) })
    }
}

fn raw(options: &Options<'_>) -> Result<Format, TableError> {
    match options.table().schema.fields().as_ref() {
        [field] if *field.data_type() == DataType::Utf8 => Ok(Format::Raw),
        fields => {
            let found: Vec<_> = fields.iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
            let message = format!(
                "the format 'raw' makes a line the value of one column of type STRING, but the columns are {}; declare one, \
                 or use 'format' = 'json'",
                found.join(", ")
            );
            Err(options.error(FORMAT, message))
        }
    }
}

impl SourceFactory for SocketSourceFactory {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        let decoder = match self.options.format {
            Format::Raw => None,
            Format::Json(format) => {
                let decoder = JsonDecoder::new(Arc::clone(&self.options.schema), format);
                Some(decoder.map_err(|error| TaskError::Internal(error.to_string()))?)
            }
        };
        Ok(Box::new(reader::SocketReader::new(Arc::clone(&self.options), decoder)))
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.options.schema)
    }

    /// The first subtask.
    fn owner(&self, _split: &str, _parallelism: u32) -> SubtaskIndex {
        SubtaskIndex(0)
    }

    fn note(&self) -> Option<&'static str> {
        Some("cannot be read again: what came since the last checkpoint is lost by a restart")
    }
}
