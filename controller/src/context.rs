//! What every pass of the controller shares: client, caches, streams, and ways to tell.

use crate::backoff::Backoff;
use crate::certificates::Certificates;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::outdated::Outdated;
use crate::planted::Planted;
use crate::savepoint::Savepoints;
use crate::streams::Streams;
use crate::watches::WatchedPod;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::Client;
use kube::runtime::reflector::Store;

/// Shared by all passes.
pub struct Context {
    pub(crate) client: Client,
    pub(crate) runtime_image: String,
    pub(crate) pods: Store<WatchedPod>,
    pub(crate) services: Store<Service>,
    pub(crate) config_maps: Store<ConfigMap>,
    pub(crate) savepoints: Savepoints,
    pub(crate) certificates: std::sync::Arc<Certificates>,
    pub(crate) streams: std::sync::Arc<Streams>,
    pub(crate) events: std::sync::Arc<Events>,
    pub(crate) metrics: std::sync::Arc<Metrics>,
    pub(crate) backoff: Backoff,
    pub(crate) outdated: Outdated,
    pub(crate) planted: Planted,
}

impl Context {
    /// Until pods, Services and ConfigMaps have been listed once: a pass on an empty cache would take all for lost. Of
    /// Savepoints nothing depends on it, and a cluster may not have their CRD.
    pub(crate) async fn wait_for_caches(&self) {
        let Self { pods, services, config_maps, .. } = self;
        // An error means that the watch has ended, with the controller.
        let _ = tokio::join!(pods.wait_until_ready(), services.wait_until_ready(), config_maps.wait_until_ready());
    }
}

#[cfg(test)]
impl Context {
    /// One with empty caches that talks to `client`.
    pub(crate) fn on(client: Client) -> Self {
        let (trigger, _) = tokio::sync::mpsc::unbounded_channel();
        let metrics = std::sync::Arc::new(Metrics::default());
        Self {
            events: std::sync::Arc::new(Events::new(client.clone(), None, std::sync::Arc::clone(&metrics))),
            metrics,
            backoff: Backoff::default(),
            outdated: Outdated::default(),
            planted: Planted::default(),
            runtime_image: "runtime:1".to_owned(),
            client,
            pods: kube::runtime::reflector::store().0,
            services: kube::runtime::reflector::store().0,
            config_maps: kube::runtime::reflector::store().0,
            savepoints: kube::runtime::reflector::store().0,
            certificates: std::sync::Arc::default(),
            streams: std::sync::Arc::new(Streams::new(
                trigger,
                std::sync::Arc::new(crate::connection::Network),
                std::sync::Arc::new(crate::leader::Leadership::alone()),
                std::sync::Arc::default(),
            )),
        }
    }
}
