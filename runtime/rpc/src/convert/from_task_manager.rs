//! [`FromTaskManager`] on the wire.

use super::{ConversionError, Place, read_json, run, subtask, write_json};
use crate::v1::from_task_manager_envelope::Message;
use crate::v1::{self, FromTaskManagerEnvelope};
use sluice_protocol::TimeSpan;
use sluice_protocol::message::{CheckpointMetrics, FromTaskManager, Registration};
use sluice_protocol::{CheckpointId, Generation, ProcessId, TaskManagerId};

impl TryFrom<&FromTaskManager> for FromTaskManagerEnvelope {
    type Error = ConversionError;

    fn try_from(message: &FromTaskManager) -> Result<Self, Self::Error> {
        let message = match message {
            FromTaskManager::Register(registration) => Message::Register(registration.into()),
            FromTaskManager::Heartbeat => Message::Heartbeat(v1::Heartbeat { at_ms: 0 }),
            FromTaskManager::Leaving { within } => Message::Leaving(v1::Leaving { within_ms: within.0 }),
            FromTaskManager::TaskRunning { run: of, subtask: task } => {
                Message::TaskRunning(v1::TaskRunning { run: run(*of), subtask: subtask(*task) })
            }
            FromTaskManager::TaskFinished { run: of, subtask: task } => {
                Message::TaskFinished(v1::TaskFinished { run: run(*of), subtask: subtask(*task) })
            }
            FromTaskManager::TaskFailed { run: of, subtask: task, failure } => Message::TaskFailed(v1::TaskFailed {
                run: run(*of),
                subtask: subtask(*task),
                failure: write_json(failure, "TaskFailed.failure", "a failure")?,
            }),
            FromTaskManager::TasksEnded { run: of } => Message::TasksEnded(v1::TasksEnded { run: run(*of) }),
            FromTaskManager::ReportWatermarks { run: of, groups } => Message::ReportWatermarks(v1::ReportWatermarks {
                run: run(*of),
                groups: write_json(groups, "ReportWatermarks.groups", "watermarks")?,
            }),
            FromTaskManager::Acknowledge { run: of, subtask: task, checkpoint, state, savepoint, metrics } => {
                let savepoint = savepoint.as_ref();
                Message::Acknowledge(v1::Acknowledge {
                    run: run(*of),
                    subtask: subtask(*task),
                    checkpoint: checkpoint.0,
                    state: write_json(state, "Acknowledge.state", "the state of a subtask")?,
                    metrics: Some((*metrics).into()),
                    savepoint: savepoint
                        .map(|state| write_json(state, "Acknowledge.savepoint", "the state of a subtask"))
                        .transpose()?,
                })
            }
            FromTaskManager::Decline { run: of, subtask: task, checkpoint, failure } => Message::Decline(v1::Decline {
                run: run(*of),
                subtask: subtask(*task),
                checkpoint: checkpoint.0,
                failure: write_json(failure, "Decline.failure", "a failure")?,
            }),
        };
        Ok(Self { message: Some(message) })
    }
}

impl TryFrom<FromTaskManagerEnvelope> for FromTaskManager {
    type Error = ConversionError;

    fn try_from(envelope: FromTaskManagerEnvelope) -> Result<Self, Self::Error> {
        let message = envelope.message.ok_or(ConversionError::UnknownKind("FromTaskManagerEnvelope.message"))?;
        Ok(match message {
            Message::Register(m) => Self::Register(m.into()),
            Message::Heartbeat(v1::Heartbeat { .. }) => Self::Heartbeat,
            Message::Leaving(m) => Self::Leaving { within: TimeSpan(m.within_ms) },
            Message::TaskRunning(m) => {
                let place = Place("TaskRunning");
                Self::TaskRunning { run: place.run(m.run)?, subtask: place.subtask(m.subtask)? }
            }
            Message::TaskFinished(m) => {
                let place = Place("TaskFinished");
                Self::TaskFinished { run: place.run(m.run)?, subtask: place.subtask(m.subtask)? }
            }
            Message::TaskFailed(m) => {
                let place = Place("TaskFailed");
                Self::TaskFailed {
                    run: place.run(m.run)?,
                    subtask: place.subtask(m.subtask)?,
                    failure: read_json(&m.failure, "TaskFailed.failure", "a failure")?,
                }
            }
            Message::TasksEnded(m) => Self::TasksEnded { run: Place("TasksEnded").run(m.run)? },
            Message::ReportWatermarks(m) => Self::ReportWatermarks {
                run: Place("ReportWatermarks").run(m.run)?,
                groups: read_json(&m.groups, "ReportWatermarks.groups", "watermarks")?,
            },
            Message::Acknowledge(m) => acknowledge(&m)?,
            Message::Decline(m) => {
                let place = Place("Decline");
                Self::Decline {
                    run: place.run(m.run)?,
                    subtask: place.subtask(m.subtask)?,
                    checkpoint: CheckpointId(m.checkpoint),
                    failure: read_json(&m.failure, "Decline.failure", "a failure")?,
                }
            }
        })
    }
}

fn acknowledge(message: &v1::Acknowledge) -> Result<FromTaskManager, ConversionError> {
    let place = Place("Acknowledge");
    Ok(FromTaskManager::Acknowledge {
        run: place.run(message.run)?,
        subtask: place.subtask(message.subtask)?,
        checkpoint: CheckpointId(message.checkpoint),
        state: read_json(&message.state, "Acknowledge.state", "the state of a subtask")?,
        savepoint: message
            .savepoint
            .as_deref()
            .map(|state| read_json(state, "Acknowledge.savepoint", "the state of a subtask"))
            .transpose()?,
        metrics: message.metrics.map(Into::into).ok_or_else(|| place.missing("metrics"))?,
    })
}

impl From<&Registration> for v1::Register {
    fn from(registration: &Registration) -> Self {
        let Registration { task_manager, process, generation, slots, data_address, fingerprint } = registration;
        Self {
            task_manager: task_manager.0.clone(),
            process: process.0.clone(),
            generation: generation.0,
            slots: *slots,
            data_address: data_address.clone(),
            fingerprint: fingerprint.clone(),
        }
    }
}

impl From<v1::Register> for Registration {
    fn from(message: v1::Register) -> Self {
        Self {
            task_manager: TaskManagerId(message.task_manager),
            process: ProcessId(message.process),
            generation: Generation(message.generation),
            slots: message.slots,
            data_address: message.data_address,
            fingerprint: message.fingerprint,
        }
    }
}

impl From<CheckpointMetrics> for v1::Metrics {
    fn from(metrics: CheckpointMetrics) -> Self {
        let CheckpointMetrics { start_delay_ms, alignment_ms, sync_ms, async_ms, bytes, full_bytes, in_flight_bytes } =
            metrics;
        Self { start_delay_ms, alignment_ms, sync_ms, async_ms, bytes, full_bytes, in_flight_bytes }
    }
}

impl From<v1::Metrics> for CheckpointMetrics {
    fn from(message: v1::Metrics) -> Self {
        let v1::Metrics { start_delay_ms, alignment_ms, sync_ms, async_ms, bytes, full_bytes, in_flight_bytes } =
            message;
        Self { start_delay_ms, alignment_ms, sync_ms, async_ms, bytes, full_bytes, in_flight_bytes }
    }
}
