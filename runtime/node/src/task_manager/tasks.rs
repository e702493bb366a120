//! The tasks of one run on this TaskManager, from their deployment to the end of their threads.

use super::restore::TaskState;
use crate::data_plane::OpenRun;
use crate::metrics::TaskMetrics;
use sluice_engine::channel::QueueGauge;
use sluice_engine::event_time::alignment::AlignmentGroups;
use sluice_engine::runner::{self, RunningTask};
use sluice_engine::task::{self, TaskDescription, TaskEvent, TaskHandle};
use sluice_protocol::graph::JobGraph;
use sluice_protocol::message::{Barrier, CheckpointMetrics, Held};
use sluice_protocol::{CheckpointId, Run, SubtaskId, VertexId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;

/// What a task's thread tells.
#[derive(Debug)]
pub(crate) enum Told {
    /// What the task said.
    Event(TaskEvent),
    /// Its thread is about to end; nothing of the task is left.
    Ended,
}

/// Takes what tasks tell; must not block.
pub(crate) type Listener = Arc<dyn Fn(Run, SubtaskId, Told) + Send + Sync>;

/// The run that is deployed here.
pub(crate) struct ActiveRun {
    pub(crate) run: Run,
    /// Whether there is a store to upload to.
    pub(crate) has_store: bool,
    /// Ends fetches and uploads of this run.
    pub(crate) cancelled: CancellationToken,
    /// Tasks that wait for their state.
    waiting: Vec<TaskDescription>,
    tasks: BTreeMap<SubtaskId, RunningTask>,
    /// Threads that have not ended.
    alive: usize,
    /// Data connections; closed by a cancel.
    open: Option<OpenRun>,
    /// For each checkpoint that snapshots are stored of: cancelled when it is aborted.
    aborts: BTreeMap<CheckpointId, CancellationToken>,
    /// The sources that wait for each other.
    pub(crate) alignment: Arc<AlignmentGroups>,
}

impl ActiveRun {
    /// A run whose tasks wait for their state.
    pub(crate) fn new(
        run: Run,
        has_store: bool,
        (descriptions, alignment): (Vec<TaskDescription>, Arc<AlignmentGroups>),
        open: Option<OpenRun>,
    ) -> Self {
        let cancelled = CancellationToken::new();
        let (tasks, aborts) = (BTreeMap::new(), BTreeMap::new());
        Self { run, has_store, cancelled, waiting: descriptions, tasks, alive: 0, open, aborts, alignment }
    }

    /// The state has come: starts the threads.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub(crate) fn start(
        &mut self,
        mut states: BTreeMap<SubtaskId, TaskState>,
        graph: &JobGraph,
        listener: &Listener,
        board: &Board,
    ) -> std::io::Result<()> {
        for mut description in std::mem::take(&mut self.waiting) {
            let subtask = description.subtask;
            let state = states.remove(&subtask).unwrap_or_default();
            (description.state, description.in_flight) = (state.operators, state.in_flight);
            let name = graph.vertices.get(subtask.vertex.0 as usize).map(|vertex| vertex.name.clone());
            let teller = Teller { run: self.run, subtask, listener: Arc::clone(listener) };
            let task = runner::spawn(description, move |event| teller.tell(Told::Event(event)))?;
            self.alive += 1;
            board.add(subtask, name.unwrap_or_default(), task.metrics());
            self.tasks.insert(subtask, task);
        }
        Ok(())
    }

    /// Tells every task to end, and closes the data connections.
    pub(crate) fn cancel(&mut self) {
        self.cancelled.cancel();
        self.waiting.clear();
        for task in self.tasks.values() {
            task.handle().cancel();
        }
        self.open = None;
    }

    /// A thread is about to end.
    pub(crate) fn ended(&mut self) {
        self.alive = self.alive.saturating_sub(1);
    }

    /// One of its tasks.
    pub(crate) fn first(&self) -> Option<SubtaskId> {
        self.waiting.first().map(|task| task.subtask).or_else(|| self.tasks.keys().next().copied())
    }

    /// Whether this subtask is one of its tasks.
    pub(crate) fn holds(&self, subtask: SubtaskId) -> bool {
        self.tasks.contains_key(&subtask) || self.waiting.iter().any(|task| task.subtask == subtask)
    }

    /// Whether nothing of it runs any more.
    pub(crate) fn is_over(&self) -> bool {
        self.cancelled.is_cancelled() && self.alive == 0
    }

    /// Its sources emit a barrier.
    pub(crate) fn trigger(&self, barrier: &Barrier) {
        self.handles().for_each(|handle| handle.trigger(barrier.clone()));
    }

    /// Covers all earlier checkpoints (B5): of those nothing is stored any more.
    pub(crate) fn checkpoint_completed(&mut self, checkpoint: CheckpointId, held: Option<&[Held]>) {
        for (subtask, task) in &self.tasks {
            let own = |held: &[Held]| {
                let own = held.iter().find(|held| held.subtask == *subtask);
                own.map(|held| held.checkpoints.clone()).unwrap_or_default()
            };
            task.handle().checkpoint_completed(checkpoint, held.map(own));
        }
        self.aborts.retain(|id, _| *id > checkpoint);
    }

    /// Uploads of this checkpoint that are not begun never are.
    pub(crate) fn checkpoint_aborted(&mut self, checkpoint: CheckpointId) {
        self.handles().for_each(|handle| handle.checkpoint_aborted(checkpoint));
        if let Some(abort) = self.aborts.get(&checkpoint) {
            abort.cancel();
        }
    }

    /// Whether none of its tasks has frozen its part of a checkpoint yet, and more than one will.
    pub(crate) fn is_first_of(&self, checkpoint: CheckpointId) -> bool {
        self.tasks.len() > 1 && !self.aborts.contains_key(&checkpoint)
    }

    /// Tells whether a checkpoint that a snapshot was taken for is aborted.
    pub(crate) fn abort_of(&mut self, checkpoint: CheckpointId) -> CancellationToken {
        self.aborts.entry(checkpoint).or_default().clone()
    }

    fn handles(&self) -> impl Iterator<Item = &TaskHandle> {
        self.tasks.values().map(RunningTask::handle)
    }
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        // A worker that is dropped in the middle leaves no task behind.
        self.cancel();
    }
}

/// Lives in a task's callback, which is dropped when its thread ends.
struct Teller {
    run: Run,
    subtask: SubtaskId,
    listener: Listener,
}

impl Teller {
    fn tell(&self, told: Told) {
        (self.listener)(self.run, self.subtask, told);
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.tell(Told::Ended);
    }
}

/// The counters of the tasks that were last deployed here, for metrics.
#[derive(Clone, Default)]
pub(crate) struct Board {
    tasks: Arc<Mutex<BTreeMap<SubtaskId, Posted>>>,
}

struct Posted {
    name: String,
    counters: Arc<task::TaskMetrics>,
    checkpoints: Arc<CheckpointCounters>,
}

#[derive(Default)]
struct CheckpointCounters {
    acknowledged: AtomicU64,
    declined: AtomicU64,
    bytes: AtomicU64,
    in_flight_bytes: AtomicU64,
    alignment_millis: AtomicU64,
    millis: AtomicU64,
}

impl Board {
    fn add(&self, subtask: SubtaskId, name: String, counters: Arc<task::TaskMetrics>) {
        let posted = Posted { name, counters, checkpoints: Arc::default() };
        self.lock().insert(subtask, posted);
    }

    /// Other tasks are about to be deployed.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// A checkpoint of a task was stored.
    pub(crate) fn acknowledged(&self, subtask: SubtaskId, metrics: &CheckpointMetrics) {
        if let Some(posted) = self.lock().get(&subtask) {
            let CheckpointMetrics { start_delay_ms, alignment_ms, sync_ms, async_ms, bytes, in_flight_bytes, .. } =
                metrics;
            posted.checkpoints.acknowledged.fetch_add(1, Ordering::Relaxed);
            posted.checkpoints.bytes.store(*bytes, Ordering::Relaxed);
            posted.checkpoints.in_flight_bytes.store(*in_flight_bytes, Ordering::Relaxed);
            posted.checkpoints.alignment_millis.store(*alignment_ms, Ordering::Relaxed);
            let millis = start_delay_ms + alignment_ms + sync_ms + async_ms;
            posted.checkpoints.millis.store(millis, Ordering::Relaxed);
        }
    }

    /// A checkpoint of a task was declined.
    pub(crate) fn declined(&self, subtask: SubtaskId) {
        if let Some(posted) = self.lock().get(&subtask) {
            posted.checkpoints.declined.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All of them as they are now.
    pub(crate) fn view(&self) -> Vec<TaskMetrics> {
        self.lock().iter().map(|(subtask, posted)| posted.view(*subtask)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SubtaskId, Posted>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Posted {
    fn view(&self, subtask: SubtaskId) -> TaskMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let queued = |queues: &[QueueGauge]| queues.iter().map(QueueGauge::queued_bytes).sum();
        let VertexId(vertex) = subtask.vertex;
        TaskMetrics {
            vertex,
            name: self.name.clone(),
            subtask: subtask.index.0,
            rows_in: read(&self.counters.rows_in),
            malformed_records: read(&self.counters.malformed_records),
            rows_out: read(&self.counters.rows_out),
            bytes_in: read(&self.counters.bytes_in),
            bytes_out: read(&self.counters.bytes_out),
            busy_ms: read(&self.counters.busy_ms),
            idle_ms: read(&self.counters.idle_ms),
            back_pressured_ms: read(&self.counters.back_pressured_ms),
            watermark_lag_ms: Some(read(&self.counters.watermark))
                .filter(|watermark| *watermark > 0)
                .map(|watermark| crate::edge::now().0.saturating_sub(watermark)),
            late_rows: read(&self.counters.late_rows),
            checkpoints: read(&self.checkpoints.acknowledged),
            declined: read(&self.checkpoints.declined),
            state_bytes: read(&self.checkpoints.bytes),
            in_flight_bytes: read(&self.checkpoints.in_flight_bytes),
            alignment_ms: read(&self.checkpoints.alignment_millis),
            checkpoint_ms: read(&self.checkpoints.millis),
            input_queued_bytes: queued(&self.counters.inputs),
            output_queued_bytes: queued(&self.counters.outputs),
            lag: self.counters.lag().into_iter().map(|lag| (lag.split, lag.records)).collect(),
        }
    }
}
