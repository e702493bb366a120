//! Object-store operations as values: decisions ask for them, an edge executes them and reports back.
//!
//! Keys are relative to the root of the job's checkpoint storage; a key that holds `://` is an absolute URI, which
//! the edge opens with the job's storage options (a foreign restore); keys listed under an absolute prefix are
//! absolute too. Assumptions about the store are those of
//! docs/protocol.md: linearizable per key, put-if-absent, LIST consistent after PUT.

use serde::{Deserialize, Serialize};

/// Ties a reply to its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOperation {
    /// Put these bytes unless the key exists.
    PutIfAbsent {
        /// The key.
        key: String,
        /// The whole object.
        bytes: Vec<u8>,
    },
    /// Read a whole object.
    Get {
        /// The key.
        key: String,
    },
    /// All keys with this prefix that sort after `start_after`, in lexicographic order.
    List {
        /// The prefix.
        prefix: String,
        /// Exclusive lower bound.
        start_after: Option<String>,
    },
    /// Remove objects; absent ones are no error.
    Delete {
        /// The keys.
        keys: Vec<String>,
    },
    /// Uploads that were begun under this prefix and neither completed nor aborted.
    ListUploads {
        /// The prefix.
        prefix: String,
    },
    /// Give up unfinished uploads, with what they hold; absent ones are no error.
    AbortUploads {
        /// Which.
        uploads: Vec<UnfinishedUpload>,
    },
}

/// What is left of an upload that nobody finished: it takes room, but is no object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnfinishedUpload {
    /// The key of the object that it would have become, or of a name beside it.
    pub key: String,
    /// Tells it from others of the same key.
    pub id: String,
}

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreReply {
    /// The put took effect.
    Put,
    /// The key exists already (412 or 409). Says nothing of whose put it was.
    Exists,
    /// The object.
    Object(Vec<u8>),
    /// No such object.
    Absent,
    /// The keys.
    Keys(Vec<String>),
    /// The deletes were accepted.
    Deleted,
    /// Unfinished uploads.
    Uploads(Vec<UnfinishedUpload>),
    /// No usable answer: the operation may or may not have taken effect.
    Failed(StoreFailure),
}

/// Why an operation has no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct StoreFailure {
    /// What waiting does about it.
    pub kind: StoreFailureKind,
    /// What was tried, where, what came back, and what to do.
    pub message: String,
}

/// What waiting does about a failure of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StoreFailureKind {
    /// Timeout, connection refused, 5xx, throttling: try again.
    Unreachable,
    /// Wrong credentials or no permission: a person must act; trying again with backoff does no harm.
    Denied,
    /// The bucket or the directory does not exist: a person must act.
    MissingBucket,
    /// The store does not do what the ledger needs (L7), or refuses the request as malformed.
    Unsuitable,
}

impl StoreFailureKind {
    /// The reason by which people are told.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Unreachable => "StoreUnreachable",
            Self::Denied => "StoreAccessDenied",
            Self::MissingBucket => "StoreMissing",
            Self::Unsuitable => "StoreUnsuitable",
        }
    }

    /// All of them.
    pub const ALL: [Self; 4] = [Self::Unreachable, Self::Denied, Self::MissingBucket, Self::Unsuitable];
}
