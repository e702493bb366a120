//! Taking another ledger over (G5), also the own one in the storage before a move (C3): `Started{takeover}` as its last
//! entry, which fences whoever ran that job → LIST behind it → settle → `MovedTo`, its end → what it held is restored.
//!
//! What is to be restored is read and tried on the program first, so that a user's error leaves the other job as it
//! was. Each step may be repeated by any process of the same job: `MovedTo` to itself, or its own `Started{takeover}`,
//! is gone on from. Before the own ledger's `Started` nothing else is written.

use super::commits::{describe, unsettled};
use super::journal::Journal;
use super::loading::Loading;
use super::operations::{Purpose, Running};
use super::{JobMaster, Phase};
use crate::commit::CommitHandle;
use crate::ids::{Generation, JobId};
use crate::ledger::append::{AppendStep, Appender, new_append_id};
use crate::ledger::entry::{self, CheckpointKey, Entry, EntryKind, SnapshotReference, Successor};
use crate::ledger::read::{LedgerReader, entries_after, last_entry, unexpected};
use crate::ledger::{LedgerState, RestorePoint, StartCause};
use crate::metadata::{Metadata, assign_state};
use crate::paths::{self, JobPaths};
use crate::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply};

/// A ledger on its way to its end.
#[derive(Debug)]
pub(super) struct Takeover {
    paths: JobPaths,
    appender: Appender,
    /// Its last entry, as far as it is known.
    last: Box<Entry>,
    /// What is restored of it, once read. It may be another job's: the snapshot that this one began with.
    metadata: Option<Box<Metadata>>,
    /// Its last complete checkpoint, once read, if that may hold what is not committed (S5).
    latest: Option<Box<Metadata>>,
    /// Whose ledger it is, as its own checkpoints say.
    job: Option<JobId>,
}

impl Takeover {
    /// The handles in its last complete checkpoint that are not known to be committed.
    pub(super) fn unsettled(&self) -> Vec<CommitHandle> {
        let through = self.last.folded().committed_through;
        self.latest.iter().flat_map(|latest| unsettled(latest, through)).collect()
    }

    /// Its last complete checkpoint, if that may hold what is not committed.
    fn unsettled_checkpoint(&self) -> Option<CheckpointKey> {
        let fold = self.last.folded();
        fold.latest().map(|latest| latest.key).filter(|key| key.id > fold.committed_through)
    }

    /// The description of that checkpoint, if it was not read yet.
    pub(super) fn unread(&self) -> Option<String> {
        let key = self.unsettled_checkpoint().filter(|_| self.latest.is_none())?;
        Some(self.paths.metadata(key.generation, key.id))
    }

    /// What is restored, from this directory.
    fn restores(&mut self, directory: &str, metadata: Metadata) {
        if directory.starts_with(&format!("{}/", self.paths.directory())) {
            self.job = Some(metadata.job.clone());
        }
        let metadata = Box::new(metadata);
        let latest = self.unsettled_checkpoint().map(|key| self.paths.checkpoint_directory(key.generation, key.id));
        self.latest = latest.filter(|latest| latest == directory).map(|_| metadata.clone());
        self.metadata = Some(metadata);
    }
}

/// What a job's directory is to the job that is pointed at it.
pub(super) enum Relation {
    /// It has ended for good, or its end names this job: its state may be read.
    Ended,
    /// It goes on, or may at any time, until this job takes it over.
    Running,
    /// Another job has it.
    Gone(Successor),
}

impl JobMaster {
    /// This job, as the end of a ledger that it takes over names it.
    fn successor(&self) -> Successor {
        let directory = paths::uri(self.config.storage_uri.as_deref(), self.journal.paths.directory());
        Successor { job_uid: self.config.job.uid.clone(), directory }
    }

    /// Whether the directory is this job's own in another storage (C3).
    pub(super) fn is_former(&self, directory: &JobPaths) -> bool {
        let own = self.journal.paths.directory();
        *directory != self.journal.paths && directory.directory().ends_with(&format!("/{own}"))
    }

    /// Whether what this job left there is older than what its own ledger holds: nothing was ever begun there, or a later
    /// revision than the last one there has started here since.
    pub(super) fn is_older_than_own(&self, directory: &JobPaths, last: &Entry) -> bool {
        let there = last.folded();
        let went_on = self.journal.fold.revision > there.revision;
        self.is_former(directory) && (went_on || there.directive.is_empty())
    }

    /// Judges the last entry of a ledger that is not the own one.
    pub(super) fn relation(&self, directory: &JobPaths, last: &Entry, was_outbid: bool) -> Relation {
        if let EntryKind::MovedTo { job_uid, directory } = &last.kind {
            let to = Successor { job_uid: job_uid.clone(), directory: directory.clone() };
            return if to == self.successor() { Relation::Ended } else { Relation::Gone(to) };
        }
        match &last.kind {
            EntryKind::Started { taker: Some(taker), .. } if was_outbid && *taker != self.successor() => {
                Relation::Gone(taker.clone())
            }
            // What its end left uncommitted is committed by who takes it over (S5, L6).
            _ if self.is_former(directory) || !last.folded().unsettled.is_empty() => Relation::Running,
            _ if self.has_ended_for_good(last.folded().state) => Relation::Ended,
            _ => Relation::Running,
        }
    }

    /// Whether a job at this end stays there by itself. One that was stopped may be on its way to its next revision, and one
    /// that failed is started again by an edit; who keeps no ledger cannot fence that, and must do with what is there.
    const fn has_ended_for_good(&self, state: LedgerState) -> bool {
        match state {
            LedgerState::Finished | LedgerState::Cancelled => true,
            LedgerState::Stopped | LedgerState::Failed => self.journal.in_memory,
            _ => false,
        }
    }

    /// Whether a ledger without anything to restore is gone on from all the same: this job's own, where it never had more.
    pub(super) fn may_be_empty(&self, directory: &JobPaths, last: &Entry) -> bool {
        let never_had_any = *directory == self.journal.paths && last.folded().restore_point == RestorePoint::Empty;
        never_had_any || self.is_former(directory)
    }

    /// A ledger that is to be taken over, once what it holds was read.
    pub(super) fn new_takeover(&self, paths: JobPaths, last: &Entry) -> Takeover {
        let appender = Appender::new(paths.clone(), super::Planted::default());
        Takeover { paths, appender, last: Box::new(last.clone()), metadata: None, latest: None, job: None }
    }

    /// Why this job cannot take the job of this ledger over: reason and message.
    pub(super) fn takeover_refusal(&self, place: &str, last: &Entry) -> Option<(&'static str, String)> {
        if !self.journal.in_memory {
            return None;
        }
        let unsettled = last.folded().unsettled;
        if unsettled.is_empty() {
            let message = format!(
                "{place} is the directory of a job that has not ended, and this job keeps no ledger of its own in which \
                 it could go on: set checkpointing.storage, or stop that job first"
            );
            return Some(("TakeoverWithoutStorage", message));
        }
        let message = format!(
            "the job of {place} has ended and left output uncommitted: {}. A job that keeps its checkpoints in memory cannot \
             commit it: run the job with the checkpointing.storage that it had until that is committed, or restore a \
             savepoint of it, which gives that output up",
            describe(&unsettled, self.now)
        );
        Some(("OutputUnsettled", message))
    }

    /// The snapshot is at hand: the other ledger comes to its end, unless the program cannot take the snapshot.
    pub(super) fn take_over(&mut self, loading: Loading, mut takeover: Takeover, metadata: Metadata) {
        let uri = paths::uri(self.config.storage_uri.as_deref(), &loading.location.directory);
        let fits = assign_state(&metadata, &self.config.graph, &uri, loading.allowed.state);
        if let Err(error) = fits {
            return self.refuse_snapshot("SnapshotIncompatible", &error.to_string());
        }
        takeover.restores(&loading.location.directory, metadata);
        self.begin_takeover(loading, takeover);
    }

    /// What is to be settled first is at hand.
    pub(super) fn on_taken_read(&mut self, latest: Metadata) {
        let Some(mut loading) = self.loading.take() else { return };
        let Some(mut takeover) = loading.takeover.take() else { return };
        takeover.job = Some(latest.job.clone());
        takeover.latest = Some(Box::new(latest));
        self.begin_takeover(loading, takeover);
    }

    /// What it holds, if anything, can be taken, and can be settled.
    pub(super) fn begin_takeover(&mut self, mut loading: Loading, takeover: Takeover) {
        if self.config.planted.takes_over_unfenced {
            return self.on_taken_over(loading, takeover);
        }
        let (is_repeated, unread) = (self.has_fenced(&takeover), takeover.unread());
        let kept = self.without_abandoned(takeover.unsettled(), &loading.allowed.sinks);
        let refusal = self.without_sink(&kept);
        loading.takeover = Some(takeover);
        self.loading = Some(loading);
        if let Some(key) = unread {
            return self.store(Purpose::LoadTakenHandles, StoreOperation::Get { key });
        }
        if let Some(refusal) = refusal {
            return self.refuse_snapshot(&refusal.reason, &refusal.message);
        }
        if is_repeated { self.move_ledger() } else { self.fence_ledger() }
    }

    /// Whether this job's `Started{takeover}` is the last entry.
    fn has_fenced(&self, takeover: &Takeover) -> bool {
        matches!(&takeover.last.kind, EntryKind::Started { taker: Some(taker), .. } if *taker == self.successor())
    }

    /// `Started{takeover}` as last + 1.
    fn fence_ledger(&mut self) {
        let taker = Some(self.successor());
        let kind = EntryKind::Started { cause: StartCause::Takeover, restored_from: None, probed: None, taker };
        self.append_to_taken(kind);
    }

    /// `MovedTo`, right behind the commit of the handles of the other job's last checkpoint (S5).
    pub(super) fn move_ledger(&mut self) {
        if !self.has_settled_taken() {
            return;
        }
        let Successor { job_uid, directory } = self.successor();
        self.append_to_taken(EntryKind::MovedTo { job_uid, directory });
    }

    fn append_to_taken(&mut self, kind: EntryKind) {
        let append_id = new_append_id(&mut *self.random);
        let is_former = self.taken().is_some_and(|takeover| self.is_former(&takeover.paths));
        let (process, generation, now) = (self.config.process.clone(), self.config.generation, self.now);
        let Some(takeover) = self.loading.as_mut().and_then(|loading| loading.takeover.as_mut()) else { return };
        let last = &takeover.last;
        let begins = matches!(kind, EntryKind::Started { .. });
        let next = Generation(last.generation.0 + u64::from(begins));
        let entry = Entry {
            version: entry::VERSION,
            number: last.number + 1,
            append_id,
            process,
            // Of the ledger's own numbers, which a move between storages shares.
            generation: if is_former && begins { next.max(generation) } else { next },
            attempt: last.attempt,
            revision: last.revision,
            directive: last.directive.clone(),
            time: now,
            kind,
            unsettled: Vec::new(),
            left_open: None,
            fold: last.folded(),
        };
        match takeover.appender.begin(entry, None) {
            Ok(operation) => self.store(Purpose::TakeOver, operation),
            Err(error) => self.exit_internal("LedgerEntryTooLarge", &error.to_string()),
        }
    }

    pub(super) fn taken(&self) -> Option<&Takeover> {
        self.loading.as_ref()?.takeover.as_ref()
    }

    pub(super) fn on_takeover_reply(&mut self, reply: StoreReply) {
        let now = self.now;
        let random = &mut *self.random;
        let Some(takeover) = self.loading.as_mut().and_then(|loading| loading.takeover.as_mut()) else { return };
        match takeover.appender.on_reply(reply, now, random) {
            AppendStep::Store(operation) => self.store(Purpose::TakeOver, operation),
            AppendStep::Appended(entry) => {
                let begins = matches!(entry.kind, EntryKind::Started { .. });
                takeover.last = entry;
                self.clear_store_notice();
                if begins { self.confirm_takeover() } else { self.on_ledger_moved() }
            }
            AppendStep::Wait => self.wait_for_takeover(),
            AppendStep::Taken { entry, .. } | AppendStep::GivenUp(entry) => {
                let was_outbid = matches!(entry.kind, EntryKind::MovedTo { .. });
                self.read_taken_again(was_outbid);
            }
            AppendStep::Unreadable(error) => self.refuse_snapshot("SnapshotUnreadable", &error.to_string()),
        }
    }

    /// No clear answer: read after a pause, unless nothing may be written there at all. Once the other job is fenced there is
    /// no way back: both would be down.
    fn wait_for_takeover(&mut self) {
        let has_fenced = self.taken().is_some_and(|takeover| self.has_fenced(takeover));
        let Some(takeover) = self.loading.as_mut().and_then(|loading| loading.takeover.as_mut()) else { return };
        let failure = takeover.appender.last_failure().cloned();
        let due = takeover.appender.next_wakeup();
        let operation = due.and_then(|due| takeover.appender.on_wakeup(due));
        let place = paths::uri(self.config.storage_uri.as_deref(), takeover.paths.directory());
        if let Some(failure) = failure {
            if !has_fenced && matches!(failure.kind, StoreFailureKind::Denied | StoreFailureKind::Unsuitable) {
                return self.refuse_snapshot("TakeoverDenied", &read_only(&place, &failure));
            }
            self.note_store_failure(&failure);
        }
        if let Some((due, operation)) = due.zip(operation) {
            self.operations.wait(due, Running { purpose: Purpose::TakeOver, operation, failures: 0 });
        }
    }

    /// LIST behind `Started{takeover}`, as behind every `Started` (L3): its number may have been trimmed away.
    fn confirm_takeover(&mut self) {
        let Some(takeover) = self.taken() else { return };
        let operation = entries_after(&takeover.paths, takeover.last.number);
        self.store(Purpose::ConfirmTakeover, operation);
    }

    pub(super) fn on_takeover_confirmed(&mut self, reply: StoreReply) {
        let Some(takeover) = self.taken() else { return };
        let again = entries_after(&takeover.paths, takeover.last.number);
        match reply {
            StoreReply::Keys(keys) if last_entry(&takeover.paths, &keys).is_none() => self.move_ledger(),
            StoreReply::Keys(_) => self.read_taken_again(true),
            StoreReply::Failed(failure) => self.store_later(Purpose::ConfirmTakeover, again, &failure),
            other => self.store_later(Purpose::ConfirmTakeover, again, &unexpected(&other)),
        }
    }

    /// Somebody else has appended: decided anew.
    pub(super) fn read_taken_again(&mut self, was_outbid: bool) {
        self.forget_taken();
        let Some(loading) = &mut self.loading else { return };
        let Some(takeover) = loading.takeover.take() else { return };
        loading.was_outbid |= was_outbid;
        loading.location =
            paths::SnapshotLocation { directory: takeover.paths.directory().to_owned(), is_snapshot: false };
        let mut reader = LedgerReader::new(takeover.paths, 0);
        let operation = reader.start();
        loading.foreign = Some(reader);
        self.store(Purpose::ReadForeignLedger, operation);
    }

    fn on_ledger_moved(&mut self) {
        let Some(mut loading) = self.loading.take() else { return };
        let Some(takeover) = loading.takeover.take() else { return };
        self.on_taken_over(loading, takeover);
    }

    fn on_taken_over(&mut self, loading: Loading, takeover: Takeover) {
        self.inherit(&takeover.paths, &takeover.last);
        if let Some(job) = takeover.job.filter(|_| !self.config.planted.takes_over_unfenced) {
            self.abort_all_of(job);
        }
        match takeover.metadata {
            Some(metadata) => self.hand_out(&loading.location.directory, *metadata, loading.allowed),
            None => self.claim(None),
        }
    }

    /// A job that moved to another storage takes along what its ledger knew of failures, requests and savepoints, and
    /// goes on to count its checkpoints (C3).
    pub(super) fn inherit(&mut self, from: &JobPaths, last: &Entry) {
        if !self.is_former(from) || !matches!(self.phase, Phase::Loading) {
            return;
        }
        let former = last.folded();
        let Journal { fold, .. } = &mut self.journal;
        fold.last_checkpoint = fold.last_checkpoint.max(former.last_checkpoint);
        fold.requests = former.requests;
        fold.savepoints = former.savepoints;
        fold.forgotten_savepoints = former.forgotten_savepoints;
        fold.savepoint_roots = former.savepoint_roots;
        fold.history = former.history;
        if former.failures.revision == self.config.revision {
            self.failures.merge(&former.failures);
        }
    }

    /// What the job would restore of a ledger that it is pointed at: the latest checkpoint, or as long as there is none
    /// since the last start what that restored.
    pub(super) fn restorable(&self, directory: &JobPaths, last: &Entry) -> Option<SnapshotReference> {
        let fold = last.folded();
        let latest = || {
            let key = fold.latest()?.key;
            Some(SnapshotReference {
                directory: directory.checkpoint_directory(key.generation, key.id),
                checkpoint: key.id,
                allow_non_restored_state: false,
                abandon_sinks: Vec::new(),
                is_foreign: true,
            })
        };
        match &fold.restore_point {
            RestorePoint::Snapshot(reference) if *directory == self.journal.paths => {
                latest().or(Some(reference.clone()))
            }
            RestorePoint::Snapshot(reference) => {
                let directory = directory.resolve(&reference.directory);
                Some(SnapshotReference { directory, ..reference.clone() })
            }
            RestorePoint::Latest => latest(),
            RestorePoint::Empty if *directory == self.journal.paths => latest(),
            // One that has ended for good may hold what it did not start from. Of one that is taken over, a try that is
            // repeated must find the same, whatever its ledger's state is by then.
            RestorePoint::Empty if self.has_ended_for_good(fold.state) && !self.is_former(directory) => latest(),
            RestorePoint::Empty => None,
        }
    }

    /// The URI of what [`Self::restorable`] finds.
    pub(super) fn restorable_uri(&self, directory: &JobPaths, last: &Entry) -> Option<String> {
        let found = self.restorable(directory, last)?;
        Some(paths::uri(self.config.storage_uri.as_deref(), &found.directory))
    }
}

/// Where a job went, and what to do; `latest` is what it went on from.
pub(super) fn gone(place: &str, to: &Successor, latest: Option<&str>) -> String {
    let Successor { job_uid, directory } = to;
    let otherwise = latest.map_or_else(String::new, |latest| {
        format!("; if nothing ever ran there, restore from {latest}, which is what it was to go on from")
    });
    format!(
        "the job of {place} was taken over by the job with uid {job_uid}, whose directory is {directory}: to take that \
         over in turn, restore from {directory}{otherwise}"
    )
}

fn read_only(place: &str, failure: &StoreFailure) -> String {
    format!(
        "the job of {place} has not ended, and to take it over an entry must be written to its ledger, which is refused: \
         {failure}. Give this job's credentials write access there, or stop that job first; if nothing runs it any more, \
         copy its directory to another place and restore a checkpoint of the copy"
    )
}
