//! What class a change of the spec is (docs/operator.md, the table). Pure, on effective values: fields that a later
//! version adds with a default are equal on both sides.

use sluice_crds::{StreamJobSpec, TaskManagerSpec};
use sluice_protocol::options::CheckpointingSpec;

/// A class; a change of several fields is of the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Nothing has to happen.
    Nothing,
    /// The running job takes it over.
    InPlace,
    /// The job is spread over another number of subtasks or slots.
    Rescale,
    /// The job is redeployed by its upgrade mode.
    Upgrade,
    /// The job starts from another place, as asked.
    Restore,
}

/// The class of the step from the spec that runs to the one that is wanted. Destructured without `..`: a field that has
/// no class does not compile.
#[must_use]
pub fn classify(runs: &StreamJobSpec, wanted: &StreamJobSpec) -> Change {
    let StreamJobSpec {
        image,
        image_pull_policy,
        program,
        parallelism,
        max_parallelism,
        state: _,
        upgrade: _,
        stability: _,
        deletion: _,
        savepoints: _,
        restart_nonce,
        restore,
        checkpointing,
        state_backend,
        restart_strategy,
        job_manager,
        task_manager,
    } = wanted;
    let TaskManagerSpec { slots, resources, pod_template, heartbeat_timeout } = task_manager;
    let place = |spec: &StreamJobSpec| spec.restore.as_ref().map(|restore| (restore.from.clone(), restore.nonce));
    if restore.is_some() && place(runs) != place(wanted) {
        return Change::Restore;
    }
    let (in_place, by_upgrade) = classify_checkpointing(runs.checkpointing.as_ref(), checkpointing.as_ref());
    let redeploys = by_upgrade
        || (image, program, max_parallelism) != (&runs.image, &runs.program, &runs.max_parallelism)
        || (state_backend, job_manager) != (&runs.state_backend, &runs.job_manager)
        || (resources, pod_template) != (&runs.task_manager.resources, &runs.task_manager.pod_template)
        || *heartbeat_timeout != runs.task_manager.heartbeat_timeout
        || (restart_nonce.is_some() && *restart_nonce != runs.restart_nonce);
    if redeploys {
        return Change::Upgrade;
    }
    if (*parallelism, *slots) != (runs.parallelism, runs.task_manager.slots) {
        return Change::Rescale;
    }
    let differs = (restart_strategy, image_pull_policy) != (&runs.restart_strategy, &runs.image_pull_policy);
    if in_place || differs { Change::InPlace } else { Change::Nothing }
}

/// Whether it differs in what a running job takes over, and whether in anything else.
fn classify_checkpointing(runs: Option<&CheckpointingSpec>, wanted: Option<&CheckpointingSpec>) -> (bool, bool) {
    match (runs, wanted) {
        (None, None) => (false, false),
        (Some(runs), Some(wanted)) => (runs != wanted, runs.reconfigured(wanted) != *wanted),
        _ => (false, true),
    }
}
