//! Kafka, windows of event time, Kafka, exactly once (`examples/exactly-once.yaml`), under SIGKILL of everything at each step
//! of the protocol: a million page views, and not one result missing or doubled for the Java client with read_committed
//! (docs/protocol.md, S1-S6, W1, K3, K4, L6).
//!
//! `SLUICE_SOAK=1` plays each combination at length.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking, and says what it did")]

use sluice_node::steps::Step;
use sluice_tests::harness::classic::{Classic, Moment, Settings, Victims};
use sluice_tests::harness::{Services, wait_for};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(60);

const ALIGNED: Settings = Settings { guarantee: "exactly-once", sink: "", checkpointing: "", on_s3: false };
const UNALIGNED: Settings = Settings { checkpointing: ", unaligned: true", ..ALIGNED };
const AFTER_A_TIMEOUT: Settings = Settings { checkpointing: ", unaligned: true, alignmentTimeout: 20ms", ..ALIGNED };
const MODES: [Settings; 3] = [ALIGNED, UNALIGNED, AFTER_A_TIMEOUT];
const AT_LEAST_ONCE: Settings = Settings { guarantee: "at-least-once", ..ALIGNED };
/// The producer keeps rows for two seconds, which no checkpoint waits for.
const NONE: Settings = Settings { guarantee: "none", sink: ", 'properties.linger.ms'='2000'", ..ALIGNED };
/// The shortest life of a transaction.
const SHORT_LIVED: Settings = Settings { sink: ", 'properties.transaction.timeout.ms'='30000'", ..ALIGNED };

const JOB_MANAGER: Victims = Victims { job_manager: true, task_managers: 0, broker: false };
const TASK_MANAGER: Victims = Victims { job_manager: false, task_managers: 1, broker: false };
const TASK_MANAGERS: Victims = Victims { job_manager: false, task_managers: 9, broker: false };
const BROKER: Victims = Victims { job_manager: false, task_managers: 0, broker: true };
const ALL_OF_THE_JOB: Victims = Victims { job_manager: true, task_managers: 9, broker: false };
const EVERYTHING: Victims = Victims { job_manager: true, task_managers: 9, broker: true };
const VICTIMS: [Victims; 6] = [JOB_MANAGER, TASK_MANAGER, TASK_MANAGERS, BROKER, ALL_OF_THE_JOB, EVERYTHING];

/// The steps of a checkpoint; those of the end are taken by [`Classic::die_at_the_end`].
const STEPS: [Step; 9] = [
    Step::BeforeBarrier,
    Step::Aligning,
    Step::PreCommitted,
    Step::BeforeEntry,
    Step::Appended,
    Step::AmidCommits,
    Step::Committed,
    Step::AmidSettling,
    Step::Settled,
];

const fn amid_commits(milliseconds: u64) -> Moment {
    Moment::AfterEntry(Duration::from_millis(milliseconds))
}

async fn start(settings: Settings) -> Classic {
    Classic::start(env!("CARGO_BIN_EXE_by_steps"), settings, 2).await
}

/// Waits for all results, ends the job, and compares all that it wrote.
fn expect_each_once(classic: &mut Classic) {
    expect_each_once_when(classic, |classic| classic.job.cancel());
}

/// The same with another end.
fn expect_each_once_when(classic: &mut Classic, end: impl FnOnce(&mut Classic)) {
    let (right, text) = classic.verify(&["--wait", "90"]);
    assert!(right, "{text}");
    end(classic);
    let (right, text) = classic.verify(&["--ended"]);
    assert!(right, "behind the terminal entry (L6): {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_views_are_in_windows_once_whatever_dies_at_whichever_step() {
    if Services::from_environment().is_none() {
        return;
    }
    let mut classic = start(ALIGNED).await;
    let views = classic.produce(0, 1_000_000, 40_000);
    let strikes = [
        (Step::BeforeBarrier, TASK_MANAGER),
        (Step::PreCommitted, TASK_MANAGER),
        (Step::BeforeEntry, JOB_MANAGER),
        (Step::Aligning, TASK_MANAGERS),
        (Step::Appended, JOB_MANAGER),
        (Step::AmidCommits, ALL_OF_THE_JOB),
        (Step::Appended, BROKER),
        (Step::Settled, JOB_MANAGER),
        (Step::AmidSettling, JOB_MANAGER),
        (Step::BeforeEntry, EVERYTHING),
        (Step::Committed, JOB_MANAGER),
    ];
    for (step, victims) in strikes {
        classic.strike(Moment::At(step), victims);
    }
    classic.strike(amid_commits(4), JOB_MANAGER);
    // Commits without an answer over several intervals.
    classic.suspend_broker(Duration::from_secs(2), false);
    assert!(views.end() >= 1_000_000);
    expect_each_once_when(&mut classic, Classic::die_at_the_end);
}

/// Every step with every victim, in one mode of checkpoints and then the next.
#[tokio::test(flavor = "multi_thread")]
async fn soak_of_every_victim_at_every_step() {
    if Services::from_environment().is_none() || !is_soak() {
        return;
    }
    for (mode, settings) in MODES.into_iter().enumerate() {
        let mut classic = start(settings).await;
        let views = classic.produce(0, 100_000, 10_000);
        for (number, step) in STEPS.into_iter().enumerate() {
            // Each mode takes a third of the pairs.
            for victims in VICTIMS.into_iter().skip((number + mode) % 3).step_by(3) {
                classic.strike(Moment::At(step), victims);
            }
        }
        views.end();
        expect_each_once_when(&mut classic, Classic::die_at_the_end);
    }
}

/// What comes between two checkpoints of a job's life, in one mode: failed checkpoints (K3), rescales, a stop with a savepoint
/// (K4), and kills behind each.
async fn live(settings: Settings) {
    let mut classic = start(settings).await;
    let views = classic.produce(0, 100_000, 10_000);
    classic.strike(Moment::At(Step::BeforeEntry), JOB_MANAGER);
    classic.fail_checkpoints(2);
    classic.fail_checkpoints_and_kill(1, TASK_MANAGER);
    classic.start_generation(3);
    classic.strike(amid_commits(8), TASK_MANAGER);
    classic.start_generation(1);
    let savepoint = classic.stop();
    classic.start_from("resumed", &savepoint, 2);
    classic.strike(Moment::At(Step::Appended), ALL_OF_THE_JOB);
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
    for settings in MODES {
        let seed = std::env::var("SLUICE_SOAK_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        println!("{settings:?}: SLUICE_SOAK_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut classic = start(settings).await;
        let views = classic.produce(0, 1_000_000, 10_000);
        while classic.kills() < 20 {
            random_strike(&mut classic, &mut random);
        }
        views.end();
        expect_each_once(&mut classic);
    }
}

fn random_strike(classic: &mut Classic, random: &mut fastrand::Rng) {
    let moment = match random.usize(..STEPS.len() * 2) {
        step if step < STEPS.len() => Moment::At(STEPS[step]),
        _ => amid_commits(random.u64(1..300)),
    };
    let victims = VICTIMS[random.usize(..VICTIMS.len())];
    match random.u8(..6) {
        0 if !victims.broker => classic.fail_checkpoints_and_kill(random.u64(1..4), victims),
        1 => classic.start_generation(random.u32(1..4)),
        _ => classic.strike(moment, victims),
    }
}

/// A broker that is silent over several checkpoint intervals, right behind a ledger entry: its commits have no answer, are
/// tried again, and one JobManager hands them to the next. Then a store that is away for longer than transactions live:
/// what they hold is not committed (S4), but written again.
#[tokio::test(flavor = "multi_thread")]
async fn commits_that_fail_for_long_and_a_store_away_for_longer_than_transactions_live_lose_nothing() {
    if Services::from_environment().is_none() || !is_soak() {
        return;
    }
    let mut classic = start(Settings { on_s3: true, ..SHORT_LIVED }).await;
    let views = classic.produce(0, 50_000, 10_000);
    classic.suspend_broker(Duration::from_secs(4), false);
    classic.suspend_broker(Duration::from_secs(3), true);
    classic.lose_store_for(Duration::from_secs(60));
    views.end();
    expect_each_once(&mut classic);
}

/// A job that is away for longer than transactions live, right behind an entry: what it had promised is gone, and it says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_away_for_longer_than_transactions_live_says_what_is_lost() {
    if Services::from_environment().is_none() || !is_soak() {
        return;
    }
    let mut classic = start(SHORT_LIVED).await;
    let views = classic.produce(0, 50_000, 10_000);
    classic.stay_away_behind_an_entry(Duration::from_secs(40));
    assert_eq!(classic.wait_ended(), "CommitLost");
    // It was told once; whoever starts the job again goes on without it.
    classic.resume("without them");
    classic.job.wait_checkpoint(1);
    views.end();
    let (right, text) = classic.verify(&["--wait", "10"]);
    assert!(!right && !text.contains("\nmissing: 0\n"), "{text}");
    for nothing in ["doubled", "wrong", "partitions in which readers wait"] {
        assert!(text.contains(&format!("\n{nothing}: 0\n")), "{text}");
    }
}

/// Such kills without transactions, so that it is known that the verifier would see a result that is there twice.
#[tokio::test(flavor = "multi_thread")]
async fn at_least_once_doubles_results_under_such_kills_and_loses_none() {
    if Services::from_environment().is_none() {
        return;
    }
    let mut classic = start(AT_LEAST_ONCE).await;
    let views = classic.produce(0, 100_000, 20_000);
    // Half an interval behind a checkpoint, when some results are written that the next attempt writes again.
    classic.strike(amid_commits(150), JOB_MANAGER);
    classic.strike(amid_commits(200), TASK_MANAGERS);
    views.end();
    let (right, text) = classic.verify(&["--wait", "60"]);
    assert!(!right && text.contains("\nmissing: 0\n") && !text.contains("\ndoubled: 0\n"), "{text}");
}

/// And that it would see one that is missing.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_guarantee_results_are_lost_under_such_kills() {
    if Services::from_environment().is_none() {
        return;
    }
    let mut classic = start(NONE).await;
    let views = classic.produce(0, 100_000, 20_000);
    classic.strike(Moment::At(Step::Appended), TASK_MANAGERS);
    views.end();
    let (right, text) = classic.verify(&["--wait", "10"]);
    assert!(!right && !text.contains("\nmissing: 0\n"), "{text}");
}

/// Of each end of a job while its rows flow; brokers tell (L6).
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_stop_a_failure_and_the_end_of_all_input_no_transaction_is_open() {
    if Services::from_environment().is_none() {
        return;
    }
    let mut classic = start(ALIGNED).await;
    let views = classic.produce(0, 10_000, 2_000);
    let savepoint = classic.stop();
    expect_none_open(&classic, "a stop");
    classic.change("fixedDelay: {attempts: 100, delay: 100ms}", "none: {}");
    classic.start_from("resumed", &savepoint, 2);
    let reason = classic.fail_at(Step::PreCommitted);
    expect_none_open(&classic, &reason);
    views.end();
    classic.start_bounded().await;
    assert_eq!(classic.wait_ended(), "Finished");
    let (right, text) = classic.verify(&["--ended"]);
    assert!(right, "{text}");
}

fn expect_none_open(classic: &Classic, end: &str) {
    let (_, text) = classic.verify(&[]);
    for nothing in ["doubled", "wrong", "open transactions", "partitions in which readers wait"] {
        assert!(text.contains(&format!("\n{nothing}: 0\n")), "behind {end}: {text}");
    }
}

/// docs/exactly-once.md, "One savepoint, two starts": what was before it is there once; what came after it, once for each start.
#[tokio::test(flavor = "multi_thread")]
async fn started_again_from_one_savepoint_and_beside_the_first_each_start_writes_what_comes_after_it_once() {
    if Services::from_environment().is_none() {
        return;
    }
    let mut classic = start(ALIGNED).await;
    classic.produce_open(0, 20_000);
    let (right, text) = classic.verify(&["--wait", "60"]);
    assert!(right, "{text}");
    let savepoint = classic.savepoint();
    let before = classic.committed();
    assert!(before > 100, "{before} results");
    let mut other = classic.start_another_from(&savepoint);
    classic.produce(20_000, 20_000, 10_000).end();
    classic.strike(Moment::At(Step::BeforeEntry), JOB_MANAGER);
    let (_, text) = classic.verify(&["--wait", "60"]);
    let due: usize =
        text.split("; ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number").parse().expect("it");
    let after = due - before;
    assert!(after > 100, "{after} results");
    wait_for("the results of both jobs", WAIT, || (classic.committed() >= before + 2 * after).then_some(()));
    assert!(!is_told_of_repetition(&classic));

    classic.job.cancel();
    classic.start_from("again", &savepoint, 2);
    assert!(is_told_of_repetition(&classic), "{:#?}", classic.job.status());
    wait_for("the results once more", WAIT, || (classic.committed() >= before + 3 * after).then_some(()));
    classic.job.cancel();
    other.cancel();
    let (right, text) = classic.verify(&["--ended", "--list", "100000"]);
    let repeated = text.lines().filter(|line| line.starts_with("  doubled ")).collect::<Vec<_>>();
    assert!(!right && repeated.len() == after && repeated.iter().all(|line| line.ends_with(" times=3")), "{text}");
    for nothing in ["missing", "wrong", "open transactions", "partitions in which readers wait"] {
        assert!(text.contains(&format!("\n{nothing}: 0\n")), "{text}");
    }
}

fn is_told_of_repetition(classic: &Classic) -> bool {
    let status = classic.job.status().expect("a status");
    status.notices.iter().any(|notice| notice.reason == "OutputRepeats")
}
