//! Kubernetes events (events.k8s.io/v1): what happened, once. An event that cannot be written is logged and fails
//! nothing.

use crate::build::names;
use crate::plan::Occurrence;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use sluice_crds::StreamJob;

/// Longer notes are refused by the API server.
const NOTE: usize = 1_000;

/// Writes events.
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// In the name of the controller's pod.
    #[must_use]
    pub fn new(client: Client, pod: Option<String>) -> Self {
        let reporter = Reporter { controller: names::MANAGER.to_owned(), instance: pod };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Tells what happened to a StreamJob.
    pub async fn tell(&self, job: &StreamJob, occurrences: &[Occurrence]) {
        self.tell_of(&job.object_ref(&()), occurrences).await;
    }

    /// Tells what happened to an object.
    pub async fn tell_of(&self, object: &ObjectReference, occurrences: &[Occurrence]) {
        for Occurrence { warning, reason, action, message } in occurrences {
            let event = Event {
                type_: if *warning { EventType::Warning } else { EventType::Normal },
                reason: reason.chars().take(128).collect(),
                note: Some(message.chars().take(NOTE).collect()),
                action: action.clone(),
                secondary: None,
            };
            if let Err(error) = self.recorder.publish(&event, object).await {
                tracing::warn!(object = object.name, reason, "event could not be written: {error}");
            }
        }
    }
}
