//! From a directive to a claimed ledger (N3, L3): read → decide → load what is restored ([`super::loading`]) → `Started` →
//! LIST behind it.
//!
//! Until `Started` stands nothing is written, so a user's error here leaves the ledger as it was; store and broker
//! out of reach only cost time (F2).

use super::journal::{EndKind, Intent};
use super::loading::Allowed;
use super::operations::Purpose;
use super::takeover;
use super::{JobMaster, Phase, StartFrom};
use crate::failure::{ExitKind, ExitRecord, Failure};
use crate::ids::Attempt;
use crate::ledger::decide::{StartDecision, Starter, decide_start};
use crate::ledger::entry::{Entry, EntryHeader, LedgerError, SnapshotReference, Successor};
use crate::ledger::read::{LedgerReader, ReadStep, entries_after, last_entry};
use crate::ledger::{Ends, LedgerState, RestorePoint, StartCause};
use crate::paths;
use crate::status::JobState;
use crate::store::{StoreOperation, StoreReply};

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
        let keeps_state = self.config.options.checkpointing.is_some() && !self.config.planted.forgets_lost_memory;
        match self.config.directive.start.clone() {
            StartFrom::Path { from, allow_non_restored_state, abandon_sinks } => {
                self.load_place(&from, Allowed { state: allow_non_restored_state, sinks: abandon_sinks });
            }
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
            StartDecision::Path { from, allow_non_restored_state, abandon_sinks } => {
                self.load_place(&from, Allowed { state: allow_non_restored_state, sinks: abandon_sinks });
            }
            StartDecision::Conclude(ends) => self.conclude_first(ends),
            StartDecision::Close(end) => self.close_job(end),
            StartDecision::Dispose { path } => self.begin_disposal(&path),
            StartDecision::NotEnded { last } => self.exit_not_ended(last),
            StartDecision::Report(state) => self.exit_reporting(state),
            StartDecision::Superseded(by) => self.exit_superseded(Some(by)),
            StartDecision::StateMoved { last } => self.exit_state_moved(last),
            StartDecision::StateMissing { last } => self.exit_state_missing(last),
            StartDecision::Moved(to) => {
                let latest = last.and_then(|entry| self.restorable_uri(&self.journal.paths, entry));
                self.exit_moved_to(&to, latest.as_deref());
            }
            StartDecision::Elsewhere(state) => {
                let message = format!("the job's ledger says {state:?}: it goes on elsewhere");
                self.exit(ExitKind::StateMoved, "StateMoved", &message, None);
            }
        }
    }

    /// An end had come as far as its last checkpoint (K4).
    fn conclude_first(&mut self, ends: Ends) {
        self.concludes_for_another = self.journal.fold.directive != self.config.directive.id
            && self.config.directive.start != StartFrom::Continue;
        let is_finished = ends == Ends::Finish && !self.journal.fold.drained;
        self.wanted_end = Some(if is_finished { EndKind::Finished } else { EndKind::Stopped });
        self.claim_as(StartCause::Close, self.restore_reference());
    }

    fn exit_state_moved(&mut self, last: u64) {
        let message = format!(
            "the ledger ends at entry {last}, the directive was written for entry {}: nothing was changed",
            self.config.directive.seen
        );
        self.exit(ExitKind::StateMoved, "StateMoved", &message, None);
    }

    fn exit_state_missing(&mut self, last: Option<u64>) {
        let found = last.map_or_else(|| "is empty".to_owned(), |last| format!("ends at entry {last}"));
        let message = format!(
            "the ledger below {} {found}, but entry {} had been seen: check checkpointing.storage and the bucket; to start \
             without that state, raise the nonce",
            self.own_place(),
            self.config.directive.seen
        );
        self.exit(ExitKind::StateMissing, "StateMissing", &message, None);
    }

    fn exit_moved_to(&mut self, to: &Successor, latest: Option<&str>) {
        let message = takeover::gone(&self.own_place(), to, latest);
        self.status.state = JobState::Failed;
        self.exit(ExitKind::StateMoved, "MovedTo", &message, None);
    }

    /// The job's directory, as others may read it.
    pub(super) fn own_place(&self) -> String {
        paths::uri(self.config.storage_uri.as_deref(), self.journal.paths.directory())
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
        self.exit_as(self.with_left(ExitRecord::new(kind, reason, message)));
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
