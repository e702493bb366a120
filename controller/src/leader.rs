//! Leader election over a Lease: of several replicas one makes passes, the others keep their caches warm.
//!
//! [`Candidate`] is the thin edge: it reads and writes the Lease as [`election`] (pure) decides, and keeps the
//! [`Leadership`] that every request is measured by (`client`). A leader that cannot renew stops changing anything before
//! another may take the Lease; one that ends in order releases it, and a standby that looks every second takes it.

mod election;
mod gate;

pub use gate::Leadership;
pub(crate) use gate::NotLeading;

use election::{DEADLINE, Decision, Election, LEASE, LOOK, LeaseView, RENEW};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long one request about the Lease may take.
const REQUEST: Duration = Duration::from_secs(3);
/// How long a release waits for requests that are under way.
const SETTLE: Duration = Duration::from_secs(2);

/// One replica in the election.
pub(crate) struct Candidate {
    api: Api<Lease>,
    name: String,
    election: Election,
    start: Instant,
    leadership: Arc<Leadership>,
    /// The Lease as this replica wrote it last.
    held: Option<Lease>,
}

impl Candidate {
    /// `client` must not be one that asks for the leadership. `pod` tells people which replica it is.
    pub(crate) fn new(client: Client, lease: (&str, &str), pod: Option<&str>) -> Self {
        let (namespace, name) = lease;
        let identity = format!("{}_{}", pod.unwrap_or("sluice-controller"), uuid::Uuid::new_v4());
        let api = Api::namespaced(client, namespace);
        let election = Election::new(identity);
        let leadership = Arc::new(Leadership::standby());
        Self { api, name: name.to_owned(), election, start: Instant::now(), leadership, held: None }
    }

    /// The right to change something, which this replica has while it leads.
    pub(crate) fn leadership(&self) -> Arc<Leadership> {
        Arc::clone(&self.leadership)
    }

    /// Waits until this replica leads.
    pub(crate) async fn campaign(&mut self) {
        let mut holder = None;
        loop {
            let wait = match timeout(REQUEST, self.attempt()).await {
                Ok(Ok(Attempt::Leads)) => return,
                Ok(Ok(Attempt::Waits { on, wait })) => {
                    if on != holder {
                        tracing::info!(holder = on, "standing by");
                        holder = on;
                    }
                    wait.min(LOOK)
                }
                Ok(Err(error)) => {
                    tracing::warn!(lease = self.name, "the Lease cannot be read or written, tried again: {error}");
                    LOOK
                }
                Err(_) => LOOK,
            };
            sleep(wait).await;
        }
    }

    /// Renews for as long as this replica leads; returns when nothing may be changed any more.
    pub(crate) async fn hold(&mut self) {
        let mut renewed = Instant::now();
        let mut pause = RENEW;
        loop {
            sleep(pause).await;
            let deadline = renewed + DEADLINE;
            let began = Instant::now();
            let attempt = timeout_at(deadline.min(began + REQUEST), self.attempt()).await;
            pause = LOOK;
            match attempt {
                Ok(Ok(Attempt::Leads)) => {
                    renewed = began;
                    pause = RENEW;
                }
                Ok(Ok(Attempt::Waits { on, .. })) => {
                    tracing::warn!(holder = on, "another replica leads");
                    break;
                }
                Ok(Err(error)) => tracing::warn!(lease = self.name, "the Lease was not renewed: {error}"),
                Err(_) => tracing::warn!(lease = self.name, "the Lease was not renewed: no answer"),
            }
            if Instant::now() >= renewed + DEADLINE {
                tracing::warn!(lease = self.name, "the Lease could not be renewed in time, this replica stands by");
                break;
            }
        }
        self.leadership.end();
        self.held = None;
    }

    /// Ends the leadership, waits for what is under way, and lets another replica lead at once.
    pub(crate) async fn release(&mut self) {
        self.leadership.settle(SETTLE).await;
        let Some(mut lease) = self.held.take() else { return };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        match timeout(REQUEST, self.api.replace(&self.name, &PostParams::default(), &lease)).await {
            Ok(Ok(_)) => tracing::info!(lease = self.name, "released"),
            Ok(Err(error)) => tracing::warn!(lease = self.name, "not released, it expires: {error}"),
            Err(_) => tracing::warn!(lease = self.name, "not released, it expires: no answer"),
        }
    }

    /// Takes or renews the Lease if it may. A leader first writes over what it wrote last, without reading.
    async fn attempt(&mut self) -> Result<Attempt, kube::Error> {
        let began = Instant::now();
        if let Some(held) = self.held.clone() {
            let renewed = self.api.replace(&self.name, &PostParams::default(), &self.renewed(held)).await;
            match renewed {
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => self.held = None,
                renewed => return renewed.map(|lease| self.leads(lease, began)),
            }
        }
        let lease = self.api.get_opt(&self.name).await?;
        let view = lease.as_ref().map(view);
        let holder = view.as_ref().and_then(|view| view.holder.clone());
        let parameters = PostParams::default();
        let written = match (self.election.decide(self.start.elapsed(), view), lease) {
            (Decision::Wait(wait), _) => return Ok(Attempt::Waits { on: holder, wait }),
            (Decision::Create, _) | (_, None) => self.api.create(&parameters, &self.first()).await,
            (Decision::Renew, Some(lease)) => self.api.replace(&self.name, &parameters, &self.renewed(lease)).await,
            (Decision::Take, Some(lease)) => self.api.replace(&self.name, &parameters, &self.taken(lease)).await,
        };
        match written {
            // Another was first.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Attempt::Waits { on: None, wait: LOOK }),
            written => written.map(|lease| self.leads(lease, began)),
        }
    }

    fn leads(&mut self, lease: Lease, began: Instant) -> Attempt {
        self.leadership.extend(began);
        self.held = Some(lease);
        Attempt::Leads
    }

    fn first(&self) -> Lease {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        self.taken(Lease { metadata, spec: None })
    }

    fn taken(&self, lease: Lease) -> Lease {
        let now = crate::time::to_micro_time(crate::time::now());
        let transitions = lease.spec.as_ref().map_or(0, |spec| spec.lease_transitions.unwrap_or_default() + 1);
        let mut lease = self.renewed(lease);
        let spec = lease.spec.get_or_insert_default();
        spec.acquire_time = Some(now);
        spec.lease_transitions = Some(transitions);
        lease
    }

    fn renewed(&self, mut lease: Lease) -> Lease {
        let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.election.identity().to_owned());
        spec.lease_duration_seconds = i32::try_from(LEASE.as_secs()).ok();
        // For people; nobody decides by it.
        spec.renew_time = Some(crate::time::to_micro_time(crate::time::now()));
        lease
    }
}

/// How an attempt ended.
enum Attempt {
    Leads,
    Waits { on: Option<String>, wait: Duration },
}

fn view(lease: &Lease) -> LeaseView {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    LeaseView {
        version: lease.resource_version().unwrap_or_default(),
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        duration: seconds.map_or(LEASE, Duration::from_secs),
    }
}

#[cfg(test)]
mod tests;
