//! Where things lie: the checkout, built programs, images and the cache outside the checkout.
//!
//! Callers get absolute paths and need not care from which directory xtask was called.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// The one profile for tests and images.
pub(crate) const PROFILE: &str = "sluice";

/// The version of everything in this workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The root of the checkout that Cargo runs this xtask for: another one than it was built from, when two checkouts
/// share a target directory.
pub(crate) fn root() -> PathBuf {
    let running = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let is_xtask = |manifest: &PathBuf| manifest.file_name().is_some_and(|name| name == "xtask");
    let manifest = running.filter(is_xtask).unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf());
    manifest.parent().unwrap_or(&manifest).to_path_buf()
}

/// Where Cargo puts programs of [`PROFILE`]: the directory that this program lies in.
pub(crate) fn programs() -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find out where xtask itself lies")?;
    Ok(program.parent().context("xtask lies in no directory")?.to_path_buf())
}

/// Where image archives are written.
pub(crate) fn images() -> Result<PathBuf> {
    Ok(programs()?.join("images"))
}

/// What is fetched and built once, outside the checkout: `SLUICE_CACHE`, else `sluice` in the user's cache directory.
/// The scripts under `e2e/testbed` and `tests/services` follow the same rule.
pub(crate) fn cache() -> PathBuf {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("SLUICE_CACHE")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("sluice")))
        .or_else(|| Some(named("HOME")?.join(".cache/sluice")))
        .unwrap_or_else(|| env::temp_dir().join("sluice"))
}

/// A script of the checkout, by its path from the root.
pub(crate) fn script(path: &str) -> Command {
    Command::new(root().join(path))
}

/// Cargo, in the root of the checkout.
///
/// What the Cargo that runs xtask says about xtask stays here: build scripts that look at such variables (ring's does)
/// would run again, and all that depends on them compile again, at each change between `cargo verify` and `cargo test`.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand).current_dir(root());
    let about_xtask = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(about_xtask)) {
        command.env_remove(name);
    }
    command
}

/// Builds the programs, those that ship among them. All of the workspace's: a smaller selection would unite features of
/// dependencies differently and compile them once more.
pub(crate) fn build_programs() -> Result<()> {
    process::run(cargo("build").args(["--workspace", "--profile", PROFILE, "--bins"]))
}
