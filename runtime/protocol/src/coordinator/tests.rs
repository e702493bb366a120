//! The coordinator against hand-written courses of events.
use super::*;
use crate::failure::Fault;
use crate::ids::{SubtaskIndex, VertexId};
use crate::message::{Alignment, Barrier};
use crate::options::{TolerableFailures, Unlimited};
use crate::time::TimeSpan;

fn settings() -> CheckpointingSpec {
    serde_json::from_value(serde_json::json!({"interval": "1s", "timeout": "10s"})).unwrap()
}

fn subtask(index: u32) -> SubtaskId {
    SubtaskId { vertex: VertexId(0), index: SubtaskIndex(index) }
}

fn active(settings: CheckpointingSpec) -> CheckpointCoordinator {
    let mut coordinator = CheckpointCoordinator::new(settings, CheckpointId(7));
    coordinator.activate([subtask(0), subtask(1)].into(), None, Timestamp(0));
    coordinator
}

fn triggered(outputs: &[Output]) -> Vec<u64> {
    let id = |output: &Output| match output {
        Output::Trigger(barrier) => Some(barrier.checkpoint.0),
        _ => None,
    };
    outputs.iter().filter_map(id).collect()
}

fn declined() -> Failure {
    Failure::restart("Declined", Fault::External, "the store is away")
}

fn complete(coordinator: &mut CheckpointCoordinator, id: u64, now: u64) -> Vec<Output> {
    let id = CheckpointId(id);
    assert_eq!(coordinator.acknowledge(subtask(0), id, SubtaskState::default(), None), None);
    let stored = coordinator.acknowledge(subtask(1), id, SubtaskState::default(), None);
    assert!(matches!(stored, Some(Output::Store(collected)) if collected.states.len() == 2));
    assert!(coordinator.appending(id).is_some());
    coordinator.completed(id, Timestamp(now))
}

#[test]
fn triggers_by_interval_one_at_a_time_with_rising_ids() {
    let mut coordinator = active(settings());
    assert!(coordinator.tick(Timestamp(999)).is_empty());
    assert_eq!(coordinator.next_wakeup(), Some(Timestamp(1000)));
    assert_eq!(triggered(&coordinator.tick(Timestamp(1000))), [8]);
    assert!(coordinator.tick(Timestamp(2500)).is_empty(), "one is under way");
    complete(&mut coordinator, 8, 2600);
    assert_eq!(triggered(&coordinator.tick(Timestamp(2600))), [9], "overdue");
    assert_eq!(coordinator.counters().completed, 1);
}

#[test]
fn min_pause_counts_from_the_last_completed_one() {
    let mut coordinator = active(CheckpointingSpec { min_pause: TimeSpan(3000), max_concurrent: 5, ..settings() });
    coordinator.tick(Timestamp(1000));
    assert!(coordinator.tick(Timestamp(2000)).is_empty(), "a pause makes it one at a time");
    complete(&mut coordinator, 8, 2000);
    assert!(coordinator.tick(Timestamp(4999)).is_empty());
    assert_eq!(triggered(&coordinator.tick(Timestamp(5000))), [9]);
}

#[test]
fn a_later_one_subsumes_an_earlier_one() {
    let mut coordinator = active(CheckpointingSpec { max_concurrent: 2, ..settings() });
    coordinator.tick(Timestamp(1000));
    assert_eq!(triggered(&coordinator.tick(Timestamp(2000))), [9]);
    let outputs = complete(&mut coordinator, 9, 2100);
    let aborted = Aborted { id: CheckpointId(8), ends: Ends::None, savepoint: None, failure: None, recorded: false };
    assert_eq!(outputs, [Output::Aborted(aborted)]);
    assert_eq!(coordinator.counters().failed, 0);
    assert_eq!(coordinator.acknowledge(subtask(0), CheckpointId(8), SubtaskState::default(), None), None);
}

#[test]
fn the_next_trigger_after_a_failed_one_waits_for_the_store_and_backs_off() {
    let unlimited = TolerableFailures::Unlimited(Unlimited::Unlimited);
    let mut coordinator = active(CheckpointingSpec { tolerable_failures: unlimited, ..settings() });
    coordinator.tick(Timestamp(1000));
    let outputs = coordinator.fail(CheckpointId(8), declined(), Timestamp(1500));
    assert!(matches!(&outputs[..], [Output::Aborted(Aborted { failure: Some(_), .. })]));
    assert!(coordinator.tick(Timestamp(9_000)).is_empty(), "not before the failure is recorded");
    coordinator.failure_recorded();
    assert_eq!(triggered(&coordinator.tick(Timestamp(9_000))), [9]);
    let mut now = 9_000;
    for id in 9..14 {
        coordinator.fail(CheckpointId(id), declined(), Timestamp(now));
        coordinator.failure_recorded();
        now = coordinator.next_wakeup().unwrap().0;
        assert_eq!(triggered(&coordinator.tick(Timestamp(now))), [id + 1]);
    }
    let wait = coordinator.fail(CheckpointId(14), declined(), Timestamp(now)).len();
    coordinator.failure_recorded();
    assert_eq!(wait, 1);
    assert_eq!(coordinator.next_wakeup(), Some(Timestamp(now + 6400)), "seventh in a row");
}

#[test]
fn a_backoff_never_exceeds_the_timeout() {
    let unlimited = TolerableFailures::Unlimited(Unlimited::Unlimited);
    let mut coordinator = active(CheckpointingSpec { tolerable_failures: unlimited, ..settings() });
    let mut now = 1000;
    for _ in 0..40 {
        let [id] = triggered(&coordinator.tick(Timestamp(now)))[..] else { panic!("due at {now}") };
        coordinator.fail(CheckpointId(id), declined(), Timestamp(now));
        coordinator.failure_recorded();
        let next = coordinator.next_wakeup().unwrap().0;
        assert!(next - now <= 10_000);
        now = next;
    }
}

#[test]
fn more_failures_than_tolerable_fail_the_job_and_name_the_cause_first() {
    let mut coordinator = active(CheckpointingSpec { tolerable_failures: TolerableFailures::Count(1), ..settings() });
    coordinator.tick(Timestamp(1000));
    assert_eq!(coordinator.fail(CheckpointId(8), declined(), Timestamp(1000)).len(), 1);
    coordinator.failure_recorded();
    coordinator.tick(Timestamp(3000));
    let outputs = coordinator.fail(CheckpointId(9), declined(), Timestamp(3000));
    let [Output::Aborted(_), Output::FailJob(failure)] = &outputs[..] else { panic!("{outputs:?}") };
    assert!(failure.message.starts_with("the store is away"), "{failure}");
    assert!(failure.message.contains("checkpoint 9") && failure.message.contains("tolerableFailures is 1"));
}

#[test]
fn a_completed_one_resets_the_count() {
    let mut coordinator = active(CheckpointingSpec { tolerable_failures: TolerableFailures::Count(1), ..settings() });
    coordinator.tick(Timestamp(1000));
    coordinator.fail(CheckpointId(8), declined(), Timestamp(1000));
    coordinator.failure_recorded();
    coordinator.tick(Timestamp(3000));
    complete(&mut coordinator, 9, 3100);
    coordinator.tick(Timestamp(5000));
    assert_eq!(coordinator.fail(CheckpointId(10), declined(), Timestamp(5000)).len(), 1);
}

#[test]
fn it_expires_only_before_its_entry_is_sent() {
    let mut coordinator = active(settings());
    coordinator.tick(Timestamp(1000));
    let outputs = coordinator.tick(Timestamp(11_000));
    let Output::Aborted(Aborted { failure: Some(failure), .. }) = &outputs[0] else { panic!("{outputs:?}") };
    assert!(failure.message.contains("2 subtasks did not acknowledge"), "{failure}");
    coordinator.failure_recorded();

    let unlimited = TolerableFailures::Unlimited(Unlimited::Unlimited);
    let mut coordinator = active(CheckpointingSpec { tolerable_failures: unlimited, ..settings() });
    coordinator.tick(Timestamp(1000));
    coordinator.acknowledge(subtask(0), CheckpointId(8), SubtaskState::default(), None);
    coordinator.acknowledge(subtask(1), CheckpointId(8), SubtaskState::default(), None);
    assert_eq!(coordinator.appending(CheckpointId(8)), Some((Ends::None, None)));
    assert_eq!(coordinator.tick(Timestamp(11_000)), [Output::GiveUp(CheckpointId(8))]);
    assert!(coordinator.tick(Timestamp(20_999)).is_empty(), "asked once; the ledger decides");
    assert!(coordinator.fail(CheckpointId(8), declined(), Timestamp(99_000)).is_empty());
    assert!(coordinator.completed(CheckpointId(8), Timestamp(99_000)).is_empty());
    assert_eq!(coordinator.counters().completed, 1);
}

#[test]
fn one_whose_entry_is_sent_outlives_its_attempt() {
    let mut coordinator = active(CheckpointingSpec { max_concurrent: 2, ..settings() });
    coordinator.tick(Timestamp(1000));
    coordinator.tick(Timestamp(2000));
    coordinator.acknowledge(subtask(0), CheckpointId(8), SubtaskState::default(), None);
    coordinator.acknowledge(subtask(1), CheckpointId(8), SubtaskState::default(), None);
    assert!(coordinator.appending(CheckpointId(8)).is_some());
    assert_eq!(coordinator.deactivate(), [Dropped { id: CheckpointId(9), savepoint: None }]);
    assert_eq!(coordinator.pending().collect::<Vec<_>>(), [CheckpointId(8)]);
    assert_eq!(coordinator.next_wakeup(), Some(Timestamp(11_000)), "only to give it up");
}

#[test]
fn a_last_one_waits_for_none_but_those_under_way_and_is_asked_for_until_complete() {
    let mut coordinator = active(settings());
    coordinator.tick(Timestamp(1000));
    coordinator.request(Ends::Finish);
    assert!(coordinator.tick(Timestamp(1100)).is_empty());
    complete(&mut coordinator, 8, 1200);
    let outputs = coordinator.tick(Timestamp(1200));
    assert!(matches!(&outputs[..], [Output::Trigger(Barrier { ends: Ends::Finish, .. })]), "{outputs:?}");
    assert!(coordinator.tick(Timestamp(5000)).is_empty(), "nothing beside it");
    coordinator.fail(CheckpointId(9), declined(), Timestamp(5000));
    coordinator.failure_recorded();
    let outputs = coordinator.tick(Timestamp(5100));
    assert!(matches!(&outputs[..], [Output::Trigger(Barrier { ends: Ends::Finish, .. })]), "{outputs:?}");
    complete(&mut coordinator, 10, 5200);
    assert!(triggered(&coordinator.tick(Timestamp(5200))).is_empty());
}

mod options;
