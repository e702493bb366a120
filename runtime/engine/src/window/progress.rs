//! How far each key group of a subtask has come: its watermark, the windows that have fired, and those whose slices are gone
//! (W1, B4).
//!
//! A window takes rows until the watermark has passed its end by the allowed lateness. That may be longer than it was in the
//! run that wrote the state: a window whose slices that run has dropped is closed all the same, since its result could only
//! be put together in part.
//!
//! All key groups of a subtask have come equally far, but after a restore that put those of several subtasks together, and
//! while windows fire, which happens one key group after the other.

use crate::error::TaskError;
use crate::event_time::KeyGroupWatermarks;
use crate::operator::{ListPiece, OperatorContext, RestoredState};
use crate::state::list::ListState;
use serde::{Deserialize, Serialize};
use sluice_protocol::{KeyGroup, KeyGroupRange, key_group};

/// The name of the state within the operator.
const STATE_NAME: &str = "fired";

/// How far a key group has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// Its watermark.
    pub(super) watermark: i64,
    /// All windows that end so or before have fired.
    pub(super) fired: i64,
}

/// A range of key groups of which the same windows have fired, as stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    start: u16,
    end: u16,
    /// Of how many.
    max_parallelism: u16,
    fired: i64,
    /// Of windows that end so or before slices may be gone; older states do not say it: of all that have fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dropped: Option<i64>,
}

impl Stored {
    fn dropped(&self) -> i64 {
        self.dropped.unwrap_or(self.fired)
    }
}

/// How far the key groups of a subtask have come.
#[derive(Debug, Default)]
pub(super) struct GroupProgress {
    /// The first key group.
    first: u16,
    max_parallelism: u16,
    watermarks: KeyGroupWatermarks,
    fired: Vec<i64>,
    /// For how long windows that have fired take rows, in milliseconds.
    lateness: i64,
    /// Windows that end so or before had lost slices when the state was written.
    dropped: Vec<i64>,
    /// As it was before all inputs ended: where a job goes on behind that, they have not, and its windows fire again.
    before_end: Option<Vec<i64>>,
    list: Option<ListState<Stored>>,
}

impl GroupProgress {
    /// Whether a list of the operator's state is its.
    pub(super) fn is_own(list: &str) -> bool {
        list == STATE_NAME || list == KeyGroupWatermarks::STATE
    }

    /// From the stored ranges of all subtasks: of what they say of a key group the least, but of lost slices the most.
    pub(super) fn open(context: &OperatorContext, state: &RestoredState, lateness: i64) -> Result<Self, TaskError> {
        let list: ListState<Stored> = ListState::union(STATE_NAME, context, state)?;
        let (range, max_parallelism) = (context.key_groups, context.max_parallelism);
        let overlaps = |group: u16, stored: &Stored| {
            let range = KeyGroupRange { start: stored.start, end: stored.end };
            key_group::rescaled(range, stored.max_parallelism, max_parallelism).contains(KeyGroup(group))
        };
        let of_group = |group: u16| list.get().iter().filter(move |stored| overlaps(group, stored));
        let groups = range.start..range.end;
        let fired = groups.clone().map(|group| of_group(group).map(|stored| stored.fired).min().unwrap_or(i64::MIN));
        let fired = fired.collect();
        let dropped = groups.map(|group| of_group(group).map(Stored::dropped).max().unwrap_or(i64::MIN)).collect();
        let watermarks = KeyGroupWatermarks::open(context, state)?;
        let (first, list) = (range.start, Some(list));
        Ok(Self { first, max_parallelism, watermarks, fired, lateness, dropped, before_end: None, list })
    }

    /// The watermark has come to this; those that were further stay there.
    pub(super) fn raise(&mut self, watermark: i64) {
        if watermark == i64::MAX && self.before_end.is_none() {
            self.before_end = Some(self.fired.clone());
        }
        self.watermarks.advance(watermark);
    }

    /// The least watermark.
    pub(super) const fn watermark(&self) -> i64 {
        self.watermarks.current()
    }

    /// The greatest watermark.
    pub(super) fn greatest(&self) -> i64 {
        if self.uniform().is_some() {
            return self.watermark();
        }
        self.distinct().map(|progress| progress.watermark).max().unwrap_or(i64::MIN)
    }

    /// The watermark of all, when it is one.
    pub(super) const fn uniform(&self) -> Option<i64> {
        self.watermarks.uniform()
    }

    /// Number of key groups of the job.
    pub(super) const fn max_parallelism(&self) -> u16 {
        self.max_parallelism
    }

    /// The watermark of a key group.
    pub(super) fn watermark_of(&self, group: KeyGroup) -> i64 {
        self.watermarks.of(group)
    }

    /// Windows of a key group that end so or before take no rows any more.
    pub(super) fn closed_of(&self, group: KeyGroup) -> i64 {
        let dropped = group.0.checked_sub(self.first).and_then(|position| self.dropped.get(usize::from(position)));
        self.closed_at(self.watermarks.of(group)).max(dropped.copied().unwrap_or(i64::MIN))
    }

    /// The same of all key groups, when it is one.
    pub(super) fn all_closed(&self) -> Option<i64> {
        let closed = self.closed_at(self.uniform()?);
        let least = self.least_closed();
        let most = self.dropped.iter().copied().max().unwrap_or(i64::MIN).max(closed);
        (least == most).then_some(least)
    }

    /// No more than the least of all key groups.
    pub(super) fn least_closed(&self) -> i64 {
        let dropped = self.dropped.iter().copied().min().unwrap_or(i64::MIN);
        self.closed_at(self.watermark()).max(dropped)
    }

    const fn closed_at(&self, watermark: i64) -> i64 {
        watermark.saturating_add(1).saturating_sub(self.lateness)
    }

    /// All key groups, but of neighbours that have come equally far one.
    pub(super) fn distinct(&self) -> impl Iterator<Item = Progress> + '_ {
        let mut last = None;
        (0..self.fired.len()).filter_map(move |position| {
            let (_, progress) = self.nth(position)?;
            (last.replace(progress) != Some(progress)).then_some(progress)
        })
    }

    /// The key group at this position; `None` behind the last.
    pub(super) fn nth(&self, position: usize) -> Option<(KeyGroup, Progress)> {
        let fired = *self.fired.get(position)?;
        let group = KeyGroup(self.first + u16::try_from(position).ok()?);
        Some((group, Progress { watermark: self.watermarks.of(group), fired }))
    }

    /// How far a key group of the subtask has come.
    pub(super) fn of(&self, group: KeyGroup) -> Option<Progress> {
        self.nth(usize::from(group.0.checked_sub(self.first)?)).map(|(_, progress)| progress)
    }

    /// The windows that end so or before have fired in some key group.
    pub(super) fn greatest_fired(&self) -> i64 {
        self.fired.iter().copied().max().unwrap_or(i64::MIN)
    }

    /// The windows of a key group that end so have fired.
    pub(super) fn fired(&mut self, position: usize, end: i64) {
        if let Some(fired) = self.fired.get_mut(position) {
            *fired = (*fired).max(end);
        }
    }

    /// All that is due has fired.
    pub(super) fn all_fired(&mut self) {
        for (group, fired) in (self.first..).zip(&mut self.fired) {
            *fired = (*fired).max(self.watermarks.of(KeyGroup(group)).saturating_add(1));
        }
    }

    /// Windows that end so or before have fired in all key groups.
    pub(super) fn least_fired(&self) -> i64 {
        self.fired.iter().copied().min().unwrap_or(i64::MAX)
    }

    /// What a checkpoint stores; `is_empty`: no window is open.
    pub(super) fn snapshot(&mut self, is_empty: bool) -> Result<Vec<ListPiece>, TaskError> {
        // While the last windows fire, those that have must not do so again.
        let before_end = self.before_end.as_ref().filter(|_| is_empty);
        // Behind the end no slices are left, of windows that had fired before it neither.
        let lateness = if before_end.is_some() { 0 } else { self.lateness };
        let fired = before_end.unwrap_or(&self.fired);
        let mut stored: Vec<Stored> = Vec::new();
        for (group, (fired, dropped)) in (self.first..).zip(fired.iter().copied().zip(self.dropped.iter().copied())) {
            let dropped = Some(dropped.max(fired.saturating_sub(lateness)));
            match stored.last_mut().filter(|last| last.fired == fired && last.dropped == dropped) {
                Some(last) => last.end = group + 1,
                None => {
                    let max_parallelism = self.max_parallelism;
                    stored.push(Stored { start: group, end: group + 1, max_parallelism, fired, dropped });
                }
            }
        }
        let Some(list) = &mut self.list else {
            return Err(TaskError::Internal("a window was frozen before it was opened".to_owned()));
        };
        list.update(stored);
        Ok(vec![list.snapshot()?, self.watermarks.snapshot()?])
    }
}
