//! The subtask: lines to rows.

use super::connection::{Connection, Received};
use super::{SPLIT, SocketOptions};
use crate::json::decode::JsonDecoder;
use arrow::array::{RecordBatch, StringBuilder};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::RestoredState;
use sluice_engine::source::{Source, SourceContext, SourcePoll};
use sluice_protocol::state::SplitState;
use std::collections::VecDeque;
use std::sync::Arc;

/// A subtask's reader; only the first one is connected.
pub(super) struct SocketReader {
    options: Arc<SocketOptions>,
    /// Of lines that are JSON; the others are the value of the only column.
    decoder: Option<JsonDecoder>,
    connection: Option<Connection>,
    /// Lines that came and are not rows yet.
    waiting: VecDeque<Vec<u8>>,
    has_ended: bool,
    /// Lines that were made rows, for messages.
    taken: i64,
}

impl SocketReader {
    pub(super) const fn new(options: Arc<SocketOptions>, decoder: Option<JsonDecoder>) -> Self {
        Self { options, decoder, connection: None, waiting: VecDeque::new(), has_ended: false, taken: 0 }
    }

    /// Fetches lines until there are enough, or no more for now.
    fn fetch(&mut self, wanted: usize) -> Result<(), TaskError> {
        while self.waiting.len() < wanted && !self.has_ended {
            match self.connection.as_ref().and_then(Connection::next) {
                Some(Received::Lines(lines)) => self.waiting.extend(lines),
                Some(Received::End) => self.has_ended = true,
                Some(Received::Broken(error)) => return Err(error),
                None => break,
            }
        }
        Ok(())
    }

    fn rows(&mut self, count: usize) -> Result<Option<RecordBatch>, TaskError> {
        let first = self.taken + 1;
        self.taken += i64::try_from(count).unwrap_or(0);
        let lines = (first..).zip(self.waiting.drain(..count));
        let Some(decoder) = &mut self.decoder else { return raw(&self.options, lines).map(Some) };
        lines.for_each(|(number, line)| decoder.push((0, number), &line));
        decoder.finish().map_err(|bad| {
            TaskError::BadData(format!(
                "table '{}': line {} of {}:{} cannot be read as JSON: {}. It begins: {}. Skip such lines with \
                 'json.ignore-parse-errors' = 'true'",
                self.options.table, bad.place.1, self.options.hostname, self.options.port, bad.reason, bad.excerpt
            ))
        })
    }
}

fn raw(options: &SocketOptions, lines: impl Iterator<Item = (i64, Vec<u8>)>) -> Result<RecordBatch, TaskError> {
    let mut column = StringBuilder::new();
    for (number, line) in lines {
        let text = std::str::from_utf8(&line).map_err(|error| {
            TaskError::BadData(format!(
                "table '{}': line {number} of {}:{} is no UTF-8: {error}",
                options.table, options.hostname, options.port
            ))
        })?;
        column.append_value(text);
    }
    RecordBatch::try_new(Arc::clone(&options.schema), vec![Arc::new(column.finish())])
        .map_err(|error| TaskError::Internal(error.to_string()))
}

impl Source for SocketReader {
    /// The state says nothing: a socket has no positions.
    fn open(&mut self, context: SourceContext, _state: RestoredState) -> Result<(), TaskError> {
        if context.operator.subtask.0 == 0 {
            self.connection = Some(Connection::open(&self.options, context.waker)?);
        } else {
            self.has_ended = true;
        }
        Ok(())
    }

    fn poll(&mut self, max_rows: usize) -> Result<SourcePoll, TaskError> {
        let max_rows = max_rows.max(1);
        loop {
            self.fetch(max_rows)?;
            let count = self.waiting.len().min(max_rows);
            if count == 0 {
                return Ok(if self.has_ended { SourcePoll::Finished } else { SourcePoll::Pending });
            }
            // Lines that are skipped leave nothing.
            if let Some(rows) = self.rows(count)? {
                return Ok(SourcePoll::Batch(Batch::inserts(rows)));
            }
        }
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let state = || SplitState { split: SPLIT.to_owned(), state: serde_json::json!({}) };
        Ok(self.connection.iter().map(|_| state()).collect())
    }
}
