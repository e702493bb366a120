//! Which JobManager a command is for, and the connection to it.
//!
//! A job on a cluster that the command line names wins over what the environment says of a JobManager: whoever has
//! exported an address can still name a job. Only what the command line itself says can contradict itself.

use crate::cluster::Cluster;
use crate::cluster::way::Way;
use crate::error::CommandError;
use clap::Args;
use sluice_protocol::{Generation, JobId};
use sluice_rpc::control::{ControlClient, ControlError};
use sluice_rpc::tls::Tls;
use std::path::PathBuf;
use std::sync::Arc;

/// Where nobody says which JobManager.
const DEFAULT_ENDPOINT: &str = "localhost:6123";

/// Stands for --jobmanager where no job on a cluster is named.
const JOB_MANAGER_VARIABLE: &str = "SLUICE_JOBMANAGER";

/// Stands for --tls-directory beside it.
const TLS_DIRECTORY_VARIABLE: &str = "SLUICE_TLS_DIRECTORY";

/// Which JobManager.
#[derive(Debug, Args)]
pub(crate) struct EndpointArguments {
    /// Namespace of the job on a cluster; the kubeconfig's when absent
    #[arg(short = 'n', long, conflicts_with_all = ["jobmanager", "tls_directory"])]
    namespace: Option<String>,
    /// The kubeconfig's context; its current one when absent
    #[arg(long, conflicts_with_all = ["jobmanager", "tls_directory"])]
    context: Option<String>,
    /// The control endpoint of a running JobManager or of `sluice run`; when no job on a cluster is named, that of
    /// SLUICE_JOBMANAGER, or localhost:6123
    #[arg(long, value_name = "HOST:PORT")]
    jobmanager: Option<String>,
    /// ca.crt, tls.crt and tls.key of a client, as in the Secret <job>-tls, or that of SLUICE_TLS_DIRECTORY; a job on a
    /// cluster asks for them
    #[arg(long, value_name = "DIRECTORY")]
    tls_directory: Option<PathBuf>,
}

/// Which job: one on a cluster by its name, or that of a JobManager.
#[derive(Debug, Args)]
pub(crate) struct JobArguments {
    /// A StreamJob on the kubeconfig's cluster; absent: the job of --jobmanager
    #[arg(value_name = "JOB", conflicts_with_all = ["jobmanager", "tls_directory"])]
    job: Option<String>,
    #[command(flatten)]
    endpoint: EndpointArguments,
}

/// A JobManager that can be connected to.
pub(crate) struct Reached {
    address: String,
    tls: Option<Arc<Tls>>,
    /// Held for as long as there are connections.
    way: Option<Way>,
}

impl Reached {
    /// That of a job on a cluster.
    pub(crate) fn through(way: Way, tls: Option<Arc<Tls>>) -> Self {
        Self { address: way.address.to_string(), tls, way: Some(way) }
    }

    /// Connects to it, and learns whose it is.
    pub(crate) async fn connect(&self) -> Result<(ControlClient, JobId, Generation), CommandError> {
        let connected = async {
            let client = ControlClient::connect(&self.address, self.tls.as_ref()).await?;
            let (job, generation) = client.describe().await?;
            Ok((client, job, generation))
        };
        connected.await.map_err(|error| self.explained(error))
    }

    /// What every failure of the connection is passed through: a port of loopback says nothing of why the cluster did not carry on from there.
    pub(crate) fn explained(&self, error: ControlError) -> CommandError {
        let failure = match &error {
            ControlError::Unreachable { .. } => self.way.as_ref().and_then(Way::take_failure),
            _ => None,
        };
        failure.map_or_else(|| error.into(), CommandError::from)
    }

    /// It ended while it was listened to.
    pub(crate) fn ended(&self) -> CommandError {
        let message = "the JobManager ended".to_owned();
        self.explained(ControlError::Unreachable { address: self.address.clone(), message })
    }

    /// It is no longer the one that was asked.
    pub(super) fn is_anothers(&self, job: &JobId) -> ControlError {
        let message = format!("it runs job {job} now");
        ControlError::AnotherJobManager { address: self.address.clone(), message }
    }
}

/// What a variable of the environment says, if anything.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl EndpointArguments {
    const fn names_cluster(&self) -> bool {
        self.namespace.is_some() || self.context.is_some()
    }

    /// Whether it is a JobManager that is named, not a cluster.
    pub(crate) fn names_job_manager(&self) -> bool {
        let named = self.jobmanager.is_some() || self.tls_directory.is_some();
        named || !self.names_cluster() && variable(JOB_MANAGER_VARIABLE).is_some()
    }

    /// The cluster.
    pub(crate) async fn cluster(&self) -> Result<Cluster, CommandError> {
        Ok(Cluster::open(self.namespace.as_deref(), self.context.as_deref()).await?)
    }

    /// The JobManager that is named by its address.
    pub(crate) async fn reach(&self) -> Result<Reached, CommandError> {
        if self.names_cluster() {
            return Err(CommandError::Usage("name the job of the cluster too: -n NAMESPACE JOB".to_owned()));
        }
        let address = self.jobmanager.clone().or_else(|| variable(JOB_MANAGER_VARIABLE));
        let directory = self.tls_directory.clone().or_else(|| variable(TLS_DIRECTORY_VARIABLE).map(PathBuf::from));
        let tls = directory.as_deref().map(Tls::from_directory).transpose();
        let tls = tls.map(|tls| tls.map(Arc::new)).map_err(|error| CommandError::Usage(error.to_string()))?;
        Ok(Reached { address: address.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()), tls, way: None })
    }
}

impl JobArguments {
    /// Finds the JobManager.
    pub(super) async fn reach(&self) -> Result<Reached, CommandError> {
        let Some(job) = &self.job else { return self.endpoint.reach().await };
        let (way, tls) = self.endpoint.cluster().await?.reach(job).await?;
        Ok(Reached::through(way, tls))
    }
}
