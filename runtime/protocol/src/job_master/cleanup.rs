//! Removing dead objects (K6) and noticing old directories of the same name (N1), in the background.
//!
//! Only what is dead for ever is removed: checkpoints that an entry dropped, failed ones once a later one is
//! complete or their attempt is over, and whatever older generations left unreferenced. A *sweep* looks for all of it
//! among what the store lists: at each start, every hour (an older process may live and upload), and at the end. So
//! what a failing store keeps is found again. Nothing waits for any of it, except the process's exit for some seconds.

use super::operations::{Purpose, Running};
use super::{JobMaster, Phase};
use crate::ids::CheckpointId;
use crate::ledger::{CheckpointKey, RestorePoint, SnapshotReference};
use crate::paths;
use crate::status::Notice;
use crate::store::{StoreOperation, StoreReply};
use crate::time::TimeSpan;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Keys per delete.
const DELETE_BATCH: usize = 500;

/// Time between two sweeps.
const SWEEP_INTERVAL: TimeSpan = TimeSpan::from_secs(3600);

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

    /// Whether the job has ended in a way that keeps no checkpoint.
    pub(super) fn removes_all(&self, drops: &[CheckpointKey]) -> bool {
        !drops.is_empty() && self.journal.fold.retained.is_empty()
    }

    /// Looks for savepoints that were begun and will not be complete. What the fold has forgotten is left alone: it may
    /// be one that lives.
    fn sweep_savepoints(&mut self) {
        let fold = &self.journal.fold;
        if fold.requests.is_empty() {
            return;
        }
        let settings = self.config.options.checkpointing.as_ref();
        let of_requests = fold.requests.iter().filter_map(|request| request.directory.clone());
        self.savepoint_roots.extend(settings.and_then(|one| one.savepoint_root()).into_iter().chain(of_requests));
        for root in self.savepoint_roots.clone() {
            let prefix = format!("{}/{}/", root.trim_end_matches('/'), self.config.job);
            let operation = StoreOperation::List { prefix: prefix.clone(), start_after: None };
            self.start(Running { purpose: Purpose::SweepSavepoints(prefix), operation, failures: 0 });
        }
    }

    fn delete_dead_savepoints(&mut self, prefix: &str, keys: Vec<String>) {
        let fold = &self.journal.fold;
        let has_ended = matches!(self.phase, Phase::Exiting { .. });
        let is_dead = |key: &String| {
            paths::parse_savepoint(prefix, key).is_some_and(|key| {
                let is_known = fold.savepoints.iter().any(|savepoint| savepoint.key == key);
                let is_forgotten = fold.forgotten_savepoints.is_some_and(|forgotten| key <= forgotten);
                let own = self.config.generation;
                // Also after the end a later generation may go on: what is not older than this one is not its business.
                let is_over = key.generation < own || (has_ended && key.generation == own);
                is_over && !is_known && !is_forgotten
            })
        };
        let dead = keys.into_iter().filter(is_dead).collect();
        self.delete(dead);
    }

    /// Looks for what is dead, now and again in an hour.
    pub(super) fn sweep(&mut self) {
        if self.journal.in_memory || self.config.planted.keeps_dead {
            return;
        }
        self.next_sweep = Some(self.now.plus(SWEEP_INTERVAL));
        let prefix = format!("{}/", self.journal.paths.directory());
        let operation = StoreOperation::List { prefix: prefix.clone(), start_after: None };
        self.start(Running { purpose: Purpose::Sweep, operation, failures: 0 });
        let operation = StoreOperation::ListUploads { prefix };
        self.start(Running { purpose: Purpose::SweepUploads, operation, failures: 0 });
        self.sweep_savepoints();
        self.abort_leftovers();
    }

    pub(super) fn sweep_when_due(&mut self) {
        if self.next_sweep.is_some_and(|due| due <= self.now) {
            self.sweep();
        }
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

    pub(super) fn on_background_reply(&mut self, purpose: &Purpose, reply: StoreReply) {
        if let Purpose::ReadFiles(key) = purpose {
            return self.on_files_read(*key, &reply);
        }
        match (purpose, reply) {
            (Purpose::ListDead, StoreReply::Keys(keys)) => self.delete(keys),
            (Purpose::ListShared, StoreReply::Keys(keys)) => self.on_shared_found(keys),
            (Purpose::SweepSavepoints(prefix), StoreReply::Keys(keys)) => self.delete_dead_savepoints(prefix, keys),
            (Purpose::Sweep, StoreReply::Keys(keys)) => {
                let dead = keys.iter().filter(|key| self.is_dead(key)).cloned().collect();
                let shared: Vec<String> = keys.into_iter().filter(|key| self.is_left_over(key)).collect();
                self.delete(dead);
                self.on_shared_found(shared);
            }
            (Purpose::SweepUploads, StoreReply::Uploads(mut uploads)) => {
                uploads.retain(|upload| self.is_dead(&upload.key) || self.is_left_over(&upload.key));
                if !uploads.is_empty() {
                    let operation = StoreOperation::AbortUploads { uploads };
                    self.start(Running { purpose: Purpose::Delete(Vec::new()), operation, failures: 0 });
                }
            }
            (Purpose::Delete(rest), StoreReply::Deleted) => self.delete(rest.clone()),
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

    /// Whether an object, or an upload to it, belongs to a checkpoint that is not retained and never will be (K6): of
    /// an older generation; of this one, when a later checkpoint is complete, which covers all before it (B5), or when
    /// the terminal entry stands.
    fn is_dead(&self, key: &str) -> bool {
        let Some((generation, id)) = self.journal.paths.parse_checkpoint(key) else { return false };
        let checkpoint = CheckpointKey { generation, id };
        let fold = &self.journal.fold;
        if fold.retained.iter().any(|one| one.key == checkpoint) || self.is_pinned(checkpoint) {
            return false;
        }
        self.is_checkpoint_over(checkpoint)
    }

    /// Whether a shared file was stored for a checkpoint that is over: it may still be part of others.
    fn is_left_over(&self, key: &str) -> bool {
        let stored = self.journal.paths.parse_shared(key);
        stored.is_some_and(|(generation, id)| self.is_checkpoint_over(CheckpointKey { generation, id }))
    }

    fn is_checkpoint_over(&self, checkpoint: CheckpointKey) -> bool {
        let CheckpointKey { generation, id } = checkpoint;
        match generation.cmp(&self.config.generation) {
            Ordering::Less => true,
            Ordering::Equal => {
                let is_pending = self.coordinator.iter().flat_map(|one| one.pending()).any(|pending| pending == id);
                let latest = self.journal.fold.latest();
                let is_covered = !is_pending && latest.is_some_and(|latest| latest.key > checkpoint);
                is_covered || matches!(self.phase, Phase::Exiting { .. })
            }
            Ordering::Greater => false,
        }
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
