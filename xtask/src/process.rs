//! Running other programs, with errors that say which program failed and how to see more.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs the command with this process's own output. Fails if it can't be started or ends with an error.
pub(crate) fn run(mut command: impl std::borrow::BorrowMut<Command>) -> Result<()> {
    let command = command.borrow_mut();
    let status = command.status().with_context(|| cannot_start(command))?;
    if !status.success() {
        bail!("`{}` ended with {status}; its own output above says why", line(command));
    }
    Ok(())
}

/// As [`run`], where a failure can't be handled any more and is only told.
pub(crate) fn run_and_report(command: Command) {
    if let Err(error) = run(command) {
        eprintln!("warning: {error:#}");
    }
}

/// Runs the command and returns what it printed. On failure the error carries its standard error.
pub(crate) fn output(mut command: impl std::borrow::BorrowMut<Command>) -> Result<String> {
    let command = command.borrow_mut();
    let output = command.stdin(Stdio::null()).output().with_context(|| cannot_start(command))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` ended with {}: {}", line(command), output.status, stderr.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` printed something that is not UTF-8", line(command)))
}

/// Whether a program of this name can be found in PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start `{}`; is {} installed?", line(command), command.get_program().to_string_lossy())
}

/// The command as one would type it, without the environment.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
