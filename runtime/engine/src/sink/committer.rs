//! Two-phase commit, the second half: committing handles of complete checkpoints, and aborting what was left (S1-S6).
//!
//! It runs in the JobManager's process, never in a task: a commit holds up no row, and no task that has been given up can
//! commit anything. Callers rely on: [`commit_all`] answers for every handle, in order, whatever a committer does.

use crate::error::TaskError;
use crate::program::Program;
use sluice_protocol::commit::{CommitHandle, CommitOutcome, Leftovers, SinkLife, StagedLife};
use sluice_protocol::state::Committable;
use sluice_protocol::{JobId, OperatorUid, Run};
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// After so many of a sink's commits in a row that could not be done, the rest of its handles wait for the next pass.
const FAILURES: u32 = 3;

/// What a committer is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitterContext {
    /// The job.
    pub job: JobId,
    /// The sink.
    pub sink: OperatorUid,
}

/// Commits and aborts the transactions of a sink. May block; is called on a thread where that hurts nobody.
///
/// Duties:
/// - `commit` may be called again for what is committed, at any later time, by another process, or by two at once: it says
///   [`Commit::AlreadyCommitted`] then, and readers see every row once;
/// - it tells that apart from [`CommitError::Lost`]: what was staged is gone and was *not* committed;
/// - `abort` removes what attempts before `older_than` of this sink and job began, committed or not is no matter of names:
///   only what is invisible goes, and never what one of `spared` needs.
pub trait Committer: Send {
    /// Makes what was staged visible, all of a handle at once.
    ///
    /// # Errors
    /// When it cannot be done now, or never.
    fn commit(&mut self, committable: &Committable) -> Result<Commit, CommitError>;

    /// Commits several of the sink's, and answers for each, in order. For sinks that can have more than one under way at once.
    ///
    /// After some failures in a row the rest waits for the next pass: where a service does not answer, each would take its
    /// whole deadline while the other sinks wait.
    fn commit_each(&mut self, committables: &[&Committable]) -> Vec<Result<Commit, CommitError>> {
        commit_in_turn(self, committables)
    }

    /// Removes what lost attempts left invisible. Says how many transactions it found.
    ///
    /// # Errors
    /// When the counterpart does not answer: tried again later.
    fn abort(&mut self, older_than: Run, spared: &[Committable]) -> Result<u64, CommitError>;

    /// How long the target keeps what is staged (S4): asked once, when the job starts.
    ///
    /// # Errors
    /// When the counterpart does not answer: asked again later.
    fn life(&mut self) -> Result<StagedLife, CommitError> {
        Ok(StagedLife::Unlimited)
    }
}

/// Commits one after the other, as [`Committer::commit_each`] promises.
pub fn commit_in_turn<C: Committer + ?Sized>(
    committer: &mut C,
    committables: &[&Committable],
) -> Vec<Result<Commit, CommitError>> {
    let (mut failures, mut last) = (0, String::new());
    let commit = |committable: &&Committable| {
        if failures == FAILURES {
            return Err(CommitError::Retriable(last.clone()));
        }
        let committed = committer.commit(committable);
        if let Err(CommitError::Retriable(message)) = &committed {
            failures += 1;
            last.clone_from(message);
        } else {
            failures = 0;
        }
        committed
    };
    committables.iter().map(commit).collect()
}

/// A commit that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// By this call.
    Committed,
    /// By an earlier one.
    AlreadyCommitted,
}

/// A commit that is not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Trying again may help.
    #[error("{0}")]
    Retriable(String),
    /// Never: what was staged is gone, and was not committed.
    #[error("{0}")]
    Lost(String),
    /// The same, and the table says to go on without it.
    #[error("{0}")]
    GivenUp(String),
}

impl CommitError {
    /// A handle of a version that this release does not write. It stays where it is.
    #[must_use]
    pub fn unknown_version(found: u32, known: u32) -> Self {
        Self::Retriable(format!(
            "the handle has version {found}, this release knows versions up to {known}: run the release that wrote it, or a \
             newer one"
        ))
    }
}

/// Commits handles, those of a sink together, by its committer.
#[must_use]
pub fn commit_all(program: &Program, job: &JobId, handles: &[CommitHandle]) -> Vec<CommitOutcome> {
    let mut sinks: BTreeMap<&OperatorUid, Vec<usize>> = BTreeMap::new();
    for (place, handle) in handles.iter().enumerate() {
        sinks.entry(&handle.sink).or_default().push(place);
    }
    let mut outcomes = vec![None; handles.len()];
    for (sink, places) in sinks {
        let own: Vec<&Committable> = places.iter().map(|place| &handles[*place].committable).collect();
        let committed = match committer_of(program, job, sink) {
            Ok(mut committer) => committer.commit_each(&own),
            Err(message) => own.iter().map(|_| Err(CommitError::Retriable(message.clone()))).collect(),
        };
        for (place, committed) in places.into_iter().zip(committed) {
            outcomes[place] = Some(outcome_of(sink, committed));
        }
    }
    let unanswered =
        || CommitOutcome::Retry("a sink's committer gave no answer; this is a fault of the sink".to_owned());
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
}

fn outcome_of(sink: &OperatorUid, committed: Result<Commit, CommitError>) -> CommitOutcome {
    match committed {
        Ok(Commit::Committed | Commit::AlreadyCommitted) => CommitOutcome::Settled,
        Err(CommitError::Lost(message)) => CommitOutcome::Lost(message),
        Err(CommitError::GivenUp(message)) => CommitOutcome::GivenUp(message),
        Err(CommitError::Retriable(message)) => CommitOutcome::Retry(format!("sink '{sink}': {message}")),
    }
}

/// Aborts what lost attempts left open in all transactional sinks; says why not all of it could be.
#[must_use]
pub fn abort_leftovers(program: &Program, leftovers: &Leftovers) -> Option<String> {
    let Leftovers { job, older_than, spared } = leftovers;
    let mut failure = None;
    for sink in program.graph.transactional_sinks() {
        let own = spared.iter().filter(|handle| handle.sink == *sink);
        let own: Vec<Committable> = own.map(|handle| handle.committable.clone()).collect();
        let aborted = committer_of(program, job, sink)
            .and_then(|mut committer| committer.abort(*older_than, &own).map_err(|error| error.to_string()));
        if let Err(message) = aborted {
            failure.get_or_insert(format!("sink '{sink}': {message}"));
        }
    }
    failure
}

/// How long the targets of all transactional sinks keep what is staged.
///
/// # Errors
/// When one of them does not answer.
pub fn lives(program: &Program, job: &JobId) -> Result<Vec<SinkLife>, String> {
    let sinks = program.graph.transactional_sinks().map(|sink| {
        let life = committer_of(program, job, sink)
            .and_then(|mut committer| committer.life().map_err(|error| error.to_string()));
        let life = life.map_err(|message| format!("sink '{sink}': {message}"))?;
        Ok(SinkLife { sink: sink.clone(), life })
    });
    sinks.collect()
}

fn committer_of(program: &Program, job: &JobId, uid: &OperatorUid) -> Result<Box<dyn Committer>, String> {
    let sinks = program.vertices.iter().filter_map(|vertex| vertex.sink.as_ref());
    let (_, factory) = sinks.into_iter().find(|(sink, _)| sink == uid).ok_or("the program has no such sink")?;
    let made = factory.committer(CommitterContext { job: job.clone(), sink: uid.clone() });
    let made = made.map_err(|error: TaskError| error.to_string())?;
    made.ok_or_else(|| "it has no committer".to_owned())
}
