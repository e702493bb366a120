//! A subtask's writer: rows into files, one for each partition, each ended by its size, its age or the next barrier, and
//! staged. Partitions that are too many, or hold too much in memory together, end before that.

use super::encode::{Encoder, ROW_GROUP};
use super::options::{FileFormat, FileOptions};
use super::partition::SplitError;
use super::upload::{HIGH_WATER, Upload};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::Clock;
use sluice_engine::sink::{PreCommit, SinkContext, Staged, TransactionId, TwoPhaseCommitSink};
use sluice_protocol::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// The version of its handles: the JSON of a [`sluice_storage::staging::StagedFile`].
pub(super) const HANDLE_VERSION: u32 = 1;

/// A part is handed to the thread when it has come to this many bytes: servers take at most 10,000 of at least 5 MiB.
const PART: usize = 8 << 20;

/// So many files are open at most: of more the first is ended.
const MOST_OPEN: usize = 100;

/// Bytes that open files hold in memory together: of more the largest is ended, unless it is the only one.
const MOST_HELD: usize = 64 << 20;

/// Bytes that a writer holds at most, but for those of one batch: of open files and of what is on its way.
pub(super) fn most_buffered(options: &FileOptions) -> usize {
    let of_one = match options.format {
        FileFormat::Lines(_) => PART,
        FileFormat::Parquet => ROW_GROUP,
    };
    HIGH_WATER + if options.layout.is_partitioned() { MOST_HELD } else { of_one }
}

/// What the names of files begin with.
const PREFIX: &str = "part-";

/// The transaction in the name of a file.
pub(super) fn transaction_of(key: &str) -> Option<&str> {
    let (_, name) = key.rsplit_once('/').unwrap_or(("", key));
    let (name, _) = name.strip_prefix(PREFIX)?.rsplit_once('.')?;
    name.rsplit_once('-').map(|(transaction, _)| transaction)
}

/// The writer.
pub(super) struct FileWriter {
    options: Arc<FileOptions>,
    upload: Option<Upload>,
    clock: Option<Clock>,
    transaction: String,
    /// Files of this transaction.
    files: u32,
    /// The open file of each directory.
    open: BTreeMap<String, Open>,
}

struct Open {
    /// Files are numbered in the order in which they begin.
    number: u32,
    encoder: Encoder,
    begun_at: Timestamp,
    handed_on: u64,
    /// Bytes of memory after the last write.
    held: usize,
}

impl Open {
    /// Bytes that the file would have.
    fn size(&self) -> u64 {
        self.handed_on + (self.encoder.ready() + self.encoder.unwritten()) as u64
    }
}

impl FileWriter {
    pub(super) const fn new(options: Arc<FileOptions>) -> Self {
        let transaction = String::new();
        Self { options, upload: None, clock: None, transaction, files: 0, open: BTreeMap::new() }
    }

    fn upload(&self) -> Result<&Upload, TaskError> {
        self.upload.as_ref().ok_or_else(|| TaskError::Internal("a file sink was used before it was opened".to_owned()))
    }

    fn now(&self) -> Timestamp {
        self.clock.as_ref().map_or_else(Timestamp::default, |clock| clock())
    }

    fn begin_file(&mut self, directory: &str) -> Result<Open, TaskError> {
        let extension = self.options.format.extension();
        let number = self.files;
        let slash = if directory.is_empty() { "" } else { "/" };
        let key = format!("{directory}{slash}{PREFIX}{}-{number}.{extension}", self.transaction);
        self.files += 1;
        self.upload()?.begin(number, key)?;
        Ok(Open { number, encoder: Encoder::new(&self.options)?, begun_at: self.now(), handed_on: 0, held: 0 })
    }

    fn end_file(&mut self, directory: &str) -> Result<(), TaskError> {
        let Some(open) = self.open.remove(directory) else { return Ok(()) };
        let rest = open.encoder.finish(&self.options)?;
        let upload = self.upload()?;
        upload.append(open.number, rest)?;
        upload.stage(open.number)
    }

    /// Adds rows to the file of a directory.
    fn write_to(&mut self, directory: String, batch: &Batch) -> Result<(), TaskError> {
        let mut open = match self.open.remove(&directory) {
            Some(open) => open,
            None => {
                // At once, not after the batch: each of its rows may have a partition of its own.
                while self.open.len() >= MOST_OPEN
                    && let Some(first) = self.first()
                {
                    self.end_file(&first)?;
                }
                self.begin_file(&directory)?
            }
        };
        open.encoder.write(batch, &self.options)?;
        if open.encoder.ready() >= PART {
            let bytes = open.encoder.take();
            open.handed_on += bytes.len() as u64;
            self.upload()?.append(open.number, bytes)?;
        }
        open.held = open.encoder.memory();
        let is_full = self.is_full(&open);
        self.open.insert(directory.clone(), open);
        if is_full { self.end_file(&directory) } else { self.keep_within_memory() }
    }

    /// Ends the largest files until those that are open are small enough together.
    fn keep_within_memory(&mut self) -> Result<(), TaskError> {
        while self.open.len() > 1 && self.open.values().map(|open| open.held).sum::<usize>() > MOST_HELD {
            let largest = self.open.iter().max_by_key(|(_, open)| open.held);
            let Some(directory) = largest.map(|(directory, _)| directory.clone()) else { return Ok(()) };
            self.end_file(&directory)?;
        }
        Ok(())
    }

    fn is_full(&self, open: &Open) -> bool {
        let is_old = self
            .options
            .roll_interval
            .is_some_and(|limit| u128::from(self.now().since(open.begun_at).0) >= limit.as_millis());
        open.size() >= self.options.roll_size || is_old
    }

    /// Ends the files that are old enough, or full.
    fn end_old(&mut self) -> Result<(), TaskError> {
        let old: Vec<String> =
            self.open.iter().filter(|(_, open)| self.is_full(open)).map(|(directory, _)| directory.clone()).collect();
        old.iter().try_for_each(|directory| self.end_file(directory))
    }

    /// The directory whose file was begun first.
    fn first(&self) -> Option<String> {
        self.open.iter().min_by_key(|(_, open)| open.number).map(|(directory, _)| directory.clone())
    }
}

impl TwoPhaseCommitSink for FileWriter {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        self.upload = Some(Upload::start(self.options.open()?, context.waker)?);
        self.clock = Some(context.clock);
        Ok(())
    }

    fn begin(&mut self, transaction: &TransactionId) -> Result<(), TaskError> {
        self.transaction = transaction.to_string();
        self.files = 0;
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let pieces = self.options.layout.split(batch).map_err(|error| {
            let message = format!("rows of table '{}' have no partitions: {error}", self.options.table);
            if matches!(error, SplitError::Arrow(_)) {
                TaskError::Internal(message)
            } else {
                TaskError::BadData(message)
            }
        })?;
        for (directory, rows) in pieces {
            self.write_to(directory, &rows)?;
        }
        if self.open.len() > 1 { self.end_old() } else { Ok(()) }
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        self.upload()?.has_room()
    }

    fn pre_commit(&mut self) -> Result<PreCommit, TaskError> {
        while let Some(directory) = self.first() {
            self.end_file(&directory)?;
        }
        let Some(files) = self.upload()?.take_staged()? else { return Ok(PreCommit::Pending) };
        let handle = |file| {
            let bytes = serde_json::to_vec(&file).map_err(|error| TaskError::Internal(error.to_string()))?;
            Ok(Staged { version: HANDLE_VERSION, expires_at: None, bytes })
        };
        files.into_iter().map(handle).collect::<Result<_, TaskError>>().map(PreCommit::Staged)
    }
}
