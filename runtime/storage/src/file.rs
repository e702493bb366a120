//! A store on a file system, with the same promises as S3 (docs/protocol.md, L7).
//!
//! An object appears at once and whole: its bytes are written to a temporary file, synced, and linked to the key's
//! name by link(2), which fails when the name is taken; then the directory is synced, so the name survives a power
//! cut too. Temporary files begin with [`TEMPORARY_PREFIX`], tell what they would have become, and are never listed
//! but as unfinished uploads. Works on local file systems and on NFS 3 and later; what has no hard links is refused by
//! the probe.

use crate::{
    ObjectStore, PutOutcome, StoreDeadlines, StoreFailure, StoreFailureKind, UnfinishedUpload, unreachable, unsuitable,
};
use async_trait::async_trait;
use bytes::Bytes;
use sluice_protocol::Timestamp;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const TEMPORARY_PREFIX: &str = ".sluice-put-";

/// Characters that tell a temporary file from others of the same key.
const NONCE: usize = 32;

/// The longest name that a temporary file repeats: file systems take 255 bytes.
const LONGEST_REPEATED: usize = 200;

/// Objects as files below a directory, which is made at the first put.
#[derive(Clone)]
pub struct FileStore {
    root: Arc<Path>,
    uri: Arc<str>,
    deadlines: StoreDeadlines,
}

impl FileStore {
    /// A store below this absolute directory.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, deadlines: StoreDeadlines) -> Self {
        let root: PathBuf = root.into();
        let uri = format!("file://{}", root.display().to_string().trim_end_matches('/'));
        Self { root: root.into(), uri: uri.into(), deadlines }
    }

    fn path_of(&self, key: &str) -> Result<PathBuf, StoreFailure> {
        let plain = |segment: &str| !matches!(segment, "" | "." | "..") && !segment.starts_with(TEMPORARY_PREFIX);
        if key.split('/').all(plain) {
            return Ok(self.root.join(key));
        }
        Err(unsuitable(format!("'{key}' below {} is no key: segments must not be empty, '.' or '..'", self.uri)))
    }

    /// Runs blocking work on a thread of its own and waits no longer than the deadline; work that hangs in the
    /// kernel goes on there.
    async fn run<T: Send + 'static>(
        &self,
        what: String,
        deadline: Duration,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreFailure> {
        match tokio::time::timeout(deadline, tokio::task::spawn_blocking(work)).await {
            Ok(Ok(result)) => result.map_err(|error| failure_of(&what, &error)),
            Ok(Err(_)) => Err(unreachable(format!("{what} was abandoned because the process is ending"))),
            Err(_) => Err(unreachable(format!("{what} took longer than {deadline:?}; is the file system hanging?"))),
        }
    }
}

fn failure_of(what: &str, error: &io::Error) -> StoreFailure {
    let (kind, hint) = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (StoreFailureKind::Denied, "; give the process's user write permission there")
        }
        ErrorKind::NotFound => (StoreFailureKind::MissingBucket, "; create the directory or mount its volume"),
        ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
            (StoreFailureKind::Unsuitable, "; a file and a directory collide there, choose another directory")
        }
        ErrorKind::Unsupported | ErrorKind::TooManyLinks | ErrorKind::InvalidFilename => {
            (StoreFailureKind::Unsuitable, "; the file system must support hard links and long names")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (StoreFailureKind::Unreachable, "; free some space"),
        _ => (StoreFailureKind::Unreachable, ""),
    };
    StoreFailure { kind, message: format!("{what} failed: {error}{hint}") }
}

pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Makes a directory and its missing parents, and makes their names survive a power cut.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        make_directory(parent)?;
        match fs::create_dir(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => sync_directory(parent)?,
        }
    }
    Ok(())
}

/// Creates the temporary file; made again when a delete just removed its empty directory.
fn create_in(directory: &Path, temporary: &Path) -> io::Result<File> {
    let create = || {
        make_directory(directory)?;
        OpenOptions::new().write(true).create_new(true).open(temporary)
    };
    let mut created = create();
    for _ in 0..8 {
        match created {
            Err(error) if error.kind() == ErrorKind::NotFound => created = create(),
            other => return other,
        }
    }
    created
}

fn link_new(target: &Path, temporary_name: &str, bytes: &[u8]) -> io::Result<PutOutcome> {
    let directory = target.parent().ok_or(ErrorKind::InvalidInput)?;
    let temporary = directory.join(temporary_name);
    let written = create_in(directory, &temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let linked = written.and_then(|()| match fs::hard_link(&temporary, target) {
        Ok(()) => Ok(PutOutcome::Created),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(PutOutcome::Exists),
        Err(error) => Err(error),
    });
    let removed = absent_as_none(fs::remove_file(&temporary));
    let outcome = linked?;
    removed?;
    // Synced also when the name was taken: its owner may have died before it synced.
    absent_as_none(sync_directory(directory))?;
    Ok(outcome)
}

fn absent_as_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_range(path: &Path, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    let mut bytes = Vec::new();
    file.take(range.end.saturating_sub(range.start)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The name of the file in which an object of this name is written.
fn temporary_name(name: &str) -> String {
    let nonce = uuid::Uuid::new_v4().simple();
    if name.len() > LONGEST_REPEATED {
        return format!("{TEMPORARY_PREFIX}{nonce}");
    }
    format!("{TEMPORARY_PREFIX}{nonce}-{name}")
}

/// A temporary file as the upload that it is, by its name; `None`: it is an object.
fn as_upload(base: &str, name: &str) -> Option<UnfinishedUpload> {
    let rest = name.strip_prefix(TEMPORARY_PREFIX)?;
    let target = rest.split_at_checked(NONCE).and_then(|(_, target)| target.strip_prefix('-'));
    Some(match target {
        Some(target) => UnfinishedUpload { key: format!("{base}{target}"), id: name.to_owned() },
        None => UnfinishedUpload { key: format!("{base}{name}"), id: String::new() },
    })
}

/// Visits all files below `directory`, whose own key is `base` (empty or ending in a slash), but those in directories
/// that have nothing to do with the prefix: with the key of their directory, and their name.
fn visit_files(directory: &Path, base: &str, prefix: &str, visit: &mut impl FnMut(&str, &str)) -> io::Result<()> {
    let Some(entries) = absent_as_none(fs::read_dir(directory))? else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if entry.file_type()?.is_dir() {
            let inner = format!("{base}{name}/");
            if inner.starts_with(prefix) || prefix.starts_with(&inner) {
                visit_files(&entry.path(), &inner, prefix, visit)?;
            }
        } else {
            visit(base, name);
        }
    }
    Ok(())
}

#[async_trait]
impl ObjectStore for FileStore {
    fn uri(&self) -> &str {
        &self.uri
    }

    async fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<PutOutcome, StoreFailure> {
        let path = self.path_of(key)?;
        let temporary = temporary_name(key.rsplit('/').next().unwrap_or(key));
        let deadline = self.deadlines.for_bytes(bytes.len() as u64);
        self.run(format!("writing {}", path.display()), deadline, move || link_new(&path, &temporary, &bytes)).await
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreFailure> {
        let path = self.path_of(key)?;
        let size = self.head(key).await?.unwrap_or(0);
        let work = {
            let path = path.clone();
            move || absent_as_none(fs::read(path)).map(|bytes| bytes.map(Bytes::from))
        };
        self.run(format!("reading {}", path.display()), self.deadlines.for_bytes(size), work).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, StoreFailure> {
        let path = self.path_of(key)?;
        let deadline = self.deadlines.for_bytes(range.end.saturating_sub(range.start));
        let work = {
            let path = path.clone();
            move || absent_as_none(read_range(&path, &range)).map(|bytes| bytes.map(Bytes::from))
        };
        self.run(format!("reading {}", path.display()), deadline, work).await
    }

    async fn head(&self, key: &str) -> Result<Option<u64>, StoreFailure> {
        let path = self.path_of(key)?;
        let what = format!("looking at {}", path.display());
        let work = move || {
            let found = absent_as_none(fs::metadata(path))?;
            Ok(found.filter(fs::Metadata::is_file).map(|metadata| metadata.len()))
        };
        self.run(what, self.deadlines.attempt, work).await
    }

    async fn modified(&self, key: &str) -> Result<Option<Timestamp>, StoreFailure> {
        let path = self.path_of(key)?;
        let what = format!("looking at {}", path.display());
        let work = move || {
            let Some(metadata) = absent_as_none(fs::metadata(path))?.filter(fs::Metadata::is_file) else {
                return Ok(None);
            };
            let since = metadata.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Ok(Some(Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))))
        };
        self.run(what, self.deadlines.attempt, work).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>) -> Result<Vec<String>, StoreFailure> {
        let mut keys =
            self.collect(prefix, |base, name| as_upload(base, name).is_none().then(|| format!("{base}{name}"))).await?;
        keys.retain(|key| key.starts_with(prefix) && start_after.is_none_or(|after| key.as_str() > after));
        Ok(keys)
    }

    async fn delete(&self, keys: &[String]) -> Result<(), StoreFailure> {
        let paths = keys.iter().map(|key| self.path_of(key)).collect::<Result<Vec<_>, _>>()?;
        self.remove(paths).await
    }

    async fn list_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreFailure> {
        let mut uploads = self.collect(prefix, as_upload).await?;
        uploads.retain(|upload| upload.key.starts_with(prefix));
        Ok(uploads)
    }

    async fn abort_uploads(&self, uploads: &[UnfinishedUpload]) -> Result<(), StoreFailure> {
        let path_of = |upload: &UnfinishedUpload| {
            let (directory, name) = upload.key.rsplit_once('/').unwrap_or(("", &upload.key));
            let directory =
                if directory.is_empty() { self.root.to_path_buf() } else { self.path_of(directory).ok()? };
            let name = if upload.id.is_empty() { name } else { &upload.id };
            (name.starts_with(TEMPORARY_PREFIX) && !name.contains('/')).then(|| directory.join(name))
        };
        self.remove(uploads.iter().filter_map(path_of).collect()).await
    }
}

impl FileStore {
    /// What `pick` makes of the files in the directories that may hold keys with this prefix, in order.
    async fn collect<T: Ord + Send + 'static>(
        &self,
        prefix: &str,
        pick: impl Fn(&str, &str) -> Option<T> + Send + 'static,
    ) -> Result<Vec<T>, StoreFailure> {
        let base = prefix.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
        let directory =
            if base.is_empty() { self.root.to_path_buf() } else { self.path_of(base.trim_end_matches('/'))? };
        let prefix = prefix.to_owned();
        let what = format!("listing {}", directory.display());
        let work = move || {
            let mut picked = Vec::new();
            visit_files(&directory, &base, &prefix, &mut |base, name| picked.extend(pick(base, name)))?;
            picked.sort_unstable();
            Ok(picked)
        };
        self.run(what, self.deadlines.attempt, work).await
    }

    async fn remove(&self, paths: Vec<PathBuf>) -> Result<(), StoreFailure> {
        let root = Arc::clone(&self.root);
        let what = format!("deleting {} files below {}", paths.len(), self.uri);
        let work = move || {
            // What can go goes, whatever is refused beside it.
            let mut outcome = Ok(());
            for path in paths {
                outcome = outcome.and(absent_as_none(fs::remove_file(&path)).map(drop));
                remove_empty_parents(&path, &root);
            }
            outcome
        };
        self.run(what, self.deadlines.attempt, work).await
    }
}

/// Removes directories that a delete left empty, as an object store would show none; a put that races with it makes
/// its directory again.
fn remove_empty_parents(path: &Path, root: &Path) {
    let mut directory = path.parent();
    while let Some(current) = directory.filter(|directory| *directory != root && directory.starts_with(root)) {
        if fs::remove_dir(current).is_err() {
            return;
        }
        directory = current.parent();
    }
}
