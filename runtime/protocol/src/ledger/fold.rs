//! What all entries so far amount to: carried by the next entry, so that the last one alone tells the job (L1).
//!
//! [`Fold::with`] is the only place that gives an entry its meaning. Lists that grow with the job's life are bounded.

use crate::commit::UnsettledOutput;
use crate::failure::Failure;
use crate::history::{CheckpointRecord, push_record};
use crate::ids::{CheckpointId, Generation, OperatorUid};
use crate::ledger::entry::{
    CheckpointKey, Ends, Entry, EntryKind, SavepointKind, SnapshotReference, StartCause, TakenSavepoint,
};
use crate::restart::FailureCounts;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The most checkpoints that a job may retain. Each takes up to 165 bytes of the fold, so that beside them
/// [`FOLD_LIMIT`](super::entry::FOLD_LIMIT) leaves 53 KB for everything else: 50 requests with their results, 200
/// first entries, the failures of [`FailureCounts`], and URIs of pins, savepoints and their places.
pub const MAX_RETAINED: u32 = 64;

/// Requests whose results are kept (L1).
const REQUESTS_LIMIT: usize = 50;

/// Bytes of a failure's message that the fold keeps: of the job's end, and of each request's. JSON may double them.
const END_MESSAGE_LIMIT: usize = 2000;
const REQUEST_MESSAGE_LIMIT: usize = 135;

/// Live savepoints that are remembered, and bytes of their URIs; older ones stay in the store without being known.
pub(super) const SAVEPOINTS_LIMIT: usize = 32;
const SAVEPOINTS_BYTES: usize = 3000;

/// Places of savepoints that are remembered, and bytes of their URIs.
pub(super) const SAVEPOINT_ROOTS_LIMIT: usize = 16;
const SAVEPOINT_ROOTS_BYTES: usize = 1000;

/// Pins that upgrades may hold at once: what the first of them restored, which is where a rollback ends, and the last.
const UPGRADE_PINS: usize = 3;

/// The job as its ledger tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Fold {
    /// The job's state.
    pub state: LedgerState,
    /// Id of the directive that the last generation was started with (N3).
    pub directive: String,
    /// The last checkpoint id that an entry names, complete or failed (K2).
    pub last_checkpoint: CheckpointId,
    /// Completed checkpoints that are kept, oldest first.
    pub retained: Vec<RetainedCheckpoint>,
    /// What a restart restores.
    pub restore_point: RestorePoint,
    /// The last snapshot that the job was started from and that is none of its own checkpoints (K7).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<ForeignSnapshot>,
    /// Set between a `Checkpoint` that ends the job and the terminal entry.
    pub ending: Ends,
    /// The checkpoint that the job ends with was a drain's: `Stopped` follows, not `Finished` (K4).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// The root cause, once `Failed`.
    pub failure: Option<Failure>,
    /// Revision of the last start that carried a directive out.
    #[serde(skip_serializing_if = "is_zero")]
    pub revision: u64,
    /// Snapshots that must not be deleted.
    pub pins: Vec<Pin>,
    /// Savepoints that exist, oldest first.
    pub savepoints: Vec<LiveSavepoint>,
    /// The newest savepoint that was forgotten: what is older and not listed may exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten_savepoints: Option<CheckpointKey>,
    /// URIs below which savepoints were asked for, the last one last: what was begun there and not completed is looked for
    /// there (K6).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub savepoint_roots: Vec<String>,
    /// The last requests with their results, oldest first.
    pub requests: Vec<Request>,
    /// How the last checkpoints went, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<CheckpointRecord>,
    /// Failed attempts (F1).
    pub failures: FailureCounts,
    /// All sinks have confirmed the commits of this checkpoint (S6).
    pub committed_through: CheckpointId,
    /// Output that the end left uncommitted (L6); nothing once somebody has the ledger again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsettled: Vec<UnsettledOutput>,
    /// Why the end may have left transactions open (L6); the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_open: Option<String>,
    /// The sinks of the last run (S3).
    pub sinks: Vec<SinkSlots>,
    /// Entries below this number are litter (L4).
    pub trimmed_below: u64,
    /// First entries of generations from `trimmed_below` on; older ones stay in the store as well (L4).
    pub first_entries: Vec<u64>,
    /// The last generation that appended.
    pub generation: Generation,
    /// Endpoint of the store that was last probed (L7).
    pub probed: Option<String>,
}

/// Whether a directory, relative to the storage root or a URI, is the one with this URI.
fn is_same_place(directory: &str, uri: &str) -> bool {
    uri.strip_suffix(directory).is_some_and(|root| root.is_empty() || root.ends_with('/'))
}

/// A job's state as far as its ledger knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum LedgerState {
    /// No entry yet.
    #[default]
    Empty,
    /// A generation runs it.
    Running,
    /// All input was read.
    Finished,
    /// Stopped on request.
    Stopped,
    /// Cancelled on request.
    Cancelled,
    /// Ended by a failure.
    Failed,
    /// A candidate takes over (G2).
    HandedOver,
    /// It goes on in another ledger.
    MovedTo,
}

impl LedgerState {
    /// Whether the last entry is a terminal one.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Stopped | Self::Cancelled | Self::Failed | Self::MovedTo)
    }
}

/// What a restart restores: until a start's first own checkpoint the same as that start did (K7).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RestorePoint {
    /// The latest retained checkpoint.
    #[default]
    Latest,
    /// Nothing.
    Empty,
    /// This snapshot.
    Snapshot(SnapshotReference),
}

/// A snapshot that the job was started from and does not own: whoever owns it may remove it once nothing here refers to
/// it (K7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForeignSnapshot {
    /// Its directory: relative to the storage root, or an absolute URI.
    pub directory: String,
    /// Since when the job has no more need of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
    /// The job's own checkpoint with which that came; absent when a start from something else did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_by: Option<CheckpointId>,
}

/// A completed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetainedCheckpoint {
    /// Which.
    #[serde(flatten)]
    pub key: CheckpointKey,
    /// When it was triggered.
    pub triggered_at: Timestamp,
    /// When its entry was appended.
    pub completed_at: Timestamp,
    /// Bytes of state.
    pub bytes: u64,
}

/// A snapshot that must not be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// URI of its directory.
    pub snapshot: String,
    /// On whose behalf.
    pub holder: String,
}

/// A savepoint request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Of the request.
    pub id: String,
    /// What for.
    pub kind: SavepointKind,
    /// When it is given up.
    pub deadline: Timestamp,
    /// URI below which its directory will be; while it is not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// URI of the savepoint that stands, while its answer does not (K4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<String>,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RequestResult>,
}

/// A savepoint that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveSavepoint {
    /// The checkpoint it was taken with.
    #[serde(flatten)]
    pub key: CheckpointKey,
    /// URI of its directory.
    pub path: String,
    /// When it was triggered.
    #[serde(default)]
    pub triggered_at: Timestamp,
    /// When its entry was appended.
    #[serde(default)]
    pub completed_at: Timestamp,
    /// Bytes of state.
    #[serde(default)]
    pub bytes: u64,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RequestResult {
    /// The savepoint's directory.
    Path(String),
    /// Why there is none.
    Failed(Failure),
}

/// A sink as far as aborting its old transactions needs to know it (S3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SinkSlots {
    /// Which.
    pub uid: OperatorUid,
    /// Its subtasks.
    pub parallelism: u32,
    /// Transactional ids per subtask.
    pub slots: u32,
}

impl Fold {
    /// Whether a savepoint of which `is_whole` is there may be one that was completed and not disposed of: it is known, or
    /// was forgotten and has what is written last.
    #[must_use]
    pub fn keeps_savepoint(&self, savepoint: CheckpointKey, is_whole: bool) -> bool {
        let is_known = self.savepoints.iter().any(|known| known.key == savepoint);
        let is_forgotten = self.forgotten_savepoints.is_some_and(|forgotten| savepoint <= forgotten);
        is_known || (is_forgotten && is_whole)
    }

    /// Directories of the snapshots that the job was started from, or will be: also a person's own copy of one that the
    /// ledger does not know, or knows no more, which is not the job's to remove.
    pub fn started_from(&self) -> impl Iterator<Item = &str> {
        let restored = match &self.restore_point {
            RestorePoint::Snapshot(reference) => Some(reference.directory.as_str()),
            RestorePoint::Latest | RestorePoint::Empty => None,
        };
        let foreign = self.foreign.iter().map(|foreign| foreign.directory.as_str());
        self.pins.iter().map(|pin| pin.snapshot.as_str()).chain(restored).chain(foreign)
    }

    /// The checkpoint that a restart restores.
    #[must_use]
    pub fn latest(&self) -> Option<&RetainedCheckpoint> {
        self.retained.last()
    }

    /// The fold with one more entry.
    #[must_use]
    pub fn with(mut self, entry: &Entry) -> Self {
        if entry.generation != self.generation {
            self.generation = entry.generation;
            self.first_entries.push(entry.number);
        }
        self.apply(entry);
        self
    }

    fn apply(&mut self, entry: &Entry) {
        match &entry.kind {
            EntryKind::Started { cause, restored_from, probed, .. } => {
                if probed.is_some() {
                    self.probed.clone_from(probed);
                }
                if *cause != StartCause::Dispose {
                    self.unsettled.clear();
                    self.left_open = None;
                }
                match cause {
                    StartCause::Start => self.start(entry, restored_from.as_ref()),
                    // Who only ends the job, or takes it elsewhere, carries no directive out, and changes nothing of what a
                    // restart restores.
                    StartCause::Close | StartCause::Takeover => {
                        self.spare_older_savepoints(entry, false);
                        self.state = LedgerState::Running;
                    }
                    // The end stays what it was.
                    StartCause::Dispose => {}
                }
            }
            EntryKind::Restarted { .. } => self.state = LedgerState::Running,
            EntryKind::Checkpoint { checkpoint, savepoint, ends, drops, record } => {
                self.record(record.as_deref());
                self.last_checkpoint = self.last_checkpoint.max(checkpoint.key.id);
                self.retained.retain(|kept| !drops.contains(&kept.key));
                self.retained.push(checkpoint.clone());
                self.restore_point = RestorePoint::Latest;
                self.release_foreign(entry.time, Some(checkpoint.key.id));
                self.ending = *ends;
                if let Some(savepoint) = savepoint {
                    self.take_savepoint(checkpoint, savepoint);
                }
            }
            EntryKind::CheckpointFailed { id, record, .. } => {
                self.last_checkpoint = self.last_checkpoint.max(*id);
                self.record(record.as_deref());
            }
            EntryKind::SavepointRequested { id, kind, directory, deadline } => {
                self.remember_root(directory);
                let (kind, deadline, directory) = (*kind, *deadline, Some(directory.clone()));
                self.request(Request { id: id.clone(), kind, deadline, directory, taken: None, result: None });
            }
            EntryKind::Savepoint { id, path } => self.answer(id, RequestResult::Path(path.clone())),
            EntryKind::SavepointFailed { id, failure } => {
                self.answer(id, RequestResult::Failed(shortened(failure, REQUEST_MESSAGE_LIMIT)));
            }
            EntryKind::Disposed { path } => {
                self.savepoints.retain(|kept| kept.path != *path);
                // What is left of it is the job's to remove, also if it was once restored.
                self.foreign.take_if(|foreign| is_same_place(&foreign.directory, path));
            }
            EntryKind::Pinned { snapshot, holder } => {
                self.pins.push(Pin { snapshot: snapshot.clone(), holder: holder.clone() });
            }
            EntryKind::Released { snapshot, holder } => {
                self.pins.retain(|pin| pin.snapshot != *snapshot || pin.holder != *holder);
            }
            EntryKind::Stopped => self.end(LedgerState::Stopped, &[]),
            EntryKind::Finished { drops } => self.end(LedgerState::Finished, drops),
            EntryKind::Cancelled { drops } => self.end(LedgerState::Cancelled, drops),
            EntryKind::Failed { failure } => {
                self.end(LedgerState::Failed, &[]);
                self.failure = Some(shortened(failure, END_MESSAGE_LIMIT));
            }
            EntryKind::HandedOver { .. } => self.state = LedgerState::HandedOver,
            EntryKind::MovedTo { .. } => self.end(LedgerState::MovedTo, &[]),
        }
        if !entry.unsettled.is_empty() {
            self.unsettled.clone_from(&entry.unsettled);
        }
        if entry.left_open.is_some() {
            self.left_open.clone_from(&entry.left_open);
        }
    }

    /// Sinks whose uncommitted output a start gives up, until its first own checkpoint (S5).
    #[must_use]
    pub fn abandoned_sinks(&self) -> &[OperatorUid] {
        match &self.restore_point {
            RestorePoint::Snapshot(reference) => &reference.abandon_sinks,
            _ => &[],
        }
    }

    fn start(&mut self, entry: &Entry, restored_from: Option<&SnapshotReference>) {
        self.spare_older_savepoints(entry, restored_from.is_some_and(|from| from.is_foreign));
        self.state = LedgerState::Running;
        self.ending = Ends::None;
        self.drained = false;
        if self.directive != entry.directive {
            self.give_ends_up();
        }
        self.directive.clone_from(&entry.directive);
        self.pin_upgrade(entry.revision, restored_from);
        self.release_foreign(entry.time, None);
        if let Some(foreign) = restored_from.filter(|from| from.is_foreign) {
            let directory = foreign.directory.clone();
            self.foreign = Some(ForeignSnapshot { directory, released_at: None, released_by: None });
        }
        self.restore_point = restored_from.map_or(RestorePoint::Empty, |from| RestorePoint::Snapshot(from.clone()));
        self.failure = None;
    }

    /// Nothing refers to the foreign snapshot any more: a checkpoint of an attempt refers only to objects of its base and
    /// of that attempt (K6), and a restart goes on from that.
    fn release_foreign(&mut self, at: Timestamp, by: Option<CheckpointId>) {
        if let Some(foreign) = self.foreign.as_mut().filter(|foreign| foreign.released_at.is_none()) {
            (foreign.released_at, foreign.released_by) = (Some(at), by);
        }
    }

    /// A ledger that begins, or goes on behind a move or from a snapshot that is none of its own checkpoints (the job may
    /// have been elsewhere meanwhile), knows nothing of the savepoints that earlier generations of the job took by another
    /// ledger: they are as good as forgotten, and live (C3).
    fn spare_older_savepoints(&mut self, entry: &Entry, from_elsewhere: bool) {
        let begins = entry.number == 1 || self.state == LedgerState::MovedTo || from_elsewhere;
        let Some(before) = entry.generation.0.checked_sub(1).filter(|before| begins && *before > 0) else { return };
        let last = CheckpointKey { generation: Generation(before), id: CheckpointId(u64::MAX) };
        self.forgotten_savepoints = self.forgotten_savepoints.max(Some(last));
    }

    /// What a new revision goes on from stays until somebody says that the revision is stable (K7).
    fn pin_upgrade(&mut self, revision: u64, restored_from: Option<&SnapshotReference>) {
        let is_upgrade = self.revision != 0 && revision > self.revision;
        self.revision = revision;
        let Some(own) = restored_from.filter(|from| is_upgrade && !from.is_foreign) else { return };
        self.pins.push(Pin { snapshot: own.directory.clone(), holder: format!("revision {revision}") });
        if self.pins.len() > UPGRADE_PINS {
            self.pins.remove(1);
        }
    }

    fn end(&mut self, state: LedgerState, drops: &[CheckpointKey]) {
        self.state = state;
        self.ending = Ends::None;
        self.drained = false;
        if matches!(state, LedgerState::Finished | LedgerState::Cancelled) {
            self.pins.clear();
        }
        self.retained.retain(|kept| !drops.contains(&kept.key));
        let message = format!("the job ended ({state:?}) before the savepoint was taken");
        let failure = Failure::restart("JobEnded", crate::failure::Fault::User, message);
        for request in self.requests.iter_mut().filter(|request| request.result.is_none()) {
            request.directory = None;
            request.result = Some(match request.taken.take() {
                Some(path) => RequestResult::Path(path),
                None => RequestResult::Failed(failure.clone()),
            });
        }
    }

    /// A directive is carried out although the job was asked to end and has not: what was to end is what ran before it.
    fn give_ends_up(&mut self) {
        let ends = |request: &&mut Request| request.result.is_none() && request.kind != SavepointKind::Savepoint;
        let message = "the job was started anew before the savepoint that it was to end with was taken";
        for request in self.requests.iter_mut().filter(ends) {
            let failure = Failure::restart("StartedAnew", crate::failure::Fault::User, message);
            request.directory = None;
            request.result = Some(request.taken.take().map_or(RequestResult::Failed(failure), RequestResult::Path));
        }
    }

    fn record(&mut self, record: Option<&CheckpointRecord>) {
        if let Some(record) = record {
            push_record(&mut self.history, record);
        }
    }

    fn take_savepoint(&mut self, checkpoint: &RetainedCheckpoint, savepoint: &TakenSavepoint) {
        let TakenSavepoint { request, path } = savepoint;
        let RetainedCheckpoint { key, triggered_at, completed_at, bytes } = *checkpoint;
        self.savepoints.push(LiveSavepoint { key, path: path.clone(), triggered_at, completed_at, bytes });
        let bytes = |savepoints: &[LiveSavepoint]| savepoints.iter().map(|one| one.path.len()).sum::<usize>();
        while self.savepoints.len() > SAVEPOINTS_LIMIT
            || (self.savepoints.len() > 1 && bytes(&self.savepoints) > SAVEPOINTS_BYTES)
        {
            self.forgotten_savepoints = Some(self.savepoints.remove(0).key);
        }
        if let Some(request) = self.requests.iter_mut().find(|kept| kept.id == *request) {
            request.taken = Some(path.clone());
            self.drained = request.kind == SavepointKind::Drain;
        }
    }

    fn remember_root(&mut self, root: &str) {
        self.savepoint_roots.retain(|known| known != root);
        self.savepoint_roots.push(root.to_owned());
        let bytes = |roots: &[String]| roots.iter().map(String::len).sum::<usize>();
        while self.savepoint_roots.len() > SAVEPOINT_ROOTS_LIMIT
            || (self.savepoint_roots.len() > 1 && bytes(&self.savepoint_roots) > SAVEPOINT_ROOTS_BYTES)
        {
            self.savepoint_roots.remove(0);
        }
    }

    /// The first request that is not answered: the one that is being carried out.
    #[must_use]
    pub fn open_request(&self) -> Option<&Request> {
        self.requests.iter().find(|request| request.result.is_none())
    }

    /// Whether a request may have been carried out and forgotten: ids that begin with a number sort by it, and those
    /// before the oldest that is kept are refused (L1).
    #[must_use]
    pub fn has_forgotten(&self, id: &str) -> bool {
        let number = |id: &str| id.split(['-', '_', '.']).next().and_then(|digits| digits.parse::<u64>().ok());
        let oldest = self.requests.first().filter(|_| self.requests.len() >= REQUESTS_LIMIT);
        oldest.and_then(|oldest| number(&oldest.id)).zip(number(id)).is_some_and(|(oldest, asked)| asked < oldest)
    }

    /// Whether the job was asked to end with a savepoint, and that stands.
    #[must_use]
    pub fn has_stopped_with_savepoint(&self) -> bool {
        let ends = |request: &Request| request.taken.is_some() && request.kind != SavepointKind::Savepoint;
        self.drained || (self.ending == Ends::Stop && self.requests.iter().any(ends))
    }

    fn request(&mut self, request: Request) {
        self.requests.push(request);
        let surplus = self.requests.len().saturating_sub(REQUESTS_LIMIT);
        self.requests.drain(..surplus);
    }

    fn answer(&mut self, id: &str, result: RequestResult) {
        if let Some(request) = self.requests.iter_mut().find(|request| request.id == id) {
            request.directory = None;
            request.taken = None;
            request.result = Some(result);
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A failure whose message has hardly more than so many bytes: every entry carries it on, the failure's own entry has it
/// whole.
fn shortened(failure: &Failure, limit: usize) -> Failure {
    let mut failure = failure.clone();
    if failure.message.len() > limit {
        failure.message.truncate(failure.message.floor_char_boundary(limit));
        failure.message.push('…');
    }
    failure
}
