//! `sluice checkpoint gc`: removes what a job that has ended left around its ledger and nobody needs (K6).
//!
//! What that is says [`sluice_protocol::reach`]. A job of which a process lives cleans up by itself, and knows what is under
//! way: without a terminal entry in the ledger this is refused, unless a person answers for it. Callers rely on: nothing is
//! removed before everything was looked through and the ledger was found unchanged; a failure removes no more than it says.

use super::find::{is_of, job_of, last_entries};
use super::place::Place;
use crate::error::CommandError;
use crate::output;
use futures::{StreamExt as _, TryStreamExt as _};
use sluice_protocol::ledger::{CheckpointKey, Entry};
use sluice_protocol::metadata::Metadata;
use sluice_protocol::paths::JobPaths;
use sluice_protocol::reach::Reach;
use sluice_protocol::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply, UnfinishedUpload};
use std::collections::BTreeSet;

/// Sizes that are asked for at once.
const PARALLEL: usize = 16;

/// Objects per delete, uploads per abort.
const BATCH: usize = 200;

/// The exit code when not every place could be looked through.
const PARTLY: u8 = 1;

/// What is to be done.
pub(super) struct Options {
    /// Nothing is removed.
    pub(super) is_dry: bool,
    /// Where savepoints may lie beside the places that the ledger names.
    pub(super) roots: Vec<String>,
    /// Why it may be done although the ledger does not say that the job has ended.
    pub(super) force: Option<String>,
}

/// What nobody needs.
#[derive(Default)]
struct Litter {
    /// Addresses of objects with their sizes.
    objects: Vec<(String, u64)>,
    uploads: Vec<UnfinishedUpload>,
    /// Places that could not be looked through, and why.
    skipped: Vec<(String, StoreFailure)>,
}

pub(super) async fn gc(place: &Place, options: &Options) -> Result<u8, CommandError> {
    let (directory, number) = only_job(place).await?;
    let paths = JobPaths::of_directory(&directory);
    let last = read_entry(place, &paths, number).await?;
    let mut reach = Reach::new(paths.clone(), &last);
    check_ended(&directory, &reach, options.force.as_deref())?;
    for key in reach.kept() {
        let metadata = read_kept(place, &paths, key).await?;
        reach.know_files(key, &metadata);
    }
    let litter = look_around(place, &paths, &reach, options).await?;
    output::print(&describe(&directory, &litter));
    for (root, failure) in &litter.skipped {
        output::complain(&format!("{root} was not looked through: {failure}"));
    }
    if options.is_dry {
        output::complain("nothing was removed: this was a dry run");
    } else if !litter.objects.is_empty() || !litter.uploads.is_empty() {
        check_unchanged(place, &paths, &reach).await?;
        remove(place, &litter).await?;
    }
    Ok(if litter.skipped.is_empty() { 0 } else { PARTLY })
}

/// The directory of the one job there, and the number of its last entry.
async fn only_job(place: &Place) -> Result<(String, u64), CommandError> {
    let keys = place.executor.home().list("", None).await?;
    let addresses: Vec<String> = keys.iter().map(|key| format!("{}/{key}", place.uri)).collect();
    let mut jobs = last_entries(&addresses);
    jobs.retain(|directory, _| place.only.as_ref().is_none_or(|only| is_of(only, &job_of(directory))));
    match jobs.len() {
        1 => {}
        0 => {
            return Err(CommandError::Usage(format!(
                "there is no ledger of a job below {}; give the directory of a job, <storage>/<namespace>/<name>-<uid>",
                place.uri
            )));
        }
        _ => {
            let names: Vec<_> = jobs.keys().map(String::as_str).collect();
            return Err(CommandError::Usage(format!(
                "{} holds several jobs; give the directory of one: {}",
                place.uri,
                names.join(", ")
            )));
        }
    }
    jobs.pop_first().ok_or_else(|| CommandError::Usage("there is no job".to_owned()))
}

async fn read_entry(place: &Place, paths: &JobPaths, number: u64) -> Result<Entry, CommandError> {
    let key = paths.ledger_entry(number);
    let Some(bytes) = place.get(&key).await? else { return Err(went_on(paths)) };
    Ok(Entry::from_bytes(&bytes, &key)?)
}

fn went_on(paths: &JobPaths) -> CommandError {
    CommandError::Usage(format!(
        "the ledger of {} goes on while it is read, so something runs the job: nothing was removed",
        paths.directory()
    ))
}

fn check_ended(directory: &str, reach: &Reach, force: Option<&str>) -> Result<(), CommandError> {
    let state = reach.fold().state;
    if state.is_terminal() {
        return Ok(());
    }
    let Some(reason) = force.map(str::trim).filter(|reason| !reason.is_empty()) else {
        return Err(CommandError::Usage(format!(
            "the ledger of {directory} does not say that the job has ended ({state:?} since entry {}), and a job that runs \
             cleans up by itself: stop it first. If nothing runs it any more, such as after the loss of its cluster, say so: \
             --force 'why that is certain'",
            reach.last()
        )));
    };
    output::complain(&format!("the ledger does not say that the job has ended ({state:?}); forced: {reason}"));
    Ok(())
}

/// What a checkpoint that must stay refers to; without that nothing can be told from litter.
async fn read_kept(place: &Place, paths: &JobPaths, key: CheckpointKey) -> Result<Metadata, CommandError> {
    let address = paths.metadata(key.generation, key.id);
    let Some(bytes) = place.get(&address).await? else {
        return Err(CommandError::State {
            place: address,
            detail: "the ledger retains this checkpoint, but it is gone, so nobody can tell which files belong to it; \
                     nothing was removed"
                .to_owned(),
        });
    };
    Ok(Metadata::from_bytes(&bytes, &address)?)
}

/// Looks through the job's directory and all places of its savepoints.
async fn look_around(
    place: &Place,
    paths: &JobPaths,
    reach: &Reach,
    options: &Options,
) -> Result<Litter, CommandError> {
    let mut litter = Litter::default();
    let prefix = format!("{}/", paths.directory());
    let mut dead = reach.dead_objects(list(place, &prefix).await?);
    litter.uploads = uploads(place, reach, &prefix).await?;
    let roots: BTreeSet<String> = reach.savepoint_roots().into_iter().chain(options.roots.iter().cloned()).collect();
    for root in roots {
        let prefix = reach.savepoint_prefix(&root);
        let found =
            async { Ok::<_, StoreFailure>((list(place, &prefix).await?, uploads(place, reach, &prefix).await?)) };
        match found.await {
            Ok((keys, uploads)) => {
                dead.extend(reach.dead_savepoints(&prefix, keys));
                litter.uploads.extend(uploads);
            }
            Err(failure) => litter.skipped.push((root, failure)),
        }
    }
    litter.objects = futures::stream::iter(dead.into_iter().map(|key| sized(place, key)))
        .buffered(PARALLEL)
        .try_filter_map(|sized| async move { Ok(sized) })
        .try_collect()
        .await?;
    Ok(litter)
}

async fn list(place: &Place, prefix: &str) -> Result<Vec<String>, StoreFailure> {
    let operation = StoreOperation::List { prefix: prefix.to_owned(), start_after: None };
    match place.executor.execute(operation).await {
        StoreReply::Keys(keys) => Ok(keys),
        other => Err(failure_of(other)),
    }
}

async fn uploads(place: &Place, reach: &Reach, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreFailure> {
    match place.executor.execute(StoreOperation::ListUploads { prefix: prefix.to_owned() }).await {
        StoreReply::Uploads(mut found) => {
            found.retain(|upload| reach.is_dead_upload(prefix, &upload.key));
            Ok(found)
        }
        other => Err(failure_of(other)),
    }
}

fn failure_of(reply: StoreReply) -> StoreFailure {
    match reply {
        StoreReply::Failed(failure) => failure,
        other => {
            let message = format!("the store's answer {other:?} does not fit what was asked");
            StoreFailure { kind: StoreFailureKind::Unsuitable, message }
        }
    }
}

/// With its size; nothing, when it is gone by now.
async fn sized(place: &Place, key: String) -> Result<Option<(String, u64)>, StoreFailure> {
    let (store, inner) = place.executor.resolve(&key)?;
    Ok(store.head(&inner).await?.map(|size| (key, size)))
}

fn describe(directory: &str, litter: &Litter) -> String {
    let Litter { objects, uploads, .. } = litter;
    if objects.is_empty() && uploads.is_empty() {
        return format!("nothing around {directory} that its ledger does not reach\n");
    }
    let rows = objects.iter().map(|(key, size)| vec!["object".to_owned(), output::bytes(*size), key.clone()]);
    let uploads_of = |upload: &UnfinishedUpload| vec!["upload".to_owned(), String::new(), upload.key.clone()];
    let rows: Vec<_> = rows.chain(uploads.iter().map(uploads_of)).collect();
    let table = output::table(&["KIND", "SIZE", "PATH"], &rows, "");
    format!("{table}{}\n", total(litter))
}

/// `3 objects, 1.5 KiB, and 2 unfinished uploads`; what an upload takes no store tells.
fn total(litter: &Litter) -> String {
    let bytes = litter.objects.iter().map(|(_, size)| size).sum();
    let (objects, uploads) = (litter.objects.len(), litter.uploads.len());
    format!("{objects} objects, {}, and {uploads} unfinished uploads", output::bytes(bytes))
}

/// Whatever starts meanwhile begins with an entry.
async fn check_unchanged(place: &Place, paths: &JobPaths, reach: &Reach) -> Result<(), CommandError> {
    let keys = list(place, &paths.ledger_prefix()).await?;
    let last = keys.iter().filter_map(|key| paths.parse_ledger_entry(key)).max();
    if last == Some(reach.last()) { Ok(()) } else { Err(went_on(paths)) }
}

async fn remove(place: &Place, litter: &Litter) -> Result<(), CommandError> {
    let keys: Vec<String> = litter.objects.iter().map(|(key, _)| key.clone()).collect();
    let deletes = keys.chunks(BATCH).map(|keys| StoreOperation::Delete { keys: keys.to_vec() });
    let aborts = litter.uploads.chunks(BATCH);
    let aborts = aborts.map(|uploads| StoreOperation::AbortUploads { uploads: uploads.to_vec() });
    let mut refused = None;
    for operation in deletes.chain(aborts) {
        let reply = place.executor.execute(operation).await;
        if reply != StoreReply::Deleted {
            // What can go goes, whatever is refused beside it.
            refused = refused.or(Some(failure_of(reply)));
        }
    }
    if let Some(failure) = refused {
        output::complain("not everything could be removed; the same command goes on with what is left");
        return Err(failure.into());
    }
    output::complain(&format!("removed: {}", total(litter)));
    Ok(())
}
