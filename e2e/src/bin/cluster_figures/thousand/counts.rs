//! What is counted from outside the controller: calls that the API server served, and the statuses that watchers saw.

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use kube::api::Api;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use sluice_crds::StreamJob;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sums of counters whose labels hold all of these.
pub(super) fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let wanted: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
    text.lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')))
        .filter(|line| wanted.iter().all(|label| line.contains(label.as_str())))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// What the API server counts.
pub(super) async fn api_server(client: &Client) -> Result<String> {
    Ok(client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?)
}

/// The StreamJobs of a namespace as a watcher sees them.
#[derive(Clone)]
pub(super) struct Statuses(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    jobs: HashMap<String, Value>,
    distinct: u64,
}

impl Statuses {
    /// Follows them from now on.
    pub(super) fn follow(client: Client, namespace: &str) -> Self {
        let statuses = Self(Arc::default());
        let jobs: Api<StreamJob> = Api::namespaced(client, namespace);
        let known = statuses.clone();
        tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(jobs, watcher::Config::default()));
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(job) | Event::InitApply(job)) = event {
                    known.note(&job);
                }
            }
        });
        statuses
    }

    fn note(&self, job: &StreamJob) {
        let status = serde_json::to_value(&job.status).unwrap_or_default();
        let mut known = self.lock();
        let old = known.jobs.insert(job.name_any(), status.clone());
        if !status.is_null() && old.as_ref() != Some(&status) {
            known.distinct += 1;
        }
    }

    /// Distinct contents so far: each that differs from the one before it.
    pub(super) fn distinct(&self) -> u64 {
        self.lock().distinct
    }

    /// How many jobs have this condition with status True.
    pub(super) fn with_condition(&self, kind: &str) -> usize {
        let is = |status: &&Value| {
            let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
        };
        self.lock().jobs.values().filter(is).count()
    }

    /// The status of one.
    pub(super) fn of(&self, name: &str) -> Result<Value> {
        self.lock().jobs.get(name).cloned().with_context(|| format!("no StreamJob {name}"))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
