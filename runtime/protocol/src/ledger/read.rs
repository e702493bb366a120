//! Finding the end of a ledger (L3): LIST, then read the last entry, which alone tells the job's state (L1).
//!
//! Numbers below `m` need not be read: an entry that was trimmed meanwhile is listed no more, and the fold of the
//! last one holds what it said. Callers execute the operation given and feed back the reply; failures of the store
//! come back to them, and [`LedgerReader::start`] begins again.

use crate::ledger::entry::{Entry, LedgerError};
use crate::paths::JobPaths;
use crate::store::{StoreFailure, StoreOperation, StoreReply};

/// Reads one ledger from entry m on.
#[derive(Debug, Clone)]
pub struct LedgerReader {
    paths: JobPaths,
    seen: u64,
    getting: Option<u64>,
}

/// What a reply led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadStep {
    /// Do this next.
    Store(StoreOperation),
    /// The last entry; `None`: there is none from m on.
    End(Option<Box<Entry>>),
    /// The store gave no usable answer: start again later.
    Failed(StoreFailure),
    /// The last entry cannot be read.
    Refused(LedgerError),
}

impl LedgerReader {
    /// A reader from entry `seen` (m) on; 0 reads from the beginning.
    #[must_use]
    pub const fn new(paths: JobPaths, seen: u64) -> Self {
        Self { paths, seen, getting: None }
    }

    /// The first operation.
    pub fn start(&mut self) -> StoreOperation {
        self.getting = None;
        entries_after(&self.paths, self.seen.saturating_sub(1))
    }

    /// Takes the reply to the last operation.
    pub fn on_reply(&mut self, reply: StoreReply) -> ReadStep {
        match (reply, self.getting) {
            (StoreReply::Keys(keys), None) => match last_entry(&self.paths, &keys) {
                None => ReadStep::End(None),
                Some(number) => {
                    self.getting = Some(number);
                    ReadStep::Store(StoreOperation::Get { key: self.paths.ledger_entry(number) })
                }
            },
            (StoreReply::Object(bytes), Some(number)) => {
                match Entry::from_bytes(&bytes, &self.paths.ledger_entry(number)) {
                    Ok(entry) => ReadStep::End(Some(Box::new(entry))),
                    Err(error) => ReadStep::Refused(error),
                }
            }
            // Listed but gone: trimmed between the two, so there is a later one (L4).
            (StoreReply::Absent, Some(_)) => ReadStep::Store(self.start()),
            (StoreReply::Failed(failure), _) => ReadStep::Failed(failure),
            (reply, _) => ReadStep::Failed(unexpected(&reply)),
        }
    }
}

/// Lists the entries after a number.
#[must_use]
pub fn entries_after(paths: &JobPaths, number: u64) -> StoreOperation {
    let start_after = (number > 0).then(|| paths.ledger_entry(number));
    StoreOperation::List { prefix: paths.ledger_prefix(), start_after }
}

/// The largest number among listed keys.
#[must_use]
pub fn last_entry(paths: &JobPaths, keys: &[String]) -> Option<u64> {
    keys.iter().filter_map(|key| paths.parse_ledger_entry(key)).max()
}

/// An answer that does not fit its operation: taken as none, which is always safe.
pub(crate) fn unexpected(reply: &StoreReply) -> StoreFailure {
    let message = match reply {
        StoreReply::Object(_) => "the store answered with an object that was not asked for".to_owned(),
        other => format!("the store's answer {other:?} does not fit the operation"),
    };
    StoreFailure { kind: crate::store::StoreFailureKind::Unreachable, message }
}
