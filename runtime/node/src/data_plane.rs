//! Rows and barriers between TaskManagers: one TCP connection per pair of TaskManagers, direction and run.
//!
//! It owns the listener, the handshake and the pumps that move frames between a connection and the queues of
//! [`sluice_engine::channel`]; it never looks into rows beyond decoding them, and knows nothing of tasks. It runs on a
//! runtime of its own, so that a flood of rows delays no heartbeat.
//!
//! 1. A deployment opens a run ([`DataPlane::open_run`]): queues to fill from peers are registered, and one
//!    connection is opened to each peer that takes frames ([`sending`]).
//! 2. The connection begins with a [`handshake`]: job uid, run, both TaskManagers. Another job, an older run and an
//!    unexpected peer are refused (N2); a run that is not open here yet is waited for, since deployments arrive one
//!    by one. Where the job has certificates, TLS comes before it, and only its TaskManagers get that far.
//! 3. Frames flow one way, grants of credit the other way ([`receiving`]). Each channel has its own credit, so a full
//!    channel blocks neither its neighbours nor a barrier of theirs; control frames need none.
//! 4. A connection that breaks while its run is open is told to the run's [`OnBroken`], with the peer and the
//!    channels; the tasks that use them must restart.
//! 5. Dropping the [`OpenRun`] closes its connections and lets go of its queues.

mod handshake;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use sluice_engine::channel::{ChannelId, InputChannel, OutputChannel};
use sluice_protocol::{Run, TaskManagerId};
use sluice_rpc::tls::Tls;
use sluice_rpc::tls::handshakes::{Handshakes, TOO_MANY};
use sluice_rpc::tls::stream::Refusals;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// How long a handshake may take, and how long a peer's run is waited for.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// Silence on a connection with unacknowledged bytes after which the operating system gives it up.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(10);

/// What can go wrong between two TaskManagers.
#[derive(Debug, thiserror::Error)]
pub enum DataPlaneError {
    /// The address for data connections cannot be taken.
    #[error("--data-bind: cannot listen on {address}: {source}; choose another address or port")]
    Bind {
        /// Which.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The peer's address cannot be reached.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The connection ended.
    #[error("the connection ended: {0}")]
    Ended(String),
    /// The peer refused the handshake.
    #[error("the connection was refused: {0}")]
    Refused(String),
    /// What came is no frame of this run.
    #[error(transparent)]
    Frame(#[from] sluice_engine::channel::codec::FrameError),
    /// What came does not follow what came before.
    #[error(transparent)]
    Sequence(#[from] sluice_engine::channel::OutOfSequence),
}

impl From<std::io::Error> for DataPlaneError {
    fn from(error: std::io::Error) -> Self {
        Self::Ended(error.to_string())
    }
}

/// A connection of an open run that broke.
#[derive(Debug, Clone)]
pub struct Broken {
    /// The run.
    pub run: Run,
    /// The other side.
    pub peer: TaskManagerId,
    /// Its channels.
    pub channels: Vec<ChannelId>,
    /// Why, naming the peer.
    pub message: String,
}

/// Told of a broken connection.
pub type OnBroken = Arc<dyn Fn(Broken) + Send + Sync>;

/// A queue that a peer fills.
pub struct Incoming {
    /// The TaskManager that sends.
    pub peer: TaskManagerId,
    /// The queue.
    pub queue: OutputChannel,
    /// The schema of its rows.
    pub schema: arrow::datatypes::SchemaRef,
}

/// The queues that one peer takes.
pub struct Outgoing {
    /// The TaskManager that receives.
    pub peer: TaskManagerId,
    /// Its data address.
    pub address: String,
    /// The queues.
    pub queues: Vec<InputChannel>,
}

/// One side of all data connections of a TaskManager.
pub struct DataPlane {
    inner: Arc<Inner>,
    address: SocketAddr,
}

struct Inner {
    job_uid: String,
    task_manager: TaskManagerId,
    window: usize,
    runtime: tokio::runtime::Handle,
    tls: Option<Arc<Tls>>,
    refusals: Refusals,
    open: watch::Sender<Option<Arc<Registered>>>,
    shutdown: CancellationToken,
}

/// The receiving half of an open run.
struct Registered {
    run: Run,
    /// Taken by the connection of each peer when it comes.
    incoming: Mutex<BTreeMap<TaskManagerId, Vec<Incoming>>>,
    on_broken: OnBroken,
    closed: CancellationToken,
}

/// An open run; its connections end when this is dropped.
pub struct OpenRun {
    inner: Arc<Inner>,
    registered: Arc<Registered>,
}

impl DataPlane {
    /// Listens on `bind`. `runtime` moves the frames; `window` is the credit in bytes that a channel begins with at most: less where its queue is smaller,
    /// the same in all processes of a job. With `tls`, peers must hold a TaskManager's certificate of the same job.
    ///
    /// # Errors
    /// When the address cannot be taken.
    pub async fn bind(
        bind: &str,
        job_uid: &str,
        task_manager: TaskManagerId,
        window: usize,
        runtime: tokio::runtime::Handle,
        tls: Option<Arc<Tls>>,
    ) -> Result<Self, DataPlaneError> {
        let failed = |source| DataPlaneError::Bind { address: bind.to_owned(), source };
        let listener = TcpListener::bind(bind).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // The listener moves to the runtime that serves it.
        let listener = listener.into_std().map_err(failed)?;
        let inner = Arc::new(Inner {
            job_uid: job_uid.to_owned(),
            task_manager,
            window,
            runtime,
            tls,
            refusals: Refusals::default(),
            open: watch::Sender::new(None),
            shutdown: CancellationToken::new(),
        });
        inner.runtime.spawn(accept(listener, Arc::clone(&inner)));
        Ok(Self { inner, address })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens a run: the queues are filled and emptied from now on. A run that was open before is closed to new
    /// connections.
    #[must_use]
    pub fn open_run(&self, run: Run, incoming: Vec<Incoming>, outgoing: Vec<Outgoing>, on_broken: OnBroken) -> OpenRun {
        let mut by_peer: BTreeMap<TaskManagerId, Vec<Incoming>> = BTreeMap::new();
        for queue in incoming {
            by_peer.entry(queue.peer.clone()).or_default().push(queue);
        }
        let registered = Arc::new(Registered {
            run,
            incoming: Mutex::new(by_peer),
            on_broken,
            closed: self.inner.shutdown.child_token(),
        });
        self.inner.open.send_replace(Some(Arc::clone(&registered)));
        for queues in outgoing {
            let (inner, registered) = (Arc::clone(&self.inner), Arc::clone(&registered));
            self.inner.runtime.spawn(sending::run(inner, registered, queues));
        }
        OpenRun { inner: Arc::clone(&self.inner), registered }
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.inner.shutdown.cancel();
    }
}

impl Drop for OpenRun {
    fn drop(&mut self) {
        self.registered.closed.cancel();
        self.registered.incoming.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.inner.open.send_if_modified(|open| {
            let own = open.as_ref().is_some_and(|open| Arc::ptr_eq(open, &self.registered));
            if own {
                *open = None;
            }
            own
        });
    }
}

impl Registered {
    /// Tells of a connection that broke, unless the run was closed: then it was meant to.
    fn broke(&self, peer: &TaskManagerId, address: &str, channels: Vec<ChannelId>, error: &DataPlaneError) {
        if self.closed.is_cancelled() {
            return;
        }
        let message = format!("data connection with TaskManager '{peer}' ({address}): {error}");
        warn!(run = %self.run, %peer, "{message}");
        (self.on_broken)(Broken { run: self.run, peer: peer.clone(), channels, message });
    }
}

async fn accept(listener: std::net::TcpListener, inner: Arc<Inner>) {
    let listener = match listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) {
        Ok(listener) => listener,
        Err(error) => {
            warn!("the data listener cannot be served: {error}");
            return;
        }
    };
    let handshakes = Handshakes::new();
    loop {
        let accepted = tokio::select! {
            () = inner.shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => match handshakes.begin(from).await {
                Some(place) => drop(tokio::spawn(receiving::serve(Arc::clone(&inner), stream, from, place))),
                None => inner.refusals.note("a data connection", Some(from), TOO_MANY),
            },
            Err(error) => {
                // Out of file descriptors, mostly: going on at once would only spin.
                warn!("a data connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Low latency, and an end to connections whose other side is gone without a word.
fn configure(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let keepalive =
        socket2::TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT))?;
    debug!(peer = ?stream.peer_addr().ok(), "data connection");
    Ok(())
}
