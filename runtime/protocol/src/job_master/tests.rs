//! The JobMaster's flows against a store that answers at once and TaskManagers that obey. What delays, fails and
//! overtakes is the simulation's part.

mod bench;
mod deletes;
mod reconfigure;
mod restore;
mod savepoints;

use crate::failure::{ExitKind, Failure, Fault};
use crate::ids::{CheckpointId, Generation};
use crate::job_master::{Command, Directive, Event, SessionId, StartFrom};
use crate::ledger::{Entry, EntryKind};
use crate::message::{FromTaskManager, ToTaskManager};
use crate::options::{FixedDelay, RestartStrategySpec, Retention, TolerableFailures};
use crate::restart::{CountedFailure, FailureCounts};
use crate::status::JobState;
use crate::store::UnfinishedUpload;
use crate::time::{TimeSpan, Timestamp};
use bench::{Bench, config, no_checkpoints};

fn failure() -> Failure {
    Failure::restart("Broken", Fault::Internal, "the operator broke")
}

fn kinds(bench: &Bench) -> Vec<String> {
    let name = |entry: Entry| format!("{:?}", entry.kind).split([' ', '{']).next().unwrap().to_owned();
    bench.ledger().into_iter().map(name).collect()
}

#[test]
fn it_starts_deploys_checkpoints_and_finishes() {
    let mut bench = Bench::new(config(2));
    assert_eq!(bench.state(), JobState::Starting);
    bench.register(1);
    assert_eq!(bench.status().message, "waiting for slots: 1 of 2 are free");
    bench.register(2);
    assert_eq!(bench.state(), JobState::Running);
    assert_eq!((bench.status().tasks_running, bench.status().tasks), (4, 4));
    bench.pass(1000);
    bench.acknowledge_all(1);
    assert_eq!(bench.status().last_checkpoint.as_ref().unwrap().path, "s3://bucket/root/default/pv-1/1/chk-1");
    assert!(bench.sent_to_all(|message| matches!(message, ToTaskManager::CheckpointCompleted { .. })));
    bench.finish_sources();
    assert_eq!(bench.state(), JobState::Finishing);
    bench.acknowledge_all(2);
    assert!(bench.exit.is_none(), "not before all tasks have finished");
    bench.finish_all();
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Finished);
    assert_eq!(kinds(&bench), ["Started", "Checkpoint", "Checkpoint", "Finished"]);
    assert!(bench.sent_to_all(|message| matches!(message, ToTaskManager::Shutdown)));
}

#[test]
fn subtask_i_of_every_vertex_goes_into_slot_i() {
    let mut bench = Bench::new(config(2));
    bench.register(1);
    bench.register(2);
    let deployment = bench.deployments[&SessionId(2)].clone();
    assert!(deployment.tasks.iter().all(|task| task.subtask.index.0 == 1) && deployment.tasks.len() == 2);
    assert_eq!(deployment.placement.len(), 4);
    assert_eq!(deployment.state_directory.as_deref(), Some("default/pv-1/1"));
}

#[test]
fn strangers_are_refused() {
    let mut bench = Bench::new(config(1));
    let mut stranger = bench.registration(1);
    stranger.generation = Generation(7);
    bench.message(1, FromTaskManager::Register(stranger));
    assert!(matches!(&bench.last_sent(1), ToTaskManager::Refused(failure) if failure.reason == "WrongGeneration"));
    let mut stranger = bench.registration(2);
    stranger.fingerprint = "other".into();
    bench.message(2, FromTaskManager::Register(stranger));
    assert!(matches!(&bench.last_sent(2), ToTaskManager::Refused(failure) if failure.reason == "WrongProgram"));
}

#[test]
fn a_failed_task_restarts_all_in_place_from_the_latest_checkpoint() {
    let mut bench = Bench::running(config(1));
    bench.pass(1000);
    bench.acknowledge_all(1);
    bench.fail_task(failure());
    assert_eq!(bench.state(), JobState::Restarting);
    assert_eq!(bench.status().failed_attempts, 1);
    assert_eq!(bench.status().message, "restarting after: the operator broke");
    assert!(
        matches!(bench.ledger().last().unwrap().kind, EntryKind::Restarted { .. }),
        "recorded before tasks restart"
    );
    bench.pass(1000);
    assert_eq!(bench.state(), JobState::Running);
    assert_eq!(bench.status().attempt.0, 2);
    assert_eq!(bench.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
    assert!(bench.deployments[&SessionId(1)].tasks.iter().all(|task| task.restore.is_some()));
}

#[test]
fn tasks_are_not_deployed_before_the_old_ones_have_ended() {
    let mut bench = Bench::running(config(1));
    bench.obeys_cancel = false;
    bench.fail_task(failure());
    bench.pass(3000);
    assert_eq!(bench.state(), JobState::Restarting);
    let run = bench.deployments[&SessionId(1)].run;
    bench.message(1, FromTaskManager::TasksEnded { run });
    assert_eq!(bench.state(), JobState::Running);
}

#[test]
fn a_task_manager_that_cannot_end_its_tasks_is_given_up() {
    let mut bench = Bench::running(config(1));
    bench.obeys_cancel = false;
    bench.fail_task(failure());
    for _ in 0..61 {
        bench.pass(1000);
        bench.message(1, FromTaskManager::Heartbeat);
    }
    assert!(bench.closed.contains(&SessionId(1)));
    assert!(bench.status().task_managers.is_empty());
}

#[test]
fn tasks_that_never_come_to_run_fail_the_attempt_by_name() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().tolerable_failures = TolerableFailures::Count(1000);
    let mut bench = Bench::new(config);
    bench.runs_tasks = false;
    bench.register(1);
    bench.pass(599_000);
    assert_eq!(bench.status().failed_attempts, 0);
    bench.pass(1000);
    let failure = &bench.status().failures[0].failure;
    assert_eq!((failure.reason.as_str(), bench.state()), ("DeploymentTimeout", JobState::Restarting));
    assert!(failure.message.starts_with("2 of 2 tasks have not begun to run within 10m"), "{failure:?}");
    bench.runs_tasks = true;
    bench.pass(1000);
    assert_eq!((bench.state(), bench.status().failed_attempts), (JobState::Running, 1));
    bench.pass(700_000);
    assert_eq!(bench.status().failed_attempts, 1, "a job that runs has no such deadline");
}

#[test]
fn a_silent_task_manager_is_lost_after_the_timeout_and_replaced() {
    let mut bench = Bench::running(config(1));
    bench.is_silent = true;
    bench.pass(9_999);
    assert_eq!(bench.state(), JobState::Running);
    bench.pass(1);
    assert_eq!(bench.state(), JobState::Restarting);
    assert!(bench.status().failures[0].failure.message.contains("TaskManager tm-1 was lost: it was silent"));
    bench.is_silent = false;
    bench.register(2);
    bench.pass(1000);
    assert_eq!(bench.state(), JobState::Running);
}

#[test]
fn a_reconnected_task_manager_ends_its_old_tasks_first() {
    let mut bench = Bench::running(config(1));
    let run = bench.deployments[&SessionId(1)].run;
    bench.obeys_cancel = false;
    bench.event(Event::SessionClosed { session: SessionId(1) });
    let mut again = bench.registration(1);
    again.data_address = "again:1".into();
    bench.message(9, FromTaskManager::Register(again));
    bench.pass(2000);
    assert!(matches!(&bench.last_sent(9), ToTaskManager::CancelTasks { run: cancelled } if *cancelled == run), "N4");
    bench.message(9, FromTaskManager::TasksEnded { run });
    assert_eq!(bench.state(), JobState::Running);
}

#[test]
fn messages_of_an_older_run_are_refused() {
    let mut bench = Bench::running(config(1));
    let old = bench.deployments[&SessionId(1)].run;
    bench.fail_task(failure());
    bench.pass(1000);
    let subtask = bench.deployments[&SessionId(1)].tasks[0].subtask;
    bench.message(1, FromTaskManager::TaskFailed { run: old, subtask, failure: failure() });
    assert_eq!((bench.state(), bench.status().failed_attempts), (JobState::Running, 1));
}

#[test]
fn a_spent_policy_fails_the_job_with_the_root_cause_first() {
    let mut config = config(1);
    let fixed = FixedDelay { attempts: 1, delay: TimeSpan(10) };
    config.options.restart_strategy = Some(RestartStrategySpec { fixed_delay: Some(fixed), ..Default::default() });
    let mut bench = Bench::running(config);
    bench.fail_task(failure());
    bench.pass(10);
    bench.fail_task(failure());
    let exit = bench.exit.clone().unwrap();
    assert_eq!(exit.kind, ExitKind::Failed);
    assert!(
        exit.message.starts_with("the operator broke; not restarted: restartStrategy.fixedDelay allows 1"),
        "{exit:?}"
    );
    assert_eq!(kinds(&bench), ["Started", "Restarted", "Failed"]);
}

#[test]
fn the_failures_of_the_controller_and_of_the_ledger_feed_one_policy() {
    let mut config = config(1);
    let fixed = FixedDelay { attempts: 1, delay: TimeSpan(10) };
    config.options.restart_strategy = Some(RestartStrategySpec { fixed_delay: Some(fixed), ..Default::default() });
    let mut known = FailureCounts::new(1);
    known.record(CountedFailure::JobManager(Generation(1)), Timestamp(1));
    config.failures = known;
    config.generation = Generation(2);
    let mut bench = Bench::running(config);
    bench.fail_task(failure());
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Failed);
}

#[test]
fn a_users_error_is_not_restarted() {
    let mut bench = Bench::running(config(1));
    bench.fail_task(Failure::user("BadProgram", "column x is no number"));
    let exit = bench.exit.as_ref().unwrap();
    assert_eq!((exit.kind, exit.message.as_str()), (ExitKind::UserError, "column x is no number"));
    assert_eq!(bench.status().failed_attempts, 0);
}

#[test]
fn what_is_out_of_reach_while_restoring_spends_no_attempt() {
    let mut bench = Bench::new(config(1));
    bench.runs_tasks = false;
    bench.register(1);
    for _ in 0..3 {
        bench.fail_task(Failure::external("StoreUnreachable", "the store is away"));
        assert_eq!(bench.state(), JobState::Restarting);
        bench.pass(40_000);
    }
    assert_eq!(bench.status().failed_attempts, 0);
    bench.runs_tasks = true;
    bench.fail_task(Failure::external("StoreUnreachable", "the store is away"));
    bench.pass(40_000);
    assert_eq!(bench.state(), JobState::Running);
}

#[test]
fn a_store_out_of_reach_at_the_start_is_waited_for_and_shown() {
    let mut bench = Bench::paused(config(1));
    bench.store.is_away = true;
    bench.tick();
    bench.pass(30_000);
    assert_eq!(bench.state(), JobState::Starting);
    assert_eq!(bench.status().notices[0].reason, "StoreUnreachable");
    bench.store.is_away = false;
    bench.pass(15_000);
    bench.register(1);
    assert_eq!((bench.state(), bench.status().failed_attempts), (JobState::Running, 0));
    assert!(bench.status().notices.is_empty());
}

#[test]
fn failed_checkpoints_are_counted_and_the_next_waits_for_the_store() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().tolerable_failures = TolerableFailures::Count(100);
    let mut bench = Bench::running(config);
    bench.store.is_away = true;
    bench.pass(1000);
    bench.acknowledge_all(1);
    bench.pass(60_000);
    assert_eq!((bench.state(), bench.status().failed_checkpoints), (JobState::Running, 1));
    assert!(bench.status().pending_checkpoints.is_empty(), "no trigger before the store has answered");
    bench.store.is_away = false;
    bench.pass(10_000);
    assert_eq!(bench.status().pending_checkpoints, [CheckpointId(2)]);
    bench.acknowledge_all(2);
    assert_eq!(bench.status().failed_checkpoints_in_a_row, 0);
    assert_eq!(kinds(&bench), ["Started", "CheckpointFailed", "Checkpoint"]);
}

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
                bench.finish_sources();
                bench.acknowledge_all(4);
                bench.finish_all();
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
fn a_pause_between_checkpoints_and_their_number_are_obeyed() {
    let pending = |bench: &Bench| bench.status().pending_checkpoints.iter().map(|id| id.0).collect::<Vec<_>>();
    let with = |max_concurrent, min_pause| {
        let mut config = config(1);
        let checkpointing = config.options.checkpointing.as_mut().unwrap();
        (checkpointing.max_concurrent, checkpointing.min_pause) = (max_concurrent, TimeSpan(min_pause));
        Bench::running(config)
    };
    let mut two = with(2, 0);
    two.pass(5000);
    assert_eq!(pending(&two), [1, 2]);
    two.acknowledge_all(2);
    assert_eq!(kinds(&two), ["Started", "Checkpoint"], "2 covers 1");
    two.pass(1000);
    assert!(!pending(&two).contains(&1));

    let mut paused = with(2, 3000);
    paused.pass(5000);
    assert_eq!(pending(&paused), [1], "a pause makes it one at a time");
    paused.acknowledge_all(1);
    paused.pass(2999);
    assert_eq!(pending(&paused), [] as [u64; 0]);
    paused.pass(1);
    assert_eq!(pending(&paused), [2]);
}

#[test]
fn displaced_checkpoints_are_removed() {
    let mut bench = Bench::running(config(1));
    for id in 1..=3 {
        bench.pass(1000);
        bench.acknowledge_all(id);
    }
    assert!(
        !bench.store.holds("default/pv-1/1/chk-2/_metadata") && bench.store.holds("default/pv-1/1/chk-3/_metadata")
    );
}

#[test]
fn the_next_generation_continues_and_sweeps_what_the_old_one_left() {
    let mut bench = Bench::running(config(1));
    bench.pass(1000);
    bench.acknowledge_all(1);
    bench.store.put("default/pv-1/1/chk-2/litter", b"x");
    let mut next = config(1);
    next.generation = Generation(2);
    next.directive.seen = 1;
    let mut next = bench.succeeded_by(next);
    next.register(1);
    assert_eq!(next.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
    assert!(!next.store.holds("default/pv-1/1/chk-2/litter") && next.store.holds("default/pv-1/1/chk-1/_metadata"));
}

/// K6: what an older process uploads while this one runs is found within the hour, unfinished uploads too; what is
/// under way is left alone.
#[test]
fn what_is_dead_is_swept_every_hour() {
    let mut config = config(1);
    config.generation = Generation(2);
    let checkpointing = config.options.checkpointing.as_mut().unwrap();
    (checkpointing.retained, checkpointing.interval) = (2, TimeSpan::from_secs(1000));
    let mut bench = Bench::running(config);
    for id in 1..=3 {
        bench.pass(1_000_000);
        bench.acknowledge_all(id);
    }
    let upload = |key: &str| UnfinishedUpload { key: key.to_owned(), id: "u".to_owned() };
    let dead = ["1/chk-7/state", "2/chk-1/late"].map(|key| format!("default/pv-1/{key}"));
    let alive = ["2/chk-2/state", "2/chk-3/state", "2/chk-4/state", "3/chk-9/state", "2/shared/state", "notes"];
    let alive = alive.map(|key| format!("default/pv-1/{key}"));
    for key in dead.iter().chain(&alive) {
        bench.store.put(key, b"x");
        bench.store.uploads.push(upload(key));
    }
    bench.pass(600_000);
    assert!(dead.iter().all(|key| !bench.store.holds(key)) && alive.iter().all(|key| bench.store.holds(key)));
    assert_eq!(bench.store.uploads, alive.map(|key| upload(&key)));
}

#[test]
fn a_sweep_that_is_not_allowed_delays_no_end() {
    let mut bench = Bench::running(config(1));
    bench.store.hides_uploads = true;
    bench.event(Event::Command(Command::Cancel));
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Stopped);
}

/// K6: when the terminal entry stands, the store holds the ledger and what is retained, and nothing else.
#[test]
fn at_the_end_only_what_is_retained_is_left() {
    let mut bench = Bench::running(config(1));
    bench.pass(1000);
    bench.acknowledge_all(1);
    for number in 0..1200 {
        bench.store.put(&format!("default/pv-1/1/chk-2/state-{number}"), b"x");
    }
    bench.store.uploads.push(UnfinishedUpload { key: "default/pv-1/1/chk-9/state".into(), id: "u".into() });
    bench.event(Event::Command(Command::Stop));
    bench.acknowledge_all(2);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Stopped);
    let left: Vec<_> = bench.store.keys().filter(|key| !key.contains("/ledger/")).collect();
    assert_eq!(left.len(), 1201, "what lies in the retained checkpoint's directory stays: {left:?}");
    assert!(bench.store.uploads.is_empty() && !bench.store.holds("default/pv-1/1/chk-1/_metadata"));

    let mut bench = Bench::running(config(1));
    (0..1200).for_each(|number| bench.store.put(&format!("default/pv-1/1/chk-1/state-{number}"), b"x"));
    bench.event(Event::Command(Command::Cancel));
    assert_eq!(bench.store.keys().filter(|key| !key.contains("/ledger/")).count(), 0);
}

#[test]
fn another_generation_in_the_ledger_ends_this_one_within_ten_seconds() {
    let mut bench = Bench::running(config(1));
    let mut next = config(1);
    next.generation = Generation(2);
    let successor = bench.clone_store_for(next);
    bench.store = successor.store;
    bench.pass(10_000);
    let exit = bench.exit.as_ref().unwrap();
    assert_eq!((exit.kind, exit.by_generation), (ExitKind::Superseded, Some(2)));
}

#[test]
fn a_start_that_finds_too_little_or_too_much_appends_nothing() {
    let mut missing = config(1);
    missing.directive.seen = 4;
    let bench = Bench::new(missing);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::StateMissing);
    assert!(bench.ledger().is_empty());
    let bench = Bench::running(config(1));
    let mut moved = config(1);
    moved.generation = Generation(2);
    moved.directive = Directive { id: "2".into(), seen: 0, start: StartFrom::Empty };
    let moved = bench.succeeded_by(moved);
    let exit = moved.exit.as_ref().unwrap();
    assert_eq!((exit.kind, exit.ledger_entry), (ExitKind::StateMoved, Some(1)));
    assert_eq!(moved.ledger().len(), 1);
}

/// Has taken checkpoint 1 and was stopped with checkpoint 2, the one that is retained.
fn stopped() -> Bench {
    let mut bench = Bench::running(config(1));
    bench.pass(1000);
    bench.acknowledge_all(1);
    bench.event(Event::Command(Command::Stop));
    bench.acknowledge_all(2);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Stopped);
    bench
}

fn restoring(uid: &str, from: &str) -> crate::job_master::JobMasterConfig {
    let mut config = config(1);
    config.job.uid = uid.to_owned();
    config.directive.start = StartFrom::Path { from: from.to_owned(), allow_non_restored_state: false };
    config
}

/// K7: its owner may drop it at any time.
#[test]
fn a_checkpoint_of_a_job_that_has_not_ended_is_refused() {
    let mut first = Bench::running(config(1));
    first.pass(1000);
    first.acknowledge_all(1);
    for from in ["1/chk-1", "1/chk-1/_metadata", ""] {
        let second = first.clone_store_for(restoring("2", &format!("s3://bucket/root/default/pv-1/{from}")));
        let exit = second.exit.clone().unwrap();
        assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::UserError, "CheckpointInUse"));
        assert!(exit.message.contains("s3://bucket/root/default/pv-1") && exit.message.contains("Stop that job"));
        assert!(second.ledger_of("2").is_empty());
    }
}

#[test]
fn a_copy_a_savepoint_and_an_own_checkpoint_are_restored_while_the_job_runs() {
    let mut first = Bench::running(config(1));
    first.pass(1000);
    first.acknowledge_all(1);
    for copy in ["copies/chk-1", "savepoints/default/pv-1/1-1"] {
        first.store.copy("default/pv-1/1/chk-1/_metadata", &format!("{copy}/_metadata"));
        let mut second = first.clone_store_for(restoring("2", &format!("s3://bucket/root/{copy}")));
        second.register(1);
        assert_eq!(second.status().restored_from.as_ref().unwrap().path, format!("s3://bucket/root/{copy}"));
    }
    for own in ["s3://bucket/root/default/pv-1/1/chk-1", "s3://bucket/root/default/pv-1"] {
        let mut next = restoring("1", own);
        next.generation = Generation(2);
        next.directive.id = "2".into();
        next.directive.seen = first.ledger().len() as u64;
        let mut next = first.clone_store_for(next);
        next.register(1);
        assert_eq!(next.status().restored_from.as_ref().unwrap().id, CheckpointId(1), "{:?}", next.exit);
    }
}

#[test]
fn the_last_word_names_the_last_ledger_entry() {
    assert_eq!(stopped().exit.unwrap().ledger_entry, Some(4), "Started, two Checkpoints, Stopped");
    assert_eq!(Bench::new(no_checkpoints(1)).exit, None);
}

#[test]
fn it_restores_by_path_from_a_checkpoint_its_metadata_or_a_job_directory() {
    let first = stopped();
    for from in ["1/chk-2", "1/chk-2/_metadata", ""] {
        let mut second = config(2);
        second.job.uid = "2".into();
        let from = format!("s3://bucket/root/default/pv-1/{from}");
        second.directive.start = StartFrom::Path { from, allow_non_restored_state: false };
        let mut second = first.clone_store_for(second);
        second.register(1);
        second.register(2);
        let restored = second.status().restored_from.clone().unwrap();
        assert_eq!(restored.path, "s3://bucket/root/default/pv-1/1/chk-2");
    }
}

#[test]
fn a_snapshot_that_is_not_there_or_does_not_fit_is_a_users_error_and_changes_nothing() {
    let first = stopped();
    let start = |from: &str| StartFrom::Path { from: from.to_owned(), allow_non_restored_state: false };
    let mut second = config(1);
    second.job.uid = "2".into();
    second.directive.start = start("s3://bucket/root/default/pv-1/1/chk-9");
    let second = first.clone_store_for(second);
    let exit = second.exit.clone().unwrap();
    assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::UserError, "SnapshotNotFound"));
    assert!(exit.message.contains("s3://bucket/root/default/pv-1/1/chk-9"));
    assert!(second.ledger_of("2").is_empty());
    let mut third = config(1);
    third.job.uid = "3".into();
    third.graph.vertices[1].operators[0].uid = "sum".into();
    third.directive.start = start("s3://bucket/root/default/pv-1/1/chk-2");
    let third = first.clone_store_for(third);
    assert_eq!(third.exit.as_ref().unwrap().reason, "SnapshotIncompatible");
}

#[test]
fn older_directories_of_the_same_name_are_noticed() {
    let mut first = Bench::running(config(1));
    first.pass(1000);
    first.acknowledge_all(1);
    let mut second = config(1);
    second.job.uid = "2".into();
    let second = first.clone_store_for(second);
    let notice = &second.status().notices[0];
    assert_eq!(notice.reason, "OlderCheckpointsExist");
    assert!(notice.message.contains("s3://bucket/root/default/pv-1/1/chk-1"), "{}", notice.message);
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
fn memory_storage_survives_a_failed_task_but_not_its_job_manager() {
    let mut config = config(1);
    config.storage_uri = None;
    let mut bench = Bench::running(config.clone());
    bench.pass(1000);
    bench.acknowledge_all(1);
    assert!(bench.store.is_untouched());
    bench.fail_task(failure());
    bench.pass(1000);
    assert_eq!(bench.state(), JobState::Running);
    assert_eq!(bench.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
    config.generation = Generation(2);
    assert!(Bench::new(config.clone()).exit.is_none(), "a new revision of the spec starts empty");
    config.failures.record(CountedFailure::JobManager(Generation(1)), Timestamp(1));
    assert_eq!(Bench::new(config).exit.unwrap().kind, ExitKind::StateLost);
}

#[test]
fn memory_storage_refuses_large_state_by_name() {
    let mut config = config(1);
    config.storage_uri = None;
    config.options.checkpointing.as_mut().unwrap().tolerable_failures = TolerableFailures::Count(9);
    let mut bench = Bench::running(config);
    bench.state_bytes = 6 << 20;
    bench.pass(1000);
    bench.acknowledge_all(1);
    let notice = &bench.status().notices[0];
    assert!(
        notice.message.contains("state 'counts' of operator 'count'") && notice.message.contains("s3://"),
        "{notice:?}"
    );
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

#[test]
fn a_newer_format_in_the_ledger_is_refused_by_name() {
    let mut bench = Bench::paused(config(1));
    let newer = br#"{"version":9,"number":1,"appendId":"a","process":"p","generation":1,"kind":{"type":"Started"}}"#;
    bench.store.put("default/pv-1/ledger/0000000001.json", newer);
    bench.tick();
    let exit = bench.exit.as_ref().unwrap();
    assert!(exit.kind == ExitKind::UserError && exit.message.contains("format version 9"), "{exit:?}");
}

#[test]
fn two_strategies_are_a_users_error() {
    let mut config = config(1);
    config.options.restart_strategy = Some(RestartStrategySpec::default());
    let bench = Bench::new(config);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::UserError);
    assert!(bench.store.is_untouched());
}

/// Completes checkpoint `id` of generation 1, which stores the last of these shared files and refers to all.
fn complete_with_files(bench: &mut Bench, id: u64, files: &[&str]) {
    bench.pass(1000);
    bench.files = files.iter().map(|file| (*file).to_owned()).collect();
    bench.store.put(&shared(files.last().unwrap()), b"state");
    bench.acknowledge_all(id);
    assert_eq!(bench.status().last_checkpoint.as_ref().unwrap().id, CheckpointId(id));
}

fn shared(file: &str) -> String {
    format!("default/pv-1/1/shared/{file}")
}

#[test]
fn shared_files_go_with_the_last_checkpoint_that_refers_to_them() {
    let mut bench = Bench::running(config(1));
    complete_with_files(&mut bench, 1, &["1-whole"]);
    complete_with_files(&mut bench, 2, &["1-whole", "2-delta"]);
    assert!(!bench.store.holds("default/pv-1/1/chk-1/_metadata"));
    assert!(bench.store.holds(&shared("1-whole")), "checkpoint 2 refers to it");
    complete_with_files(&mut bench, 3, &["1-whole", "3-merged"]);
    assert!(bench.store.holds(&shared("1-whole")) && !bench.store.holds(&shared("2-delta")));
    complete_with_files(&mut bench, 4, &["4-whole"]);
    assert!(!bench.store.holds(&shared("1-whole")) && !bench.store.holds(&shared("3-merged")));
    assert!(bench.store.holds(&shared("4-whole")));
}

#[test]
fn shared_files_of_a_failed_checkpoint_go_once_a_later_one_is_complete() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().tolerable_failures = TolerableFailures::Count(5);
    let mut bench = Bench::running(config);
    complete_with_files(&mut bench, 1, &["1-whole"]);
    bench.pass(1000);
    bench.store.put(&shared("2-lost"), b"state");
    bench.decline(2, failure());
    assert!(bench.store.holds(&shared("2-lost")));
    bench.pass(1000);
    complete_with_files(&mut bench, 3, &["1-whole", "3-delta"]);
    assert!(!bench.store.holds(&shared("2-lost")) && bench.store.holds(&shared("1-whole")));
}

#[test]
fn what_the_base_of_a_pending_checkpoint_refers_to_stays() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().max_concurrent = 2;
    let mut bench = Bench::running(config);
    complete_with_files(&mut bench, 1, &["1-whole"]);
    // 2 and 3 both build on 1.
    bench.pass(1000);
    complete_with_files(&mut bench, 2, &["2-whole"]);
    assert!(bench.store.holds(&shared("1-whole")), "checkpoint 3 may refer to it");
    bench.files = vec!["1-whole".to_owned(), "3-delta".to_owned()];
    bench.store.put(&shared("3-delta"), b"state");
    bench.acknowledge_all(3);
    assert!(bench.store.holds(&shared("1-whole")) && bench.store.holds(&shared("3-delta")));
    assert!(!bench.store.holds(&shared("2-whole")));
}

#[test]
fn the_next_generation_sweeps_shared_files_that_no_retained_checkpoint_refers_to() {
    let mut retained = config(1);
    retained.options.checkpointing.as_mut().unwrap().retained = 2;
    let mut bench = Bench::running(retained.clone());
    complete_with_files(&mut bench, 1, &["1-whole"]);
    complete_with_files(&mut bench, 2, &["2-whole"]);
    bench.store.put(&shared("3-lost"), b"state");
    retained.generation = Generation(2);
    let mut bench = bench.succeeded_by(retained);
    bench.register(1);
    assert!(!bench.store.holds(&shared("3-lost")));
    assert!(bench.store.holds(&shared("1-whole")) && bench.store.holds(&shared("2-whole")));
    bench.files = vec![];
    bench.pass(1000);
    bench.acknowledge_all(3);
    assert!(!bench.store.holds(&shared("1-whole")), "checkpoint 1 is not retained any more");
    assert!(bench.store.holds(&shared("2-whole")));
}
