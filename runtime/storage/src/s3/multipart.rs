//! Large objects, moved in parts.
//!
//! The key is decided when the parts are put together, by the same condition as a small put. An upload that fails
//! is aborted as well as that can be done; what a dead process leaves unfinished is swept by its job (K6).

use super::failure::Place;
use super::{Refusal, S3Store};
use crate::staging::Committed;
use crate::{ObjectStore, PutOutcome, StoreFailure, UnfinishedUpload};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

/// Larger objects go in parts.
pub(super) const THRESHOLD: usize = 8 << 20;
/// Servers refuse parts of less than 5 MiB, except the last, and more than 10 000 of them.
const LEAST_PART: usize = 8 << 20;
const MOST_PARTS: usize = 10_000;
/// Parts under way at once.
const PARALLEL_PARTS: usize = 4;
/// Uploads that are given up at once.
const PARALLEL_ABORTS: usize = 16;

/// The size of every part but the last.
fn part_size(size: usize) -> usize {
    size.div_ceil(MOST_PARTS).max(LEAST_PART)
}

/// An upload in parts that another process may complete.
pub(crate) struct StagedUpload {
    id: String,
    /// The tags of its parts.
    parts: Vec<String>,
}

impl StagedUpload {
    pub(crate) fn into_parts(self) -> (String, Vec<String>) {
        (self.id, self.parts)
    }
}

impl S3Store {
    pub(super) async fn put_in_parts(&self, key: &str, bytes: Bytes) -> Result<PutOutcome, StoreFailure> {
        let upload = self.begin_upload(key).await?;
        let result = match self.send_parts(key, &upload, bytes).await {
            Ok(parts) => self.complete_upload(key, &upload, parts).await,
            Err(failure) => Err(failure),
        };
        if !matches!(result, Ok(PutOutcome::Created)) {
            self.abort_upload(key, &upload).await;
        }
        result
    }

    async fn begin_upload(&self, key: &str) -> Result<String, StoreFailure> {
        let place = self.place("begin the upload of", key);
        let request = self.client.create_multipart_upload().bucket(&self.bucket).key(self.full_key(key)).send();
        match self.within(place, self.deadlines.attempt, request).await? {
            Ok(output) => Ok(output.upload_id().unwrap_or_default().to_owned()),
            Err(refusal) => Err(place.failure(&refusal)),
        }
    }

    async fn send_parts(&self, key: &str, upload: &str, bytes: Bytes) -> Result<Vec<CompletedPart>, StoreFailure> {
        let size = part_size(bytes.len());
        let count = bytes.len().div_ceil(size);
        let parts = (0..count).map(|index| {
            let part = bytes.slice(index * size..bytes.len().min((index + 1) * size));
            let number = i32::try_from(index + 1).unwrap_or(i32::MAX);
            self.send_part(key, upload, number, part)
        });
        stream::iter(parts).buffered(PARALLEL_PARTS).try_collect().await
    }

    async fn send_part(
        &self,
        key: &str,
        upload: &str,
        number: i32,
        bytes: Bytes,
    ) -> Result<CompletedPart, StoreFailure> {
        let place = self.place("upload a part of", key);
        let deadline = self.deadlines.for_bytes((bytes.len() * PARALLEL_PARTS) as u64);
        let request = self
            .client
            .upload_part()
            .bucket(&self.bucket)
            .key(self.full_key(key))
            .upload_id(upload)
            .part_number(number)
            .body(ByteStream::from(bytes));
        match self.within(place, deadline, request.send()).await? {
            Ok(output) => Ok(CompletedPart::builder().part_number(number).set_e_tag(output.e_tag).build()),
            Err(refusal) => Err(place.failure(&refusal)),
        }
    }

    /// `if_none_match` as the header of that name.
    async fn send_completion(
        &self,
        place: Place<'_>,
        upload: &str,
        parts: Vec<CompletedPart>,
        if_none_match: Option<&str>,
    ) -> Result<Result<(), Refusal>, StoreFailure> {
        let deadline = self.deadlines.attempt + std::time::Duration::from_millis(100 * parts.len() as u64);
        let request = self
            .client
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(self.full_key(place.key))
            .upload_id(upload)
            .set_if_none_match(if_none_match.map(str::to_owned))
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(parts)).build());
        Ok(self.within(place, deadline, request.send()).await?.map(drop))
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: Vec<CompletedPart>,
    ) -> Result<PutOutcome, StoreFailure> {
        let place = self.place("complete the upload of", key);
        match self.send_completion(place, upload, parts, Some("*")).await? {
            Ok(_) => Ok(PutOutcome::Created),
            Err(refusal) if refusal.is_taken() => Ok(PutOutcome::Exists),
            Err(refusal) => Err(place.failure(&refusal)),
        }
    }

    pub(crate) async fn begin_staged(&self, key: &str) -> Result<StagedUpload, StoreFailure> {
        Ok(StagedUpload { id: self.begin_upload(key).await?, parts: Vec::new() })
    }

    pub(crate) async fn append_staged(
        &self,
        key: &str,
        upload: &mut StagedUpload,
        bytes: Bytes,
    ) -> Result<(), StoreFailure> {
        let number = i32::try_from(upload.parts.len() + 1).unwrap_or(i32::MAX);
        let part = self.send_part(key, &upload.id, number, bytes).await?;
        upload.parts.push(part.e_tag().unwrap_or_default().to_owned());
        Ok(())
    }

    /// The key is this upload's alone, so an object there says that it is done; some servers answer a second completion with
    /// success. An upload that is not there any more was completed, by this call's own try too, or aborted: the object decides.
    pub(crate) async fn commit_staged(
        &self,
        key: &str,
        upload: Option<&str>,
        tags: &[String],
    ) -> Result<Committed, StoreFailure> {
        if ObjectStore::head(self, key).await?.is_some() {
            return Ok(Committed::Before);
        }
        let number = |(index, tag): (usize, &String)| {
            let number = i32::try_from(index + 1).unwrap_or(i32::MAX);
            CompletedPart::builder().part_number(number).e_tag(tag).build()
        };
        let parts: Vec<_> = tags.iter().enumerate().map(number).collect();
        let place = self.place("complete the upload of", key);
        match self.send_completion(place, upload.unwrap_or_default(), parts, None).await? {
            Ok(_) => Ok(Committed::Now),
            Err(refusal) if refusal.is_no_upload() => {
                let is_there = ObjectStore::head(self, key).await?.is_some();
                Ok(if is_there { Committed::Before } else { Committed::Lost })
            }
            Err(refusal) => Err(place.failure(&refusal)),
        }
    }

    pub(crate) async fn list_unfinished(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreFailure> {
        let place = self.place("list unfinished uploads of", prefix);
        let (mut found, mut key_marker, mut upload_marker) = (Vec::new(), None, None);
        loop {
            let request = self
                .client
                .list_multipart_uploads()
                .bucket(&self.bucket)
                .prefix(self.full_key(prefix))
                .set_key_marker(key_marker.clone())
                .set_upload_id_marker(upload_marker.clone());
            let page = match self.within(place, self.deadlines.attempt, request.send()).await? {
                Ok(page) => page,
                Err(refusal) => return Err(place.failure(&refusal)),
            };
            let uploads = page.uploads().iter().filter_map(|upload| Some((upload.key()?, upload.upload_id()?)));
            found.extend(uploads.filter_map(|(key, id)| {
                let key = key.strip_prefix(self.prefix.as_str())?.to_owned();
                Some(UnfinishedUpload { key, id: id.to_owned() })
            }));
            let next_key = page.next_key_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
            let next_upload = page.next_upload_id_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
            // A server that goes on from where it was would do so for ever: the next sweep finds the rest.
            let stands_still = next_key == key_marker && next_upload == upload_marker;
            if next_key.is_none() || stands_still || page.is_truncated() != Some(true) {
                return Ok(found);
            }
            (key_marker, upload_marker) = (next_key, next_upload);
        }
    }

    async fn abort_upload(&self, key: &str, upload: &str) {
        if let Err(failure) = self.try_abort(key, upload).await {
            tracing::warn!(%failure, "parts may be left behind until the job's next sweep");
        }
    }

    /// Some at once, since each is a request of its own. What can go goes, whatever is refused beside it.
    pub(super) async fn abort_all(&self, uploads: &[UnfinishedUpload]) -> Result<(), StoreFailure> {
        let aborts: Vec<_> = uploads.iter().map(|upload| self.try_abort(&upload.key, &upload.id)).collect();
        let mut running = stream::iter(aborts).buffer_unordered(PARALLEL_ABORTS);
        let mut outcome = Ok(());
        while let Some(aborted) = running.next().await {
            outcome = outcome.and(aborted);
        }
        outcome
    }

    /// An upload that is not there any more was completed or aborted.
    pub(crate) async fn try_abort(&self, key: &str, upload: &str) -> Result<(), StoreFailure> {
        let place = self.place("abort the upload of", key);
        let request =
            self.client.abort_multipart_upload().bucket(&self.bucket).key(self.full_key(key)).upload_id(upload).send();
        match self.within(place, self.deadlines.attempt, request).await? {
            Ok(_) => Ok(()),
            Err(refusal) if refusal.is_no_upload() => Ok(()),
            Err(refusal) => Err(place.failure(&refusal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LEAST_PART, MOST_PARTS, part_size};

    #[test]
    fn parts_are_neither_too_small_nor_too_many() {
        assert_eq!(part_size(9 << 20), LEAST_PART);
        let huge = (LEAST_PART * MOST_PARTS) + 1;
        assert!(part_size(huge) > LEAST_PART);
        assert!(huge.div_ceil(part_size(huge)) <= MOST_PARTS);
    }
}
