//! Helpers: JobManagers that run no task, because the job's own cannot be reached or is gone for good.
//!
//! A *closer* ends the job in its ledger (L6): its `Started` fences whoever may still run; a stop that had reached its
//! `Checkpoint` is finished as any later generation would (K4); then comes the terminal entry, retention is obeyed and
//! dead prefixes are swept (K6). A *dispose* helper removes one savepoint of a job that has ended (L5): the end stays what
//! it was, so a later start finds it. Callers rely on: neither deploys anything, spends a restart or carries a directive
//! out, and what happened is in the exit record.

use super::ending::REMOVAL_PATIENCE;
use super::journal::{EndKind, Intent};
use super::{CloseEnd, JobMaster, Phase, StartFrom};
use crate::failure::{ExitKind, ExitRecord, Failure, Fault, Retry};
use crate::ledger::{Ends, StartCause};
use crate::paths::{self, SnapshotLocation};

/// Reason in the exit record of a helper that has removed a savepoint.
pub const DISPOSED: &str = "Disposed";
/// The same where objects of it may be left.
pub const DISPOSAL_INCOMPLETE: &str = "DisposalIncomplete";
/// Reason in the exit record of a closer that has ended a ledger in which the start that it fences was never carried out.
pub const NOTHING_BEGUN: &str = "NothingBegun";
/// Reason in the ledger of a job that has failed because its JobManagers were lost.
const RESTARTS_SPENT: &str = "JobManagerLost";

impl JobMaster {
    // --- Closing ----------------------------------------------------------------------------------------------

    /// Takes the ledger to end the job.
    pub(super) fn close_job(&mut self, end: CloseEnd) {
        self.wanted_end = Some(self.closing_end(end));
        self.claim_as(StartCause::Close, self.restore_reference());
    }

    /// As it was asked for, unless the job had reached the checkpoint that it was to end with: there is no way back then
    /// (K4). Where that was a stop without a savepoint, a deletion may still be one.
    fn closing_end(&self, end: CloseEnd) -> EndKind {
        let fold = &self.journal.fold;
        let asked = match end {
            CloseEnd::Stopped => EndKind::Stopped,
            CloseEnd::Cancelled => EndKind::Cancelled,
            CloseEnd::Failed => EndKind::Failed { failure: restarts_spent(), is_users: false },
        };
        match fold.ending {
            Ends::Stop if end == CloseEnd::Cancelled && !fold.has_stopped_with_savepoint() => asked,
            Ends::Stop | Ends::Finish if !self.config.planted.closes_unfinished => self.reached_end(),
            _ => asked,
        }
    }

    /// Says of a ledger that was ended whether the start that it fences had begun in it: where that had not, the job's state is
    /// elsewhere, also where the ledger tells of an earlier stay (C3).
    pub(super) fn with_nothing_begun(&self, record: ExitRecord) -> ExitRecord {
        let is_closer = matches!(self.config.directive.start, StartFrom::Close { .. });
        let has_ended = matches!(record.kind, ExitKind::Stopped | ExitKind::Finished);
        if is_closer && has_ended && self.journal.fold.directive != self.config.directive.id {
            return ExitRecord { kind: ExitKind::Stopped, reason: NOTHING_BEGUN.to_owned(), ..record };
        }
        record
    }

    // --- Disposing --------------------------------------------------------------------------------------------

    /// Takes the ledger to remove a savepoint, unless that may not be.
    pub(super) fn begin_disposal(&mut self, path: &str) {
        let path = SnapshotLocation::parse(path, None).directory;
        match self.disposal_refusal(&path) {
            Some(refusal) => self.exit_user_error(&refusal),
            None => self.claim_as(StartCause::Dispose, None),
        }
    }

    /// The ledger is taken, and its end is what it was.
    pub(super) fn dispose_after_end(&mut self, path: &str) {
        self.phase = Phase::Disposing;
        let path = SnapshotLocation::parse(path, None).directory;
        self.append(Intent::Dispose { id: DISPOSED.to_owned(), path });
    }

    /// `Disposed` stands: the process goes when the files are gone.
    pub(super) fn leave_disposed(&mut self, path: &str) {
        let record = ExitRecord::new(ExitKind::Stopped, DISPOSED, format!("{path} was removed"));
        self.phase = Phase::Exiting { record, deadline: self.now.plus(REMOVAL_PATIENCE) };
    }

    /// Says what a disposal, or an end, could not remove.
    pub(super) fn with_left_behind(&self, record: ExitRecord) -> ExitRecord {
        let late = || self.operations.has_background().then_some("the checkpoint storage does not answer in time");
        let Some(why) = self.cleanup_failure().or_else(late) else { return record };
        if record.reason == DISPOSED {
            let message = format!("objects of it may be left, and nobody needs them any more: {why}");
            return ExitRecord::new(record.kind, DISPOSAL_INCOMPLETE, message);
        }
        let directory = paths::uri(self.config.storage_uri.as_deref(), self.journal.paths.directory());
        let message = format!(
            "{}; objects may be left that nobody needs any more, `sluice checkpoint gc {directory}` removes them: {why}",
            record.message
        );
        ExitRecord { message, ..record }
    }

    pub(super) fn exit_not_ended(&mut self, last: Option<u64>) {
        let found = last.map_or_else(|| "is empty".to_owned(), |last| format!("goes on at entry {last}"));
        let message = format!(
            "only when a job has ended may its savepoints be removed without its JobManager, and its ledger {found}: \
             nothing was changed"
        );
        self.exit_user_error(&Failure::user("JobNotEnded", message));
    }
}

fn restarts_spent() -> Failure {
    let message = "JobManagers were lost more often than restartStrategy allows; status.failures of the StreamJob tells of \
                   the last ones";
    let (reason, message) = (RESTARTS_SPENT.to_owned(), message.to_owned());
    Failure { reason, message, fault: Fault::External, retry: Retry::Never }
}
