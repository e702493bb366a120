//! A small external-metrics server, as an autoscaler asks one: the test says what a metric is, the API server asks this
//! process for it.
//!
//! It listens where pods reach this machine (the host of `SLUICE_TEST_S3_PODS`), with a certificate that nobody checks.
//! One at a time on a cluster, since the API is one; what it registers goes with the guard.

use crate::{apply, kubectl};
use anyhow::{Context as _, Result, ensure};
use axum::extract::{Path, State};
use axum::routing::get;
use axum::serve::Listener;
use axum::{Json, Router};
use serde_json::{Value, json};
use sluice_test_s3::Authority;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const GROUP: &str = "external.metrics.k8s.io/v1beta1";
const API: &str = "v1beta1.external.metrics.k8s.io";
/// How long the API server may take to find it.
const REGISTERED: Duration = Duration::from_secs(90);
/// How often it is told to look again: by itself it would after up to 30 s.
const NUDGE: Duration = Duration::from_secs(3);
/// What a connection has for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Its Service.
const NAME: &str = "sluice-test-metrics";

/// Serves one metric under every name until it is dropped.
pub struct ExternalMetrics {
    value: Arc<AtomicU64>,
    server: JoinHandle<()>,
    namespace: String,
}

impl ExternalMetrics {
    /// Starts it and registers it with the API server, by a Service in `namespace`.
    ///
    /// # Errors
    /// There is no such address on this machine, or the API server refuses.
    pub async fn start(namespace: &str, s3_pods: &str) -> Result<Self> {
        let host = s3_pods.split("://").last().and_then(|rest| rest.split([':', '/']).next()).context("a host")?;
        let listener = TcpListener::bind((host, 0)).await.with_context(|| format!("listening on {host}"))?;
        let address = listener.local_addr()?;
        let acceptor = Authority::new()?.certificate_for(host)?.acceptor()?;
        let value = Arc::new(AtomicU64::new(0));
        let router = Router::new()
            .route(&format!("/apis/{GROUP}"), get(|| async { Json(resources()) }))
            .route(&format!("/apis/{GROUP}/namespaces/{{namespace}}/{{metric}}"), get(metric))
            .with_state(Arc::clone(&value));
        let server = tokio::spawn(async move {
            let _ = axum::serve(Tls::new(listener, acceptor), router).await;
        });
        let metrics = Self { value, server, namespace: namespace.to_owned() };
        apply(namespace, &registration(namespace, address))?;
        wait_available(address).await?;
        Ok(metrics)
    }

    /// What the metric is from now on.
    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }
}

impl Drop for ExternalMetrics {
    fn drop(&mut self) {
        self.server.abort();
        let _ = kubectl(&["delete", "apiservice", API, "--ignore-not-found"]);
        let _ = kubectl(&["-n", &self.namespace, "delete", "service", NAME, "--ignore-not-found"]);
    }
}

/// Waits until the API server reaches it.
///
/// # Errors
/// It does not, with what the API server says of it.
async fn wait_available(address: SocketAddr) -> Result<()> {
    let begin = Instant::now();
    let mut nudges = 1;
    loop {
        let [status, reason, message] = availability()?;
        if status == "True" {
            return Ok(());
        }
        ensure!(
            begin.elapsed() < REGISTERED,
            "the API server does not reach {address} within {REGISTERED:?}; it says of {API}: {reason}: {message}"
        );
        if begin.elapsed() > NUDGE * nudges {
            kubectl(&["annotate", "--overwrite", "apiservice", API, &format!("sluice.dev/nudge={nudges}")])?;
            nudges += 1;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Status, reason and message of the API's condition `Available`; empty while the API server has not looked.
fn availability() -> Result<[String; 3]> {
    let api: Value = serde_json::from_str(&kubectl(&["get", "apiservice", API, "-o", "json"])?)?;
    let conditions = api["status"]["conditions"].as_array();
    let available = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == "Available"));
    let text = |field| available.and_then(|condition| condition[field].as_str()).unwrap_or_default().to_owned();
    Ok([text("status"), text("reason"), text("message")])
}

fn resources() -> Value {
    let resource = json!({"name": "*", "singularName": "", "namespaced": true, "kind": "ExternalMetricValueList",
        "verbs": ["get"]});
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": [resource]})
}

async fn metric(Path((_, metric)): Path<(String, String)>, State(value): State<Arc<AtomicU64>>) -> Json<Value> {
    let now = k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let item = json!({"metricName": metric, "metricLabels": {}, "timestamp": now,
        "value": value.load(Ordering::Relaxed).to_string()});
    Json(json!({"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}, "items": [item]}))
}

fn registration(namespace: &str, address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!(
        r#"apiVersion: v1
kind: Service
metadata: {{name: {NAME}, namespace: {namespace}}}
spec: {{ports: [{{name: https, port: 443, targetPort: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {NAME}, namespace: {namespace}, labels: {{kubernetes.io/service-name: {NAME}}}}}
addressType: IPv4
ports: [{{name: https, port: {port}}}]
endpoints: [{{addresses: ["{ip}"], conditions: {{ready: true}}}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: {API}}}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {{name: {NAME}, namespace: {namespace}, port: 443}}
"#
    )
}

/// A listener whose connections are TLS. Handshakes go on beside each other: one that says nothing holds up no other,
/// and is passed over after [`HANDSHAKE`], as is one that fails.
struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl Tls {
    fn new(listener: TcpListener, acceptor: TlsAcceptor) -> Self {
        Self { listener, acceptor, handshakes: JoinSet::new() }
    }
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                (stream, from) = Listener::accept(&mut self.listener) => {
                    let handshake = tokio::time::timeout(HANDSHAKE, self.acceptor.accept(stream));
                    self.handshakes.spawn(async move { Some((handshake.await.ok()?.ok()?, from)) });
                }
                Some(handshake) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = handshake {
                        return connection;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Who speaks no TLS is told so at once, though another who says nothing came first.
    #[tokio::test]
    async fn a_silent_connection_holds_up_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let acceptor = Authority::new().and_then(|own| own.certificate_for("127.0.0.1")?.acceptor()).expect("TLS");
        let mut tls = Tls::new(listener, acceptor);
        let server = tokio::spawn(async move { tls.accept().await });
        let _silent = TcpStream::connect(address).await.expect("a connection");
        let mut other = TcpStream::connect(address).await.expect("a connection");
        other.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("written");
        let mut answer = Vec::new();
        let told = tokio::time::timeout(HANDSHAKE / 2, other.read_to_end(&mut answer)).await;
        assert!(told.is_ok(), "no answer while another connection is silent");
        server.abort();
    }
}
