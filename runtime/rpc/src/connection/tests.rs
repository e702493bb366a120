//! The light connection against tonic's own server, and against one that does not answer.

use crate::control::{
    self, CommandReply, CommandRequest, ControlClient, ControlError, DescribeRequest, JobManagerControl,
    JobManagerDescription, LogLevelReply, LogLevelRequest, StatusUpdate, WatchRequest,
};
use crate::tls::stream::{PeerStream, Refusals, incoming};
use crate::transport::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, server};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use sluice_protocol::job_master::Command;
use sluice_protocol::status::JobStatus;
use sluice_protocol::{Generation, JobId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

/// More than the windows of a stream and a connection hold together.
const LONG: usize = 3_000_000;

struct Told;

fn job() -> JobId {
    JobId { namespace: "ns".to_owned(), name: "pv".to_owned(), uid: "6d4f".to_owned() }
}

#[tonic::async_trait]
impl JobManagerControl for Told {
    type WatchStream = BoxStream<'static, Result<StatusUpdate, Status>>;

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<JobManagerDescription>, Status> {
        Ok(Response::new(JobManagerDescription { job: None, generation: 7 }))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        if request.into_inner().generation != 7 {
            return Err(Status::failed_precondition("this is generation 7"));
        }
        let status = |message: String| JobStatus { message, ..JobStatus::default() };
        let told = [status("short".to_owned()), status("x".repeat(LONG)), status("last".to_owned())];
        let updates = told.map(|status| Ok(control::status_update(&status).expect("is JSON")));
        Ok(Response::new(futures::stream::iter(updates).chain(futures::stream::pending()).boxed()))
    }

    async fn execute(&self, request: Request<CommandRequest>) -> Result<Response<CommandReply>, Status> {
        Ok(Response::new(CommandReply { newly_accepted: request.into_inner().request_id.len() > LONG }))
    }

    async fn set_log_level(&self, request: Request<LogLevelRequest>) -> Result<Response<LogLevelReply>, Status> {
        match request.into_inner().filter.as_str() {
            "debug" => Ok(Response::new(LogLevelReply {})),
            other => Err(Status::invalid_argument(format!("'{other}' is no filter"))),
        }
    }
}

async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let connections = incoming(listener, None, Arc::new(Refusals::default()));
    tokio::spawn(server().add_service(control::service(Told)).serve_with_incoming(connections));
    address
}

#[tokio::test]
async fn messages_longer_than_the_windows_go_both_ways() {
    let client = ControlClient::connect(&serve().await.to_string(), None).await.expect("connects");
    let mut told = client.watch(&job(), Generation(7)).await.expect("is watched");
    let mut lengths = Vec::new();
    for _ in 0..3 {
        let report = told.next().await.expect("goes on").expect("is a status");
        lengths.push(report.message.len());
    }
    assert_eq!(lengths, [5, LONG, 4]);
    // Beside the stream that is still open.
    let long = "r".repeat(LONG + 1);
    assert!(client.execute(Generation(7), &long, &Command::Stop).await.expect("is answered"));
    assert_eq!(client.describe().await.expect("is answered").1, Generation(7));
}

#[tokio::test]
async fn what_is_logged_is_told_and_no_filter_is_refused() {
    let client = ControlClient::connect(&serve().await.to_string(), None).await.expect("connects");
    client.set_log_level(Generation(7), "debug").await.expect("is taken");
    let refused = client.set_log_level(Generation(7), "loud").await.expect_err("is none");
    assert!(matches!(&refused, ControlError::Refused { .. }) && refused.to_string().contains("'loud'"), "{refused}");
}

#[tokio::test]
async fn a_refusal_is_told_from_a_broken_connection() {
    let client = ControlClient::connect(&serve().await.to_string(), None).await.expect("connects");
    let refused = client.watch(&job(), Generation(8)).await.map(drop);
    assert!(
        matches!(refused, Err(ControlError::AnotherJobManager { message, .. }) if message == "this is generation 7")
    );
    let nobody = ControlClient::connect("127.0.0.1:1", None).await.map(drop);
    assert!(matches!(nobody, Err(ControlError::Unreachable { message, .. }) if message.contains("refused")));
}

/// Takes one connection and says nothing; ends when it is closed.
async fn silent() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let closed = tokio::spawn(async move {
        let mut stream = PeerStream::Plain(listener.accept().await.expect("somebody").0);
        let mut space = [0; 1024];
        while stream.read(&mut space).await.is_ok_and(|length| length > 0) {}
    });
    (address, closed)
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_given_up() {
    let (address, closed) = silent().await;
    let client = ControlClient::connect(&address.to_string(), None).await.expect("connects");
    let (patience, job) = (KEEPALIVE_INTERVAL + KEEPALIVE_TIMEOUT + Duration::from_secs(2), job());
    let answer = tokio::time::timeout(patience, client.watch(&job, Generation(7))).await;
    let answer = answer.expect("the call ends with the connection").map(drop);
    assert!(matches!(answer, Err(ControlError::Unreachable { .. })), "{answer:?}");
    closed.await.expect("the connection is closed");
}

#[tokio::test]
async fn a_connection_that_nobody_needs_is_closed() {
    let (address, closed) = silent().await;
    let client = ControlClient::connect(&address.to_string(), None).await.expect("connects");
    drop(client.clone());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!closed.is_finished());
    drop(client);
    tokio::time::timeout(Duration::from_secs(1), closed).await.expect("soon").expect("is closed");
}
