//! Step 4: memory and view as a StreamJob's status, and back. Pure.
//!
//! Conditions follow the Kubernetes convention: Ready (all tasks run), Progressing (on its way to another state),
//! Degraded (something is wrong), each with the spec's generation. A transition time changes only with the status.

mod failures;
mod memory;
pub mod reason;

use crate::build::names;
use crate::facts::{Facts, Rejection};
use crate::plan::{Plan, View};
use crate::time::{from_time, to_micro_time, to_time};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_crds::{ForeignSnapshot, LastCheckpoint, StreamJob, StreamJobState, StreamJobStatus};
use sluice_protocol::status::{CheckpointInfo, ForeignSnapshotStatus};
use sluice_protocol::{TimeSpan, Timestamp};

use failures::build_failures;
use reason::{Reason, listed};

pub use memory::read_memory;

/// Condition: all tasks run.
pub const READY: &str = "Ready";
/// Condition: the job is on its way to another state. Its reason is the state's.
pub const PROGRESSING: &str = "Progressing";
/// Condition: something is wrong.
pub const DEGRADED: &str = "Degraded";

/// Characters of a message; the whole one is in the pod's log.
const MESSAGE: usize = 2_000;
/// Where only checkpoints have moved on, status is written at most this often.
const PROGRESS_EVERY: TimeSpan = TimeSpan::from_secs(5);

/// When a status must be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It is what the API server has.
    Never,
    /// Now.
    Now,
    /// Not before this time.
    At(Timestamp),
}

/// The status that a plan tells.
#[must_use]
pub fn build_status(job: &StreamJob, facts: &Facts, plan: &Plan) -> StreamJobStatus {
    let Plan { memory, view, .. } = plan;
    let some = |number: u64| (number > 0).then_some(number);
    let failed = view.state == Some(StreamJobState::Failed);
    // What is told is read again, and told again where a job rests: the same words.
    let message = listed(&view.reason, &view.message).1;
    let restarts = memory.failures.total().saturating_sub(u64::from(failed));
    let old = job.status.as_ref();
    let report = facts.report.as_ref().filter(|report| report.generation == memory.generation);
    // Of a JobManager that this replica has not heard yet, what another has heard.
    let known = old.filter(|old| facts.report.is_none() && old.generation == some(memory.generation.0));
    let attempt = report.map(|report| report.attempt.0).or_else(|| known?.attempt);
    StreamJobStatus {
        state: view.state,
        message: Some(shorten(&message)).filter(|message| !message.is_empty()),
        observed_generation: Some(facts.spec_generation),
        generation: some(memory.generation.0),
        attempt: attempt.filter(|attempt| *attempt > 0),
        revision: some(memory.revision),
        started_revision: some(memory.started_revision),
        program: Some(memory.program.clone()).filter(|name| !name.is_empty()),
        directive: memory.directive.as_ref().and_then(|directive| serde_json::to_value(directive).ok()),
        restarts: (memory.revision > 0).then_some(restarts),
        failure_counts: (memory.failures.total() > 0).then(|| memory.failures.clone()),
        ledger_entry: some(memory.ledger_entry),
        job_manager_pod: memory.job_manager_pod.clone(),
        next_task_manager: (memory.next_task_manager > 0).then_some(memory.next_task_manager),
        last_checkpoint: memory.last_checkpoint.as_ref().map(write_checkpoint),
        restored_from: memory.restored_from.as_ref().map(write_checkpoint),
        foreign_snapshot: memory.foreign_snapshot.as_ref().map(write_foreign),
        next_restart_at: memory.next_restart_at.or(view.next_restart_at).map(to_micro_time),
        waits_for_restart: memory.next_restart_at.is_some(),
        deployed_program: Some(memory.deployed_program.clone()).filter(|name| !name.is_empty()),
        stop: memory.stop.as_ref().map(memory::write_stop),
        helper: memory.helper.as_ref().map(memory::write_helper),
        savepoint_requests: (memory.savepoint_requests > 0).then_some(memory.savepoint_requests),
        stopped_with: memory.stopped_with.clone(),
        used_restores: memory.used_restores.clone(),
        held: memory.held.as_ref().map(memory::write_held),
        trial: memory.trial.as_ref().map(memory::write_trial),
        stable: memory.stable.as_ref().map(memory::write_stable),
        rolled_back: memory.rolled_back.as_ref().map(memory::write_given_up),
        parallelism: plan.spec.as_ref().or(facts.frozen.as_ref()).map(|spec| spec.parallelism),
        selector: Some(names::task_manager_selector(&facts.name)),
        failures: build_failures(old.map_or(&[], |old| &old.failures), report, plan.lost.as_ref(), facts),
        conditions: build_conditions(view, facts, old.map_or(&[], |old| &old.conditions)),
    }
}

/// Whether and when `new` must be written over `old`.
#[must_use]
pub fn due(old: Option<&StreamJobStatus>, new: &StreamJobStatus, now: Timestamp) -> Due {
    // As JSON, since that is what the API server keeps: times lose their fractions there.
    let json = |status: &StreamJobStatus| serde_json::to_value(status).unwrap_or_default();
    let Some(old) = old else { return Due::Now };
    if json(old) == json(new) {
        return Due::Never;
    }
    let without_progress = |status: &StreamJobStatus| {
        json(&StreamJobStatus { last_checkpoint: None, ledger_entry: None, ..status.clone() })
    };
    let last = old.last_checkpoint.as_ref().and_then(|checkpoint| checkpoint.completed_at.as_ref());
    match last.map(|at| from_time(at).plus(PROGRESS_EVERY)) {
        // Longer than that it can only seem, by a clock that is ahead of this one.
        Some(at) if is_soon(at, now) && without_progress(old) == without_progress(new) => Due::At(at),
        _ => Due::Now,
    }
}

fn is_soon(at: Timestamp, now: Timestamp) -> bool {
    at > now && at.since(now) <= PROGRESS_EVERY
}

fn build_conditions(view: &View, facts: &Facts, old: &[Condition]) -> Vec<Condition> {
    let degraded = view.degraded.as_ref();
    let wrong = degraded.map(|wrong| listed(&wrong.reason, &wrong.message));
    let (wrong, what) = wrong.unwrap_or((Reason::AsExpected, String::new()));
    let (reason, message) = listed(&view.reason, &view.message);
    let states = [
        (READY, view.ready, reason, message.as_str()),
        (PROGRESSING, view.progressing, reason, message.as_str()),
        (DEGRADED, degraded.is_some(), wrong, what.as_str()),
    ];
    let build = |(kind, holds, reason, message)| {
        build_condition(kind, holds, (reason, message), facts.spec_generation, facts.now, old)
    };
    states.into_iter().map(build).collect()
}

fn build_condition(
    kind: &str,
    holds: bool,
    (reason, message): (Reason, &str),
    spec_generation: i64,
    now: Timestamp,
    old: &[Condition],
) -> Condition {
    let status = if holds { "True" } else { "False" };
    let before = old.iter().find(|condition| condition.type_ == kind && condition.status == status);
    let since: Time = before.map_or_else(|| to_time(now), |before| before.last_transition_time.clone());
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: shorten(message),
        observed_generation: Some(spec_generation),
        last_transition_time: since,
    }
}

/// The status that a StreamJob has, with this as what is wrong.
#[must_use]
pub(crate) fn with_degraded(job: &StreamJob, wrong: &Rejection, now: Timestamp) -> StreamJobStatus {
    let mut status = job.status.clone().unwrap_or_default();
    let (reason, message) = listed(&wrong.reason, &wrong.message);
    let spec_generation = job.metadata.generation.unwrap_or_default();
    let degraded = build_condition(DEGRADED, true, (reason, &message), spec_generation, now, &status.conditions);
    status.conditions.retain(|condition| condition.type_ != DEGRADED);
    status.conditions.push(degraded);
    status
}

pub(crate) fn shorten(message: &str) -> String {
    match message.char_indices().nth(MESSAGE) {
        None => message.to_owned(),
        Some((end, _)) => format!("{}…", &message[..end]),
    }
}

fn write_checkpoint(checkpoint: &CheckpointInfo) -> LastCheckpoint {
    LastCheckpoint {
        id: Some(checkpoint.id.0),
        path: Some(checkpoint.path.clone()),
        completed_at: Some(to_time(checkpoint.completed_at)),
    }
}

fn write_foreign(foreign: &ForeignSnapshotStatus) -> ForeignSnapshot {
    ForeignSnapshot {
        path: Some(foreign.path.clone()),
        needed: foreign.needed,
        released_at: foreign.released_at.map(to_time),
        released_by: foreign.released_by.map(|id| id.0),
    }
}

#[cfg(test)]
mod argocd;
#[cfg(test)]
mod tests;
