//! From arrivals of barriers to cuts: what blocks a channel, what is recorded of it, and until when.

use super::{GateEvent, Input, InputGate, bytes_of};
use crate::channel::{ChannelId, Frame};
use crate::event_time::WatermarkStatus;
use crate::in_flight::InFlight;
use sluice_protocol::message::{Alignment as Mode, Barrier};
use sluice_protocol::{CheckpointId, Timestamp};

/// Given-up checkpoints that are remembered.
const REMEMBERED: usize = 64;

/// A barrier that has come on some channel.
pub(super) struct Alignment {
    pub(super) barrier: Barrier,
    pub(super) started_at: Timestamp,
    /// Whether it has begun to overtake.
    pub(super) overtakes: bool,
    /// Whether the state was frozen: what comes before the barrier is recorded.
    pub(super) cut: bool,
    in_flight: Vec<InFlight>,
    /// Channels that were read at the cut, where none of them had said anything of time.
    unheard: Vec<ChannelId>,
}

impl Alignment {
    const fn new(barrier: Barrier, started_at: Timestamp) -> Self {
        Self { barrier, started_at, overtakes: false, cut: false, in_flight: Vec::new(), unheard: Vec::new() }
    }
}

impl Input {
    /// Whether nothing before the barrier can come any more.
    fn has_seen(&self, checkpoint: CheckpointId) -> bool {
        self.arrived >= checkpoint || self.finished
    }

    /// What was recorded, and what is still queued before the barrier if that was announced.
    fn take_share(&mut self, bytes: &mut usize) -> Option<InFlight> {
        let mut frames = self.recording.take().unwrap_or_default();
        if let Some(first) = self.announced.take() {
            let queued = self.channel.queued_frames(first);
            *bytes += queued.iter().map(bytes_of).sum::<usize>();
            frames.extend(queued);
        }
        // The receiver's share stands before the sender's, whose numbers are higher than none.
        (!frames.is_empty()).then(|| InFlight { channel: self.channel.id(), age: 0, first: 0, frames })
    }

    fn release(&mut self) {
        self.blocked = false;
        self.announced = None;
        self.recording = None;
    }
}

impl InputGate {
    /// Takes what overtakes out of every queue, and notes barriers that may come to.
    pub(super) fn look(&mut self, now: Timestamp) {
        for index in 0..self.inputs.len() {
            while let Some(numbered) = self.inputs[index].channel.pop_overtaking() {
                if let Frame::Overtaking { barrier, first } = numbered.frame {
                    self.arrive(index, barrier, Some(first), now);
                }
            }
            let input = &self.inputs[index];
            if !input.channel.stays_aligned()
                && let Some(barrier) = input.channel.timed_barrier()
                && barrier.checkpoint > input.arrived
            {
                self.note_timed(&barrier);
            }
        }
    }

    fn note_timed(&mut self, barrier: &Barrier) {
        let Some(at) = barrier.overtakes_from() else { return };
        let is_new = self.timed.as_ref().is_none_or(|(_, noted)| noted.checkpoint <= barrier.checkpoint);
        if is_new && barrier.checkpoint > self.settled {
            self.timed = Some((at, barrier.clone()));
        }
    }

    /// The time is up: a barrier that stands in a queue overtakes what it is queued behind.
    pub(super) fn turn(&mut self, now: Timestamp) {
        let Some((_, barrier)) = self.timed.take() else { return };
        if barrier.checkpoint <= self.settled {
            return;
        }
        for index in 0..self.inputs.len() {
            let input = &self.inputs[index];
            if input.channel.stays_aligned() || input.arrived >= barrier.checkpoint {
                continue;
            }
            if let Some(place) = input.channel.place_of(barrier.checkpoint) {
                self.arrive(index, barrier.clone(), Some(place), now);
            }
        }
        if let Some(alignment) = &mut self.alignment
            && alignment.barrier.checkpoint == barrier.checkpoint
        {
            alignment.overtakes = true;
            self.changed = true;
        }
    }

    /// A barrier has come at a channel: at its place, or announced ahead of what is queued.
    pub(super) fn arrive(&mut self, index: usize, barrier: Barrier, announced: Option<u64>, now: Timestamp) {
        let checkpoint = barrier.checkpoint;
        if checkpoint <= self.settled || self.inputs[index].arrived >= checkpoint {
            return;
        }
        self.changed = true;
        if barrier.alignment == Mode::AtLeastOnce {
            self.inputs[index].arrived = checkpoint;
            if self.tracked.iter().all(|tracked| tracked.barrier.checkpoint != checkpoint) {
                self.tracked.push_back(Alignment::new(barrier, now));
            }
            return;
        }
        if self.alignment.as_ref().is_some_and(|current| checkpoint < current.barrier.checkpoint) {
            return;
        }
        self.inputs[index].arrived = checkpoint;
        self.end_earlier(checkpoint);
        if self.abandoned.remove(&checkpoint) {
            self.settled = checkpoint;
            self.events.push_back(GateEvent::Passed(barrier));
            return;
        }
        if announced.is_none() && !self.inputs[index].channel.stays_aligned() {
            self.note_timed(&barrier);
        }
        let overtakes = announced.is_some() || barrier.overtakes_from().is_some_and(|at| at <= now);
        let current = self.alignment.get_or_insert_with(|| Alignment::new(barrier, now));
        current.overtakes |= overtakes;
        let input = &mut self.inputs[index];
        input.announced = announced;
        if current.cut {
            let queued = input.take_share(&mut self.recorded_bytes);
            current.in_flight.extend(queued);
        } else {
            input.blocked = true;
        }
    }

    /// A later barrier ends an earlier alignment (B5).
    fn end_earlier(&mut self, checkpoint: CheckpointId) {
        if let Some(earlier) = self.alignment.take_if(|current| current.barrier.checkpoint < checkpoint) {
            self.events.push_back(GateEvent::Ended(earlier.barrier.checkpoint));
            self.inputs.iter_mut().for_each(Input::release);
        }
    }

    pub(super) fn settle_alignment(&mut self, now: Timestamp) -> Option<GateEvent> {
        let alignment = self.alignment.as_mut()?;
        let checkpoint = alignment.barrier.checkpoint;
        if !alignment.cut && alignment.overtakes {
            let waits = |input: &Input| input.channel.stays_aligned() && !input.has_seen(checkpoint);
            return if self.inputs.iter().any(waits) { None } else { Some(self.cut()) };
        }
        if !self.inputs.iter().all(|input| input.has_seen(checkpoint)) {
            return self.check_limit();
        }
        let Alignment { barrier, started_at, cut, mut in_flight, unheard, .. } = self.alignment.take()?;
        self.settle_up_to(checkpoint);
        let alignment = now.since(started_at);
        if !cut {
            self.inputs.iter_mut().for_each(Input::release);
            return Some(GateEvent::Aligned { barrier, alignment, started_at });
        }
        // Of channels that have ended meanwhile.
        in_flight.extend(self.inputs.iter_mut().filter_map(|input| input.take_share(&mut self.recorded_bytes)));
        self.inputs.iter_mut().for_each(Input::release);
        begin_with_silence(&mut in_flight, &unheard);
        Some(GateEvent::Recorded { checkpoint, alignment, in_flight })
    }

    /// Rows that are read from now on are not in the frozen state: what stands before the barrier is recorded.
    fn cut(&mut self) -> GateEvent {
        let knows_time = self.knows_time();
        let mut shares = self.restored.shares(knows_time);
        self.recorded_bytes = 0;
        let Some(alignment) = self.alignment.as_mut() else { return GateEvent::EndOfInput };
        let checkpoint = alignment.barrier.checkpoint;
        for input in self.inputs.iter_mut().filter(|input| !input.finished) {
            // Of a channel of which nothing is in flight only this is saved.
            let status = knows_time.then(|| Frame::Watermark(input.status.unwrap_or_default()));
            input.recording = Some(status.into_iter().collect());
            if input.announced.is_some() {
                shares.extend(input.take_share(&mut self.recorded_bytes));
                input.blocked = false;
            } else if input.has_seen(checkpoint) {
                shares.extend(input.take_share(&mut self.recorded_bytes));
            }
        }
        alignment.cut = true;
        alignment.in_flight = shares;
        if !knows_time {
            let open = self.inputs.iter().filter(|input| !input.finished);
            alignment.unheard = open.map(|input| input.channel.id()).collect();
        }
        GateEvent::Overtaking { barrier: alignment.barrier.clone(), started_at: alignment.started_at }
    }

    fn check_limit(&mut self) -> Option<GateEvent> {
        let alignment = self.alignment.as_ref().filter(|alignment| alignment.cut)?;
        let bytes = self.recorded_bytes;
        if bytes <= self.in_flight_limit {
            return None;
        }
        let checkpoint = alignment.barrier.checkpoint;
        self.give_up(checkpoint);
        Some(GateEvent::TooMuchInFlight { checkpoint, bytes })
    }

    fn give_up(&mut self, checkpoint: CheckpointId) {
        self.alignment = None;
        self.settle_up_to(checkpoint);
        self.inputs.iter_mut().for_each(Input::release);
    }

    fn settle_up_to(&mut self, checkpoint: CheckpointId) {
        self.settled = self.settled.max(checkpoint);
        self.abandoned.retain(|other| *other > checkpoint);
        self.timed.take_if(|(_, barrier)| barrier.checkpoint <= checkpoint);
    }

    pub(super) fn settle_tracked(&mut self, now: Timestamp) -> Option<GateEvent> {
        let checkpoint = self.tracked.front()?.barrier.checkpoint;
        if !self.inputs.iter().all(|input| input.has_seen(checkpoint)) {
            return None;
        }
        let Alignment { barrier, started_at, .. } = self.tracked.pop_front()?;
        self.settled = self.settled.max(checkpoint);
        Some(GateEvent::Aligned { barrier, alignment: now.since(started_at), started_at })
    }

    /// A checkpoint was given up (B5): nothing waits for its barrier any more, which is passed on all the same.
    pub fn abandon(&mut self, checkpoint: CheckpointId) {
        match &self.alignment {
            Some(current) if current.barrier.checkpoint == checkpoint => {
                if !current.cut {
                    self.events.push_back(GateEvent::Passed(current.barrier.clone()));
                }
                self.give_up(checkpoint);
            }
            _ if checkpoint > self.settled => {
                self.abandoned.insert(checkpoint);
                while self.abandoned.len() > REMEMBERED {
                    self.abandoned.pop_first();
                }
            }
            _ => {}
        }
    }
}

/// Where the first word of time was still on its way at the cut, every channel had said nothing: it counts as active (W2), also
/// one of which nothing is in flight.
fn begin_with_silence(in_flight: &mut Vec<InFlight>, unheard: &[ChannelId]) {
    let is_word = |frame: &Frame| matches!(frame, Frame::Watermark(_));
    if !in_flight.iter().any(|share| share.frames.iter().any(is_word)) {
        return;
    }
    for channel in unheard {
        let silence = Frame::Watermark(WatermarkStatus::UNKNOWN);
        match in_flight.iter_mut().find(|share| (share.channel, share.age) == (*channel, 0)) {
            Some(share) => share.frames.insert(0, silence),
            None => in_flight.push(InFlight { channel: *channel, age: 0, first: 0, frames: vec![silence] }),
        }
    }
}
