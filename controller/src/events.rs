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
        for occurrence in occurrences {
            if let Err(error) = self.recorder.publish(&build_event(occurrence), object).await {
                tracing::warn!(object = object.name, occurrence.reason, "event could not be written: {error}");
            }
        }
    }
}

fn build_event(Occurrence { warning, reason, action, message }: &Occurrence) -> Event {
    Event {
        type_: if *warning { EventType::Warning } else { EventType::Normal },
        reason: reason.chars().take(128).collect(),
        note: Some(message.chars().take(NOTE).collect()),
        action: action.clone(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use crate::plan::tests::{facts, job};
    use crate::validate::validate_program;
    use serde_json::json;

    /// From the manifest to the event, as the controller writes it when the revision begins.
    #[test]
    fn a_pause_that_overrules_max_concurrent_becomes_a_warning_event() {
        let events_of = |checkpointing: serde_json::Value| {
            let mut job = job();
            job.spec.checkpointing = Some(serde_json::from_value(checkpointing).expect("is a checkpointing block"));
            let facts = crate::facts::Facts { program: validate_program(&job, None), ..facts() };
            plan(&facts).events.iter().map(build_event).collect::<Vec<_>>()
        };
        let events = events_of(json!({"interval": "2s", "minPause": "1s", "maxConcurrent": 3}));
        let warnings: Vec<_> = events.iter().filter(|event| matches!(event.type_, EventType::Warning)).collect();
        let [warning] = warnings.as_slice() else { panic!("{} warnings", warnings.len()) };
        assert_eq!(warning.reason, "MaxConcurrentOverruled");
        let note = warning.note.as_deref().expect("a note");
        assert!(note.contains("maxConcurrent is 3, but minPause 1s makes it 1"), "{note}");
        let obeyed = events_of(json!({"interval": "2s", "minPause": "1s"}));
        assert!(obeyed.iter().all(|event| matches!(event.type_, EventType::Normal)));
    }
}
