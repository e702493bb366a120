//! Which handles are there to settle: read from the last complete checkpoint of the own ledger, and of one that is taken over.
//!
//! Callers rely on: no task is deployed, and no ledger taken over, before they are known; those of a sink that the program
//! does not have are refused by name, and what the ledger says is committed is not among them (S6).

use super::super::operations::Purpose;
use super::super::{JobMaster, StartFrom};
use super::ending::{describe, summary};
use crate::commit::CommitHandle;
use crate::failure::Failure;
use crate::ids::{CheckpointId, OperatorUid};
use crate::metadata::{Metadata, MetadataError};
use crate::paths;
use crate::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply};
use std::collections::BTreeSet;

/// Notice that uncommitted output was given up by name.
const ABANDONED: &str = "OutputAbandoned";

/// Notice that nobody can tell whether a program without sinks left something uncommitted behind.
const UNKNOWN: &str = "StagedOutputUnknown";

impl JobMaster {
    /// The ledger is ours: what its last complete checkpoint holds and is not known to be committed (S5, S6).
    pub(in super::super) fn find_unsettled(&mut self) {
        let fold = &self.journal.fold;
        let Some(latest) = fold.latest().map(|latest| latest.key).filter(|_| !self.journal.in_memory) else { return };
        if fold.committed_through >= latest.id {
            return;
        }
        let directory = self.journal.paths.checkpoint_directory(latest.generation, latest.id);
        // A closer of a program without sinks can commit nothing, and forgets nothing: it takes no checkpoint.
        let is_closer = matches!(self.config.directive.start, StartFrom::Close { .. });
        match &self.cached {
            Some((cached, metadata)) if *cached == directory => {
                let handles = unsettled(metadata, fold.committed_through);
                self.adopt_handles(handles);
            }
            _ if is_closer && !self.has_transactional_sinks() => {}
            _ => {
                self.commits.loading = true;
                let key = self.journal.paths.metadata(latest.generation, latest.id);
                self.store(Purpose::LoadHandles, StoreOperation::Get { key });
            }
        }
    }

    pub(in super::super) fn on_handles_loaded(&mut self, reply: StoreReply) {
        let Some(latest) = self.journal.fold.latest().map(|latest| latest.key) else { return };
        if self.commits.terminal_queued {
            // It was waited for long enough: the entry says that it is not known.
            return;
        }
        let has_sinks = self.has_transactional_sinks();
        if !has_sinks && self.is_ending() {
            self.commits.loading = false;
            return;
        }
        let key = self.journal.paths.metadata(latest.generation, latest.id);
        match self.read_for_handles(Purpose::LoadHandles, key, reply) {
            None => {}
            Some(Ok(metadata)) => {
                self.commits.loading = false;
                let handles = unsettled(&metadata, self.journal.fold.committed_through);
                self.adopt_handles(handles);
                // Until now it was not known what to spare.
                self.abort_leftovers();
            }
            Some(Err(failure)) if has_sinks => self.exit_user_error(&failure),
            // It starts from elsewhere, and could commit nothing of it.
            Some(Err(failure)) => {
                self.commits.loading = false;
                let message = format!("{}; the program has no such sink, and goes on without it", failure.message);
                self.set_notice(UNKNOWN, message);
            }
        }
    }

    /// The description of a last complete checkpoint; `None`: it is asked for again, after a pause.
    fn read_for_handles(
        &mut self,
        purpose: Purpose,
        key: String,
        reply: StoreReply,
    ) -> Option<Result<Metadata, Failure>> {
        let place = paths::uri(self.config.storage_uri.as_deref(), &key);
        let failure = match reply {
            StoreReply::Object(bytes) => match Metadata::from_bytes(&bytes, &place) {
                Ok(metadata) => {
                    self.clear_store_notice();
                    return Some(Ok(metadata));
                }
                Err(error @ MetadataError::Damaged { .. }) if self.has_transactional_sinks() => {
                    StoreFailure { kind: StoreFailureKind::Unreachable, message: error.to_string() }
                }
                Err(error) => return Some(Err(Failure::user("SnapshotUnreadable", error.to_string()))),
            },
            StoreReply::Absent => {
                let message = format!(
                    "{place} is missing: it is the last complete checkpoint, and what sinks staged with it cannot be \
                     committed without it; bring it back"
                );
                return Some(Err(Failure::user("SnapshotNotFound", message)));
            }
            StoreReply::Failed(failure) => failure,
            other => crate::ledger::read::unexpected(&other),
        };
        self.store_later(purpose, StoreOperation::Get { key }, &failure);
        None
    }

    fn adopt_handles(&mut self, handles: Vec<CommitHandle>) {
        let abandoned = self.abandoned_sinks();
        let handles = self.without_abandoned(handles, &abandoned);
        // A conclusion commits what it can and says what it leaves; the start that follows is refused, if need be.
        if let Some(refusal) = self.without_sink(&handles).filter(|_| !self.concludes_for_another) {
            return self.exit_user_error(&refusal);
        }
        self.commits.unsettled = handles.into_iter().collect();
    }

    /// The sinks whose uncommitted output this start gives up by name. Where it first concludes an end, the ledger has not
    /// heard of it.
    fn abandoned_sinks(&self) -> Vec<OperatorUid> {
        match &self.config.directive.start {
            StartFrom::Path { abandon_sinks, .. } if self.concludes_for_another => abandon_sinks.clone(),
            _ => self.journal.fold.abandoned_sinks().to_vec(),
        }
    }

    /// Those that a start does not give up by name, which is told of the others (S5): what a cluster holds that is gone for good
    /// can never be committed.
    pub(in super::super) fn without_abandoned(
        &mut self,
        handles: Vec<CommitHandle>,
        sinks: &[OperatorUid],
    ) -> Vec<CommitHandle> {
        let (abandoned, kept): (Vec<_>, Vec<_>) = handles.into_iter().partition(|one| sinks.contains(&one.sink));
        if !abandoned.is_empty() {
            let message = format!(
                "{} was given up uncommitted, as restore.abandonSinks says: its rows are in no result. Start from an older \
                 snapshot to write them again",
                describe(&summary(abandoned.iter()), self.now)
            );
            self.set_notice(ABANDONED, message);
        }
        kept
    }

    /// Only the sink that staged something can commit it.
    pub(in super::super) fn without_sink(&self, handles: &[CommitHandle]) -> Option<Failure> {
        let known: BTreeSet<_> = self.config.graph.transactional_sinks().collect();
        let missing = handles.iter().find(|handle| !known.contains(&handle.sink))?;
        let message = format!(
            "the last complete checkpoint holds output of sink '{}' that is staged and not committed, and the program has no \
             such sink: run the program that has it until it has committed (stop it with a savepoint), then change it. Where its \
             target is gone for good, name it in restore.abandonSinks, with a new nonce, to go on without that output",
            missing.sink
        );
        Some(Failure::user("SinkMissing", message))
    }

    /// The last complete checkpoint of a ledger that is being taken over. The other job may have displaced it meanwhile.
    pub(in super::super) fn on_taken_handles_loaded(&mut self, reply: StoreReply) {
        let Some(key) = self.taken().and_then(|takeover| takeover.unread()) else { return };
        match self.read_for_handles(Purpose::LoadTakenHandles, key.clone(), reply) {
            None => {}
            Some(Ok(metadata)) => self.on_taken_read(metadata),
            Some(Err(_)) if self.missing.as_ref() != Some(&key) => {
                self.missing = Some(key);
                self.read_taken_again(false);
            }
            Some(Err(failure)) => self.refuse_snapshot(&failure.reason, &failure.message),
        }
    }
}

/// The handles in a checkpoint's description that a ledger which says so much does not know to be committed (S6): also a
/// checkpoint beyond holds those that were confirmed while it was being stored.
pub(in super::super) fn unsettled(metadata: &Metadata, through: CheckpointId) -> Vec<CommitHandle> {
    metadata.handles().filter(|handle| handle.committable.checkpoint > through).collect()
}
