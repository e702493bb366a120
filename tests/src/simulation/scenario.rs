//! What a seed decides: the job, its faults, and how people treat it.

mod bug;

pub use bug::Bug;

use crate::simulation::people::Ask;
use crate::simulation::program::shape::{Layout, Shape};
use crate::simulation::program::windows::Windows;
use fastrand::Rng;
use sluice_protocol::TimeSpan;
use sluice_protocol::message::Alignment;

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
    /// How the job is spread, and how after an upgrade.
    pub layouts: [Layout; 2],
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
    /// Whether checkpoints lie in the JobManager's memory.
    pub in_memory: bool,
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
            layouts: parallelism.map(Layout::alike),
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
            in_memory: false,
        }
        .with_alignment()
        .with_shape()
        .with_people(horizon)
        .with_ends(horizon)
        .with_closers()
        .with_moves(horizon)
        .with_one_split()
        .with_windows()
        .with_layouts()
        .in_memory()
    }

    /// One of eight worlds reads one split, so that it can be foretold which of its rows are late.
    fn with_one_split(mut self) -> Self {
        if Rng::with_seed(self.seed ^ 0x17ae_0000).u32(..8) == 0 && !self.shape.has_relay() && !self.shape.control {
            self.shape.splits = [1, 0, 0];
            self.layouts.iter_mut().for_each(|layout| layout.subtasks[0] = 1);
        }
        self
    }

    /// One of three worlds has windows, but where rows may count twice, or windows fire before their time as a drain has it.
    fn with_windows(mut self) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0x3d0e_0000);
        let drains = matches!(self.upgrade, Some((_, Upgrade::Drain { .. })));
        let is_exact = self.alignment != Alignment::AtLeastOnce && !drains;
        self.shape.windows = (is_exact && rng.u32(..3) == 0).then(|| Windows::new(&mut rng));
        self
    }

    /// One of twelve worlds keeps state on disk, before or after an upgrade or throughout; half of those that begin anew have
    /// another number of key groups then, unless rows may be in flight, which are by the old ones.
    fn with_layouts(mut self) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0xd15c_0000);
        if rng.u32(..12) == 0 {
            let (before, after) = [(true, true), (true, false), (false, true)][rng.usize(..3)];
            (self.layouts[0].disk, self.layouts[1].disk) = (before, after);
        }
        let is_aligned = !matches!(self.alignment, Alignment::Unaligned { .. });
        let by_savepoint = matches!(self.upgrade, Some((_, Upgrade::Savepoint))) && !self.closes;
        if (is_aligned || by_savepoint) && rng.bool() {
            self.layouts[1].key_groups = [4, 7, 24, 64][rng.usize(..4)];
        }
        self
    }

    /// One of sixteen worlds keeps its checkpoints in the JobManager's memory: nothing fences it, and nobody starts it twice on
    /// purpose.
    fn in_memory(mut self) -> Self {
        if Rng::with_seed(self.seed ^ 0x3e30_0000).u32(..16) > 0 {
            return self;
        }
        self.in_memory = true;
        (self.upgrade, self.takeover, self.closes) = (None, None, false);
        (self.files, self.shape.archive) = (false, false);
        self.faults.retain(|(_, fault)| !matches!(fault, Fault::StartTwin { .. }));
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
            let spread =
                |layout: Layout| Layout { subtasks: Shape::parallelism(&mut rng, layout.subtasks[0]), ..layout };
            self.layouts = self.layouts.map(spread);
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
