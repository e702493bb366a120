//! The object store: linearizable per key, with put-if-absent, and as unreliable as a network makes it.
//!
//! An operation takes effect at one moment, or never; its answer says so, or is lost, or comes before the effect.
//! The world moves it ([`Fate`]); [`ObjectStore::apply`] is that moment. A file may go in parts: then it is an unfinished
//! upload from when it was asked for to its effect, or for ever where there is none, unless somebody gives it up.

use sluice_protocol::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply, UnfinishedUpload};
use std::collections::{BTreeMap, BTreeSet};

/// The root that absolute URIs of this store begin with.
pub const ROOT: &str = "sim://bucket";

/// What becomes of one operation: when it takes effect, when its answer arrives and whether that is clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fate {
    /// `None`: never.
    pub effect_after: Option<u64>,
    /// When the caller hears of it.
    pub answer_after: u64,
    /// Whether it hears what happened, or only that nothing is known.
    pub clear: bool,
    /// Whether the client sent it twice because the first answer was lost: it hears of the second, such as 412.
    pub repeated: bool,
}

/// Objects by key.
#[derive(Debug, Default)]
pub struct ObjectStore {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeSet<UnfinishedUpload>,
}

impl ObjectStore {
    /// Decides what becomes of an operation.
    pub fn fate(rng: &mut fastrand::Rng, operation: &StoreOperation, failures: u32, outage: bool) -> Fate {
        let writes = matches!(operation, StoreOperation::PutIfAbsent { .. } | StoreOperation::Delete { .. });
        let percent = if outage { 95 } else { failures };
        if rng.u32(..100) >= percent {
            let effect = rng.u64(1..15);
            return Fate {
                effect_after: Some(effect),
                answer_after: effect + rng.u64(1..15),
                clear: true,
                repeated: false,
            };
        }
        let answer_after = rng.u64(20..1500);
        if writes && rng.u32(..10) < 3 {
            let effect = rng.u64(1..15);
            return Fate { effect_after: Some(effect), answer_after, clear: true, repeated: true };
        }
        // Most of an outage refuses connections; the unclear cases are rarer and worse.
        let kind = rng.u32(..10);
        let effect_after = match kind {
            0..=4 if writes && !outage => Some(rng.u64(1..answer_after)),
            5 if writes => Some(answer_after + rng.u64(1..20_000)),
            6 if writes => Some(rng.u64(1..answer_after)),
            _ => None,
        };
        Fate { effect_after, answer_after, clear: false, repeated: false }
    }

    /// The moment of effect.
    pub fn apply(&mut self, operation: &StoreOperation) -> StoreReply {
        match operation {
            StoreOperation::PutIfAbsent { key, bytes } => {
                let key = relative(key);
                if self.objects.contains_key(key) {
                    return StoreReply::Exists;
                }
                self.objects.insert(key.to_owned(), bytes.clone());
                StoreReply::Put
            }
            StoreOperation::Get { key } => {
                self.objects.get(relative(key)).map_or(StoreReply::Absent, |bytes| StoreReply::Object(bytes.clone()))
            }
            StoreOperation::List { prefix, start_after } => {
                let as_asked = as_asked(prefix);
                let prefix = relative(prefix);
                let first = start_after.as_deref().map_or(prefix, relative).max(prefix);
                let keys = self.objects.range(first.to_owned()..).map(|(key, _)| key);
                let keys = keys.take_while(|key| key.starts_with(prefix) || key.as_str() < prefix);
                let after = |key: &&String| start_after.as_deref().is_none_or(|bound| key.as_str() > relative(bound));
                StoreReply::Keys(keys.filter(after).map(as_asked).collect())
            }
            StoreOperation::Delete { keys } => {
                for key in keys {
                    self.objects.remove(relative(key));
                }
                StoreReply::Deleted
            }
            StoreOperation::ListUploads { prefix } => {
                let as_asked = as_asked(prefix);
                let below = self.uploads.iter().filter(|upload| upload.key.starts_with(relative(prefix)));
                let listed = below.map(|upload| UnfinishedUpload { key: as_asked(&upload.key), id: upload.id.clone() });
                StoreReply::Uploads(listed.collect())
            }
            StoreOperation::AbortUploads { uploads } => {
                for upload in uploads {
                    self.end_upload(upload);
                }
                StoreReply::Deleted
            }
        }
    }

    /// An upload is begun; its id is unlike any other.
    pub fn begin_upload(&mut self, key: &str, id: u64) -> UnfinishedUpload {
        let upload = UnfinishedUpload { key: relative(key).to_owned(), id: id.to_string() };
        self.uploads.insert(upload.clone());
        upload
    }

    /// It is finished, or given up. Whether it was there to be.
    pub fn end_upload(&mut self, upload: &UnfinishedUpload) -> bool {
        self.uploads.remove(&UnfinishedUpload { key: relative(&upload.key).to_owned(), id: upload.id.clone() })
    }

    /// All unfinished uploads.
    pub fn uploads(&self) -> impl Iterator<Item = &UnfinishedUpload> {
        self.uploads.iter()
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.objects.keys()
    }

    /// An object, as the checks see it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.objects.get(relative(key)).map(Vec::as_slice)
    }
}

/// Keys listed under an absolute prefix are absolute too.
fn as_asked(prefix: &str) -> impl Fn(&String) -> String + use<> {
    let root = if prefix.starts_with(ROOT) { format!("{ROOT}/") } else { String::new() };
    move |key| format!("{root}{key}")
}

/// The answer that tells nothing.
#[must_use]
pub fn no_answer() -> StoreReply {
    let message = "the store gave no answer within the deadline".to_owned();
    StoreReply::Failed(StoreFailure { kind: StoreFailureKind::Unreachable, message })
}

/// A key of this store, below its root.
#[must_use]
pub fn relative(key: &str) -> &str {
    key.strip_prefix(ROOT).map_or(key, |rest| rest.trim_start_matches('/'))
}
