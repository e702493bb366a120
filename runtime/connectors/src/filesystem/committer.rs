//! The second half of the sink: staged files become visible, and what lost attempts left goes.

use super::options::FileOptions;
use super::runtime;
use super::writer::{HANDLE_VERSION, transaction_of};
use sluice_engine::error::TaskError;
use sluice_engine::sink::{Commit, CommitError, Committer, CommitterContext, TransactionId};
use sluice_protocol::Run;
use sluice_protocol::options::StorageOptions;
use sluice_protocol::state::Committable;
use sluice_storage::StoreFailure;
use sluice_storage::staging::{Committed, StagedFile, Staging};
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use tokio::runtime::Runtime;

/// The committer of a table.
pub(super) struct FileCommitter {
    /// The table's directory.
    staging: Staging,
    storage: Option<StorageOptions>,
    /// Directories that the table had before, as handles name them.
    former: BTreeMap<String, Staging>,
    runtime: Runtime,
    context: CommitterContext,
}

impl FileCommitter {
    pub(super) fn new(options: &FileOptions, context: CommitterContext) -> Result<Self, TaskError> {
        let (staging, storage) = (options.open()?, options.storage.clone());
        Ok(Self { staging, storage, former: BTreeMap::new(), runtime: runtime()?, context })
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

/// A directory that the table had when it began what is committed now.
fn open_former<'a>(
    former: &'a mut BTreeMap<String, Staging>,
    uri: &str,
    storage: Option<&StorageOptions>,
) -> Result<&'a Staging, CommitError> {
    match former.entry(uri.to_owned()) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(place) => Ok(place.insert(Staging::open(uri, storage).map_err(again)?)),
    }
}

impl Committer for FileCommitter {
    fn commit(&mut self, committable: &Committable) -> Result<Commit, CommitError> {
        let file = file_of(committable)?;
        let Self { staging: current, storage, former, runtime, .. } = self;
        let (staging, moved) = match file.directory.as_ref().filter(|uri| *uri != current.uri()) {
            None => (&*current, String::new()),
            Some(uri) => {
                let moved = format!("; the table's directory was {uri} then and is {} now", current.uri());
                (open_former(former, uri, storage.as_ref())?, moved)
            }
        };
        let committed = runtime.block_on(staging.commit(&file));
        match committed.map_err(|failure| CommitError::Retriable(format!("{}{moved}", failure.message)))? {
            Committed::Now => Ok(Commit::Committed),
            Committed::Before => Ok(Commit::AlreadyCommitted),
            Committed::Lost => Err(CommitError::Lost(format!(
                "there is neither {}/{} nor what was staged for it: somebody has removed it{moved}",
                staging.uri(),
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
