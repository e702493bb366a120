//! How jobs end, and what becomes of their checkpoints then.

use super::*;
use crate::ledger::Ends;

#[test]
fn a_stop_takes_a_last_checkpoint_and_a_resume_restores_it() {
    let mut bench = Bench::running(config(1));
    bench.event(Event::Command(Command::Stop));
    assert_eq!(bench.state(), JobState::Stopping);
    bench.acknowledge_all(1);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Stopped);
    assert_eq!(kinds(&bench), ["Started", "Checkpoint", "Stopped"]);
    let mut next = config(1);
    next.generation = Generation(2);
    next.directive = Directive { id: "2".into(), seen: 3, start: StartFrom::ResumeLatest };
    let mut resumed = bench.succeeded_by(next);
    resumed.register(1);
    assert_eq!(resumed.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
}

#[test]
fn a_stop_whose_checkpoint_fails_stops_without_it() {
    let mut bench = Bench::running(config(1));
    bench.event(Event::Command(Command::Stop));
    bench.decline(1, failure());
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Stopped);
    assert_eq!(kinds(&bench), ["Started", "CheckpointFailed", "Stopped"]);
}

#[test]
fn a_cancelled_job_removes_its_checkpoints_when_asked_to() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().retention = Retention::DeleteOnCancellation;
    let mut bench = Bench::running(config);
    bench.pass(1000);
    bench.acknowledge_all(1);
    assert!(bench.store.holds("default/pv-1/1/chk-1/_metadata"));
    bench.event(Event::Command(Command::Cancel));
    assert!(!bench.store.holds("default/pv-1/1/chk-1/_metadata"));
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Stopped);
    assert_eq!(bench.state(), JobState::Cancelled);
}

#[test]
fn retention_and_what_becomes_of_checkpoints_at_each_end() {
    type End = fn(&mut Bench);
    let ends: [(End, bool); 4] = [
        (|bench| bench.event(Event::Command(Command::Cancel)), false),
        (
            |bench| {
                bench.finish_all();
                bench.acknowledge_all(4);
            },
            false,
        ),
        (|bench| bench.fail_task(Failure::user("BadProgram", "column x is no number")), true),
        (
            |bench| {
                bench.event(Event::Command(Command::Stop));
                bench.acknowledge_all(4);
            },
            true,
        ),
    ];
    for (number, (end, keeps)) in ends.into_iter().enumerate() {
        for retention in [Retention::RetainOnCancellation, Retention::DeleteOnCancellation] {
            let mut config = config(1);
            let checkpointing = config.options.checkpointing.as_mut().unwrap();
            (checkpointing.retention, checkpointing.retained) = (retention, 2);
            let mut bench = Bench::running(config);
            for id in 1..=3 {
                bench.pass(1000);
                bench.acknowledge_all(id);
            }
            let retained = |bench: &Bench| bench.store.keys().filter(|key| key.ends_with("/_metadata")).count();
            assert_eq!(retained(&bench), 2, "the newest two");
            end(&mut bench);
            assert!(bench.exit.is_some());
            let expected = if keeps || retention == Retention::RetainOnCancellation { 2 } else { 0 };
            assert_eq!(retained(&bench), expected, "end {number} with {retention:?}");
        }
    }
}

#[test]
fn the_last_word_names_the_last_ledger_entry() {
    assert_eq!(stopped().exit.unwrap().ledger_entry, Some(4), "Started, two Checkpoints, Stopped");
    assert_eq!(Bench::new(no_checkpoints(1)).exit, None);
}

#[test]
fn without_checkpoints_it_finishes_when_all_tasks_have_and_the_first_failure_ends_it() {
    let mut bench = Bench::running(no_checkpoints(1));
    bench.finish_sources();
    assert!(bench.exit.is_none());
    bench.finish_all();
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Finished);
    let mut bench = Bench::running(no_checkpoints(1));
    bench.fail_task(failure());
    let exit = bench.exit.as_ref().unwrap();
    assert!(exit.kind == ExitKind::Failed && exit.message.contains("the restart strategy is none"), "{exit:?}");
}

#[test]
fn a_stop_before_the_start_is_done_still_ends_with_an_entry() {
    let mut bench = Bench::paused(config(1));
    bench.store.is_away = true;
    bench.tick();
    bench.event(Event::Command(Command::Stop));
    assert!(bench.exit.is_none());
    bench.store.is_away = false;
    bench.pass(15_000);
    assert_eq!(kinds(&bench), ["Started", "Stopped"]);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Stopped);
}

/// With `tolerableFailures` so many.
fn tolerant(failures: u32, options: serde_json::Value) -> crate::job_master::JobMasterConfig {
    let mut config = config(2);
    let checkpointing = config.options.checkpointing.as_mut().unwrap();
    checkpointing.tolerable_failures = TolerableFailures::Count(failures);
    checkpointing.unaligned = options["unaligned"] == true;
    config
}

#[test]
fn a_slow_sink_behind_the_end_of_all_input_takes_longer_than_the_timeout_and_restarts_nothing() {
    for options in [serde_json::json!({}), serde_json::json!({"unaligned": true})] {
        let mut bench = Bench::running(tolerant(0, options));
        bench.pass(1000);
        bench.acknowledge_all(1);
        bench.finish_sources();
        assert_eq!(bench.state(), JobState::Finishing);
        assert_eq!(bench.status().message, "all input was read; 2 of 4 tasks are still at work on it");
        bench.pass(200_000);
        assert_eq!((bench.status().failed_checkpoints, bench.status().failed_checkpoints_in_a_row), (3, 0));
        assert_eq!(bench.status().notices[0].reason, "CheckpointFailed", "people are told");
        assert_eq!(bench.last_barrier().ends, Ends::None, "checkpoints go on");
        bench.acknowledge_all(5);
        assert_eq!((bench.status().completed_checkpoints, bench.status().notices.len()), (2, 0));
        bench.finish_all();
        assert_eq!(bench.status().message, "all input was read and worked on; the last checkpoint is under way");
        assert_eq!(bench.last_barrier().ends, Ends::None, "one is under way, and goes first");
        bench.acknowledge_all(6);
        assert_eq!(bench.last_barrier().ends, Ends::Finish);
        bench.acknowledge_all(7);
        assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Finished);
        assert_eq!(bench.status().failed_attempts, 0);
        assert_eq!(kinds(&bench).iter().filter(|kind| *kind == "Restarted").count(), 0);
    }
}

#[test]
fn an_attempt_that_fails_behind_the_end_of_all_input_goes_on_from_a_checkpoint_behind_it() {
    let mut bench = Bench::running(config(1));
    bench.finish_sources();
    bench.pass(1000);
    bench.acknowledge_all(1);
    bench.fail_task(failure());
    bench.pass(1000);
    assert_eq!((bench.state(), bench.status().restored_from.as_ref().unwrap().id.0), (JobState::Running, 1));
    bench.finish_sources();
    bench.pass(120_000);
    assert_eq!(bench.status().failed_attempts, 1, "the new attempt knows that its input has ended");
    bench.finish_all();
    bench.acknowledge_all(bench.last_barrier().checkpoint.0);
    bench.acknowledge_all(bench.last_barrier().checkpoint.0);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Finished);
}

#[test]
fn a_last_checkpoint_that_fails_is_taken_again_as_often_as_is_tolerated() {
    let mut bench = Bench::running(tolerant(1, serde_json::json!({})));
    bench.finish_all();
    bench.decline(1, failure());
    bench.pass(100);
    assert_eq!((bench.last_barrier().checkpoint.0, bench.last_barrier().ends), (2, Ends::Finish));
    assert_eq!(bench.status().failed_attempts, 0);
    bench.acknowledge_all(2);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Finished);

    let mut bench = Bench::running(tolerant(1, serde_json::json!({})));
    bench.finish_all();
    bench.decline(1, failure());
    bench.pass(100);
    bench.pass(60_000);
    assert_eq!(bench.status().failures[0].failure.reason, "CheckpointFailuresExceeded", "it waits for no row");
    assert_eq!(bench.status().failed_attempts, 1);
}
