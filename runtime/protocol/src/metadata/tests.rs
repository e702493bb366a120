//! Reading, refusing and handing out.
use super::*;
use crate::graph::{Edge, Partitioning, Vertex};
use crate::ids::{Attempt, Generation, KeyGroup, VertexId};
use crate::state::{SplitState, StateData};
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
        edges: vec![Edge { from: VertexId(0), to: VertexId(1), partitioning: Partitioning::Hash { keys: vec![0] } }],
        max_parallelism: 128,
    }
}

fn snapshot(parallelism: u32) -> Metadata {
    let mut operators = Vec::new();
    for index in (0..parallelism).map(SubtaskIndex) {
        let splits = vec![SplitState { split: format!("test-{index}"), state: serde_json::json!({"position": 7}) }];
        operators.push(OperatorSnapshot { uid: "source".into(), subtask: index, keyed: vec![], splits });
        let key_groups = KeyGroupRange::of_subtask(index, parallelism, 128);
        let data = StateData::File { path: format!("file-{index}"), size: 10 };
        let keyed = vec![KeyedStateHandle { name: "counts".into(), key_groups, rows: 1, data }];
        operators.push(OperatorSnapshot { uid: "count".into(), subtask: index, keyed, splits: vec![] });
    }
    Metadata {
        version: VERSION,
        job: JobId { namespace: "default".into(), name: "pv".into(), uid: "1".into() },
        run: Run { generation: Generation(1), attempt: Attempt(1) },
        checkpoint: CheckpointId(50),
        savepoint: false,
        details: None,
        nonce: "n".into(),
        triggered_at: Timestamp(1),
        key_group_function: key_group::NAME.into(),
        max_parallelism: 128,
        vertices: describe_vertices(&graph(parallelism)),
        operators,
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
    assert_eq!(state.operators[0].keyed[0].data, StateData::File { path: "s3://b/chk-50/file-0".into(), size: 10 });
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

#[test]
fn a_changed_max_parallelism_is_refused() {
    let changed = JobGraph { max_parallelism: 64, ..graph(1) };
    let error = assign_state(&snapshot(1), &changed, "d", true).unwrap_err();
    assert_eq!(error, RestoreError::MaxParallelismChanged { found: 128, expected: 64 });
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
    assert_eq!(String::from_utf8(metadata.to_bytes().unwrap()).unwrap(), golden.trim_end());
}
