//! An S3 server inside the test's process: linearizable, with conditional puts, lists and multipart uploads, and
//! with faults on demand. Path-style addresses and signed requests only; objects live in memory.
//!
//! For tests only. Callers can rely on what docs/protocol.md assumes of a store (unless
//! [`Options::ignore_if_none_match`] breaks it on purpose), and on every accepted put being visible at once.
//!
//! The map: [`TestS3`] starts and steers a server; `listener` accepts connections and plays outages; `service`
//! speaks the protocol; `buckets` holds the objects behind one lock; [`Fault`] is what a hook does to a request.

mod buckets;
mod fault;
mod listener;
mod service;

pub use fault::{Fault, Outage, Request};

use buckets::Buckets;
use bytes::Bytes;
use fault::Control;
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
    /// The most keys of one page of a list.
    pub page_size: usize,
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
        }
    }
}

/// A running server; it ends when this is dropped.
pub struct TestS3 {
    address: SocketAddr,
    options: Options,
    buckets: Arc<Buckets>,
    control: Arc<Control>,
    listener: JoinHandle<()>,
}

impl TestS3 {
    /// Starts a server on the current tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(options: Options) -> io::Result<Self> {
        let socket = tokio::net::TcpListener::bind(&options.address).await?;
        let address = socket.local_addr()?;
        let buckets = Arc::new(Buckets::new(&options));
        let control = Arc::new(Control::default());
        let service = service::build_service(&options, Arc::clone(&buckets), Arc::clone(&control));
        let listener = tokio::spawn(listener::serve(socket, address, service, control.watch_outage()));
        Ok(Self { address, options, buckets, control, listener })
    }

    /// Its URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
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
