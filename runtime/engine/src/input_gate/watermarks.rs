//! What the channels say of time together (W1, W2), also those that were restored (B3).
//!
//! Every channel counts as active, at no time at all, until its first word; one whose producer has finished gives no bound.
//! While restored queues are read, the channels of their edges are the old ones, each with the watermark that it had at the
//! cut; older queues come first. What is handed out never regresses.

use super::{GateEvent, InputGate};
use crate::channel::{ChannelId, Frame};
use crate::event_time::{WatermarkStatus, combine};
use crate::in_flight::{InFlight, RestoredChannel};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Queues of channels of an earlier attempt.
pub(super) struct Restored {
    queues: VecDeque<RestoredChannel>,
    /// By age and channel; also of channels of which nothing is queued any more, until all of their age are read.
    statuses: BTreeMap<(u32, ChannelId), WatermarkStatus>,
}

impl Restored {
    pub(super) fn new(mut queues: Vec<RestoredChannel>) -> Self {
        queues.sort_by_key(RestoredChannel::order);
        let mut statuses = BTreeMap::new();
        for queue in &mut queues {
            let key = (queue.age, queue.channel);
            if statuses.contains_key(&key) {
                continue;
            }
            let status = match queue.frames.front() {
                Some(Frame::Watermark(status)) => *status,
                _ => WatermarkStatus::UNKNOWN,
            };
            if matches!(queue.frames.front(), Some(Frame::Watermark(_))) {
                queue.frames.pop_front();
            }
            statuses.insert(key, status);
        }
        let mut restored = Self { queues: queues.into(), statuses };
        restored.drop_read();
        restored
    }

    /// Which are read now.
    fn age(&self) -> Option<u32> {
        self.queues.front().map(|queue| queue.age)
    }

    /// The oldest frame, and its input.
    pub(super) fn pop(&mut self) -> Option<(u8, Frame)> {
        // Not before the next is asked for: what the last frame of an age said holds until then.
        self.drop_read();
        let queue = self.queues.front_mut()?;
        let (input, key) = (queue.input, (queue.age, queue.channel));
        let frame = queue.frames.pop_front()?;
        if let Frame::Watermark(status) = &frame {
            self.statuses.insert(key, *status);
        }
        Some((input, frame))
    }

    fn drop_read(&mut self) {
        while self.queues.front().is_some_and(|queue| queue.frames.is_empty()) {
            self.queues.pop_front();
        }
        let age = self.age();
        self.statuses.retain(|(of, _), _| age.is_some_and(|age| *of <= age));
    }

    /// What was restored and not read yet is saved again (B3).
    pub(super) fn shares(&self, knows_time: bool) -> Vec<InFlight> {
        let mut begun = BTreeSet::new();
        let mut shares = Vec::new();
        for queue in &self.queues {
            let key = (queue.age, queue.channel);
            let status = self.statuses.get(&key).filter(|_| knows_time && begun.insert(key));
            let frames = status.copied().map(Frame::Watermark).into_iter().chain(queue.frames.iter().cloned());
            let (channel, first) = (queue.channel, queue.first);
            shares.push(InFlight { channel, age: queue.age + 1, first, frames: frames.collect() });
        }
        let silent = self.statuses.iter().filter(|(key, _)| knows_time && !begun.contains(key));
        shares.extend(silent.map(|((age, channel), status)| {
            let frames = vec![Frame::Watermark(*status)];
            InFlight { channel: *channel, age: age + 1, first: 0, frames }
        }));
        shares.retain(|share| !share.frames.is_empty());
        shares
    }
}

impl InputGate {
    /// What is new of time.
    pub(super) fn take_watermark(&mut self) -> Option<GateEvent> {
        if !std::mem::take(&mut self.time_changed) {
            return None;
        }
        let combined = self.combined()?;
        let status = WatermarkStatus { watermark: combined.watermark.max(self.said.watermark), idle: combined.idle };
        if status == self.said {
            return None;
        }
        self.said = status;
        Some(GateEvent::Watermark(status))
    }

    fn combined(&self) -> Option<WatermarkStatus> {
        let age = self.restored.age();
        let old = self.restored.statuses.iter().filter(|((of, _), _)| Some(*of) == age);
        let edges: BTreeSet<u32> = old.clone().map(|((_, channel), _)| channel.edge).collect();
        let is_new = |channel: ChannelId| !edges.contains(&channel.edge);
        let new = self.inputs.iter().filter(|input| !input.finished && is_new(input.channel.id()));
        let new = new.map(|input| input.status.unwrap_or_default());
        combine(old.map(|(_, status)| *status).chain(new))
    }

    /// Whether any channel has ever said something of time: then a snapshot holds what each says.
    pub(super) fn knows_time(&self) -> bool {
        self.inputs.iter().any(|input| input.status.is_some())
            || self.restored.statuses.values().any(|status| *status != WatermarkStatus::UNKNOWN)
    }
}
