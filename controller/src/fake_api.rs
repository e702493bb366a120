//! For tests: an API server that answers each call from a table, and remembers all of them.

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Method, path and body of each call.
pub(crate) type Calls = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// One that answers a call with the status code and body that `answer` has for it; with what was sent by default.
pub(crate) fn server<A>(calls: &Calls, answer: A) -> Client
where
    A: Fn(&Method, &str) -> Option<(u16, Value)> + Clone + Send + Sync + 'static,
{
    let calls = Arc::clone(calls);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (calls, answer) = (Arc::clone(&calls), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("a body");
            let path = parts.uri.path().to_owned();
            let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
            let given = answer(&parts.method, &path);
            let (code, answer) = match given {
                Some(given) => given,
                None if parts.method == Method::GET => (404, refusal(404, "NotFound", "not found")),
                None => (200, sent.clone()),
            };
            calls.lock().expect("no panic").push((parts.method, path, sent));
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, kube::Error>(Response::builder().status(code).body(body).expect("a response"))
        }
    });
    Client::new(service, "ns")
}

/// What the API server says when it refuses.
pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": message})
}

/// The calls so far, as `METHOD path`, events left out.
pub(crate) fn lines(calls: &Calls) -> Vec<String> {
    let calls = calls.lock().expect("no panic");
    let lines = calls.iter().map(|(method, path, _)| format!("{method} {path}"));
    lines.filter(|line| !line.contains("/events")).collect()
}
