//! `/metrics`, `/healthz` and `/readyz`.

use crate::context::Context;
use crate::pulse::Pulse;
use crate::watches::Jobs;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) context: Arc<Context>,
    pub(crate) jobs: Jobs,
    pub(crate) pulse: Arc<Pulse>,
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: TcpListener, served: Served) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(served);
    axum::serve(listener, routes).await
}

async fn metrics(State(served): State<Served>) -> String {
    let states: Vec<_> = served.jobs.state().iter().map(|job| crate::watches::state_name(job)).collect();
    served.context.metrics.set_seen(served.context.streams.connected(), &states);
    served.context.metrics.encode()
}

/// The loop turns, of a leader and of a standby alike.
async fn healthz(State(served): State<Served>) -> (StatusCode, &'static str) {
    if served.pulse.is_beating() {
        return (StatusCode::OK, "ok");
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the loop that campaigns and hands out passes is stuck")
}

/// Ready once all that passes rest on has been listed, of a leader and of a standby alike.
async fn readyz(State(served): State<Served>) -> (StatusCode, &'static str) {
    let listed = async { tokio::join!(served.jobs.wait_until_ready(), served.context.wait_for_caches()) };
    match tokio::time::timeout(Duration::from_millis(100), listed).await {
        Ok((Ok(()), ())) => (StatusCode::OK, "ok"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "StreamJobs and what belongs to them have not been listed yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::{Calls, server};
    use crate::watches::WatchedJob;
    use kube::runtime::reflector::store;
    use kube::runtime::watcher::Event;

    /// A pass on a cache that is not full would take for lost what is only not listed.
    #[tokio::test]
    async fn ready_is_who_has_listed_all_that_passes_rest_on() {
        let (jobs, mut listed_jobs) = store::<WatchedJob>();
        let (pods, mut listed_pods) = store();
        let (services, mut listed_services) = store();
        let (config_maps, mut listed_config_maps) = store();
        let client = server(&Calls::default(), |_, _| None);
        let context = Context { pods, services, config_maps, ..Context::on(client) };
        let served = Served { context: Arc::new(context), jobs, pulse: Arc::new(Pulse::new()) };
        let lists: [(&str, &mut dyn FnMut()); 4] = [
            ("StreamJobs", &mut || listed_jobs.apply_watcher_event(&Event::InitDone)),
            ("Pods", &mut || listed_pods.apply_watcher_event(&Event::InitDone)),
            ("Services", &mut || listed_services.apply_watcher_event(&Event::InitDone)),
            ("ConfigMaps", &mut || listed_config_maps.apply_watcher_event(&Event::InitDone)),
        ];
        for (kind, list) in lists {
            let (code, _) = readyz(State(served.clone())).await;
            assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "ready before {kind} are listed");
            list();
        }
        assert_eq!(readyz(State(served)).await.0, StatusCode::OK);
    }
}
