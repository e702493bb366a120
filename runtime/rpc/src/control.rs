//! What the controller and the command line ask of a JobManager: its status as a stream, and commands.
//!
//! [`ControlClient`] is thin: it connects, sets deadlines, converts, and never retries; who holds it decides what
//! a lost stream means (C1).

use crate::connection::{Connection, SmallCodec};
use crate::tls::{CertificateProblem, Tls};
use crate::transport::{self, LastProblem, MESSAGE_LIMIT};
use crate::v1::job_manager_control_client::JobManagerControlClient;
pub use crate::v1::job_manager_control_server::{JobManagerControl, JobManagerControlServer};
pub use crate::v1::{
    CommandReply, CommandRequest, DescribeRequest, JobManagerDescription, JobReference, LogLevelReply, LogLevelRequest,
    StatusUpdate, WatchRequest,
};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use http::uri::PathAndQuery;
use sluice_protocol::job_master::Command;
use sluice_protocol::status::JobStatus;
use sluice_protocol::{Generation, JobId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tonic::client::Grpc;
use tonic::{Code, Request, Status};

/// Deadline of a command, and of the answer that opens a status stream.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

const WATCH: PathAndQuery = PathAndQuery::from_static("/sluice.v1.JobManagerControl/Watch");

/// What can go wrong between a JobManager and whoever asks it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody answers.
    #[error("JobManager at '{address}' cannot be reached: {message}")]
    Unreachable {
        /// Where.
        address: String,
        /// What came back.
        message: String,
    },
    /// A certificate stands between the two: the JobManager's, or the own one.
    #[error("JobManager at '{address}' cannot be reached: {message}")]
    Certificate {
        /// Where.
        address: String,
        /// What is wrong with it.
        problem: CertificateProblem,
        /// What came back.
        message: String,
    },
    /// Somebody answers who is not the JobManager that was meant.
    #[error("JobManager at '{address}' is another one: {message}")]
    AnotherJobManager {
        /// Where.
        address: String,
        /// What it said.
        message: String,
    },
    /// It answers something that cannot be read, or refuses the request.
    #[error("JobManager at '{address}' answered '{code:?}': {message}")]
    Refused {
        /// Where.
        address: String,
        /// gRPC's code.
        code: Code,
        /// What it said.
        message: String,
    },
}

/// A connection to one JobManager: of calls that fail because it broke none succeeds again.
#[derive(Debug, Clone)]
pub struct ControlClient {
    client: JobManagerControlClient<Connection>,
    watch: Grpc<Connection>,
    peer: Peer,
}

/// Where a JobManager answers, and what was last wrong on the way.
#[derive(Debug, Clone)]
struct Peer {
    address: String,
    problem: LastProblem,
}

impl ControlClient {
    /// Connects to `host:port`, with TLS where it is given.
    ///
    /// # Errors
    /// When the address is none or nobody answers there.
    pub async fn connect(address: &str, tls: Option<&Arc<Tls>>) -> Result<Self, ControlError> {
        let peer = Peer { address: address.to_owned(), problem: LastProblem::default() };
        let connected = transport::connect_once(address, tls, &peer.problem).await;
        let (connection, url) = connected.map_err(|error| peer.unreachable(with_causes(&error)))?;
        let client = JobManagerControlClient::with_origin(connection.clone(), url.clone())
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT);
        let watch = Grpc::with_origin(connection, url).max_decoding_message_size(MESSAGE_LIMIT);
        Ok(Self { client, watch, peer })
    }

    /// Whose JobManager it is.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn describe(&self) -> Result<(JobId, Generation), ControlError> {
        let mut client = self.client.clone();
        let call = async move { client.describe(Request::new(DescribeRequest {})).await };
        let description = self.within_deadline(call).await?.into_inner();
        Ok((JobId::from(description.job.unwrap_or_default()), Generation(description.generation)))
    }

    /// The job's status: now, and whenever it changes. The stream ends when the JobManager does.
    ///
    /// # Errors
    /// When it cannot be reached, or it is the JobManager of another job or generation.
    pub async fn watch(
        &self,
        job: &JobId,
        generation: Generation,
    ) -> Result<BoxStream<'static, Result<JobStatus, ControlError>>, ControlError> {
        let request = WatchRequest { job: Some(JobReference::from(job)), generation: generation.0 };
        let mut watch = self.watch.clone();
        // As the generated client does it, with small buffers. No deadline on the request itself: it would end the stream.
        let codec = SmallCodec::<WatchRequest, StatusUpdate>::default();
        let call = async move { watch.server_streaming(Request::new(request), WATCH, codec).await };
        let stream = self.within_deadline(call).await?.into_inner();
        let (peer, address) = (self.peer.clone(), self.peer.address.clone());
        Ok(stream
            .map_err(move |status| peer.error_of(&status))
            .and_then(move |update| futures::future::ready(read_status(&address, &update)))
            .boxed())
    }

    /// Asks for something. `request_id` names the request: repeated, it is not run twice. Whether it was handed
    /// to the control loop by this call.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses.
    pub async fn execute(
        &self,
        generation: Generation,
        request_id: &str,
        command: &Command,
    ) -> Result<bool, ControlError> {
        let command = serde_json::to_vec(command).map_err(|error| ControlError::Refused {
            address: self.peer.address.clone(),
            code: Code::InvalidArgument,
            message: error.to_string(),
        })?;
        let request = CommandRequest { generation: generation.0, request_id: request_id.to_owned(), command };
        let mut client = self.client.clone();
        let call = async move { client.execute(Request::new(request)).await };
        Ok(self.within_deadline(call).await?.into_inner().newly_accepted)
    }

    /// Changes what the job's processes log, by a filter as in `RUST_LOG`.
    ///
    /// # Errors
    /// When it cannot be reached, or it is no filter.
    pub async fn set_log_level(&self, generation: Generation, filter: &str) -> Result<(), ControlError> {
        let request = LogLevelRequest { generation: generation.0, filter: filter.to_owned() };
        let mut client = self.client.clone();
        let call = async move { client.set_log_level(Request::new(request)).await };
        self.within_deadline(call).await.map(drop)
    }

    async fn within_deadline<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, ControlError> {
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(answer) => answer.map_err(|status| self.peer.error_of(&status)),
            Err(_) => Err(self.peer.unreachable(format!("no answer within {CALL_TIMEOUT:?}"))),
        }
    }
}

impl Peer {
    fn unreachable(&self, message: String) -> ControlError {
        let address = self.address.clone();
        match self.problem.get() {
            Some(problem) => ControlError::Certificate { address, problem, message },
            None => ControlError::Unreachable { address, message },
        }
    }

    fn error_of(&self, status: &Status) -> ControlError {
        let (address, message) = (self.address.clone(), status.message().to_owned());
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                self.unreachable(with_causes(status))
            }
            Code::FailedPrecondition => ControlError::AnotherJobManager { address, message },
            code => ControlError::Refused { address, code, message },
        }
    }
}

/// The service as a server runs it, with this crate's limits.
#[must_use]
pub fn service<T: JobManagerControl>(control: T) -> JobManagerControlServer<T> {
    JobManagerControlServer::new(control)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

impl From<&JobId> for JobReference {
    fn from(job: &JobId) -> Self {
        Self { namespace: job.namespace.clone(), name: job.name.clone(), uid: job.uid.clone() }
    }
}

impl From<JobReference> for JobId {
    fn from(job: JobReference) -> Self {
        Self { namespace: job.namespace, name: job.name, uid: job.uid }
    }
}

/// One status as it is sent.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn status_update(status: &JobStatus) -> Result<StatusUpdate, serde_json::Error> {
    Ok(StatusUpdate { status: serde_json::to_vec(status)? })
}

/// What a watch holds, now and after every change, until its sender is gone.
pub fn changes<T: Clone + Send + Sync + 'static>(watch: watch::Receiver<T>) -> impl Stream<Item = T> + Send {
    futures::stream::unfold((watch, true), |(mut watch, first)| async move {
        if !first {
            watch.changed().await.ok()?;
        }
        let value = watch.borrow_and_update().clone();
        Some((value, (watch, false)))
    })
}

fn read_status(address: &str, update: &StatusUpdate) -> Result<JobStatus, ControlError> {
    serde_json::from_slice(&update.status).map_err(|error| ControlError::Refused {
        address: address.to_owned(),
        code: Code::DataLoss,
        message: format!("StatusUpdate.status is not the JSON of a job status: {error}"),
    })
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use sluice_protocol::status::JobState;

    /// Bytes as another version puts them on the wire: of a field that this one does not know, and without those that came
    /// later.
    #[test]
    fn messages_of_another_version_are_read() {
        let json = br#"{"state":"Running","generation":3,"ofALaterVersion":1}"#;
        let mut bytes = vec![0x0a, u8::try_from(json.len()).expect("is short")];
        bytes.extend(json);
        let known = StatusUpdate::decode(&bytes[..]).expect("is read");
        bytes.extend([0x78, 0x07]);
        assert_eq!(StatusUpdate::decode(&bytes[..]).expect("is read"), known, "field 15 is skipped");
        let expected = JobStatus { state: JobState::Running, generation: Generation(3), ..JobStatus::default() };
        assert_eq!(read_status("a:1", &known).expect("is read"), expected);

        let command = b"\x08\x03\x12\x01r\x1a\x06\"stop\"\xf8\x01\x07";
        let request = CommandRequest::decode(&command[..]).expect("is read");
        assert_eq!((request.generation, request.request_id.as_str()), (3, "r"));
        assert_eq!(serde_json::from_slice::<Command>(&request.command).expect("is one"), Command::Stop);

        let later = StatusUpdate { status: br#"{"state":"OfALaterVersion"}"#.to_vec() };
        assert!(matches!(read_status("a:1", &later), Err(ControlError::Refused { code: Code::DataLoss, .. })));
    }
}
