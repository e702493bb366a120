//! What may never happen, checked as it happens, and what must be so at the end.

use crate::api_server::{ApiServer, Call, Key, Written};
use crate::scenario::Program;
use crate::store::absolute;
use serde_json::Value;
use sluice_protocol::JobId;
use sluice_protocol::ledger::{Entry, EntryKind, StartCause};
use sluice_protocol::store::{StoreOperation, StoreReply};
use std::collections::{BTreeMap, BTreeSet};

/// What was seen so far.
#[derive(Default)]
pub(crate) struct Check {
    /// The ledgers by their absolute directories.
    ledgers: BTreeMap<String, Ledger>,
    /// The checkpoint that each savepoint was taken with.
    savepoints: BTreeMap<String, String>,
    /// What people have said that a job is to be restored from.
    restores: BTreeSet<String>,
    /// uids of StreamJobs that may have been asked to start without state.
    stateless: BTreeSet<String>,
    /// The JobManager pod of each (job uid, generation).
    job_managers: BTreeMap<(String, u64), String>,
    /// JobManager pods that a status has named.
    noted: BTreeSet<String>,
    /// The generation that each StreamJob's status has named.
    intended: BTreeMap<String, u64>,
    /// The process that holds the Lease.
    pub(crate) holder: Option<u32>,
    pub(crate) coverage: Coverage,
}

/// A ledger.
struct Ledger {
    /// Its last entry.
    last: Entry,
    /// When its last checkpoint stood, counted in entries of all ledgers.
    checkpoint_at: u64,
}

/// What a run went through.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Coverage {
    pub(crate) runs: u64,
    pub(crate) calls: u64,
    pub(crate) generations: u64,
    pub(crate) entries: u64,
    pub(crate) restores: u64,
    pub(crate) deletions: u64,
    pub(crate) replicas_killed: u64,
    pub(crate) leaders_frozen: u64,
    pub(crate) rolled_back: u64,
    pub(crate) periodic_savepoints: u64,
    /// Starts from what people said.
    pub(crate) asked_restores: u64,
    /// Those from what another job has written.
    pub(crate) foreign_restores: u64,
    /// Starts in another storage than the one before.
    pub(crate) moves: u64,
    /// Namespaces that came to their end.
    pub(crate) namespaces_ended: u64,
    pub(crate) seconds: u64,
    /// Of all that was written, in its order and with its times.
    pub(crate) fingerprint: u64,
}

impl Coverage {
    pub(crate) fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.calls += other.calls;
        self.generations += other.generations;
        self.entries += other.entries;
        self.restores += other.restores;
        self.deletions += other.deletions;
        self.replicas_killed += other.replicas_killed;
        self.leaders_frozen += other.leaders_frozen;
        self.rolled_back += other.rolled_back;
        self.periodic_savepoints += other.periodic_savepoints;
        self.asked_restores += other.asked_restores;
        self.foreign_restores += other.foreign_restores;
        self.moves += other.moves;
        self.namespaces_ended += other.namespaces_ended;
        self.seconds += other.seconds;
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl Check {
    /// A replica's process sends something.
    pub(crate) fn on_sent(&mut self, process: u32, call: &Call) -> Result<(), String> {
        self.coverage.calls += u64::from(!call.is_watch() && call.resource != "leases");
        let changes = call.method != "GET" && call.resource != "leases";
        match self.holder {
            Some(holder) if changes && holder != process => {
                Err(format!("process {process} sends {} {} while {holder} leads", call.method, call.resource))
            }
            _ => Ok(()),
        }
    }

    /// An object was written.
    pub(crate) fn on_written(&mut self, at: u64, written: &Written) -> Result<(), String> {
        let Written { key, before, after } = written;
        // Names that processes draw for themselves decide nothing.
        let decides = !matches!(key.0.as_str(), "leases" | "events");
        let told = if decides { format!("{at} {key:?} {after:?}") } else { String::new() };
        let coverage = &mut self.coverage;
        coverage.fingerprint = told
            .bytes()
            .fold(coverage.fingerprint, |hash, byte| hash.rotate_left(5).wrapping_mul(31) ^ u64::from(byte));
        match (key.0.as_str(), before, after) {
            ("leases", _, Some(lease)) => {
                let holder =
                    text(lease, "/spec/holderIdentity").split('_').next().and_then(|name| name.strip_prefix('p'));
                self.holder = holder.and_then(|number| number.parse().ok());
                Ok(())
            }
            ("streamjobs", _, Some(job)) => {
                if text(job, "/spec/upgrade/mode") == "Stateless" {
                    self.stateless.insert(text(job, "/metadata/uid").to_owned());
                }
                if let Some(from) = job.pointer("/spec/restore/from").and_then(Value::as_str) {
                    self.restores.insert(from.to_owned());
                }
                let generation = job.pointer("/status/generation").and_then(Value::as_u64).unwrap_or_default();
                let known = self.intended.insert(text(job, "/metadata/uid").to_owned(), generation).unwrap_or_default();
                if generation < known {
                    return Err(format!("C2: a status names generation {generation} after {known}"));
                }
                self.noted.insert(text(job, "/status/jobManagerPod").to_owned());
                Ok(())
            }
            ("streamjobs", Some(job), None) => {
                self.coverage.deletions += 1;
                self.on_job_gone(job)
            }
            ("savepoints", before, Some(savepoint)) => {
                let was = before.as_ref().map_or("", |before| text(before, "/status/phase"));
                let is_new = was != "Completed" && text(savepoint, "/status/phase") == "Completed";
                let is_periodic = text(savepoint, "/metadata/labels/sluice.dev~1trigger") == "periodic";
                self.coverage.periodic_savepoints += u64::from(is_new && is_periodic);
                Ok(())
            }
            ("pods", None, Some(pod)) => self.on_pod_made(key, pod),
            ("events", _, Some(event)) if text(event, "/reason") == "Panicked" => {
                Err(format!("a pass panicked: {}", text(event, "/note")))
            }
            _ => Ok(()),
        }
    }

    /// A StreamJob is gone: its ledger has ended, unless its time was up.
    fn on_job_gone(&self, job: &Value) -> Result<(), String> {
        let generation = job.pointer("/status/generation").and_then(Value::as_u64).unwrap_or_default();
        let was_deleted = job.pointer("/metadata/deletionTimestamp").is_some();
        if generation > 0 && !was_deleted {
            return Err("a StreamJob that has run vanished without its finalizer".to_owned());
        }
        Ok(())
    }

    fn on_pod_made(&mut self, key: &Key, pod: &Value) -> Result<(), String> {
        if text(pod, "/metadata/labels/app.kubernetes.io~1component") != "jobmanager" {
            return Ok(());
        }
        self.coverage.generations += 1;
        let owner = text(pod, "/metadata/ownerReferences/0/uid").to_owned();
        let generation = text(pod, "/metadata/labels/sluice.dev~1generation").parse().unwrap_or_default();
        let uid = text(pod, "/metadata/uid").to_owned();
        if self.intended.get(&owner).copied().unwrap_or_default() < generation {
            return Err(format!("C2: {} was made before a status named generation {generation}", key.2));
        }
        match self.job_managers.insert((owner, generation), uid.clone()) {
            // One that vanished before it was seen was never known to have been; the ledger tells the two apart (L3).
            Some(other) if other != uid && self.noted.contains(&other) => {
                Err(format!("N2: a second JobManager of generation {generation} was made: {}", key.2))
            }
            _ => Ok(()),
        }
    }

    /// The store carried something out, for a job with this root of its checkpoint storage.
    pub(crate) fn on_store(
        &mut self,
        (job, root): (&JobId, &str),
        operation: &StoreOperation,
        reply: &StoreReply,
    ) -> Result<(), String> {
        if let StoreOperation::Delete { keys } = operation {
            return keys.iter().try_for_each(|key| is_own(job, &absolute(root, key)));
        }
        let (StoreOperation::PutIfAbsent { key, bytes }, StoreReply::Put) = (operation, reply) else { return Ok(()) };
        let key = absolute(root, key);
        let Some((directory, _)) = key.split_once("/ledger/") else { return Ok(()) };
        let entry = Entry::from_bytes(bytes, &key).map_err(|error| error.to_string())?;
        let last = self.ledgers.get(directory);
        if let Some(Ledger { last, .. }) = last {
            if entry.number <= last.number {
                // Litter below the trimmed bound.
                return Ok(());
            }
            if entry.generation < last.generation
                || (entry.generation == last.generation && entry.process != last.process)
            {
                return Err(format!(
                    "L3: generation {} ({}) appended entry {} after generation {} had started",
                    entry.generation, entry.process, entry.number, last.generation
                ));
            }
        }
        let mut checkpoint_at = last.map_or(0, |last| last.checkpoint_at);
        self.coverage.entries += 1;
        self.check_start(root, directory, &entry)?;
        if let EntryKind::Checkpoint { checkpoint, savepoint, .. } = &entry.kind {
            checkpoint_at = self.coverage.entries;
            let place = format!("{directory}/{}/chk-{}", checkpoint.key.generation, checkpoint.key.id);
            self.savepoints.extend(savepoint.as_ref().map(|savepoint| (savepoint.path.clone(), place)));
        }
        self.ledgers.insert(directory.to_owned(), Ledger { last: entry, checkpoint_at });
        Ok(())
    }

    /// The ledger of a job, in whatever storage, in which its latest checkpoint stands.
    fn latest_of(&self, directory: &str) -> Option<(&String, &Entry)> {
        let name = directory.rsplit_once('/').map_or(directory, |(_, name)| name);
        let of_job =
            self.ledgers.iter().filter(|(known, _)| known.rsplit_once('/').is_some_and(|(_, own)| own == name));
        of_job.max_by_key(|(_, ledger)| ledger.checkpoint_at).map(|(known, ledger)| (known, &ledger.last))
    }

    /// A start restores the latest state, wherever the job had its storage then, unless people asked for another.
    fn check_start(&mut self, root: &str, directory: &str, entry: &Entry) -> Result<(), String> {
        let from = match &entry.kind {
            // It changes nothing of what the job would restore (G5), nor does who only ends the job (L6).
            EntryKind::Started { cause: StartCause::Takeover | StartCause::Close, .. } => return Ok(()),
            EntryKind::Started { restored_from, .. } => restored_from,
            EntryKind::Restarted { from, .. } => from,
            _ => return Ok(()),
        };
        let Some((known, last)) = self.latest_of(directory) else {
            return self.check_foreign(directory, from.as_ref().map(|from| absolute(root, &from.directory)));
        };
        let (is_moved, fold) = (known != directory, last.folded());
        let latest = fold.retained.last().map(|one| format!("{known}/{}/chk-{}", one.key.generation, one.key.id));
        let is_newer = entry.revision > last.revision;
        let uid = directory.rsplit_once('/').map_or(directory, |(_, name)| name);
        let may_be_empty = self.stateless.iter().any(|one| uid.ends_with(one.as_str()));
        let Some(latest) = latest.filter(|_| !may_be_empty) else { return Ok(()) };
        let Some(from) = from.as_ref().map(|from| absolute(root, &from.directory)) else {
            return Err(format!("N3: generation {} starts without state, there is {latest}", entry.generation));
        };
        let place = self.savepoints.get(&from).unwrap_or(&from);
        // A rollback goes back behind what the revision that is given up has written (K7).
        let is_pinned = is_newer && fold.pins.iter().any(|pin| place.ends_with(&pin.snapshot));
        let is_wanted = self.restores.contains(&from);
        if *place != latest && !is_pinned && !is_wanted {
            return Err(format!("N3: generation {} restores {from}, the latest is {latest}", entry.generation));
        }
        self.coverage.restores += 1;
        self.coverage.moves += u64::from(is_moved);
        self.coverage.asked_restores += u64::from(is_wanted);
        self.check_foreign(directory, Some(from))
    }

    /// What another job has written is restored only where people said so.
    fn check_foreign(&mut self, directory: &str, from: Option<String>) -> Result<(), String> {
        let uid = directory.rsplit_once('/').map_or(directory, |(_, name)| name);
        let Some(from) = from.filter(|from| !from.contains(uid)) else { return Ok(()) };
        if !self.restores.contains(&from) {
            return Err(format!("N1: {uid} restores {from} of another job, which nobody asked for"));
        }
        self.coverage.foreign_restores += 1;
        Ok(())
    }
}

/// A job removes what lies in its own directories only (K6).
fn is_own(job: &JobId, key: &str) -> Result<(), String> {
    if key.contains(&format!("/{job}/")) {
        return Ok(());
    }
    Err(format!("K6: {job} removes {key}, which is another job's"))
}

/// Why the world is not at rest as it should be; `None` when it is.
pub(crate) fn unrest(api: &ApiServer) -> Option<String> {
    let jobs: BTreeMap<&str, &Value> =
        api.all("streamjobs").map(|(_, job)| (text(job, "/metadata/uid"), job)).collect();
    for (key, object) in api.objects() {
        if !text(object, "/metadata/deletionTimestamp").is_empty() {
            return Some(format!("{} {} is still being deleted", key.0, key.2));
        }
        let owner = text(object, "/metadata/ownerReferences/0/uid");
        if !owner.is_empty() && !jobs.contains_key(owner) {
            return Some(format!("{} {} outlives its StreamJob", key.0, key.2));
        }
    }
    jobs.values().find_map(|job| unrest_of(api, job))
}

fn unrest_of(api: &ApiServer, job: &Value) -> Option<String> {
    let state = text(job, "/status/state");
    let tell = |what: &str| Some(format!("{what}: state {state}, {}", text(job, "/status/message")));
    if job["status"]["observedGeneration"] != job["metadata"]["generation"] {
        return tell("its spec was not seen");
    }
    let desired = text(job, "/spec/state");
    if desired == "Suspended" {
        return if state == "Suspended" { None } else { tell("it should be suspended") };
    }
    let is_given_up = job["status"]["rolledBack"].is_object();
    // What a job is to start from is another's, which may have removed it.
    let from = text(job, "/spec/restore/from");
    let is_gone = text(job, "/status/message").starts_with("there is no snapshot at");
    if state == "Invalid" && is_gone && !from.is_empty() && !from.contains(text(job, "/metadata/uid")) {
        return None;
    }
    // Known: a rollback with mode Stateless goes to the last checkpoint that was heard of, which may have been displaced.
    if state == "Invalid" && is_gone && text(job, "/spec/upgrade/mode") == "Stateless" {
        return None;
    }
    match Program::read(text(job, "/spec/program/sql")) {
        Program::Good => {}
        // It may be restarted for ever, where nothing was stable before.
        Program::Crashing if !is_given_up => {
            let is_restarting = matches!(state, "Running" | "Restarting" | "Starting");
            return if is_restarting && job["status"]["stable"].is_null() { None } else { tell("it crashes") };
        }
        Program::Refused if !is_given_up => {
            let rests = state == "Invalid" || state == "Suspended";
            return if rests { None } else { tell("it has no meaning") };
        }
        Program::Crashing | Program::Refused => {}
    }
    let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
    if state != "Running" || !is_ready {
        return tell("it should run");
    }
    let namespace = text(job, "/metadata/namespace");
    let frozen = api.get("configmaps", namespace, text(job, "/status/program"));
    let frozen = frozen.map(|map| text(map, "/data/job.yaml").to_owned()).unwrap_or_default();
    let wanted = text(job, "/spec/program/sql");
    if !is_given_up && !frozen.contains(wanted) {
        return tell("it runs another program than is wanted");
    }
    None
}

/// Whether a job restarts for ever, as it is told to: it is never without a stir.
pub(crate) fn crashes_for_ever(api: &ApiServer) -> bool {
    api.all("streamjobs").any(|(_, job)| {
        Program::read(text(job, "/spec/program/sql")) == Program::Crashing && !job["status"]["rolledBack"].is_object()
    })
}
