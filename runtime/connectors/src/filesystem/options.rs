//! The options of WITH, checked without touching the place.

use super::layout::Layout;
use super::partition;
use crate::format::{self, DeadLetters, Format, NAMES};
use crate::options::{Known, Options};
use arrow::datatypes::SchemaRef;
use sluice_engine::table::{DEAD_LETTER, TableDescriptor, TableError};
use sluice_protocol::options::StorageOptions;
use sluice_storage::staging::Staging;
use std::sync::Arc;
use std::time::Duration;

/// Flink's default.
const FILE_SIZE: u64 = 128 << 20;

const PATH: &str = "path";
const FORMAT: &str = "format";
const MONITOR: &str = "source.monitor-interval";
const ROLL_SIZE: &str = "sink.rolling-policy.file-size";
const ROLL_INTERVAL: &str = "sink.rolling-policy.rollover-interval";
const DEFAULT_PARTITION: &str = "partition.default-name";

const REFUSED: [(&str, &str); 7] = [
    ("auto-compaction", "small files are not merged; make checkpoints rarer, or compact them by another job"),
    ("compaction.file-size", "small files are not merged; make checkpoints rarer, or compact them by another job"),
    ("sink.partition-commit.trigger", "files are committed with checkpoints, and no partition is marked as complete"),
    ("sink.partition-commit.delay", "files are committed with checkpoints, and no partition is marked as complete"),
    (
        "sink.partition-commit.policy.kind",
        "files are committed with checkpoints, and no partition is marked as complete",
    ),
    ("sink.parallelism", "the sink has the parallelism of what it follows"),
    (
        "sink.rolling-policy.check-interval",
        "the interval is looked at with every batch, and each checkpoint ends files",
    ),
];

/// How the rows lie in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileFormat {
    /// A record a line; those of CSV may hold ends of lines within quotes.
    Lines(Format),
    /// Parquet.
    Parquet,
}

impl FileFormat {
    /// What the names of its files end with.
    pub(super) const fn extension(&self) -> &'static str {
        match self {
            Self::Lines(Format::Json(_) | Format::DebeziumJson(_)) => "json",
            Self::Lines(Format::Csv(_)) => "csv",
            Self::Lines(Format::Raw(_)) => "txt",
            Self::Parquet => "parquet",
        }
    }
}

/// A table's options.
#[derive(Debug, Clone)]
pub(super) struct FileOptions {
    pub(super) table: String,
    /// What is read or written.
    pub(super) schema: SchemaRef,
    /// Which columns of a table that is read stand in its files.
    pub(super) layout: Layout,
    /// Where lines go that cannot be read.
    pub(super) dead_letters: DeadLetters,
    /// `s3://bucket/prefix` or `file:///path`.
    pub(super) uri: String,
    /// How S3 is reached.
    pub(super) storage: Option<StorageOptions>,
    pub(super) format: FileFormat,
    /// How often new files are looked for; `None`: once.
    pub(super) monitor: Option<Duration>,
    pub(super) roll_size: u64,
    pub(super) roll_interval: Option<Duration>,
}

impl FileOptions {
    pub(super) fn open(&self) -> Result<Staging, sluice_engine::error::TaskError> {
        Staging::open(&self.uri, self.storage.as_ref()).map_err(|failure| super::store_error(&failure))
    }
}

pub(super) fn read_sink(table: &TableDescriptor, storage: Option<&StorageOptions>) -> Result<FileOptions, TableError> {
    let names = [PATH, FORMAT, DEFAULT_PARTITION, ROLL_SIZE, ROLL_INTERVAL];
    let refused =
        [&REFUSED[..], &[(MONITOR, "a sink watches nothing; it is an option of a table that is read")]].concat();
    let known = Known { names: &names, formats: &[""], properties: false, refused: &refused };
    Options::new(table, &known)?.check_written()?;
    read(table, storage, &known)
}

pub(super) fn read_source(
    table: &TableDescriptor,
    storage: Option<&StorageOptions>,
) -> Result<FileOptions, TableError> {
    let names = [PATH, FORMAT, DEFAULT_PARTITION, MONITOR];
    let of_sinks = "it is an option of a table that is written to";
    let refused = [&REFUSED[..], &[(ROLL_SIZE, of_sinks), (ROLL_INTERVAL, of_sinks)]].concat();
    read(table, storage, &Known { names: &names, formats: &[""], properties: false, refused: &refused })
}

fn read(
    table: &TableDescriptor,
    storage: Option<&StorageOptions>,
    known: &Known<'_>,
) -> Result<FileOptions, TableError> {
    let options = Options::new(table, known)?;
    let path = options.required(PATH, "the directory, as file:///PATH or s3://BUCKET/PATH")?;
    let uri = if path.starts_with('/') { format!("file://{path}") } else { path.to_owned() };
    if let Err(failure) = Staging::open(&uri, storage) {
        return Err(options.error(PATH, format!("the option 'path': {failure}")));
    }
    let format =
        match options.required(FORMAT, "how rows lie in files: 'json', 'csv', 'raw', 'debezium-json' or 'parquet'")? {
            "parquet" => FileFormat::Parquet,
            _ => FileFormat::Lines(read_lines(&options)?),
        };
    let used = match &format {
        FileFormat::Lines(format) => vec![("", format.name().text())],
        FileFormat::Parquet => vec![],
    };
    format::check_used(&options, &used)?;
    let roll_size = match options.text(ROLL_SIZE) {
        None => FILE_SIZE,
        Some(value) => size(value)
            .filter(|size| *size > 0)
            .ok_or_else(|| options.wrong(ROLL_SIZE, value, "a size above 0, such as 128MB or 64 kb"))?,
    };
    let default = options.text(DEFAULT_PARTITION).unwrap_or(partition::DEFAULT_NAME);
    if default.is_empty() || (table.partition_keys.is_empty() && options.text(DEFAULT_PARTITION).is_some()) {
        let message = "the option 'partition.default-name' names the directory of NULL in a table with PARTITIONED BY";
        return Err(options.error(DEFAULT_PARTITION, message));
    }
    let layout = Layout::new(table, default).map_err(|what| crate::options::error(table, None, what))?;
    if format == FileFormat::Parquet && table.option(DEAD_LETTER).is_some() {
        return Err(options
            .error(DEAD_LETTER, "the option 'dead-letter' is for files of lines: a damaged Parquet file is no row"));
    }
    Ok(FileOptions {
        table: table.name.clone(),
        schema: Arc::clone(&layout.read),
        layout,
        dead_letters: DeadLetters::new(table),
        uri,
        storage: storage.cloned(),
        format,
        monitor: options.duration(MONITOR)?,
        roll_size,
        roll_interval: options.duration(ROLL_INTERVAL)?,
    })
}

/// The format of files of lines.
fn read_lines(options: &Options<'_>) -> Result<Format, TableError> {
    let allowed = "one of 'json', 'csv', 'raw', 'debezium-json', 'parquet'";
    let value = options.text(FORMAT).unwrap_or_default();
    if !NAMES.iter().any(|name| name.text() == value) {
        return Err(options.wrong(FORMAT, value, allowed));
    }
    let format = format::read(options, FORMAT, "", &NAMES, "the files")?;
    let of_text = |table: &TableDescriptor| {
        table.declared.fields().iter().all(|field| {
            table.metadata.contains_key(field.name())
                || table.partition_keys.contains(field.name())
                || *field.data_type() == arrow::datatypes::DataType::Utf8
        })
    };
    if matches!(format, Format::Raw(_)) && !of_text(options.table()) {
        return Err(options.error(FORMAT, "the format 'raw' makes a line the value of a column of type STRING"));
    }
    Ok(format)
}

/// A size as Flink writes it: a number, perhaps a space, a unit of 1024.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_lowercase().as_str() {
        "" | "b" | "bytes" => 0,
        "k" | "kb" | "kibibytes" => 10,
        "m" | "mb" | "mebibytes" => 20,
        "g" | "gb" | "gibibytes" => 30,
        "t" | "tb" | "tebibytes" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}
