//! The control loop: one task that owns the JobMaster, feeds it events in order, and executes its actions.
//!
//! It never waits for I/O: store operations run in tasks of their own, messages go into queues that never block. So
//! what it answers (`/readyz`) says that decisions are being made.

use super::store::{self, Storage};
use crate::edge;
use crate::rest::ReadyCheck;
use crate::steps::{JobManagerSteps, Steps};
use futures::FutureExt as _;
use sluice_engine::program::Program;
use sluice_engine::sink::committer;
use sluice_protocol::commit::{CommitHandle, CommitId, CommitOutcome, Leftovers};
use sluice_protocol::failure::{ExitKind, ExitRecord, STOPPED_BEFORE_START};
use sluice_protocol::history::CheckpointHistory;
use sluice_protocol::job_master::{Action, Command, Event, JobMaster, JobMasterConfig, SessionId};
use sluice_protocol::message::ToTaskManager;
use sluice_protocol::status::{JobState, JobStatus};
use sluice_protocol::store::{OperationId, StoreOperation};
use sluice_protocol::{JobId, TimeSpan, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

/// Inputs that may wait for the loop; senders wait beyond that.
const QUEUE: usize = 1024;

/// How long the loop may take to answer before the process counts as not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// At most this often the status is published when nothing but the time TaskManagers were heard has changed.
const HEARD_INTERVAL: TimeSpan = TimeSpan::from_secs(1);

/// How long sinks whose targets did not answer are not asked again how long they keep what is staged.
const LIVES_PAUSE: Duration = Duration::from_secs(10);

/// What the control loop begins with.
pub(crate) struct DriverConfig {
    /// Of the decisions.
    pub(crate) master: JobMasterConfig,
    /// What runs, for the sinks' own code.
    pub(crate) program: Program,
    /// Where checkpoints lie.
    pub(crate) storage: Storage,
    /// What a store that cannot be used at the start means.
    pub(crate) patience: Patience,
    /// Who watches the steps.
    pub(crate) steps: Steps,
}

/// What a store that cannot be used at the start means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The process stays and tries again, whatever the reason (F2): a pod.
    WaitForStore,
    /// The process ends unless waiting alone may help: a person at a terminal.
    FailOnRefusal,
}

/// What the loop takes.
pub(crate) enum Input {
    /// Something for the decisions.
    Event(Event),
    /// A TaskManager connects; its messages follow.
    SessionOpened { session: SessionId, outgoing: mpsc::UnboundedSender<ToTaskManager> },
    /// Is anybody there?
    Ping(oneshot::Sender<()>),
    /// What the store said before the start.
    Probe(store::ProbeReport),
    /// End at once, whatever is under way.
    Abandon,
}

/// What others hold of the loop.
#[derive(Clone)]
pub(crate) struct DriverHandle {
    inputs: mpsc::Sender<Input>,
    status: watch::Receiver<JobStatus>,
    history: watch::Receiver<Arc<CheckpointHistory>>,
    next_session: Arc<AtomicU64>,
    ended: CancellationToken,
}

/// One session as its server sees it.
pub(crate) struct SessionEnd {
    pub(crate) session: SessionId,
    pub(crate) outgoing: mpsc::UnboundedReceiver<ToTaskManager>,
}

impl DriverHandle {
    /// The job's status, now and later.
    pub(crate) fn status(&self) -> watch::Receiver<JobStatus> {
        self.status.clone()
    }

    /// How the last checkpoints went, now and later.
    pub(crate) fn history(&self) -> watch::Receiver<Arc<CheckpointHistory>> {
        self.history.clone()
    }

    /// Cancelled when the loop has ended.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Feeds an event; false when the loop has ended.
    pub(crate) async fn send(&self, event: Event) -> bool {
        self.inputs.send(Input::Event(event)).await.is_ok()
    }

    /// Ends the loop at once.
    pub(crate) async fn abandon(&self) {
        // A loop that has ended already needs no telling.
        let _ = self.inputs.send(Input::Abandon).await;
    }

    /// A new session; `None` when the loop has ended.
    pub(crate) async fn open_session(&self) -> Option<SessionEnd> {
        let session = SessionId(self.next_session.fetch_add(1, Ordering::Relaxed));
        let (sender, outgoing) = mpsc::unbounded_channel();
        self.inputs.send(Input::SessionOpened { session, outgoing: sender }).await.ok()?;
        Some(SessionEnd { session, outgoing })
    }

    /// For `/readyz`.
    pub(crate) fn ready_check(&self) -> ReadyCheck {
        let inputs = self.inputs.clone();
        Arc::new(move || {
            let inputs = inputs.clone();
            let asked = async move {
                let (sender, answer) = oneshot::channel();
                inputs.send(Input::Ping(sender)).await.is_ok() && answer.await.is_ok()
            };
            async move { tokio::time::timeout(READY_TIMEOUT, asked).await.unwrap_or(false) }.boxed()
        })
    }
}

/// The loop.
pub(crate) struct Driver {
    phase: Phase,
    storage: Storage,
    job: JobId,
    program: Arc<Program>,
    patience: Patience,
    steps: JobManagerSteps,
    inputs: mpsc::Receiver<Input>,
    /// For tasks that report back.
    sender: mpsc::Sender<Input>,
    sessions: BTreeMap<SessionId, mpsc::UnboundedSender<ToTaskManager>>,
    status: watch::Sender<JobStatus>,
    history: watch::Sender<Arc<CheckpointHistory>>,
    published_at: Timestamp,
    ended: CancellationToken,
}

enum Phase {
    /// The store is asked for its promises; events wait.
    Probing { config: Box<JobMasterConfig>, waiting: Vec<Event> },
    /// Decisions are made.
    Deciding(Box<JobMaster>),
}

impl Driver {
    /// A loop and what others hold of it.
    pub(crate) fn new(config: DriverConfig) -> (Self, DriverHandle) {
        let DriverConfig { master, program, storage, patience, steps } = config;
        let (sender, inputs) = mpsc::channel(QUEUE);
        let now = edge::now();
        let status = watch::Sender::new(JobStatus {
            state: JobState::Starting,
            message: "asking the checkpoint storage whether it can be used".to_owned(),
            generation: master.generation,
            since: now,
            ..JobStatus::default()
        });
        let history = watch::Sender::new(Arc::default());
        let ended = CancellationToken::new();
        let handle = DriverHandle {
            inputs: sender.clone(),
            status: status.subscribe(),
            history: history.subscribe(),
            next_session: Arc::new(AtomicU64::new(1)),
            ended: ended.clone(),
        };
        let job = master.job.clone();
        let driver = Self {
            phase: Phase::Probing { config: Box::new(master), waiting: Vec::new() },
            storage,
            job,
            program: Arc::new(program),
            patience,
            steps: JobManagerSteps::new(steps),
            inputs,
            sender,
            sessions: BTreeMap::new(),
            status,
            history,
            published_at: now,
            ended,
        };
        (driver, handle)
    }

    /// Runs until the job ends, and says how.
    pub(crate) async fn run(mut self) -> ExitRecord {
        let record = match self.start_probe() {
            Some(record) => record,
            None => self.drive().await,
        };
        self.ended.cancel();
        record
    }

    async fn drive(&mut self) -> ExitRecord {
        loop {
            let due = match &self.phase {
                Phase::Probing { .. } => None,
                Phase::Deciding(master) => master.next_wakeup(),
            };
            let input = tokio::select! {
                // The loop itself holds a sender, so the queue never closes.
                input = self.inputs.recv() => input,
                () = sleep_until(due) => Some(Input::Event(Event::Tick)),
            };
            if let Some(record) = input.and_then(|input| self.take(input)) {
                return record;
            }
        }
    }

    fn take(&mut self, input: Input) -> Option<ExitRecord> {
        match input {
            Input::Event(event) => self.decide(event),
            Input::SessionOpened { session, outgoing } => {
                self.sessions.insert(session, outgoing);
                None
            }
            Input::Ping(answer) => {
                // Whoever asked may have gone meanwhile.
                let _ = answer.send(());
                None
            }
            Input::Probe(report) => self.take_probe(report),
            Input::Abandon => {
                let message = "ended at once on request; it can be resumed from its last checkpoint";
                Some(ExitRecord::new(ExitKind::Stopped, "Interrupted", message))
            }
        }
    }

    fn decide(&mut self, event: Event) -> Option<ExitRecord> {
        if let Event::SessionClosed { session } = &event {
            self.sessions.remove(session);
        }
        let master = match &mut self.phase {
            Phase::Deciding(master) => master,
            Phase::Probing { waiting, .. } => return wait_for_store(waiting, event),
        };
        let now = edge::now();
        let actions = master.handle(now, event);
        self.publish(now);
        actions.into_iter().find_map(|action| self.execute(action))
    }

    fn execute(&mut self, action: Action) -> Option<ExitRecord> {
        match action {
            Action::Store { id, operation } => self.execute_store(id, operation),
            Action::Send { session, message } => {
                debug!(session = session.0, ?message, "send");
                if matches!(message, ToTaskManager::TriggerCheckpoint { .. }) {
                    self.steps.triggering();
                }
                if let Some(outgoing) = self.sessions.get(&session) {
                    // Lost silently when the session is gone; its end is an event of its own.
                    let _ = outgoing.send(message);
                }
            }
            Action::Close { session } => {
                self.sessions.remove(&session);
            }
            Action::Commit { id, handles } => self.execute_commit(id, handles),
            Action::AbortLeftovers { id, leftovers } => self.execute_abort(id, leftovers),
            Action::Exit(record) => return Some(record),
        }
        None
    }

    fn execute_store(&self, id: OperationId, operation: StoreOperation) {
        let executor = self.storage.executor.clone();
        let (sender, steps) = (self.sender.clone(), self.steps.clone());
        tokio::spawn(async move {
            let appends = steps.storing(&operation);
            let reply = store::execute(&executor, operation).await;
            steps.stored(appends, &reply);
            // The loop has ended: nobody waits for the answer.
            let _ = sender.send(Input::Event(Event::StoreReply { id, reply })).await;
        });
    }

    /// A commit may block: it gets a thread of its own.
    fn execute_commit(&self, id: CommitId, handles: Vec<CommitHandle>) {
        let (program, job) = (Arc::clone(&self.program), self.job.clone());
        let (sender, steps) = (self.sender.clone(), self.steps.clone());
        tokio::spawn(async move {
            let count = handles.len();
            let done = tokio::task::spawn_blocking(move || steps.commit(&program, &job, &handles)).await;
            let panicked = || CommitOutcome::Retry("the committer panicked; this is a fault of the sink".to_owned());
            let outcomes = done.unwrap_or_else(|_| (0..count).map(|_| panicked()).collect());
            // The loop has ended: nobody waits for the answer.
            let _ = sender.send(Input::Event(Event::Committed { id, outcomes })).await;
        });
    }

    fn execute_abort(&self, id: CommitId, leftovers: Leftovers) {
        let program = Arc::clone(&self.program);
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let done = tokio::task::spawn_blocking(move || committer::abort_leftovers(&program, &leftovers)).await;
            let panicked = |_| Some("the committer panicked; this is a fault of the sink".to_owned());
            let failure = done.unwrap_or_else(panicked);
            // As above.
            let _ = sender.send(Input::Event(Event::LeftoversAborted { id, failure })).await;
        });
    }

    /// Asks the sinks' targets how long they keep what is staged, until all have answered (S4). A helper stages nothing.
    fn ask_lives(&self, is_helper: bool) {
        if is_helper || self.program.graph.transactional_sinks().next().is_none() {
            return;
        }
        let (sender, ended) = (self.sender.clone(), self.ended.clone());
        let (program, job) = (Arc::clone(&self.program), self.job.clone());
        let lives = async move {
            loop {
                let (program, job) = (Arc::clone(&program), job.clone());
                match tokio::task::spawn_blocking(move || committer::lives(&program, &job)).await {
                    Ok(Ok(lives)) => return lives,
                    Ok(Err(message)) => debug!("how long what is staged is kept is not known yet: {message}"),
                    Err(panicked) => error!("how long what is staged is kept cannot be asked: {panicked}"),
                }
                tokio::time::sleep(LIVES_PAUSE).await;
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                lives = lives => drop(sender.send(Input::Event(Event::Lives(lives))).await),
            }
        });
    }

    fn publish(&mut self, now: Timestamp) {
        let Phase::Deciding(master) = &self.phase else { return };
        let status = master.status();
        let heard_only = same_but_heard(&self.status.borrow(), status);
        if heard_only && now.since(self.published_at) < HEARD_INTERVAL {
            return;
        }
        self.published_at = now;
        if !Arc::ptr_eq(&self.history.borrow(), master.history()) {
            self.history.send_replace(Arc::clone(master.history()));
        }
        self.status.send_if_modified(|published| {
            let modified = *published != *status;
            *published = status.clone();
            modified
        });
    }

    /// Begins to ask the store; with nothing to ask, decisions begin at once.
    fn start_probe(&mut self) -> Option<ExitRecord> {
        let Phase::Probing { config, .. } = &self.phase else { return None };
        if config.storage_uri.is_none() {
            return self.begin(None);
        }
        let probe = store::Probe::new(&self.storage, &config.job);
        let sender = self.sender.clone();
        let ended = self.ended.clone();
        let patience = self.patience;
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = probe.run(patience, |report| sender.send(Input::Probe(report))) => {}
            }
        });
        None
    }

    fn take_probe(&mut self, report: store::ProbeReport) -> Option<ExitRecord> {
        match report {
            store::ProbeReport::Passed { probed } => self.begin(probed),
            store::ProbeReport::Waiting { message } => {
                info!("{message}");
                self.status.send_modify(|status| status.message = message);
                None
            }
            store::ProbeReport::Refused(failure) => Some(edge::exit_of_failure(&failure)),
        }
    }

    /// Makes the decisions' state machine and feeds it what has waited.
    fn begin(&mut self, probed: Option<String>) -> Option<ExitRecord> {
        let Phase::Probing { config, waiting } = &mut self.phase else { return None };
        let mut config = (**config).clone();
        let waiting = std::mem::take(waiting);
        config.probed = probed;
        let is_helper = config.directive.start.is_helper();
        let master = JobMaster::new(config, Box::new(edge::SystemRandom));
        self.phase = Phase::Deciding(Box::new(master));
        self.ask_lives(is_helper);
        let first = self.decide(Event::Tick);
        first.or_else(|| waiting.into_iter().find_map(|event| self.decide(event)))
    }
}

/// Before decisions begin there is nothing to stop: the ledger was not touched.
fn wait_for_store(waiting: &mut Vec<Event>, event: Event) -> Option<ExitRecord> {
    if matches!(event, Event::Command(Command::Stop | Command::Cancel)) {
        let message = "stopped while the checkpoint storage could not be used; nothing was started";
        return Some(ExitRecord::new(ExitKind::Stopped, STOPPED_BEFORE_START, message));
    }
    if !matches!(event, Event::Tick) {
        waiting.push(event);
    }
    None
}

async fn sleep_until(due: Option<Timestamp>) {
    match due {
        Some(due) => tokio::time::sleep(due.since(edge::now()).as_duration()).await,
        None => std::future::pending().await,
    }
}

/// Whether nothing differs but when TaskManagers were last heard.
fn same_but_heard(old: &JobStatus, new: &JobStatus) -> bool {
    let silent = |status: &JobStatus| {
        let mut status = status.clone();
        for task_manager in &mut status.task_managers {
            task_manager.last_heard = Timestamp::default();
        }
        status
    };
    silent(old) == silent(new)
}
