//! The client of the API server: every call is counted by verb and code, and one that changes something is sent only
//! while this replica leads.

use crate::leader::{Leadership, NotLeading};
use crate::metrics::Metrics;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use kube::config::Config;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{BoxError, Layer, Service};

/// A client whose calls are counted; with a leadership, what changes something needs it.
///
/// # Errors
/// The configuration does not make a client.
pub(crate) fn build(
    config: &Config,
    metrics: &Arc<Metrics>,
    leadership: Option<&Arc<Leadership>>,
) -> Result<Client, kube::Error> {
    let layer = Calls { metrics: Arc::clone(metrics), leadership: leadership.cloned() };
    Ok(ClientBuilder::try_from(config.clone())?.with_layer(&layer).build())
}

/// The same over whatever takes requests in place of an API server.
pub(crate) fn over<S>(service: S, metrics: &Arc<Metrics>, leadership: Option<&Arc<Leadership>>) -> Client
where
    S: Service<Request<Body>, Response = Response<axum::body::Body>, Future: Send + 'static, Error: Into<BoxError>>
        + Send
        + 'static,
{
    let layer = Calls { metrics: Arc::clone(metrics), leadership: leadership.cloned() };
    Client::new(layer.layer(service), "default")
}

struct Calls {
    metrics: Arc<Metrics>,
    leadership: Option<Arc<Leadership>>,
}

impl<S> Layer<S> for Calls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, metrics: Arc::clone(&self.metrics), leadership: self.leadership.clone() }
    }
}

struct Counted<S> {
    inner: S,
    metrics: Arc<Metrics>,
    leadership: Option<Arc<Leadership>>,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let verb = verb(request.method(), request.uri().path(), request.uri().query().unwrap_or_default());
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let leadership = self.leadership.clone().filter(|_| changes);
        if leadership.as_ref().is_some_and(|leadership| !leadership.is_leading()) {
            return Box::pin(std::future::ready(Err(NotLeading.into())));
        }
        let (answer, metrics) = (self.inner.call(request), Arc::clone(&self.metrics));
        Box::pin(async move {
            let answer = match leadership {
                None => answer.await.map_err(Into::into),
                Some(leadership) => while_leading(&leadership, answer).await,
            };
            let code = answer.as_ref().map_or("none".to_owned(), |answer| answer.status().as_u16().to_string());
            metrics.count_api_request(verb, &code);
            answer
        })
    }
}

async fn while_leading<T, E: Into<BoxError>>(
    leadership: &Leadership,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    let _in_flight = leadership.begin().ok_or(NotLeading)?;
    tokio::select! {
        biased;
        answer = answer => answer.map_err(Into::into),
        () = leadership.writes_end() => Err(NotLeading.into()),
    }
}

/// Kubernetes' name of a call.
fn verb(method: &Method, path: &str, query: &str) -> &'static str {
    match *method {
        Method::GET if query.split('&').any(|pair| pair == "watch=true") => "watch",
        Method::GET if is_collection(path) => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

/// Whether a path names a resource and no object: `/api/v1/pods`, `/apis/GROUP/VERSION/namespaces/NAMESPACE/jobs`.
fn is_collection(path: &str) -> bool {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    let after_version = match segments.next() {
        Some("api") => segments.skip(1).collect::<Vec<_>>(),
        Some("apis") => segments.skip(2).collect(),
        _ => return false,
    };
    matches!(after_version[..], [_] | ["namespaces", _, _])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tower::service_fn;

    #[test]
    fn calls_have_kubernetes_names() {
        let get = |path: &str, query: &str| verb(&Method::GET, path, query);
        assert_eq!(get("/api/v1/pods", "limit=500"), "list");
        assert_eq!(get("/api/v1/namespaces/a/pods", ""), "list");
        assert_eq!(get("/api/v1/namespaces/a/pods/b", ""), "get");
        assert_eq!(get("/apis/sluice.dev/v1alpha1/namespaces/a/streamjobs", "a=b&watch=true"), "watch");
        assert_eq!(get("/apis/sluice.dev/v1alpha1/namespaces/a/streamjobs/b/status", ""), "get");
        assert_eq!(get("/version", ""), "get");
        assert_eq!(verb(&Method::PATCH, "/api/v1/namespaces/a/services/b", ""), "patch");
        assert_eq!(verb(&Method::PUT, "/", ""), "update");
    }

    async fn call(
        counted: &mut Counted<
            impl Service<Request<Body>, Response = Response<()>, Error = Infallible, Future: Send + 'static>,
        >,
        method: Method,
    ) -> Result<u16, String> {
        let request = Request::builder().method(method).uri("/api/v1/namespaces/a/pods").body(Body::empty());
        let answer = counted.call(request.unwrap()).await;
        answer.map(|answer| answer.status().as_u16()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn what_changes_something_is_sent_by_the_leader_only() {
        let (metrics, leadership) = (Arc::new(Metrics::default()), Arc::new(Leadership::standby()));
        let calls = Calls { metrics: Arc::clone(&metrics), leadership: Some(Arc::clone(&leadership)) };
        let answer = |_| std::future::ready(Ok::<_, Infallible>(Response::new(())));
        let mut counted = calls.layer(service_fn(answer));
        assert_eq!(call(&mut counted, Method::GET).await, Ok(200));
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(call(&mut counted, method).await.unwrap_err().starts_with("not sent"));
        }
        leadership.extend(tokio::time::Instant::now());
        assert_eq!(call(&mut counted, Method::POST).await, Ok(200));
        let text = metrics.encode();
        assert!(text.contains(r#"sluice_controller_api_requests_total{verb="list",code="200"} 1"#), "{text}");
        assert!(text.contains(r#"sluice_controller_api_requests_total{verb="create",code="200"} 1"#), "{text}");
        assert!(!text.contains("delete"), "{text}");
    }

    #[tokio::test]
    async fn a_change_under_way_is_given_up_when_another_may_soon_lead() {
        let leadership = Leadership::standby();
        leadership.extend(tokio::time::Instant::now());
        let (_never, answer) = tokio::sync::oneshot::channel::<()>();
        let lost = async { leadership.end() };
        let (given_up, ()) = tokio::join!(while_leading(&leadership, answer), lost);
        assert!(given_up.is_err());
        leadership.extend(tokio::time::Instant::now());
        let answered = while_leading(&leadership, std::future::ready(Ok::<_, BoxError>(1))).await;
        assert_eq!(answered.unwrap(), 1);
    }
}
