//! Removal in the background (K6): what a store that takes no deletes means for a job that completes checkpoints.

use super::bench::{Bench, config};
use crate::status::JobState;

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
