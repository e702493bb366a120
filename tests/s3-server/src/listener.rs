//! Accepts connections; in an outage that refuses them it gives up its port and takes the same one again later.

use crate::Outage;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::service::S3Service;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// What answers, and how it is spoken to.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) service: S3Service,
    /// Plain text without one.
    pub(crate) acceptor: Option<TlsAcceptor>,
}

/// Serves until it is aborted, which cuts all connections.
pub(crate) async fn serve(
    socket: TcpListener,
    address: SocketAddr,
    server: Server,
    mut outage: watch::Receiver<Outage>,
) {
    let mut socket = socket;
    loop {
        serve_until_refusing(socket, &server, &mut outage).await;
        if outage.wait_for(|outage| *outage != Outage::Refuses).await.is_err() {
            return;
        }
        socket = bind_again(address).await;
    }
}

/// The port is ours again as soon as nobody else took it meanwhile.
async fn bind_again(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(socket) => return socket,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve_until_refusing(socket: TcpListener, server: &Server, outage: &mut watch::Receiver<Outage>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = outage.wait_for(|outage| *outage == Outage::Refuses) => return,
            accepted = socket.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(serve_connection(stream, server.clone()));
                }
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(stream: TcpStream, server: Server) {
    let _ = stream.set_nodelay(true);
    match server.acceptor {
        None => serve_requests(stream, server.service).await,
        // A client that does not trust us goes away, which is its own affair.
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve_requests(stream, server.service).await;
            }
        }
    }
}

async fn serve_requests(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, service: S3Service) {
    let http = Builder::new(TokioExecutor::new());
    // A client that goes away ends its connection with an error, which is its own affair too.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
