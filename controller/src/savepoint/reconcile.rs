//! One pass over one Savepoint: facts, plan, status, request, in this order.

use super::dispose::{Disposal, needs_finalizer, plan_disposal};
use super::facts::{Facts, JobFacts};
use super::plan::{Ask, plan};
use super::status::{build_status, is_news};
use super::watches::WatchedSavepoint;
use crate::apply::{ApplyError, write_finalizer, write_status};
use crate::build::names;
use crate::context::Context;
use crate::metrics::SAVEPOINT;
use crate::passes::Action;
use crate::plan::Occurrence;
use crate::reconcile::{RETRY, after_conflict, next_pass, uid};
use crate::time;
use crate::unreadable;
use crate::watches::Jobs;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use sluice_crds::{Savepoint, SavepointStatus};
use sluice_protocol::{Generation, TimeSpan, Timestamp};
use std::sync::Arc;
use tokio::time::Instant;

/// Holds a Savepoint until its files are removed.
pub(super) const FINALIZER: &str = "sluice.dev/dispose";
/// While one that is being deleted is still being taken.
const SETTLE_AGAIN: TimeSpan = TimeSpan::from_secs(2);

/// Shared by all passes over Savepoints.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) jobs: Jobs,
}

/// One pass, and what follows when it fails.
pub(super) async fn make_pass(savepoint: Arc<WatchedSavepoint>, shared: Arc<Shared>) -> Action {
    let ended = reconcile(Arc::clone(&savepoint), Arc::clone(&shared)).await;
    ended.unwrap_or_else(|error| retry(savepoint, &error, shared))
}

/// One pass, timed.
async fn reconcile(savepoint: Arc<WatchedSavepoint>, shared: Arc<Shared>) -> Result<Action, ApplyError> {
    let began = Instant::now();
    let ended = reconcile_watched(&savepoint, &shared).await;
    shared.context.metrics.observe_pass(SAVEPOINT, began.elapsed());
    ended
}

async fn reconcile_watched(savepoint: &WatchedSavepoint, shared: &Shared) -> Result<Action, ApplyError> {
    match &savepoint.0 {
        Ok(savepoint) => {
            let passed = reconcile_savepoint(savepoint, shared).await;
            passed.inspect(|_| shared.context.backoff.forget(&uid(savepoint)))
        }
        Err(invalid) => {
            shared.context.metrics.count_unreadable(SAVEPOINT);
            let message = format!("the Savepoint cannot be read: {}; is its CRD of another version?", invalid.error);
            let occurrence = Occurrence::new(true, "Unreadable", message);
            shared.context.events.tell_of(&savepoint.object_ref(&()), &[occurrence]).await;
            if unreadable::is_held(savepoint, FINALIZER) {
                release_unreadable(savepoint, &shared.context).await?;
            }
            Ok(Action::await_change())
        }
    }
}

/// Which files would go with it is not known for sure: they stay, and the event says where they may be.
async fn release_unreadable(savepoint: &WatchedSavepoint, context: &Context) -> Result<(), ApplyError> {
    let failed = |source| ApplyError::Api { action: "read a Savepoint that is being deleted".to_owned(), source };
    let raw = unreadable::read::<Savepoint>(&context.client, savepoint).await.map_err(failed)?;
    let path = raw.as_ref().and_then(|raw| raw.data.pointer("/status/path")?.as_str()).unwrap_or("an unknown place");
    let message = format!(
        "the Savepoint is being deleted and cannot be read: its finalizer is removed, and its files stay in {path} (`sluice \
         savepoint dispose` removes them)"
    );
    unreadable::release(context, savepoint, FINALIZER, &message).await
}

/// When a failed pass is tried again.
fn retry(savepoint: Arc<WatchedSavepoint>, error: &ApplyError, shared: Arc<Shared>) -> Action {
    if error.is_conflict() {
        shared.context.metrics.count_pass(SAVEPOINT, "Conflict");
        return after_conflict(&shared.context, &*savepoint);
    }
    shared.context.metrics.count_pass(SAVEPOINT, error.name());
    tracing::warn!(savepoint = savepoint.meta().name, "{error}");
    Action::requeue(RETRY)
}

async fn reconcile_savepoint(savepoint: &Savepoint, shared: &Shared) -> Result<Action, ApplyError> {
    let context = &shared.context;
    let facts = observe(savepoint, shared);
    let has_finalizer = savepoint.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let deleted_at = savepoint.metadata.deletion_timestamp.as_ref().map(time::from_time);
    match deleted_at {
        Some(_) if !has_finalizer => return Ok(Action::await_change()),
        Some(since) => return finish(savepoint, shared, &facts, since).await,
        None if needs_finalizer(&facts) != has_finalizer => {
            write_finalizer(&context.client, savepoint, FINALIZER, !has_finalizer).await?;
            // The change starts the next pass.
            return Ok(Action::await_change());
        }
        None => {}
    }
    take(savepoint, shared, &facts).await
}

/// What is left to do about one that is being deleted.
async fn finish(savepoint: &Savepoint, shared: &Shared, facts: &Facts, since: Timestamp) -> Result<Action, ApplyError> {
    let context = &shared.context;
    match plan_disposal(facts, since) {
        Disposal::Release(occurrence) => {
            context.events.tell_of(&savepoint.object_ref(&()), occurrence.as_slice()).await;
            write_finalizer(&context.client, savepoint, FINALIZER, false).await?;
            Ok(Action::await_change())
        }
        Disposal::Settle(deadline) => {
            take(savepoint, shared, facts).await?;
            Ok(next_pass(facts.now, Some(deadline.min(facts.now.plus(SETTLE_AGAIN)))))
        }
        Disposal::Wait { ask, wake_at } => {
            ask_for(context, savepoint, &facts.status, ask.as_ref()).await;
            Ok(next_pass(facts.now, Some(wake_at)))
        }
    }
}

/// The ordinary pass: the status first, then the request.
async fn take(savepoint: &Savepoint, shared: &Shared, facts: &Facts) -> Result<Action, ApplyError> {
    let context = &shared.context;
    let plan = plan(facts);
    let status = build_status(facts, &plan);
    if is_news(&facts.status, &status) {
        write_status(&context.client, savepoint, &status).await?;
        context.metrics.count_status_write(SAVEPOINT);
        let occurrence = plan.occurrence(&facts.status);
        context.events.tell_of(&savepoint.object_ref(&()), occurrence.as_slice()).await;
    }
    ask_for(context, savepoint, &status, plan.ask.as_ref()).await;
    context.metrics.count_pass(SAVEPOINT, "ok");
    // One that has ended is looked at when it changes.
    Ok(if plan.reason.is_none() { Action::await_change() } else { next_pass(facts.now, plan.wake_at) })
}

async fn ask_for(context: &Context, savepoint: &Savepoint, status: &SavepointStatus, ask: Option<&Ask>) {
    let Some(Ask { generation, id, command }) = ask else { return };
    let job = job_id(savepoint, status);
    if let Err(error) = context.streams.execute(&job, *generation, id, command).await {
        tracing::warn!(id, "the JobManager did not take a request, it is asked again: {error}");
    }
}

fn job_id(savepoint: &Savepoint, status: &SavepointStatus) -> sluice_protocol::JobId {
    sluice_protocol::JobId {
        namespace: savepoint.namespace().unwrap_or_default(),
        name: savepoint.spec.job.clone(),
        uid: status.job_uid.clone().unwrap_or_default(),
    }
}

fn observe(savepoint: &Savepoint, shared: &Shared) -> Facts {
    Facts {
        now: time::now(),
        uid: savepoint.uid().unwrap_or_default(),
        created_at: savepoint.metadata.creation_timestamp.as_ref().map(time::from_time).unwrap_or_default(),
        generation: savepoint.metadata.generation.unwrap_or_default(),
        spec: savepoint.spec.clone(),
        status: savepoint.status.clone().unwrap_or_default(),
        job: job_facts(savepoint, shared),
    }
}

fn job_facts(savepoint: &Savepoint, shared: &Shared) -> Option<JobFacts> {
    let reference = ObjectRef::new(&savepoint.spec.job).within(&savepoint.namespace().unwrap_or_default());
    let job = shared.jobs.get(&reference)?;
    let status = job.0.as_ref().ok().and_then(|job| job.status.clone()).unwrap_or_default();
    let generation = Generation(status.generation.unwrap_or_default());
    let stream = match &job.0 {
        Ok(job) => shared.context.streams.view(&names::job_id(job), generation),
        Err(_) => crate::streams::StreamView::default(),
    };
    Some(JobFacts {
        uid: job.uid().unwrap_or_default(),
        state: status.state.filter(|_| job.meta().deletion_timestamp.is_none()),
        message: status.message.unwrap_or_default(),
        generation,
        report: stream.report,
        connected: stream.connected,
        helper: status.helper,
    })
}

#[cfg(test)]
mod tests;
