//! Why a job on a cluster cannot be reached, in words that say what would help.

use super::Cluster;
use sluice_crds::names::RPC_PORT;
use sluice_rpc::tls::TlsError;
use std::error::Error;

/// A way to a job that fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// There is no way to a cluster.
    #[error("no cluster is known: {0}; set KUBECONFIG, or name a JobManager by --jobmanager HOST:PORT")]
    NoConfig(String),
    /// The API server says no.
    #[error("{what} failed: the API server {url} answered {code}: {message}{advice}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Where.
        url: String,
        /// As in HTTP.
        code: u16,
        /// What it said.
        message: String,
        /// What to do, behind a semicolon.
        advice: String,
    },
    /// The API server says nothing that can be read.
    #[error("{what} failed: the API server {url} cannot be asked: {message}")]
    Unanswered {
        /// What was asked for.
        what: String,
        /// Where.
        url: String,
        /// What came back.
        message: String,
    },
    /// It carries no connection into the pod.
    #[error(
        "forwarding port {RPC_PORT} to pod {namespace}/{pod} failed: {why}; `kubectl describe pod -n {namespace} {pod}` tells \
         whether the JobManager runs"
    )]
    Forward {
        /// Where.
        namespace: String,
        /// Which.
        pod: String,
        /// What came back.
        why: String,
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
    /// Its Secret does not exist or lacks something.
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
        match self {
            Self::Unanswered { .. } | Self::Forward { .. } => true,
            Self::Refused { code, .. } => *code == 429 || *code >= 500,
            _ => false,
        }
    }

    /// Whether it may be the time between two JobManagers of a job.
    pub(crate) const fn is_between_job_managers(&self) -> bool {
        self.is_unreachable() || matches!(self, Self::NotRunning { .. } | Self::Refused { code: 404, .. })
    }
}

/// A request to the API server, in words and as rights name it.
pub(super) struct Request {
    what: String,
    verb: &'static str,
    /// With a subresource behind a slash.
    resource: &'static str,
}

impl Request {
    pub(super) const fn new(what: String, verb: &'static str, resource: &'static str) -> Self {
        Self { what, verb, resource }
    }

    /// It was answered by an error.
    pub(super) fn failed(self, cluster: &Cluster, error: &kube::Error) -> ClusterError {
        match error {
            kube::Error::Api(status) => ClusterError::Refused {
                advice: self.advice(status.code, &cluster.namespace),
                what: self.what,
                url: cluster.url.clone(),
                code: status.code,
                message: status.message.clone(),
            },
            other => {
                ClusterError::Unanswered { what: self.what, url: cluster.url.clone(), message: with_causes(other) }
            }
        }
    }

    /// It was not answered in time.
    pub(super) fn unanswered(self, cluster: &Cluster) -> ClusterError {
        let message = format!("no answer within {:?}", cluster.patience);
        ClusterError::Unanswered { what: self.what, url: cluster.url.clone(), message }
    }

    fn advice(&self, code: u16, namespace: &str) -> String {
        let Self { verb, resource, .. } = self;
        match code {
            401 => {
                "; the kubeconfig's credentials are not accepted: log in anew, or choose another --context".to_owned()
            }
            403 => {
                let asked = match resource.split_once('/') {
                    Some((resource, part)) => format!("{resource} --subresource={part}"),
                    None => (*resource).to_owned(),
                };
                format!("; it needs {verb} on {resource}: `kubectl auth can-i {verb} {asked} -n {namespace}`")
            }
            404 if resource.contains("streamjobs") => "; is Sluice installed on this cluster?".to_owned(),
            429 | 500.. => "; it may pass: try again".to_owned(),
            _ => String::new(),
        }
    }
}

/// What went wrong and why: the words of one error often repeat those of its cause.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    text
}
