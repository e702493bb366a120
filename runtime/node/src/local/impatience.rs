//! Ends a local run whose job cannot start because something outside is not there, such as a topic or a broker.
//!
//! On a cluster such a job waits (F2): nobody looks on, and what is missing may come. Before a terminal a run that waits
//! for ever hides a mistyped name. What counts is that no attempt has run since the process began; a job that ran once is
//! waited for as on a cluster.

use crate::job_manager::driver::DriverHandle;
use sluice_protocol::failure::{ExitKind, ExitRecord, Failure, Retry};
use sluice_protocol::job_master::{Command, Event, STATE_DAMAGED};
use sluice_protocol::status::{JobState, JobStatus};
use sluice_protocol::store::StoreFailure;
use std::time::Duration;
use tokio::time::Instant;

/// How long the job may take to end once it was told to.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long what the job needs may be out of reach, from now on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Impatience {
    began: Instant,
    timeout: Option<Duration>,
}

impl Impatience {
    /// Without a limit when absent.
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        Self { began: Instant::now(), timeout }
    }

    /// When the time is up.
    pub(super) async fn is_over(self) {
        match self.timeout {
            Some(timeout) => tokio::time::sleep_until(self.began + timeout).await,
            None => std::future::pending().await,
        }
    }

    /// How a run ends whose storage was away from the very beginning.
    pub(super) fn give_up_storage(self, waits_for: Option<StoreFailure>) -> ExitRecord {
        let message = waits_for.map_or_else(|| "the checkpoint storage did not answer".to_owned(), |last| last.message);
        self.record("StoreUnreachable", &message)
    }

    /// Waits until the job runs, or has failed to for so long: then it is stopped, and this is how the run ended.
    pub(super) async fn give_up(self, handle: DriverHandle) -> Option<ExitRecord> {
        let failure = out_of_reach(&handle, self.began + self.timeout?).await?;
        handle.send(Event::Command(Command::Stop)).await;
        // A store that is away takes no last entry.
        if tokio::time::timeout(STOP_TIMEOUT, handle.ended().cancelled_owned()).await.is_err() {
            handle.abandon().await;
        }
        Some(self.record(&failure.reason, &failure.message))
    }

    fn record(self, reason: &str, message: &str) -> ExitRecord {
        let seconds = self.timeout.unwrap_or_default().as_secs();
        let message = format!("{message} (the job did not start within {seconds} s)");
        ExitRecord::new(ExitKind::Failed, reason, message)
    }
}

/// The last failure, once the time is up and the job waits for its next try; `None` when it runs or ends before.
async fn out_of_reach(handle: &DriverHandle, deadline: Instant) -> Option<Failure> {
    let (mut status, ended) = (handle.status(), handle.ended());
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
    if let Some(damaged) = status.notices.iter().find(|notice| notice.reason == STATE_DAMAGED) {
        return Some(Failure::external(STATE_DAMAGED, damaged.message.clone()));
    }
    let last = status.failures.first().map(|record| &record.failure);
    last.filter(|failure| status.next_restart_at.is_some() && failure.retry == Retry::Backoff).cloned()
}
