//! S3's operations in terms of [`Buckets`], each passing the faults that a test asked for.

use crate::buckets::Buckets;
use crate::fault::{Control, Fault, Request};
use crate::identity::Identities;
use crate::sts::Sts;
use bytes::Bytes;
use futures::TryStreamExt;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput, CompleteMultipartUploadOutput,
    CreateBucketInput, CreateBucketOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteObjectInput,
    DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, ETag, GetObjectInput, GetObjectOutput,
    HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListMultipartUploadsInput,
    ListMultipartUploadsOutput, ListObjectsV2Input, ListObjectsV2Output, MultipartUpload, Object, PutObjectInput,
    PutObjectOutput, StreamingBlob, UploadPartInput, UploadPartOutput,
};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use std::sync::Arc;

/// S3's limit of keys in one DeleteObjects.
const DELETE_LIMIT: usize = 1000;

struct Service {
    buckets: Arc<Buckets>,
    control: Arc<Control>,
}

pub(crate) fn build_service(identities: Identities, buckets: Arc<Buckets>, control: Arc<Control>) -> S3Service {
    let mut builder = S3ServiceBuilder::new(Service { buckets, control });
    builder.set_auth(identities.clone());
    builder.set_access(identities.clone());
    builder.set_route(Sts { identities });
    builder.build()
}

impl Service {
    /// Does the work as the request's fault has it.
    async fn respond<T>(
        &self,
        operation: &'static str,
        bucket: &str,
        key: &str,
        work: impl FnOnce(&Buckets) -> S3Result<T>,
    ) -> S3Result<S3Response<T>> {
        let fault = self.control.decide(&Request { operation, bucket, key }).await;
        match fault {
            Fault::Pass => work(&self.buckets).map(S3Response::new),
            Fault::FailBefore => Err(s3_error!(ServiceUnavailable, "a fault before the request took effect")),
            Fault::FailAfter => {
                work(&self.buckets)?;
                Err(s3_error!(InternalError, "a fault after the request took effect"))
            }
            Fault::HangBefore => std::future::pending().await,
            Fault::HangAfter => {
                work(&self.buckets)?;
                std::future::pending().await
            }
        }
    }
}

async fn read_body(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let Some(body) = body else { return Ok(Bytes::new()) };
    let chunks: Vec<Bytes> = body.try_collect().await.map_err(|_| s3_error!(IncompleteBody))?;
    Ok(chunks.concat().into())
}

fn length_of(size: usize) -> Option<i64> {
    i64::try_from(size).ok()
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        let name = request.input.bucket;
        self.respond("CreateBucket", &name, "", |buckets| buckets.create(&name).map(|()| Default::default())).await
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        let name = request.input.bucket;
        self.respond("HeadBucket", &name, "", |buckets| buckets.exists(&name).map(|()| Default::default())).await
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        let body = read_body(input.body).await?;
        if input.if_match.is_some() {
            return Err(s3_error!(NotImplemented, "If-Match"));
        }
        self.respond("PutObject", &input.bucket, &input.key, |buckets| {
            let etag = buckets.put(&input.bucket, &input.key, body, input.if_none_match.as_ref())?;
            Ok(PutObjectOutput { e_tag: Some(ETag::Strong(etag)), ..Default::default() })
        })
        .await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        self.respond("GetObject", &input.bucket, &input.key, |buckets| {
            let object = buckets.get(&input.bucket, &input.key)?;
            let size = object.body.len();
            let (body, content_range) = match input.range {
                None => (object.body, None),
                Some(range) => {
                    let range = range.check(size as u64)?;
                    let (start, end) = (range.start as usize, range.end as usize);
                    (object.body.slice(start..end), Some(format!("bytes {start}-{}/{size}", end - 1)))
                }
            };
            Ok(GetObjectOutput {
                content_length: length_of(body.len()),
                body: Some(StreamingBlob::from(s3s::Body::from(body))),
                content_range,
                e_tag: Some(ETag::Strong(object.etag)),
                ..Default::default()
            })
        })
        .await
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        self.respond("HeadObject", &input.bucket, &input.key, |buckets| {
            let object = buckets.get(&input.bucket, &input.key)?;
            let (content_length, e_tag) = (length_of(object.body.len()), Some(ETag::Strong(object.etag)));
            Ok(HeadObjectOutput { content_length, e_tag, ..Default::default() })
        })
        .await
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        let input = request.input;
        self.respond("DeleteObject", &input.bucket, &input.key, |buckets| {
            buckets.delete(&input.bucket, [input.key.clone()]).map(|()| Default::default())
        })
        .await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let input = request.input;
        if input.delete.objects.len() > DELETE_LIMIT {
            return Err(s3_error!(MalformedXML));
        }
        self.respond("DeleteObjects", &input.bucket, "", |buckets| {
            let keys = input.delete.objects.into_iter().map(|object| object.key);
            buckets.delete(&input.bucket, keys).map(|()| Default::default())
        })
        .await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        if input.delimiter.as_ref().is_some_and(|delimiter| !delimiter.is_empty()) {
            return Err(s3_error!(NotImplemented, "lists with a delimiter"));
        }
        let prefix = input.prefix.clone().unwrap_or_default();
        // A continuation token is the last key of the page before.
        let after = input.continuation_token.as_ref().or(input.start_after.as_ref());
        let limit = input.max_keys.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        self.respond("ListObjectsV2", &input.bucket, &prefix, |buckets| {
            let page = buckets.list(&input.bucket, &prefix, after.map(String::as_str), limit)?;
            let last = page.objects.last().map(|(key, _)| key.clone());
            let contents = page.objects.into_iter().map(|(key, object)| Object {
                key: Some(key),
                size: length_of(object.body.len()),
                e_tag: Some(ETag::Strong(object.etag)),
                ..Default::default()
            });
            let contents: Vec<_> = contents.collect();
            Ok(ListObjectsV2Output {
                key_count: i32::try_from(contents.len()).ok(),
                contents: Some(contents),
                is_truncated: Some(page.truncated),
                next_continuation_token: last.filter(|_| page.truncated),
                name: Some(input.bucket.clone()),
                prefix: Some(prefix.clone()),
                ..Default::default()
            })
        })
        .await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let (bucket, key) = (request.input.bucket, request.input.key);
        self.respond("CreateMultipartUpload", &bucket, &key, |buckets| {
            let upload_id = Some(buckets.begin_upload(&bucket, &key)?);
            let (bucket, key) = (Some(bucket.clone()), Some(key.clone()));
            Ok(CreateMultipartUploadOutput { bucket, key, upload_id, ..Default::default() })
        })
        .await
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let input = request.input;
        let body = read_body(input.body).await?;
        self.respond("UploadPart", &input.bucket, &input.key, |buckets| {
            let etag = buckets.put_part(&input.bucket, &input.key, &input.upload_id, input.part_number, body)?;
            Ok(UploadPartOutput { e_tag: Some(ETag::Strong(etag)), ..Default::default() })
        })
        .await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let parts: Vec<_> = parts
            .into_iter()
            .map(|part| (part.part_number.unwrap_or(0), part.e_tag.map(|etag| etag.value().to_owned())))
            .collect();
        self.respond("CompleteMultipartUpload", &input.bucket, &input.key, |buckets| {
            let condition = input.if_none_match.as_ref();
            let etag = buckets.complete_upload(&input.bucket, &input.key, &input.upload_id, &parts, condition)?;
            Ok(CompleteMultipartUploadOutput {
                bucket: Some(input.bucket.clone()),
                key: Some(input.key.clone()),
                e_tag: Some(ETag::Strong(etag)),
                ..Default::default()
            })
        })
        .await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let input = request.input;
        self.respond("AbortMultipartUpload", &input.bucket, &input.key, |buckets| {
            buckets.abort_upload(&input.bucket, &input.upload_id).map(|()| Default::default())
        })
        .await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = (input.key_marker.unwrap_or_default(), input.upload_id_marker.unwrap_or_default());
        self.respond("ListMultipartUploads", &input.bucket, &prefix, |buckets| {
            let mut uploads: Vec<_> = buckets.uploads(&input.bucket, &prefix)?.into_iter().collect();
            uploads.retain(|upload| *upload > after);
            let is_truncated = uploads.len() > buckets.page_size();
            uploads.truncate(buckets.page_size());
            let (key, id) = uploads.last().filter(|_| is_truncated).cloned().unzip();
            let uploads = uploads.into_iter().map(|(key, id)| MultipartUpload {
                key: Some(key),
                upload_id: Some(id),
                ..Default::default()
            });
            Ok(ListMultipartUploadsOutput {
                uploads: Some(uploads.collect()),
                is_truncated: Some(is_truncated),
                next_key_marker: key,
                next_upload_id_marker: id,
                ..Default::default()
            })
        })
        .await
    }
}
