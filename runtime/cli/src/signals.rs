//! What tells a process to end: Ctrl-C and SIGTERM.
//!
//! Caught in every long-running command, also because a container's first process is not ended by a signal that it
//! does not catch.

use crate::error::CommandError;

/// SIGINT and SIGTERM, caught from here on.
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// Begins to catch them.
    pub(crate) fn new() -> Result<Self, CommandError> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |source| CommandError::Io { what: "listening for signals".to_owned(), source };
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        Ok(Self { interrupt, terminate })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
