//! The session between a TaskManager and its JobManager, as gRPC.
//!
//! The meaning of the messages is told in [`sluice_protocol::message`]; here they only get onto the wire.

pub use crate::convert::ConversionError;
use crate::tls::Tls;
use crate::transport::{self, MESSAGE_LIMIT};
use crate::v1::LogLevel;
pub use crate::v1::task_manager_gateway_client::TaskManagerGatewayClient;
pub use crate::v1::task_manager_gateway_server::{TaskManagerGateway, TaskManagerGatewayServer};
use crate::v1::to_task_manager_envelope::Message;
pub use crate::v1::{FromTaskManagerEnvelope, ToTaskManagerEnvelope};
use std::sync::Arc;
use tonic::transport::Channel;

/// A client that opens sessions.
///
/// # Errors
/// When the address is none, or nobody answers there.
pub async fn connect(
    address: &str,
    tls: Option<&Arc<Tls>>,
) -> Result<TaskManagerGatewayClient<Channel>, tonic::transport::Error> {
    let channel = transport::connect(address, tls).await?;
    Ok(TaskManagerGatewayClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT))
}

/// The service as a server runs it, with this crate's limits.
#[must_use]
pub fn service<T: TaskManagerGateway>(gateway: T) -> TaskManagerGatewayServer<T> {
    TaskManagerGatewayServer::new(gateway)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

/// Tells a TaskManager what to log.
#[must_use]
pub fn log_level(filter: String) -> ToTaskManagerEnvelope {
    ToTaskManagerEnvelope { message: Some(Message::LogLevel(LogLevel { filter })) }
}

/// What a TaskManager is to log, when that is what this tells.
#[must_use]
pub fn log_level_of(envelope: &ToTaskManagerEnvelope) -> Option<&str> {
    match &envelope.message {
        Some(Message::LogLevel(LogLevel { filter })) => Some(filter),
        _ => None,
    }
}
