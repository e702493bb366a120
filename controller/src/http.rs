//! `/metrics`, `/healthz` and `/readyz`.

use crate::context::Context;
use crate::watches::Jobs;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;
use tokio::net::TcpListener;

#[derive(Clone)]
struct Served {
    context: Arc<Context>,
    jobs: Jobs,
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: TcpListener, context: Arc<Context>, jobs: Jobs) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .with_state(Served { context, jobs });
    axum::serve(listener, routes).await
}

async fn metrics(State(served): State<Served>) -> String {
    let states: Vec<_> = served.jobs.state().iter().map(|job| crate::watches::state_name(job)).collect();
    served.context.metrics.encode(served.context.streams.connected(), &states)
}

/// Ready once every StreamJob is known.
async fn readyz(State(served): State<Served>) -> (StatusCode, &'static str) {
    let ready = tokio::time::timeout(std::time::Duration::from_millis(100), served.jobs.wait_until_ready()).await;
    match ready {
        Ok(Ok(())) => (StatusCode::OK, "ok"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "StreamJobs have not been listed yet"),
    }
}
