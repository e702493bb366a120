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
//! # Barriers that overtake (B1, B2)
//! Every barrier takes its place in the queue. An unaligned one also sends an [`Frame::Overtaking`] ahead, which comes
//! out first, whatever is queued and whatever the credit. It names the range of batches that it overtook: those from
//! `first` up to the barrier's own place were still held here when it was sent, and belong to the snapshot of the
//! sender; those before `first` had left, and belong to the snapshot of the receiver. In a queue inside a process
//! nothing is the sender's. The barrier at its place says nothing new then.
//!
//! ```text
//!               receiver's queue          wire        sender's queue
//! out ◀─  [Overtaking] 4 5 6 7    ◀─   8 9    ◀─   10 11 12 |barrier 13| 14        first = 10, place = 13
//!         └──────── receiver's share ───────┘      └─ sender's ─┘
//! ```
//!
//! An aligned barrier with a timeout stands at its place alone until someone turns it: the receiver in its queue
//! ([`InputChannel::place_of`]), the sender in its own ([`OutputChannel::turn`]).
//!
//! # Between processes
//! Two queues with a pump on either side, which a TaskManager's data plane or the simulated network moves:
//!
//! ```text
//! task ─▶ OutputChannel ═queue═ InputChannel ─▶ sending pump ··· wire ··· receiving pump ─▶ OutputChannel ═queue═ InputChannel ─▶ task
//! ```
//!
//! 1. The sending pump holds the [`InputChannel`] of a [`sending_channel`] and a credit per channel that begins at the
//!    window. It calls [`InputChannel::pop_with_credit`], which takes a batch only while the credit is above zero (so
//!    one batch may overdraw, B2) and control frames always, once they are at the head: an aligned barrier keeps its
//!    place (B1). What overtakes comes first. Frames must be written in the order in which they were taken.
//!    `None` means empty or no credit; the pump is woken through [`InputChannel::set_waker`] when frames come.
//! 2. [`codec::encode_frame`] makes the bytes: `[u32 length][header][payload]`; the header carries run, channel and
//!    sequence. The receiving side reads `length` bytes, calls [`codec::decode_header`], compares the run
//!    ([`codec::FrameHeader::check_run`], N2), finds the channel and its schema (the producer vertex's
//!    `output_schema`), and calls [`codec::decode_frame`].
//! 3. The receiving pump holds the second queue's [`OutputChannel`] and calls [`OutputChannel::push_received`], which
//!    refuses a gap or a repetition in the numbering; an [`Frame::Overtaking`] must name the number that is expected
//!    next as the first that the sender kept. It never waits for room: who sends within its credit cannot overfill
//!    the queue.
//! 4. When the receiving task takes batches, [`OutputChannel::take_consumed`] says how many bytes to grant to the
//!    sender; the waker of [`OutputChannel::set_waker`] fires when a quarter of the window waits to be granted. The
//!    sending pump adds the grant to its credit. Costs are counted by the sender and travel in the frame, so that both
//!    sides count alike.

pub mod codec;
mod queue;
#[cfg(test)]
mod tests;

use crate::batch::Batch;
use crate::event_time::WatermarkStatus;
use crate::operator::Waker;
use queue::{Queue, Reader};
use serde::{Deserialize, Serialize};
use sluice_protocol::message::Barrier;
use sluice_protocol::{CheckpointId, SubtaskIndex};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

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
    /// What is known of time behind the frames before it.
    Watermark(WatermarkStatus),
    /// The cut of a checkpoint.
    Barrier(Barrier),
    /// Word of a barrier that overtakes; its number is the barrier's own place.
    Overtaking {
        /// The barrier.
        barrier: Barrier,
        /// The sender saves the batches from this one up to the barrier's place.
        first: u64,
    },
    /// The producer has read all its input; after it only barriers come, since a finished task takes part in
    /// checkpoints.
    EndOfInput,
}

impl Frame {
    /// Its rows, when it holds rows.
    #[must_use]
    pub const fn batch(&self) -> Option<&Batch> {
        if let Self::Batch(batch) = self { Some(batch) } else { None }
    }
}

/// A frame with its number in its channel.
#[derive(Debug, Clone)]
pub struct NumberedFrame {
    /// From 0, without gaps; what overtakes has the number of its barrier.
    pub sequence: u64,
    /// Bytes it takes of the window; 0 for control frames.
    pub cost: u64,
    /// The frame.
    pub frame: Frame,
}

/// What a barrier overtook in a queue and the sender saves.
#[derive(Debug, Default)]
pub struct Kept {
    /// Number of the first frame that had not left.
    pub first: u64,
    /// The batches and watermarks before the barrier's place, in order.
    pub frames: Vec<Frame>,
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

/// Makes a channel's queue with room for `window` bytes, read by a task.
#[must_use]
pub fn channel(id: ChannelId, window: usize) -> (OutputChannel, InputChannel) {
    ends(Queue::new(id, window, Reader::Task))
}

/// Makes the queue of a channel that leads to another process: a pump reads it, and what an unaligned barrier
/// overtakes in it is the sender's to save.
#[must_use]
pub fn sending_channel(id: ChannelId, window: usize) -> (OutputChannel, InputChannel) {
    ends(Queue::new(id, window, Reader::Pump))
}

fn ends(queue: Queue) -> (OutputChannel, InputChannel) {
    let queue = Arc::new(queue);
    (OutputChannel { queue: Arc::clone(&queue) }, InputChannel { queue, stays_aligned: false, input: 0 })
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

    /// Tells how much is queued.
    #[must_use]
    pub fn gauge(&self) -> QueueGauge {
        QueueGauge(Arc::downgrade(&self.queue))
    }

    /// Whether there is room for another batch; a batch pushed while there is may overdraw.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Appends a frame. Never blocks and never refuses: the producer asks [`OutputChannel::has_room`] before it takes
    /// new input (B4).
    pub fn push(&self, frame: Frame) {
        self.queue.append(frame);
    }

    /// Appends a barrier and lets it overtake all that is queued; what it overtook here is for the sender to save.
    pub fn push_ahead(&self, barrier: Barrier) -> Kept {
        self.queue.append_ahead(barrier)
    }

    /// Lets a barrier that is still queued here for another process overtake what stands before it. `None` when it
    /// has left, or is not this side's to turn.
    #[must_use]
    pub fn turn(&self, checkpoint: CheckpointId) -> Option<Kept> {
        self.queue.turn_at_sender(checkpoint)
    }

    /// Whether a barrier waits here to leave for another process.
    #[must_use]
    pub fn holds(&self, checkpoint: CheckpointId) -> bool {
        self.queue.waits_to_leave(checkpoint)
    }

    /// Appends a frame that came from another process.
    ///
    /// # Errors
    /// When its number does not follow the one before.
    pub fn push_received(&self, received: NumberedFrame) -> Result<(), OutOfSequence> {
        self.queue.append_received(received)
    }

    /// Bytes that the reader has taken since the last call: what a receiving pump grants to the sender.
    #[must_use]
    pub fn take_consumed(&self) -> u64 {
        self.queue.take_consumed()
    }

    /// Called when the queue falls below half the window, when a quarter of the window was consumed since
    /// [`OutputChannel::take_consumed`], and when a barrier leaves for another process.
    pub fn set_waker(&self, waker: Waker) {
        self.queue.set_writer(waker);
    }
}

/// Looks at how full a channel's queue is, from any thread; it keeps no queue alive.
#[derive(Clone)]
pub struct QueueGauge(Weak<Queue>);

impl fmt::Debug for QueueGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueGauge").field(&self.queued_bytes()).finish()
    }
}

impl QueueGauge {
    /// Bytes queued; 0 when the queue is gone.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.0.upgrade().map_or(0, |queue| queue.queued_bytes())
    }
}

/// The end that frames come out of.
pub struct InputChannel {
    queue: Arc<Queue>,
    stays_aligned: bool,
    input: u8,
}

impl InputChannel {
    /// Which channel.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.queue.id
    }

    /// Tells how much is queued.
    #[must_use]
    pub fn gauge(&self) -> QueueGauge {
        QueueGauge(Arc::downgrade(&self.queue))
    }

    /// Another end of the same queue, to look at what a task has not read.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> Self {
        Self { queue: Arc::clone(&self.queue), ..*self }
    }

    /// A channel of an edge to this input of the task's first operator; 0 unless it is said.
    #[must_use]
    pub fn at_input(self, input: u8) -> Self {
        Self { input, ..self }
    }

    /// To which input of the task's first operator it leads.
    #[must_use]
    pub const fn input(&self) -> u8 {
        self.input
    }

    /// A channel of a broadcast edge, on which every barrier keeps its place (B3).
    #[must_use]
    pub fn staying_aligned(self) -> Self {
        Self { stays_aligned: true, ..self }
    }

    /// Whether every barrier keeps its place here.
    #[must_use]
    pub const fn stays_aligned(&self) -> bool {
        self.stays_aligned
    }

    /// The next frame; what overtakes comes first.
    #[must_use]
    pub fn pop(&self) -> Option<NumberedFrame> {
        self.queue.pop()
    }

    /// The next frame when it is a control frame or `credit` is above zero; a batch's cost is taken off the credit.
    #[must_use]
    pub fn pop_with_credit(&self, credit: &mut i64) -> Option<NumberedFrame> {
        self.queue.pop_with_credit(credit)
    }

    /// What overtakes, if anything does.
    #[must_use]
    pub fn pop_overtaking(&self) -> Option<NumberedFrame> {
        self.queue.pop_overtaking()
    }

    /// The queued batches and watermarks with a number below `before`.
    #[must_use]
    pub fn queued_frames(&self, before: u64) -> Vec<Frame> {
        self.queue.frames_before(before)
    }

    /// The place of a barrier that is queued here.
    #[must_use]
    pub fn place_of(&self, checkpoint: CheckpointId) -> Option<u64> {
        self.queue.place_of(checkpoint)
    }

    /// The last queued barrier that overtakes after a timeout.
    #[must_use]
    pub fn timed_barrier(&self) -> Option<Barrier> {
        self.queue.timed_barrier()
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The bytes that its queue has room for.
    #[must_use]
    pub fn window(&self) -> usize {
        self.queue.window()
    }

    /// Bytes queued.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.queue.queued_bytes()
    }

    /// Called when a frame comes into an empty queue, and for every barrier that overtakes or may do so after a
    /// timeout. Whoever sets it looks into the queue once afterwards.
    pub fn set_waker(&self, waker: Waker) {
        self.queue.set_reader(waker);
    }

    /// Raised for every barrier that overtakes or may do so after a timeout.
    pub fn set_attention(&self, attention: Arc<AtomicBool>) {
        self.queue.set_attention(attention);
    }
}
