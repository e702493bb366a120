//! Every message goes over the wire and comes back the same, and broken ones are refused by the field's name.

use crate::v1::{self, FromTaskManagerEnvelope, ToTaskManagerEnvelope};
use proptest::prelude::*;
use prost::Message as _;
use sluice_protocol::failure::{Failure, Fault, Retry};
use sluice_protocol::graph::Partitioning;
use sluice_protocol::ledger::Ends;
use sluice_protocol::message::{
    Alignment, Barrier, CheckpointMetrics, Deployment, FromTaskManager, GroupWatermark, Held, Placement, Registration,
    TaskDeployment, ToTaskManager,
};
use sluice_protocol::state::{
    Checksum, InFlightHandle, KeyedStateHandle, KeyedStateKind, OperatorSnapshot, OperatorStateHandle, Redistribution,
    SplitState, StateData, SubtaskState,
};
use sluice_protocol::{
    Attempt, CheckpointId, Generation, KeyGroupRange, OperatorUid, ProcessId, Run, SubtaskId, SubtaskIndex,
    TaskManagerId, TimeSpan, Timestamp, VertexId,
};

fn run() -> impl Strategy<Value = Run> {
    (any::<u64>(), any::<u32>())
        .prop_map(|(generation, attempt)| Run { generation: Generation(generation), attempt: Attempt(attempt) })
}

fn subtask() -> impl Strategy<Value = SubtaskId> {
    (any::<u32>(), any::<u32>())
        .prop_map(|(vertex, index)| SubtaskId { vertex: VertexId(vertex), index: SubtaskIndex(index) })
}

fn failure() -> impl Strategy<Value = Failure> {
    let fault = prop_oneof![Just(Fault::User), Just(Fault::External), Just(Fault::Internal)];
    let retry = prop_oneof![Just(Retry::Never), Just(Retry::Restart), Just(Retry::Backoff)];
    (any::<String>(), any::<String>(), fault, retry).prop_map(|(reason, message, fault, retry)| Failure {
        reason,
        message,
        fault,
        retry,
    })
}

fn state() -> impl Strategy<Value = SubtaskState> {
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64).prop_map(|bytes| StateData::Inline { bytes }),
        (any::<String>(), any::<u64>(), prop::option::of(any::<u64>()))
            .prop_map(|(path, size, checksum)| { StateData::File { path, size, checksum: checksum.map(Checksum) } }),
    ];
    let keyed = (any::<String>(), any::<u16>(), any::<u16>(), any::<u64>(), any::<bool>(), data.clone()).prop_map(
        |(name, start, end, rows, is_delta, data)| KeyedStateHandle {
            name,
            key_groups: KeyGroupRange { start, end },
            rows,
            kind: if is_delta { KeyedStateKind::Delta } else { KeyedStateKind::Full },
            data,
        },
    );
    let redistribution =
        prop_oneof![Just(Redistribution::Split), Just(Redistribution::Union), Just(Redistribution::Broadcast)];
    let list = (any::<String>(), redistribution, any::<u64>(), any::<u64>(), data).prop_map(
        |(name, redistribution, first, items, data)| OperatorStateHandle { name, redistribution, first, items, data },
    );
    let split = (any::<String>(), any::<i64>())
        .prop_map(|(split, offset)| SplitState { split, state: serde_json::json!({"offset": offset}) });
    let lists = prop::collection::vec(list, 0..3);
    let (keyed, splits) = (prop::collection::vec(keyed, 0..3), prop::collection::vec(split, 0..3));
    let operator =
        (any::<String>(), any::<u32>(), keyed, lists, splits).prop_map(|(uid, index, keyed, operator, splits)| {
            OperatorSnapshot {
                uid: OperatorUid(uid),
                subtask: SubtaskIndex(index),
                keyed,
                operator,
                splits,
                committables: vec![],
            }
        });
    let in_flight = (any::<String>(), any::<u32>(), any::<[u64; 4]>());
    let in_flight = in_flight.prop_map(|(edge, index, [first, rows, offset, length])| InFlightHandle {
        edge,
        partitioning: Partitioning::Hash { keys: vec![index as usize] },
        from: SubtaskIndex(index),
        to: SubtaskIndex(index / 2),
        receivers: index,
        producers: index / 5,
        age: index / 3,
        first,
        batches: first / 2,
        rows,
        offset,
        length,
        data: StateData::Inline { bytes: vec![1, 2] },
    });
    (prop::collection::vec(operator, 0..3), prop::collection::vec(in_flight, 0..3), any::<Option<u16>>())
        .prop_map(|(operators, in_flight, divided_into)| SubtaskState { operators, in_flight, divided_into })
}

fn deployment() -> impl Strategy<Value = Deployment> {
    let task =
        (subtask(), prop::option::of(state())).prop_map(|(subtask, restore)| TaskDeployment { subtask, restore });
    let place = (subtask(), any::<String>(), any::<String>()).prop_map(|(subtask, id, data_address)| Placement {
        subtask,
        task_manager: TaskManagerId(id),
        data_address,
    });
    (run(), prop::collection::vec(task, 0..3), prop::collection::vec(place, 0..3), prop::option::of(any::<String>()))
        .prop_map(|(run, tasks, placement, state_directory)| Deployment { run, tasks, placement, state_directory })
}

fn to_task_manager() -> impl Strategy<Value = ToTaskManager> {
    let parts = (any::<u64>(), any::<u64>(), prop::option::of(any::<u64>()), prop::option::of(any::<String>()));
    let barrier = parts.prop_map(|(checkpoint, at, base, savepoint)| Barrier {
        alignment: Alignment::Unaligned { after: TimeSpan(at / 2) },
        ends: Ends::Stop,
        savepoint: savepoint.map(Into::into),
        ..Barrier::aligned(CheckpointId(checkpoint), Timestamp(at), base.map(CheckpointId))
    });
    prop_oneof![
        any::<u64>().prop_map(|ms| ToTaskManager::Registered { heartbeat_timeout: TimeSpan(ms) }),
        failure().prop_map(ToTaskManager::Refused),
        any::<u64>().prop_map(|ms| ToTaskManager::Heartbeat { at: Timestamp(ms) }),
        deployment().prop_map(|deployment| ToTaskManager::Deploy(Box::new(deployment))),
        run().prop_map(|run| ToTaskManager::CancelTasks { run }),
        (run(), barrier).prop_map(|(run, barrier)| ToTaskManager::TriggerCheckpoint { run, barrier }),
        (run(), any::<u64>(), prop::option::of((subtask(), any::<u64>()))).prop_map(|(run, id, held)| {
            let held = held.map(|(subtask, with)| vec![Held { subtask, checkpoints: vec![CheckpointId(with)] }]);
            ToTaskManager::CheckpointCompleted { run, checkpoint: CheckpointId(id), held }
        }),
        (run(), any::<u64>())
            .prop_map(|(run, id)| ToTaskManager::CheckpointAborted { run, checkpoint: CheckpointId(id) }),
        (run(), groups()).prop_map(|(run, groups)| ToTaskManager::AlignWatermarks { run, groups }),
        Just(ToTaskManager::Shutdown),
    ]
}

fn groups() -> impl Strategy<Value = Vec<GroupWatermark>> {
    let group = (any::<String>(), any::<i64>()).prop_map(|(group, watermark)| GroupWatermark { group, watermark });
    prop::collection::vec(group, 0..3)
}

fn registration() -> impl Strategy<Value = Registration> {
    (any::<String>(), any::<String>(), any::<u64>(), any::<u32>(), any::<String>(), any::<String>()).prop_map(
        |(id, process, generation, slots, data_address, fingerprint)| Registration {
            task_manager: TaskManagerId(id),
            process: ProcessId(process),
            generation: Generation(generation),
            slots,
            data_address,
            fingerprint,
        },
    )
}

fn metrics() -> impl Strategy<Value = CheckpointMetrics> {
    any::<[u64; 7]>().prop_map(
        |[start_delay_ms, alignment_ms, sync_ms, async_ms, bytes, full_bytes, in_flight_bytes]| CheckpointMetrics {
            start_delay_ms,
            alignment_ms,
            sync_ms,
            async_ms,
            bytes,
            full_bytes,
            in_flight_bytes,
        },
    )
}

fn from_task_manager() -> impl Strategy<Value = FromTaskManager> {
    prop_oneof![
        registration().prop_map(FromTaskManager::Register),
        Just(FromTaskManager::Heartbeat),
        any::<u64>().prop_map(|ms| FromTaskManager::Leaving { within: TimeSpan(ms) }),
        (run(), subtask()).prop_map(|(run, subtask)| FromTaskManager::TaskRunning { run, subtask }),
        (run(), subtask()).prop_map(|(run, subtask)| FromTaskManager::TaskFinished { run, subtask }),
        (run(), subtask(), failure()).prop_map(|(run, subtask, failure)| FromTaskManager::TaskFailed {
            run,
            subtask,
            failure
        }),
        run().prop_map(|run| FromTaskManager::TasksEnded { run }),
        (run(), groups()).prop_map(|(run, groups)| FromTaskManager::ReportWatermarks { run, groups }),
        (run(), subtask(), any::<u64>(), state(), metrics()).prop_map(|(run, subtask, id, state, metrics)| {
            let savepoint = (id % 2 == 0).then(|| state.clone());
            FromTaskManager::Acknowledge { run, subtask, checkpoint: CheckpointId(id), state, savepoint, metrics }
        }),
        (run(), subtask(), any::<u64>(), failure()).prop_map(|(run, subtask, id, failure)| {
            FromTaskManager::Decline { run, subtask, checkpoint: CheckpointId(id), failure }
        }),
    ]
}

proptest! {
    #[test]
    fn what_a_job_manager_says_comes_back_the_same(message in to_task_manager()) {
        let bytes = ToTaskManagerEnvelope::try_from(&message).unwrap().encode_to_vec();
        let read = ToTaskManagerEnvelope::decode(bytes.as_slice()).unwrap();
        prop_assert_eq!(ToTaskManager::try_from(read).unwrap(), message);
    }

    #[test]
    fn what_a_task_manager_says_comes_back_the_same(message in from_task_manager()) {
        let bytes = FromTaskManagerEnvelope::try_from(&message).unwrap().encode_to_vec();
        let read = FromTaskManagerEnvelope::decode(bytes.as_slice()).unwrap();
        prop_assert_eq!(FromTaskManager::try_from(read).unwrap(), message);
    }
}

#[test]
fn a_broken_message_is_refused_by_the_name_of_its_field() {
    use crate::v1::from_task_manager_envelope::Message;
    let refused = |message| FromTaskManager::try_from(FromTaskManagerEnvelope { message }).unwrap_err().to_string();
    let run = Some(v1::RunId { generation: 1, attempt: 1 });
    let subtask = Some(v1::Subtask { vertex: 0, index: 0 });
    assert!(refused(None).starts_with("FromTaskManagerEnvelope.message:"));
    assert!(refused(Some(Message::TasksEnded(v1::TasksEnded { run: None }))).starts_with("TasksEnded.run: missing"));
    let lacks = Message::TaskRunning(v1::TaskRunning { run, subtask: None });
    assert!(refused(Some(lacks)).starts_with("TaskRunning.subtask: missing"));
    let broken = Message::TaskFailed(v1::TaskFailed { run, subtask, failure: b"{".to_vec() });
    assert!(refused(Some(broken)).starts_with("TaskFailed.failure: cannot be read as a failure"));
}

#[test]
fn a_newer_writer_may_add_fields() {
    let deployment = serde_json::json!({
        "run": {"generation": 1, "attempt": 2}, "tasks": [], "placement": [], "state_directory": null, "hint": "x"
    });
    let message = v1::to_task_manager_envelope::Message::Deploy(v1::Deploy {
        deployment: serde_json::to_vec(&deployment).unwrap(),
    });
    let read = ToTaskManager::try_from(ToTaskManagerEnvelope { message: Some(message) }).unwrap();
    assert!(matches!(read, ToTaskManager::Deploy(deployment) if deployment.run.attempt == Attempt(2)));
}
