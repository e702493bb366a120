//! Slow work of checkpoints and restores, off the threads on which heartbeats and channels are served.

use sluice_protocol::failure::{Failure, Fault};

/// Runs it on a thread of the pool.
///
/// # Errors
/// Its own, and when it was given up because it panicked or the process ends; `what` says what it was.
pub(super) async fn run<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Failure::restart("Internal", Fault::Internal, format!("{what} was given up: {error}")))
    })
}
