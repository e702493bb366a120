//! From a frozen state to an acknowledgement: files of state through the world's store (K2).

use super::{Acknowledgement, Effect, Operation, TaskManager, store};
use crate::simulation::scenario::Bug;
use sluice_engine::error::TaskError;
use sluice_engine::in_flight::InFlight;
use sluice_engine::operator::{KeyedPiece, ListPiece, OperatorState, WriteOptions};
use sluice_engine::task::TaskSnapshot;
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::graph::JobGraph;
use sluice_protocol::message::FromTaskManager;
use sluice_protocol::paths::{shared_file, state_file};
use sluice_protocol::state::{
    InFlightHandle, KeyedStateHandle, KeyedStateKind, OperatorSnapshot, OperatorStateHandle, StateData, SubtaskState,
};
use sluice_protocol::store::{StoreOperation, StoreReply};
use sluice_protocol::{CheckpointId, OperatorUid, Run, SubtaskId};

/// Whose state it is, and of which checkpoint.
type Of = (Run, CheckpointId, SubtaskId);

/// What was in flight always travels inline here.
fn inline_handle(share: &InFlight, graph: &JobGraph) -> Result<InFlightHandle, TaskError> {
    let bytes = share.encode()?;
    let handle = share.handle(graph, 0, bytes.len() as u64, StateData::Inline { bytes });
    handle.ok_or_else(|| TaskError::Internal(format!("{} is not in the graph", share.channel)))
}

impl TaskManager {
    pub(super) fn upload(&mut self, run: Run, mut snapshot: TaskSnapshot) {
        let (checkpoint, subtask) = (snapshot.barrier.checkpoint, snapshot.subtask);
        let directory = self.active.as_ref().and_then(|active| active.deployment.state_directory.clone());
        let base = snapshot.barrier.base.filter(|_| directory.is_some());
        let graph = self.setup.program.graph.clone();
        let mut in_flight = std::mem::take(&mut snapshot.in_flight);
        let is_source = graph.is_source(subtask.vertex);
        in_flight.retain(|share| match self.setup.bug {
            Some(Bug::SenderShare) => !is_source,
            Some(Bug::RestoredShare) => share.age == 0,
            _ => true,
        });
        let in_flight = in_flight.iter().map(|share| inline_handle(share, &graph)).collect::<Result<Vec<_>, _>>();
        let written =
            snapshot.write(&WriteOptions { base, whole_below: 0 }).and_then(|states| Ok((states, in_flight?)));
        // A savepoint holds all state, whatever the checkpoint refers to.
        let whole = snapshot
            .barrier
            .savepoint
            .clone()
            .map(|directory| snapshot.write(&WriteOptions::default()).map(|states| (directory, states)));
        let written = written.and_then(|written| Ok((written, whole.transpose()?)));
        let ((states, in_flight), savepoint) = match written {
            Ok(written) => written,
            Err(error) => {
                let failure = error.to_failure();
                return self.effects.push(Effect::Send(FromTaskManager::Decline { run, subtask, checkpoint, failure }));
            }
        };
        let (mut missing, mut operators, mut recorders) = (0, Vec::new(), Vec::new());
        for (uid, OperatorState { keyed, layers, operator, splits, committables }) in states {
            let mut handles: Vec<_> = layers.iter().flat_map(|layers| layers.reused.clone()).collect();
            let mut new = Vec::new();
            for piece in keyed {
                let KeyedPiece { name, key_groups, rows, kind, bytes, .. } = piece;
                let data = match (self.older_file(run, subtask, rows, kind), &directory) {
                    (Some(older), _) => older,
                    (None, Some(directory)) => {
                        self.place((run, checkpoint, subtask), (directory, true), &mut missing, bytes)
                    }
                    (None, None) => StateData::Inline { bytes },
                };
                if kind == KeyedStateKind::Full && matches!(data, StateData::File { .. }) {
                    self.stored.insert(subtask, (data.clone(), rows, run));
                }
                new.push(KeyedStateHandle { name, key_groups, rows, kind, data });
            }
            handles.extend(new.iter().cloned());
            recorders.extend(layers.into_iter().map(|layers| {
                let own = new.iter().filter(|handle| handle.name == layers.name).cloned().collect();
                (layers.recorder, own)
            }));
            let mut lists = Vec::new();
            for piece in operator {
                let to = directory.as_deref().map(|directory| (directory, true));
                lists.push(self.place_list((run, checkpoint, subtask), to, &mut missing, piece));
            }
            operators.push(OperatorSnapshot {
                uid,
                subtask: subtask.index,
                keyed: handles,
                operator: lists,
                splits,
                committables,
            });
        }
        let savepoint = savepoint.map(|(directory, states)| {
            self.upload_savepoint((run, checkpoint, subtask), &directory, states, &mut missing)
        });
        let state = (SubtaskState { operators, in_flight, divided_into: None }, savepoint);
        let waiting = Acknowledgement { state, missing: missing as usize, recorders };
        if missing == 0 {
            return self.acknowledge(run, checkpoint, subtask, waiting);
        }
        if let Some(active) = &mut self.active {
            active.acknowledgements.insert((checkpoint, subtask), waiting);
        }
    }

    /// Planted bug: a file of an earlier attempt with as many rows.
    fn older_file(&self, run: Run, subtask: SubtaskId, rows: u64, kind: KeyedStateKind) -> Option<StateData> {
        let (data, stored, of) = self.stored.get(&subtask).filter(|_| self.setup.bug == Some(Bug::ForeignFile))?;
        (kind == KeyedStateKind::Full && *stored == rows && *of != run).then(|| data.clone())
    }

    /// All state once more, in files of the savepoint's own (K4).
    fn upload_savepoint(
        &mut self,
        of: Of,
        directory: &str,
        states: Vec<(OperatorUid, OperatorState)>,
        missing: &mut u32,
    ) -> SubtaskState {
        let mut operators = Vec::new();
        for (uid, OperatorState { keyed, operator, splits, .. }) in states {
            let mut handles = Vec::new();
            for KeyedPiece { name, key_groups, rows, kind, bytes, .. } in keyed {
                let data = self.place(of, (directory, false), missing, bytes);
                handles.push(KeyedStateHandle { name, key_groups, rows, kind, data });
            }
            let to = Some((directory, false));
            let lists = operator.into_iter().map(|piece| self.place_list(of, to, missing, piece)).collect();
            operators.push(OperatorSnapshot {
                uid,
                subtask: of.2.index,
                keyed: handles,
                operator: lists,
                splits,
                committables: vec![],
            });
        }
        SubtaskState { operators, ..SubtaskState::default() }
    }

    /// Bytes of state: inline, or a file that is put below this directory, beside others of the job or not.
    fn place(
        &mut self,
        (run, checkpoint, subtask): Of,
        (directory, is_shared): (&str, bool),
        missing: &mut u32,
        bytes: Vec<u8>,
    ) -> StateData {
        if bytes.len() <= self.setup.inline_limit {
            return StateData::Inline { bytes };
        }
        let nonce = format!("{:08x}", self.rng.u32(..));
        let path = if is_shared { shared_file } else { state_file }(run, checkpoint, subtask, *missing, &nonce);
        *missing += 1;
        let data = StateData::file(path, &bytes);
        let from = if is_shared { format!("{directory}/chk") } else { directory.to_owned() };
        self.put_file(run, checkpoint, subtask, data.resolve(&from), bytes);
        data
    }

    fn place_list(
        &mut self,
        of: Of,
        to: Option<(&str, bool)>,
        missing: &mut u32,
        ListPiece { name, redistribution, items }: ListPiece,
    ) -> OperatorStateHandle {
        let (count, bytes) = (items.len() as u64, serde_json::Value::Array(items).to_string().into_bytes());
        let data = match to {
            Some(to) => self.place(of, to, missing, bytes),
            None => StateData::Inline { bytes },
        };
        OperatorStateHandle { name, redistribution, first: 0, items: count, data }
    }

    fn put_file(&mut self, run: Run, checkpoint: CheckpointId, subtask: SubtaskId, data: StateData, bytes: Vec<u8>) {
        let StateData::File { path: key, .. } = data else { return };
        let operation = StoreOperation::PutIfAbsent { key, bytes };
        let purpose = Operation::Upload { run, checkpoint, subtask, operation: operation.clone(), tries: 1 };
        store(&mut self.operations, &mut self.next_operation, &mut self.effects, purpose, operation);
    }

    fn acknowledge(&mut self, run: Run, checkpoint: CheckpointId, subtask: SubtaskId, done: Acknowledgement) {
        let Acknowledgement { state: (state, savepoint), recorders, .. } = done;
        recorders.into_iter().for_each(|(recorder, handles)| recorder.stored(handles));
        let metrics = Default::default();
        self.effects.push(Effect::Send(FromTaskManager::Acknowledge {
            run,
            subtask,
            checkpoint,
            state,
            savepoint,
            metrics,
        }));
    }

    /// A store operation has an answer. `latest` is the run that wrote the last entry of the ledger: only that
    /// run's files must be there.
    pub fn on_store_reply(&mut self, id: u64, reply: StoreReply, latest: Run) -> Result<Vec<Effect>, String> {
        match self.operations.remove(&id) {
            Some(Operation::Restore { run, subtask, uid, place }) => {
                self.on_restored(run, subtask, &uid, place, reply, latest)?;
            }
            Some(Operation::Upload { run, checkpoint, subtask, operation, tries }) => {
                self.on_uploaded(run, checkpoint, subtask, operation, tries, reply);
            }
            None => {}
        }
        Ok(self.take_effects())
    }

    pub(super) fn on_uploaded(
        &mut self,
        run: Run,
        checkpoint: CheckpointId,
        subtask: SubtaskId,
        operation: StoreOperation,
        tries: u32,
        reply: StoreReply,
    ) {
        let Some(active) = self.active.as_mut().filter(|active| active.deployment.run == run) else { return };
        if matches!(reply, StoreReply::Put | StoreReply::Exists) {
            let Some(waiting) = active.acknowledgements.get_mut(&(checkpoint, subtask)) else { return };
            waiting.missing -= 1;
            if waiting.missing == 0
                && let Some(done) = active.acknowledgements.remove(&(checkpoint, subtask))
            {
                self.acknowledge(run, checkpoint, subtask, done);
            }
        } else if tries < 3 {
            let purpose =
                Operation::Upload { run, checkpoint, subtask, operation: operation.clone(), tries: tries + 1 };
            store(&mut self.operations, &mut self.next_operation, &mut self.effects, purpose, operation);
        } else {
            active.acknowledgements.remove(&(checkpoint, subtask));
            let failure = Failure::restart("UploadFailed", Fault::External, "a file of state could not be stored");
            self.effects.push(Effect::Send(FromTaskManager::Decline { run, subtask, checkpoint, failure }));
        }
    }
}
