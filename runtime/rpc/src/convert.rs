//! Generated types to and from the ones that decisions use.
//!
//! A message that lacks a field, or holds one that cannot be read, is refused with the path of that field. A message
//! of a kind that this version does not know is [`ConversionError::UnknownKind`]: the receiver may skip it.

mod from_task_manager;
mod to_task_manager;

use crate::v1;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_protocol::{Attempt, Generation, Run, SubtaskId, SubtaskIndex, VertexId};

/// A message that cannot be put on the wire or taken from it.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// The sender is newer, or the message is empty.
    #[error("{0}: a message of a kind that this version does not know; both sides should run the same version")]
    UnknownKind(&'static str),
    /// A field without which the message means nothing.
    #[error("{0}: missing; the sender runs another version")]
    Missing(String),
    /// A field that holds something else than expected.
    #[error("{field}: cannot be read as {expected}: {message}")]
    Invalid {
        /// The path of the field.
        field: String,
        /// What it should hold.
        expected: &'static str,
        /// What is wrong.
        message: String,
    },
}

fn write_json<T: Serialize>(value: &T, field: &str, expected: &'static str) -> Result<Vec<u8>, ConversionError> {
    serde_json::to_vec(value).map_err(|error| invalid(field, expected, &error))
}

fn read_json<T: DeserializeOwned>(bytes: &[u8], field: &str, expected: &'static str) -> Result<T, ConversionError> {
    serde_json::from_slice(bytes).map_err(|error| invalid(field, expected, &error))
}

fn invalid(field: &str, expected: &'static str, error: &serde_json::Error) -> ConversionError {
    ConversionError::Invalid { field: field.to_owned(), expected, message: error.to_string() }
}

/// `Acknowledge` and the like: the message that a field belongs to, so that errors name both.
#[derive(Clone, Copy)]
struct Place(&'static str);

impl Place {
    fn run(self, run: Option<v1::RunId>) -> Result<Run, ConversionError> {
        let run = run.ok_or_else(|| self.missing("run"))?;
        Ok(Run { generation: Generation(run.generation), attempt: Attempt(run.attempt) })
    }

    fn subtask(self, subtask: Option<v1::Subtask>) -> Result<SubtaskId, ConversionError> {
        let subtask = subtask.ok_or_else(|| self.missing("subtask"))?;
        Ok(SubtaskId { vertex: VertexId(subtask.vertex), index: SubtaskIndex(subtask.index) })
    }

    fn missing(self, field: &str) -> ConversionError {
        ConversionError::Missing(format!("{}.{field}", self.0))
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the field is optional in the generated type")]
const fn run(run: Run) -> Option<v1::RunId> {
    Some(v1::RunId { generation: run.generation.0, attempt: run.attempt.0 })
}

#[expect(clippy::unnecessary_wraps, reason = "the field is optional in the generated type")]
const fn subtask(subtask: SubtaskId) -> Option<v1::Subtask> {
    Some(v1::Subtask { vertex: subtask.vertex.0, index: subtask.index.0 })
}

#[cfg(test)]
mod tests;
