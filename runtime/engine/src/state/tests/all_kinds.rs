//! The suite over all kinds of state: an operator that keeps keyed state, lists of both kinds and broadcast state, through
//! whole snapshots. On every backend, stored incrementally and as a savepoint, restored at other parallelisms and on every
//! backend, it is what its input makes it.

use super::conformance::backends;
use super::*;
use crate::batch::Batch;
use crate::operator::{Collector, Operator, OperatorState, RestoredList, RestoredState, TakePiece, WriteOptions};
use crate::partition::rows_of_subtask;
use crate::state::list::{BroadcastState, ListState};
use crate::testing::{Collected, context};
use sluice_protocol::graph::{JobGraph, OperatorInfo, OperatorKind, Vertex};
use sluice_protocol::metadata::{Metadata, VERSION, assign_state, describe_vertices};
use sluice_protocol::state::{KeyedStateHandle, OperatorSnapshot, OperatorStateHandle, StateData};
use sluice_protocol::{Attempt, Generation, JobId, Run, SubtaskId, Timestamp, VertexId};

const UID: &str = "groups";

/// Counts numbers by key; remembers each as an item of its own and the largest in a list that all see; rules come to
/// everybody.
struct Remembers {
    counts: Box<dyn KeyedTable>,
    numbers: ListState<i64>,
    largest: ListState<i64>,
    rules: BroadcastState<i64, String>,
}

impl Remembers {
    fn open(
        index: u32,
        (parallelism, max_parallelism): (u32, u16),
        backend: &StateBackend,
        state: RestoredState,
    ) -> Result<Self, TaskError> {
        let context = OperatorContext {
            key_groups: KeyGroupRange::of_subtask(SubtaskIndex(index), parallelism, max_parallelism),
            max_parallelism,
            state_backend: backend.clone(),
            ..context(index, parallelism)
        };
        let mut counts = context.keyed_table("counts", layout(&[("k", DataType::Int64)]))?;
        counts.restore(&UID.into(), &state.keyed)?;
        let mut largest: ListState<i64> = ListState::union("largest", &context, &state)?;
        // All see all; what is stored next is the one that this subtask makes of it.
        let over_all = largest.get().iter().copied().max();
        largest.update(over_all.into_iter().collect());
        let numbers = ListState::split("numbers", &context, &state)?;
        Ok(Self { counts, numbers, largest, rules: BroadcastState::new("rules", &context, &state)? })
    }
}

impl Operator for Remembers {
    fn open(&mut self, _: &OperatorContext, _: RestoredState) -> Result<(), TaskError> {
        Ok(())
    }

    fn process(&mut self, batch: Batch, _: &mut dyn Collector) -> Result<(), TaskError> {
        add(self.counts.as_mut(), &batch.rows, 1);
        for value in batch.rows.column(0).as_primitive::<Int64Type>().values() {
            self.numbers.add(*value);
            let before = self.largest.get().first().copied();
            self.largest.update(vec![before.map_or(*value, |before| before.max(*value))]);
        }
        Ok(())
    }

    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let lists = vec![self.numbers.snapshot()?, self.largest.snapshot()?, self.rules.snapshot()?];
        Ok(Some(Box::new(Frozen { counts: self.counts.freeze(checkpoint)?, lists })))
    }
}

struct Frozen {
    counts: Box<dyn SnapshotWriter>,
    lists: Vec<crate::operator::ListPiece>,
}

impl SnapshotWriter for Frozen {
    fn write(&self, options: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError> {
        Ok(OperatorState { operator: self.lists.clone(), ..self.counts.write(options, take)? })
    }
}

/// What the numbers that were given make of the state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Model {
    counts: BTreeMap<i64, i64>,
    numbers: Vec<i64>,
    rules: BTreeMap<i64, String>,
}

/// All subtasks of the operator, and the snapshots that they have stored.
struct Job {
    subtasks: Vec<Remembers>,
    model: Model,
    /// Objects by their paths, and the last complete checkpoint with what it holds.
    files: BTreeMap<String, Bytes>,
    base: Option<Metadata>,
    checkpoint: u64,
}

impl Job {
    fn start(parallelism: u32, backend: &StateBackend) -> Self {
        let open = |index| Remembers::open(index, (parallelism, 128), backend, RestoredState::default()).unwrap();
        let subtasks = (0..parallelism).map(open).collect();
        Self { subtasks, model: Model::default(), files: BTreeMap::new(), base: None, checkpoint: 0 }
    }

    /// Rows go where a hash edge sends them, a rule goes to all.
    fn give(&mut self, values: impl Iterator<Item = i64> + Clone, rule: i64) {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(values.clone()));
        let rows = Batch::inserts(RecordBatch::try_from_iter([("k", column)]).unwrap());
        let parallelism = self.subtasks.len() as u32;
        for (index, subtask) in (0..).zip(&mut self.subtasks) {
            let own = rows_of_subtask(rows.clone(), &[0], SubtaskIndex(index), parallelism, 128).unwrap();
            if let Some(own) = own {
                subtask.process(own, &mut Collected::default()).unwrap();
            }
            subtask.rules.put(rule, format!("rule {rule}"));
        }
        values.clone().for_each(|value| *self.model.counts.entry(value).or_default() += 1);
        self.model.numbers.extend(values);
        self.model.numbers.sort_unstable();
        self.model.rules.insert(rule, format!("rule {rule}"));
    }

    /// One barrier, two snapshots (K4): a checkpoint on the base, which is complete then, and a savepoint.
    fn barrier(&mut self) -> (Metadata, Metadata) {
        self.checkpoint += 1;
        let id = CheckpointId(self.checkpoint);
        let base = self.base.as_ref().map(|base| base.checkpoint);
        let frozen: Vec<_> = self.subtasks.iter_mut().map(|subtask| subtask.snapshot(id).unwrap().unwrap()).collect();
        let savepoint = self.write(id, true, &frozen, WriteOptions::default());
        let checkpoint = self.write(id, false, &frozen, WriteOptions { base, whole_below: 0 });
        self.base = Some(checkpoint.clone());
        (checkpoint, savepoint)
    }

    fn write(
        &mut self,
        checkpoint: CheckpointId,
        savepoint: bool,
        frozen: &[Box<dyn SnapshotWriter>],
        options: WriteOptions,
    ) -> Metadata {
        let operators =
            (0..).zip(frozen).map(|(index, frozen)| self.write_subtask(index, savepoint, frozen.as_ref(), options));
        Metadata {
            version: VERSION,
            job: JobId { namespace: "default".to_owned(), name: "all-kinds".to_owned(), uid: "1".to_owned() },
            run: Run { generation: Generation(1), attempt: Attempt(1) },
            checkpoint,
            origin: None,
            nonce: "n".to_owned(),
            triggered_at: Timestamp(1),
            key_group_function: sluice_protocol::key_group::NAME.to_owned(),
            max_parallelism: 128,
            savepoint,
            in_flight: vec![],
            details: None,
            operators: operators.collect(),
            vertices: describe_vertices(&graph((frozen.len() as u32, 128))),
        }
    }

    fn write_subtask(
        &mut self,
        index: u32,
        savepoint: bool,
        frozen: &dyn SnapshotWriter,
        options: WriteOptions,
    ) -> OperatorSnapshot {
        let mut keyed = Vec::new();
        let state = frozen
            .write(&options, &mut |piece| {
                let path = format!("s3://b/{}-{savepoint}", self.files.len());
                self.files.insert(path.clone(), piece.bytes.clone().into());
                let data = StateData::file(path, &piece.bytes);
                let (name, key_groups) = (piece.name, piece.key_groups);
                keyed.push(KeyedStateHandle { name, key_groups, rows: piece.rows, kind: piece.kind, data });
                Ok(())
            })
            .unwrap();
        let layers = &state.layers[0];
        if !savepoint {
            layers.recorder.stored(keyed.clone());
        }
        let reused = layers.reused.clone();
        assert!(!savepoint || reused.is_empty(), "a savepoint has only files of its own");
        let list = |piece: crate::operator::ListPiece| OperatorStateHandle {
            name: piece.name,
            redistribution: piece.redistribution,
            first: 0,
            items: piece.items.len() as u64,
            data: StateData::Inline { bytes: serde_json::to_vec(&piece.items).unwrap() },
        };
        let operator = state.operator.into_iter().map(list).collect();
        let keyed = reused.into_iter().chain(keyed).collect();
        OperatorSnapshot {
            uid: UID.into(),
            subtask: SubtaskIndex(index),
            keyed,
            operator,
            splits: vec![],
            committables: vec![],
        }
    }

    /// What a snapshot starts, at any parallelism and maximum of it, and on any backend.
    fn restored(&self, metadata: &Metadata, parallelism: (u32, u16), backend: &StateBackend) -> Vec<Remembers> {
        let mut assigned = assign_state(metadata, &graph(parallelism), "s3://b/1/chk-1", false).unwrap();
        let open = |index| {
            let subtask = SubtaskId { vertex: VertexId(0), index: SubtaskIndex(index) };
            let assigned = assigned.remove(&subtask).unwrap();
            let mut state = RestoredState { restored: true, ..RestoredState::default() };
            for snapshot in assigned.operators {
                let fetch = |handle| self.fetch(handle, assigned.divided_into);
                state.keyed.extend(snapshot.keyed.into_iter().map(fetch));
                state.operator.extend(snapshot.operator.into_iter().map(read_list));
            }
            Remembers::open(index, parallelism, backend, state).unwrap()
        };
        (0..parallelism.0).map(open).collect()
    }

    fn fetch(&self, handle: KeyedStateHandle, divided_into: Option<u16>) -> RestoredKeyed {
        let StateData::File { path, .. } = handle.data else { panic!("it is a file") };
        let bytes = self.files[&path].clone().into();
        RestoredKeyed { name: handle.name, kind: handle.kind, divided_into, bytes }
    }
}

fn read_list(handle: OperatorStateHandle) -> RestoredList {
    let StateData::Inline { bytes } = handle.data else { panic!("it is inline") };
    let items: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
    let items = items.into_iter().skip(handle.first as usize).take(handle.items as usize).collect();
    RestoredList { name: handle.name, redistribution: handle.redistribution, items }
}

fn graph((parallelism, max_parallelism): (u32, u16)) -> JobGraph {
    let operator = OperatorInfo { uid: UID.into(), kind: OperatorKind::Keyed, description: "remembers".to_owned() };
    let vertex = Vertex { id: VertexId(0), name: "remembers".to_owned(), parallelism, operators: vec![operator] };
    JobGraph { vertices: vec![vertex], edges: vec![], max_parallelism }
}

/// All subtasks together hold what the model says, each of it where it belongs.
fn check(subtasks: &mut [Remembers], model: &Model, what: &str) {
    let mut counts = BTreeMap::new();
    for subtask in subtasks.iter_mut() {
        for (key, count) in content(freeze(subtask.counts.as_mut()).as_ref()) {
            assert_eq!(counts.insert(key.parse().unwrap(), count), None, "{what}: a key stands in one subtask");
        }
        assert_eq!(subtask.largest.get().first(), model.numbers.last(), "{what}: all see the items of all");
        let rules: BTreeMap<i64, String> = subtask.rules.entries().map(|(key, rule)| (*key, rule.clone())).collect();
        assert_eq!(rules, model.rules, "{what}");
    }
    assert_eq!(counts, model.counts, "{what}");
    let mut numbers: Vec<i64> = subtasks.iter().flat_map(|subtask| subtask.numbers.get()).copied().collect();
    numbers.sort_unstable();
    assert_eq!(numbers, model.numbers, "{what}: each item once");
}

#[test]
fn every_kind_of_state_survives_checkpoints_and_savepoints_on_every_backend_at_any_parallelism() {
    let parallelisms = [(1, 128), (2, 128), (3, 128), (5, 128), (1, 64), (3, 64), (2, 300), (4, 7)];
    for (taken_on, backend) in backends() {
        let mut job = Job::start(3, &backend);
        job.give(0..400, 0);
        let mut deltas = 0;
        for round in 1..=4 {
            let (checkpoint, savepoint) = job.barrier();
            let pieces = checkpoint.operators.iter().flat_map(|operator| &operator.keyed);
            deltas += pieces.filter(|piece| piece.kind == sluice_protocol::state::KeyedStateKind::Delta).count();
            for (kind, metadata) in [("checkpoint", checkpoint), ("savepoint", savepoint)] {
                for (restored_on, other) in backends() {
                    for parallelism in parallelisms {
                        let what = format!("{kind} {round}, {taken_on} to {restored_on}, 3 of 128 to {parallelism:?}");
                        let mut subtasks = job.restored(&metadata, parallelism, &other);
                        check(&mut subtasks, &job.model, &what);
                    }
                }
            }
            // Few of the keys change, some come anew: the next checkpoint is a delta.
            job.give((0..8).map(|number| number * 50 + round), round);
        }
        assert!(deltas >= 6, "{taken_on}: {deltas} deltas");
    }
}

/// A restored job is no dead end: it goes on, is stored anew, and is restored on the other backend again.
#[test]
fn a_job_that_was_restored_goes_on_and_is_stored_again() {
    for (first, second) in [(0, 1), (1, 0)] {
        let backends = backends();
        let mut job = Job::start(2, &backends[first].1);
        job.give(0..100, 1);
        let (_, savepoint) = job.barrier();
        job.subtasks = job.restored(&savepoint, (3, 128), &backends[second].1);
        job.base = None;
        job.give(50..150, 2);
        let (checkpoint, _) = job.barrier();
        let mut subtasks = job.restored(&checkpoint, (2, 128), &backends[first].1);
        check(&mut subtasks, &job.model, &format!("{} to {} and back", backends[first].0, backends[second].0));
    }
}

#[test]
fn lists_are_dealt_out_evenly_and_in_order() {
    let mut job = Job::start(3, &StateBackend::Hash);
    for (subtask, numbers) in job.subtasks.iter_mut().zip([vec![1, 2, 3, 4, 5], vec![60, 61], vec![8, 9]]) {
        numbers.into_iter().for_each(|number| subtask.numbers.add(number));
    }
    let (_, savepoint) = job.barrier();
    let lists = |parallelism| -> Vec<Vec<i64>> {
        let subtasks = job.restored(&savepoint, (parallelism, 128), &StateBackend::Hash);
        subtasks.iter().map(|subtask| subtask.numbers.get().to_vec()).collect()
    };
    assert_eq!(lists(3), [vec![1, 2, 3, 4, 5], vec![60, 61], vec![8, 9]], "each gets its own back");
    for parallelism in [1, 2, 4, 5, 12] {
        let lists = lists(parallelism);
        assert_eq!(lists.concat(), [1, 2, 3, 4, 5, 60, 61, 8, 9], "each item once, in order");
        let most = lists.iter().map(Vec::len).max().unwrap();
        assert!(most <= 9_usize.div_ceil(parallelism as usize), "evenly");
    }
}

#[test]
fn a_list_restored_as_another_kind_is_refused_by_name() {
    let state = RestoredState {
        restored: true,
        operator: vec![RestoredList {
            name: "numbers".to_owned(),
            redistribution: sluice_protocol::state::Redistribution::Split,
            items: vec![serde_json::json!("not a number")],
        }],
        ..RestoredState::default()
    };
    let union = ListState::<String>::union("numbers", &context(0, 1), &state).unwrap_err();
    assert!(union.to_string().contains("state 'numbers' of operator 'groups' is Union"), "{union}");
    let numbers = ListState::<i64>::split("numbers", &context(0, 1), &state).unwrap_err();
    assert!(numbers.to_string().contains("cannot be read"), "{numbers}");
}
