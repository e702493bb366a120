//! From a trigger to a completed checkpoint: the coordinator's outputs carried out (K1-K3).
//!
//! Trigger → acknowledgements → `_metadata` put if absent → `Checkpoint` entry → tasks are told, displaced ones go.

use super::journal::{EndKind, Intent};
use super::operations::Purpose;
use super::{JobMaster, Phase};
use crate::coordinator::{CheckpointCoordinator, Collected, Output};
use crate::failure::{Failure, Fault};
use crate::ids::{CheckpointId, SubtaskId};
use crate::key_group;
use crate::ledger::{CheckpointKey, Ends, RetainedCheckpoint};
use crate::message::ToTaskManager;
use crate::metadata::{self, Metadata, describe_vertices};
use crate::paths;
use crate::state::{StateData, SubtaskState};
use crate::status::CheckpointInfo;
use crate::store::{StoreOperation, StoreReply};

/// Tries of a `_metadata` before the checkpoint has failed.
const METADATA_TRIES: u32 = 3;

/// Largest single piece of state with storage `JobManager` (design §4).
const MEMORY_LIMIT: u64 = 5 * 1024 * 1024;

/// A checkpoint between its last acknowledgement and its entry.
#[derive(Debug)]
pub(super) struct Storing {
    metadata: Metadata,
    bytes: Vec<u8>,
    tries: u32,
}

impl JobMaster {
    pub(super) fn create_coordinator(&mut self) {
        let settings = self.config.options.checkpointing.clone();
        let last = self.journal.fold.last_checkpoint;
        self.coordinator = settings.map(|settings| CheckpointCoordinator::new(settings, last));
    }

    pub(super) fn tick_coordinator(&mut self) {
        let outputs = self.coordinator.as_mut().map(|one| one.tick(self.now)).unwrap_or_default();
        self.execute(outputs);
    }

    pub(super) fn execute(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Trigger { barrier, .. } => {
                    let Some(execution) = &self.execution else { continue };
                    let (run, sessions) = (execution.run, execution.source_sessions(&self.config.graph));
                    for session in sessions {
                        self.send(session, ToTaskManager::TriggerCheckpoint { run, barrier: barrier.clone() });
                    }
                }
                Output::Store(collected) => self.store_metadata(collected),
                Output::Aborted { id, ends, failure, recorded } => self.on_aborted(id, ends, failure, recorded),
                Output::GiveUp(id) => self.journal.appender.give_up_checkpoint(id),
                Output::FailJob(failure) => self.fail_attempt(failure, None),
            }
        }
    }

    pub(super) fn on_acknowledged(&mut self, subtask: SubtaskId, id: CheckpointId, state: SubtaskState) {
        if self.journal.in_memory
            && let Some(failure) = too_large(&state, subtask)
        {
            return self.on_declined(id, failure);
        }
        let output = self.coordinator.as_mut().and_then(|one| one.acknowledge(subtask, id, state));
        self.execute(output.into_iter().collect());
    }

    pub(super) fn on_declined(&mut self, id: CheckpointId, failure: Failure) {
        let outputs = self.coordinator.as_mut().map(|one| one.fail(id, failure, self.now)).unwrap_or_default();
        self.execute(outputs);
    }

    fn store_metadata(&mut self, collected: Collected) {
        let Some(run) = self.execution.as_ref().map(|execution| execution.run) else { return };
        let nonce = format!("{:016x}", self.random.next_u64());
        let operators = collected.states.into_values().flat_map(|state| state.operators).collect();
        let metadata = Metadata {
            version: metadata::VERSION,
            job: self.config.job.clone(),
            run,
            checkpoint: collected.id,
            nonce,
            triggered_at: collected.triggered_at,
            key_group_function: key_group::NAME.to_owned(),
            max_parallelism: self.config.graph.max_parallelism,
            vertices: describe_vertices(&self.config.graph),
            operators,
        };
        let bytes = match metadata.to_bytes() {
            Ok(bytes) => bytes,
            Err(error) => {
                let failure = Failure::restart("MetadataUnwritable", Fault::Internal, error.to_string());
                return self.on_declined(collected.id, failure);
            }
        };
        self.storing.insert(collected.id, Storing { metadata, bytes, tries: 0 });
        if self.journal.in_memory { self.on_metadata_stands(collected.id) } else { self.put_metadata(collected.id) }
    }

    fn put_metadata(&mut self, id: CheckpointId) {
        let Some(storing) = self.storing.get_mut(&id) else { return };
        storing.tries += 1;
        let bytes = storing.bytes.clone();
        let key = self.journal.paths.metadata(self.config.generation, id);
        self.store(Purpose::WriteMetadata(id), StoreOperation::PutIfAbsent { key, bytes });
    }

    /// A put has an answer. An unclear one and "exists" are settled by reading (K2).
    pub(super) fn on_metadata_written(&mut self, id: CheckpointId, reply: StoreReply) {
        let key = self.journal.paths.metadata(self.config.generation, id);
        match reply {
            StoreReply::Put => self.on_metadata_stands(id),
            StoreReply::Failed(failure) if self.storing.get(&id).is_none_or(|one| one.tries >= METADATA_TRIES) => {
                self.fail_storing(id, failure.message);
            }
            _ => self.store(Purpose::ReadMetadata(id), StoreOperation::Get { key }),
        }
    }

    pub(super) fn on_metadata_read_back(&mut self, id: CheckpointId, reply: StoreReply) {
        let Some(storing) = self.storing.get(&id) else { return };
        match reply {
            StoreReply::Object(bytes) => {
                let standing = Metadata::from_bytes(&bytes, "").ok();
                if standing.is_some_and(|standing| standing.nonce == storing.metadata.nonce) {
                    self.on_metadata_stands(id);
                } else {
                    self.fail_storing(id, "another process has written its _metadata".to_owned());
                }
            }
            StoreReply::Absent if storing.tries < METADATA_TRIES => self.put_metadata(id),
            StoreReply::Absent => self.fail_storing(id, "the object store did not keep its _metadata".to_owned()),
            StoreReply::Failed(failure) => self.fail_storing(id, failure.message),
            other => self.fail_storing(id, crate::ledger::read::unexpected(&other).message),
        }
    }

    fn fail_storing(&mut self, id: CheckpointId, message: String) {
        self.storing.remove(&id);
        self.on_declined(id, Failure::restart("CheckpointNotStored", Fault::External, message));
    }

    fn on_metadata_stands(&mut self, id: CheckpointId) {
        let Some(storing) = self.storing.get(&id) else { return };
        let (triggered_at, bytes) = (storing.metadata.triggered_at, storing.metadata.state_bytes());
        self.append(Intent::Checkpoint { id, triggered_at, bytes });
    }

    /// The entry stands: the checkpoint is complete (K1).
    pub(super) fn on_checkpoint_stands(
        &mut self,
        checkpoint: RetainedCheckpoint,
        ends: Ends,
        drops: Vec<CheckpointKey>,
    ) {
        let key = checkpoint.key;
        let directory = self.journal.paths.checkpoint_directory(key.generation, key.id);
        self.status.last_checkpoint = Some(self.describe_checkpoint(checkpoint));
        if let Some(storing) = self.storing.remove(&key.id) {
            self.cached = Some((directory, storing.metadata));
        }
        let outputs = self.coordinator.as_mut().map(|one| one.completed(key.id, self.now)).unwrap_or_default();
        self.execute(outputs);
        self.tell_tasks(|run| ToTaskManager::CheckpointCompleted { run, checkpoint: key.id });
        let dead: Vec<_> = self.dead.drain(..).chain(drops).collect();
        for key in dead {
            self.remove_checkpoint(key);
        }
        match ends {
            Ends::None => {}
            Ends::Stop => self.end(EndKind::Stopped),
            Ends::Finish => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.deactivate();
                }
                if matches!(self.phase, Phase::Preparing(_)) {
                    // The attempt failed meanwhile; what this checkpoint holds is the end.
                    return self.end(EndKind::Finished);
                }
                self.finish_when_all_have();
            }
        }
    }

    pub(super) fn describe_checkpoint(&self, checkpoint: RetainedCheckpoint) -> CheckpointInfo {
        let RetainedCheckpoint { key, triggered_at, completed_at, bytes } = checkpoint;
        let directory = self.journal.paths.checkpoint_directory(key.generation, key.id);
        let path = paths::uri(self.config.storage_uri.as_deref(), &directory);
        CheckpointInfo { id: key.id, path, triggered_at, completed_at, bytes }
    }

    fn on_aborted(&mut self, id: CheckpointId, ends: Ends, failure: Option<Failure>, recorded: bool) {
        self.forget_storing(id);
        self.tell_tasks(|run| ToTaskManager::CheckpointAborted { run, checkpoint: id });
        self.dead.push(CheckpointKey { generation: self.config.generation, id });
        let Some(failure) = failure else { return };
        self.note_failed_checkpoint(id, &failure);
        if !recorded {
            self.append(Intent::CheckpointFailed { id, failure });
        }
        if ends == Ends::Stop && matches!(self.phase, Phase::Running) {
            self.end(EndKind::Stopped);
        }
    }

    /// `CheckpointFailed` stands: of an aborted one, or in place of an entry that was given up (L2).
    pub(super) fn on_checkpoint_failure_stands(&mut self, id: CheckpointId, failure: Failure) {
        let Some(coordinator) = &mut self.coordinator else { return };
        if coordinator.pending().any(|pending| pending == id) {
            let outputs = coordinator.refused(id, failure, self.now);
            return self.execute(outputs);
        }
        coordinator.failure_recorded();
    }

    pub(super) fn forget_storing(&mut self, id: CheckpointId) {
        self.storing.remove(&id);
        self.operations.forget(
            |purpose| matches!(purpose, Purpose::WriteMetadata(other) | Purpose::ReadMetadata(other) if *other == id),
        );
    }

    /// Tells every TaskManager of the current attempt.
    fn tell_tasks(&mut self, message: impl Fn(crate::ids::Run) -> ToTaskManager) {
        let Some(execution) = &self.execution else { return };
        if !matches!(self.phase, Phase::Running | Phase::Ending(_)) {
            return;
        }
        let (run, sessions) = (execution.run, execution.sessions());
        for session in sessions {
            self.send(session, message(run));
        }
    }
}

fn too_large(state: &SubtaskState, subtask: SubtaskId) -> Option<Failure> {
    let handles =
        state.operators.iter().flat_map(|operator| operator.keyed.iter().map(move |handle| (operator, handle)));
    let (operator, handle) = handles
        .filter(|(_, handle)| handle.data.size() > MEMORY_LIMIT || matches!(handle.data, StateData::File { .. }))
        .max_by_key(|(_, handle)| handle.data.size())?;
    let message = format!(
        "state '{}' of operator '{}' in subtask {subtask} has {} bytes; the JobManager's memory takes {MEMORY_LIMIT}: \
         give checkpointing.storage a URI such as s3://bucket/path",
        handle.name,
        operator.uid,
        handle.data.size()
    );
    Some(Failure::restart("StateTooLarge", Fault::User, message))
}
