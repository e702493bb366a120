//! How a job ends, and how this process does.
//!
//! A terminal entry first; when it stands, TaskManagers are told, removed checkpoints go, the process exits. A
//! superseded process exits at once and touches nothing (L3).

use super::commits::{describe, describe_left_open};
use super::journal::{EndKind, Intent};
use super::{Command, JobMaster, Phase};
use crate::commit::UnsettledOutput;
use crate::failure::{ExitKind, ExitRecord, Failure};
use crate::ids::Generation;
use crate::job_master::Action;
use crate::ledger::entry::{EntryHeader, Successor};
use crate::ledger::{CheckpointKey, Ends, Request, RequestResult};
use crate::message::ToTaskManager;
use crate::status::JobState;
use crate::time::{TimeSpan, Timestamp};

/// How long an exit waits for background deletes.
const EXIT_PATIENCE: TimeSpan = TimeSpan::from_secs(5);

/// The same when no later start will sweep.
pub(super) const REMOVAL_PATIENCE: TimeSpan = TimeSpan::from_secs(60);

impl JobMaster {
    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            // The job has ended, or is being ended: there is nothing to ask for.
            _ if self.config.directive.start.is_helper() => {}
            Command::Stop | Command::Cancel if matches!(self.phase, Phase::Ending(_)) => {
                self.commits.settle_in_time(self.now);
            }
            Command::Stop => self.stop(),
            Command::Cancel if self.journal.fold.has_stopped_with_savepoint() => {
                self.end_when_confirmed(self.reached_end())
            }
            Command::Cancel => self.end_when_confirmed(EndKind::Cancelled),
            // What is asked for before the ledger was taken waits for it.
            other if !self.journal.confirmed => self.early.push(other),
            Command::TriggerCheckpoint { id } => self.request_checkpoint(id),
            Command::Savepoint(request) => {
                if matches!(self.phase, Phase::Ending(_)) && request.kind.ends() != Ends::None {
                    self.commits.settle_in_time(self.now);
                }
                self.request_savepoint(request);
            }
            Command::Dispose { id, path } => self.request_disposal(id, &path),
            Command::Release => {
                self.journal.fold.pins.clone().into_iter().for_each(|pin| self.append(Intent::Release(pin)));
            }
            Command::Reconfigure(options) => self.reconfigure(*options),
        }
    }

    /// A last checkpoint where there can be one, then `Stopped`.
    fn stop(&mut self) {
        if self.journal.fold.ending == Ends::Finish {
            return self.end_when_confirmed(self.reached_end());
        }
        let can_checkpoint = matches!(self.phase, Phase::Running) && self.journal.fold.ending == Ends::None;
        match &mut self.coordinator {
            Some(coordinator) if can_checkpoint => {
                coordinator.request(Ends::Stop);
                self.wanted_end = Some(EndKind::Stopped);
            }
            _ => self.end_when_confirmed(EndKind::Stopped),
        }
    }

    fn end_when_confirmed(&mut self, kind: EndKind) {
        if self.journal.confirmed {
            return self.end(kind);
        }
        self.wanted_end = Some(kind);
    }

    /// Whether an end was asked for.
    pub(super) const fn is_ending(&self) -> bool {
        self.wanted_end.is_some() || matches!(self.phase, Phase::Ending(_) | Phase::Exiting { .. })
    }

    /// The attempt failed while the job was ending, or after the checkpoint that ends it: there is no way back.
    pub(super) fn end_after_failure(&mut self) {
        let kind = match (self.journal.fold.ending, self.wanted_end.take()) {
            (Ends::Finish | Ends::Stop, _) => self.reached_end(),
            (Ends::None, None) => EndKind::Stopped,
            (Ends::None, Some(kind)) => kind,
        };
        self.end(kind);
    }

    /// Appends the terminal entry after everything that is under way.
    pub(super) fn end(&mut self, kind: EndKind) {
        if matches!(self.phase, Phase::Ending(_) | Phase::Exiting { .. } | Phase::Over) {
            return;
        }
        self.wanted_end = None;
        self.loading = None;
        let dropped = self.coordinator.as_mut().map(|one| one.deactivate()).unwrap_or_default();
        self.drop_checkpoints(dropped);
        if kind != EndKind::Finished && self.has_transactional_sinks() {
            // What they stage from now on would be aborted.
            self.cancel_execution();
        }
        self.commits.begin_end(&kind, self.is_end_wanted(), self.now);
        self.phase = Phase::Ending(kind);
        self.conclude_end();
    }

    /// Whether somebody waits for the job to end, whatever kind of end it is.
    fn is_end_wanted(&self) -> bool {
        let asks = |request: &Request| request.kind.ends() != Ends::None;
        let is_asked = self.journal.fold.open_request().is_some_and(asks);
        self.config.directive.start.is_helper() || self.concludes_for_another || is_asked
    }

    /// Appends the terminal entry, behind everything that has to be confirmed before it: handles are settled (S5) and what
    /// is in no unsettled handle is aborted (S3), for every end and whoever writes it, until its deadline (L6).
    pub(super) fn conclude_end(&mut self) {
        let Phase::Ending(kind) = &self.phase else { return };
        let kind = kind.clone();
        if !self.is_settled_for_end() {
            return;
        }
        let open = self.journal.fold.open_request().cloned();
        let open = open.filter(|_| !self.config.planted.closes_unfinished);
        if let Some((id, path)) = open.and_then(|request| request.taken.map(|path| (request.id, path))) {
            self.conclude_savepoint(&id, RequestResult::Path(path));
        }
        self.append(Intent::End(kind));
    }

    /// The terminal entry stands.
    pub(super) fn on_terminal_stands(&mut self, drops: Vec<CheckpointKey>) {
        let Phase::Ending(kind) = &self.phase else { return };
        let record = if self.concludes_for_another { concluded_for_another() } else { exit_record(kind) };
        let record = self.with_left(record);
        // No later start sweeps what a closer leaves, or who ends the job for good.
        let is_last = matches!(kind, EndKind::Finished | EndKind::Cancelled) || self.config.directive.start.is_helper();
        self.status.state = end_state(kind);
        self.status.since = self.now;
        self.answer_all_at_end();
        let patience = if is_last { REMOVAL_PATIENCE } else { EXIT_PATIENCE };
        // Of all that is not retained now nothing is needed any more.
        self.phase = Phase::Exiting { record, deadline: self.now.plus(patience) };
        self.remove_dead(drops);
        self.shut_task_managers_down();
        self.sweep();
    }

    /// Says what the end has left uncommitted, and that something may be open (L6).
    pub(super) fn with_left(&self, record: ExitRecord) -> ExitRecord {
        let (unsettled, left_open) = (self.journal.fold.unsettled.clone(), self.journal.fold.left_open.clone());
        let is_finished = record.kind == ExitKind::Finished && !unsettled.is_empty();
        let why = if is_finished { "all input was read".to_owned() } else { record.message };
        let message = left_uncommitted(why, &unsettled, self.now);
        let message = match &left_open {
            Some(why) => format!("{message}; {}", describe_left_open(why)),
            None => message,
        };
        ExitRecord { message, unsettled, left_open, ..record }
    }

    pub(super) fn exit_when_done(&mut self) {
        let Phase::Exiting { record, deadline } = &self.phase else { return };
        if self.operations.has_background() && *deadline > self.now {
            return;
        }
        let record = record.clone();
        let record = self.with_left_behind(record);
        self.exit_with(record);
    }

    /// The same, by whoever appended this.
    pub(super) fn exit_superseded_by(&mut self, header: &EntryHeader) {
        let Some(Successor { job_uid, directory }) = header.taker() else {
            return self.exit_superseded(Some(header.generation));
        };
        let message = format!(
            "the job with uid {job_uid} takes this one over, to go on in {directory} (G5): this process has changed \
             nothing since. Should that job never come up there, change the spec of this one, which then goes on from its \
             latest checkpoint"
        );
        self.exit(ExitKind::Superseded, "TakenOver", &message, Some(header.generation));
    }

    pub(super) fn exit_superseded(&mut self, by: Option<Generation>) {
        let who = by.map_or_else(|| "another process".to_owned(), |by| format!("generation {by}"));
        let message = format!(
            "generation {} was superseded: {who} has appended to the ledger; this process has changed nothing since",
            self.config.generation
        );
        self.exit(ExitKind::Superseded, "Superseded", &message, by);
    }

    pub(super) fn exit_user_error(&mut self, failure: &Failure) {
        self.status.state = JobState::Failed;
        self.exit(ExitKind::UserError, &failure.reason, &failure.message, None);
    }

    pub(super) fn exit_internal(&mut self, reason: &str, message: &str) {
        self.exit(ExitKind::Internal, reason, message, None);
    }

    pub(super) fn exit(&mut self, kind: ExitKind, reason: &str, message: &str, by: Option<Generation>) {
        self.exit_as(ExitRecord { by_generation: by.map(|by| by.0), ..ExitRecord::new(kind, reason, message) });
    }

    pub(super) fn exit_as(&mut self, record: ExitRecord) {
        self.shut_task_managers_down();
        self.exit_with(record);
    }

    /// The last entry, as the controller is told of it (N3). Not by who removes a savepoint: what the job's end was, nobody
    /// has seen because of that, and a start must not pass over it.
    pub(super) fn seen_entry(&self) -> u64 {
        match self.config.directive.start {
            super::StartFrom::Dispose { .. } => self.config.directive.seen,
            _ if self.journal.in_memory => 0,
            _ => self.journal.last,
        }
    }

    /// The last word also says how far the ledger is known: the controller may have missed the last report (N3).
    fn exit_with(&mut self, record: ExitRecord) {
        let mut record = self.with_nothing_begun(record);
        record.ledger_entry = Some(self.seen_entry()).filter(|last| *last > 0);
        self.status.message.clone_from(&record.message);
        self.phase = Phase::Over;
        self.actions.push(Action::Exit(record));
    }

    fn shut_task_managers_down(&mut self) {
        for session in self.task_managers.sessions().collect::<Vec<_>>() {
            self.send(session, ToTaskManager::Shutdown);
        }
    }
}

/// Why the job ended, and what that left uncommitted.
fn left_uncommitted(why: String, unsettled: &[UnsettledOutput], now: Timestamp) -> String {
    if unsettled.is_empty() {
        return why;
    }
    format!(
        "{why}; it left uncommitted, since there was no answer in time: {}. The last checkpoint holds what is left: a start in \
         time commits it",
        describe(unsettled, now)
    )
}

const fn end_state(kind: &EndKind) -> JobState {
    match kind {
        EndKind::Finished => JobState::Finished,
        EndKind::Stopped => JobState::Stopped,
        EndKind::Cancelled => JobState::Cancelled,
        EndKind::Failed { .. } => JobState::Failed,
    }
}

/// The controller starts the next generation with the same directive, which then finds the job at its end (N3).
fn concluded_for_another() -> ExitRecord {
    let message = "an end that the job had been asked for before, and that had reached its last checkpoint, was concluded \
                   first (K4): start again to carry this start out";
    ExitRecord::new(ExitKind::StateMoved, "StateMoved", message)
}

fn exit_record(kind: &EndKind) -> ExitRecord {
    let (kind, reason, message) = match kind {
        EndKind::Finished => (ExitKind::Finished, "Finished", "all input was read and all results are out".to_owned()),
        EndKind::Stopped => (ExitKind::Stopped, "Stopped", "the job was stopped".to_owned()),
        EndKind::Cancelled => (ExitKind::Stopped, "Cancelled", "the job was cancelled".to_owned()),
        EndKind::Failed { failure, is_users: true } => {
            (ExitKind::UserError, failure.reason.as_str(), failure.message.clone())
        }
        EndKind::Failed { failure, .. } => (ExitKind::Failed, failure.reason.as_str(), failure.message.clone()),
    };
    ExitRecord::new(kind, reason, message)
}
