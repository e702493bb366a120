//! From `'connector' = '…'` to the factory of its source or sink.

use crate::blackhole::BlackholeSinkFactory;
use crate::datagen::DatagenSourceFactory;
use crate::filesystem::{FileSinkFactory, FileSourceFactory};
use crate::kafka::{KafkaSinkFactory, KafkaSourceFactory};
use crate::options::{self, CONNECTOR};
use crate::print::PrintSinkFactory;
use crate::secrets::{SecretSource, no_secrets};
use crate::socket::SocketSourceFactory;
use sluice_engine::sink::SinkFactory;
use sluice_engine::source::SourceFactory;
use sluice_engine::table::{ConnectorCatalog, TableDescriptor, TableError};
use sluice_protocol::options::StorageOptions;
use std::sync::Arc;

/// The connectors of this crate.
#[must_use]
pub fn catalog() -> impl ConnectorCatalog {
    catalog_with(None, no_secrets())
}

/// The same; tables on S3 are reached with these options, the job's own, and `${secret:NAME/KEY}` stands for what `secrets`
/// says when a client is made.
#[must_use]
pub fn catalog_with(storage: Option<StorageOptions>, secrets: SecretSource) -> impl ConnectorCatalog {
    Connectors { storage, secrets }
}

const NAMES: [&str; 7] = ["kafka", "upsert-kafka", "filesystem", "socket", "datagen", "print", "blackhole"];
const SOURCES: [&str; 4] = ["kafka", "filesystem", "socket", "datagen"];
const SINKS: [&str; 5] = ["kafka", "upsert-kafka", "filesystem", "print", "blackhole"];

struct Connectors {
    storage: Option<StorageOptions>,
    secrets: SecretSource,
}

impl ConnectorCatalog for Connectors {
    fn source(&self, table: &TableDescriptor) -> Result<Arc<dyn SourceFactory>, TableError> {
        let connector = connector(table)?;
        refuse_partitions(table, connector)?;
        if !["kafka", "filesystem"].contains(&connector) {
            refuse_metadata(table, &format!("connector '{connector}' has no metadata"))?;
        }
        match connector {
            "kafka" => Ok(Arc::new(KafkaSourceFactory::new(table, &self.secrets)?)),
            "filesystem" => Ok(Arc::new(FileSourceFactory::new(table, self.storage.as_ref())?)),
            "socket" => Ok(Arc::new(SocketSourceFactory::new(table)?)),
            "datagen" => Ok(Arc::new(DatagenSourceFactory::new(table)?)),
            other => Err(wrong_direction(table, other, "read from", &SOURCES)),
        }
    }

    fn sink(&self, table: &TableDescriptor) -> Result<Arc<dyn SinkFactory>, TableError> {
        let connector = connector(table)?;
        refuse_partitions(table, connector)?;
        let written = |(column, _): &(&String, &String)| table.schema.index_of(column).is_ok();
        let is_kafka = ["kafka", "upsert-kafka"].contains(&connector);
        if !is_kafka && table.metadata.iter().any(|column| written(&column)) {
            refuse_metadata(
                table,
                &format!("connector '{connector}' does not write metadata; declare it METADATA VIRTUAL"),
            )?;
        }
        match connector {
            "kafka" => Ok(Arc::new(KafkaSinkFactory::append(table, &self.secrets)?)),
            "upsert-kafka" => Ok(Arc::new(KafkaSinkFactory::upsert(table, &self.secrets)?)),
            "filesystem" => Ok(Arc::new(FileSinkFactory::new(table, self.storage.as_ref())?)),
            "print" => Ok(Arc::new(PrintSinkFactory::new(table)?)),
            "blackhole" => Ok(Arc::new(BlackholeSinkFactory::new(table)?)),
            other => Err(wrong_direction(table, other, "written to", &SINKS)),
        }
    }
}

fn refuse_partitions(table: &TableDescriptor, connector: &str) -> Result<(), TableError> {
    if table.partition_keys.is_empty() || connector == "filesystem" {
        return Ok(());
    }
    let message = format!("connector '{connector}' knows no PARTITIONED BY; remove it: 'filesystem' has partitions");
    Err(options::error(table, None, message))
}

fn refuse_metadata(table: &TableDescriptor, why: &str) -> Result<(), TableError> {
    let of_table = |(column, _): &(&String, &String)| table.schema.index_of(column).is_ok();
    match table.metadata.iter().find(of_table) {
        None => Ok(()),
        Some((column, key)) => {
            let message = format!("column '{column}' stands for the metadata '{key}', but {why}");
            Err(options::error(table, None, message))
        }
    }
}

/// The table's connector, one of [`NAMES`].
fn connector(table: &TableDescriptor) -> Result<&'static str, TableError> {
    let Some(name) = table.option(CONNECTOR) else {
        return Err(options::error(
            table,
            None,
            format!("the option 'connector' is missing; add 'connector' = '…' with one of {}", options::list(&NAMES)),
        ));
    };
    NAMES.iter().find(|known| **known == name).copied().ok_or_else(|| {
        let hint = options::nearest(name, NAMES).map(|near| format!("; did you mean '{near}'?"));
        let hint = hint.unwrap_or_else(|| ".".to_owned());
        options::error(
            table,
            Some(CONNECTOR),
            format!("there is no connector '{name}'{hint} The connectors are {}", options::list(&NAMES)),
        )
    })
}

fn wrong_direction(table: &TableDescriptor, name: &str, done: &str, possible: &[&str]) -> TableError {
    options::error(
        table,
        Some(CONNECTOR),
        format!("a table with connector '{name}' cannot be {done}; those that can are {}", options::list(possible)),
    )
}
