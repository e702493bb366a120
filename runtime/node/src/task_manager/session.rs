//! One connection to the JobManager: messages out, messages in, over gRPC or within one process.
//!
//! The session is over when `incoming` ends; dropping it ends it for the other side.

use crate::job_manager::driver::{DriverHandle, SessionEnd};
use crate::logs::LogSwitch;
use futures::StreamExt as _;
use sluice_protocol::job_master::Event;
use sluice_protocol::message::{FromTaskManager, ToTaskManager};
use sluice_rpc::gateway::{self, ConversionError, FromTaskManagerEnvelope, ToTaskManagerEnvelope};
use sluice_rpc::tls::Tls;
use std::error::Error as _;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tracing::{error, info, warn};

/// Messages that may wait for the worker.
const QUEUE: usize = 64;

/// An open session.
pub(crate) struct Session {
    pub(crate) outgoing: mpsc::UnboundedSender<FromTaskManager>,
    pub(crate) incoming: mpsc::Receiver<ToTaskManager>,
}

/// Connects to the JobManager at `address`, with TLS where it is given.
///
/// # Errors
/// Why nobody answers, as text.
pub(crate) async fn connect(address: &str, tls: Option<&Arc<Tls>>, logs: &LogSwitch) -> Result<Session, String> {
    let mut client = gateway::connect(address, tls).await.map_err(|error| {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}")
    })?;
    let (outgoing, messages) = mpsc::unbounded_channel::<FromTaskManager>();
    let envelopes = UnboundedReceiverStream::new(messages).filter_map(|message| {
        let envelope = FromTaskManagerEnvelope::try_from(&message)
            .inspect_err(|problem| error!("a message cannot be sent: {problem}"));
        futures::future::ready(envelope.ok())
    });
    let stream = client.session(envelopes).await.map_err(|status| status.to_string())?.into_inner();
    let (sender, incoming) = mpsc::channel(QUEUE);
    tokio::spawn(take_messages(stream, sender, logs.clone()));
    Ok(Session { outgoing, incoming })
}

async fn take_messages(
    mut stream: Streaming<ToTaskManagerEnvelope>,
    sender: mpsc::Sender<ToTaskManager>,
    logs: LogSwitch,
) {
    loop {
        let envelope = tokio::select! {
            // The worker has dropped the session.
            () = sender.closed() => return,
            received = stream.message() => match received {
                Ok(Some(envelope)) => envelope,
                Ok(None) => return,
                Err(status) => {
                    info!("the session broke: {}", status.message());
                    return;
                }
            },
        };
        if let Some(filter) = gateway::log_level_of(&envelope) {
            match logs.set(filter) {
                Ok(()) => info!(filter, "what this process logs was changed"),
                Err(problem) => warn!("{problem}"),
            }
            continue;
        }
        match ToTaskManager::try_from(envelope) {
            Ok(message) => {
                if sender.send(message).await.is_err() {
                    return;
                }
            }
            Err(problem @ ConversionError::UnknownKind(_)) => warn!("{problem}"),
            Err(problem) => {
                warn!("the session is closed: {problem}");
                return;
            }
        }
    }
}

/// A session within the process of the JobManager; `None` when that has ended.
pub(crate) async fn in_process(handle: &DriverHandle) -> Option<Session> {
    let SessionEnd { session, outgoing: mut from_master } = handle.open_session().await?;
    let (outgoing, mut from_worker) = mpsc::unbounded_channel();
    let (to_worker, incoming) = mpsc::channel(QUEUE);
    let events = handle.clone();
    tokio::spawn(async move {
        while let Some(message) = from_worker.recv().await {
            if !events.send(Event::Message { session, message }).await {
                return;
            }
        }
        events.send(Event::SessionClosed { session }).await;
    });
    tokio::spawn(async move {
        while let Some(message) = from_master.recv().await {
            if to_worker.send(message).await.is_err() {
                return;
            }
        }
    });
    Some(Session { outgoing, incoming })
}
