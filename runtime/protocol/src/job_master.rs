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
//!    ([`crate::ledger::decide::decide_start`]) → load the snapshot ([`crate::metadata::assign_state`]) → append
//!    `Started` ([`crate::ledger::append`]) → LIST behind it.
//! 2. *Attempt* (`attempts`): registered slots, the recorded entry and the loaded state → `Deploy` → every
//!    `TaskRunning` → running.
//! 3. *Checkpoint* (`checkpoints`): [`crate::coordinator`] triggers → `Acknowledge` of all → `_metadata` → ledger
//!    entry → `CheckpointCompleted`, displaced ones are removed (`cleanup`).
//! 4. *Failure* (`attempts`): a failed task, a lost TaskManager, too many failed checkpoints → [`crate::restart`]
//!    decides → `Restarted` is appended, tasks are cancelled → flow 2, or flow 5 with `Failed`.
//! 5. *End* (`ending`): all sources finished, a command, a spent policy, a user's error → a last checkpoint where
//!    there is one → the terminal entry → `Shutdown` → exit. Superseded: exit at once, touching nothing.

mod attempts;
mod checkpoints;
mod cleanup;
mod ending;
mod execution;
mod files;
mod journal;
mod operations;
mod reconfigure;
mod reporting;
mod savepoints;
mod start;
mod task_managers;

use crate::RandomSource;
use crate::coordinator::CheckpointCoordinator;
use crate::failure::{ExitRecord, Failure};
use crate::graph::JobGraph;
use crate::history::CheckpointHistory;
use crate::ids::{Attempt, CheckpointId, Generation, JobId, ProcessId};
use crate::ledger::append::backoff;
use crate::ledger::read::LedgerReader;
use crate::ledger::{CheckpointKey, SavepointKind};
use crate::message::{FromTaskManager, ToTaskManager};
use crate::metadata::Metadata;
use crate::options::{CheckpointingSpec, JobOptions, RestartStrategySpec};
use crate::restart::{FailureCounts, RestartPolicy};
use crate::status::{JobStatus, RequestStatus};
use crate::store::{OperationId, StoreFailure, StoreFailureKind, StoreOperation, StoreReply};
use crate::time::{TimeSpan, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use execution::Execution;
use journal::{EndKind, Journal};
use operations::{BACKGROUND_TRIES, Operations, Purpose, Running};
use start::{Loading, Restored};
use task_managers::TaskManagers;

/// Everything a JobManager knows before it has read anything.
#[derive(Debug, Clone)]
pub struct JobMasterConfig {
    /// The job.
    pub job: JobId,
    /// Its generation.
    pub generation: Generation,
    /// Its random identity.
    pub process: ProcessId,
    /// Spec revision.
    pub revision: u64,
    /// What to start from (N3).
    pub directive: Directive,
    /// The graph that the program builds.
    pub graph: JobGraph,
    /// The options.
    pub options: JobOptions,
    /// URI of the root of checkpoint storage without a trailing slash; `None` with storage `JobManager`.
    pub storage_uri: Option<String>,
    /// The store's endpoint when it passed the probe of L7 before this start; recorded in `Started`.
    pub probed: Option<String>,
    /// The failures that the controller's status holds; merged with the ledger's (F1). Empty for a local run.
    pub failures: FailureCounts,
    #[doc(hidden)]
    pub planted: Planted,
}

/// Bugs planted on purpose, so that tests can prove that they would be found. All off outside tests.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Planted {
    /// L3, L4 broken: supersession is never noticed, first entries of generations are trimmed.
    pub no_fence: bool,
    /// L2 broken: an append without a clear answer counts as failed and its number is used again.
    pub unclear_append_is_failure: bool,
    /// L2 broken: 412 of an own put is taken for another's.
    pub own_append_is_foreign: bool,
    /// N3 broken: the directive's conditions are not checked.
    pub no_directive_check: bool,
    /// K4 broken: a savepoint whose entry is under way at its deadline has failed.
    pub deadline_decides: bool,
    /// K5 broken: savepoints and unaligned checkpoints are under way together.
    pub overlapping_savepoints: bool,
    /// K6 broken: what failed checkpoints and savepoints and older generations left is kept.
    pub keeps_dead: bool,
}

/// What a start carries (N3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Directive {
    /// Spec revision and nonces, as text.
    pub id: String,
    /// m: number of the last ledger entry that the controller has seen; 0 = none.
    pub seen: u64,
    /// What to do.
    pub start: StartFrom,
}

/// The kinds of start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartFrom {
    /// The job's latest retained checkpoint, or empty where there is no ledger yet.
    Continue,
    /// The latest checkpoint, only while the ledger ends exactly at `seen`.
    ResumeLatest,
    /// This snapshot, only while the ledger ends exactly at `seen`.
    #[serde(rename_all = "camelCase")]
    Path {
        /// URI of a checkpoint, savepoint or job directory, or of a `_metadata`.
        from: String,
        /// Drop state that no operator takes.
        allow_non_restored_state: bool,
    },
    /// Nothing (stateless), only while the ledger ends exactly at `seen`.
    Empty,
}

/// One connection of a TaskManager; a TaskManager that reconnects has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// Time passed: fed when [`JobMaster::next_wakeup`] is due, at least.
    Tick,
    /// The answer to [`Action::Store`]; each gets exactly one, after a deadline [`StoreReply::Failed`].
    StoreReply {
        /// Which.
        id: OperationId,
        /// The answer.
        reply: StoreReply,
    },
    /// A message from a TaskManager; the first of a session is its registration.
    Message {
        /// From where.
        session: SessionId,
        /// What.
        message: FromTaskManager,
    },
    /// The connection is gone.
    SessionClosed {
        /// Which.
        session: SessionId,
    },
    /// Somebody asks for something.
    Command(Command),
}

/// What the controller or a person asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Command {
    /// End with `Stopped`: a last checkpoint where there can be one, then no more (L6).
    Stop,
    /// End with `Cancelled`.
    Cancel,
    /// Take a checkpoint now.
    TriggerCheckpoint {
        /// Names the request in the status.
        id: String,
    },
    /// Take a savepoint.
    Savepoint(SavepointRequest),
    /// Remove a savepoint.
    Dispose {
        /// Names the request in the status.
        id: String,
        /// URI of its directory or its `_metadata`.
        path: String,
    },
    /// Obey other options from now on, without a restart.
    Reconfigure(Box<Reconfiguration>),
}

/// Options that a running job takes over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reconfiguration {
    /// Names them in the status.
    pub id: String,
    /// How checkpoints are taken and kept; what a running job cannot take over of it is left as it is
    /// ([`crate::options::CheckpointingSpec::reconfigured`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpointing: Option<CheckpointingSpec>,
    /// What happens after the next failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_strategy: Option<RestartStrategySpec>,
}

/// A savepoint that is asked for (K4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavepointRequest {
    /// Names the request: repeated, it is not carried out twice, also by a later JobManager.
    pub id: String,
    /// What for.
    pub kind: SavepointKind,
    /// URI below which it goes; `checkpointing.savepointStorage` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// How long it may take, from the moment the request is taken.
    pub timeout: TimeSpan,
}

/// What to do.
#[derive(Debug, Clone)]
pub enum Action {
    /// Execute and feed back one [`Event::StoreReply`].
    Store {
        /// Names the reply.
        id: OperationId,
        /// What.
        operation: StoreOperation,
    },
    /// Tell a TaskManager; lost silently when the session is gone.
    Send {
        /// To whom.
        session: SessionId,
        /// What.
        message: ToTaskManager,
    },
    /// Close a session after what was sent.
    Close {
        /// Which.
        session: SessionId,
    },
    /// End the process after what was sent. Nothing follows.
    Exit(ExitRecord),
}

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
    /// Failed or dropped checkpoints of this generation, to be removed once a later one is complete (K6).
    dead: Vec<CheckpointKey>,
    /// Directories of savepoints that did not come to be, likewise.
    dead_savepoints: Vec<String>,
    /// Where savepoints of this job were asked to go.
    savepoint_roots: BTreeSet<String>,
    history: Arc<CheckpointHistory>,
    /// Checkpoints that were asked for.
    asked: Vec<savepoints::AskedCheckpoint>,
    /// Answers that no ledger entry holds.
    answers: Vec<RequestStatus>,
    last_savepoint_failure: Option<String>,
    /// Commands that came before the ledger was taken.
    early: Vec<Command>,
    /// When dead objects are next looked for (K6).
    next_sweep: Option<Timestamp>,
    files: files::Files,
    /// The latest snapshot's description by its directory, so that a restart in place need not read it.
    cached: Option<(String, Metadata)>,
    loading: Option<Loading>,
    restored: Option<Restored>,
    /// The snapshot that was missing when the ledger was last read.
    missing: Option<String>,
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
            dead: Vec::new(),
            dead_savepoints: Vec::new(),
            savepoint_roots: BTreeSet::new(),
            history: Arc::default(),
            asked: Vec::new(),
            answers: Vec::new(),
            last_savepoint_failure: None,
            early: Vec::new(),
            next_sweep: None,
            files: files::Files::default(),
            cached: None,
            loading: None,
            restored: None,
            missing: None,
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
            self.next_sweep,
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
        }
    }

    /// Whatever time or a changed condition makes due.
    fn advance(&mut self) {
        for running in self.operations.take_due(self.now) {
            self.start(running);
        }
        let steps: [fn(&mut Self); 9] = [
            Self::tick_journal,
            Self::tick_savepoints,
            Self::tick_task_managers,
            Self::check_deployment,
            Self::finish_when_all_have,
            Self::tick_coordinator,
            Self::deploy_when_ready,
            Self::sweep_when_due,
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
        self.note_store_failure_again(failure);
        let pause = backoff(self.store_failures, TimeSpan(200), TimeSpan::from_secs(10), &mut *self.random);
        self.operations.wait(self.now.plus(pause), Running { purpose, operation, failures: 0 });
    }

    fn note_store_failure_again(&mut self, failure: &StoreFailure) {
        let failures = self.store_failures + 1;
        self.note_store_failure(failure);
        self.store_failures = failures;
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
            Purpose::ReadForeignLedger => self.on_foreign_ledger_read(reply),
            Purpose::WriteMetadata(id) => self.on_metadata_written(id, reply),
            Purpose::ReadMetadata(id) => self.on_metadata_read_back(id, reply),
            Purpose::ListDead(_)
            | Purpose::ListDeadFiles
            | Purpose::SweepSavepoints(_)
            | Purpose::ListRemains
            | Purpose::ListShared
            | Purpose::ReadFiles(_)
            | Purpose::Sweep
            | Purpose::SweepUploads
            | Purpose::ListSameName
            | Purpose::Delete(_) => {}
        }
    }

    fn on_background(&mut self, running: Running, reply: StoreReply) {
        let StoreReply::Failed(failure) = reply else {
            return self.on_background_reply(&running.purpose, reply);
        };
        // What is not allowed now will not be in a moment: the next sweep asks again.
        let may_pass = failure.kind == StoreFailureKind::Unreachable;
        let failures = running.failures + 1;
        if may_pass && failures < BACKGROUND_TRIES {
            let pause = backoff(failures, TimeSpan::from_secs(1), TimeSpan::from_secs(60), &mut *self.random);
            self.operations.wait(self.now.plus(pause), Running { failures, ..running });
        } else if let Purpose::ReadFiles(key) = running.purpose {
            self.on_files_unreadable(key);
        }
    }
}

#[cfg(test)]
mod tests;
