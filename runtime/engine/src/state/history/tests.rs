//! What is kept where checkpoints come and come and none is, or none becomes, the base of the next.

use super::*;
use sluice_protocol::KeyGroupRange;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Changes that say how many of them there are.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(live: &Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(live))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Changes for Counted {
    fn merge(&self, _: &Self) -> Self {
        Self::new(&self.0)
    }

    fn count(&self) -> Option<u64> {
        Some(1)
    }
}

struct Table {
    history: Arc<History<Counted>>,
    live: Arc<AtomicUsize>,
}

impl Table {
    fn new() -> Self {
        Self { history: Arc::default(), live: Arc::default() }
    }

    /// A freeze, and its snapshot on this base; `is_stored`: its files are, whatever becomes of the checkpoint.
    fn checkpoint(&self, id: u64, base: Option<u64>, is_stored: bool) -> KeyedStateKind {
        let id = CheckpointId(id);
        self.history.frozen(id, Counted::new(&self.live));
        self.write(id, base, is_stored)
    }

    fn write(&self, id: CheckpointId, base: Option<u64>, is_stored: bool) -> KeyedStateKind {
        let layout = TableLayout { keys: Vec::new(), accumulators: Vec::new(), words: 1, prefix: None, updated: None };
        let options = WriteOptions { base: base.map(CheckpointId), whole_below: 0 };
        let plan = self.history.plan(id, &options, 1000, &layout);
        let (kind, rows) = (plan.kind(), if matches!(plan, Plan::Whole) { 1000 } else { 1 });
        let layers = History::layers(&self.history, "counts", id, plan);
        if is_stored {
            let (name, key_groups) = ("counts".to_owned(), KeyGroupRange { start: 0, end: 1 });
            let data = StateData::file(format!("{id}.parquet"), &[]);
            layers.recorder.stored(vec![KeyedStateHandle { name, key_groups, rows, kind, data }]);
        }
        kind
    }

    fn is_bounded(&self) -> bool {
        let inner = lock(&self.history.inner);
        self.live.load(Ordering::Relaxed) <= 2 * MAX_PERIODS
            && inner.periods.len() <= 2 * MAX_PERIODS
            && inner.chains.len() <= MAX_CHAINS + 1
    }
}

#[test]
fn checkpoints_that_nobody_stores_leave_no_changes_behind() {
    let table = Table::new();
    for id in 1..=1000 {
        assert_eq!(table.checkpoint(id, None, false), KeyedStateKind::Full);
        assert_eq!(table.live.load(Ordering::Relaxed), 0, "checkpoint {id}");
    }
}

#[test]
fn a_first_checkpoint_that_never_completes_leaves_little_behind_and_the_first_that_does_is_a_base() {
    let table = Table::new();
    for id in 1..=1000 {
        assert_eq!(table.checkpoint(id, None, true), KeyedStateKind::Full);
        assert!(table.is_bounded(), "checkpoint {id}");
    }
    assert_eq!(table.checkpoint(1001, Some(997), true), KeyedStateKind::Delta, "of the last four");
    let long_ago = Table::new();
    (1..=100).for_each(|id| _ = long_ago.checkpoint(id, None, true));
    assert_eq!(long_ago.checkpoint(101, Some(2), true), KeyedStateKind::Full, "what has changed since is not known");
}

#[test]
fn checkpoints_that_never_complete_leave_little_behind_and_the_base_is_one_still() {
    let table = Table::new();
    table.checkpoint(1, None, true);
    for id in 2..=1000 {
        assert_eq!(table.checkpoint(id, Some(1), true), KeyedStateKind::Delta, "checkpoint {id}");
        assert!(table.is_bounded(), "checkpoint {id}");
        let last = id == 1000;
        assert!(!last || table.checkpoint(1001, Some(999), true) == KeyedStateKind::Delta);
    }
}

#[test]
fn a_savepoint_forgets_nothing_that_its_checkpoint_needs() {
    let table = Table::new();
    table.checkpoint(1, None, true);
    for id in 2..=30 {
        table.history.frozen(CheckpointId(id), Counted::new(&table.live));
        assert_eq!(table.write(CheckpointId(id), None, false), KeyedStateKind::Full, "the savepoint");
        assert_eq!(table.write(CheckpointId(id), Some(id - 1), true), KeyedStateKind::Delta, "checkpoint {id}");
    }
}
