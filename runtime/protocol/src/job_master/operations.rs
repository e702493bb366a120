//! Store operations under way, and those that wait for a new try.
//!
//! Every operation has a purpose; its reply is dispatched by it. Background work (deletes) is kept apart from what
//! the job waits for, so that it never delays a trigger.

use crate::ids::CheckpointId;
use crate::ledger::CheckpointKey;
use crate::store::{OperationId, StoreOperation, UnfinishedUpload};
use crate::time::Timestamp;
use std::collections::BTreeMap;

/// Why an operation was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The reader of the own ledger.
    ReadLedger,
    /// LIST behind `Started` (L3).
    Confirm,
    /// Reading whose entry is there, to name it.
    NameSuccessor,
    /// The appender.
    Append,
    /// Whether the number after the last is taken (L3).
    Head(u64),
    /// `_metadata` to restore.
    LoadMetadata,
    /// `_metadata` of the last complete checkpoint, for its handles (S5).
    LoadHandles,
    /// The same of a ledger that is taken over.
    LoadTakenHandles,
    /// The reader of a ledger in a directory to restore from.
    ReadForeignLedger,
    /// The appender to a ledger that is taken over (G5).
    TakeOver,
    /// LIST behind its `Started{takeover}`.
    ConfirmTakeover,
    /// `_metadata` of a checkpoint under way.
    WriteMetadata(CheckpointId),
    /// What stands there after an unclear write.
    ReadMetadata(CheckpointId),
    /// The files of a dead checkpoint or savepoint.
    ListDead,
    /// Savepoints below this directory, to find those that older generations did not complete.
    SweepSavepoints(String),
    /// Shared files that a failed checkpoint may have stored.
    ListShared,
    /// `_metadata` of an older generation's checkpoint, for the files that it refers to.
    ReadFiles(CheckpointKey),
    /// All files of the job, to find dead ones.
    Sweep,
    /// Unfinished uploads below this prefix, for the same.
    SweepUploads(String),
    /// Directories of jobs of the same name (N1).
    ListSameName,
    /// Removal of some objects, and then of these.
    Delete(Vec<String>),
    /// The end of some unfinished uploads, and then of these.
    Abort(Vec<UnfinishedUpload>),
}

impl Purpose {
    /// Whether the job goes on without it.
    pub(super) const fn is_background(&self) -> bool {
        matches!(
            self,
            Self::ListDead
                | Self::ListShared
                | Self::ReadFiles(_)
                | Self::SweepSavepoints(_)
                | Self::Sweep
                | Self::SweepUploads(_)
                | Self::ListSameName
                | Self::Delete(_)
                | Self::Abort(_)
        )
    }
}

/// Tries of a background operation before it is left to the next sweep.
pub(super) const BACKGROUND_TRIES: u32 = 6;

#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) purpose: Purpose,
    pub(super) operation: StoreOperation,
    pub(super) failures: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Operations {
    next: u64,
    running: BTreeMap<OperationId, Running>,
    waiting: Vec<(Timestamp, Running)>,
}

impl Operations {
    /// Registers one and names it.
    pub(super) fn start(&mut self, running: Running) -> OperationId {
        self.next += 1;
        let id = OperationId(self.next);
        self.running.insert(id, running);
        id
    }

    /// The one that a reply is for.
    pub(super) fn take(&mut self, id: OperationId) -> Option<Running> {
        self.running.remove(&id)
    }

    /// Tries one again at a later time.
    pub(super) fn wait(&mut self, at: Timestamp, running: Running) {
        self.waiting.push((at, running));
    }

    /// Those whose time has come.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Vec<Running> {
        let (due, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|(at, _)| *at <= now);
        self.waiting = waiting;
        let due: Vec<(Timestamp, Running)> = due;
        due.into_iter().map(|(_, running)| running).collect()
    }

    /// When the next one is due.
    pub(super) fn next_wakeup(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|(at, _)| *at).min()
    }

    /// Forgets what has this purpose and was not answered yet.
    pub(super) fn forget(&mut self, is_meant: impl Fn(&Purpose) -> bool) {
        self.running.retain(|_, running| !is_meant(&running.purpose));
        self.waiting.retain(|(_, running)| !is_meant(&running.purpose));
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Whether background work is under way.
    pub(super) fn has_background(&self) -> bool {
        self.running.values().any(|running| running.purpose.is_background())
            || self.waiting.iter().any(|(_, running)| running.purpose.is_background())
    }
}
