//! The facts that a plan is made of: plain data, read by `observe`, taken from nowhere else.

use crate::plan::ObjectIdentity;
use sluice_crds::{DeletionSpec, StabilitySpec, StopCause, StreamJobSpec, StreamJobState, UpgradeSpec, UsedRestore};
use sluice_protocol::failure::ExitRecord;
use sluice_protocol::job_master::Directive;
use sluice_protocol::options::DesiredState;
use sluice_protocol::restart::FailureCounts;
use sluice_protocol::status::{CheckpointInfo, ForeignSnapshotStatus, JobStatus};
use sluice_protocol::{Attempt, Generation, Timestamp};
use sluice_rpc::tls::CertificateProblem;

/// Everything that decides what happens to one StreamJob.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// When they were read.
    pub now: Timestamp,
    /// The StreamJob's name.
    pub name: String,
    /// The job's directory below its checkpoint storage (N1).
    pub directory: String,
    /// Image of the job's pods when its spec names none.
    pub default_image: String,
    /// metadata.generation of its spec.
    pub spec_generation: i64,
    /// Whether it should run.
    pub desired: DesiredState,
    /// The spec that would run, frozen: SQL inlined, desired state left out; or why there is none.
    pub program: Result<Program, Rejection>,
    /// The spec of the revision that runs, from its ConfigMap; `None` when that is gone or there is no revision.
    pub frozen: Option<StreamJobSpec>,
    /// Why it is not known although there is a revision.
    pub frozen_problem: Option<Rejection>,
    /// What status remembers.
    pub memory: Memory,
    /// The spec of the revision that was stable last, from its ConfigMap.
    pub stable: Option<StreamJobSpec>,
    /// The spec that was given up for it, likewise.
    pub given_up: Option<StreamJobSpec>,
    /// What the spec says of changes and of the end; obeyed also where the rest of it cannot run.
    pub lifecycle: Lifecycle,
    /// Whether the StreamJob is being deleted.
    pub deleting: bool,
    /// Whether its namespace is being deleted as well: no pod can be made there.
    pub namespace_goes: bool,
    /// Whether it carries the controller's finalizer.
    pub has_finalizer: bool,
    /// The last told state, with the reason of its Degraded condition and its message.
    pub told: Told,
    /// The job's pods.
    pub pods: Vec<PodFacts>,
    /// Savepoints that are to be removed, the oldest wish first.
    pub disposals: Vec<WantedDisposal>,
    /// The ConfigMaps of this job's revisions.
    pub programs: Vec<ObjectIdentity>,
    /// The generation that the Service selects; `None` without a Service.
    pub service_generation: Option<u64>,
    /// What the JobManager of `memory.generation` reported last.
    pub report: Option<JobStatus>,
    /// Whether its stream is up.
    pub connected: bool,
    /// Since when its stream is down, having been up.
    pub unreachable_since: Option<Timestamp>,
    /// Since when this controller tries to hear the JobManager at its present address.
    pub tried_since: Option<Timestamp>,
    /// Why the stream could not be opened when it was last tried.
    pub stream_problem: Option<StreamProblem>,
    /// Whether the controller has lost most of its streams at once: then it is not the JobManagers that are at fault.
    pub mostly_unreachable: bool,
    /// Since when this controller leads: of what was before it knows only what status says.
    pub leading_since: Timestamp,
}

/// Why a status stream could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamProblem {
    /// What is wrong with a certificate, where it is that.
    pub certificate: Option<CertificateProblem>,
    /// For people.
    pub message: String,
}

/// The reason where the ConfigMap of a frozen program is gone.
pub const PROGRAM_MISSING: &str = "ProgramMissing";

/// What a spec says of changes and of the end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lifecycle {
    /// How a change is carried out.
    pub upgrade: UpgradeSpec,
    /// When it counts as good.
    pub stability: StabilitySpec,
    /// What a deletion waits for.
    pub deletion: DeletionSpec,
}

/// A frozen spec and the name of the ConfigMap that holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// The spec.
    pub spec: StreamJobSpec,
    /// The ConfigMap.
    pub config_map: String,
}

/// Why a spec cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// CamelCase.
    pub reason: String,
    /// Where, what is wrong, what to do.
    pub message: String,
}

/// What status says now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// State.
    pub state: Option<StreamJobState>,
    /// Reason of the condition that explains the state.
    pub reason: String,
    /// Message.
    pub message: String,
    /// The newest of the failures.
    pub failure: Option<String>,
    /// The metadata.generation it was told for.
    pub observed_generation: i64,
    /// The generation of the JobManager that it was told of.
    pub generation: Generation,
    /// Whether it was told to be ready.
    pub ready: bool,
    /// What was told to be wrong.
    pub degraded: Option<Rejection>,
}

/// What must survive a crash of the controller (C2): written to status before it is acted on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    /// Generation of the JobManager; 0 before the first.
    pub generation: Generation,
    /// Number of the effective spec; 0 before the first.
    pub revision: u64,
    /// The newest revision whose tasks were deployed.
    pub started_revision: u64,
    /// The revision's ConfigMap.
    pub program: String,
    /// What the revision was told to start from.
    pub directive: Option<Directive>,
    /// uid of the generation's JobManager pod, once it exists.
    pub job_manager_pod: Option<String>,
    /// The lowest TaskManager index that is free in the generation.
    pub next_task_manager: u32,
    /// Failures under this revision.
    pub failures: FailureCounts,
    /// When the next generation may start.
    pub next_restart_at: Option<Timestamp>,
    /// The ConfigMap that the generation's JobManager was started with.
    pub deployed_program: String,
    /// The stop under way.
    pub stop: Option<Stop>,
    /// The helper that is the current generation.
    pub helper: Option<Helper>,
    /// Savepoints to stop with that were asked for under the revision.
    pub savepoint_requests: u32,
    /// The savepoint that the job was stopped with, until it starts again.
    pub stopped_with: Option<String>,
    /// What `restore` of earlier specs said that the job has started from.
    pub used_restores: Vec<UsedRestore>,
    /// The change that waits.
    pub held: Option<Held>,
    /// The revision's trial, until it is stable.
    pub trial: Option<Trial>,
    /// The revision that was stable last.
    pub stable: Option<Stable>,
    /// What was given up for it.
    pub rolled_back: Option<GivenUp>,
    /// The last ledger entry known.
    pub ledger_entry: u64,
    /// The last completed checkpoint.
    pub last_checkpoint: Option<CheckpointInfo>,
    /// What the last attempt was restored from.
    pub restored_from: Option<CheckpointInfo>,
    /// What the job was started from and does not own.
    pub foreign_snapshot: Option<ForeignSnapshotStatus>,
}

impl Memory {
    /// Whether decisions rest on a difference between the two: it is written before anything is done. Where the
    /// ledger and its checkpoints are is learnt again from the JobManager, so that may wait.
    #[must_use]
    pub fn decides_like(&self, other: &Self) -> bool {
        let without_progress = |memory: &Self| Self {
            ledger_entry: 0,
            last_checkpoint: None,
            restored_from: None,
            foreign_snapshot: None,
            ..memory.clone()
        };
        without_progress(self) == without_progress(other)
    }
}

/// A stop, from the decision to the end of the JobManager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// When it was decided.
    pub since: Timestamp,
    /// What for.
    pub cause: StopCause,
    /// Id of the request for the savepoint to stop with; `None`: with a last checkpoint.
    pub savepoint_request: Option<String>,
    /// The savepoint's directory, once it is there.
    pub savepoint: Option<String>,
}

/// A JobManager that runs no task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Helper {
    /// When the first one for its task was decided on.
    pub since: Timestamp,
    /// Pods so far.
    pub tries: u32,
    /// What it does.
    pub task: HelperTask,
}

/// What a helper does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelperTask {
    /// It ends the job in its ledger (L6).
    Close,
    /// It removes a savepoint.
    Dispose(Disposal),
}

/// A savepoint that a helper removes, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disposal {
    /// uid of the Savepoint object.
    pub savepoint: String,
    /// Its directory.
    pub path: String,
    /// How it ended; the reason is the exit record's.
    pub outcome: Option<Rejection>,
}

/// A Savepoint object that is being deleted, and whose files are to go with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedDisposal {
    /// Its uid.
    pub savepoint: String,
    /// Where they are.
    pub path: String,
    /// It goes without them then.
    pub deadline: Timestamp,
}

/// A change that could not be carried out and waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What names the change.
    pub program: String,
    /// CamelCase.
    pub reason: String,
    /// Why, and what to do.
    pub message: String,
    /// When it is tried again.
    pub retry_at: Timestamp,
    /// Tries so far.
    pub tries: u32,
}

/// A revision that is not stable yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trial {
    /// When its first generation was started.
    pub since: Timestamp,
    /// The snapshot that it was started from.
    pub snapshot: Option<String>,
    /// Generation of the run that is watched.
    pub generation: Generation,
    /// Attempt of the run that is watched.
    pub attempt: Attempt,
    /// Checkpoints that the generation had completed before.
    pub checkpoints_before: u64,
}

/// A revision that was stable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stable {
    /// Its number.
    pub revision: u64,
    /// Its ConfigMap.
    pub program: String,
}

/// A revision that was given up for the stable one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenUp {
    /// Its number.
    pub revision: u64,
    /// Its ConfigMap.
    pub program: String,
    /// CamelCase.
    pub reason: String,
    /// Why, and which output is written again.
    pub message: String,
    /// When.
    pub at: Timestamp,
    /// metadata.generation of the spec then.
    pub spec_generation: i64,
}

/// What a pod of the job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The JobManager.
    JobManager,
    /// The TaskManager of this index.
    TaskManager(u32),
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Name.
    pub name: String,
    /// uid.
    pub uid: String,
    /// The generation it belongs to.
    pub generation: Generation,
    /// What it is for.
    pub role: Role,
    /// The image of its main container.
    pub image: String,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// Whether its process speaks mTLS.
    pub tls: bool,
    /// Whether somebody deletes it.
    pub terminating: bool,
    /// How it ended, when it has.
    pub ended: Option<PodEnd>,
    /// Whether other containers run on although it has ended.
    pub lingers: bool,
    /// Whether its main container has started.
    pub started: bool,
    /// Since when it is ready.
    pub ready_since: Option<Timestamp>,
    /// Since when it has not been ready, having been it before.
    pub unready_since: Option<Timestamp>,
    /// Whether it is not ready because its node is not, whatever the pod itself last said.
    pub on_lost_node: bool,
    /// Whether it was sent away by a drain, a taint or the like: no fault of the job's (F1).
    pub drained: bool,
    /// What keeps it from starting.
    pub problem: Option<Rejection>,
    /// When it was made.
    pub created_at: Timestamp,
}

impl PodFacts {
    /// Whether it runs or may yet.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.ended.is_none() && !self.terminating
    }
}

/// How a pod ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEnd {
    /// What its process said, when it could.
    pub record: Option<ExitRecord>,
    /// What the kubelet says: `OOMKilled (exit code 137)`.
    pub account: String,
    /// The last lines of its log, where its process said nothing itself.
    pub last_log_lines: Option<String>,
    /// When.
    pub at: Timestamp,
}
