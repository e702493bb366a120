//! What a seed decides: the job, its faults, and how people treat it.

use crate::simulation::people::Ask;
use crate::simulation::program::shape::{Parallelism, Shape};
use fastrand::Rng;
use sluice_protocol::TimeSpan;
use sluice_protocol::job_master::Planted;
use sluice_protocol::message::Alignment;

/// A bug planted on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// L3 and L4 broken: no supersession, first entries trimmed.
    Fence,
    /// L2 broken: an append without a clear answer counts as failed.
    UnclearAppend,
    /// L2 broken: 412 of the own put is taken for another's entry.
    OwnAppend,
    /// N3 broken: a directive is carried out again.
    Directive,
    /// Barriers are not aligned.
    Alignment,
    /// K6 broken: nobody looks for what is dead.
    Sweep,
    /// B2 broken: what a barrier overtook at the sender is not saved.
    SenderShare,
    /// B3 broken: restored batches that were not read yet are not saved again.
    RestoredShare,
    /// B3 broken: what the sender saved is restored before what the receiver saved.
    InFlightOrder,
    /// B3 broken: barriers overtake rows of broadcast edges.
    Broadcast,
    /// K4 broken: the clock decides that a savepoint has failed, not the ledger.
    Deadline,
    /// K5 broken: savepoints are taken beside unaligned checkpoints.
    Overlap,
    /// K6 broken: a subtask refers to a file of an attempt before, because its rows were as many.
    ForeignFile,
    /// K6 broken: with a checkpoint go all its files, whatever else refers to them.
    References,
    /// K4 broken: after a drain that was given up the tasks go on without their sources.
    Drain,
    /// N3 broken: entries of an older revision beyond m stop a start again and again.
    OlderRevision,
    /// L6, K4 broken: a closer does not finish a stop that had reached its checkpoint.
    Closer,
    /// K7 broken: what an upgrade went on from is displaced as any other checkpoint.
    Pin,
    /// K3 broken: the handles of a checkpoint that failed are not carried on.
    Handles,
    /// K1 broken: what a checkpoint stages is committed before its entry stands.
    EarlyCommit,
    /// G5 broken: another job's state is taken without an entry in its ledger.
    Takeover,
    /// W1 broken: the watermarks of splits are not restored.
    SplitTime,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Fence,
        Self::UnclearAppend,
        Self::OwnAppend,
        Self::Directive,
        Self::Alignment,
        Self::Sweep,
        Self::SenderShare,
        Self::RestoredShare,
        Self::InFlightOrder,
        Self::Broadcast,
        Self::Deadline,
        Self::Overlap,
        Self::ForeignFile,
        Self::References,
        Self::Drain,
        Self::OlderRevision,
        Self::Closer,
        Self::Pin,
        Self::Handles,
        Self::EarlyCommit,
        Self::Takeover,
        Self::SplitTime,
    ];

    /// The JobMaster's switches.
    #[must_use]
    pub fn planted(bug: Option<Self>) -> Planted {
        Planted {
            no_fence: bug == Some(Self::Fence),
            unclear_append_is_failure: bug == Some(Self::UnclearAppend),
            own_append_is_foreign: bug == Some(Self::OwnAppend),
            no_directive_check: bug == Some(Self::Directive),
            keeps_dead: bug == Some(Self::Sweep),
            deadline_decides: bug == Some(Self::Deadline),
            overlapping_savepoints: bug == Some(Self::Overlap),
            forgets_references: bug == Some(Self::References),
            forgets_drains: bug == Some(Self::Drain),
            insists_on_m: bug == Some(Self::OlderRevision),
            closes_unfinished: bug == Some(Self::Closer),
            takes_over_unfenced: bug == Some(Self::Takeover),
            forgets_handles: bug == Some(Self::Handles),
            commits_early: bug == Some(Self::EarlyCommit),
            ignores_pins: bug == Some(Self::Pin),
        }
    }
}

/// Something that happens to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The current JobManager dies.
    KillJobManager,
    /// It stops for some time, and the controller may not notice.
    PauseJobManager {
        /// For how long.
        millis: u64,
        /// Whether the controller takes it for dead.
        suspected: bool,
    },
    /// The controller takes a healthy JobManager for dead.
    SuspectJobManager,
    /// A TaskManager dies.
    KillTaskManager {
        /// Whether its connection stays open, as when a node is lost.
        silently: bool,
    },
    /// It stops for some time.
    PauseTaskManager {
        /// For how long.
        millis: u64,
    },
    /// A TaskManager is told to go, and goes.
    Leave {
        /// After how long.
        millis: u64,
    },
    /// A task fails.
    FailTask,
    /// A session's messages are held back.
    StallSession {
        /// For how long.
        millis: u64,
    },
    /// The store fails most operations.
    StoreOutage {
        /// For how long.
        millis: u64,
    },
    /// A process of an older, or of the current, generation starts once more.
    StartTwin {
        /// How many generations back.
        back: u64,
    },
}

/// What people do with the job in its middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgrade {
    /// Stop, then resume the latest checkpoint.
    ResumeLatest,
    /// Stop, then restore a retained checkpoint by its path.
    Path,
    /// Stop, then start empty.
    Empty,
    /// Stop with a savepoint, then start from that.
    Savepoint,
    /// Drain and stop with a savepoint, then start from that.
    Drain {
        /// How long the first try may take; each one after it may take as much more.
        millis: u64,
    },
    /// Start the next revision from the latest checkpoint without an end of the one before: nobody can reach that.
    LastState,
}

/// Options that change while the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionChange {
    /// As [`Scenario::interval_millis`].
    pub interval_millis: u64,
    /// As [`Scenario::timeout_millis`].
    pub timeout_millis: u64,
    /// As [`Scenario::retained`].
    pub retained: u32,
    /// As [`Scenario::tolerable`].
    pub tolerable: Option<u32>,
}

/// One world.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// A planted bug.
    pub bug: Option<Bug>,
    /// The vertices and edges of the job.
    pub shape: Shape,
    /// Rows per split.
    pub rows: u64,
    /// Distinct keys.
    pub keys: u64,
    /// Time between two rows of a split.
    pub gap_millis: u64,
    /// Parallelism of each vertex, and after an upgrade.
    pub parallelism: [Parallelism; 2],
    /// Slots per TaskManager.
    pub slots: u32,
    /// TaskManagers beyond those that are needed.
    pub spares: u32,
    /// Checkpoint interval.
    pub interval_millis: u64,
    /// Checkpoint timeout.
    pub timeout_millis: u64,
    /// Checkpoints under way at once.
    pub max_concurrent: u32,
    /// Retained checkpoints.
    pub retained: u32,
    /// Failed checkpoints that the job survives; `None`: any number.
    pub tolerable: Option<u32>,
    /// Whether state of any size becomes files.
    pub files: bool,
    /// Percent of store operations that fail in some way outside of outages.
    pub store_failures: u32,
    /// Whether the controller is patient with a JobManager that is stuck in its start.
    pub patient: bool,
    /// Percent of JobManagers that pause while they start, for up to so many milliseconds.
    pub slow_starts: (u32, u64),
    /// Old pods go on for up to so many milliseconds after their generation.
    pub old_pods_millis: u64,
    /// Faults by time.
    pub faults: Vec<(u64, Fault)>,
    /// A stop and what follows.
    pub upgrade: Option<(u64, Upgrade)>,
    /// What barriers do where rows are queued.
    pub alignment: Alignment,
    /// Of a hundred times that a sink is asked for room, how often it has none.
    pub stalls: u32,
    /// For how long it stays so behind the end of the input.
    pub stalls_on_millis: u64,
    /// When another job takes the directory over, as after the loss of a cluster, if one does.
    pub takeover: Option<u64>,
    /// Whether a job that is draining is told to stop as well.
    pub stops_beside: bool,
    /// What people ask for, by time.
    pub asks: Vec<(u64, Ask)>,
    /// When the job is cancelled, if it is.
    pub cancel: Option<u64>,
    /// Whether checkpoints are removed when the job is cancelled or ends.
    pub deletes: bool,
    /// Least time between two checkpoints.
    pub min_pause_millis: u64,
    /// Whether a job that is to end and has lost its JobManager is ended by a closer.
    pub closes: bool,
}

impl Scenario {
    /// The world of a seed.
    #[must_use]
    pub fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed_0000);
        let calm = rng.u32(..100) < 5;
        let splits = rng.u32(1..=4);
        let parallelism = [rng.u32(1..=3), rng.u32(1..=3)];
        // Some worlds live through enough checkpoints to be trimmed.
        let long = rng.u32(..100) < 6;
        let interval_millis = if long { 60 } else { rng.u64(300..1200) };
        let rows = if long { 700 } else { rng.u64(40..160) };
        let horizon = rows * 100;
        // And some have only faults after which nobody can write late.
        let tame = rng.u32(..100) < 12;
        let count = if calm { 0 } else { rng.usize(1..=7) };
        let mut one = || if tame { tame_fault(&mut rng) } else { fault(&mut rng) };
        let kinds: Vec<_> = (0..count).map(|_| one()).collect();
        let mut faults: Vec<_> = kinds.into_iter().map(|kind| (rng.u64(500..horizon), kind)).collect();
        faults.sort_by_key(|(at, _)| *at);
        // And some let the old generation go on for a long time while the next one is stuck in its start.
        let stuck = long && rng.u32(..3) == 0;
        if stuck {
            faults = vec![(rng.u64(2000..12_000), Fault::SuspectJobManager)];
        }
        let upgrade = (!tame && rng.u32(..100) < 30).then(|| {
            let kinds = [Upgrade::ResumeLatest, Upgrade::Path, Upgrade::Empty];
            (rng.u64(1500..horizon), kinds[rng.usize(..3)])
        });
        let slow_starts = match (calm || tame, stuck) {
            (_, true) => (100, 60_000),
            (true, false) => (0, 1),
            (false, false) => (15, 15_000),
        };
        Self {
            seed,
            bug,
            shape: Shape { splits: [splits, 0, 0], ..Shape::default() },
            rows,
            keys: rng.u64(2..60),
            gap_millis: 100,
            parallelism: parallelism.map(|common| [common; 8]),
            slots: rng.u32(1..=2),
            spares: rng.u32(..=1),
            interval_millis,
            timeout_millis: rng.u64(1500..4000),
            max_concurrent: if rng.u32(..100) < 25 { 2 } else { 1 },
            retained: rng.u32(1..=3),
            tolerable: if rng.bool() { None } else { Some(rng.u32(..4)) },
            files: rng.u32(..100) < 35,
            store_failures: if calm { 0 } else { [0, 1, 4, 10][rng.usize(..4)] },
            patient: stuck,
            slow_starts,
            old_pods_millis: if stuck { 90_000 } else { 12_000 },
            faults,
            upgrade,
            alignment: Alignment::Aligned,
            stalls: 0,
            stalls_on_millis: 0,
            takeover: None,
            stops_beside: false,
            asks: vec![],
            cancel: None,
            deletes: false,
            min_pause_millis: 0,
            closes: false,
        }
        .with_alignment()
        .with_shape()
        .with_people(horizon)
        .with_ends(horizon)
        .with_closers()
        .with_moves(horizon)
        .with_one_split()
    }

    /// One of eight worlds reads one split, so that it can be foretold which of its rows are late.
    fn with_one_split(mut self) -> Self {
        if Rng::with_seed(self.seed ^ 0x17ae_0000).u32(..8) == 0 && !self.shape.has_relay() && !self.shape.control {
            self.shape.splits = [1, 0, 0];
            self.parallelism.iter_mut().for_each(|all| all[0] = 1);
        }
        self
    }

    /// Two of five worlds are unaligned, most of them with sinks that are too slow, one of ten is at-least-once.
    fn with_alignment(mut self) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0xa119_0000);
        let after = TimeSpan(if rng.bool() { 0 } else { rng.u64(20..300) });
        match rng.u32(..10) {
            0..=3 => self.alignment = Alignment::Unaligned { after },
            4 => self.alignment = Alignment::AtLeastOnce,
            _ => return self,
        }
        if matches!(self.alignment, Alignment::Unaligned { .. }) {
            self.max_concurrent = 1;
            self.stalls = if rng.u32(..4) == 0 { 0 } else { rng.u32(80..=96) };
        }
        self
    }

    /// Seven of ten worlds have more than one source and one keyed vertex.
    fn with_shape(mut self) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0x54a9_0000);
        let splits = self.shape.splits[0];
        self.shape = Shape::new(&mut rng, splits, self.alignment == Alignment::AtLeastOnce);
        if self.shape != (Shape { splits: [splits, 0, 0], ..Shape::default() }) {
            self.parallelism = self.parallelism.map(|all| Shape::parallelism(&mut rng, all[0]));
        }
        self
    }

    /// Half of the worlds hold people who ask for something; a fifth deletes its checkpoints at the end.
    fn with_people(mut self, horizon: u64) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0x5a7e_0000);
        self.deletes = rng.u32(..5) == 0;
        self.min_pause_millis = if rng.u32(..4) == 0 { rng.u64(1..900) } else { 0 };
        if rng.bool() {
            return self;
        }
        let ask = |rng: &mut Rng| match rng.u32(..5) {
            0..=2 => Ask::Savepoint { millis: rng.u64(300..9000) },
            3 => Ask::Checkpoint,
            _ => Ask::Dispose,
        };
        self.asks = (0..rng.usize(1..5)).map(|_| (rng.u64(800..horizon), ask(&mut rng))).collect();
        if self.upgrade.is_some() && rng.u32(..3) > 0 {
            self.upgrade = self.upgrade.map(|(at, _)| (at, Upgrade::Savepoint));
        }
        if self.upgrade.is_none() && rng.u32(..5) == 0 {
            self.cancel = Some(rng.u64(1500..horizon));
        }
        self
    }
}

impl Scenario {
    /// Some of those that stop with a savepoint drain, some of which are cancelled meanwhile; some of the other upgrades
    /// wait for no end. Half of the slow sinks are slow also behind the end of the input, for longer than a checkpoint may
    /// take.
    fn with_ends(mut self, horizon: u64) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0xd7a1_0000);
        let drain = Upgrade::Drain { millis: rng.u64(100..5000) };
        match self.upgrade {
            Some((at, Upgrade::Savepoint)) if rng.u32(..2) == 0 => self.upgrade = Some((at, drain)),
            Some((at, Upgrade::ResumeLatest | Upgrade::Path | Upgrade::Empty)) if rng.u32(..3) == 0 => {
                self.upgrade = Some((at, Upgrade::LastState));
            }
            None if self.cancel.is_none() && rng.u32(..12) == 0 => self.upgrade = Some((rng.u64(800..horizon), drain)),
            _ => {}
        }
        if let Some((at, Upgrade::Drain { .. })) = self.upgrade
            && rng.u32(..4) == 0
        {
            self.cancel = Some(at + rng.u64(..3000));
        }
        if self.stalls > 0 && rng.bool() {
            self.stalls_on_millis = rng.u64(1000..8000);
        }
        self
    }

    /// Most jobs that are to end have their end written by a closer where their JobManager does not.
    fn with_closers(mut self) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0xc105_0000);
        let ends = self.cancel.is_some() || self.upgrade.is_some();
        self.closes = ends && rng.u32(..3) > 0;
        self
    }

    /// Some jobs without another end are taken over; some TaskManagers leave; some options change; some that drain are
    /// stopped meanwhile.
    fn with_moves(mut self, horizon: u64) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0x307e_0000);
        let has_end = self.cancel.is_some() || self.upgrade.is_some() || self.deletes;
        self.takeover = (!has_end && rng.u32(..5) == 0).then(|| rng.u64(1500..horizon));
        if rng.u32(..6) == 0 {
            self.faults.push((rng.u64(800..horizon), Fault::Leave { millis: rng.u64(200..5000) }));
        }
        if rng.u32(..6) == 0 {
            let change = OptionChange {
                interval_millis: rng.u64(200..2000),
                timeout_millis: rng.u64(1500..4000),
                retained: rng.u32(1..=3),
                tolerable: if rng.bool() { None } else { Some(rng.u32(1..4)) },
            };
            self.asks.push((rng.u64(800..horizon), Ask::Reconfigure(change)));
        }
        self.stops_beside = rng.bool();
        // Where what stands behind a restore is written again on purpose, readers see it twice.
        let goes_on = matches!(self.upgrade, None | Some((_, Upgrade::ResumeLatest | Upgrade::LastState)));
        let is_exact = self.alignment != Alignment::AtLeastOnce && goes_on;
        self.shape.archive = is_exact && rng.u32(..3) == 0;
        self
    }

    /// Whether nothing in this world can write after its successor: then also what the sink's readers see is exact. Not so
    /// where rows are taken back: which there were before a restart hangs on how rows were interleaved, and what has taken
    /// its place does not take them back (S7).
    #[must_use]
    pub fn has_no_zombies(&self) -> bool {
        let is_harmless = |fault: &Fault| {
            matches!(fault, Fault::FailTask | Fault::StoreOutage { .. } | Fault::KillTaskManager { silently: false })
        };
        let ends_once = self.upgrade.is_none() && self.takeover.is_none() && !self.shape.histogram;
        ends_once && self.slow_starts.0 == 0 && self.faults.iter().all(|(_, fault)| is_harmless(fault))
    }
}

fn fault(rng: &mut Rng) -> Fault {
    match rng.u32(..12) {
        0 | 1 => Fault::KillJobManager,
        2 | 3 => Fault::PauseJobManager { millis: rng.u64(500..15_000), suspected: rng.u32(..4) > 0 },
        4 => Fault::SuspectJobManager,
        5 => Fault::KillTaskManager { silently: rng.bool() },
        6 => Fault::PauseTaskManager { millis: rng.u64(300..8000) },
        7 => Fault::FailTask,
        8 => Fault::StallSession { millis: rng.u64(300..6000) },
        9 | 10 => Fault::StoreOutage { millis: rng.u64(500..9000) },
        _ => Fault::StartTwin { back: rng.u64(..2) },
    }
}

fn tame_fault(rng: &mut Rng) -> Fault {
    match rng.u32(..3) {
        0 => Fault::FailTask,
        1 => Fault::StoreOutage { millis: rng.u64(500..9000) },
        _ => Fault::KillTaskManager { silently: false },
    }
}
