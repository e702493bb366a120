//! Connections with or without TLS as one type, and how they are opened and taken.
//!
//! A peer that is refused is told in the log by its address, with the reason, and no more than once in ten seconds: who
//! knocks again and again fills no disk.

use super::handshakes::{Handshakes, TOO_MANY};
use super::{Role, Tls, explain, role_of};
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tonic::transport::server::Connected;
use tonic::{Request, Status};

/// How long a handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two lines about peers that were refused.
const QUIET: Duration = Duration::from_secs(10);

/// A connection between two processes of a job.
#[derive(Debug)]
pub enum PeerStream {
    /// Where no certificates are given: local runs, and processes started by hand.
    Plain(TcpStream),
    /// With a peer of the same job.
    Tls(Box<TlsStream<TcpStream>>, Role),
}

/// Who is at the other end of a connection, in a request's extensions.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Where it connects from.
    pub address: Option<SocketAddr>,
    /// What its certificate makes it; none where no certificates are given.
    pub role: Option<Role>,
}

impl PeerStream {
    /// The connection below.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream, _) => stream.get_ref().0,
        }
    }
}

impl Connected for PeerStream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let role = match self {
            Self::Plain(_) => None,
            Self::Tls(_, role) => Some(*role),
        };
        Peer { address: self.tcp().peer_addr().ok(), role }
    }
}

/// Refuses a request whose peer has none of these roles; where no certificates are given, all may ask.
///
/// # Errors
/// `PERMISSION_DENIED`, naming the role that asked and those that may.
pub fn require<T>(request: &Request<T>, allowed: &[Role], refusals: &Refusals) -> Result<(), Status> {
    let Some(peer) = request.extensions().get::<Peer>() else {
        return Err(Status::internal("the connection does not say whose it is"));
    };
    let Some(role) = peer.role.filter(|role| !allowed.contains(role)) else { return Ok(()) };
    let names: Vec<_> = allowed.iter().map(|role| role.name()).collect();
    let reason = format!("a certificate of role '{}' may not ask for this; {} may", role.name(), names.join(", "));
    refusals.note("a request", peer.address, &reason);
    Err(Status::permission_denied(reason))
}

impl Tls {
    /// Takes a connection of a peer of the same job.
    ///
    /// # Errors
    /// Why it is refused; the error's text is for people.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<PeerStream> {
        let server = self.current().server.ok_or_else(|| refused("this process takes no connections"))?;
        let acceptor = TlsAcceptor::from(server);
        let stream = within(acceptor.accept(stream)).await?;
        let role = stream.get_ref().1.peer_certificates().and_then(|chain| role_of(chain.first()?));
        let role = role.ok_or_else(|| refused("its certificate gives no role in a job"))?;
        Ok(PeerStream::Tls(Box::new(stream.into()), role))
    }

    /// Makes a connection one with a peer that has this role in the same job.
    ///
    /// # Errors
    /// It is another, or does not believe this process.
    pub async fn connect(&self, stream: TcpStream, role: Role) -> io::Result<PeerStream> {
        let name = ServerName::try_from(role.dns_name()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(self.current().client);
        let stream = within(connector.connect(name, stream)).await?;
        Ok(PeerStream::Tls(Box::new(stream.into()), role))
    }
}

async fn within<T>(handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(done) => done.map_err(|error| explain(&error)),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long")),
    }
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// Tells of refused peers, and not of each.
#[derive(Debug, Default)]
pub struct Refusals {
    told: Mutex<(Option<Instant>, u64)>,
}

impl Refusals {
    /// One more; the line names who and why, and how many were not told of.
    pub fn note(&self, what: &str, from: Option<SocketAddr>, why: &str) {
        let untold = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.0.is_some_and(|at| at.elapsed() < QUIET) {
                told.1 += 1;
                return;
            }
            told.0 = Some(Instant::now());
            std::mem::take(&mut told.1)
        };
        let from = from.map_or_else(|| "an unknown address".to_owned(), |from| from.to_string());
        tracing::warn!(untold, "{what} from {from} is refused: {why}");
    }
}

/// The connections that a listener takes, with TLS where it is given, as a server wants them. Handshakes happen beside
/// each other: one that hangs holds up nobody.
pub fn incoming(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    refusals: Arc<Refusals>,
) -> impl futures::Stream<Item = io::Result<PeerStream>> {
    let (sender, mut receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let handshakes = Handshakes::new();
        loop {
            let accepted = tokio::select! {
                () = sender.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, from)) = accepted else {
                // Out of file descriptors, mostly: going on at once would only spin.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Some(place) = handshakes.begin(from).await else {
                refusals.note("a connection", Some(from), TOO_MANY);
                continue;
            };
            let (sender, tls, refusals) = (sender.clone(), tls.clone(), Arc::clone(&refusals));
            tokio::spawn(async move {
                let taken = take(stream, tls.as_deref()).await;
                drop(place);
                match taken {
                    // The server has ended where nobody takes it.
                    Ok(stream) => drop(sender.send(Ok(stream)).await),
                    Err(error) => refusals.note("a connection", Some(from), &error.to_string()),
                }
            });
        }
    });
    futures::stream::poll_fn(move |context| receiver.poll_recv(context))
}

async fn take(stream: TcpStream, tls: Option<&Tls>) -> io::Result<PeerStream> {
    stream.set_nodelay(true)?;
    match tls {
        None => Ok(PeerStream::Plain(stream)),
        Some(tls) => tls.accept(stream).await,
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            // A server's refusal of a certificate comes when the client has long sent its first words.
            Self::Tls(stream, _) => {
                Pin::new(stream.as_mut()).poll_read(context, buffer).map_err(|error| explain(&error))
            }
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream, _) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream, _) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream, _) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
