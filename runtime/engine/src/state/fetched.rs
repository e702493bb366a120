//! A file of state that was fetched: in memory, or on the local disk when it is not to take memory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The bytes of a file of state.
#[derive(Debug, Clone)]
pub enum StateBytes {
    /// In memory.
    Memory(bytes::Bytes),
    /// In a file that is removed when nobody needs it any more.
    Spooled(Arc<SpooledFile>),
}

impl<B: Into<bytes::Bytes>> From<B> for StateBytes {
    fn from(bytes: B) -> Self {
        Self::Memory(bytes.into())
    }
}

/// A file that goes when it is dropped.
#[derive(Debug)]
pub struct SpooledFile {
    path: PathBuf,
}

impl SpooledFile {
    /// Takes a file over.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn open(&self) -> std::io::Result<File> {
        File::open(&self.path)
    }
}

impl Drop for SpooledFile {
    fn drop(&mut self) {
        // What cannot be removed goes with its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}
