//! What status remembers between two passes: the planner's [`Memory`] to and from its fields. Pure.
//!
//! Callers rely on: what is written is read back as it was; what an older controller wrote reads as nothing remembered.

use crate::facts::{Disposal, GivenUp, Held, Helper, HelperTask, Memory, Rejection, Stable, Stop, Trial};
use crate::time::{from_micro_time, from_time, to_micro_time, to_time};
use sluice_crds::{
    ForeignSnapshot, HeldUpgrade, HelperUnderWay, LastCheckpoint, StableRevision, StopUnderWay, StreamJob,
    StreamJobStatus,
};
use sluice_protocol::restart::FailureCounts;
use sluice_protocol::status::{CheckpointInfo, ForeignSnapshotStatus};
use sluice_protocol::{Attempt, CheckpointId, Generation};

/// What a StreamJob's status remembers.
#[must_use]
pub fn read_memory(job: &StreamJob) -> Memory {
    let Some(status) = job.status.clone() else { return Memory::default() };
    Memory {
        generation: Generation(status.generation.unwrap_or_default()),
        revision: status.revision.unwrap_or_default(),
        started_revision: status.started_revision.unwrap_or_default(),
        job_manager_pod: status.job_manager_pod.clone(),
        next_task_manager: status.next_task_manager.unwrap_or_default(),
        next_restart_at: status.next_restart_at.as_ref().filter(|_| status.waits_for_restart).map(from_micro_time),
        deployed_program: status.deployed_program.clone().or_else(|| status.program.clone()).unwrap_or_default(),
        ledger_entry: status.ledger_entry.unwrap_or_default(),
        last_checkpoint: status.last_checkpoint.as_ref().map(read_checkpoint),
        restored_from: status.restored_from.as_ref().map(read_checkpoint),
        foreign_snapshot: status.foreign_snapshot.as_ref().map(read_foreign),
        ..read_transition(status)
    }
}

fn read_transition(status: StreamJobStatus) -> Memory {
    Memory {
        failures: status.failure_counts.unwrap_or_else(|| FailureCounts::new(status.revision.unwrap_or_default())),
        program: status.program.unwrap_or_default(),
        directive: status.directive.and_then(|directive| serde_json::from_value(directive).ok()),
        stop: status.stop.map(read_stop),
        helper: status.helper.map(read_helper),
        savepoint_requests: status.savepoint_requests.unwrap_or_default(),
        stopped_with: status.stopped_with,
        used_restores: status.used_restores,
        held: status.held.map(read_held),
        trial: status.trial.map(read_trial),
        stable: status.stable.map(|StableRevision { revision, program }| Stable { revision, program }),
        rolled_back: status.rolled_back.map(read_given_up),
        ..Memory::default()
    }
}

fn read_foreign(foreign: &ForeignSnapshot) -> ForeignSnapshotStatus {
    ForeignSnapshotStatus {
        path: foreign.path.clone().unwrap_or_default(),
        needed: foreign.needed,
        released_at: foreign.released_at.as_ref().map(from_time),
        released_by: foreign.released_by.map(CheckpointId),
    }
}

fn read_stop(stop: StopUnderWay) -> Stop {
    let StopUnderWay { since, cause, savepoint_request, savepoint } = stop;
    Stop { since: since.as_ref().map(from_micro_time).unwrap_or_default(), cause, savepoint_request, savepoint }
}

pub(super) fn write_stop(stop: &Stop) -> StopUnderWay {
    let Stop { since, cause, savepoint_request, savepoint } = stop.clone();
    StopUnderWay { since: Some(to_micro_time(since)), cause, savepoint_request, savepoint }
}

fn read_helper(helper: HelperUnderWay) -> Helper {
    let HelperUnderWay { task, since, tries, savepoint, path, outcome, message } = helper;
    let message = message.unwrap_or_default();
    let task = match (task, savepoint, path) {
        (sluice_crds::HelperTask::Dispose, Some(savepoint), Some(path)) => {
            let outcome = outcome.map(|reason| Rejection { reason, message });
            HelperTask::Dispose(Disposal { savepoint, path, outcome })
        }
        _ => HelperTask::Close,
    };
    Helper { since: since.as_ref().map(from_micro_time).unwrap_or_default(), tries, task }
}

pub(super) fn write_helper(helper: &Helper) -> HelperUnderWay {
    let Helper { since, tries, task } = helper.clone();
    let of_task = match task {
        HelperTask::Close => HelperUnderWay::default(),
        HelperTask::Dispose(Disposal { savepoint, path, outcome }) => {
            let (outcome, message) = outcome.map(|outcome| (outcome.reason, outcome.message)).unzip();
            let (savepoint, path) = (Some(savepoint), Some(path));
            let task = sluice_crds::HelperTask::Dispose;
            HelperUnderWay { task, savepoint, path, outcome, message, ..HelperUnderWay::default() }
        }
    };
    HelperUnderWay { since: Some(to_micro_time(since)), tries, ..of_task }
}

fn read_held(held: HeldUpgrade) -> Held {
    let HeldUpgrade { program, reason, message, retry_at, tries } = held;
    Held { program, reason, message, retry_at: retry_at.as_ref().map(from_micro_time).unwrap_or_default(), tries }
}

pub(super) fn write_held(held: &Held) -> HeldUpgrade {
    let Held { program, reason, message, retry_at, tries } = held.clone();
    HeldUpgrade { program, reason, message, retry_at: Some(to_micro_time(retry_at)), tries }
}

fn read_trial(trial: sluice_crds::Trial) -> Trial {
    let sluice_crds::Trial { since, snapshot, generation, attempt, checkpoints_before } = trial;
    Trial {
        since: since.as_ref().map(from_micro_time).unwrap_or_default(),
        snapshot,
        generation: Generation(generation),
        attempt: Attempt(attempt),
        checkpoints_before,
    }
}

pub(super) fn write_trial(trial: &Trial) -> sluice_crds::Trial {
    let Trial { since, snapshot, generation, attempt, checkpoints_before } = trial.clone();
    sluice_crds::Trial {
        since: Some(to_micro_time(since)),
        snapshot,
        generation: generation.0,
        attempt: attempt.0,
        checkpoints_before,
    }
}

pub(super) fn write_stable(stable: &Stable) -> StableRevision {
    StableRevision { revision: stable.revision, program: stable.program.clone() }
}

fn read_given_up(given_up: sluice_crds::GivenUp) -> GivenUp {
    let sluice_crds::GivenUp { revision, program, reason, message, at, observed_generation } = given_up;
    let at = at.as_ref().map(from_time).unwrap_or_default();
    GivenUp { revision, program, reason, message, at, spec_generation: observed_generation.unwrap_or_default() }
}

pub(super) fn write_given_up(given_up: &GivenUp) -> sluice_crds::GivenUp {
    let GivenUp { revision, program, reason, message, at, spec_generation } = given_up.clone();
    let observed_generation = (spec_generation > 0).then_some(spec_generation);
    sluice_crds::GivenUp { revision, program, reason, message, at: Some(to_time(at)), observed_generation }
}

fn read_checkpoint(checkpoint: &LastCheckpoint) -> CheckpointInfo {
    CheckpointInfo {
        id: CheckpointId(checkpoint.id.unwrap_or_default()),
        path: checkpoint.path.clone().unwrap_or_default(),
        completed_at: checkpoint.completed_at.as_ref().map(from_time).unwrap_or_default(),
        ..CheckpointInfo::default()
    }
}
