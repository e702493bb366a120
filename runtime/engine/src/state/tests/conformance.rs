//! One suite for all state backends: what is stored incrementally and restored, at any parallelism and on any backend,
//! is what the table held when it was frozen, whatever became of the checkpoints between. Other kinds of state, and
//! savepoints, are added by [`super::all_kinds`].

use super::*;
use crate::operator::{KeyedPiece, RestoredKeyed, WriteOptions};
use sluice_protocol::state::{KeyedStateHandle, KeyedStateKind, StateData};
use std::sync::atomic::{AtomicU32, Ordering};

const KEY_GROUPS: u16 = 16;

/// What a table should hold: text of the key and its words.
type Model = BTreeMap<Option<i64>, u64>;

/// The backends under test, each with a name.
pub(super) fn backends() -> Vec<(&'static str, StateBackend)> {
    vec![("Hash", StateBackend::Hash), ("Disk", StateBackend::Disk(space()))]
}

fn space() -> Arc<DiskSpace> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    DiskSpace::create(&std::env::temp_dir(), &name, 16 << 20).unwrap()
}

fn open(backend: &StateBackend, key: &DataType, subtask: u32, parallelism: u32) -> Box<dyn KeyedTable> {
    let context = OperatorContext {
        key_groups: KeyGroupRange::of_subtask(SubtaskIndex(subtask), parallelism, KEY_GROUPS),
        max_parallelism: KEY_GROUPS,
        state_backend: backend.clone(),
        ..crate::testing::context(subtask, parallelism)
    };
    context.keyed_table("counts", layout(&[("k", key.clone())])).unwrap()
}

fn batch(key: &DataType, keys: &[Option<i64>]) -> RecordBatch {
    let column: ArrayRef = match key {
        DataType::Int64 => Arc::new(Int64Array::from(keys.to_vec())),
        _ => Arc::new(StringArray::from_iter(keys.iter().map(|key| key.map(|key| format!("key {key}"))))),
    };
    RecordBatch::try_from_iter_with_nullable([("k", column, true)]).unwrap()
}

/// A stored checkpoint: its files in order, and what it should hold.
#[derive(Clone)]
struct Stored {
    files: Vec<(KeyedStateHandle, Bytes)>,
    expected: Model,
}

struct Run<'a> {
    backend: &'a StateBackend,
    key: DataType,
    random: Random,
    table: Box<dyn KeyedTable>,
    model: Model,
    next: u64,
    base: Option<(CheckpointId, Stored)>,
    keys: u64,
}

impl<'a> Run<'a> {
    fn new(backend: &'a StateBackend, key: DataType, seed: u64, keys: u64) -> Self {
        let table = open(backend, &key, 0, 1);
        Self { backend, key, random: Random(seed), table, model: Model::new(), next: 1, base: None, keys }
    }

    fn random_key(&mut self) -> Option<i64> {
        Some(self.random.below(self.keys) as i64).filter(|key| *key != 3)
    }

    fn change(&mut self, writes: u64, removals: u64) {
        let written: Vec<_> = (0..writes).map(|_| self.random_key()).collect();
        let amount = 1 + self.random.below(1000);
        add(self.table.as_mut(), &batch(&self.key, &written), amount);
        written.into_iter().for_each(|key| *self.model.entry(key).or_default() += amount);
        let removed: Vec<_> = (0..removals).map(|_| self.random_key()).collect();
        remove(self.table.as_mut(), &batch(&self.key, &removed));
        removed.iter().for_each(|key| {
            self.model.remove(key);
        });
        assert_eq!(self.table.len(), self.model.len() as u64);
    }

    fn freeze(&mut self) -> (CheckpointId, Box<dyn SnapshotWriter>, Model) {
        let checkpoint = CheckpointId(self.next);
        self.next += 1;
        (checkpoint, self.table.freeze(checkpoint).unwrap(), self.model.clone())
    }

    /// Writes a frozen table as its checkpoint; it is not complete yet.
    fn write(&self, frozen: &dyn SnapshotWriter, expected: Model) -> Stored {
        let base = self.base.as_ref().map(|(base, _)| *base);
        let mut pieces = Vec::new();
        let state = frozen
            .write(&WriteOptions { base, whole_below: 0 }, &mut |piece| {
                pieces.push(piece);
                Ok(())
            })
            .unwrap();
        let layers = &state.layers[0];
        let new: Vec<_> = pieces.into_iter().map(handle).collect();
        layers.recorder.stored(new.iter().map(|(handle, _)| handle.clone()).collect());
        let of_base = self.base.iter().flat_map(|(_, stored)| &stored.files);
        let reused = layers.reused.iter().map(|handle| {
            let found = of_base.clone().find(|(other, _)| other == handle);
            found.cloned().expect("K6: it refers to no files but its base's and its own")
        });
        Stored { files: reused.chain(new).collect(), expected }
    }

    fn complete(&mut self, checkpoint: CheckpointId, stored: Stored) {
        self.base = Some((checkpoint, stored));
    }

    fn deltas(&self) -> usize {
        let files = self.base.iter().flat_map(|(_, stored)| &stored.files);
        files.filter(|(handle, _)| handle.kind == KeyedStateKind::Delta).count()
    }
}

fn handle(piece: KeyedPiece) -> (KeyedStateHandle, Bytes) {
    let KeyedPiece { name, key_groups, rows, kind, bytes, .. } = piece;
    let data = StateData::file(format!("{}", bytes.as_ptr() as usize), &bytes);
    (KeyedStateHandle { name, key_groups, rows, kind, data }, bytes.into())
}

impl Stored {
    fn restored(&self) -> Vec<RestoredKeyed> {
        let restored = |(handle, bytes): &(KeyedStateHandle, Bytes)| RestoredKeyed {
            name: handle.name.clone(),
            kind: handle.kind,
            divided_into: None,
            bytes: bytes.clone().into(),
        };
        self.files.iter().map(restored).collect()
    }

    /// Restores it and compares.
    fn check(&self, backend: &StateBackend, key: &DataType, parallelism: u32) {
        let mut found = Model::new();
        for subtask in 0..parallelism {
            let mut table = open(backend, key, subtask, parallelism);
            table.restore(&OperatorUid::from("op"), &self.restored()).unwrap();
            assert_eq!(table.len() as usize, rows(table.as_mut(), &mut found), "the number of keys is kept");
        }
        assert_eq!(found, self.expected);
        let mut merged = super::super::merged::MergedState::default();
        let mut rows = 0;
        for (handle, bytes) in self.files.iter().rev() {
            let batches = merged.read(bytes, handle.kind == KeyedStateKind::Delta, usize::MAX).unwrap();
            rows += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        }
        assert_eq!(rows, self.expected.len(), "the files laid over each other hold each key once");
    }
}

/// What a table holds, as a snapshot of it says.
fn rows(table: &mut dyn KeyedTable, found: &mut Model) -> usize {
    let mut rows = 0;
    for (key, count) in content(table.freeze(CheckpointId(9000)).unwrap().as_ref()) {
        let key = key.trim_start_matches("key ").parse().ok();
        assert_eq!(found.insert(key, count as u64), None, "a key stands in one subtask");
        rows += 1;
    }
    rows
}

#[test]
fn every_checkpoint_holds_what_was_frozen_whatever_became_of_the_ones_between() {
    for (name, backend) in backends() {
        for (seed, key) in [(11, DataType::Int64), (12, DataType::Utf8), (13, DataType::Int64), (14, DataType::Utf8)] {
            let mut run = Run::new(&backend, key, seed * 7919, 3000);
            let mut most_deltas = 0;
            run.change(4000, 0);
            for round in 0..60 {
                let (writes, removals) = (run.random.below(60), run.random.below(20));
                run.change(writes, removals);
                let (checkpoint, frozen, expected) = run.freeze();
                // While it is written, the table changes on.
                run.change(30, 10);
                match run.random.below(5) {
                    0 => drop(frozen),
                    1 => drop(run.write(frozen.as_ref(), expected)),
                    _ => {
                        let stored = run.write(frozen.as_ref(), expected);
                        if round % 7 == 0 {
                            let parallelism = 1 + run.random.below(4) as u32;
                            backends().iter().for_each(|(_, other)| stored.check(other, &run.key, parallelism));
                        }
                        run.complete(checkpoint, stored);
                    }
                }
                most_deltas = most_deltas.max(run.deltas());
            }
            run.base.as_ref().unwrap().1.check(run.backend, &run.key, 3);
            assert!(most_deltas > 3, "{name}: at most {most_deltas} deltas");
        }
    }
}

#[test]
fn a_later_checkpoint_may_be_written_before_an_earlier_one_and_both_hold() {
    for (_, backend) in backends() {
        let mut run = Run::new(&backend, DataType::Int64, 5, 2000);
        run.change(3000, 0);
        let (first, frozen, expected) = run.freeze();
        let stored = run.write(frozen.as_ref(), expected);
        run.complete(first, stored);
        for _ in 0..5 {
            run.change(20, 5);
            let (earlier, frozen_earlier, expected_earlier) = run.freeze();
            run.change(20, 5);
            let (later, frozen_later, expected_later) = run.freeze();
            run.change(20, 5);
            let stored_later = run.write(frozen_later.as_ref(), expected_later);
            let stored_earlier = run.write(frozen_earlier.as_ref(), expected_earlier);
            stored_earlier.check(&backend, &run.key, 2);
            stored_later.check(&backend, &run.key, 2);
            run.complete(earlier, stored_earlier);
            run.complete(later, stored_later);
        }
        assert!(run.deltas() > 0);
    }
}

#[test]
fn changes_of_checkpoints_that_failed_are_in_the_next_delta_however_many_failed() {
    for (_, backend) in backends() {
        let mut run = Run::new(&backend, DataType::Utf8, 21, 4000);
        run.change(8000, 0);
        let (first, frozen, expected) = run.freeze();
        let stored = run.write(frozen.as_ref(), expected);
        run.complete(first, stored);
        for failed in 0..40 {
            run.change(10, 3);
            let (_, frozen, expected) = run.freeze();
            if failed % 2 == 0 {
                run.write(frozen.as_ref(), expected);
            }
        }
        let (last, frozen, expected) = run.freeze();
        let stored = run.write(frozen.as_ref(), expected);
        stored.check(&backend, &run.key, 1);
        run.complete(last, stored);
        assert_eq!(run.deltas(), 1, "one delta since the base holds them all");
    }
}

#[test]
fn deltas_are_merged_and_bounded() {
    for (name, backend) in backends() {
        let mut run = Run::new(&backend, DataType::Int64, 33, 5000);
        run.change(30_000, 0);
        let (mut wholes, mut written, mut most) = (0, 0, 0);
        for _ in 0..400 {
            run.change(10, 2);
            let (checkpoint, frozen, expected) = run.freeze();
            let stored = run.write(frozen.as_ref(), expected);
            let (last, _) = stored.files.last().unwrap();
            wholes += u32::from(last.kind == KeyedStateKind::Full);
            written += last.rows;
            let rows: u64 = stored.files.iter().map(|(handle, _)| handle.rows).sum();
            let whole = stored.files[0].0.rows;
            assert!(rows * 2 <= whole * 3, "{name}: {rows} rows, {whole} of them whole");
            most = most.max(stored.files.len());
            run.complete(checkpoint, stored);
        }
        run.base.as_ref().unwrap().1.check(&backend, &run.key, 2);
        assert!(most <= 22, "{name}: {most} files");
        assert!((2..6).contains(&wholes), "{name}: {wholes} whole ones");
        assert!(written < 60_000, "{name}: {written} rows for 400 checkpoints of 12 changes");
    }
}

#[test]
fn nothing_changed_nothing_stored_and_an_empty_table_is_none() {
    for (_, backend) in backends() {
        let mut run = Run::new(&backend, DataType::Int64, 8, 500);
        let (first, frozen, expected) = run.freeze();
        let stored = run.write(frozen.as_ref(), expected);
        assert!(stored.files.is_empty());
        run.complete(first, stored);
        run.change(700, 0);
        for _ in 0..2 {
            let (checkpoint, frozen, expected) = run.freeze();
            let stored = run.write(frozen.as_ref(), expected);
            stored.check(&backend, &run.key, 1);
            assert_eq!(stored.files.len(), 1);
            run.complete(checkpoint, stored);
        }
        let removed: Vec<_> = run.model.keys().copied().collect();
        remove(run.table.as_mut(), &batch(&run.key, &removed));
        run.model.clear();
        let (_, frozen, expected) = run.freeze();
        run.write(frozen.as_ref(), expected).check(&backend, &run.key, 2);
    }
}

#[test]
fn after_a_restore_the_first_checkpoint_is_whole() {
    for (_, backend) in backends() {
        let mut run = Run::new(&backend, DataType::Int64, 9, 500);
        run.change(700, 0);
        let (first, frozen, expected) = run.freeze();
        let stored = run.write(frozen.as_ref(), expected);
        run.table = open(&backend, &run.key, 0, 1);
        run.table.restore(&OperatorUid::from("op"), &stored.restored()).unwrap();
        run.complete(first, stored);
        run.change(3, 1);
        let (_, frozen, expected) = run.freeze();
        let stored = run.write(frozen.as_ref(), expected);
        assert!(stored.files.iter().all(|(handle, _)| handle.kind == KeyedStateKind::Full));
        stored.check(&backend, &run.key, 1);
    }
}

#[test]
fn a_working_directory_goes_with_its_process_and_what_a_killed_one_left_goes_with_the_next() {
    let parent = std::env::temp_dir().join(format!("sluice-state-test-{}", std::process::id()));
    let make = |name: &str| DiskSpace::create(&parent, name, 1 << 20).unwrap();
    let first = make("1");
    let left = parent.join("sluice-state-killed");
    std::fs::create_dir_all(left.join("lsm")).unwrap();
    std::fs::write(left.join("lock"), "").unwrap();
    let second = make("2");
    assert!(!left.exists(), "its lock was free");
    assert!(first.directory().exists(), "that of a process that lives stays");
    let mut table = self::open(&StateBackend::Disk(Arc::clone(&second)), &DataType::Int64, 0, 1);
    add(table.as_mut(), &batch(&DataType::Int64, &[Some(1)]), 1);
    let place = second.directory().to_owned();
    drop(second);
    assert!(place.exists(), "a table uses it");
    drop(table);
    assert!(!place.exists());
    drop(first);
    std::fs::remove_dir(&parent).unwrap();
}
