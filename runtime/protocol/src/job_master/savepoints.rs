//! Savepoints and other requests: taken, carried out, answered (K4, K5).
//!
//! A savepoint's request is an entry of the ledger, so it outlives this process: whichever generation runs the tasks
//! carries the first unanswered request of the fold out, until its deadline. What happens to it is decided by entries
//! alone. Refusals and the answers to requests that no entry holds are kept in memory. Callers rely on: a request id is
//! carried out once, and its answer stays in the status for the last fifty.

use super::journal::{EndKind, Intent};
use super::operations::Purpose;
use super::{JobMaster, Phase, SavepointRequest};
use crate::coordinator::{Aborted, SavepointOrder};
use crate::failure::{Failure, Fault};
use crate::ids::CheckpointId;
use crate::ledger::{Ends, LiveSavepoint, Request, RequestResult, RestorePoint, SavepointKind};
use crate::paths::{self, SnapshotLocation};
use crate::status::{CheckpointInfo, RequestKind, RequestState, RequestStatus};
use crate::time::Timestamp;

/// Answers that are kept in memory.
const ANSWERS_LIMIT: usize = 50;

/// Savepoint requests that may wait.
const OPEN_LIMIT: usize = 10;

/// Characters of a request's id.
const ID_LIMIT: usize = 63;

/// A checkpoint that somebody asked for.
#[derive(Debug)]
pub(super) struct AskedCheckpoint {
    id: String,
    /// The one that will answer it.
    checkpoint: Option<CheckpointId>,
}

impl JobMaster {
    // --- Taking requests --------------------------------------------------------------------------------------

    /// Appends the request, unless it is known or cannot be carried out.
    pub(super) fn request_savepoint(&mut self, request: SavepointRequest) {
        if self.is_known(&request.id) {
            return;
        }
        match self.savepoint_directory(&request) {
            Ok(directory) => {
                let SavepointRequest { id, kind, timeout, .. } = request;
                self.append(Intent::SavepointRequested { id, kind, directory, deadline: self.now.plus(timeout) });
            }
            Err(failure) => self.answer(request.id, request.kind.into(), RequestState::Failed, None, Some(failure)),
        }
    }

    fn is_known(&self, id: &str) -> bool {
        let is_queued =
            |intent: &Intent| matches!(intent, Intent::SavepointRequested { id: queued, .. } if queued == id);
        self.journal.fold.requests.iter().any(|request| request.id == id)
            || self.journal.queue.iter().any(is_queued)
            || self.journal.is_appending_request(id)
            || self.answers.iter().any(|answer| answer.id == id)
    }

    /// The URI that the savepoint's directory will lie below.
    fn savepoint_directory(&self, request: &SavepointRequest) -> Result<String, Failure> {
        let refuse = |reason: &str, message: String| Err(Failure::user(reason, message));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if request.id.is_empty() || request.id.len() > ID_LIMIT || !request.id.chars().all(is_plain) {
            let message = format!("a request id has 1 to {ID_LIMIT} characters of A-Z, a-z, 0-9, '-', '_' and '.'");
            return refuse("InvalidRequestId", message);
        }
        if self.journal.fold.has_forgotten(&request.id) {
            let message = format!(
                "request '{}' is older than those whose results are kept; it may have been carried out: ask under a new id",
                request.id
            );
            return refuse("RequestTooOld", message);
        }
        if self.journal.fold.requests.iter().filter(|known| known.result.is_none()).count() >= OPEN_LIMIT {
            return refuse("TooManyRequests", format!("{OPEN_LIMIT} savepoints are asked for already; wait for one"));
        }
        if self.is_ending() || self.journal.fold.ending != Ends::None {
            return refuse("JobEnding", "the job is ending; its last checkpoint can be restored".to_owned());
        }
        let Some(settings) = &self.config.options.checkpointing else {
            let message = "the job has no spec.checkpointing, so it stores no state; add it, such as `checkpointing: {interval: 10s}`";
            return refuse("CheckpointingDisabled", message.to_owned());
        };
        let Some(root) = request.directory.clone().or_else(|| settings.savepoint_root()) else {
            let message = "name a directory for the savepoint, or set checkpointing.savepointStorage: checkpoints are kept in \
                           the JobManager's memory, where a savepoint would not outlive the job";
            return refuse("NoSavepointStorage", message.to_owned());
        };
        let is_place = root.starts_with("file:///")
            || root.strip_prefix("s3://").is_some_and(|rest| !rest.starts_with('/') && !rest.is_empty());
        if !is_place && !self.config.storage_uri.as_ref().is_some_and(|own| root.starts_with(own.as_str())) {
            return refuse(
                "InvalidDirectory",
                format!("'{root}' is no place for a savepoint; write s3://bucket/path or file:///absolute/path"),
            );
        }
        Ok(root.trim_end_matches('/').to_owned())
    }

    /// Triggers a checkpoint as soon as there can be one; the first one triggered from now on is the answer.
    pub(super) fn request_checkpoint(&mut self, id: String) {
        if self.asked.iter().any(|asked| asked.id == id) || self.answers.iter().any(|answer| answer.id == id) {
            return;
        }
        let failure = if self.config.options.checkpointing.is_none() {
            Some(Failure::user("CheckpointingDisabled", "the job has no spec.checkpointing: it takes no checkpoints"))
        } else if self.is_ending() || self.journal.fold.ending != Ends::None {
            Some(Failure::user("JobEnding", "the job is ending: it takes no more checkpoints on request"))
        } else {
            None
        };
        if failure.is_some() {
            return self.answer(id, RequestKind::Checkpoint, RequestState::Failed, None, failure);
        }
        self.asked.push(AskedCheckpoint { id, checkpoint: None });
        self.ask_for_checkpoints();
    }

    /// Tasks run: what was asked for earlier is asked for again.
    pub(super) fn ask_for_checkpoints(&mut self) {
        if self.asked.is_empty() {
            return;
        }
        self.asked.iter_mut().for_each(|asked| asked.checkpoint = None);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.request(Ends::None);
        }
    }

    pub(super) fn on_checkpoint_triggered(&mut self, id: CheckpointId) {
        for asked in self.asked.iter_mut().filter(|asked| asked.checkpoint.is_none()) {
            asked.checkpoint = Some(id);
        }
    }

    /// Answers those who asked for this checkpoint; a completed one answers for the earlier ones too.
    pub(super) fn answer_checkpoint(
        &mut self,
        id: CheckpointId,
        snapshot: Option<&CheckpointInfo>,
        failure: Option<&Failure>,
    ) {
        let is_meant = |asked: &AskedCheckpoint| match (asked.checkpoint, failure) {
            (Some(checkpoint), None) => checkpoint <= id,
            (Some(checkpoint), Some(_)) => checkpoint == id,
            (None, _) => false,
        };
        let (meant, others) = std::mem::take(&mut self.asked).into_iter().partition(is_meant);
        self.asked = others;
        let meant: Vec<AskedCheckpoint> = meant;
        let state = if failure.is_some() { RequestState::Failed } else { RequestState::Completed };
        for asked in meant {
            let path = snapshot.map(|snapshot| snapshot.path.clone());
            self.answer(asked.id, RequestKind::Checkpoint, state, path, failure.cloned());
            if let Some(answer) = self.answers.last_mut() {
                answer.snapshot = snapshot.cloned();
            }
        }
    }

    // --- Carrying savepoints out ------------------------------------------------------------------------------

    /// Does what the first unanswered request calls for.
    pub(super) fn tick_savepoints(&mut self) {
        if !self.journal.confirmed || !matches!(self.phase, Phase::Preparing(_) | Phase::Deploying | Phase::Running) {
            return;
        }
        let Some(request) = self.journal.fold.open_request() else { return };
        if self.journal.answering.as_ref() == Some(&request.id) {
            return;
        }
        let request = request.clone();
        if let Some(path) = request.taken.clone() {
            // Its `Checkpoint` stands. What the job ends with is answered right before the end.
            if request.kind == SavepointKind::Savepoint {
                self.conclude_taken(&request, path);
            }
        } else if request.deadline <= self.now {
            self.give_savepoint_up(&request, None);
        } else if matches!(self.phase, Phase::Running) && self.wanted_end.is_none() {
            self.order_savepoint(&request);
        }
    }

    /// A savepoint stands; it is answered when all that was staged before it is committed (K4).
    fn conclude_taken(&mut self, request: &Request, path: String) {
        let id = path.rsplit('-').next().and_then(|id| id.parse().ok()).map_or(CheckpointId(u64::MAX), CheckpointId);
        if self.is_committed(id) {
            self.conclude_savepoint(&request.id, RequestResult::Path(path));
        } else if request.deadline <= self.now {
            let message = format!(
                "the savepoint at {path} stands, but what sinks had staged before it was not committed by the deadline; the \
                 job runs on and goes on to try. See the notice CommitRetried, and ask again with a longer timeout"
            );
            let failure = Failure::restart("SavepointExpired", Fault::External, message);
            self.conclude_savepoint(&request.id, RequestResult::Failed(failure));
        }
    }

    /// When the request that is being carried out is to be given up.
    pub(super) fn savepoint_deadline(&self) -> Option<Timestamp> {
        let request = self.journal.fold.open_request().filter(|request| request.taken.is_none())?;
        Some(request.deadline).filter(|deadline| *deadline > self.now && self.journal.confirmed)
    }

    fn order_savepoint(&mut self, request: &Request) {
        let Some(root) = &request.directory else { return };
        let directory_prefix = format!("{root}/{}/{}-", self.config.job, self.config.generation);
        let order = SavepointOrder { request: request.id.clone(), ends: request.kind.ends(), directory_prefix };
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.request_savepoint(order);
        }
    }

    /// Past its deadline, or where trying again does not help. While its entry is under way only the ledger decides.
    fn give_savepoint_up(&mut self, request: &Request, cause: Option<Failure>) {
        let last = self.last_savepoint_failure.take().map(|failure| format!("; the last try failed: {failure}"));
        let failure = cause.unwrap_or_else(|| {
            let message = format!(
                "the savepoint was not there by its deadline{}; the job runs on. Ask again with a longer timeout, or look at \
                 how long checkpoints take",
                last.unwrap_or_default()
            );
            Failure::restart("SavepointExpired", Fault::External, message)
        });
        let withdrawn = match &mut self.coordinator {
            Some(coordinator) => coordinator.withdraw_savepoint(&request.id, &failure, self.now),
            None => Some(vec![]),
        };
        match withdrawn {
            Some(outputs) => {
                self.execute(outputs);
                self.conclude_savepoint(&request.id, RequestResult::Failed(failure));
            }
            None if self.config.planted.deadline_decides => {
                self.conclude_savepoint(&request.id, RequestResult::Failed(failure));
            }
            None => {
                let under_way: Vec<_> = self.coordinator.iter().flat_map(|one| one.pending()).collect();
                under_way.into_iter().for_each(|id| self.journal.appender.give_up_checkpoint(id));
            }
        }
    }

    /// Appends the answer to a request.
    pub(super) fn conclude_savepoint(&mut self, id: &str, result: RequestResult) {
        self.journal.answering = Some(id.to_owned());
        self.append(Intent::SavepointConcluded { id: id.to_owned(), result });
    }

    /// A try has failed: its files are dead, and another try follows, unless that cannot help.
    pub(super) fn on_savepoint_try_failed(&mut self, aborted: &Aborted) {
        let Some(savepoint) = &aborted.savepoint else { return };
        self.dead_savepoints.push(savepoint.directory.clone());
        let Some(failure) = &aborted.failure else { return };
        self.last_savepoint_failure = Some(failure.message.clone());
        let request = self.journal.fold.open_request().filter(|request| request.id == savepoint.request).cloned();
        if let Some(request) = request.filter(|_| failure.fault == Fault::User && self.journal.answering.is_none()) {
            self.give_savepoint_up(&request, Some(failure.clone()));
        }
    }

    /// The answer stands.
    pub(super) fn on_savepoint_concluded(&mut self, id: &str, is_failed: bool) {
        self.journal.answering.take_if(|answering| answering == id);
        self.last_savepoint_failure = None;
        let has_drained = self.coordinator.as_ref().is_some_and(crate::coordinator::CheckpointCoordinator::has_drained);
        let runs_again = is_failed && has_drained && !self.config.planted.forgets_drains;
        if runs_again && matches!(self.phase, Phase::Running) {
            let message = "the savepoint that the job was to drain with failed, and its sources have ended: the tasks run \
                           again from the latest checkpoint";
            self.cancel_execution();
            if self.is_ending() {
                return self.end_after_failure();
            }
            self.prepare_restart(Failure::restart("DrainFailed", Fault::External, message), self.now);
        }
    }

    /// How the job ends once the checkpoint that it ends with stands.
    pub(super) fn reached_end(&self) -> EndKind {
        let fold = &self.journal.fold;
        if fold.ending == Ends::Stop || fold.drained { EndKind::Stopped } else { EndKind::Finished }
    }

    // --- Disposing --------------------------------------------------------------------------------------------

    /// Removes a savepoint of this job, once the ledger says so.
    pub(super) fn request_disposal(&mut self, id: String, path: &str) {
        if self.answers.iter().any(|answer| answer.id == id) {
            return;
        }
        let path = SnapshotLocation::parse(path, None).directory;
        if self.is_ending() {
            let failure = Failure::user("JobEnding", "the job is ending: nothing is disposed of any more");
            return self.answer(id, RequestKind::Dispose, RequestState::Failed, Some(path), Some(failure));
        }
        self.answer(id.clone(), RequestKind::Dispose, RequestState::Pending, Some(path.clone()), None);
        self.append(Intent::Dispose { id, path });
    }

    /// Why a savepoint may not be removed, as of the last entry.
    pub(super) fn disposal_refusal(&self, path: &str) -> Option<Failure> {
        let fold = &self.journal.fold;
        let uri = |directory: &str| paths::uri(self.config.storage_uri.as_deref(), directory);
        if !fold.savepoints.iter().any(|savepoint| savepoint.path == path) && !self.is_disposed(path) {
            let known: Vec<_> = fold.savepoints.iter().map(|savepoint| savepoint.path.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!(
                "{path} is no savepoint of this job, and only those can be disposed of; its savepoints: {known}. Checkpoints \
                 are kept and removed by checkpointing.retained and checkpointing.retention"
            );
            return Some(Failure::user("NotASavepoint", message));
        }
        if matches!(&fold.restore_point, RestorePoint::Snapshot(reference) if uri(&reference.directory) == path) {
            let message =
                format!("the job was started from {path} and has no checkpoint of its own yet: wait for its first one");
            return Some(Failure::user("SavepointInUse", message));
        }
        if let Some(pin) = fold.pins.iter().find(|pin| uri(&pin.snapshot) == path) {
            return Some(Failure::user(
                "SavepointInUse",
                format!("{path} is pinned by {}: release it first", pin.holder),
            ));
        }
        let is_open = fold.requests.iter().any(|request| request.taken.as_deref() == Some(path));
        is_open.then(|| {
            Failure::user("SavepointInUse", format!("{path} is being completed: wait for its request's answer"))
        })
    }

    /// Whether it is a savepoint of this job whose removal was decided by an earlier helper, which may have left files: the fold
    /// would know it otherwise. A JobManager that runs tasks sweeps them.
    fn is_disposed(&self, path: &str) -> bool {
        let job = format!("/{}", self.config.job);
        let parent = path.rsplit_once('/').map(|(parent, _)| parent).filter(|parent| parent.ends_with(&job));
        let key = parent.and_then(|parent| paths::parse_savepoint(&format!("{parent}/"), &format!("{path}/")));
        let is_forgotten = |key| self.journal.fold.forgotten_savepoints.is_some_and(|forgotten| key <= forgotten);
        let is_helper = self.config.directive.start.is_helper();
        key.is_some_and(|key| is_helper && key.generation < self.config.generation && !is_forgotten(key))
    }

    pub(super) fn on_disposed(&mut self, path: &str) {
        self.remove_savepoint(path.to_owned());
        if matches!(self.phase, Phase::Disposing) {
            self.leave_disposed(path);
        }
        for answer in &mut self.answers {
            let is_meant = answer.kind == RequestKind::Dispose && answer.path.as_deref() == Some(path);
            if is_meant && answer.state == RequestState::Pending {
                answer.state = RequestState::Completed;
            }
        }
    }

    /// Removes all files of a savepoint that is dead for ever.
    pub(super) fn remove_savepoint(&mut self, directory: String) {
        self.list_dead(Purpose::ListDead, format!("{directory}/"));
    }

    // --- Answers ----------------------------------------------------------------------------------------------

    /// Keeps an answer that no entry holds, in place of an earlier one.
    pub(super) fn answer(
        &mut self,
        id: String,
        kind: RequestKind,
        state: RequestState,
        path: Option<String>,
        failure: Option<Failure>,
    ) {
        self.answers.retain(|answer| answer.id != id);
        self.answers.push(RequestStatus { id, kind, state, path, snapshot: None, failure });
        let surplus = self.answers.len().saturating_sub(ANSWERS_LIMIT);
        self.answers.drain(..surplus);
    }

    /// The job has ended: who asked for a checkpoint gets none.
    pub(super) fn answer_all_at_end(&mut self) {
        let failure = Failure::user("JobEnded", "the job ended before the checkpoint was taken");
        for asked in std::mem::take(&mut self.asked) {
            self.answer(asked.id, RequestKind::Checkpoint, RequestState::Failed, None, Some(failure.clone()));
        }
    }

    fn describe_savepoint(&self, path: &str) -> Option<CheckpointInfo> {
        let savepoint = self.journal.fold.savepoints.iter().find(|savepoint| savepoint.path == path)?;
        let LiveSavepoint { key, path, triggered_at, completed_at, bytes } = savepoint.clone();
        Some(CheckpointInfo { id: key.id, path, triggered_at, completed_at, bytes })
    }

    /// All requests with their answers, the ledger's first.
    pub(super) fn describe_requests(&self) -> Vec<RequestStatus> {
        let of_ledger = self.journal.fold.requests.iter().map(|request| {
            let (state, path, failure) = match &request.result {
                None => (RequestState::Pending, None, None),
                Some(RequestResult::Path(path)) => (RequestState::Completed, Some(path.clone()), None),
                Some(RequestResult::Failed(failure)) => (RequestState::Failed, None, Some(failure.clone())),
            };
            let snapshot = path.as_deref().and_then(|path| self.describe_savepoint(path));
            RequestStatus { id: request.id.clone(), kind: request.kind.into(), state, path, snapshot, failure }
        });
        let asked = self.asked.iter().map(|asked| RequestStatus {
            id: asked.id.clone(),
            kind: RequestKind::Checkpoint,
            state: RequestState::Pending,
            path: None,
            snapshot: None,
            failure: None,
        });
        of_ledger.chain(asked).chain(self.answers.iter().cloned()).collect()
    }
}
