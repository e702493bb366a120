//! The job's checkpoint storage: opened from its options, asked for its promises, and operated with a deadline.
//!
//! A store that does not answer at the start is waited for with growing, jittered pauses; that spends no restart, and
//! every pause is reported, so that the status says what is waited for (F2).

use super::driver::Patience;
use crate::edge::SystemRandom;
use sluice_protocol::failure::Failure;
use sluice_protocol::ledger::read::{LedgerReader, ReadStep};
use sluice_protocol::ledger::{Entry, LedgerError};
use sluice_protocol::options::{IN_JOB_MANAGER, JobOptions};
use sluice_protocol::paths::JobPaths;
use sluice_protocol::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply};
use sluice_protocol::{JobId, RandomSource as _};
use sluice_storage::{MemoryStore, StoreDeadlines, StoreExecutor, open_store};
use std::sync::Arc;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// What all pages of a list, or a batch of uploads, may take beside one request.
const PAGES: Duration = Duration::from_secs(300);

/// A job's checkpoint storage.
#[derive(Clone)]
pub(crate) struct Storage {
    /// Executes operations.
    pub(crate) executor: StoreExecutor,
    /// URI of its root; `None` when checkpoints are kept in memory or none are taken.
    pub(crate) uri: Option<String>,
    /// What is probed once per ledger (L7).
    endpoint: String,
}

#[cfg(test)]
impl Storage {
    /// A store that a test has made.
    pub(crate) fn on(store: Arc<dyn sluice_storage::ObjectStore>) -> Self {
        let uri = store.uri().to_owned();
        Self { executor: StoreExecutor::new(store, None), endpoint: uri.clone(), uri: Some(uri) }
    }
}

/// Opens the storage that the options name. Contacts nobody.
///
/// # Errors
/// When its address or options cannot be used.
pub(crate) fn open_storage(options: &JobOptions) -> Result<Storage, Failure> {
    let spec = options.checkpointing.as_ref().filter(|checkpointing| !checkpointing.is_in_memory());
    let Some(checkpointing) = spec else {
        let executor = StoreExecutor::new(Arc::new(MemoryStore::default()), None);
        return Ok(Storage { executor, uri: None, endpoint: IN_JOB_MANAGER.to_owned() });
    };
    let options = checkpointing.storage_options.as_ref();
    let store = open_store(&checkpointing.storage, options)
        .map_err(|failure| Failure::user("BadStorage", format!("spec.checkpointing.storage: {failure}")))?;
    let endpoint = options.and_then(|options| options.endpoint.clone());
    let uri = store.uri().to_owned();
    let endpoint = endpoint.unwrap_or_else(|| uri.clone());
    let executor = StoreExecutor::new(store, options.cloned());
    Ok(Storage { executor, uri: Some(uri), endpoint })
}

/// Does it, and answers within a deadline.
pub(crate) async fn execute(executor: &StoreExecutor, operation: StoreOperation) -> StoreReply {
    let more = match &operation {
        StoreOperation::PutIfAbsent { bytes, .. } => Duration::from_secs(bytes.len() as u64 >> 20),
        // Many requests, each with a deadline of its own.
        StoreOperation::List { .. } | StoreOperation::ListUploads { .. } | StoreOperation::AbortUploads { .. } => PAGES,
        _ => Duration::ZERO,
    };
    // The store's own deadlines come first; this one is for what they forget.
    let deadlines = StoreDeadlines::default();
    let deadline = 3 * (deadlines.connect + deadlines.attempt) + more;
    let named = describe(&operation);
    tokio::time::timeout(deadline, executor.execute(operation)).await.unwrap_or_else(|_| {
        StoreReply::Failed(StoreFailure {
            kind: StoreFailureKind::Unreachable,
            message: format!("the checkpoint storage did not answer within {deadline:?}: {named}"),
        })
    })
}

fn describe(operation: &StoreOperation) -> String {
    match operation {
        StoreOperation::PutIfAbsent { key, .. } => format!("put of '{key}'"),
        StoreOperation::Get { key } => format!("get of '{key}'"),
        StoreOperation::List { prefix, .. } => format!("list of '{prefix}'"),
        StoreOperation::Delete { keys } => format!("delete of {} objects", keys.len()),
        StoreOperation::ListUploads { prefix } => format!("list of unfinished uploads of '{prefix}'"),
        StoreOperation::AbortUploads { uploads } => format!("abort of {} uploads", uploads.len()),
    }
}

/// What asking the store brought.
#[derive(Debug)]
pub(crate) enum ProbeReport {
    /// It can be used; `probed` names the endpoint when it was asked now.
    Passed { probed: Option<String> },
    /// It cannot be used now; it will be asked again.
    Waiting { message: String },
    /// It can never be used as it is.
    Refused(Failure),
}

/// A ledger whose end cannot be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerReadError {
    /// The store gave no usable answer.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// The last entry cannot be read.
    #[error(transparent)]
    Unreadable(#[from] LedgerError),
}

/// The last entry of a job's ledger, if there is any.
pub(crate) async fn last_entry(executor: &StoreExecutor, job: &JobId) -> Result<Option<Box<Entry>>, LedgerReadError> {
    let mut reader = LedgerReader::new(JobPaths::new(job), 0);
    let mut operation = reader.start();
    loop {
        match reader.on_reply(execute(executor, operation).await) {
            ReadStep::Store(next) => operation = next,
            ReadStep::End(entry) => return Ok(entry),
            ReadStep::Failed(failure) => return Err(failure.into()),
            ReadStep::Refused(error) => return Err(error.into()),
        }
    }
}

/// Asks the store for its promises, unless the ledger says that this endpoint kept them already.
pub(crate) struct Probe {
    storage: Storage,
    job: JobId,
}

impl Probe {
    pub(crate) fn new(storage: &Storage, job: &JobId) -> Self {
        Self { storage: storage.clone(), job: job.clone() }
    }

    async fn ask(&self) -> Result<Option<String>, LedgerReadError> {
        let Storage { executor, endpoint, .. } = &self.storage;
        let last = last_entry(executor, &self.job).await?;
        if last.is_some_and(|entry| entry.folded().probed.as_ref() == Some(endpoint)) {
            return Ok(None);
        }
        sluice_storage::probe(executor.home().as_ref(), JobPaths::new(&self.job).directory()).await?;
        Ok(Some(endpoint.clone()))
    }

    /// Asks until there is an answer that holds, and reports on the way.
    pub(crate) async fn run<F, R>(self, patience: Patience, report: F)
    where
        F: Fn(ProbeReport) -> R,
        R: Future,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            let failure = match self.ask().await {
                Ok(probed) => {
                    report(ProbeReport::Passed { probed }).await;
                    return;
                }
                // The decisions read it again, and say what that means.
                Err(LedgerReadError::Unreadable(_)) => {
                    report(ProbeReport::Passed { probed: None }).await;
                    return;
                }
                Err(LedgerReadError::Store(failure)) => failure,
            };
            if is_final(failure.kind, patience) {
                report(ProbeReport::Refused(refusal(&failure))).await;
                return;
            }
            let message = format!("waiting for the checkpoint storage, no restart is spent: {failure}");
            report(ProbeReport::Waiting { message }).await;
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

const fn is_final(kind: StoreFailureKind, patience: Patience) -> bool {
    match kind {
        StoreFailureKind::Unsuitable => true,
        StoreFailureKind::Denied | StoreFailureKind::MissingBucket => matches!(patience, Patience::FailOnRefusal),
        StoreFailureKind::Unreachable => false,
    }
}

pub(crate) fn refusal(failure: &StoreFailure) -> Failure {
    Failure::user(failure.kind.reason(), failure.message.clone())
}

/// Half to the whole of it, so that many processes do not come back at once.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let spread = u64::try_from(half.as_millis()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_millis(SystemRandom.next_u64() % spread)
}
