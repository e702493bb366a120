//! Which files the checkpoints of the job refer to, and which of them nobody needs any more (K6).
//!
//! Files are shared by checkpoints: when one is dropped, those go that no retained or pinned checkpoint and no base of
//! a pending one refers to. What completed here is known from its description; what older generations left is read
//! once, in the background. Until all of that is known, nothing is removed.

use super::JobMaster;
use super::operations::{Purpose, Running};
use crate::coordinator::CheckpointCoordinator;
use crate::ids::CheckpointId;
use crate::ledger::CheckpointKey;
use crate::metadata::Metadata;
use crate::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of files.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Files of completed checkpoints that are not removed yet.
    known: BTreeMap<CheckpointKey, BTreeSet<String>>,
    reading: BTreeSet<CheckpointKey>,
    /// Checkpoints to be removed.
    dying: BTreeSet<CheckpointKey>,
    /// Shared files that were found, of older generations or of failed checkpoints: to be removed unless referred to.
    found: BTreeSet<String>,
}

impl JobMaster {
    /// A checkpoint of this job that is complete.
    pub(super) fn know_files(&mut self, directory: &str, metadata: &Metadata) {
        let key = self.journal.paths.parse_checkpoint(&format!("{directory}/"));
        if let Some((generation, id)) = key.filter(|_| !self.journal.in_memory) {
            self.files.known.insert(CheckpointKey { generation, id }, metadata.files(directory).collect());
        }
    }

    /// Removes all files of a dead checkpoint that nothing else refers to.
    pub(super) fn remove_checkpoint(&mut self, key: CheckpointKey) {
        if self.journal.in_memory || self.is_pinned(key) {
            return;
        }
        self.files.dying.insert(key);
        self.remove_dying();
    }

    /// Shared files were found that may be dead.
    pub(super) fn on_shared_found(&mut self, keys: impl IntoIterator<Item = String>) {
        self.files.found.extend(keys);
        self.remove_dying();
    }

    /// The description of a checkpoint of an older generation.
    pub(super) fn on_files_read(&mut self, key: CheckpointKey, reply: &StoreReply) {
        self.files.reading.remove(&key);
        let directory = self.journal.paths.checkpoint_directory(key.generation, key.id);
        let files = match reply {
            StoreReply::Object(bytes) => match Metadata::from_bytes(bytes, &directory) {
                Ok(metadata) => metadata.files(&directory).collect(),
                // It refers to something that cannot be known: nothing is removed.
                Err(error) => return self.note_unknown_files(key, error.to_string()),
            },
            // Put back, it would need its files.
            StoreReply::Absent if self.kept_checkpoints().contains(&key) => {
                return self.note_unknown_files(key, "it is not there, although the checkpoint is retained".to_owned());
            }
            StoreReply::Absent => BTreeSet::new(),
            _ => return,
        };
        self.files.known.insert(key, files);
        self.remove_dying();
    }

    fn note_unknown_files(&mut self, key: CheckpointKey, message: String) {
        let operation = StoreOperation::Get { key: self.journal.paths.metadata(key.generation, key.id) };
        let kind = StoreFailureKind::Unsuitable;
        self.note_cleanup_failure(&operation, &StoreFailure { kind, message });
    }

    /// It could not be read; it is tried again with the next checkpoint that goes.
    pub(super) fn on_files_unreadable(&mut self, key: CheckpointKey) {
        self.files.reading.remove(&key);
    }

    /// Removes what is dead, as soon as all that must stay is known.
    fn remove_dying(&mut self) {
        if self.files.dying.is_empty() && self.files.found.is_empty() {
            return;
        }
        let kept = self.kept_checkpoints();
        let own = self.config.generation;
        let is_needed = |key: &CheckpointKey| !self.files.known.contains_key(key);
        // A dead one of this generation that is not known has failed: it has files of its own only.
        let dying = self.files.dying.iter().filter(|key| key.generation < own);
        let unknown: BTreeSet<_> = kept.iter().chain(dying).filter(|key| is_needed(key)).copied().collect();
        if !unknown.is_empty() {
            return self.read_files(unknown);
        }
        let live = kept.iter().filter(|_| !self.config.planted.forgets_references);
        let live: BTreeSet<String> = live.filter_map(|key| self.files.known.get(key)).flatten().cloned().collect();
        let (waiting, dying) = std::mem::take(&mut self.files.dying).into_iter().partition(|key| kept.contains(key));
        self.files.dying = waiting;
        let mut dead = std::mem::take(&mut self.files.found);
        let dying: BTreeSet<CheckpointKey> = dying;
        for key in dying {
            match self.files.known.remove(&key) {
                Some(files) => dead.extend(files),
                None => self.list_dead(Purpose::ListShared, self.journal.paths.shared_prefix(key.generation, key.id)),
            }
            let directory = self.journal.paths.checkpoint_directory(key.generation, key.id);
            self.list_dead(Purpose::ListDead, format!("{directory}/"));
        }
        let shared = |file: &String| self.journal.paths.parse_shared(file).is_some() && !live.contains(file);
        let dead: BTreeSet<String> = dead.into_iter().filter(shared).collect();
        self.delete(dead.into_iter().collect());
    }

    pub(super) fn list_dead(&mut self, purpose: Purpose, prefix: String) {
        let operation = StoreOperation::List { prefix, start_after: None };
        self.start(Running { purpose, operation, failures: 0 });
    }

    fn read_files(&mut self, unknown: BTreeSet<CheckpointKey>) {
        for key in unknown {
            if self.files.reading.insert(key) {
                let operation = StoreOperation::Get { key: self.journal.paths.metadata(key.generation, key.id) };
                self.start(Running { purpose: Purpose::ReadFiles(key), operation, failures: 0 });
            }
        }
    }

    /// Checkpoints of this job whose files must stay: retained ones, what a restart restores, pinned ones, and bases of
    /// pending ones.
    fn kept_checkpoints(&self) -> BTreeSet<CheckpointKey> {
        let fold = &self.journal.fold;
        let of_place = |place: &str| {
            let root = self.config.storage_uri.as_deref().map(|root| root.trim_end_matches('/'));
            let key = root.and_then(|root| place.strip_prefix(root)?.strip_prefix('/')).unwrap_or(place);
            let (generation, id) = self.journal.paths.parse_checkpoint(&format!("{key}/"))?;
            Some(CheckpointKey { generation, id })
        };
        let restore = self.needed_restore_point().and_then(|reference| of_place(&reference.directory));
        let pinned = fold.pins.iter().filter_map(|pin| of_place(&pin.snapshot));
        let mut kept: BTreeSet<_> = fold.retained.iter().map(|one| one.key).chain(restore).chain(pinned).collect();
        let bases: BTreeSet<CheckpointId> = self.coordinator.iter().flat_map(CheckpointCoordinator::bases).collect();
        kept.extend(self.files.known.keys().filter(|key| bases.contains(&key.id)));
        kept
    }
}
