//! Runs a task on an operating-system thread of its own: a data thread (design §3).
//!
//! The thread steps the task, hands its events on, and parks when there is nothing to do, until a waker unparks it
//! or rows that linger are due. A panic in a task's code ends that task alone, as an internal failure.

#[cfg(test)]
mod tests;

use crate::error::TaskError;
use crate::operator::{Clock, Waker};
use crate::task::{Step, Task, TaskDescription, TaskEvent, TaskHandle, TaskMetrics};
use sluice_protocol::Timestamp;
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};

/// A task on its thread.
pub struct RunningTask {
    handle: TaskHandle,
    metrics: Arc<TaskMetrics>,
    thread: JoinHandle<()>,
}

impl RunningTask {
    /// Commands for it.
    #[must_use]
    pub const fn handle(&self) -> &TaskHandle {
        &self.handle
    }

    /// Its counters.
    #[must_use]
    pub fn metrics(&self) -> Arc<TaskMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Whether its thread has ended: it has failed, or a cancel has taken effect.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its thread to end; cancel it first.
    pub fn join(self) {
        // A panic was reported as the task's failure already.
        let _ = self.thread.join();
    }
}

/// Starts a task. `on_event` is called on the task's thread and must not block; when the thread ends, it is dropped,
/// after the task with its source, sink and channels.
///
/// # Errors
/// When the operating system gives no thread.
pub fn spawn(
    description: TaskDescription,
    mut on_event: impl FnMut(TaskEvent) + Send + 'static,
) -> io::Result<RunningTask> {
    let unparked: Arc<OnceLock<Thread>> = Arc::default();
    let waker: Waker = {
        let unparked = Arc::clone(&unparked);
        Arc::new(move || {
            if let Some(thread) = unparked.get() {
                thread.unpark();
            }
        })
    };
    let clock = Clock::clone(&description.clock);
    let name = format!("task-{}", description.subtask);
    let task = Task::new(description, waker);
    let (handle, metrics) = (task.handle(), task.metrics());
    let thread = thread::Builder::new().name(name).spawn(move || {
        // Wakes that come before this are not needed: the first step looks at everything.
        let _ = unparked.set(thread::current());
        run(task, &clock, &mut on_event);
        drop(on_event);
    })?;
    Ok(RunningTask { handle, metrics, thread })
}

fn run(mut task: Task, clock: &Clock, on_event: &mut impl FnMut(TaskEvent)) {
    loop {
        let now = clock();
        let step = catch_unwind(AssertUnwindSafe(|| task.step(now))).unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            task.fail(TaskError::Internal(format!("subtask {} panicked: {message}", task.subtask())));
            Step::Ended
        });
        task.take_events().into_iter().for_each(&mut *on_event);
        match step {
            Step::Worked => {}
            Step::Idle { until } | Step::Blocked { until } => park(now, until),
            Step::Ended => return,
        }
    }
}

fn park(now: Timestamp, until: Option<Timestamp>) {
    match until {
        None => thread::park(),
        Some(until) => thread::park_timeout(until.since(now).as_duration()),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
