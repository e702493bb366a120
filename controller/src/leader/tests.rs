//! Candidates against an API server in memory that knows one Lease: versions, conflicts, and being away.

use super::*;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Mutex;
use tower::service_fn;

#[derive(Default)]
struct Server {
    lease: Mutex<Option<Value>>,
    version: Mutex<u64>,
    away: Mutex<bool>,
}

impl Server {
    fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let (code, answer) = server.answer(&parts.method, &body);
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
        if *self.away.lock().unwrap() {
            return failure(StatusCode::SERVICE_UNAVAILABLE);
        }
        let mut lease = self.lease.lock().unwrap();
        let given = || serde_json::from_slice::<Value>(body).unwrap();
        match (method, &*lease) {
            (&Method::GET, Some(there)) => (StatusCode::OK, there.clone()),
            (&Method::GET | &Method::PUT, None) => failure(StatusCode::NOT_FOUND),
            (&Method::POST, Some(_)) => failure(StatusCode::CONFLICT),
            (&Method::POST, None) => (StatusCode::CREATED, self.put(&mut lease, given())),
            (&Method::PUT, Some(there)) => {
                let given = given();
                if given["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"] {
                    return failure(StatusCode::CONFLICT);
                }
                (StatusCode::OK, self.put(&mut lease, given))
            }
            other => panic!("{other:?}"),
        }
    }

    fn put(&self, lease: &mut Option<Value>, mut given: Value) -> Value {
        let mut version = self.version.lock().unwrap();
        *version += 1;
        given["metadata"]["resourceVersion"] = json!(version.to_string());
        *lease = Some(given.clone());
        given
    }
}

fn failure(code: StatusCode) -> (StatusCode, Value) {
    let reason = code.canonical_reason().map(|words| words.replace(' ', ""));
    (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "reason": reason}))
}

fn candidate(server: &Arc<Server>, pod: &str) -> Candidate {
    Candidate::new(server.client(), ("system", "sluice"), Some(pod))
}

#[tokio::test]
async fn a_released_lease_is_taken_within_about_a_second_and_one_leads_at_a_time() {
    let server = Arc::new(Server::default());
    let (mut first, mut second) = (candidate(&server, "a"), candidate(&server, "b"));
    first.campaign().await;
    assert!(first.leadership().is_leading());
    let waits = timeout(Duration::from_millis(1500), second.campaign()).await;
    assert!(waits.is_err() && !second.leadership().is_leading(), "the lease is held");
    first.release().await;
    assert!(!first.leadership().is_leading());
    let released = Instant::now();
    second.campaign().await;
    assert!(second.leadership().is_leading() && released.elapsed() < Duration::from_millis(1500));
    let spec = server.lease.lock().unwrap().clone().unwrap()["spec"].clone();
    assert_eq!(spec["leaseTransitions"], json!(1));
    assert!(spec["holderIdentity"].as_str().unwrap().starts_with("b_"), "{spec}");
}

#[tokio::test]
async fn a_leader_goes_on_through_a_short_absence_and_stands_by_after_a_long_one() {
    let server = Arc::new(Server::default());
    let mut leader = candidate(&server, "a");
    leader.campaign().await;
    let leadership = leader.leadership();
    let world = async {
        *server.away.lock().unwrap() = true;
        sleep(RENEW + LOOK).await;
        *server.away.lock().unwrap() = false;
        sleep(DEADLINE).await;
        assert!(leadership.is_leading(), "it has renewed meanwhile");
        *server.away.lock().unwrap() = true;
        Instant::now()
    };
    let ((), away) = tokio::join!(leader.hold(), world);
    assert!(!leadership.is_leading());
    assert!(away.elapsed() <= DEADLINE + LOOK, "{:?}", away.elapsed());
    *server.away.lock().unwrap() = false;
    leader.campaign().await;
    assert!(leadership.is_leading(), "nobody else took it");
}

#[tokio::test]
async fn a_leader_that_meets_another_stops_at_once() {
    let server = Arc::new(Server::default());
    let mut leader = candidate(&server, "a");
    leader.campaign().await;
    let taken = leader.held.clone().map(|mut lease| {
        lease.spec.get_or_insert_default().holder_identity = Some("b".to_owned());
        serde_json::to_value(lease).unwrap()
    });
    server.put(&mut server.lease.lock().unwrap(), taken.unwrap());
    let met = Instant::now();
    leader.hold().await;
    assert!(!leader.leadership().is_leading() && met.elapsed() < DEADLINE);
}
