//! The protocol under many seeds, and proof that the seeds find what is broken on purpose.
//!
//! `SLUICE_SIM_SEED=n` replays one seed with a trace; `SLUICE_SIM_SEEDS=n` sets how many are run, `SLUICE_SIM_FIRST=n`
//! where they begin; with `SLUICE_SIM_ALL=1` the rest is run although one has failed.

use sluice_tests::simulation::scenario::Bug;
use sluice_tests::simulation::{Coverage, run};
use std::time::Instant;

/// Seeds that CI runs.
const SEEDS: u64 = 5000;

/// What they may take on one core.
const BUDGET_SECONDS: u64 = 90;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn seeds() {
    if let Some(seed) = number("SLUICE_SIM_SEED") {
        println!("seed {seed}");
        let coverage = run(seed, None, true).unwrap_or_else(|violation| panic!("{violation}"));
        return println!("{coverage:?}");
    }
    let seeds = number("SLUICE_SIM_SEEDS").unwrap_or(SEEDS);
    let started = Instant::now();
    let mut coverage = Coverage::default();
    let (first, goes_on) = (number("SLUICE_SIM_FIRST").unwrap_or(0), number("SLUICE_SIM_ALL").is_some());
    for seed in first..first + seeds {
        match run(seed, None, false) {
            Ok(reached) => coverage.add(&reached),
            Err(violation) if goes_on => println!("{violation}"),
            Err(violation) => panic!("{violation}"),
        }
        if (seed + 1 - first).is_multiple_of(SEEDS) {
            println!("seeds up to {seed} hold after {} s", started.elapsed().as_secs());
        }
    }
    assert!(coverage.given_up_uploads > seeds / 10, "too few unfinished uploads were found: {coverage:?}");
    assert!(coverage.swept * 2 > seeds, "the store was compared with the ledger at too few ends: {coverage:?}");
    let reached = [coverage.drains, coverage.given_up_drains, coverage.moved];
    let is_enough = coverage.pinned > 0
        && coverage.concluded > 0
        && coverage.closed * 100 > seeds
        && coverage.taken_over * 50 > seeds
        && coverage.left * 100 > seeds
        && coverage.in_memory * 100 > seeds
        && coverage.lost * 200 > seeds
        && reached.iter().all(|count| *count * 100 > seeds);
    assert!(seeds < SEEDS || is_enough, "too few drains, or starts behind an older revision: {coverage:?}");
    let seconds = started.elapsed().as_secs();
    println!("{seeds} seeds in {seconds} s (budget {BUDGET_SECONDS} s for {SEEDS}): {coverage:?}");
}

/// Each planted bug is found by the seeds that CI runs anyway; says by which and how.
fn is_found(bug: Bug) {
    is_found_by(bug, "");
}

/// The same, and the violation begins like this.
#[expect(clippy::print_stdout, reason = "a test says what it found")]
fn is_found_by(bug: Bug, rule: &str) {
    for seed in 0..SEEDS {
        if let Err(violation) = run(seed, Some(bug), false)
            && violation.what.contains(rule)
        {
            return println!("{bug:?}: found by seed {seed} at {} ms: {}", violation.at, violation.what);
        }
    }
    panic!("{bug:?} planted, and {SEEDS} seeds did not find it");
}

#[test]
fn a_broken_fence_is_found() {
    is_found(Bug::Fence);
}

#[test]
fn an_unclear_append_taken_for_a_failure_is_found() {
    is_found(Bug::UnclearAppend);
}

#[test]
fn an_own_append_taken_for_another_is_found() {
    is_found(Bug::OwnAppend);
}

#[test]
fn a_directive_carried_out_twice_is_found() {
    is_found(Bug::Directive);
}

#[test]
fn a_broken_alignment_is_found() {
    is_found(Bug::Alignment);
}

#[test]
fn objects_that_nobody_removes_are_found() {
    is_found(Bug::Sweep);
}

#[test]
fn a_senders_share_that_is_not_saved_is_found() {
    is_found(Bug::SenderShare);
}

#[test]
fn restored_batches_that_are_not_saved_again_are_found() {
    is_found(Bug::RestoredShare);
}

#[test]
fn batches_in_flight_restored_out_of_order_are_found() {
    is_found(Bug::InFlightOrder);
}

#[test]
fn a_broadcast_edge_that_barriers_overtake_on_is_found() {
    is_found(Bug::Broadcast);
}

#[test]
fn savepoints_beside_unaligned_checkpoints_are_found() {
    is_found(Bug::Overlap);
}

#[test]
fn a_savepoint_that_the_clock_gives_up_is_found() {
    is_found(Bug::Deadline);
}

#[test]
fn a_file_that_is_neither_of_the_base_nor_of_the_own_attempt_is_found() {
    is_found_by(Bug::ForeignFile, "K6: checkpoint");
}

#[test]
fn a_file_that_goes_while_a_retained_checkpoint_refers_to_it_is_found() {
    is_found_by(Bug::References, "K6: ");
}

#[test]
fn tasks_that_go_on_after_a_drain_that_was_given_up_are_found() {
    is_found_by(Bug::Drain, "K4: the tasks");
}

#[test]
fn a_start_that_an_older_revision_stops_again_and_again_is_found() {
    is_found_by(Bug::OlderRevision, "N3: ");
}

#[test]
fn a_split_whose_watermark_is_not_restored_is_found() {
    is_found_by(Bug::SplitTime, "W1: ");
}

#[test]
fn a_closer_that_does_not_finish_a_stop_is_found() {
    is_found_by(Bug::Closer, "K4: ");
}

#[test]
fn what_an_upgrade_went_on_from_and_is_displaced_is_found() {
    is_found_by(Bug::Pin, "K7: ");
}

#[test]
fn handles_of_a_failed_checkpoint_that_are_forgotten_are_found() {
    is_found_by(Bug::Handles, "K3: ");
}

#[test]
fn a_commit_before_the_entry_stands_is_found() {
    is_found_by(Bug::EarlyCommit, "K");
}

#[test]
fn a_job_whose_state_is_taken_while_it_goes_on_is_found() {
    is_found_by(Bug::Takeover, "G5: ");
}

#[test]
fn windows_that_fire_again_because_nobody_knows_that_they_have_are_found() {
    is_found_by(Bug::Fired, "W1: window");
}

#[test]
fn files_that_are_read_by_another_number_of_key_groups_are_found() {
    is_found_by(Bug::KeyGroups, "under key groups that they do not have");
}

#[test]
fn deltas_that_are_not_restored_on_disk_are_found() {
    is_found_by(Bug::DiskDeltas, "is no cut");
}

#[test]
fn a_job_that_starts_empty_when_the_memory_with_its_checkpoints_is_lost_is_found() {
    is_found_by(Bug::LostMemory, "L7: ");
}

#[test]
fn uploads_that_nobody_gives_up_are_found() {
    is_found_by(Bug::Uploads, "K6: nobody has given up");
}

/// The same seed is the same world, event by event.
#[test]
fn a_seed_replays() {
    let twice = [run(7, None, false), run(7, None, false)].map(|run| format!("{:?}", run.expect("seed 7 holds")));
    assert_eq!(twice[0], twice[1]);
}
