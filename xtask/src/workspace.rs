//! Where things lie: the checkout, Cargo's target directory, built programs and the cache.
//!
//! Callers get absolute paths and need not care from which directory xtask was called.

use std::env;
use std::path::{Path, PathBuf};

/// The root of the checkout that this xtask was built from.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}
