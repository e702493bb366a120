//! A plan as a Savepoint's status. Pure.

use super::facts::Facts;
use super::plan::Plan;
use crate::time::to_time;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sluice_crds::{SavepointPhase, SavepointStatus};

/// Condition: the snapshot is there.
const COMPLETE: &str = "Complete";
/// Condition: there will be none.
const FAILED: &str = "Failed";

/// The status that a plan tells. Transition times change only with the status of a condition.
pub(super) fn build_status(facts: &Facts, plan: &Plan) -> SavepointStatus {
    let mut status = plan.status.clone();
    let Some(reason) = plan.reason else { return status };
    let phase = status.phase.unwrap_or_default();
    let failed = matches!(phase, SavepointPhase::Failed | SavepointPhase::Abandoned);
    let states = [(COMPLETE, phase == SavepointPhase::Completed), (FAILED, failed)];
    let message = status.message.clone().unwrap_or_default();
    let condition = |(kind, holds): (&str, bool)| {
        let holds = if holds { "True" } else { "False" };
        let before = facts.status.conditions.iter().find(|other| other.type_ == kind && other.status == holds);
        Condition {
            type_: kind.to_owned(),
            status: holds.to_owned(),
            reason: format!("{reason:?}"),
            message: crate::status::shorten(&message),
            observed_generation: Some(facts.generation),
            last_transition_time: before
                .map_or_else(|| to_time(facts.now), |before| before.last_transition_time.clone()),
        }
    };
    status.conditions = states.into_iter().map(condition).collect();
    status.message = status.message.map(|message| crate::status::shorten(&message));
    status.error = status.error.map(|error| crate::status::shorten(&error));
    status
}

/// Whether the API server holds something else.
pub(super) fn is_news(old: &SavepointStatus, new: &SavepointStatus) -> bool {
    // As JSON, since that is what the API server keeps: times lose their fractions there.
    serde_json::to_value(old).ok() != serde_json::to_value(new).ok()
}
