//! The JobManager's decisions: a state machine that is fed events and time, and answers with actions.
//!
//! It owns the ledger's rules (L1-L7), checkpoint coordination (K1-K6), slots and deployment, heartbeats, restarts
//! (F1, F2). It does no I/O: whoever drives it (the JobManager process, the local runner, the simulation)
//! executes the [`Action`]s and feeds back what happened. It may be driven late or not at all: safety never depends
//! on it, only the ledger's fence does.
//!
//! The flows, each step linked to where it is decided:
//!
//! 1. *Start* (`start`): read the ledger ([`crate::ledger::read`]) → decide by the directive
//!    ([`crate::ledger::decide::decide_start`]) → load the snapshot (`loading`) → append
//!    `Started` ([`crate::ledger::append`]) → LIST behind it.
//! 2. *Attempt* (`attempts`): registered slots, the recorded entry and the loaded state → `Deploy` → every
//!    `TaskRunning` → running.
//! 3. *Checkpoint* (`checkpoints`): [`crate::coordinator`] triggers → `Acknowledge` of all → `_metadata` → ledger
//!    entry → `CheckpointCompleted`, displaced ones are removed (`cleanup`).
//! 4. *Failure* (`attempts`): a failed task, a lost TaskManager, too many failed checkpoints → [`crate::restart`]
//!    decides → `Restarted` is appended, tasks are cancelled → flow 2, or flow 7 with `Failed`.
//! 5. *Helper* (`closing`): a start that runs no task ends the job in the place of a JobManager that cannot be reached (L6),
//!    or removes a savepoint of one that has ended (L5).
//! 6. *Commits* (`commits`): the handles of the last complete checkpoint are committed, after its entry and at each start,
//!    by the sinks' own code ([`Action::Commit`]); what lost attempts left open is aborted ([`Action::AbortLeftovers`]).
//! 7. *End* (`ending`): all tasks have worked on all input, a command, a spent policy, a user's error → a last checkpoint where
//!    there is one → the terminal entry → `Shutdown` → exit. Superseded: exit at once, touching nothing.

mod attempts;
mod checkpoints;
mod cleanup;
mod closing;
mod commits;
mod config;
mod ending;
mod event;
mod execution;
mod files;
mod journal;
mod leaving;
mod loading;
mod operations;
mod reconfigure;
mod reporting;
mod savepoints;
mod start;
mod sweep;
mod takeover;
mod task_managers;

pub use config::{CloseEnd, Directive, JobMasterConfig, Planted, StartFrom};
pub use event::{Action, Command, Event, Reconfiguration, SavepointRequest, SessionId};

use crate::RandomSource;
use crate::coordinator::CheckpointCoordinator;
use crate::failure::{ExitRecord, Failure};
use crate::history::CheckpointHistory;
use crate::ids::{Attempt, CheckpointId};
use crate::ledger::CheckpointKey;
use crate::ledger::append::backoff;
use crate::ledger::read::LedgerReader;
use crate::message::ToTaskManager;
use crate::metadata::Metadata;
use crate::restart::{FailureCounts, RestartPolicy};
use crate::status::{JobStatus, RequestStatus};
use crate::store::{OperationId, StoreFailure, StoreOperation, StoreReply};
use crate::time::{TimeSpan, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

pub use cleanup::CLEANUP_FAILED;
pub use closing::{DISPOSAL_INCOMPLETE, DISPOSED, NOTHING_BEGUN};
use execution::Execution;
use journal::{EndKind, Journal};
use loading::{Loading, Restored};
pub use loading::{REPEATS_OUTPUT, SNAPSHOT_UNSETTLED, STARTS_EMPTY, TOLD_ONCE};
use operations::{Operations, Purpose, Running};
pub use reporting::STATE_DAMAGED;
use task_managers::TaskManagers;

/// How far the job is.
#[derive(Debug)]
enum Phase {
    New,
    Reading(LedgerReader),
    /// What is restored is being read, before `Started`.
    Loading,
    /// `Started` is being appended.
    Claiming,
    /// LIST behind `Started`.
    Confirming,
    Preparing(Preparing),
    Deploying,
    Running,
    /// `Disposed` is being appended behind the terminal entry (L5).
    Disposing,
    /// The terminal entry is being appended.
    Ending(EndKind),
    /// It stands.
    Exiting {
        record: ExitRecord,
        deadline: Timestamp,
    },
    Over,
}

/// An attempt that is not deployed yet.
#[derive(Debug)]
struct Preparing {
    /// Not before this time.
    due: Timestamp,
    /// Whether its `Started` or `Restarted` stands.
    recorded: bool,
    /// Whether what it restores is at hand.
    loaded: bool,
}

/// One JobManager's decisions.
pub struct JobMaster {
    config: JobMasterConfig,
    random: Box<dyn RandomSource>,
    now: Timestamp,
    actions: Vec<Action>,
    status: JobStatus,
    phase: Phase,
    attempt: Attempt,
    policy: RestartPolicy,
    failures: FailureCounts,
    operations: Operations,
    journal: Journal,
    coordinator: Option<CheckpointCoordinator>,
    task_managers: TaskManagers,
    execution: Option<Execution>,
    storing: BTreeMap<CheckpointId, checkpoints::Storing>,
    commits: commits::Commits,
    /// Failed or dropped checkpoints of this generation, to be removed once a later one is complete (K6).
    dead: Vec<CheckpointKey>,
    /// Directories of savepoints that did not come to be, likewise.
    dead_savepoints: Vec<String>,
    history: Arc<CheckpointHistory>,
    /// Checkpoints that were asked for.
    asked: Vec<savepoints::AskedCheckpoint>,
    /// Answers that no ledger entry holds.
    answers: Vec<RequestStatus>,
    last_savepoint_failure: Option<String>,
    /// Commands that came before the ledger was taken.
    early: Vec<Command>,
    cleanup: cleanup::Cleanup,
    files: files::Files,
    /// The latest snapshot's description by its directory, so that a restart in place need not read it.
    cached: Option<(String, Metadata)>,
    loading: Option<Loading>,
    restored: Option<Restored>,
    /// The snapshot that was missing when the ledger was last read.
    missing: Option<String>,
    /// The end that is being concluded was asked of an older revision: this one's directive is to be carried out after it.
    concludes_for_another: bool,
    /// An end that was asked for and waits: for the ledger, or for a last checkpoint.
    wanted_end: Option<EndKind>,
    next_heartbeat: Timestamp,
    /// Failures of the store in a row, of what the job waits for.
    store_failures: u32,
    /// Attempts in a row that could not reach something outside while restoring (F2).
    external_failures: u32,
    /// A configuration that cannot be used.
    refused: Option<Failure>,
}

impl JobMaster {
    /// A JobMaster that has read nothing. The first [`Self::handle`] begins.
    #[must_use]
    pub fn new(config: JobMasterConfig, random: Box<dyn RandomSource>) -> Self {
        let options = &config.options;
        let policy = RestartPolicy::from_spec(options.restart_strategy.as_ref(), options.checkpointing.is_some());
        let refused = policy.as_ref().err().map(|error| Failure::user("InvalidRestartStrategy", error.to_string()));
        Self {
            journal: Journal::new(&config),
            failures: FailureCounts::new(config.revision),
            policy: policy.unwrap_or(RestartPolicy::None),
            config,
            random,
            now: Timestamp::default(),
            actions: Vec::new(),
            status: JobStatus::default(),
            phase: Phase::New,
            attempt: Attempt(0),
            operations: Operations::default(),
            coordinator: None,
            task_managers: TaskManagers::default(),
            execution: None,
            storing: BTreeMap::new(),
            commits: commits::Commits::default(),
            dead: Vec::new(),
            dead_savepoints: Vec::new(),
            history: Arc::default(),
            asked: Vec::new(),
            answers: Vec::new(),
            last_savepoint_failure: None,
            early: Vec::new(),
            cleanup: cleanup::Cleanup::default(),
            files: files::Files::default(),
            cached: None,
            loading: None,
            restored: None,
            missing: None,
            concludes_for_another: false,
            wanted_end: None,
            next_heartbeat: Timestamp::default(),
            store_failures: 0,
            external_failures: 0,
            refused,
        }
    }

    /// Takes what happened and says what to do, in this order. After [`Action::Exit`] it does nothing more.
    pub fn handle(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        if self.is_over() {
            return vec![];
        }
        self.now = now;
        if matches!(self.phase, Phase::New) {
            match self.refused.take() {
                Some(failure) => self.exit_user_error(&failure),
                None => self.read_ledger(),
            }
        }
        if !self.is_over() {
            self.dispatch(event);
        }
        if !self.is_over() {
            self.advance();
        }
        self.refresh_status();
        std::mem::take(&mut self.actions)
    }

    /// When to feed [`Event::Tick`] at the latest, should nothing else happen. `None`: never.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::New => return Some(Timestamp::default()),
            Phase::Over => return None,
            _ => {}
        }
        let timeout = self.config.options.heartbeat_timeout;
        let due = match &self.phase {
            Phase::Preparing(preparing) if preparing.due > self.now => Some(preparing.due),
            Phase::Exiting { deadline, .. } => Some(*deadline),
            _ => None,
        };
        let heartbeat = self.task_managers.sessions().next().map(|_| self.next_heartbeat);
        let times = [
            due,
            heartbeat,
            self.savepoint_deadline(),
            self.journal.next_wakeup(),
            self.operations.next_wakeup(),
            self.task_managers.next_loss(timeout),
            self.deploy_deadline(),
            self.leaving_deadline(),
            self.cleanup.next_sweep,
            self.commits.next_wakeup(self.now),
            self.coordinator.as_ref().and_then(CheckpointCoordinator::next_wakeup),
        ];
        times.into_iter().flatten().min()
    }

    /// The job's status as of the last event.
    #[must_use]
    pub const fn status(&self) -> &JobStatus {
        &self.status
    }

    /// How the last checkpoints went.
    #[must_use]
    pub const fn history(&self) -> &Arc<CheckpointHistory> {
        &self.history
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Tick => {}
            Event::StoreReply { id, reply } => self.on_store_reply(id, reply),
            Event::Message { session, message } => self.on_message(session, message),
            Event::SessionClosed { session } => self.on_session_closed(session),
            Event::Command(command) => self.on_command(command),
            Event::Committed { id, outcomes } => self.on_committed(id, outcomes),
            Event::LeftoversAborted { id, failure } => self.on_leftovers_aborted(id, failure),
            Event::Lives(lives) => self.on_lives(lives),
        }
    }

    /// Whatever time or a changed condition makes due.
    fn advance(&mut self) {
        for running in self.operations.take_due(self.now) {
            self.start(running);
        }
        let steps: [fn(&mut Self); 12] = [
            Self::tick_journal,
            Self::tick_savepoints,
            Self::tick_task_managers,
            Self::check_deployment,
            Self::move_from_leaving,
            Self::finish_when_all_have,
            Self::tick_coordinator,
            Self::deploy_when_ready,
            Self::sweep_when_due,
            Self::tick_commits,
            Self::conclude_end,
            Self::exit_when_done,
        ];
        for step in steps {
            if !self.is_over() {
                step(self);
            }
        }
    }

    const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn send(&mut self, session: SessionId, message: ToTaskManager) {
        self.actions.push(Action::Send { session, message });
    }

    fn close(&mut self, session: SessionId) {
        self.actions.push(Action::Close { session });
    }

    fn store(&mut self, purpose: Purpose, operation: StoreOperation) {
        self.start(Running { purpose, operation, failures: 0 });
    }

    fn start(&mut self, running: Running) {
        let operation = running.operation.clone();
        let id = self.operations.start(running);
        self.actions.push(Action::Store { id, operation });
    }

    /// The store did not answer: the same again after a pause, for as long as it takes (F2).
    fn store_later(&mut self, purpose: Purpose, operation: StoreOperation, failure: &StoreFailure) {
        self.note_store_failure(failure);
        self.wait_for_store(purpose, operation);
    }

    fn wait_for_store(&mut self, purpose: Purpose, operation: StoreOperation) {
        self.store_failures += 1;
        let pause = backoff(self.store_failures, TimeSpan(200), TimeSpan::from_secs(10), &mut *self.random);
        self.operations.wait(self.now.plus(pause), Running { purpose, operation, failures: 0 });
    }

    fn on_store_reply(&mut self, id: OperationId, reply: StoreReply) {
        let Some(running) = self.operations.take(id) else { return };
        if running.purpose.is_background() {
            return self.on_background(running, reply);
        }
        match running.purpose {
            Purpose::ReadLedger => self.on_ledger_read(reply),
            Purpose::Confirm => self.on_confirm_reply(reply),
            Purpose::NameSuccessor => self.on_successor_named(reply),
            Purpose::Append => self.on_append_reply(reply),
            Purpose::Head(number) => self.on_head_reply(number, reply),
            Purpose::LoadMetadata => self.on_metadata_loaded(reply),
            Purpose::LoadHandles => self.on_handles_loaded(reply),
            Purpose::LoadTakenHandles => self.on_taken_handles_loaded(reply),
            Purpose::ReadForeignLedger => self.on_foreign_ledger_read(reply),
            Purpose::TakeOver => self.on_takeover_reply(reply),
            Purpose::ConfirmTakeover => self.on_takeover_confirmed(reply),
            Purpose::WriteMetadata(id) => self.on_metadata_written(id, reply),
            Purpose::ReadMetadata(id) => self.on_metadata_read_back(id, reply),
            Purpose::ListDead
            | Purpose::SweepSavepoints(_)
            | Purpose::ListShared
            | Purpose::ReadFiles(_)
            | Purpose::Sweep
            | Purpose::SweepUploads(_)
            | Purpose::ListSameName
            | Purpose::Delete(_)
            | Purpose::Abort(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
