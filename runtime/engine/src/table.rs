//! How SQL asks connectors for sources and sinks: tables as declared, and the catalog that knows connectors.

use crate::sink::SinkFactory;
use crate::source::SourceFactory;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The option that names the table which receives what a source cannot read.
pub const DEAD_LETTER: &str = "dead-letter";

/// Columns of dead letters, behind those of the table in the rows of its source.
pub mod dead_letter {
    /// The record as it came, BYTES.
    pub const RECORD: &str = "$record";
    /// The record as text.
    pub const TEXT: &str = "$text";
    /// Where it stood: never NULL in a dead letter, and NULL in all other rows.
    pub const PLACE: &str = "$place";
    /// Why it cannot be read.
    pub const REASON: &str = "$reason";
}

/// The columns of a source that hands out dead letters too. In a row either the table's own or those of [`dead_letter`] are
/// NULL.
#[must_use]
pub fn with_dead_letters(schema: &Schema) -> SchemaRef {
    let own = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let text = [dead_letter::TEXT, dead_letter::PLACE, dead_letter::REASON];
    let more = std::iter::once(Field::new(dead_letter::RECORD, DataType::Binary, true))
        .chain(text.map(|name| Field::new(name, DataType::Utf8, true)));
    Arc::new(Schema::new(own.chain(more).collect::<Vec<_>>()))
}

/// A table as CREATE TABLE declares it.
#[derive(Debug, Clone)]
pub struct TableDescriptor {
    /// Its name.
    pub name: String,
    /// The columns that are read or written: all, or those that a program needs.
    pub schema: SchemaRef,
    /// All columns in the order declared, computed ones left out: where columns go by position, these count.
    pub declared: SchemaRef,
    /// Columns that hold what the connector knows of a row rather than what stands in it, each with the connector's key
    /// for that.
    pub metadata: BTreeMap<String, String>,
    /// Positions of the PRIMARY KEY columns in `schema`; empty without one.
    pub primary_key: Vec<usize>,
    /// The columns of PARTITIONED BY, in their order.
    pub partition_keys: Vec<String>,
    /// The options of WITH in the order written, keys as written.
    pub options: Vec<TableOption>,
}

/// One option of WITH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableOption {
    /// `scan.startup.mode`.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl TableDescriptor {
    /// A table of physical columns, all of which are read or written.
    #[must_use]
    pub fn new(name: impl Into<String>, schema: SchemaRef, primary_key: Vec<usize>, options: Vec<TableOption>) -> Self {
        let (name, declared, metadata) = (name.into(), Arc::clone(&schema), BTreeMap::new());
        Self { name, schema, declared, metadata, primary_key, partition_keys: Vec::new(), options }
    }

    /// The value of an option.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.iter().find(|option| option.key == key).map(|option| option.value.as_str())
    }
}

/// A table that a connector refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("table '{table}': {message}")]
pub struct TableError {
    /// The table.
    pub table: String,
    /// The option at fault, when it is one: the place in the user's text is found by it.
    pub option: Option<String>,
    /// What is wrong, what was expected, and what to do.
    pub message: String,
}

/// Knows the connectors.
pub trait ConnectorCatalog: Send + Sync {
    /// A source for the table. Checks every option, contacts nobody.
    ///
    /// # Errors
    /// When the table cannot be read or an option is wrong or unknown.
    fn source(&self, table: &TableDescriptor) -> Result<Arc<dyn SourceFactory>, TableError>;

    /// A sink for the table. Checks every option, contacts nobody.
    ///
    /// # Errors
    /// When the table cannot be written or an option is wrong or unknown.
    fn sink(&self, table: &TableDescriptor) -> Result<Arc<dyn SinkFactory>, TableError>;
}
