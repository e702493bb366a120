//! Files that are staged first and become visible later, all at once: what a sink commits with a checkpoint (S1).
//!
//! On a file system a staged file is hidden beside its place (`.NAME.inprogress`) and is renamed; on S3 it is a multipart
//! upload that is completed. Either way it survives the process that staged it, any other can commit it by its
//! [`StagedFile`], and a listing of objects shows nothing of it. Callers rely on: a name is staged by one writer once, and
//! [`Staging::commit`] tells what was committed before from what is gone.

use crate::file::{make_directory, sync_directory};
use crate::s3::StagedUpload;
use crate::unreachable;
use crate::{S3Settings, S3Store, StoreFailure, StoreFailureKind, StoreUri, UnfinishedUpload};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sluice_protocol::options::StorageOptions;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// What a hidden file on a file system ends with.
pub const IN_PROGRESS: &str = ".inprogress";

/// Servers refuse smaller parts of an upload, except the last.
pub const LEAST_PART: usize = 5 << 20;

/// A file that is staged: enough for another process to commit it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StagedFile {
    /// Its place below the directory.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// The address of the directory; absent in handles of before it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The upload, on S3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<String>,
    /// The tags of its parts, in order, on S3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
}

/// What a commit came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// It is visible now.
    Now,
    /// It was visible before.
    Before,
    /// Neither what was staged nor the file is there.
    Lost,
}

/// A file that is being staged.
pub struct StagingFile {
    key: String,
    size: u64,
    target: Target,
}

impl StagingFile {
    /// Whether an append that failed may be repeated: a part of an upload has its number, a file on a disk may hold half.
    #[must_use]
    pub const fn may_repeat(&self) -> bool {
        matches!(self.target, Target::S3(_))
    }
}

enum Target {
    Local { file: File },
    S3(StagedUpload),
}

/// A directory in which files are staged.
pub struct Staging {
    place: Place,
    uri: String,
}

enum Place {
    Local(PathBuf),
    S3(S3Store),
}

impl Staging {
    /// A directory by its address, with the process's own credentials. Touches nothing.
    ///
    /// # Errors
    /// When the address or an option cannot be read.
    pub fn open(uri: &str, options: Option<&StorageOptions>) -> Result<Self, StoreFailure> {
        let address: StoreUri = uri.parse()?;
        let uri = address.to_string();
        Ok(match address {
            StoreUri::S3 { bucket, prefix } => {
                Self { place: Place::S3(S3Store::new(S3Settings::from_options(&bucket, &prefix, options))?), uri }
            }
            StoreUri::File { path } => Self { place: Place::Local(path), uri },
        })
    }

    /// One on these settings.
    ///
    /// # Errors
    /// When the endpoint is no URL.
    pub fn on_s3(settings: S3Settings) -> Result<Self, StoreFailure> {
        let uri = StoreUri::S3 { bucket: settings.bucket.clone(), prefix: settings.prefix.clone() }.to_string();
        Ok(Self { place: Place::S3(S3Store::new(settings)?), uri })
    }

    /// Its address, without a trailing slash.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Begins to stage a file. Its bytes follow by [`Self::append`].
    ///
    /// # Errors
    /// When the store does not answer or refuses.
    pub async fn begin(&self, key: &str) -> Result<StagingFile, StoreFailure> {
        let target = match &self.place {
            Place::Local(root) => {
                let hidden = hidden(root, key);
                let made = make_parent(&hidden)
                    .and_then(|()| OpenOptions::new().write(true).create(true).truncate(true).open(&hidden));
                Target::Local { file: made.map_err(|error| failure_at(&hidden, "cannot be made", &error))? }
            }
            Place::S3(store) => Target::S3(store.begin_staged(key).await?),
        };
        Ok(StagingFile { key: key.to_owned(), size: 0, target })
    }

    /// Adds bytes; on S3 a part of at least [`LEAST_PART`], unless it is the last.
    ///
    /// # Errors
    /// As [`Self::begin`]; the file is of no use then.
    pub async fn append(&self, file: &mut StagingFile, bytes: Bytes) -> Result<(), StoreFailure> {
        let count = bytes.len() as u64;
        let appended = match (&self.place, &mut file.target) {
            (Place::S3(store), Target::S3(upload)) => store.append_staged(&file.key, upload, bytes).await,
            (Place::Local(root), Target::Local { file: open }) => open
                .write_all(&bytes)
                .map_err(|error| failure_at(&hidden(root, &file.key), "cannot be written", &error)),
            _ => Err(unreachable("a file of another directory was written to")),
        };
        file.size += appended.as_ref().map_or(0, |()| count);
        appended
    }

    /// Makes all of it durable.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub async fn stage(&self, file: StagingFile) -> Result<StagedFile, StoreFailure> {
        let StagingFile { key, size, target } = file;
        let directory = Some(self.uri.clone());
        match target {
            Target::S3(upload) => {
                let (upload, parts) = upload.into_parts();
                Ok(StagedFile { key, size, directory, upload: Some(upload), parts })
            }
            Target::Local { file } => {
                let Place::Local(root) = &self.place else {
                    return Err(unreachable("a file of another directory was staged"));
                };
                let path = hidden(root, &key);
                let synced = file.sync_all().and_then(|()| sync_parent(&path));
                synced.map_err(|error| failure_at(&path, "cannot be synced", &error))?;
                Ok(StagedFile { key, size, directory, upload: None, parts: Vec::new() })
            }
        }
    }

    /// Makes a staged file visible.
    ///
    /// # Errors
    /// When there is no clear answer: to be tried again.
    pub async fn commit(&self, file: &StagedFile) -> Result<Committed, StoreFailure> {
        match &self.place {
            Place::S3(store) => store.commit_staged(&file.key, file.upload.as_deref(), &file.parts).await,
            Place::Local(root) => {
                let (from, to) = (hidden(root, &file.key), root.join(&file.key));
                let committed = match fs::rename(&from, &to) {
                    Ok(()) => Committed::Now,
                    Err(error) if error.kind() == ErrorKind::NotFound => look_for(root, &to)?,
                    Err(error) => return Err(failure_at(&from, "cannot be renamed", &error)),
                };
                if committed != Committed::Lost {
                    // Also what another process has renamed, which may have died before it synced.
                    sync_parent(&to).map_err(|error| failure_at(&to, "cannot be synced", &error))?;
                }
                Ok(committed)
            }
        }
    }

    /// What is staged and not committed; on a file system in the directory itself and those of its partitions (`day=…`).
    /// `key` is the place that each would have become.
    ///
    /// # Errors
    /// When the store does not answer or refuses.
    pub async fn staged(&self) -> Result<Vec<UnfinishedUpload>, StoreFailure> {
        match &self.place {
            Place::S3(store) => store.list_unfinished("").await,
            Place::Local(root) => {
                let mut found = Vec::new();
                collect_hidden(root, "", &mut found).map_err(|error| failure_at(root, "cannot be listed", &error))?;
                Ok(found)
            }
        }
    }

    /// Gives up what is staged; absent ones are no error.
    ///
    /// # Errors
    /// As [`Self::staged`].
    pub async fn abort(&self, uploads: &[UnfinishedUpload]) -> Result<(), StoreFailure> {
        for UnfinishedUpload { key, id } in uploads {
            match &self.place {
                Place::S3(store) => store.try_abort(key, id).await?,
                Place::Local(root) => {
                    let path = hidden(root, key);
                    match fs::remove_file(&path) {
                        Err(error) if error.kind() != ErrorKind::NotFound => {
                            return Err(failure_at(&path, "cannot be removed", &error));
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// What became of a file that is not staged any more. Only where the table's directory can be seen is it lost; that of its
/// partition may have been removed with it.
fn look_for(root: &Path, path: &Path) -> Result<Committed, StoreFailure> {
    let unseen = |error| failure_at(path, "cannot be looked for", &error);
    if path.try_exists().map_err(unseen)? {
        return Ok(Committed::Before);
    }
    if root.try_exists().map_err(unseen)? {
        return Ok(Committed::Lost);
    }
    let message = format!(
        "{} is no directory for the process that commits, the JobManager: mount its volume in the pods of the JobManager and of \
         the TaskManagers alike",
        root.display()
    );
    Err(StoreFailure { kind: StoreFailureKind::Unreachable, message })
}

/// `a/part-1.json` as `<root>/a/.part-1.json.inprogress`.
fn hidden(root: &Path, key: &str) -> PathBuf {
    let (directory, name) = key.rsplit_once('/').map_or(("", key), |(directory, name)| (directory, name));
    root.join(directory).join(format!(".{name}{IN_PROGRESS}"))
}

fn collect_hidden(root: &Path, below: &str, found: &mut Vec<UnfinishedUpload>) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(below)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Some(name) = name.strip_prefix('.').and_then(|name| name.strip_suffix(IN_PROGRESS)) {
            found.push(UnfinishedUpload { key: format!("{below}{name}"), id: String::new() });
        } else if name.contains('=') && !name.starts_with(['.', '_']) && entry.file_type()?.is_dir() {
            collect_hidden(root, &format!("{below}{name}/"), found)?;
        }
    }
    Ok(())
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), make_directory)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

fn failure_at(path: &Path, what: &str, error: &io::Error) -> StoreFailure {
    let (kind, hint) = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (StoreFailureKind::Denied, "; give the process's user write permission there")
        }
        ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
            (StoreFailureKind::Unsuitable, "; a file and a directory collide there, choose another path")
        }
        ErrorKind::InvalidFilename => (
            StoreFailureKind::Unsuitable,
            "; choose a shorter path, or shorter names of the job, the sink or the partitions",
        ),
        _ => (StoreFailureKind::Unreachable, ""),
    };
    StoreFailure { kind, message: format!("{} {what}: {error}{hint}", path.display()) }
}
