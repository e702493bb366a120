//! The options of WITH, checked without touching the place.

use crate::json::options::{self as json, JsonOptions};
use crate::options::{Known, Options};
use arrow::datatypes::SchemaRef;
use sluice_engine::table::{TableDescriptor, TableError};
use sluice_protocol::options::StorageOptions;
use sluice_storage::staging::Staging;
use std::time::Duration;

/// Flink's default.
const FILE_SIZE: u64 = 128 << 20;

const PATH: &str = "path";
const FORMAT: &str = "format";
const MONITOR: &str = "source.monitor-interval";
const ROLL_SIZE: &str = "sink.rolling-policy.file-size";
const ROLL_INTERVAL: &str = "sink.rolling-policy.rollover-interval";

const DELIMITER: &str = "csv.field-delimiter";

const FORMAT_NAMES: [&str; 4] =
    [DELIMITER, "json.ignore-parse-errors", "json.fail-on-missing-field", "json.timestamp-format.standard"];

const REFUSED: [(&str, &str); 8] = [
    ("auto-compaction", "small files are not merged; make checkpoints rarer, or compact them by another job"),
    ("compaction.file-size", "small files are not merged; make checkpoints rarer, or compact them by another job"),
    ("partition.default-name", "tables are not partitioned: write a table for each partition"),
    ("sink.partition-commit.trigger", "tables are not partitioned: files are committed with checkpoints"),
    ("sink.partition-commit.delay", "tables are not partitioned: files are committed with checkpoints"),
    ("sink.partition-commit.policy.kind", "tables are not partitioned: files are committed with checkpoints"),
    ("sink.parallelism", "the sink has the parallelism of what it follows"),
    (
        "sink.rolling-policy.check-interval",
        "the interval is looked at with every batch, and each checkpoint ends files",
    ),
];

/// How the rows lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// One object a line.
    Json(JsonOptions),
    /// Comma-separated values without a header.
    Csv {
        /// What stands between two fields.
        delimiter: u8,
    },
    /// Parquet.
    Parquet,
}

impl Format {
    /// What the names of its files end with.
    pub(super) const fn extension(self) -> &'static str {
        match self {
            Self::Json(_) => "json",
            Self::Csv { .. } => "csv",
            Self::Parquet => "parquet",
        }
    }
}

/// A table's options.
#[derive(Debug, Clone)]
pub(super) struct FileOptions {
    pub(super) table: String,
    pub(super) schema: SchemaRef,
    /// `s3://bucket/prefix` or `file:///path`.
    pub(super) uri: String,
    /// How S3 is reached.
    pub(super) storage: Option<StorageOptions>,
    pub(super) format: Format,
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
    let names = [&[PATH, FORMAT, ROLL_SIZE, ROLL_INTERVAL][..], &FORMAT_NAMES].concat();
    let refused =
        [&REFUSED[..], &[(MONITOR, "a sink watches nothing; it is an option of a table that is read")]].concat();
    read(table, storage, &Known { names: &names, properties: false, refused: &refused })
}

pub(super) fn read_source(
    table: &TableDescriptor,
    storage: Option<&StorageOptions>,
) -> Result<FileOptions, TableError> {
    let names = [&[PATH, FORMAT, MONITOR][..], &FORMAT_NAMES].concat();
    let of_sinks = "it is an option of a table that is written to";
    let refused = [&REFUSED[..], &[(ROLL_SIZE, of_sinks), (ROLL_INTERVAL, of_sinks)]].concat();
    read(table, storage, &Known { names: &names, properties: false, refused: &refused })
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
    let format = match options.required(FORMAT, "how rows lie in files: 'json', 'csv' or 'parquet'")? {
        "json" => Format::Json(json::read(&options, "json")?),
        "csv" => Format::Csv { delimiter: delimiter(&options)? },
        "parquet" => Format::Parquet,
        other => return Err(options.wrong(FORMAT, other, "one of 'json', 'csv', 'parquet'")),
    };
    let roll_size = match options.text(ROLL_SIZE) {
        None => FILE_SIZE,
        Some(value) => size(value)
            .filter(|size| *size > 0)
            .ok_or_else(|| options.wrong(ROLL_SIZE, value, "a size above 0, such as 128MB or 64 kb"))?,
    };
    Ok(FileOptions {
        table: table.name.clone(),
        schema: table.schema.clone(),
        uri,
        storage: storage.cloned(),
        format,
        monitor: options.duration(MONITOR)?,
        roll_size,
        roll_interval: options.duration(ROLL_INTERVAL)?,
    })
}

/// One ASCII character; the tables' types must be such as text can say.
fn delimiter(options: &Options<'_>) -> Result<u8, TableError> {
    let is_binary = |field: &&arrow::datatypes::FieldRef| *field.data_type() == arrow::datatypes::DataType::Binary;
    if let Some(field) = options.table().schema.fields().iter().find(is_binary) {
        let message =
            format!("the format 'csv' cannot hold column '{}' of type BYTES; use json or parquet", field.name());
        return Err(options.error(FORMAT, message));
    }
    let Some(value) = options.text(DELIMITER) else { return Ok(b',') };
    let value = if value == "\\t" { "\t" } else { value };
    match *value.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(byte),
        _ => Err(options.wrong(DELIMITER, value, "one ASCII character other than a quote and the ends of lines")),
    }
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
