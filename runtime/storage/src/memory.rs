//! A store in the process's own memory: for storage that need not survive the process, and for tests.

use crate::{ObjectStore, PutOutcome, StoreFailure, UnfinishedUpload};
use async_trait::async_trait;
use bytes::Bytes;
use sluice_protocol::Timestamp;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Objects in a map behind one lock. Clones share the objects.
#[derive(Clone, Default)]
pub struct MemoryStore {
    objects: Arc<Mutex<BTreeMap<String, Bytes>>>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    fn uri(&self) -> &str {
        "memory://"
    }

    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<PutOutcome, StoreFailure> {
        match self.objects().entry(key.to_owned()) {
            std::collections::btree_map::Entry::Occupied(_) => Ok(PutOutcome::Exists),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(bytes);
                Ok(PutOutcome::Created)
            }
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreFailure> {
        Ok(self.objects().get(key).cloned())
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, StoreFailure> {
        Ok(self.objects().get(key).map(|bytes| {
            let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(bytes.len());
            bytes.slice(at(range.start).min(at(range.end))..at(range.end))
        }))
    }

    async fn head(&self, key: &str) -> Result<Option<u64>, StoreFailure> {
        Ok(self.objects().get(key).map(|bytes| bytes.len() as u64))
    }

    async fn modified(&self, key: &str) -> Result<Option<Timestamp>, StoreFailure> {
        Ok(self.objects().get(key).map(|_| Timestamp::default()))
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>) -> Result<Vec<String>, StoreFailure> {
        let lower = match start_after {
            Some(after) if after >= prefix => Bound::Excluded(after.to_owned()),
            _ => Bound::Included(prefix.to_owned()),
        };
        let objects = self.objects();
        let keys = objects.range((lower, Bound::Unbounded)).map(|(key, _)| key);
        Ok(keys.take_while(|key| key.starts_with(prefix)).cloned().collect())
    }

    async fn delete(&self, keys: &[String]) -> Result<(), StoreFailure> {
        let mut objects = self.objects();
        for key in keys {
            objects.remove(key);
        }
        Ok(())
    }

    /// A put is done at once: there are none.
    async fn list_uploads(&self, _: &str) -> Result<Vec<UnfinishedUpload>, StoreFailure> {
        Ok(Vec::new())
    }

    async fn abort_uploads(&self, _: &[UnfinishedUpload]) -> Result<(), StoreFailure> {
        Ok(())
    }
}
