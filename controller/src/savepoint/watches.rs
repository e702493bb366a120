//! What starts a pass over a Savepoint: a change of it, and whatever happens to the StreamJob it names.

use crate::watches::{WatchedJob, log_errors};
use futures::{Stream, StreamExt};
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, ResourceExt};
use sluice_crds::Savepoint;
use std::convert::Infallible;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// A Savepoint as it is watched: one that cannot be read does not stop the others.
pub(crate) type WatchedSavepoint = DeserializeGuard<Savepoint>;
/// The cache of all Savepoints.
pub(crate) type Savepoints = Store<WatchedSavepoint>;
/// What starts a pass.
pub(super) type Request = Result<ReconcileRequest<WatchedSavepoint>, Infallible>;

/// Watches Savepoints.
pub(super) fn watch_savepoints(
    client: &Client,
    namespace: Option<&str>,
) -> (Savepoints, impl Stream<Item = Request> + Send + 'static) {
    let (store, writer) = reflector::store();
    let api: Api<WatchedSavepoint> = crate::watches::api(client, namespace);
    let requests = watch(api, watcher::Config::default())
        .default_backoff()
        .modify(|savepoint| savepoint.managed_fields_mut().clear())
        .reflect(writer)
        .filter_map(|event| {
            let changed = match log_errors::<WatchedSavepoint>(event) {
                Some(Event::Apply(savepoint) | Event::InitApply(savepoint)) => Some(savepoint),
                _ => None,
            };
            futures::future::ready(changed.map(|savepoint| Ok(ReconcileRequest::from(ObjectRef::from_obj(&savepoint)))))
        });
    (store, requests)
}

/// The Savepoints of StreamJobs to which something has happened.
pub(super) fn of_touched_jobs(
    touched: broadcast::Receiver<ObjectRef<WatchedJob>>,
    savepoints: Savepoints,
) -> impl Stream<Item = Request> + Send + 'static {
    let touched = futures::stream::unfold(touched, async |mut touched| match touched.recv().await {
        Ok(job) => Some((Some(job), touched)),
        Err(RecvError::Lagged(_)) => Some((None, touched)),
        Err(RecvError::Closed) => None,
    });
    touched.flat_map(move |job| {
        // Where some were missed, all are looked at.
        let is_concerned = |savepoint: &WatchedSavepoint| job.as_ref().is_none_or(|job| is_of(savepoint, job));
        let concerned = savepoints.state_filter(is_concerned);
        let requests = concerned.into_iter().map(|one| Ok(ReconcileRequest::from(ObjectRef::from_obj(&*one))));
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
