//! How connections are opened and kept: one place for limits and keepalive, so that both sides agree.
//!
//! A connection that breaks without a word (a node that is gone) is noticed after [`KEEPALIVE_INTERVAL`] plus
//! [`KEEPALIVE_TIMEOUT`]; one that is closed (a process that dies) at once.

use crate::tls::{Role, Tls};
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::time::Duration;
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

/// Connects to the JobManager at `address`, with TLS where it is given.
///
/// # Errors
/// When the address is none, nobody answers there, or it is not this job's JobManager.
pub async fn connect(address: &str, tls: Option<&Arc<Tls>>) -> Result<Channel, Error> {
    let endpoint = endpoint(address)?;
    let Some(tls) = tls.cloned() else { return endpoint.connect().await };
    let connector = tower::service_fn(move |uri: Uri| {
        let tls = Arc::clone(&tls);
        async move { open(&uri, &tls).await.map(TokioIo::new) }
    });
    endpoint.connect_with_connector(connector).await
}

async fn open(uri: &Uri, tls: &Tls) -> io::Result<crate::tls::stream::PeerStream> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    tls.connect(stream, Role::JobManager).await
}
