//! TaskManagers' sessions over gRPC: messages in become events, in order; a stream that ends is a closed session.

use super::driver::{DriverHandle, SessionEnd};
use crate::logs::LogFilters;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use sluice_protocol::job_master::{Event, SessionId};
use sluice_protocol::message::FromTaskManager;
use sluice_rpc::control::changes;
use sluice_rpc::gateway::{
    ConversionError, FromTaskManagerEnvelope, TaskManagerGateway, ToTaskManagerEnvelope, log_level,
};
use sluice_rpc::tls::Role;
use sluice_rpc::tls::stream::{Peer, Refusals, require};
use std::sync::Arc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

/// The service.
pub(crate) struct Gateway {
    handle: DriverHandle,
    refusals: Arc<Refusals>,
    logs: LogFilters,
}

impl Gateway {
    pub(crate) const fn new(handle: DriverHandle, refusals: Arc<Refusals>, logs: LogFilters) -> Self {
        Self { handle, refusals, logs }
    }
}

#[tonic::async_trait]
impl TaskManagerGateway for Gateway {
    type SessionStream = BoxStream<'static, Result<ToTaskManagerEnvelope, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<FromTaskManagerEnvelope>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        require(&request, &[Role::TaskManager], &self.refusals)?;
        let from = request.extensions().get::<Peer>().and_then(|peer| peer.address);
        let opened = self.handle.open_session().await;
        let SessionEnd { session, outgoing } = opened.ok_or_else(|| Status::unavailable("the JobManager ends"))?;
        info!(session = session.0, ?from, "a TaskManager connects");
        tokio::spawn(take_messages(self.handle.clone(), session, request.into_inner()));
        let outgoing = UnboundedReceiverStream::new(outgoing).map(|message| {
            ToTaskManagerEnvelope::try_from(&message).map_err(|error| Status::internal(error.to_string()))
        });
        let filters = changes(self.logs.watch()).filter_map(|filter| std::future::ready(filter.map(log_level)));
        // The session ends with its messages, whatever may still be told of logs.
        let outgoing = outgoing.map(Some).chain(stream::iter([None]));
        let all = stream::select(outgoing, filters.map(|filter| Some(Ok(filter))));
        Ok(Response::new(
            all.take_while(|message| std::future::ready(message.is_some())).filter_map(std::future::ready).boxed(),
        ))
    }
}

async fn take_messages(handle: DriverHandle, session: SessionId, mut incoming: Streaming<FromTaskManagerEnvelope>) {
    let ended = handle.ended();
    loop {
        let received = tokio::select! {
            () = ended.cancelled() => return,
            received = incoming.message() => received,
        };
        let envelope = match received {
            Ok(Some(envelope)) => envelope,
            Ok(None) => break,
            Err(status) => {
                info!(session = session.0, "the session broke: {}", status.message());
                break;
            }
        };
        match FromTaskManager::try_from(envelope) {
            Ok(message) => {
                if !handle.send(Event::Message { session, message }).await {
                    return;
                }
            }
            Err(error @ ConversionError::UnknownKind(_)) => warn!(session = session.0, "{error}"),
            Err(error) => {
                warn!(session = session.0, "the session is closed: {error}");
                break;
            }
        }
    }
    handle.send(Event::SessionClosed { session }).await;
}
