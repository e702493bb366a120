//! Which columns stand in a file and which say something of it: `METADATA FROM 'file.path'` and the like.

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use sluice_engine::batch::Batch;
use sluice_engine::table::TableDescriptor;
use std::sync::Arc;

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Path,
    Name,
    Size,
}

/// Where a column comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The file's content, at this position of what is read.
    Content(usize),
    Metadata(Key),
}

/// The columns of a table.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    schema: SchemaRef,
    parts: Vec<Part>,
    /// What is read of a file.
    pub(super) read: SchemaRef,
    /// All that stands in a file.
    pub(super) declared: SchemaRef,
}

/// A file that rows are from.
pub(super) struct File {
    pub(super) path: String,
    pub(super) size: Option<u64>,
}

impl Layout {
    /// Divides a table's columns.
    ///
    /// # Errors
    /// When there is no such metadata.
    pub(super) fn new(table: &TableDescriptor) -> Result<Self, String> {
        let (mut read, mut parts) = (Vec::new(), Vec::new());
        for field in table.schema.fields() {
            if let Some(key) = table.metadata.get(field.name()) {
                let key = key_of(key, field.data_type());
                parts.push(Part::Metadata(key.map_err(|what| format!("column '{}': {what}", field.name()))?));
            } else {
                parts.push(Part::Content(read.len()));
                read.push(Arc::clone(field));
            }
        }
        let is_content = |field: &&Arc<arrow::datatypes::Field>| !table.metadata.contains_key(field.name());
        let declared: Vec<_> = table.declared.fields().iter().filter(is_content).cloned().collect();
        if read.is_empty() {
            // Rows are told by what is read.
            read.extend(declared.first().cloned());
        }
        let (read, declared) = (Arc::new(Schema::new(read)), Arc::new(Schema::new(declared)));
        Ok(Self { schema: Arc::clone(&table.schema), parts, read, declared })
    }

    /// Whether a file's size is to be asked for.
    pub(super) fn wants_size(&self) -> bool {
        self.parts.contains(&Part::Metadata(Key::Size))
    }

    /// Rows of a file as those of the table.
    pub(super) fn complete(&self, Batch { rows, kinds }: Batch, file: &File) -> Result<Batch, ArrowError> {
        if self.read.fields() == self.schema.fields() {
            return Ok(Batch { rows, kinds });
        }
        let count = rows.num_rows();
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let texts = |text: &str| Arc::new(StringArray::from_iter_values(std::iter::repeat_n(text, count))) as ArrayRef;
        let size = file.size.and_then(|size| i64::try_from(size).ok());
        let column = |part: &Part| match part {
            Part::Content(index) => Arc::clone(rows.column(*index)),
            Part::Metadata(Key::Path) => texts(&file.path),
            Part::Metadata(Key::Name) => texts(name),
            Part::Metadata(Key::Size) => Arc::new(Int64Array::from_iter(std::iter::repeat_n(size, count))) as ArrayRef,
        };
        let columns = self.parts.iter().map(column).collect();
        Ok(Batch { rows: RecordBatch::try_new(Arc::clone(&self.schema), columns)?, kinds })
    }
}

fn key_of(name: &str, declared: &DataType) -> Result<Key, String> {
    let (key, own) = match name {
        "file.path" => (Key::Path, DataType::Utf8),
        "file.name" => (Key::Name, DataType::Utf8),
        "file.size" => (Key::Size, DataType::Int64),
        _ => {
            return Err(format!(
                "connector 'filesystem' has no metadata '{name}'; it has 'file.path', 'file.name' and 'file.size'"
            ));
        }
    };
    if own == *declared { Ok(key) } else { Err(format!("the metadata '{name}' is {own}, but the column {declared}")) }
}
