//! The `print` sink: a line per row on standard output or standard error, as Flink prints it.
//!
//! `+I[app1, 3]`; with parallelism above 1 after the subtask's number (from 1), with `print-identifier` after that:
//! `2> +I[app1, 3]`, `counts> +I[app1, 3]`, `counts:2> +I[app1, 3]`.

use crate::options::{Known, Options};
use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use sluice_engine::batch::{Batch, RowKind};
use sluice_engine::error::TaskError;
use sluice_engine::operator::OperatorContext;
use sluice_engine::sink::{AcceptedKinds, Sink, SinkContext, SinkFactory};
use sluice_engine::table::{TableDescriptor, TableError};
use std::fmt::Write as _;
use std::io::Write as _;

#[cfg(test)]
mod tests;

const KNOWN: Known<'static> = Known {
    names: &["print-identifier", "standard-error"],
    formats: &[],
    properties: false,
    refused: &[("sink.parallelism", "a sink runs with the parallelism of what it is chained to; remove it")],
};

/// Makes writers that print.
pub(crate) struct PrintSinkFactory {
    identifier: String,
    standard_error: bool,
}

impl PrintSinkFactory {
    /// Reads `print-identifier` and `standard-error`.
    pub(crate) fn new(table: &TableDescriptor) -> Result<Self, TableError> {
        let options = Options::new(table, &KNOWN)?;
        Ok(Self {
            identifier: options.text("print-identifier").unwrap_or_default().to_owned(),
            standard_error: options.boolean("standard-error")?.unwrap_or(false),
        })
    }
}

impl SinkFactory for PrintSinkFactory {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(PrintSink {
            identifier: self.identifier.clone(),
            standard_error: self.standard_error,
            prefix: String::new(),
        }))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::All
    }
}

struct PrintSink {
    identifier: String,
    standard_error: bool,
    prefix: String,
}

impl Sink for PrintSink {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        self.prefix = prefix(&self.identifier, &context.operator);
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let text = render(&self.prefix, &batch)
            .map_err(|error| TaskError::Internal(format!("a row cannot be printed: {error}")))?;
        let written = if self.standard_error {
            std::io::stderr().lock().write_all(text.as_bytes())
        } else {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
        written.map_err(|error| TaskError::External(format!("the print sink cannot write its lines: {error}")))
    }
}

/// What stands before each line.
fn prefix(identifier: &str, context: &OperatorContext) -> String {
    match (identifier.is_empty(), context.parallelism > 1) {
        (true, false) => String::new(),
        (true, true) => format!("{}> ", context.subtask.0 + 1),
        (false, false) => format!("{identifier}> "),
        (false, true) => format!("{identifier}:{}> ", context.subtask.0 + 1),
    }
}

/// A line per row.
fn render(prefix: &str, batch: &Batch) -> Result<String, ArrowError> {
    let options = FormatOptions::new().with_null("null");
    let columns = formatters(&batch.rows, &options)?;
    let mut text = String::with_capacity(batch.len() * 32);
    for row in 0..batch.len() {
        let kind = batch.kinds.as_ref().map_or(RowKind::Insert.short(), |kinds| {
            RowKind::from_number(kinds.value(row)).map_or("??", RowKind::short)
        });
        text.push_str(prefix);
        text.push_str(kind);
        text.push('[');
        for (position, column) in columns.iter().enumerate() {
            if position > 0 {
                text.push_str(", ");
            }
            // Writing to a String fails only when the formatter does.
            write!(text, "{}", column.value(row))
                .map_err(|_| ArrowError::CastError(format!("column {position} of row {row}")))?;
        }
        text.push_str("]\n");
    }
    Ok(text)
}

fn formatters<'a>(
    rows: &'a RecordBatch,
    options: &'a FormatOptions<'a>,
) -> Result<Vec<ArrayFormatter<'a>>, ArrowError> {
    rows.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), options)).collect()
}
