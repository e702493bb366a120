//! The Kubernetes types of Sluice: [`StreamJob`] and [`Savepoint`], and how a manifest is read and judged.
//!
//! Owns the manifest's shape: spec and status types, the CRD's schema with its CEL rules, the strict reader for
//! `sluice run` and for the processes of a job, and the checks on effective values. It knows no Kubernetes
//! client; the options that the runtime obeys are `sluice_protocol::options`' own types.
//!
//! The map:
//! - [`spec`]: what the user writes. [`status`]: what the controller answers. [`savepoint`]: both, of a Savepoint.
//! - [`manifest`]: [`parse_manifest`], text to [`StreamJob`], refusing what it does not know.
//! - [`periodic`]: savepoints that a StreamJob takes by itself, [`schedule`]: when cron has it.
//! - [`validate`]: limits over effective values. [`pod_template`]: the strict reading of `podTemplate`.
//! - [`names`]: by which a job's pods are found.
//! - [`schema`]: [`all_crds`], the CustomResourceDefinitions as they are installed.

pub mod lifecycle;
pub mod manifest;
pub mod names;
pub mod periodic;
pub mod pod_template;
pub mod savepoint;
pub mod schedule;
pub mod schema;
pub mod spec;
pub mod status;
pub mod validate;

pub use lifecycle::{DeletionSpec, StabilitySpec, UpgradeFallback, UpgradeMode, UpgradeSpec};
pub use manifest::{ManifestError, parse_manifest, to_yaml};
pub use periodic::{HistoryLimit, PeriodicSavepointsSpec};
pub use savepoint::{Savepoint, SavepointPhase, SavepointSpec, SavepointStatus, SnapshotKind};
pub use schema::all_crds;
pub use spec::{JobManagerSpec, StreamJob, StreamJobSpec, TaskManagerSpec};
pub use status::{
    ForeignSnapshot, GivenUp, HeldUpgrade, HelperTask, HelperUnderWay, LastCheckpoint, StableRevision, StatusFailure,
    StopCause, StopUnderWay, StreamJobState, StreamJobStatus, Trial, UsedRestore,
};
pub use validate::{Problem, validate, validate_name, warnings};

/// The API group of every Sluice kind.
pub const GROUP: &str = "sluice.dev";
/// The served version.
pub const VERSION: &str = "v1alpha1";
