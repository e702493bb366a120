//! Jobs on a cluster, by namespace and name: found through the kubeconfig, reached through the API server.
//!
//! What commands need of a job is taken from its objects: the StreamJob says which JobManager is its, the Secret
//! `<job>-tls` holds the certificate of a client. A connection to the JobManager goes to a port of loopback here, from
//! where the API server carries it into the pod ([`way`]); TLS is spoken from end to end. Whoever may read that Secret
//! and forward ports may command the job (docs/security.md). Callers rely on: no request to the API server waits for
//! ever, and what it refuses is said with what would have to be allowed ([`error`]).

pub(crate) mod error;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod way;

pub(crate) use error::ClusterError;
use error::Request;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use sluice_crds::StreamJob;
use sluice_crds::names::TLS_LABEL;
use sluice_rpc::tls::{AUTHORITY_FILE, CERTIFICATE_FILE, Credentials, KEY_FILE, Tls};
use std::sync::Arc;
use std::time::Duration;
use way::Way;

/// How long the API server may take for one answer.
const API_TIMEOUT: Duration = Duration::from_secs(15);

/// A cluster as the kubeconfig names it.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// The namespace that was named, else the context's.
    pub(crate) namespace: String,
    /// Where its API server is, for people.
    url: String,
    /// How long one answer may take.
    patience: Duration,
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
        Self::at(config, namespace).map_err(|error| no_config(&error))
    }

    fn at(mut config: Config, namespace: Option<&str>) -> Result<Self, kube::Error> {
        // The client's own retries would take minutes, and what the API server says would not be told.
        config.default_retry = false;
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), ToOwned::to_owned);
        let url = config.cluster_url.to_string();
        Ok(Self { client: Client::try_from(config)?, namespace, url, patience: API_TIMEOUT })
    }

    /// The answer to a request, if it comes in time; the client itself would wait for ever.
    async fn within<T>(
        &self,
        request: Request,
        answer: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ClusterError> {
        match tokio::time::timeout(self.patience, answer).await {
            Ok(answer) => answer.map_err(|error| request.failed(self, &error)),
            Err(_) => Err(request.unanswered(self)),
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A StreamJob.
    async fn job(&self, job: &str) -> Result<StreamJob, ClusterError> {
        let jobs: Api<StreamJob> = Api::namespaced(self.client.clone(), &self.namespace);
        let request = Request::new(format!("reading StreamJob '{job}'"), "get", "streamjobs.sluice.dev");
        let found = self.within(request, jobs.get_opt(job)).await?;
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
        let request = Request::new(format!("reading pod '{name}'"), "get", "pods");
        let found = self.within(request, self.pods().get_opt(&name)).await?;
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
        let request = Request::new(format!("reading Secret '{name}'"), "get", "secrets");
        let data = self.within(request, secrets.get_opt(&name)).await?.and_then(|secret| secret.data);
        let text = |key: &'static str| {
            let bytes = data.as_ref().and_then(|data| data.get(key));
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
        Ok((Way::open(self.clone(), job.to_owned()).await?, tls))
    }
}

#[cfg(test)]
mod tests;
