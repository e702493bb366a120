//! A job's ledger read from outside, after the fact: what the job did, whatever its status said meanwhile.

use super::S3Address;
use sluice_protocol::ledger::{CheckpointKey, Entry, EntryKind};
use sluice_protocol::paths::JobPaths;
use sluice_protocol::{CheckpointId, Generation};
use sluice_storage::{ObjectStore as _, S3Credentials, S3Settings, S3Store};

/// The S3 server as a store, below a prefix of its bucket.
///
/// # Panics
/// When its endpoint is no URL.
#[must_use]
pub fn open_store(address: &S3Address, prefix: &str) -> S3Store {
    S3Store::new(S3Settings {
        bucket: address.bucket.clone(),
        prefix: prefix.to_owned(),
        endpoint: Some(address.endpoint.clone()),
        path_style: true,
        credentials: Some(S3Credentials {
            access_key_id: address.access_key.clone(),
            secret_access_key: address.secret_key.clone(),
            session_token: None,
        }),
        ..S3Settings::default()
    })
    .expect("the store of the tests")
}

/// All entries of a job that has appended fewer than are trimmed (L4).
pub struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Reads it. `job` is the job's directory, `namespace/name-uid`.
    ///
    /// # Panics
    /// When the store does not answer or an entry cannot be read.
    pub async fn read(store: &S3Store, job: &str) -> Self {
        let paths = JobPaths::of_directory(job);
        let mut entries = Vec::new();
        for key in store.list(&paths.ledger_prefix(), None).await.expect("the ledger's keys") {
            let bytes = store.get(&key).await.expect("an answer").expect("an entry");
            entries.push(Entry::from_bytes(&bytes, &key).expect("an entry that can be read"));
        }
        Self { entries }
    }

    /// Its entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether the generation that triggered this checkpoint ended while it was pending: the last that it appended is
    /// an earlier one, so this one became neither complete nor failed.
    #[must_use]
    pub fn ended_pending(&self, key: CheckpointKey) -> bool {
        let last = self.entries.iter().rfind(|entry| entry.generation == key.generation);
        last.and_then(completed_by).is_some_and(|completed| completed.id < key.id)
    }

    /// One line per entry, for a person.
    #[must_use]
    pub fn story(&self) -> String {
        let line = |entry: &Entry| {
            let Entry { number, generation, attempt, kind, .. } = entry;
            format!("{number}: generation {generation}, attempt {attempt}: {kind:?}")
        };
        self.entries.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// What this generation restored at its start.
    ///
    /// # Panics
    /// When it has not started or started empty.
    #[must_use]
    pub fn restored_by(&self, generation: Generation) -> CheckpointId {
        let mut started = self.entries.iter().filter(|entry| entry.generation == generation);
        match started.next().map(|entry| &entry.kind) {
            Some(EntryKind::Started { restored_from: Some(snapshot), .. }) => snapshot.checkpoint,
            other => panic!("generation {generation} did not begin with the restore of a checkpoint: {other:?}"),
        }
    }

    /// Checks that every start and restart but the first restored the checkpoint that was the latest complete one,
    /// and says how many there were.
    ///
    /// # Panics
    /// When one did not.
    #[must_use]
    pub fn check_restores(&self) -> usize {
        let mut latest = None;
        let mut restores = 0;
        for entry in &self.entries {
            if let EntryKind::Started { restored_from: from, .. } | EntryKind::Restarted { from, .. } = &entry.kind {
                let restored = from.as_ref().map(|snapshot| snapshot.checkpoint);
                assert_eq!(restored, latest, "not the latest checkpoint was restored:\n{}", self.story());
                restores += usize::from(restored.is_some());
            }
            latest = completed_by(entry).map(|key| key.id).or(latest);
        }
        restores
    }
}

fn completed_by(entry: &Entry) -> Option<CheckpointKey> {
    match &entry.kind {
        EntryKind::Checkpoint { checkpoint, .. } => Some(checkpoint.key),
        _ => None,
    }
}
