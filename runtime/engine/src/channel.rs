//! Channels between tasks: first-in-first-out queues of numbered frames, bounded by credits in bytes.
//!
//! A channel joins one subtask of a producer to one subtask of a consumer on one edge of the job graph. It owns the
//! order, the numbering and the bound; it knows nothing of threads, sockets or time. Both ends may be used from any
//! thread; a lock is taken per frame, never per row.
//!
//! # Inside a process
//! [`channel`] makes a queue; the producer's task holds its [`OutputChannel`], the consumer's its [`InputChannel`].
//! Batches pass by reference counting; nothing is copied or serialised.
//!
//! # Between processes
//! Two queues with a pump on either side, which a TaskManager's data plane or the simulated network moves:
//!
//! ```text
//! task ─▶ OutputChannel ═queue═ InputChannel ─▶ sending pump ··· wire ··· receiving pump ─▶ OutputChannel ═queue═ InputChannel ─▶ task
//! ```
//!
//! 1. The sending pump holds the queue's [`InputChannel`] and a credit per channel that begins at the window. It calls
//!    [`InputChannel::pop_with_credit`], which takes a batch only while the credit is above zero (so one batch may
//!    overdraw, B2) and control frames always, once they are at the head: an aligned barrier keeps its place (B1).
//!    `None` means empty or no credit; the pump is woken through [`InputChannel::set_waker`] when frames come.
//! 2. [`codec::encode_frame`] makes the bytes: `[u32 length][header][payload]`; the header carries run, channel and
//!    sequence. The receiving side reads `length` bytes, calls [`codec::decode_header`], compares the run
//!    ([`codec::FrameHeader::check_run`], N2), finds the channel and its schema (the producer vertex's
//!    `output_schema`), and calls [`codec::decode_frame`].
//! 3. The receiving pump holds the second queue's [`OutputChannel`] and calls [`OutputChannel::push_received`], which
//!    refuses a gap or a repetition in the numbering. It never waits for room: who sends within its credit cannot
//!    overfill the queue.
//! 4. When the receiving task takes batches, [`OutputChannel::take_consumed`] says how many bytes to grant to the
//!    sender; the waker of [`OutputChannel::set_waker`] fires when a quarter of the window waits to be granted. The
//!    sending pump adds the grant to its credit. Costs are counted by the sender and travel in the frame, so that both
//!    sides count alike.

pub mod codec;
#[cfg(test)]
mod tests;

use crate::batch::Batch;
use crate::operator::Waker;
use serde::{Deserialize, Serialize};
use sluice_protocol::SubtaskIndex;
use sluice_protocol::message::Barrier;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The default window of a channel in bytes.
pub const DEFAULT_WINDOW: usize = 1 << 20;

/// One channel of a job: an edge (its position in `JobGraph::edges`) and the subtasks at its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChannelId {
    /// Position in `JobGraph::edges`.
    pub edge: u32,
    /// The producer's subtask.
    pub from: SubtaskIndex,
    /// The consumer's subtask.
    pub to: SubtaskIndex,
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "edge {} from subtask {} to subtask {}", self.edge, self.from, self.to)
    }
}

/// What flows through a channel.
#[derive(Debug, Clone)]
pub enum Frame {
    /// Rows.
    Batch(Batch),
    /// The cut of a checkpoint.
    Barrier(Barrier),
    /// The producer has read all its input; after it only barriers come, since a finished task takes part in
    /// checkpoints.
    EndOfInput,
}

/// A frame with its number in its channel.
#[derive(Debug, Clone)]
pub struct NumberedFrame {
    /// From 0, without gaps.
    pub sequence: u64,
    /// Bytes it takes of the window; 0 for control frames.
    pub cost: u64,
    /// The frame.
    pub frame: Frame,
}

/// A frame that does not follow the one before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{channel}: frame {found} came where {expected} was expected; frames were lost or repeated on the way, so the \
     tasks of this run must restart"
)]
pub struct OutOfSequence {
    /// Where.
    pub channel: ChannelId,
    /// The number that should have come.
    pub expected: u64,
    /// The number that came.
    pub found: u64,
}

#[derive(Default)]
struct State {
    frames: VecDeque<NumberedFrame>,
    /// Cost of all that is queued.
    queued: u64,
    next_sequence: u64,
    /// Cost of what was taken since [`OutputChannel::take_consumed`].
    consumed: u64,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

struct Queue {
    id: ChannelId,
    window: u64,
    state: Mutex<State>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut state: MutexGuard<'_, State>, cost: u64, frame: Frame) {
        let sequence = state.next_sequence;
        state.next_sequence += 1;
        state.queued += cost;
        state.frames.push_back(NumberedFrame { sequence, cost, frame });
        let waker = if state.frames.len() == 1 { state.reader.clone() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker();
        }
    }

    /// Takes the head. The writer is woken when the queue falls below half the window, so that it fills a good part
    /// at once, and when a quarter of the window can be granted to a remote sender.
    fn pop(&self, mut state: MutexGuard<'_, State>) -> Option<NumberedFrame> {
        let frame = state.frames.pop_front()?;
        let (half, quarter) = (self.window / 2, (self.window / 4).max(1));
        let was_half_full = state.queued >= half;
        let grant_was_due = state.consumed >= quarter;
        state.queued -= frame.cost;
        state.consumed += frame.cost;
        let room = was_half_full && state.queued < half;
        let grant = !grant_was_due && state.consumed >= quarter;
        let waker = if room || grant { state.writer.clone() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker();
        }
        Some(frame)
    }
}

/// Makes a channel's queue with room for `window` bytes.
#[must_use]
pub fn channel(id: ChannelId, window: usize) -> (OutputChannel, InputChannel) {
    let queue = Arc::new(Queue { id, window: window.max(1) as u64, state: Mutex::default() });
    (OutputChannel { queue: Arc::clone(&queue) }, InputChannel { queue })
}

/// The end that frames go into.
pub struct OutputChannel {
    queue: Arc<Queue>,
}

impl OutputChannel {
    /// Which channel.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.queue.id
    }

    /// Whether there is room for another batch; a batch pushed while there is may overdraw.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.queue.lock().queued < self.queue.window
    }

    /// Appends a frame. Never blocks and never refuses: the producer asks [`OutputChannel::has_room`] before it takes
    /// new input (B4).
    pub fn push(&self, frame: Frame) {
        let cost = if let Frame::Batch(batch) = &frame { batch.bytes().max(1) as u64 } else { 0 };
        self.queue.push(self.queue.lock(), cost, frame);
    }

    /// Appends a frame that came from another process.
    ///
    /// # Errors
    /// When its number does not follow the one before.
    pub fn push_received(&self, received: NumberedFrame) -> Result<(), OutOfSequence> {
        let state = self.queue.lock();
        if received.sequence != state.next_sequence {
            let (channel, expected) = (self.queue.id, state.next_sequence);
            return Err(OutOfSequence { channel, expected, found: received.sequence });
        }
        self.queue.push(state, received.cost, received.frame);
        Ok(())
    }

    /// Bytes that the reader has taken since the last call: what a receiving pump grants to the sender.
    #[must_use]
    pub fn take_consumed(&self) -> u64 {
        std::mem::take(&mut self.queue.lock().consumed)
    }

    /// Called when the queue falls below half the window, and when a quarter of the window was consumed since
    /// [`OutputChannel::take_consumed`].
    pub fn set_waker(&self, waker: Waker) {
        self.queue.lock().writer = Some(waker);
    }
}

/// The end that frames come out of.
pub struct InputChannel {
    queue: Arc<Queue>,
}

impl InputChannel {
    /// Which channel.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.queue.id
    }

    /// The next frame.
    #[must_use]
    pub fn pop(&self) -> Option<NumberedFrame> {
        self.queue.pop(self.queue.lock())
    }

    /// The next frame when it is a control frame or `credit` is above zero; a batch's cost is taken off the credit.
    #[must_use]
    pub fn pop_with_credit(&self, credit: &mut i64) -> Option<NumberedFrame> {
        let state = self.queue.lock();
        let cost = state.frames.front()?.cost;
        if cost > 0 && *credit <= 0 {
            return None;
        }
        *credit = credit.saturating_sub(i64::try_from(cost).unwrap_or(i64::MAX));
        self.queue.pop(state)
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.lock().frames.is_empty()
    }

    /// Bytes queued.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queue.lock().queued
    }

    /// Called when a frame comes into an empty queue. Whoever sets it looks into the queue once afterwards.
    pub fn set_waker(&self, waker: Waker) {
        self.queue.lock().reader = Some(waker);
    }
}
