//! The facts that decide about one Savepoint.

use sluice_crds::{HelperUnderWay, SavepointSpec, SavepointStatus, StreamJobState};
use sluice_protocol::status::{JobStatus, RequestStatus};
use sluice_protocol::{Generation, Timestamp};

/// Everything that decides what happens to one Savepoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// When they were read.
    pub now: Timestamp,
    /// Its uid.
    pub uid: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// metadata.generation.
    pub generation: i64,
    /// What was asked for.
    pub spec: SavepointSpec,
    /// What was told and must be remembered.
    pub status: SavepointStatus,
    /// The StreamJob of that name, if there is one.
    pub job: Option<JobFacts>,
}

/// What decides about the Savepoints of a StreamJob.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFacts {
    /// Its uid.
    pub uid: String,
    /// What it does; `None` before it was seen to.
    pub state: Option<StreamJobState>,
    /// Why.
    pub message: String,
    /// Its JobManager.
    pub generation: Generation,
    /// What that reported last.
    pub report: Option<JobStatus>,
    /// Whether its stream is up.
    pub connected: bool,
    /// The helper that it has sent, when it has ended.
    pub helper: Option<HelperUnderWay>,
}

impl JobFacts {
    /// What became of a request.
    #[must_use]
    pub fn answer(&self, id: &str) -> Option<&RequestStatus> {
        self.report.as_ref()?.requests.iter().find(|request| request.id == id)
    }
}
