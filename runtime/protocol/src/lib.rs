//! The vocabulary that every part of Sluice shares, and every decision of its fault tolerance.
//!
//! Pure: no tokio, no I/O, no clock, no hidden randomness. Time comes in as [`Timestamp`], random numbers
//! through [`RandomSource`], facts as events; decisions go out as values. So the same code runs in a
//! JobManager and under the seeded simulation. Rules are numbered in `docs/protocol.md`.
//!
//! The map:
//! - [`ids`]: who is who (N1, N2). [`time`]: points and spans of time as the manifest writes them.
//! - [`options`]: the option types of a StreamJob's spec, which are also the runtime's.
//! - [`graph`]: the shape of a job; [`key_group`]: the key-group hash (F3).
//! - [`state`]: handles of state, as they travel in acknowledgements and live in `_metadata`.
//! - [`message`]: what JobManager and TaskManager say to each other.
//! - [`store`]: object-store operations as values, so that decisions can ask for them without doing them.
//! - [`job_master`]: the JobManager's decisions: events in, actions out; [`status`]: what it tells people.
//! - [`reach`]: what a ledger reaches, and what around it nobody needs.
//! - [`history`]: what became of each checkpoint, for people.
//! - [`restart`]: whether and when a failed job runs again (F1).
//! - [`secrets`]: references to Secrets in programs.
//! - [`failure`]: whose fault, retry how, and the exit record of a process.

pub mod commit;
pub mod coordinator;
pub mod failure;
pub mod graph;
pub mod history;
pub mod ids;
pub mod job_master;
pub mod key_group;
pub mod ledger;
pub mod message;
pub mod metadata;
pub mod options;
pub mod paths;
pub mod reach;
pub mod restart;
pub mod secrets;
pub mod state;
pub mod status;
pub mod store;
pub mod time;

pub use ids::{
    AppendId, Attempt, CheckpointId, Generation, JobId, KeyGroup, KeyGroupRange, OperatorUid, ProcessId, Run,
    SubtaskId, SubtaskIndex, TaskManagerId, VertexId,
};
pub use time::{TimeSpan, Timestamp};

/// The seam through which randomness enters: the next random number.
///
/// Processes pass the operating system's generator, the simulation a seeded one.
pub trait RandomSource: Send {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;
}

impl<F: FnMut() -> u64 + Send> RandomSource for F {
    fn next_u64(&mut self) -> u64 {
        self()
    }
}
