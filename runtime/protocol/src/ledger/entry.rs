//! The format of one entry (L1). An unknown kind or a newer version is refused by name, never skipped.

use crate::commit::UnsettledOutput;
use crate::failure::Failure;
use crate::history::CheckpointRecord;
use crate::ids::{AppendId, Attempt, CheckpointId, Generation, OperatorUid, ProcessId};
use crate::ledger::fold::{Fold, RetainedCheckpoint};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The version that is written, and the newest that can be read.
pub const VERSION: u32 = 1;

/// The largest fold that an entry may carry.
pub const FOLD_LIMIT: usize = 64 * 1024;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Of this format.
    pub version: u32,
    /// Its place, from 1.
    pub number: u64,
    /// Names this very append.
    pub append_id: AppendId,
    /// The process that appended it.
    pub process: ProcessId,
    /// Its generation.
    pub generation: Generation,
    /// The attempt it was in; 0 before the first.
    pub attempt: Attempt,
    /// Revision of the spec.
    pub revision: u64,
    /// Id of the directive that the generation was started with (N3).
    pub directive: String,
    /// When, by the process's clock: for people.
    pub time: Timestamp,
    /// What happened.
    pub kind: EntryKind,
    /// Output that this end leaves uncommitted, after its deadline (L6).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsettled: Vec<UnsettledOutput>,
    /// Why this end may leave transactions open that are in no checkpoint, which readers wait for (L6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_open: Option<String>,
    /// What all entries before this one amount to.
    pub fold: Fold,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum EntryKind {
    /// A generation took the ledger.
    Started {
        /// Why.
        cause: StartCause,
        /// What it restores; absent when it starts empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restored_from: Option<SnapshotReference>,
        /// Endpoint of the store when it passed the probe (L7).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        probed: Option<String>,
        /// Which job takes the ledger over, with [`StartCause::Takeover`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        taker: Option<Successor>,
    },
    /// The tasks are about to run again in place.
    Restarted {
        /// Why.
        cause: Failure,
        /// What they restore; absent when they start empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<SnapshotReference>,
    },
    /// A checkpoint is complete (K1).
    Checkpoint {
        /// Which.
        checkpoint: RetainedCheckpoint,
        /// The savepoint that was taken with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        savepoint: Option<TakenSavepoint>,
        /// Whether the job ends with it.
        ends: Ends,
        /// Retained checkpoints that it displaces: dead from here on (K6).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        drops: Vec<CheckpointKey>,
        /// How it went, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Box<CheckpointRecord>>,
    },
    /// A checkpoint will never be complete.
    CheckpointFailed {
        /// Which.
        id: CheckpointId,
        /// Why.
        failure: Failure,
        /// How far it came, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Box<CheckpointRecord>>,
    },
    /// Somebody asked for a savepoint (K4).
    SavepointRequested {
        /// Of the request.
        id: String,
        /// What for.
        kind: SavepointKind,
        /// URI below which its directory will be.
        directory: String,
        /// When it is given up.
        deadline: Timestamp,
    },
    /// The savepoint is there, its commits confirmed.
    Savepoint {
        /// Of the request.
        id: String,
        /// URI of its directory.
        path: String,
    },
    /// The request failed.
    SavepointFailed {
        /// Of the request.
        id: String,
        /// Why.
        failure: Failure,
    },
    /// A savepoint was removed on request.
    Disposed {
        /// URI of its directory.
        path: String,
    },
    /// A snapshot must not be deleted.
    Pinned {
        /// URI of its directory.
        snapshot: String,
        /// On whose behalf.
        holder: String,
    },
    /// It may again.
    Released {
        /// URI of its directory.
        snapshot: String,
        /// On whose behalf.
        holder: String,
    },
    /// Stopped on request; it can be resumed.
    Stopped,
    /// All input was read and all results are out.
    Finished {
        /// Retained checkpoints that are removed with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        drops: Vec<CheckpointKey>,
    },
    /// Cancelled on request.
    Cancelled {
        /// Retained checkpoints that are removed with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        drops: Vec<CheckpointKey>,
    },
    /// Ended by a failure; everything retained.
    Failed {
        /// The root cause.
        failure: Failure,
    },
    /// A candidate takes over (G2).
    HandedOver {
        /// The candidate.
        candidate: String,
        /// Its revision.
        revision: u64,
        /// The generation reserved for it.
        generation: Generation,
        /// The checkpoint q.
        checkpoint: CheckpointId,
        /// The snapshot that it was restored from.
        base: String,
    },
    /// The ledger goes on elsewhere (C3, G5).
    MovedTo {
        /// Of the job that goes on.
        job_uid: String,
        /// Its directory.
        directory: String,
    },
}

/// The job that goes on with another's state, in its own directory (C3, G5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Successor {
    /// Its uid.
    pub job_uid: String,
    /// URI of its directory.
    pub directory: String,
}

/// A savepoint that was taken with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenSavepoint {
    /// Id of the request.
    pub request: String,
    /// URI of its directory.
    pub path: String,
}

/// What a savepoint is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SavepointKind {
    /// The job goes on.
    Savepoint,
    /// The job stops with it and can be resumed: nothing fires, nothing ends.
    Stop,
    /// Sources and operators end, timers fire, and the job stops with it.
    Drain,
}

impl SavepointKind {
    /// Whether the job ends with it.
    #[must_use]
    pub const fn ends(self) -> Ends {
        match self {
            Self::Savepoint => Ends::None,
            Self::Stop => Ends::Stop,
            Self::Drain => Ends::Finish,
        }
    }
}

/// The names of all kinds, as `type` in an entry.
const KINDS: [&str; 16] = [
    "Started",
    "Restarted",
    "Checkpoint",
    "CheckpointFailed",
    "SavepointRequested",
    "Savepoint",
    "SavepointFailed",
    "Disposed",
    "Pinned",
    "Released",
    "Stopped",
    "Finished",
    "Cancelled",
    "Failed",
    "HandedOver",
    "MovedTo",
];

/// Why a generation took the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartCause {
    /// To run the job.
    Start,
    /// To end it (L6).
    Close,
    /// To take it over into another ledger (G5).
    Takeover,
    /// To remove a savepoint after its end, which stays what it was (L5).
    Dispose,
}

/// Whether a job ends with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ends {
    /// It goes on.
    #[default]
    None,
    /// It stops on request.
    Stop,
    /// All input was read.
    Finish,
}

/// A checkpoint of this job, by what its path is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointKey {
    /// The generation that took it.
    pub generation: Generation,
    /// Its id.
    pub id: CheckpointId,
}

/// What a start or restart restores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotReference {
    /// Its directory: relative to the storage root, or an absolute URI.
    pub directory: String,
    /// Its id, as its `_metadata` says.
    pub checkpoint: CheckpointId,
    /// Whether state without an operator was allowed to be dropped; a repeated restore obeys it again.
    #[serde(default)]
    pub allow_non_restored_state: bool,
    /// Sinks whose uncommitted output was given up by name (S5); obeyed again likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandon_sinks: Vec<OperatorUid>,
    /// Whether it is none of the job's own checkpoints: another job's, a copy, or a savepoint (K7).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_foreign: bool,
}

/// What can be read of an entry whatever its version and kind: whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryHeader {
    /// Of the format.
    pub version: u64,
    /// Its place.
    pub number: u64,
    /// The append.
    pub append_id: AppendId,
    /// The process.
    pub process: ProcessId,
    /// Its generation.
    pub generation: Generation,
    /// The name of its kind.
    kind: KindName,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct KindName {
    #[serde(rename = "type")]
    name: String,
    #[serde(default)]
    taker: Option<Successor>,
}

/// An entry that cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Written by a newer release.
    #[error(
        "ledger entry {place} has format version {found}; this release reads versions up to {VERSION}: run the job with \
         the release that wrote it or a newer one"
    )]
    NewerVersion {
        /// Its key.
        place: String,
        /// Its version.
        found: u64,
    },
    /// Written by a newer release.
    #[error(
        "ledger entry {place} is of the kind '{found}', which this release does not know: run the job with the release \
         that wrote it or a newer one"
    )]
    UnknownKind {
        /// Its key.
        place: String,
        /// The kind.
        found: String,
    },
    /// Not what it should be.
    #[error(
        "ledger entry {place} cannot be read: {detail}; look at the object, which nothing but this job's JobManager may write"
    )]
    Unreadable {
        /// Its key.
        place: String,
        /// What the reader said.
        detail: String,
    },
    /// More than an entry may carry.
    #[error(
        "the fold of ledger entry {number} has {found} bytes, above the limit of {FOLD_LIMIT}; retain fewer checkpoints or release pins"
    )]
    FoldTooLarge {
        /// Its number.
        number: u64,
        /// Its size.
        found: usize,
    },
}

impl EntryHeader {
    /// The job that takes the ledger over with this entry.
    #[must_use]
    pub const fn taker(&self) -> Option<&Successor> {
        self.kind.taker.as_ref()
    }

    /// Reads who appended an entry.
    ///
    /// # Errors
    /// When it is not an entry of any version.
    pub fn from_bytes(bytes: &[u8], place: &str) -> Result<Self, LedgerError> {
        serde_json::from_slice(bytes)
            .map_err(|error| LedgerError::Unreadable { place: place.to_owned(), detail: error.to_string() })
    }

    fn check_known(&self, place: &str) -> Result<(), LedgerError> {
        if self.version > u64::from(VERSION) {
            return Err(LedgerError::NewerVersion { place: place.to_owned(), found: self.version });
        }
        if !KINDS.contains(&self.kind.name.as_str()) {
            return Err(LedgerError::UnknownKind { place: place.to_owned(), found: self.kind.name.clone() });
        }
        Ok(())
    }
}

impl Entry {
    /// Reads an entry; `place` is named in errors.
    ///
    /// # Errors
    /// When it is of a newer version, of an unknown kind, or damaged.
    pub fn from_bytes(bytes: &[u8], place: &str) -> Result<Self, LedgerError> {
        EntryHeader::from_bytes(bytes, place)?.check_known(place)?;
        serde_json::from_slice(bytes)
            .map_err(|error| LedgerError::Unreadable { place: place.to_owned(), detail: error.to_string() })
    }

    /// As it is stored.
    ///
    /// # Errors
    /// When its fold is larger than [`FOLD_LIMIT`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, LedgerError> {
        let unwritable = |error: serde_json::Error| LedgerError::Unreadable {
            place: self.number.to_string(),
            detail: error.to_string(),
        };
        let fold = serde_json::to_vec(&self.fold).map_err(unwritable)?;
        if fold.len() > FOLD_LIMIT {
            return Err(LedgerError::FoldTooLarge { number: self.number, found: fold.len() });
        }
        serde_json::to_vec(self).map_err(unwritable)
    }

    /// What all entries up to and with this one amount to.
    #[must_use]
    pub fn folded(&self) -> Fold {
        self.fold.clone().with(self)
    }
}
