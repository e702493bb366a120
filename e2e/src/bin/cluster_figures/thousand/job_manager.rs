//! A JobManager as the controller sees one: a job that runs, and ends when it is told to. It obeys the service's contract
//! (`sluice_rpc::control`) and runs nothing.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use sluice_protocol::failure::{ExitKind, ExitRecord};
use sluice_protocol::job_master::Command;
use sluice_protocol::status::{JobState, JobStatus, TaskManagerStatus};
use sluice_protocol::{Attempt, Generation, JobId, Timestamp};
use sluice_rpc::control::{
    CommandReply, CommandRequest, DescribeRequest, JobManagerControl, JobManagerDescription, JobReference,
    LogLevelReply, LogLevelRequest, StatusUpdate, WatchRequest, changes, status_update,
};
use std::sync::{Mutex, PoisonError};
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status};

/// One of them.
pub(super) struct JobManager {
    job: JobId,
    generation: Generation,
    status: watch::Sender<JobStatus>,
    ended: Mutex<Option<oneshot::Sender<ExitRecord>>>,
}

impl JobManager {
    /// One whose job runs, and what it says at its end.
    pub(super) fn new(job: JobId, generation: Generation) -> (Self, oneshot::Receiver<ExitRecord>) {
        let status = JobStatus {
            state: JobState::Running,
            message: "all tasks run".to_owned(),
            generation,
            attempt: Attempt(1),
            ledger_entry: 1,
            since: Timestamp(u64::try_from(k8s_openapi::jiff::Timestamp::now().as_millisecond()).unwrap_or_default()),
            task_managers: vec![TaskManagerStatus { slots: 1, ..TaskManagerStatus::default() }],
            slots_needed: 1,
            tasks_running: 1,
            tasks: 1,
            ..JobStatus::default()
        };
        let (sender, receiver) = oneshot::channel();
        (Self { job, generation, status: watch::Sender::new(status), ended: Mutex::new(Some(sender)) }, receiver)
    }

    fn end(&self, state: JobState) {
        let Some(ended) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        self.status.send_modify(|status| {
            status.state = state;
            status.ledger_entry += 1;
        });
        let mut record = ExitRecord::new(ExitKind::Stopped, "Stopped", "the job was told to stop");
        record.ledger_entry = Some(self.status.borrow().ledger_entry);
        let _ = ended.send(record);
    }
}

#[tonic::async_trait]
impl JobManagerControl for JobManager {
    type WatchStream = BoxStream<'static, Result<StatusUpdate, Status>>;

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<JobManagerDescription>, Status> {
        let job = Some(JobReference::from(&self.job));
        Ok(Response::new(JobManagerDescription { job, generation: self.generation.0 }))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let asked = JobId::from(request.job.unwrap_or_default());
        if asked != self.job || request.generation != self.generation.0 {
            return Err(Status::failed_precondition(format!("this is generation {} of {}", self.generation, self.job)));
        }
        let updates = changes(self.status.subscribe())
            .map(|status| status_update(&status).map_err(|error| Status::internal(error.to_string())));
        Ok(Response::new(updates.boxed()))
    }

    async fn execute(&self, request: Request<CommandRequest>) -> Result<Response<CommandReply>, Status> {
        let command = serde_json::from_slice::<Command>(&request.into_inner().command);
        match command.map_err(|error| Status::invalid_argument(error.to_string()))? {
            Command::Stop => self.end(JobState::Stopped),
            Command::Cancel => self.end(JobState::Cancelled),
            _ => return Err(Status::unimplemented("this JobManager is played")),
        }
        Ok(Response::new(CommandReply { newly_accepted: true }))
    }

    async fn set_log_level(&self, _: Request<LogLevelRequest>) -> Result<Response<LogLevelReply>, Status> {
        Err(Status::unimplemented("this JobManager is played"))
    }
}
