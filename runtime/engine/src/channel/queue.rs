//! The queue of a channel: order, numbering, bound, and what overtakes. All of it under one lock per frame.

use super::{ChannelId, Frame, Kept, NumberedFrame, OutOfSequence};
use crate::operator::Waker;
use sluice_protocol::CheckpointId;
use sluice_protocol::message::Barrier;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who takes frames out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// The task at the end of the channel: what is queued here has arrived.
    Task,
    /// A pump that sends them to another process: what is queued here has not left.
    Pump,
}

#[derive(Default)]
struct State {
    frames: VecDeque<NumberedFrame>,
    /// What overtakes them.
    overtaking: VecDeque<NumberedFrame>,
    /// Cost of all that is queued.
    queued: u64,
    next_sequence: u64,
    /// Cost of what was taken since [`Queue::take_consumed`].
    consumed: u64,
    reader: Option<Waker>,
    attention: Option<Arc<AtomicBool>>,
    writer: Option<Waker>,
}

pub(super) struct Queue {
    pub(super) id: ChannelId,
    window: u64,
    kind: Reader,
    state: Mutex<State>,
}

impl State {
    fn append(&mut self, cost: u64, frame: Frame) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.queued += cost;
        self.frames.push_back(NumberedFrame { sequence, cost, frame });
    }

    /// The reader must look at once.
    fn call_attention(&self) -> Option<Waker> {
        if let Some(attention) = &self.attention {
            attention.store(true, Ordering::Release);
        }
        self.reader.clone()
    }

    fn frames_before(&self, place: u64) -> Vec<Frame> {
        let before = self.frames.iter().take_while(|numbered| numbered.sequence < place);
        let is_content = |frame: &&Frame| matches!(frame, Frame::Batch(_) | Frame::Watermark(_));
        before.map(|numbered| &numbered.frame).filter(is_content).cloned().collect()
    }

    fn find(&self, checkpoint: CheckpointId) -> Option<&NumberedFrame> {
        let is_it = |numbered: &&NumberedFrame| matches!(&numbered.frame, Frame::Barrier(barrier) if barrier.checkpoint == checkpoint);
        self.frames.iter().find(is_it)
    }

    /// Sends word ahead of a barrier that stands at `place`; what this side holds before it is the sender's.
    fn overtake(&mut self, barrier: Barrier, place: u64) -> Kept {
        let first = self.frames.front().map_or(place, |head| head.sequence);
        let kept = Kept { first, frames: self.frames_before(place) };
        let frame = Frame::Overtaking { barrier, first };
        self.overtaking.push_back(NumberedFrame { sequence: place, cost: 0, frame });
        kept
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker();
    }
}

/// Whether a barrier may come to overtake what it is queued behind.
fn is_timed(frame: &Frame) -> bool {
    matches!(frame, Frame::Barrier(barrier) if barrier.overtakes_from().is_some())
}

impl Queue {
    pub(super) fn new(id: ChannelId, window: usize, kind: Reader) -> Self {
        Self { id, window: window.max(1) as u64, kind, state: Mutex::default() }
    }

    pub(super) const fn window(&self) -> usize {
        self.window as usize
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn append(&self, frame: Frame) {
        let cost = if let Frame::Batch(batch) = &frame { batch.bytes().max(1) as u64 } else { 0 };
        self.append_to(self.lock(), cost, frame);
    }

    fn append_to(&self, mut state: MutexGuard<'_, State>, cost: u64, frame: Frame) {
        let is_timed = is_timed(&frame);
        state.append(cost, frame);
        let waker = match state.frames.len() {
            _ if is_timed => state.call_attention(),
            1 => state.reader.clone(),
            _ => None,
        };
        drop(state);
        wake(waker);
    }

    pub(super) fn append_ahead(&self, barrier: Barrier) -> Kept {
        let mut state = self.lock();
        let place = state.next_sequence;
        state.append(0, Frame::Barrier(barrier.clone()));
        let kept = self.overtake(&mut state, barrier, place);
        let waker = state.call_attention();
        drop(state);
        wake(waker);
        kept
    }

    /// What is queued for a task has arrived, and is the receiver's.
    fn overtake(&self, state: &mut State, barrier: Barrier, place: u64) -> Kept {
        if self.kind == Reader::Pump {
            return state.overtake(barrier, place);
        }
        let frame = Frame::Overtaking { barrier, first: place };
        state.overtaking.push_back(NumberedFrame { sequence: place, cost: 0, frame });
        Kept { first: place, frames: Vec::new() }
    }

    pub(super) fn turn_at_sender(&self, checkpoint: CheckpointId) -> Option<Kept> {
        if self.kind == Reader::Task {
            return None;
        }
        let mut state = self.lock();
        let found = state.find(checkpoint)?;
        let (place, Frame::Barrier(barrier)) = (found.sequence, found.frame.clone()) else { return None };
        let kept = state.overtake(barrier, place);
        let waker = state.call_attention();
        drop(state);
        wake(waker);
        Some(kept)
    }

    pub(super) fn waits_to_leave(&self, checkpoint: CheckpointId) -> bool {
        self.kind == Reader::Pump && self.lock().find(checkpoint).is_some()
    }

    pub(super) fn append_received(&self, received: NumberedFrame) -> Result<(), OutOfSequence> {
        let mut state = self.lock();
        let (channel, expected) = (self.id, state.next_sequence);
        if let Frame::Overtaking { first, .. } = &received.frame {
            if *first != expected {
                return Err(OutOfSequence { channel, expected, found: *first });
            }
            state.overtaking.push_back(received);
            let waker = state.call_attention();
            drop(state);
            wake(waker);
            return Ok(());
        }
        if received.sequence != expected {
            return Err(OutOfSequence { channel, expected, found: received.sequence });
        }
        self.append_to(state, received.cost, received.frame);
        Ok(())
    }

    pub(super) fn pop(&self) -> Option<NumberedFrame> {
        self.pop_from(self.lock())
    }

    pub(super) fn pop_with_credit(&self, credit: &mut i64) -> Option<NumberedFrame> {
        let mut state = self.lock();
        if let Some(overtaking) = state.overtaking.pop_front() {
            return Some(overtaking);
        }
        let cost = state.frames.front()?.cost;
        if cost > 0 && *credit <= 0 {
            return None;
        }
        *credit = credit.saturating_sub(i64::try_from(cost).unwrap_or(i64::MAX));
        self.pop_from(state)
    }

    /// Takes what overtakes, or the head. The writer is woken when the queue falls below half the window, so that it
    /// fills a good part at once, when a quarter of the window can be granted to a remote sender, and when a barrier
    /// leaves the process, since its snapshot may wait for that.
    fn pop_from(&self, mut state: MutexGuard<'_, State>) -> Option<NumberedFrame> {
        if let Some(overtaking) = state.overtaking.pop_front() {
            return Some(overtaking);
        }
        let frame = state.frames.pop_front()?;
        let (half, quarter) = (self.window / 2, (self.window / 4).max(1));
        let was_half_full = state.queued >= half;
        let grant_was_due = state.consumed >= quarter;
        state.queued -= frame.cost;
        state.consumed += frame.cost;
        let room = was_half_full && state.queued < half;
        let grant = !grant_was_due && state.consumed >= quarter;
        let leaves = self.kind == Reader::Pump && is_timed(&frame.frame);
        let waker = if room || grant || leaves { state.writer.clone() } else { None };
        drop(state);
        wake(waker);
        Some(frame)
    }

    pub(super) fn pop_overtaking(&self) -> Option<NumberedFrame> {
        self.lock().overtaking.pop_front()
    }

    pub(super) fn frames_before(&self, place: u64) -> Vec<Frame> {
        self.lock().frames_before(place)
    }

    pub(super) fn place_of(&self, checkpoint: CheckpointId) -> Option<u64> {
        self.lock().find(checkpoint).map(|numbered| numbered.sequence)
    }

    pub(super) fn timed_barrier(&self) -> Option<Barrier> {
        let state = self.lock();
        let timed = state.frames.iter().rev().find(|numbered| is_timed(&numbered.frame))?;
        if let Frame::Barrier(barrier) = &timed.frame { Some(barrier.clone()) } else { None }
    }

    pub(super) fn has_room(&self) -> bool {
        self.lock().queued < self.window
    }

    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.frames.is_empty() && state.overtaking.is_empty()
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.lock().queued
    }

    pub(super) fn take_consumed(&self) -> u64 {
        std::mem::take(&mut self.lock().consumed)
    }

    pub(super) fn set_writer(&self, waker: Waker) {
        self.lock().writer = Some(waker);
    }

    pub(super) fn set_reader(&self, waker: Waker) {
        self.lock().reader = Some(waker);
    }

    pub(super) fn set_attention(&self, attention: Arc<AtomicBool>) {
        self.lock().attention = Some(attention);
    }
}
