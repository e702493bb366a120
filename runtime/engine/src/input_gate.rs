//! The reading side of a task: takes frames from its input channels in turn and says when a checkpoint is to be cut
//! (B1-B3, B5).
//!
//! - *Aligned*: barrier n at a channel blocks that channel until n has come on every channel.
//! - *At least once*: no channel is blocked; the cut is when n has come on all.
//! - *Unaligned*: the first word of n is the cut ([`GateEvent::Overtaking`]). What is queued before n on each channel is
//!   recorded, also what comes before its n arrives; when n has come on all, [`GateEvent::Recorded`] hands that out.
//!   Meanwhile rows are read on. Channels of broadcast edges stay aligned: with any of them, the cut waits until n has
//!   come on all of those.
//! - *Unaligned after a timeout*: aligned until then; channels that were blocked stay so until n has come on all.
//!
//! A channel whose producer has finished counts as if n had come. A later barrier ends an earlier alignment: the earlier
//! checkpoint cannot be cut here any more, and what it blocked is read again. Barriers of checkpoints that were cut or
//! given up already are dropped. Restored batches go before everything that the new channels hold.
//!
//! Channels of all edges are alike here, whichever input of the first operator they lead to: a checkpoint is one cut over
//! all of them, and the end of input is the end of all.
//!
//! The gate does not know what a checkpoint is for; the task acts on its events.

mod alignment;
#[cfg(test)]
mod tests;
mod watermarks;

use crate::batch::Batch;
use crate::channel::{Frame, InputChannel};
use crate::event_time::WatermarkStatus;
use crate::in_flight::{InFlight, RestoredChannel};
use crate::operator::Waker;
use alignment::Alignment;
use sluice_protocol::message::Barrier;
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use watermarks::Restored;

/// What the gate has for the task.
#[derive(Debug)]
pub enum GateEvent {
    /// Rows.
    Batch {
        /// For which input of the first operator.
        input: u8,
        /// The rows.
        batch: Batch,
    },
    /// The least of the channels' watermarks has risen, or all have fallen idle, or not all are any more.
    Watermark(WatermarkStatus),
    /// The barrier has come on every channel. Unless it is at-least-once, all rows before it were handed out, none
    /// after it.
    Aligned {
        /// The barrier.
        barrier: Barrier,
        /// From its first arrival to its last.
        alignment: TimeSpan,
        /// When it arrived first.
        started_at: Timestamp,
    },
    /// State is to be frozen now and the barrier to go ahead of everything; [`GateEvent::Recorded`] follows, or
    /// [`GateEvent::Ended`], or [`GateEvent::TooMuchInFlight`].
    Overtaking {
        /// The barrier.
        barrier: Barrier,
        /// When it arrived first.
        started_at: Timestamp,
    },
    /// The barrier that overtook has come on every channel.
    Recorded {
        /// Its checkpoint.
        checkpoint: CheckpointId,
        /// From its first arrival to its last.
        alignment: TimeSpan,
        /// What it overtook here.
        in_flight: Vec<InFlight>,
    },
    /// A later barrier came before this one had come everywhere; it will not be aligned or recorded.
    Ended(CheckpointId),
    /// More was recorded than may be held: the checkpoint cannot be taken here.
    TooMuchInFlight {
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// Bytes so far.
        bytes: usize,
    },
    /// A barrier of a checkpoint that was given up: to be passed on, nothing else.
    Passed(Barrier),
    /// Every channel has ended. Barriers may still come.
    EndOfInput,
}

struct Input {
    channel: InputChannel,
    /// The last barrier that came.
    arrived: CheckpointId,
    /// Not read until the alignment is over.
    blocked: bool,
    /// Where the barrier that overtakes was announced: batches from here on are the sender's or behind it.
    announced: Option<u64>,
    /// What was read since the cut, while the barrier has not come.
    recording: Option<Vec<Frame>>,
    finished: bool,
    /// What was last said of time.
    status: Option<WatermarkStatus>,
}

fn bytes_of(frame: &Frame) -> usize {
    if let Frame::Batch(batch) = frame { batch.bytes() } else { 0 }
}

/// All input channels of a task.
pub struct InputGate {
    inputs: Vec<Input>,
    next: usize,
    restored: Restored,
    alignment: Option<Alignment>,
    /// Checkpoints that are taken at least once, in order.
    tracked: VecDeque<Alignment>,
    /// Checkpoints that were given up before their barrier came.
    abandoned: BTreeSet<CheckpointId>,
    /// Barriers up to this one are done with.
    settled: CheckpointId,
    ended: bool,
    /// Some channel has a barrier that overtakes, or may do so after a timeout.
    attention: Arc<AtomicBool>,
    /// A barrier that overtakes from some time on.
    timed: Option<(Timestamp, Barrier)>,
    /// Events that wait to be handed out.
    events: VecDeque<GateEvent>,
    /// Whether something has changed that [`InputGate::settle`] looks at.
    changed: bool,
    /// Bytes recorded for the checkpoint that overtakes now.
    recorded_bytes: usize,
    in_flight_limit: usize,
    /// What was last handed out of time.
    said: WatermarkStatus,
    time_changed: bool,
}

impl InputGate {
    /// A gate over these channels. What was in flight at a checkpoint is read before anything they hold (B3).
    /// At most `in_flight_limit` bytes are recorded for a checkpoint.
    #[must_use]
    pub fn new(channels: Vec<InputChannel>, restored: Vec<RestoredChannel>, in_flight_limit: usize) -> Self {
        let attention = Arc::new(AtomicBool::new(true));
        let input = |channel: InputChannel| {
            channel.set_attention(Arc::clone(&attention));
            let arrived = CheckpointId(0);
            Input { channel, arrived, blocked: false, announced: None, recording: None, finished: false, status: None }
        };
        Self {
            inputs: channels.into_iter().map(input).collect(),
            next: 0,
            restored: Restored::new(restored),
            alignment: None,
            tracked: VecDeque::new(),
            abandoned: BTreeSet::new(),
            settled: CheckpointId(0),
            ended: false,
            attention,
            timed: None,
            events: VecDeque::new(),
            changed: true,
            recorded_bytes: 0,
            in_flight_limit,
            said: WatermarkStatus::UNKNOWN,
            time_changed: true,
        }
    }

    /// Who is woken when frames come.
    pub fn set_waker(&self, waker: &Waker) {
        for input in &self.inputs {
            input.channel.set_waker(Waker::clone(waker));
        }
    }

    /// The next event, or `None` when nothing can be read now.
    pub fn poll(&mut self, now: Timestamp) -> Option<GateEvent> {
        if let Some(event) = self.poll_barriers(now) {
            return Some(event);
        }
        loop {
            if let Some(event) = self.take_watermark() {
                return Some(event);
            }
            if let Some((input, frame)) = self.restored.pop() {
                self.time_changed = true;
                match frame {
                    Frame::Batch(batch) => return Some(GateEvent::Batch { input, batch }),
                    _ => continue,
                }
            }
            let (index, frame) = self.read()?;
            match frame {
                Frame::Batch(batch) => {
                    let input = self.inputs[index].channel.input();
                    return Some(GateEvent::Batch { input, batch });
                }
                Frame::Watermark(status) => {
                    self.inputs[index].status = Some(status);
                    self.time_changed = true;
                }
                Frame::Barrier(barrier) => self.arrive(index, barrier, None, now),
                Frame::Overtaking { barrier, first } => self.arrive(index, barrier, Some(first), now),
                Frame::EndOfInput => self.finish(index),
            }
            // Before the barriers, of which an end may complete one: what has fired there depends on it (W1).
            if let Some(event) = self.take_watermark() {
                return Some(event);
            }
            if let Some(event) = self.poll_barriers(now) {
                return Some(event);
            }
        }
    }

    /// What barriers ask for now, without reading rows: also for a task that has no room for the results of rows.
    pub fn poll_barriers(&mut self, now: Timestamp) -> Option<GateEvent> {
        if self.attention.load(Ordering::Acquire) {
            self.attention.store(false, Ordering::Release);
            self.look(now);
        }
        if self.timed.as_ref().is_some_and(|(at, _)| *at <= now) {
            self.turn(now);
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let event = self.settle(now);
        // One may follow at once, as the end of input does after the last alignment.
        self.changed = event.is_some();
        event
    }

    /// When [`InputGate::poll_barriers`] has something to do without a frame coming.
    #[must_use]
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.timed.as_ref().map(|(at, _)| *at)
    }

    /// A frame from the next channel in turn that is not blocked.
    fn read(&mut self) -> Option<(usize, Frame)> {
        let count = self.inputs.len();
        for index in (self.next..count).chain(0..self.next) {
            let input = &mut self.inputs[index];
            if !input.blocked
                && let Some(numbered) = input.channel.pop()
            {
                self.next = if index + 1 == count { 0 } else { index + 1 };
                if let Some(recording) = &mut input.recording
                    && matches!(numbered.frame, Frame::Batch(_) | Frame::Watermark(_))
                {
                    recording.push(numbered.frame.clone());
                    self.recorded_bytes += bytes_of(&numbered.frame);
                    self.changed |= self.recorded_bytes > self.in_flight_limit;
                }
                return Some((index, numbered.frame));
            }
        }
        None
    }

    fn finish(&mut self, index: usize) {
        self.inputs[index].finished = true;
        self.changed = true;
        self.time_changed = true;
    }

    /// What the state of the channels amounts to: a cut, an alignment that is complete, or the end of input.
    fn settle(&mut self, now: Timestamp) -> Option<GateEvent> {
        if let Some(event) = self.settle_alignment(now).or_else(|| self.settle_tracked(now)) {
            return Some(event);
        }
        if self.ended || !self.inputs.iter().all(|input| input.finished) {
            return None;
        }
        self.ended = true;
        Some(GateEvent::EndOfInput)
    }
}
