//! The options of `kafka` and `upsert-kafka`. The names and defaults are Flink's.

use super::offset_options::{Startup, Stop, read_bounded, read_startup};
use super::properties::ClientProperties;
use super::rows::{KeyFormat, Layout};
use super::topics::Topics;
use super::written::WrittenMetadata;
use crate::format::{self, DeadLetters, Format, NAMES, Name, RowEncoder};
use crate::options::{self, CONNECTOR, Known, Options};
use arrow::datatypes::Schema;
use sluice_engine::sink::{AcceptedKinds, DeliveryGuarantee};
use sluice_engine::table::{TableDescriptor, TableError};
use std::time::Duration;

/// What a key can be: a change of a row is none.
const KEY_FORMATS: [Name; 3] = [Name::Json, Name::Csv, Name::Raw];

/// A table may be read and written, so both directions know all of them.
const KAFKA: Known<'static> = Known {
    names: &[
        "topic",
        "topic-pattern",
        "format",
        "value.format",
        "value.fields-include",
        "key.format",
        "key.fields",
        "key.fields-prefix",
        "scan.startup.mode",
        "scan.startup.timestamp-millis",
        "scan.startup.specific-offsets",
        "scan.bounded.mode",
        "scan.bounded.timestamp-millis",
        "scan.bounded.specific-offsets",
        "scan.topic-partition-discovery.interval",
        "sink.delivery-guarantee",
        "sink.transactional-id-prefix",
        "sink.commit-failure",
    ],
    formats: &["", "value.", "key."],
    properties: true,
    refused: &[
        ("scan.parallelism", "a source runs with the parallelism of the job; remove it"),
        ("sink.parallelism", "a sink runs with the parallelism of what it is chained to; remove it"),
        ("sink.partitioner", "'properties.partitioner' chooses one of librdkafka's; write it instead"),
    ],
};

const UPSERT: Known<'static> = Known {
    names: &[
        "topic",
        "key.format",
        "value.format",
        "value.fields-include",
        "sink.delivery-guarantee",
        "sink.transactional-id-prefix",
        "sink.commit-failure",
    ],
    formats: &["value.", "key."],
    properties: true,
    refused: &[
        ("format", "the key and the value each have a format; set 'key.format' and 'value.format'"),
        ("key.fields-prefix", "the columns are written by their names; remove it"),
        ("sink.parallelism", "a sink runs with the parallelism of what it is chained to; remove it"),
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

/// After how long brokers abort a transaction.
const TRANSACTION_TIMEOUT: &str = "properties.transaction.timeout.ms";

/// Twice what a commit may take, rounded: below, no checkpoint would be completed (S4).
const SHORTEST_TIMEOUT: u64 = 30_000;

const DEFAULT_DISCOVERY: Duration = Duration::from_secs(300);

/// What a reader needs.
#[derive(Debug, Clone)]
pub(super) struct SourceOptions {
    /// The table, for messages.
    pub(super) table: String,
    /// What to read.
    pub(super) topics: Topics,
    /// The client's.
    pub(super) properties: ClientProperties,
    /// The format of values.
    pub(super) value: Format,
    /// What its options begin with.
    pub(super) value_prefix: &'static str,
    /// The format of keys, when they hold columns.
    pub(super) key: Option<KeyFormat>,
    /// Which column comes from where.
    pub(super) layout: Layout,
    /// Where records go that cannot be read.
    pub(super) dead_letters: DeadLetters,
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
    let topics = Topics::read(&options)?;
    let (value, value_prefix) = read_value_format(&options)?;
    let key = read_key_format(&options)?;
    check_used(&options, &value, value_prefix, key.as_ref())?;
    let layout = Layout::new(table, &value, key.as_ref()).map_err(|what| options::error(table, None, what))?;
    let properties = ClientProperties::read(&options)?;
    let startup = read_startup(&options, topics.count(), properties.group_id.is_some())?;
    let bounded = read_bounded(&options, topics.count(), properties.group_id.is_some())?;
    let discovery = options.duration("scan.topic-partition-discovery.interval")?.unwrap_or(DEFAULT_DISCOVERY);
    let discovery = (!discovery.is_zero() && bounded.is_none()).then_some(discovery);
    let (dead_letters, table) = (DeadLetters::new(table), table.name.clone());
    Ok(SourceOptions {
        dead_letters,
        table,
        topics,
        properties,
        value,
        value_prefix,
        key,
        layout,
        startup,
        bounded,
        discovery,
    })
}

/// The format of values and what its options begin with.
fn read_value_format(options: &Options<'_>) -> Result<(Format, &'static str), TableError> {
    let (key, prefix) = match (options.text("format"), options.text("value.format")) {
        (Some(_), Some(_)) => {
            let message = "the options 'format' and 'value.format' mean the same; remove one of them";
            return Err(options.error("value.format", message));
        }
        (None, Some(_)) => ("value.format", "value."),
        _ => ("format", ""),
    };
    Ok((format::read(options, key, prefix, &NAMES, "the values")?, prefix))
}

/// The format of keys, when `key.format` and `key.fields` name one and its columns.
fn read_key_format(options: &Options<'_>) -> Result<Option<KeyFormat>, TableError> {
    let include = [("ALL", true), ("EXCEPT_KEY", false)];
    let in_value = options.choice("value.fields-include", &include)?;
    if options.text("key.format").is_none() {
        let without = ["key.fields", "key.fields-prefix"].into_iter().find(|key| options.text(key).is_some());
        let without = without.or((in_value == Some(false)).then_some("value.fields-include"));
        return match without {
            None => Ok(None),
            Some(key) => Err(options.error(key, format!("the option '{key}' needs 'key.format'"))),
        };
    }
    let format = format::read(options, "key.format", "key.", &KEY_FORMATS, "the keys")?;
    let prefix = options.text("key.fields-prefix").unwrap_or_default().to_owned();
    let fields = options.required("key.fields", "which columns stand in the key, with ';' between them")?;
    let fields: Vec<String> = fields.split(';').map(|field| field.trim().to_owned()).collect();
    let table = options.table();
    for field in &fields {
        if table.declared.index_of(field).is_err() || table.metadata.contains_key(field) {
            let known: Vec<&str> = table.declared.fields().iter().map(|field| field.name().as_str()).collect();
            return Err(options.wrong(
                "key.fields",
                field,
                &format!("columns of the table: {}", options::list(&known)),
            ));
        }
        if !field.starts_with(&prefix) {
            let message = format!("the column '{field}' of 'key.fields' does not begin with '{prefix}'");
            return Err(options.error("key.fields-prefix", message));
        }
    }
    let in_value = in_value.unwrap_or(true);
    if in_value && !prefix.is_empty() {
        let message = "the option 'key.fields-prefix' needs 'value.fields-include' = 'EXCEPT_KEY', as in Flink";
        return Err(options.error("key.fields-prefix", message));
    }
    Ok(Some(KeyFormat { format, fields, prefix, in_value }))
}

fn check_used(
    options: &Options<'_>,
    value: &Format,
    prefix: &'static str,
    key: Option<&KeyFormat>,
) -> Result<(), TableError> {
    let mut used = vec![(prefix, value.name().text())];
    used.extend(key.map(|key| ("key.", key.format.name().text())));
    format::check_used(options, &used)
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
    /// Writes keys.
    pub(super) key: Option<RowEncoder>,
    /// Writes values.
    pub(super) value: RowEncoder,
    /// Columns that are the record's timestamp and headers.
    pub(super) metadata: WrittenMetadata,
    /// Which rows it takes: by key the last one stands.
    pub(super) kinds: AcceptedKinds,
    /// Whether rows become visible with checkpoints, or checkpoints wait for them at least.
    pub(super) guarantee: DeliveryGuarantee,
    /// What transactional ids begin with.
    pub(super) transactional_id_prefix: String,
    /// Whether the job goes on without a transaction that is lost.
    pub(super) skips_lost: bool,
    /// After how long brokers abort a transaction; `None`: as long as they allow.
    pub(super) transaction_timeout: Option<Duration>,
}

/// Options of the `kafka` sink.
pub(super) fn read_append_sink(table: &TableDescriptor) -> Result<SinkOptions, TableError> {
    let options = Options::new(table, &KAFKA)?;
    if options.text("topic-pattern").is_some() {
        let message =
            "the option 'topic-pattern' is for tables that are read; a table that is written to has one 'topic'";
        return Err(options.error("topic-pattern", message));
    }
    let (format, prefix) = read_value_format(&options)?;
    let is_changelog = matches!(format, Format::DebeziumJson(_));
    if !table.primary_key.is_empty() && !is_changelog {
        let message = "a table with a PRIMARY KEY cannot be written by connector 'kafka', which only appends; use \
                       'upsert-kafka', or remove the PRIMARY KEY";
        return Err(options.error(CONNECTOR, message));
    }
    let key = read_key_format(&options)?;
    check_used(&options, &format, prefix, key.as_ref())?;
    let mut columns = all_columns(table);
    let encoded = key.as_ref().map(|key| key_encoder(&options, key)).transpose()?;
    if let Some(key) = key.as_ref().filter(|key| !key.in_value) {
        columns.retain(|position| !key.fields.contains(table.schema.field(*position).name()));
    }
    let value = encoder(&options, &table.schema, &columns, &format)?;
    build_sink(&options, encoded, value, if is_changelog { AcceptedKinds::All } else { AcceptedKinds::InsertOnly })
}

/// Writes the columns of `key.fields` under their names without the prefix.
fn key_encoder(options: &Options<'_>, key: &KeyFormat) -> Result<RowEncoder, TableError> {
    let table = options.table();
    let positions: Result<Vec<usize>, _> = key.fields.iter().map(|field| table.schema.index_of(field)).collect();
    let positions = positions.map_err(|error| options.error("key.fields", error.to_string()))?;
    let named = table.schema.fields().iter().map(|field| {
        let name = field.name().strip_prefix(key.prefix.as_str()).unwrap_or(field.name()).to_owned();
        field.as_ref().clone().with_name(name)
    });
    encoder(options, &Schema::new(named.collect::<Vec<_>>()), &positions, &key.format)
}

/// Options of the `upsert-kafka` sink.
pub(super) fn read_upsert_sink(table: &TableDescriptor) -> Result<SinkOptions, TableError> {
    let options = Options::new(table, &UPSERT)?;
    if table.primary_key.is_empty() {
        let message = "connector 'upsert-kafka' writes one value per key and needs to know the key: declare \
                       PRIMARY KEY (…) NOT ENFORCED";
        return Err(options::error(table, None, message));
    }
    let key_format = format::read(&options, "key.format", "key.", &KEY_FORMATS, "the keys")?;
    let value_format = format::read(&options, "value.format", "value.", &KEY_FORMATS, "the values")?;
    format::check_used(&options, &[("key.", key_format.name().text()), ("value.", value_format.name().text())])?;
    let include = [("ALL", true), ("EXCEPT_KEY", false)];
    let include_key = options.choice("value.fields-include", &include)?.unwrap_or(true);
    let mut columns = all_columns(table);
    columns.retain(|position| include_key || !table.primary_key.contains(position));
    let key = encoder(&options, &table.schema, &table.primary_key, &key_format)?;
    let value = encoder(&options, &table.schema, &columns, &value_format)?;
    build_sink(&options, Some(key), value, AcceptedKinds::Upsert)
}

fn build_sink(
    options: &Options<'_>,
    key: Option<RowEncoder>,
    value: RowEncoder,
    kinds: AcceptedKinds,
) -> Result<SinkOptions, TableError> {
    options.check_written()?;
    let topic = options.required("topic", "where to write")?;
    if topic.contains(';') {
        return Err(options.wrong("topic", topic, "one topic, since a sink writes to one"));
    }
    let guarantees = [
        ("at-least-once", DeliveryGuarantee::AtLeastOnce),
        ("none", DeliveryGuarantee::None),
        ("exactly-once", DeliveryGuarantee::ExactlyOnce),
    ];
    let guarantee = options.choice("sink.delivery-guarantee", &guarantees)?.unwrap_or(DeliveryGuarantee::AtLeastOnce);
    let is_exactly_once = guarantee == DeliveryGuarantee::ExactlyOnce;
    let transactional_id_prefix = options.text("sink.transactional-id-prefix").unwrap_or_default().to_owned();
    let skips_lost = options.choice("sink.commit-failure", &[("fail", false), ("skip", true)])?.unwrap_or(false);
    if !is_exactly_once && !transactional_id_prefix.is_empty() {
        let message = "the option 'sink.transactional-id-prefix' is only read with 'sink.delivery-guarantee' = \
                       'exactly-once'; remove one of them";
        return Err(options.error("sink.transactional-id-prefix", message));
    }
    let transaction_timeout = if is_exactly_once { transaction_timeout(options)? } else { None };
    let properties = ClientProperties::read(options)?;
    if is_exactly_once {
        properties.check_transactional(options)?;
    }
    Ok(SinkOptions {
        table: options.table().name.clone(),
        topic: topic.to_owned(),
        properties,
        key,
        value,
        metadata: WrittenMetadata::new(options.table()).map_err(|what| options::error(options.table(), None, what))?,
        kinds,
        guarantee,
        transactional_id_prefix,
        skips_lost,
        transaction_timeout,
    })
}

fn transaction_timeout(options: &Options<'_>) -> Result<Option<Duration>, TableError> {
    let Some(value) = options.text(TRANSACTION_TIMEOUT) else { return Ok(None) };
    match value.trim().parse() {
        Ok(millis) if millis >= SHORTEST_TIMEOUT => Ok(Some(Duration::from_millis(millis))),
        _ => {
            let allowed = format!("a number of milliseconds, at least {SHORTEST_TIMEOUT}: a commit must fit in");
            Err(options.wrong(TRANSACTION_TIMEOUT, value, &allowed))
        }
    }
}

/// Columns of key and value.
fn all_columns(table: &TableDescriptor) -> Vec<usize> {
    let columns = table.schema.fields().iter().enumerate();
    let columns = columns.filter(|(_, field)| !table.metadata.contains_key(field.name()));
    columns.map(|(position, _)| position).collect()
}

fn encoder(
    options: &Options<'_>,
    schema: &Schema,
    columns: &[usize],
    format: &Format,
) -> Result<RowEncoder, TableError> {
    format.encoder(schema, columns).map_err(|what| options::error(options.table(), None, what))
}
