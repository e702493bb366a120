//! The watches: StreamJobs, and the pods, Services and ConfigMaps that the controller made for them. What changes
//! triggers a pass over the StreamJob it belongs to; what decisions do not look at is not kept in memory.

use crate::build::names;
use crate::savepoint::Touched;
use crate::streams::Streams;
use futures::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, PodSpec, Service};
use kube::api::Api;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use sluice_crds::StreamJob;
use sluice_protocol::JobId;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

/// A StreamJob as it is watched: one that cannot be read does not stop the others.
pub(crate) type WatchedJob = DeserializeGuard<StreamJob>;
/// The cache of all StreamJobs.
pub(crate) type Jobs = Store<WatchedJob>;
/// What starts a pass.
pub(crate) type Request = Result<ReconcileRequest<WatchedJob>, Infallible>;

/// Watches StreamJobs; one that is gone is forgotten by the streams.
pub(crate) fn watch_jobs(
    client: &Client,
    namespace: Option<&str>,
    streams: impl Fn(&JobId) + Send + 'static,
) -> (Jobs, impl Stream<Item = Request> + Send + 'static) {
    let (store, writer) = reflector::store();
    let events = watch(api::<WatchedJob>(client, namespace), watcher::Config::default())
        .default_backoff()
        .modify(|job| job.managed_fields_mut().clear())
        .reflect(writer)
        .filter_map(move |event| {
            if let Ok(Event::Delete(job)) = &event {
                streams(&job_id(job));
            }
            let request = log_errors::<WatchedJob>(event)
                .and_then(event_object)
                .map(|job| Ok(ReconcileRequest::from(ObjectRef::from_obj(&job))));
            futures::future::ready(request)
        });
    (store, events)
}

/// Watches what the controller made of kind `K`, after `trim`.
pub(crate) fn watch_owned<K>(
    client: &Client,
    namespace: Option<&str>,
    trim: fn(&mut K),
) -> (Store<K>, impl Stream<Item = Request> + Send + 'static)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let config = watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY_LABEL, names::MANAGER));
    let events = watch(api::<K>(client, namespace), config)
        .default_backoff()
        .modify(move |object| {
            object.managed_fields_mut().clear();
            object.annotations_mut().clear();
            trim(object);
        })
        .reflect(writer)
        .filter_map(|event| futures::future::ready(log_errors::<K>(event).and_then(touched).and_then(|k| owner(&k))));
    (store, events)
}

/// Watches all ConfigMaps by name only: editing the one that a StreamJob's `program.sqlFrom` names is a change of its
/// spec like any other (C3). Nothing of them is kept.
pub(crate) fn watch_programs(
    client: &Client,
    namespace: Option<&str>,
    jobs: Jobs,
) -> impl Stream<Item = Request> + Send + 'static {
    watch(api::<PartialObjectMeta<ConfigMap>>(client, namespace), watcher::Config::default())
        .default_backoff()
        .flat_map(move |event| {
            let changed = match event {
                Ok(event) => touched(event),
                Err(error) => {
                    tracing::warn!("watch of ConfigMaps failed, it is tried again: {error}");
                    None
                }
            };
            let users: Vec<_> = changed
                .map(|changed| jobs.state_filter(|job| is_program_of(job, changed.namespace(), &changed.name_any())))
                .unwrap_or_default();
            futures::stream::iter(users.into_iter().map(|job| Ok(ReconcileRequest::from(ObjectRef::from_obj(&*job)))))
        })
}

fn is_program_of(job: &WatchedJob, namespace: Option<String>, name: &str) -> bool {
    let from = job.0.as_ref().ok().and_then(|job| job.spec.program.sql_from.as_ref());
    from.is_some_and(|from| from.config_map_key_ref.name == name) && job.namespace() == namespace
}

/// Leaves of a pod what [`crate::observe::pod_facts`] reads.
pub(crate) fn trim_pod(pod: &mut Pod) {
    let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone());
    let container = Container { image, ..Container::default() };
    pod.spec = Some(PodSpec { containers: vec![container], ..PodSpec::default() });
    if let Some(status) = &mut pod.status {
        status.init_container_statuses = None;
        status.host_ips = None;
        status.pod_ips = None;
    }
}

/// Leaves a Service its selector.
pub(crate) fn trim_service(service: &mut Service) {
    service.status = None;
    if let Some(spec) = &mut service.spec {
        spec.ports = None;
    }
}

/// A ConfigMap is kept whole: it holds the frozen program.
pub(crate) fn trim_config_map(_: &mut ConfigMap) {}

/// The state of a StreamJob, for metrics.
pub(crate) fn state_name(job: &WatchedJob) -> String {
    let state = job.0.as_ref().ok().and_then(|job| job.status.as_ref()?.state);
    state.map_or_else(|| "Unknown".to_owned(), |state| format!("{state:?}"))
}

/// A request for a pass over a StreamJob.
pub(crate) fn request(job: ObjectRef<StreamJob>) -> Request {
    let mut object = ObjectRef::new(&job.name);
    object.namespace = job.namespace;
    Ok(ReconcileRequest::from(object))
}

/// Forgets the stream of a job that is gone, and says that it is.
pub(crate) fn forget(streams: &Arc<Streams>, touched: Touched) -> impl Fn(&JobId) + Send + 'static {
    let streams = Arc::clone(streams);
    move |job| {
        streams.forget(job);
        // Nobody listens where no Savepoints are watched.
        let _ = touched.send(ObjectRef::new(&job.name).within(&job.namespace));
    }
}

/// Says that something has happened to a StreamJob.
pub(crate) fn touch(touched: Touched) -> impl FnMut(&Request) + Send + 'static {
    move |request| {
        if let Ok(request) = request {
            // Nobody listens where no Savepoints are watched.
            let _ = touched.send(request.obj_ref.clone());
        }
    }
}

pub(crate) fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn job_id(job: &WatchedJob) -> JobId {
    JobId { namespace: job.namespace().unwrap_or_default(), name: job.name_any(), uid: job.uid().unwrap_or_default() }
}

/// A watch that fails is retried with backoff; here it is only told.
pub(crate) fn log_errors<K: Resource<DynamicType = ()>>(event: Result<Event<K>, watcher::Error>) -> Option<Event<K>> {
    event.inspect_err(|error| tracing::warn!(kind = %K::kind(&()), "watch failed, it is tried again: {error}")).ok()
}

fn event_object<K>(event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => Some(object),
        // A StreamJob that is gone needs no pass: Kubernetes collects what it owned.
        Event::Delete(_) | Event::Init | Event::InitDone => None,
    }
}

fn touched<K>(event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => Some(object),
        Event::Init | Event::InitDone => None,
    }
}

fn owner<K: Resource>(object: &K) -> Option<Request> {
    let owner = object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    if owner.kind != "StreamJob" {
        return None;
    }
    let job = ObjectRef::<StreamJob>::new(&owner.name).within(&object.namespace()?);
    Some(request(job))
}
