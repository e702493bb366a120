//! Which columns stand in a file and which say something of it: `METADATA FROM 'file.path'` and the like.

use super::partition::{self, SplitError};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef, TimeUnit};
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
    ModificationTime,
}

/// Where a column comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The file's content, at this position of what is read.
    Content(usize),
    /// The names of the directories above the file.
    Partition,
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
    /// The columns of PARTITIONED BY.
    partition_keys: Vec<String>,
    /// The name of NULL in directories.
    default_partition: String,
}

/// A file that rows are from.
pub(super) struct File {
    pub(super) path: String,
    /// Its place below the table's directory.
    pub(super) key: String,
    pub(super) size: Option<u64>,
    /// Milliseconds since 1970, when a column asks for them.
    pub(super) modified: Option<i64>,
}

impl Layout {
    /// Divides a table's columns.
    ///
    /// # Errors
    /// When there is no such metadata.
    pub(super) fn new(table: &TableDescriptor, default_partition: &str) -> Result<Self, String> {
        check_partitions(table)?;
        let is_partition = |name: &String| table.partition_keys.contains(name);
        let (mut read, mut parts) = (Vec::new(), Vec::new());
        for field in table.schema.fields() {
            if let Some(key) = table.metadata.get(field.name()) {
                let key = key_of(key, field.data_type());
                parts.push(Part::Metadata(key.map_err(|what| format!("column '{}': {what}", field.name()))?));
            } else if is_partition(field.name()) {
                parts.push(Part::Partition);
            } else {
                parts.push(Part::Content(read.len()));
                read.push(Arc::clone(field));
            }
        }
        let is_content = |field: &&FieldRef| !table.metadata.contains_key(field.name()) && !is_partition(field.name());
        let declared: Vec<_> = table.declared.fields().iter().filter(is_content).cloned().collect();
        if read.is_empty() {
            // Rows are told by what is read.
            read.extend(declared.first().cloned());
        }
        let (read, declared) = (Arc::new(Schema::new(read)), Arc::new(Schema::new(declared)));
        let partition_keys = table.partition_keys.clone();
        let default_partition = default_partition.to_owned();
        Ok(Self { schema: Arc::clone(&table.schema), parts, read, declared, partition_keys, default_partition })
    }

    /// Whether files lie in directories of partitions.
    pub(super) fn is_partitioned(&self) -> bool {
        !self.partition_keys.is_empty()
    }

    /// The rows of each directory, without the columns that its name says; one without a name when there are no
    /// partitions.
    pub(super) fn split(&self, batch: Batch) -> Result<Vec<(String, Batch)>, SplitError> {
        if !self.is_partitioned() {
            return Ok(vec![(String::new(), batch)]);
        }
        let Batch { rows, kinds } = batch;
        let partitions = self.partition_keys.iter().map(|key| {
            let missing = || ArrowError::SchemaError(format!("there is no column '{key}'"));
            rows.column_by_name(key).cloned().ok_or_else(missing)
        });
        let partitions = partitions.collect::<Result<Vec<_>, _>>()?;
        let is_content = |(part, _): &(&Part, _)| matches!(part, Part::Content(_));
        let content = self.parts.iter().zip(rows.columns()).filter(is_content).map(|(_, column)| Arc::clone(column));
        let content = RecordBatch::try_new(Arc::clone(&self.read), content.collect())?;
        partition::split(&self.partition_keys, &partitions, &self.default_partition, &Batch { rows: content, kinds })
    }

    /// Whether a file's size is to be asked for.
    pub(super) fn wants_size(&self) -> bool {
        self.parts.contains(&Part::Metadata(Key::Size))
    }

    /// Whether the time of a file's last change is to be asked for.
    pub(super) fn wants_modification_time(&self) -> bool {
        self.parts.contains(&Part::Metadata(Key::ModificationTime))
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
        let column = |(part, field): (&Part, &FieldRef)| {
            Ok(match part {
                Part::Content(index) => Arc::clone(rows.column(*index)),
                Part::Partition => {
                    let default = &self.default_partition;
                    partition::column(&file.key, field.name(), field.data_type(), default, count)?
                }
                Part::Metadata(Key::Path) => texts(&file.path),
                Part::Metadata(Key::Name) => texts(name),
                Part::Metadata(Key::Size) => Arc::new(Int64Array::from_iter(std::iter::repeat_n(size, count))),
                Part::Metadata(Key::ModificationTime) => {
                    let times = TimestampMillisecondArray::from_iter(std::iter::repeat_n(file.modified, count));
                    Arc::new(times.with_timezone("UTC"))
                }
            })
        };
        let columns = self.parts.iter().zip(self.schema.fields()).map(column).collect::<Result<_, ArrowError>>()?;
        Ok(Batch { rows: RecordBatch::try_new(Arc::clone(&self.schema), columns)?, kinds })
    }
}

fn key_of(name: &str, declared: &DataType) -> Result<Key, String> {
    let (key, own) = match name {
        "file.path" => (Key::Path, DataType::Utf8),
        "file.name" => (Key::Name, DataType::Utf8),
        "file.size" => (Key::Size, DataType::Int64),
        "file.modification-time" => {
            (Key::ModificationTime, DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())))
        }
        _ => {
            return Err(format!(
                "connector 'filesystem' has no metadata '{name}'; it has 'file.path', 'file.name', 'file.size' and \
                 'file.modification-time'"
            ));
        }
    };
    if own == *declared { Ok(key) } else { Err(format!("the metadata '{name}' is {own}, but the column {declared}")) }
}

fn check_partitions(table: &TableDescriptor) -> Result<(), String> {
    for key in &table.partition_keys {
        let declared = table.declared.field_with_name(key).map_err(|error| error.to_string())?;
        if !partition::is_supported(declared.data_type()) {
            return Err(format!(
                "PARTITIONED BY takes columns of STRING, BOOLEAN, DATE and whole numbers, but '{key}' is {}: partition by \
                 a text that is made of it",
                declared.data_type()
            ));
        }
        if key.starts_with(['.', '_']) {
            return Err(format!(
                "readers pass over directories that begin as '{key}' does: give the column another name"
            ));
        }
    }
    Ok(())
}
