//! Reading, refusing and handing out.
use super::*;
use crate::graph::{Edge, Partitioning, Vertex};
use crate::ids::{Attempt, Generation, KeyGroup, VertexId};
use crate::state::{KeyedStateKind, SplitState, StateData};
use proptest::prelude::*;

fn operator(uid: &str, kind: OperatorKind) -> OperatorInfo {
    OperatorInfo { uid: uid.into(), kind, description: uid.to_owned() }
}

fn graph(parallelism: u32) -> JobGraph {
    let vertex = |id: u32, operators: Vec<OperatorInfo>| Vertex {
        id: VertexId(id),
        name: operators[0].uid.to_string(),
        parallelism,
        operators,
    };
    JobGraph {
        vertices: vec![
            vertex(0, vec![operator("source", OperatorKind::Source)]),
            vertex(1, vec![operator("count", OperatorKind::Keyed), operator("sink", OperatorKind::Sink)]),
        ],
        edges: vec![Edge {
            from: VertexId(0),
            to: VertexId(1),
            partitioning: Partitioning::Hash { keys: vec![0] },
            input: 0,
        }],
        max_parallelism: 128,
    }
}

fn snapshot(parallelism: u32) -> Metadata {
    let mut operators = Vec::new();
    for index in (0..parallelism).map(SubtaskIndex) {
        let splits = vec![SplitState { split: format!("test-{index}"), state: serde_json::json!({"position": 7}) }];
        operators.push(OperatorSnapshot {
            uid: "source".into(),
            subtask: index,
            keyed: vec![],
            operator: vec![],
            splits,
            committables: vec![],
        });
        let key_groups = KeyGroupRange::of_subtask(index, parallelism, 128);
        let data = StateData::File { path: format!("file-{index}"), size: 10, checksum: None };
        let keyed =
            vec![KeyedStateHandle { name: "counts".into(), key_groups, rows: 1, kind: KeyedStateKind::Full, data }];
        operators.push(OperatorSnapshot {
            uid: "count".into(),
            subtask: index,
            keyed,
            operator: vec![],
            splits: vec![],
            committables: vec![],
        });
    }
    Metadata {
        version: VERSION,
        job: JobId { namespace: "default".into(), name: "pv".into(), uid: "1".into() },
        run: Run { generation: Generation(1), attempt: Attempt(1) },
        checkpoint: CheckpointId(50),
        savepoint: false,
        details: None,
        origin: None,
        nonce: "n".into(),
        triggered_at: Timestamp(1),
        key_group_function: key_group::NAME.into(),
        max_parallelism: 128,
        vertices: describe_vertices(&graph(parallelism)),
        operators,
        in_flight: vec![],
    }
}

#[test]
fn it_reads_what_it_writes_and_the_version_comes_first() {
    let metadata = snapshot(2);
    let bytes = metadata.to_bytes().unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.split_whitespace().nth(1).unwrap().starts_with("\"version\""), "{text}");
    assert_eq!(Metadata::from_bytes(&bytes, "x"), Ok(metadata));
}

#[test]
fn a_newer_version_is_refused_by_name_whatever_else_it_holds() {
    let error = Metadata::from_bytes(br#"{"version": 2, "unknown": []}"#, "s3://b/chk-1/_metadata").unwrap_err();
    assert_eq!(error, MetadataError::NewerVersion { place: "s3://b/chk-1/_metadata".into(), found: 2 });
    assert!(error.to_string().contains("restore it with the release that wrote it"), "{error}");
    assert!(matches!(Metadata::from_bytes(b"no json", "x"), Err(MetadataError::Unreadable { .. })));
}

#[test]
fn a_foreign_key_group_function_is_refused() {
    let metadata = Metadata { key_group_function: "murmur".into(), ..snapshot(1) };
    let error = Metadata::from_bytes(&metadata.to_bytes().unwrap(), "x").unwrap_err();
    assert!(matches!(error, MetadataError::UnknownKeyGroupFunction { .. }));
}

#[test]
fn splits_go_to_every_subtask_of_their_source() {
    let assigned = assign_state(&snapshot(2), &graph(3), "s3://b/chk-50", false).unwrap();
    for index in (0..3).map(SubtaskIndex) {
        let state = &assigned[&SubtaskId { vertex: VertexId(0), index }];
        let splits: Vec<_> = state.operators.iter().flat_map(|o| &o.splits).map(|s| s.split.as_str()).collect();
        assert_eq!(splits, ["test-0", "test-1"]);
    }
}

#[test]
fn paths_become_absolute() {
    let assigned = assign_state(&snapshot(1), &graph(1), "s3://b/chk-50", false).unwrap();
    let state = &assigned[&SubtaskId { vertex: VertexId(1), index: SubtaskIndex(0) }];
    assert_eq!(
        state.operators[0].keyed[0].data,
        StateData::File { path: "s3://b/chk-50/file-0".into(), size: 10, checksum: None }
    );
}

#[test]
fn left_over_state_is_refused_with_both_sides() {
    let mut changed = graph(1);
    changed.vertices[1].operators[0].uid = "sum".into();
    let error = assign_state(&snapshot(1), &changed, "d", false).unwrap_err();
    let expected = RestoreError::UnmatchedState { unmatched: "'count'".into(), offered: "'source', 'sum'".into() };
    assert_eq!(error, expected);
    let allowed = assign_state(&snapshot(1), &changed, "d", true).unwrap();
    assert!(allowed[&SubtaskId { vertex: VertexId(1), index: SubtaskIndex(0) }].operators.is_empty());
}

/// A key group is a range of hashes: nobody fetches files that cannot hold a row of its own.
#[test]
fn with_another_max_parallelism_each_subtask_gets_the_files_that_may_hold_its_rows() {
    let given = |max_parallelism, parallelism: u32| -> Vec<Vec<(u16, u16)>> {
        let changed = JobGraph { max_parallelism, ..graph(parallelism) };
        let assigned = assign_state(&snapshot(2), &changed, "d", false).unwrap();
        let of = |index| {
            let state = &assigned[&SubtaskId { vertex: VertexId(1), index }];
            assert_eq!(state.divided_into, (max_parallelism != 128).then_some(128));
            let handles = state.operators.iter().flat_map(|operator| &operator.keyed);
            handles.map(|handle| (handle.key_groups.start, handle.key_groups.end)).collect()
        };
        (0..parallelism).map(SubtaskIndex).map(of).collect()
    };
    assert_eq!(given(64, 2), [[(0, 32)], [(32, 64)]]);
    assert_eq!(given(64, 3), [vec![(0, 32)], vec![(0, 32), (32, 64)], vec![(32, 64)]]);
    assert_eq!(given(5, 2), [vec![(0, 3), (2, 5)], vec![(2, 5)]], "half of key group 2 is each old subtask's");
    assert_eq!(given(128, 2), [[(0, 64)], [(64, 128)]]);
}

fn in_flight(to: u32, receivers: u32, partitioning: Partitioning) -> InFlightHandle {
    InFlightHandle {
        edge: "source -> count".into(),
        partitioning,
        from: SubtaskIndex(0),
        to: SubtaskIndex(to),
        receivers,
        producers: 0,
        age: 0,
        first: 3,
        batches: 1,
        rows: 5,
        offset: 100,
        length: 50,
        data: StateData::File { path: "in-flight".into(), size: 1000, checksum: None },
    }
}

fn readers(metadata: &Metadata, graph: &JobGraph) -> Vec<u32> {
    let assigned = assign_state(metadata, graph, "s3://b/chk-50", false).unwrap();
    let reads = |subtask: &SubtaskId| !assigned[subtask].in_flight.is_empty();
    assert!(assigned.keys().filter(|subtask| reads(subtask)).all(|subtask| subtask.vertex == VertexId(1)));
    (0..graph.vertices[1].parallelism)
        .filter(|index| reads(&SubtaskId { vertex: VertexId(1), index: SubtaskIndex(*index) }))
        .collect()
}

fn hash() -> Partitioning {
    Partitioning::Hash { keys: vec![0] }
}

#[test]
fn batches_in_flight_go_to_the_receivers_that_may_own_their_rows() {
    let metadata = Metadata { in_flight: vec![in_flight(1, 2, hash())], ..snapshot(2) };
    assert_eq!(Metadata::from_bytes(&metadata.to_bytes().unwrap(), "x"), Ok(metadata.clone()));
    assert_eq!(readers(&metadata, &graph(2)), [1]);
    assert_eq!(readers(&metadata, &graph(1)), [0]);
    assert_eq!(readers(&metadata, &graph(4)), [2, 3]);
    assert_eq!(readers(&metadata, &graph(3)), [1, 2], "key groups 64 to 127 are spread over the last two of three");
    let assigned = assign_state(&metadata, &graph(1), "s3://b/chk-50", false).unwrap();
    let state = &assigned[&SubtaskId { vertex: VertexId(1), index: SubtaskIndex(0) }];
    let data = StateData::File { path: "s3://b/chk-50/in-flight".into(), size: 1000, checksum: None };
    assert_eq!(state.in_flight, [InFlightHandle { data, ..in_flight(1, 2, hash()) }]);
}

#[test]
fn with_another_number_of_key_groups_those_look_for_their_rows_that_may_own_some() {
    let metadata = Metadata { in_flight: vec![in_flight(1, 2, hash())], ..snapshot(2) };
    assert_eq!(readers(&metadata, &JobGraph { max_parallelism: 64, ..graph(2) }), [1]);
    assert_eq!(readers(&metadata, &JobGraph { max_parallelism: 256, ..graph(3) }), [1, 2]);
    assert_eq!(readers(&metadata, &JobGraph { max_parallelism: 3, ..graph(3) }), [1, 2], "1 is cut in the middle");
}

#[test]
fn batches_that_are_not_keyed_go_to_one_subtask_by_a_fixed_rule() {
    let rebalanced = |parallelism| {
        let edge = Edge { partitioning: Partitioning::Rebalance, ..graph(1).edges[0].clone() };
        JobGraph { edges: vec![edge], ..graph(parallelism) }
    };
    let metadata = Metadata { in_flight: vec![in_flight(3, 4, Partitioning::Rebalance)], ..snapshot(4) };
    assert_eq!(readers(&metadata, &rebalanced(4)), [3]);
    assert_eq!(readers(&metadata, &rebalanced(2)), [1]);
    assert_eq!(readers(&metadata, &rebalanced(3)), [0]);
}

#[test]
fn batches_of_an_edge_that_is_gone_or_changed_are_refused_by_name() {
    let foreign = InFlightHandle { edge: "source -> sum".into(), ..in_flight(0, 1, hash()) };
    let metadata = Metadata { in_flight: vec![foreign], ..snapshot(1) };
    let error = assign_state(&metadata, &graph(1), "d", false).unwrap_err();
    let (unmatched, offered) = ("'source -> sum'".into(), "'source -> count'".into());
    assert_eq!(error, RestoreError::UnmatchedInFlight { unmatched, offered });
    let allowed = assign_state(&metadata, &graph(1), "d", true).unwrap();
    assert!(allowed.values().all(|state| state.in_flight.is_empty()));
    let metadata = Metadata { in_flight: vec![in_flight(0, 1, Partitioning::Hash { keys: vec![1] })], ..snapshot(1) };
    let error = assign_state(&metadata, &graph(1), "d", true).unwrap_err();
    assert!(matches!(error, RestoreError::EdgeChanged { .. }), "{error}");
}

/// FLINK-40269: two inputs from one upstream, and the state of one channel went to the other's gate.
#[test]
fn two_edges_between_the_same_operators_keep_their_batches_apart() {
    let twice = |graph: JobGraph| JobGraph { edges: vec![graph.edges[0].clone(), graph.edges[0].clone()], ..graph };
    let graph = twice(graph(3));
    assert_eq!(graph.edge_name(0).unwrap(), "source -> count");
    assert_eq!(graph.edge_name(1).unwrap(), "source -> count #2");
    let second = InFlightHandle { edge: "source -> count #2".into(), ..in_flight(0, 1, hash()) };
    let metadata = Metadata { in_flight: vec![second, in_flight(0, 1, hash())], ..snapshot(1) };
    let assigned = assign_state(&metadata, &graph, "d", false).unwrap();
    let state = &assigned[&SubtaskId { vertex: VertexId(1), index: SubtaskIndex(2) }];
    let edges: Vec<&str> = state.in_flight.iter().map(|handle| handle.edge.as_str()).collect();
    assert_eq!(edges, ["source -> count #2", "source -> count"]);
}

proptest! {
    /// Every key group's file reaches exactly the subtask that owns the key group, at any two parallelisms.
    #[test]
    fn every_key_group_reaches_its_owner(old in 1_u32..40, new in 1_u32..40, group in 0_u16..128) {
        let assigned = assign_state(&snapshot(old), &graph(new), "d", false).unwrap();
        let writer = key_group::owner(KeyGroup(group), old, 128);
        let reader = key_group::owner(KeyGroup(group), new, 128);
        let state = &assigned[&SubtaskId { vertex: VertexId(1), index: reader }];
        let holding: Vec<_> = state.operators.iter()
            .filter(|o| o.keyed.iter().any(|h| h.key_groups.contains(KeyGroup(group))))
            .map(|o| o.subtask)
            .collect();
        prop_assert_eq!(holding, vec![writer]);
    }
}

/// What version 1 looks like for ever: read, and written back as it was.
#[test]
fn the_golden_metadata_of_version_1() {
    let golden = include_str!("../../golden/metadata-v1.json");
    let metadata = Metadata::from_bytes(golden.as_bytes(), "golden").unwrap();
    assert_eq!((metadata.checkpoint, metadata.state_bytes()), (CheckpointId(50), 4 + 812_345));
    assert_eq!(metadata.operators[0].splits[0].state["position"], 1000);
    let written = String::from_utf8(metadata.to_bytes().unwrap()).unwrap();
    let content = golden.trim_end().strip_suffix("\n}").unwrap();
    assert_eq!(written, format!("{content},\n  \"xxh3\": \"c9607b20820b0c88\"\n}}"));
    assert_eq!(Metadata::from_bytes(written.as_bytes(), "golden"), Ok(metadata));
}

/// Also bytes that are still JSON with all its fields: a position with another digit would restore other rows.
#[test]
fn a_metadata_with_another_byte_or_cut_off_is_damaged_and_named() {
    let bytes = snapshot(2).to_bytes().unwrap();
    let damaged = |bytes: &[u8]| {
        let error = Metadata::from_bytes(bytes, "s3://b/chk-1/_metadata").unwrap_err();
        assert!(matches!(error, MetadataError::Damaged { .. }), "{error}");
        assert!(error.to_string().starts_with("s3://b/chk-1/_metadata is damaged: "), "{error}");
    };
    let checksum = bytes.len() - CHECKSUM.0.len() - 16 - CHECKSUM.1.len();
    for at in 0..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 1;
        match Metadata::from_bytes(&other, "x") {
            // The checksum's name alone: what it covers is as it was.
            Ok(read) => assert!(at > checksum && read == snapshot(2), "byte {at} is not missed"),
            Err(_) if at < HEAD.len() => {}
            Err(_) => damaged(&other),
        }
    }
    for length in HEAD.len()..bytes.len() {
        damaged(&bytes[..length]);
    }
    let text = String::from_utf8(bytes.clone()).unwrap();
    damaged(text.replace("\"xxh3\": ", "\"xxh3\":").as_bytes());
    let with_a_line_end = [&bytes[..], b"\n"].concat();
    assert!(Metadata::from_bytes(&with_a_line_end, "x").is_ok());
}

fn list(redistribution: Redistribution, items: u64) -> OperatorStateHandle {
    let data = StateData::File { path: format!("../shared/{items}"), size: 1, checksum: None };
    OperatorStateHandle { name: format!("{redistribution:?}"), redistribution, first: 0, items, data }
}

/// What each of `parallelism` subtasks gets of lists that `old` subtasks with so many items each have stored.
fn dealt(redistribution: Redistribution, old: &[u64], parallelism: u32) -> Vec<Vec<(u64, u64, String)>> {
    let mut metadata = snapshot(u32::try_from(old.len()).unwrap());
    let sources = metadata.operators.iter_mut().filter(|operator| operator.uid == "source".into());
    sources.zip(old).for_each(|(operator, items)| operator.operator.push(list(redistribution, *items)));
    let assigned = assign_state(&metadata, &graph(parallelism), "s3://b/7/chk-50", false).unwrap();
    let of_source = assigned.into_iter().filter(|(subtask, _)| subtask.vertex == VertexId(0));
    let part = |handle: OperatorStateHandle| {
        let StateData::File { path, .. } = handle.data else { panic!("it is a file") };
        (handle.first, handle.items, path)
    };
    of_source
        .map(|(_, state)| state.operators.into_iter().flat_map(|operator| operator.operator).map(part).collect())
        .collect()
}

#[test]
fn lists_are_dealt_out_by_their_redistribution() {
    let file = |items: u64| format!("s3://b/7/shared/{items}");
    let split = dealt(Redistribution::Split, &[5, 2], 3);
    assert_eq!(split, [vec![(0, 2, file(5))], vec![(2, 2, file(5))], vec![(4, 1, file(5)), (0, 2, file(2))]]);
    let kept = dealt(Redistribution::Split, &[5, 2], 2);
    assert_eq!(kept, [vec![(0, 5, file(5))], vec![(0, 2, file(2))]], "at the old parallelism each gets its own");
    let union = dealt(Redistribution::Union, &[5, 2], 3);
    assert_eq!(union, vec![vec![(0, 5, file(5)), (0, 2, file(2))]; 3]);
    let broadcast = dealt(Redistribution::Broadcast, &[5, 5], 3);
    assert_eq!(broadcast, vec![vec![(0, 5, file(5))]; 3]);
}

proptest! {
    #[test]
    fn every_item_of_a_split_list_goes_to_one_subtask(old in prop::collection::vec(0_u64..20, 1..6), parallelism in 1_u32..9) {
        let dealt = dealt(Redistribution::Split, &old, parallelism);
        let total: u64 = dealt.iter().flatten().map(|(_, items, _)| items).sum();
        prop_assert_eq!(total, old.iter().sum::<u64>());
        let mut most: Vec<u64> = dealt.iter().map(|parts| parts.iter().map(|(_, items, _)| items).sum()).collect();
        most.sort_unstable();
        if old.len() != dealt.len() {
            prop_assert!(most.last().unwrap() - most[0] <= 1, "{:?}", most);
        }
    }
}
