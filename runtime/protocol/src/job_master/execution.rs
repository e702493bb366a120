//! One attempt as it runs: which subtask is where and how far (N2).

use crate::graph::JobGraph;
use crate::ids::{Run, SubtaskId, SubtaskIndex, VertexId};
use crate::job_master::SessionId;
use crate::job_master::task_managers::Slot;
use crate::message::{Deployment, GroupWatermark, Placement, TaskDeployment};
use crate::state::SubtaskState;
use crate::status::VertexStatus;
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskState {
    Deploying,
    Running,
    Finished,
}

/// The tasks of one attempt.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) run: Run,
    /// When all its tasks must have said that they run.
    pub(super) deadline: Timestamp,
    tasks: BTreeMap<SubtaskId, (SessionId, TaskState)>,
    /// What each TaskManager last said of its alignment groups.
    watermarks: BTreeMap<SessionId, Vec<GroupWatermark>>,
}

impl Execution {
    /// Spreads the job over slots, subtask i of every vertex into slot i, and says what to deploy where. `None`:
    /// there are too few slots.
    pub(super) fn plan(
        (run, deadline): (Run, Timestamp),
        graph: &JobGraph,
        slots: &[Slot],
        mut restore: Option<BTreeMap<SubtaskId, SubtaskState>>,
        state_directory: Option<&str>,
    ) -> Option<(Self, Vec<(SessionId, Deployment)>)> {
        let mut tasks = BTreeMap::new();
        let mut placement = Vec::new();
        let mut by_session: BTreeMap<SessionId, Vec<TaskDeployment>> = BTreeMap::new();
        for subtask in subtasks(graph) {
            let slot = slots.get(subtask.index.0 as usize)?;
            tasks.insert(subtask, (slot.session, TaskState::Deploying));
            placement.push(Placement {
                subtask,
                task_manager: slot.registration.task_manager.clone(),
                data_address: slot.registration.data_address.clone(),
            });
            let state = restore.as_mut().map(|states| states.remove(&subtask).unwrap_or_default());
            by_session.entry(slot.session).or_default().push(TaskDeployment { subtask, restore: state });
        }
        let deployment = |(session, tasks)| {
            let state_directory = state_directory.map(ToOwned::to_owned);
            (session, Deployment { run, tasks, placement: placement.clone(), state_directory })
        };
        Some((
            Self { run, deadline, tasks, watermarks: BTreeMap::new() },
            by_session.into_iter().map(deployment).collect(),
        ))
    }

    pub(super) fn contains(&self, subtask: SubtaskId) -> bool {
        self.tasks.contains_key(&subtask)
    }

    pub(super) fn session_of(&self, subtask: SubtaskId) -> Option<SessionId> {
        self.tasks.get(&subtask).map(|(session, _)| *session)
    }

    pub(super) fn set(&mut self, subtask: SubtaskId, state: TaskState) {
        if let Some((_, current)) = self.tasks.get_mut(&subtask).filter(|(_, current)| *current != TaskState::Finished)
        {
            *current = state;
        }
    }

    pub(super) fn subtasks(&self) -> BTreeSet<SubtaskId> {
        self.tasks.keys().copied().collect()
    }

    /// The sessions that host its tasks.
    pub(super) fn sessions(&self) -> BTreeSet<SessionId> {
        self.tasks.values().map(|(session, _)| *session).collect()
    }

    /// Takes what a TaskManager says of its alignment groups; gives what the others say, the least of each group, once all
    /// that host tasks have spoken: until then a group's least may be anything.
    pub(super) fn align(&mut self, session: SessionId, groups: Vec<GroupWatermark>) -> Option<Vec<GroupWatermark>> {
        let sessions = self.sessions();
        if !sessions.contains(&session) {
            return None;
        }
        self.watermarks.insert(session, groups);
        if self.watermarks.len() < sessions.len() {
            return None;
        }
        let mut least: BTreeMap<&str, i64> = BTreeMap::new();
        let others = self.watermarks.iter().filter(|(other, _)| **other != session);
        for GroupWatermark { group, watermark } in others.flat_map(|(_, groups)| groups) {
            let known = least.entry(group).or_insert(*watermark);
            *known = (*known).min(*watermark);
        }
        let said = |(group, watermark): (&str, i64)| GroupWatermark { group: group.to_owned(), watermark };
        Some(least.into_iter().map(said).collect())
    }

    /// The sessions that host its sources.
    pub(super) fn source_sessions(&self, graph: &JobGraph) -> BTreeSet<SessionId> {
        let sources = self.tasks.iter().filter(|(subtask, _)| graph.is_source(subtask.vertex));
        sources.map(|(_, (session, _))| *session).collect()
    }

    pub(super) fn all_run(&self) -> bool {
        self.tasks.values().all(|(_, state)| *state != TaskState::Deploying)
    }

    /// Those that have not said that they run.
    pub(super) fn deploying(&self) -> impl Iterator<Item = SubtaskId> + '_ {
        let waited_for = |(subtask, (_, state)): (&SubtaskId, &(SessionId, TaskState))| {
            (*state == TaskState::Deploying).then_some(*subtask)
        };
        self.tasks.iter().filter_map(waited_for)
    }

    pub(super) fn all_finished(&self) -> bool {
        self.tasks.values().all(|(_, state)| *state == TaskState::Finished)
    }

    pub(super) fn sources_finished(&self, graph: &JobGraph) -> bool {
        let mut sources = self.tasks.iter().filter(|(subtask, _)| graph.is_source(subtask.vertex)).peekable();
        sources.peek().is_some() && sources.all(|(_, (_, state))| *state == TaskState::Finished)
    }

    /// One sentence on tasks that run.
    pub(super) fn progress(&self, graph: &JobGraph) -> String {
        let working = self.tasks.values().filter(|(_, state)| *state != TaskState::Finished).count();
        match (self.sources_finished(graph), working) {
            (false, _) => "all tasks run".to_owned(),
            (true, 0) => "all input was read and worked on; the last checkpoint is under way".to_owned(),
            (true, working) => {
                format!("all input was read; {working} of {} tasks are still at work on it", self.tasks.len())
            }
        }
    }

    pub(super) fn running(&self) -> u32 {
        let running = self.tasks.values().filter(|(_, state)| *state != TaskState::Deploying).count();
        u32::try_from(running).unwrap_or(u32::MAX)
    }

    pub(super) fn count_into(&self, vertex: VertexId, status: &mut VertexStatus) {
        for (_, (_, state)) in self.tasks.iter().filter(|(subtask, _)| subtask.vertex == vertex) {
            status.running += u32::from(*state == TaskState::Running);
            status.finished += u32::from(*state == TaskState::Finished);
        }
    }
}

/// All subtasks of a graph, in order.
fn subtasks(graph: &JobGraph) -> impl Iterator<Item = SubtaskId> + '_ {
    let of_vertex = |vertex: &crate::graph::Vertex| {
        let id = vertex.id;
        (0..vertex.parallelism).map(move |index| SubtaskId { vertex: id, index: SubtaskIndex(index) })
    };
    graph.vertices.iter().flat_map(of_vertex)
}
