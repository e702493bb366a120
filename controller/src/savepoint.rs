//! Savepoint objects: each is one request to a JobManager, carried out once and answered in its status (K4).
//!
//! The same steps as for a StreamJob, in files of their own: `watches` feed passes, [`facts`] are read, [`plan`]
//! decides (pure), `reconcile` writes the status before it asks for anything, so that a controller that starts again
//! goes on with the same request. The answer is found in what the JobManager reports; nothing waits for it.
//!
//! One whose files are to go with it has a finalizer: [`dispose`] says what holds it, and until when.
//!
//! Those that a StreamJob's `spec.savepoints` asks for are made and limited by passes over StreamJobs: [`periodic`]
//! decides, `jobs` carries out.

pub mod dispose;
pub mod facts;
mod jobs;
pub mod periodic;
pub mod plan;
mod reconcile;
mod run;
mod status;
mod watches;

pub(crate) use dispose::wanted_disposals;
pub(crate) use run::{Touched, Watched, watch};
pub(crate) use watches::Savepoints;
