//! The pods and JobManagers of many jobs, played by this process: every pod that is made "runs" at once, with an address
//! of its own on loopback, and behind a JobManager's address a server answers the controller as a JobManager does, with
//! the certificate that the controller made for it.
//!
//! No job runs: what is measured is the controller. Callers rely on: pods are seen in the order in which they were made;
//! nothing is retried, a failure is kept and told by [`Fleet::check`].

use super::job_manager::JobManager;
use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use sluice_crds::names::{COMPONENT_LABEL, JOB_LABEL, RPC_PORT};
use sluice_protocol::{Generation, JobId};
use sluice_rpc::tls::stream::{Refusals, incoming};
use sluice_rpc::tls::{AUTHORITY_FILE, Credentials, Role, Tls};
use sluice_rpc::{control, transport};
use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const GENERATION: &str = "sluice.dev/generation";
/// No scheduler has this name: pods that ask for it are this process's.
pub(super) const SCHEDULER: &str = "figures";

/// Which pods were made, and when they were seen.
#[derive(Default)]
struct Seen {
    pods: HashSet<String>,
    /// By job: the last generation of which both pods are there, and since when.
    complete: HashMap<String, (u64, Instant)>,
    roles: HashMap<(String, u64), u8>,
    failure: Option<String>,
}

/// All of them.
#[derive(Clone)]
pub(super) struct Fleet {
    client: Client,
    namespace: String,
    seen: Arc<Mutex<Seen>>,
    addresses: Arc<Mutex<u32>>,
}

impl Fleet {
    /// Plays all pods of a namespace from now on.
    pub(super) fn start(client: Client, namespace: &str) -> Self {
        let fleet =
            Self { client, namespace: namespace.to_owned(), seen: Arc::default(), addresses: Arc::new(Mutex::new(0)) };
        tokio::spawn(fleet.clone().watch());
        fleet
    }

    /// When the pods of a job were there in a generation later than `after`, with that generation.
    pub(super) fn complete(&self, job: &str, after: u64) -> Option<(u64, Instant)> {
        self.lock().complete.get(job).copied().filter(|(generation, _)| *generation > after)
    }

    /// What went wrong in this process.
    pub(super) fn check(&self) -> Result<()> {
        match self.lock().failure.clone() {
            Some(failure) => bail!("the played pods: {failure}"),
            None => Ok(()),
        }
    }

    async fn watch(self) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(pod) | Event::InitApply(pod)) => self.admit(pod),
                Ok(_) => {}
                Err(error) => self.fail(&error.to_string()),
            }
        }
    }

    /// Starts a pod that was not seen before.
    fn admit(&self, pod: Pod) {
        let is_new = self.lock().pods.insert(pod.uid().unwrap_or_default());
        if !is_new || pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        self.count(&pod);
        let fleet = self.clone();
        tokio::spawn(async move {
            if let Err(error) = fleet.run(&pod).await {
                // One that is deleted while it starts is nobody's fault.
                if !format!("{error:#}").contains("NotFound") {
                    fleet.fail(&format!("{}: {error:#}", pod.name_any()));
                }
            }
        });
    }

    fn count(&self, pod: &Pod) {
        let Some(job) = pod.labels().get(JOB_LABEL) else { return };
        let generation = generation(pod);
        let role = if pod.labels().get(COMPONENT_LABEL).is_some_and(|role| role == "jobmanager") { 1 } else { 2 };
        let mut seen = self.lock();
        let roles = seen.roles.entry((job.clone(), generation)).or_default();
        *roles |= role;
        if *roles == 3 {
            seen.complete.insert(job.clone(), (generation, Instant::now()));
        }
    }

    async fn run(&self, pod: &Pod) -> Result<()> {
        let address = self.address();
        if pod.labels().get(COMPONENT_LABEL).is_none_or(|role| role != "jobmanager") {
            return self.patch(pod, running(pod, address)).await;
        }
        let job = JobId {
            namespace: self.namespace.clone(),
            name: pod.labels().get(JOB_LABEL).cloned().unwrap_or_default(),
            uid: pod.owner_references().first().map(|owner| owner.uid.clone()).unwrap_or_default(),
        };
        let (job_manager, ended) = JobManager::new(job.clone(), Generation(generation(pod)));
        let server = self.serve(&job, address, job_manager).await?;
        self.patch(pod, running(pod, address)).await?;
        let Ok(record) = ended.await else { return Ok(()) };
        // Its last status is on its way.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let told = self.patch(pod, terminated(pod, &record)).await;
        server.abort();
        told
    }

    /// The server of a JobManager, with its certificate.
    async fn serve(&self, job: &JobId, address: Ipv4Addr, job_manager: JobManager) -> Result<JoinHandle<()>> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = secrets.get(&format!("{}-tls", job.name)).await?;
        let read = |key: &str| {
            let data = secret.data.as_ref().and_then(|data| data.get(key)).context("the Secret lacks a key")?;
            Ok::<_, anyhow::Error>(String::from_utf8(data.0.clone())?)
        };
        let role = Role::JobManager.name();
        let credentials = Credentials {
            authority: read(AUTHORITY_FILE)?,
            certificate: read(&format!("{role}.crt"))?,
            key: read(&format!("{role}.key"))?,
        };
        let tls = Arc::new(Tls::from_credentials(&credentials)?);
        let listener = TcpListener::bind((address, RPC_PORT)).await?;
        let connections = incoming(listener, Some(tls), Arc::new(Refusals::default()));
        let server = transport::server().add_service(control::service(job_manager));
        Ok(tokio::spawn(async move {
            let _ = server.serve_with_incoming(connections).await;
        }))
    }

    async fn patch(&self, pod: &Pod, status: Value) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
        Ok(())
    }

    /// The next one of loopback.
    fn address(&self) -> Ipv4Addr {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        *addresses += 1;
        Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 64, 0, 0)) + *addresses)
    }

    fn fail(&self, what: &str) {
        self.lock().failure.get_or_insert_with(|| what.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn generation(pod: &Pod) -> u64 {
    pod.labels().get(GENERATION).and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn container(pod: &Pod, is_ready: bool, state: &Value) -> Value {
    let name = pod.labels().get(COMPONENT_LABEL).cloned().unwrap_or_default();
    json!([{"name": name, "ready": is_ready, "started": is_ready, "restartCount": 0, "image": "played", "imageID": "",
        "state": state}])
}

fn conditions(is_ready: bool) -> Value {
    let (status, now) = (if is_ready { "True" } else { "False" }, k8s_openapi::jiff::Timestamp::now().to_string());
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": now});
    json!([condition("PodScheduled", "True"), condition("Ready", status), condition("ContainersReady", status)])
}

fn running(pod: &Pod, address: Ipv4Addr) -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "startTime": now,
        "conditions": conditions(true), "containerStatuses": container(pod, true, &json!({"running": {"startedAt": now}}))})
}

fn terminated(pod: &Pod, record: &sluice_protocol::failure::ExitRecord) -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let state = json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now,
        "message": serde_json::to_string(record).unwrap_or_default()}});
    json!({"phase": "Succeeded", "conditions": conditions(false), "containerStatuses": container(pod, false, &state)})
}
