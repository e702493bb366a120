//! From a trigger to a completed checkpoint: the coordinator's outputs carried out (K1-K3).
//!
//! Trigger → acknowledgements → `_metadata` put if absent → `Checkpoint` entry → tasks are told, displaced ones go.

use super::journal::{EndKind, Intent};
use super::operations::Purpose;
use super::{JobMaster, Phase};
use crate::commit::COMMIT_ALLOWANCE;
use crate::coordinator::{Aborted, CheckpointCoordinator, Collected, Dropped, Output};
use crate::failure::{Failure, Fault};
use crate::history::{CheckpointHistory, RecordState};
use crate::ids::{CheckpointId, Run, SubtaskId};
use crate::key_group;
use crate::ledger::{CheckpointKey, Ends, RetainedCheckpoint};
use crate::message::{Barrier, CheckpointMetrics, ToTaskManager};
use crate::metadata::{self, Metadata, describe_vertices};
use crate::paths::{self, METADATA};
use crate::state::{StateData, SubtaskState};
use crate::status::CheckpointInfo;
use crate::store::{StoreFailure, StoreFailureKind, StoreOperation, StoreReply};
use crate::time::Timestamp;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Tries of a `_metadata` before the checkpoint has failed.
const METADATA_TRIES: u32 = 3;

/// Largest single piece of state with storage `JobManager` (design §4).
const MEMORY_LIMIT: u64 = 5 * 1024 * 1024;

/// A checkpoint between its last acknowledgement and its entry.
#[derive(Debug)]
pub(super) struct Storing {
    metadata: Metadata,
    /// What is still to be put: its savepoint's `_metadata` first, its own last.
    parts: VecDeque<Part>,
    tries: u32,
}

/// What a subtask acknowledges.
pub(super) struct StoredState {
    pub(super) state: SubtaskState,
    pub(super) savepoint: Option<SubtaskState>,
    pub(super) metrics: CheckpointMetrics,
}

/// A `_metadata` on its way.
#[derive(Debug, Clone)]
struct Part {
    key: String,
    bytes: Vec<u8>,
    nonce: String,
}

impl JobMaster {
    pub(super) fn create_coordinator(&mut self) {
        let settings = self.config.options.checkpointing.clone();
        let last = self.journal.fold.last_checkpoint;
        self.coordinator = settings.map(|settings| CheckpointCoordinator::new(settings, last));
        if let Some(coordinator) = self.coordinator.as_mut().filter(|_| self.config.planted.overlapping_savepoints) {
            coordinator.plant_overlapping_savepoints();
        }
        let warnings =
            self.config.options.checkpointing.as_ref().map(|settings| settings.warnings()).unwrap_or_default();
        warnings.into_iter().for_each(|(reason, message)| self.set_notice(reason, message));
        self.history = Arc::new(CheckpointHistory::of_records(&self.journal.fold.history));
    }

    pub(super) fn tick_coordinator(&mut self) {
        let outputs = self.coordinator.as_mut().map(|one| one.tick(self.now)).unwrap_or_default();
        self.execute(outputs);
    }

    pub(super) fn execute(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Trigger(barrier) => self.trigger_checkpoint(&barrier),
                Output::Store(collected) => self.store_metadata(collected),
                Output::Aborted(aborted) => self.on_aborted(aborted),
                Output::NotTriggered(failure) => self.set_notice("CheckpointFailed", failure.message),
                Output::GiveUp(id) => self.journal.appender.give_up_checkpoint(id),
                Output::FailJob(failure) => self.fail_attempt(failure, None),
            }
        }
    }

    fn trigger_checkpoint(&mut self, barrier: &Barrier) {
        let Some(execution) = &self.execution else { return };
        let (run, sessions) = (execution.run, execution.source_sessions(&self.config.graph));
        for session in sessions {
            self.send(session, ToTaskManager::TriggerCheckpoint { run, barrier: barrier.clone() });
        }
        Arc::make_mut(&mut self.history).triggered(barrier, &self.config.graph);
        self.on_checkpoint_triggered(barrier.checkpoint);
    }

    pub(super) fn on_acknowledged(&mut self, subtask: SubtaskId, id: CheckpointId, stored: StoredState) {
        let StoredState { state, savepoint, metrics } = stored;
        if self.journal.in_memory
            && let Some(failure) = too_large(&state, subtask)
        {
            return self.on_declined(id, failure);
        }
        Arc::make_mut(&mut self.history).acknowledged(id, subtask, (metrics, &state), self.now);
        let output = self.coordinator.as_mut().and_then(|one| one.acknowledge(subtask, id, state, savepoint));
        self.execute(output.into_iter().collect());
    }

    pub(super) fn on_declined(&mut self, id: CheckpointId, failure: Failure) {
        let outputs = self.coordinator.as_mut().map(|one| one.fail(id, failure, self.now)).unwrap_or_default();
        self.execute(outputs);
    }

    fn store_metadata(&mut self, collected: Collected) {
        let Some(run) = self.execution.as_ref().map(|execution| execution.run) else { return };
        let Collected { id, triggered_at, states, savepoint } = collected;
        let is_whole = savepoint.as_ref().is_none_or(|(_, parts)| parts.len() == states.len());
        if !is_whole {
            let message = "a TaskManager acknowledged without its part of the savepoint: all must run the same image";
            return self.on_declined(id, Failure::restart("SavepointIncomplete", Fault::Internal, message));
        }
        let mut metadata = self.describe_snapshot(run, (id, triggered_at), states);
        self.carry_handles(&mut metadata);
        let mut parts = VecDeque::new();
        if let Some((savepoint, states)) = savepoint {
            let mut described = Metadata { savepoint: true, ..self.describe_snapshot(run, (id, triggered_at), states) };
            // K4: whoever starts from a savepoint has nothing to settle.
            described.operators.iter_mut().for_each(|one| one.committables.clear());
            let tells_more = self.has_transactional_sinks() && !self.journal.in_memory;
            described.origin = tells_more.then(|| self.own_place());
            parts.push_back((format!("{}/{METADATA}", savepoint.directory), described));
        }
        if !self.journal.in_memory {
            parts.push_back((self.journal.paths.metadata(self.config.generation, id), metadata.clone()));
        }
        let written: Result<VecDeque<Part>, _> =
            parts.into_iter().map(|(key, metadata)| Part::new(key, &metadata)).collect();
        match written {
            Ok(parts) => {
                self.storing.insert(id, Storing { metadata, parts, tries: 0 });
                self.put_metadata(id);
            }
            Err(error) => {
                let failure = Failure::restart("MetadataUnwritable", Fault::Internal, error.to_string());
                self.on_declined(id, failure);
            }
        }
    }

    fn describe_snapshot(
        &mut self,
        run: Run,
        (id, triggered_at): (CheckpointId, Timestamp),
        states: BTreeMap<SubtaskId, SubtaskState>,
    ) -> Metadata {
        let (mut operators, mut in_flight) = (Vec::new(), Vec::new());
        for state in states.into_values() {
            operators.extend(state.operators);
            in_flight.extend(state.in_flight);
        }
        Metadata {
            version: metadata::VERSION,
            job: self.config.job.clone(),
            run,
            checkpoint: id,
            savepoint: false,
            origin: None,
            nonce: format!("{:016x}", self.random.next_u64()),
            triggered_at,
            key_group_function: key_group::NAME.to_owned(),
            max_parallelism: self.config.graph.max_parallelism,
            vertices: describe_vertices(&self.config.graph),
            operators,
            in_flight,
            details: self.history.get(id).cloned().map(Box::new),
        }
    }

    /// Puts what is still to be put; when nothing is, the entry follows.
    fn put_metadata(&mut self, id: CheckpointId) {
        let Some(storing) = self.storing.get_mut(&id) else { return };
        let Some(Part { key, bytes, .. }) = storing.parts.front().cloned() else {
            let (triggered_at, bytes) = (storing.metadata.triggered_at, storing.metadata.state_bytes());
            if self.config.planted.commits_early {
                let handles = storing.metadata.handles().collect();
                self.commit_handles(handles);
            }
            return self.append(Intent::Checkpoint { id, triggered_at, bytes });
        };
        storing.tries += 1;
        self.store(Purpose::WriteMetadata(id), StoreOperation::PutIfAbsent { key, bytes });
    }

    fn on_part_stands(&mut self, id: CheckpointId) {
        if let Some(storing) = self.storing.get_mut(&id) {
            storing.parts.pop_front();
            storing.tries = 0;
        }
        self.put_metadata(id);
    }

    /// A put has an answer. An unclear one and "exists" are settled by reading (K2).
    pub(super) fn on_metadata_written(&mut self, id: CheckpointId, reply: StoreReply) {
        let Some(storing) = self.storing.get(&id) else { return };
        let Some(key) = storing.parts.front().map(|part| part.key.clone()) else { return };
        match reply {
            StoreReply::Put => self.on_part_stands(id),
            StoreReply::Failed(failure) if storing.tries >= METADATA_TRIES || is_refusal(&failure) => {
                self.fail_storing(id, &failure);
            }
            _ => self.store(Purpose::ReadMetadata(id), StoreOperation::Get { key }),
        }
    }

    pub(super) fn on_metadata_read_back(&mut self, id: CheckpointId, reply: StoreReply) {
        let Some(storing) = self.storing.get(&id) else { return };
        let Some(nonce) = storing.parts.front().map(|part| part.nonce.clone()) else { return };
        let unreachable =
            |message: &str| StoreFailure { kind: StoreFailureKind::Unreachable, message: message.to_owned() };
        match reply {
            StoreReply::Object(bytes) => {
                let standing = Metadata::from_bytes(&bytes, "").ok();
                if standing.is_some_and(|standing| standing.nonce == nonce) {
                    self.on_part_stands(id);
                } else {
                    self.fail_storing(id, &unreachable("another process has written its _metadata"));
                }
            }
            StoreReply::Absent if storing.tries < METADATA_TRIES => self.put_metadata(id),
            StoreReply::Absent => self.fail_storing(id, &unreachable("the object store did not keep its _metadata")),
            StoreReply::Failed(failure) => self.fail_storing(id, &failure),
            other => self.fail_storing(id, &crate::ledger::read::unexpected(&other)),
        }
    }

    fn fail_storing(&mut self, id: CheckpointId, failure: &StoreFailure) {
        self.storing.remove(&id);
        let fault = if is_refusal(failure) { Fault::User } else { Fault::External };
        self.on_declined(id, Failure::restart("CheckpointNotStored", fault, failure.message.clone()));
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
        self.clear_checkpoint_notice();
        let mut held = None;
        if let Some(storing) = self.storing.remove(&key.id) {
            self.know_files(&directory, &storing.metadata);
            let handles: Vec<_> = storing.metadata.handles().collect();
            held = Some(self.held(&handles));
            self.commit_handles(handles);
            self.cached = Some((directory, storing.metadata));
        }
        Arc::make_mut(&mut self.history).ended(key.id, RecordState::Completed, None, self.now);
        let outputs = self.coordinator.as_mut().map(|one| one.completed(key.id, self.now)).unwrap_or_default();
        self.execute(outputs);
        self.tell_tasks(|run| ToTaskManager::CheckpointCompleted { run, checkpoint: key.id, held: held.clone() });
        let completed = self.status.last_checkpoint.clone();
        self.answer_checkpoint(key.id, completed.as_ref(), None);
        self.remove_dead(drops);
        match ends {
            Ends::None => {}
            Ends::Stop => self.end(EndKind::Stopped),
            Ends::Finish => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.deactivate();
                }
                if matches!(self.phase, Phase::Preparing(_)) {
                    // The attempt failed meanwhile; what this checkpoint holds is the end.
                    return self.end(self.reached_end());
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

    fn on_aborted(&mut self, aborted: Aborted) {
        let id = aborted.id;
        self.forget_storing(id);
        self.tell_tasks(|run| ToTaskManager::CheckpointAborted { run, checkpoint: id });
        self.dead.push(CheckpointKey { generation: self.config.generation, id });
        let state = if aborted.failure.is_some() { RecordState::Failed } else { RecordState::Dropped };
        Arc::make_mut(&mut self.history).ended(id, state, aborted.failure.as_ref(), self.now);
        if let Some(failure) = aborted.failure.clone() {
            if aborted.savepoint.is_none() {
                self.note_failed_checkpoint(id, &failure);
            }
            self.answer_checkpoint(id, None, Some(&failure));
            if !aborted.recorded {
                self.append(Intent::CheckpointFailed { id, failure });
            }
        }
        self.on_savepoint_try_failed(&aborted);
        let is_plain_stop = aborted.ends == Ends::Stop && aborted.savepoint.is_none() && aborted.failure.is_some();
        if is_plain_stop && matches!(self.phase, Phase::Running) {
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

    /// Checkpoints whose tasks are over, uncounted.
    pub(super) fn drop_checkpoints(&mut self, dropped: Vec<Dropped>) {
        for Dropped { id, savepoint } in dropped {
            self.forget_storing(id);
            self.dead.push(CheckpointKey { generation: self.config.generation, id });
            self.dead_savepoints.extend(savepoint);
            Arc::make_mut(&mut self.history).ended(id, RecordState::Dropped, None, self.now);
        }
    }

    /// Until when its entry may be sent, so that each of its handles outlives its commit (S4); `None`: at any time. Handles
    /// that are in the last complete checkpoint too do not count: refusing this one would not help them.
    pub(super) fn entry_good_until(&self, id: CheckpointId) -> Option<Timestamp> {
        let handles = self.storing.get(&id)?.metadata.handles();
        let new = handles.filter(|handle| !self.is_unsettled(handle));
        let expires_at = new.filter_map(|handle| handle.committable.expires_at).min()?;
        Some(Timestamp(expires_at.0.saturating_sub(COMMIT_ALLOWANCE.0)))
    }

    /// Has the tasks begin again behind the previous checkpoint, which loses nothing, rather than complete one whose output may
    /// be gone before it is committed.
    pub(super) fn refuses_expiring(&mut self, id: CheckpointId) -> bool {
        if self.entry_good_until(id).is_none_or(|until| until >= self.now) {
            return false;
        }
        let message = format!(
            "checkpoint {id} holds output of a sink that its target gives up within {COMMIT_ALLOWANCE}, too soon to be sure of \
             its commit; the tasks begin again behind the previous checkpoint. Give transactions a longer timeout, or look at \
             why checkpoints fail or take so long"
        );
        self.fail_attempt(Failure::restart("OutputExpires", Fault::External, message), None);
        true
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

impl Part {
    fn new(key: String, metadata: &Metadata) -> Result<Self, serde_json::Error> {
        Ok(Self { key, bytes: metadata.to_bytes()?, nonce: metadata.nonce.clone() })
    }
}

/// Whether only a person can make it succeed.
const fn is_refusal(failure: &StoreFailure) -> bool {
    !matches!(failure.kind, StoreFailureKind::Unreachable)
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
