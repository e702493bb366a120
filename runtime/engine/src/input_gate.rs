//! The reading side of a task: takes frames from its input channels in turn and aligns barriers (B1, B5).
//!
//! Barrier n at a channel blocks that channel until n has come on every channel; a channel whose producer has
//! finished counts as if it had. A later barrier ends an earlier alignment: the earlier checkpoint cannot be cut here
//! any more, and what it blocked is read again. Barriers of checkpoints that were cut or given up already are
//! dropped. The gate does not know what a checkpoint is for; the task acts on [`GateEvent::Aligned`].

#[cfg(test)]
mod tests;

use crate::batch::Batch;
use crate::channel::{Frame, InputChannel};
use crate::operator::Waker;
use sluice_protocol::message::Barrier;
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};

/// What the gate has for the task.
#[derive(Debug)]
pub enum GateEvent {
    /// Rows.
    Batch(Batch),
    /// The barrier stands on every channel: all rows before it were handed out, none after it.
    Aligned {
        /// The barrier.
        barrier: Barrier,
        /// From its first arrival to its last.
        alignment: TimeSpan,
        /// When it arrived first.
        started_at: Timestamp,
    },
    /// A later barrier came before this one had come everywhere; it will not be aligned.
    Overtaken(CheckpointId),
    /// Every channel has ended. Barriers may still come.
    EndOfInput,
}

struct Input {
    channel: InputChannel,
    blocked: bool,
    finished: bool,
}

struct Alignment {
    barrier: Barrier,
    started_at: Timestamp,
}

/// All input channels of a task.
pub struct InputGate {
    inputs: Vec<Input>,
    next: usize,
    alignment: Option<Alignment>,
    /// Barriers up to this one are done with.
    settled: CheckpointId,
    ended: bool,
}

impl InputGate {
    /// A gate over these channels.
    #[must_use]
    pub fn new(channels: Vec<InputChannel>) -> Self {
        let inputs = channels.into_iter().map(|channel| Input { channel, blocked: false, finished: false }).collect();
        Self { inputs, next: 0, alignment: None, settled: CheckpointId(0), ended: false }
    }

    /// Who is woken when frames come.
    pub fn set_waker(&self, waker: &Waker) {
        for input in &self.inputs {
            input.channel.set_waker(Waker::clone(waker));
        }
    }

    /// The next event, or `None` when nothing can be read now.
    pub fn poll(&mut self, now: Timestamp) -> Option<GateEvent> {
        if let Some(event) = self.settle(now) {
            return Some(event);
        }
        loop {
            let (index, frame) = self.read()?;
            match frame {
                Frame::Batch(batch) => return Some(GateEvent::Batch(batch)),
                Frame::Barrier(barrier) => {
                    if let Some(overtaken) = self.barrier(index, barrier, now) {
                        return Some(overtaken);
                    }
                }
                Frame::EndOfInput => self.inputs[index].finished = true,
            }
            if let Some(event) = self.settle(now) {
                return Some(event);
            }
        }
    }

    /// A frame from the next channel in turn that is not blocked.
    fn read(&mut self) -> Option<(usize, Frame)> {
        let count = self.inputs.len();
        for index in (self.next..count).chain(0..self.next) {
            let input = &self.inputs[index];
            if !input.blocked
                && let Some(numbered) = input.channel.pop()
            {
                self.next = if index + 1 == count { 0 } else { index + 1 };
                return Some((index, numbered.frame));
            }
        }
        None
    }

    fn barrier(&mut self, index: usize, barrier: Barrier, now: Timestamp) -> Option<GateEvent> {
        if barrier.checkpoint <= self.settled {
            return None;
        }
        match &self.alignment {
            Some(current) if barrier.checkpoint < current.barrier.checkpoint => None,
            Some(current) if barrier.checkpoint == current.barrier.checkpoint => {
                self.inputs[index].blocked = true;
                None
            }
            earlier => {
                let overtaken = earlier.as_ref().map(|earlier| earlier.barrier.checkpoint);
                self.unblock();
                self.inputs[index].blocked = true;
                self.alignment = Some(Alignment { barrier, started_at: now });
                overtaken.map(GateEvent::Overtaken)
            }
        }
    }

    /// What the state of the channels amounts to: an alignment that is complete, or the end of input.
    fn settle(&mut self, now: Timestamp) -> Option<GateEvent> {
        if self.alignment.is_some() {
            if !self.inputs.iter().all(|input| input.blocked || input.finished) {
                return None;
            }
            let Alignment { barrier, started_at } = self.alignment.take()?;
            self.settled = barrier.checkpoint;
            self.unblock();
            return Some(GateEvent::Aligned { barrier, alignment: now.since(started_at), started_at });
        }
        if self.ended || !self.inputs.iter().all(|input| input.finished) {
            return None;
        }
        self.ended = true;
        Some(GateEvent::EndOfInput)
    }

    fn unblock(&mut self) {
        for input in &mut self.inputs {
            input.blocked = false;
        }
    }
}
