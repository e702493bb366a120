//! One trait over everything checkpoints can lie on: S3 and what behaves like it, a file system, memory.
//!
//! The trait promises what the ledger needs (docs/protocol.md, L1-L4): a put that happens only when the key is
//! absent, reads and lists that see every put before them. Whether a given server keeps the promise is asked by
//! [`probe`] (L7). Every call has a deadline, none is repeated behind the caller's back: after a put without a
//! clear answer the caller reads the key, which a hidden repetition would make ambiguous (L2).
//!
//! The map:
//! 1. [`StoreUri`] reads `s3://bucket/prefix` and `file:///path`; [`open_store`] makes the store it names.
//! 2. [`S3Store`], [`FileStore`], [`MemoryStore`] implement [`ObjectStore`].
//! 3. [`staging`] stages files that become visible later, for sinks.
//! 4. [`StoreExecutor`] executes the operations that decisions ask for ([`sluice_protocol::store`]), and finds the
//!    store for keys that are absolute URIs.
//!
//! Decisions about checkpoints are none of this crate's business.

mod executor;
mod file;
mod memory;
mod probe;
mod s3;
pub mod staging;
mod uri;

pub use executor::StoreExecutor;
pub use file::FileStore;
pub use memory::MemoryStore;
pub use probe::probe;
pub use s3::{S3Credentials, S3Settings, S3Store};
pub use sluice_protocol::store::{StoreFailure, StoreFailureKind, UnfinishedUpload};
pub use uri::{StoreUri, open_store};

use async_trait::async_trait;
use bytes::Bytes;
use sluice_protocol::Timestamp;
use std::ops::Range;
use std::time::Duration;

/// How long a store is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreDeadlines {
    /// Until a connection stands.
    pub connect: Duration,
    /// For one request and its answer; transfers of more than a MiB get a second more for each MiB.
    pub attempt: Duration,
}

impl Default for StoreDeadlines {
    fn default() -> Self {
        Self { connect: Duration::from_secs(3), attempt: Duration::from_secs(10) }
    }
}

impl StoreDeadlines {
    /// The deadline of a request that moves this many bytes.
    pub(crate) fn for_bytes(self, bytes: u64) -> Duration {
        self.attempt + Duration::from_secs(bytes >> 20)
    }
}

/// What a put-if-absent did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is there now, with these bytes.
    Created,
    /// The key was taken. Says nothing of whose put it was: an earlier one whose answer was lost counts too (L2).
    Exists,
}

/// A flat space of keys with whole objects: linearizable per key, LIST consistent after PUT.
///
/// Keys are relative to the store's root; they hold no empty and no `.` or `..` segments. A failure leaves open
/// whether the operation took effect.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// The root, without a trailing slash: `s3://bucket/prefix`, `file:///path`. A key's URI is `{root}/{key}`.
    fn uri(&self) -> &str;

    /// Stores an object unless its key is taken. Objects of more than 8 MB travel in parts; the key is decided when
    /// the parts are put together.
    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<PutOutcome, StoreFailure>;

    /// The whole object, `None` when there is none.
    async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreFailure>;

    /// These bytes of an object, cut off at its end; `None` when there is no object.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, StoreFailure>;

    /// The size of an object, `None` when there is none. On S3 a missing bucket looks like a missing object here.
    async fn head(&self, key: &str) -> Result<Option<u64>, StoreFailure>;

    /// When the object was last changed, by the store's clock.
    async fn modified(&self, key: &str) -> Result<Option<Timestamp>, StoreFailure>;

    /// All keys that begin with `prefix` (any text, not only whole segments) and sort after `start_after`, in
    /// lexicographic order of their bytes.
    async fn list(&self, prefix: &str, start_after: Option<&str>) -> Result<Vec<String>, StoreFailure>;

    /// Removes objects; absent ones are no error.
    async fn delete(&self, keys: &[String]) -> Result<(), StoreFailure>;

    /// What dead processes left of uploads whose keys begin with `prefix` (K6), in the order of their keys: unfinished
    /// uploads in parts, temporary files. Those that are under way are listed too.
    async fn list_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreFailure>;

    /// Gives such uploads up; absent ones are no error. One that is under way fails.
    async fn abort_uploads(&self, uploads: &[UnfinishedUpload]) -> Result<(), StoreFailure>;
}

/// A failure that waiting cures.
pub(crate) fn unreachable(message: impl Into<String>) -> StoreFailure {
    StoreFailure { kind: StoreFailureKind::Unreachable, message: message.into() }
}

/// A store or a request that will never do.
pub(crate) fn unsuitable(message: impl Into<String>) -> StoreFailure {
    StoreFailure { kind: StoreFailureKind::Unsuitable, message: message.into() }
}
