//! Removal in the background (K6): what a store that takes no deletes means for a job that completes checkpoints.

use super::bench::{Bench, config};
use crate::job_master::{CLEANUP_FAILED, Command};
use crate::status::JobState;
use crate::time::TimeSpan;

/// Each checkpoint displaces one, and none can be removed for ten minutes.
#[test]
fn a_store_that_takes_no_deletes_fills_no_queue_and_is_swept_later() {
    let mut bench = Bench::running(config(1));
    bench.store.refuses_deletes = true;
    let mut most = 0;
    for id in 1..=600 {
        bench.pass(1000);
        bench.acknowledge_all(id);
        most = most.max(bench.store_operations());
    }
    let completed = bench.status().completed_checkpoints;
    assert_eq!((bench.state(), completed), (JobState::Running, 600), "no trigger waits for a removal");
    assert!(most < 120, "{most} operations were kept at once");
    let retained = |bench: &Bench| bench.store.keys().filter(|key| key.ends_with("/_metadata")).count();
    assert!(retained(&bench) > 500, "they were not removed");
    bench.store.refuses_deletes = false;
    for id in 601..=606 {
        bench.pass(600_000);
        bench.acknowledge_all(id);
    }
    assert!(retained(&bench) <= 2, "{} are left after an hour", retained(&bench));
}

/// Each checkpoint displaces one, and whoever is to remove it does not answer at all.
#[test]
fn a_delete_without_an_answer_delays_no_trigger() {
    let mut bench = Bench::running(config(1));
    bench.store.swallows_deletes = true;
    for id in 1..=100 {
        bench.pass(1000);
        assert_eq!(bench.last_barrier().checkpoint.0, id, "after {id} seconds");
        bench.acknowledge_all(id);
    }
    assert_eq!(bench.status().completed_checkpoints, 100);
    assert!(bench.store_operations() < 120, "{} operations are kept", bench.store_operations());
}

/// What is refused is said by name, with the moment of the next try, and holds up neither what may be removed beside it nor
/// the job; when it is granted, the next sweep is the end of it.
#[test]
fn a_cleaning_that_is_refused_is_told_until_a_sweep_succeeds() {
    let mut config = config(1);
    config.options.checkpointing.as_mut().unwrap().interval = TimeSpan::from_secs(100_000);
    let mut bench = Bench::running(config);
    bench.store.denied_below = Some("default/pv-1/1/chk-1/".to_owned());
    for number in 0..1200 {
        bench.store.put(&format!("default/pv-1/1/chk-1/state-{number:04}"), b"x");
        bench.store.put(&format!("default/pv-1/1/chk-2/state-{number:04}"), b"x");
    }
    for id in 1..=3 {
        bench.pass(600_000);
        bench.command(Command::TriggerCheckpoint { id: id.to_string() });
        assert_eq!(bench.last_barrier().checkpoint.0, id, "no trigger waits");
        bench.acknowledge_all(id);
    }
    assert!(bench.holds_below("default/pv-1/1/chk-1/") && !bench.holds_below("default/pv-1/1/chk-2/"));
    let told = bench.notice(CLEANUP_FAILED).unwrap().to_owned();
    for part in ["s3://bucket/root/default/pv-1/1/chk-1/", "could not be removed", "tried again in 4", "access denied"]
    {
        assert!(told.contains(part), "'{part}' in: {told}");
    }
    bench.pass(3_000_000);
    assert!(bench.notice(CLEANUP_FAILED).unwrap().contains("tried again in 1h"), "the sweep was refused too");
    bench.store.denied_below = None;
    bench.pass(3_600_000);
    assert_eq!((bench.notice(CLEANUP_FAILED), bench.holds_below("default/pv-1/1/chk-1/")), (None, false));
}

/// One batch is under way at a time, whatever there is to remove.
#[test]
fn removing_goes_batch_by_batch() {
    let mut bench = Bench::running(config(1));
    bench.store.swallows_deletes = true;
    for number in 0..3000 {
        bench.store.put(&format!("default/pv-1/1/chk-1/state-{number:04}"), b"x");
    }
    for id in 1..=2 {
        bench.pass(1000);
        bench.acknowledge_all(id);
    }
    assert_eq!(bench.swallowed, [500], "the first batch of the first checkpoint, and nothing behind it");
}
