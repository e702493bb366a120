//! A store on Amazon S3 or a server that speaks its protocol.
//!
//! The SDK repeats nothing by itself: an own repetition of a conditional put would read the 412 that its first
//! attempt caused as another's (L2). Checksums are sent only where the protocol requires them, so that servers that
//! do not know the newer ones work. Every request has a deadline ([`StoreDeadlines`]).
//!
//! [`client`] builds the SDK's client, [`failure`] turns its errors into ours, [`multipart`] moves large objects.

mod client;
mod failure;
mod multipart;

pub(crate) use multipart::StagedUpload;

use crate::{ObjectStore, PutOutcome, StoreDeadlines, StoreFailure, UnfinishedUpload};
use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::operation::get_object::builders::GetObjectFluentBuilder;
use aws_sdk_s3::operation::head_object::HeadObjectOutput;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use bytes::Bytes;
use failure::{Place, Refusal};
use sluice_protocol::Timestamp;
use sluice_protocol::options::StorageOptions;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// The most keys that one DeleteObjects takes.
const DELETE_BATCH: usize = 1000;

/// An access key; its `Debug` hides the secret.
#[derive(Clone)]
pub struct S3Credentials {
    /// Access key id.
    pub access_key_id: String,
    /// Secret access key.
    pub secret_access_key: String,
    /// Session token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Credentials").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// How a bucket is reached.
#[derive(Debug, Clone, Default)]
pub struct S3Settings {
    /// The bucket.
    pub bucket: String,
    /// What all keys begin with, without a slash at either end; may be empty.
    pub prefix: String,
    /// URL of the server; Amazon's own when absent.
    pub endpoint: Option<String>,
    /// Region; us-east-1 when absent.
    pub region: Option<String>,
    /// The bucket goes into the path instead of the host name.
    pub path_style: bool,
    /// An access key; when absent, the environment, profile, web identity, container or instance role.
    pub credentials: Option<S3Credentials>,
    /// Deadlines.
    pub deadlines: StoreDeadlines,
}

impl S3Settings {
    /// From a manifest's options; what they leave out comes from the usual environment variables
    /// (`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_DEFAULT_REGION`).
    #[must_use]
    pub fn from_options(bucket: &str, prefix: &str, options: Option<&StorageOptions>) -> Self {
        let variable = |names: [&str; 2]| {
            names.into_iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
        };
        let options = options.cloned().unwrap_or_default();
        Self {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            endpoint: options.endpoint.or_else(|| variable(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])),
            region: options.region.or_else(|| variable(["AWS_REGION", "AWS_DEFAULT_REGION"])),
            path_style: options.path_style,
            credentials: None,
            deadlines: StoreDeadlines::default(),
        }
    }
}

/// Objects below a prefix of a bucket.
#[derive(Clone)]
pub struct S3Store {
    client: Client,
    bucket: String,
    /// Empty, or ends in a slash.
    prefix: String,
    uri: String,
    endpoint: String,
    deadlines: StoreDeadlines,
}

impl S3Store {
    /// A store below these settings' prefix. Touches no network.
    ///
    /// # Errors
    /// When the endpoint is no URL.
    pub fn new(settings: S3Settings) -> Result<Self, StoreFailure> {
        let client = client::build_client(&settings)?;
        let prefix = match settings.prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let uri = format!("s3://{}/{prefix}", settings.bucket).trim_end_matches('/').to_owned();
        let endpoint = settings.endpoint.unwrap_or_else(|| "Amazon S3".to_owned());
        Ok(Self { client, bucket: settings.bucket, prefix, uri, endpoint, deadlines: settings.deadlines })
    }

    fn full_key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn place<'a>(&'a self, operation: &'static str, key: &'a str) -> Place<'a> {
        Place { operation, uri: &self.uri, bucket: &self.bucket, key, endpoint: &self.endpoint }
    }

    /// Waits for a request no longer than its deadline.
    async fn within<T, E: Into<Refusal>>(
        &self,
        place: Place<'_>,
        deadline: Duration,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, Refusal>, StoreFailure> {
        match tokio::time::timeout(deadline, request).await {
            Ok(result) => Ok(result.map_err(Into::into)),
            Err(_) => Err(place.timed_out(deadline)),
        }
    }

    /// What the store says of an object, `None` when there is none.
    async fn head_object(&self, key: &str) -> Result<Option<HeadObjectOutput>, StoreFailure> {
        let place = self.place("HEAD", key);
        let request = self.client.head_object().bucket(&self.bucket).key(self.full_key(key)).send();
        match self.within(place, self.deadlines.attempt, request).await? {
            Ok(object) => Ok(Some(object)),
            Err(refusal) if refusal.is_absent_head() => Ok(None),
            Err(refusal) => Err(place.failure(&refusal)),
        }
    }

    async fn put_whole(&self, key: &str, bytes: Bytes) -> Result<PutOutcome, StoreFailure> {
        let place = self.place("PUT", key);
        let deadline = self.deadlines.for_bytes(bytes.len() as u64);
        let request = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(self.full_key(key))
            .if_none_match("*")
            .body(ByteStream::from(bytes));
        match self.within(place, deadline, request.send()).await? {
            Ok(_) => Ok(PutOutcome::Created),
            Err(refusal) if refusal.is_taken() => Ok(PutOutcome::Exists),
            Err(refusal) => Err(place.failure(&refusal)),
        }
    }

    /// Sends a GET and reads its body, each within a deadline.
    async fn fetch(&self, key: &str, request: GetObjectFluentBuilder) -> Result<Result<Bytes, Refusal>, StoreFailure> {
        let place = self.place("GET", key);
        let response = match self.within(place, self.deadlines.attempt, request.send()).await? {
            Ok(response) => response,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let size = response.content_length().and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
        let deadline = self.deadlines.for_bytes(size);
        match tokio::time::timeout(deadline, response.body.collect()).await {
            Ok(Ok(body)) => Ok(Ok(body.into_bytes())),
            Ok(Err(error)) => Err(place.broken_off(&error)),
            Err(_) => Err(place.timed_out(deadline)),
        }
    }

    fn get_request(&self, key: &str) -> GetObjectFluentBuilder {
        self.client.get_object().bucket(&self.bucket).key(self.full_key(key))
    }

    async fn delete_batch(&self, keys: &[String]) -> Result<(), StoreFailure> {
        let place = self.place("DELETE", keys.first().map_or("", String::as_str));
        let identifiers = keys.iter().map(|key| ObjectIdentifier::builder().key(self.full_key(key)).build());
        let objects = identifiers.collect::<Result<Vec<_>, _>>().map_err(|error| place.not_built(&error))?;
        let delete = Delete::builder().set_objects(Some(objects)).quiet(true).build();
        let delete = delete.map_err(|error| place.not_built(&error))?;
        let request = self.client.delete_objects().bucket(&self.bucket).delete(delete).send();
        match self.within(place, self.deadlines.attempt, request).await? {
            Ok(output) => match output.errors().iter().find(|error| error.code() != Some("NoSuchKey")) {
                None => Ok(()),
                Some(error) => Err(place.failure(&Refusal::from_code(
                    error.code().unwrap_or_default(),
                    &format!("{} ({})", error.message().unwrap_or_default(), error.key().unwrap_or_default()),
                ))),
            },
            Err(refusal) => Err(place.failure(&refusal)),
        }
    }
}

#[async_trait]
impl ObjectStore for S3Store {
    fn uri(&self) -> &str {
        &self.uri
    }

    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<PutOutcome, StoreFailure> {
        if bytes.len() > multipart::THRESHOLD {
            return self.put_in_parts(key, bytes).await;
        }
        self.put_whole(key, bytes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreFailure> {
        match self.fetch(key, self.get_request(key)).await? {
            Ok(bytes) => Ok(Some(bytes)),
            Err(refusal) if refusal.is_absent() => Ok(None),
            Err(refusal) => Err(self.place("GET", key).failure(&refusal)),
        }
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, StoreFailure> {
        if range.is_empty() {
            return Ok(self.head(key).await?.map(|_| Bytes::new()));
        }
        let header = format!("bytes={}-{}", range.start, range.end - 1);
        match self.fetch(key, self.get_request(key).range(header)).await? {
            Ok(bytes) => Ok(Some(bytes)),
            Err(refusal) if refusal.is_absent() => Ok(None),
            Err(refusal) if refusal.is_past_end() => Ok(Some(Bytes::new())),
            Err(refusal) => Err(self.place("GET", key).failure(&refusal)),
        }
    }

    async fn head(&self, key: &str) -> Result<Option<u64>, StoreFailure> {
        let object = self.head_object(key).await?;
        Ok(object.map(|object| object.content_length().and_then(|size| u64::try_from(size).ok()).unwrap_or(0)))
    }

    async fn modified(&self, key: &str) -> Result<Option<Timestamp>, StoreFailure> {
        let object = self.head_object(key).await?;
        Ok(object.map(|object| {
            let millis = object.last_modified().and_then(|time| time.to_millis().ok());
            Timestamp(millis.and_then(|millis| u64::try_from(millis).ok()).unwrap_or(0))
        }))
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>) -> Result<Vec<String>, StoreFailure> {
        let place = self.place("LIST", prefix);
        let mut keys = Vec::new();
        let mut continuation = None;
        loop {
            let request = self
                .client
                .list_objects_v2()
                .bucket(&self.bucket)
                .prefix(self.full_key(prefix))
                .set_start_after(start_after.map(|key| self.full_key(key)))
                .set_continuation_token(continuation);
            let page = match self.within(place, self.deadlines.attempt, request.send()).await? {
                Ok(page) => page,
                Err(refusal) => return Err(place.failure(&refusal)),
            };
            let names = page.contents().iter().filter_map(|object| object.key());
            keys.extend(names.filter_map(|key| key.strip_prefix(self.prefix.as_str())).map(str::to_owned));
            continuation = page.next_continuation_token().map(str::to_owned);
            if continuation.is_none() || page.is_truncated() != Some(true) {
                return Ok(keys);
            }
        }
    }

    async fn delete(&self, keys: &[String]) -> Result<(), StoreFailure> {
        // What can go goes, whatever is refused beside it.
        let mut outcome = Ok(());
        for batch in keys.chunks(DELETE_BATCH) {
            outcome = outcome.and(self.delete_batch(batch).await);
        }
        outcome
    }

    async fn list_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreFailure> {
        self.list_unfinished(prefix).await
    }

    async fn abort_uploads(&self, uploads: &[UnfinishedUpload]) -> Result<(), StoreFailure> {
        self.abort_all(uploads).await
    }
}
