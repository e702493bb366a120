//! Names, labels and ports of a job's objects: each is made here and nowhere else, but those by which others
//! find a job's pods ([`sluice_crds::names`]).

use kube::ResourceExt;
use sluice_crds::StreamJob;
pub use sluice_crds::names::{COMPONENT_LABEL, JOB_LABEL, RPC_PORT, TLS_LABEL};
use sluice_protocol::{Generation, JobId};
use std::collections::BTreeMap;

/// On the ConfigMap of a program: the version that it had when a revision took it last.
pub const USED_ANNOTATION: &str = "sluice.dev/used-at-version";
/// Which generation a pod belongs to, and the Service selects.
pub const GENERATION_LABEL: &str = "sluice.dev/generation";
/// The index of a TaskManager pod within its generation.
pub const INDEX_LABEL: &str = "sluice.dev/index";
/// [`MANAGER`] on everything that the controller made.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Holds a StreamJob until its JobManager has ended its ledger.
pub const FINALIZER: &str = "sluice.dev/job";
/// The controller, as field manager, in labels and in events.
pub const MANAGER: &str = "sluice-controller";
/// The JobManager's component and container.
pub const JOB_MANAGER: &str = "jobmanager";
/// A TaskManager's component and container.
pub const TASK_MANAGER: &str = "taskmanager";
/// The key of a program ConfigMap.
pub const MANIFEST_KEY: &str = "job.yaml";
/// A TaskManager's port for rows.
pub const DATA_PORT: u16 = 6121;
/// The port of `/status`, `/metrics`, `/healthz` and `/readyz` of both.
pub const REST_PORT: u16 = 8081;

/// The labels of every object of a job.
#[must_use]
pub fn labels(job: &str) -> BTreeMap<String, String> {
    super::map(&[
        ("app.kubernetes.io/name", "sluice"),
        ("app.kubernetes.io/instance", job),
        (MANAGED_BY_LABEL, MANAGER),
        (JOB_LABEL, job),
    ])
}

/// Selects every object of a job.
#[must_use]
pub fn job_selector(job: &str) -> String {
    format!("{MANAGED_BY_LABEL}={MANAGER},{JOB_LABEL}={job}")
}

/// Selects the TaskManagers of a job.
#[must_use]
pub fn task_manager_selector(job: &str) -> String {
    format!("{},{COMPONENT_LABEL}={TASK_MANAGER}", job_selector(job))
}

/// The JobManager's pod.
#[must_use]
pub fn job_manager(job: &str, generation: Generation) -> String {
    format!("{job}-{generation}-jm")
}

/// A TaskManager's pod.
#[must_use]
pub fn task_manager(job: &str, generation: Generation, index: u32) -> String {
    format!("{job}-{generation}-tm-{index}")
}

/// The Service in front of the JobManager.
#[must_use]
pub fn service(job: &str) -> String {
    format!("{job}-jm")
}

/// The PodDisruptionBudget of the TaskManagers.
#[must_use]
pub fn disruption_budget(job: &str) -> String {
    format!("{job}-tm")
}

/// The Secret with the certificates of its processes.
#[must_use]
pub fn certificates(job: &str) -> String {
    format!("{job}-tls")
}

/// The ConfigMap that holds a frozen manifest.
#[must_use]
pub fn program(job: &str, hash: &str) -> String {
    format!("{job}-program-{hash}")
}

/// The job's identity (N1).
#[must_use]
pub fn job_id(job: &StreamJob) -> JobId {
    JobId { namespace: job.namespace().unwrap_or_default(), name: job.name_any(), uid: job.uid().unwrap_or_default() }
}
