//! The subtask: lines to rows.

use super::connection::{Connection, Received};
use super::{SPLIT, SocketOptions};
use crate::format::{Decoder, MAX_MESSAGES};
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
    decoder: Decoder,
    connection: Option<Connection>,
    /// Lines that came and are not rows yet.
    waiting: VecDeque<Vec<u8>>,
    has_ended: bool,
    /// Lines that were made rows, for messages.
    taken: i64,
    /// Lines that were passed over.
    malformed: u64,
}

impl SocketReader {
    pub(super) const fn new(options: Arc<SocketOptions>, decoder: Decoder) -> Self {
        Self { options, decoder, connection: None, waiting: VecDeque::new(), has_ended: false, taken: 0, malformed: 0 }
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

    fn rows(&mut self, count: usize) -> Result<Option<Batch>, TaskError> {
        let first = self.taken + 1;
        self.taken += i64::try_from(count).unwrap_or(0);
        let lines = (first..).zip(self.waiting.drain(..count));
        lines.for_each(|(number, line)| self.decoder.push((0, number), &line));
        let made = self.decoder.finish().map_err(|bad| {
            let SocketOptions { table, hostname, port, format, .. } = self.options.as_ref();
            TaskError::BadData(format!(
                "table '{table}': line {} of {hostname}:{port} cannot be read as {}: {}. It begins: {}. {}",
                bad.place.1,
                format.name().text(),
                bad.reason,
                bad.excerpt(),
                format.advice("")
            ))
        })?;
        self.malformed += made.bad.len() as u64;
        let bad: Vec<_> = made.bad.into_iter().map(|bad| (format!("line {}", bad.place.1), bad)).collect();
        let joined = self.options.dead_letters.join(made.batch, &bad);
        joined.map_err(|error| TaskError::Internal(format!("dead letters: {error}")))
    }
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
        let max_rows = max_rows.clamp(1, MAX_MESSAGES);
        loop {
            self.fetch(max_rows)?;
            let count = self.waiting.len().min(max_rows);
            if count == 0 {
                return Ok(if self.has_ended { SourcePoll::Finished } else { SourcePoll::Pending });
            }
            // Lines that are skipped leave nothing.
            if let Some(batch) = self.rows(count)? {
                return Ok(SourcePoll::Batch(batch));
            }
        }
    }

    fn snapshot(&mut self) -> Result<Vec<SplitState>, TaskError> {
        let state = || SplitState { split: SPLIT.to_owned(), state: serde_json::json!({}) };
        Ok(self.connection.iter().map(|_| state()).collect())
    }

    fn malformed_records(&self) -> u64 {
        self.malformed
    }
}
