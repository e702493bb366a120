//! Writes events of events.k8s.io/v1. The same again within [`SERIES`] is counted in the event that was written first; of
//! what was written only name and count are remembered: kube's own recorder keeps whole events, which with a thousand
//! jobs are a tenth of the controller's memory.
//!
//! Callers rely on: what happens is one event, however slow the API server is. The same is written by one call at a time,
//! and what had no answer is tried again under the name that it had.

use super::NOTE;
use crate::build::names;
use crate::plan::Occurrence;
use crate::time::{now, to_micro_time};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use sluice_protocol::{TimeSpan, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Mutex as AsyncMutex;

/// What happens again after a longer time is another event. The API server removes events after an hour.
const SERIES: TimeSpan = TimeSpan::from_secs(360);

/// A reason is cut off there; a longer one is refused.
const REASON: usize = 128;

/// Writes events in the name of the controller's pod.
pub(super) struct Recorder {
    client: Client,
    instance: String,
    written: Mutex<HashMap<Box<str>, Remembered>>,
}

/// An event that may become a series, and when it happened last.
#[derive(Debug, Clone)]
struct Remembered {
    event: Arc<AsyncMutex<Written>>,
    last: Timestamp,
}

/// Held by whoever writes it.
#[derive(Debug)]
struct Written {
    name: Box<str>,
    /// How often it is known to have been written; 0: the API server has not said yes.
    count: i32,
}

impl Recorder {
    pub(super) fn new(client: Client, pod: Option<String>) -> Self {
        Self { client, instance: pod.unwrap_or_else(|| names::MANAGER.to_owned()), written: Mutex::default() }
    }

    /// Writes one, or counts it.
    ///
    /// # Errors
    /// The API server refuses or does not answer; it is written, or counted, when it happens again.
    pub(super) async fn publish(&self, object: &ObjectReference, occurrence: &Occurrence) -> Result<(), kube::Error> {
        let now = now();
        let remembered = self.remember(object, occurrence, now);
        let mut written = remembered.lock().await;
        let namespace = object.namespace.as_deref().unwrap_or("default");
        let events = Api::<Event>::namespaced(self.client.clone(), namespace);
        if written.count == 0 {
            let event = self.event(&written.name, object, occurrence, now);
            match events.create(&PostParams::default(), &event).await {
                // An earlier try has had its effect, and its answer was lost: this one is the second.
                Err(kube::Error::Api(status)) if status.is_already_exists() => written.count = 1,
                created => {
                    created?;
                    written.count = 1;
                    return Ok(());
                }
            }
        }
        let count = written.count.saturating_add(1);
        let series = json!({"series": EventSeries { count, last_observed_time: to_micro_time(now) }});
        match events.patch(&written.name, &PatchParams::default(), &Patch::Merge(series)).await {
            Ok(_) => written.count = count,
            Err(error) => {
                // Somebody has removed it: the next one is another event.
                if matches!(&error, kube::Error::Api(status) if status.is_not_found()) {
                    *written = Written::new(object);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// What is remembered of the same, now that it has happened again. What nobody writes and is long over is forgotten.
    fn remember(&self, object: &ObjectReference, occurrence: &Occurrence, now: Timestamp) -> Arc<AsyncMutex<Written>> {
        // A panic elsewhere must not stop the controller: the map is whole at every step.
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.retain(|_, event| now.since(event.last) < SERIES || Arc::strong_count(&event.event) > 1);
        let new = || Remembered { event: Arc::new(AsyncMutex::new(Written::new(object))), last: now };
        let remembered = written.entry(key(object, occurrence)).or_insert_with(new);
        remembered.last = now;
        Arc::clone(&remembered.event)
    }

    fn event(&self, name: &str, object: &ObjectReference, occurrence: &Occurrence, now: Timestamp) -> Event {
        let Occurrence { warning, reason, action, message } = occurrence;
        Event {
            action: Some(action.clone()),
            event_time: Some(to_micro_time(now)),
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: object.namespace.clone(),
                ..ObjectMeta::default()
            },
            note: Some(message.chars().take(NOTE).collect()),
            reason: Some(reason.chars().take(REASON).collect()),
            regarding: Some(object.clone()),
            reporting_controller: Some(names::MANAGER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(if *warning { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        }
    }

    #[cfg(test)]
    pub(super) fn remembers(&self) -> usize {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Written {
    /// One that is still to be written.
    fn new(object: &ObjectReference) -> Self {
        let object_name = object.name.as_deref().unwrap_or(names::MANAGER);
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        Self { name: format!("{object_name}.{random:016x}").into_boxed_str(), count: 0 }
    }
}

/// What is the same again.
fn key(object: &ObjectReference, Occurrence { warning, reason, action, .. }: &Occurrence) -> Box<str> {
    let uid = object.uid.as_deref().unwrap_or_default();
    format!("{uid} {warning} {reason} {action}").into_boxed_str()
}
