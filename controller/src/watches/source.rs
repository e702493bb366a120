//! One watch of a kind over all namespaces or over those that are listed, with a cache. A watch that fails is told,
//! counted and tried again with backoff; an object that cannot be read is told, counted and left out, and stops nothing.

use super::merge::Merge;
use crate::metrics::Metrics;
use futures::stream::{BoxStream, select_all};
use futures::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// Where objects are watched.
#[derive(Clone)]
pub(crate) struct Source {
    client: Client,
    namespaces: Vec<String>,
    metrics: Arc<Metrics>,
}

impl Source {
    /// All namespaces when none is listed.
    pub(crate) fn new(client: Client, namespaces: &[String], metrics: Arc<Metrics>) -> Self {
        let mut namespaces = namespaces.to_vec();
        namespaces.sort();
        namespaces.dedup();
        Self { client, namespaces, metrics }
    }

    /// Watches kind `K`; the cache holds what `trim` leaves of each object.
    pub(crate) fn watch<K>(
        &self,
        config: &watcher::Config,
        trim: fn(&mut K),
    ) -> (Store<K>, BoxStream<'static, Event<K>>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K: Send + Sync + 'static,
    {
        self.cache(self.watches::<K>(config), trim)
    }

    /// The same, without the objects that cannot be read.
    pub(crate) fn watch_readable<K>(
        &self,
        config: &watcher::Config,
        trim: fn(&mut K),
    ) -> (Store<K>, BoxStream<'static, Event<K>>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Default + DeserializeOwned,
        K: Send + Sync + 'static,
    {
        let watches = self.watches::<DeserializeGuard<K>>(config).into_iter().map(|events| {
            let metrics = Arc::clone(&self.metrics);
            let readable = move |event: watcher::Result<_>| {
                let event = event.map(|event| readable(event, &metrics)).transpose();
                futures::future::ready(event)
            };
            events.filter_map(readable).boxed()
        });
        self.cache(watches.collect(), trim)
    }

    /// Watches without a cache.
    pub(crate) fn look<K>(&self, config: &watcher::Config) -> BoxStream<'static, Event<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K: Send + 'static,
    {
        told(select_all(self.watches::<K>(config)), Arc::clone(&self.metrics))
    }

    fn cache<K>(&self, watches: Vec<Events<K>>, trim: fn(&mut K)) -> (Store<K>, BoxStream<'static, Event<K>>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store();
        let watches = watches.into_iter().map(|events| events.modify(move |object| trim_all(object, trim)).boxed());
        let merged = self.merge(watches.collect(), store.clone());
        (store, told(merged.reflect(writer), Arc::clone(&self.metrics)))
    }

    /// One watch a namespace becomes one watch.
    fn merge<K>(&self, mut watches: Vec<Events<K>>, store: Store<K>) -> Events<K>
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        if watches.len() == 1 {
            return watches.remove(0);
        }
        let mut merge = Merge::new(self.namespaces.clone());
        let numbered = watches.into_iter().enumerate().map(|(index, events)| events.map(move |event| (index, event)));
        let known = move |namespace: &str| {
            let here = store.state_filter(|object| object.namespace().as_deref() == Some(namespace));
            here.into_iter().map(|object| K::clone(&object)).collect()
        };
        select_all(numbered)
            .flat_map(move |(index, event)| {
                let events = event.map(|event| merge.absorb(index, event, &known));
                futures::stream::iter(match events {
                    Ok(events) => events.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error)],
                })
            })
            .boxed()
    }

    fn watches<K>(&self, config: &watcher::Config) -> Vec<Events<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K: Send + 'static,
    {
        let apis = match &self.namespaces[..] {
            [] => vec![Api::all(self.client.clone())],
            listed => listed.iter().map(|namespace| Api::namespaced(self.client.clone(), namespace)).collect(),
        };
        apis.into_iter().map(|api| watch(api, config.clone()).default_backoff().boxed()).collect()
    }
}

fn trim_all<K: Resource>(object: &mut K, trim: fn(&mut K)) {
    object.managed_fields_mut().clear();
    trim(object);
}

/// A watch that fails is retried with backoff; here it is only told.
fn told<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    metrics: Arc<Metrics>,
) -> BoxStream<'static, Event<K>>
where
    K: Resource<DynamicType = ()> + Send + 'static,
{
    let told = move |event: watcher::Result<_>| {
        let told = event.inspect_err(|error| {
            tracing::warn!(kind = %K::kind(&()), "watch failed, it is tried again: {error}");
            metrics.count_watch_error(&K::kind(&()));
        });
        futures::future::ready(told.ok())
    };
    events.filter_map(told).boxed()
}

/// An object that cannot be read is as good as gone.
fn readable<K>(event: Event<DeserializeGuard<K>>, metrics: &Metrics) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()> + Default,
{
    let is_initial = matches!(event, Event::InitApply(_));
    let make = match &event {
        Event::Apply(_) => Event::Apply,
        Event::InitApply(_) => Event::InitApply,
        Event::Delete(_) => Event::Delete,
        Event::Init => return Some(Event::Init),
        Event::InitDone => return Some(Event::InitDone),
    };
    let (Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) = event else { return None };
    match object.0 {
        Ok(object) => Some(make(object)),
        Err(invalid) => {
            let (kind, name) = (K::kind(&()), invalid.metadata.name.as_deref());
            tracing::warn!(%kind, name, "left out, it cannot be read: {}", invalid.error);
            metrics.count_unreadable(&kind);
            let mut gone = K::default();
            *gone.meta_mut() = invalid.metadata;
            (!is_initial).then(|| Event::Delete(gone))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn pod(containers: serde_json::Value) -> DeserializeGuard<Pod> {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"containers": containers}})).unwrap()
    }

    #[test]
    fn an_object_that_cannot_be_read_is_counted_and_as_good_as_gone() {
        let metrics = Metrics::default();
        assert!(matches!(readable(Event::Apply(pod(json!([]))), &metrics), Some(Event::Apply(_))));
        assert!(readable(Event::InitApply(pod(json!("none"))), &metrics).is_none());
        let gone = readable(Event::Apply(pod(json!("none"))), &metrics);
        assert!(matches!(gone, Some(Event::Delete(pod)) if pod.name_any() == "a"));
        assert!(metrics.encode().contains(r#"unreadable_objects_total{kind="Pod"} 2"#));
    }
}
