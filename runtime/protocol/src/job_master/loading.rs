//! What is restored, from a place to states: a snapshot, a job's directory (another job's ledger is read there), or the
//! latest checkpoint of the own ledger; at a start and at each restart.
//!
//! Callers rely on: nothing is written here. What cannot be restored is a user's error (F2); a store out of reach costs
//! time.

use super::commits::describe;
use super::journal::EndKind;
use super::operations::Purpose;
use super::takeover::{self, Relation, Takeover};
use super::{JobMaster, Phase};
use crate::failure::Failure;
use crate::ids::OperatorUid;
use crate::ledger::entry::{Entry, SnapshotReference};
use crate::ledger::read::{LedgerReader, ReadStep};
use crate::metadata::{Metadata, MetadataError, assign_state};
use crate::paths::{self, SnapshotLocation};
use crate::state::SubtaskState;
use crate::status::CheckpointInfo;
use crate::store::{StoreOperation, StoreReply};
use std::collections::BTreeMap;

/// Reason of the notice that operators start without state.
pub const STARTS_EMPTY: &str = "OperatorsStartEmpty";

/// Reason of the notice that output is written a second time.
pub const REPEATS_OUTPUT: &str = "OutputRepeats";

/// Reason of the notice that another job's end left output uncommitted which this start does not bring back.
pub const SNAPSHOT_UNSETTLED: &str = "SnapshotUnsettled";

/// Reasons of notices about what a start has restored: nothing that is wrong with the job.
pub const TOLD_ONCE: [&str; 3] = [STARTS_EMPTY, REPEATS_OUTPUT, SNAPSHOT_UNSETTLED];

/// What the user allows to be lost.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowed {
    /// State that no operator takes.
    pub(super) state: bool,
    /// What these sinks have staged and not committed (S5).
    pub(super) sinks: Vec<OperatorUid>,
}

impl Allowed {
    fn by(reference: &SnapshotReference) -> Self {
        Self { state: reference.allow_non_restored_state, sinks: reference.abandon_sinks.clone() }
    }
}

/// What is being restored, on its way from a place to states.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) location: SnapshotLocation,
    pub(super) allowed: Allowed,
    /// The reader of another job's ledger: of the job directory that was given instead of a snapshot, or of the one
    /// that the checkpoint lies in.
    pub(super) foreign: Option<LedgerReader>,
    /// Whether the checkpoint's owner must be asked whether it has ended (K7).
    asks_owner: bool,
    /// Whether the ledger is read that a savepoint came from, which holds nothing up.
    asks_origin: bool,
    /// The snapshot's description, while its owner or its origin is being asked.
    read: Option<Box<Metadata>>,
    /// The other job's ledger, when it is to be taken over (G5).
    pub(super) takeover: Option<Takeover>,
    /// Whether another job's takeover came in between.
    pub(super) was_outbid: bool,
}

impl Loading {
    const fn new(location: SnapshotLocation, allowed: Allowed) -> Self {
        Self {
            location,
            allowed,
            foreign: None,
            asks_owner: false,
            asks_origin: false,
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
    pub(super) fn load_place(&mut self, from: &str, allowed: Allowed) {
        let location = SnapshotLocation::parse(from, self.config.storage_uri.as_deref());
        self.start_loading(Loading { asks_owner: true, ..Loading::new(location, allowed) });
    }

    /// Reads the `_metadata` of a snapshot, unless it is at hand.
    pub(super) fn load(&mut self, reference: &SnapshotReference) {
        if let Some(metadata) = self.cached.take_if(|(directory, _)| *directory == reference.directory) {
            let (directory, metadata) = metadata;
            self.hand_out(&directory, metadata, Allowed::by(reference));
            return;
        }
        let location = SnapshotLocation { directory: reference.directory.clone(), is_snapshot: true };
        self.start_loading(Loading::new(location, Allowed::by(reference)));
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
            if is_orphan && self.keeps_handles(&metadata, &loading.allowed) {
                return self.refuse_orphan(&loading.location.directory);
            }
            return self.ask_origin(loading, metadata);
        };
        let mut reader = LedgerReader::new(owner, 0);
        let operation = reader.start();
        loading.read = Some(Box::new(metadata));
        loading.foreign = Some(reader);
        self.loading = Some(loading);
        self.store(Purpose::ReadForeignLedger, operation);
    }

    /// A savepoint holds no handles: whether its job came to commit them is asked of that job's ledger, to tell of it (K4, L6).
    fn ask_origin(&mut self, mut loading: Loading, metadata: Metadata) {
        let origin = metadata.origin.as_deref().filter(|_| loading.asks_owner);
        let origin = origin.map(|uri| SnapshotLocation::parse(uri, self.config.storage_uri.as_deref()).job());
        let Some(origin) = origin.filter(|origin| *origin != self.journal.paths) else {
            return self.hand_out(&loading.location.directory, metadata, loading.allowed);
        };
        let mut reader = LedgerReader::new(origin, 0);
        let operation = reader.start();
        loading.asks_origin = true;
        loading.read = Some(Box::new(metadata));
        loading.foreign = Some(reader);
        self.loading = Some(loading);
        self.store(Purpose::ReadForeignLedger, operation);
    }

    /// `None`: nothing is known of it.
    fn on_origin_read(&mut self, last: Option<&Entry>) {
        let Some(mut loading) = self.loading.take() else { return };
        let Some(metadata) = loading.read.take() else { return };
        if let Some((entry, origin)) = last.zip(metadata.origin.as_deref()) {
            self.tell_of_unsettled(&metadata, &loading.location.directory, (origin, entry));
        }
        self.hand_out(&loading.location.directory, *metadata, loading.allowed);
    }

    /// Says that the job of a snapshot ended right behind it with output that is uncommitted still. What it has staged since an
    /// older one is written again by whoever starts from that.
    fn tell_of_unsettled(&mut self, metadata: &Metadata, place: &str, (job, last): (&str, &Entry)) {
        let fold = last.folded();
        let is_last = fold.latest().is_some_and(|latest| latest.key.id <= metadata.checkpoint);
        if fold.unsettled.is_empty() || !is_last {
            return;
        }
        let message = format!(
            "the job of {} ended there, and its end left output uncommitted: {}. No start from this snapshot brings that back:              give the job's directory {job} as restore.from, with a new nonce, which commits it first, or start that job again",
            paths::uri(self.config.storage_uri.as_deref(), place),
            describe(&fold.unsettled, self.now)
        );
        self.set_notice(SNAPSHOT_UNSETTLED, message);
    }

    /// Whether it holds handles that nobody gives up; those of others are.
    fn keeps_handles(&mut self, metadata: &Metadata, allowed: &Allowed) -> bool {
        !self.without_abandoned(metadata.handles().collect(), &allowed.sinks).is_empty()
    }

    /// Nobody could say which of its handles are committed, and which would be committed twice or never (S5).
    fn refuse_orphan(&mut self, directory: &str) {
        let message = format!(
            "the checkpoint at {} holds output of sinks that may not be committed, and there is no ledger beside it that says so: \
             restore a savepoint, which holds none, or copy the job's whole directory; or name the sinks in \
             restore.abandonSinks, to go on without that output",
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
            if last.is_none() && self.keeps_handles(&metadata, &loading.allowed) {
                return self.refuse_orphan(&loading.location.directory);
            }
            if let Some((entry, owner)) = last.zip(loading.location.owner()) {
                let owner = paths::uri(self.config.storage_uri.as_deref(), owner.directory());
                self.tell_of_unsettled(&metadata, &loading.location.directory, (&owner, entry));
            }
            return self.hand_out(&loading.location.directory, *metadata, loading.allowed);
        }
        let directory = loading.location.job();
        let latest = last.and_then(|entry| self.restorable(&directory, entry));
        let found = last.filter(|entry| latest.is_some() || self.may_be_empty(&directory, entry));
        let Some(entry) = found else {
            self.loading = Some(loading);
            return self.on_snapshot_missing();
        };
        if directory != self.journal.paths {
            if self.is_older_than_own(&directory, entry) {
                return self.go_on_from_own(loading);
            }
            let place = paths::uri(self.config.storage_uri.as_deref(), directory.directory());
            match self.relation(&directory, entry, loading.was_outbid) {
                Relation::Gone(to) => {
                    let latest = self.restorable_uri(&directory, entry);
                    return self.refuse_snapshot("JobMoved", &takeover::gone(&place, &to, latest.as_deref()));
                }
                Relation::Running => match self.takeover_refusal(&place, entry) {
                    Some((reason, message)) => return self.refuse_snapshot(reason, &message),
                    None => loading.takeover = Some(self.new_takeover(directory, entry)),
                },
                Relation::Ended => self.inherit(&directory, entry),
            }
        }
        let Some(latest) = latest else { return self.go_on_empty(loading) };
        loading.allowed.state |= latest.allow_non_restored_state;
        loading.location = SnapshotLocation { directory: latest.directory, is_snapshot: true };
        loading.asks_owner = false;
        let key = loading.location.metadata();
        self.loading = Some(loading);
        self.store(Purpose::LoadMetadata, StoreOperation::Get { key });
    }

    /// What was named is older than what the own ledger holds. Where that holds nothing either, it is not known where the
    /// job's state is, and an empty start would lose it.
    fn go_on_from_own(&mut self, loading: Loading) {
        match self.restore_reference() {
            Some(own) => self.load(&own),
            None if self.journal.fold.directive.is_empty() => {
                self.loading = Some(loading);
                self.on_snapshot_missing();
            }
            None => self.claim(None),
        }
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
        let is_origin = loading.asks_origin;
        let Some(reader) = &mut loading.foreign else { return };
        match reader.on_reply(reply) {
            ReadStep::Store(operation) => self.store(Purpose::ReadForeignLedger, operation),
            ReadStep::End(last) if is_origin => self.on_origin_read(last.as_deref()),
            ReadStep::Failed(_) | ReadStep::Refused(_) if is_origin => self.on_origin_read(None),
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

    pub(super) fn hand_out(&mut self, directory: &str, metadata: Metadata, allowed: Allowed) {
        let uri = paths::uri(self.config.storage_uri.as_deref(), directory);
        let states = match assign_state(&metadata, &self.config.graph, &uri, allowed.state) {
            Ok(states) => states,
            Err(error) => return self.refuse_snapshot("SnapshotIncompatible", &error.to_string()),
        };
        let reference = SnapshotReference {
            directory: directory.to_owned(),
            checkpoint: metadata.checkpoint,
            allow_non_restored_state: allowed.state,
            abandon_sinks: allowed.sinks,
            is_foreign: !directory.starts_with(&format!("{}/", self.journal.paths.directory())),
        };
        self.tell_of_empty_operators(&metadata, &uri);
        self.tell_of_repeated_output(&metadata, &uri);
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
            return self.clear_notice(STARTS_EMPTY);
        }
        let message = format!(
            "operators that {place} does not hold start without state: {new}. If they are to take over the state of an \
             operator of the program before, give them its id"
        );
        self.set_notice(STARTS_EMPTY, message);
    }

    /// Says that the job has gone on behind the snapshot before: what it committed there cannot be taken back (K4).
    fn tell_of_repeated_output(&mut self, metadata: &Metadata, place: &str) {
        let latest = self.journal.fold.latest().map(|latest| latest.key.id);
        let Some(latest) = latest.filter(|id| *id > metadata.checkpoint && metadata.job == self.config.job) else {
            return;
        };
        let message = format!(
            "the job starts from {place}, checkpoint {}, but has completed checkpoint {latest} since: what was written between \
             the two is in the output, and is written again",
            metadata.checkpoint
        );
        self.set_notice(REPEATS_OUTPUT, message);
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
