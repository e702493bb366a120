//! What a command can fail with; the message is for people, the exit code for scripts.

use sluice_protocol::failure::{ExitKind, Failure, Fault};
use sluice_protocol::ledger::LedgerError;
use sluice_protocol::metadata::MetadataError;
use sluice_protocol::store::{StoreFailure, StoreFailureKind};
use sluice_rpc::control::ControlError;

/// A command's failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The job or its manifest.
    #[error("{0}")]
    Job(#[from] Failure),
    /// The place where checkpoints are.
    #[error("{0}")]
    Store(#[from] StoreFailure),
    /// A checkpoint that cannot be read.
    #[error("{0}")]
    Metadata(#[from] MetadataError),
    /// A ledger that cannot be read.
    #[error("{0}")]
    Ledger(#[from] LedgerError),
    /// A JobManager that cannot be asked.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// Arguments that contradict each other, or name something that is not there.
    #[error("{0}")]
    Usage(String),
    /// What was waited for has not come.
    #[error("{0}")]
    Late(String),
    /// State that cannot be shown.
    #[error("{place} cannot be read as state: {detail}; the object may be damaged, choose another checkpoint")]
    State {
        /// URI of the object.
        place: String,
        /// What the reader said.
        detail: String,
    },
    /// A query over state.
    #[error("{0}")]
    Query(#[from] sluice_sql::SqlError),
    /// A cluster that cannot be asked, or has no such job.
    #[error("{0}")]
    Cluster(#[from] crate::cluster::ClusterError),
    /// The machine.
    #[error("{what} failed: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What came back.
        source: std::io::Error,
    },
}

impl CommandError {
    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        let kind = match self {
            Self::Job(failure) => match failure.fault {
                Fault::User => ExitKind::UserError,
                Fault::External => ExitKind::Failed,
                Fault::Internal => ExitKind::Internal,
            },
            Self::Store(failure) => match failure.kind {
                StoreFailureKind::Unreachable => ExitKind::Failed,
                _ => ExitKind::UserError,
            },
            Self::Control(ControlError::Unreachable { .. } | ControlError::Certificate { .. }) | Self::Late(_) => {
                ExitKind::Failed
            }
            Self::Control(_)
            | Self::Metadata(_)
            | Self::Ledger(_)
            | Self::Usage(_)
            | Self::State { .. }
            | Self::Query(_) => ExitKind::UserError,
            Self::Cluster(error) if error.is_unreachable() => ExitKind::Failed,
            Self::Cluster(_) => ExitKind::UserError,
            Self::Io { .. } => ExitKind::Internal,
        };
        kind.code()
    }
}
