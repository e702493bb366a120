//! The whole controller against a simulated API server, under many seeds.
//!
//! The real code runs: watches, queue, passes, planner, calls, status, streams, election. Simulated are the API server
//! ([`api_server`]), the way to it ([`network`]), kubelets ([`kubelet`]), the processes of pods ([`job_manager`]: the real
//! JobMaster; [`task_manager`]), the object store ([`store`]), people and faults ([`people`], [`scenario`]), and time and
//! randomness ([`clock`]). [`check`] says what may never happen and what must be so at the end.
//!
//! `SLUICE_SIM_SEED=n` replays one seed with a trace; `SLUICE_SIM_SEEDS=n` sets how many are run, `SLUICE_SIM_FIRST=n`
//! where they begin; with `SLUICE_SIM_ALL=1` the rest is run although one has failed.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a test that says what it does")]

mod api_server;
mod check;
mod clock;
mod job_manager;
mod kubelet;
mod network;
mod people;
mod replicas;
mod scenario;
mod store;
mod task_manager;
mod world;

use check::Coverage;
use replicas::Replicas;
use scenario::Scenario;
use sluice_controller::Planted;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use world::World;

/// Seeds that CI runs.
const SEEDS: u64 = 2000;
/// A world that is not at rest so long after the last fault never will be.
const PATIENCE: u64 = 45 * 60_000;
/// How long a world at rest is watched.
const REST: u64 = 60_000;
/// How many calls the controller may make in that time.
const CALLS_AT_REST: u64 = 120;

/// What went wrong under a seed.
struct Violation {
    seed: u64,
    at: u64,
    what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, what } = self;
        write!(
            f,
            "seed {seed} at {at} ms: {what}\nreplay: SLUICE_SIM_SEED={seed} cargo test --profile sluice -p sluice-controller --test simulation_reconcile -- --nocapture seeds"
        )
    }
}

/// Runs one seed to its end.
fn run(seed: u64, planted: Planted, tracing: bool) -> Result<Coverage, Violation> {
    clock::in_thread(seed, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(live(seed, planted, tracing))
    })
}

async fn live(seed: u64, planted: Planted, tracing: bool) -> Result<Coverage, Violation> {
    let scenario = Scenario::new(seed);
    let world = World::new(scenario.clone(), tracing);
    world.trace(|| format!("{scenario:?}"));
    tokio::spawn(world.clone().collect_garbage());
    let replicas = Replicas::start(&world, scenario.replicas, planted);
    people::act_all(&world, &replicas, &scenario).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    people::calm(&world, &replicas);
    settle(&world).await;
    let mut state = world.lock();
    if let Some(what) = state.violation.take() {
        return Err(Violation { seed, at: world.now(), what });
    }
    let mut coverage = state.check.coverage;
    coverage.runs = 1;
    coverage.seconds = world.now() / 1000;
    coverage.rolled_back =
        state.api.all("streamjobs").filter(|(_, job)| job["status"]["rolledBack"].is_object()).count() as u64;
    Ok(coverage)
}

/// Waits until all is as it should be, and stays so without a stir.
async fn settle(world: &World) {
    let begin = world.now();
    loop {
        if world.lock().violation.is_some() {
            return;
        }
        let unrest = check::unrest(&world.lock().api);
        match unrest {
            Some(why) if world.now() > begin + PATIENCE => return world.violate(format!("no end state: {why}")),
            Some(_) => tokio::time::sleep(Duration::from_secs(5)).await,
            None if is_quiet(world).await => return,
            None => {}
        }
    }
}

/// Whether a world at rest stays so; a controller that goes on calling does not.
async fn is_quiet(world: &World) -> bool {
    let (calls, state) = (world.lock().check.coverage.calls, world.now());
    tokio::time::sleep(Duration::from_millis(REST)).await;
    let made = world.lock().check.coverage.calls - calls;
    let unrest = check::unrest(&world.lock().api);
    let is_restless = check::crashes_for_ever(&world.lock().api);
    if unrest.is_none() && made > CALLS_AT_REST && !is_restless {
        world.violate(format!("{made} calls within {REST} ms at rest, since {state}"));
    }
    unrest.is_none()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs seeds in as many threads as there are cores, until one fails in a way that counts.
fn run_all(first: u64, count: u64, planted: Planted, rule: &str) -> Result<Coverage, Violation> {
    let next = AtomicU64::new(first);
    let goes_on = number("SLUICE_SIM_ALL").is_some();
    let ended: Mutex<(Coverage, Option<Violation>)> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count || ended.lock().expect("no panic").1.is_some() {
                return;
            }
            let result = run(seed, planted, false);
            let mut ended = ended.lock().expect("no panic");
            match result {
                Ok(coverage) => ended.0.add(&coverage),
                Err(violation) if goes_on => println!("{violation}"),
                Err(violation) if !violation.what.contains(rule) => {}
                Err(violation) => drop(ended.1.get_or_insert(violation)),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    match ended.into_inner().expect("no panic") {
        (_, Some(violation)) => Err(violation),
        (coverage, None) => Ok(coverage),
    }
}

#[test]
fn seeds() {
    clock::with_clock("seeds", || {
        if let Some(seed) = number("SLUICE_SIM_SEED") {
            let coverage = run(seed, Planted::default(), true).unwrap_or_else(|violation| panic!("{violation}"));
            return println!("{coverage:?}");
        }
        let seeds = number("SLUICE_SIM_SEEDS").unwrap_or(SEEDS);
        let began = Instant::now();
        let first = number("SLUICE_SIM_FIRST").unwrap_or(0);
        let coverage = run_all(first, seeds, Planted::default(), "").unwrap_or_else(|violation| panic!("{violation}"));
        let reached = [coverage.moves, coverage.foreign_restores, coverage.namespaces_ended];
        let is_enough = reached.iter().all(|count| *count > 0);
        assert!(seeds < SEEDS || is_enough, "no move, foreign restore or end of a namespace: {coverage:?}");
        println!("{seeds} seeds in {} s: {coverage:?}", began.elapsed().as_secs());
    });
}

/// A planted bug is found by the seeds that CI runs anyway, as a break of this rule; says by which and how.
fn is_found(name: &str, planted: Planted, rule: &str) {
    clock::with_clock(name, || match run_all(0, SEEDS, planted, rule) {
        Err(violation) => {
            println!("{planted:?}: found by seed {} at {} ms: {}", violation.seed, violation.at, violation.what)
        }
        Ok(_) => panic!("{planted:?} planted, and {SEEDS} seeds did not find it"),
    });
}

#[test]
fn what_is_done_before_it_is_intended_is_found() {
    let planted = Planted { acts_before_intent: true, ..Planted::default() };
    is_found("what_is_done_before_it_is_intended_is_found", planted, "C2: ");
}

#[test]
fn a_status_that_is_written_over_another_is_found() {
    let planted = Planted { overwrites_status: true, ..Planted::default() };
    is_found("a_status_that_is_written_over_another_is_found", planted, "C2: ");
}

#[test]
fn a_job_that_nothing_holds_is_found() {
    let planted = Planted { no_finalizer: true, ..Planted::default() };
    is_found("a_job_that_nothing_holds_is_found", planted, "without its finalizer");
}

#[test]
fn a_delete_by_name_alone_is_found() {
    let planted = Planted { deletes_by_name: true, ..Planted::default() };
    is_found("a_delete_by_name_alone_is_found", planted, "C2: ");
}

#[test]
fn a_replica_that_goes_on_after_it_led_is_found() {
    let planted = Planted { no_leader_gate: true, ..Planted::default() };
    is_found("a_replica_that_goes_on_after_it_led_is_found", planted, " leads");
}
