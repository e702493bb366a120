//! Commands to a task, from any thread.

use crate::operator::Waker;
use sluice_protocol::CheckpointId;
use sluice_protocol::message::Barrier;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) enum Command {
    Trigger(Barrier),
    Completed { checkpoint: CheckpointId, held: Option<Vec<CheckpointId>> },
    Aborted(CheckpointId),
    Cancel,
}

struct Mailbox {
    commands: Mutex<VecDeque<Command>>,
    /// Spares the task the lock while there is nothing.
    waiting: AtomicBool,
    waker: Waker,
}

/// Commands a task; they take effect in its next step. Cheap to clone.
#[derive(Clone)]
pub struct TaskHandle {
    mailbox: Arc<Mailbox>,
}

impl TaskHandle {
    pub(super) fn new(waker: Waker) -> Self {
        let commands = Mutex::default();
        Self { mailbox: Arc::new(Mailbox { commands, waiting: AtomicBool::new(false), waker }) }
    }

    /// A source emits this barrier between two batches. Tasks without a source ignore it: theirs come with the rows.
    pub fn trigger(&self, barrier: Barrier) {
        self.send(Command::Trigger(barrier));
    }

    /// This checkpoint and all before it are complete (B5). `held`: with which checkpoints those handles of the task's sink were
    /// staged that it holds; `None`: that is not known.
    pub fn checkpoint_completed(&self, checkpoint: CheckpointId, held: Option<Vec<CheckpointId>>) {
        self.send(Command::Completed { checkpoint, held });
    }

    /// Only this checkpoint was given up (B5): its barrier still passes, its state is not frozen any more, and sources
    /// that stopped behind it go on.
    pub fn checkpoint_aborted(&self, checkpoint: CheckpointId) {
        self.send(Command::Aborted(checkpoint));
    }

    /// The task ends without a word: no flush, no event.
    pub fn cancel(&self) {
        self.send(Command::Cancel);
    }

    fn send(&self, command: Command) {
        self.mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        self.mailbox.waiting.store(true, Ordering::Release);
        (self.mailbox.waker)();
    }

    pub(super) fn take(&self) -> Option<Command> {
        if !self.mailbox.waiting.load(Ordering::Acquire) {
            return None;
        }
        let mut commands = self.mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let command = commands.pop_front();
        if command.is_none() {
            self.mailbox.waiting.store(false, Ordering::Release);
        }
        command
    }
}

impl fmt::Debug for TaskHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHandle").finish_non_exhaustive()
    }
}
