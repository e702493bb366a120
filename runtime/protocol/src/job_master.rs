//! The JobManager's decisions: a state machine that is fed events and time, and answers with actions.
//!
//! It owns the ledger's rules (L1-L7), checkpoint coordination (K1-K6), slots and deployment, heartbeats, restarts
//! (F1, F2). It does no I/O: whoever drives it (the JobManager process, the local runner, the simulation)
//! executes the [`Action`]s and feeds back what happened.

use crate::failure::ExitRecord;
use crate::graph::JobGraph;
use crate::ids::{Generation, JobId, ProcessId};
use crate::message::{FromTaskManager, ToTaskManager};
use crate::options::JobOptions;
use crate::restart::FailureCounts;
use crate::store::{OperationId, StoreOperation, StoreReply};
use serde::{Deserialize, Serialize};

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
    /// Trigger a checkpoint now.
    TriggerCheckpoint,
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
