//! Where to look for checkpoints: a directory, an address, or what a manifest says.

use crate::error::CommandError;
use crate::plan::job_of;
use crate::run::default_checkpoint_storage;
use bytes::Bytes;
use clap::Args;
use sluice_crds::StreamJob;
use sluice_node::read_manifest;
use sluice_protocol::JobId;
use sluice_protocol::options::{IN_JOB_MANAGER, StorageOptions};
use sluice_protocol::paths::METADATA;
use sluice_storage::{StoreExecutor, open_store};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where to look.
#[derive(Debug, Args)]
pub(crate) struct PlaceArguments {
    /// Checkpoint storage, a job's directory in it, or one checkpoint: a path, file:///… or s3://…
    #[arg(value_name = "PLACE")]
    pub(super) place: Option<String>,
    /// Look where this StreamJob manifest stores its checkpoints
    #[arg(long, value_name = "FILE")]
    pub(super) manifest: Option<PathBuf>,
    /// URL of an S3-compatible server; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Region of the bucket
    #[arg(long)]
    region: Option<String>,
    /// The bucket goes into the path instead of the host name
    #[arg(long)]
    path_style: bool,
}

/// An opened place.
pub(crate) struct Place {
    /// Its address, without a trailing slash and `/_metadata`.
    pub(crate) uri: String,
    /// Reads from it and from other addresses with the same options.
    pub(crate) executor: StoreExecutor,
    /// Only jobs of this namespace and name.
    pub(crate) only: Option<JobId>,
}

impl PlaceArguments {
    /// Opens the place. Contacts nobody.
    pub(crate) fn open(&self) -> Result<Place, CommandError> {
        let manifest = self.manifest.as_deref().map(read_manifest).transpose()?;
        let uri = match (&self.place, &manifest) {
            (Some(place), _) => address_of(place)?,
            (None, Some(manifest)) => storage_of(manifest)?,
            (None, None) => return Err(CommandError::Usage("name a place or a --manifest".to_owned())),
        };
        // A place given beside a manifest is looked at as a whole; the manifest then only says how it is reached.
        let only = manifest.as_ref().filter(|_| self.place.is_none()).map(job_of);
        Place::open(&uri, self.options(manifest.as_ref()), only)
    }

    fn options(&self, manifest: Option<&StreamJob>) -> Option<StorageOptions> {
        let checkpointing = manifest.and_then(|manifest| manifest.spec.checkpointing.as_ref());
        let mut options =
            checkpointing.and_then(|checkpointing| checkpointing.storage_options.clone()).unwrap_or_default();
        if let Some(endpoint) = &self.endpoint {
            options.endpoint = Some(endpoint.clone());
        }
        if let Some(region) = &self.region {
            options.region = Some(region.clone());
        }
        options.path_style |= self.path_style;
        Some(options)
    }
}

impl Place {
    /// Opens an address.
    pub(crate) fn open(uri: &str, options: Option<StorageOptions>, only: Option<JobId>) -> Result<Self, CommandError> {
        let trimmed = uri.trim_end_matches('/');
        let directory = trimmed.strip_suffix(METADATA).unwrap_or(trimmed);
        let store = open_store(directory, options.as_ref())?;
        Ok(Self { uri: store.uri().to_owned(), executor: StoreExecutor::new(store, options), only })
    }

    /// The object at this absolute address.
    pub(crate) async fn get(&self, uri: &str) -> Result<Option<Bytes>, CommandError> {
        let (store, key) = self.executor.resolve(uri)?;
        Ok(store.get(&key).await?)
    }

    /// These bytes of it, cut off at its end.
    pub(crate) async fn get_range(&self, uri: &str, range: Range<u64>) -> Result<Option<Bytes>, CommandError> {
        let (store, key) = self.executor.resolve(uri)?;
        Ok(store.get_range(&key, range).await?)
    }
}

/// A path of this machine as an address; addresses stay as they are.
pub(crate) fn address_of(place: &str) -> Result<String, CommandError> {
    if place.contains("://") {
        return Ok(place.to_owned());
    }
    let absolute = std::path::absolute(Path::new(place))
        .map_err(|source| CommandError::Io { what: format!("finding '{place}'"), source })?;
    Ok(format!("file://{}", absolute.display()))
}

fn storage_of(manifest: &StreamJob) -> Result<String, CommandError> {
    match manifest.spec.checkpointing.as_ref().map(|checkpointing| checkpointing.storage.as_str()) {
        None => Err(CommandError::Usage(
            "the manifest has no spec.checkpointing, so its job takes no checkpoints".to_owned(),
        )),
        // What `sluice run` puts in its place.
        Some(IN_JOB_MANAGER) => default_checkpoint_storage(),
        Some(storage) => Ok(storage.to_owned()),
    }
}
