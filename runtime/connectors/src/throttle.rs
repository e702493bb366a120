//! A token bucket over the process's clock, and the alarm that wakes the task when tokens are due.

use sluice_engine::operator::Waker;
use sluice_protocol::Timestamp;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Never sleeps for less than this: a batch of 10 ms is worth a wake-up.
const SHORTEST_SLEEP: Duration = Duration::from_millis(10);

/// Lets rows through at a rate.
pub(crate) struct Throttle {
    rows_per_second: f64,
    tokens: f64,
    filled_at: Timestamp,
    alarm: Alarm,
}

impl Throttle {
    /// Starts with one row, so that the slowest rate shows something at once.
    pub(crate) fn new(rows_per_second: f64, now: Timestamp, waker: Waker) -> Result<Self, std::io::Error> {
        Ok(Self { rows_per_second, tokens: 1.0, filled_at: now, alarm: Alarm::new(waker)? })
    }

    /// How many rows may go now. At most a second's worth is saved up, so that back-pressure is no loan.
    #[expect(clippy::cast_precision_loss, reason = "a span of time")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, below a second's rows")]
    pub(crate) fn available(&mut self, now: Timestamp) -> usize {
        let elapsed = now.since(self.filled_at).0 as f64 / 1000.0;
        self.filled_at = now.max(self.filled_at);
        self.tokens = (self.tokens + elapsed * self.rows_per_second).min(self.rows_per_second.max(1.0));
        self.tokens as usize
    }

    /// Rows went.
    #[expect(clippy::cast_precision_loss, reason = "a batch of rows")]
    pub(crate) fn take(&mut self, rows: usize) {
        self.tokens -= rows as f64;
    }

    /// Wakes the task when the next row may go.
    pub(crate) fn wake_when_due(&self) {
        let missing = (1.0 - self.tokens).max(0.0) / self.rows_per_second;
        self.alarm.set(Duration::try_from_secs_f64(missing).unwrap_or(SHORTEST_SLEEP).max(SHORTEST_SLEEP));
    }
}

/// A thread that calls the waker after a while; it ends when the alarm is dropped.
struct Alarm {
    shared: Arc<AlarmState>,
}

#[derive(Default)]
struct AlarmState {
    next: Mutex<Order>,
    changed: Condvar,
}

#[derive(Default)]
struct Order {
    sleep: Option<Duration>,
    ended: bool,
}

impl Alarm {
    fn new(waker: Waker) -> Result<Self, std::io::Error> {
        let shared = Arc::new(AlarmState::default());
        let state = shared.clone();
        std::thread::Builder::new().name("throttle-alarm".to_owned()).spawn(move || state.run(&waker))?;
        Ok(Self { shared })
    }

    fn set(&self, sleep: Duration) {
        self.shared.next.lock().unwrap_or_else(PoisonError::into_inner).sleep = Some(sleep);
        self.shared.changed.notify_one();
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.shared.next.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.shared.changed.notify_one();
    }
}

impl AlarmState {
    fn run(&self, waker: &Waker) {
        let mut order = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            order = self
                .changed
                .wait_while(order, |order| order.sleep.is_none() && !order.ended)
                .unwrap_or_else(PoisonError::into_inner);
            let sleep = order.sleep.take().unwrap_or_default();
            order = self
                .changed
                .wait_timeout_while(order, sleep, |order| !order.ended)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if order.ended {
                return;
            }
            waker();
        }
    }
}
