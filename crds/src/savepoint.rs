//! A Savepoint: one snapshot that somebody asked of a StreamJob, and what became of it (K4).
//!
//! The controller is the only writer of the status. The snapshot itself lies on the job's storage and is not deleted
//! with the object unless `disposeOnDelete` says so.

#![allow(clippy::duplicated_attributes, reason = "every printer column has a name, a type and a path")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_protocol::TimeSpan;

/// Which snapshot to take of which job.
#[derive(CustomResource, Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "Savepoint",
    plural = "savepoints",
    shortname = "sp",
    category = "sluice",
    namespaced,
    status = "SavepointStatus",
    derive = "PartialEq",
    doc = "A snapshot of a StreamJob that somebody asked for, and what became of it.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Job", type_ = "string", json_path = ".spec.job", description = "The StreamJob"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind", description = "Savepoint or Checkpoint"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "How far it is"),
    printcolumn(name = "Path", type_ = "string", json_path = ".status.path", description = "Where it lies"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.size", description = "Its state"),
    printcolumn(
        name = "Took",
        type_ = "string",
        json_path = ".status.duration",
        description = "Time from its trigger to its completion"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        description = "What it waits for, or why there is none",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SavepointSpec {
    /// Name of the StreamJob, in the same namespace.
    pub job: String,
    /// Savepoint: self-contained, kept until it is disposed of. Checkpoint: one more of the job's own checkpoints, kept and
    /// removed as those are.
    #[serde(default)]
    pub kind: SnapshotKind,
    /// `s3://bucket/path` or `file:///path` below which a savepoint goes; the job's checkpointing.savepointStorage when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// How long it may take, and how long the job may take to run before. Past that it has failed, and the job runs on.
    #[serde(default = "default_timeout")]
    pub timeout: TimeSpan,
    /// How often it is tried again after a failure that may pass.
    #[serde(default = "default_backoff_limit")]
    pub backoff_limit: u32,
    /// Whether the savepoint's files are removed when this object is deleted.
    #[serde(default)]
    pub dispose_on_delete: bool,
}

/// What is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum SnapshotKind {
    /// A savepoint.
    #[default]
    Savepoint,
    /// A checkpoint.
    Checkpoint,
}

/// What became of a Savepoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SavepointStatus {
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<SavepointPhase>,
    /// What it waits for, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The metadata.generation that was acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// uid of the StreamJob that it was first seen with: another one of the same name is another job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_uid: Option<String>,
    /// Names the request at the JobManager and in the job's ledger: repeated, it is carried out once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Where it lies: what a StreamJob's restore.from takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Bytes of state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// When it was triggered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggered_at: Option<MicroTime>,
    /// When it was complete, or given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<MicroTime>,
    /// Time between the two, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Tries that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_at: Option<MicroTime>,
    /// Complete and Failed: `kubectl wait --for=condition=Complete savepoint/NAME`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// How far a Savepoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum SavepointPhase {
    /// The job does not run yet, or a try that failed is about to be repeated.
    #[default]
    Pending,
    /// The JobManager was asked.
    InProgress,
    /// It is there.
    Completed,
    /// There is none.
    Failed,
    /// There is none, since the job is gone or has ended.
    Abandoned,
}

impl SavepointPhase {
    /// Whether nothing follows.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Abandoned)
    }
}

const fn default_timeout() -> TimeSpan {
    TimeSpan::from_secs(600)
}

const fn default_backoff_limit() -> u32 {
    3
}
