//! From a deployment to tasks: channels, restored state, the tasks themselves (N4).

use super::{ActiveRun, Effect, Loading, Merged, Operation, Place, Receiver, Sender, TaskManager, store};
use crate::simulation::check::RESTORE_UNAVAILABLE;
use crate::simulation::controller::job;
use crate::simulation::program::windows::WINDOWS;
use crate::simulation::scenario::Bug;
use sluice_engine::channel::{ChannelId, Frame, channel, sending_channel};
use sluice_engine::in_flight;
use sluice_engine::operator::{Clock, RestoredKeyed, RestoredList, TaskIdentity};
use sluice_engine::partition::EdgeOutput;
use sluice_engine::state::StateBackend;
use sluice_engine::task::{Task, TaskDescription, TaskOptions};
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::graph::{Edge, Partitioning};
use sluice_protocol::message::{Deployment, FromTaskManager};
use sluice_protocol::state::{KeyedStateKind, OperatorSnapshot, OperatorStateHandle, StateData, SubtaskState};
use sluice_protocol::store::{StoreOperation, StoreReply};
use sluice_protocol::{CheckpointId, OperatorUid, Run, SubtaskId, SubtaskIndex, TaskManagerId, TimeSpan, VertexId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl TaskManager {
    pub(super) fn deploy(&mut self, deployment: Deployment) {
        if self.active.is_some() || self.ending.is_some() {
            let failure = Failure::restart("OldTasksRun", Fault::Internal, "N4: tasks of an older run have not ended");
            let (run, subtask) = (deployment.run, deployment.tasks[0].subtask);
            self.effects.push(Effect::Send(FromTaskManager::TaskFailed { run, subtask, failure }));
            return;
        }
        let mut active = self.connect_tasks(deployment);
        for task in active.deployment.tasks.clone() {
            let loading = self.load(active.deployment.run, task.subtask, task.restore);
            active.loading.insert(task.subtask, loading);
        }
        self.active = Some(active);
    }

    pub(super) fn connect_tasks(&self, deployment: Deployment) -> ActiveRun {
        let mut active = ActiveRun {
            loading: BTreeMap::new(),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            tasks: vec![],
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            merged: vec![],
            acknowledgements: BTreeMap::new(),
            deployment,
        };
        let graph = &self.setup.program.graph;
        let place = |active: &ActiveRun, vertex: VertexId, index: u32| {
            let subtask = SubtaskId { vertex, index: SubtaskIndex(index) };
            let placement = active.deployment.placement.iter().find(|placement| placement.subtask == subtask);
            placement.map(|placement| (subtask, placement.task_manager.clone()))
        };
        for (number, edge) in graph.edges.iter().enumerate() {
            let parallelism = graph.vertices[edge.from.0 as usize].parallelism;
            for from in 0..parallelism {
                for to in 0..graph.vertices[edge.to.0 as usize].parallelism {
                    let id = ChannelId { edge: number as u32, from: SubtaskIndex(from), to: SubtaskIndex(to) };
                    let (Some(producer), Some(consumer)) =
                        (place(&active, edge.from, from), place(&active, edge.to, to))
                    else {
                        continue;
                    };
                    self.connect(&mut active, id, edge, producer, consumer);
                }
            }
        }
        if self.setup.bug == Some(Bug::Alignment) {
            merge_inputs(&mut active, self.setup.window);
        }
        active
    }

    pub(super) fn connect(
        &self,
        active: &mut ActiveRun,
        id: ChannelId,
        edge: &Edge,
        (producer, producer_at): (SubtaskId, TaskManagerId),
        (consumer, consumer_at): (SubtaskId, TaskManagerId),
    ) {
        let me = &self.setup.name;
        if producer_at != *me && consumer_at != *me {
            return;
        }
        let make = if consumer_at == *me { channel } else { sending_channel };
        let (output, input) = make(id, self.setup.window);
        if producer_at == *me {
            // Channels come edge by edge.
            let edges = active.outputs.entry(producer).or_default();
            if edges.last().is_none_or(|(number, _)| *number != id.edge) {
                edges.push((id.edge, EdgeOutput { partitioning: edge.partitioning.clone(), channels: vec![] }));
            }
            if let Some((_, last)) = edges.last_mut() {
                last.channels.push(output);
            }
        } else {
            active.receivers.insert(id, Receiver { from: producer_at, output });
        }
        if consumer_at == *me {
            let stays_aligned = edge.partitioning == Partitioning::Broadcast && self.setup.bug != Some(Bug::Broadcast);
            let input = input.at_input(edge.input);
            let input = if stays_aligned { input.staying_aligned() } else { input };
            active.inputs.entry(consumer).or_default().push(input);
        } else {
            active.senders.insert(id, Sender { to: consumer_at, input, credit: self.setup.window as i64 });
        }
    }

    pub(super) fn load(&mut self, run: Run, subtask: SubtaskId, restore: Option<SubtaskState>) -> Loading {
        let parallelism = self.setup.program.graph.vertices[subtask.vertex.0 as usize].parallelism;
        let source = self.setup.program.vertices[subtask.vertex.0 as usize].source.clone();
        let mut loading = Loading { state: BTreeMap::new(), in_flight: vec![], missing: 0 };
        let SubtaskState { operators, in_flight, divided_into } = restore.unwrap_or_default();
        let divided_into = divided_into.filter(|_| self.setup.bug != Some(Bug::KeyGroups));
        for mut handle in in_flight {
            let StateData::Inline { bytes } = std::mem::replace(&mut handle.data, StateData::Inline { bytes: vec![] })
            else {
                continue;
            };
            match in_flight::restore(&handle, &bytes.into(), &self.setup.program, subtask) {
                Ok(mut channel) => {
                    if self.setup.bug == Some(Bug::InFlightOrder) {
                        channel.first = u64::MAX - channel.first;
                    }
                    loading.in_flight.push(channel);
                }
                Err(error) => {
                    let failure = error.to_failure();
                    self.effects.push(Effect::Send(FromTaskManager::TaskFailed { run, subtask, failure }));
                }
            }
        }
        for snapshot in operators {
            let OperatorSnapshot { uid, keyed, operator, splits, .. } = snapshot;
            let state = loading.state.entry(uid.clone()).or_default();
            let owned = splits.into_iter().filter(|split| {
                source.as_ref().is_none_or(|(_, source)| source.owner(&split.split, parallelism) == subtask.index)
            });
            state.splits.extend(owned);
            if self.setup.bug == Some(Bug::SplitTime) {
                let fields = state.splits.iter_mut().filter_map(|split| split.state.as_object_mut());
                fields.for_each(|fields| drop(fields.remove("watermark")));
            }
            let forgets = self.setup.bug == Some(Bug::Fired) && uid.0.as_str() == WINDOWS;
            for OperatorStateHandle { name, redistribution, first, items, data } in
                operator.into_iter().filter(|_| !forgets)
            {
                let mut restored = RestoredList { name, redistribution, items: vec![] };
                match data {
                    StateData::Inline { bytes } => restored.items = some_items(&bytes, first, items),
                    StateData::File { path, .. } => {
                        loading.missing += 1;
                        let operation = StoreOperation::Get { key: path };
                        let place = Place::List(state.operator.len(), first, items);
                        let purpose = Operation::Restore { run, subtask, uid: uid.clone(), place };
                        store(&mut self.operations, &mut self.next_operation, &mut self.effects, purpose, operation);
                    }
                }
                state.operator.push(restored);
            }
            let is_short =
                self.setup.bug == Some(Bug::DiskDeltas) && matches!(self.setup.state_backend, StateBackend::Disk(_));
            for handle in keyed.into_iter().filter(|one| !is_short || one.kind == KeyedStateKind::Full) {
                let place = Place::Keyed(state.keyed.len());
                let restored = |bytes: Vec<u8>| RestoredKeyed {
                    name: handle.name,
                    kind: handle.kind,
                    divided_into,
                    bytes: bytes.into(),
                };
                match handle.data {
                    StateData::Inline { bytes } => state.keyed.push(restored(bytes)),
                    StateData::File { path, .. } => {
                        // Filled when it comes.
                        state.keyed.push(restored(Vec::new()));
                        loading.missing += 1;
                        let operation = StoreOperation::Get { key: path };
                        let purpose = Operation::Restore { run, subtask, uid: uid.clone(), place };
                        store(&mut self.operations, &mut self.next_operation, &mut self.effects, purpose, operation);
                    }
                }
            }
        }
        loading
    }

    pub(super) fn start_loaded(&mut self) {
        let Some(active) = &mut self.active else { return };
        let loaded: Vec<_> =
            active.loading.iter().filter(|(_, one)| one.missing == 0).map(|(subtask, _)| *subtask).collect();
        for subtask in loaded {
            let Some(loading) = active.loading.remove(&subtask) else { continue };
            let program = &self.setup.program;
            let description = TaskDescription {
                subtask,
                identity: TaskIdentity { job: job(self.setup.epoch), run: active.deployment.run },
                parallelism: program.graph.vertices[subtask.vertex.0 as usize].parallelism,
                max_parallelism: program.graph.max_parallelism,
                program: program.vertices[subtask.vertex.0 as usize].clone(),
                inputs: active.inputs.remove(&subtask).unwrap_or_default(),
                outputs: active
                    .outputs
                    .remove(&subtask)
                    .unwrap_or_default()
                    .into_iter()
                    .map(|(_, edge)| edge)
                    .collect(),
                state: loading.state,
                in_flight: loading.in_flight,
                options: TaskOptions { batch_rows: 4, buffer_timeout: TimeSpan(20), ..TaskOptions::default() },
                state_backend: self.setup.state_backend.clone(),
                clock: Clock::clone(&self.setup.clock),
                job_clock: Clock::clone(&self.setup.clock),
                alignment: None,
            };
            active.tasks.push(Task::new(description, Arc::new(|| {})));
        }
    }

    pub(super) fn on_restored(
        &mut self,
        run: Run,
        subtask: SubtaskId,
        uid: &OperatorUid,
        place: Place,
        reply: StoreReply,
        latest: Run,
    ) -> Result<(), String> {
        let Some(active) = self.active.as_mut().filter(|active| active.deployment.run == run) else { return Ok(()) };
        let Some(loading) = active.loading.get_mut(&subtask) else { return Ok(()) };
        let failure = match reply {
            StoreReply::Object(bytes) => {
                loading.missing -= 1;
                let Some(state) = loading.state.get_mut(uid) else { return Ok(()) };
                match place {
                    Place::Keyed(index) => state.keyed[index].bytes = bytes.into(),
                    Place::List(index, first, items) => state.operator[index].items = some_items(&bytes, first, items),
                }
                return Ok(());
            }
            StoreReply::Absent if run >= latest => {
                return Err(format!("K6: a file that run {run} restores is missing"));
            }
            StoreReply::Absent => Failure::restart("StateGone", Fault::Internal, "a file to restore is missing"),
            _ => Failure::external(RESTORE_UNAVAILABLE, "the store did not answer"),
        };
        self.effects.push(Effect::Send(FromTaskManager::TaskFailed { run, subtask, failure }));
        Ok(())
    }
}

/// Of the items of a stored list those that a subtask gets.
fn some_items(bytes: &[u8], first: u64, items: u64) -> Vec<serde_json::Value> {
    let all: Vec<_> = serde_json::from_slice(bytes).unwrap_or_default();
    all.into_iter().skip(first as usize).take(items as usize).collect()
}

fn merge_inputs(active: &mut ActiveRun, window: usize) {
    let inputs = std::mem::take(&mut active.inputs);
    for (subtask, inputs) in inputs {
        let (output, input) = channel(inputs[0].id(), window * 4);
        active.inputs.insert(subtask, vec![input]);
        active.merged.push(Merged { inputs, output, cut: CheckpointId(0), ended: 0 });
    }
}

impl Merged {
    pub(super) fn pump(&mut self) {
        for input in &self.inputs {
            while let Some(numbered) = input.pop() {
                match numbered.frame {
                    Frame::Barrier(barrier) if barrier.checkpoint <= self.cut => {}
                    Frame::Barrier(barrier) => {
                        self.cut = barrier.checkpoint;
                        self.output.push(Frame::Barrier(barrier));
                    }
                    Frame::EndOfInput => {
                        self.ended += 1;
                        if self.ended == self.inputs.len() {
                            self.output.push(Frame::EndOfInput);
                        }
                    }
                    rows @ (Frame::Batch(_) | Frame::Watermark(_)) => self.output.push(rows),
                    // The barrier itself follows.
                    Frame::Overtaking { .. } => {}
                }
            }
        }
    }
}
