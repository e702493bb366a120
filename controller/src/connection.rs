//! How JobManagers are reached: over the network, or in another way where there is none (the simulation).
//!
//! Callers rely on: nothing is retried here, and each answer has a deadline.

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sluice_protocol::job_master::Command;
use sluice_protocol::status::JobStatus;
use sluice_protocol::{Generation, JobId};
use sluice_rpc::control::{ControlClient, ControlError};
use sluice_rpc::tls::Tls;
use std::sync::Arc;

/// The reports of one JobManager.
pub type Reports = BoxStream<'static, Result<JobStatus, ControlError>>;

/// Makes connections.
pub trait Connector: Send + Sync {
    /// Connects to the JobManager of `job` at `host:port`, with the controller's certificate for that job.
    fn connect<'a>(
        &'a self,
        job: &'a JobId,
        address: &'a str,
        tls: Option<Arc<Tls>>,
    ) -> BoxFuture<'a, Result<Arc<dyn Connection>, ControlError>>;
}

/// A connection to one JobManager.
pub trait Connection: Send + Sync {
    /// Its reports: now, and whenever they change.
    fn watch<'a>(&'a self, job: &'a JobId, generation: Generation) -> BoxFuture<'a, Result<Reports, ControlError>>;

    /// Asks for something; repeated with the same id it is done once.
    fn execute<'a>(
        &'a self,
        generation: Generation,
        request_id: &'a str,
        command: &'a Command,
    ) -> BoxFuture<'a, Result<bool, ControlError>>;
}

/// gRPC.
#[derive(Debug, Clone, Copy, Default)]
pub struct Network;

impl Connector for Network {
    fn connect<'a>(
        &'a self,
        _job: &'a JobId,
        address: &'a str,
        tls: Option<Arc<Tls>>,
    ) -> BoxFuture<'a, Result<Arc<dyn Connection>, ControlError>> {
        let connect =
            async move { Ok(Arc::new(ControlClient::connect(address, tls.as_ref()).await?) as Arc<dyn Connection>) };
        connect.boxed()
    }
}

impl Connection for ControlClient {
    fn watch<'a>(&'a self, job: &'a JobId, generation: Generation) -> BoxFuture<'a, Result<Reports, ControlError>> {
        Self::watch(self, job, generation).boxed()
    }

    fn execute<'a>(
        &'a self,
        generation: Generation,
        request_id: &'a str,
        command: &'a Command,
    ) -> BoxFuture<'a, Result<bool, ControlError>> {
        Self::execute(self, generation, request_id, command).boxed()
    }
}
