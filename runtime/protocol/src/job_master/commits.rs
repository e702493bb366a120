//! Commits: the handles of the ledger's last complete checkpoint, until each is confirmed (K1, K3, S1, S3, S5, S6).
//!
//! From the moment a checkpoint's entry stands its handles are this process's to settle, whatever becomes of the tasks that
//! staged them: the sinks' own code runs here ([`Action::Commit`]). Callers rely on:
//! - nothing is committed but handles of a complete checkpoint of this ledger, or of one that is being taken over;
//! - every checkpoint carries what is unsettled, so the last complete one always holds all of it;
//! - a terminal entry, and the answer to a savepoint, wait for the confirmations, each until its deadline.

mod ending;
mod lives;
mod loading;

use ending::Closing;
pub(super) use ending::{describe, describe_left_open};
pub(super) use loading::unsettled;

use super::journal::EndKind;
use super::{Action, JobMaster, Phase};
use crate::commit::{CommitHandle, CommitId, CommitOutcome, Leftovers, SinkLife};
use crate::failure::{Failure, Fault};
use crate::ids::{Attempt, CheckpointId, Generation, JobId, Run, SubtaskId};
use crate::ledger::append::backoff;
use crate::message::Held;
use crate::metadata::Metadata;
use crate::state::OperatorSnapshot;
use crate::time::{TimeSpan, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Notice that commits are tried again.
const RETRIED: &str = "CommitRetried";

/// Notice that a commit has no answer.
const UNANSWERED: &str = "CommitUnanswered";

/// Notice that output is lost, and was given up.
const GIVEN_UP: &str = "CommitGivenUp";

/// After so long without an answer to a commit its people are told.
const ANSWER_PATIENCE: TimeSpan = TimeSpan::from_secs(60);

/// Notice that transactions of older attempts could not be aborted.
const LEFT_OPEN: &str = "TransactionsLeftOpen";

/// This long before output is lost its people are told.
const NEAR: TimeSpan = TimeSpan::from_secs(300);

/// Of so many checkpoints there may be unsettled handles before no further one is triggered (K3).
const BACKLOG: usize = 16;

/// So long a confirmed handle is remembered, in checkpoints: a task that has not heard of it may list it again.
const MEMORY: u64 = 64;

/// What is known of handles.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// In the last complete checkpoint, and not confirmed.
    unsettled: BTreeSet<CommitHandle>,
    /// Confirmed lately.
    settled: BTreeSet<CommitHandle>,
    /// Whether the last complete checkpoint is being read for its handles.
    loading: bool,
    under_way: Option<UnderWay>,
    last_id: u64,
    failures: u32,
    /// So many handles were given up, and so many were lost, those included.
    given_up: u64,
    lost: u64,
    /// When older attempts' transactions are looked for again, and how often that failed in a row.
    abort_at: Option<Timestamp>,
    abort_failures: u32,
    retry_at: Option<Timestamp>,
    taking: Taking,
    ending_since: Option<Timestamp>,
    /// When the end goes on without the confirmations (L6).
    settle_by: Option<Timestamp>,
    closing: Closing,
    terminal_queued: bool,
    lives: Vec<SinkLife>,
}

/// A request that has no answer yet.
#[derive(Debug)]
struct UnderWay {
    id: CommitId,
    since: Timestamp,
    handles: Vec<CommitHandle>,
}

/// Handles of a job that is being taken over (G5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Taking {
    #[default]
    No,
    Settling,
    Settled,
}

impl Commits {
    pub(super) const fn is_loading(&self) -> bool {
        self.loading
    }

    pub(super) fn next_wakeup(&self, now: Timestamp) -> Option<Timestamp> {
        let retry = self.retry_at.filter(|_| self.under_way.is_none() && !self.unsettled.is_empty());
        let answer = self.under_way.as_ref().map(|one| one.since.plus(ANSWER_PATIENCE));
        let times = [retry, self.abort_at, answer];
        times.into_iter().flatten().chain(self.wakeups_at_end()).filter(|at| *at > now).min()
    }

    const fn name(&mut self) -> CommitId {
        self.last_id += 1;
        CommitId(self.last_id)
    }

    /// Of how many checkpoints handles are unsettled.
    fn backlog(&self) -> usize {
        self.unsettled.iter().map(|handle| handle.committable.checkpoint).collect::<BTreeSet<_>>().len()
    }
}

impl JobMaster {
    pub(super) fn has_transactional_sinks(&self) -> bool {
        self.config.graph.transactional_sinks().next().is_some()
    }

    // --- What is unsettled ------------------------------------------------------------------------------------

    /// A checkpoint's own handles become all that the last complete checkpoint is to hold (K3).
    pub(super) fn carry_handles(&mut self, metadata: &mut Metadata) {
        let Commits { unsettled, settled, .. } = &self.commits;
        let listed: BTreeSet<_> = metadata.handles().filter(|handle| !settled.contains(handle)).collect();
        for snapshot in &mut metadata.operators {
            snapshot.committables.clear();
        }
        let carried = unsettled.iter().filter(|_| !self.config.planted.forgets_handles).cloned();
        for CommitHandle { sink, subtask, committable } in listed.into_iter().chain(carried).collect::<BTreeSet<_>>() {
            let is_its = |one: &&mut OperatorSnapshot| one.uid == sink && one.subtask == subtask;
            if let Some(snapshot) = metadata.operators.iter_mut().find(is_its) {
                snapshot.committables.push(committable);
                continue;
            }
            metadata.operators.push(OperatorSnapshot {
                uid: sink,
                subtask,
                keyed: Vec::new(),
                operator: Vec::new(),
                splits: Vec::new(),
                committables: vec![committable],
            });
        }
    }

    /// Its entry stands: these are to be committed (K1).
    pub(super) fn commit_handles(&mut self, handles: Vec<CommitHandle>) {
        let newest = handles.iter().map(|handle| handle.committable.checkpoint.0).max().unwrap_or_default();
        let Commits { unsettled, settled, .. } = &mut self.commits;
        unsettled.extend(handles.into_iter().filter(|handle| !settled.contains(handle)));
        settled.retain(|handle| handle.committable.checkpoint.0 + MEMORY > newest);
        self.hold_triggers();
    }

    /// Whether all that was staged with this checkpoint or before is committed.
    pub(super) fn is_committed(&self, id: CheckpointId) -> bool {
        !self.commits.loading && self.commits.unsettled.iter().all(|handle| handle.committable.checkpoint > id)
    }

    /// What the next entry says of commits (S6); `None`: nothing new.
    pub(super) fn committed_through(&self) -> Option<CheckpointId> {
        let is_known = self.journal.confirmed && !self.commits.loading && self.has_transactional_sinks();
        let latest = self.journal.fold.latest().filter(|_| is_known && self.commits.unsettled.is_empty())?;
        Some(latest.key.id)
    }

    /// What the writers are told of the handles in a checkpoint.
    pub(super) fn held(&self, handles: &[CommitHandle]) -> Vec<Held> {
        let mut held: BTreeMap<SubtaskId, Vec<CheckpointId>> = BTreeMap::new();
        for CommitHandle { sink, subtask, committable } in handles {
            if let Some(vertex) = self.config.graph.vertex_of(sink) {
                held.entry(SubtaskId { vertex, index: *subtask }).or_default().push(committable.checkpoint);
            }
        }
        held.into_iter().map(|(subtask, checkpoints)| Held { subtask, checkpoints }).collect()
    }

    /// Whether it is in the last complete checkpoint, and not confirmed.
    pub(super) fn is_unsettled(&self, handle: &CommitHandle) -> bool {
        self.commits.unsettled.contains(handle)
    }

    fn hold_triggers(&mut self) {
        let is_behind = self.commits.backlog() >= BACKLOG;
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.commits_behind(is_behind, self.now);
        }
    }

    /// How many handles were lost in this process's life (S6).
    pub(super) const fn lost_commits(&self) -> u64 {
        self.commits.lost
    }

    // --- Committing -------------------------------------------------------------------------------------------

    /// Commits what is unsettled, one request at a time.
    pub(super) fn tick_commits(&mut self) {
        self.note_unanswered();
        if self.commits.abort_at.take_if(|at| *at <= self.now).is_some() {
            self.abort_leftovers();
        }
        let may_commit = self.journal.confirmed || self.commits.taking == Taking::Settling;
        let waits = self.commits.retry_at.is_some_and(|at| at > self.now);
        if !may_commit || waits || self.commits.under_way.is_some() || self.commits.unsettled.is_empty() {
            return;
        }
        self.commits.retry_at = None;
        let id = self.commits.name();
        let handles: Vec<_> = self.commits.unsettled.iter().cloned().collect();
        self.commits.under_way = Some(UnderWay { id, since: self.now, handles: handles.clone() });
        self.actions.push(Action::Commit { id, handles });
    }

    /// A sink that neither commits nor refuses holds up all that is staged, which nobody would see.
    fn note_unanswered(&mut self) {
        let Some(one) = self.commits.under_way.as_ref().filter(|one| one.since.plus(ANSWER_PATIENCE) <= self.now)
        else {
            return;
        };
        let sinks: BTreeSet<_> = one.handles.iter().map(|handle| handle.sink.to_string()).collect();
        let message = format!(
            "{} staged transactions of the sinks {} have been on their way to be committed for more than {ANSWER_PATIENCE}: no \
             reader sees them, and what is staged meanwhile waits behind them; look whether the sinks' target answers",
            one.handles.len(),
            sinks.into_iter().collect::<Vec<_>>().join(", ")
        );
        self.set_notice(UNANSWERED, message);
    }

    pub(super) fn on_committed(&mut self, id: CommitId, outcomes: Vec<CommitOutcome>) {
        let Some(UnderWay { handles, .. }) = self.commits.under_way.take_if(|one| one.id == id) else { return };
        self.clear_notice(UNANSWERED);
        let (mut retried, mut lost) = (None, None);
        for (handle, outcome) in handles.into_iter().zip(outcomes) {
            match outcome {
                CommitOutcome::Retry(message) => {
                    retried.get_or_insert(message);
                    continue;
                }
                CommitOutcome::Lost(message) => {
                    self.commits.lost += 1;
                    lost.get_or_insert((handle.clone(), message));
                }
                CommitOutcome::GivenUp(message) => self.note_given_up(&handle, &message),
                CommitOutcome::Settled => {}
            }
            self.commits.unsettled.remove(&handle);
            self.commits.settled.insert(handle);
        }
        self.note_retries(retried);
        self.hold_triggers();
        if let Some((handle, message)) = lost {
            return self.on_lost(&handle, &message);
        }
        if self.commits.taking == Taking::Settling && self.commits.unsettled.is_empty() {
            self.commits.taking = Taking::Settled;
            self.commits.settled.clear();
            self.move_ledger();
        }
    }

    fn note_retries(&mut self, retried: Option<String>) {
        let Some(message) = retried else {
            self.commits.failures = 0;
            return self.clear_notice(RETRIED);
        };
        let pause = backoff(self.commits.failures, TimeSpan(200), TimeSpan::from_secs(30), &mut *self.random);
        self.commits.failures += 1;
        self.commits.retry_at = Some(self.now.plus(pause));
        let expires_at = self.commits.unsettled.iter().filter_map(|handle| handle.committable.expires_at).min();
        let is_near = expires_at.is_some_and(|at| at.since(self.now) < NEAR);
        let until = if is_near {
            format!(" (its target gives the first of it up within {NEAR}: then it is lost)")
        } else {
            String::new()
        };
        self.set_notice(
            RETRIED,
            format!(
                "output is staged but cannot be committed yet, which is tried again{until}: {message}. Where the target is gone \
                 for good, restore.abandonSinks gives its output up"
            ),
        );
    }

    /// The table says to go on without what is lost: counted, and said in status for as long as this process lives.
    fn note_given_up(&mut self, CommitHandle { sink, subtask, committable }: &CommitHandle, message: &str) {
        self.commits.given_up += 1;
        self.commits.lost += 1;
        let message = format!(
            "{} staged transactions are lost and were given up, as the table says; the last, of subtask {subtask} of sink \
             '{sink}' with checkpoint {}: {message}. Their rows are in no result",
            self.commits.given_up, committable.checkpoint
        );
        self.set_notice(GIVEN_UP, message);
    }

    /// Output is missing for ever: said loudly, never passed over (S6).
    fn on_lost(&mut self, handle: &CommitHandle, message: &str) {
        let CommitHandle { sink, subtask, committable } = handle;
        let message = format!(
            "what subtask {subtask} of sink '{sink}' staged with checkpoint {} is lost: {message}. Its rows are in no result; \
             start from an older snapshot to write them again, or raise the nonce to go on without them",
            committable.checkpoint
        );
        if self.commits.taking == Taking::Settling {
            return self.refuse_snapshot("CommitLost", &message);
        }
        self.set_notice("CommitLost", message.clone());
        let kind =
            EndKind::Failed { failure: Failure::restart("CommitLost", Fault::External, message), is_users: false };
        match &self.phase {
            // The end is on its way as it is, or stands.
            _ if self.commits.terminal_queued => {}
            Phase::Ending(_) if self.journal.fold.has_stopped_with_savepoint() => {}
            Phase::Ending(_) => self.phase = Phase::Ending(kind),
            _ => {
                self.cancel_execution();
                self.end(kind);
            }
        }
    }

    // --- Taking a job over ------------------------------------------------------------------------------------

    /// Whether the handles of the job that is being taken over are settled; if not, that begins (S5, G5).
    pub(super) fn has_settled_taken(&mut self) -> bool {
        if self.commits.taking != Taking::No {
            return self.commits.taking == Taking::Settled;
        }
        let handles: Vec<_> = self.taken().map(|takeover| takeover.unsettled()).unwrap_or_default();
        let abandoned = self.loading.as_ref().map(|loading| loading.allowed.sinks.clone()).unwrap_or_default();
        let handles = self.without_abandoned(handles, &abandoned);
        if handles.is_empty() {
            self.commits.taking = Taking::Settled;
            return true;
        }
        self.commits.unsettled = handles.into_iter().collect();
        self.commits.taking = Taking::Settling;
        false
    }

    /// The other ledger is read anew.
    pub(super) fn forget_taken(&mut self) {
        self.commits.taking = Taking::No;
        self.commits.unsettled.clear();
        self.commits.under_way = None;
        self.clear_notice(UNANSWERED);
    }

    // --- Aborting ---------------------------------------------------------------------------------------------

    /// Has what older attempts left open aborted; not waited for (S3). Older than the one that the ledger tells of: until
    /// `Restarted` stands, a checkpoint of the attempt that failed may yet turn out to be complete (L2).
    pub(super) fn abort_leftovers(&mut self) {
        let is_due = self.journal.confirmed && !self.commits.loading && self.has_transactional_sinks();
        if is_due && !matches!(self.phase, Phase::Exiting { .. }) {
            self.ask_for_abort(self.journal.attempt);
        }
    }

    /// Has them looked for again in a while: processes of older attempts may live until then, and open more (N4).
    pub(super) fn abort_leftovers_after(&mut self, span: TimeSpan) {
        let at = self.now.plus(span);
        self.commits.abort_at = Some(self.commits.abort_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// A job was taken over: what it had open and not in a complete checkpoint is nobody's any more.
    pub(super) fn abort_all_of(&mut self, job: JobId) {
        if job.uid != self.config.job.uid && self.has_transactional_sinks() {
            let older_than = Run { generation: Generation(u64::MAX), attempt: Attempt(0) };
            let leftovers = Leftovers { job, older_than, spared: Vec::new() };
            let id = self.commits.name();
            self.actions.push(Action::AbortLeftovers { id, leftovers });
        }
    }

    fn ask_for_abort(&mut self, attempt: Attempt) -> CommitId {
        let id = self.commits.name();
        let older_than = Run { generation: self.config.generation, attempt };
        let spared = self.commits.unsettled.iter().cloned().collect();
        let leftovers = Leftovers { job: self.config.job.clone(), older_than, spared };
        self.actions.push(Action::AbortLeftovers { id, leftovers });
        id
    }

    pub(super) fn on_leftovers_aborted(&mut self, id: CommitId, failure: Option<String>) {
        match &failure {
            None => self.clear_notice(LEFT_OPEN),
            Some(message) => {
                let message =
                    format!("transactions of older attempts could not be aborted, which is tried again: {message}");
                self.set_notice(LEFT_OPEN, message);
            }
        }
        self.commits.abort_failures = if failure.is_some() { self.commits.abort_failures + 1 } else { 0 };
        if matches!(self.commits.closing, Closing::UnderWay { .. }) {
            return self.on_last_abort(id, failure);
        }
        if failure.is_some() {
            let failures = self.commits.abort_failures;
            let pause = backoff(failures, TimeSpan(200), TimeSpan::from_secs(30), &mut *self.random);
            self.abort_leftovers_after(pause);
        }
    }
}
