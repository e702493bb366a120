//! Checkpoints that expire or fail, what counts against the job, and how long the next one waits (K3).

use super::pending::{Pending, Stage, expired};
use super::{CheckpointCoordinator, Output};
use crate::failure::{Failure, Fault};
use crate::ids::CheckpointId;
use crate::ledger::Ends;
use crate::options::TolerableFailures;
use crate::time::{TimeSpan, Timestamp};

/// The first pause after a failed checkpoint; it doubles with each in a row, up to the checkpoint timeout (K3).
const FIRST_PAUSE: TimeSpan = TimeSpan::from_millis(100);

impl CheckpointCoordinator {
    pub(super) fn expiry(one: &Pending) -> Option<Timestamp> {
        let expires = one.stage != Stage::Appending { given_up: true };
        expires.then(|| one.triggered_at.plus(one.timeout))
    }

    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<Output> {
        let due: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, one)| Self::expiry(one).is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        let mut outputs = Vec::new();
        for id in due {
            let Some(one) = self.pending.get_mut(&id) else { continue };
            if one.is_appending() {
                one.stage = Stage::Appending { given_up: true };
                self.held_since.get_or_insert(now);
                outputs.push(Output::GiveUp(id));
            } else {
                let failure = expired(id, one);
                // Behind the last row it waits only for queues to empty. Tasks that ran again would fill them with the
                // same rows, and so for ever.
                let counts = !(self.input_ended && one.stage == Stage::Collecting && one.ends == Ends::None);
                outputs.extend(self.abort(id, failure, counts, now));
            }
        }
        outputs
    }

    /// Whether nothing can be triggered because the store does not answer, or sinks do not come to commit (K3, L2).
    pub(super) fn is_held_up(&self) -> bool {
        self.commits_behind
            || self.unrecorded_failures > 0
            || self.pending.values().any(|one| one.stage == Stage::Appending { given_up: true })
    }

    pub(super) fn held_up_until(&self) -> Option<Timestamp> {
        let since = self.held_since.filter(|_| self.active && self.is_held_up())?;
        Some(since.plus(self.settings.timeout))
    }

    /// What was due a timeout ago and could not be triggered since counts as failed: the job must not run on for ever
    /// without a checkpoint, and without a word.
    pub(super) fn count_held_up(&mut self, now: Timestamp) -> Vec<Output> {
        if self.held_up_until().is_none_or(|until| until > now) {
            return vec![];
        }
        self.held_since = Some(now);
        self.counters.failed += 1;
        self.counters.failed_in_a_row += 1;
        let why = if self.commits_behind {
            "what the checkpoints before have staged cannot be committed; look at the notice CommitRetried"
        } else {
            "the object store has not answered about the one before; look at its address, its credentials and the network"
        };
        let timeout = self.settings.timeout;
        let message = format!("no checkpoint could be triggered within checkpointing.timeout {timeout}: {why}");
        let failure = Failure::restart("CheckpointNotTriggered", Fault::External, message);
        let too_many = self.too_many(self.last_id.next(), &failure).map(Output::FailJob);
        std::iter::once(Output::NotTriggered(failure)).chain(too_many).collect()
    }

    /// It has failed. One without a savepoint counts against the job.
    pub(super) fn abort_counted(&mut self, id: CheckpointId, failure: Failure, now: Timestamp) -> Vec<Output> {
        self.abort(id, failure, true, now)
    }

    fn abort(&mut self, id: CheckpointId, failure: Failure, counts: bool, now: Timestamp) -> Vec<Output> {
        let Some(one) = self.pending.remove(&id) else { return vec![] };
        self.counters.failed += 1;
        self.unrecorded_failures += 1;
        let is_savepoint = one.savepoint.is_some();
        let counts = counts && !is_savepoint;
        if counts {
            self.counters.failed_in_a_row += 1;
            self.hold_until = now.plus(self.pause_after(self.counters.failed_in_a_row));
        } else if is_savepoint {
            self.hold_savepoint(now);
        }
        self.held_since.get_or_insert(self.next_periodic.max(self.hold_until).max(now));
        let too_many = if counts { self.too_many(id, &failure) } else { None };
        let aborted = Output::Aborted(one.aborted(id, Some(failure)));
        std::iter::once(aborted).chain(too_many.map(Output::FailJob)).collect()
    }

    fn hold_savepoint(&mut self, now: Timestamp) {
        self.checkpoint_first = self.excludes_savepoints();
        let failures = self.savepoint.as_mut().map_or(1, |ordered| {
            ordered.failures += 1;
            ordered.failures
        });
        let pause = self.pause_after(u64::from(failures));
        if let Some(ordered) = &mut self.savepoint {
            ordered.hold_until = now.plus(pause);
        }
    }

    fn pause_after(&self, failures: u64) -> TimeSpan {
        let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
        TimeSpan(FIRST_PAUSE.0 << doublings).min(self.settings.timeout)
    }

    fn too_many(&self, id: CheckpointId, cause: &Failure) -> Option<Failure> {
        let TolerableFailures::Count(limit) = self.settings.tolerable_failures else { return None };
        let failed = self.counters.failed_in_a_row;
        (failed > u64::from(limit)).then(|| {
            let message = format!(
                "{}; checkpoint {id} is failed checkpoint {failed} in a row, checkpointing.tolerableFailures is {limit}",
                cause.message
            );
            Failure::restart("CheckpointFailuresExceeded", cause.fault, message)
        })
    }
}
