//! The `filesystem` source and sink: files of lines (JSON, CSV, raw, changes of Debezium's) or Parquet, on a file system or S3.
//!
//! The sink commits files with checkpoints: a file is staged where no reader sees it ([`sluice_storage::staging`]) and
//! becomes visible, whole, once the checkpoint that holds its handle is complete. The source reads every file of a directory
//! once, or goes on to look for new ones.
//!
//! - `options`: what can be said in WITH. - `encode`: rows into files. - `upload`: a writer's thread that stages.
//!   `writer`, `committer`: the two halves of the sink. - `splits`: which files there are, and how they are divided.
//! - `rows`: what is in a file, as batches; `layout`: which columns
//!   those are; `partition`: which of them stand in names of directories. - `reader`: the subtask. - `patience`: requests that are tried again.

mod committer;
mod encode;
mod layout;
mod options;
mod partition;
mod patience;
mod reader;
mod rows;
mod splits;
#[cfg(test)]
mod tests;
mod upload;
mod writer;

use crate::format::{Format, OnBad};
use committer::FileCommitter;
use options::{FileFormat, FileOptions};
use reader::FileReader;
use sluice_engine::error::TaskError;
use sluice_engine::sink::{
    AcceptedKinds, Committer, CommitterContext, DeliveryGuarantee, Sink, SinkFactory, Transactional,
};
use sluice_engine::source::{ProducedKinds, Source, SourceFactory};
use sluice_engine::table::{TableDescriptor, TableError};
use sluice_protocol::SubtaskIndex;
use sluice_protocol::options::StorageOptions;
use sluice_protocol::state::Checksum;
use sluice_storage::StoreFailure;
use sluice_storage::StoreFailureKind;
use std::sync::Arc;
use writer::FileWriter;

/// Makes the writers of a table.
pub(crate) struct FileSinkFactory {
    options: Arc<FileOptions>,
}

impl FileSinkFactory {
    /// Checks the options.
    pub(crate) fn new(table: &TableDescriptor, storage: Option<&StorageOptions>) -> Result<Self, TableError> {
        let options = options::read_sink(table, storage)?;
        if let FileFormat::Lines(format) = &options.format {
            let all: Vec<usize> = (0..options.schema.fields().len()).collect();
            format.encoder(&options.schema, &all).map_err(|what| crate::options::error(table, Some("format"), what))?;
        }
        Ok(Self { options: Arc::new(options) })
    }
}

impl SinkFactory for FileSinkFactory {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        Ok(Box::new(Transactional::new(FileWriter::new(Arc::clone(&self.options)))))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        match self.options.format {
            FileFormat::Lines(Format::DebeziumJson(_)) => AcceptedKinds::All,
            _ => AcceptedKinds::InsertOnly,
        }
    }

    fn guarantee(&self) -> DeliveryGuarantee {
        DeliveryGuarantee::ExactlyOnce
    }

    fn buffered_bytes(&self) -> u64 {
        writer::most_buffered(&self.options) as u64
    }

    fn committer(&self, context: CommitterContext) -> Result<Option<Box<dyn Committer>>, TaskError> {
        Ok(Some(Box::new(FileCommitter::new(&self.options, context)?)))
    }
}

/// Makes the readers of a table.
pub(crate) struct FileSourceFactory {
    options: Arc<FileOptions>,
}

impl FileSourceFactory {
    /// Checks the options.
    pub(crate) fn new(table: &TableDescriptor, storage: Option<&StorageOptions>) -> Result<Self, TableError> {
        let options = options::read_source(table, storage)?;
        if let FileFormat::Lines(format) = &options.format {
            let decoder = format.decoder(&options.layout.read, &options.layout.declared, OnBad::Fail);
            decoder.map_err(|what| crate::options::error(table, Some("format"), what))?;
        }
        Ok(Self { options: Arc::new(options) })
    }
}

impl SourceFactory for FileSourceFactory {
    fn create(&self) -> Result<Box<dyn Source>, TaskError> {
        Ok(Box::new(FileReader::new(Arc::clone(&self.options))))
    }

    fn schema(&self) -> arrow::datatypes::SchemaRef {
        self.options.dead_letters.schema()
    }

    fn produced_kinds(&self) -> ProducedKinds {
        match &self.options.format {
            FileFormat::Lines(format) => format.produced_kinds(),
            FileFormat::Parquet => ProducedKinds::InsertOnly,
        }
    }

    fn owner(&self, split: &str, parallelism: u32) -> SubtaskIndex {
        owner(&self.options, split, parallelism)
    }
}

/// By the split's name: every subtask lists the directory and takes its own. Where new files are looked for, a file's splits
/// all go to one subtask, which so knows that it has had the file when it has grown.
fn owner(options: &FileOptions, split: &str, parallelism: u32) -> SubtaskIndex {
    let file = split.rsplit_once('@').map_or(split, |(file, _)| file);
    let of = if options.monitor.is_some() { file } else { split };
    let number = Checksum::of(of.as_bytes()).0 % u64::from(parallelism.max(1));
    SubtaskIndex(u32::try_from(number).unwrap_or(0))
}

/// A store that does not answer is tried again by a restart, one that refuses is for a person.
fn store_error(failure: &StoreFailure) -> TaskError {
    match failure.kind {
        StoreFailureKind::Unreachable => TaskError::External(failure.message.clone()),
        _ => TaskError::Unavailable(failure.message.clone()),
    }
}

/// A runtime of one thread's own, on which it waits for the store.
fn runtime() -> Result<tokio::runtime::Runtime, TaskError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| TaskError::External(format!("no runtime for a file connector: {error}")))
}
