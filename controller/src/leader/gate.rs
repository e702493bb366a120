//! Whether this process may change anything now. Whoever sends a request that changes something asks here first.

use super::election::{DEADLINE, WRITES_END};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How often a request that is under way looks whether it must be given up.
const GLANCE: Duration = Duration::from_millis(250);

/// What a request meets that changes something and is not sent.
#[derive(Debug, thiserror::Error)]
#[error("not sent: this replica does not lead; the one that does will do what is needed")]
pub(crate) struct NotLeading;

/// The right to change something, for a span that renewals extend.
#[derive(Debug)]
pub struct Leadership {
    state: Mutex<State>,
    in_flight: watch::Sender<usize>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Standby,
    /// Since the start of the last successful renewal.
    Leading(Instant),
    /// The same, and nothing new is begun.
    Ending(Instant),
    /// There is no election.
    Alone,
}

/// A request that changes something is under way.
pub(crate) struct InFlight<'a>(&'a Leadership);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Leadership {
    /// Of a replica that does not lead yet.
    #[must_use]
    pub(crate) fn standby() -> Self {
        Self { state: Mutex::new(State::Standby), in_flight: watch::Sender::new(0) }
    }

    /// Of a process that is alone.
    #[must_use]
    pub(crate) fn alone() -> Self {
        Self { state: Mutex::new(State::Alone), in_flight: watch::Sender::new(0) }
    }

    /// Whether something may be changed now.
    #[must_use]
    pub(crate) fn is_leading(&self) -> bool {
        match *self.state() {
            State::Standby | State::Ending(_) => false,
            State::Leading(renewed) => renewed.elapsed() < DEADLINE,
            State::Alone => true,
        }
    }

    /// Waits until a request that is under way must be given up: as long as the lease is renewed, for ever.
    pub(crate) async fn writes_end(&self) {
        while let Some(end) = self.end_of_writes() {
            tokio::time::sleep_until(end.min(Instant::now() + GLANCE)).await;
        }
    }

    /// `None` when it has passed.
    fn end_of_writes(&self) -> Option<Instant> {
        let now = Instant::now();
        let end = match *self.state() {
            State::Standby => return None,
            State::Leading(renewed) | State::Ending(renewed) => renewed + WRITES_END,
            State::Alone => now + WRITES_END,
        };
        (end > now).then_some(end)
    }

    /// Counts a request that changes something while it is under way; `None` when it may not be sent.
    pub(crate) fn begin(&self) -> Option<InFlight<'_>> {
        if !self.is_leading() {
            return None;
        }
        self.in_flight.send_modify(|count| *count += 1);
        Some(InFlight(self))
    }

    /// Begins nothing new and waits until nothing is under way, at most for `patience`; then it has ended.
    pub(super) async fn settle(&self, patience: Duration) {
        {
            let mut state = self.state();
            if let State::Leading(renewed) = *state {
                *state = State::Ending(renewed);
            }
        }
        let mut in_flight = self.in_flight.subscribe();
        // Nothing is lost when it takes longer: what is under way names the resourceVersion or uid that it rests on.
        let _ = tokio::time::timeout(patience, in_flight.wait_for(|count| *count == 0)).await;
        self.end();
    }

    /// The lease was taken or renewed by a request that began at `at`.
    pub(crate) fn extend(&self, at: Instant) {
        *self.state() = State::Leading(at);
    }

    /// The lease is another's, or nobody's.
    pub(crate) fn end(&self) {
        *self.state() = State::Standby;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_stop_before_the_lease_may_be_taken_and_go_on_with_each_renewal() {
        let leadership = Leadership::standby();
        assert!(leadership.begin().is_none());
        let now = Instant::now();
        leadership.extend(now);
        assert!(leadership.begin().is_some());
        leadership.extend(now - DEADLINE);
        assert!(!leadership.is_leading() && leadership.begin().is_none(), "it was not renewed");
        leadership.extend(now);
        assert!(leadership.is_leading());
        assert!(DEADLINE < WRITES_END && WRITES_END < super::super::election::LEASE);
    }

    #[tokio::test]
    async fn what_is_under_way_goes_on_while_the_lease_is_renewed_and_is_given_up_after() {
        let leadership = Leadership::standby();
        leadership.extend(Instant::now() + Duration::from_millis(50) - WRITES_END);
        let started = Instant::now();
        let renewed = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            leadership.extend(Instant::now() + Duration::from_millis(100) - WRITES_END);
        };
        tokio::join!(leadership.writes_end(), renewed);
        assert!(started.elapsed() >= Duration::from_millis(120), "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn a_release_begins_nothing_and_waits_for_what_is_under_way_but_not_for_ever() {
        let leadership = Leadership::standby();
        leadership.extend(Instant::now());
        let under_way = leadership.begin();
        let (settled, ()) = tokio::join!(leadership.settle(Duration::from_secs(60)), async {
            tokio::task::yield_now().await;
            assert!(leadership.begin().is_none());
            assert!(leadership.end_of_writes().is_some(), "what is under way may end");
            drop(under_way);
        });
        let () = settled;
        leadership.extend(Instant::now());
        let _under_way = leadership.begin();
        leadership.settle(Duration::from_millis(20)).await;
        assert!(leadership.end_of_writes().is_none());
    }
}
