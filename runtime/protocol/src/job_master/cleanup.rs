//! Removing dead objects (K6) and noticing old directories of the same name (N1), in the background.
//!
//! Only what is dead for ever is removed: checkpoints that an entry dropped, failed ones once a later one is
//! complete or their attempt is over, and what a [`sweep`](super::sweep) finds. Nothing waits for any of it, except the
//! process's exit for some seconds. What cannot be removed is told by the notice [`CLEANUP_FAILED`] and found again by the
//! next sweep; what is refused holds up nothing beside it.

use super::operations::{BACKGROUND_TRIES, Purpose, Running};
use super::{JobMaster, Phase};
use crate::ids::CheckpointId;
use crate::ledger::append::backoff;
use crate::ledger::{CheckpointKey, RestorePoint, SnapshotReference};
use crate::paths;
use crate::status::Notice;
use crate::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply, UnfinishedUpload};
use crate::time::{TimeSpan, Timestamp};
use std::collections::BTreeMap;

/// The notice that objects which nobody needs could not be looked for or removed.
pub const CLEANUP_FAILED: &str = "CleanupFailed";

/// Keys per delete.
const DELETE_BATCH: usize = 500;

/// Unfinished uploads that are given up together; each is a request of its own.
const ABORT_BATCH: usize = 200;

/// How removing went.
#[derive(Debug, Default)]
pub(super) struct Cleanup {
    /// When dead objects are next looked for.
    pub(super) next_sweep: Option<Timestamp>,
    /// What last failed.
    failure: Option<String>,
    /// Whether a sweep was begun after that: once it has done its work, all is well again.
    is_tried_again: bool,
}

impl JobMaster {
    /// Removes what an entry has dropped, and what failed before it.
    pub(super) fn remove_dead(&mut self, drops: Vec<CheckpointKey>) {
        if self.config.planted.keeps_dead {
            return;
        }
        let dead: Vec<_> = self.dead.drain(..).chain(drops).collect();
        dead.into_iter().for_each(|key| self.remove_checkpoint(key));
        let savepoints = std::mem::take(&mut self.dead_savepoints);
        savepoints.into_iter().for_each(|directory| self.remove_savepoint(directory));
    }

    /// A job made anew starts empty; its people may want to know of what the old one left (N1).
    pub(super) fn look_for_older_directories(&mut self, ledger_is_empty: bool) {
        if self.journal.in_memory || !ledger_is_empty {
            return;
        }
        let prefix = paths::same_name_prefix(&self.config.job);
        let operation = StoreOperation::List { prefix, start_after: None };
        self.start(Running { purpose: Purpose::ListSameName, operation, failures: 0 });
    }

    pub(super) fn on_background(&mut self, running: Running, reply: StoreReply) {
        match reply {
            StoreReply::Failed(failure) => self.on_background_failure(running, &failure),
            reply => self.on_background_reply(&running.purpose, reply),
        }
        if self.cleanup.is_tried_again && !self.operations.has_background() {
            self.cleanup.is_tried_again = false;
            self.cleanup.failure = None;
            self.clear_notice(CLEANUP_FAILED);
        }
    }

    /// What is not allowed now will not be in a moment: the next sweep asks again.
    fn on_background_failure(&mut self, running: Running, failure: &StoreFailure) {
        let may_pass = failure.kind == StoreFailureKind::Unreachable;
        let failures = running.failures + 1;
        if may_pass && failures < BACKGROUND_TRIES {
            let pause = backoff(failures, TimeSpan::from_secs(1), TimeSpan::from_secs(60), &mut *self.random);
            return self.operations.wait(self.now.plus(pause), Running { failures, ..running });
        }
        if running.purpose != Purpose::ListSameName {
            self.note_cleanup_failure(&running.operation, failure);
        }
        match running.purpose {
            Purpose::ReadFiles(key) => self.on_files_unreadable(key),
            Purpose::Delete(rest) if !may_pass => self.delete(rest),
            Purpose::Abort(rest) if !may_pass => self.abort_uploads(rest),
            _ => {}
        }
    }

    pub(super) fn note_cleanup_failure(&mut self, operation: &StoreOperation, failure: &StoreFailure) {
        let what = self.describe_background(operation);
        let next = match self.cleanup.next_sweep.filter(|_| !matches!(self.phase, Phase::Exiting { .. })) {
            Some(due) => format!("it is tried again in {} at the latest", due.since(self.now)),
            None => "the job's next start tries again, and so does `sluice checkpoint gc`".to_owned(),
        };
        self.set_notice(CLEANUP_FAILED, format!("what nobody needs takes room: {what}; {next}: {failure}"));
        self.cleanup.failure = Some(format!("{what}: {failure}"));
        self.cleanup.is_tried_again = false;
    }

    fn describe_background(&self, operation: &StoreOperation) -> String {
        let uri = |key: &str| paths::uri(self.config.storage_uri.as_deref(), key);
        let first = |count: usize, what: &str, key: Option<&String>| {
            format!("{count} {what}, the first of them {}", uri(key.map_or("", String::as_str)))
        };
        match operation {
            StoreOperation::List { prefix, .. } => {
                format!("dead objects below {} could not be looked for", uri(prefix))
            }
            StoreOperation::ListUploads { prefix } => {
                format!("unfinished uploads below {} could not be looked for", uri(prefix))
            }
            StoreOperation::Delete { keys } => first(keys.len(), "objects could not be removed", keys.first()),
            StoreOperation::AbortUploads { uploads } => {
                let key = uploads.first().map(|upload| &upload.key);
                first(uploads.len(), "unfinished uploads could not be given up", key)
            }
            StoreOperation::Get { key } | StoreOperation::PutIfAbsent { key, .. } => {
                format!("{}, which says what may be removed, could not be read", uri(key))
            }
        }
    }

    /// A sweep finds again what failed before it.
    pub(super) fn expect_better(&mut self, next_sweep: Timestamp) {
        self.cleanup.next_sweep = Some(next_sweep);
        self.cleanup.is_tried_again = self.cleanup.failure.is_some();
    }

    /// What could not be removed, as far as it is known.
    pub(super) fn cleanup_failure(&self) -> Option<&str> {
        self.cleanup.failure.as_deref()
    }

    pub(super) fn on_background_reply(&mut self, purpose: &Purpose, reply: StoreReply) {
        if let Purpose::ReadFiles(key) = purpose {
            return self.on_files_read(*key, &reply);
        }
        match (purpose, reply) {
            (Purpose::ListDead, StoreReply::Keys(keys)) => self.delete(keys),
            (Purpose::ListShared, StoreReply::Keys(keys)) => self.on_shared_found(keys),
            (Purpose::SweepSavepoints(prefix), StoreReply::Keys(keys)) => self.delete_dead_savepoints(prefix, keys),
            (Purpose::Sweep, StoreReply::Keys(keys)) => self.on_swept(keys),
            (Purpose::SweepUploads(prefix), StoreReply::Uploads(uploads)) => self.abort_dead_uploads(prefix, uploads),
            (Purpose::Delete(rest), StoreReply::Deleted) => self.delete(rest.clone()),
            (Purpose::Abort(rest), StoreReply::Deleted) => self.abort_uploads(rest.clone()),
            (Purpose::ListSameName, StoreReply::Keys(keys)) => self.report_older_directories(&keys),
            _ => {}
        }
    }

    /// Batch by batch, each when the one before is gone.
    pub(super) fn delete(&mut self, mut keys: Vec<String>) {
        if keys.is_empty() {
            return;
        }
        let rest = keys.split_off(keys.len().min(DELETE_BATCH));
        let operation = StoreOperation::Delete { keys };
        self.start(Running { purpose: Purpose::Delete(rest), operation, failures: 0 });
    }

    /// Likewise.
    pub(super) fn abort_uploads(&mut self, mut uploads: Vec<UnfinishedUpload>) {
        if uploads.is_empty() {
            return;
        }
        let rest = uploads.split_off(uploads.len().min(ABORT_BATCH));
        let operation = StoreOperation::AbortUploads { uploads };
        self.start(Running { purpose: Purpose::Abort(rest), operation, failures: 0 });
    }

    /// Whether a pin, or what a restart restores, holds it.
    pub(super) fn is_pinned(&self, key: CheckpointKey) -> bool {
        let directory = self.journal.paths.checkpoint_directory(key.generation, key.id);
        let uri = paths::uri(self.config.storage_uri.as_deref(), &directory);
        let is_held = self.journal.fold.pins.iter().any(|pin| pin.snapshot == uri || pin.snapshot == directory);
        is_held || self.needed_restore_point().is_some_and(|reference| reference.directory == directory)
    }

    /// The snapshot that a restart restores instead of the latest checkpoint. Behind a terminal entry none counts: a
    /// later start goes on from what is retained.
    pub(super) fn needed_restore_point(&self) -> Option<&SnapshotReference> {
        match &self.journal.fold.restore_point {
            RestorePoint::Snapshot(reference) if !matches!(self.phase, Phase::Exiting { .. }) => Some(reference),
            _ => None,
        }
    }

    fn report_older_directories(&mut self, keys: &[String]) {
        let job = &self.config.job;
        let mut newest: BTreeMap<&str, (crate::ids::Generation, CheckpointId)> = BTreeMap::new();
        for key in keys.iter().filter(|key| key.ends_with(paths::METADATA)) {
            let Some(uid) = paths::parse_uid(job, key).filter(|uid| *uid != job.uid) else { continue };
            let directory = format!("{}{uid}", paths::same_name_prefix(job));
            let Some(found) = paths::JobPaths::of_directory(&directory).parse_checkpoint(key) else { continue };
            let entry = newest.entry(uid).or_insert(found);
            *entry = (*entry).max(found);
        }
        let places: Vec<_> = newest
            .iter()
            .map(|(uid, (generation, id))| {
                let directory = format!("{}{uid}", paths::same_name_prefix(job));
                let key = paths::JobPaths::of_directory(&directory).checkpoint_directory(*generation, *id);
                paths::uri(self.config.storage_uri.as_deref(), &key)
            })
            .collect();
        if places.is_empty() {
            return;
        }
        let message = format!(
            "the job starts empty; earlier jobs of the same name left checkpoints, the newest of each: {}. To go on from \
             one, set restore.from to it",
            places.join(", ")
        );
        self.set_notice("OlderCheckpointsExist", message);
    }
}

/// Sets or replaces a notice.
pub(super) fn upsert_notice(notices: &mut Vec<Notice>, reason: &str, message: String) {
    match notices.iter_mut().find(|notice| notice.reason == reason) {
        Some(notice) => notice.message = message,
        None => notices.push(Notice { reason: reason.to_owned(), message }),
    }
}
