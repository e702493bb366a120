//! What starts a pass over a Savepoint: a change of it, and whatever happens to the StreamJob it names.

use crate::watches::{Jobs, Source, WatchedJob, all, event_object, owner, reference};
use futures::{Stream, StreamExt};
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use sluice_crds::Savepoint;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

/// A Savepoint as it is watched: one that cannot be read does not stop the others.
pub(crate) type WatchedSavepoint = DeserializeGuard<Savepoint>;
/// The cache of all Savepoints.
pub(crate) type Savepoints = Store<WatchedSavepoint>;
/// What starts a pass.
pub(super) type Request = ObjectRef<WatchedSavepoint>;

/// What starts a pass over the periodic savepoints of a StreamJob.
pub(super) type JobRequest = crate::watches::Request;

/// Watches Savepoints; the StreamJobs that own those that change are told to `owners`, those that are named by one that is
/// being deleted to `disposals`.
pub(super) fn watch_savepoints(
    source: &Source,
    owners: mpsc::UnboundedSender<JobRequest>,
    disposals: mpsc::UnboundedSender<JobRequest>,
) -> (Savepoints, impl Stream<Item = Request> + Send + 'static) {
    let (store, events) = source.watch::<WatchedSavepoint>(&watcher::Config::default(), |_| {});
    let requests = events.filter_map(move |event| {
        if let Event::Apply(savepoint) | Event::InitApply(savepoint) | Event::Delete(savepoint) = &event {
            // Closed only when the controller ends.
            owner(savepoint).map(|job| owners.send(job));
            deleted_from(savepoint).map(|job| disposals.send(job));
        }
        let changed = event_object(event);
        futures::future::ready(changed.map(|savepoint| reference(&savepoint)))
    });
    (store, requests)
}

/// The StreamJob of a Savepoint that is being deleted.
fn deleted_from(savepoint: &WatchedSavepoint) -> Option<JobRequest> {
    let named = savepoint.0.as_ref().ok().filter(|savepoint| savepoint.metadata.deletion_timestamp.is_some())?;
    Some(ObjectRef::new(&named.spec.job).within(&named.namespace()?))
}

/// StreamJobs to which something has happened; `None` where some were missed.
fn touched_jobs(
    touched: broadcast::Receiver<ObjectRef<WatchedJob>>,
) -> impl Stream<Item = Option<ObjectRef<WatchedJob>>> + Send + 'static {
    futures::stream::unfold(touched, async |mut touched| match touched.recv().await {
        Ok(job) => Some((Some(job), touched)),
        Err(RecvError::Lagged(_)) => Some((None, touched)),
        Err(RecvError::Closed) => None,
    })
}

/// The same as requests, where all StreamJobs are looked at when some were missed.
pub(super) fn touched_requests(
    touched: broadcast::Receiver<ObjectRef<WatchedJob>>,
    jobs: Jobs,
) -> impl Stream<Item = JobRequest> + Send + 'static {
    touched_jobs(touched).flat_map(move |job| futures::stream::iter(job.map_or_else(|| all(&jobs), |job| vec![job])))
}

/// The Savepoints of StreamJobs to which something has happened.
pub(super) fn of_touched_jobs(
    touched: broadcast::Receiver<ObjectRef<WatchedJob>>,
    savepoints: Savepoints,
) -> impl Stream<Item = Request> + Send + 'static {
    touched_jobs(touched).flat_map(move |job| {
        // Where some were missed, all are looked at.
        let is_concerned = |savepoint: &WatchedSavepoint| job.as_ref().is_none_or(|job| is_of(savepoint, job));
        let concerned = savepoints.state_filter(is_concerned);
        let requests = concerned.into_iter().map(|one| reference(&*one));
        futures::stream::iter(requests.collect::<Vec<_>>())
    })
}

fn is_of(savepoint: &WatchedSavepoint, job: &ObjectRef<WatchedJob>) -> bool {
    savepoint.0.as_ref().is_ok_and(|savepoint| {
        let has_ended =
            savepoint.status.as_ref().and_then(|status| status.phase).is_some_and(|phase| phase.is_terminal());
        let is_deleted = savepoint.metadata.deletion_timestamp.is_some();
        savepoint.spec.job == job.name && savepoint.namespace() == job.namespace && (is_deleted || !has_ended)
    })
}
