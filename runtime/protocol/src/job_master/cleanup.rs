//! Removing dead objects (K6) and noticing old directories of the same name (N1), in the background.
//!
//! Only what is dead for ever is removed: checkpoints that an entry dropped, failed ones once a later one is
//! complete or their attempt is over, and whatever older generations left unreferenced. What a failing store keeps
//! is found again by the next start's sweep.

use super::JobMaster;
use super::operations::{Purpose, Running};
use crate::ids::CheckpointId;
use crate::ledger::{CheckpointKey, RestorePoint};
use crate::paths;
use crate::status::Notice;
use crate::store::{StoreOperation, StoreReply};
use std::collections::{BTreeMap, BTreeSet};

/// Keys per delete.
const DELETE_CHUNK: usize = 500;

impl JobMaster {
    /// Removes all files of a dead checkpoint.
    pub(super) fn remove_checkpoint(&mut self, key: CheckpointKey) {
        if self.journal.in_memory || self.is_pinned(key) {
            return;
        }
        let prefix = format!("{}/", self.journal.paths.checkpoint_directory(key.generation, key.id));
        let operation = StoreOperation::List { prefix, start_after: None };
        self.start(Running { purpose: Purpose::ListDead(key), operation, failures: 0 });
    }

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

    /// Removes all files of all generations, but those of pinned checkpoints.
    pub(super) fn remove_remains(&mut self) {
        if self.journal.in_memory {
            return;
        }
        let prefix = format!("{}/", self.journal.paths.directory());
        let operation = StoreOperation::List { prefix, start_after: None };
        self.start(Running { purpose: Purpose::ListRemains, operation, failures: 0 });
    }

    fn delete_remains(&mut self, keys: Vec<String>) {
        let goes = |key: &String| {
            let paths = &self.journal.paths;
            let is_pinned = |(generation, id)| self.is_held(CheckpointKey { generation, id });
            paths.is_below_generation(key) && !paths.parse_checkpoint(key).is_some_and(is_pinned)
        };
        let goes = keys.into_iter().filter(goes).collect();
        self.delete(goes);
    }

    /// Looks for savepoints that older generations began and did not complete. What the fold has forgotten is left
    /// alone: it may be one that lives.
    pub(super) fn sweep_savepoints(&mut self) {
        let fold = &self.journal.fold;
        if fold.requests.is_empty() {
            return;
        }
        let settings = self.config.options.checkpointing.as_ref();
        let of_requests = fold.requests.iter().filter_map(|request| request.directory.clone());
        let roots: BTreeSet<String> =
            settings.and_then(|one| one.savepoint_root()).into_iter().chain(of_requests).collect();
        for root in roots {
            let prefix = format!("{}/{}/", root.trim_end_matches('/'), self.config.job);
            let operation = StoreOperation::List { prefix: prefix.clone(), start_after: None };
            self.start(Running { purpose: Purpose::SweepSavepoints(prefix), operation, failures: 0 });
        }
    }

    fn delete_dead_savepoints(&mut self, prefix: &str, keys: Vec<String>) {
        let fold = &self.journal.fold;
        let is_dead = |key: &String| {
            paths::parse_savepoint(prefix, key).is_some_and(|key| {
                let is_known = fold.savepoints.iter().any(|savepoint| savepoint.key == key);
                let is_forgotten = fold.forgotten_savepoints.is_some_and(|forgotten| key <= forgotten);
                key.generation < self.config.generation && !is_known && !is_forgotten
            })
        };
        let dead = keys.into_iter().filter(is_dead).collect();
        self.delete(dead);
    }

    /// Looks for what older generations left behind.
    pub(super) fn sweep(&mut self) {
        if self.journal.in_memory || self.journal.last <= 1 {
            return;
        }
        let prefix = format!("{}/", self.journal.paths.directory());
        let operation = StoreOperation::List { prefix, start_after: None };
        self.start(Running { purpose: Purpose::Sweep, operation, failures: 0 });
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
        let StoreReply::Keys(keys) = reply else { return };
        match purpose {
            Purpose::ListDead(_) | Purpose::ListDeadFiles => self.delete(keys),
            Purpose::ListRemains => self.delete_remains(keys),
            Purpose::SweepSavepoints(prefix) => self.delete_dead_savepoints(prefix, keys),
            Purpose::Sweep => self.delete_dead(keys),
            Purpose::ListSameName => self.report_older_directories(&keys),
            _ => {}
        }
    }

    fn delete(&mut self, keys: Vec<String>) {
        for chunk in keys.chunks(DELETE_CHUNK) {
            let operation = StoreOperation::Delete { keys: chunk.to_vec() };
            self.start(Running { purpose: Purpose::Delete, operation, failures: 0 });
        }
    }

    fn delete_dead(&mut self, keys: Vec<String>) {
        let retained: BTreeSet<_> = self.journal.fold.retained.iter().map(|one| one.key).collect();
        let is_dead = |key: &String| {
            self.journal.paths.parse_checkpoint(key).is_some_and(|(generation, id)| {
                let checkpoint = CheckpointKey { generation, id };
                generation < self.config.generation && !retained.contains(&checkpoint) && !self.is_pinned(checkpoint)
            })
        };
        let dead = keys.into_iter().filter(is_dead).collect();
        self.delete(dead);
    }

    /// Whether a pin, or what a restart restores, holds it.
    fn is_pinned(&self, key: CheckpointKey) -> bool {
        let directory = self.journal.paths.checkpoint_directory(key.generation, key.id);
        let is_restore_point = matches!(&self.journal.fold.restore_point,
            RestorePoint::Snapshot(reference) if reference.directory == directory);
        is_restore_point || self.is_held(key)
    }

    /// Whether a pin holds it.
    fn is_held(&self, key: CheckpointKey) -> bool {
        let directory = self.journal.paths.checkpoint_directory(key.generation, key.id);
        let uri = paths::uri(self.config.storage_uri.as_deref(), &directory);
        self.journal.fold.pins.iter().any(|pin| pin.snapshot == uri || pin.snapshot == directory)
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
