//! What a start may do with the ledger it found: rules L3 and N3 as one pure function.

use crate::ids::{Generation, OperatorUid, ProcessId};
use crate::job_master::{CloseEnd, Directive, StartFrom};
use crate::ledger::entry::{Ends, Entry, EntryKind, Successor};
use crate::ledger::fold::{Fold, LedgerState, RestorePoint};

/// Who starts, and with what.
#[derive(Debug, Clone, Copy)]
pub struct Starter<'a> {
    /// Its generation.
    pub generation: Generation,
    /// The revision of the spec that it runs.
    pub revision: u64,
    /// Its process.
    pub process: &'a ProcessId,
    /// What it was told.
    pub directive: &'a Directive,
    /// Planted bug: skip the directive's conditions.
    pub(crate) ignore_directive: bool,
    /// Planted bug: entries of older revisions count as well.
    pub(crate) insists_on_m: bool,
    /// Planted bug: skip supersession.
    pub(crate) ignore_fence: bool,
}

/// What it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartDecision {
    /// Append `Started` and restore what a restart would restore.
    Continue(RestorePoint),
    /// Append `Started` and start empty.
    Empty,
    /// Append `Started` and restore this place.
    Path {
        /// As it was given.
        from: String,
        /// Drop state that no operator takes.
        allow_non_restored_state: bool,
        /// Give up what these sinks have staged and not committed.
        abandon_sinks: Vec<OperatorUid>,
    },
    /// Append `Started` and the terminal entry that a completed last checkpoint calls for.
    Conclude(Ends),
    /// Append `Started` and the terminal entry, in the place of a JobManager that cannot be reached (L6).
    Close(CloseEnd),
    /// Append `Started` and `Disposed` behind the terminal entry (L5).
    Dispose {
        /// As it was given.
        path: String,
    },
    /// Only a job that has ended lets a helper remove a savepoint (L5).
    NotEnded {
        /// Number of the last entry, if any.
        last: Option<u64>,
    },
    /// The job has ended already: report, append nothing.
    Report(LedgerState),
    /// A later generation, or another process of this one, has the ledger.
    Superseded(Generation),
    /// The ledger went on since the directive was written.
    StateMoved {
        /// Number of its last entry.
        last: u64,
    },
    /// The ledger ends before what the controller has seen.
    StateMissing {
        /// Number of its last entry from m on, if any.
        last: Option<u64>,
    },
    /// The job was handed to another candidate, which this release cannot follow.
    Elsewhere(LedgerState),
    /// The job goes on in another ledger (C3, G5).
    Moved(Successor),
}

/// Decides. `last` is the last entry from m on, `None` when there is none.
///
/// A directive is carried out once: where the fold holds its id already, it is a `continue` (N3), also when the
/// ledger still ends at m, because the first start may have ended right after its `Started` was reported.
///
/// Beyond m, entries of an older revision do not stop it. They cannot have carried it out, and the controller would
/// only repeat it with a newer m; meanwhile whoever of the older revision still runs would append the next entry, since
/// only a `Started` ends that. A checkpoint that the job ends with is concluded before anything else is begun (K4).
#[must_use]
pub fn decide_start(starter: &Starter<'_>, last: Option<&Entry>) -> StartDecision {
    let Directive { id, seen, start } = starter.directive;
    let Some(entry) = last else {
        return if *seen == 0 || starter.ignore_directive {
            without_ledger(start)
        } else {
            StartDecision::StateMissing { last: None }
        };
    };
    // Whoever the ledger was left for, only a new start of another state can follow.
    if let EntryKind::MovedTo { job_uid, directory } = &entry.kind
        && !matches!(start, StartFrom::Close { .. })
        && (!matches!(start, StartFrom::Path { .. } | StartFrom::Empty) || entry.fold.directive == *id)
    {
        return StartDecision::Moved(Successor { job_uid: job_uid.clone(), directory: directory.clone() });
    }
    if !starter.ignore_fence && entry.generation >= starter.generation && entry.process != *starter.process {
        return StartDecision::Superseded(entry.generation);
    }
    if entry.number < *seen && !starter.ignore_directive {
        return StartDecision::StateMissing { last: Some(entry.number) };
    }
    let fold = entry.folded();
    if fold.state == LedgerState::HandedOver {
        return StartDecision::Elsewhere(fold.state);
    }
    match start {
        // An end of an earlier stay fences nobody who was to start here since (C3).
        StartFrom::Close { .. } if fold.state.is_terminal() && (fold.directive == *id || entry.directive == *id) => {
            return StartDecision::Report(fold.state);
        }
        StartFrom::Close { end } => return StartDecision::Close(*end),
        StartFrom::Dispose { path } if fold.state.is_terminal() => {
            return StartDecision::Dispose { path: path.clone() };
        }
        StartFrom::Dispose { .. } => return StartDecision::NotEnded { last: Some(entry.number) },
        _ => {}
    }
    let is_outlived = (entry.revision < starter.revision && !starter.insists_on_m) || starter.ignore_directive;
    match start {
        StartFrom::Continue => continue_from(&fold),
        _ if fold.directive == *id && !starter.ignore_directive => continue_from(&fold),
        _ if entry.number != *seen && !is_outlived => StartDecision::StateMoved { last: entry.number },
        _ if !fold.state.is_terminal() && fold.ending != Ends::None => StartDecision::Conclude(fold.ending),
        // Resuming would read all input once more, and nobody has seen that there is nothing left to resume.
        StartFrom::ResumeLatest if entry.number > *seen && removes_all(entry, &fold) => {
            StartDecision::Report(fold.state)
        }
        StartFrom::ResumeLatest => StartDecision::Continue(fold.restore_point),
        StartFrom::Path { .. } => restore_place(start),
        StartFrom::Empty | StartFrom::Close { .. } | StartFrom::Dispose { .. } => StartDecision::Empty,
    }
}

fn restore_place(start: &StartFrom) -> StartDecision {
    let StartFrom::Path { from, allow_non_restored_state, abandon_sinks } = start.clone() else {
        return StartDecision::Empty;
    };
    StartDecision::Path { from, allow_non_restored_state, abandon_sinks }
}

/// Whether the job has ended and its checkpoints went with it. The end need not be the last entry: a helper's may follow.
fn removes_all(entry: &Entry, fold: &Fold) -> bool {
    let drops = match &entry.kind {
        EntryKind::Finished { drops } | EntryKind::Cancelled { drops } => !drops.is_empty(),
        _ => false,
    };
    let goes_on_from_own = match &fold.restore_point {
        RestorePoint::Latest => true,
        RestorePoint::Snapshot(reference) => !reference.is_foreign,
        RestorePoint::Empty => false,
    };
    let has_ended = matches!(fold.state, LedgerState::Finished | LedgerState::Cancelled);
    has_ended && fold.retained.is_empty() && (drops || goes_on_from_own)
}

fn without_ledger(start: &StartFrom) -> StartDecision {
    match start {
        StartFrom::Path { .. } => restore_place(start),
        // Whoever was started before and has not appended yet finds that it may not any more.
        StartFrom::Close { end } => StartDecision::Close(*end),
        StartFrom::Dispose { .. } => StartDecision::NotEnded { last: None },
        StartFrom::Continue | StartFrom::ResumeLatest | StartFrom::Empty => StartDecision::Empty,
    }
}

fn continue_from(fold: &Fold) -> StartDecision {
    if fold.state.is_terminal() {
        return StartDecision::Report(fold.state);
    }
    match fold.ending {
        Ends::None => StartDecision::Continue(fold.restore_point.clone()),
        ends => StartDecision::Conclude(ends),
    }
}
