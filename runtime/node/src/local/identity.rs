//! Who a local job is, which generation it runs as, and what it starts from (N1, N2, N3).
//!
//! The uid of the last run is kept beside the checkpoints, in `<namespace>/<name>.uid`. A run that does not resume is
//! a new job: it takes a new uid, and what older ones left stays where it is. The new uid is kept once the run has a
//! ledger, so that one that never started, after a mistyped path for one, leaves the last run to be resumed.

use super::LocalStart;
use crate::edge;
use crate::job_manager::store::{self, LedgerReadError, Storage, jittered};
use sluice_protocol::failure::Failure;
use sluice_protocol::job_master::{Directive, StartFrom};
use sluice_protocol::status::JobStatus;
use sluice_protocol::store::{StoreFailure, StoreFailureKind};
use sluice_protocol::{Generation, JobId};
use std::time::Duration;
use tokio::sync::watch;
use tracing::warn;

/// Between tries; it grows with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What the run is.
pub(super) struct Identity {
    pub(super) job: JobId,
    pub(super) generation: Generation,
    pub(super) directive: Directive,
}

/// Takes the identity; waits for a store that does not answer, and says so in `waits_for`.
///
/// # Errors
/// When there is nothing to resume, or the store refuses.
pub(super) async fn take(
    storage: &Storage,
    namespace: &str,
    name: &str,
    start: &LocalStart,
    waits_for: &mut Option<StoreFailure>,
) -> Result<Identity, Failure> {
    let mut pause = FIRST_PAUSE;
    loop {
        let failure = match try_take(storage, namespace, name, start).await {
            Ok(identity) => return Ok(identity),
            Err(TakeError::Failure(failure)) => return Err(failure),
            Err(TakeError::Store(failure)) => failure,
        };
        if failure.kind != StoreFailureKind::Unreachable {
            return Err(store::refusal(&failure));
        }
        warn!("waiting for the checkpoint storage: {failure}");
        *waits_for = Some(failure);
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum TakeError {
    Failure(Failure),
    Store(StoreFailure),
}

impl From<StoreFailure> for TakeError {
    fn from(failure: StoreFailure) -> Self {
        Self::Store(failure)
    }
}

impl From<LedgerReadError> for TakeError {
    fn from(error: LedgerReadError) -> Self {
        match error {
            LedgerReadError::Store(failure) => Self::Store(failure),
            LedgerReadError::Unreadable(error) => Self::Failure(Failure::user("LedgerUnreadable", error.to_string())),
        }
    }
}

async fn try_take(storage: &Storage, namespace: &str, name: &str, start: &LocalStart) -> Result<Identity, TakeError> {
    let job = |uid: String| JobId { namespace: namespace.to_owned(), name: name.to_owned(), uid };
    let directive = |seen, start| Directive { id: format!("local-{}", edge::random_id()), seen, start };
    let start = match start {
        LocalStart::Resume => return resume(storage, job, directive).await,
        LocalStart::Empty => StartFrom::Continue,
        LocalStart::Snapshot { from, allow_non_restored_state, abandon_sinks } => StartFrom::Path {
            from: from.clone(),
            allow_non_restored_state: *allow_non_restored_state,
            abandon_sinks: abandon_sinks.clone(),
        },
    };
    // Whether the storage answers is known before the job is built.
    storage.executor.home().get(&uid_key(&job(String::new()))).await?;
    Ok(Identity { job: job(edge::random_id()), generation: Generation(1), directive: directive(0, start) })
}

async fn resume(
    storage: &Storage,
    job: impl Fn(String) -> JobId,
    directive: impl Fn(u64, StartFrom) -> Directive,
) -> Result<Identity, TakeError> {
    let nothing = |why: String| {
        let text = format!("--resume: there is nothing to resume: {why}; run without --resume to start anew");
        TakeError::Failure(Failure::user("NothingToResume", text))
    };
    let Some(uri) = &storage.uri else {
        return Err(nothing("the manifest has no spec.checkpointing, so no checkpoint was ever taken".to_owned()));
    };
    let key = uid_key(&job(String::new()));
    let uid = storage.executor.home().get(&key).await?;
    let uid = uid.ok_or_else(|| nothing(format!("no job of this name ran with checkpoints in {uri}")))?;
    let job = job(String::from_utf8_lossy(&uid).trim().to_owned());
    let Some(entry) = store::last_entry(&storage.executor, &job).await? else {
        return Ok(Identity { job, generation: Generation(1), directive: directive(0, StartFrom::Continue) });
    };
    let directive = directive(entry.number, StartFrom::ResumeLatest);
    Ok(Identity { job, generation: entry.generation.next(), directive })
}

fn uid_key(job: &JobId) -> String {
    format!("{}/{}.uid", job.namespace, job.name)
}

/// Keeps the uid of a run once its `Started` stands, however often the store has to be asked. Returns then, or when the job
/// has ended without.
pub(super) async fn keep(storage: Storage, job: JobId, mut status: watch::Receiver<JobStatus>) {
    if storage.uri.is_none() || status.wait_for(|status| status.ledger_entry > 0).await.is_err() {
        return;
    }
    let mut pause = FIRST_PAUSE;
    while let Err(failure) = keep_uid(&storage, &job).await {
        warn!("--resume would not find this run yet: {failure}");
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn keep_uid(storage: &Storage, job: &JobId) -> Result<(), StoreFailure> {
    let key = uid_key(job);
    let store = storage.executor.home();
    if store.get(&key).await?.is_some_and(|kept| kept == job.uid.as_bytes()) {
        return Ok(());
    }
    store.delete(std::slice::from_ref(&key)).await?;
    store.put_if_absent(&key, job.uid.clone().into_bytes().into()).await?;
    Ok(())
}
