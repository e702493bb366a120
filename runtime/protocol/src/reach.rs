//! What the ledger of a job reaches, and what lies around it that nobody needs (K6): for who cleans up behind a job of
//! which no process lives any more. A living JobManager decides by more than the ledger ([`crate::job_master`]).
//!
//! Pure: whoever asks reads the ledger, the descriptions of the checkpoints in [`Reach::kept`], and what the store lists.
//! Callers can rely on: what a start would restore is reached, completed savepoints are, and so is all that a generation
//! behind the ledger's last one has written; what is no object of the job's own making is nobody's litter.

use crate::ledger::{CheckpointKey, Entry, Fold, LedgerState, RestorePoint};
use crate::metadata::Metadata;
use crate::paths::{self, JobPaths};
use std::collections::BTreeSet;

/// The ledger of one job, as its last entry tells it.
#[derive(Debug, Clone)]
pub struct Reach {
    paths: JobPaths,
    last: u64,
    fold: Fold,
    /// Files that the kept checkpoints refer to.
    files: BTreeSet<String>,
}

impl Reach {
    /// By the last entry; `paths` as the keys are listed, so absolute if they are.
    #[must_use]
    pub fn new(paths: JobPaths, last: &Entry) -> Self {
        Self { paths, last: last.number, fold: last.folded(), files: BTreeSet::new() }
    }

    /// What the ledger tells of the job.
    #[must_use]
    pub const fn fold(&self) -> &Fold {
        &self.fold
    }

    /// Number of the last entry.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Its checkpoints that must stay: retained and pinned ones, and what a restart would restore.
    #[must_use]
    pub fn kept(&self) -> BTreeSet<CheckpointKey> {
        let of_place = |place: &str| {
            let key = format!("{}/", self.paths.resolve(place));
            let (generation, id) = self.paths.parse_checkpoint(&key)?;
            Some(CheckpointKey { generation, id })
        };
        // Behind these ends a start goes on from what is retained.
        let is_over = matches!(self.fold.state, LedgerState::Finished | LedgerState::Cancelled);
        let restored = match &self.fold.restore_point {
            RestorePoint::Snapshot(reference) if !is_over => of_place(&reference.directory),
            _ => None,
        };
        let pinned = self.fold.pins.iter().filter_map(|pin| of_place(&pin.snapshot));
        self.fold.retained.iter().map(|one| one.key).chain(pinned).chain(restored).collect()
    }

    /// What one of them refers to.
    pub fn know_files(&mut self, key: CheckpointKey, metadata: &Metadata) {
        let directory = self.paths.checkpoint_directory(key.generation, key.id);
        self.files.extend(metadata.files(&directory));
    }

    /// Where savepoints of the job may lie, as URIs of their roots.
    #[must_use]
    pub fn savepoint_roots(&self) -> BTreeSet<String> {
        let of_requests = self.fold.requests.iter().filter_map(|request| request.directory.clone());
        let beside = format!("{}/savepoints", self.paths.root());
        self.fold.savepoint_roots.iter().cloned().chain(of_requests).chain([beside]).collect()
    }

    /// What savepoints of this job below a root begin with.
    #[must_use]
    pub fn savepoint_prefix(&self, root: &str) -> String {
        let job = self.paths.directory().strip_prefix(self.paths.root()).unwrap_or_default();
        format!("{}/{}/", root.trim_end_matches('/'), job.trim_start_matches('/'))
    }

    /// Of what lies in the job's directory, what nobody needs.
    #[must_use]
    pub fn dead_objects(&self, keys: Vec<String>) -> Vec<String> {
        let kept = self.kept();
        let is_dead = |key: &String| {
            if let Some((generation, id)) = self.paths.parse_checkpoint(key) {
                return self.is_over(CheckpointKey { generation, id })
                    && !kept.contains(&CheckpointKey { generation, id });
            }
            let shared = self.paths.parse_shared(key).map(|(generation, id)| CheckpointKey { generation, id });
            let is_dead_file = shared.is_some_and(|of| self.is_over(of)) && !self.files.contains(key);
            is_dead_file || self.paths.is_of_probe(key)
        };
        keys.into_iter().filter(is_dead).collect()
    }

    /// Of what lies below [`Self::savepoint_prefix`], what was begun and never completed, or was disposed of; nothing that
    /// the job was started from.
    #[must_use]
    pub fn dead_savepoints(&self, prefix: &str, keys: Vec<String>) -> Vec<String> {
        let whole = paths::whole_savepoints(prefix, &keys);
        let needed: BTreeSet<String> = self.fold.started_from().map(|place| self.paths.resolve(place)).collect();
        let is_needed = |one: CheckpointKey| needed.contains(&paths::savepoint(prefix, one));
        let is_dead = |key: &String| {
            let savepoint = paths::parse_savepoint(prefix, key).filter(|one| self.is_over(*one));
            savepoint.is_some_and(|one| !is_needed(one) && !self.fold.keeps_savepoint(one, whole.contains(&one)))
        };
        keys.into_iter().filter(is_dead).collect()
    }

    /// Whether nobody will finish an upload to this key, below the job's directory or this prefix of its savepoints.
    #[must_use]
    pub fn is_dead_upload(&self, prefix: &str, key: &str) -> bool {
        let paths = &self.paths;
        let checkpoint = paths.parse_checkpoint(key).or_else(|| paths.parse_shared(key));
        let checkpoint = checkpoint.map(|(generation, id)| CheckpointKey { generation, id });
        let of = checkpoint.or_else(|| paths::parse_savepoint(prefix, key));
        let is_of_entry = paths.parse_ledger_entry(key).is_some_and(|number| number <= self.last);
        is_of_entry || paths.is_of_probe(key) || of.is_some_and(|one| self.is_over(one))
    }

    /// Whether it is of a generation that the ledger knows.
    fn is_over(&self, checkpoint: CheckpointKey) -> bool {
        checkpoint.generation <= self.fold.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AppendId, Attempt, CheckpointId, Generation, ProcessId};
    use crate::ledger::{EntryKind, ForeignSnapshot, LiveSavepoint, Pin, RetainedCheckpoint, SnapshotReference};
    use crate::time::Timestamp;

    const JOB: &str = "s3://b/root/default/pv-1";

    fn key(generation: u64, id: u64) -> CheckpointKey {
        CheckpointKey { generation: Generation(generation), id: CheckpointId(id) }
    }

    /// Generation 2 has stopped; checkpoint 2-5 is retained, 1-3 pinned, savepoint 2-4 complete, those up to 1-2 forgotten.
    fn reach() -> Reach {
        let retained =
            |key| RetainedCheckpoint { key, triggered_at: Timestamp(1), completed_at: Timestamp(2), bytes: 3 };
        let savepoint = LiveSavepoint {
            key: key(2, 4),
            path: "s3://other/sp/default/pv-1/2-4".into(),
            triggered_at: Timestamp(1),
            completed_at: Timestamp(2),
            bytes: 3,
        };
        let fold = Fold {
            generation: Generation(2),
            retained: vec![retained(key(2, 5))],
            pins: vec![Pin { snapshot: "default/pv-1/1/chk-3".into(), holder: "revision 2".into() }],
            savepoints: vec![savepoint],
            forgotten_savepoints: Some(key(1, 2)),
            savepoint_roots: vec!["s3://other/sp/".into()],
            ..Fold::default()
        };
        let entry = Entry {
            version: 1,
            number: 9,
            append_id: AppendId::from("a"),
            process: ProcessId::from("p"),
            generation: Generation(2),
            attempt: Attempt(1),
            revision: 1,
            directive: "1".into(),
            time: Timestamp(1),
            kind: EntryKind::Stopped,
            unsettled: Vec::new(),
            left_open: None,
            fold,
        };
        let mut reach = Reach::new(JobPaths::of_directory(JOB), &entry);
        reach.files.insert(format!("{JOB}/1/shared/2-kept"));
        reach
    }

    #[test]
    fn what_a_start_would_restore_is_reached_and_what_a_newer_generation_writes_is_not_judged() {
        let reach = reach();
        assert_eq!(reach.kept(), BTreeSet::from([key(1, 3), key(2, 5)]));
        let below = |keys: &[&str]| keys.iter().map(|key| format!("{JOB}/{key}")).collect::<Vec<_>>();
        let dead = below(&["1/chk-2/_metadata", "2/chk-6/state", "1/shared/1-gone", "probe-ab/0000000001"]);
        let alive = below(&[
            "2/chk-5/_metadata",
            "1/chk-3/state",
            "1/shared/2-kept",
            "3/chk-7/state",
            "3/shared/7-new",
            "ledger/0000000001.json",
            "notes.txt",
        ]);
        assert_eq!(reach.dead_objects([dead.clone(), alive].concat()), dead);
    }

    /// A cancel has dropped what was restored and not replaced yet; its `_metadata` is gone and need not be read.
    #[test]
    fn behind_a_cancel_what_was_restored_is_not_kept() {
        let mut reach = reach();
        let directory = "default/pv-1/1/chk-9".to_owned();
        let restored = SnapshotReference {
            directory,
            checkpoint: CheckpointId(9),
            allow_non_restored_state: false,
            abandon_sinks: Vec::new(),
            is_foreign: false,
        };
        reach.fold.restore_point = RestorePoint::Snapshot(restored);
        reach.fold.state = LedgerState::Stopped;
        assert!(reach.kept().contains(&key(1, 9)));
        reach.fold.state = LedgerState::Cancelled;
        assert!(!reach.kept().contains(&key(1, 9)));
    }

    #[test]
    fn completed_savepoints_are_reached_also_forgotten_ones_and_what_was_restored() {
        let mut reach = reach();
        assert_eq!(
            reach.savepoint_roots(),
            BTreeSet::from(["s3://b/root/savepoints".to_owned(), "s3://other/sp/".to_owned()])
        );
        let prefix = reach.savepoint_prefix("s3://other/sp/");
        assert_eq!(prefix, "s3://other/sp/default/pv-1/");
        let at = |key: &str| format!("{prefix}{key}");
        reach.fold.foreign =
            Some(ForeignSnapshot { directory: format!("{prefix}2-2"), released_at: None, released_by: None });
        let dead = ["1-1/state", "2-3/_metadata", "2-3/state"].map(at);
        let alive =
            ["1-2/_metadata", "1-2/state", "2-2/_metadata", "2-2/state", "2-4/state", "3-8/state", "notes"].map(at);
        let found = reach.dead_savepoints(&prefix, dead.iter().chain(&alive).cloned().collect());
        assert_eq!(found, dead);
    }

    #[test]
    fn uploads_of_all_that_is_over_are_dead() {
        let reach = reach();
        let prefix = reach.savepoint_prefix("s3://other/sp");
        let is_dead = |key: &str| reach.is_dead_upload(&prefix, key);
        for key in ["2/chk-5/state", "1/shared/9-x", "ledger/0000000009.json", "probe-ab/0000000001"] {
            assert!(is_dead(&format!("{JOB}/{key}")), "{key}");
        }
        for key in ["3/chk-5/state", "3/shared/9-x", "ledger/0000000010.json", "notes"] {
            assert!(!is_dead(&format!("{JOB}/{key}")), "{key}");
        }
        assert!(is_dead(&format!("{prefix}2-4/state")) && !is_dead(&format!("{prefix}3-4/state")));
        assert!(!is_dead("s3://b/root/default/pv-12/1/chk-1/state"), "another job's");
    }
}
