//! A TaskManager process: registers with its JobManager, runs the tasks it is given, and stores their snapshots.
//!
//! Control (session, heartbeats, uploads) runs on the caller's tokio runtime, data connections on one of their own, and
//! each task on an operating-system thread of its own ([`sluice_engine::runner`]), so heavy computing delays no
//! heartbeat. It decides nothing: what it is told carries a run, and what is of another run is refused (N2).
//!
//! 1. [`run_task_manager`] builds the job as every process does, listens for data, and opens a [`session`]; it tries
//!    again until a deadline, and ends when it is refused.
//! 2. [`worker`] is the control loop: messages, task events and finished uploads come through it in order.
//! 3. A deployment becomes channels and tasks ([`deploy`]) with their state ([`restore`]), once all tasks of older runs
//!    have ended (N4).
//! 4. A frozen snapshot is encoded and uploaded away from the task ([`snapshot`]), then acknowledged.
//! 5. After half the heartbeat timeout without a word, tasks are cancelled and the session is given up (N4).

pub(crate) mod deploy;
pub(crate) mod in_flight;
mod job_clock;
mod pool;
pub(crate) mod restore;
pub(crate) mod session;
pub(crate) mod snapshot;
pub(crate) mod tasks;
pub(crate) mod worker;

use crate::data_plane::DataPlane;
use crate::edge;
use crate::job::{self, JobDescription};
use crate::job_manager::store::{self, Storage, jittered};
use crate::logs::LogSwitch;
use crate::memory::{MemoryLimit, MemorySplit};
use crate::rest::{RestServer, Views};
use crate::steps::Steps;
use sluice_engine::channel::DEFAULT_WINDOW;
use sluice_engine::state::StateBackend;
use sluice_engine::state::disk::DiskSpace;
use sluice_engine::state::memory::StateMemory;
use sluice_protocol::failure::{ExitKind, ExitRecord, Failure, Fault};
use sluice_protocol::message::Registration;
use sluice_protocol::options;
use sluice_protocol::{Generation, JobId, ProcessId, TaskManagerId};
use sluice_rpc::tls::Tls;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tracing::{info, warn};
use worker::{SessionOutcome, Worker};

/// How long a JobManager is looked for before the process gives up.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(300);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Bounds of what backend Disk keeps in memory of what it has read.
const LEAST_DISK_CACHE: u64 = 32 << 20;
const MOST_DISK_CACHE: u64 = 256 << 20;

/// Threads that move data frames, at most.
const DATA_THREADS: usize = 4;

/// What a TaskManager process is started with.
#[derive(Debug, Clone)]
pub struct TaskManagerArgs {
    /// The manifest file.
    pub manifest: PathBuf,
    /// The job (N1).
    pub job: JobId,
    /// The generation it is started for.
    pub generation: Generation,
    /// Its name.
    pub id: TaskManagerId,
    /// Tasks per vertex that it runs at once.
    pub slots: u32,
    /// The JobManager, `host:port`.
    pub job_manager: String,
    /// Where it listens for data, `host:port`.
    pub data_bind: String,
    /// How other TaskManagers reach that; the bound address when absent.
    pub data_advertise: Option<String>,
    /// The certificate with which it connects and is believed; plain connections without.
    pub tls_directory: Option<PathBuf>,
    /// Where status and metrics are served.
    pub rest_bind: SocketAddr,
    /// Where the exit record is written.
    pub termination_message: Option<PathBuf>,
    /// Bytes of memory that it may use; the limit of its cgroup when absent.
    pub memory: Option<u64>,
    /// Changes what the process logs.
    pub logs: LogSwitch,
    /// Who watches the steps that it takes.
    pub steps: Steps,
}

/// Runs a TaskManager until its job ends, its JobManager refuses it, or cannot be found any more.
///
/// Must be called within a tokio runtime.
///
/// Once `leave` becomes true it moves its tasks elsewhere, after a checkpoint where time allows, and ends.
pub async fn run_task_manager(args: TaskManagerArgs, leave: watch::Receiver<bool>) -> ExitRecord {
    let record = run(&args, leave).await.unwrap_or_else(|failure| edge::exit_of_failure(&failure));
    info!(kind = ?record.kind, reason = %record.reason, "the TaskManager ends: {}", record.message);
    if let Some(path) = &args.termination_message {
        edge::write_termination_message(path, &record);
    }
    record
}

async fn run(args: &TaskManagerArgs, leave: watch::Receiver<bool>) -> Result<ExitRecord, Failure> {
    let manifest = job::read_manifest(&args.manifest)?;
    let job = job::build_job(&manifest, &args.job)?;
    let storage = store::open_storage(&job.options)?;
    let data_runtime = DataRuntime::start()?;
    let tls = edge::open_tls(args.tls_directory.as_deref(), "--data-bind", &args.data_bind)?;
    let (id, runtime) = (args.id.clone(), data_runtime.handle());
    let data_plane = DataPlane::bind(&args.data_bind, &args.job.uid, id, DEFAULT_WINDOW, runtime, tls.clone())
        .await
        .map_err(|error| Failure::user("AddressInUse", error.to_string()))?;
    let registration = registration(args, &job, &data_plane);
    let equipment = Equipment::new(job, storage, MemoryLimit::find(args.memory))?;
    let mut worker = Worker::new(registration, equipment, Some(data_plane));
    worker.leave_when(leave);
    worker.steps = args.steps.clone();
    let views = Views {
        role: "taskmanager",
        status: None,
        history: None,
        tasks: Some(worker.task_view()),
        ready: worker.ready_check(),
    };
    let _rest = RestServer::start(args.rest_bind, views)
        .await
        .map_err(|error| Failure::user("AddressInUse", error.to_string()))?;
    serve_job_manager(args, tls.as_ref(), &mut worker).await
}

/// Sessions one after the other, until one says that it was the last.
async fn serve_job_manager(
    args: &TaskManagerArgs,
    tls: Option<&Arc<Tls>>,
    worker: &mut Worker,
) -> Result<ExitRecord, Failure> {
    let mut give_up_at = Instant::now() + REGISTRATION_TIMEOUT;
    let mut pause = FIRST_PAUSE;
    loop {
        let outcome = match session::connect(&args.job_manager, tls, &args.logs).await {
            Ok(session) => worker.serve(session).await,
            Err(message) => SessionOutcome::Lost { registered: false, message },
        };
        match outcome {
            SessionOutcome::Shutdown => return Ok(ended_with_job()),
            SessionOutcome::Left => return Err(left()),
            SessionOutcome::Refused(failure) => return Err(failure),
            SessionOutcome::Stuck(message) => {
                return Err(Failure::restart("TasksStuck", Fault::Internal, message));
            }
            SessionOutcome::Lost { registered, message } => {
                if registered {
                    warn!("the session with the JobManager at {} was lost: {message}", args.job_manager);
                    give_up_at = Instant::now() + REGISTRATION_TIMEOUT;
                    pause = FIRST_PAUSE;
                } else if Instant::now() > give_up_at {
                    return Err(not_found(&args.job_manager, &message));
                } else {
                    info!("the JobManager at {} is not there yet: {message}", args.job_manager);
                }
            }
        }
        if worker.is_leaving() {
            return Err(left());
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn not_found(address: &str, message: &str) -> Failure {
    let text = format!(
        "--job-manager: no JobManager took this TaskManager at {address} within {REGISTRATION_TIMEOUT:?}: {message}"
    );
    Failure::restart("JobManagerNotFound", Fault::External, text)
}

/// It does not count as one that ended with its job: another takes its place.
fn left() -> Failure {
    Failure::restart("Left", Fault::External, "the process was told to leave; its tasks run elsewhere")
}

fn ended_with_job() -> ExitRecord {
    ExitRecord::new(ExitKind::Finished, "JobEnded", "the job has ended")
}

fn registration(args: &TaskManagerArgs, job: &JobDescription, data_plane: &DataPlane) -> Registration {
    Registration {
        task_manager: args.id.clone(),
        process: ProcessId(edge::random_id()),
        generation: args.generation,
        slots: args.slots,
        data_address: args.data_advertise.clone().unwrap_or_else(|| data_plane.address().to_string()),
        fingerprint: job.program.graph.fingerprint(),
    }
}

/// What a worker works with, apart from its tasks.
#[derive(Clone)]
pub(crate) struct Equipment {
    pub(crate) job: Arc<JobDescription>,
    pub(crate) storage: Storage,
    pub(crate) state_backend: StateBackend,
    /// What the process may use.
    pub(crate) memory: MemoryLimit,
    /// The part of keyed state, when that is in memory.
    state_memory: Arc<StateMemory>,
    /// A subtask that stores its state holds one of them.
    pub(crate) writers: Arc<Writers>,
}

/// How many subtasks store their state at once: as many as the memory allows, which each deployment says anew.
#[derive(Debug)]
pub(crate) struct Writers(Mutex<Arc<Semaphore>>);

impl Default for Writers {
    fn default() -> Self {
        Self(Mutex::new(Arc::new(Semaphore::new(1))))
    }
}

impl Writers {
    fn set(&self, writers: usize) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(Semaphore::new(writers));
    }

    /// The right to store, given back when it is dropped. `None` never comes: nobody closes it.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        let current = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        current.acquire_owned().await.ok()
    }
}

impl Equipment {
    /// Makes what the job's state backend needs.
    ///
    /// # Errors
    /// When the working directory of backend Disk cannot be used.
    pub(crate) fn new(job: JobDescription, storage: Storage, memory: MemoryLimit) -> Result<Self, Failure> {
        let state_memory = Arc::new(StateMemory::new(u64::MAX));
        let state_backend = match job.options.state_backend {
            options::StateBackend::Hash => StateBackend::HashWithin(Arc::clone(&state_memory)),
            options::StateBackend::Disk => {
                let space = DiskSpace::create(&std::env::temp_dir(), &edge::random_id(), disk_cache_bytes(memory));
                StateBackend::Disk(space.map_err(|error| error.to_failure())?)
            }
        };
        let writers = Arc::default();
        Ok(Self { job: Arc::new(job), storage, state_backend, memory, state_memory, writers })
    }

    /// Obeys the division of the memory for the tasks that are about to be deployed.
    pub(crate) fn obey(&self, split: &MemorySplit) {
        info!("{split}");
        self.state_memory.set_limit(split.state);
        self.writers.set(split.writers);
    }
}

/// An eighth of the memory that the process may use holds what backend Disk has read.
fn disk_cache_bytes(memory: MemoryLimit) -> u64 {
    (memory.bytes() / 8).clamp(LEAST_DISK_CACHE, MOST_DISK_CACHE)
}

/// The runtime that moves data frames.
struct DataRuntime(Option<tokio::runtime::Runtime>);

impl DataRuntime {
    fn start() -> Result<Self, Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores.min(DATA_THREADS))
            .thread_name("data")
            .enable_all()
            .build();
        let failed = |error| Failure::restart("NoThreads", Fault::External, format!("no threads for data: {error}"));
        Ok(Self(Some(runtime.map_err(failed)?)))
    }

    fn handle(&self) -> tokio::runtime::Handle {
        self.0.as_ref().map_or_else(tokio::runtime::Handle::current, |runtime| runtime.handle().clone())
    }
}

impl Drop for DataRuntime {
    fn drop(&mut self) {
        // A runtime must not be waited for within another.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
