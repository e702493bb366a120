//! Whether the controller's loop still turns: what liveness asks.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often it beats.
const BEAT: Duration = Duration::from_secs(1);
/// A loop that has not turned for this long is stuck.
const STUCK: Duration = Duration::from_secs(20);

/// The pulse of the task that campaigns and hands out passes.
pub(crate) struct Pulse {
    last: Mutex<Instant>,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { last: Mutex::new(Instant::now()) }
    }

    /// Beats, in the task whose pulse it is, for as long as that task is polled.
    pub(crate) async fn beat(&self) {
        loop {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Whether it beat lately.
    pub(crate) fn is_beating(&self) -> bool {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < STUCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_ends_with_its_task() {
        let pulse = Pulse::new();
        let long_ago = Instant::now() - STUCK;
        *pulse.last.lock().unwrap() = long_ago;
        assert!(!pulse.is_beating());
        let _ = tokio::time::timeout(Duration::from_millis(1), pulse.beat()).await;
        assert!(pulse.is_beating());
    }
}
