//! Finds the snapshots below a place: by the ledgers of jobs, and where there is none by `_metadata` alone.
//!
//! A job's ledger says which of its checkpoints are complete and retained (K1); others in its directory are leftovers
//! that the job itself removes, and are not shown.

use super::place::Place;
use crate::error::CommandError;
use sluice_protocol::history::CheckpointRecord;
use sluice_protocol::ledger::{Entry, Fold, LedgerState, RetainedCheckpoint};
use sluice_protocol::metadata::Metadata;
use sluice_protocol::paths::{JobPaths, METADATA, parse_uid};
use sluice_protocol::{CheckpointId, JobId, Timestamp};
use std::collections::BTreeMap;

/// A snapshot that can be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its job's directory, `namespace/name-uid` at its end.
    pub(crate) job: String,
    /// Its id.
    pub(crate) id: CheckpointId,
    /// Whether it is a savepoint.
    pub(crate) is_savepoint: bool,
    /// Address of its directory.
    pub(crate) uri: String,
    /// When it was complete; when it was triggered where no ledger tells.
    pub(crate) at: Timestamp,
    /// Bytes of state.
    pub(crate) bytes: u64,
    /// What its job does as far as the ledger knows; `None` without a ledger.
    pub(crate) job_state: Option<LedgerState>,
}

/// How the last checkpoints of a job went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobHistory {
    /// Its directory.
    pub(crate) job: String,
    /// Oldest first.
    pub(crate) records: Vec<CheckpointRecord>,
}

/// All snapshots below the place, by job and id.
pub(crate) async fn find(place: &Place) -> Result<Vec<Found>, CommandError> {
    Ok(find_with_histories(place).await?.0)
}

/// All snapshots below the place, and what the ledgers tell of how the last ones went.
pub(crate) async fn find_with_histories(place: &Place) -> Result<(Vec<Found>, Vec<JobHistory>), CommandError> {
    let keys = place.executor.home().list("", None).await?;
    let addresses: Vec<String> = keys.iter().map(|key| format!("{}/{key}", place.uri)).collect();
    let ledgers = last_entries(&addresses);
    let (mut found, mut histories) = (Vec::new(), Vec::new());
    for (directory, number) in &ledgers {
        let Some(fold) = fold_of(place, directory, *number).await? else { continue };
        found.extend(retained_of(directory, &fold));
        histories.push(JobHistory { job: job_of(directory), records: fold.history });
    }
    let directories = addresses.iter().filter_map(|uri| uri.strip_suffix(METADATA)?.strip_suffix('/'));
    let in_ledger =
        |uri: &str| ledgers.keys().any(|job| uri.strip_prefix(job.as_str()).is_some_and(|rest| rest.starts_with('/')));
    for uri in directories.filter(|uri| !in_ledger(uri)) {
        found.extend(alone(place, uri).await?);
    }
    found.retain(|found| place.only.as_ref().is_none_or(|only| is_of(only, &found.job)));
    histories.retain(|history| place.only.as_ref().is_none_or(|only| is_of(only, &history.job)));
    found.sort_by(|a, b| (&a.job, a.id, &a.uri).cmp(&(&b.job, b.id, &b.uri)));
    Ok((found, histories))
}

/// The directories of jobs with the number of their last ledger entry.
pub(super) fn last_entries(addresses: &[String]) -> BTreeMap<String, u64> {
    let mut last = BTreeMap::new();
    for uri in addresses {
        let Some((directory, _)) = uri.rsplit_once("/ledger/") else { continue };
        if let Some(number) = JobPaths::of_directory(directory).parse_ledger_entry(uri) {
            let known = last.entry(directory.to_owned()).or_insert(number);
            *known = number.max(*known);
        }
    }
    last
}

async fn fold_of(place: &Place, directory: &str, number: u64) -> Result<Option<Fold>, CommandError> {
    let key = JobPaths::of_directory(directory).ledger_entry(number);
    // Trimmed between the list and now: its job goes on, so what this entry says is no longer of use.
    let Some(bytes) = place.get(&key).await? else { return Ok(None) };
    Ok(Some(Entry::from_bytes(&bytes, &key)?.folded()))
}

fn retained_of(directory: &str, fold: &Fold) -> Vec<Found> {
    let paths = JobPaths::of_directory(directory);
    let found = |kept: &RetainedCheckpoint| Found {
        job: job_of(directory),
        id: kept.key.id,
        is_savepoint: false,
        uri: paths.checkpoint_directory(kept.key.generation, kept.key.id),
        at: kept.completed_at,
        bytes: kept.bytes,
        job_state: Some(fold.state),
    };
    fold.retained.iter().map(found).collect()
}

async fn alone(place: &Place, uri: &str) -> Result<Option<Found>, CommandError> {
    let key = format!("{uri}/{METADATA}");
    let Some(bytes) = place.get(&key).await? else { return Ok(None) };
    let metadata = Metadata::from_bytes(&bytes, &key)?;
    Ok(Some(Found {
        job: metadata.job.to_string(),
        id: metadata.checkpoint,
        is_savepoint: metadata.savepoint,
        uri: uri.to_owned(),
        at: metadata.triggered_at,
        bytes: metadata.state_bytes(),
        job_state: None,
    }))
}

/// The last two segments of a job directory's address.
pub(super) fn job_of(directory: &str) -> String {
    let mut segments: Vec<&str> = directory.rsplit('/').take(2).collect();
    segments.reverse();
    segments.join("/")
}

pub(super) fn is_of(only: &JobId, job: &str) -> bool {
    parse_uid(only, &format!("{job}/")).is_some()
}
