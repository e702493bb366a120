//! The objects: one lock over ordered maps, so every conditional write is linearizable. Keys are plain text; `a`,
//! `a/b` and `a//b` are three of them.

use crate::Options;
use bytes::Bytes;
use md5::{Digest, Md5};
use s3s::dto::ETagCondition;
use s3s::{S3Result, s3_error};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// S3's least size of a part that is not the last.
const LEAST_PART: usize = 5 << 20;

#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) body: Bytes,
    pub(crate) etag: String,
}

struct Upload {
    key: String,
    parts: BTreeMap<i32, Object>,
}

#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
}

/// One page of a list.
pub(crate) struct Page {
    pub(crate) objects: Vec<(String, Object)>,
    pub(crate) truncated: bool,
}

#[derive(Default)]
struct State {
    buckets: BTreeMap<String, Bucket>,
    uploads_begun: u64,
}

pub(crate) struct Buckets {
    state: Mutex<State>,
    ignore_if_none_match: bool,
    page_size: usize,
}

pub(crate) fn etag_of(body: &[u8]) -> String {
    hex(&Md5::digest(body))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Buckets {
    pub(crate) fn new(options: &Options) -> Self {
        let buckets = options.buckets.iter().map(|name| (name.clone(), Bucket::default())).collect();
        Self {
            state: Mutex::new(State { buckets, uploads_begun: 0 }),
            ignore_if_none_match: options.ignore_if_none_match,
            page_size: options.page_size,
        }
    }

    /// The most keys, or uploads, of one page of a list.
    pub(crate) const fn page_size(&self) -> usize {
        self.page_size
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_bucket<T>(&self, name: &str, work: impl FnOnce(&mut Bucket) -> S3Result<T>) -> S3Result<T> {
        work(self.state().buckets.get_mut(name).ok_or_else(|| s3_error!(NoSuchBucket))?)
    }

    fn check(&self, bucket: &Bucket, key: &str, if_none_match: Option<&ETagCondition>) -> S3Result<()> {
        let taken = match (if_none_match, bucket.objects.get(key)) {
            (Some(ETagCondition::Any), Some(_)) => true,
            (Some(ETagCondition::ETag(etag)), Some(object)) => etag.value() == object.etag,
            _ => false,
        };
        if taken && !self.ignore_if_none_match {
            return Err(s3_error!(PreconditionFailed));
        }
        Ok(())
    }

    pub(crate) fn create(&self, name: &str) -> S3Result<()> {
        if self.state().buckets.contains_key(name) {
            return Err(s3_error!(BucketAlreadyOwnedByYou));
        }
        self.state().buckets.insert(name.to_owned(), Bucket::default());
        Ok(())
    }

    pub(crate) fn exists(&self, name: &str) -> S3Result<()> {
        self.with_bucket(name, |_| Ok(()))
    }

    pub(crate) fn keys(&self, name: &str) -> Vec<String> {
        self.with_bucket(name, |bucket| Ok(bucket.objects.keys().cloned().collect())).unwrap_or_default()
    }

    pub(crate) fn put(
        &self,
        name: &str,
        key: &str,
        body: Bytes,
        if_none_match: Option<&ETagCondition>,
    ) -> S3Result<String> {
        let etag = etag_of(&body);
        self.with_bucket(name, |bucket| {
            self.check(bucket, key, if_none_match)?;
            bucket.objects.insert(key.to_owned(), Object { body, etag: etag.clone() });
            Ok(etag)
        })
    }

    pub(crate) fn get(&self, name: &str, key: &str) -> S3Result<Object> {
        self.with_bucket(name, |bucket| bucket.objects.get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey)))
    }

    pub(crate) fn delete(&self, name: &str, keys: impl IntoIterator<Item = String>) -> S3Result<()> {
        self.with_bucket(name, |bucket| {
            for key in keys {
                bucket.objects.remove(&key);
            }
            Ok(())
        })
    }

    pub(crate) fn list(&self, name: &str, prefix: &str, after: Option<&str>, limit: usize) -> S3Result<Page> {
        let limit = limit.min(self.page_size);
        let lower = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.to_owned()),
            _ => Bound::Included(prefix.to_owned()),
        };
        self.with_bucket(name, |bucket| {
            let mut matching =
                bucket.objects.range((lower, Bound::Unbounded)).take_while(|(key, _)| key.starts_with(prefix));
            let page = matching.by_ref().take(limit).map(|(key, object)| (key.clone(), object.clone())).collect();
            Ok(Page { objects: page, truncated: matching.next().is_some() })
        })
    }

    pub(crate) fn begin_upload(&self, name: &str, key: &str) -> S3Result<String> {
        let mut state = self.state();
        state.uploads_begun += 1;
        let id = format!("upload-{:016x}", state.uploads_begun);
        let bucket = state.buckets.get_mut(name).ok_or_else(|| s3_error!(NoSuchBucket))?;
        bucket.uploads.insert(id.clone(), Upload { key: key.to_owned(), parts: BTreeMap::new() });
        Ok(id)
    }

    pub(crate) fn put_part(&self, name: &str, key: &str, id: &str, number: i32, body: Bytes) -> S3Result<String> {
        let etag = etag_of(&body);
        self.with_bucket(name, |bucket| {
            let upload = bucket.uploads.get_mut(id).filter(|upload| upload.key == key);
            let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
            upload.parts.insert(number, Object { body, etag: etag.clone() });
            Ok(etag)
        })
    }

    pub(crate) fn complete_upload(
        &self,
        name: &str,
        key: &str,
        id: &str,
        parts: &[(i32, Option<String>)],
        if_none_match: Option<&ETagCondition>,
    ) -> S3Result<String> {
        self.with_bucket(name, |bucket| {
            let upload = bucket.uploads.get(id).filter(|upload| upload.key == key);
            let object = join_parts(upload.ok_or_else(|| s3_error!(NoSuchUpload))?, parts)?;
            self.check(bucket, key, if_none_match)?;
            bucket.uploads.remove(id);
            let etag = object.etag.clone();
            bucket.objects.insert(key.to_owned(), object);
            Ok(etag)
        })
    }

    pub(crate) fn abort_upload(&self, name: &str, id: &str) -> S3Result<()> {
        self.with_bucket(name, |bucket| match bucket.uploads.remove(id) {
            Some(_) => Ok(()),
            None => Err(s3_error!(NoSuchUpload)),
        })
    }

    /// Unfinished uploads as (key, upload id).
    pub(crate) fn uploads(&self, name: &str, prefix: &str) -> S3Result<BTreeSet<(String, String)>> {
        self.with_bucket(name, |bucket| {
            let uploads = bucket.uploads.iter().filter(|(_, upload)| upload.key.starts_with(prefix));
            Ok(uploads.map(|(id, upload)| (upload.key.clone(), id.clone())).collect())
        })
    }
}

/// Checks the named parts as S3 does, and joins them; the ETag is S3's digest of digests.
fn join_parts(upload: &Upload, wanted: &[(i32, Option<String>)]) -> S3Result<Object> {
    if wanted.is_empty() {
        return Err(s3_error!(MalformedXML));
    }
    let (mut body, mut digest, mut previous) = (Vec::new(), Md5::new(), 0);
    for (position, (number, etag)) in wanted.iter().enumerate() {
        if *number <= previous {
            return Err(s3_error!(InvalidPartOrder));
        }
        previous = *number;
        let part = upload.parts.get(number).filter(|part| etag.as_ref().is_none_or(|etag| *etag == part.etag));
        let part = part.ok_or_else(|| s3_error!(InvalidPart))?;
        if position + 1 < wanted.len() && part.body.len() < LEAST_PART {
            return Err(s3_error!(EntityTooSmall));
        }
        body.extend_from_slice(&part.body);
        digest.update(Md5::digest(&part.body));
    }
    Ok(Object { body: body.into(), etag: format!("{}-{}", hex(&digest.finalize()), wanted.len()) })
}
