//! Which files hold one table as it was at a checkpoint, and what has changed since: whether a snapshot is written
//! whole or as a delta (K6).
//!
//! The files of a checkpoint are a *chain* of layers: a whole one, then deltas. A new checkpoint builds on the chain
//! of the base that its barrier names, so it refers to nothing but files of the base and its own; whatever became of
//! the checkpoints between, their changes are counted since the base. Deltas are merged without reading any file: a
//! delta since an earlier layer replaces the later ones. Eight deltas of one size become one of the next, and when
//! all deltas would exceed half of the whole layer, a whole one is written: so a chain has at most 22 layers, its
//! files at most one and a half times the rows of the table, and each change is written about three times.
//!
//! Where no checkpoint is a base, because none is stored (storage `JobManager`) or the first has not completed, nothing is
//! kept that only a base would need: changes take no more memory the longer the job runs.
//!
//! It knows nothing of how changes are noted ([`Changes`]). All of it but [`History::frozen`] runs off the task's
//! thread, and that never waits for the rest.

use super::TableLayout;
use crate::operator::{KeyedLayers, LayerRecorder, WriteOptions};
use sluice_protocol::CheckpointId;
use sluice_protocol::state::{KeyedStateHandle, KeyedStateKind, StateData};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(test)]
mod tests;

/// Deltas of one level that become one of the next.
const FAN_OUT: usize = 8;

/// The highest level.
const MAX_LEVEL: u8 = 2;

/// Periods after the base that are kept apart.
const MAX_PERIODS: usize = 8;

/// Chains after the base that are kept: of checkpoints that may still complete. Without its chain one is no base for a
/// delta.
const MAX_CHAINS: usize = 64;

/// What changed in a table between two freezes.
pub(super) trait Changes {
    /// The changes of this period and the next.
    fn merge(&self, newer: &Self) -> Self;

    /// How many keys it may be; `None`: unknown, so that no delta can be written.
    fn count(&self) -> Option<u64>;

    /// They will not be asked for any more.
    fn forget(&self) {}
}

/// Files that were stored with one checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    end: CheckpointId,
    level: u8,
    rows: u64,
    handles: Vec<KeyedStateHandle>,
}

/// How a snapshot is to be written.
#[derive(Debug)]
pub(super) enum Plan<C> {
    /// All rows.
    Whole,
    /// What changed since the layers that are kept.
    Delta { kept: Vec<Layer>, level: u8, changes: Vec<Arc<C>> },
}

impl<C> Plan<C> {
    pub(super) const fn kind(&self) -> KeyedStateKind {
        match self {
            Self::Whole => KeyedStateKind::Full,
            Self::Delta { .. } => KeyedStateKind::Delta,
        }
    }

    /// Bytes of the layers that are kept, as far as they lie in `_metadata`.
    pub(super) fn inline_bytes(&self) -> u64 {
        let Self::Delta { kept, .. } = self else { return 0 };
        let inline = |handle: &KeyedStateHandle| match &handle.data {
            StateData::Inline { bytes } => bytes.len() as u64,
            StateData::File { .. } => 0,
        };
        kept.iter().flat_map(|layer| &layer.handles).map(inline).sum()
    }
}

/// Changes after the freeze for `start` (`None`: the restore) up to the one for `end`.
#[derive(Debug)]
struct Period<C> {
    start: Option<CheckpointId>,
    end: CheckpointId,
    changes: Arc<C>,
}

#[derive(Debug)]
struct Inner<C> {
    chains: BTreeMap<CheckpointId, Vec<Layer>>,
    periods: Vec<Period<C>>,
    last: Option<CheckpointId>,
    /// Some checkpoint was a base: a savepoint, which builds on none, forgets nothing then.
    has_base: bool,
}

/// The history of one table.
#[derive(Debug)]
pub(super) struct History<C> {
    /// Not yet among the periods: the task's thread never waits for a plan.
    frozen: Mutex<Vec<(CheckpointId, C)>>,
    inner: Mutex<Inner<C>>,
}

impl<C> Default for History<C> {
    fn default() -> Self {
        let inner = Inner { chains: BTreeMap::new(), periods: Vec::new(), last: None, has_base: false };
        Self { frozen: Mutex::default(), inner: Mutex::new(inner) }
    }
}

impl<C: Changes> History<C> {
    /// The table was frozen for this checkpoint, with these changes since it was frozen before.
    pub(super) fn frozen(&self, checkpoint: CheckpointId, changes: C) {
        lock(&self.frozen).push((checkpoint, changes));
    }

    /// How this checkpoint of a table of so many rows is to be written.
    pub(super) fn plan(
        &self,
        checkpoint: CheckpointId,
        options: &WriteOptions,
        rows: u64,
        layout: &TableLayout,
    ) -> Plan<C> {
        let mut inner = lock(&self.inner);
        let frozen = std::mem::take(&mut *lock(&self.frozen));
        frozen.into_iter().for_each(|(end, changes)| inner.push(end, changes));
        let Some(base) = options.base else {
            inner.prune_without_base(checkpoint);
            return Plan::Whole;
        };
        inner.prune(base, checkpoint);
        if rows * (layout.words as u64 + 1) * 8 < options.whole_below {
            return Plan::Whole;
        }
        inner.plan_delta(checkpoint, base).unwrap_or(Plan::Whole)
    }

    /// What is told of a written snapshot.
    pub(super) fn layers(history: &Arc<Self>, name: &str, checkpoint: CheckpointId, plan: Plan<C>) -> KeyedLayers
    where
        C: Send + Sync + 'static,
    {
        let (kept, level) = match plan {
            Plan::Whole => (Vec::new(), 0),
            Plan::Delta { kept, level, .. } => (kept, level),
        };
        let reused = kept.iter().flat_map(|layer| layer.handles.clone()).collect();
        let recorder = Recorder { history: Arc::clone(history), checkpoint, kept, level };
        KeyedLayers { name: name.to_owned(), reused, recorder: Arc::new(recorder) }
    }
}

impl<C: Changes> Inner<C> {
    fn push(&mut self, end: CheckpointId, changes: C) {
        let period = Period { start: self.last, end, changes: Arc::new(changes) };
        self.periods.push(period);
        self.last = Some(end);
    }

    /// Forgets the changes before a checkpoint.
    fn forget(&mut self, before: CheckpointId) {
        self.periods.iter().filter(|period| period.end <= before).for_each(|period| period.changes.forget());
        self.periods.retain(|period| period.end > before);
    }

    /// The first base will be this checkpoint, a later one, or one of the last before it: what no delta could be made of by
    /// then is forgotten.
    fn prune_without_base(&mut self, checkpoint: CheckpointId) {
        if self.has_base {
            return;
        }
        let last = self.periods.iter().rev().nth(MAX_PERIODS).map(|period| period.end);
        let known_since = if self.chains.is_empty() { Some(checkpoint) } else { last };
        if let Some(since) = known_since {
            self.forget(since);
            self.chains.retain(|id, _| *id >= since);
        }
    }

    /// Forgets what no later checkpoint can need: the base never goes back.
    fn prune(&mut self, base: CheckpointId, checkpoint: CheckpointId) {
        self.has_base = true;
        self.chains.retain(|id, _| *id >= base);
        while self.chains.len() > MAX_CHAINS
            && let Some(oldest) = self.chains.keys().copied().find(|id| *id > base)
        {
            self.chains.remove(&oldest);
        }
        let needed = self.chains.values().filter_map(|chain| chain.first()).map(|layer| layer.end).min();
        self.forget(needed.unwrap_or(base));
        let boundaries: BTreeSet<CheckpointId> = self.chains.values().flatten().map(|layer| layer.end).collect();
        let mut index = 0;
        while index + 1 < self.periods.len() {
            let later = self.periods.iter().filter(|period| period.end > base).count();
            let (end, next) = (self.periods[index].end, self.periods[index + 1].end);
            // A merged period makes deltas larger, never wrong; only what is still to be written must stay apart.
            let crowded = later > MAX_PERIODS && end > base && next < checkpoint;
            if crowded || (next <= base && !boundaries.contains(&end)) {
                self.merge_next(index);
            } else {
                index += 1;
            }
        }
    }

    fn merge_next(&mut self, index: usize) {
        let next = self.periods.remove(index + 1);
        let period = &mut self.periods[index];
        period.changes = Arc::new(period.changes.merge(&next.changes));
        period.end = next.end;
    }

    /// `None`: there is no base to build on, or it is not worth while.
    fn plan_delta(&self, checkpoint: CheckpointId, base: CheckpointId) -> Option<Plan<C>> {
        let chain = self.chains.get(&base)?;
        let last = chain.last()?;
        if self.count_since(last.end, checkpoint)? == 0 {
            return Some(Plan::Delta { kept: chain.clone(), level: 0, changes: Vec::new() });
        }
        let (kept, level) = build_on(chain);
        let (whole, deltas) = kept.split_first()?;
        let since = kept.last()?.end;
        let deltas: u64 = deltas.iter().map(|layer| layer.rows).sum();
        let changed = self.count_since(since, checkpoint)?;
        (deltas + changed <= whole.rows / 2).then(|| Plan::Delta {
            kept: kept.to_vec(),
            level,
            changes: self.since(since, checkpoint).map(|period| Arc::clone(&period.changes)).collect(),
        })
    }

    fn since(&self, start: CheckpointId, end: CheckpointId) -> impl Iterator<Item = &Period<C>> {
        self.periods.iter().filter(move |period| period.end > start && period.end <= end)
    }

    /// `None`: not all changes are known, or some cannot be told from later ones.
    fn count_since(&self, start: CheckpointId, end: CheckpointId) -> Option<u64> {
        let first = self.periods.first()?;
        let is_known = first.start.is_some_and(|known| known <= start) && self.periods.iter().any(|one| one.end == end);
        if !is_known {
            return None;
        }
        self.since(start, end).map(|period| period.changes.count()).sum()
    }
}

/// The layers of a chain that a new delta builds on, and its level.
fn build_on(chain: &[Layer]) -> (&[Layer], u8) {
    let (mut kept, mut level) = (chain.len(), 0);
    loop {
        let deltas = chain.get(1..kept).unwrap_or_default();
        let run = deltas.iter().rev().take_while(|layer| layer.level == level).count();
        if run + 1 < FAN_OUT {
            return (&chain[..kept], level);
        }
        kept -= run;
        if level == MAX_LEVEL {
            return (&chain[..kept], level);
        }
        level += 1;
    }
}

struct Recorder<C> {
    history: Arc<History<C>>,
    checkpoint: CheckpointId,
    kept: Vec<Layer>,
    level: u8,
}

impl<C: Send + Sync> LayerRecorder for Recorder<C> {
    fn stored(&self, pieces: Vec<KeyedStateHandle>) {
        let mut chain = self.kept.clone();
        if chain.is_empty() || !pieces.is_empty() {
            let rows = pieces.iter().map(|piece| piece.rows).sum();
            chain.push(Layer { end: self.checkpoint, level: self.level, rows, handles: pieces });
        }
        lock(&self.history.inner).chains.insert(self.checkpoint, chain);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
