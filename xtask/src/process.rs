//! Running other programs, with errors that say which program failed and how to see more.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How often [`run_within`] looks whether its program has ended.
const LOOK: Duration = Duration::from_millis(50);
/// What a program that is told to end has for it.
const GRACE: Duration = Duration::from_secs(10);
/// The process group of the program that [`run_within`] runs; 0: there is none.
static RUNNING: AtomicI32 = AtomicI32::new(0);

/// Runs the command with this process's own output. Fails if it can't be started or ends with an error.
pub(crate) fn run(mut command: impl std::borrow::BorrowMut<Command>) -> Result<()> {
    let command = command.borrow_mut();
    let status = command.status().with_context(|| cannot_start(command))?;
    if !status.success() {
        bail!("`{}` ended with {status}; its own output above says why", line(command));
    }
    Ok(())
}

/// As [`run`], but what has not ended by the deadline is ended, with all that it started.
pub(crate) fn run_within(deadline: Duration, mut command: impl std::borrow::BorrowMut<Command>) -> Result<()> {
    let command = command.borrow_mut();
    // In a group of its own: Cargo's end is not the end of the test that it runs.
    let mut child = command.process_group(0).spawn().with_context(|| cannot_start(command))?;
    RUNNING.store(child.id().cast_signed(), Ordering::SeqCst);
    let status = wait(&mut child, deadline);
    if !matches!(status, Ok(Some(_))) {
        end(|| child.try_wait().is_ok_and(|status| status.is_some()));
    }
    RUNNING.store(0, Ordering::SeqCst);
    match status? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("`{}` ended with {status}; its own output above says why", line(command)),
        None => bail!(
            "`{}` did not end within {} minutes and was ended: what it printed last hangs, or this machine is far too slow",
            line(command),
            deadline.as_secs() / 60
        ),
    }
}

/// Ends what another thread runs by [`run_within`], and all that it started.
pub(crate) fn end_running() {
    end(|| RUNNING.load(Ordering::SeqCst) == 0);
}

fn end(mut is_over: impl FnMut() -> bool) {
    let group = RUNNING.load(Ordering::SeqCst);
    if group == 0 {
        return;
    }
    // Fails when nobody is left, which is what is wanted.
    let signal = |signal| {
        let _ = killpg(Pid::from_raw(group), signal);
    };
    signal(Signal::SIGTERM);
    let begin = Instant::now();
    while !is_over() && begin.elapsed() < GRACE {
        thread::sleep(LOOK);
    }
    signal(Signal::SIGKILL);
}

/// `None`: it has not ended in time.
fn wait(child: &mut Child, deadline: Duration) -> Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        let status = child.try_wait().context("cannot wait for a program")?;
        if status.is_some() || begin.elapsed() > deadline {
            return Ok(status);
        }
        thread::sleep(LOOK);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended_with_all_that_it_started_and_named() {
        let number = tempfile::NamedTempFile::new().unwrap();
        let script = format!("sleep 600 & echo $! > {}; wait", number.path().display());
        let begin = Instant::now();
        let error = run_within(Duration::from_millis(300), Command::new("sh").args(["-c", &script])).unwrap_err();
        assert!(begin.elapsed() < GRACE, "{:?}", begin.elapsed());
        assert!(error.to_string().contains("sleep 600") && error.to_string().contains("hangs"), "{error}");
        let started = std::fs::read_to_string(number.path()).unwrap();
        let state = std::fs::read_to_string(format!("/proc/{}/stat", started.trim())).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }
}
