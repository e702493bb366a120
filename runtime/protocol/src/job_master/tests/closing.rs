//! Helpers (L5, L6): a closer on the ledger of a JobManager that is gone, a disposal behind the end.

use super::bench::{Bench, config};
use super::kinds;
use crate::failure::ExitKind;
use crate::ids::{CheckpointId, Generation};
use crate::job_master::{
    CloseEnd, Command, DISPOSAL_INCOMPLETE, DISPOSED, Directive, JobMasterConfig, SavepointRequest, StartFrom,
};
use crate::ledger::{EntryKind, LedgerState, SavepointKind, StartCause};
use crate::options::Retention;
use crate::status::{JobState, RequestState};
use crate::time::TimeSpan;

const SAVEPOINT: &str = "s3://other/sp/default/pv-1/1-1";

/// A job that deletes its checkpoints with itself, if asked to.
fn job(deletes: bool) -> JobMasterConfig {
    let mut config = config(1);
    let checkpointing = config.options.checkpointing.as_mut().unwrap();
    checkpointing.interval = TimeSpan::from_secs(1000);
    if deletes {
        checkpointing.retention = Retention::DeleteOnCancellation;
    }
    config
}

fn helper(job: JobMasterConfig, generation: u64, seen: u64, start: StartFrom) -> JobMasterConfig {
    let directive = Directive { id: job.directive.id.clone(), seen, start };
    JobMasterConfig { generation: Generation(generation), directive, ..job }
}

fn close(job: JobMasterConfig, seen: u64, end: CloseEnd) -> JobMasterConfig {
    helper(job, 2, seen, StartFrom::Close { end })
}

fn dispose(job: JobMasterConfig, seen: u64) -> JobMasterConfig {
    helper(job, 2, seen, StartFrom::Dispose { path: SAVEPOINT.to_owned() })
}

fn ask(bench: &mut Bench, kind: SavepointKind) {
    let directory = Some("s3://other/sp".to_owned());
    let timeout = TimeSpan::from_secs(30);
    bench.command(Command::Savepoint(SavepointRequest { id: "a".into(), kind, directory, timeout }));
}

/// A job that runs and has this checkpoint.
fn with_checkpoint(deletes: bool) -> Bench {
    let mut bench = Bench::running(job(deletes));
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.acknowledge_all(1);
    bench
}

/// A job that has finished after a savepoint.
fn finished_with_savepoint() -> Bench {
    let mut bench = Bench::running(job(false));
    ask(&mut bench, SavepointKind::Savepoint);
    bench.acknowledge_all(1);
    bench.finish_all();
    bench.acknowledge_all(2);
    assert_eq!(bench.exit.as_ref().unwrap().kind, ExitKind::Finished);
    bench
}

#[test]
fn a_closer_cancels_a_job_whose_job_manager_is_gone_and_obeys_retention() {
    for deletes in [false, true] {
        let dead = with_checkpoint(deletes);
        let closer = dead.clone_store_for(close(job(deletes), 1, CloseEnd::Cancelled));
        let exit = closer.exit.as_ref().unwrap();
        assert_eq!((exit.kind, exit.reason.as_str(), exit.ledger_entry), (ExitKind::Stopped, "Cancelled", Some(4)));
        assert_eq!(kinds(&closer), ["Started", "Checkpoint", "Started", "Cancelled"]);
        let causes = closer.ledger().into_iter().filter_map(|entry| match entry.kind {
            EntryKind::Started { cause, .. } => Some(cause),
            _ => None,
        });
        assert_eq!(causes.collect::<Vec<_>>(), [StartCause::Start, StartCause::Close]);
        assert_eq!(closer.holds_below("default/pv-1/1/chk-1/"), !deletes);
        assert_eq!(
            (closer.status().attempt.0, closer.status().failed_attempts),
            (0, 0),
            "it deploys and counts nothing"
        );
        assert!(closer.deployments.is_empty());
    }
}

/// F1: lost JobManagers have spent the restarts, and there is none that could write it.
#[test]
fn a_closer_says_that_a_job_has_failed_and_keeps_everything() {
    let dead = with_checkpoint(true);
    let closer = dead.clone_store_for(close(job(true), 1, CloseEnd::Failed));
    let exit = closer.exit.as_ref().unwrap();
    assert_eq!((exit.kind, exit.reason.as_str(), exit.ledger_entry), (ExitKind::Failed, "JobManagerLost", Some(4)));
    assert_eq!(kinds(&closer), ["Started", "Checkpoint", "Started", "Failed"]);
    assert!(closer.holds_below("default/pv-1/1/chk-1/"), "also with DeleteOnCancellation");
    let again = closer.clone_store_for(helper(job(true), 3, 4, StartFrom::Continue));
    assert_eq!(again.exit.as_ref().unwrap().kind, ExitKind::Failed, "a generation that comes late only reports");
}

#[test]
fn a_zombie_behind_a_closer_is_superseded() {
    let mut zombie = with_checkpoint(false);
    let closer = zombie.clone_store_for(close(job(false), 2, CloseEnd::Stopped));
    zombie.store = closer.store;
    zombie.command(Command::TriggerCheckpoint { id: "u".into() });
    zombie.acknowledge_all(2);
    assert_eq!(zombie.exit.as_ref().unwrap().kind, ExitKind::Superseded);
    assert_eq!(kinds(&zombie), ["Started", "Checkpoint", "Started", "Stopped"]);
}

/// K4: behind the `Checkpoint` of a stop there is only `Stopped`, and its savepoint is answered first.
#[test]
fn a_closer_finishes_a_stop_that_had_reached_its_checkpoint() {
    for end in [CloseEnd::Stopped, CloseEnd::Cancelled] {
        let mut dead = Bench::running(job(true));
        dead.store.keeps_entries = Some(3);
        ask(&mut dead, SavepointKind::Stop);
        dead.acknowledge_all(1);
        assert_eq!(kinds(&dead), ["Started", "SavepointRequested", "Checkpoint"]);
        dead.store.keeps_entries = None;
        let closer = dead.clone_store_for(close(job(true), 1, end));
        assert_eq!(kinds(&closer)[3..], ["Started", "Savepoint", "Stopped"], "{end:?}");
        let request = &closer.status().requests[0];
        assert_eq!((request.state, request.path.as_deref()), (RequestState::Completed, Some(SAVEPOINT)));
        assert!(closer.holds_below("s3://other/sp/") && closer.holds_below("default/pv-1/1/chk-1/"));
    }
}

#[test]
fn a_closer_concludes_what_had_finished_and_a_stop_that_has_not_come_far_is_given_up() {
    let mut dead = Bench::running(job(false));
    dead.store.keeps_entries = Some(2);
    dead.finish_all();
    dead.acknowledge_all(1);
    dead.store.keeps_entries = None;
    let closer = dead.clone_store_for(close(job(false), 0, CloseEnd::Cancelled));
    assert_eq!(kinds(&closer), ["Started", "Checkpoint", "Started", "Finished"]);

    let mut dead = Bench::running(job(false));
    ask(&mut dead, SavepointKind::Stop);
    let closer = dead.clone_store_for(close(job(false), 0, CloseEnd::Stopped));
    assert_eq!(kinds(&closer), ["Started", "SavepointRequested", "Started", "Stopped"]);
    assert_eq!(closer.status().requests[0].state, RequestState::Failed);
}

#[test]
fn a_closer_that_dies_is_followed_by_another_or_by_a_start() {
    let dead = with_checkpoint(false);
    let mut first = close(job(false), 2, CloseEnd::Stopped);
    first.process = crate::ids::ProcessId("closer".into());
    let mut closer = Bench::paused(first);
    closer.store = dead.store;
    closer.store.keeps_entries = Some(3);
    closer.tick();
    assert_eq!(kinds(&closer), ["Started", "Checkpoint", "Started"]);
    closer.store.keeps_entries = None;
    let another = closer.clone_store_for(helper(job(false), 3, 2, StartFrom::Close { end: CloseEnd::Stopped }));
    assert_eq!(kinds(&another)[2..], ["Started", "Started", "Stopped"]);
    // One more finds nothing left to do.
    let late = another.clone_store_for(helper(job(false), 4, 2, StartFrom::Close { end: CloseEnd::Cancelled }));
    assert_eq!((kinds(&late).len(), late.exit.as_ref().unwrap().kind), (5, ExitKind::Stopped));
    // The directive that was carried out before is not carried out anew.
    let mut start = closer.clone_store_for(helper(job(false), 3, 3, StartFrom::Continue));
    start.register(1);
    assert_eq!(
        (start.state(), start.status().restored_from.as_ref().unwrap().id),
        (JobState::Running, CheckpointId(1))
    );
}

#[test]
fn a_disposal_behind_the_end_leaves_the_end_what_it_was() {
    let ended = finished_with_savepoint();
    let last = ended.ledger().len() as u64;
    assert!(ended.holds_below("s3://other/sp/"));
    let disposer = ended.clone_store_for(dispose(job(false), last));
    let exit = disposer.exit.as_ref().unwrap();
    assert_eq!((exit.kind, exit.reason.as_str()), (ExitKind::Stopped, DISPOSED));
    assert_eq!(exit.ledger_entry, Some(last));
    assert_eq!(kinds(&disposer)[ended.ledger().len()..], ["Started", "Disposed"]);
    assert_eq!(disposer.state(), JobState::Finished);
    assert!(!disposer.holds_below("s3://other/sp/"));
    assert!(disposer.holds_below("default/pv-1/1/chk-2/"), "checkpoints stay");
    let fold = disposer.ledger().last().unwrap().folded();
    assert_eq!((fold.state, fold.savepoints.len()), (LedgerState::Finished, 0));

    let next = disposer.clone_store_for(helper(job(false), 3, last, StartFrom::Continue));
    assert_eq!(next.exit.as_ref().unwrap().kind, ExitKind::Finished, "the real end is reported");
    let mut resumed = helper(job(false), 3, last + 2, StartFrom::ResumeLatest);
    (resumed.revision, resumed.directive.id) = (2, "2".into());
    let mut resumed = disposer.clone_store_for(resumed);
    resumed.register(1);
    assert_eq!(resumed.status().restored_from.as_ref().unwrap().id, CheckpointId(2));
}

#[test]
fn a_disposal_that_may_not_be_appends_nothing() {
    let running = with_checkpoint(false);
    let refused = running.clone_store_for(dispose(job(false), 2));
    let exit = refused.exit.as_ref().unwrap();
    assert_eq!((exit.kind, exit.reason.as_str(), kinds(&refused).len()), (ExitKind::UserError, "JobNotEnded", 2));

    let ended = finished_with_savepoint();
    let foreign = StartFrom::Dispose { path: "s3://other/sp/default/pv-1/9-9".to_owned() };
    let refused = ended.clone_store_for(helper(job(false), 2, 1, foreign));
    assert_eq!(refused.exit.as_ref().unwrap().reason, "NotASavepoint");
    assert_eq!(kinds(&refused), kinds(&ended));

    // Started from it, and stopped before a checkpoint of its own: a resume would restore it.
    let mut from = helper(job(false), 2, ended.ledger().len() as u64, StartFrom::Continue);
    (from.revision, from.directive.id) = (2, "2".into());
    from.directive.start =
        StartFrom::Path { from: SAVEPOINT.to_owned(), allow_non_restored_state: false, abandon_sinks: Vec::new() };
    let mut from = ended.clone_store_for(from);
    from.command(Command::Stop);
    assert_eq!(kinds(&from).last().unwrap(), "Stopped");
    let path = StartFrom::Dispose { path: SAVEPOINT.to_owned() };
    let refused = from.clone_store_for(helper(job(false), 3, 1, path));
    assert_eq!(refused.exit.as_ref().unwrap().reason, "SavepointInUse");
}

#[test]
fn files_that_cannot_be_removed_are_told_of() {
    let ended = finished_with_savepoint();
    let mut disposer = Bench::paused(dispose(job(false), 1));
    disposer.store = ended.store;
    disposer.store.refuses_deletes = true;
    disposer.tick();
    assert!(disposer.exit.is_none(), "it tries again");
    disposer.pass(120_000);
    let exit = disposer.exit.as_ref().unwrap();
    assert_eq!(exit.reason, DISPOSAL_INCOMPLETE);
    assert!(exit.message.ends_with("connection refused"), "{}", exit.message);
}

/// L1, N3: what a helper appends hides no end that nobody has seen.
#[test]
fn a_disposal_makes_nobody_pass_over_an_end_that_was_not_seen() {
    let mut ended = Bench::running(job(true));
    ask(&mut ended, SavepointKind::Savepoint);
    ended.acknowledge_all(1);
    ended.finish_all();
    ended.acknowledge_all(2);
    let disposer = ended.clone_store_for(dispose(job(true), 1));
    assert_eq!((disposer.exit.as_ref().unwrap().ledger_entry, disposer.status().ledger_entry), (Some(1), 1));
    let mut next = helper(job(true), 3, 1, StartFrom::ResumeLatest);
    (next.revision, next.directive.id) = (2, "2".into());
    let next = disposer.clone_store_for(next);
    assert_eq!(next.exit.as_ref().unwrap().kind, ExitKind::Finished, "it does not read all input once more");
}

#[test]
fn a_disposal_that_died_before_the_files_went_is_repeated() {
    let ended = finished_with_savepoint();
    let mut dies = Bench::paused(dispose(job(false), 1));
    dies.store = ended.store;
    dies.store.refuses_deletes = true;
    dies.tick();
    assert_eq!(kinds(&dies).last().unwrap(), "Disposed");
    dies.store.refuses_deletes = false;
    let path = StartFrom::Dispose { path: SAVEPOINT.to_owned() };
    let again = dies.clone_store_for(helper(job(false), 3, 1, path));
    assert_eq!(again.exit.as_ref().unwrap().reason, DISPOSED);
    assert!(!again.holds_below("s3://other/sp/"));
}
