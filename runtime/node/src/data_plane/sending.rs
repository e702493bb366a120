//! The sending pump: takes frames out of queues, as far as credit goes, and writes them to the peer.
//!
//! Queues take turns frame by frame. It sleeps until a queue gets its first frame or a grant arrives.

use super::handshake::{self, Hello};
use super::{DataPlaneError, HANDSHAKE_TIMEOUT, Inner, Outgoing, RUN_TIMEOUT, Registered, configure};
use crate::data_plane::receiving::GRANT_LENGTH;
use sluice_engine::channel::{ChannelId, InputChannel, codec};
use sluice_protocol::{Run, SubtaskIndex};
use sluice_rpc::tls::stream::PeerStream;
use sluice_rpc::tls::{Role, Tls};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

const WRITE_BUFFER: usize = 64 * 1024;

/// One queue and what its receiver lets it send.
struct Channel {
    queue: InputChannel,
    credit: AtomicI64,
}

struct Pump {
    run: Run,
    channels: Vec<Channel>,
    wake: Arc<Notify>,
}

/// Connects to the peer and moves frames until the run is closed or the connection breaks.
pub(super) async fn run(inner: Arc<Inner>, registered: Arc<Registered>, outgoing: Outgoing) {
    let Outgoing { peer, address, queues } = outgoing;
    let ids: Vec<ChannelId> = queues.iter().map(InputChannel::id).collect();
    let hello = Hello {
        job_uid: inner.job_uid.clone(),
        run: registered.run,
        from: inner.task_manager.clone(),
        to: peer.clone(),
    };
    let window = inner.window;
    let result = tokio::select! {
        () = registered.closed.cancelled() => return,
        result = connect_and_pump(&address, inner.tls.as_deref(), &hello, queues, window) => result,
    };
    if let Err(error) = result {
        registered.broke(&peer, &address, ids, &error);
    }
}

async fn connect_and_pump(
    address: &str,
    tls: Option<&Tls>,
    hello: &Hello,
    queues: Vec<InputChannel>,
    window: usize,
) -> Result<(), DataPlaneError> {
    let failed = |source| DataPlaneError::Connect { address: address.to_owned(), source };
    let connecting = tokio::time::timeout(HANDSHAKE_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connecting.map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?.map_err(failed)?;
    configure(&stream)?;
    let mut stream = match tls {
        None => PeerStream::Plain(stream),
        Some(tls) => tls.connect(stream, Role::TaskManager).await.map_err(failed)?,
    };
    let greeting = tokio::time::timeout(HANDSHAKE_TIMEOUT + RUN_TIMEOUT, handshake::greet(&mut stream, hello));
    greeting.await.map_err(|_| DataPlaneError::Ended("the handshake was not answered in time".to_owned()))??;
    let (reader, writer) = tokio::io::split(stream);
    let wake = Arc::new(Notify::new());
    let channels = queues.into_iter().map(|queue| {
        let wake = Arc::clone(&wake);
        queue.set_waker(Arc::new(move || wake.notify_one()));
        let credit = i64::try_from(window.min(queue.window())).unwrap_or(i64::MAX);
        Channel { queue, credit: AtomicI64::new(credit) }
    });
    let pump = Pump { run: hello.run, channels: channels.collect(), wake };
    tokio::select! {
        result = pump.send(writer) => result,
        result = pump.take_grants(reader) => result,
    }
}

impl Pump {
    async fn send(&self, writer: WriteHalf<PeerStream>) -> Result<(), DataPlaneError> {
        let mut writer = BufWriter::with_capacity(WRITE_BUFFER, writer);
        loop {
            let mut moved = false;
            for channel in &self.channels {
                if let Some(bytes) = channel.next(self.run)? {
                    writer.write_all(&bytes).await?;
                    moved = true;
                }
            }
            if !moved {
                writer.flush().await?;
                self.wake.notified().await;
            }
        }
    }

    async fn take_grants(&self, mut reader: ReadHalf<PeerStream>) -> Result<(), DataPlaneError> {
        let mut grant = [0; GRANT_LENGTH];
        loop {
            reader.read_exact(&mut grant).await?;
            let (id, bytes) = read_grant(&grant);
            let channel = self.channels.iter().find(|channel| channel.queue.id() == id);
            let channel = channel.ok_or_else(|| DataPlaneError::Ended(format!("{id}: a grant for no channel here")))?;
            channel.credit.fetch_add(bytes, Ordering::AcqRel);
            self.wake.notify_one();
        }
    }
}

impl Channel {
    /// The next frame as bytes, when there is one and credit for it.
    fn next(&self, run: Run) -> Result<Option<Vec<u8>>, DataPlaneError> {
        // Grants only add meanwhile, so what was there is still there when it is taken off.
        let before = self.credit.load(Ordering::Acquire);
        let mut credit = before;
        let Some(frame) = self.queue.pop_with_credit(&mut credit) else { return Ok(None) };
        self.credit.fetch_sub(before - credit, Ordering::AcqRel);
        Ok(Some(codec::encode_frame(run, self.queue.id(), &frame)?))
    }
}

fn read_grant(grant: &[u8; GRANT_LENGTH]) -> (ChannelId, i64) {
    let number = |at: usize| u32::from_le_bytes([grant[at], grant[at + 1], grant[at + 2], grant[at + 3]]);
    let id = ChannelId { edge: number(0), from: SubtaskIndex(number(4)), to: SubtaskIndex(number(8)) };
    let bytes = u64::from(number(12)) | u64::from(number(16)) << 32;
    (id, i64::try_from(bytes).unwrap_or(i64::MAX))
}
