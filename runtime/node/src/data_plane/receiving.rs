//! The receiving pump: reads frames from a peer into queues, and grants what their tasks have taken.

use super::handshake::{self, Hello};
use super::{DataPlaneError, HANDSHAKE_TIMEOUT, Incoming, Inner, RUN_TIMEOUT, Registered, configure};
use bytes::{BufMut, Bytes};
use sluice_engine::channel::{ChannelId, codec};
use sluice_rpc::tls::Role;
use sluice_rpc::tls::handshakes::Place;
use sluice_rpc::tls::stream::PeerStream;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tracing::info;

/// A grant: u32 edge, u32 from, u32 to, u64 bytes, little endian.
pub(super) const GRANT_LENGTH: usize = 20;

const READ_BUFFER: usize = 64 * 1024;

/// Serves one connection from its handshake to its end.
pub(super) async fn serve(inner: Arc<Inner>, stream: TcpStream, from: SocketAddr, place: Place) {
    let secured = tokio::select! {
        () = inner.shutdown.cancelled() => return,
        secured = secure(&inner, stream) => secured,
    };
    let mut stream = match secured {
        Ok(stream) => stream,
        Err(error) => return inner.refusals.note("a data connection", Some(from), &error.to_string()),
    };
    let admitted = tokio::select! {
        () = inner.shutdown.cancelled() => return,
        admitted = admit(&inner, &mut stream, place) => admitted,
    };
    let (hello, registered, queues) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => {
            info!("a data connection from {from} was not taken: {error}");
            let _ = handshake::answer(&mut stream, Some(&error.to_string())).await;
            return;
        }
    };
    let ids = queues.iter().map(|incoming| incoming.queue.id()).collect();
    let result = tokio::select! {
        () = registered.closed.cancelled() => return,
        result = pump(stream, &registered, queues) => result,
    };
    if let Err(error) = result {
        registered.broke(&hello.from, &from.to_string(), ids, &error);
    }
}

/// Only TaskManagers of the same job get further, where it has certificates.
async fn secure(inner: &Inner, stream: TcpStream) -> std::io::Result<PeerStream> {
    configure(&stream)?;
    let Some(tls) = &inner.tls else { return Ok(PeerStream::Plain(stream)) };
    match tls.accept(stream).await? {
        PeerStream::Tls(_, role) if role != Role::TaskManager => {
            let reason = format!("a certificate of role '{}' may not exchange rows", role.name());
            Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, reason))
        }
        stream => Ok(stream),
    }
}

/// Hears the sender, waits for its run to be open here, and hands out the queues it fills.
async fn admit(
    inner: &Inner,
    stream: &mut PeerStream,
    place: Place,
) -> Result<(Hello, Arc<Registered>, Vec<Incoming>), DataPlaneError> {
    let too_late = |_| DataPlaneError::Refused("the handshake came too late".to_owned());
    let hello = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake::hear(stream)).await.map_err(too_late)??;
    drop(place);
    if hello.job_uid != inner.job_uid || hello.to != inner.task_manager {
        let text = format!(
            "this is TaskManager '{}' of job {}, not '{}' of job {}",
            inner.task_manager, inner.job_uid, hello.to, hello.job_uid
        );
        return Err(DataPlaneError::Refused(text));
    }
    let registered = wait_for_run(inner, &hello).await?;
    let queues = registered.incoming.lock().unwrap_or_else(PoisonError::into_inner).remove(&hello.from);
    let queues = queues.ok_or_else(|| {
        let text =
            format!("TaskManager '{}' sends nothing to run {} here, or is connected already", hello.from, hello.run);
        DataPlaneError::Refused(text)
    })?;
    handshake::answer(stream, None).await?;
    Ok((hello, registered, queues))
}

async fn wait_for_run(inner: &Inner, hello: &Hello) -> Result<Arc<Registered>, DataPlaneError> {
    let mut open = inner.open.subscribe();
    let reached = open.wait_for(|open| open.as_ref().is_some_and(|open| open.run >= hello.run));
    let reached = tokio::time::timeout(RUN_TIMEOUT, reached).await;
    let registered = reached.ok().and_then(Result::ok).and_then(|open| open.clone()).ok_or_else(|| {
        DataPlaneError::Refused(format!("run {} was not deployed here within {RUN_TIMEOUT:?}", hello.run))
    })?;
    if registered.run == hello.run {
        return Ok(registered);
    }
    Err(DataPlaneError::Refused(format!("run {} is over; run {} is deployed here", hello.run, registered.run)))
}

async fn pump(stream: PeerStream, registered: &Registered, queues: Vec<Incoming>) -> Result<(), DataPlaneError> {
    let (reader, writer) = tokio::io::split(stream);
    let consumed = Arc::new(Notify::new());
    for incoming in &queues {
        let consumed = Arc::clone(&consumed);
        incoming.queue.set_waker(Arc::new(move || consumed.notify_one()));
    }
    tokio::select! {
        result = take_frames(reader, registered, &queues) => result,
        result = grant(writer, &queues, &consumed) => result,
    }
}

async fn take_frames(
    reader: ReadHalf<PeerStream>,
    registered: &Registered,
    queues: &[Incoming],
) -> Result<(), DataPlaneError> {
    let by_id: HashMap<ChannelId, &Incoming> = queues.iter().map(|queue| (queue.queue.id(), queue)).collect();
    let mut reader = BufReader::with_capacity(READ_BUFFER, reader);
    loop {
        let length = reader.read_u32_le().await? as usize;
        if length > codec::MAX_FRAME {
            return Err(DataPlaneError::Ended(format!("a frame of {length} bytes is longer than any should be")));
        }
        let frame = read_frame(&mut reader, length).await?;
        let header = codec::decode_header(&frame)?;
        header.check_run(registered.run)?;
        let incoming = by_id.get(&header.channel).ok_or_else(|| {
            DataPlaneError::Ended(format!("{}: a frame for no channel of this sender", header.channel))
        })?;
        let (_, numbered) = codec::decode_frame(&frame, &incoming.schema)?;
        incoming.queue.push_received(numbered)?;
    }
}

/// In one allocation of its own, whose alignment lets rows be used where they lie.
async fn read_frame(reader: &mut BufReader<ReadHalf<PeerStream>>, length: usize) -> Result<Bytes, DataPlaneError> {
    let mut frame = Vec::with_capacity(length).limit(length);
    while frame.has_remaining_mut() {
        if reader.read_buf(&mut frame).await? == 0 {
            return Err(DataPlaneError::Ended("in the middle of a frame".to_owned()));
        }
    }
    Ok(Bytes::from(frame.into_inner()))
}

async fn grant(
    mut writer: WriteHalf<PeerStream>,
    queues: &[Incoming],
    consumed: &Notify,
) -> Result<(), DataPlaneError> {
    let mut bytes = Vec::new();
    loop {
        consumed.notified().await;
        bytes.clear();
        for incoming in queues {
            let granted = incoming.queue.take_consumed();
            if granted > 0 {
                let id = incoming.queue.id();
                bytes.extend_from_slice(&id.edge.to_le_bytes());
                bytes.extend_from_slice(&id.from.0.to_le_bytes());
                bytes.extend_from_slice(&id.to.0.to_le_bytes());
                bytes.extend_from_slice(&granted.to_le_bytes());
            }
        }
        writer.write_all(&bytes).await?;
        writer.flush().await?;
    }
}
