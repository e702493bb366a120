//! A TaskManager's control loop: one session at a time, one run at a time, everything in order.
//!
//! It never waits for I/O: state is fetched and snapshots are stored by tasks of their own that report back through
//! the same queue as the engine's threads. Callers rely on: [`Worker::serve`] returns only when no task runs.

#[cfg(test)]
mod tests;

use super::job_clock::JobClock;
use super::restore::{self, TaskState};
use super::session::Session;
use super::snapshot::{self, Place, Stored};
use super::tasks::{ActiveRun, Board, Listener, Told};
use super::{Equipment, deploy};
use crate::data_plane::{Broken, DataPlane, OnBroken};
use crate::edge;
use crate::metrics::TaskView;
use crate::rest::ReadyCheck;
use crate::steps::{Step, Steps};
use futures::FutureExt as _;
use sluice_engine::error::TaskError;
use sluice_engine::task::{TaskEvent, TaskSnapshot};
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::message::{Deployment, FromTaskManager, Registration, ToTaskManager};
use sluice_protocol::{CheckpointId, Run, SubtaskId, TimeSpan};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, info, warn};

/// How long the answer to a registration is waited for.
const REGISTRATION_ANSWER: Duration = Duration::from_secs(10);

/// How long tasks may take to end after a cancel: one that hangs is ended with its process (N4).
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Heartbeats are sent this often, or at a fifth of the timeout if that is shorter.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a process that was told to leave keeps its tasks: less than its pod's grace period.
const LEAVE_WITHIN: TimeSpan = TimeSpan::from_secs(20);

const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a process that looks for its JobManager counts as ready.
const LOOKING_LIMIT: Duration = Duration::from_secs(30);

/// How a session ended.
#[derive(Debug)]
pub(crate) enum SessionOutcome {
    /// The job has ended.
    Shutdown,
    /// The JobManager does not want this process.
    Refused(Failure),
    /// The connection broke or fell silent; another may be opened.
    Lost {
        /// Whether the registration had been taken.
        registered: bool,
        /// Why.
        message: String,
    },
    /// Tasks do not end: the process must.
    Stuck(String),
    /// The process was told to leave, and has no tasks any more.
    Left,
}

/// What comes through the queue.
enum Input {
    Task { run: Run, subtask: SubtaskId, told: Told },
    Restored { run: Run, result: Result<BTreeMap<SubtaskId, TaskState>, Failure> },
    Stored { run: Run, subtask: SubtaskId, checkpoint: CheckpointId, result: Result<Stored, Failure> },
    Broken(Broken),
    Ping(oneshot::Sender<()>),
}

/// The loop and what it owns.
pub(crate) struct Worker {
    registration: Registration,
    equipment: Equipment,
    data_plane: Option<DataPlane>,
    inputs: mpsc::UnboundedReceiver<Input>,
    sender: mpsc::UnboundedSender<Input>,
    listener: Listener,
    board: Board,
    job_clock: JobClock,
    active: Option<ActiveRun>,
    /// Waits for the active run to end.
    pending: Option<Box<Deployment>>,
    /// The newest run that was deployed in this session.
    newest: Run,
    cancelled_at: Option<Instant>,
    readiness: Arc<Mutex<Readiness>>,
    /// Becomes true when the process is told to leave.
    leave: watch::Receiver<bool>,
    /// Who watches the steps that it takes.
    pub(crate) steps: Steps,
}

/// What the loop is at, as far as `/readyz` needs to know.
#[derive(Debug, Clone, Copy)]
struct Readiness {
    /// Whether a session is being served: then the loop answers.
    serving: bool,
    /// Since when no JobManager has taken this process.
    looking_since: Option<Instant>,
}

/// What a session is served with.
struct Link {
    outgoing: mpsc::UnboundedSender<FromTaskManager>,
    registered: bool,
    heard: Instant,
    heartbeat_timeout: Duration,
    /// Whether the JobManager was told that this process leaves.
    leaving: bool,
}

impl Link {
    fn send(&self, message: FromTaskManager) {
        debug!(?message, "send");
        // A session that is gone is noticed by its incoming side.
        let _ = self.outgoing.send(message);
    }

    /// Why the session is to be given up, if it is.
    fn silence(&self) -> Option<String> {
        let (limit, what) = if self.registered {
            (self.heartbeat_timeout / 2, "nothing was heard from the JobManager")
        } else {
            (REGISTRATION_ANSWER, "the registration was not answered")
        };
        (self.heard.elapsed() > limit).then(|| format!("{what} for {limit:?}"))
    }
}

impl Worker {
    /// A worker without a session. Without a data plane all tasks of the job run here.
    pub(crate) fn new(registration: Registration, equipment: Equipment, data_plane: Option<DataPlane>) -> Self {
        let (sender, inputs) = mpsc::unbounded_channel();
        let events = sender.clone();
        let listener: Listener = Arc::new(move |run, subtask, told| {
            // The loop is gone only when the process ends.
            let _ = events.send(Input::Task { run, subtask, told });
        });
        Self {
            registration,
            equipment,
            data_plane,
            inputs,
            sender,
            listener,
            board: Board::default(),
            job_clock: JobClock::default(),
            active: None,
            pending: None,
            newest: Run::default(),
            cancelled_at: None,
            readiness: Arc::new(Mutex::new(Readiness { serving: false, looking_since: Some(Instant::now()) })),
            leave: watch::channel(false).1,
            steps: Steps::default(),
        }
    }

    /// Leaves when `leave` becomes true: after a checkpoint where time allows, without tasks (F1).
    pub(crate) fn leave_when(&mut self, leave: watch::Receiver<bool>) {
        self.leave = leave;
    }

    /// Whether the process was told to leave.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.leave.borrow()
    }

    /// Its tasks, for metrics.
    pub(crate) fn task_view(&self) -> TaskView {
        let board = self.board.clone();
        Arc::new(move || board.view())
    }

    /// For `/readyz`: the loop answers and is registered. One that looks for its JobManager counts as ready for
    /// [`LOOKING_LIMIT`], since a JobManager that starts or is replaced is no fault of this process.
    pub(crate) fn ready_check(&self) -> ReadyCheck {
        let (sender, readiness) = (self.sender.clone(), Arc::clone(&self.readiness));
        Arc::new(move || {
            let (sender, readiness) = (sender.clone(), Arc::clone(&readiness));
            let asked = async move {
                let Readiness { serving, looking_since } = *readiness.lock().unwrap_or_else(PoisonError::into_inner);
                if looking_since.is_some_and(|since| since.elapsed() > LOOKING_LIMIT) {
                    return false;
                }
                if !serving {
                    return true;
                }
                let (answer, answered) = oneshot::channel();
                sender.send(Input::Ping(answer)).is_ok() && answered.await.is_ok()
            };
            async move { tokio::time::timeout(READY_TIMEOUT, asked).await.unwrap_or(false) }.boxed()
        })
    }

    fn set_readiness(&self, change: impl FnOnce(&mut Readiness)) {
        change(&mut self.readiness.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Registers and does what the JobManager says, until the session ends and no task runs any more.
    ///
    /// A session begins without tasks and without memory of runs: it may be with another process, which numbers its
    /// attempts anew.
    pub(crate) async fn serve(&mut self, session: Session) -> SessionOutcome {
        self.newest = Run::default();
        self.job_clock.forget();
        let Session { outgoing, mut incoming } = session;
        let mut link = Link {
            outgoing,
            registered: false,
            heard: Instant::now(),
            heartbeat_timeout: REGISTRATION_ANSWER,
            leaving: false,
        };
        self.set_readiness(|readiness| readiness.serving = true);
        link.send(FromTaskManager::Register(self.registration.clone()));
        let outcome = self.exchange(&mut link, &mut incoming).await;
        // Nothing of a session outlives it: a new one begins without tasks.
        drop(incoming);
        self.pending = None;
        self.cancel_active();
        let ended = self.wait_for_end(&link).await;
        self.set_readiness(|readiness| {
            readiness.serving = false;
            readiness.looking_since.get_or_insert_with(Instant::now);
        });
        match ended {
            Ok(()) => outcome,
            Err(message) => SessionOutcome::Stuck(message),
        }
    }

    async fn exchange(&mut self, link: &mut Link, incoming: &mut mpsc::Receiver<ToTaskManager>) -> SessionOutcome {
        let mut ticks = ticks(HEARTBEAT_INTERVAL);
        let interval = deploy::alignment_interval(&self.equipment.job.program);
        let mut alignment = interval.map(|interval| self::ticks(interval.as_duration()));
        loop {
            tokio::select! {
                () = next(&mut alignment) => self.report_watermarks(link),
                message = incoming.recv() => {
                    let Some(message) = message else {
                        return lost(link, "the connection ended".to_owned());
                    };
                    link.heard = Instant::now();
                    if let ToTaskManager::Registered { heartbeat_timeout } = &message {
                        link.registered = true;
                        link.heartbeat_timeout = heartbeat_timeout.as_duration();
                        ticks = self::ticks((link.heartbeat_timeout / 5).min(HEARTBEAT_INTERVAL));
                        self.set_readiness(|readiness| readiness.looking_since = None);
                        info!(%heartbeat_timeout, "registered");
                    } else if let Some(outcome) = self.obey(link, message) {
                        return outcome;
                    }
                }
                // The worker holds a sender itself, so this queue never closes.
                Some(input) = self.inputs.recv() => self.take(link, input),
                () = told(&mut self.leave), if !link.leaving => {
                    info!(within = %LEAVE_WITHIN, "told to leave");
                    link.leaving = true;
                    // It comes behind the registration, also when that was not answered yet.
                    link.send(FromTaskManager::Leaving { within: LEAVE_WITHIN });
                }
                _ = ticks.tick() => {
                    if let Some(message) = link.silence() {
                        return lost(link, message);
                    }
                    if let Some(message) = self.stuck() {
                        return SessionOutcome::Stuck(message);
                    }
                    if link.registered {
                        link.send(FromTaskManager::Heartbeat);
                    }
                }
            }
            if link.leaving && self.active.is_none() && self.pending.is_none() {
                return SessionOutcome::Left;
            }
        }
    }

    fn obey(&mut self, link: &Link, message: ToTaskManager) -> Option<SessionOutcome> {
        match message {
            ToTaskManager::Registered { .. } => {}
            ToTaskManager::Heartbeat { at } => self.job_clock.hear(at, edge::now()),
            ToTaskManager::Refused(failure) => return Some(SessionOutcome::Refused(failure)),
            ToTaskManager::Shutdown => return Some(SessionOutcome::Shutdown),
            ToTaskManager::Deploy(deployment) => self.take_deployment(link, deployment),
            ToTaskManager::CancelTasks { run } => self.cancel(link, run),
            ToTaskManager::TriggerCheckpoint { run, barrier } => {
                self.with_active(run, |active| active.trigger(&barrier));
            }
            ToTaskManager::CheckpointCompleted { run, checkpoint, held } => {
                self.with_active(run, |active| active.checkpoint_completed(checkpoint, held.as_deref()));
            }
            ToTaskManager::AlignWatermarks { run, groups } => {
                self.with_active(run, |active| active.alignment.hear(&groups));
            }
            ToTaskManager::CheckpointAborted { run, checkpoint } => {
                self.with_active(run, |active| active.checkpoint_aborted(checkpoint));
            }
        }
        None
    }

    /// Says how far its sources are, for those of other TaskManagers that wait for them.
    fn report_watermarks(&self, link: &Link) {
        if let Some(active) = self.active.as_ref().filter(|active| !active.cancelled.is_cancelled()) {
            link.send(FromTaskManager::ReportWatermarks { run: active.run, groups: active.alignment.report() });
        }
    }

    /// Refuses what is of another run (N2).
    fn with_active(&mut self, run: Run, act: impl FnOnce(&mut ActiveRun)) {
        match self.active.as_mut().filter(|active| active.run == run) {
            Some(active) => act(active),
            None => debug!(%run, "a message of another run was refused"),
        }
    }

    fn take_deployment(&mut self, link: &Link, deployment: Box<Deployment>) {
        let run = deployment.run;
        if run <= self.newest || run.generation != self.registration.generation {
            warn!(%run, newest = %self.newest, "a deployment of an older run or another generation was refused");
            return;
        }
        if self.active.is_some() {
            // Older tasks end first (N4).
            self.cancel_active();
            self.pending = Some(deployment);
            self.settle(link);
            return;
        }
        self.deploy(link, &deployment);
    }

    fn deploy(&mut self, link: &Link, deployment: &Deployment) {
        let run = deployment.run;
        self.newest = run;
        self.board.clear();
        info!(%run, tasks = deployment.tasks.len(), "deploying");
        let own = (&self.registration.task_manager, &self.job_clock);
        let plan = match deploy::plan(&self.equipment, own, deployment) {
            Ok(plan) => plan,
            Err(failure) => return fail_all(link, deployment, &failure),
        };
        self.equipment.obey(&plan.memory);
        let has_remote = !plan.incoming.is_empty() || !plan.outgoing.is_empty();
        let open = self
            .data_plane
            .as_ref()
            .filter(|_| has_remote)
            .map(|data_plane| data_plane.open_run(run, plan.incoming, plan.outgoing, self.on_broken()));
        let active = ActiveRun::new(run, deployment.state_directory.is_some(), (plan.tasks, plan.alignment), open);
        let (equipment, sender, cancelled) = (self.equipment.clone(), self.sender.clone(), active.cancelled.clone());
        let tasks = deployment.tasks.clone();
        self.active = Some(active);
        tokio::spawn(async move {
            tokio::select! {
                () = cancelled.cancelled() => {}
                result = restore::fetch(&equipment, &tasks) => {
                    // The loop is gone only when the process ends.
                    let _ = sender.send(Input::Restored { run, result });
                }
            }
        });
    }

    fn on_broken(&self) -> OnBroken {
        let sender = self.sender.clone();
        Arc::new(move |broken| {
            // As above.
            let _ = sender.send(Input::Broken(broken));
        })
    }

    fn cancel(&mut self, link: &Link, run: Run) {
        if self.pending.as_ref().is_some_and(|pending| pending.run == run) {
            self.pending = None;
            // So that it is not deployed later should the message come twice.
            self.newest = self.newest.max(run);
        }
        if self.active.as_ref().is_some_and(|active| active.run == run) {
            self.cancel_active();
            self.settle(link);
        } else {
            link.send(FromTaskManager::TasksEnded { run });
        }
    }

    fn cancel_active(&mut self) {
        if let Some(active) = &mut self.active
            && !active.cancelled.is_cancelled()
        {
            info!(run = %active.run, "cancelling tasks");
            active.cancel();
            self.cancelled_at = Some(Instant::now());
        }
    }

    /// Says that the active run is over once it is, and starts the one that waits for it.
    fn settle(&mut self, link: &Link) {
        let Some(active) = self.active.take_if(|active| active.is_over()) else { return };
        self.cancelled_at = None;
        info!(run = %active.run, "all tasks have ended");
        link.send(FromTaskManager::TasksEnded { run: active.run });
        if let Some(deployment) = self.pending.take() {
            self.deploy(link, &deployment);
        }
    }

    fn take(&mut self, link: &Link, input: Input) {
        match input {
            Input::Task { run, subtask, told } => self.take_told(link, run, subtask, told),
            Input::Restored { run, result } => self.take_restored(link, run, result),
            Input::Stored { run, subtask, checkpoint, result } => {
                self.take_stored(link, run, subtask, checkpoint, result);
            }
            Input::Broken(broken) => self.take_broken(link, &broken),
            Input::Ping(answer) => {
                // Whoever asked may have gone meanwhile.
                let _ = answer.send(());
            }
        }
    }

    fn take_told(&mut self, link: &Link, run: Run, subtask: SubtaskId, told: Told) {
        let Some(active) = self.active.as_mut().filter(|active| active.run == run) else { return };
        let event = match told {
            Told::Ended => {
                active.ended();
                return self.settle(link);
            }
            Told::Event(_) if active.cancelled.is_cancelled() => return,
            Told::Event(event) => event,
        };
        match event {
            TaskEvent::Running => link.send(FromTaskManager::TaskRunning { run, subtask }),
            TaskEvent::Finished => link.send(FromTaskManager::TaskFinished { run, subtask }),
            TaskEvent::Failed(error) => {
                warn!(%run, %subtask, "the task failed: {error}");
                link.send(FromTaskManager::TaskFailed { run, subtask, failure: error.to_failure() });
            }
            TaskEvent::Declined { checkpoint, error } => {
                self.decline(link, run, subtask, checkpoint, error.to_failure())
            }
            TaskEvent::Snapshot(snapshot) => self.store(run, subtask, snapshot),
        }
    }

    fn decline(&self, link: &Link, run: Run, subtask: SubtaskId, checkpoint: CheckpointId, failure: Failure) {
        warn!(%run, %subtask, %checkpoint, "the checkpoint is declined: {failure}");
        self.board.declined(subtask);
        link.send(FromTaskManager::Decline { run, subtask, checkpoint, failure });
    }

    fn store(&mut self, run: Run, subtask: SubtaskId, snapshot: TaskSnapshot) {
        let Some(active) = &mut self.active else { return };
        let checkpoint = snapshot.barrier.checkpoint;
        if active.is_first_of(checkpoint) {
            self.steps.reached(Step::Aligning);
        }
        let aborted = active.abort_of(checkpoint);
        let place = Place { run, subtask, checkpoint, has_store: active.has_store, aborted };
        let (equipment, sender, cancelled) = (self.equipment.clone(), self.sender.clone(), active.cancelled.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = cancelled.cancelled() => {}
                result = snapshot::store(&equipment, place, snapshot) => {
                    // The loop is gone only when the process ends.
                    let _ = sender.send(Input::Stored { run, subtask, checkpoint, result });
                }
            }
        });
    }

    fn take_stored(
        &mut self,
        link: &Link,
        run: Run,
        subtask: SubtaskId,
        checkpoint: CheckpointId,
        result: Result<Stored, Failure>,
    ) {
        if !self.active.as_ref().is_some_and(|active| active.run == run && !active.cancelled.is_cancelled()) {
            return;
        }
        match result {
            _ if self.active.as_mut().is_some_and(|active| active.abort_of(checkpoint).is_cancelled()) => {
                debug!(%run, %subtask, %checkpoint, "the snapshot of an aborted checkpoint is dropped");
            }
            Ok(Stored { state, savepoint, metrics }) => {
                self.board.acknowledged(subtask, &metrics);
                self.steps.acknowledging(&state);
                link.send(FromTaskManager::Acknowledge { run, subtask, checkpoint, state, savepoint, metrics });
            }
            Err(failure) => self.decline(link, run, subtask, checkpoint, failure),
        }
    }

    fn take_restored(&mut self, link: &Link, run: Run, result: Result<BTreeMap<SubtaskId, TaskState>, Failure>) {
        let graph = &self.equipment.job.program.graph;
        let Some(active) = self.active.as_mut().filter(|active| active.run == run) else { return };
        if active.cancelled.is_cancelled() {
            return;
        }
        let first = active.first();
        let started = result.and_then(|states| {
            active.start(states, graph, &self.listener, &self.board).map_err(|error| {
                Failure::restart("NoThreads", Fault::External, format!("no thread for a task: {error}"))
            })
        });
        if let (Err(failure), Some(subtask)) = (started, first) {
            warn!(%run, "the tasks cannot start: {failure}");
            link.send(FromTaskManager::TaskFailed { run, subtask, failure });
        }
    }

    fn take_broken(&mut self, link: &Link, broken: &Broken) {
        let Some(active) = self.active.as_ref().filter(|active| active.run == broken.run) else { return };
        if active.cancelled.is_cancelled() {
            return;
        }
        let edges = &self.equipment.job.program.graph.edges;
        let own = broken.channels.iter().find_map(|channel| {
            let edge = edges.get(channel.edge as usize)?;
            let ends = [
                SubtaskId { vertex: edge.from, index: channel.from },
                SubtaskId { vertex: edge.to, index: channel.to },
            ];
            ends.into_iter().find(|subtask| active.holds(*subtask))
        });
        if let Some(subtask) = own {
            let failure = TaskError::External(broken.message.clone()).to_failure();
            link.send(FromTaskManager::TaskFailed { run: broken.run, subtask, failure });
        }
    }

    fn stuck(&self) -> Option<String> {
        let active = self.active.as_ref()?;
        let since = self.cancelled_at.filter(|since| since.elapsed() > CANCEL_TIMEOUT)?;
        let waited = since.elapsed();
        Some(format!("tasks of run {} did not end within {waited:?} after they were cancelled", active.run))
    }

    /// Takes what tasks tell until none runs any more.
    async fn wait_for_end(&mut self, link: &Link) -> Result<(), String> {
        let mut ticks = ticks(HEARTBEAT_INTERVAL);
        self.settle(link);
        while self.active.is_some() {
            tokio::select! {
                Some(input) = self.inputs.recv() => self.take(link, input),
                _ = ticks.tick() => {
                    if let Some(message) = self.stuck() {
                        return Err(message);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Until it is true; for ever when nobody can say so any more.
async fn told(leave: &mut watch::Receiver<bool>) {
    if leave.wait_for(|leave| *leave).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Until the next tick; for ever where there are none.
async fn next(ticks: &mut Option<tokio::time::Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn lost(link: &Link, message: String) -> SessionOutcome {
    SessionOutcome::Lost { registered: link.registered, message }
}

fn fail_all(link: &Link, deployment: &Deployment, failure: &Failure) {
    warn!(run = %deployment.run, "{failure}");
    for task in &deployment.tasks {
        let failure = failure.clone();
        link.send(FromTaskManager::TaskFailed { run: deployment.run, subtask: task.subtask, failure });
    }
}
