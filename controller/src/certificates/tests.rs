//! Renewal as a table, what the Secret holds after each step, and the calls that are made.

use super::renewal::{Held, Lives, OVERLAP, Step, due, step};
use super::secret::{build, parse, renewed};
use super::{Certificates, own};
use crate::fake_api::{Calls, lines, server};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use sluice_crds::StreamJob;
use sluice_protocol::{TimeSpan, Timestamp};
use std::sync::{Arc, Mutex};

const LIVES: Lives = Lives { authority: TimeSpan::from_secs(90_000), leaf: TimeSpan::from_secs(9_000) };

fn job() -> StreamJob {
    serde_json::from_value(json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob",
        "metadata": {"name": "pageviews", "namespace": "ns", "uid": "6d4f"},
        "spec": {"program": {"sql": "INSERT INTO a SELECT * FROM b;"}},
    }))
    .expect("is a StreamJob")
}

fn at(seconds: u64) -> Timestamp {
    Timestamp(1_000_000_000_000 + seconds * 1000)
}

#[test]
fn what_is_due_when() {
    let held = |authority, leaves, next: Option<u64>| Held {
        authority_since: at(authority),
        leaves_since: at(leaves),
        next_since: next.map(at),
    };
    let table = [
        (held(0, 0, None), 5_999, Step::Keep),
        (held(0, 0, None), 6_000, Step::Renew),
        (held(0, 54_001, None), 59_999, Step::Keep),
        (held(0, 54_001, None), 60_000, Step::Introduce),
        (held(0, 58_000, Some(60_000)), 63_599, Step::Keep),
        (held(0, 57_000, Some(60_000)), 63_599, Step::Renew),
        (held(0, 58_000, Some(60_000)), 63_600, Step::Switch),
        (held(0, 0, None), 90_000, Step::Make),
        // A controller that was away for long.
        (held(0, 0, Some(60_000)), 89_999, Step::Switch),
    ];
    for (held, now, expected) in table {
        assert_eq!(step(Some(&held), at(now), &LIVES), expected, "{held:?} at {now}");
        assert_eq!(expected == Step::Keep, at(now) < due(&held, &LIVES), "{held:?} at {now}");
    }
    assert_eq!(step(None, at(0), &LIVES), Step::Make);
}

/// Whatever the moment, what the processes hold and what they get next believe each other.
#[test]
fn an_authority_is_followed_by_the_next_without_a_gap() {
    let mut now = at(0);
    let mut material = renewed("6d4f", None, Step::Make, now, &LIVES).expect("is made");
    let first = material.bundle();
    let mut seen = Vec::new();
    while seen.len() < 40 {
        now = due(&material.held, &LIVES);
        let step = step(Some(&material.held), now, &LIVES);
        let next = renewed("6d4f", Some(&material), step, now, &LIVES).expect("is renewed");
        let believed =
            |bundle: &str, by: &super::Material| bundle.contains(by.authority("6d4f").expect("is").certificate());
        assert!(believed(&next.bundle(), &material), "{step:?}: those that have not read the new set are believed");
        assert!(believed(&material.bundle(), &next), "{step:?}: and believe those that have");
        assert!(now.since(material.held.authority_since) < LIVES.authority);
        seen.push(step);
        material = parse("6d4f", &build(&job(), &next)).expect("is read back");
        assert_eq!(material.held, next.held);
    }
    let switches = seen.iter().filter(|step| **step == Step::Switch).count();
    assert!(switches >= 2 && seen.contains(&Step::Introduce) && seen.contains(&Step::Renew), "{seen:?}");
    assert!(!material.bundle().contains(&first), "the first one is forgotten");
    assert!(OVERLAP < TimeSpan(LIVES.leaf.0 / 2));
    own("6d4f", &material, now, &LIVES).expect("the controller has its own");
}

/// The controller with its own certificate, a JobManager with what its pod mounts: over loopback.
#[tokio::test]
async fn the_controller_and_a_pod_of_the_job_believe_each_other() {
    use sluice_rpc::tls::stream::PeerStream;
    use sluice_rpc::tls::{Credentials, Role, Tls};
    let now = crate::time::now();
    let material = renewed("6d4f", None, Step::Make, now, &Lives::default()).expect("is made");
    let data = build(&job(), &material).data.expect("has data");
    let mounted = |role| {
        let text = |key: &str| String::from_utf8(data[key].0.clone()).expect("is text");
        let (certificate, key) = super::keys(role);
        let credentials = Credentials { authority: text("ca.crt"), certificate: text(&certificate), key: text(&key) };
        Tls::from_credentials(&credentials).expect("fit together")
    };
    let controller = own("6d4f", &material, now, &Lives::default()).expect("the controller has its own");
    let job_manager = mounted(Role::JobManager);
    for (client, role) in [(controller, Role::Controller), (mounted(Role::TaskManager), Role::TaskManager)] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serve = async { job_manager.accept(listener.accept().await.expect("somebody").0).await };
        let ask = async {
            let stream = tokio::net::TcpStream::connect(address).await.expect("listens");
            client.connect(stream, Role::JobManager).await
        };
        let (served, asked) = tokio::join!(serve, ask);
        asked.expect("the JobManager is believed");
        assert!(matches!(served.expect("is believed"), PeerStream::Tls(_, seen) if seen == role), "{role:?}");
    }
}

#[test]
fn a_damaged_secret_is_made_anew() {
    let material = renewed("6d4f", None, Step::Make, at(0), &LIVES).expect("is made");
    let whole = build(&job(), &material);
    assert!(parse("6d4f", &whole).is_some());
    let keys: Vec<_> = whole.data.iter().flatten().map(|(key, _)| key.clone()).collect();
    assert_eq!(keys.len(), 9, "{keys:?}");
    for key in &keys {
        let mut damaged = whole.clone();
        damaged.data.as_mut().expect("has data").remove(key);
        assert!(parse("6d4f", &damaged).is_none(), "{key}");
    }
    let mut strange = whole;
    let other = renewed("6d4f", None, Step::Make, at(0), &LIVES).expect("is made");
    let theirs = build(&job(), &other).data.expect("has data")["ca.crt"].clone();
    strange.data.as_mut().expect("has data").insert("ca.crt".to_owned(), theirs);
    assert!(parse("6d4f", &strange).is_none(), "an authority that did not sign");
}

#[test]
fn what_a_clock_that_was_ahead_made_is_made_again() {
    let day = TimeSpan::from_secs(24 * 3600);
    let held = |authority: Timestamp, leaves: Timestamp| Held {
        authority_since: authority,
        leaves_since: leaves,
        next_since: None,
    };
    let now = at(1_000_000);
    let ahead = now.plus(day);
    assert_eq!(step(Some(&held(ahead, ahead)), now, &LIVES), Step::Make);
    assert_eq!(step(Some(&held(now, ahead)), now, &LIVES), Step::Renew);
    assert_eq!(step(Some(&held(now, now.plus(TimeSpan::from_secs(60)))), now, &LIVES), Step::Keep);
}

fn api(there: &Arc<Mutex<Option<Secret>>>, calls: &Calls) -> kube::Client {
    let there = Arc::clone(there);
    server(calls, move |method, path| {
        let there = there.lock().expect("no panic");
        let secret = there.as_ref().filter(|_| method == http::Method::GET && path.contains("/secrets/"))?;
        Some((200, serde_json::to_value(secret).expect("is JSON")))
    })
}

#[tokio::test]
async fn one_read_and_one_write_then_none_until_pods_are_made_or_the_secret_is_gone() {
    let (calls, there) = (Calls::default(), Arc::new(Mutex::new(None)));
    let client = api(&there, &calls);
    let certificates = Certificates::default();
    let path = "/api/v1/namespaces/ns/secrets";
    let mut version = 0;
    let mut take = |calls: &Calls| {
        let lines = lines(calls);
        for (method, _, body) in calls.lock().expect("no panic").drain(..) {
            if method != http::Method::GET {
                version += 1;
                let mut written: Secret = serde_json::from_value(body).expect("is a Secret");
                written.metadata.resource_version = Some(version.to_string());
                *there.lock().expect("no panic") = Some(written);
            }
        }
        lines
    };
    certificates.ensure(&client, &job(), true).await.expect("is made");
    assert_eq!(take(&calls), [format!("GET {path}/pageviews-tls"), format!("POST {path}")]);
    let first = there.lock().expect("no panic").clone().expect("is there");
    assert!(certificates.of("6d4f").is_some());
    certificates.ensure(&client, &job(), false).await.expect("is known");
    assert_eq!(take(&calls), Vec::<String>::new());
    certificates.ensure(&client, &job(), true).await.expect("is there");
    assert_eq!(take(&calls), [format!("GET {path}/pageviews-tls")]);
    // Somebody deletes it: what pods have stays good, since the authority is the same.
    *there.lock().expect("no panic") = None;
    certificates.ensure(&client, &job(), true).await.expect("is made again");
    assert_eq!(take(&calls), [format!("GET {path}/pageviews-tls"), format!("POST {path}")]);
    let again = there.lock().expect("no panic").clone().expect("is there");
    assert!(parse("6d4f", &again).is_some(), "it is whole");
    for key in ["ca.crt", "signer.crt", "signer.key"] {
        assert_eq!(again.data.as_ref().expect("has data")[key], first.data.as_ref().expect("has data")[key], "{key}");
    }
    // Another replica reads it, and writes nothing; one whose certificates run out is written over what was read.
    let other = Certificates::default();
    other.ensure(&client, &job(), true).await.expect("is read");
    assert_eq!(take(&calls), [format!("GET {path}/pageviews-tls")]);
    let hasty = Certificates { lives: Lives { leaf: TimeSpan(3), ..Lives::default() }, ..Certificates::default() };
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    hasty.ensure(&client, &job(), false).await.expect("is renewed");
    assert_eq!(take(&calls), [format!("GET {path}/pageviews-tls"), format!("PUT {path}/pageviews-tls")]);
}

#[tokio::test]
async fn a_secret_of_another_owner_is_left_alone() {
    let material = renewed("6d4f", None, Step::Make, at(0), &LIVES).expect("is made");
    let mut foreign = build(&job(), &material);
    foreign.metadata.owner_references = None;
    let calls = Calls::default();
    let client = api(&Arc::new(Mutex::new(Some(foreign))), &calls);
    let error = Certificates::default().ensure(&client, &job(), true).await.expect_err("is refused");
    assert_eq!(error.name(), "NameTaken");
    assert_eq!(lines(&calls).len(), 1);
}
