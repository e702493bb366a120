//! The way to a JobManager on a cluster: a port of loopback, from where the API server carries each connection into the
//! pod that is the job's JobManager by then.
//!
//! Whoever connects learns of a failure by the end of the connection; [`Way::take_failure`] says what it was.

use super::error::Request;
use super::{Cluster, ClusterError};
use sluice_crds::names::RPC_PORT;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// The way to a JobManager; gone when it is dropped.
pub(crate) struct Way {
    /// Where it begins.
    pub(crate) address: SocketAddr,
    failure: LastFailure,
    carrying: AbortHandle,
}

impl Way {
    /// Begins to listen; asks nobody before somebody connects.
    pub(super) async fn open(cluster: Cluster, job: String) -> Result<Self, ClusterError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(ClusterError::Listen)?;
        let address = listener.local_addr().map_err(ClusterError::Listen)?;
        let failure = LastFailure::default();
        let carrying = tokio::spawn(carry(cluster, job, listener, failure.clone())).abort_handle();
        Ok(Self { address, failure, carrying })
    }

    /// Why the last connection was not carried, where that is so.
    pub(crate) fn take_failure(&self) -> Option<ClusterError> {
        self.failure.replace(None)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.carrying.abort();
    }
}

/// What was last wrong on the way.
#[derive(Clone, Default)]
struct LastFailure(Arc<Mutex<Option<ClusterError>>>);

impl LastFailure {
    fn replace(&self, failure: Option<ClusterError>) -> Option<ClusterError> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), failure)
    }
}

/// Carries each connection to the JobManager that is the job's by then: after a loss it is another one.
async fn carry(cluster: Cluster, job: String, listener: TcpListener, failure: LastFailure) {
    let mut connections = JoinSet::new();
    while let Ok((mut here, _)) = listener.accept().await {
        let (cluster, job, failure) = (cluster.clone(), job.clone(), failure.clone());
        connections.spawn(async move {
            failure.replace(None);
            if let Err(error) = carry_one(&cluster, &job, &mut here).await {
                // Noted before the connection ends, so that whoever sees the end finds it.
                failure.replace(Some(error));
            }
            drop(here);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn carry_one(cluster: &Cluster, job: &str, here: &mut TcpStream) -> Result<(), ClusterError> {
    let pod = cluster.job_manager(job).await?.metadata.name.unwrap_or_default();
    let what = format!("forwarding a port to pod {}/{pod}", cluster.namespace);
    // Servers ask for one verb or the other: requests that become web sockets begin as GET.
    let request = Request::new(what, "create", "pods/portforward");
    let mut forwarder = cluster.within(request, cluster.pods().portforward(&pod, &[RPC_PORT])).await?;
    let failed = |why: String| ClusterError::Forward { namespace: cluster.namespace.clone(), pod: pod.clone(), why };
    let (Some(mut there), Some(error)) = (forwarder.take_stream(RPC_PORT), forwarder.take_error(RPC_PORT)) else {
        return Err(failed("the port was not opened".to_owned()));
    };
    // The sender of errors also ends with the connection: that is no error, and what was carried comes first.
    let error = async move {
        match error.await {
            Some(error) => error,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        error = error => Err(failed(error)),
        _ = copy_bidirectional(here, &mut there) => Ok(()),
    }
}
