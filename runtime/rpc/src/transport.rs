//! How connections are opened and kept: one place for limits and keepalive, so that both sides agree.
//!
//! A connection that breaks without a word (a node that is gone) is noticed after [`KEEPALIVE_INTERVAL`] plus
//! [`KEEPALIVE_TIMEOUT`]; one that is closed (a process that dies) at once.

use crate::connection::Connection;
use crate::tls::stream::PeerStream;
use crate::tls::{CertificateError, CertificateProblem, Role, Tls};
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Error, Server, Uri};

/// Largest message: a deployment with all inline state, or an acknowledgement with state kept in the JobManager.
pub const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

/// A ping is sent after this much silence.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// A ping that is not answered for this long ends the connection.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest wait for a connection to open.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of a server with the settings of this crate. `address` is `host:port` or a URL.
///
/// # Errors
/// When it is not an address.
pub fn endpoint(address: &str) -> Result<Endpoint, Error> {
    let url = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    Ok(Endpoint::from_shared(url)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

/// A server with the settings of this crate.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

/// What was last wrong with a certificate on a connection. The layers between keep no more of an error than its text.
#[derive(Debug, Clone, Default)]
pub struct LastProblem(Arc<Mutex<Option<CertificateProblem>>>);

impl LastProblem {
    /// It, where there was something.
    #[must_use]
    pub fn get(&self) -> Option<CertificateProblem> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, error: &io::Error) {
        if let Some(error) = CertificateError::of(error) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.problem);
        }
    }
}

/// Connects to the JobManager at `address`, with TLS where it is given; a connection that breaks is opened again.
///
/// # Errors
/// When the address is none, nobody answers there, or it is not this job's JobManager.
pub async fn connect(address: &str, tls: Option<&Arc<Tls>>) -> Result<Channel, Error> {
    let endpoint = endpoint(address)?;
    let tls = tls.cloned();
    let connector = tower::service_fn(move |uri: Uri| {
        let tls = tls.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(open(&uri, tls.as_deref()).await?)) }
    });
    endpoint.connect_with_connector(connector).await
}

/// Connects likewise, once and with small buffers; `problem` tells from then on what was wrong with a certificate. With it
/// the address as a URL.
///
/// # Errors
/// As for [`connect`].
pub(crate) async fn connect_once(
    address: &str,
    tls: Option<&Arc<Tls>>,
    problem: &LastProblem,
) -> io::Result<(Connection, Uri)> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let uri = endpoint(address).map_err(invalid)?.uri().clone();
    let opened = tokio::time::timeout(CONNECT_TIMEOUT, open(&uri, tls.map(Arc::as_ref))).await;
    let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = opened.inspect_err(|error| problem.note(error))?;
    let connection = Connection::open(Watched { stream, problem: problem.clone() }).await?;
    Ok((connection, uri))
}

async fn open(uri: &Uri, tls: Option<&Tls>) -> io::Result<PeerStream> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    match tls {
        Some(tls) => tls.connect(stream, Role::JobManager).await,
        None => Ok(PeerStream::Plain(stream)),
    }
}

/// A connection whose end is remembered: a server's refusal of a certificate comes behind the handshake.
struct Watched {
    stream: PeerStream,
    problem: LastProblem,
}

impl Watched {
    /// A server that refuses closes at once, and the next write fails; what it has said before lies there to be read.
    fn read_refusal(&mut self, context: &mut Context<'_>) {
        let mut space = [0; 64];
        let mut buffer = ReadBuf::new(&mut space);
        if let Poll::Ready(Err(error)) = Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            self.problem.note(&error);
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, problem } = self.get_mut();
        let read = Pin::new(stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read {
            problem.note(error);
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let watched = self.get_mut();
        let written = Pin::new(&mut watched.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Err(_))) {
            watched.read_refusal(context);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let watched = self.get_mut();
        let flushed = Pin::new(&mut watched.stream).poll_flush(context);
        if matches!(flushed, Poll::Ready(Err(_))) {
            watched.read_refusal(context);
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
