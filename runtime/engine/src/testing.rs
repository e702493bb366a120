//! What the unit tests of this crate share.

pub(crate) mod connectors;

use crate::batch::{Batch, RowKind};
use crate::operator::{
    Collector, KeyedPiece, OperatorContext, OperatorState, RestoredKeyed, SnapshotWriter, WriteOptions,
};
use crate::state::StateBackend;
use crate::state::disk::DiskSpace;
use arrow::array::Array;
use arrow::util::display::array_value_to_string;
use sluice_protocol::{KeyGroupRange, SubtaskIndex};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Keeps what is emitted.
#[derive(Debug, Default)]
pub(crate) struct Collected(pub(crate) Vec<Batch>);

impl Collector for Collected {
    fn collect(&mut self, batch: Batch) {
        self.0.push(batch);
    }
}

/// Subtask `index` of `parallelism` under 128 key groups.
pub(crate) fn context(index: u32, parallelism: u32) -> OperatorContext {
    OperatorContext {
        uid: "groups".into(),
        subtask: SubtaskIndex(index),
        parallelism,
        key_groups: KeyGroupRange::of_subtask(SubtaskIndex(index), parallelism, 128),
        max_parallelism: 128,
        state_backend: crate::state::StateBackend::default(),
    }
}

/// Both state backends; the second one's directory goes with it.
pub(crate) fn backends() -> [StateBackend; 2] {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("unit-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    // Every new table is synced: where there is a file system in memory, tests of many tables take it.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let space = DiskSpace::create(&place, &name, 16 << 20).unwrap();
    [StateBackend::Hash, StateBackend::Disk(space)]
}

/// All of a frozen state, in memory.
pub(crate) fn written(writer: &dyn SnapshotWriter) -> OperatorState {
    let mut pieces = Vec::new();
    let taken = writer.write(&WriteOptions::default(), &mut |piece| {
        pieces.push(piece);
        Ok(())
    });
    OperatorState { keyed: pieces, ..taken.unwrap() }
}

/// A stored piece as it comes back.
pub(crate) fn restored(piece: &KeyedPiece) -> RestoredKeyed {
    RestoredKeyed { name: piece.name.clone(), kind: piece.kind, divided_into: None, bytes: piece.bytes.clone().into() }
}

/// A seeded generator (xorshift).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The rows of a batch as text, kind first.
pub(crate) fn lines(batch: &Batch) -> Vec<String> {
    (0..batch.len())
        .map(|row| {
            let kind = batch.kinds.as_ref().map_or(0, |kinds| kinds.value(row));
            let mut line = RowKind::from_number(kind).unwrap().short().to_owned();
            for value in values(batch, row) {
                line.push(' ');
                line.push_str(&value);
            }
            line
        })
        .collect()
}

fn values(batch: &Batch, row: usize) -> Vec<String> {
    let text = |column: &dyn Array| {
        if column.is_null(row) { "NULL".to_owned() } else { array_value_to_string(column, row).unwrap() }
    };
    batch.rows.columns().iter().map(|column| text(column)).collect()
}

/// A changelog applied to a table: its first column is the key. Refuses changes that do not fit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct View(pub(crate) BTreeMap<String, Vec<String>>);

impl View {
    pub(crate) fn apply(&mut self, batch: &Batch) {
        for row in 0..batch.len() {
            let mut values = values(batch, row);
            let rest = values.split_off(1);
            let key = values.remove(0);
            let kind = batch.kinds.as_ref().map_or(0, |kinds| kinds.value(row));
            match RowKind::from_number(kind).unwrap() {
                RowKind::Insert => assert_eq!(self.0.insert(key.clone(), rest), None, "+I of {key}, which is there"),
                RowKind::UpdateAfter => drop(self.0.insert(key, rest)),
                RowKind::UpdateBefore => assert_eq!(self.0.get(&key), Some(&rest), "-U of {key}"),
                RowKind::Delete => assert_eq!(self.0.remove(&key), Some(rest), "-D of {key}"),
            }
        }
    }

    pub(crate) fn apply_all(&mut self, batches: &Collected) {
        batches.0.iter().for_each(|batch| self.apply(batch));
    }
}
