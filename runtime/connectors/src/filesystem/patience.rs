//! Requests to the store that are tried again: one that is not answered, a few times, unless whoever asked gives up.

use sluice_storage::{StoreFailure, StoreFailureKind};
use std::time::{Duration, Instant};

/// Tries of a request.
const TRIES: u32 = 5;

/// After this long a source begins no further try: a task that is cancelled must end within a minute.
const LIMIT: Duration = Duration::from_secs(20);

/// Tries until there is an answer, however often it is worth it. Asks before each further try whether it is still wanted.
pub(super) async fn patiently<T>(
    gives_up: impl Fn() -> bool,
    mut attempt: impl AsyncFnMut() -> Result<T, StoreFailure>,
) -> Result<T, StoreFailure> {
    let mut tries = 1;
    loop {
        let failure = match attempt().await {
            Err(failure) if failure.kind == StoreFailureKind::Unreachable => failure,
            answer => return answer,
        };
        if tries == TRIES || gives_up() {
            return Err(failure);
        }
        tokio::time::sleep(Duration::from_millis(100 << tries)).await;
        if gives_up() {
            return Err(failure);
        }
        tries += 1;
    }
}

/// As [`patiently`], for a source: within [`LIMIT`].
pub(super) async fn patiently_read<T>(
    attempt: impl AsyncFnMut() -> Result<T, StoreFailure>,
) -> Result<T, StoreFailure> {
    let begun = Instant::now();
    patiently(|| begun.elapsed() > LIMIT, attempt).await
}
