//! The object store of all jobs: linearizable per key, put if absent.

use sluice_protocol::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply};
use std::collections::BTreeMap;

/// The root of checkpoint storage.
pub(crate) const ROOT: &str = "s3://bucket/jobs";
/// Another, to which jobs move.
pub(crate) const OTHER_ROOT: &str = "s3://other/jobs";
/// The root of savepoints.
pub(crate) const SAVEPOINTS: &str = "s3://bucket/savepoints";

/// Objects by absolute key.
#[derive(Default)]
pub(crate) struct ObjectStore {
    objects: BTreeMap<String, Vec<u8>>,
}

/// A key as all see it, of one below a root.
pub(crate) fn absolute(root: &str, key: &str) -> String {
    if key.contains("://") { key.to_owned() } else { format!("{root}/{key}") }
}

impl ObjectStore {
    /// Carries out an operation whose keys are below this root.
    pub(crate) fn apply(&mut self, root: &str, operation: &StoreOperation) -> StoreReply {
        let absolute = |key: &str| absolute(root, key);
        match operation {
            StoreOperation::PutIfAbsent { key, bytes } => {
                let key = absolute(key);
                if self.objects.contains_key(&key) {
                    return StoreReply::Exists;
                }
                self.objects.insert(key, bytes.clone());
                StoreReply::Put
            }
            StoreOperation::Get { key } => self
                .objects
                .get(&absolute(key.as_str()))
                .map_or(StoreReply::Absent, |bytes| StoreReply::Object(bytes.clone())),
            StoreOperation::List { prefix, start_after } => {
                let is_relative = !prefix.contains("://");
                let (prefix, after) = (absolute(prefix), start_after.as_deref().map(absolute));
                let keys = self.objects.range(prefix.clone()..).map(|(key, _)| key);
                let keys = keys.take_while(|key| key.starts_with(&prefix));
                let keys = keys.filter(|key| after.as_ref().is_none_or(|after| *key > after));
                let relative = |key: &String| match key.strip_prefix(root) {
                    Some(rest) if is_relative => rest.trim_start_matches('/').to_owned(),
                    _ => key.clone(),
                };
                StoreReply::Keys(keys.map(relative).collect())
            }
            StoreOperation::Delete { keys } => {
                for key in keys {
                    self.objects.remove(&absolute(key));
                }
                StoreReply::Deleted
            }
            StoreOperation::ListUploads { .. } => StoreReply::Uploads(vec![]),
            StoreOperation::AbortUploads { .. } => StoreReply::Deleted,
        }
    }
}

/// The answer that tells nothing.
pub(crate) fn no_answer() -> StoreReply {
    let message = "the store gave no answer within the deadline".to_owned();
    StoreReply::Failed(StoreFailure { kind: StoreFailureKind::Unreachable, message })
}
