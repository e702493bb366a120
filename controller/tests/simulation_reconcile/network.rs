//! The way from a replica to the API server: what is sent arrives after a while, long after, twice refused, or never, and
//! so do answers. What was sent goes on its way also when its sender has died.

use crate::api_server::{Answer, Call, Refusal};
use crate::world::{World, unwell};
use axum::body::{Body, Bytes};
use futures::future::BoxFuture;
use futures::stream;
use http::{Request, Response};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a bookmark may be waited for.
const BOOKMARK: Duration = Duration::from_secs(60);

/// The service behind one replica's client.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) world: World,
    /// Names the replica's process.
    pub(crate) process: u32,
    pub(crate) alive: Arc<AtomicBool>,
    pub(crate) tangled: Arc<AtomicBool>,
}

impl tower::Service<Request<kube::client::Body>> for Network {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let network = self.clone();
        Box::pin(async move {
            let call = read(request).await?;
            if !network.alive.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            let sent = network.world.lock().check.on_sent(network.process, &call);
            if let Err(what) = sent {
                network.world.violate(what);
            }
            if call.is_watch() { network.watch(call).await } else { network.send(call).await }
        })
    }
}

/// What becomes of one call.
struct Fate {
    /// Until it takes effect.
    before: u64,
    /// Until the answer is there.
    after: u64,
    effect: Effect,
}

enum Effect {
    Answered,
    Refused(Refusal),
    /// It takes effect, and nobody hears of it.
    Unheard,
    Lost,
}

impl Network {
    fn fate(&self, call: &Call) -> Fate {
        let now = self.world.now();
        let mut state = self.world.lock();
        let is_away = now < state.api_away_until;
        let percent = match (state.is_faulty, is_away) {
            (false, _) => 0,
            (true, true) => 90,
            (true, false) => state.scenario.api_failures,
        };
        let held = (call.method == "DELETE").then(|| state.delete_held_for.take()).flatten();
        let rng = &mut state.rng;
        let (before, after) = (rng.u64(1..8), rng.u64(1..8));
        if let Some(before) = held {
            return Fate { before, after, effect: Effect::Unheard };
        }
        let longest = if call.method == "GET" { 3000 } else { 20_000 };
        if self.tangled.load(Ordering::Relaxed) {
            let before = rng.u64(2000..25_000);
            return Fate { before, after, effect: if rng.bool() { Effect::Answered } else { Effect::Unheard } };
        }
        if rng.u32(..100) >= percent {
            return Fate { before, after, effect: Effect::Answered };
        }
        match rng.u32(..10) {
            0..4 => Fate { before, after, effect: Effect::Refused(unwell(rng)) },
            4..6 => Fate { before, after: rng.u64(500..longest), effect: Effect::Unheard },
            6..8 => Fate { before: rng.u64(100..longest), after, effect: Effect::Answered },
            _ => Fate { before: rng.u64(100..3000), after, effect: Effect::Lost },
        }
    }

    async fn send(self, call: Call) -> io::Result<Response<Body>> {
        let Fate { before, after, effect } = self.fate(&call);
        let (sender, answer) = oneshot::channel();
        let (world, alive) = (self.world.clone(), Arc::clone(&self.alive));
        let sent_at = world.lock().api.version();
        tokio::spawn(async move {
            sleep(Duration::from_millis(before)).await;
            let answer = match effect {
                Effect::Answered => Ok(effect_of(&world, &call, sent_at)),
                Effect::Refused(refusal) => Ok(Err(refusal)),
                Effect::Unheard => {
                    let _ = effect_of(&world, &call, sent_at);
                    Err(no_answer())
                }
                Effect::Lost => Err(no_answer()),
            };
            sleep(Duration::from_millis(after)).await;
            // Its sender may have given it up.
            let _ = sender.send(answer);
        });
        let answer = answer.await.unwrap_or_else(|_| Err(no_answer()))?;
        if !alive.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        Ok(response(answer))
    }

    async fn watch(self, call: Call) -> io::Result<Response<Body>> {
        let refusal = {
            let now = self.world.now();
            let mut state = self.world.lock();
            let fails = state.is_faulty && now < state.api_away_until;
            fails.then(|| unwell(&mut state.rng))
        };
        self.world.pause(1..10).await;
        if let Some(refusal) = refusal {
            return Ok(response(Err(refusal)));
        }
        let after = call.query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or_default();
        let seconds = call.query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(290);
        let breaks = *self.world.breaks.borrow();
        let watch = Watch {
            breaks,
            version: self.world.version.subscribe(),
            broken: self.world.breaks.subscribe(),
            end: Instant::now() + Duration::from_secs(seconds),
            network: self,
            call,
            after,
            is_over: false,
        };
        let lines = stream::unfold(watch, |mut watch| async move {
            let line = watch.next().await?;
            Some((Ok::<_, io::Error>(Bytes::from(line)), watch))
        });
        Ok(Response::new(Body::from_stream(lines)))
    }
}

/// One watch, as the API server holds it.
struct Watch {
    network: Network,
    call: Call,
    after: u64,
    version: tokio::sync::watch::Receiver<u64>,
    broken: tokio::sync::watch::Receiver<u64>,
    breaks: u64,
    end: Instant,
    is_over: bool,
}

impl Watch {
    /// The next lines; `None` at its end.
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.is_over || Instant::now() >= self.end || *self.broken.borrow() != self.breaks {
                return None;
            }
            let after = self.after;
            let news = async {
                tokio::select! {
                    biased;
                    _ = self.broken.changed() => false,
                    changed = self.version.wait_for(|version| *version > after) => changed.is_ok(),
                }
            };
            let world = self.network.world.clone();
            match timeout_at(self.end.min(Instant::now() + BOOKMARK), news).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(_) => return Some(self.bookmark()),
            }
            let lag = {
                let now = world.now();
                let mut state = world.lock();
                let longest = if now < state.watches_lag_until { 5000 } else { 12 };
                state.rng.u64(1..longest)
            };
            sleep(Duration::from_millis(lag)).await;
            let changes = world.lock().api.changes(&self.call, after);
            let Some((changes, version)) = changes else {
                self.is_over = true;
                let gone = Refusal::new(410, "Expired", "too old resource version").status();
                return Some(line(&json!({"type": "ERROR", "object": gone})));
            };
            self.after = version;
            if !changes.is_empty() {
                return Some(changes.iter().map(line).collect());
            }
        }
    }

    fn bookmark(&self) -> String {
        let object = json!({"apiVersion": self.call.api_version, "kind": "Bookmark",
            "metadata": {"resourceVersion": self.after.to_string(), "annotations": {}}});
        line(&json!({"type": "BOOKMARK", "object": object}))
    }
}

/// Carries out what a replica sent when `sent_at` was the last resourceVersion.
fn effect_of(world: &World, call: &Call, sent_at: u64) -> Answer {
    let (version, target) = {
        let state = world.lock();
        let (resource, namespace, name) = call.key();
        (state.api.version(), state.api.get(&resource, &namespace, &name).cloned())
    };
    let answer = world.carry_out(call);
    let is_done = answer.is_ok();
    if is_done && call.subresource.as_deref() == Some("status") && world.lock().api.version() == version {
        world.violate(format!("a status of {} {} was written that says nothing new", call.resource, call.key().2));
    }
    if is_done && call.method == "DELETE" {
        let uid = target.as_ref().and_then(|object| object["metadata"]["uid"].as_str()).unwrap_or_default();
        let made_at = world.lock().api.made_at(uid);
        if made_at.is_some_and(|made| made > sent_at) {
            world.violate(format!(
                "C2: a delete hit {} {}, which was made after it was sent",
                call.resource,
                call.key().2
            ));
        }
    }
    answer
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer")
}

fn response(answer: Answer) -> Response<Body> {
    let (code, body) = match answer {
        Ok(value) => (200, value),
        Err(refusal) => (refusal.code, refusal.status()),
    };
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).expect("a code of HTTP");
    response
}

async fn read(request: Request<kube::client::Body>) -> io::Result<Call> {
    let (parts, body) = request.into_parts();
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let bytes = body.collect_bytes().await.map_err(io::Error::other)?;
    let body = if bytes.is_empty() { json!({}) } else { serde_json::from_slice(&bytes)? };
    let segments: Vec<&str> = parts.uri.path().split('/').filter(|segment| !segment.is_empty()).collect();
    let (api_version, rest) = match segments.split_first() {
        Some((&"api", rest)) => (rest[0].to_owned(), &rest[1..]),
        Some((_, rest)) => (format!("{}/{}", rest[0], rest[1]), &rest[2..]),
        None => return Err(io::Error::other("a request for nothing")),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => ((*namespace).to_owned(), rest),
        rest => (String::new(), rest),
    };
    let query = parts.uri.query().unwrap_or_default();
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query: BTreeMap<String, String> = pairs.map(|(name, value)| (name.to_owned(), decode(value))).collect();
    Ok(Call {
        method: parts.method.to_string(),
        resource: rest.first().map(|text| (*text).to_owned()).unwrap_or_default(),
        api_version,
        namespace,
        name: rest.get(1).map(|text| (*text).to_owned()),
        subresource: rest.get(2).map(|text| (*text).to_owned()),
        query,
        content: header("content-type"),
        partial: header("accept").contains("PartialObjectMetadata"),
        body,
    })
}

/// Percent-encoding undone.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
