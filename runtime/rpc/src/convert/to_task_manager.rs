//! [`ToTaskManager`] on the wire.

use super::{ConversionError, Place, read_json, run, write_json};
use crate::v1::to_task_manager_envelope::Message;
use crate::v1::{self, ToTaskManagerEnvelope};
use sluice_protocol::message::ToTaskManager;
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};

impl TryFrom<&ToTaskManager> for ToTaskManagerEnvelope {
    type Error = ConversionError;

    fn try_from(message: &ToTaskManager) -> Result<Self, Self::Error> {
        let message = match message {
            ToTaskManager::Registered { heartbeat_timeout } => {
                Message::Registered(v1::Registered { heartbeat_timeout_ms: heartbeat_timeout.0 })
            }
            ToTaskManager::Refused(failure) => {
                Message::Refused(v1::Refused { failure: write_json(failure, "Refused.failure", "a failure")? })
            }
            ToTaskManager::Heartbeat { at } => Message::Heartbeat(v1::Heartbeat { at_ms: at.0 }),
            ToTaskManager::Deploy(deployment) => {
                Message::Deploy(v1::Deploy { deployment: write_json(deployment, "Deploy.deployment", "a deployment")? })
            }
            ToTaskManager::CancelTasks { run: of } => Message::CancelTasks(v1::CancelTasks { run: run(*of) }),
            ToTaskManager::TriggerCheckpoint { run: of, barrier } => {
                Message::TriggerCheckpoint(v1::TriggerCheckpoint {
                    run: run(*of),
                    barrier: write_json(barrier, "TriggerCheckpoint.barrier", "a barrier")?,
                })
            }
            ToTaskManager::CheckpointCompleted { run: of, checkpoint, held } => {
                Message::CheckpointCompleted(v1::CheckpointCompleted {
                    run: run(*of),
                    checkpoint: checkpoint.0,
                    held: write_json(held, "CheckpointCompleted.held", "handles")?,
                })
            }
            ToTaskManager::CheckpointAborted { run: of, checkpoint } => {
                Message::CheckpointAborted(v1::CheckpointAborted { run: run(*of), checkpoint: checkpoint.0 })
            }
            ToTaskManager::AlignWatermarks { run: of, groups } => Message::AlignWatermarks(v1::AlignWatermarks {
                run: run(*of),
                groups: write_json(groups, "AlignWatermarks.groups", "watermarks")?,
            }),
            ToTaskManager::Shutdown => Message::Shutdown(v1::Shutdown {}),
        };
        Ok(Self { message: Some(message) })
    }
}

impl TryFrom<ToTaskManagerEnvelope> for ToTaskManager {
    type Error = ConversionError;

    fn try_from(envelope: ToTaskManagerEnvelope) -> Result<Self, Self::Error> {
        let message = envelope.message.ok_or(ConversionError::UnknownKind("ToTaskManagerEnvelope.message"))?;
        Ok(match message {
            Message::Registered(m) => Self::Registered { heartbeat_timeout: TimeSpan(m.heartbeat_timeout_ms) },
            Message::Refused(m) => Self::Refused(read_json(&m.failure, "Refused.failure", "a failure")?),
            Message::Heartbeat(m) => Self::Heartbeat { at: Timestamp(m.at_ms) },
            Message::Deploy(m) => Self::Deploy(read_json(&m.deployment, "Deploy.deployment", "a deployment")?),
            Message::CancelTasks(m) => Self::CancelTasks { run: Place("CancelTasks").run(m.run)? },
            Message::TriggerCheckpoint(m) => Self::TriggerCheckpoint {
                run: Place("TriggerCheckpoint").run(m.run)?,
                barrier: read_json(&m.barrier, "TriggerCheckpoint.barrier", "a barrier")?,
            },
            Message::CheckpointCompleted(m) => Self::CheckpointCompleted {
                run: Place("CheckpointCompleted").run(m.run)?,
                checkpoint: CheckpointId(m.checkpoint),
                held: read_json(&m.held, "CheckpointCompleted.held", "handles")?,
            },
            Message::CheckpointAborted(m) => Self::CheckpointAborted {
                run: Place("CheckpointAborted").run(m.run)?,
                checkpoint: CheckpointId(m.checkpoint),
            },
            Message::AlignWatermarks(m) => Self::AlignWatermarks {
                run: Place("AlignWatermarks").run(m.run)?,
                groups: read_json(&m.groups, "AlignWatermarks.groups", "watermarks")?,
            },
            Message::Shutdown(v1::Shutdown {}) => Self::Shutdown,
            // Whoever takes it looks for it before.
            Message::LogLevel(_) => return Err(ConversionError::UnknownKind("ToTaskManagerEnvelope.logLevel")),
        })
    }
}
