//! HTTP on port 8081: status, metrics and probes of a process, read-only.
//!
//! It owns routes and nothing else; what it shows comes from [`Views`], which every kind of process fills with what
//! it has. A taken port is an error that names the flag.

use crate::metrics::{self, TaskView};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::json;
use sluice_protocol::CheckpointId;
use sluice_protocol::history::CheckpointHistory;
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
    /// How the last checkpoints went, where this process knows it.
    pub history: Option<watch::Receiver<Arc<CheckpointHistory>>>,
    /// The tasks that run here.
    pub tasks: Option<TaskView>,
    /// Whether the control loop answers.
    pub ready: ReadyCheck,
}

/// Asks the control loop whether it lives.
pub type ReadyCheck = Arc<dyn Fn() -> futures::future::BoxFuture<'static, bool> + Send + Sync>;

/// A port that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error(
    "--rest-port: cannot listen on {address}: {source}; choose another port with --rest-port, or 0 for any free one"
)]
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
        .route("/checkpoints", get(checkpoints))
        .route("/checkpoints/{id}", get(checkpoint))
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
        "paths": ["/status", "/checkpoints", "/checkpoints/{id}", "/metrics", "/healthz", "/readyz"],
    }))
    .into_response()
}

async fn status(State(views): State<Views>) -> Response {
    match &views.status {
        Some(status) => Json(status.borrow().clone()).into_response(),
        None => Json(json!({"role": views.role, "tasks": views.tasks.as_ref().map(|tasks| tasks())})).into_response(),
    }
}

/// The last checkpoints in short, newest first, with counts.
async fn checkpoints(State(views): State<Views>) -> Response {
    let (Some(history), Some(status)) = (&views.history, &views.status) else {
        return (StatusCode::NOT_FOUND, "only a JobManager knows of checkpoints").into_response();
    };
    let (history, status) = (Arc::clone(&history.borrow()), status.borrow().clone());
    let records: Vec<_> = history.iter().rev().map(|one| &one.record).collect();
    Json(json!({
        "counts": {
            "completed": status.completed_checkpoints,
            "failed": status.failed_checkpoints,
            "failedInARow": status.failed_checkpoints_in_a_row,
            "inProgress": status.pending_checkpoints.len(),
        },
        "latest": {"completed": status.last_checkpoint, "restored": status.restored_from},
        "requests": status.requests,
        "history": records,
    }))
    .into_response()
}

/// One checkpoint by vertex and subtask.
async fn checkpoint(State(views): State<Views>, Path(id): Path<u64>) -> Response {
    let history = views.history.as_ref().map(|history| Arc::clone(&history.borrow()));
    match history.as_ref().and_then(|history| history.get(CheckpointId(id))) {
        Some(details) => Json(details).into_response(),
        None => (StatusCode::NOT_FOUND, format!("checkpoint {id} is none of the last ones; see /checkpoints"))
            .into_response(),
    }
}

async fn scrape(State(views): State<Views>) -> Response {
    let status = views.status.as_ref().map(|status| status.borrow().clone());
    let tasks = views.tasks.as_ref().map(|tasks| tasks()).unwrap_or_default();
    let history = views.history.as_ref().map(|history| Arc::clone(&history.borrow()));
    match metrics::render(status.as_ref(), history.as_deref(), &tasks) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::TaskMetrics;
    use futures::FutureExt as _;
    use sluice_protocol::graph::{JobGraph, OperatorInfo, OperatorKind, Vertex};
    use sluice_protocol::history::RecordState;
    use sluice_protocol::message::{Barrier, CheckpointMetrics};
    use sluice_protocol::status::JobState;
    use sluice_protocol::{SubtaskId, SubtaskIndex, Timestamp, VertexId};
    use std::net::Ipv4Addr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn views() -> Views {
        let status =
            JobStatus { state: JobState::Running, completed_checkpoints: 3, lost_commits: 2, ..JobStatus::default() };
        let lag = [("events-0".to_owned(), 17)].into();
        let name = "Source".to_owned();
        let task = TaskMetrics { name, rows_in: 42, output_queued_bytes: 1234, lag, ..TaskMetrics::default() };
        Views {
            role: "local",
            status: Some(watch::Sender::new(status).subscribe()),
            history: Some(watch::Sender::new(Arc::new(history())).subscribe()),
            tasks: Some(Arc::new(move || vec![task.clone()])),
            ready: Arc::new(|| async { true }.boxed()),
        }
    }

    fn history() -> CheckpointHistory {
        let operator = OperatorInfo { uid: "s".into(), kind: OperatorKind::Source, description: "s".into() };
        let vertex = Vertex { id: VertexId(0), name: "Source".into(), parallelism: 1, operators: vec![operator] };
        let graph = JobGraph { vertices: vec![vertex], edges: vec![], max_parallelism: 4 };
        let mut history = CheckpointHistory::default();
        history.triggered(&Barrier::aligned(CheckpointId(3), Timestamp(100), None), &graph);
        let subtask = SubtaskId { vertex: VertexId(0), index: SubtaskIndex(0) };
        let metrics = CheckpointMetrics { alignment_ms: 5, bytes: 10, full_bytes: 99, ..CheckpointMetrics::default() };
        history.acknowledged(
            CheckpointId(3),
            subtask,
            (metrics, &sluice_protocol::state::SubtaskState::default()),
            Timestamp(120),
        );
        history.ended(CheckpointId(3), RecordState::Completed, None, Timestamp(130));
        history
    }

    #[tokio::test]
    async fn checkpoints_are_told_in_short_and_by_subtask() {
        let server = RestServer::start((Ipv4Addr::LOCALHOST, 0).into(), views()).await.unwrap();
        let json = |body: String| -> serde_json::Value {
            serde_json::from_str(body.split("\r\n\r\n").nth(1).unwrap()).unwrap()
        };
        let all = json(get(server.address(), "/checkpoints").await);
        assert_eq!(all["counts"]["completed"], 3);
        let one = &all["history"][0];
        assert_eq!((&one["id"], &one["state"], &one["alignmentMs"]), (&json!(3), &json!("Completed"), &json!(5)));
        let details = json(get(server.address(), "/checkpoints/3").await);
        assert_eq!(details["vertices"][0]["subtasks"][0]["fullBytes"], 99);
        assert_eq!(details["vertices"][0]["subtasks"][0]["acknowledgedAt"], 120);
        assert!(get(server.address(), "/checkpoints/4").await.starts_with("HTTP/1.1 404"));
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn every_path_answers() {
        let server = RestServer::start((Ipv4Addr::LOCALHOST, 0).into(), views()).await.unwrap();
        let body = get(server.address(), "/status").await;
        let json: JobStatus = serde_json::from_str(body.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((json.state, json.completed_checkpoints), (JobState::Running, 3));
        let metrics = get(server.address(), "/metrics").await;
        assert!(metrics.contains("sluice_job_checkpoints_completed_total 3"), "{metrics}");
        assert!(metrics.contains("sluice_job_commits_lost_total 2"), "{metrics}");
        assert!(metrics.contains("sluice_job_last_checkpoint_alignment_milliseconds 5"), "{metrics}");
        let rows = r#"sluice_task_rows_in_total{vertex="0",name="Source",subtask="0"} 42"#;
        assert!(metrics.contains(rows), "{metrics}");
        let queued = r#"sluice_task_output_queue_bytes{vertex="0",name="Source",subtask="0"} 1234"#;
        assert!(metrics.contains(queued), "{metrics}");
        let lag = r#"sluice_source_lag_records{vertex="0",name="Source",subtask="0",split="events-0"} 17"#;
        assert!(metrics.contains(lag), "{metrics}");
        for path in ["/", "/healthz", "/readyz"] {
            assert!(get(server.address(), path).await.starts_with("HTTP/1.1 200"), "{path}");
        }
        assert!(get(server.address(), "/nothing").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn a_taken_port_names_the_flag() {
        let first = RestServer::start((Ipv4Addr::LOCALHOST, 0).into(), views()).await.unwrap();
        let message = RestServer::start(first.address(), views()).await.err().unwrap().to_string();
        assert!(message.contains("--rest-port") && message.contains(&first.address().to_string()), "{message}");
    }
}
