//! HTTP on port 8081: status, metrics and probes of a process, read-only.
//!
//! It owns routes and nothing else; what it shows comes from [`Views`], which every kind of process fills with what
//! it has. A taken port is an error that names the flag.

use crate::metrics::{self, TaskView};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::json;
use sluice_protocol::status::JobStatus;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What a process shows. All functions are cheap.
#[derive(Clone)]
pub struct Views {
    /// `jobmanager`, `taskmanager` or `local`.
    pub role: &'static str,
    /// The job's status, where this process knows it.
    pub status: Option<watch::Receiver<JobStatus>>,
    /// The tasks that run here.
    pub tasks: Option<TaskView>,
    /// Whether the control loop answers.
    pub ready: ReadyCheck,
}

/// Asks the control loop whether it lives.
pub type ReadyCheck = Arc<dyn Fn() -> futures::future::BoxFuture<'static, bool> + Send + Sync>;

/// A port that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error("--rest-port: cannot listen on {address}: {source}; choose another port with --rest-port, or 0 for any free one")]
pub struct RestError {
    /// Which.
    pub address: SocketAddr,
    /// Why.
    pub source: std::io::Error,
}

/// A running server; it ends when this is dropped.
pub struct RestServer {
    address: SocketAddr,
    _stop: DropGuard,
}

impl RestServer {
    /// Listens on `address` and serves the views.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn start(address: SocketAddr, views: Views) -> Result<Self, RestError> {
        let failed = |source| RestError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let serving = axum::serve(listener, router(views));
        tokio::spawn(async move {
            // Open connections of scrapers are not waited for: the process is about to end.
            tokio::select! {
                _ = serving.into_future() => {}
                () = stopped => {}
            }
        });
        Ok(Self { address: bound, _stop: stop.drop_guard() })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

fn router(views: Views) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/status", get(status))
        .route("/metrics", get(scrape))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(views)
}

async fn index(State(views): State<Views>) -> Response {
    let state = views.status.as_ref().map(|status| status.borrow().state);
    Json(json!({
        "name": "sluice",
        "version": env!("CARGO_PKG_VERSION"),
        "role": views.role,
        "state": state,
        "paths": ["/status", "/metrics", "/healthz", "/readyz"],
    }))
    .into_response()
}

async fn status(State(views): State<Views>) -> Response {
    match &views.status {
        Some(status) => Json(status.borrow().clone()).into_response(),
        None => Json(json!({"role": views.role, "tasks": views.tasks.as_ref().map(|tasks| tasks())})).into_response(),
    }
}

async fn scrape(State(views): State<Views>) -> Response {
    let status = views.status.as_ref().map(|status| status.borrow().clone());
    let tasks = views.tasks.as_ref().map(|tasks| tasks()).unwrap_or_default();
    match metrics::render(status.as_ref(), &tasks) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(views): State<Views>) -> Response {
    if (views.ready)().await {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the control loop does not answer").into_response()
    }
}
