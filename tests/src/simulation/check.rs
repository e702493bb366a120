//! What may never happen, checked at the moment it would (docs/protocol.md).
//!
//! The checks see what the store sees, in the order of its effects, and know nothing of what a JobMaster believes:
//! the chain of entries, what a restore must be, which objects must stay, and that every completed checkpoint is the
//! fold of the input up to its positions.

use crate::simulation::Coverage;
use crate::simulation::program::{Counts, Events, read_counts, read_in_flight};
use crate::simulation::store::{ObjectStore, ROOT, relative};
use sluice_engine::state::merged::MergedState;
use sluice_protocol::failure::Failure;
use sluice_protocol::job_master::StartFrom;
use sluice_protocol::ledger::{CheckpointKey, Ends, Entry, EntryKind, Fold, Pin, SnapshotReference, StartCause};
use sluice_protocol::metadata::Metadata;
use sluice_protocol::paths::JobPaths;
use sluice_protocol::state::StateData;
use sluice_protocol::{CheckpointId, Generation, ProcessId, Run, SubtaskId};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

mod files;
mod savepoints;

/// The reason of a failure to read state at a restore, which may not spend an attempt (F2).
pub const RESTORE_UNAVAILABLE: &str = "RestoreUnavailable";

/// The verdict so far.
pub struct Check {
    paths: JobPaths,
    events: Events,
    last: Option<Entry>,
    /// What a restart must restore, by directory.
    restore: Option<String>,
    last_checkpoint: CheckpointId,
    first_entries: BTreeSet<u64>,
    /// Processes that appended below the trimmed bound: they must notice.
    litterers: BTreeSet<ProcessId>,
    /// Whose entry stood at each number, and of which revision that is.
    appended: BTreeMap<u64, (ProcessId, u64)>,
    /// Who has appended.
    writers: BTreeSet<(Generation, ProcessId)>,
    /// The moment of each put of an object that is no ledger entry, counted in effects.
    puts: BTreeMap<String, u64>,
    effects: u64,
    /// The moment of the last answered listing of the whole job after its terminal entry, by who appended that.
    swept_at: Option<u64>,
    /// The same of savepoints.
    savepoints_swept_at: Option<u64>,
    /// Barriers of savepoints, by generation.
    savepoint_barriers: BTreeSet<(u64, CheckpointId)>,
    /// The base that each barrier named, by generation.
    bases: BTreeMap<(u64, CheckpointId), Option<CheckpointId>>,
    /// Runs whose sources were told to end for a drain.
    draining: BTreeSet<Run>,
    /// The run whose drain was given up last.
    given_up: Option<Run>,
    /// Tasks that have said that all their input is worked on.
    finished: BTreeSet<(Run, SubtaskId)>,
    /// Processes that were sent to end the job.
    pub closers: BTreeSet<ProcessId>,
    /// Directives by id with their m, as the controller gave them last.
    pub directives: BTreeMap<String, (StartFrom, u64)>,
    /// Checkpoints that were read and held batches in flight.
    in_flight: Cell<u64>,
    /// Whether a drain may end the job for good.
    pub may_stop: bool,
    /// Whether rows may count twice.
    pub at_least_once: bool,
    /// What each completed checkpoint refers to, by directory.
    files: BTreeMap<String, BTreeSet<String>>,
    /// The directory of each completed checkpoint.
    completed: BTreeMap<CheckpointId, String>,
    /// Counts of the last completed checkpoint.
    pub last_counts: Counts,
    /// What happened.
    pub coverage: Coverage,
}

impl Check {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(paths: JobPaths, events: Events) -> Self {
        Self {
            paths,
            events,
            last: None,
            restore: None,
            last_checkpoint: CheckpointId(0),
            first_entries: BTreeSet::new(),
            litterers: BTreeSet::new(),
            appended: BTreeMap::new(),
            writers: BTreeSet::new(),
            puts: BTreeMap::new(),
            effects: 0,
            swept_at: None,
            savepoints_swept_at: None,
            savepoint_barriers: BTreeSet::new(),
            bases: BTreeMap::new(),
            draining: BTreeSet::new(),
            given_up: None,
            finished: BTreeSet::new(),
            closers: BTreeSet::new(),
            directives: BTreeMap::new(),
            in_flight: Cell::new(0),
            may_stop: false,
            at_least_once: false,
            files: BTreeMap::new(),
            completed: BTreeMap::new(),
            last_counts: Counts::new(),
            coverage: Coverage::default(),
        }
    }

    /// The job as its ledger tells it.
    #[must_use]
    pub fn fold(&self) -> Fold {
        self.last.as_ref().map(Entry::folded).unwrap_or_default()
    }

    /// The run that wrote the last entry: files of older runs may be gone.
    #[must_use]
    pub fn latest_run(&self) -> Run {
        self.last.as_ref().map(|last| Run { generation: last.generation, attempt: last.attempt }).unwrap_or_default()
    }

    /// Number of the last entry that stands.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.last.as_ref().map_or(0, |entry| entry.number)
    }

    /// A put of this key took effect.
    ///
    /// # Errors
    /// What it breaks.
    pub fn on_put(&mut self, key: &str, bytes: &[u8], store: &ObjectStore) -> Result<(), String> {
        let Some(number) = self.paths.parse_ledger_entry(key) else {
            self.effects += 1;
            self.puts.insert(relative(key).to_owned(), self.effects);
            return Ok(());
        };
        let entry = Entry::from_bytes(bytes, key).map_err(|error| error.to_string())?;
        if entry.number != number {
            return Err(format!("L1: entry {} is at {key}", entry.number));
        }
        if number <= self.head() {
            return self.on_litter(&entry);
        }
        self.check_follows(&entry)?;
        let fold = self.fold();
        self.check_savepoints(&entry, &fold, store)?;
        self.check_kind(&entry, store)?;
        self.coverage.entries += 1;
        if self.last.as_ref().is_none_or(|last| last.generation != entry.generation) {
            self.first_entries.insert(number);
        }
        self.appended.insert(number, (entry.process.clone(), entry.revision));
        self.writers.insert((entry.generation, entry.process.clone()));
        self.last = Some(entry);
        Ok(())
    }

    /// Below the bound everything is litter, but only two can come to write there (L3, L4): a late start, and a put
    /// that was under way while its number was decided by another put of the same process, and was trimmed since.
    fn on_litter(&mut self, entry: &Entry) -> Result<(), String> {
        let below = self.fold().trimmed_below;
        if entry.number < below
            && self.appended.get(&entry.number).is_some_and(|(process, _)| *process == entry.process)
        {
            return Ok(());
        }
        if entry.number >= below || !matches!(entry.kind, EntryKind::Started { .. }) {
            return Err(format!(
                "L4: generation {} appended entry {} ({}) behind the head {}, entries below {below} are litter",
                entry.generation,
                entry.number,
                name(&entry.kind),
                self.head()
            ));
        }
        self.coverage.late_starts += 1;
        self.litterers.insert(entry.process.clone());
        Ok(())
    }

    fn check_follows(&self, entry: &Entry) -> Result<(), String> {
        let (number, generation) = (entry.number, entry.generation);
        if number != self.head() + 1 {
            return Err(format!("L1: entry {number} leaves a gap after {}", self.head()));
        }
        if self.litterers.contains(&entry.process) {
            return Err(format!(
                "L3: a process of generation {generation} that was superseded appended entry {number}"
            ));
        }
        let Some(last) = &self.last else { return Ok(()) };
        if generation < last.generation || (generation == last.generation && entry.process != last.process) {
            return Err(format!(
                "L3: generation {generation} appended entry {number} ({}) after generation {} had started",
                name(&entry.kind),
                last.generation
            ));
        }
        let is_first = generation != last.generation;
        if is_first != matches!(entry.kind, EntryKind::Started { .. }) {
            return Err(format!("L3: entry {number} of generation {generation} is {}", name(&entry.kind)));
        }
        let attempt = match entry.kind {
            EntryKind::Started { .. } => 0,
            EntryKind::Restarted { .. } => last.attempt.0.max(1) + 1,
            _ => last.attempt.0.max(1),
        };
        if entry.attempt.0 != attempt {
            return Err(format!("F1: entry {number} is of attempt {}, no `Restarted` tells of it", entry.attempt));
        }
        let (expected, found) = (comparable(last.folded()), comparable(entry.fold.clone()));
        if expected != found {
            return Err(format!("L1: the fold of entry {number} is {found:?}, all before it amounts to {expected:?}"));
        }
        Ok(())
    }

    fn check_kind(&mut self, entry: &Entry, store: &ObjectStore) -> Result<(), String> {
        match &entry.kind {
            EntryKind::Started { cause, restored_from, .. } => {
                self.coverage.generations += 1;
                self.check_start(entry, *cause, restored_from.as_ref())
            }
            EntryKind::Restarted { cause, from } => {
                self.coverage.restarts += 1;
                self.check_spent(entry, cause)?;
                let found = from.as_ref().map(|from| from.directory.clone());
                self.check_restore(entry, found, self.restore.clone())
            }
            EntryKind::Checkpoint { checkpoint, ends, savepoint, drops, .. } => {
                let pins = self.fold().pins;
                let directory = |key: &CheckpointKey| self.paths.checkpoint_directory(key.generation, key.id);
                if let Some(pin) = pins.iter().find(|pin| drops.iter().any(|key| directory(key) == pin.snapshot)) {
                    let (number, Pin { snapshot, holder }) = (entry.number, pin);
                    return Err(format!("K7: entry {number} drops {snapshot}, which {holder} may go back to"));
                }
                self.coverage.pinned += u64::from(!pins.is_empty());
                let directory = self.paths.checkpoint_directory(checkpoint.key.generation, checkpoint.key.id);
                let is_all = *ends == Ends::Finish && savepoint.is_none();
                self.check_checkpoint(entry, checkpoint.key.id, is_all, store)?;
                self.restore = Some(directory);
                Ok(())
            }
            EntryKind::CheckpointFailed { id, .. } => {
                self.coverage.failed_checkpoints += 1;
                if *id == self.last_checkpoint {
                    return Err(format!("K1: checkpoint {id} failed after it was complete"));
                }
                Ok(())
            }
            EntryKind::Finished { .. } => {
                let expected = self.events.counts(&self.events.end());
                if self.fits(&self.last_counts, &expected) {
                    Ok(())
                } else {
                    Err("the job finished without all its input".to_owned())
                }
            }
            _ => Ok(()),
        }
    }

    fn check_start(
        &mut self,
        entry: &Entry,
        cause: StartCause,
        restored_from: Option<&SnapshotReference>,
    ) -> Result<(), String> {
        let is_repeated = self.last.as_ref().is_some_and(|last| last.folded().directive == entry.directive);
        let (start, seen) = match self.directives.get(&entry.directive) {
            Some(directive) if cause == StartCause::Start => directive.clone(),
            _ => (StartFrom::Continue, 0),
        };
        let has_moved = start != StartFrom::Continue && !is_repeated && entry.number > seen + 1;
        self.coverage.moved += u64::from(has_moved);
        let is_reached = self.fold().ending != Ends::None;
        self.coverage.concluded += u64::from(cause == StartCause::Close && is_reached);
        self.coverage.closed += u64::from(cause == StartCause::Close && self.closers.contains(&entry.process));
        let found = restored_from.map(|from| from.directory.clone());
        let expected = match start {
            StartFrom::Path { from, .. } if !is_repeated => {
                from.strip_prefix(&format!("{ROOT}/")).map(ToOwned::to_owned)
            }
            StartFrom::Empty if !is_repeated => None,
            _ => self.restore.clone(),
        };
        self.check_restore(entry, found.clone(), expected)?;
        self.restore = found;
        Ok(())
    }

    fn check_restore(&self, entry: &Entry, found: Option<String>, expected: Option<String>) -> Result<(), String> {
        if found == expected {
            return Ok(());
        }
        Err(format!(
            "N3/K1: entry {} ({}) of generation {} restores {found:?}, the latest is {expected:?}",
            entry.number,
            name(&entry.kind),
            entry.generation
        ))
    }

    fn check_spent(&self, entry: &Entry, cause: &Failure) -> Result<(), String> {
        let before = self.last.as_ref().map(|last| last.fold.failures.total()).unwrap_or_default();
        let after = entry.fold.failures.total();
        if cause.reason == RESTORE_UNAVAILABLE && after != before {
            return Err(format!("F2: a store out of reach at a restore spent an attempt: {before} became {after}"));
        }
        Ok(())
    }

    /// A completed checkpoint: its id is new, it is there, and it is a cut of the input.
    fn check_checkpoint(
        &mut self,
        entry: &Entry,
        id: CheckpointId,
        is_all: bool,
        store: &ObjectStore,
    ) -> Result<(), String> {
        if id <= self.last_checkpoint {
            return Err(format!("K2: checkpoint {id} after {}", self.last_checkpoint));
        }
        self.last_checkpoint = id;
        self.note_files(entry, id, store)?;
        let (positions, counts) = self.read_checkpoint(entry.generation, id, store)?;
        let expected = self.events.counts(&positions);
        if !self.fits(&counts, &expected) {
            return Err(format!(
                "checkpoint {id} of generation {} is no cut: at {positions:?} it holds {counts:?}, the input has {expected:?}",
                entry.generation
            ));
        }
        if is_all && positions != self.events.end() {
            return Err(format!("checkpoint {id} ends the job at {positions:?}"));
        }
        self.coverage.checkpoints += 1;
        self.coverage.in_flight = self.in_flight.get();
        self.last_counts = counts;
        Ok(())
    }

    fn read_checkpoint(
        &self,
        generation: Generation,
        id: CheckpointId,
        store: &ObjectStore,
    ) -> Result<(BTreeMap<u32, u64>, Counts), String> {
        let directory = self.paths.checkpoint_directory(generation, id);
        let key = self.paths.metadata(generation, id);
        let bytes = store.get(&key).ok_or_else(|| format!("K2: {key} is missing when its entry stands"))?;
        let metadata = Metadata::from_bytes(bytes, &key).map_err(|error| error.to_string())?;
        if (metadata.checkpoint, metadata.run.generation) != (id, generation) {
            return Err(format!("K2: {key} is of checkpoint {} of run {}", metadata.checkpoint, metadata.run));
        }
        self.in_flight.set(self.in_flight.get() + u64::from(!metadata.in_flight.is_empty()));
        read_snapshot(&metadata, &directory, store)
    }

    /// A listing took effect, and its caller will hear of it.
    pub fn on_list(&mut self, process: &ProcessId, prefix: &str) {
        if !self.has_ended(process) {
            return;
        }
        if prefix.trim_end_matches('/') == self.paths.directory() {
            self.swept_at = Some(self.effects);
        }
        if relative(prefix) == savepoints::directory() {
            self.savepoints_swept_at = Some(self.effects);
        }
    }

    /// Whether the terminal entry stands, and this process appended it.
    #[must_use]
    pub fn has_ended(&self, process: &ProcessId) -> bool {
        self.last.as_ref().is_some_and(|last| last.process == *process && last.folded().state.is_terminal())
    }

    /// Whether counts are those of the input; at least once, they may be higher.
    fn fits(&self, counts: &Counts, expected: &Counts) -> bool {
        if !self.at_least_once {
            return counts == expected;
        }
        expected
            .iter()
            .all(|(key, (count, sum))| counts.get(key).is_some_and(|found| found.0 >= *count && found.1 >= *sum))
    }

    /// A start says that it found the ledger beyond m, at this entry.
    ///
    /// # Errors
    /// When that is an older revision's: whoever appends it may go on for ever, and no start would (N3).
    pub fn on_moved(&self, number: u64, revision: u64) -> Result<(), String> {
        match self.appended.get(&number) {
            Some((process, older)) if *older < revision => Err(format!(
                "N3: entry {number} of {process:?}, of revision {older}, stops a start of revision {revision}"
            )),
            _ => Ok(()),
        }
    }

    /// A task has worked on all its input.
    pub fn on_task_finished(&mut self, run: Run, subtask: SubtaskId) {
        self.finished.insert((run, subtask));
    }

    /// A process says that it was superseded: somebody must have done it (L2, L3).
    ///
    /// # Errors
    /// When nobody has.
    pub fn on_superseded(&self, generation: u64, process: &ProcessId) -> Result<(), String> {
        let by_another = |(writer, other): &(Generation, ProcessId)| writer.0 >= generation && other != process;
        if self.writers.iter().any(by_another) || self.litterers.contains(process) {
            return Ok(());
        }
        Err(format!("L2: generation {generation} says that it was superseded, but nobody has appended after it"))
    }

    /// The job says that it has finished: the last checkpoint holds everything, retained ones can be read.
    ///
    /// # Errors
    /// What is missing.
    pub fn on_finished(&self, store: &ObjectStore) -> Result<(), String> {
        let Some(last) = self.last.as_ref() else { return Err("finished without a ledger".to_owned()) };
        let is_end = match last.kind {
            EntryKind::Finished { .. } | EntryKind::Cancelled { .. } => true,
            EntryKind::Stopped => self.may_stop,
            _ => false,
        };
        if !is_end {
            return Err(format!("finished, but the last entry is {}", name(&last.kind)));
        }
        for one in &self.fold().retained {
            let (positions, counts) = self.read_checkpoint(one.key.generation, one.key.id, store)?;
            if !self.fits(&counts, &self.events.counts(&positions)) {
                return Err(format!("retained checkpoint {} is no cut at the end", one.key.id));
            }
        }
        Ok(())
    }
}

/// Positions and counts of a snapshot in this directory.
fn read_snapshot(
    metadata: &Metadata,
    directory: &str,
    store: &ObjectStore,
) -> Result<(BTreeMap<u32, u64>, Counts), String> {
    let id = metadata.checkpoint;
    let (mut positions, mut counts) = (BTreeMap::new(), Counts::new());
    for operator in &metadata.operators {
        for split in &operator.splits {
            let number = split.split.parse().map_err(|_| format!("split {} is none", split.split))?;
            let position = split.state["position"].as_u64().ok_or("a split without a position")?;
            if positions.insert(number, position).is_some() {
                return Err(format!("checkpoint {id} holds split {number} twice"));
            }
        }
        let mut merged = MergedState::default();
        for handle in operator.keyed.iter().rev() {
            match handle.data.resolve(directory) {
                StateData::Inline { bytes } => read_counts(&mut merged, handle.kind, &bytes, &mut counts)?,
                StateData::File { path, .. } => {
                    let bytes = store.get(&path).ok_or_else(|| format!("K2: {path} of checkpoint {id} is missing"))?;
                    read_counts(&mut merged, handle.kind, bytes, &mut counts)?;
                }
            }
        }
    }
    for handle in &metadata.in_flight {
        read_in_flight(handle, &mut counts)?;
    }
    Ok((positions, counts))
}

/// A fold without the facts that its writer adds with each append.
fn comparable(fold: Fold) -> Fold {
    Fold { failures: Default::default(), trimmed_below: 0, first_entries: vec![], ..fold }
}

/// The name of an entry's kind.
#[must_use]
pub fn name(kind: &EntryKind) -> String {
    let text = format!("{kind:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}
