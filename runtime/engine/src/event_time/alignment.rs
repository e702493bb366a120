//! Watermark alignment: a source that is ahead of the others of its group stops reading for a while, so that what waits
//! for the slowest of them does not grow without bound.
//!
//! All tasks of a run in one process share [`AlignmentGroups`], in which a subtask knows at once how far the others are;
//! how far those on other TaskManagers are is told by the JobManager ([`AlignmentGroups::hear`]), which is a while old:
//! watermarks rise, so an old one only holds back longer. Callers rely on:
//!
//! - A subtask counts from the moment its [`AlignmentMember`] is made, before it is opened, at the beginning of all time:
//!   nobody runs ahead of one that comes up late. It does not count while it is idle, nor once it has ended.
//! - The one that is furthest behind never waits. What it reads makes the others go on.
//! - Who waits reads nothing of what is ahead. An idle split must be read all the same: the others would pass the time of rows
//!   that it gets meanwhile, which would be late then. So each split of a source waits by itself, where the source can hold
//!   splits back; where it cannot, nobody waits who has an idle one. The caller sees to that
//!   ([`super::source::SourceWatermarks::waits`]). Splits that come into being while all wait are found when the source is
//!   read again.
//! - Otherwise nothing here is needed for right results: who does not hear waits, or goes on.
//!
//! The bound is the drift and what is read in one batch; where an idle member on another TaskManager wakes, also what is read
//! until that is known here: two update intervals (it is reported at the end of one, and told at the end of the next).

#[cfg(test)]
mod tests;

use super::WatermarkStatus;
use crate::operator::Waker;
use sluice_protocol::message::GroupWatermark;
use sluice_protocol::{SubtaskId, TimeSpan};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a source says of alignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatermarkAlignment {
    /// Sources of one group wait for each other.
    pub group: String,
    /// How far it may be ahead of the one that is furthest behind.
    pub max_drift: TimeSpan,
    /// How often TaskManagers are told of each other.
    pub update_interval: TimeSpan,
}

#[derive(Default)]
struct Group {
    members: BTreeMap<SubtaskId, WatermarkStatus>,
    waiting: BTreeMap<SubtaskId, Waker>,
}

impl Group {
    fn least(&self) -> Option<i64> {
        self.members.values().filter(|status| !status.idle).map(|status| status.watermark).min()
    }
}

struct Groups {
    here: BTreeMap<String, Group>,
    /// The least watermark of each group on other TaskManagers; `None`: they have not been heard of.
    elsewhere: Option<BTreeMap<String, i64>>,
}

impl Groups {
    fn least(&self, group: &str) -> Option<i64> {
        let here = self.here.get(group).and_then(Group::least);
        let elsewhere = match &self.elsewhere {
            None => Some(i64::MIN),
            Some(elsewhere) => elsewhere.get(group).copied(),
        };
        here.into_iter().chain(elsewhere).min()
    }
}

/// The alignment groups of one run in one process.
pub struct AlignmentGroups(Mutex<Groups>);

impl AlignmentGroups {
    /// Without members; `waits`: there are some on other TaskManagers, of which is to be heard first.
    #[must_use]
    pub fn new(waits: bool) -> Self {
        Self(Mutex::new(Groups { here: BTreeMap::new(), elsewhere: (!waits).then(BTreeMap::new) }))
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known of a group, and wakes those who wait if it has come further.
    fn change(&self, group: &str, change: impl FnOnce(&mut Group)) {
        let mut groups = self.lock();
        let before = groups.least(group);
        change(groups.here.entry(group.to_owned()).or_default());
        let waiting = if groups.least(group) == before { BTreeMap::new() } else { groups.take_waiting(group) };
        drop(groups);
        waiting.values().for_each(|wake| wake());
    }

    /// How far the groups are here, for the JobManager: those with a member that is neither idle nor at its end.
    #[must_use]
    pub fn report(&self) -> Vec<GroupWatermark> {
        let groups = self.lock();
        let said = |(name, group): (&String, &Group)| {
            group.least().map(|watermark| GroupWatermark { group: name.clone(), watermark })
        };
        groups.here.iter().filter_map(said).collect()
    }

    /// How far they are on all other TaskManagers; those that are not named have nobody at work there.
    pub fn hear(&self, elsewhere: &[GroupWatermark]) {
        let mut groups = self.lock();
        groups.elsewhere = Some(elsewhere.iter().map(|one| (one.group.clone(), one.watermark)).collect());
        let waiting: Vec<_> = groups.here.values_mut().map(|group| std::mem::take(&mut group.waiting)).collect();
        drop(groups);
        waiting.iter().flat_map(BTreeMap::values).for_each(|wake| wake());
    }
}

impl Groups {
    fn take_waiting(&mut self, group: &str) -> BTreeMap<SubtaskId, Waker> {
        self.here.get_mut(group).map(|group| std::mem::take(&mut group.waiting)).unwrap_or_default()
    }
}

/// One subtask of a source in its group, until it is dropped.
pub struct AlignmentMember {
    groups: Arc<AlignmentGroups>,
    subtask: SubtaskId,
    alignment: WatermarkAlignment,
    reported: WatermarkStatus,
}

impl AlignmentMember {
    /// It counts from now on.
    #[must_use]
    pub fn new(groups: Arc<AlignmentGroups>, subtask: SubtaskId, alignment: WatermarkAlignment) -> Self {
        let reported = WatermarkStatus::UNKNOWN;
        groups.change(&alignment.group, |group| {
            group.members.insert(subtask, reported);
        });
        Self { groups, subtask, alignment, reported }
    }

    /// How far it is.
    pub fn report(&mut self, status: WatermarkStatus) {
        if status != std::mem::replace(&mut self.reported, status) {
            self.groups.change(&self.alignment.group, |group| {
                group.members.insert(self.subtask, status);
            });
        }
    }

    /// How far it may read: what is beyond waits. `greatest` is where it has come to itself; where that is beyond, it is woken
    /// when the others have come further. `None`: nobody holds it back.
    pub fn bound(&self, greatest: i64, waker: &Waker) -> Option<i64> {
        let drift = i64::try_from(self.alignment.max_drift.0).unwrap_or(i64::MAX);
        let group = &self.alignment.group;
        let mut groups = self.groups.lock();
        let bound = groups.least(group)?.saturating_add(drift);
        if greatest > bound
            && let Some(group) = groups.here.get_mut(group)
        {
            group.waiting.insert(self.subtask, Waker::clone(waker));
        }
        Some(bound)
    }

    /// How long it may wait without being woken.
    #[must_use]
    pub const fn update_interval(&self) -> TimeSpan {
        self.alignment.update_interval
    }
}

impl Drop for AlignmentMember {
    fn drop(&mut self) {
        self.groups.change(&self.alignment.group, |group| {
            group.members.remove(&self.subtask);
        });
    }
}
