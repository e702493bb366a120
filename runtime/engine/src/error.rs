//! What a task can fail with: whose fault, retry how, and a name for events and metrics.

use sluice_protocol::failure::{Failure, Fault, Retry};

/// A task's failure. The variant's name is the event reason and the metric label.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TaskError {
    /// A row or a message that cannot be processed: the same after a restart.
    #[error("{0}")]
    BadData(String),
    /// The program or its options are wrong.
    #[error("{0}")]
    BadProgram(String),
    /// Stored state does not fit the program.
    #[error("{0}")]
    IncompatibleState(String),
    /// A broker, a store or a peer does not answer or refuses.
    #[error("{0}")]
    External(String),
    /// The connector's counterpart does not exist or refuses access: a person must act.
    #[error("{0}")]
    Unavailable(String),
    /// The keyed state has outgrown its part of the memory.
    #[error("{0}")]
    MemoryExceeded(String),
    /// More was in flight than an unaligned checkpoint may record.
    #[error("{0}")]
    InFlightExceeded(String),
    /// A broken promise of ours.
    #[error("{0}")]
    Internal(String),
}

impl TaskError {
    /// As reported to the JobManager.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        let (reason, fault, retry) = match self {
            Self::BadData(_) => ("BadData", Fault::User, Retry::Restart),
            Self::BadProgram(_) => ("BadProgram", Fault::User, Retry::Never),
            Self::IncompatibleState(_) => ("IncompatibleState", Fault::User, Retry::Never),
            Self::External(_) => ("External", Fault::External, Retry::Restart),
            Self::Unavailable(_) => ("Unavailable", Fault::External, Retry::Backoff),
            Self::MemoryExceeded(_) => ("MemoryExceeded", Fault::User, Retry::Restart),
            Self::InFlightExceeded(_) => ("InFlightExceeded", Fault::External, Retry::Restart),
            Self::Internal(_) => ("Internal", Fault::Internal, Retry::Restart),
        };
        Failure { reason: reason.to_owned(), message: self.to_string(), fault, retry }
    }
}
