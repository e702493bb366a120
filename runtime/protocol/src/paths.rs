//! Every object path of a job, from one place, and what can be read out of a path (docs/protocol.md, N1, L1, K2).
//!
//! ```text
//! <root>/<namespace>/<name>-<uid>/ledger/0000000042.json
//!                                 <generation>/chk-50/_metadata
//!                                 <generation>/shared/50-… files that checkpoint 50 and later ones refer to
//!                                 probe-…/ what a start asks the store with (L7)
//! ```
//!
//! Paths are relative to the root of checkpoint storage. Callers rely on: what [`JobPaths`] writes, the
//! `parse_*` functions read back; nothing else in the project joins path segments of a job.

use crate::ids::{CheckpointId, Generation, JobId, Run, SubtaskId};
use crate::ledger::CheckpointKey;
use std::collections::BTreeSet;

/// Name of the object that makes a snapshot of the files beside it.
pub const METADATA: &str = "_metadata";

/// The paths of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPaths {
    directory: String,
}

impl JobPaths {
    /// Those of this job.
    #[must_use]
    pub fn new(job: &JobId) -> Self {
        Self { directory: job.to_string() }
    }

    /// Those of a job directory, relative or absolute.
    #[must_use]
    pub fn of_directory(directory: &str) -> Self {
        Self { directory: directory.trim_end_matches('/').to_owned() }
    }

    /// The job's directory.
    #[must_use]
    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// A place as this job's ledger means it: relative to the root of the job's storage.
    #[must_use]
    pub fn resolve(&self, place: &str) -> String {
        let root = self.root();
        if place.contains("://") || root.is_empty() { place.to_owned() } else { format!("{root}/{place}") }
    }

    /// The root of the job's storage; empty when the directory is relative to it.
    #[must_use]
    pub fn root(&self) -> &str {
        self.directory.rsplitn(3, '/').nth(2).unwrap_or_default()
    }

    /// What the keys of all ledger entries begin with.
    #[must_use]
    pub fn ledger_prefix(&self) -> String {
        format!("{}/ledger/", self.directory)
    }

    /// A ledger entry: ten digits, so that LIST returns them in order (L1).
    #[must_use]
    pub fn ledger_entry(&self, number: u64) -> String {
        format!("{}/ledger/{number:010}.json", self.directory)
    }

    /// The directory of a generation's checkpoints.
    #[must_use]
    pub fn generation_directory(&self, generation: Generation) -> String {
        format!("{}/{generation}", self.directory)
    }

    /// The directory of a checkpoint.
    #[must_use]
    pub fn checkpoint_directory(&self, generation: Generation, checkpoint: CheckpointId) -> String {
        format!("{}/{generation}/chk-{checkpoint}", self.directory)
    }

    /// The `_metadata` of a checkpoint.
    #[must_use]
    pub fn metadata(&self, generation: Generation, checkpoint: CheckpointId) -> String {
        format!("{}/{METADATA}", self.checkpoint_directory(generation, checkpoint))
    }

    /// What the keys of all files begin with that were stored for this checkpoint and may be part of later ones (K2).
    #[must_use]
    pub fn shared_prefix(&self, generation: Generation, checkpoint: CheckpointId) -> String {
        format!("{}/{generation}/{SHARED}/{checkpoint}-", self.directory)
    }

    /// The checkpoint that a shared file was stored for, from its key.
    #[must_use]
    pub fn parse_shared(&self, key: &str) -> Option<(Generation, CheckpointId)> {
        let rest = key.strip_prefix(&self.directory)?.strip_prefix('/')?;
        let (generation, rest) = rest.split_once('/')?;
        let (checkpoint, _) = rest.strip_prefix(SHARED)?.strip_prefix('/')?.split_once('-')?;
        Some((Generation(number(generation)?), CheckpointId(number(checkpoint)?)))
    }

    /// Where a start asks the store for its promises (L7), apart from all others.
    #[must_use]
    pub fn probe_directory(&self, nonce: &str) -> String {
        format!("{}/{PROBE}{nonce}", self.directory)
    }

    /// Whether an object is one of those that a start asks the store with.
    #[must_use]
    pub fn is_of_probe(&self, key: &str) -> bool {
        let rest = key.strip_prefix(&self.directory).and_then(|rest| rest.strip_prefix('/'));
        rest.is_some_and(|rest| rest.starts_with(PROBE))
    }

    /// The number of a ledger entry, from its key.
    #[must_use]
    pub fn parse_ledger_entry(&self, key: &str) -> Option<u64> {
        let digits = key.strip_prefix(&self.ledger_prefix())?.strip_suffix(".json")?;
        (digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
    }

    /// The checkpoint that an object lies under, from its key.
    #[must_use]
    pub fn parse_checkpoint(&self, key: &str) -> Option<(Generation, CheckpointId)> {
        let rest = key.strip_prefix(&self.directory)?.strip_prefix('/')?;
        let mut segments = rest.split('/');
        let generation = number(segments.next()?)?;
        let checkpoint = number(segments.next()?.strip_prefix("chk-")?)?;
        segments.next()?;
        Some((Generation(generation), CheckpointId(checkpoint)))
    }
}

/// The name of a file of state within its snapshot's own directory: generation, attempt, checkpoint and a nonce make it
/// unlike any other that was or will be written (K2).
#[must_use]
pub fn state_file(run: Run, checkpoint: CheckpointId, subtask: SubtaskId, sequence: u32, nonce: &str) -> String {
    let SubtaskId { vertex, index } = subtask;
    format!("state-{run}-{checkpoint}-{vertex}.{index}-{sequence}-{nonce}.parquet")
}

/// Name of an object with batches that were in flight, within the checkpoint's directory (K2).
#[must_use]
pub fn in_flight_file(run: Run, checkpoint: CheckpointId, subtask: SubtaskId, sequence: u32, nonce: &str) -> String {
    let SubtaskId { vertex, index } = subtask;
    format!("in-flight-{run}-{checkpoint}-{vertex}.{index}-{sequence}-{nonce}")
}

/// Where files lie that several checkpoints of a generation may share, below the generation's directory.
const SHARED: &str = "shared";

/// What the names of directories begin with in which a store is asked for its promises, below the job's directory.
const PROBE: &str = "probe-";

/// The path of a shared file of state, relative to the directory of every checkpoint of its generation: checkpoint,
/// generation, attempt and a nonce make it unlike any other that was or will be written (K2).
#[must_use]
pub fn shared_file(run: Run, checkpoint: CheckpointId, subtask: SubtaskId, sequence: u32, nonce: &str) -> String {
    let SubtaskId { vertex, index } = subtask;
    format!("../{SHARED}/{checkpoint}-{run}-{vertex}.{index}-{sequence}-{nonce}.parquet")
}

/// What all directories of jobs of this name begin with, whatever their uid (N1). Directories of other names may
/// begin with it as well: [`parse_uid`] tells.
#[must_use]
pub fn same_name_prefix(job: &JobId) -> String {
    format!("{}/{}-", job.namespace, job.name)
}

/// The uid in a key below a directory of a job of exactly this namespace and name. A uid is a UUID, or holds no
/// dash: so `pv-2-<uuid>` is not a directory of `pv`.
#[must_use]
pub fn parse_uid<'a>(job: &JobId, key: &'a str) -> Option<&'a str> {
    let uid = key.strip_prefix(&same_name_prefix(job))?.split_once('/')?.0;
    (!uid.is_empty() && (is_uuid(uid) || !uid.contains('-'))).then_some(uid)
}

fn is_uuid(text: &str) -> bool {
    let dashes = [8, 13, 18, 23];
    text.len() == 36
        && text.bytes().enumerate().all(
            |(at, byte)| {
                if dashes.contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() }
            },
        )
}

/// The checkpoint with which a savepoint was taken, from the key of one of its objects; `prefix` is the directory of the
/// job's savepoints with a trailing slash.
#[must_use]
pub fn parse_savepoint(prefix: &str, key: &str) -> Option<CheckpointKey> {
    let (generation, id) = key.strip_prefix(prefix)?.split_once('/')?.0.split_once('-')?;
    Some(CheckpointKey { generation: Generation(number(generation)?), id: CheckpointId(number(id)?) })
}

/// Directory of the savepoint below this prefix.
#[must_use]
pub fn savepoint(prefix: &str, savepoint: CheckpointKey) -> String {
    format!("{prefix}{}-{}", savepoint.generation, savepoint.id)
}

/// The savepoints of which all is there, among the keys of their objects: what is written last is.
#[must_use]
pub fn whole_savepoints(prefix: &str, keys: &[String]) -> BTreeSet<CheckpointKey> {
    let is_metadata = |key: &&String| key.strip_suffix(METADATA).is_some_and(|rest| rest.ends_with('/'));
    keys.iter().filter(is_metadata).filter_map(|key| parse_savepoint(prefix, key)).collect()
}

fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (plain && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok())?
}

/// What a person gave to restore from: a `_metadata`, the directory of one, or the directory of a job (N1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotLocation {
    /// Without a trailing slash and without `/_metadata`.
    pub directory: String,
    /// Whether only a snapshot can be meant; else it may be the directory of a job as well.
    pub is_snapshot: bool,
}

impl SnapshotLocation {
    /// Reads what was given. A place below the storage root becomes relative to it, as all keys are.
    #[must_use]
    pub fn parse(given: &str, storage_uri: Option<&str>) -> Self {
        let trimmed = given.trim().trim_end_matches('/');
        let below = |root: &str| trimmed.strip_prefix(root.trim_end_matches('/'))?.strip_prefix('/');
        let relative = storage_uri.and_then(below).unwrap_or(trimmed);
        match relative.strip_suffix(METADATA).and_then(|rest| rest.strip_suffix('/')) {
            Some(directory) => Self { directory: directory.to_owned(), is_snapshot: true },
            None => Self { directory: relative.to_owned(), is_snapshot: is_snapshot_directory(relative) },
        }
    }

    /// The key of its `_metadata`, if it is a snapshot.
    #[must_use]
    pub fn metadata(&self) -> String {
        format!("{}/{METADATA}", self.directory)
    }

    /// Its paths, if it is a job's directory.
    #[must_use]
    pub fn job(&self) -> JobPaths {
        JobPaths::of_directory(&self.directory)
    }

    /// The job in whose directory it lies, if it is a checkpoint where its job wrote it: `<job>/<generation>/chk-<id>`.
    /// A savepoint belongs to nobody, and so does a copy of a checkpoint in another place.
    #[must_use]
    pub fn owner(&self) -> Option<JobPaths> {
        let (generation, checkpoint) = self.directory.rsplit_once('/')?;
        let (job, generation) = generation.rsplit_once('/')?;
        let is_checkpoint = checkpoint.strip_prefix("chk-").is_some_and(|id| number(id).is_some());
        (is_checkpoint && number(generation).is_some()).then(|| JobPaths::of_directory(job))
    }
}

/// `…/chk-50`, or a savepoint's `…/<generation>-<id>`.
fn is_snapshot_directory(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or(path);
    let is_savepoint = || last.split_once('-').is_some_and(|(a, b)| number(a).is_some() && number(b).is_some());
    last.strip_prefix("chk-").is_some_and(|id| number(id).is_some()) || is_savepoint()
}

/// The URI of a key: below the root, or the key itself when it is absolute already.
#[must_use]
pub fn uri(storage_uri: Option<&str>, key: &str) -> String {
    match storage_uri {
        Some(root) if !key.contains("://") => format!("{}/{key}", root.trim_end_matches('/')),
        _ => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, SubtaskIndex, VertexId};

    fn job() -> JobId {
        JobId { namespace: "default".into(), name: "pv".into(), uid: "6f1c".into() }
    }

    #[test]
    fn paths_are_as_documented() {
        let paths = JobPaths::new(&job());
        assert_eq!(paths.ledger_entry(42), "default/pv-6f1c/ledger/0000000042.json");
        assert_eq!(paths.metadata(Generation(3), CheckpointId(50)), "default/pv-6f1c/3/chk-50/_metadata");
        let run = Run { generation: Generation(3), attempt: Attempt(2) };
        let subtask = SubtaskId { vertex: VertexId(1), index: SubtaskIndex(0) };
        assert_eq!(state_file(run, CheckpointId(50), subtask, 4, "ab12"), "state-3.2-50-1.0-4-ab12.parquet");
        assert_eq!(in_flight_file(run, CheckpointId(50), subtask, 4, "ab12"), "in-flight-3.2-50-1.0-4-ab12");
        let file = shared_file(run, CheckpointId(50), subtask, 4, "ab12");
        assert_eq!(file, "../shared/50-3.2-1.0-4-ab12.parquet");
        let data = crate::state::StateData::File { path: file, size: 1, checksum: None };
        let directory = paths.checkpoint_directory(Generation(3), CheckpointId(50));
        let crate::state::StateData::File { path, .. } = data.resolve(&directory) else { panic!("a file") };
        assert_eq!(path, "default/pv-6f1c/3/shared/50-3.2-1.0-4-ab12.parquet");
        assert!(path.starts_with(&paths.shared_prefix(Generation(3), CheckpointId(50))));
        assert_eq!(paths.parse_shared(&path), Some((Generation(3), CheckpointId(50))));
        assert_eq!(paths.parse_shared(&paths.metadata(Generation(3), CheckpointId(50))), None);
        assert_eq!(paths.parse_checkpoint(&path), None);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let paths = JobPaths::new(&job());
        assert_eq!(paths.parse_ledger_entry(&paths.ledger_entry(42)), Some(42));
        assert_eq!(paths.parse_ledger_entry("default/pv-6f1c/ledger/42.json"), None);
        assert_eq!(paths.parse_ledger_entry("default/pv-6f1c/ledger/0000000042.json.tmp"), None);
        let key = paths.metadata(Generation(3), CheckpointId(50));
        assert_eq!(paths.parse_checkpoint(&key), Some((Generation(3), CheckpointId(50))));
        assert_eq!(paths.parse_checkpoint("default/pv-6f1c/ledger/0000000042.json"), None);
        assert!(paths.is_of_probe(&format!("{}/0000000001", paths.probe_directory("ab12"))));
        assert!(!paths.is_of_probe(&key) && !paths.is_of_probe("default/pv-6f1c-2/probe-ab12/0000000001"));
    }

    #[test]
    fn only_exactly_the_name_is_the_name() {
        let uuid = "8d9c0f3e-1111-2222-3333-444455556666";
        assert_eq!(parse_uid(&job(), &format!("default/pv-{uuid}/1/chk-1/_metadata")), Some(uuid));
        assert_eq!(parse_uid(&job(), "default/pv-0a1b/1/chk-1/_metadata"), Some("0a1b"));
        assert_eq!(parse_uid(&job(), &format!("default/pv-2-{uuid}/1/chk-1/_metadata")), None);
        assert_eq!(parse_uid(&job(), "default/other-0a1b/1/chk-1/_metadata"), None);
    }

    #[test]
    fn places_to_restore_from() {
        let root = Some("s3://b/root");
        let place = |text: &str| SnapshotLocation::parse(text, root);
        let snapshot = |directory: &str| SnapshotLocation { directory: directory.to_owned(), is_snapshot: true };
        assert_eq!(place("s3://b/root/default/pv-1/2/chk-50"), snapshot("default/pv-1/2/chk-50"));
        assert_eq!(place("s3://b/root/default/pv-1/2/chk-50/"), snapshot("default/pv-1/2/chk-50"));
        assert_eq!(place("s3://b/root/default/pv-1/2/chk-50/_metadata"), snapshot("default/pv-1/2/chk-50"));
        assert_eq!(place("s3://other/x/_metadata"), snapshot("s3://other/x"));
        assert_eq!(place("s3://b/rooted/5-17"), snapshot("s3://b/rooted/5-17"));
        assert!(!place("s3://b/root/default/pv-1").is_snapshot);
        assert_eq!(place("s3://b/root/default/pv-1").job().ledger_prefix(), "default/pv-1/ledger/");
    }

    #[test]
    fn a_checkpoint_where_its_job_wrote_it_has_an_owner() {
        let owner = |text: &str| {
            let owner = SnapshotLocation::parse(text, Some("s3://b/root")).owner();
            owner.map(|paths| paths.directory().to_owned())
        };
        assert_eq!(owner("s3://b/root/default/pv-1/2/chk-50/_metadata").as_deref(), Some("default/pv-1"));
        assert_eq!(owner("s3://other/default/pv-1/2/chk-50").as_deref(), Some("s3://other/default/pv-1"));
        assert_eq!(owner("s3://b/copies/chk-50"), None, "a copy");
        assert_eq!(owner("s3://b/savepoints/default/pv-1/2-50"), None, "a savepoint");
        assert_eq!(owner("s3://b/root/default/pv-1"), None, "a job directory");
    }
}
