//! The JobManager's time, as a TaskManager knows it from heartbeats (S4).
//!
//! A handle's end is noted by the TaskManager's clock and judged by the JobManager's: they may differ by any amount. Callers
//! rely on: this clock is never ahead of the JobManager's by more than either steps within [`HEARD`] heartbeats, and behind
//! it by what the fastest of them took, so that a life that is reckoned by it ends early rather than late.

use crate::edge;
use sluice_engine::operator::Clock;
use sluice_protocol::Timestamp;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// So many heartbeats count.
const HEARD: usize = 8;

/// What is known of the JobManager's clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobClock {
    /// How far it is ahead of this process's, in milliseconds, less what each heartbeat took.
    ahead: Arc<Mutex<VecDeque<i64>>>,
}

impl JobClock {
    /// A heartbeat that the JobManager sent at `sent` by its clock came at `heard` by this process's.
    pub(crate) fn hear(&self, sent: Timestamp, heard: Timestamp) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.truncate(HEARD - 1);
        ahead.push_front(signed(sent).saturating_sub(signed(heard)));
    }

    /// Another JobManager follows.
    pub(crate) fn forget(&self) {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The JobManager's time when this process's clock shows `now`; that itself before the first heartbeat.
    fn at(&self, now: Timestamp) -> Timestamp {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let by = ahead.iter().max().copied().unwrap_or_default();
        Timestamp(now.0.saturating_add_signed(by))
    }

    /// For sinks.
    pub(crate) fn clock(&self) -> Clock {
        let own = self.clone();
        Arc::new(move || own.at(edge::now()))
    }
}

fn signed(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s4_it_follows_the_job_managers_clock_and_is_never_ahead_of_it() {
        let clock = JobClock::default();
        assert_eq!(clock.at(Timestamp(1_000)), Timestamp(1_000), "nothing is known yet");
        // Ten minutes behind; heartbeats take 40, 3 and 20,000 ms.
        for (sent, took) in [(400_000, 40), (401_000, 3), (402_000, 20_000)] {
            clock.hear(Timestamp(sent), Timestamp(sent + 600_000 + took));
        }
        assert_eq!(clock.at(Timestamp(1_100_000)), Timestamp(499_997), "by the fastest");
        // A clock that steps counts once the others are old.
        for beat in 0..8 {
            clock.hear(Timestamp(500_000 + beat), Timestamp(499_000 + beat));
        }
        assert_eq!(clock.at(Timestamp(499_100)), Timestamp(500_100));
        clock.forget();
        assert_eq!(clock.at(Timestamp(7)), Timestamp(7));
    }
}
