//! Looking for what is dead among what the stores list (K6): at each start, every hour (an older process may live and
//! upload), and at the end. So what a failing store keeps, or a killed process left, is found again.
//!
//! Looked through are the job's directory and every place where savepoints of it were asked for, each for objects and for
//! unfinished uploads. Callers rely on: what a newer generation has written is never touched, nor what is retained, pinned
//! or under way; a savepoint that was completed is never touched unless the ledger says that it was disposed of.

use super::operations::{Purpose, Running};
use super::{JobMaster, Phase};
use crate::ledger::CheckpointKey;
use crate::paths;
use crate::store::{StoreOperation, UnfinishedUpload};
use crate::time::TimeSpan;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Time between two sweeps.
const SWEEP_INTERVAL: TimeSpan = TimeSpan::from_secs(3600);

impl JobMaster {
    /// Looks for what is dead, now and again in an hour.
    pub(super) fn sweep(&mut self) {
        if self.journal.in_memory || self.config.planted.keeps_dead {
            return;
        }
        self.expect_better(self.now.plus(SWEEP_INTERVAL));
        let prefix = format!("{}/", self.journal.paths.directory());
        self.look_through(Purpose::Sweep, prefix);
        for root in self.savepoint_roots() {
            let prefix = format!("{}/{}/", root.trim_end_matches('/'), self.config.job);
            self.look_through(Purpose::SweepSavepoints(prefix.clone()), prefix);
        }
        self.abort_leftovers();
    }

    pub(super) fn sweep_when_due(&mut self) {
        if self.cleanup.next_sweep.is_some_and(|due| due <= self.now) {
            self.sweep();
        }
    }

    fn look_through(&mut self, purpose: Purpose, prefix: String) {
        let operation = StoreOperation::List { prefix: prefix.clone(), start_after: None };
        self.start(Running { purpose, operation, failures: 0 });
        let operation = StoreOperation::ListUploads { prefix: prefix.clone() };
        self.start(Running { purpose: Purpose::SweepUploads(prefix), operation, failures: 0 });
    }

    /// Where savepoints of this job may lie; nowhere, when none was ever asked for.
    fn savepoint_roots(&self) -> BTreeSet<String> {
        let fold = &self.journal.fold;
        if fold.requests.is_empty() && fold.savepoint_roots.is_empty() {
            return BTreeSet::new();
        }
        let settings = self.config.options.checkpointing.as_ref();
        let of_requests = fold.requests.iter().filter_map(|request| request.directory.clone());
        let known = fold.savepoint_roots.iter().cloned().chain(of_requests);
        known.chain(settings.and_then(|one| one.savepoint_root())).collect()
    }

    /// What lies in the job's directory.
    pub(super) fn on_swept(&mut self, keys: Vec<String>) {
        let dead = keys.iter().filter(|key| self.is_dead(key)).cloned().collect();
        let shared: Vec<String> = keys.into_iter().filter(|key| self.is_left_over(key)).collect();
        self.delete(dead);
        self.on_shared_found(shared);
    }

    /// Removes savepoints that were begun and will never be complete; never one that the job was started from.
    pub(super) fn delete_dead_savepoints(&mut self, prefix: &str, keys: Vec<String>) {
        let fold = &self.journal.fold;
        let whole = paths::whole_savepoints(prefix, &keys);
        let uri = |place: &str| paths::uri(self.config.storage_uri.as_deref(), place);
        let needed: BTreeSet<String> = fold.started_from().map(uri).collect();
        let is_needed = |one: CheckpointKey| needed.contains(&uri(&paths::savepoint(prefix, one)));
        let is_dead = |key: &String| {
            let savepoint = paths::parse_savepoint(prefix, key).filter(|one| self.is_checkpoint_over(*one));
            savepoint.is_some_and(|one| !is_needed(one) && !fold.keeps_savepoint(one, whole.contains(&one)))
        };
        let dead = keys.into_iter().filter(is_dead).collect();
        self.delete(dead);
    }

    /// Gives up the uploads that nobody will finish, of checkpoints and savepoints below this prefix.
    pub(super) fn abort_dead_uploads(&mut self, prefix: &str, mut uploads: Vec<UnfinishedUpload>) {
        uploads.retain(|upload| self.is_dead_upload(prefix, &upload.key));
        self.abort_uploads(uploads);
    }

    /// Whether nobody will finish an upload to this key, or needs what it would become: a checkpoint or savepoint that is
    /// complete has all its objects.
    fn is_dead_upload(&self, prefix: &str, key: &str) -> bool {
        let paths = &self.journal.paths;
        if let Some(number) = paths.parse_ledger_entry(key) {
            return number <= self.journal.last;
        }
        let checkpoint = paths.parse_checkpoint(key).or_else(|| paths.parse_shared(key));
        let checkpoint = checkpoint.map(|(generation, id)| CheckpointKey { generation, id });
        let of = checkpoint.or_else(|| paths::parse_savepoint(prefix, key));
        let is_latest = |one| self.journal.fold.latest().is_some_and(|latest| latest.key == one);
        paths.is_of_probe(key) || of.is_some_and(|one| is_latest(one) || self.is_checkpoint_over(one))
    }

    /// Whether an object belongs to a checkpoint that is not retained and never will be (K6), or to a probe of the store
    /// that is over, since the ledger is taken.
    fn is_dead(&self, key: &str) -> bool {
        if self.journal.paths.is_of_probe(key) {
            return true;
        }
        let Some((generation, id)) = self.journal.paths.parse_checkpoint(key) else { return false };
        let checkpoint = CheckpointKey { generation, id };
        let is_retained = self.journal.fold.retained.iter().any(|one| one.key == checkpoint);
        !is_retained && !self.is_pinned(checkpoint) && self.is_checkpoint_over(checkpoint)
    }

    /// Whether a shared file was stored for a checkpoint that is over: it may still be part of others.
    fn is_left_over(&self, key: &str) -> bool {
        let stored = self.journal.paths.parse_shared(key);
        stored.is_some_and(|(generation, id)| self.is_checkpoint_over(CheckpointKey { generation, id }))
    }

    /// Whether nobody writes for a checkpoint any more: it is of an older generation; or of this one, when a later
    /// checkpoint is complete, which covers all before it (B5), or when the terminal entry stands. What is not older than
    /// this generation is not its business: also after the end a later one may go on.
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
}
