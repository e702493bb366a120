//! Executes the store operations that decisions ask for, and finds the store that an absolute URI names.
//!
//! Callers can rely on exactly one reply per operation, within the store's deadlines.

use crate::{ObjectStore, PutOutcome, StoreFailure, StoreUri, open_store, unsuitable};
use bytes::Bytes;
use sluice_protocol::options::StorageOptions;
use sluice_protocol::store::{StoreOperation, StoreReply, UnfinishedUpload};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Each store with what lies in it.
type ByStore<T> = Vec<(Arc<dyn ObjectStore>, Vec<T>)>;

/// A job's store, and those that it reads from by URI with the same options (a foreign restore).
#[derive(Clone)]
pub struct StoreExecutor {
    home: Arc<dyn ObjectStore>,
    options: Option<StorageOptions>,
    foreign: Arc<Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>>,
}

impl StoreExecutor {
    /// Keys without `://` go to `home`; other stores are opened with these options when first named.
    #[must_use]
    pub fn new(home: Arc<dyn ObjectStore>, options: Option<StorageOptions>) -> Self {
        Self { home, options, foreign: Arc::default() }
    }

    /// The job's own store.
    #[must_use]
    pub fn home(&self) -> &Arc<dyn ObjectStore> {
        &self.home
    }

    /// The store that holds this key, and the key in it.
    ///
    /// # Errors
    /// When the key is an absolute URI that cannot be read.
    pub fn resolve(&self, key: &str) -> Result<(Arc<dyn ObjectStore>, String), StoreFailure> {
        if !key.contains("://") {
            return Ok((Arc::clone(&self.home), key.to_owned()));
        }
        if let Some(inner) = key.strip_prefix(self.home.uri()).and_then(|rest| rest.strip_prefix('/')) {
            return Ok((Arc::clone(&self.home), inner.to_owned()));
        }
        let (root, inner) = match key.parse()? {
            StoreUri::S3 { bucket, prefix } => (format!("s3://{bucket}"), prefix),
            StoreUri::File { path } => ("file:///".to_owned(), path.display().to_string()),
        };
        // A trailing slash matters to a prefix: `…/chk-1/` is not `…/chk-10`.
        let slash = if key.ends_with('/') && !inner.is_empty() { "/" } else { "" };
        Ok((self.open(&root)?, format!("{}{slash}", inner.trim_start_matches('/'))))
    }

    fn open(&self, root: &str) -> Result<Arc<dyn ObjectStore>, StoreFailure> {
        let mut foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = foreign.get(root) {
            return Ok(Arc::clone(store));
        }
        let store = open_store(root, self.options.as_ref())?;
        foreign.insert(root.to_owned(), Arc::clone(&store));
        Ok(store)
    }

    /// Does it and says what came of it.
    pub async fn execute(&self, operation: StoreOperation) -> StoreReply {
        let result = match operation {
            StoreOperation::PutIfAbsent { key, bytes } => self.put(&key, bytes.into()).await,
            StoreOperation::Get { key } => self.get(&key).await,
            StoreOperation::List { prefix, start_after } => self.list(&prefix, start_after.as_deref()).await,
            StoreOperation::Delete { keys } => self.delete(keys).await,
            StoreOperation::ListUploads { prefix } => self.list_uploads(&prefix).await,
            StoreOperation::AbortUploads { uploads } => self.abort_uploads(uploads).await,
        };
        result.unwrap_or_else(StoreReply::Failed)
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<StoreReply, StoreFailure> {
        let (store, key) = self.resolve(key)?;
        Ok(match store.put_if_absent(&key, bytes).await? {
            PutOutcome::Created => StoreReply::Put,
            PutOutcome::Exists => StoreReply::Exists,
        })
    }

    async fn get(&self, key: &str) -> Result<StoreReply, StoreFailure> {
        let (store, key) = self.resolve(key)?;
        Ok(store.get(&key).await?.map_or(StoreReply::Absent, |bytes| StoreReply::Object(bytes.into())))
    }

    /// Keys come back as they were asked for: absolute when the prefix is.
    async fn list(&self, prefix: &str, start_after: Option<&str>) -> Result<StoreReply, StoreFailure> {
        let (store, inner) = self.resolve(prefix)?;
        let after = start_after.map(|key| self.resolve(key).map(|(_, key)| key)).transpose()?;
        let keys = store.list(&inner, after.as_deref()).await?;
        if !prefix.contains("://") {
            return Ok(StoreReply::Keys(keys));
        }
        let root = root_of(prefix, &inner)?;
        Ok(StoreReply::Keys(keys.into_iter().map(|key| format!("{root}{key}")).collect()))
    }

    /// Likewise.
    async fn list_uploads(&self, prefix: &str) -> Result<StoreReply, StoreFailure> {
        let (store, inner) = self.resolve(prefix)?;
        let mut uploads = store.list_uploads(&inner).await?;
        if prefix.contains("://") {
            let root = root_of(prefix, &inner)?;
            uploads.iter_mut().for_each(|upload| upload.key.insert_str(0, root));
        }
        Ok(StoreReply::Uploads(uploads))
    }

    async fn delete(&self, keys: Vec<String>) -> Result<StoreReply, StoreFailure> {
        for (store, keys) in self.by_store(keys, |key| key)? {
            store.delete(&keys).await?;
        }
        Ok(StoreReply::Deleted)
    }

    async fn abort_uploads(&self, uploads: Vec<UnfinishedUpload>) -> Result<StoreReply, StoreFailure> {
        for (store, uploads) in self.by_store(uploads, |upload| &mut upload.key)? {
            store.abort_uploads(&uploads).await?;
        }
        Ok(StoreReply::Deleted)
    }

    /// Sorts by the store that holds them, and makes their keys that store's own.
    fn by_store<T>(&self, items: Vec<T>, key_of: impl Fn(&mut T) -> &mut String) -> Result<ByStore<T>, StoreFailure> {
        let mut sorted: ByStore<T> = Vec::new();
        for mut item in items {
            let key = key_of(&mut item);
            let (store, inner) = self.resolve(key)?;
            *key = inner;
            match sorted.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &store)) {
                Some((_, items)) => items.push(item),
                None => sorted.push((store, vec![item])),
            }
        }
        Ok(sorted)
    }
}

/// What an absolute prefix says before the key in its store.
fn root_of<'a>(prefix: &'a str, inner: &str) -> Result<&'a str, StoreFailure> {
    prefix.strip_suffix(inner).ok_or_else(|| {
        unsuitable(format!("'{prefix}' is no address to list; write it without doubled slashes in the path"))
    })
}
