//! The controller's and the command line's service: status as a stream, commands with ids.

use super::driver::DriverHandle;
use crate::logs::LogFilters;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use sluice_protocol::job_master::{Command, Event};
use sluice_protocol::{Generation, JobId};
use sluice_rpc::control::{
    CommandReply, CommandRequest, DescribeRequest, JobManagerControl, JobManagerDescription, JobReference,
    LogLevelReply, LogLevelRequest, StatusUpdate, WatchRequest, changes, status_update,
};
use sluice_rpc::tls::Role;
use sluice_rpc::tls::stream::{Refusals, require};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tonic::{Request, Response, Status};
use tracing::info;

/// Request ids that are remembered.
const REMEMBERED: usize = 256;

/// The service.
pub(crate) struct Control {
    handle: DriverHandle,
    job: JobId,
    generation: Generation,
    /// Ids of commands that were taken, oldest first.
    taken: Mutex<VecDeque<String>>,
    refusals: Arc<Refusals>,
    logs: LogFilters,
}

impl Control {
    pub(crate) const fn new(
        handle: DriverHandle,
        job: JobId,
        generation: Generation,
        refusals: Arc<Refusals>,
        logs: LogFilters,
    ) -> Self {
        Self { handle, job, generation, taken: Mutex::new(VecDeque::new()), refusals, logs }
    }

    /// A TaskManager runs what it is told; it does not tell.
    fn check_role<T>(&self, request: &Request<T>) -> Result<(), Status> {
        require(request, &[Role::Controller, Role::Client], &self.refusals)
    }

    fn check_generation(&self, generation: u64) -> Result<(), Status> {
        if generation == self.generation.0 {
            return Ok(());
        }
        let text = format!("this is generation {} of job {}, not {generation}", self.generation, self.job);
        Err(Status::failed_precondition(text))
    }

    /// Whether the id is new; it is remembered.
    fn remember(&self, request_id: &str) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.iter().any(|id| id == request_id) {
            return false;
        }
        if taken.len() == REMEMBERED {
            taken.pop_front();
        }
        taken.push_back(request_id.to_owned());
        true
    }
}

#[tonic::async_trait]
impl JobManagerControl for Control {
    type WatchStream = BoxStream<'static, Result<StatusUpdate, Status>>;

    async fn describe(&self, request: Request<DescribeRequest>) -> Result<Response<JobManagerDescription>, Status> {
        self.check_role(&request)?;
        let job = Some(JobReference::from(&self.job));
        Ok(Response::new(JobManagerDescription { job, generation: self.generation.0 }))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.check_role(&request)?;
        let request = request.into_inner();
        self.check_generation(request.generation)?;
        let asked = JobId::from(request.job.unwrap_or_default());
        if asked != self.job {
            return Err(Status::failed_precondition(format!("this is job {}, not {asked}", self.job)));
        }
        let updates = changes(self.handle.status())
            .map(|status| status_update(&status).map_err(|error| Status::internal(error.to_string())));
        Ok(Response::new(updates.boxed()))
    }

    async fn execute(&self, request: Request<CommandRequest>) -> Result<Response<CommandReply>, Status> {
        self.check_role(&request)?;
        let request = request.into_inner();
        self.check_generation(request.generation)?;
        let command: Command = serde_json::from_slice(&request.command).map_err(|error| {
            Status::invalid_argument(format!("CommandRequest.command is no command that this version knows: {error}"))
        })?;
        let newly_accepted = self.remember(&request.request_id);
        if newly_accepted && !self.handle.send(Event::Command(command)).await {
            return Err(Status::unavailable("the JobManager ends"));
        }
        Ok(Response::new(CommandReply { newly_accepted }))
    }

    async fn set_log_level(&self, request: Request<LogLevelRequest>) -> Result<Response<LogLevelReply>, Status> {
        self.check_role(&request)?;
        let LogLevelRequest { generation, filter } = request.into_inner();
        self.check_generation(generation)?;
        self.logs.set(&filter).map_err(Status::invalid_argument)?;
        info!(filter, "what the job's processes log was changed");
        Ok(Response::new(LogLevelReply {}))
    }
}
