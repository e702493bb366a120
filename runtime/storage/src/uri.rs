//! The addresses of stores, and the one place that opens a store from its address.

use crate::{FileStore, ObjectStore, S3Settings, S3Store, StoreDeadlines, StoreFailure, unsuitable};
use sluice_protocol::options::StorageOptions;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The address of a directory on a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUri {
    /// `s3://bucket/prefix`; the prefix may be empty and has no slash at either end.
    S3 {
        /// The bucket.
        bucket: String,
        /// What all keys begin with.
        prefix: String,
    },
    /// `file:///path`, absolute.
    File {
        /// The directory.
        path: PathBuf,
    },
}

impl FromStr for StoreUri {
    type Err = StoreFailure;

    fn from_str(text: &str) -> Result<Self, StoreFailure> {
        if let Some(rest) = text.strip_prefix("s3://").or_else(|| text.strip_prefix("s3a://")) {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(unsuitable(format!("'{text}' names no bucket; write s3://BUCKET/PATH")));
            }
            return Ok(Self::S3 { bucket: bucket.to_owned(), prefix: prefix.trim_matches('/').to_owned() });
        }
        if let Some(path) = text.strip_prefix("file://") {
            if !path.starts_with('/') {
                let hint = "write file:///absolute/path, with three slashes";
                return Err(unsuitable(format!("'{text}' is not an absolute path; {hint}")));
            }
            let trimmed = path.trim_end_matches('/');
            return Ok(Self::File { path: PathBuf::from(if trimmed.is_empty() { "/" } else { trimmed }) });
        }
        Err(unsuitable(format!("'{text}' is no address of storage; write s3://BUCKET/PATH or file:///PATH")))
    }
}

impl fmt::Display for StoreUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::File { path } => write!(f, "file://{}", path.display().to_string().trim_end_matches('/')),
        }
    }
}

/// Opens the store at this address, with the default deadlines and the process's own credentials (environment,
/// profile, web identity, container or instance role, in this order). Touches no network.
///
/// # Errors
/// [`StoreFailureKind::Unsuitable`](crate::StoreFailureKind::Unsuitable) when the address or an option cannot be read.
pub fn open_store(uri: &str, options: Option<&StorageOptions>) -> Result<Arc<dyn ObjectStore>, StoreFailure> {
    match uri.parse()? {
        StoreUri::S3 { bucket, prefix } => {
            let settings = S3Settings::from_options(&bucket, &prefix, options);
            Ok(Arc::new(S3Store::new(settings)?))
        }
        StoreUri::File { path } => Ok(Arc::new(FileStore::new(path, StoreDeadlines::default()))),
    }
}
