//! A subtask's writer: rows into files, each ended by its size, its age or the next barrier, and staged.

use super::encode::Encoder;
use super::options::FileOptions;
use super::upload::Upload;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::Clock;
use sluice_engine::sink::{PreCommit, SinkContext, Staged, TransactionId, TwoPhaseCommitSink};
use sluice_protocol::Timestamp;
use std::sync::Arc;

/// The version of its handles: the JSON of a [`sluice_storage::staging::StagedFile`].
pub(super) const HANDLE_VERSION: u32 = 1;

/// A part is handed to the thread when it has come to this many bytes: servers take at most 10,000 of at least 5 MiB.
const PART: usize = 8 << 20;

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
    open: Option<Open>,
    is_staging: bool,
}

struct Open {
    encoder: Encoder,
    begun_at: Timestamp,
    handed_on: u64,
}

impl FileWriter {
    pub(super) const fn new(options: Arc<FileOptions>) -> Self {
        let transaction = String::new();
        Self { options, upload: None, clock: None, transaction, files: 0, open: None, is_staging: false }
    }

    fn upload(&self) -> Result<&Upload, TaskError> {
        self.upload.as_ref().ok_or_else(|| TaskError::Internal("a file sink was used before it was opened".to_owned()))
    }

    fn now(&self) -> Timestamp {
        self.clock.as_ref().map_or_else(Timestamp::default, |clock| clock())
    }

    fn begin_file(&mut self) -> Result<Open, TaskError> {
        let extension = self.options.format.extension();
        let key = format!("{PREFIX}{}-{}.{extension}", self.transaction, self.files);
        self.files += 1;
        self.upload()?.begin(key)?;
        Ok(Open { encoder: Encoder::new(&self.options)?, begun_at: self.now(), handed_on: 0 })
    }

    fn end_file(&mut self) -> Result<(), TaskError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let rest = open.encoder.finish(&self.options)?;
        let upload = self.upload()?;
        upload.append(rest)?;
        upload.stage()
    }

    fn is_full(&self) -> bool {
        let Some(open) = &self.open else { return false };
        let size = open.handed_on + (open.encoder.ready() + open.encoder.unwritten()) as u64;
        let is_old = self
            .options
            .roll_interval
            .is_some_and(|limit| u128::from(self.now().since(open.begun_at).0) >= limit.as_millis());
        size >= self.options.roll_size || is_old
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
        self.is_staging = false;
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin_file()?,
        };
        open.encoder.write(&batch, &self.options)?;
        if open.encoder.ready() >= PART {
            let bytes = open.encoder.take();
            open.handed_on += bytes.len() as u64;
            self.upload()?.append(bytes)?;
        }
        self.open = Some(open);
        if self.is_full() { self.end_file() } else { Ok(()) }
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        self.upload()?.has_room()
    }

    fn pre_commit(&mut self) -> Result<PreCommit, TaskError> {
        self.end_file()?;
        let Some(files) = self.upload()?.take_staged()? else { return Ok(PreCommit::Pending) };
        let handle = |file| {
            let bytes = serde_json::to_vec(&file).map_err(|error| TaskError::Internal(error.to_string()))?;
            Ok(Staged { version: HANDLE_VERSION, expires_at: None, bytes })
        };
        files.into_iter().map(handle).collect::<Result<_, TaskError>>().map(PreCommit::Staged)
    }
}
