//! Savepoints that were begun and never completed (K4, K6): who removes what they left, and what is left alone.

use super::bench::{Bench, config};
use crate::failure::{Failure, Fault};
use crate::ids::Generation;
use crate::job_master::{Command, Directive, JobMasterConfig, SavepointRequest, StartFrom};
use crate::ledger::SavepointKind;
use crate::store::UnfinishedUpload;
use crate::time::TimeSpan;

const PLACE: &str = "s3://other/sp";

/// No periodic checkpoint in the way.
fn slow(generation: u64) -> JobMasterConfig {
    let mut config = config(1);
    config.generation = Generation(generation);
    let checkpointing = config.options.checkpointing.as_mut().unwrap();
    (checkpointing.interval, checkpointing.timeout) = (TimeSpan::from_secs(100_000), TimeSpan::from_secs(50_000));
    config
}

fn ask(bench: &mut Bench, id: &str) {
    let (directory, timeout) = (Some(PLACE.to_owned()), TimeSpan::from_secs(30));
    let request = SavepointRequest { id: id.into(), kind: SavepointKind::Savepoint, directory, timeout };
    bench.command(Command::Savepoint(request));
}

/// A complete savepoint of checkpoint 1, and one of checkpoint 2 that failed for good after files of it were stored.
fn with_a_failed_one() -> Bench {
    let mut bench = Bench::running(slow(1));
    ask(&mut bench, "whole");
    bench.store.put("s3://other/sp/default/pv-1/1-1/state", b"x");
    bench.acknowledge_all(1);
    ask(&mut bench, "failed");
    bench.store.put("s3://other/sp/default/pv-1/1-2/state", b"x");
    bench.store.uploads.push(upload("s3://other/sp/default/pv-1/1-2/large"));
    bench.decline(2, Failure::restart("UploadFailed", Fault::User, "access denied"));
    bench
}

fn upload(key: &str) -> UnfinishedUpload {
    UnfinishedUpload { key: key.to_owned(), id: "u".to_owned() }
}

/// The request has its answer, so nothing but the places that the ledger remembers tells where to look.
#[test]
fn what_a_failed_savepoint_left_in_another_store_is_removed_by_the_next_generation() {
    let before = with_a_failed_one();
    assert!(before.holds_below("s3://other/sp/default/pv-1/1-2/"), "its JobManager died before it removed it");
    let bench = before.succeeded_by(slow(2));
    assert!(!bench.holds_below("s3://other/sp/default/pv-1/1-2/") && bench.store.uploads.is_empty());
    assert!(bench.store.holds("s3://other/sp/default/pv-1/1-1/state"), "a complete one is nobody's but the user's");
}

/// Files that a TaskManager stores late, when those before them are removed already, are found within the hour.
#[test]
fn what_is_stored_late_for_a_failed_savepoint_is_swept_by_its_own_generation() {
    let mut bench = with_a_failed_one();
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.acknowledge_all(3);
    assert!(!bench.holds_below("s3://other/sp/default/pv-1/1-2/"));
    bench.store.put("s3://other/sp/default/pv-1/1-2/late", b"x");
    ask(&mut bench, "under-way");
    bench.store.put("s3://other/sp/default/pv-1/1-4/state", b"x");
    bench.store.uploads.extend(["1-4", "2-9"].map(|of| upload(&format!("s3://other/sp/default/pv-1/{of}/large"))));
    bench.command(Command::Savepoint(SavepointRequest {
        id: "longer".into(),
        kind: SavepointKind::Savepoint,
        directory: Some(PLACE.to_owned()),
        timeout: TimeSpan::from_secs(10_000),
    }));
    bench.pass(29_000);
    bench.acknowledge_all(4);
    bench.store.uploads.push(upload("s3://other/sp/default/pv-1/1-5/large"));
    bench.store.put("s3://other/sp/default/pv-1/1-5/state", b"x");
    bench.pass(3_600_000);
    assert!(!bench.holds_below("s3://other/sp/default/pv-1/1-2/"));
    assert!(bench.store.holds("s3://other/sp/default/pv-1/1-4/state"), "it is complete now");
    assert!(bench.store.holds("s3://other/sp/default/pv-1/1-5/state"), "it is under way");
    let left = ["2-9", "1-5"].map(|of| upload(&format!("s3://other/sp/default/pv-1/{of}/large")));
    assert_eq!(bench.store.uploads, left, "of a newer generation, and of what is under way");
}

/// C3: a ledger that begins anew knows nothing of the savepoints of earlier generations. Those that have all their files
/// live, those that lack what is written last never came to be.
#[test]
fn of_a_generation_before_the_ledger_began_only_what_was_never_complete_is_removed() {
    let mut bench = Bench::paused(slow(3));
    for key in ["1-1/_metadata", "1-1/state", "2-7/state"] {
        bench.store.put(&format!("s3://other/sp/default/pv-1/{key}"), b"x");
    }
    bench.tick();
    bench.register(1);
    ask(&mut bench, "a");
    bench.acknowledge_all(1);
    let bench = bench.succeeded_by(slow(4));
    assert!(bench.store.holds("s3://other/sp/default/pv-1/1-1/state"));
    assert!(!bench.holds_below("s3://other/sp/default/pv-1/2-7/"));
}

/// The ledger knows it no more; the person who picks it does.
#[test]
fn a_disposed_savepoint_that_was_put_back_stays_when_the_job_is_started_from_it() {
    let mut bench = Bench::running(slow(1));
    ask(&mut bench, "a");
    bench.acknowledge_all(1);
    let directory = "s3://other/sp/default/pv-1/1-1";
    let metadata = bench.store.get(&format!("{directory}/_metadata"));
    bench.command(Command::Dispose { id: "d".into(), path: directory.into() });
    assert!(!bench.holds_below(directory));
    bench.command(Command::Cancel);
    bench.store.put(&format!("{directory}/_metadata"), &metadata);
    bench.store.put(&format!("{directory}/state"), b"x");
    let mut next = slow(2);
    let start = StartFrom::Path { from: directory.into(), allow_non_restored_state: false, abandon_sinks: Vec::new() };
    next.directive = Directive { id: "2".into(), seen: bench.ledger().last().unwrap().number, start };
    let mut bench = bench.succeeded_by(next);
    bench.register(1);
    let stays = |bench: &Bench| bench.store.holds(&format!("{directory}/state"));
    assert!(stays(&bench), "tasks may not have read it yet");
    bench.command(Command::TriggerCheckpoint { id: "t".into() });
    bench.acknowledge_all(2);
    bench.pass(3_700_000);
    assert!(stays(&bench), "it is the person's");
}
