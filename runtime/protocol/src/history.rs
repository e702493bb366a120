//! What became of each checkpoint, for people: how long which part took, how large it was, and why it failed.
//!
//! Pure data with bounded lists. The details of the last ones live in the JobManager's memory and in the `_metadata` of
//! those that are retained; a record of each of the last [`KEPT_RECORDS`] is part of the ledger's fold, so that it survives
//! the JobManager. Nothing is decided by any of this.

use crate::failure::Failure;
use crate::graph::JobGraph;
use crate::ids::{CheckpointId, OperatorUid, SubtaskId, SubtaskIndex, VertexId};
use crate::ledger::Ends;
use crate::message::{Alignment, Barrier, CheckpointMetrics};
use crate::state::{OperatorSnapshot, StateData, SubtaskState};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How many are kept.
pub const RECORDS: usize = 20;

/// How many the ledger's fold keeps.
pub const KEPT_RECORDS: usize = 8;

/// Characters of a failure's message that a record keeps.
const MESSAGE_LIMIT: usize = 60;

/// How far one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RecordState {
    /// Under way.
    #[default]
    InProgress,
    /// Its ledger entry stands.
    Completed,
    /// It failed or expired.
    Failed,
    /// A later one was faster, or its tasks ended.
    Dropped,
}

/// What one was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RecordKind {
    /// To recover from.
    #[default]
    Checkpoint,
    /// With a savepoint.
    Savepoint,
    /// The job stops with it, with a savepoint.
    StopWithSavepoint,
    /// The job drains and stops with it, with a savepoint.
    Drain,
    /// The job ends with it.
    Last,
}

impl RecordKind {
    /// Of a barrier.
    #[must_use]
    pub const fn of(barrier: &Barrier) -> Self {
        match (&barrier.savepoint, barrier.ends) {
            (None, Ends::None) => Self::Checkpoint,
            (None, _) => Self::Last,
            (Some(_), Ends::None) => Self::Savepoint,
            (Some(_), Ends::Stop) => Self::StopWithSavepoint,
            (Some(_), Ends::Finish) => Self::Drain,
        }
    }
}

/// One, in short. Times in milliseconds are the longest of any subtask, sizes are sums.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointRecord {
    /// Its id.
    pub id: CheckpointId,
    /// What for.
    pub kind: RecordKind,
    /// What its barriers did where rows were queued.
    pub alignment: Alignment,
    /// How far.
    pub state: RecordState,
    /// When it was triggered.
    pub triggered_at: Timestamp,
    /// When it was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Subtasks that have stored their part, of all.
    pub acknowledged: u32,
    /// Subtasks.
    pub subtasks: u32,
    /// Its parts, and its size.
    #[serde(flatten)]
    pub metrics: CheckpointMetrics,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// One with all its parts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointDetails {
    /// In short.
    #[serde(flatten)]
    pub record: CheckpointRecord,
    /// By vertex.
    pub vertices: Vec<VertexDetails>,
}

/// The parts of one vertex: a chain of operators.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VertexDetails {
    /// Which.
    pub vertex: VertexId,
    /// Its name.
    pub name: String,
    /// Of its subtasks.
    #[serde(flatten)]
    pub metrics: CheckpointMetrics,
    /// Those that have stored their part.
    pub subtasks: Vec<SubtaskDetails>,
    /// Its operators that have state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<OperatorDetails>,
}

/// What one operator's subtasks have stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorDetails {
    /// Which.
    pub uid: OperatorUid,
    /// Bytes of all its state.
    pub full_bytes: u64,
}

impl VertexDetails {
    fn add(&mut self, operator: &OperatorSnapshot) {
        let full_bytes = operator.data().map(StateData::size).sum();
        match self.operators.iter_mut().find(|known| known.uid == operator.uid) {
            Some(known) => known.full_bytes += full_bytes,
            None => self.operators.push(OperatorDetails { uid: operator.uid.clone(), full_bytes }),
        }
    }
}

/// The part of one subtask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubtaskDetails {
    /// Which.
    pub subtask: SubtaskIndex,
    /// When the JobManager heard of it.
    pub acknowledged_at: Timestamp,
    /// What took how long.
    #[serde(flatten)]
    pub metrics: CheckpointMetrics,
}

/// The last ones, newest last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointHistory(VecDeque<CheckpointDetails>);

impl CheckpointHistory {
    /// What an earlier JobManager has left, without details.
    #[must_use]
    pub fn of_records(records: &[CheckpointRecord]) -> Self {
        let details = |record: &CheckpointRecord| CheckpointDetails { record: record.clone(), vertices: vec![] };
        Self(records.iter().map(details).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &CheckpointDetails> {
        self.0.iter()
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, id: CheckpointId) -> Option<&CheckpointDetails> {
        self.0.iter().rev().find(|one| one.record.id == id)
    }

    /// One was triggered.
    pub fn triggered(&mut self, barrier: &Barrier, graph: &JobGraph) {
        let vertex = |vertex: &crate::graph::Vertex| VertexDetails {
            vertex: vertex.id,
            name: vertex.name.clone(),
            ..VertexDetails::default()
        };
        let record = CheckpointRecord {
            id: barrier.checkpoint,
            kind: RecordKind::of(barrier),
            alignment: barrier.alignment,
            triggered_at: barrier.triggered_at,
            subtasks: graph.subtasks(),
            ..CheckpointRecord::default()
        };
        self.0.push_back(CheckpointDetails { record, vertices: graph.vertices.iter().map(vertex).collect() });
        if self.0.len() > RECORDS {
            self.0.pop_front();
        }
    }

    /// A subtask has stored its part.
    pub fn acknowledged(
        &mut self,
        id: CheckpointId,
        subtask: SubtaskId,
        (metrics, state): (CheckpointMetrics, &SubtaskState),
        now: Timestamp,
    ) {
        let Some(one) = self.open(id) else { return };
        let Some(vertex) = one.vertices.get_mut(subtask.vertex.0 as usize) else { return };
        if vertex.subtasks.iter().any(|known| known.subtask == subtask.index) {
            return;
        }
        vertex.subtasks.push(SubtaskDetails { subtask: subtask.index, acknowledged_at: now, metrics });
        vertex.metrics = vertex.metrics.merged(metrics);
        state.operators.iter().for_each(|operator| vertex.add(operator));
        one.record.acknowledged += 1;
        one.record.metrics = one.record.metrics.merged(metrics);
    }

    /// One is over. What the ledger says later, wins: an entry that was given up may stand.
    pub fn ended(&mut self, id: CheckpointId, state: RecordState, failure: Option<&Failure>, now: Timestamp) {
        if let Some(one) = self.0.iter_mut().rev().find(|one| one.record.id == id) {
            one.record.end(state, failure, now);
        }
    }

    fn open(&mut self, id: CheckpointId) -> Option<&mut CheckpointDetails> {
        self.0.iter_mut().rev().find(|one| one.record.id == id && one.record.state == RecordState::InProgress)
    }
}

impl CheckpointRecord {
    /// It is over.
    pub fn end(&mut self, state: RecordState, failure: Option<&Failure>, now: Timestamp) {
        self.state = state;
        self.ended_at = Some(now);
        self.failure = failure.map(|failure| failure.message.chars().take(MESSAGE_LIMIT).collect());
    }

    /// Milliseconds from its trigger to its end; so far when it is under way.
    #[must_use]
    pub fn duration_ms(&self, now: Timestamp) -> u64 {
        self.ended_at.unwrap_or(now).since(self.triggered_at).0
    }
}

/// Adds a record to a bounded list, in place of an earlier one of the same id.
pub fn push_record(records: &mut Vec<CheckpointRecord>, record: &CheckpointRecord) {
    records.retain(|known| known.id != record.id);
    records.push(record.clone());
    let surplus = records.len().saturating_sub(KEPT_RECORDS);
    records.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{OperatorInfo, OperatorKind, Vertex};
    use crate::state::{OperatorStateHandle, Redistribution};

    fn graph() -> JobGraph {
        let operator = OperatorInfo { uid: "s".into(), kind: OperatorKind::Source, description: "s".into() };
        let vertex = Vertex { id: VertexId(0), name: "s".into(), parallelism: 2, operators: vec![operator] };
        JobGraph { vertices: vec![vertex], edges: vec![], max_parallelism: 4 }
    }

    #[test]
    fn times_are_the_longest_and_sizes_the_sum() {
        let mut history = CheckpointHistory::default();
        let barrier = Barrier::aligned(CheckpointId(3), Timestamp(100), None);
        history.triggered(&barrier, &graph());
        let list = OperatorStateHandle {
            name: "l".into(),
            redistribution: Redistribution::Split,
            data: StateData::Inline { bytes: vec![0; 7] },
            first: 0,
            items: 1,
        };
        let operator = OperatorSnapshot {
            uid: "s".into(),
            subtask: SubtaskIndex(0),
            keyed: vec![],
            operator: vec![list],
            splits: vec![],
            committables: vec![],
        };
        let state = SubtaskState { operators: vec![operator], ..SubtaskState::default() };
        for (index, alignment_ms) in [(0, 5), (1, 30), (1, 90)] {
            let metrics =
                CheckpointMetrics { alignment_ms, bytes: 10, full_bytes: 100, ..CheckpointMetrics::default() };
            let subtask = SubtaskId { vertex: VertexId(0), index: SubtaskIndex(index) };
            history.acknowledged(CheckpointId(3), subtask, (metrics, &state), Timestamp(150));
        }
        history.ended(CheckpointId(3), RecordState::Completed, None, Timestamp(170));
        let one = history.get(CheckpointId(3)).unwrap();
        let CheckpointMetrics { alignment_ms, bytes, full_bytes, .. } = one.record.metrics;
        assert_eq!(
            (alignment_ms, bytes, full_bytes, one.record.acknowledged),
            (30, 20, 200, 2),
            "the repeated one is none"
        );
        assert_eq!((one.record.duration_ms(Timestamp(999)), one.vertices[0].subtasks.len()), (70, 2));
        assert_eq!(one.vertices[0].operators, [OperatorDetails { uid: "s".into(), full_bytes: 14 }]);
    }

    #[test]
    fn lists_are_bounded_and_an_id_is_there_once() {
        let mut history = CheckpointHistory::default();
        let mut records = vec![];
        for id in 1..=30 {
            history.triggered(&Barrier::aligned(CheckpointId(id), Timestamp(id), None), &graph());
            history.ended(CheckpointId(id), RecordState::Failed, None, Timestamp(id));
            let record = history.get(CheckpointId(id)).unwrap().record.clone();
            push_record(&mut records, &record);
            push_record(&mut records, &record);
        }
        assert_eq!((history.iter().count(), records.len(), records[0].id), (RECORDS, KEPT_RECORDS, CheckpointId(23)));
    }
}
