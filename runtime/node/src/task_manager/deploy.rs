//! From a deployment to channels and task descriptions: pure, but for making the queues.

use super::Equipment;
use super::job_clock::JobClock;
use crate::data_plane::{Incoming, Outgoing};
use crate::edge;
use crate::job::JobDescription;
use crate::memory::{Demand, MemorySplit};
use sluice_engine::channel::{ChannelId, InputChannel, OutputChannel, channel, sending_channel};
use sluice_engine::event_time::alignment::{AlignmentGroups, AlignmentMember, WatermarkAlignment};
use sluice_engine::operator::TaskIdentity;
use sluice_engine::partition::EdgeOutput;
use sluice_engine::program::{Program, VertexProgram};
use sluice_engine::task::{TaskDescription, TaskOptions};
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::graph::{Edge, JobGraph, Partitioning};
use sluice_protocol::message::{Deployment, Placement, TaskDeployment};
use sluice_protocol::{SubtaskId, SubtaskIndex, TaskManagerId, TimeSpan, VertexId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything a deployment consists of here, before its state is there.
pub(crate) struct Plan {
    /// The tasks, without state.
    pub(crate) tasks: Vec<TaskDescription>,
    /// Queues that peers fill.
    pub(crate) incoming: Vec<Incoming>,
    /// Queues that peers take.
    pub(crate) outgoing: Vec<Outgoing>,
    /// How the memory is divided among them.
    pub(crate) memory: MemorySplit,
    /// The sources that wait for each other.
    pub(crate) alignment: Arc<AlignmentGroups>,
}

fn alignment_of(program: &VertexProgram) -> Option<&WatermarkAlignment> {
    program.source.as_ref()?.1.watermarks()?.alignment.as_ref()
}

/// How often TaskManagers of this program are told of each other's sources; `None`: no source waits for another.
pub(crate) fn alignment_interval(program: &Program) -> Option<TimeSpan> {
    program.vertices.iter().filter_map(alignment_of).map(|alignment| alignment.update_interval).min()
}

/// Whether other TaskManagers have sources that wait for others.
fn has_aligned_elsewhere(job: &JobDescription, own: &TaskManagerId, deployment: &Deployment) -> bool {
    let is_aligned = |vertex: VertexId| job.program.vertices.get(vertex.0 as usize).and_then(alignment_of).is_some();
    deployment.placement.iter().any(|place| place.task_manager != *own && is_aligned(place.subtask.vertex))
}

/// Plans a deployment for the TaskManager `own`.
///
/// # Errors
/// When it does not fit the program: the JobManager runs another one.
pub(crate) fn plan(
    equipment: &Equipment,
    (own, job_clock): (&TaskManagerId, &JobClock),
    deployment: &Deployment,
) -> Result<Plan, Failure> {
    let job = &equipment.job;
    let graph = &job.program.graph;
    let places: BTreeMap<SubtaskId, &Placement> =
        deployment.placement.iter().map(|placement| (placement.subtask, placement)).collect();
    let memory = MemorySplit::new(equipment.memory, demand(job, own, &places, deployment))?;
    let mut wiring = Wiring {
        own,
        places,
        window: memory.window,
        inputs: BTreeMap::new(),
        outputs: BTreeMap::new(),
        incoming: Vec::new(),
        outgoing: BTreeMap::new(),
    };
    for (number, edge) in graph.edges.iter().enumerate() {
        wiring.connect_edge(job, number, edge)?;
    }
    let alignment = Arc::new(AlignmentGroups::new(has_aligned_elsewhere(job, own, deployment)));
    let tasks = deployment.tasks.iter().map(|task| {
        let vertex = task.subtask.vertex;
        let (info, program) = graph
            .vertices
            .get(vertex.0 as usize)
            .zip(job.program.vertices.get(vertex.0 as usize))
            .ok_or_else(|| misfit(format!("vertex {vertex} is not in the program")))?;
        Ok(TaskDescription {
            subtask: task.subtask,
            identity: TaskIdentity { job: job.job.clone(), run: deployment.run },
            parallelism: info.parallelism,
            max_parallelism: graph.max_parallelism,
            program: program.clone(),
            inputs: wiring.inputs.remove(&task.subtask).unwrap_or_default(),
            outputs: wiring.outputs.remove(&task.subtask).unwrap_or_default(),
            state: BTreeMap::new(),
            in_flight: Vec::new(),
            state_backend: equipment.state_backend.clone(),
            options: TaskOptions {
                buffer_timeout: job.options.buffer_timeout,
                in_flight_limit: memory.in_flight,
                ..TaskOptions::default()
            },
            clock: edge::clock(),
            job_clock: job_clock.clock(),
            alignment: alignment_of(program)
                .map(|one| AlignmentMember::new(Arc::clone(&alignment), task.subtask, one.clone())),
        })
    });
    let tasks = tasks.collect::<Result<_, Failure>>()?;
    Ok(Plan { tasks, incoming: wiring.incoming, outgoing: wiring.outgoing.into_values().collect(), memory, alignment })
}

/// What the tasks that are to run here hold apart from state.
fn demand(
    job: &JobDescription,
    own: &TaskManagerId,
    places: &BTreeMap<SubtaskId, &Placement>,
    deployment: &Deployment,
) -> Demand {
    let graph = &job.program.graph;
    let is_here = |vertex, index| {
        places.get(&SubtaskId { vertex, index }).is_some_and(|placement| placement.task_manager == *own)
    };
    let channels = graph.edges.iter().map(|edge| {
        let parallelism = |vertex| parallelism(graph, vertex).unwrap_or(0);
        let of_sender = |from: u32| {
            let from = SubtaskIndex(from);
            let here = is_here(edge.from, from);
            targets(&edge.partitioning, from, parallelism(edge.to)).filter(|to| here || is_here(edge.to, *to)).count()
                as u64
        };
        (0..parallelism(edge.from)).map(of_sender).sum::<u64>()
    });
    let connectors = deployment.tasks.iter().map(|task| {
        let program = job.program.vertices.get(task.subtask.vertex.0 as usize);
        let source = program.and_then(|program| program.source.as_ref()).map_or(0, |(_, it)| it.buffered_bytes());
        let sink = program.and_then(|program| program.sink.as_ref()).map_or(0, |(_, it)| it.buffered_bytes());
        source + sink
    });
    let is_unaligned = job.options.checkpointing.as_ref().is_some_and(|checkpointing| checkpointing.unaligned);
    let has_input = |task: &&TaskDeployment| !graph.is_source(task.subtask.vertex);
    let recorders = deployment.tasks.iter().filter(has_input).count() as u64;
    let (tasks, channels) = (deployment.tasks.len() as u64, channels.sum());
    Demand { tasks, channels, connectors: connectors.sum(), recorders, is_unaligned }
}

fn misfit(text: String) -> Failure {
    Failure::restart("DeploymentMisfit", Fault::Internal, format!("a deployment does not fit the program: {text}"))
}

struct Wiring<'a> {
    own: &'a TaskManagerId,
    places: BTreeMap<SubtaskId, &'a Placement>,
    /// Bytes of one channel.
    window: usize,
    inputs: BTreeMap<SubtaskId, Vec<InputChannel>>,
    outputs: BTreeMap<SubtaskId, Vec<EdgeOutput>>,
    incoming: Vec<Incoming>,
    outgoing: BTreeMap<TaskManagerId, Outgoing>,
}

impl Wiring<'_> {
    fn connect_edge(&mut self, job: &JobDescription, number: usize, edge: &Edge) -> Result<(), Failure> {
        let number = u32::try_from(number).map_err(|_| misfit("it has too many edges".to_owned()))?;
        let graph = &job.program.graph;
        let (senders, receivers) = (parallelism(graph, edge.from)?, parallelism(graph, edge.to)?);
        for from in (0..senders).map(SubtaskIndex) {
            let sender = SubtaskId { vertex: edge.from, index: from };
            let mut channels = Vec::new();
            for to in targets(&edge.partitioning, from, receivers) {
                let id = ChannelId { edge: number, from, to };
                channels.extend(self.connect(job, id, sender, SubtaskId { vertex: edge.to, index: to })?);
            }
            if !channels.is_empty() {
                let partitioning = edge.partitioning.clone();
                self.outputs.entry(sender).or_default().push(EdgeOutput { partitioning, channels });
            }
        }
        Ok(())
    }

    /// One channel; its sending end when the sender runs here.
    fn connect(
        &mut self,
        job: &JobDescription,
        id: ChannelId,
        sender: SubtaskId,
        receiver: SubtaskId,
    ) -> Result<Option<OutputChannel>, Failure> {
        let (from, to) = (self.place(sender)?, self.place(receiver)?);
        let (from_here, to_here) = (from.task_manager == *self.own, to.task_manager == *self.own);
        if !from_here && !to_here {
            return Ok(None);
        }
        let make = if to_here { channel } else { sending_channel };
        let (output, input) = make(id, self.window);
        if to_here {
            let edge = job.program.graph.edges.get(id.edge as usize);
            let broadcast = edge.is_some_and(|edge| edge.partitioning == Partitioning::Broadcast);
            let input = input.at_input(edge.map_or(0, |edge| edge.input));
            let input = if broadcast { input.staying_aligned() } else { input };
            self.inputs.entry(receiver).or_default().push(input);
            if from_here {
                return Ok(Some(output));
            }
            let schema = job.program.vertices.get(sender.vertex.0 as usize).map(|vertex| vertex.output_schema.clone());
            let schema = schema.ok_or_else(|| misfit(format!("vertex {} is not in the program", sender.vertex)))?;
            self.incoming.push(Incoming { peer: from.task_manager, queue: output, schema });
            return Ok(None);
        }
        let outgoing = self.outgoing.entry(to.task_manager.clone()).or_insert_with(|| Outgoing {
            peer: to.task_manager.clone(),
            address: to.data_address.clone(),
            queues: Vec::new(),
        });
        outgoing.queues.push(input);
        Ok(Some(output))
    }

    fn place(&self, subtask: SubtaskId) -> Result<Placement, Failure> {
        let place = self.places.get(&subtask).map(|place| (*place).clone());
        place.ok_or_else(|| misfit(format!("subtask {subtask} is placed nowhere")))
    }
}

fn parallelism(graph: &JobGraph, vertex: VertexId) -> Result<u32, Failure> {
    let found = graph.vertices.get(vertex.0 as usize).map(|vertex| vertex.parallelism);
    found.ok_or_else(|| misfit(format!("vertex {vertex} is not in the program")))
}

/// The subtasks that one sender reaches, in their order.
fn targets(partitioning: &Partitioning, from: SubtaskIndex, receivers: u32) -> impl Iterator<Item = SubtaskIndex> {
    let range = match partitioning {
        Partitioning::Forward => from.0..from.0 + 1,
        Partitioning::Hash { .. } | Partitioning::Rebalance | Partitioning::Broadcast => 0..receivers,
    };
    range.map(SubtaskIndex)
}
