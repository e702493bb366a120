//! Apache Kafka: the `kafka` source and sink and the `upsert-kafka` sink, on librdkafka.
//!
//! The source reads partitions as splits with positions of its own; the consumer group, when `properties.group.id`
//! names one, only shows committed offsets to others. The sinks are at-least-once, or write in transactions that are
//! committed with checkpoints (S1-S7).
//!
//! **How offsets are counted.** A split's state is `{"topic": …, "partition": …, "offset": n}`, `n` as Kafka counts a
//! committed offset: every record with an offset below `n` was consumed, and the restore reads record `n` next. A
//! partition whose records are `0 … 999` has offset 1000 after all of them: one thousand records were consumed, and
//! the record that comes next is number 1000.
//!
//! - `properties`: `properties.*`, from Java's names to librdkafka's. - `options`, `offset_options`: what can be said
//!   in WITH. - `client`: clients, their logs, and looking up topics. - `topics`: which are read. - `split`: positions and owners. - `offsets`:
//!   where to start and where to stop. - `beginning`: the splits at the start. - `discovery`: new partitions. - `rows`, `metadata`: records into rows. - `source`,
//!   `sink`: the subtasks.
//! - `writer`, `slots`: the exactly-once subtask and its producers. - `committer`: commits after the checkpoint.
//!   `transactions`, `cluster`, `secure`: what is asked of the brokers for it beside librdkafka.

mod beginning;
mod client;
mod cluster;
mod committer;
mod discovery;
mod metadata;
mod offset_options;
mod offsets;
mod options;
mod properties;
mod rows;
mod secure;
mod sink;
mod slots;
mod source;
mod split;
mod topics;
mod transactions;
mod writer;
mod written;

#[cfg(test)]
mod tests;

use crate::secrets::SecretSource;
use arrow::datatypes::SchemaRef;
use options::{SinkOptions, SourceOptions};
use sluice_engine::error::TaskError;
use sluice_engine::sink::{
    AcceptedKinds, Committer, CommitterContext, DeliveryGuarantee, Sink, SinkFactory, Transactional,
};
use sluice_engine::source::{ProducedKinds, Source, SourceFactory};
use sluice_engine::table::{TableDescriptor, TableError};
use sluice_protocol::SubtaskIndex;
use std::sync::Arc;

/// Makes readers of topics.
pub(crate) struct KafkaSourceFactory {
    options: Arc<SourceOptions>,
}

impl KafkaSourceFactory {
    /// Checks the options and that the formats can hold the columns.
    pub(crate) fn new(table: &TableDescriptor, secrets: &SecretSource) -> Result<Self, TableError> {
        let mut options = options::read_source(table)?;
        options.properties.secrets = Some(Arc::clone(secrets));
        options.layout.reader(&options.dead_letters).map_err(|what| crate::options::error(table, None, what))?;
        Ok(Self { options: Arc::new(options) })
    }
}

impl SourceFactory for KafkaSourceFactory {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        let table = &self.options.table;
        let rows = self.options.layout.reader(&self.options.dead_letters);
        let rows = rows.map_err(|what| TaskError::BadProgram(format!("table '{table}': {what}")))?;
        Ok(Box::new(source::KafkaReader::new(self.options.clone(), rows)))
    }

    fn schema(&self) -> SchemaRef {
        self.options.dead_letters.schema()
    }

    fn produced_kinds(&self) -> ProducedKinds {
        self.options.value.produced_kinds()
    }

    /// Of all partitions of a reader together.
    fn buffered_bytes(&self) -> u64 {
        self.options.properties.fetch_budget()
    }

    /// As in Flink: the topic's hash says where its partition 0 goes, the others follow round robin.
    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex {
        let (topic, partition) = split::parse_name(split).unwrap_or((split, 0));
        split::owner(topic, partition, parallelism)
    }
}

/// Makes writers to a topic.
pub(crate) struct KafkaSinkFactory {
    options: Arc<SinkOptions>,
}

impl KafkaSinkFactory {
    /// The `kafka` sink: appends rows.
    pub(crate) fn append(table: &TableDescriptor, secrets: &SecretSource) -> Result<Self, TableError> {
        Ok(Self::with(options::read_append_sink(table)?, secrets))
    }

    /// The `upsert-kafka` sink: the last row of each key stands.
    pub(crate) fn upsert(table: &TableDescriptor, secrets: &SecretSource) -> Result<Self, TableError> {
        Ok(Self::with(options::read_upsert_sink(table)?, secrets))
    }

    fn with(mut options: SinkOptions, secrets: &SecretSource) -> Self {
        options.properties.secrets = Some(Arc::clone(secrets));
        Self { options: Arc::new(options) }
    }
}

impl SinkFactory for KafkaSinkFactory {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        let options = Arc::clone(&self.options);
        if options.guarantee == DeliveryGuarantee::ExactlyOnce {
            return Ok(Box::new(Transactional::new(writer::TransactionalWriter::new(options))));
        }
        Ok(Box::new(sink::KafkaWriter::new(options)))
    }

    fn guarantee(&self) -> DeliveryGuarantee {
        self.options.guarantee
    }

    fn committer(&self, context: CommitterContext) -> Result<Option<Box<dyn Committer>>, TaskError> {
        let committer = || committer::KafkaCommitter::new(Arc::clone(&self.options), context);
        let commits = self.options.guarantee == DeliveryGuarantee::ExactlyOnce;
        Ok(commits.then(|| Box::new(committer()) as Box<dyn Committer>))
    }

    fn buffered_bytes(&self) -> u64 {
        self.options.properties.kilobytes("queue.buffering.max.kbytes", 65_536)
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        self.options.kinds
    }
}
