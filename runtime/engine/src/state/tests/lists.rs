//! Operator state through a whole checkpoint: an operator that keeps all kinds of it, restored at another parallelism.

use super::*;
use crate::batch::Batch;
use crate::operator::{Collector, Operator, OperatorState, RestoredList, RestoredState, WriteOptions};
use crate::state::list::{BroadcastState, ListState};
use crate::testing::{Collected, context};
use sluice_protocol::graph::{JobGraph, OperatorInfo, OperatorKind, Vertex};
use sluice_protocol::metadata::{Metadata, VERSION, assign_state, describe_vertices};
use sluice_protocol::state::{OperatorSnapshot, OperatorStateHandle, StateData};
use sluice_protocol::{Attempt, Generation, JobId, Run, SubtaskId, Timestamp, VertexId};

/// Remembers numbers: each as an item of its own, the largest in a list that all see, and rules that came to everybody.
struct Remembers {
    numbers: Option<ListState<i64>>,
    largest: Option<ListState<i64>>,
    rules: Option<BroadcastState<i64, String>>,
}

impl Operator for Remembers {
    fn open(&mut self, context: &OperatorContext, state: RestoredState) -> Result<(), TaskError> {
        self.numbers = Some(ListState::split("numbers", context, &state)?);
        let mut largest: ListState<i64> = ListState::union("largest", context, &state)?;
        // All see all; what is stored next is the one that this subtask makes of it.
        let over_all = largest.get().iter().copied().max();
        largest.update(over_all.into_iter().collect());
        self.largest = Some(largest);
        self.rules = Some(BroadcastState::new("rules", context, &state)?);
        Ok(())
    }

    fn process(&mut self, batch: Batch, _: &mut dyn Collector) -> Result<(), TaskError> {
        let (numbers, largest) = (self.numbers.as_mut().unwrap(), self.largest.as_mut().unwrap());
        for value in batch.rows.column(0).as_primitive::<Int64Type>().values() {
            numbers.add(*value);
            let before = largest.get().first().copied();
            largest.update(vec![before.map_or(*value, |before| before.max(*value))]);
            self.rules.as_mut().unwrap().put(value % 2, format!("rule {}", value % 2));
        }
        Ok(())
    }

    fn snapshot(&mut self, _: CheckpointId) -> Result<Option<Box<dyn SnapshotWriter>>, TaskError> {
        let lists = [
            self.numbers.as_ref().unwrap().snapshot()?,
            self.largest.as_ref().unwrap().snapshot()?,
            self.rules.as_ref().unwrap().snapshot()?,
        ];
        Ok(Some(Box::new(OperatorState { operator: lists.to_vec(), ..OperatorState::default() })))
    }
}

fn opened(index: u32, parallelism: u32, state: RestoredState) -> Remembers {
    let mut operator = Remembers { numbers: None, largest: None, rules: None };
    operator.open(&context(index, parallelism), state).unwrap();
    operator
}

fn give(operator: &mut Remembers, values: &[i64]) {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    let rows = RecordBatch::try_from_iter([("v", column)]).unwrap();
    operator.process(Batch::inserts(rows), &mut Collected::default()).unwrap();
}

fn graph(parallelism: u32) -> JobGraph {
    let operator =
        OperatorInfo { uid: "groups".into(), kind: OperatorKind::Keyed, description: "remembers".to_owned() };
    let vertex = Vertex { id: VertexId(0), name: "remembers".to_owned(), parallelism, operators: vec![operator] };
    JobGraph { vertices: vec![vertex], edges: vec![], max_parallelism: 128 }
}

/// A checkpoint of these subtasks.
fn checkpoint(operators: &mut [Remembers]) -> Metadata {
    let parallelism = operators.len() as u32;
    let snapshot = |(index, operator): (u32, &mut Remembers)| {
        let writer = operator.snapshot(CheckpointId(1)).unwrap().unwrap();
        let state = writer.write(&WriteOptions::default(), &mut |_| Ok(())).unwrap();
        let handle = |piece: crate::operator::ListPiece| OperatorStateHandle {
            name: piece.name,
            redistribution: piece.redistribution,
            first: 0,
            items: piece.items.len() as u64,
            data: StateData::Inline { bytes: serde_json::to_vec(&piece.items).unwrap() },
        };
        let operator = state.operator.into_iter().map(handle).collect();
        OperatorSnapshot { uid: "groups".into(), subtask: SubtaskIndex(index), keyed: vec![], operator, splits: vec![] }
    };
    Metadata {
        version: VERSION,
        job: JobId { namespace: "default".to_owned(), name: "lists".to_owned(), uid: "1".to_owned() },
        run: Run { generation: Generation(1), attempt: Attempt(1) },
        checkpoint: CheckpointId(1),
        nonce: "n".to_owned(),
        triggered_at: Timestamp(1),
        key_group_function: sluice_protocol::key_group::NAME.to_owned(),
        max_parallelism: 128,
        savepoint: false,
        in_flight: vec![],
        details: None,
        vertices: describe_vertices(&graph(parallelism)),
        operators: (0..).zip(operators).map(snapshot).collect(),
    }
}

fn restored(metadata: &Metadata, parallelism: u32) -> Vec<Remembers> {
    let mut assigned = assign_state(metadata, &graph(parallelism), "s3://b/1/chk-1", false).unwrap();
    let list = |handle: OperatorStateHandle| {
        let StateData::Inline { bytes } = handle.data else { panic!("it is inline") };
        let items: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
        let items = items.into_iter().skip(handle.first as usize).take(handle.items as usize).collect();
        RestoredList { name: handle.name, redistribution: handle.redistribution, items }
    };
    let mut open = |index| {
        let subtask = SubtaskId { vertex: VertexId(0), index: SubtaskIndex(index) };
        let snapshots = assigned.remove(&subtask).unwrap().operators;
        let operator = snapshots.into_iter().flat_map(|snapshot| snapshot.operator).map(list).collect();
        opened(index, parallelism, RestoredState { restored: true, operator, ..RestoredState::default() })
    };
    (0..parallelism).map(&mut open).collect()
}

#[test]
fn lists_and_broadcast_state_survive_any_change_of_parallelism() {
    let mut operators: Vec<Remembers> = (0..3).map(|index| opened(index, 3, RestoredState::default())).collect();
    give(&mut operators[0], &[1, 2, 3, 4, 5]);
    give(&mut operators[1], &[60, 61]);
    give(&mut operators[2], &[8, 9]);
    let metadata = checkpoint(&mut operators);
    let same: Vec<Vec<i64>> =
        restored(&metadata, 3).iter().map(|operator| operator.numbers.as_ref().unwrap().get().to_vec()).collect();
    assert_eq!(same, [vec![1, 2, 3, 4, 5], vec![60, 61], vec![8, 9]], "each gets its own back");
    for parallelism in [1, 2, 4, 5, 12] {
        let operators = restored(&metadata, parallelism);
        let lists = operators.iter().map(|operator| operator.numbers.as_ref().unwrap().get());
        let all: Vec<i64> = lists.clone().flatten().copied().collect();
        assert_eq!(all, [1, 2, 3, 4, 5, 60, 61, 8, 9], "each item once, in order");
        let most = lists.map(<[i64]>::len).max().unwrap();
        assert!(most <= 9_usize.div_ceil(parallelism as usize), "evenly");
        for operator in &operators {
            assert_eq!(operator.largest.as_ref().unwrap().get(), [61], "all see the items of all");
            let rules: Vec<&String> = operator.rules.as_ref().unwrap().entries().map(|(_, rule)| rule).collect();
            assert_eq!(rules, ["rule 0", "rule 1"]);
        }
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
