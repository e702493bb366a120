//! One pass over the periodic savepoints of one StreamJob: facts, plan, API calls.

use super::periodic::{PeriodicFacts, PeriodicObject, object_name, plan_periodic};
use super::watches::Savepoints;
use crate::apply::{ApplyError, create_owned, delete_exactly};
use crate::build::metadata;
use crate::context::Context;
use crate::metrics::SCHEDULE;
use crate::passes::Action;
use crate::plan::Occurrence;
use crate::reconcile::{RETRY, next_pass};
use crate::time;
use crate::watches::WatchedJob;
use kube::{Resource, ResourceExt};
use sluice_crds::{PeriodicSavepointsSpec, Savepoint, SavepointSpec, SnapshotKind, StreamJob, StreamJobState};
use sluice_protocol::Timestamp;
use std::sync::Arc;

/// What made a Savepoint object.
const TRIGGER_LABEL: &str = "sluice.dev/trigger";
/// The value of [`TRIGGER_LABEL`] for those of a schedule.
const PERIODIC: &str = "periodic";

/// Shared by all passes over periodic savepoints.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) savepoints: Savepoints,
}

/// One pass, and what follows when it fails.
pub(super) async fn make_pass(job: Arc<WatchedJob>, shared: Arc<Shared>) -> Action {
    let ended = reconcile(Arc::clone(&job), Arc::clone(&shared)).await;
    ended.unwrap_or_else(|error| retry(job, &error, shared))
}

/// One pass.
async fn reconcile(job: Arc<WatchedJob>, shared: Arc<Shared>) -> Result<Action, ApplyError> {
    let Ok(job) = &job.0 else { return Ok(Action::await_change()) };
    let Some(spec) = job.spec.savepoints.as_ref().filter(|_| job.metadata.deletion_timestamp.is_none()) else {
        return Ok(Action::await_change());
    };
    if !sluice_crds::validate(&job.spec).is_empty() {
        // Told in the StreamJob's status.
        return Ok(Action::await_change());
    }
    let facts = observe(job, spec, &shared);
    let plan = plan_periodic(&facts);
    let client = &shared.context.client;
    let namespace = job.namespace().unwrap_or_default();
    if let Some(due) = plan.create {
        let savepoint = build_savepoint(job, spec, due);
        create_owned(client, &namespace, job, &savepoint).await?;
        let message = format!("Savepoint {} was made", savepoint.name_any());
        shared.context.events.tell_beside(job.object_ref(&()), vec![Occurrence::new(false, "SavepointDue", message)]);
    }
    for object in &plan.delete {
        delete_exactly::<Savepoint>(&shared.context, &namespace, object).await?;
    }
    Ok(next_pass(facts.now, plan.wake_at))
}

/// When a failed pass is tried again.
fn retry(job: Arc<WatchedJob>, error: &ApplyError, shared: Arc<Shared>) -> Action {
    shared.context.metrics.count_pass(SCHEDULE, error.name());
    tracing::warn!(job = job.meta().name, "{error}");
    Action::requeue(RETRY)
}

fn observe(job: &StreamJob, spec: &PeriodicSavepointsSpec, shared: &Shared) -> PeriodicFacts {
    let uid = job.uid().unwrap_or_default();
    let is_of = |object: &super::watches::WatchedSavepoint| {
        let owned = object.meta().owner_references.iter().flatten().any(|owner| owner.uid == uid);
        owned && object.labels().get(TRIGGER_LABEL).is_some_and(|trigger| trigger == PERIODIC)
    };
    let created_at = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        meta.creation_timestamp.as_ref().map(time::from_time).unwrap_or_default()
    };
    let objects = shared.savepoints.state_filter(is_of);
    let objects = objects.iter().map(|object| PeriodicObject {
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        created_at: created_at(object.meta()),
        phase: object.0.as_ref().ok().and_then(|object| object.status.as_ref()?.phase).unwrap_or_default(),
        terminating: object.meta().deletion_timestamp.is_some(),
    });
    PeriodicFacts {
        now: time::now(),
        spec: Some(spec.clone()),
        running: job.status.as_ref().and_then(|status| status.state) == Some(StreamJobState::Running),
        created_at: created_at(&job.metadata),
        objects: objects.collect(),
    }
}

fn build_savepoint(job: &StreamJob, spec: &PeriodicSavepointsSpec, due: Timestamp) -> Savepoint {
    let name = job.name_any();
    let PeriodicSavepointsSpec { directory, timeout, dispose_on_delete, .. } = spec;
    let mut savepoint = Savepoint::new(
        &object_name(&name, due),
        SavepointSpec {
            job: name.clone(),
            kind: SnapshotKind::Savepoint,
            directory: directory.clone(),
            timeout: *timeout,
            backoff_limit: 3,
            dispose_on_delete: *dispose_on_delete,
        },
    );
    savepoint.metadata = metadata(job, object_name(&name, due), &[(TRIGGER_LABEL, PERIODIC.to_owned())]);
    savepoint
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::names;
    use crate::plan::tests::job;

    #[test]
    fn a_periodic_savepoint_belongs_to_its_job() {
        let spec: PeriodicSavepointsSpec = serde_json::from_value(
            serde_json::json!({"interval": "1h", "disposeOnDelete": true, "directory": "s3://a/b"}),
        )
        .expect("is a spec");
        let savepoint = build_savepoint(&job(), &spec, Timestamp(1_796_007_600_000));
        assert_eq!(savepoint.name_any(), "pv-20261130-030000");
        assert_eq!((savepoint.spec.job.as_str(), savepoint.spec.dispose_on_delete), ("pv", true));
        assert_eq!(savepoint.spec.directory.as_deref(), Some("s3://a/b"));
        assert_eq!(savepoint.owner_references()[0].uid, "u");
        assert_eq!(savepoint.labels()[TRIGGER_LABEL], PERIODIC);
        assert_eq!(savepoint.labels()[names::JOB_LABEL], "pv");
    }
}
