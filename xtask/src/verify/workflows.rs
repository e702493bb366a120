//! The workflows under `.github/workflows`: checked by actionlint, which is built from its Go module once.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{process, workspace};

const MODULE: &str = "github.com/rhysd/actionlint/cmd/actionlint";
const VERSION: &str = "v1.7.12";
const WORKFLOWS: &str = ".github/workflows";

/// Checks each of them.
pub(super) fn run() -> Result<()> {
    let directory = workspace::root().join(WORKFLOWS);
    let files = directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))?;
    let files: Vec<_> = files.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    ensure!(!files.is_empty(), "there is no workflow in {WORKFLOWS}");
    // What shellcheck says depends on whether and which this machine has.
    process::run(Command::new(program()?).args(["-shellcheck=", "-pyflakes=", "-no-color"]).args(files))
}

/// Where actionlint lies; built if it is not there yet.
fn program() -> Result<PathBuf> {
    let directory = workspace::cache().join("actionlint").join(VERSION);
    let program = directory.join("actionlint");
    if !program.is_file() {
        let mut command = Command::new("go");
        command.arg("install").arg(format!("{MODULE}@{VERSION}")).env("GOBIN", &directory).env("CGO_ENABLED", "0");
        process::run(&mut command).context("cannot build actionlint")?;
    }
    Ok(program)
}
