//! Every option and its combinations, one test per row of the table in `docs/checkpoints.md`, which names them.

use super::*;
use crate::options::{CheckpointingMode, IN_JOB_MANAGER, Retention};

fn with(options: serde_json::Value) -> CheckpointingSpec {
    let mut all = serde_json::json!({"interval": "1s", "timeout": "10s"});
    all.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn order(ends: Ends) -> SavepointOrder {
    SavepointOrder { request: "r".into(), ends, directory_prefix: "s3://sp/3-".into() }
}

fn barriers(outputs: &[Output]) -> Vec<Barrier> {
    let barrier = |output: &Output| match output {
        Output::Trigger(barrier) => Some(barrier.clone()),
        _ => None,
    };
    outputs.iter().filter_map(barrier).collect()
}

fn finish(coordinator: &mut CheckpointCoordinator, id: u64, now: u64) {
    let id = CheckpointId(id);
    for index in [0, 1] {
        coordinator.acknowledge(subtask(index), id, SubtaskState::default(), Some(SubtaskState::default()));
    }
    assert!(coordinator.appending(id).is_some());
    coordinator.completed(id, Timestamp(now));
}

/// Fails the one that is under way, the store having answered; whether the job fails with it.
fn fail(coordinator: &mut CheckpointCoordinator, id: u64, now: u64) -> bool {
    let outputs = coordinator.fail(CheckpointId(id), declined(), Timestamp(now));
    coordinator.failure_recorded();
    outputs.iter().any(|output| matches!(output, Output::FailJob(_)))
}

#[test]
fn row_defaults() {
    let settings: CheckpointingSpec = serde_json::from_value(serde_json::json!({"interval": "1m"})).unwrap();
    let expected = CheckpointingSpec {
        interval: TimeSpan::from_secs(60),
        mode: CheckpointingMode::ExactlyOnce,
        timeout: TimeSpan::from_secs(600),
        min_pause: TimeSpan(0),
        max_concurrent: 1,
        tolerable_failures: TolerableFailures::Count(0),
        unaligned: false,
        alignment_timeout: TimeSpan(0),
        retention: Retention::RetainOnCancellation,
        retained: 1,
        storage: IN_JOB_MANAGER.to_owned(),
        savepoint_storage: None,
        storage_options: None,
    };
    assert_eq!(settings, expected);
    assert_eq!((settings.alignment(), settings.savepoint_root()), (Alignment::Aligned, None));
    assert_eq!((settings.effective_max_concurrent(), settings.warnings()), (1, vec![]));
}

#[test]
fn row_mode_exactly_once() {
    let mut coordinator = active(with(serde_json::json!({"mode": "ExactlyOnce"})));
    assert_eq!(barriers(&coordinator.tick(Timestamp(1000)))[0].alignment, Alignment::Aligned);
}

#[test]
fn row_mode_at_least_once() {
    let settings = with(serde_json::json!({"mode": "AtLeastOnce"}));
    assert_eq!(settings.mode, CheckpointingMode::AtLeastOnce);
    let mut coordinator = active(settings);
    assert_eq!(barriers(&coordinator.tick(Timestamp(1000)))[0].alignment, Alignment::AtLeastOnce);
}

#[test]
fn row_unaligned_and_alignment_timeout() {
    for (timeout, after) in [("0s", 0), ("2s", 2000)] {
        let mut coordinator = active(with(serde_json::json!({"unaligned": true, "alignmentTimeout": timeout})));
        let alignment = barriers(&coordinator.tick(Timestamp(1000)))[0].alignment;
        assert_eq!(alignment, Alignment::Unaligned { after: TimeSpan(after) });
    }
}

#[test]
fn row_last_checkpoint_of_all_input_is_aligned() {
    let mut coordinator = active(with(serde_json::json!({"unaligned": true})));
    coordinator.request(Ends::Finish);
    assert_eq!(barriers(&coordinator.tick(Timestamp(10)))[0].alignment, Alignment::Aligned);
    let mut coordinator = active(with(serde_json::json!({"unaligned": true})));
    coordinator.request(Ends::Stop);
    let alignment = barriers(&coordinator.tick(Timestamp(10)))[0].alignment;
    assert!(matches!(alignment, Alignment::Unaligned { .. }), "what it overtakes comes back at the resume");
}

#[test]
fn row_interval() {
    let mut coordinator = active(with(serde_json::json!({"interval": "3s"})));
    assert!(coordinator.tick(Timestamp(2999)).is_empty());
    assert_eq!(triggered(&coordinator.tick(Timestamp(3000))), [8]);
    finish(&mut coordinator, 8, 3100);
    assert_eq!(coordinator.next_wakeup(), Some(Timestamp(6000)), "from trigger to trigger");
}

#[test]
fn row_timeout() {
    let mut coordinator = active(with(serde_json::json!({"timeout": "4s"})));
    coordinator.tick(Timestamp(1000));
    assert!(coordinator.tick(Timestamp(4999)).is_empty(), "the clock starts at the trigger");
    assert!(matches!(coordinator.tick(Timestamp(5000))[..], [Output::Aborted(_), Output::FailJob(_)]));
}

#[test]
fn row_min_pause() {
    let settings = with(serde_json::json!({"minPause": "5s", "tolerableFailures": 9}));
    let mut coordinator = active(settings);
    coordinator.tick(Timestamp(1000));
    fail(&mut coordinator, 8, 1950);
    assert_eq!(coordinator.next_wakeup(), Some(Timestamp(2050)), "a failed one starts no pause, only a backoff");
    assert_eq!(triggered(&coordinator.tick(Timestamp(2050))), [9]);
    finish(&mut coordinator, 9, 3000);
    assert_eq!(coordinator.next_wakeup(), Some(Timestamp(8000)), "from the last completed one");
    coordinator.request(Ends::None);
    assert_eq!(triggered(&coordinator.tick(Timestamp(3000))), [10], "one that is asked for does not wait");
}

#[test]
fn row_min_pause_with_max_concurrent() {
    let settings = with(serde_json::json!({"minPause": "1ms", "maxConcurrent": 4}));
    assert_eq!(settings.effective_max_concurrent(), 1);
    assert_eq!(settings.warnings()[0].0, "MaxConcurrentOverruled");
    let mut coordinator = active(settings);
    coordinator.tick(Timestamp(1000));
    assert!(coordinator.tick(Timestamp(2000)).is_empty());
}

#[test]
fn row_max_concurrent() {
    let mut coordinator = active(with(serde_json::json!({"maxConcurrent": 2})));
    assert_eq!(triggered(&coordinator.tick(Timestamp(1000))), [8]);
    assert_eq!(triggered(&coordinator.tick(Timestamp(2000))), [9]);
    assert!(coordinator.tick(Timestamp(3000)).is_empty());
}

#[test]
fn row_tolerable_failures_0() {
    let mut coordinator = active(with(serde_json::json!({"tolerableFailures": 0})));
    coordinator.tick(Timestamp(1000));
    assert!(fail(&mut coordinator, 8, 1000), "the first one fails the job");
}

#[test]
fn row_tolerable_failures_n() {
    let mut coordinator = active(with(serde_json::json!({"tolerableFailures": 2})));
    let next = |coordinator: &mut CheckpointCoordinator| {
        let now = coordinator.next_wakeup().unwrap();
        (triggered(&coordinator.tick(now))[0], now.0)
    };
    for third_completes in [true, false] {
        for _ in 0..2 {
            let (id, at) = next(&mut coordinator);
            assert!(!fail(&mut coordinator, id, at));
        }
        let (id, at) = next(&mut coordinator);
        if third_completes {
            finish(&mut coordinator, id, at);
        } else {
            assert!(fail(&mut coordinator, id, at), "in a row, and a success resets");
        }
    }
}

#[test]
fn row_tolerable_failures_behind_the_end_of_all_input() {
    let is_fatal = |outputs: &[Output]| outputs.iter().any(|output| matches!(output, Output::FailJob(_)));
    let mut coordinator = active(with(serde_json::json!({"tolerableFailures": 0})));
    coordinator.tick(Timestamp(1000));
    coordinator.input_ended();
    assert!(!is_fatal(&coordinator.tick(Timestamp(11_000))), "it waited only for queues to empty");
    assert_eq!((coordinator.counters().failed, coordinator.counters().failed_in_a_row), (1, 0));
    coordinator.failure_recorded();
    assert_eq!(triggered(&coordinator.tick(Timestamp(11_000))), [9], "the next one, and no backoff");
    assert!(is_fatal(&coordinator.fail(CheckpointId(9), declined(), Timestamp(12_000))), "what is declined counts");

    let mut coordinator = active(with(serde_json::json!({"tolerableFailures": 0})));
    coordinator.input_ended();
    coordinator.request(Ends::Finish);
    coordinator.tick(Timestamp(1000));
    assert!(is_fatal(&coordinator.tick(Timestamp(11_000))), "the last one waits for no queue");
    coordinator.activate([subtask(0), subtask(1)].into(), None, Timestamp(20_000));
    coordinator.failure_recorded();
    coordinator.tick(Timestamp(21_000));
    assert!(is_fatal(&coordinator.tick(Timestamp(31_000))), "a new attempt has input again");
}

#[test]
fn row_tolerable_failures_unlimited() {
    let mut coordinator = active(with(serde_json::json!({"tolerableFailures": "Unlimited"})));
    for _ in 0..200 {
        let now = coordinator.next_wakeup().unwrap();
        let id = triggered(&coordinator.tick(now))[0];
        assert!(!fail(&mut coordinator, id, now.0));
    }
}

/// Flink ignores a trigger that fails: with a wrong bucket a job runs on without progress, and says nothing.
#[test]
fn row_a_checkpoint_that_cannot_be_triggered_counts() {
    let mut coordinator = active(with(serde_json::json!({"tolerableFailures": 2})));
    coordinator.tick(Timestamp(1000));
    coordinator.fail(CheckpointId(8), declined(), Timestamp(1500));
    let mut at = vec![];
    while let Some(wakeup) = coordinator.next_wakeup().filter(|_| at.len() < 2) {
        let outputs = coordinator.tick(wakeup);
        assert!(matches!(&outputs[0], Output::NotTriggered(failure) if failure.message.contains("10s")), "{outputs:?}");
        at.push((wakeup.0, outputs.len()));
    }
    assert_eq!(at, [(12_000, 1), (22_000, 2)], "due at 2000; every timeout without a trigger is one more");
    coordinator.failure_recorded();
    assert_eq!(triggered(&coordinator.tick(Timestamp(22_000))), [9], "the store has answered");
    finish(&mut coordinator, 9, 22_100);
    assert_eq!(coordinator.counters().failed_in_a_row, 0);
}

#[test]
fn row_an_entry_without_an_answer_counts_when_the_next_is_due() {
    let mut coordinator = active(with(serde_json::json!({"tolerableFailures": 0})));
    coordinator.tick(Timestamp(1000));
    for index in [0, 1] {
        coordinator.acknowledge(subtask(index), CheckpointId(8), SubtaskState::default(), None);
    }
    assert!(coordinator.appending(CheckpointId(8)).is_some());
    assert_eq!(coordinator.tick(Timestamp(11_000)), [Output::GiveUp(CheckpointId(8))]);
    assert!(matches!(coordinator.tick(Timestamp(21_000))[..], [Output::NotTriggered(_), Output::FailJob(_)]));
    coordinator.completed(CheckpointId(8), Timestamp(21_500));
    assert_eq!(coordinator.counters().failed_in_a_row, 0, "the ledger decided otherwise");
}

#[test]
fn row_savepoint_is_aligned_in_every_mode() {
    let modes =
        [serde_json::json!({}), serde_json::json!({"mode": "AtLeastOnce"}), serde_json::json!({"unaligned": true})];
    for options in modes {
        let mut coordinator = active(with(options));
        coordinator.request_savepoint(order(Ends::None));
        let barrier = barriers(&coordinator.tick(Timestamp(10))).remove(0);
        assert_eq!(barrier.alignment, Alignment::Aligned);
        assert_eq!(barrier.savepoint.as_deref(), Some("s3://sp/3-8"));
    }
}

#[test]
fn row_savepoint_ignores_interval_and_pause_and_goes_beside_aligned_checkpoints() {
    let mut coordinator = active(with(serde_json::json!({"maxConcurrent": 2})));
    coordinator.tick(Timestamp(1000));
    coordinator.request_savepoint(order(Ends::None));
    assert_eq!(triggered(&coordinator.tick(Timestamp(1001))), [9]);
    assert!(coordinator.tick(Timestamp(3000)).is_empty(), "none behind it: entries stand in the order of ids");
    finish(&mut coordinator, 9, 3100);
    assert_eq!(triggered(&coordinator.tick(Timestamp(3100))), [10]);
}

/// K5.
#[test]
fn row_savepoint_and_unaligned_checkpoints_exclude_each_other() {
    let mut coordinator = active(with(serde_json::json!({"unaligned": true})));
    coordinator.tick(Timestamp(1000));
    coordinator.request_savepoint(order(Ends::None));
    assert!(coordinator.tick(Timestamp(2000)).is_empty(), "not beside a checkpoint");
    finish(&mut coordinator, 8, 2500);
    assert!(barriers(&coordinator.tick(Timestamp(2500)))[0].savepoint.is_some());
    assert!(coordinator.tick(Timestamp(9000)).is_empty(), "and none beside it");
    let outputs = coordinator.tick(Timestamp(12_500));
    assert!(matches!(&outputs[..], [Output::Aborted(aborted)] if aborted.savepoint.is_some()), "{outputs:?}");
    coordinator.failure_recorded();
    let next = barriers(&coordinator.tick(Timestamp(12_600))).remove(0);
    assert_eq!(next.savepoint, None, "after an expired one a checkpoint completes first");
    assert!(coordinator.tick(Timestamp(14_000)).is_empty());
    finish(&mut coordinator, 10, 14_500);
    assert!(barriers(&coordinator.tick(Timestamp(14_500)))[0].savepoint.is_some());
}

#[test]
fn row_savepoint_failures_are_not_the_jobs() {
    let mut coordinator = active(with(serde_json::json!({"tolerableFailures": 0, "interval": "5s"})));
    coordinator.request_savepoint(order(Ends::Stop));
    for id in 8..12 {
        let now = coordinator.next_wakeup().unwrap().max(Timestamp(10));
        assert_eq!(triggered(&coordinator.tick(now)), [id]);
        assert!(!fail(&mut coordinator, id, now.0));
    }
    assert_eq!((coordinator.counters().failed, coordinator.counters().failed_in_a_row), (4, 0));
}

#[test]
fn row_savepoint_between_two_tries_checkpoints_go_on() {
    let mut coordinator = active(with(serde_json::json!({"interval": "1s"})));
    coordinator.request_savepoint(order(Ends::None));
    let (mut now, mut periodic) = (Timestamp(10), 0);
    for _ in 0..20 {
        let barrier = barriers(&coordinator.tick(now)).remove(0);
        if barrier.savepoint.is_some() {
            assert!(!fail(&mut coordinator, barrier.checkpoint.0, now.0));
        } else {
            periodic += 1;
            finish(&mut coordinator, barrier.checkpoint.0, now.0);
        }
        now = coordinator.next_wakeup().unwrap();
    }
    assert!(periodic > 5, "{periodic}");
}

#[test]
fn row_savepoint_is_given_up_unless_its_entry_is_under_way() {
    let mut coordinator = active(with(serde_json::json!({})));
    coordinator.request_savepoint(order(Ends::None));
    coordinator.tick(Timestamp(10));
    let outputs = coordinator.withdraw_savepoint("r", &declined(), Timestamp(20)).unwrap();
    assert!(matches!(&outputs[..], [Output::Aborted(aborted)] if aborted.id == CheckpointId(8)), "{outputs:?}");
    coordinator.failure_recorded();
    coordinator.request_savepoint(order(Ends::None));
    coordinator.tick(Timestamp(1000));
    for index in [0, 1] {
        coordinator.acknowledge(subtask(index), CheckpointId(9), SubtaskState::default(), None);
    }
    assert!(coordinator.appending(CheckpointId(9)).is_some());
    assert_eq!(coordinator.withdraw_savepoint("r", &declined(), Timestamp(2000)), None, "K4: only the ledger decides");
}

#[test]
fn options_that_are_taken_over_leave_what_is_under_way_alone() {
    let mut coordinator = active(with(serde_json::json!({"timeout": "10m"})));
    assert_eq!(triggered(&coordinator.tick(Timestamp(1000))), [8]);
    coordinator.reconfigure(with(serde_json::json!({"timeout": "5s"})), Timestamp(2000));
    assert!(coordinator.tick(Timestamp(100_000)).is_empty(), "it has the ten minutes that it began with");

    let mut coordinator = active(with(serde_json::json!({"unaligned": true})));
    assert_eq!(triggered(&coordinator.tick(Timestamp(1000))), [8]);
    coordinator.reconfigure(with(serde_json::json!({"maxConcurrent": 2})), Timestamp(2000));
    assert!(coordinator.tick(Timestamp(5000)).is_empty(), "nothing goes behind an unaligned one (K5)");
    complete(&mut coordinator, 8, 6000);
    assert_eq!(triggered(&coordinator.tick(Timestamp(6000))), [9]);
    assert_eq!(triggered(&coordinator.tick(Timestamp(7000))), [10], "two aligned ones");
}
