//! The JobMaster's end of the ledger: intents in a queue, one append at a time, what follows when one stands.
//!
//! An intent becomes an entry only when its turn comes, because what it says may depend on how those before it
//! ended. With storage `JobManager` there is no ledger: entries stand at once, in memory (L7).

use super::operations::{Purpose, Running};
use super::{JobMaster, Phase};
use crate::failure::Failure;
use crate::history::{CheckpointRecord, RecordState};
use crate::ids::{Attempt, CheckpointId};
use crate::ledger::append::{AppendStep, Appender, new_append_id};
use crate::ledger::entry::{
    self, CheckpointKey, Ends, Entry, EntryHeader, EntryKind, SavepointKind, SnapshotReference, TakenSavepoint,
};
use crate::ledger::{Fold, Pin, Request, RequestResult, RestorePoint, RetainedCheckpoint, StartCause, trim};
use crate::paths::JobPaths;
use crate::status::{RequestKind, RequestState};
use crate::store::{StoreOperation, StoreReply};
use crate::time::{TimeSpan, Timestamp};
use std::collections::VecDeque;

/// How often the number after the last is looked at (L3).
const HEAD_INTERVAL: TimeSpan = TimeSpan::from_secs(10);

/// What is to be appended.
#[derive(Debug, Clone)]
pub(super) enum Intent {
    Start { cause: StartCause, restored_from: Option<SnapshotReference> },
    Restart { cause: Failure },
    Checkpoint { id: CheckpointId, triggered_at: Timestamp, bytes: u64 },
    SavepointRequested { id: String, kind: SavepointKind, directory: String, deadline: Timestamp },
    SavepointConcluded { id: String, result: RequestResult },
    Dispose { id: String, path: String },
    Release(Pin),
    CheckpointFailed { id: CheckpointId, failure: Failure },
    End(EndKind),
}

/// How a job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EndKind {
    Finished,
    Stopped,
    Cancelled,
    Failed { failure: Failure, is_users: bool },
}

/// The ledger as this JobManager knows it.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) paths: JobPaths,
    pub(super) in_memory: bool,
    pub(super) appender: Appender,
    pub(super) queue: VecDeque<Intent>,
    /// Number of the last entry.
    pub(super) last: u64,
    /// What all entries up to the last amount to.
    pub(super) fold: Fold,
    /// The attempt that the last entry tells of; what is appended before the next `Restarted` belongs to it.
    pub(super) attempt: Attempt,
    /// The savepoint request whose answer is queued or under way.
    pub(super) answering: Option<String>,
    /// Whether `Started` stands and nothing followed it.
    pub(super) confirmed: bool,
    next_head: Timestamp,
}

impl Journal {
    pub(super) fn new(config: &super::JobMasterConfig) -> Self {
        let paths = JobPaths::new(&config.job);
        Self {
            appender: Appender::new(paths.clone(), config.planted),
            paths,
            in_memory: config.storage_uri.is_none(),
            queue: VecDeque::new(),
            last: 0,
            fold: Fold::default(),
            attempt: Attempt(0),
            answering: None,
            confirmed: false,
            next_head: Timestamp::default(),
        }
    }

    /// Takes over what a reader found.
    pub(super) fn adopt(&mut self, last: Option<&Entry>) {
        self.last = last.map_or(0, |entry| entry.number);
        self.fold = last.map(Entry::folded).unwrap_or_default();
    }

    /// Whether the entry of this request is under way.
    pub(super) fn is_appending_request(&self, id: &str) -> bool {
        let kind = self.appender.pending().map(|entry| &entry.kind);
        matches!(kind, Some(EntryKind::SavepointRequested { id: appending, .. }) if appending == id)
    }

    pub(super) fn next_wakeup(&self) -> Option<Timestamp> {
        let head = (self.confirmed && !self.in_memory).then_some(self.next_head);
        self.appender.next_wakeup().into_iter().chain(head).min()
    }
}

impl JobMaster {
    /// Asks for an entry.
    pub(super) fn append(&mut self, intent: Intent) {
        self.journal.queue.push_back(intent);
        self.pump_journal();
    }

    /// Sends the next entry when none is under way.
    pub(super) fn pump_journal(&mut self) {
        while !self.journal.appender.is_busy() && !self.is_over() {
            let Some(intent) = self.journal.queue.pop_front() else { return };
            let Some(kind) = self.build_kind(intent) else { continue };
            let entry = self.build_entry(kind);
            if self.journal.in_memory {
                self.on_appended(entry);
                continue;
            }
            self.begin_append(entry);
        }
    }

    fn begin_append(&mut self, entry: Entry) {
        let good_until = match &entry.kind {
            EntryKind::Checkpoint { checkpoint, .. } => self.entry_good_until(checkpoint.key.id),
            _ => None,
        };
        match self.journal.appender.begin(entry, good_until) {
            Ok(operation) => self.store(Purpose::Append, operation),
            Err(error) => self.exit_internal("LedgerEntryTooLarge", &error.to_string()),
        }
    }

    /// Appends, reads again and looks at the head when it is time.
    pub(super) fn tick_journal(&mut self) {
        if let Some(operation) = self.journal.appender.on_wakeup(self.now) {
            self.store(Purpose::Append, operation);
        }
        if self.journal.confirmed && !self.journal.in_memory && self.journal.next_head <= self.now {
            self.journal.next_head = self.now.plus(HEAD_INTERVAL);
            let next = self.journal.last + 1;
            if !self.config.planted.no_fence {
                self.store(Purpose::Head(next), StoreOperation::Get { key: self.journal.paths.ledger_entry(next) });
            }
        }
    }

    pub(super) fn on_append_reply(&mut self, reply: StoreReply) {
        match self.journal.appender.on_reply(reply, self.now, &mut *self.random) {
            AppendStep::Store(operation) => self.store(Purpose::Append, operation),
            AppendStep::Wait => self.note_append_trouble(),
            AppendStep::Appended(entry) => {
                self.clear_store_notice();
                self.on_appended(*entry);
            }
            AppendStep::Taken { header, entry } => self.on_taken(&header, *entry),
            AppendStep::Unreadable(error) => self.exit_unreadable_ledger(&error),
            AppendStep::GivenUp(entry) => self.on_append_given_up(*entry),
        }
        self.pump_journal();
    }

    /// The number after the last was looked at: anything of another process there ends this one (L3).
    pub(super) fn on_head_reply(&mut self, number: u64, reply: StoreReply) {
        let StoreReply::Object(bytes) = reply else { return };
        match EntryHeader::from_bytes(&bytes, &self.journal.paths.ledger_entry(number)) {
            Ok(header) if header.process == self.config.process => {}
            Ok(header) => self.exit_superseded_by(&header),
            Err(_) => self.exit_superseded(None),
        }
    }

    fn note_append_trouble(&mut self) {
        if let Some(failure) = self.journal.appender.last_failure().cloned() {
            self.note_store_failure(&failure);
        }
    }

    /// Another's entry has the number: a start decides anew, everything else is superseded.
    fn on_taken(&mut self, header: &EntryHeader, entry: Entry) {
        if matches!(self.phase, Phase::Claiming) {
            return self.read_ledger();
        }
        let planted = self.config.planted;
        if planted.no_fence || planted.unclear_append_is_failure {
            let number = header.number + 1;
            let append_id = new_append_id(&mut *self.random);
            return self.begin_append(Entry { number, append_id, ..entry });
        }
        self.exit_superseded_by(header);
    }

    fn on_append_given_up(&mut self, entry: Entry) {
        if let EntryKind::Checkpoint { checkpoint, .. } = &entry.kind {
            let failure = Failure::external("CheckpointExpired", "its ledger entry had no answer");
            let id = checkpoint.key.id;
            let outputs = self.coordinator.as_mut().map(|one| one.refused(id, failure, self.now)).unwrap_or_default();
            return self.execute(outputs);
        }
        self.begin_append(entry);
    }

    fn build_entry(&mut self, kind: EntryKind) -> Entry {
        let number = self.journal.last + 1;
        let attempt = if matches!(kind, EntryKind::Restarted { .. }) { self.attempt } else { self.journal.attempt };
        let mut fold = self.journal.fold.clone();
        fold.failures = self.failures.clone();
        if let Some(through) = self.committed_through() {
            fold.committed_through = through;
        }
        if let Some(bound) = trim::bound_at(number).filter(|bound| *bound > fold.trimmed_below) {
            fold = trim::raise_bound(fold, bound);
        }
        Entry {
            version: entry::VERSION,
            number,
            append_id: new_append_id(&mut *self.random),
            process: self.config.process.clone(),
            generation: self.config.generation,
            attempt,
            revision: self.config.revision,
            directive: self.config.directive.id.clone(),
            time: self.now,
            unsettled: self.unsettled_behind(&kind),
            left_open: self.left_open_behind(&kind),
            kind,
            fold,
        }
    }

    /// What an intent says when its turn comes; `None`: nothing any more, since a later checkpoint was faster or the
    /// attempt is over.
    fn build_kind(&mut self, intent: Intent) -> Option<EntryKind> {
        // Behind a terminal entry nothing follows but a start.
        let is_helpers = matches!((&intent, &self.phase), (Intent::Dispose { .. }, Phase::Disposing));
        if self.journal.fold.state.is_terminal() && !matches!(intent, Intent::Start { .. }) && !is_helpers {
            return None;
        }
        Some(match intent {
            Intent::Start { cause, restored_from } => {
                EntryKind::Started { cause, restored_from, probed: self.config.probed.clone(), taker: None }
            }
            // The attempt failed while the checkpoint that the job ends with was being appended: there is no way back (K4).
            Intent::Restart { .. } if self.journal.fold.ending != Ends::None => return None,
            Intent::Restart { cause } => EntryKind::Restarted { cause, from: self.restore_reference() },
            Intent::Checkpoint { id, .. } if self.refuses_expiring(id) => return None,
            Intent::Checkpoint { id, triggered_at, bytes } => {
                let (ends, savepoint) = self.coordinator.as_mut()?.appending(id)?;
                let key = CheckpointKey { generation: self.config.generation, id };
                let checkpoint = RetainedCheckpoint { key, triggered_at, completed_at: self.now, bytes };
                let savepoint =
                    savepoint.map(|savepoint| TakenSavepoint { request: savepoint.request, path: savepoint.directory });
                let record = self.record(id, RecordState::Completed, None);
                EntryKind::Checkpoint { checkpoint, savepoint, ends, drops: self.displaced(), record }
            }
            Intent::CheckpointFailed { id, failure } => {
                let record = self.record(id, RecordState::Failed, Some(&failure));
                EntryKind::CheckpointFailed { id, failure, record }
            }
            Intent::SavepointRequested { id, kind, directory, deadline } => {
                EntryKind::SavepointRequested { id, kind, directory, deadline }
            }
            Intent::SavepointConcluded { id, result } => self.build_conclusion(id, result)?,
            Intent::Release(pin) if !self.journal.fold.pins.contains(&pin) => return None,
            Intent::Release(Pin { snapshot, holder }) => EntryKind::Released { snapshot, holder },
            Intent::Dispose { id, path } => match self.disposal_refusal(&path) {
                None => EntryKind::Disposed { path },
                refusal => {
                    self.answer(id, RequestKind::Dispose, RequestState::Failed, Some(path), refusal);
                    return None;
                }
            },
            // There is no way back behind a savepoint that the job was to end with (K4).
            Intent::End(EndKind::Cancelled)
                if self.journal.fold.has_stopped_with_savepoint() && !self.config.planted.closes_unfinished =>
            {
                self.phase = Phase::Ending(EndKind::Stopped);
                EntryKind::Stopped
            }
            Intent::End(EndKind::Finished) => EntryKind::Finished { drops: self.dropped_at_end() },
            Intent::End(EndKind::Cancelled) => EntryKind::Cancelled { drops: self.dropped_at_end() },
            Intent::End(EndKind::Stopped) => EntryKind::Stopped,
            Intent::End(EndKind::Failed { failure, .. }) => EntryKind::Failed { failure },
        })
    }

    /// The answer to a request, unless it has one.
    fn build_conclusion(&mut self, id: String, result: RequestResult) -> Option<EntryKind> {
        let is_open = |request: &Request| request.id == id && request.result.is_none();
        if !self.journal.fold.requests.iter().any(is_open) {
            self.journal.answering.take_if(|answering| *answering == id);
            return None;
        }
        Some(match result {
            RequestResult::Path(path) => EntryKind::Savepoint { id, path },
            RequestResult::Failed(failure) => EntryKind::SavepointFailed { id, failure },
        })
    }

    /// How a checkpoint went, as the ledger keeps it.
    fn record(&self, id: CheckpointId, state: RecordState, failure: Option<&Failure>) -> Option<Box<CheckpointRecord>> {
        let mut record = Box::new(self.history.get(id)?.record.clone());
        record.end(state, failure, self.now);
        Some(record)
    }

    /// What a restart restores, as of the last entry.
    pub(super) fn restore_reference(&self) -> Option<SnapshotReference> {
        match &self.journal.fold.restore_point {
            RestorePoint::Empty => None,
            RestorePoint::Snapshot(reference) => Some(reference.clone()),
            RestorePoint::Latest => self.journal.fold.latest().map(|latest| self.reference_to(latest.key)),
        }
    }

    pub(super) fn reference_to(&self, key: CheckpointKey) -> SnapshotReference {
        SnapshotReference {
            directory: self.journal.paths.checkpoint_directory(key.generation, key.id),
            checkpoint: key.id,
            allow_non_restored_state: false,
            abandon_sinks: Vec::new(),
            is_foreign: false,
        }
    }

    /// Retained checkpoints that one more displaces.
    fn displaced(&self) -> Vec<CheckpointKey> {
        let pins = &self.journal.fold.pins;
        let is_pinned = |key| {
            let directory = self.reference_to(key).directory;
            !self.config.planted.ignores_pins && pins.iter().any(|pin| pin.snapshot == directory)
        };
        let retained: Vec<_> = self.journal.fold.retained.iter().filter(|one| !is_pinned(one.key)).collect();
        let keep = self.config.options.checkpointing.as_ref().map_or(1, |settings| settings.retained.max(1) as usize);
        retained.iter().take((retained.len() + 1).saturating_sub(keep)).map(|one| one.key).collect()
    }

    /// Retained checkpoints that go with the job. Who concludes an older end first, to carry out another start, keeps what that
    /// may start from.
    fn dropped_at_end(&self) -> Vec<CheckpointKey> {
        use crate::options::Retention;
        if self.concludes_for_another {
            return vec![];
        }
        let removes =
            |settings: &crate::options::CheckpointingSpec| settings.retention == Retention::DeleteOnCancellation;
        if !self.config.options.checkpointing.as_ref().is_some_and(removes) {
            return vec![];
        }
        // The last trace of what is not committed stays.
        let keeps = self.has_unsettled().then(|| self.journal.fold.latest().map(|one| one.key)).flatten();
        self.journal.fold.retained.iter().map(|one| one.key).filter(|key| Some(*key) != keeps).collect()
    }

    /// An entry stands: the one place from which everything goes on.
    fn on_appended(&mut self, entry: Entry) {
        let trimmed = self.journal.fold.trimmed_below..entry.fold.trimmed_below;
        // A ledger in memory has no objects (L7).
        if trimmed.start < trimmed.end && !self.journal.in_memory {
            self.remove_entries(trimmed);
        }
        self.journal.last = entry.number;
        self.journal.fold = entry.folded();
        self.journal.next_head = self.now.plus(HEAD_INTERVAL);
        self.journal.attempt = entry.attempt.max(Attempt(1));
        match entry.kind {
            EntryKind::Started { .. } => self.on_started(),
            EntryKind::Restarted { .. } => self.on_restart_recorded(),
            EntryKind::Checkpoint { checkpoint, ends, drops, .. } => self.on_checkpoint_stands(checkpoint, ends, drops),
            EntryKind::CheckpointFailed { id, failure, .. } => self.on_checkpoint_failure_stands(id, failure),
            EntryKind::Finished { drops } | EntryKind::Cancelled { drops } => self.on_terminal_stands(drops),
            EntryKind::Stopped | EntryKind::Failed { .. } => self.on_terminal_stands(vec![]),
            EntryKind::Savepoint { id, .. } => self.on_savepoint_concluded(&id, false),
            EntryKind::SavepointFailed { id, .. } => self.on_savepoint_concluded(&id, true),
            EntryKind::Disposed { path } => self.on_disposed(&path),
            _ => {}
        }
    }

    /// Entries below the bound that a standing entry announces (L4).
    fn remove_entries(&mut self, numbers: std::ops::Range<u64>) {
        let first_entries = if self.config.planted.no_fence { &[][..] } else { &self.journal.fold.first_entries };
        let keys = trim::keys_to_remove(&self.journal.paths, numbers, first_entries);
        let (purpose, operation) = (Purpose::Delete(Vec::new()), StoreOperation::Delete { keys });
        self.start(Running { purpose, operation, failures: 0 });
    }
}
