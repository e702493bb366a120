//! The second half of the sink: staged files become visible, and what lost attempts left goes.

use super::options::FileOptions;
use super::runtime;
use super::writer::{HANDLE_VERSION, transaction_of};
use sluice_engine::error::TaskError;
use sluice_engine::sink::{Commit, CommitError, Committer, CommitterContext, TransactionId};
use sluice_protocol::Run;
use sluice_protocol::state::Committable;
use sluice_storage::StoreFailure;
use sluice_storage::staging::{Committed, StagedFile, Staging};
use std::collections::BTreeSet;
use tokio::runtime::Runtime;

/// The committer of a table.
pub(super) struct FileCommitter {
    staging: Staging,
    runtime: Runtime,
    context: CommitterContext,
}

impl FileCommitter {
    pub(super) fn new(options: &FileOptions, context: CommitterContext) -> Result<Self, TaskError> {
        Ok(Self { staging: options.open()?, runtime: runtime()?, context })
    }
}

/// The file that a handle means.
pub(super) fn file_of(committable: &Committable) -> Result<StagedFile, CommitError> {
    if committable.version > HANDLE_VERSION {
        return Err(CommitError::unknown_version(committable.version, HANDLE_VERSION));
    }
    serde_json::from_slice(&committable.bytes)
        .map_err(|error| CommitError::Lost(format!("the handle of a staged file cannot be read: {error}")))
}

fn again(failure: StoreFailure) -> CommitError {
    CommitError::Retriable(failure.message)
}

impl Committer for FileCommitter {
    fn commit(&mut self, committable: &Committable) -> Result<Commit, CommitError> {
        let file = file_of(committable)?;
        match self.runtime.block_on(self.staging.commit(&file)).map_err(again)? {
            Committed::Now => Ok(Commit::Committed),
            Committed::Before => Ok(Commit::AlreadyCommitted),
            Committed::Lost => Err(CommitError::Lost(format!(
                "there is neither {}/{} nor what was staged for it: somebody has removed it",
                self.staging.uri(),
                file.key
            ))),
        }
    }

    fn abort(&mut self, older_than: Run, spared: &[Committable]) -> Result<u64, CommitError> {
        let spared = spared.iter().map(|one| file_of(one).map(|file| file.key)).collect::<Result<BTreeSet<_>, _>>()?;
        let CommitterContext { job, sink } = &self.context;
        let mut staged = self.runtime.block_on(self.staging.staged()).map_err(again)?;
        staged.retain(|upload| {
            let is_older = |name| TransactionId::is_older(name, job, sink, older_than);
            !spared.contains(&upload.key) && transaction_of(&upload.key).is_some_and(is_older)
        });
        self.runtime.block_on(self.staging.abort(&staged)).map_err(again)?;
        Ok(staged.len() as u64)
    }
}
