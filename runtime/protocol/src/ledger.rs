//! The ledger: the append-only truth about a job, and its fence (docs/protocol.md, L1-L5, N3).
//!
//! Layers, each pure: [`entry`] is the format; [`fold`] what all entries so far amount to; [`read`] finds the end of
//! a ledger; [`decide`] says what a start may do there; [`append`] puts one entry and finds out whether it stands;
//! [`trim`] says what may be removed. The JobMaster ties them together ([`crate::job_master`]).
//!
//! A start, in order: [`read::LedgerReader`] → [`decide::decide_start`] → [`append::Appender::begin`] with `Started`
//! → a LIST behind it ([`read::entries_after`]); every later append goes through the same [`append::Appender`].

pub mod append;
pub mod decide;
pub mod entry;
pub mod fold;
pub mod read;
pub mod trim;

pub use entry::{
    CheckpointKey, Ends, Entry, EntryHeader, EntryKind, LedgerError, SavepointKind, SnapshotReference, StartCause,
    TakenSavepoint,
};
pub use fold::{
    Fold, ForeignSnapshot, LedgerState, LiveSavepoint, MAX_RETAINED, Pin, Request, RequestResult, RestorePoint,
    RetainedCheckpoint,
};

#[cfg(test)]
mod tests;
