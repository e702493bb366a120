//! Processes that stop at a step of the protocol when they are asked to: those of the program `by_steps`, of which a test
//! gives the path.

use super::unique;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sluice_node::steps::Step;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where a test says at which steps to stop.
pub struct StepByStep {
    program: PathBuf,
    directory: PathBuf,
}

/// A process that has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Its id.
    pub process: u32,
}

impl Stopped {
    /// Lets it go on.
    ///
    /// # Panics
    /// When it is gone.
    pub fn go_on(self) {
        let process = Pid::from_raw(i32::try_from(self.process).expect("a process id"));
        kill(process, Signal::SIGCONT).expect("it is stopped");
    }
}

impl StepByStep {
    /// Nothing stops anywhere yet.
    ///
    /// # Panics
    /// When there is no room in the temporary directory.
    #[must_use]
    pub fn new(program: &Path) -> Self {
        let directory = std::env::temp_dir().join(unique("sluice-steps"));
        std::fs::create_dir_all(&directory).expect("a directory");
        Self { program: program.to_owned(), directory }
    }

    /// What the job's processes are.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Their environment.
    #[must_use]
    pub fn variable(&self) -> (String, String) {
        ("SLUICE_STEPS".to_owned(), self.directory.display().to_string())
    }

    /// The next process that comes to the step stops there.
    ///
    /// # Panics
    /// When that cannot be said.
    pub fn arm(&self, step: Step) {
        std::fs::write(self.directory.join(format!("{step:?}")), "").expect("a file");
    }

    /// Waits until one has stopped at the step.
    ///
    /// # Panics
    /// When none does in time.
    #[must_use]
    pub fn wait_stopped(&self, step: Step, timeout: Duration) -> Stopped {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(process) = self.taken(step).filter(|process| is_stopped(*process)) {
                // So that the step can be waited for again.
                std::fs::remove_file(self.directory.join(format!("{step:?}.{process}"))).expect("its file");
                return Stopped { process };
            }
            assert!(Instant::now() < deadline, "no process came to {step:?} within {timeout:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The process that has taken the file of the step.
    fn taken(&self, step: Step) -> Option<u32> {
        let prefix = format!("{step:?}.");
        let names = std::fs::read_dir(&self.directory).expect("the directory").flatten();
        names.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok()).next()
    }
}

impl Drop for StepByStep {
    fn drop(&mut self) {
        // It lies below the temporary directory in any case.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Whether all of a process stands still.
fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}
