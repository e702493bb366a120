//! The JobMaster's flows against a store that answers at once and TaskManagers that obey. What delays, fails and
//! overtakes is the simulation's part.

mod abandoned;
mod attempts;
mod bench;
mod closing;
mod commits;
mod deletes;
mod ends;
mod leaving;
mod objects;
mod reconfigure;
mod restore;
mod savepoints;
mod takeover;
mod unsettled;

use crate::failure::{ExitKind, Failure, Fault};
use crate::ids::{Attempt, CheckpointId, Generation, Run};
use crate::job_master::{Command, Directive, Event, SessionId, StartFrom};
use crate::ledger::{Entry, EntryKind};
use crate::message::{FromTaskManager, GroupWatermark, ToTaskManager};
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
    bench.pass(1000);
    bench.acknowledge_all(2);
    assert!(bench.exit.is_none(), "not before all tasks have finished");
    bench.finish_all();
    assert!(bench.exit.is_none(), "nor before a last checkpoint");
    bench.acknowledge_all(3);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Finished);
    assert_eq!(kinds(&bench), ["Started", "Checkpoint", "Checkpoint", "Checkpoint", "Finished"]);
    assert!(bench.sent_to_all(|message| matches!(message, ToTaskManager::Shutdown)));
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
    config.directive.start =
        StartFrom::Path { from: from.to_owned(), allow_non_restored_state: false, abandon_sinks: Vec::new() };
    config
}

/// K7: its owner may drop it at any time.
#[test]
fn a_checkpoint_of_a_job_that_has_not_ended_is_refused() {
    let mut first = Bench::running(config(1));
    first.pass(1000);
    first.acknowledge_all(1);
    for from in ["1/chk-1", "1/chk-1/_metadata"] {
        let second = first.clone_store_for(restoring("2", &format!("s3://bucket/root/default/pv-1/{from}")));
        let exit = second.exit.clone().unwrap();
        assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::UserError, "CheckpointInUse"));
        assert!(exit.message.contains("s3://bucket/root/default/pv-1") && exit.message.contains("takes that job over"));
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
fn it_restores_by_path_from_a_checkpoint_its_metadata_or_a_job_directory() {
    let first = stopped();
    for from in ["1/chk-2", "1/chk-2/_metadata", ""] {
        let mut second = config(2);
        second.job.uid = "2".into();
        let from = format!("s3://bucket/root/default/pv-1/{from}");
        second.directive.start = StartFrom::Path { from, allow_non_restored_state: false, abandon_sinks: Vec::new() };
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
    let start = |from: &str| StartFrom::Path {
        from: from.to_owned(),
        allow_non_restored_state: false,
        abandon_sinks: Vec::new(),
    };
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
