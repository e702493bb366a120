//! Kubernetes events (events.k8s.io/v1): what happened, once. The same again is counted in one event by the recorder;
//! an object that has too much to tell is cut short by [`Budget`]. An event that cannot be written is logged and fails
//! nothing.

mod recorder;

use crate::metrics::Metrics;
use crate::plan::Occurrence;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use recorder::Recorder;
use sluice_protocol::{TimeSpan, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Longer notes are refused by the API server.
const NOTE: usize = 1_000;

/// Events of one object in a row.
const BURST: u32 = 25;
/// Then one in this time.
const REFILL: TimeSpan = TimeSpan::from_secs(60);
/// Objects that are remembered before those with a full budget are forgotten.
const REMEMBERED: usize = 4_096;

/// Writes events.
pub struct Events {
    recorder: Recorder,
    budget: Mutex<Budget>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// In the name of the controller's pod.
    #[must_use]
    pub fn new(client: Client, pod: Option<String>, metrics: Arc<Metrics>) -> Self {
        Self { recorder: Recorder::new(client, pod), budget: Mutex::default(), metrics }
    }

    /// Tells what happened to an object, beside what its passes do: none of them waits for it.
    pub fn tell_beside(self: &Arc<Self>, object: ObjectReference, occurrences: Vec<Occurrence>) {
        if !occurrences.is_empty() {
            let events = Arc::clone(self);
            tokio::spawn(async move { events.tell_of(&object, &occurrences).await });
        }
    }

    /// Tells what happened to an object.
    pub async fn tell_of(&self, object: &ObjectReference, occurrences: &[Occurrence]) {
        // The recorder takes another resourceVersion for another object, and would count nothing.
        let object = &ObjectReference { resource_version: None, ..object.clone() };
        for occurrence in occurrences {
            let Occurrence { reason, message, .. } = occurrence;
            if !self.may_tell(object) {
                tracing::info!(object = object.name, reason, "too many events, this one is only logged: {message}");
                self.metrics.count_event("limited");
                continue;
            }
            let published = self.recorder.publish(object, occurrence).await;
            self.metrics.count_event(if published.is_ok() { "written" } else { "failed" });
            if let Err(error) = published {
                tracing::warn!(object = object.name, reason, "event could not be written: {error}");
            }
        }
    }

    fn may_tell(&self, object: &ObjectReference) -> bool {
        let key = object.uid.clone().unwrap_or_default();
        // A panic elsewhere must not stop the controller: the map is whole at every step.
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).take(&key, crate::time::now())
    }
}

/// How many events each object may still write: [`BURST`], refilled by one every [`REFILL`]. Pure.
#[derive(Debug, Default)]
struct Budget {
    objects: HashMap<String, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: u32,
    /// When the last one was refilled.
    at: Timestamp,
}

impl Bucket {
    fn refilled(self, now: Timestamp) -> Self {
        let refilled = now.since(self.at).0 / REFILL.0;
        let left = u64::from(self.left).saturating_add(refilled);
        match u32::try_from(left) {
            Ok(left) if left < BURST => Self { left, at: self.at.plus(TimeSpan(refilled * REFILL.0)) },
            _ => Self { left: BURST, at: now },
        }
    }
}

impl Budget {
    /// Whether the object may write one more.
    fn take(&mut self, object: &str, now: Timestamp) -> bool {
        if self.objects.len() >= REMEMBERED {
            self.objects.retain(|_, bucket| bucket.refilled(now).left < BURST);
        }
        let bucket = self.objects.entry(object.to_owned()).or_insert(Bucket { left: BURST, at: now });
        *bucket = bucket.refilled(now);
        let may = bucket.left > 0;
        bucket.left = bucket.left.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api;
    use crate::plan::plan;
    use crate::plan::tests::{facts, job};
    use crate::validate::validate_program;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    const NOW: Timestamp = Timestamp(1_767_225_600_000);

    #[test]
    fn an_object_that_tells_too_much_is_cut_short_and_no_other() {
        let mut budget = Budget::default();
        let told = |budget: &mut Budget, object: &str, now| (0..100).filter(|_| budget.take(object, now)).count();
        assert_eq!(told(&mut budget, "a", NOW), BURST as usize);
        assert_eq!(told(&mut budget, "b", NOW), BURST as usize);
        assert_eq!(told(&mut budget, "a", NOW.plus(TimeSpan(REFILL.0 - 1))), 0);
        assert_eq!(told(&mut budget, "a", NOW.plus(TimeSpan(2 * REFILL.0 + 1))), 2);
        assert_eq!(told(&mut budget, "a", NOW.plus(TimeSpan(3 * REFILL.0))), 1);
        assert_eq!(told(&mut budget, "a", NOW.plus(TimeSpan(1_000 * REFILL.0))), BURST as usize);
    }

    #[test]
    fn objects_that_are_silent_are_forgotten() {
        let mut budget = Budget::default();
        for number in 0..REMEMBERED {
            assert!(budget.take(&number.to_string(), NOW));
        }
        assert!(budget.take("another", NOW.plus(REFILL)));
        assert_eq!(budget.objects.len(), 1);
    }

    /// An API server that refuses every call, as a namespace that is being deleted does.
    fn refusing(calls: &Arc<AtomicUsize>) -> Client {
        let calls = Arc::clone(calls);
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            calls.fetch_add(1, Ordering::Relaxed);
            let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}"#;
            let answer =
                http::Response::builder().status(403).body(kube::client::Body::from(status.as_bytes().to_vec()));
            futures::future::ready(answer)
        });
        Client::new(service, "default")
    }

    /// One that takes all.
    fn accepting(calls: &Arc<Mutex<Vec<(http::Method, Value)>>>) -> Client {
        let calls = Arc::clone(calls);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let calls = Arc::clone(&calls);
            async move {
                let (head, body) = request.into_parts();
                let bytes = body.collect_bytes().await?;
                calls.lock().expect("no panic").push((head.method, serde_json::from_slice(&bytes).expect("JSON")));
                Ok::<_, kube::Error>(http::Response::new(kube::client::Body::from(bytes.to_vec())))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn the_same_again_is_counted_in_one_event() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let events = Events::new(accepting(&calls), None, Arc::default());
        for version in 0..5 {
            let uid = Some("u".to_owned());
            let resource_version = Some(version.to_string());
            let namespace = Some("ns".to_owned());
            let object = ObjectReference { uid, resource_version, namespace, ..ObjectReference::default() };
            events.tell_of(&object, &[Occurrence::new(true, "Why", "because".to_owned())]).await;
        }
        let calls = calls.lock().expect("no panic");
        let [(created, event), rest @ ..] = calls.as_slice() else { panic!("no call") };
        assert_eq!(
            (created, &event["reason"], &event["type"]),
            (&http::Method::POST, &json!("Why"), &json!("Warning"))
        );
        assert_eq!((&event["note"], &event["regarding"]["uid"]), (&json!("because"), &json!("u")));
        let counted: Vec<_> = rest.iter().map(|(method, patch)| (method, &patch["series"]["count"])).collect();
        let patch = &http::Method::PATCH;
        assert_eq!(counted, [(patch, &json!(2)), (patch, &json!(3)), (patch, &json!(4)), (patch, &json!(5))]);
        assert!(rest.iter().all(|(_, patch)| patch.as_object().is_some_and(|fields| fields.len() == 1)), "{rest:?}");
        assert_eq!(events.recorder.remembers(), 1);
    }

    #[tokio::test]
    async fn other_reasons_actions_and_objects_are_other_events() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let events = Events::new(accepting(&calls), None, Arc::default());
        let object = |uid: &str| ObjectReference { uid: Some(uid.to_owned()), ..ObjectReference::default() };
        let why = Occurrence::new(false, "Why", "because".to_owned());
        let other = Occurrence { action: "Generation2".to_owned(), ..why.clone() };
        events.tell_of(&object("u"), &[why.clone(), other, Occurrence::new(true, "Why", String::new())]).await;
        events.tell_of(&object("v"), &[why]).await;
        let calls = calls.lock().expect("no panic");
        assert!(calls.len() == 4 && calls.iter().all(|(method, _)| method == http::Method::POST), "{calls:?}");
        let names: std::collections::HashSet<_> =
            calls.iter().map(|(_, event)| event["metadata"]["name"].to_string()).collect();
        assert_eq!(names.len(), 4);
    }

    /// Names of the events that were created, and counts of the series that were written.
    fn written(calls: &fake_api::Calls) -> (Vec<String>, Vec<Value>) {
        let calls = calls.lock().expect("no panic");
        let of = |wanted: http::Method| calls.iter().filter(move |(method, ..)| *method == wanted);
        let names = of(http::Method::POST).map(|(_, _, event)| event["metadata"]["name"].to_string());
        (names.collect(), of(http::Method::PATCH).map(|(_, _, patch)| patch["series"]["count"].clone()).collect())
    }

    /// Whoever comes while the first is being written waits for it, and is counted in it.
    #[tokio::test]
    async fn the_same_while_the_api_server_takes_its_time_is_one_event() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (answers, taken) = (Arc::new(Semaphore::new(0)), Arc::clone(&calls));
        let may_answer = Arc::clone(&answers);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (may_answer, taken) = (Arc::clone(&may_answer), Arc::clone(&taken));
            async move {
                let (head, body) = request.into_parts();
                let bytes = body.collect_bytes().await?;
                may_answer.acquire().await.expect("open").forget();
                let sent = serde_json::from_slice(&bytes).expect("JSON");
                taken.lock().expect("no panic").push((head.method, head.uri.path().to_owned(), sent));
                Ok::<_, kube::Error>(http::Response::new(kube::client::Body::from(bytes.to_vec())))
            }
        });
        let events = Events::new(Client::new(service, "default"), None, Arc::default());
        let object = ObjectReference { uid: Some("u".to_owned()), ..ObjectReference::default() };
        let same = [Occurrence::new(true, "Why", "because".to_owned())];
        let tell = || events.tell_of(&object, &same);
        // It answers when all have come.
        let all_have_come = async {
            tokio::task::yield_now().await;
            answers.add_permits(10);
        };
        tokio::join!(tell(), tell(), tell(), all_have_come);
        let (names, counts) = written(&calls);
        assert_eq!((names.len(), counts), (1, vec![json!(2), json!(3)]));
    }

    /// The answer to the first is lost, and it was written all the same.
    #[tokio::test]
    async fn an_event_whose_answer_was_lost_is_counted_and_not_written_twice() {
        let (calls, creates) = (fake_api::Calls::default(), Arc::new(AtomicUsize::new(0)));
        let client = fake_api::server(&calls, move |method, _| {
            let number = (method == http::Method::POST).then(|| creates.fetch_add(1, Ordering::Relaxed))?;
            let (code, reason) = if number == 0 { (504, "Timeout") } else { (409, "AlreadyExists") };
            Some((code, fake_api::refusal(code, reason, "it took too long")))
        });
        let events = Events::new(client, None, Arc::default());
        let object = ObjectReference { uid: Some("u".to_owned()), ..ObjectReference::default() };
        for _ in 0..3 {
            events.tell_of(&object, &[Occurrence::new(true, "Why", "because".to_owned())]).await;
        }
        let (names, counts) = written(&calls);
        assert_eq!((names.len(), counts), (2, vec![json!(2), json!(3)]));
        assert_eq!(names[0], names[1], "tried again under another name");
    }

    /// One that was removed while it was a series is followed by another.
    #[tokio::test]
    async fn an_event_that_is_gone_is_followed_by_another() {
        let calls = fake_api::Calls::default();
        let client = fake_api::server(&calls, |method, _| {
            let gone = || (404, fake_api::refusal(404, "NotFound", "it is gone"));
            (method == http::Method::PATCH).then(gone)
        });
        let events = Events::new(client, None, Arc::default());
        let object = ObjectReference { uid: Some("u".to_owned()), ..ObjectReference::default() };
        for _ in 0..3 {
            events.tell_of(&object, &[Occurrence::new(true, "Why", "because".to_owned())]).await;
        }
        let (names, _) = written(&calls);
        assert!(names.len() == 2 && names[0] != names[1], "{names:?}");
    }

    #[tokio::test]
    async fn an_event_that_is_refused_fails_nothing_and_is_not_repeated() {
        let calls = Arc::new(AtomicUsize::new(0));
        let events = Events::new(refusing(&calls), None, Arc::default());
        let object = ObjectReference {
            uid: Some("u".to_owned()),
            namespace: Some("ns".to_owned()),
            ..ObjectReference::default()
        };
        for number in 0..100 {
            events.tell_of(&object, &[Occurrence::new(true, "Why", number.to_string())]).await;
        }
        let calls = calls.load(Ordering::Relaxed);
        assert!(calls >= 1 && calls <= BURST as usize, "{calls} calls");
    }

    /// From the manifest to the warning, as the controller tells it when the revision begins.
    #[test]
    fn a_pause_that_overrules_max_concurrent_becomes_a_warning_event() {
        let events_of = |checkpointing: serde_json::Value| {
            let mut job = job();
            job.spec.checkpointing = Some(serde_json::from_value(checkpointing).expect("is a checkpointing block"));
            let facts = crate::facts::Facts { program: validate_program(&job, None), ..facts() };
            plan(&facts).events
        };
        let events = events_of(json!({"interval": "2s", "minPause": "1s", "maxConcurrent": 3}));
        let warnings: Vec<_> = events.iter().filter(|event| event.warning).collect();
        let [warning] = warnings.as_slice() else { panic!("{} warnings", warnings.len()) };
        assert_eq!(warning.reason, "MaxConcurrentOverruled");
        let note = &warning.message;
        assert!(note.contains("maxConcurrent is 3, but minPause 1s makes it 1"), "{note}");
        let obeyed = events_of(json!({"interval": "2s", "minPause": "1s"}));
        assert!(obeyed.iter().all(|event| !event.warning));
    }
}
