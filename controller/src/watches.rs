//! The watches: StreamJobs, and the pods, Services and ConfigMaps that the controller made for them. What changes
//! triggers a pass over the StreamJob it belongs to; what decisions do not look at is not kept in memory.

mod merge;
mod pod;
mod source;

pub(crate) use pod::WatchedPod;
pub(crate) use source::Source;

use crate::build::names;
use crate::savepoint::Touched;
use crate::streams::Streams;
use futures::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use sluice_crds::StreamJob;
use sluice_protocol::JobId;
use std::fmt::Debug;
use std::sync::Arc;

/// A StreamJob as it is watched: one that cannot be read does not stop the others.
pub(crate) type WatchedJob = DeserializeGuard<StreamJob>;
/// The cache of all StreamJobs.
pub(crate) type Jobs = Store<WatchedJob>;
/// What starts a pass.
pub(crate) type Request = ObjectRef<WatchedJob>;

/// Watches StreamJobs; one that is gone is forgotten by the streams.
pub(crate) fn watch_jobs(
    source: &Source,
    streams: impl Fn(&JobId) + Send + 'static,
) -> (Jobs, impl Stream<Item = Request> + Send + 'static) {
    let (store, events) = source.watch::<WatchedJob>(&watcher::Config::default(), trim_job);
    let requests = events.filter_map(move |event| {
        if let Event::Delete(job) = &event {
            streams(&job_id(job));
        }
        let request = event_object(event).map(|job| reference(&job));
        futures::future::ready(request)
    });
    (store, requests)
}

/// Watches what the controller made of kind `K`, after `trim`.
pub(crate) fn watch_owned<K>(
    source: &Source,
    trim: fn(&mut K),
) -> (Store<K>, impl Stream<Item = Request> + Send + 'static)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Default + DeserializeOwned,
    K: Send + Sync + 'static,
{
    let config = watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY_LABEL, names::MANAGER));
    let (store, events) = source.watch_readable::<K>(&config, trim);
    (store, events.filter_map(|event| futures::future::ready(touched(event).and_then(|object| owner(&object)))))
}

/// Watches all ConfigMaps by name only: editing the one that a StreamJob's `program.sqlFrom` names is a change of its
/// spec like any other (C3). Nothing of them is kept.
pub(crate) fn watch_programs(source: &Source, jobs: Jobs) -> impl Stream<Item = Request> + Send + 'static {
    let changed = source.look::<PartialObjectMeta<ConfigMap>>(&watcher::Config::default());
    changed.flat_map(move |event| {
        let users: Vec<_> = touched(event)
            .map(|changed| jobs.state_filter(|job| is_program_of(job, changed.namespace(), &changed.name_any())))
            .unwrap_or_default();
        futures::stream::iter(users.into_iter().map(|job| reference(&*job)))
    })
}

/// A request for each StreamJob that is known.
pub(crate) fn all(jobs: &Jobs) -> Vec<Request> {
    let mut jobs = jobs.state();
    jobs.sort_by_key(|job| (job.namespace(), job.name_any()));
    jobs.iter().map(|job| reference(&**job)).collect()
}

fn is_program_of(job: &WatchedJob, namespace: Option<String>, name: &str) -> bool {
    let from = job.0.as_ref().ok().and_then(|job| job.spec.program.sql_from.as_ref());
    from.is_some_and(|from| from.config_map_key_ref.name == name) && job.namespace() == namespace
}

/// What a pod's facts do not hold is never kept; its version only the watch needs.
pub(crate) fn trim_pod(pod: &mut WatchedPod) {
    pod.meta_mut().resource_version = None;
}

/// Leaves a Service the generation that it selects.
pub(crate) fn trim_service(service: &mut Service) {
    trim_meta(service.meta_mut());
    service.meta_mut().resource_version = None;
    service.status = None;
    let mut selector = service.spec.take().and_then(|spec| spec.selector).unwrap_or_default();
    selector.retain(|label, _| label == names::GENERATION_LABEL);
    service.spec = Some(ServiceSpec { selector: Some(selector), ..ServiceSpec::default() });
}

/// A ConfigMap's data is kept whole: it holds the frozen program. It is deleted as it was seen, so its version stays.
pub(crate) fn trim_config_map(config_map: &mut ConfigMap) {
    trim_meta(config_map.meta_mut());
}

/// A StreamJob is kept but for what other tools have noted on it, which may be as long as its spec.
fn trim_job(job: &mut WatchedJob) {
    job.annotations_mut().clear();
}

fn trim_meta(meta: &mut ObjectMeta) {
    meta.annotations = None;
    meta.labels = None;
}

/// The state of a StreamJob, for metrics.
pub(crate) fn state_name(job: &WatchedJob) -> String {
    let state = job.0.as_ref().ok().and_then(|job| job.status.as_ref()?.state);
    state.map_or_else(|| "Unknown".to_owned(), |state| format!("{state:?}"))
}

/// A request for a pass over a StreamJob.
pub(crate) fn request(job: ObjectRef<StreamJob>) -> Request {
    let mut object = ObjectRef::new(&job.name);
    object.namespace = job.namespace;
    object
}

/// A request for a pass over an object, by its name alone: as many are kept as there are objects.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectRef<K> {
    let mut reference = ObjectRef::new(&object.name_any());
    reference.namespace = object.namespace();
    reference
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
        // Nobody listens where no Savepoints are watched.
        let _ = touched.send(request.clone());
    }
}

fn job_id(job: &WatchedJob) -> JobId {
    JobId { namespace: job.namespace().unwrap_or_default(), name: job.name_any(), uid: job.uid().unwrap_or_default() }
}

pub(crate) fn event_object<K>(event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => Some(object),
        // One that is gone needs no pass: Kubernetes collects what it owned.
        Event::Delete(_) | Event::Init | Event::InitDone => None,
    }
}

fn touched<K>(event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => Some(object),
        Event::Init | Event::InitDone => None,
    }
}

/// A request for the StreamJob that owns an object.
pub(crate) fn owner<K: Resource>(object: &K) -> Option<Request> {
    let owner = object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    if owner.kind != "StreamJob" {
        return None;
    }
    let job = ObjectRef::<StreamJob>::new(&owner.name).within(&object.namespace()?);
    Some(request(job))
}
