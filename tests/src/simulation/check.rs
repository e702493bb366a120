//! What may never happen, checked at the moment it would (docs/protocol.md).
//!
//! The checks see what the store sees, in the order of its effects, and know nothing of what a JobMaster believes:
//! the chain of entries, what a restore must be, which objects must stay, and that every completed checkpoint is the
//! fold of the input up to its positions.

use crate::simulation::Coverage;
use crate::simulation::program::archive::Row;
use crate::simulation::program::cut::Cut;
use crate::simulation::program::{Counts, Events};
use crate::simulation::store::{ObjectStore, ROOT, relative};
use sluice_protocol::commit::CommitHandle;
use sluice_protocol::failure::Failure;
use sluice_protocol::job_master::StartFrom;
use sluice_protocol::ledger::{CheckpointKey, Ends, Entry, EntryKind, Fold, Pin, SnapshotReference, StartCause};
use sluice_protocol::metadata::Metadata;
use sluice_protocol::paths::JobPaths;
use sluice_protocol::store::UnfinishedUpload;
use sluice_protocol::{CheckpointId, Generation, JobId, ProcessId, Run, SubtaskId};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

mod files;
mod savepoints;

/// The reason of a failure to read state at a restore, which may not spend an attempt (F2).
pub const RESTORE_UNAVAILABLE: &str = "RestoreUnavailable";

/// What is known of a job that another one takes over.
struct Former {
    directory: String,
    /// What its restart would restore.
    restore: Option<String>,
    /// Files of what that is.
    files: BTreeSet<String>,
}

/// The verdict so far.
pub struct Check {
    job: JobId,
    paths: JobPaths,
    events: Events,
    /// The job that is taken over.
    former: Option<Former>,
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
    /// The moment at which each upload was begun.
    uploads: BTreeMap<UnfinishedUpload, u64>,
    /// The moments of the last answered listings of uploads: of the job's, and of its savepoints'.
    uploads_swept_at: (Option<u64>, Option<u64>),
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
    /// Where the last completed checkpoint stands in the input.
    last_positions: BTreeMap<u32, u64>,
    /// What the archive holds when all of it is committed.
    pub last_archived: BTreeSet<Row>,
    /// What readers of the sink see of it.
    pub last_view: Counts,
    /// What happened.
    pub coverage: Coverage,
}

impl Check {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(job: JobId, events: Events) -> Self {
        Self {
            paths: JobPaths::new(&job),
            job,
            events,
            former: None,
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
            uploads: BTreeMap::new(),
            uploads_swept_at: (None, None),
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
            last_positions: BTreeMap::new(),
            last_archived: BTreeSet::new(),
            last_view: Counts::new(),
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

    /// Whether this key is an entry of the job's ledger.
    #[must_use]
    pub fn owns_entry(&self, key: &str) -> bool {
        self.paths.parse_ledger_entry(key).is_some()
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
        if matches!(last.kind, EntryKind::MovedTo { .. }) {
            return Err(format!("G5: entry {number} ({}) behind the end that a takeover wrote", name(&entry.kind)));
        }
        // Any process of the job that takes over may go on where another one was lost.
        let is_repeated = is_takeover(&last.kind) && matches!(entry.kind, EntryKind::MovedTo { .. });
        let is_anothers = generation == last.generation && entry.process != last.process && !is_repeated;
        if generation < last.generation || is_anothers {
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
            EntryKind::Started { cause: StartCause::Takeover, .. } | EntryKind::MovedTo { .. } => last.attempt.0,
            EntryKind::Started { .. } => 0,
            EntryKind::Restarted { .. } => last.attempt.0.max(1) + 1,
            _ => last.attempt.0.max(1),
        };
        if entry.attempt.0 != attempt {
            return Err(format!("F1: entry {number} is of attempt {}, no `Restarted` tells of it", entry.attempt));
        }
        let (before, after) = (last.fold.committed_through, entry.fold.committed_through);
        if after < before || after > last.folded().last_checkpoint {
            return Err(format!(
                "S6: entry {number} says that checkpoint {after} is committed, the one before said {before}"
            ));
        }
        let (expected, found) = (comparable(last.folded()), comparable(entry.fold.clone()));
        if expected != found {
            return Err(format!("L1: the fold of entry {number} is {found:?}, all before it amounts to {expected:?}"));
        }
        Ok(())
    }

    fn check_kind(&mut self, entry: &Entry, store: &ObjectStore) -> Result<(), String> {
        match &entry.kind {
            // It changes nothing of what the job would restore.
            kind if is_takeover(kind) => Ok(()),
            EntryKind::MovedTo { .. } => {
                self.coverage.taken_over += 1;
                Ok(())
            }
            EntryKind::Started { cause, restored_from, .. } => {
                self.coverage.generations += 1;
                self.check_start(entry, *cause, restored_from.as_ref())
            }
            EntryKind::Restarted { cause, from } => {
                self.coverage.restarts += 1;
                self.coverage.left += u64::from(cause.reason == "TaskManagerLeft");
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
                if self.last_positions == self.events.end() {
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
            StartFrom::Path { from, .. } if !is_repeated && from.ends_with(self.former_directory()) => {
                self.former.as_ref().and_then(|former| former.restore.clone())
            }
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
        if cause.reason == "TaskManagerLeft" && after != before {
            return Err(format!("F1: a TaskManager that was told to go spent an attempt: {before} became {after}"));
        }
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
        let cut = self.read_checkpoint(entry.generation, id, store)?;
        let of = format!("checkpoint {id} of generation {}", entry.generation);
        cut.verify(&self.events, self.at_least_once).map_err(|what| format!("{of} {what}"))?;
        let positions = cut.positions.clone();
        if is_all && positions != self.events.end() {
            return Err(format!("checkpoint {id} ends the job at {positions:?}"));
        }
        self.coverage.checkpoints += 1;
        self.coverage.in_flight = self.in_flight.get();
        self.last_archived = if self.events.shape.archive { cut.archived() } else { BTreeSet::new() };
        self.last_view = cut.view(&self.events).clone();
        self.last_positions = positions;
        Ok(())
    }

    /// Whether the job has ended with all its input: so its ledger says, or it has none.
    #[must_use]
    pub fn is_read_to_its_end(&self, without_ledger: bool) -> bool {
        without_ledger || matches!(self.last.as_ref().map(|last| &last.kind), Some(EntryKind::Finished { .. }))
    }

    /// A checkpoint in the JobManager's memory is complete.
    pub fn note_in_memory(&mut self, cut: &Cut) {
        self.coverage.checkpoints += 1;
        self.last_view = cut.view(&self.events).clone();
        self.last_positions = cut.positions.clone();
    }

    /// A job without a ledger says that it has finished.
    ///
    /// # Errors
    /// When its last checkpoint holds less than all of its input.
    pub fn on_finished_in_memory(&mut self) -> Result<(), String> {
        self.coverage.in_memory += 1;
        if self.last_positions == self.events.end() {
            return Ok(());
        }
        Err(format!("the job finished at {:?}, without all its input", self.last_positions))
    }

    /// What a later start would commit of what the end has left (L6).
    ///
    /// # Errors
    /// When it would find less than the end says.
    pub fn left_at_end(&self, store: &ObjectStore) -> Result<Vec<CommitHandle>, String> {
        let fold = self.fold();
        let left: u64 = fold.unsettled.iter().map(|one| one.transactions).sum();
        if left == 0 {
            return Ok(Vec::new());
        }
        let latest = fold.latest().ok_or("L6: no checkpoint is left to hold what the end says is unsettled")?;
        let key = self.paths.metadata(latest.key.generation, latest.key.id);
        let bytes = store.get(&key).ok_or_else(|| format!("L6: {key} is gone, which holds what is unsettled"))?;
        let metadata = Metadata::from_bytes(bytes, &key).map_err(|error| error.to_string())?;
        let is_unsettled = |handle: &CommitHandle| handle.committable.checkpoint > fold.committed_through;
        let handles: Vec<_> = metadata.handles().filter(is_unsettled).collect();
        let found = handles.len() as u64;
        if found < left {
            return Err(format!("L6: {left} transactions are said to be unsettled, and {key} holds {found}"));
        }
        Ok(handles)
    }

    fn read_checkpoint(&self, generation: Generation, id: CheckpointId, store: &ObjectStore) -> Result<Cut, String> {
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

    /// The job that is taken over, behind an entry of its ledger, or another put.
    ///
    /// # Errors
    /// When it goes on although this job has begun with its state (G5).
    pub fn on_former(&mut self, former: &Self, key: &str) -> Result<(), String> {
        let goes_on = former.last.as_ref().filter(|last| matches!(last.kind, EntryKind::Checkpoint { .. }));
        if let Some(entry) = goes_on.filter(|_| former.owns_entry(key) && self.head() > 0) {
            return Err(format!(
                "G5: the job that was taken over appended entry {}, a checkpoint, after the other had started from {:?}",
                entry.number, self.restore
            ));
        }
        let files = former.restore.as_ref().and_then(|restore| former.files.get(restore)).cloned();
        self.former = Some(Former {
            directory: former.paths.directory().to_owned(),
            restore: former.restore.clone(),
            files: files.unwrap_or_default(),
        });
        Ok(())
    }

    fn former_directory(&self) -> &str {
        self.former.as_ref().map_or("no job", |former| &former.directory)
    }

    /// A listing took effect, and its caller will hear of it.
    pub fn on_list(&mut self, process: &ProcessId, prefix: &str) {
        if !self.has_ended(process) {
            return;
        }
        if prefix.trim_end_matches('/') == self.paths.directory() {
            self.swept_at = Some(self.effects);
        }
        if relative(prefix) == savepoints::directory(&self.job) {
            self.savepoints_swept_at = Some(self.effects);
        }
    }

    /// Whether the terminal entry stands, and this process appended it.
    #[must_use]
    pub fn has_ended(&self, process: &ProcessId) -> bool {
        self.last.as_ref().is_some_and(|last| last.process == *process && last.folded().state.is_terminal())
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
            let cut = self.read_checkpoint(one.key.generation, one.key.id, store)?;
            let of = one.key.id;
            cut.verify(&self.events, self.at_least_once)
                .map_err(|what| format!("at the end retained checkpoint {of} {what}"))?;
        }
        Ok(())
    }
}

/// What a snapshot in this directory holds.
fn read_snapshot(metadata: &Metadata, directory: &str, store: &ObjectStore) -> Result<Cut, String> {
    Cut::read(metadata, directory, &|path| store.get(path).map(<[u8]>::to_vec))
}

/// Whether a taker begins with it.
const fn is_takeover(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::Started { cause: StartCause::Takeover, .. })
}

/// A fold without the facts that its writer adds with each append.
fn comparable(fold: Fold) -> Fold {
    Fold {
        failures: Default::default(),
        committed_through: CheckpointId(0),
        trimmed_below: 0,
        first_entries: vec![],
        ..fold
    }
}

/// The name of an entry's kind.
#[must_use]
pub fn name(kind: &EntryKind) -> String {
    let text = format!("{kind:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}
