//! Jobs on a cluster, by namespace and name: found through the kubeconfig, reached through the API server.
//!
//! What commands need of a job is taken from its objects: the StreamJob says which JobManager is its, the Secret
//! `<job>-tls` holds the certificate of a client. A connection to the JobManager goes to a port of loopback here, from
//! where the API server carries it into the pod; TLS is spoken from end to end. Whoever may read that Secret and forward
//! ports may command the job (docs/security.md).

pub(crate) mod list;
pub(crate) mod logs;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use sluice_crds::StreamJob;
use sluice_rpc::tls::{AUTHORITY_FILE, CERTIFICATE_FILE, Credentials, KEY_FILE, Tls, TlsError};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Where a JobManager listens in its pod.
const RPC_PORT: u16 = 6123;

/// Selects the pods of a job.
const JOB_LABEL: &str = "sluice.dev/job";

/// On pods whose processes speak mTLS.
const TLS_LABEL: &str = "sluice.dev/tls";

/// Why a job on a cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// There is no way to a cluster.
    #[error("no cluster is known: {0}; set KUBECONFIG, or name a JobManager by --jobmanager HOST:PORT")]
    NoConfig(String),
    /// The API server does not answer, or not as it should.
    #[error("{what} failed: {source}")]
    Api {
        /// What was asked for.
        what: String,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// There is no such StreamJob.
    #[error("namespace '{namespace}' has no StreamJob '{job}'; `sluice list -n {namespace}` shows those that it has")]
    NoJob {
        /// Where.
        namespace: String,
        /// Which.
        job: String,
    },
    /// It has no JobManager.
    #[error("job {namespace}/{job} has no running JobManager: {why}")]
    NotRunning {
        /// Where.
        namespace: String,
        /// Which.
        job: String,
        /// What its status says.
        why: String,
    },
    /// Its Secret lacks something.
    #[error("Secret {namespace}/{job}-tls lacks '{key}'; the controller writes it before the job's first pod")]
    Secret {
        /// Where.
        namespace: String,
        /// Which.
        job: String,
        /// What is missing.
        key: &'static str,
    },
    /// Its certificate is none.
    #[error("Secret {namespace}/{job}-tls: {source}")]
    Certificate {
        /// Where.
        namespace: String,
        /// Which.
        job: String,
        /// What is wrong with it.
        source: TlsError,
    },
    /// No port of this machine.
    #[error("listening on loopback failed: {0}")]
    Listen(std::io::Error),
}

impl ClusterError {
    /// Whether it may pass by itself.
    pub(crate) const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Api { .. })
    }
}

/// A cluster as the kubeconfig names it.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// The namespace that was named, else the context's.
    pub(crate) namespace: String,
}

impl Cluster {
    /// Reads the kubeconfig; contacts nobody.
    pub(crate) async fn open(namespace: Option<&str>, context: Option<&str>) -> Result<Self, ClusterError> {
        let no_config = |error: &dyn std::fmt::Display| ClusterError::NoConfig(error.to_string());
        let config = match context {
            None => Config::infer().await.map_err(|error| no_config(&error))?,
            Some(context) => {
                let read = Kubeconfig::read().map_err(|error| no_config(&error))?;
                let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(read, &options).await.map_err(|error| no_config(&error))?
            }
        };
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), ToOwned::to_owned);
        let client = Client::try_from(config).map_err(|error| no_config(&error))?;
        Ok(Self { client, namespace })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A StreamJob.
    async fn job(&self, job: &str) -> Result<StreamJob, ClusterError> {
        let jobs: Api<StreamJob> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = jobs.get_opt(job).await.map_err(|error| api_error(&format!("reading StreamJob '{job}'"), error))?;
        found.ok_or_else(|| ClusterError::NoJob { namespace: self.namespace.clone(), job: job.to_owned() })
    }

    /// The pod of the job's current JobManager.
    async fn job_manager(&self, job: &str) -> Result<Pod, ClusterError> {
        let status = self.job(job).await?.status.unwrap_or_default();
        let state = status.state.map_or("no state yet".to_owned(), |state| format!("{state:?}"));
        let why = status.message.filter(|message| !message.is_empty());
        let not_running = || ClusterError::NotRunning {
            namespace: self.namespace.clone(),
            job: job.to_owned(),
            why: why.map_or_else(|| state.clone(), |why| format!("{state}: {why}")),
        };
        let Some(generation) = status.generation else { return Err(not_running()) };
        let name = format!("{job}-{generation}-jm");
        let found =
            self.pods().get_opt(&name).await.map_err(|error| api_error(&format!("reading pod '{name}'"), error))?;
        let is_running = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        found.filter(is_running).ok_or_else(not_running)
    }

    /// The certificate of a client of this job; `None` where its JobManager speaks plainly.
    async fn tls(&self, job: &str, pod: &Pod) -> Result<Option<Arc<Tls>>, ClusterError> {
        if pod.metadata.labels.as_ref().is_none_or(|labels| !labels.contains_key(TLS_LABEL)) {
            return Ok(None);
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = format!("{job}-tls");
        let secret = secrets.get(&name).await.map_err(|error| api_error(&format!("reading Secret '{name}'"), error))?;
        let text = |key: &'static str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(key));
            let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
            text.ok_or_else(|| ClusterError::Secret { namespace: self.namespace.clone(), job: job.to_owned(), key })
        };
        let credentials = Credentials {
            authority: text(AUTHORITY_FILE)?,
            certificate: text(CERTIFICATE_FILE)?,
            key: text(KEY_FILE)?,
        };
        let tls = Tls::from_credentials(&credentials).map_err(|source| ClusterError::Certificate {
            namespace: self.namespace.clone(),
            job: job.to_owned(),
            source,
        })?;
        Ok(Some(Arc::new(tls)))
    }

    /// Makes the job's JobManager reachable on loopback, for as long as the way is held.
    pub(crate) async fn reach(&self, job: &str) -> Result<(Way, Option<Arc<Tls>>), ClusterError> {
        let pod = self.job_manager(job).await?;
        let tls = self.tls(job, &pod).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(ClusterError::Listen)?;
        let address = listener.local_addr().map_err(ClusterError::Listen)?;
        let carrying = tokio::spawn(carry(self.clone(), job.to_owned(), listener)).abort_handle();
        Ok((Way { address, carrying }, tls))
    }
}

fn api_error(what: &str, source: kube::Error) -> ClusterError {
    ClusterError::Api { what: what.to_owned(), source: Box::new(source) }
}

/// The way to a JobManager; gone when it is dropped.
pub(crate) struct Way {
    /// Where it begins.
    pub(crate) address: SocketAddr,
    carrying: AbortHandle,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.carrying.abort();
    }
}

/// Carries each connection to the JobManager that is the job's by then: after a loss it is another one.
async fn carry(cluster: Cluster, job: String, listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((here, _)) = listener.accept().await {
        connections.spawn(carry_one(cluster.clone(), job.clone(), here));
        while connections.try_join_next().is_some() {}
    }
}

/// Whoever connected learns of a failure by the end of the connection, and tries again or says that nobody answers.
async fn carry_one(cluster: Cluster, job: String, mut here: TcpStream) {
    let Ok(pod) = cluster.job_manager(&job).await else { return };
    let name = pod.metadata.name.unwrap_or_default();
    let Ok(mut forwarder) = cluster.pods().portforward(&name, &[RPC_PORT]).await else { return };
    let Some(mut there) = forwarder.take_stream(RPC_PORT) else { return };
    let _ = copy_bidirectional(&mut here, &mut there).await;
}
