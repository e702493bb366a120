//! A JobManager process: the real JobMaster, driven by events of the world.

use sluice_protocol::job_master::{Action, Event, JobMaster, JobMasterConfig};
use sluice_protocol::status::JobStatus;
use sluice_protocol::{CheckpointId, Timestamp};
use std::collections::BTreeMap;

/// One process.
pub struct JobManager {
    /// The decisions.
    master: JobMaster,
    /// Of which job it is: a later one takes the directory of an earlier one over.
    pub epoch: usize,
    /// Its generation.
    pub generation: u64,
    /// The revision of the spec that it runs.
    pub revision: u64,
    /// Whether it lives.
    pub alive: bool,
    /// The wakeup that is scheduled.
    pub wakes_at: Option<u64>,
    /// Where checkpoints lie in its memory: the latest complete one, and where that stands in the input.
    pub completed: Option<(CheckpointId, BTreeMap<u32, u64>)>,
}

impl JobManager {
    /// A new one.
    #[must_use]
    pub fn new(config: JobMasterConfig, epoch: usize, seed: u64) -> Self {
        let (generation, revision) = (config.generation.0, config.revision);
        let mut rng = fastrand::Rng::with_seed(seed);
        let master = JobMaster::new(config, Box::new(move || rng.u64(..)));
        Self { master, epoch, generation, revision, alive: true, wakes_at: None, completed: None }
    }

    /// Feeds an event.
    pub fn handle(&mut self, now: u64, event: Event) -> Vec<Action> {
        self.master.handle(Timestamp(now), event)
    }

    /// When it wants to be woken.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<u64> {
        self.master.next_wakeup().map(|at| at.0)
    }

    /// What it says of itself.
    #[must_use]
    pub fn status(&self) -> &JobStatus {
        self.master.status()
    }
}
