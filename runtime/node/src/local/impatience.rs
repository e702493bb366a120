//! Ends a local run whose job cannot start because something outside is not there, such as a topic or a broker.
//!
//! On a cluster such a job waits (F2): nobody looks on, and what is missing may come. Before a terminal a run that waits
//! for ever hides a mistyped name. What counts is that no attempt has run since the process began; a job that ran once is
//! waited for as on a cluster.

use crate::job_manager::driver::DriverHandle;
use sluice_protocol::failure::{ExitKind, ExitRecord, Failure, Retry};
use sluice_protocol::job_master::{Command, Event};
use sluice_protocol::status::{JobState, JobStatus};
use std::time::Duration;
use tokio::time::Instant;

/// How long the job may take to end once it was told to.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until the job runs, or has failed to for so long: then it is stopped, and this is how the run ended.
pub(super) async fn give_up(handle: DriverHandle, timeout: Duration) -> Option<ExitRecord> {
    let failure = out_of_reach(&handle, timeout).await?;
    handle.send(Event::Command(Command::Stop)).await;
    // A store that is away takes no last entry.
    if tokio::time::timeout(STOP_TIMEOUT, handle.ended().cancelled_owned()).await.is_err() {
        handle.abandon().await;
    }
    let message = format!("{} (the job did not start within {} s)", failure.message, timeout.as_secs());
    Some(ExitRecord::new(ExitKind::Failed, failure.reason, message))
}

/// The last failure, once the time is up and the job waits for its next try; `None` when it runs or ends before.
async fn out_of_reach(handle: &DriverHandle, timeout: Duration) -> Option<Failure> {
    let (mut status, ended) = (handle.status(), handle.ended());
    let deadline = Instant::now() + timeout;
    loop {
        let now = status.borrow_and_update().clone();
        match now.state {
            JobState::Starting | JobState::Restarting => {}
            _ => return None,
        }
        if Instant::now() >= deadline
            && let Some(failure) = waits_for(&now)
        {
            return Some(failure);
        }
        tokio::select! {
            () = ended.cancelled() => return None,
            () = tokio::time::sleep_until(deadline), if Instant::now() < deadline => {}
            changed = status.changed() => changed.ok()?,
        }
    }
}

/// What a job that waits for its next try waits for, when a try alone may help.
fn waits_for(status: &JobStatus) -> Option<Failure> {
    let last = status.failures.first().map(|record| &record.failure);
    last.filter(|failure| status.next_restart_at.is_some() && failure.retry == Retry::Backoff).cloned()
}
