//! A whole job in one process: the same decisions, tasks and checkpoints as on a cluster, without sockets.
//!
//! It owns what only a local run decides: the identity of the job, its generation, and where it starts ([`identity`]).
//! Everything else is the JobManager's driver and a TaskManager's worker, joined by an in-process session.
//!
//! 1. [`run_local`] fills in the local directory for checkpoints, and takes the identity: a new one, or, to resume,
//!    the one kept beside the checkpoints (N1, N2).
//! 2. The driver decides, the worker runs all tasks; the caller sees every status.
//! 3. The first stop request ends with a last checkpoint and `Stopped`, the second at once.
//! 4. What is out of reach at the start is waited for (F2), but not for ever: a person sits before it ([`impatience`]).

mod identity;
mod impatience;

use crate::edge;
use crate::job::JobDescription;
use crate::job_manager::driver::{Driver, DriverConfig, DriverHandle, Patience};
use crate::job_manager::store;
use crate::logs::LogSwitch;
use crate::memory::MemoryLimit;
use crate::metrics::{TaskMetrics, TaskView};
use crate::rest::{RestServer, Views};
use crate::steps::Steps;
use crate::task_manager::worker::{SessionOutcome, Worker};
use crate::task_manager::{Equipment, session};
use identity::Identity;
use impatience::Impatience;
use sluice_engine::program::Program;
use sluice_protocol::failure::{ExitKind, ExitRecord, Failure, Fault};
use sluice_protocol::job_master::{Command, Event, JobMasterConfig, Planted};
use sluice_protocol::message::Registration;
use sluice_protocol::options::JobOptions;
use sluice_protocol::restart::FailureCounts;
use sluice_protocol::status::JobStatus;
use sluice_protocol::{Generation, JobId, OperatorUid, ProcessId, TaskManagerId};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The status is shown at least this often.
const SHOW_INTERVAL: Duration = Duration::from_millis(500);

/// How long tasks may take to end when the job has.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long those who wait for an answer may take to read it.
const CONTROL_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Is shown every status, and the counters of the tasks.
pub type OnStatus = Box<dyn FnMut(&JobStatus, &[TaskMetrics]) + Send>;

/// A local run.
pub struct LocalRun {
    /// Namespace of the job; `default` unless the manifest says otherwise.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it computes.
    pub program: Program,
    /// How it runs.
    pub options: JobOptions,
    /// What it starts from.
    pub start: LocalStart,
    /// How long what the job needs may be out of reach before its tasks have run; without a limit when absent.
    pub start_timeout: Option<Duration>,
    /// Where checkpoints go when the options name no storage.
    pub checkpoint_directory: PathBuf,
    /// Where status and metrics are served; nowhere when absent.
    pub rest_bind: Option<SocketAddr>,
    /// Where commands are taken; nowhere when absent. Local processes alone should reach it.
    pub control: Option<std::net::TcpListener>,
    /// Shown every status, and the counters of the tasks.
    pub on_status: OnStatus,
    /// Ends the job with a last checkpoint.
    pub stop: CancellationToken,
    /// Ends the process at once.
    pub abandon: CancellationToken,
    /// Bytes of memory that the process may use; its cgroup's limit or the machine's memory when absent.
    pub memory: Option<u64>,
    /// Changes what the process logs.
    pub logs: LogSwitch,
}

/// What a local run starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalStart {
    /// Nothing: a new job (N1).
    Empty,
    /// The latest checkpoint of the last run of this name.
    Resume,
    /// A snapshot; a new job.
    Snapshot {
        /// URI of a checkpoint, savepoint or job directory, or of a `_metadata`.
        from: String,
        /// Drop state that no operator takes.
        allow_non_restored_state: bool,
        /// Sinks whose uncommitted output is given up.
        abandon_sinks: Vec<OperatorUid>,
    },
}

/// Runs a job in this process until it ends.
///
/// Must be called within a tokio runtime with more than one thread.
pub async fn run_local(run: LocalRun) -> ExitRecord {
    let record = start(run).await.unwrap_or_else(|failure| edge::exit_of_failure(&failure));
    tracing::info!(kind = ?record.kind, reason = %record.reason, "the job ends: {}", record.message);
    record
}

async fn start(run: LocalRun) -> Result<ExitRecord, Failure> {
    let LocalRun { namespace, name, program, mut options, start, checkpoint_directory, .. } = run;
    fill_storage(&mut options, &checkpoint_directory)?;
    let storage = store::open_storage(&options)?;
    let (stop, abandon) = (run.stop, run.abandon);
    let impatience = Impatience::new(run.start_timeout);
    let mut waits_for = None;
    let taken = tokio::select! {
        () = abandon.cancelled() => return Ok(interrupted()),
        () = stop.cancelled() => return Ok(interrupted()),
        () = impatience.is_over() => None,
        taken = identity::take(&storage, &namespace, &name, &start, &mut waits_for) => Some(taken),
    };
    let Some(taken) = taken else { return Ok(impatience.give_up_storage(waits_for)) };
    let Identity { job, generation, directive } = taken?;
    let served = job.clone();
    let description = JobDescription { job: job.clone(), program, options, restore: None };
    let master = JobMasterConfig {
        job,
        generation,
        process: ProcessId(edge::random_id()),
        revision: 1,
        directive,
        graph: description.program.graph.clone(),
        options: description.options.clone(),
        storage_uri: storage.uri.clone(),
        probed: None,
        failures: FailureCounts::default(),
        planted: Planted::default(),
    };
    let registration = registration(&description, &master);
    let program = description.program.clone();
    let kept_in = storage.clone();
    let worker =
        Worker::new(registration, Equipment::new(description, storage.clone(), MemoryLimit::find(run.memory))?, None);
    let (patience, steps) = (Patience::FailOnRefusal, Steps::default());
    let (driver, handle) = Driver::new(DriverConfig { master, program, storage, patience, steps });
    let _rest = start_rest(run.rest_bind, &handle, worker.task_view()).await?;
    let server =
        run.control.map(|listener| serve_control(listener, &handle, &served, generation, &run.logs)).transpose()?;
    let kept = tokio::spawn(identity::keep(kept_in, served, handle.status()));
    tokio::spawn(show(handle.status(), handle.ended(), worker.task_view(), run.on_status));
    tokio::spawn(forward_requests(handle.clone(), stop, abandon));
    let impatience = tokio::spawn(impatience.give_up(handle.clone()));
    let record = drive(driver, handle, worker).await;
    if let Some(server) = server {
        // Whoever asked for the end is still told of it.
        let _ = tokio::time::timeout(CONTROL_DRAIN_TIMEOUT, server).await;
    }
    // A job that was short is resumed like any.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, kept).await;
    Ok(impatience.await.unwrap_or_default().unwrap_or(record))
}

fn serve_control(
    listener: std::net::TcpListener,
    handle: &DriverHandle,
    job: &JobId,
    generation: Generation,
    logs: &LogSwitch,
) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let failed = |error| Failure::restart("NoControlEndpoint", Fault::External, format!("--control-port: {error}"));
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    Ok(crate::job_manager::serve(listener, handle, job, generation, None, logs))
}

/// Checkpoints that would be kept in memory go to a local directory: a local run can then be resumed.
fn fill_storage(options: &mut JobOptions, directory: &std::path::Path) -> Result<(), Failure> {
    let Some(checkpointing) = &mut options.checkpointing else { return Ok(()) };
    if checkpointing.is_in_memory() {
        let absolute = std::path::absolute(directory)
            .map_err(|error| Failure::user("BadStorage", format!("{}: {error}", directory.display())))?;
        checkpointing.storage = format!("file://{}", absolute.display());
    }
    Ok(())
}

fn registration(job: &JobDescription, master: &JobMasterConfig) -> Registration {
    Registration {
        task_manager: TaskManagerId::from("local"),
        process: master.process.clone(),
        generation: master.generation,
        slots: job.program.graph.slots_needed(),
        data_address: String::new(),
        fingerprint: job.program.graph.fingerprint(),
    }
}

async fn start_rest(
    bind: Option<SocketAddr>,
    handle: &DriverHandle,
    tasks: TaskView,
) -> Result<Option<RestServer>, Failure> {
    let Some(bind) = bind else { return Ok(None) };
    let views = Views {
        role: "local",
        status: Some(handle.status()),
        history: Some(handle.history()),
        tasks: Some(tasks),
        ready: handle.ready_check(),
    };
    let server = RestServer::start(bind, views).await;
    server.map(Some).map_err(|error| Failure::user("AddressInUse", error.to_string()))
}

/// Runs both sides; the worker ends with the driver.
async fn drive(driver: Driver, handle: DriverHandle, worker: Worker) -> ExitRecord {
    let working = tokio::spawn(work(worker, handle));
    let record = driver.run().await;
    let worked = tokio::time::timeout(DRAIN_TIMEOUT, working).await;
    match worked {
        Ok(Ok(Err(failure))) => edge::exit_of_failure(&failure),
        _ => record,
    }
}

/// Sessions one after the other, as a TaskManager has them.
///
/// # Errors
/// When it was refused, or its tasks do not end: the driver is ended then.
async fn work(mut worker: Worker, handle: DriverHandle) -> Result<(), Failure> {
    while let Some(session) = session::in_process(&handle).await {
        let failure = match worker.serve(session).await {
            SessionOutcome::Shutdown => return Ok(()),
            SessionOutcome::Lost { .. } | SessionOutcome::Left => continue,
            SessionOutcome::Refused(failure) => failure,
            SessionOutcome::Stuck(message) => Failure::restart("TasksStuck", Fault::Internal, message),
        };
        handle.abandon().await;
        return Err(failure);
    }
    Ok(())
}

async fn forward_requests(handle: DriverHandle, stop: CancellationToken, abandon: CancellationToken) {
    let ended = handle.ended();
    tokio::select! {
        () = ended.cancelled() => return,
        () = abandon.cancelled() => return handle.abandon().await,
        () = stop.cancelled() => { handle.send(Event::Command(Command::Stop)).await; }
    }
    tokio::select! {
        () = ended.cancelled() => {}
        () = abandon.cancelled() => handle.abandon().await,
    }
}

async fn show(
    mut status: watch::Receiver<JobStatus>,
    ended: CancellationToken,
    tasks: TaskView,
    mut on_status: OnStatus,
) {
    loop {
        let current = status.borrow_and_update().clone();
        on_status(&current, &tasks());
        let open = tokio::select! {
            changed = status.changed() => changed.is_ok(),
            () = tokio::time::sleep(SHOW_INTERVAL) => !ended.is_cancelled(),
        };
        if !open {
            return;
        }
    }
}

fn interrupted() -> ExitRecord {
    ExitRecord::new(ExitKind::Stopped, "Interrupted", "interrupted before the job started")
}
