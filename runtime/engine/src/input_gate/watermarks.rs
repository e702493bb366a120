//! What the channels say of time together (W1, W2), also those that were restored (B3).
//!
//! Every channel counts as active, at no time at all, until its first word; one whose producer has finished gives no bound.
//! While restored queues are read, the channels of their edges are the old ones, each with the watermark that it had at the
//! cut, also those that led to other subtasks before the job was rescaled; older queues come first. A channel that
//! was idle holds back as long as rows of it are queued. What is handed out never regresses.

use super::{GateEvent, InputGate};
use crate::channel::{ChannelId, Frame};
use crate::event_time::{WatermarkStatus, combine};
use crate::in_flight::{InFlight, RestoredChannel};
use sluice_protocol::SubtaskIndex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Queues of channels of an earlier attempt.
pub(super) struct Restored {
    queues: VecDeque<RestoredChannel>,
    /// By age, channel and the consumer that it had; also of channels of which nothing is queued any more, until all of their age are read.
    statuses: BTreeMap<Key, WatermarkStatus>,
}

/// The age of a restored queue, its channel, and the subtask that this led to.
type Key = (u32, ChannelId, SubtaskIndex);

const fn key_of(queue: &RestoredChannel) -> Key {
    (queue.age, queue.channel, queue.consumer)
}

impl Restored {
    pub(super) fn new(mut queues: Vec<RestoredChannel>) -> Self {
        queues.sort_by_key(RestoredChannel::order);
        let mut statuses = BTreeMap::new();
        let mut unheard = BTreeSet::new();
        for queue in &mut queues {
            let key = key_of(queue);
            let begins = queue.first == 0 && matches!(queue.frames.front(), Some(Frame::Watermark(_)));
            if !statuses.contains_key(&key) && !begins {
                // The receiver had heard nothing of time on any channel.
                if queue.producers.is_empty() {
                    // What the sender still had to say says nothing of others that are not known.
                    unheard.insert(key);
                }
                statuses.insert(key, WatermarkStatus::UNKNOWN);
            }
            if unheard.contains(&key) {
                queue.frames.retain(|frame| matches!(frame, Frame::Batch(_)));
            }
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
        // Channels that had said nothing and have nothing in flight count as active all the same.
        for queue in &queues {
            for from in queue.producers.clone() {
                let channel = ChannelId { from: SubtaskIndex(from), ..queue.channel };
                statuses.entry((queue.age, channel, queue.consumer)).or_insert(WatermarkStatus::UNKNOWN);
            }
        }
        let mut restored = Self { queues: queues.into(), statuses };
        let keys: Vec<Key> = restored.statuses.keys().copied().collect();
        keys.into_iter().for_each(|key| restored.hold_back(key));
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
        let (input, key) = (queue.input, key_of(queue));
        let frame = queue.frames.pop_front()?;
        if let Frame::Watermark(status) = &frame {
            self.statuses.insert(key, *status);
            self.hold_back(key);
        }
        Some((input, frame))
    }

    /// A channel that was idle for its own consumer counts as active where rows of it are queued: beside channels of other
    /// consumers, which were further, they would be late.
    fn hold_back(&mut self, key: Key) {
        let is_row = |frame: &Frame| matches!(frame, Frame::Batch(_));
        if let Some(status) = self.statuses.get_mut(&key).filter(|status| status.idle) {
            let mut own = self.queues.iter().filter(|queue| key_of(queue) == key);
            status.idle = !own.any(|queue| queue.frames.iter().any(is_row));
        }
    }

    fn drop_read(&mut self) {
        while self.queues.front().is_some_and(|queue| queue.frames.is_empty()) {
            self.queues.pop_front();
        }
        let age = self.age();
        self.statuses.retain(|(of, ..), _| age.is_some_and(|age| *of <= age));
    }

    /// What was restored and not read yet is saved again (B3), from now on as this task's: channels of one producer that led
    /// to several consumers become one, which says no more than the least of them until all of it is read.
    pub(super) fn shares(&self, knows_time: bool) -> Vec<InFlight> {
        let mut shares: Vec<InFlight> = Vec::new();
        for queue in &self.queues {
            let (channel, age) = (queue.channel, queue.age + 1);
            let several = self.has_several(queue.age, channel);
            let frames = queue.frames.iter().filter(|frame| !several || matches!(frame, Frame::Batch(_))).cloned();
            // Of one consumer the pieces keep their order; of several they are put in one.
            let first = if several { 0 } else { queue.first };
            let last = shares.last_mut().filter(|last| several && (last.channel, last.age) == (channel, age));
            match last {
                Some(last) => last.frames.extend(frames),
                None => shares.push(InFlight { channel, age, first, frames: frames.collect() }),
            }
        }
        if knows_time {
            self.begin_with_statuses(&mut shares);
        }
        shares.retain(|share| !share.frames.is_empty());
        shares
    }

    /// Puts what each channel says before what is saved of it first; of a silent one it is all.
    fn begin_with_statuses(&self, shares: &mut Vec<InFlight>) {
        let mut least: BTreeMap<(u32, ChannelId), WatermarkStatus> = BTreeMap::new();
        for ((age, channel, _), status) in &self.statuses {
            let both = least.get(&(*age, *channel)).copied().into_iter().chain([*status]);
            least.insert((*age, *channel), combine(both).unwrap_or_default());
        }
        for ((age, channel), status) in least {
            let status = Frame::Watermark(status);
            let begun = shares.iter_mut().find(|share| (share.channel, share.age) == (channel, age + 1));
            match begun {
                Some(share) => {
                    share.frames.insert(0, status);
                    share.first = 0;
                }
                None => shares.push(InFlight { channel, age: age + 1, first: 0, frames: vec![status] }),
            }
        }
    }

    /// Whether any has said something of time, or will when it is read: without what it had said before, the first word of a
    /// queue would be taken for that, and those that are silent would not be there at all.
    fn know_time(&self) -> bool {
        let mut queued = self.queues.iter().flat_map(|queue| &queue.frames);
        self.statuses.values().any(|status| *status != WatermarkStatus::UNKNOWN)
            || queued.any(|frame| matches!(frame, Frame::Watermark(_)))
    }

    /// Whether a channel of this age comes from several consumers.
    fn has_several(&self, age: u32, channel: ChannelId) -> bool {
        let consumers = (age, channel, SubtaskIndex(0))..=(age, channel, SubtaskIndex(u32::MAX));
        self.statuses.range(consumers).nth(1).is_some()
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
        let old = self.restored.statuses.iter().filter(|((of, ..), _)| Some(*of) == age);
        let edges: BTreeSet<u32> = old.clone().map(|((_, channel, _), _)| channel.edge).collect();
        let is_new = |channel: ChannelId| !edges.contains(&channel.edge);
        let new = self.inputs.iter().filter(|input| !input.finished && is_new(input.channel.id()));
        let new = new.map(|input| input.status.unwrap_or_default());
        let combined = combine(old.map(|(_, status)| *status).chain(new))?;
        if !combined.idle {
            return Some(combined);
        }
        // The greatest of all counts, also of those that have ended: other tasks may hear of the end later, and all must come equally
        // far, since whoever reads what they make goes by the greatest of them.
        let ended = self.inputs.iter().filter(|input| input.finished).filter_map(|input| input.status);
        let ended = ended.map(|status| status.watermark).filter(|watermark| *watermark < i64::MAX);
        let watermark = ended.fold(combined.watermark, i64::max);
        Some(WatermarkStatus { watermark, idle: true })
    }

    /// Whether any channel has ever said something of time: then a snapshot holds what each says.
    pub(super) fn knows_time(&self) -> bool {
        self.inputs.iter().any(|input| input.status.is_some()) || self.restored.know_time()
    }
}
