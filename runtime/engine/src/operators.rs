//! Operators without state.

mod filter_project;
#[cfg(test)]
mod tests;

pub use filter_project::{ExpressionFactory, FilterProject, FilterProjectFactory};

use crate::error::TaskError;
use arrow::array::{ArrayRef, RecordBatch};

/// A compiled expression over the columns of a batch; evaluated once per batch.
pub trait RowExpression: Send {
    /// One value per row.
    ///
    /// # Errors
    /// When a row cannot be computed.
    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, TaskError>;
}
