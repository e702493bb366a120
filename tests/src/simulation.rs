//! The seeded simulation: the real JobMaster, task loop and operators in a world of one seed (design §11).
//!
//! Only clock, randomness, network, store, sources and sinks are replaced. A [`World`](world::World) holds JobManager
//! and TaskManager processes, a tiny controller, and an object store that is linearizable but delays, fails, and
//! fails after (or long before) a write takes effect. Processes die, pause, and go on as zombies.
//!
//! The map: [`scenario`]: what a seed decides. [`world`]: time, events, processes. [`store`]: the object store.
//! [`job_manager`], [`task_manager`]: processes around the real code. [`controller`]: generations, directives, pods.
//! [`people`]: savepoints, checkpoints, disposals on request.
//! [`program`]: a job that counts, and what its counts must be. [`check`]: what may never happen, checked as it
//! happens.
//!
//! The flow of a run ([`run`]): a scenario from the seed → a world → events until the job has ended → the verdict.
//! The same seed gives the same run, event by event.

pub mod check;
pub mod controller;
pub mod job_manager;
pub mod people;
pub mod program;
pub mod scenario;
pub mod store;
pub mod task_manager;
pub mod world;

use scenario::{Bug, Scenario};
use std::fmt;

/// What went wrong under a seed.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// Simulated time in milliseconds.
    pub at: u64,
    /// The rule and what broke it.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what } = self;
        write!(
            f,
            "seed {seed} at {at} ms: {what}\nreplay: SLUICE_SIM_SEED={seed} cargo test --profile sluice -p sluice-tests --test simulation -- --nocapture"
        )
    }
}

/// What a run went through, so that a set of seeds can show that it reaches what it should.
#[derive(Debug, Clone, Copy, Default)]
pub struct Coverage {
    /// Runs.
    pub runs: u64,
    /// Ledger entries that stand.
    pub entries: u64,
    /// Completed checkpoints, each compared with the input.
    pub checkpoints: u64,
    /// Those that held batches in flight.
    pub in_flight: u64,
    /// Deltas that completed checkpoints hold.
    pub deltas: u64,
    /// Savepoints that were taken, each compared with its checkpoint.
    pub savepoints: u64,
    /// Drains among them.
    pub drains: u64,
    /// Drains that were given up after their sources had been told to end.
    pub given_up_drains: u64,
    /// Requests for one that failed.
    pub failed_savepoints: u64,
    /// Savepoints that were disposed of.
    pub disposals: u64,
    /// Failed checkpoints.
    pub failed_checkpoints: u64,
    /// Attempts after the first of their generation.
    pub restarts: u64,
    /// Generations.
    pub generations: u64,
    /// Processes that ended as superseded.
    pub superseded: u64,
    /// Appends without a clear answer that stood nevertheless.
    pub unclear_appends: u64,
    /// Entries removed by trimming.
    pub trimmed: u64,
    /// Starts that came so late that their number had been trimmed (L3).
    pub late_starts: u64,
    /// Starts that found entries of an older revision beyond m, and went on behind them (N3).
    pub moved: u64,
    /// Starts that concluded an end that had reached its last checkpoint (L6).
    pub concluded: u64,
    /// Checkpoints behind an upgrade whose start is kept for a rollback (K7).
    pub pinned: u64,
    /// Starts of closers, sent to end the job in the place of its JobManager (L6).
    pub closed: u64,
    /// Jobs whose directory another one took over (G5).
    pub taken_over: u64,
    /// Restarts because a TaskManager was told to go.
    pub left: u64,
    /// Ends at which the store held what the ledger reaches, and nothing else (K6).
    pub swept: u64,
    /// Unfinished uploads that were given up.
    pub given_up_uploads: u64,
    /// Jobs that finished with their checkpoints in the JobManager's memory.
    pub in_memory: u64,
    /// Jobs that ended when that was lost.
    pub lost: u64,
    /// Simulated milliseconds.
    pub millis: u64,
}

impl Coverage {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.entries += other.entries;
        self.checkpoints += other.checkpoints;
        self.in_flight += other.in_flight;
        self.deltas += other.deltas;
        self.savepoints += other.savepoints;
        self.drains += other.drains;
        self.given_up_drains += other.given_up_drains;
        self.failed_savepoints += other.failed_savepoints;
        self.disposals += other.disposals;
        self.failed_checkpoints += other.failed_checkpoints;
        self.restarts += other.restarts;
        self.generations += other.generations;
        self.superseded += other.superseded;
        self.unclear_appends += other.unclear_appends;
        self.trimmed += other.trimmed;
        self.late_starts += other.late_starts;
        self.moved += other.moved;
        self.concluded += other.concluded;
        self.pinned += other.pinned;
        self.closed += other.closed;
        self.taken_over += other.taken_over;
        self.left += other.left;
        self.swept += other.swept;
        self.given_up_uploads += other.given_up_uploads;
        self.in_memory += other.in_memory;
        self.lost += other.lost;
        self.millis += other.millis;
    }
}

/// Runs one seed to its end.
///
/// # Errors
/// The first thing that may never happen, and did.
pub fn run(seed: u64, bug: Option<Bug>, trace: bool) -> Result<Coverage, Violation> {
    world::World::new(Scenario::new(seed, bug), trace).run()
}
