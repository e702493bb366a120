//! Savepoints, stops with one, disposals and requests (K4, K5), one course of events each.

use super::bench::{Bench, config};
use super::{failure, kinds};
use crate::failure::{ExitKind, Failure, Fault};
use crate::history::{RecordKind, RecordState};
use crate::ids::{CheckpointId, Generation};
use crate::job_master::{Command, Directive, JobMasterConfig, SavepointRequest, StartFrom};
use crate::ledger::{Ends, SavepointKind};
use crate::message::{Alignment, ToTaskManager};
use crate::metadata::Metadata;
use crate::options::{Retention, TolerableFailures};
use crate::status::{JobState, RequestState, RequestStatus};
use crate::time::TimeSpan;

const PLACE: &str = "s3://other/sp";

fn ask(bench: &mut Bench, id: &str, kind: SavepointKind) {
    let timeout = TimeSpan::from_secs(30);
    let request = SavepointRequest { id: id.into(), kind, directory: Some(PLACE.into()), timeout };
    bench.command(Command::Savepoint(request));
}

fn request(bench: &Bench, id: &str) -> RequestStatus {
    bench.status().requests.iter().find(|request| request.id == id).unwrap().clone()
}

/// Savepoints without end, no periodic checkpoint in the way.
fn slow() -> JobMasterConfig {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().interval = TimeSpan::from_secs(1000);
    config
}

#[test]
fn a_savepoint_takes_one_barrier_two_snapshots_and_the_job_runs_on() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Savepoint);
    let barrier = bench.last_barrier();
    assert_eq!(barrier.savepoint.as_deref(), Some("s3://other/sp/default/pv-1/1-1"));
    assert_eq!((barrier.ends, barrier.alignment), (Ends::None, Alignment::Aligned));
    assert_eq!(request(&bench, "a").state, RequestState::Pending);
    bench.acknowledge_all(1);
    assert_eq!(kinds(&bench), ["Started", "SavepointRequested", "Checkpoint", "Savepoint"]);
    let answer = request(&bench, "a");
    assert_eq!(
        (answer.state, answer.path.as_deref()),
        (RequestState::Completed, Some("s3://other/sp/default/pv-1/1-1"))
    );
    let (snapshot, checkpoint) = (answer.snapshot.unwrap(), bench.status().last_checkpoint.clone().unwrap());
    assert_eq!(snapshot.path, "s3://other/sp/default/pv-1/1-1");
    assert_eq!(
        (snapshot.id, snapshot.bytes, snapshot.triggered_at),
        (CheckpointId(1), checkpoint.bytes, checkpoint.triggered_at)
    );
    assert_eq!(bench.state(), JobState::Running);
    assert!(bench.store.holds("default/pv-1/1/chk-1/_metadata"), "recovery has a checkpoint of its own");
    let bytes = bench.store.get("s3://other/sp/default/pv-1/1-1/_metadata");
    let metadata = Metadata::from_bytes(&bytes, "").unwrap();
    assert!(metadata.savepoint && metadata.operators.len() == 2);
    assert_eq!(bench.history().get(CheckpointId(1)).unwrap().record.kind, RecordKind::Savepoint);
}

#[test]
fn a_repeated_request_id_is_carried_out_once_also_by_the_next_generation() {
    let mut bench = Bench::running(slow());
    for _ in 0..3 {
        ask(&mut bench, "a", SavepointKind::Savepoint);
    }
    bench.acknowledge_all(1);
    ask(&mut bench, "a", SavepointKind::Savepoint);
    bench.pass(1000);
    assert_eq!(kinds(&bench), ["Started", "SavepointRequested", "Checkpoint", "Savepoint"]);
    let mut next = slow();
    next.generation = Generation(2);
    let mut next = bench.succeeded_by(next);
    next.register(1);
    assert_eq!(request(&next, "a").state, RequestState::Completed, "the answer survives the JobManager");
    ask(&mut next, "a", SavepointKind::Savepoint);
    next.pass(1000);
    assert_eq!(kinds(&next).len(), 5, "only Started was added");
}

/// FLINK, "Not all required tasks are currently running": a request sent seconds after the start failed.
#[test]
fn a_request_before_the_tasks_run_waits_for_them() {
    let mut bench = Bench::paused(slow());
    bench.store.is_away = true;
    bench.tick();
    ask(&mut bench, "a", SavepointKind::Savepoint);
    bench.store.is_away = false;
    bench.pass(5_000);
    assert_eq!(request(&bench, "a").state, RequestState::Pending);
    bench.register(1);
    bench.pass(1);
    bench.acknowledge_all(1);
    assert_eq!(request(&bench, "a").state, RequestState::Completed);
}

#[test]
fn a_failed_try_is_repeated_without_counting_against_the_job() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Savepoint);
    bench.decline(1, failure());
    assert_eq!(bench.state(), JobState::Running, "tolerableFailures is 0, but a savepoint is not recovery");
    bench.pass(200);
    assert_eq!(bench.last_barrier().checkpoint, CheckpointId(2));
    assert_eq!(bench.last_barrier().savepoint.as_deref(), Some("s3://other/sp/default/pv-1/1-2"));
    bench.acknowledge_all(2);
    let kinds = kinds(&bench);
    assert_eq!(kinds[1..], ["SavepointRequested", "CheckpointFailed", "Checkpoint", "Savepoint"]);
}

#[test]
fn a_failure_that_trying_again_does_not_mend_answers_at_once() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Savepoint);
    bench.store.put("s3://other/sp/default/pv-1/1-1/x", b"x");
    bench.decline(1, Failure::restart("UploadFailed", Fault::User, "the bucket 'other' does not exist"));
    let answer = request(&bench, "a");
    assert_eq!((answer.state, bench.state()), (RequestState::Failed, JobState::Running));
    assert!(answer.failure.unwrap().message.contains("bucket 'other'"));
    assert_eq!(kinds(&bench)[1..], ["SavepointRequested", "CheckpointFailed", "SavepointFailed"]);
    bench.pass(1_000_000);
    bench.acknowledge_all(2);
    assert!(!bench.holds_below("s3://other/sp/"), "what it left is removed with the next checkpoint (K6)");
}

#[test]
fn past_its_deadline_a_savepoint_has_failed_and_the_job_runs_on() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Stop);
    bench.pass(29_999);
    assert_eq!(request(&bench, "a").state, RequestState::Pending);
    bench.pass(1);
    let answer = request(&bench, "a");
    assert_eq!((answer.state, bench.state()), (RequestState::Failed, JobState::Running));
    assert!(bench.sent_to_all(|message| matches!(message, ToTaskManager::CheckpointAborted { .. })), "sources go on");
    assert_eq!(kinds(&bench)[2..], ["CheckpointFailed", "SavepointFailed"]);
    bench.acknowledge_all(1);
    assert_eq!(bench.state(), JobState::Running, "what comes late changes nothing");
}

/// K4: only the ledger decides. The entry was sent; whether it stands is not known at the deadline.
#[test]
fn an_entry_under_way_at_the_deadline_decides() {
    for stands in [true, false] {
        let mut bench = Bench::running(slow());
        ask(&mut bench, "a", SavepointKind::Stop);
        bench.store.loses_ledger_replies = true;
        bench.store.drops_ledger_puts = !stands;
        bench.acknowledge_all(1);
        bench.store.is_away = true;
        bench.pass(40_000);
        assert_eq!(request(&bench, "a").state, RequestState::Pending, "neither failed nor complete");
        bench.store.is_away = false;
        bench.store.loses_ledger_replies = false;
        bench.store.drops_ledger_puts = false;
        bench.pass(10_000);
        if stands {
            assert_eq!(kinds(&bench)[2..], ["Checkpoint", "Savepoint", "Stopped"]);
            assert_eq!(request(&bench, "a").state, RequestState::Completed);
        } else {
            assert_eq!(kinds(&bench)[2..], ["CheckpointFailed", "SavepointFailed"]);
            assert_eq!((request(&bench, "a").state, bench.state()), (RequestState::Failed, JobState::Running));
        }
    }
}

#[test]
fn a_stop_with_savepoint_ends_with_stopped_and_can_be_resumed() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Stop);
    assert_eq!(bench.last_barrier().ends, Ends::Stop);
    bench.acknowledge_all(1);
    assert_eq!(kinds(&bench)[1..], ["SavepointRequested", "Checkpoint", "Savepoint", "Stopped"]);
    assert_eq!((bench.exit.as_ref().unwrap().kind, bench.state()), (ExitKind::Stopped, JobState::Stopped));
    assert_eq!(request(&bench, "a").path.as_deref(), Some("s3://other/sp/default/pv-1/1-1"));
    let mut other = slow();
    other.job.uid = "2".into();
    let from = "s3://other/sp/default/pv-1/1-1".to_owned();
    other.directive.start = StartFrom::Path { from, allow_non_restored_state: false, abandon_sinks: Vec::new() };
    let mut other = bench.clone_store_for(other);
    other.register(1);
    assert_eq!(other.status().restored_from.as_ref().unwrap().path, "s3://other/sp/default/pv-1/1-1");
}

#[test]
fn a_drain_ends_its_input_first_and_stops() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Drain);
    assert_eq!(bench.last_barrier().ends, Ends::Finish);
    bench.finish_sources();
    bench.acknowledge_all(1);
    assert!(bench.exit.is_none(), "not before all tasks have finished");
    assert_eq!(request(&bench, "a").state, RequestState::Pending);
    bench.finish_all();
    assert_eq!(kinds(&bench)[1..], ["SavepointRequested", "Checkpoint", "Savepoint", "Stopped"]);
    assert_eq!(bench.state(), JobState::Stopped);
}

#[test]
fn behind_a_drains_checkpoint_there_is_only_stopped() {
    // Its JobManager is lost between the checkpoint and the end.
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Drain);
    bench.finish_sources();
    bench.acknowledge_all(1);
    let mut next = slow();
    next.generation = Generation(2);
    let next = bench.clone_store_for(next);
    assert_eq!(kinds(&next)[3..], ["Started", "Savepoint", "Stopped"]);
    assert_eq!(next.exit.as_ref().unwrap().kind, ExitKind::Stopped);
    // Somebody cancels it.
    bench.command(Command::Cancel);
    assert_eq!(kinds(&bench)[3..], ["Savepoint", "Stopped"]);
    assert_eq!(bench.state(), JobState::Stopped);
}

#[test]
fn an_attempt_that_fails_while_the_last_entry_is_under_way_does_not_run_again() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Stop);
    bench.store.loses_ledger_replies = true;
    bench.acknowledge_all(1);
    bench.fail_task(failure());
    bench.store.loses_ledger_replies = false;
    bench.pass(5_000);
    assert_eq!(kinds(&bench)[2..], ["Checkpoint", "Savepoint", "Stopped"]);
}

#[test]
fn a_drain_that_fails_runs_again_from_the_latest_checkpoint() {
    let mut bench = Bench::running(config(1));
    bench.pass(1000);
    bench.acknowledge_all(1);
    ask(&mut bench, "a", SavepointKind::Drain);
    bench.finish_sources();
    bench.pass(31_000);
    assert_eq!(request(&bench, "a").state, RequestState::Failed);
    assert_eq!(bench.state(), JobState::Running);
    assert_eq!((bench.status().attempt.0, bench.status().failed_attempts), (2, 0), "the policy is not asked");
    assert_eq!(bench.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
}

#[test]
fn a_request_outlives_its_job_manager_until_its_deadline() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Stop);
    bench.store.put("s3://other/sp/default/pv-1/1-1/half", b"x");
    let mut next = slow();
    next.generation = Generation(2);
    let mut next = bench.clone_store_for(next);
    assert!(!next.holds_below("s3://other/sp/"), "what the old one left is swept");
    next.register(1);
    assert_eq!(next.last_barrier().savepoint.as_deref(), Some("s3://other/sp/default/pv-1/2-1"));
    next.acknowledge_all(1);
    assert_eq!(kinds(&next)[2..], ["Started", "Checkpoint", "Savepoint", "Stopped"]);
}

#[test]
fn a_taken_savepoint_is_answered_by_the_next_generation() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Savepoint);
    bench.store.keeps_entries = Some(3);
    bench.acknowledge_all(1);
    let mut next = slow();
    next.generation = Generation(2);
    bench.store.keeps_entries = None;
    let next = bench.clone_store_for(next);
    assert_eq!(kinds(&next)[2..], ["Checkpoint", "Started", "Savepoint"]);
    assert!(next.holds_below("s3://other/sp/default/pv-1/1-1/"), "it is no litter");
}

#[test]
fn a_failed_attempt_takes_the_savepoint_again() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Savepoint);
    bench.fail_task(failure());
    bench.pass(1000);
    assert_eq!(bench.last_barrier().checkpoint, CheckpointId(2));
    bench.acknowledge_all(2);
    assert_eq!(request(&bench, "a").path.as_deref(), Some("s3://other/sp/default/pv-1/1-2"));
    assert_eq!(bench.history().get(CheckpointId(1)).unwrap().record.state, RecordState::Dropped);
}

#[test]
fn requests_that_cannot_be_carried_out_are_refused_and_change_nothing() {
    let refused = |bench: &mut Bench, id: &str, directory: Option<&str>| {
        let directory = directory.map(ToOwned::to_owned);
        let timeout = TimeSpan::from_secs(1);
        bench.command(Command::Savepoint(SavepointRequest {
            id: id.into(),
            kind: SavepointKind::Savepoint,
            directory,
            timeout,
        }));
        request(bench, id).failure.unwrap().reason
    };
    let mut bench = Bench::running(super::bench::no_checkpoints(1));
    assert_eq!(refused(&mut bench, "a", None), "CheckpointingDisabled");
    let mut in_memory = config(1);
    in_memory.storage_uri = None;
    in_memory.options.checkpointing.as_mut().unwrap().storage = "JobManager".into();
    let mut bench = Bench::running(in_memory);
    assert_eq!(refused(&mut bench, "a", None), "NoSavepointStorage");
    assert_eq!(refused(&mut bench, "b", Some("relative/path")), "InvalidDirectory");
    assert_eq!(refused(&mut bench, "no spaces", Some(PLACE)), "InvalidRequestId");
    ask(&mut bench, "c", SavepointKind::Savepoint);
    bench.acknowledge_all(1);
    assert_eq!(request(&bench, "c").state, RequestState::Completed, "with a directory it works without a ledger too");
    assert!(bench.store.holds("s3://other/sp/default/pv-1/1-1/_metadata"));
}

#[test]
fn the_fifty_first_request_forgets_the_first_and_that_is_not_run_again() {
    let mut bench = Bench::running(slow());
    for number in 100..151_u64 {
        ask(&mut bench, &format!("{number}-x"), SavepointKind::Savepoint);
        bench.acknowledge_all(number - 99);
    }
    assert!(!bench.status().requests.iter().any(|request| request.id == "100-x"));
    ask(&mut bench, "100-x", SavepointKind::Savepoint);
    assert_eq!(request(&bench, "100-x").failure.unwrap().reason, "RequestTooOld");
}

#[test]
fn a_savepoint_goes_to_savepoint_storage_or_below_the_storage_when_no_place_is_named() {
    let mut with = slow();
    with.options.checkpointing.as_mut().unwrap().savepoint_storage = Some("s3://archive/all/".into());
    for (config, root) in [(with, "s3://archive/all"), (slow(), "s3://bucket/root/savepoints")] {
        let mut bench = Bench::running(config);
        let timeout = TimeSpan::from_secs(1);
        let kind = SavepointKind::Savepoint;
        bench.command(Command::Savepoint(SavepointRequest { id: "a".into(), kind, directory: None, timeout }));
        assert_eq!(bench.last_barrier().savepoint.as_deref(), Some(format!("{root}/default/pv-1/1-1").as_str()));
    }
}

#[test]
fn a_savepoint_is_disposed_of_unless_a_start_depends_on_it() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Savepoint);
    bench.acknowledge_all(1);
    let path = "s3://other/sp/default/pv-1/1-1";
    let mut resumed = slow();
    resumed.generation = Generation(2);
    let start = StartFrom::Path { from: path.into(), allow_non_restored_state: false, abandon_sinks: Vec::new() };
    resumed.directive = Directive { id: "2".into(), seen: 4, start };
    let mut bench = bench.clone_store_for(resumed);
    bench.register(1);
    let dispose = |bench: &mut Bench, id: &str, path: &str| {
        bench.command(Command::Dispose { id: id.into(), path: path.into() });
        request(bench, id)
    };
    let early = dispose(&mut bench, "d1", path);
    assert_eq!(early.failure.unwrap().reason, "SavepointInUse", "a restart would restore it");
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.acknowledge_all(2);
    let done = dispose(&mut bench, "d2", "s3://other/sp/default/pv-1/1-1/_metadata");
    assert_eq!(done.state, RequestState::Completed);
    assert!(!bench.holds_below("s3://other/sp/"));
    assert_eq!(kinds(&bench).last().unwrap(), "Disposed");
    let again = dispose(&mut bench, "d3", path);
    assert_eq!(again.failure.unwrap().reason, "NotASavepoint");
    let checkpoint = dispose(&mut bench, "d4", "s3://bucket/root/default/pv-1/2/chk-2");
    assert_eq!(checkpoint.failure.unwrap().reason, "NotASavepoint", "the last retained checkpoint cannot be removed");
    assert!(bench.store.holds("default/pv-1/2/chk-2/_metadata"));
}

#[test]
fn nothing_stands_behind_a_terminal_entry() {
    let mut bench = Bench::running(slow());
    ask(&mut bench, "a", SavepointKind::Savepoint);
    bench.acknowledge_all(1);
    bench.store.is_away = true;
    bench.command(Command::Cancel);
    bench.command(Command::Dispose { id: "d".into(), path: "s3://other/sp/default/pv-1/1-1".into() });
    assert_eq!(request(&bench, "d").failure.unwrap().reason, "JobEnding");
    bench.store.is_away = false;
    bench.pass(10_000);
    assert_eq!(kinds(&bench).last().unwrap(), "Cancelled");
}

#[test]
fn a_checkpoint_on_demand_is_answered_with_its_path() {
    let mut bench = Bench::running(slow());
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    assert_eq!(request(&bench, "t").state, RequestState::Pending);
    bench.acknowledge_all(1);
    let answer = request(&bench, "t");
    assert_eq!(answer.path.as_deref(), Some("s3://bucket/root/default/pv-1/1/chk-1"));
    let mut config = slow();
    config.options.checkpointing.as_mut().unwrap().tolerable_failures = TolerableFailures::Count(9);
    let mut bench = Bench::running(config);
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.decline(1, failure());
    assert_eq!(request(&bench, "t").state, RequestState::Failed);
}

#[test]
fn a_checkpoint_asked_for_is_taken_by_the_next_attempt_when_the_tasks_fail() {
    let mut bench = Bench::running(slow());
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.fail_task(failure());
    bench.pass(1000);
    bench.acknowledge_all(2);
    assert_eq!(request(&bench, "t").state, RequestState::Completed);
}

#[test]
fn deletion_on_cancel_and_normal_end_removes_all_but_savepoints_and_a_failure_keeps_all() {
    let course = |end: &dyn Fn(&mut Bench)| {
        let mut config = config(1);
        let checkpointing = config.options.checkpointing.as_mut().unwrap();
        checkpointing.retention = Retention::DeleteOnCancellation;
        checkpointing.retained = 2;
        config.options.restart_strategy =
            Some(crate::options::RestartStrategySpec { none: Some(Default::default()), ..Default::default() });
        let mut bench = Bench::running(config);
        for id in 1..=2 {
            bench.pass(1000);
            bench.acknowledge_all(id);
        }
        ask(&mut bench, "a", SavepointKind::Savepoint);
        bench.acknowledge_all(3);
        bench.store.put("default/pv-1/1/shared/1-1.1-1.0-0-aa.parquet", b"x");
        end(&mut bench);
        assert!(bench.exit.is_some() && bench.holds_below("s3://other/sp/default/pv-1/1-3/"));
        bench.holds_below("default/pv-1/1/")
    };
    assert!(!course(&|bench| bench.command(Command::Cancel)));
    let finish = |bench: &mut Bench| {
        bench.finish_all();
        bench.acknowledge_all(4);
    };
    assert!(!course(&finish));
    assert!(course(&|bench| bench.fail_task(failure())), "kept on failure");
    let stop = |bench: &mut Bench| {
        bench.command(Command::Stop);
        bench.acknowledge_all(4);
    };
    assert!(course(&stop), "a stopped job can be resumed");
}

#[test]
fn the_history_survives_the_job_manager() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().tolerable_failures = TolerableFailures::Count(9);
    let mut bench = Bench::running(config.clone());
    bench.pass(1000);
    bench.acknowledge_all(1);
    bench.pass(1000);
    bench.decline(2, failure());
    config.generation = Generation(2);
    let next = bench.succeeded_by(config);
    let of = |id| next.history().get(CheckpointId(id)).unwrap().record.clone();
    let first = of(1);
    assert_eq!(
        (first.state, first.acknowledged, first.subtasks, first.metrics.bytes),
        (RecordState::Completed, 2, 2, 20)
    );
    assert_eq!((of(2).state, of(2).failure.as_deref()), (RecordState::Failed, Some("the operator broke")));
}
