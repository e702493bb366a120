//! The `datagen` source: generated rows.
//!
//! The rows of a table are numbered from 0, and row `g` is a pure function of the option `seed` and of `g`: it
//! depends neither on parallelism nor on when or how often the job was restarted. The one exception is a random
//! TIMESTAMP, which lies in the past of the moment it is made, as in Flink.
//!
//! Splits: `datagen-0` … `datagen-63` ([`SPLITS`]), whatever the parallelism, so that a restore may rescale. Rows are
//! dealt to them in blocks of [`BLOCK`]: block `b` belongs to split `b % SPLITS`. A subtask visits the blocks that it
//! owns in ascending order, so with parallelism 1 a `sequence` comes in order. A split's state is
//! `{"offset": n}`: `n` rows of the split were handed out.
//!
//! - `options`: what can be said in WITH. - `generator`: columns from row numbers. - `reader`: the subtask.

mod generator;
mod options;
mod reader;

#[cfg(test)]
mod tests;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use generator::Columns;
use options::DatagenOptions;
use sluice_engine::error::TaskError;
use sluice_engine::source::{Source, SourceFactory};
use sluice_engine::table::{TableDescriptor, TableError};
use sluice_protocol::SubtaskIndex;
use std::ops::Range;
use std::sync::Arc;

/// Number of splits.
pub const SPLITS: u32 = 64;

/// Rows of a block.
pub const BLOCK: u64 = 16;

/// Makes the generators of a table.
pub struct DatagenSourceFactory {
    schema: SchemaRef,
    options: Arc<DatagenOptions>,
    columns: Arc<Columns>,
}

impl DatagenSourceFactory {
    /// Checks the options.
    ///
    /// # Errors
    /// When an option is unknown or wrong, or a column's type cannot be generated.
    pub fn new(table: &TableDescriptor) -> Result<Self, TableError> {
        let (options, columns) = options::read(table)?;
        Ok(Self { schema: table.schema.clone(), options: Arc::new(options), columns: Arc::new(columns) })
    }

    /// Rows by their numbers: what any run of the job makes of them. `now` (milliseconds since the epoch) matters
    /// only to random TIMESTAMP columns.
    ///
    /// # Errors
    /// When the rows cannot be put together, which is a fault of this crate.
    pub fn rows(&self, numbers: Range<u64>, now: u64) -> Result<RecordBatch, TaskError> {
        self.columns.generate(&self.schema, &[numbers], now)
    }

    /// How many rows there are, when their number is bounded.
    #[must_use]
    pub fn number_of_rows(&self) -> Option<u64> {
        self.options.number_of_rows
    }
}

impl SourceFactory for DatagenSourceFactory {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        Ok(Box::new(reader::DatagenReader::new(self.schema.clone(), self.options.clone(), self.columns.clone())))
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The split's number modulo the parallelism.
    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex {
        SubtaskIndex(split_number(split).unwrap_or(0) % parallelism.max(1))
    }
}

/// `datagen-7` as 7.
fn split_number(split: &str) -> Option<u32> {
    split.strip_prefix("datagen-")?.parse().ok().filter(|number| *number < SPLITS)
}

/// The name of a split.
fn split_name(number: u32) -> String {
    format!("datagen-{number}")
}
