//! One HTTP/2 connection of a client that may hold a thousand of them: it has no queue and no layer that opens it again,
//! and its buffers are as small as the protocol lets them be.
//!
//! Callers rely on: nothing is retried; a connection whose peer does not answer a ping within
//! [`KEEPALIVE_TIMEOUT`](crate::transport::KEEPALIVE_TIMEOUT) ends, and all its calls with it; it is closed when the last
//! clone and the last answer are dropped.

use crate::transport::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong, RecvStream};
use http::{Request, Response};
use http_body::{Body, Frame};
use prost::Message;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// What a message is read into at first; longer ones make room for themselves.
const BUFFER: usize = 1024;
const YIELD_THRESHOLD: usize = 32 * 1024;
/// Headers of an answer, its error message among them.
const HEADERS: u32 = 64 * 1024;

/// A connection; cheap to clone.
#[derive(Debug, Clone)]
pub struct Connection {
    requests: SendRequest<Bytes>,
}

impl Connection {
    /// Speaks HTTP/2 over `stream` until nobody needs it.
    ///
    /// # Errors
    /// The stream ends.
    pub(crate) async fn open<S>(stream: S) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut builder = Builder::new();
        builder.enable_push(false).max_header_list_size(HEADERS);
        let (requests, mut connection) = builder.handshake::<_, Bytes>(stream).await.map_err(broken)?;
        let pings = connection.ping_pong();
        tokio::spawn(async move {
            tokio::select! {
                _ = connection => {}
                () = until_unanswered(pings) => {}
            }
        });
        Ok(Self { requests })
    }

    async fn send(self, request: Request<tonic::body::Body>) -> io::Result<Response<Answer>> {
        let mut requests = self.requests.ready().await.map_err(broken)?;
        let (head, body) = request.into_parts();
        let (response, mut stream) = requests.send_request(Request::from_parts(head, ()), false).map_err(broken)?;
        let mut body = std::pin::pin!(body);
        while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
            if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
                stream.send_data(data, false).map_err(broken)?;
            }
        }
        stream.send_data(Bytes::new(), true).map_err(broken)?;
        Ok(response.await.map_err(broken)?.map(|stream| Answer { stream, is_read: false }))
    }
}

/// Ends when a ping is not answered in time.
async fn until_unanswered(pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(KEEPALIVE_INTERVAL).await;
        match tokio::time::timeout(KEEPALIVE_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// Whatever ends a call on its way is an end of the connection to its caller: a JobManager's own refusals are answers.
fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    } else {
        io::Error::other(error)
    }
}

impl tower::Service<Request<tonic::body::Body>> for Connection {
    type Response = Response<Answer>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Response<Answer>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        self.clone().send(request).boxed()
    }
}

/// What is answered to one request, as it comes.
#[derive(Debug)]
pub struct Answer {
    stream: RecvStream,
    is_read: bool,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_read {
            return Poll::Ready(None);
        }
        if let Some(data) = ready!(self.stream.poll_data(context)) {
            let data = data.and_then(|data| self.stream.flow_control().release_capacity(data.len()).map(|()| data));
            return Poll::Ready(Some(data.map(Frame::data).map_err(broken)));
        }
        let trailers = ready!(self.stream.poll_trailers(context));
        self.is_read = true;
        Poll::Ready(trailers.map_err(broken).transpose().map(|trailers| trailers.map(Frame::trailers)))
    }
}

/// Protocol buffers in small buffers: a status that is watched keeps one for as long as it is.
pub(crate) struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, YIELD_THRESHOLD))
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, YIELD_THRESHOLD))
    }
}

#[cfg(test)]
mod tests;
