//! Objects that cannot be read and are being deleted: nothing must hold them for ever.
//!
//! What their deletion promises is kept where what it needs can be read: of a StreamJob its metadata and status, from
//! which the ordinary plan of a deletion follows (its JobManager is asked to end, or a closer ends it where the program
//! that ran can be read, until the deadline). Then, or where not even that can be read, the finalizer goes with an event;
//! pods are owned and go by garbage collection.

use crate::apply::{ApplyError, write_finalizer};
use crate::build::names;
use crate::context::Context;
use crate::facts::Facts;
use crate::observe::{confirm, observe};
use crate::passes::Action;
use crate::plan::{Finalizer, Occurrence, Plan, plan};
use crate::reconcile::{ReconcileError, carry_out, next_pass, target};
use crate::status::build_status;
use crate::watches::WatchedJob;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use sluice_crds::{DeletionSpec, StopCause, StopUnderWay, StreamJob, StreamJobSpec, StreamJobStatus};
use std::fmt::Debug;

/// What of a status a closer rests on.
const NOTED: [&str; 5] = ["generation", "jobManagerPod", "nextTaskManager", "deployedProgram", "helper"];

/// What is left to do about a StreamJob that cannot be read.
pub(crate) async fn delete(job: &WatchedJob, context: &Context) -> Result<Action, ReconcileError> {
    if !is_held(job, names::FINALIZER) {
        return Ok(Action::await_change());
    }
    let Some(raw) = read::<StreamJob>(&context.client, job).await.map_err(ReconcileError::Observe)? else {
        return Ok(Action::await_change());
    };
    if let Some(readable) = readable(&raw) {
        let facts = observe(context, &readable).await.map_err(ReconcileError::Observe)?;
        let facts = confirm(context, &readable, facts).await.map_err(ReconcileError::Observe)?;
        let plan = plan(&facts);
        context.streams.follow(&names::job_id(&readable), target(&facts, &plan));
        let done = async {
            note(context, &raw, &readable, &facts, &plan).await?;
            carry_out(context, &readable, &facts, &plan).await
        };
        let done = done.await;
        if plan.finalizer != Some(Finalizer::Remove) {
            done?;
            return Ok(next_pass(facts.now, plan.wake_at));
        }
    }
    let message = "the StreamJob is being deleted and cannot be read: nothing of it runs any more, or nothing is known of it, \
                   and its finalizer is removed; its checkpoints stay";
    release(context, job, names::FINALIZER, message).await?;
    Ok(Action::await_change())
}

/// Writes what the plan rests on from now on, before it is carried out (C2), and nothing else: the rest of a status that
/// another version wrote stays as it is.
async fn note(
    context: &Context,
    raw: &DynamicObject,
    readable: &StreamJob,
    facts: &Facts,
    plan: &Plan,
) -> Result<(), ApplyError> {
    if plan.memory.decides_like(&facts.memory) || plan.finalizer == Some(Finalizer::Remove) {
        return Ok(());
    }
    let action = || format!("note the closer of StreamJob {}", raw.name_any());
    let told = |source| ApplyError::Api { action: action(), source: kube::Error::SerdeError(source) };
    let status = serde_json::to_value(build_status(readable, facts, plan)).map_err(told)?;
    let known = raw.data.get("status").cloned().unwrap_or_default();
    let changed = NOTED.into_iter().filter(|field| known[*field] != status[*field]);
    let changed: serde_json::Map<_, _> = changed.map(|field| (field.to_owned(), status[field].clone())).collect();
    let patch = json!({"metadata": {"resourceVersion": raw.metadata.resource_version}, "status": changed});
    let parameters = PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
    let api = api::<StreamJob>(&context.client, raw);
    let written = api.patch_status(&raw.name_any(), &parameters, &Patch::Merge(&patch)).await;
    written.map(drop).map_err(|source| ApplyError::Api { action: action(), source })
}

/// Whether an object is being deleted and waits for this finalizer.
pub(crate) fn is_held(object: &impl Resource, finalizer: &str) -> bool {
    let meta = object.meta();
    meta.deletion_timestamp.is_some() && meta.finalizers.iter().flatten().any(|one| one == finalizer)
}

/// Lets an object go, and says so.
pub(crate) async fn release<K>(context: &Context, object: &K, finalizer: &str, message: &str) -> Result<(), ApplyError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let occurrence = Occurrence::new(true, "Released", message.to_owned());
    context.events.tell_of(&object.object_ref(&()), &[occurrence]).await;
    write_finalizer(&context.client, object, finalizer, false).await
}

/// The object as it is.
pub(crate) async fn read<K: Resource<DynamicType = ()>>(
    client: &Client,
    object: &impl Resource,
) -> Result<Option<DynamicObject>, kube::Error> {
    api::<K>(client, object).get_opt(object.meta().name.as_deref().unwrap_or_default()).await
}

fn api<K: Resource<DynamicType = ()>>(client: &Client, object: &impl Resource) -> Api<DynamicObject> {
    let (namespace, kind) = (object.meta().namespace.clone().unwrap_or_default(), ApiResource::erase::<K>(&()));
    Api::namespaced_with(client.clone(), &namespace, &kind)
}

/// A StreamJob of what can be read: enough to end it. Its deletion counts from the moment that the API server noted.
fn readable(raw: &DynamicObject) -> Option<StreamJob> {
    let mut status: StreamJobStatus = serde_json::from_value(raw.data.get("status")?.clone()).ok()?;
    let deletion = raw.data.pointer("/spec/deletion").cloned();
    let deletion: DeletionSpec =
        deletion.and_then(|deletion| serde_json::from_value(deletion).ok()).unwrap_or_default();
    let since = raw.metadata.deletion_timestamp.as_ref().map(|at| MicroTime(at.0));
    let stop = || StopUnderWay {
        since,
        cause: StopCause::Delete,
        savepoint_request: deletion.savepoint.then(|| crate::plan::DELETION_REQUEST.to_owned()),
        savepoint: None,
    };
    status.stop = Some(status.stop.take().filter(|stop| stop.cause == StopCause::Delete).unwrap_or_else(stop));
    let spec: StreamJobSpec = serde_json::from_value(json!({"program": {"sql": ""}, "deletion": deletion})).ok()?;
    let mut job = StreamJob::new(&raw.name_any(), spec);
    (job.metadata, job.status) = (raw.metadata.clone(), Some(status));
    Some(job)
}

#[cfg(test)]
mod tests;
