//! Savepoint objects: each is one request to a JobManager, carried out once and answered in its status (K4).
//!
//! The same steps as for a StreamJob, in files of their own: `watches` feed passes, [`facts`] are read, [`plan`]
//! decides (pure), `reconcile` writes the status before it asks for anything, so that a controller that starts again
//! goes on with the same request. The answer is found in what the JobManager reports; nothing waits for it.

pub mod facts;
pub mod plan;
mod reconcile;
mod run;
mod status;
mod watches;

pub(crate) use run::{Touched, run};
