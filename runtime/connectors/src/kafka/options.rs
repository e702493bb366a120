//! The options of `kafka` and `upsert-kafka`. The names and defaults are Flink's.

use super::offset_options::{Startup, Stop, read_bounded, read_startup};
use super::properties::ClientProperties;
use crate::json::encode::JsonEncoder;
use crate::json::options::{self as json, JsonOptions};
use crate::json::timestamp::TimestampFormat;
use crate::options::{self, CONNECTOR, Known, Options};
use sluice_engine::table::{TableDescriptor, TableError};
use std::time::Duration;

const KEY_FORMAT: &str = "key columns are not supported by connector 'kafka'; 'upsert-kafka' writes keys. Remove it";

/// A table may be read and written, so both directions know all of them.
const KAFKA: Known<'static> = Known {
    names: &[
        "topic",
        "format",
        "value.format",
        "json.ignore-parse-errors",
        "json.fail-on-missing-field",
        "json.timestamp-format.standard",
        "value.json.ignore-parse-errors",
        "value.json.fail-on-missing-field",
        "value.json.timestamp-format.standard",
        "scan.startup.mode",
        "scan.startup.timestamp-millis",
        "scan.startup.specific-offsets",
        "scan.bounded.mode",
        "scan.bounded.timestamp-millis",
        "scan.bounded.specific-offsets",
        "scan.topic-partition-discovery.interval",
        "sink.delivery-guarantee",
    ],
    properties: true,
    refused: &[
        ("topic-pattern", "list the topics in 'topic', with ';' between them"),
        ("key.format", KEY_FORMAT),
        ("key.fields", KEY_FORMAT),
        ("key.fields-prefix", KEY_FORMAT),
        ("value.fields-include", KEY_FORMAT),
        ("scan.parallelism", "a source runs with the parallelism of the job; remove it"),
        ("sink.parallelism", "a sink runs with the parallelism of what it is chained to; remove it"),
        ("sink.partitioner", "'properties.partitioner' chooses one of librdkafka's; write it instead"),
        ("sink.transactional-id-prefix", "the sink writes without transactions; remove it"),
    ],
};

const UPSERT: Known<'static> = Known {
    names: &[
        "topic",
        "key.format",
        "value.format",
        "value.fields-include",
        "key.json.timestamp-format.standard",
        "value.json.timestamp-format.standard",
        "sink.delivery-guarantee",
    ],
    properties: true,
    refused: &[
        ("format", "the key and the value each have a format; set 'key.format' and 'value.format'"),
        ("key.fields-prefix", "the columns are written by their names; remove it"),
        ("sink.parallelism", "a sink runs with the parallelism of what it is chained to; remove it"),
        ("sink.transactional-id-prefix", "the sink writes without transactions; remove it"),
        (
            "sink.buffer-flush.max-rows",
            "operators emit the net change of a key already; 'properties.linger.ms' says how long rows may linger",
        ),
        (
            "sink.buffer-flush.interval",
            "operators emit the net change of a key already; 'properties.linger.ms' says how long rows may linger",
        ),
    ],
};

const DEFAULT_DISCOVERY: Duration = Duration::from_secs(300);

/// What a reader needs.
#[derive(Debug, Clone)]
pub(super) struct SourceOptions {
    /// The table, for messages.
    pub(super) table: String,
    /// What to read.
    pub(super) topics: Vec<String>,
    /// The client's.
    pub(super) properties: ClientProperties,
    /// The format's.
    pub(super) json: JsonOptions,
    /// Where to begin without state.
    pub(super) startup: Startup,
    /// Where to end; `None`: never.
    pub(super) bounded: Option<Stop>,
    /// How often to look for new partitions; `None`: only when the source opens.
    pub(super) discovery: Option<Duration>,
}

/// Options of the `kafka` source.
pub(super) fn read_source(table: &TableDescriptor) -> Result<SourceOptions, TableError> {
    let options = Options::new(table, &KAFKA)?;
    let topics: Vec<String> = options
        .required("topic", "what to read: a topic, or several with ';' between them")?
        .split(';')
        .map(|topic| topic.trim().to_owned())
        .filter(|topic| !topic.is_empty())
        .collect();
    let json = json::read(&options, read_format(&options)?)?;
    let properties = ClientProperties::read(&options)?;
    let startup = read_startup(&options, topics.len(), properties.group_id.is_some())?;
    let bounded = read_bounded(&options, topics.len(), properties.group_id.is_some())?;
    let discovery = options.duration("scan.topic-partition-discovery.interval")?.unwrap_or(DEFAULT_DISCOVERY);
    let discovery = (!discovery.is_zero() && bounded.is_none()).then_some(discovery);
    Ok(SourceOptions { table: table.name.clone(), topics, properties, json, startup, bounded, discovery })
}

/// The prefix of the format's options.
fn read_format(options: &Options<'_>) -> Result<&'static str, TableError> {
    match (options.text("format"), options.text("value.format")) {
        (Some(_), Some(_)) => {
            let message = "the options 'format' and 'value.format' mean the same; remove one of them";
            Err(options.error("value.format", message))
        }
        (None, Some(_)) => json::require_json(options, "value.format", "the values").map(|()| "value.json"),
        _ => json::require_json(options, "format", "the values").map(|()| "json"),
    }
}

/// What a writer needs.
#[derive(Debug, Clone)]
pub(super) struct SinkOptions {
    /// The table, for messages.
    pub(super) table: String,
    /// Where to write.
    pub(super) topic: String,
    /// The client's.
    pub(super) properties: ClientProperties,
    /// Writes keys; only for upserts.
    pub(super) key: Option<JsonEncoder>,
    /// Writes values.
    pub(super) value: JsonEncoder,
}

/// Options of the `kafka` sink.
pub(super) fn read_append_sink(table: &TableDescriptor) -> Result<SinkOptions, TableError> {
    let options = Options::new(table, &KAFKA)?;
    if !table.primary_key.is_empty() {
        let message = "a table with a PRIMARY KEY cannot be written by connector 'kafka', which only appends; use \
                       'upsert-kafka', or remove the PRIMARY KEY";
        return Err(options.error(CONNECTOR, message));
    }
    let json = json::read(&options, read_format(&options)?)?;
    let value = encoder(&options, &all_columns(table), json.timestamp_format)?;
    build_sink(&options, None, value)
}

/// Options of the `upsert-kafka` sink.
pub(super) fn read_upsert_sink(table: &TableDescriptor) -> Result<SinkOptions, TableError> {
    let options = Options::new(table, &UPSERT)?;
    if table.primary_key.is_empty() {
        let message = "connector 'upsert-kafka' writes one value per key and needs to know the key: declare \
                       PRIMARY KEY (…) NOT ENFORCED";
        return Err(options::error(table, None, message));
    }
    json::require_json(&options, "key.format", "the keys")?;
    json::require_json(&options, "value.format", "the values")?;
    let include = [("ALL", true), ("EXCEPT_KEY", false)];
    let include_key = options.choice("value.fields-include", &include)?.unwrap_or(true);
    let mut columns = all_columns(table);
    columns.retain(|position| include_key || !table.primary_key.contains(position));
    let key = encoder(&options, &table.primary_key, json::read(&options, "key.json")?.timestamp_format)?;
    let value = encoder(&options, &columns, json::read(&options, "value.json")?.timestamp_format)?;
    build_sink(&options, Some(key), value)
}

fn build_sink(options: &Options<'_>, key: Option<JsonEncoder>, value: JsonEncoder) -> Result<SinkOptions, TableError> {
    let topic = options.required("topic", "where to write")?;
    if topic.contains(';') {
        return Err(options.wrong("topic", topic, "one topic, since a sink writes to one"));
    }
    let guarantees = [("at-least-once", true), ("none", true), ("exactly-once", false)];
    if options.choice("sink.delivery-guarantee", &guarantees)? == Some(false) {
        return Err(options.wrong(
            "sink.delivery-guarantee",
            "exactly-once",
            "'at-least-once' or 'none' for now: the sink writes without transactions, and a restart may write some \
             rows again",
        ));
    }
    Ok(SinkOptions {
        table: options.table().name.clone(),
        topic: topic.to_owned(),
        properties: ClientProperties::read(options)?,
        key,
        value,
    })
}

fn all_columns(table: &TableDescriptor) -> Vec<usize> {
    (0..table.schema.fields().len()).collect()
}

fn encoder(options: &Options<'_>, columns: &[usize], format: TimestampFormat) -> Result<JsonEncoder, TableError> {
    let table = options.table();
    JsonEncoder::new(&table.schema, columns, format).map_err(|field| {
        let message =
            format!("column '{}' of type {} cannot be written as JSON; cast it", field.name(), field.data_type());
        options::error(table, None, message)
    })
}
