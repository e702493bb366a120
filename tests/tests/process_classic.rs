//! Kafka, windows of event time, Kafka, exactly once (`examples/exactly-once.yaml`), under SIGKILL of everything at each step
//! of the protocol: a million page views, and not one result missing or doubled for the Java client with read_committed
//! (docs/protocol.md, S1-S6, W1, K3, K4, L6).
//!
//! `SLUICE_SOAK=1` plays each combination at length.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking, and says what it did")]

use sluice_tests::harness::Services;
use sluice_tests::harness::classic::{Classic, Moment, Settings, Victims};
use std::time::Duration;

const ALIGNED: Settings = Settings { guarantee: "exactly-once", sink: "", checkpointing: "" };
const UNALIGNED: Settings = Settings { checkpointing: ", unaligned: true", ..ALIGNED };
const AFTER_A_TIMEOUT: Settings = Settings { checkpointing: ", unaligned: true, alignmentTimeout: 20ms", ..ALIGNED };
const AT_LEAST_ONCE: Settings = Settings { guarantee: "at-least-once", ..ALIGNED };

const JOB_MANAGER: Victims = Victims { job_manager: true, task_managers: 0, broker: false };
const TASK_MANAGER: Victims = Victims { job_manager: false, task_managers: 1, broker: false };
const TASK_MANAGERS: Victims = Victims { job_manager: false, task_managers: 9, broker: false };
const BROKER: Victims = Victims { job_manager: false, task_managers: 0, broker: true };
const ALL_OF_THE_JOB: Victims = Victims { job_manager: true, task_managers: 9, broker: false };
const EVERYTHING: Victims = Victims { job_manager: true, task_managers: 9, broker: true };

const fn amid_commits(milliseconds: u64) -> Moment {
    Moment::Committing(Duration::from_millis(milliseconds))
}

/// Ends the job, and compares all that it wrote.
fn expect_each_once(classic: &mut Classic) {
    let (right, text) = classic.verify(&["--wait", "90"]);
    assert!(right, "{text}");
    classic.job.cancel();
    let (right, text) = classic.verify(&["--ended"]);
    assert!(right, "behind the terminal entry (L6): {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_views_are_in_windows_once_whatever_dies_at_whichever_step() {
    if Services::from_environment().is_none() {
        return;
    }
    let mut classic = Classic::start(ALIGNED, 2).await;
    let views = classic.produce(0, 1_000_000, 25_000);
    let strikes = [
        (Moment::BeforeTheBarrier, TASK_MANAGER),
        (Moment::PreCommitted, JOB_MANAGER),
        (Moment::Alignment, TASK_MANAGERS),
        (Moment::Appended, JOB_MANAGER),
        (amid_commits(4), ALL_OF_THE_JOB),
        (Moment::Appended, BROKER),
        (Moment::Settling, JOB_MANAGER),
        (Moment::PreCommitted, EVERYTHING),
        (amid_commits(60), JOB_MANAGER),
    ];
    for (moment, victims) in strikes {
        classic.strike(moment, victims);
    }
    assert!(views.end() >= 1_000_000);
    expect_each_once(&mut classic);
}

/// What comes between two checkpoints of a job's life, in one mode: failed checkpoints (K3), rescales, a stop with a savepoint
/// (K4), and kills behind each.
async fn live(settings: Settings) {
    let mut classic = Classic::start(settings, 2).await;
    let views = classic.produce(0, 100_000, 10_000);
    classic.strike(Moment::PreCommitted, JOB_MANAGER);
    classic.fail_checkpoints(2);
    classic.fail_checkpoints_and_kill(1, TASK_MANAGER);
    classic.start_generation(3);
    classic.strike(amid_commits(8), TASK_MANAGER);
    classic.start_generation(1);
    let savepoint = classic.stop();
    classic.start_from("resumed", &savepoint, 2);
    classic.strike(Moment::Appended, ALL_OF_THE_JOB);
    views.end();
    expect_each_once(&mut classic);
}

#[tokio::test(flavor = "multi_thread")]
async fn unaligned_with_failed_checkpoints_rescales_and_a_savepoint_each_result_is_there_once() {
    if Services::from_environment().is_none() {
        return;
    }
    live(UNALIGNED).await;
    if is_soak() {
        live(ALIGNED).await;
        live(AFTER_A_TIMEOUT).await;
    }
}

fn is_soak() -> bool {
    std::env::var_os("SLUICE_SOAK").is_some()
}

/// Each mode with 20 kills, at random.
#[tokio::test(flavor = "multi_thread")]
async fn soak_of_random_kills() {
    if Services::from_environment().is_none() || !is_soak() {
        return;
    }
    for settings in [ALIGNED, UNALIGNED, AFTER_A_TIMEOUT] {
        let seed = std::env::var("SLUICE_SOAK_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        println!("{settings:?}: SLUICE_SOAK_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut classic = Classic::start(settings, 2).await;
        let views = classic.produce(0, 1_000_000, 10_000);
        while classic.kills() < 20 {
            random_strike(&mut classic, &mut random);
        }
        views.end();
        expect_each_once(&mut classic);
    }
}

fn random_strike(classic: &mut Classic, random: &mut fastrand::Rng) {
    let moment = match random.u8(..6) {
        0 => Moment::BeforeTheBarrier,
        1 => Moment::Alignment,
        2 => Moment::PreCommitted,
        3 => Moment::Appended,
        4 => Moment::Settling,
        _ => amid_commits(random.u64(1..300)),
    };
    let all = [JOB_MANAGER, TASK_MANAGER, TASK_MANAGERS, BROKER, ALL_OF_THE_JOB, EVERYTHING];
    let victims = if moment == Moment::Settling { JOB_MANAGER } else { all[random.usize(..all.len())] };
    match random.u8(..6) {
        0 if !victims.broker => classic.fail_checkpoints_and_kill(random.u64(1..4), victims),
        1 => classic.start_generation(random.u32(1..4)),
        _ => classic.strike(moment, victims),
    }
}

/// Such kills without transactions, so that it is known that the verifier would see a result that is there twice.
#[tokio::test(flavor = "multi_thread")]
async fn at_least_once_doubles_results_under_such_kills_and_loses_none() {
    if Services::from_environment().is_none() || !is_soak() {
        return;
    }
    let mut classic = Classic::start(AT_LEAST_ONCE, 2).await;
    let views = classic.produce(0, 100_000, 20_000);
    // Half an interval behind a checkpoint, when some results are written that the next attempt writes again.
    classic.strike(amid_commits(150), JOB_MANAGER);
    classic.strike(amid_commits(200), TASK_MANAGERS);
    views.end();
    let (right, text) = classic.verify(&["--wait", "60"]);
    assert!(!right && text.contains("\nmissing: 0\n") && !text.contains("\ndoubled: 0\n"), "{text}");
}
