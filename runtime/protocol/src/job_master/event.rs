//! What a JobMaster is fed, and what it answers with.

use crate::commit::{CommitHandle, CommitId, CommitOutcome, Leftovers, SinkLife};
use crate::failure::ExitRecord;
use crate::ledger::SavepointKind;
use crate::message::{FromTaskManager, ToTaskManager};
use crate::options::{CheckpointingSpec, RestartStrategySpec};
use crate::store::{OperationId, StoreOperation, StoreReply};
use crate::time::TimeSpan;
use serde::{Deserialize, Serialize};

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
    /// The answer to [`Action::Commit`]; each gets exactly one.
    Committed {
        /// Which.
        id: CommitId,
        /// What became of each handle, in their order.
        outcomes: Vec<CommitOutcome>,
    },
    /// The answer to [`Action::AbortLeftovers`]; each gets exactly one.
    LeftoversAborted {
        /// Which.
        id: CommitId,
        /// Why not all of it could be aborted.
        failure: Option<String>,
    },
    /// How long the targets of the program's sinks keep what is staged (S4), once all have answered.
    Lives(Vec<SinkLife>),
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
    /// Let go of what upgrades went on from: the revision is stable (K7).
    Release,
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
    /// Commit these transactions of sinks, by the sinks' own code, and feed back one [`Event::Committed`]. A commit that was
    /// done before is done (S6).
    Commit {
        /// Names the reply.
        id: CommitId,
        /// Each is in a complete checkpoint.
        handles: Vec<CommitHandle>,
    },
    /// Abort what older attempts of this job left open in its transactional sinks, and feed back one
    /// [`Event::LeftoversAborted`] (S3).
    AbortLeftovers {
        /// Names the reply.
        id: CommitId,
        /// What is meant.
        leftovers: Leftovers,
    },
    /// End the process after what was sent. Nothing follows.
    Exit(ExitRecord),
}
