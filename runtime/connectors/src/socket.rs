//! The `socket` source: lines that a TCP server sends, for trying things out.
//!
//! A socket cannot be read again: what came between the last checkpoint and a restart is lost, and the source says so in
//! the plan ([`SourceFactory::note`]). One subtask reads, by a thread of its own ([`connection`]); the others have nothing.
//! The source ends when the server closes the connection.

mod connection;
mod reader;
#[cfg(test)]
mod tests;

use crate::format::{self, DeadLetters, Decoder, Format, NAMES, OnBad};
use crate::options::{Known, Options};
use arrow::datatypes::{DataType, Field, SchemaRef};
use sluice_engine::error::TaskError;
use sluice_engine::source::{ProducedKinds, Source, SourceFactory};
use sluice_engine::table::{TableDescriptor, TableError};
use sluice_protocol::SubtaskIndex;
use std::sync::Arc;

/// The name of the only split.
const SPLIT: &str = "socket";

const HOSTNAME: &str = "hostname";
const PORT: &str = "port";
const DELIMITER: &str = "byte-delimiter";
const FORMAT: &str = "format";

/// A table's options.
#[derive(Debug)]
struct SocketOptions {
    table: String,
    schema: SchemaRef,
    /// All that stands in a line.
    declared: SchemaRef,
    dead_letters: DeadLetters,
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
        let names = [HOSTNAME, PORT, DELIMITER, FORMAT];
        let options = Options::new(table, &Known { names: &names, formats: &[""], properties: false, refused: &[] })?;
        let hostname = options.required(HOSTNAME, "the server's name or address")?.to_owned();
        options.required(PORT, "the server's port")?;
        let port = options.parse::<u16>(PORT, "a number from 1 to 65535")?.unwrap_or_default();
        if port == 0 {
            return Err(options.wrong(PORT, "0", "a number from 1 to 65535"));
        }
        let delimiter = options.parse::<u8>(DELIMITER, "the number of a byte, such as 10 for the end of a line")?;
        let format = format::read(&options, FORMAT, "", &NAMES, "lines")?;
        format::check_used(&options, &[("", format.name().text())])?;
        let made = Self {
            options: Arc::new(SocketOptions {
                table: table.name.clone(),
                schema: Arc::clone(&table.schema),
                declared: Arc::clone(&table.declared),
                dead_letters: DeadLetters::new(table),
                hostname,
                port,
                delimiter: delimiter.unwrap_or(b'\n'),
                format,
            }),
        };
        made.options.decoder().map_err(|what| options.error(FORMAT, what))?;
        let is_text = |field: &Arc<Field>| *field.data_type() == DataType::Utf8;
        if matches!(made.options.format, Format::Raw(_)) && !table.declared.fields().iter().all(is_text) {
            let message = "the format 'raw' makes a line the value of one column of type STRING; declare one, or use 'format' = \
                           'json'";
            return Err(options.error(FORMAT, message));
        }
        Ok(made)
    }
}

impl SocketOptions {
    fn decoder(&self) -> Result<Decoder, String> {
        let passes_over = self.format.ignores_errors() || self.dead_letters.are_wanted();
        let on_bad = if passes_over { OnBad::PassOver } else { OnBad::Fail };
        self.format.decoder(&self.schema, &self.declared, on_bad)
    }
}

impl SourceFactory for SocketSourceFactory {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        let decoder = self.options.decoder();
        let decoder =
            decoder.map_err(|what| TaskError::BadProgram(format!("table '{}': {what}", self.options.table)))?;
        Ok(Box::new(reader::SocketReader::new(Arc::clone(&self.options), decoder)))
    }

    fn produced_kinds(&self) -> ProducedKinds {
        self.options.format.produced_kinds()
    }

    fn schema(&self) -> SchemaRef {
        self.options.dead_letters.schema()
    }

    /// The first subtask.
    fn owner(&self, _split: &str, _parallelism: u32) -> SubtaskIndex {
        SubtaskIndex(0)
    }

    fn note(&self) -> Option<&'static str> {
        Some("cannot be read again: what came since the last checkpoint is lost by a restart")
    }
}
