//! An S3 server inside the test's process: linearizable, with conditional puts, lists and multipart uploads, and
//! with faults on demand. Path-style addresses and signed requests only; objects live in memory.
//!
//! It can speak TLS with a certificate made for the test ([`Authority`]), and be an STS that exchanges web identity
//! tokens for temporary keys ([`WebIdentity`]).
//!
//! For tests only. Callers can rely on what docs/protocol.md assumes of a store (unless
//! [`Options::ignore_if_none_match`] breaks it on purpose), and on every accepted put being visible at once.
//!
//! The map: [`TestS3`] starts and steers a server; `listener` accepts connections and plays outages; `service`
//! speaks the protocol; `identity` knows the keys and `sts` hands out temporary ones; `buckets` holds the objects behind
//! one lock; [`Fault`] is what a hook does to a request.

mod buckets;
mod fault;
mod identity;
mod listener;
mod service;
mod sts;
mod tls;

pub use fault::{Fault, Outage, Request};
pub use identity::{Session, WebIdentity};
pub use tls::{Authority, Certificate};

use buckets::Buckets;
use bytes::Bytes;
use fault::Control;
use identity::Identities;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// How a server is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens; port 0 takes a free one.
    pub address: String,
    /// The access key id that it knows.
    pub access_key_id: String,
    /// The secret that belongs to it.
    pub secret_access_key: String,
    /// Buckets that exist from the start.
    pub buckets: Vec<String>,
    /// Puts overwrite whatever their condition says: a store that the probe must refuse.
    pub ignore_if_none_match: bool,
    /// The most keys of one page of a list, and the most uploads.
    pub page_size: usize,
    /// It speaks TLS, with this certificate.
    pub certificate: Option<Certificate>,
    /// It is an STS too, for this role.
    pub web_identity: Option<WebIdentity>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:0".to_owned(),
            access_key_id: "testaccesskey".to_owned(),
            secret_access_key: "testsecretkey0123".to_owned(),
            buckets: vec!["test".to_owned()],
            ignore_if_none_match: false,
            page_size: 1000,
            certificate: None,
            web_identity: None,
        }
    }
}

/// A running server; it ends when this is dropped.
pub struct TestS3 {
    address: SocketAddr,
    options: Options,
    buckets: Arc<Buckets>,
    control: Arc<Control>,
    identities: Identities,
    listener: JoinHandle<()>,
}

impl TestS3 {
    /// Starts a server on the current tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound, or the certificate is none.
    pub async fn start(options: Options) -> io::Result<Self> {
        let socket = tokio::net::TcpListener::bind(&options.address).await?;
        let address = socket.local_addr()?;
        let buckets = Arc::new(Buckets::new(&options));
        let control = Arc::new(Control::default());
        let identities = Identities::new(&options);
        let acceptor = options.certificate.as_ref().map(Certificate::acceptor).transpose()?;
        let service = service::build_service(identities.clone(), Arc::clone(&buckets), Arc::clone(&control));
        let server = listener::Server { service, acceptor };
        let listener = tokio::spawn(listener::serve(socket, address, server, control.watch_outage()));
        Ok(Self { address, options, buckets, control, identities, listener })
    }

    /// Its URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let scheme = if self.options.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// From now on this web identity token is exchanged for keys, and those before it are expired.
    pub fn accept_token(&self, token: &str) {
        self.identities.accept_token(token);
    }

    /// The temporary access keys that were handed out for tokens so far.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        self.identities.sessions()
    }

    /// Asks this hook about every request from now on.
    pub fn set_fault(&self, hook: impl Fn(&Request<'_>) -> Fault + Send + Sync + 'static) {
        self.control.set_hook(Some(Arc::new(hook)));
    }

    /// Lets all requests pass again.
    pub fn clear_fault(&self) {
        self.control.set_hook(None);
    }

    /// Begins, changes or ends ([`Outage::None`]) an outage.
    pub fn set_outage(&self, outage: Outage) {
        self.control.set_outage(outage);
    }

    /// Requests so far of this operation, such as `PutObject`, whatever came of them.
    #[must_use]
    pub fn requests(&self, operation: &str) -> usize {
        self.control.requests(operation)
    }

    /// The keys in a bucket, in order; none when there is no such bucket.
    #[must_use]
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        self.buckets.keys(bucket)
    }

    /// An object.
    #[must_use]
    pub fn object(&self, bucket: &str, key: &str) -> Option<Bytes> {
        self.buckets.get(bucket, key).ok().map(|object| object.body)
    }

    /// Multipart uploads that were begun and neither completed nor aborted.
    #[must_use]
    pub fn unfinished_uploads(&self, bucket: &str) -> usize {
        self.buckets.uploads(bucket, "").map_or(0, |uploads| uploads.len())
    }
}

impl Drop for TestS3 {
    fn drop(&mut self) {
        self.listener.abort();
    }
}
