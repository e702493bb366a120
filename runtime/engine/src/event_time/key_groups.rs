//! The watermark of an operator, as part of its state (W1).
//!
//! An unaligned checkpoint cuts the subtasks of an operator at different watermarks, and a restore under another parallelism
//! brings their key groups together. Each key group then goes by the higher one of its own and the subtask's, so that what
//! was late, or has fired, stays so. Where the number of key groups has changed, one that has hashes of several goes by the
//! least of theirs. At an aligned barrier all subtasks have the same watermark.

use crate::error::TaskError;
use crate::operator::{ListPiece, OperatorContext, RestoredState};
use serde::{Deserialize, Serialize};
use sluice_protocol::state::Redistribution;
use sluice_protocol::{KeyGroup, KeyGroupRange, key_group};

/// The watermarks of one subtask's key groups.
#[derive(Debug, Clone)]
pub struct KeyGroupWatermarks {
    /// What the subtask has been told.
    current: i64,
    /// The last word before the end of all inputs, which is not part of the state: where a job goes on from a snapshot that
    /// was taken behind it, the inputs have not ended.
    stored: i64,
    /// Restored ones that are above it, by first key group.
    ahead: Vec<Stored>,
    own: KeyGroupRange,
    max_parallelism: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    start: u16,
    end: u16,
    max_parallelism: u16,
    watermark: i64,
}

impl Default for KeyGroupWatermarks {
    fn default() -> Self {
        Self {
            current: i64::MIN,
            stored: i64::MIN,
            ahead: Vec::new(),
            own: KeyGroupRange { start: 0, end: 0 },
            max_parallelism: 1,
        }
    }
}

/// The watermark of each key group of `own`: where there was another number of them, the least of those that it has hashes
/// of.
fn by_key_group(stored: &[Stored], own: KeyGroupRange, max_parallelism: u16) -> Vec<Option<i64>> {
    let mut known: Vec<Option<i64>> = vec![None; own.len()];
    for item in stored {
        let range = KeyGroupRange { start: item.start, end: item.end };
        let range = key_group::rescaled(range, item.max_parallelism, max_parallelism).intersection(own);
        for watermark in known.iter_mut().skip(usize::from(range.start - own.start)).take(range.len()) {
            *watermark = Some(watermark.map_or(item.watermark, |known| known.min(item.watermark)));
        }
    }
    known
}

/// Neighbours that have come equally far as one.
fn ranges(known: &[Option<i64>], first: u16, max_parallelism: u16) -> Vec<Stored> {
    let mut ranges: Vec<Stored> = Vec::new();
    for (group, watermark) in (first..).zip(known).filter_map(|(group, watermark)| Some((group, (*watermark)?))) {
        match ranges.last_mut().filter(|last| last.end == group && last.watermark == watermark) {
            Some(last) => last.end = group + 1,
            None => ranges.push(Stored { start: group, end: group + 1, max_parallelism, watermark }),
        }
    }
    ranges
}

impl KeyGroupWatermarks {
    /// Name of the list in the operator's state.
    pub const STATE: &str = "watermarks";

    /// As restored: the subtask begins with the least of what its key groups had.
    ///
    /// # Errors
    /// When what is stored is something else.
    pub fn open(context: &OperatorContext, state: &RestoredState) -> Result<Self, TaskError> {
        let own = context.key_groups;
        let mut stored: Vec<Stored> = Vec::new();
        for item in state.operator.iter().filter(|list| list.name == Self::STATE).flat_map(|list| &list.items) {
            let item = serde_json::from_value(item.clone()).map_err(|error| {
                let uid = &context.uid;
                TaskError::IncompatibleState(format!(
                    "the watermarks of operator '{uid}' cannot be read: {error}: {item}"
                ))
            })?;
            stored.push(item);
        }
        let max_parallelism = context.max_parallelism;
        let known = by_key_group(&stored, own, max_parallelism);
        // `None`, of a key group that the snapshot does not know, is the least.
        let least = known.iter().copied().min().flatten();
        let ahead = ranges(&known, own.start, max_parallelism);
        let mut watermarks = Self { current: i64::MIN, stored: i64::MIN, ahead, own, max_parallelism };
        watermarks.advance(least.unwrap_or(i64::MIN));
        Ok(watermarks)
    }

    /// The subtask's watermark has risen; a lower one changes nothing.
    pub fn advance(&mut self, watermark: i64) {
        self.current = self.current.max(watermark);
        if watermark < i64::MAX {
            self.stored = self.current;
        }
        let current = self.current;
        self.ahead.retain(|stored| stored.watermark > current);
    }

    /// The subtask's: what an operator passes on has no bound above it.
    #[must_use]
    pub const fn current(&self) -> i64 {
        self.current
    }

    /// By which a key group fires and judges lateness.
    #[must_use]
    pub fn of(&self, key_group: KeyGroup) -> i64 {
        let stored = self.ahead.iter().find(|stored| (stored.start..stored.end).contains(&key_group.0));
        stored.map_or(self.current, |stored| stored.watermark)
    }

    /// The watermark of all key groups, where it is one: always, but for a while after a restore.
    #[must_use]
    pub const fn uniform(&self) -> Option<i64> {
        if self.ahead.is_empty() { Some(self.current) } else { None }
    }

    /// What a snapshot holds of it, to be put among [`crate::operator::OperatorState::operator`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn snapshot(&self) -> Result<ListPiece, TaskError> {
        let mut pieces: Vec<Stored> = Vec::new();
        let mut next = self.own.start;
        let gap = |start, end| Stored { start, end, max_parallelism: self.max_parallelism, watermark: self.stored };
        for stored in &self.ahead {
            if next < stored.start {
                pieces.push(gap(next, stored.start));
            }
            pieces.push(*stored);
            next = stored.end;
        }
        if next < self.own.end {
            pieces.push(gap(next, self.own.end));
        }
        let items = pieces.iter().map(serde_json::to_value).collect::<Result<_, _>>();
        let items = items.map_err(|error| TaskError::Internal(format!("watermarks cannot be written: {error}")))?;
        Ok(ListPiece { name: Self::STATE.to_owned(), redistribution: Redistribution::Union, items })
    }
}
