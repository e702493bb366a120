//! From a directive to a claimed ledger (N3, L3): read → decide → load what is restored → `Started` → LIST behind it.
//!
//! Until `Started` stands nothing is written, so a user's error here leaves the ledger as it was; store and broker
//! out of reach only cost time (F2).

use super::journal::{EndKind, Intent};
use super::operations::Purpose;
use super::takeover::{self, Relation, Takeover};
use super::{JobMaster, Phase, StartFrom};
use crate::failure::{ExitKind, Failure};
use crate::ids::Attempt;
use crate::ledger::decide::{StartDecision, Starter, decide_start};
use crate::ledger::entry::{Entry, EntryHeader, LedgerError, SnapshotReference};
use crate::ledger::read::{LedgerReader, ReadStep, entries_after, last_entry};
use crate::ledger::{Ends, LedgerState, RestorePoint, StartCause};
use crate::metadata::{Metadata, MetadataError, assign_state};
use crate::paths::{self, SnapshotLocation};
use crate::state::SubtaskState;
use crate::status::{CheckpointInfo, JobState};
use crate::store::{StoreOperation, StoreReply};
use std::collections::BTreeMap;

/// Reason of the notice that operators start without state.
pub const STARTS_EMPTY: &str = "OperatorsStartEmpty";

/// What is being restored, on its way from a place to states.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) location: SnapshotLocation,
    pub(super) allow_non_restored_state: bool,
    /// The reader of another job's ledger: of the job directory that was given instead of a snapshot, or of the one
    /// that the checkpoint lies in.
    pub(super) foreign: Option<LedgerReader>,
    /// Whether the checkpoint's owner must be asked whether it has ended (K7).
    asks_owner: bool,
    /// The checkpoint's description, while its owner is being asked.
    read: Option<Box<Metadata>>,
    /// The other job's ledger, when it is to be taken over (G5).
    pub(super) takeover: Option<Takeover>,
    /// Whether another job's takeover came in between.
    pub(super) was_outbid: bool,
}

impl Loading {
    const fn new(location: SnapshotLocation, allow_non_restored_state: bool) -> Self {
        Self {
            location,
            allow_non_restored_state,
            foreign: None,
            asks_owner: false,
            read: None,
            takeover: None,
            was_outbid: false,
        }
    }
}

/// A snapshot handed out to subtasks.
#[derive(Debug, Clone)]
pub(super) struct Restored {
    pub(super) reference: SnapshotReference,
    pub(super) info: CheckpointInfo,
    pub(super) states: BTreeMap<crate::ids::SubtaskId, SubtaskState>,
}

impl JobMaster {
    /// The first step, and the first again when the ledger moved under a start.
    pub(super) fn read_ledger(&mut self) {
        if self.journal.in_memory {
            return self.start_without_ledger();
        }
        let mut reader = LedgerReader::new(self.journal.paths.clone(), self.config.directive.seen);
        let operation = reader.start();
        self.phase = Phase::Reading(reader);
        self.store(Purpose::ReadLedger, operation);
    }

    fn start_without_ledger(&mut self) {
        let keeps_state = self.config.options.checkpointing.is_some();
        match self.config.directive.start.clone() {
            StartFrom::Path { from, allow_non_restored_state } => self.load_place(&from, allow_non_restored_state),
            StartFrom::Continue if keeps_state && self.config.failures.has_lost_job_manager() => {
                let message = "the JobManager that held the checkpoints in its memory was lost \
                    (checkpointing.storage is JobManager); give checkpointing.storage a URI, or start empty with a new nonce";
                self.exit(ExitKind::StateLost, "StateLost", message, None);
            }
            _ => self.claim(None),
        }
    }

    pub(super) fn on_ledger_read(&mut self, reply: StoreReply) {
        let Phase::Reading(reader) = &mut self.phase else { return };
        match reader.on_reply(reply) {
            ReadStep::Store(operation) => self.store(Purpose::ReadLedger, operation),
            ReadStep::End(last) => {
                self.clear_store_notice();
                self.decide(last.as_deref());
            }
            ReadStep::Failed(failure) => {
                let operation = reader.start();
                self.store_later(Purpose::ReadLedger, operation, &failure);
            }
            ReadStep::Refused(error) => self.exit_unreadable_ledger(&error),
        }
    }

    fn decide(&mut self, last: Option<&Entry>) {
        let starter = Starter {
            generation: self.config.generation,
            process: &self.config.process,
            directive: &self.config.directive,
            revision: self.config.revision,
            ignore_directive: self.config.planted.no_directive_check,
            insists_on_m: self.config.planted.insists_on_m,
            ignore_fence: self.config.planted.no_fence,
        };
        let decision = decide_start(&starter, last);
        self.journal.adopt(last);
        self.adopt_failures();
        let seen = self.config.directive.seen;
        match decision {
            StartDecision::Continue(RestorePoint::Empty) => self.claim(None),
            StartDecision::Continue(_) => match self.restore_reference() {
                Some(reference) => self.load(&reference),
                None => self.claim(None),
            },
            StartDecision::Empty => {
                self.look_for_older_directories(last.is_none());
                self.claim(None);
            }
            StartDecision::Path { from, allow_non_restored_state } => self.load_place(&from, allow_non_restored_state),
            StartDecision::Conclude(ends) => {
                self.concludes_for_another = self.journal.fold.directive != self.config.directive.id
                    && self.config.directive.start != StartFrom::Continue;
                let is_finished = ends == Ends::Finish && !self.journal.fold.drained;
                self.wanted_end = Some(if is_finished { EndKind::Finished } else { EndKind::Stopped });
                self.claim_as(StartCause::Close, self.restore_reference());
            }
            StartDecision::Close(end) => self.close_job(end),
            StartDecision::Dispose { path } => self.begin_disposal(&path),
            StartDecision::NotEnded { last } => self.exit_not_ended(last),
            StartDecision::Report(state) => self.exit_reporting(state),
            StartDecision::Superseded(by) => self.exit_superseded(Some(by)),
            StartDecision::StateMoved { last } => {
                let message = format!(
                    "the ledger ends at entry {last}, the directive was written for entry {seen}: nothing was changed"
                );
                self.exit(ExitKind::StateMoved, "StateMoved", &message, None);
            }
            StartDecision::StateMissing { last } => {
                let found = last.map_or_else(|| "is empty".to_owned(), |last| format!("ends at entry {last}"));
                let message = format!(
                    "the ledger below {} {found}, but entry {seen} had been seen: check checkpointing.storage and the \
                     bucket; to start without that state, raise the nonce",
                    paths::uri(self.config.storage_uri.as_deref(), self.journal.paths.directory())
                );
                self.exit(ExitKind::StateMissing, "StateMissing", &message, None);
            }
            StartDecision::Moved(to) => {
                let place = paths::uri(self.config.storage_uri.as_deref(), self.journal.paths.directory());
                let latest = last.and_then(|entry| self.restorable_uri(&self.journal.paths, entry));
                self.status.state = crate::status::JobState::Failed;
                self.exit(ExitKind::StateMoved, "MovedTo", &takeover::gone(&place, &to, latest.as_deref()), None);
            }
            StartDecision::Elsewhere(state) => {
                let message = format!("the job's ledger says {state:?}: it goes on elsewhere");
                self.exit(ExitKind::StateMoved, "StateMoved", &message, None);
            }
        }
    }

    /// Failures of the ledger and of the controller's status, of this revision (F1).
    fn adopt_failures(&mut self) {
        let mut failures = crate::restart::FailureCounts::new(self.config.revision);
        for known in [&self.config.failures, &self.journal.fold.failures] {
            if known.revision == self.config.revision {
                failures.merge(known);
            }
        }
        self.failures = failures;
    }

    fn load_place(&mut self, from: &str, allow_non_restored_state: bool) {
        let location = SnapshotLocation::parse(from, self.config.storage_uri.as_deref());
        self.start_loading(Loading { asks_owner: true, ..Loading::new(location, allow_non_restored_state) });
    }

    /// Reads the `_metadata` of a snapshot, unless it is at hand.
    pub(super) fn load(&mut self, reference: &SnapshotReference) {
        if let Some(metadata) = self.cached.take_if(|(directory, _)| *directory == reference.directory) {
            let (directory, metadata) = metadata;
            self.hand_out(&directory, metadata, reference.allow_non_restored_state);
            return;
        }
        let location = SnapshotLocation { directory: reference.directory.clone(), is_snapshot: true };
        self.start_loading(Loading::new(location, reference.allow_non_restored_state));
    }

    fn start_loading(&mut self, loading: Loading) {
        let key = loading.location.metadata();
        self.loading = Some(loading);
        if !matches!(self.phase, Phase::Preparing(_)) {
            self.phase = Phase::Loading;
        }
        self.store(Purpose::LoadMetadata, StoreOperation::Get { key });
    }

    pub(super) fn on_metadata_loaded(&mut self, reply: StoreReply) {
        let Some(loading) = &mut self.loading else { return };
        let place = loading.location.metadata();
        match reply {
            StoreReply::Object(bytes) => {
                let read = Metadata::from_bytes(&bytes, &paths::uri(self.config.storage_uri.as_deref(), &place));
                if let Err(error @ MetadataError::Damaged { .. }) = &read {
                    return self.load_again(place, error);
                }
                self.clear_store_notice();
                match read {
                    Ok(metadata) => self.ask_owner(metadata),
                    Err(error) => self.refuse_snapshot("SnapshotUnreadable", &error.to_string()),
                }
            }
            StoreReply::Absent if !loading.location.is_snapshot && loading.foreign.is_none() => {
                let mut reader = LedgerReader::new(loading.location.job(), 0);
                let operation = reader.start();
                loading.foreign = Some(reader);
                self.store(Purpose::ReadForeignLedger, operation);
            }
            StoreReply::Absent => self.on_snapshot_missing(),
            StoreReply::Failed(failure) => {
                self.store_later(Purpose::LoadMetadata, StoreOperation::Get { key: place }, &failure);
            }
            other => {
                let failure = crate::ledger::read::unexpected(&other);
                self.store_later(Purpose::LoadMetadata, StoreOperation::Get { key: place }, &failure);
            }
        }
    }

    /// Other bytes than were stored: nothing is restored until they are right again, as with a file of state (F2).
    fn load_again(&mut self, key: String, error: &MetadataError) {
        self.note_damaged(error.to_string());
        self.wait_for_store(Purpose::LoadMetadata, StoreOperation::Get { key });
    }

    /// A checkpoint where another job wrote it: only when that job has ended may it be restored (K7).
    fn ask_owner(&mut self, metadata: Metadata) {
        let Some(mut loading) = self.loading.take() else { return };
        if let Some(takeover) = loading.takeover.take() {
            return self.take_over(loading, takeover, metadata);
        }
        let place = loading.location.owner();
        let is_orphan = loading.asks_owner && place.is_none();
        let owner = place.filter(|owner| loading.asks_owner && *owner != self.journal.paths);
        let Some(owner) = owner else {
            if is_orphan && metadata.handles().next().is_some() {
                return self.refuse_orphan(&loading.location.directory);
            }
            return self.hand_out(&loading.location.directory, metadata, loading.allow_non_restored_state);
        };
        let mut reader = LedgerReader::new(owner, 0);
        let operation = reader.start();
        loading.read = Some(Box::new(metadata));
        loading.foreign = Some(reader);
        self.loading = Some(loading);
        self.store(Purpose::ReadForeignLedger, operation);
    }

    /// Nobody could say which of its handles are committed, and which would be committed twice or never (S5).
    fn refuse_orphan(&mut self, directory: &str) {
        let message = format!(
            "the checkpoint at {} holds output of sinks that may not be committed, and there is no ledger beside it that says so: \
             restore a savepoint, which holds none, or copy the job's whole directory",
            paths::uri(self.config.storage_uri.as_deref(), directory)
        );
        self.refuse_snapshot("HandlesWithoutLedger", &message);
    }

    fn on_foreign_ledger(&mut self, last: Option<&Entry>) {
        let Some(mut loading) = self.loading.take() else { return };
        if let Some(metadata) = loading.read.take() {
            let running = last.filter(|entry| !entry.folded().state.is_terminal());
            let owner = loading.location.owner().filter(|_| running.is_some());
            if let Some((entry, owner)) = running.zip(owner) {
                let uri = |place: &str| paths::uri(self.config.storage_uri.as_deref(), place);
                let message = in_use(&uri(&loading.location.directory), &uri(owner.directory()), entry);
                return self.refuse_snapshot("CheckpointInUse", &message);
            }
            if last.is_none() && metadata.handles().next().is_some() {
                return self.refuse_orphan(&loading.location.directory);
            }
            return self.hand_out(&loading.location.directory, *metadata, loading.allow_non_restored_state);
        }
        let directory = loading.location.job();
        let latest = last.and_then(|entry| self.restorable(&directory, entry));
        let found = last.filter(|entry| latest.is_some() || self.may_be_empty(&directory, entry));
        let Some(entry) = found else {
            self.loading = Some(loading);
            return self.on_snapshot_missing();
        };
        if directory != self.journal.paths {
            let place = paths::uri(self.config.storage_uri.as_deref(), directory.directory());
            match self.relation(&directory, entry, loading.was_outbid) {
                Relation::Gone(to) => {
                    let latest = self.restorable_uri(&directory, entry);
                    return self.refuse_snapshot("JobMoved", &takeover::gone(&place, &to, latest.as_deref()));
                }
                Relation::Running => match self.takeover_refusal(&place) {
                    Some(message) => return self.refuse_snapshot("TakeoverWithoutStorage", &message),
                    None => loading.takeover = Some(self.new_takeover(directory, entry)),
                },
                Relation::Ended => self.inherit(&directory, entry),
            }
        }
        let Some(latest) = latest else { return self.go_on_empty(loading) };
        loading.allow_non_restored_state |= latest.allow_non_restored_state;
        loading.location = SnapshotLocation { directory: latest.directory, is_snapshot: true };
        loading.asks_owner = false;
        let key = loading.location.metadata();
        self.loading = Some(loading);
        self.store(Purpose::LoadMetadata, StoreOperation::Get { key });
    }

    /// The job's own ledger, where it is or was, holds nothing to restore.
    fn go_on_empty(&mut self, mut loading: Loading) {
        match loading.takeover.take() {
            Some(takeover) => self.begin_takeover(loading, takeover),
            None => self.claim(None),
        }
    }

    pub(super) fn on_foreign_ledger_read(&mut self, reply: StoreReply) {
        let Some(loading) = &mut self.loading else { return };
        let Some(reader) = &mut loading.foreign else { return };
        match reader.on_reply(reply) {
            ReadStep::Store(operation) => self.store(Purpose::ReadForeignLedger, operation),
            ReadStep::Failed(failure) => {
                let operation = reader.start();
                self.store_later(Purpose::ReadForeignLedger, operation, &failure);
            }
            ReadStep::Refused(error) => self.refuse_snapshot("SnapshotUnreadable", &error.to_string()),
            ReadStep::End(last) => self.on_foreign_ledger(last.as_deref()),
        }
    }

    /// Nothing there. Before `Started` an older generation, or the job that is being taken over, may have displaced it
    /// meanwhile: the ledger is read again, as long as it names another.
    fn on_snapshot_missing(&mut self) {
        let is_start = matches!(self.phase, Phase::Loading);
        let Some(loading) = &self.loading else { return };
        let place = paths::uri(self.config.storage_uri.as_deref(), &loading.location.directory);
        let is_own = loading.location.directory.starts_with(&format!("{}/", self.journal.paths.directory()));
        let is_new = self.missing.as_ref() != Some(&loading.location.directory);
        if is_new && loading.takeover.is_some() {
            self.missing = Some(loading.location.directory.clone());
            return self.read_taken_again(false);
        }
        if is_start && is_own && is_new && !self.journal.in_memory {
            self.missing = Some(loading.location.directory.clone());
            self.loading = None;
            return self.read_ledger();
        }
        let message = format!(
            "there is no snapshot at {place}: expected a checkpoint or savepoint directory with a _metadata, or the \
             directory of a job with a retained checkpoint; check the path"
        );
        self.refuse_snapshot("SnapshotNotFound", &message);
    }

    pub(super) fn hand_out(&mut self, directory: &str, metadata: Metadata, allow: bool) {
        let uri = paths::uri(self.config.storage_uri.as_deref(), directory);
        let states = match assign_state(&metadata, &self.config.graph, &uri, allow) {
            Ok(states) => states,
            Err(error) => return self.refuse_snapshot("SnapshotIncompatible", &error.to_string()),
        };
        let reference = SnapshotReference {
            directory: directory.to_owned(),
            checkpoint: metadata.checkpoint,
            allow_non_restored_state: allow,
            is_foreign: !directory.starts_with(&format!("{}/", self.journal.paths.directory())),
        };
        self.tell_of_empty_operators(&metadata, &uri);
        let known = self.journal.fold.retained.iter().find(|one| self.reference_to(one.key).directory == directory);
        let info = CheckpointInfo {
            id: metadata.checkpoint,
            path: uri,
            triggered_at: metadata.triggered_at,
            completed_at: known.map_or(metadata.triggered_at, |one| one.completed_at),
            bytes: metadata.state_bytes(),
        };
        self.know_files(directory, &metadata);
        self.cached = Some((directory.to_owned(), metadata));
        self.restored = Some(Restored { reference, info, states });
        match &mut self.phase {
            Phase::Preparing(preparing) => preparing.loaded = true,
            _ => self.claim(self.restored.as_ref().map(|restored| restored.reference.clone())),
        }
    }

    /// Says which stateful operators of the program are not in the snapshot.
    fn tell_of_empty_operators(&mut self, metadata: &Metadata, place: &str) {
        let new = crate::metadata::new_operators(metadata, &self.config.graph);
        if new.is_empty() {
            return self.status.notices.retain(|notice| notice.reason != STARTS_EMPTY);
        }
        let message = format!(
            "operators that {place} does not hold start without state: {new}. If they are to take over the state of an \
             operator of the program before, give them its id"
        );
        self.set_notice(STARTS_EMPTY, message);
    }

    /// What was to be restored cannot be: a user's error, which spends no restart (F2).
    pub(super) fn refuse_snapshot(&mut self, reason: &str, message: &str) {
        self.loading = None;
        let failure = Failure::user(reason, message);
        if matches!(self.phase, Phase::Preparing(_)) {
            return self.end(EndKind::Failed { failure, is_users: true });
        }
        self.exit_user_error(&failure);
    }

    /// Takes the ledger.
    pub(super) fn claim(&mut self, restored_from: Option<SnapshotReference>) {
        if restored_from.is_none() {
            self.restored = None;
        }
        self.claim_as(StartCause::Start, restored_from);
    }

    pub(super) fn claim_as(&mut self, cause: StartCause, restored_from: Option<SnapshotReference>) {
        self.phase = Phase::Claiming;
        self.append(Intent::Start { cause, restored_from });
    }

    pub(super) fn on_started(&mut self) {
        if self.journal.in_memory || self.config.planted.no_fence {
            return self.on_confirmed();
        }
        self.phase = Phase::Confirming;
        let operation = entries_after(&self.journal.paths, self.journal.last);
        self.store(Purpose::Confirm, operation);
    }

    /// LIST behind `Started`: anything there supersedes this process (L3).
    pub(super) fn on_confirm_reply(&mut self, reply: StoreReply) {
        let again = entries_after(&self.journal.paths, self.journal.last);
        match reply {
            StoreReply::Keys(keys) => match last_entry(&self.journal.paths, &keys) {
                None => {
                    self.clear_store_notice();
                    self.on_confirmed();
                }
                Some(number) => {
                    let key = self.journal.paths.ledger_entry(number);
                    self.store(Purpose::NameSuccessor, StoreOperation::Get { key });
                }
            },
            StoreReply::Failed(failure) => self.store_later(Purpose::Confirm, again, &failure),
            other => self.store_later(Purpose::Confirm, again, &crate::ledger::read::unexpected(&other)),
        }
    }

    pub(super) fn on_successor_named(&mut self, reply: StoreReply) {
        let header = match reply {
            StoreReply::Object(bytes) => EntryHeader::from_bytes(&bytes, "").ok(),
            _ => None,
        };
        self.exit_superseded(header.map(|header| header.generation));
    }

    /// The ledger is ours.
    fn on_confirmed(&mut self) {
        self.journal.confirmed = true;
        self.attempt = Attempt(1);
        self.create_coordinator();
        self.status.last_checkpoint =
            self.journal.fold.latest().cloned().map(|latest| self.describe_checkpoint(latest));
        if let StartFrom::Dispose { path } = self.config.directive.start.clone() {
            return self.dispose_after_end(&path);
        }
        self.find_unsettled();
        if self.is_over() {
            return;
        }
        self.sweep();
        for command in std::mem::take(&mut self.early) {
            self.on_command(command);
        }
        if let Some(kind) = self.wanted_end.take() {
            return self.end(kind);
        }
        self.phase = Phase::Preparing(super::Preparing { due: self.now, recorded: true, loaded: true });
    }

    fn exit_reporting(&mut self, state: LedgerState) {
        let (kind, message) = match state {
            LedgerState::Finished => (ExitKind::Finished, "the job has finished"),
            LedgerState::Failed => (ExitKind::Failed, "the job has failed"),
            LedgerState::Cancelled => (ExitKind::Stopped, "the job was cancelled"),
            _ => (ExitKind::Stopped, "the job was stopped"),
        };
        self.status.state = reported_state(state);
        let failure = self.journal.fold.failure.clone();
        let message = failure.as_ref().map_or(message, |failure| failure.message.as_str()).to_owned();
        let reason = failure.map_or_else(|| format!("{state:?}"), |failure| failure.reason);
        self.exit(kind, &reason, &message, None);
    }

    pub(super) fn exit_unreadable_ledger(&mut self, error: &LedgerError) {
        self.exit_user_error(&Failure::user("LedgerUnreadable", error.to_string()));
    }
}

/// What a status says of a job whose ledger is at this end.
pub(super) const fn reported_state(state: LedgerState) -> JobState {
    match state {
        LedgerState::Finished => JobState::Finished,
        LedgerState::Failed => JobState::Failed,
        LedgerState::Cancelled => JobState::Cancelled,
        _ => JobState::Stopped,
    }
}

fn in_use(place: &str, owner: &str, last: &Entry) -> String {
    format!(
        "{place} belongs to a job that has not ended: the last entry of its ledger, number {} of generation {}, is no \
         terminal one, so it may remove the checkpoint at any time. Stop that job first (a suspended one will do), \
         restore a savepoint of it, or give the job's directory instead of the checkpoint: {owner} takes that job over, \
         which ends it where it runs and goes on from its latest checkpoint",
        last.number, last.generation
    )
}
