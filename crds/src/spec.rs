//! The spec of a StreamJob: what the user writes (design §8).
//!
//! Unknown fields are refused. Defaults stand here and, by the schema, in the API server.

#![allow(clippy::duplicated_attributes, reason = "every printer column has a name, a type and a path")]

use crate::lifecycle::{DeletionSpec, StabilitySpec, UpgradeSpec};
use crate::periodic::PeriodicSavepointsSpec;
use crate::status::StreamJobStatus;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluice_protocol::TimeSpan;
use sluice_protocol::options::{
    CheckpointingSpec, DesiredState, JobOptions, ProgramSpec, RestartStrategySpec, RestoreSpec, StateBackend,
};

/// What a streaming job computes and how it runs.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "StreamJob",
    plural = "streamjobs",
    shortname = "sj",
    category = "sluice",
    namespaced,
    status = "StreamJobStatus",
    derive = "PartialEq",
    doc = "A streaming job: a program that reads, computes with state and writes, with checkpoints.",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state", description = "What the job does"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether all tasks run"
    ),
    printcolumn(
        name = "Restarts",
        type_ = "integer",
        json_path = ".status.restarts",
        description = "Restarts under this revision of the spec"
    ),
    printcolumn(
        name = "Checkpoint",
        type_ = "integer",
        json_path = ".status.lastCheckpoint.id",
        description = "Id of the last completed checkpoint"
    ),
    printcolumn(
        name = "Checkpointed",
        type_ = "date",
        json_path = ".status.lastCheckpoint.completedAt",
        description = "Time since the last completed checkpoint"
    ),
    printcolumn(
        name = "Revision",
        type_ = "integer",
        json_path = ".status.revision",
        description = "Number of the effective spec that runs"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        description = "What the job waits for, or why it ended",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamJobSpec {
    /// Image of the job's pods; the operator's runtime image when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When the kubelet pulls the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// What the job computes.
    pub program: ProgramSpec,
    /// Subtasks per vertex.
    #[serde(default = "default_parallelism")]
    pub parallelism: u32,
    /// Number of key groups: the highest parallelism that the job's state can ever be spread over.
    #[serde(default = "default_max_parallelism")]
    pub max_parallelism: u32,
    /// Whether the job should run.
    #[serde(default)]
    pub state: DesiredState,
    /// How the job goes from one spec to another.
    #[serde(default)]
    pub upgrade: UpgradeSpec,
    /// When a spec counts as good, and what happens when it does not.
    #[serde(default)]
    pub stability: StabilitySpec,
    /// What happens before a deleted StreamJob is gone.
    #[serde(default)]
    pub deletion: DeletionSpec,
    /// Another value restarts the job, as a change of its program would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_nonce: Option<i64>,
    /// What a start restores instead of the job's own latest checkpoint; acted on when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreSpec>,
    /// How checkpoints are taken and kept; none are taken when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpointing: Option<CheckpointingSpec>,
    /// Where state lives while the job runs.
    #[serde(default)]
    pub state_backend: StateBackend,
    /// Savepoints that are taken by themselves. Changing them restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub savepoints: Option<PeriodicSavepointsSpec>,
    /// What happens after a failure. Default: with checkpointing fixedDelay, 2147483647 attempts, 1s; else none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_strategy: Option<RestartStrategySpec>,
    /// The JobManager's pod.
    #[serde(default)]
    pub job_manager: JobManagerSpec,
    /// The TaskManagers' pods.
    #[serde(default)]
    pub task_manager: TaskManagerSpec,
}

/// When the kubelet pulls an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// At every start.
    Always,
    /// When the node does not have it.
    IfNotPresent,
    /// Never: the node must have it.
    Never,
}

impl ImagePullPolicy {
    /// The word that a container's `imagePullPolicy` takes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// The JobManager's pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobManagerSpec {
    /// CPU and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// A PodTemplateSpec merged into the pod; the container to change is named `jobmanager`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<Value>,
}

/// The TaskManagers' pods: `ceil(parallelism / slots)` of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskManagerSpec {
    /// Subtasks per vertex that one TaskManager runs.
    #[serde(default = "default_slots")]
    pub slots: u32,
    /// CPU and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// A PodTemplateSpec merged into the pods; the container to change is named `taskmanager`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<Value>,
    /// Silence after which a TaskManager counts as lost.
    #[serde(default = "default_heartbeat_timeout")]
    pub heartbeat_timeout: TimeSpan,
}

impl Default for TaskManagerSpec {
    fn default() -> Self {
        Self {
            slots: default_slots(),
            resources: None,
            pod_template: None,
            heartbeat_timeout: default_heartbeat_timeout(),
        }
    }
}

impl StreamJobSpec {
    /// The options that every process of the job obeys. Meaningful for a spec that [`crate::validate`] passed.
    #[must_use]
    pub fn job_options(&self) -> JobOptions {
        JobOptions {
            parallelism: self.parallelism,
            max_parallelism: u16::try_from(self.max_parallelism).unwrap_or(u16::MAX),
            slots: self.task_manager.slots,
            checkpointing: self.checkpointing.clone(),
            restart_strategy: self.restart_strategy.clone(),
            state_backend: self.state_backend,
            heartbeat_timeout: self.task_manager.heartbeat_timeout,
            ..JobOptions::default()
        }
    }

    /// How many TaskManager pods the job needs: `ceil(parallelism / slots)`.
    #[must_use]
    pub fn task_manager_count(&self) -> u32 {
        self.parallelism.div_ceil(self.task_manager.slots.max(1))
    }
}

const fn default_parallelism() -> u32 {
    1
}

const fn default_max_parallelism() -> u32 {
    128
}

const fn default_slots() -> u32 {
    1
}

const fn default_heartbeat_timeout() -> TimeSpan {
    TimeSpan::from_secs(10)
}
