//! A job that another takes over (G5), and one that takes itself along to another storage (C3).

use super::bench::{Bench, config};
use super::{kinds, restoring};
use crate::failure::{ExitKind, ExitRecord};
use crate::ids::{CheckpointId, Generation, ProcessId};
use crate::job_master::{CloseEnd, Command, JobMasterConfig, NOTHING_BEGUN, StartFrom};
use crate::ledger::{EntryKind, LedgerState};
use crate::status::JobState;
use crate::store::StoreOperation;

const FIRST: &str = "s3://bucket/root/default/pv-1";
const SECOND: &str = "s3://bucket/root/default/pv-2";

/// Runs, and its first checkpoint stands; nobody has ended it.
fn running() -> Bench {
    let mut first = Bench::running(config(1));
    first.pass(1000);
    first.acknowledge_all(1);
    first
}

fn again(uid: &str, generation: u64, start: StartFrom, seen: usize) -> JobMasterConfig {
    let mut config = restoring(uid, FIRST);
    config.generation = Generation(generation);
    config.directive.start = start;
    config.directive.seen = seen as u64;
    config
}

fn exit(bench: &Bench) -> (ExitKind, String, String) {
    let ExitRecord { kind, reason, message, .. } = bench.exit.clone().expect("it has ended");
    (kind, reason, message)
}

fn names(bench: &Bench, uid: &str) -> Vec<String> {
    let name = |kind: EntryKind| format!("{kind:?}").split([' ', '{']).next().unwrap().to_owned();
    bench.ledger_of(uid).into_iter().map(|entry| name(entry.kind)).collect()
}

fn assert_goes_on(bench: &mut Bench) {
    bench.register(1);
    assert_eq!(bench.state(), JobState::Running, "{:?}", bench.exit);
    assert_eq!(bench.status().restored_from.as_ref().unwrap().path, format!("{FIRST}/1/chk-1"));
    assert_eq!(names(bench, "1")[2..], ["Started", "MovedTo"]);
}

#[test]
fn a_job_that_has_not_ended_goes_on_as_another_and_both_sides_know() {
    let mut first = running();
    let mut second = first.clone_store_for(restoring("2", FIRST));
    assert_goes_on(&mut second);
    assert_eq!(names(&second, "2"), ["Started"]);
    let foreign = second.status().foreign_snapshot.clone().unwrap();
    assert!(foreign.needed && foreign.path == format!("{FIRST}/1/chk-1"));
    let old = second.ledger_of("1");
    assert_eq!(old[2].generation, Generation(2), "the old ledger's own numbers go on");
    assert!(matches!(&old[3].kind, EntryKind::MovedTo { job_uid, directory } if job_uid == "2" && directory == SECOND));
    assert_eq!(old[3].folded().state, LedgerState::MovedTo);

    first.store = second.store.clone();
    first.pass(10_000);
    let (kind, reason, message) = exit(&first);
    assert_eq!((kind, reason.as_str()), (ExitKind::Superseded, "TakenOver"));
    assert!(message.contains("uid 2") && message.contains(SECOND), "{message}");
    assert!(message.contains("change the spec of this one"), "what to do when the other never comes up: {message}");
    assert_eq!(first.exit.as_ref().unwrap().by_generation, Some(2));

    for generation in [2, 3] {
        for start in [StartFrom::Continue, StartFrom::ResumeLatest] {
            let back = first.clone_store_for(again("1", generation, start, 2));
            let (kind, reason, message) = exit(&back);
            assert_eq!((kind, reason.as_str(), back.state()), (ExitKind::StateMoved, "MovedTo", JobState::Failed));
            assert!(message.contains(SECOND), "{message}");
            assert_eq!(back.ledger_of("1").len(), 4, "it only reports");
        }
    }
    let third = second.clone_store_for(restoring("3", FIRST));
    let (kind, reason, message) = exit(&third);
    assert_eq!((kind, reason.as_str()), (ExitKind::UserError, "JobMoved"));
    assert!(message.contains("uid 2") && message.contains(&format!("restore from {SECOND}")), "{message}");
    assert!(third.ledger_of("3").is_empty());

    second.pass(1000);
    second.acknowledge_all(1);
    assert!(!second.status().foreign_snapshot.clone().unwrap().needed, "K7");
    assert!(second.store.holds("default/pv-1/1/chk-1/_metadata"), "nothing of the other job is removed");
}

/// The job goes on until its end stands, and may displace what the taker is about to read.
#[test]
fn a_checkpoint_displaced_before_the_taker_has_read_it_is_followed_to_the_next_one() {
    let mut first = running();
    let mut second = Bench::paused(restoring("2", FIRST));
    second.store = first.store.clone();
    first.pass(1000);
    first.acknowledge_all(2);
    let displaced = "default/pv-1/1/chk-1/_metadata";
    assert!(second.store.holds(displaced) && !first.store.holds(displaced));
    second.store.meanwhile = Some((displaced.to_owned(), Box::new(first.store.clone())));
    second.tick();
    second.register(1);
    assert_eq!(second.state(), JobState::Running, "{:?}", second.exit);
    assert_eq!(second.status().restored_from.as_ref().unwrap().id, CheckpointId(2));
    assert_eq!(names(&second, "1").last().unwrap(), "MovedTo");
}

#[test]
fn a_job_can_be_taken_back() {
    let first = running();
    let mut second = first.clone_store_for(restoring("2", FIRST));
    second.register(1);
    second.pass(1000);
    second.acknowledge_all(1);
    let mut back = again("1", 3, restoring("1", SECOND).directive.start, 4);
    back.directive.id = "2".into();
    let mut back = second.clone_store_for(back);
    back.register(1);
    assert_eq!(back.state(), JobState::Running, "{:?}", back.exit);
    assert_eq!(back.status().restored_from.as_ref().unwrap().path, format!("{SECOND}/1/chk-1"));
    assert_eq!(names(&back, "2").last().unwrap(), "MovedTo");
    assert_eq!(names(&back, "1").last().unwrap(), "Started");
}

#[test]
fn wherever_a_takeover_dies_the_same_job_repeats_it() {
    let first = running();
    for stands in [2, 3, 4] {
        let mut dies = Bench::paused(restoring("2", FIRST));
        dies.store = first.store.clone();
        dies.store.keeps_entries = Some(stands);
        dies.store.drops_ledger_puts = true;
        dies.tick();
        dies.store.keeps_entries = None;
        dies.store.remove("default/pv-2/ledger/0000000001.json");
        assert_eq!(dies.ledger_of("1").len() as u64, stands);
        let mut next = dies.clone_store_for(again("2", 2, restoring("2", FIRST).directive.start, 0));
        assert_goes_on(&mut next);
        assert_eq!(names(&next, "1").len(), 4, "{stands}");
        let mut after = next.clone_store_for(again("2", 3, StartFrom::Continue, 1));
        after.register(1);
        assert_eq!(after.status().restored_from.as_ref().unwrap().path, format!("{FIRST}/1/chk-1"));
    }
}

/// A stop may be the first half of a rescale or an upgrade: the job's next revision must find that it may not run.
#[test]
fn a_job_that_was_stopped_is_fenced_and_one_that_has_finished_is_not_touched() {
    let mut first = running();
    first.command(Command::Stop);
    first.acknowledge_all(2);
    assert_eq!(names(&first, "1").last().unwrap(), "Stopped");
    for stands in [4, 5, 6] {
        let mut dies = Bench::paused(restoring("2", FIRST));
        dies.store = first.store.clone();
        dies.store.keeps_entries = Some(stands);
        dies.tick();
        dies.store.keeps_entries = None;
        dies.store.remove("default/pv-2/ledger/0000000001.json");
        let mut second = dies.clone_store_for(again("2", 2, restoring("2", FIRST).directive.start, 0));
        second.register(1);
        assert_eq!(second.state(), JobState::Running, "{:?}", second.exit);
        assert_eq!(second.status().restored_from.as_ref().unwrap().id, CheckpointId(2));
        assert_eq!(names(&second, "1")[3..], ["Stopped", "Started", "MovedTo"]);
        let mut next = again("1", 2, StartFrom::ResumeLatest, 4);
        (next.revision, next.directive.id) = (2, "2".into());
        let (kind, reason, message) = exit(&second.clone_store_for(next));
        assert_eq!((kind, reason.as_str()), (ExitKind::StateMoved, "MovedTo"));
        assert!(message.contains(&format!("restore from {FIRST}/1/chk-2")), "{message}");
    }

    let mut finished = running();
    finished.finish_all();
    finished.acknowledge_all(2);
    let entries = names(&finished, "1");
    assert_eq!(entries.last().unwrap(), "Finished");
    let mut second = finished.clone_store_for(restoring("2", FIRST));
    second.register(1);
    assert_eq!((second.state(), names(&second, "1")), (JobState::Running, entries));
}

/// Both would be down: the old job is fenced already.
#[test]
fn who_has_fenced_a_job_and_may_not_write_any_more_waits_for_it() {
    let mut second = Bench::paused(restoring("2", FIRST));
    second.store = running().store;
    second.store.keeps_entries = Some(3);
    second.tick();
    second.store.keeps_entries = None;
    second.store.is_read_only = true;
    second.pass(30_000);
    assert_eq!(second.exit, None);
    assert!(second.status().notices.iter().any(|notice| notice.reason == "StoreAccessDenied"));
    second.store.is_read_only = false;
    second.pass(30_000);
    assert_goes_on(&mut second);
}

#[test]
fn of_two_that_take_the_same_job_over_one_wins_and_the_other_is_told_who() {
    let mut loser = Bench::paused(restoring("2", FIRST));
    loser.store = running().store;
    loser.store.keeps_entries = Some(3);
    loser.tick();
    let mut winner = loser.clone_store_for(restoring("3", FIRST));
    winner.store.keeps_entries = None;
    winner.pass(10_000);
    winner.register(1);
    assert_eq!(winner.state(), JobState::Running, "{:?}", winner.exit);
    assert_eq!(names(&winner, "1")[2..], ["Started", "Started", "MovedTo"]);
    loser.store = winner.store.clone();
    loser.pass(20_000);
    let (kind, reason, message) = exit(&loser);
    assert_eq!((kind, reason.as_str()), (ExitKind::UserError, "JobMoved"));
    assert!(message.contains("uid 3"), "{message}");
    assert!(loser.ledger_of("2").is_empty());
}

/// The entry behind `Started{takeover}` decides: the old job's controller was faster.
#[test]
fn the_old_jobs_next_generation_may_come_first_and_is_fenced_again() {
    let mut second = Bench::paused(restoring("2", FIRST));
    second.store = running().store;
    second.store.keeps_entries = Some(3);
    second.tick();
    let mut back = second.clone_store_for(again("1", 3, StartFrom::Continue, 2));
    back.store.keeps_entries = None;
    back.pass(10_000);
    back.register(1);
    assert_eq!(back.state(), JobState::Running, "{:?}", back.exit);
    back.pass(1000);
    back.acknowledge_all(2);
    second.store = back.store.clone();
    second.pass(20_000);
    second.register(1);
    assert_eq!(second.state(), JobState::Running, "{:?}", second.exit);
    assert_eq!(second.status().restored_from.as_ref().unwrap().id, CheckpointId(2));
    assert_eq!(names(&second, "1")[2..], ["Started", "Started", "Checkpoint", "Started", "MovedTo"]);
}

#[test]
fn what_cannot_be_taken_over_is_left_as_it_was() {
    let first = running();
    let mut read_only = Bench::paused(restoring("2", FIRST));
    read_only.store = first.store.clone();
    read_only.store.is_read_only = true;
    read_only.tick();
    let (kind, reason, message) = exit(&read_only);
    assert_eq!((kind, reason.as_str()), (ExitKind::UserError, "TakeoverDenied"));
    assert!(message.contains(FIRST) && message.contains("access denied"), "{message}");

    let mut unlike = restoring("2", FIRST);
    unlike.graph.vertices[1].operators[0].uid = "sum".into();
    let mut in_memory = restoring("2", FIRST);
    in_memory.storage_uri = None;
    for (config, expected) in [(unlike, "SnapshotIncompatible"), (in_memory, "TakeoverWithoutStorage")] {
        let is_in_memory = config.storage_uri.is_none();
        let mut refused = Bench::paused(config);
        refused.store = first.store.clone();
        if is_in_memory {
            refused.store.rebase("s3://bucket/root/");
        }
        refused.tick();
        refused.store.home("s3://bucket/root/");
        let (kind, reason, _) = exit(&refused);
        assert_eq!((kind, reason.as_str()), (ExitKind::UserError, expected));
        assert_eq!(refused.ledger_of("1").len(), 2);
    }
    let empty = Bench::running(config(1)).clone_store_for(restoring("2", FIRST));
    assert_eq!((exit(&empty).1.as_str(), empty.ledger_of("1").len()), ("SnapshotNotFound", 1));
}

/// C3: the same job in another storage. The keys of the old one become absolute.
#[test]
fn a_job_takes_itself_along_to_another_storage_with_what_it_remembers_and_back() {
    for stops in [true, false] {
        let mut first = running();
        if stops {
            first.command(Command::Stop);
            first.acknowledge_all(2);
        }
        let latest = if stops { 2 } else { 1 };
        let seen = first.ledger().len();
        let mut moved = again("1", 2, restoring("1", FIRST).directive.start, 0);
        moved.storage_uri = Some("s3://bucket/new".into());
        moved.directive.id = "2".into();
        let mut second = Bench::paused(moved);
        second.store = first.store.clone();
        second.store.rebase("s3://bucket/root/");
        second.tick();
        second.register(1);
        assert_eq!(second.state(), JobState::Running, "{:?}", second.exit);
        assert_eq!(second.status().restored_from.as_ref().unwrap().id, CheckpointId(latest));
        assert_eq!(kinds(&second), ["Started"]);
        let old: Vec<_> = second.store.keys().filter(|key| key.starts_with(&format!("{FIRST}/ledger"))).collect();
        assert_eq!(old.len(), seen + 2);
        second.pass(1000);
        second.acknowledge_all(latest + 1);
        let checkpoint = format!("default/pv-1/2/chk-{}/_metadata", latest + 1);
        assert!(second.store.holds(&checkpoint), "ids go on");

        let mut back = again("1", 3, restoring("1", "s3://bucket/new/default/pv-1").directive.start, seen + 2);
        back.directive.id = "3".into();
        let mut third = Bench::paused(back);
        third.store = second.store.clone();
        third.store.rebase("s3://bucket/new/");
        third.store.home("s3://bucket/root/");
        third.tick();
        third.register(1);
        assert_eq!(third.state(), JobState::Running, "{:?}", third.exit);
        assert_eq!(third.status().restored_from.as_ref().unwrap().id, CheckpointId(latest + 1));
        assert_eq!(names(&third, "1").last().unwrap(), "Started");
        let list = StoreOperation::List { prefix: "s3://bucket/new/default/pv-1/ledger/".into(), start_after: None };
        let moved = format!("{:?}", third.store.execute(list));
        assert!(moved.contains("0000000004.json"), "the ledger that is left has its end: {moved}");
    }
}

#[test]
fn a_job_without_any_checkpoint_takes_itself_along_too_and_back() {
    let first = Bench::running(config(1));
    let mut moved = again("1", 2, restoring("1", FIRST).directive.start, 0);
    moved.storage_uri = Some("s3://bucket/new".into());
    (moved.revision, moved.directive.id) = (2, "2".into());
    let mut second = Bench::paused(moved);
    second.store = first.store.clone();
    second.store.rebase("s3://bucket/root/");
    second.tick();
    second.register(1);
    assert_eq!((second.state(), &second.status().restored_from), (JobState::Running, &None), "{:?}", second.exit);
    let old = second.store.keys().filter(|key| key.starts_with(&format!("{FIRST}/ledger"))).count();
    assert_eq!(old, 3, "Started, Started, MovedTo");

    let mut back = again("1", 3, restoring("1", "s3://bucket/new/default/pv-1").directive.start, 0);
    (back.revision, back.directive.id) = (3, "3".into());
    let mut third = Bench::paused(back);
    third.store = second.store.clone();
    third.store.rebase("s3://bucket/new/");
    third.store.home("s3://bucket/root/");
    third.tick();
    third.register(1);
    assert_eq!((third.state(), &third.status().restored_from), (JobState::Running, &None), "{:?}", third.exit);
    assert_eq!(names(&third, "1"), ["Started", "Started", "MovedTo", "Started"]);

    // Undone before the new storage was ever reached: its own directory.
    let mut undone = again("1", 2, restoring("1", FIRST).directive.start, 0);
    (undone.revision, undone.directive.id) = (2, "2".into());
    let mut undone = first.clone_store_for(undone);
    undone.register(1);
    assert_eq!((undone.state(), &undone.status().restored_from), (JobState::Running, &None), "{:?}", undone.exit);
}

/// The controller may point at a storage from which the job came long ago, because a revision that was to go there again
/// never began: what lies there is older than what the job has here.
#[test]
fn a_storage_that_was_left_long_ago_is_no_way_back() {
    let first = running();
    let mut moved = again("1", 2, restoring("1", FIRST).directive.start, 0);
    moved.storage_uri = Some("s3://bucket/new".into());
    (moved.revision, moved.directive.id) = (2, "2".into());
    let mut second = Bench::paused(moved);
    second.store = first.store;
    second.store.rebase("s3://bucket/root/");
    second.tick();
    second.register(1);
    second.pass(1000);
    second.acknowledge_all(2);
    let there = "s3://bucket/new/default/pv-1";
    let mut third = in_the_first_place(&second, 3, there);
    assert_eq!(third.status().restored_from.as_ref().unwrap().id, CheckpointId(2), "it goes back");
    third.pass(1000);
    third.acknowledge_all(3);
    // Revision 4 was to go there again, and never came to it.
    let mut undone = again("1", 5, restoring("1", there).directive.start, 0);
    (undone.revision, undone.directive.id) = (5, "5".into());
    let mut fifth = third.clone_store_for(undone);
    fifth.register(1);
    assert_eq!(fifth.state(), JobState::Running, "{:?}", fifth.exit);
    assert_eq!(fifth.status().restored_from.as_ref().unwrap().id, CheckpointId(3));
}

/// Who goes back from another storage.
fn in_the_first_place(second: &Bench, revision: u64, from: &str) -> Bench {
    let mut back = again("1", revision, restoring("1", from).directive.start, 0);
    (back.revision, back.directive.id) = (revision, revision.to_string());
    let mut third = Bench::paused(back);
    third.store = second.store.clone();
    third.store.rebase("s3://bucket/new/");
    third.store.home("s3://bucket/root/");
    third.tick();
    third.register(1);
    assert_eq!(third.state(), JobState::Running, "{:?}", third.exit);
    third
}

/// What a closer wrote to a storage that nobody had reached is no state of the job.
#[test]
fn a_storage_in_which_nothing_was_begun_is_no_way_back() {
    let first = running();
    let mut close = again("1", 2, StartFrom::Close { end: CloseEnd::Stopped }, 0);
    close.storage_uri = Some("s3://bucket/new".into());
    (close.revision, close.directive.id) = (2, "2".into());
    let mut closer = Bench::paused(close.clone());
    closer.store = first.store;
    closer.store.rebase("s3://bucket/root/");
    closer.tick();
    assert_eq!((exit(&closer).0, exit(&closer).1.as_str()), (ExitKind::Stopped, NOTHING_BEGUN));
    assert_eq!(kinds(&closer), ["Started", "Stopped"]);
    // Who was to start there finds that it may not any more.
    let late = JobMasterConfig { generation: Generation(1), process: ProcessId("late".into()), ..close.clone() };
    let mut late = closer.clone_store_for(late);
    late.tick();
    assert_eq!(exit(&late).0, ExitKind::Superseded);
    // Nobody has heard what the closer said: another says the same.
    let again_close = JobMasterConfig { generation: Generation(3), process: ProcessId("again".into()), ..close };
    let mut another = closer.clone_store_for(again_close);
    another.tick();
    assert_eq!((exit(&another).1.as_str(), kinds(&another).len()), (NOTHING_BEGUN, 2));

    let third = in_the_first_place(&closer, 4, "s3://bucket/new/default/pv-1");
    assert_eq!(third.status().restored_from.as_ref().unwrap().id, CheckpointId(1));
}

/// The way back to a storage where the job once lived, undone before it was heard of: what the closer finds there is of the
/// earlier stay, and whoever was to start there may not any more.
#[test]
fn an_earlier_stay_is_no_sign_that_a_start_was_carried_out() {
    let mut first = running();
    first.command(Command::Stop);
    first.acknowledge_all(2);
    assert_eq!(kinds(&first).last().unwrap(), "Stopped");
    let mut close = again("1", 4, StartFrom::Close { end: CloseEnd::Stopped }, 0);
    (close.revision, close.directive.id) = (3, "3".into());
    let closer = first.clone_store_for(close.clone());
    assert_eq!((exit(&closer).0, exit(&closer).1.as_str()), (ExitKind::Stopped, NOTHING_BEGUN));
    assert_eq!(kinds(&closer)[kinds(&first).len()..], ["Started", "Stopped"], "what fences");
    let mut late = again("1", 3, restoring("1", "s3://bucket/new/default/pv-1").directive.start, 0);
    (late.revision, late.directive.id) = (3, "3".into());
    assert_eq!(exit(&closer.clone_store_for(late)).0, ExitKind::Superseded);
    // The directive that has ended here itself: nothing is left to fence.
    let ended = JobMasterConfig { generation: Generation(5), process: ProcessId("same".into()), ..close };
    let own = ended.directive.clone();
    let mut ended = ended;
    ended.directive.id = first.ledger()[0].folded().directive;
    assert_ne!(ended.directive.id, own.id);
    let reported = closer.clone_store_for(ended);
    assert_eq!((exit(&reported).1.as_str(), kinds(&reported).len()), ("Stopped", kinds(&closer).len()));
}

/// It went away from there by a savepoint, so that nothing in that ledger says where to.
#[test]
fn a_storage_that_was_left_by_a_savepoint_long_ago_is_no_way_back() {
    let mut first = running();
    first.command(Command::Stop);
    first.acknowledge_all(2);
    let mut moved = again("1", 2, restoring("1", &format!("{FIRST}/1/chk-2")).directive.start, 0);
    moved.storage_uri = Some("s3://bucket/new".into());
    (moved.revision, moved.directive.id) = (2, "2".into());
    let mut second = Bench::paused(moved.clone());
    second.store = first.store.clone();
    second.store.rebase("s3://bucket/root/");
    second.tick();
    second.register(1);
    second.pass(1000);
    second.acknowledge_all(1);
    second.acknowledge_all(3);
    assert_eq!(kinds(&second), ["Started", "Checkpoint"], "{:?} {:?}", second.exit, second.status());
    let latest = second.status().last_checkpoint.as_ref().unwrap().path.clone();
    let mut undone = again("1", 4, restoring("1", FIRST).directive.start, 0);
    undone.storage_uri = moved.storage_uri;
    (undone.revision, undone.directive.id) = (4, "4".into());
    let mut fourth = second.clone_store_for(undone);
    fourth.register(1);
    assert_eq!(fourth.state(), JobState::Running, "{:?}", fourth.exit);
    assert_eq!(fourth.status().restored_from.as_ref().unwrap().path, latest);
}

/// Neither there nor here was anything begun: the job's state is elsewhere, and an empty start would lose it.
#[test]
fn a_directory_in_which_nothing_was_begun_starts_nobody_empty() {
    let mut close = again("1", 2, StartFrom::Close { end: CloseEnd::Stopped }, 0);
    close.storage_uri = Some("s3://bucket/new".into());
    (close.revision, close.directive.id) = (2, "2".into());
    let closer = Bench::paused(close);
    let mut closer = closer;
    closer.tick();
    let mut third = again("1", 3, restoring("1", "s3://bucket/new/default/pv-1").directive.start, 0);
    (third.revision, third.directive.id) = (3, "3".into());
    let mut refused = Bench::paused(third);
    refused.store = closer.store.clone();
    refused.store.rebase("s3://bucket/new/");
    refused.store.home("s3://bucket/root/");
    refused.tick();
    assert_eq!((exit(&refused).0, exit(&refused).1.as_str()), (ExitKind::UserError, "SnapshotNotFound"));
}

// --- What an upgrade went on from: K7 ----------------------------------------------------------------------------

fn upgraded() -> Bench {
    let mut first = running();
    first.pass(1000);
    first.acknowledge_all(2);
    let mut second = again("1", 2, StartFrom::ResumeLatest, first.ledger().len());
    second.revision = 2;
    second.directive.id = "2".into();
    let mut second = first.clone_store_for(second);
    second.register(1);
    assert_eq!(second.status().pinned, [format!("{FIRST}/1/chk-2")]);
    assert_eq!(second.status().pinned_by, ["revision 2"]);
    for id in 3..6 {
        second.pass(1000);
        second.acknowledge_all(id);
    }
    second
}

#[test]
fn what_an_upgrade_went_on_from_outlives_its_checkpoints_until_it_is_released() {
    let mut second = upgraded();
    assert!(second.store.holds("default/pv-1/1/chk-2/_metadata"));
    assert!(!second.store.holds("default/pv-1/2/chk-4/_metadata"), "others are displaced");
    let pinned = second.ledger().len();
    let mut again = again("1", 3, StartFrom::Continue, pinned);
    again.revision = 2;
    again.directive.id = "2".into();
    let mut third = second.clone_store_for(again);
    third.register(1);
    assert_eq!(third.status().pinned.len(), 1, "a restart of the revision pins nothing more");
    for bench in [&mut second, &mut third] {
        bench.command(Command::Release);
        bench.command(Command::Release);
        assert_eq!(bench.status().pinned, Vec::<String>::new());
        bench.pass(1000);
        bench.acknowledge_all(6);
        assert!(!bench.store.holds("default/pv-1/1/chk-2/_metadata"));
        assert_eq!(kinds(bench).iter().filter(|kind| *kind == "Released").count(), 1);
    }
}

#[test]
fn a_rollback_finds_what_was_pinned_and_many_upgrades_pin_little() {
    let second = upgraded();
    let mut back = again("1", 3, restoring("1", &format!("{FIRST}/1/chk-2")).directive.start, second.ledger().len());
    back.revision = 3;
    back.directive.id = "3".into();
    let mut bench = second.clone_store_for(back);
    bench.register(1);
    assert_eq!(bench.status().restored_from.as_ref().unwrap().path, format!("{FIRST}/1/chk-2"), "{:?}", bench.exit);
    for revision in 4..9 {
        bench.pass(1000);
        bench.acknowledge_all(revision + 2);
        let mut next = again("1", revision, StartFrom::ResumeLatest, bench.ledger().len());
        next.revision = revision;
        next.directive.id = revision.to_string();
        bench = bench.clone_store_for(next);
        bench.register(1);
        assert!(bench.status().pinned.len() <= 3);
        assert_eq!(bench.status().pinned[0], format!("{FIRST}/1/chk-2"), "what the stable revision left");
    }
}

#[test]
fn no_pin_survives_a_job_that_takes_its_checkpoints_along() {
    let second = upgraded();
    let mut next = again("1", 3, StartFrom::Continue, second.ledger().len());
    next.revision = 2;
    next.directive.id = "2".into();
    next.options.checkpointing.as_mut().unwrap().retention = crate::options::Retention::DeleteOnCancellation;
    let mut next = second.clone_store_for(next);
    next.register(1);
    next.command(Command::Cancel);
    assert_eq!(exit(&next).0, ExitKind::Stopped);
    assert!(!next.holds_below("default/pv-1/1/") && !next.holds_below("default/pv-1/2/"));
}
