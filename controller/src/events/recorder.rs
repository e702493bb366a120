//! Writes events of events.k8s.io/v1. The same again within [`SERIES`] is counted in the event that was written first; of
//! what was written only name and count are remembered: kube's own recorder keeps whole events, which with a thousand
//! jobs are a tenth of the controller's memory.

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
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What happens again after a longer time is another event. The API server removes events after an hour.
const SERIES: TimeSpan = TimeSpan::from_secs(360);

/// A reason is cut off there; a longer one is refused.
const REASON: usize = 128;

/// Writes events in the name of the controller's pod.
pub(super) struct Recorder {
    client: Client,
    instance: String,
    written: Mutex<HashMap<Box<str>, Written>>,
}

/// An event that may become a series.
#[derive(Debug, Clone)]
struct Written {
    name: Box<str>,
    count: i32,
    last: Timestamp,
}

impl Recorder {
    pub(super) fn new(client: Client, pod: Option<String>) -> Self {
        Self { client, instance: pod.unwrap_or_else(|| names::MANAGER.to_owned()), written: Mutex::default() }
    }

    /// Writes one, or counts it.
    ///
    /// # Errors
    /// The API server refuses or does not answer; it is written anew when it happens again.
    pub(super) async fn publish(&self, object: &ObjectReference, occurrence: &Occurrence) -> Result<(), kube::Error> {
        let (key, now) = (key(object, occurrence), now());
        let before = {
            let mut written = self.lock();
            written.retain(|_, event| now.since(event.last) < SERIES);
            written.remove(&key)
        };
        let namespace = object.namespace.as_deref().unwrap_or("default");
        let events = Api::<Event>::namespaced(self.client.clone(), namespace);
        let (name, count) = match before {
            None => {
                let event = self.event(object, occurrence, now);
                events.create(&PostParams::default(), &event).await?;
                (event.metadata.name.unwrap_or_default().into_boxed_str(), 1)
            }
            Some(before) => {
                let count = before.count.saturating_add(1);
                let series = json!({"series": EventSeries { count, last_observed_time: to_micro_time(now) }});
                events.patch(&before.name, &PatchParams::default(), &Patch::Merge(series)).await?;
                (before.name, count)
            }
        };
        self.lock().insert(key, Written { name, count, last: now });
        Ok(())
    }

    fn event(&self, object: &ObjectReference, occurrence: &Occurrence, now: Timestamp) -> Event {
        let Occurrence { warning, reason, action, message } = occurrence;
        let object_name = object.name.as_deref().unwrap_or(names::MANAGER);
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        Event {
            action: Some(action.clone()),
            event_time: Some(to_micro_time(now)),
            metadata: ObjectMeta {
                name: Some(format!("{object_name}.{random:016x}")),
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

    /// A panic elsewhere must not stop the controller: the map is whole at every step.
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn remembers(&self) -> usize {
        self.lock().len()
    }
}

/// What is the same again.
fn key(object: &ObjectReference, Occurrence { warning, reason, action, .. }: &Occurrence) -> Box<str> {
    let uid = object.uid.as_deref().unwrap_or_default();
    format!("{uid} {warning} {reason} {action}").into_boxed_str()
}
