//! A JobManager process: drives the pure [`sluice_protocol::job_master::JobMaster`], and lets others talk to it.
//!
//! It decides nothing about checkpoints, restarts or the ledger; it reads facts, feeds them as events, and executes
//! the actions that come back.
//!
//! 1. [`run_job_manager`] builds the job from its manifest, opens the store, and starts the servers.
//! 2. [`driver`] is the control loop: one task owns the decisions; events come through one queue, so their order is
//!    the order in which decisions see them. Store operations run in tasks of their own and come back as events.
//! 3. [`store`] asks the store for its promises before the first operation (L7), and waits for one that does not answer
//!    without spending anything (F2).
//! 4. [`sessions`] serves TaskManagers, [`control`] the controller and the command line.
//! 5. The control loop ends with an exit record: it is written to the termination message, and is the exit code.

pub(crate) mod control;
pub(crate) mod driver;
pub(crate) mod sessions;
pub(crate) mod store;

use crate::edge;
use crate::job::{self, JobDescription};
use crate::logs::{LogFilters, LogSwitch};
use crate::rest::{RestServer, Views};
use crate::steps::Steps;
use driver::{Driver, DriverConfig, DriverHandle, Patience};
use sluice_protocol::failure::{ExitRecord, Failure};
use sluice_protocol::job_master::{Directive, JobMasterConfig, Planted};
use sluice_protocol::restart::FailureCounts;
use sluice_protocol::{Generation, JobId, ProcessId};
use sluice_rpc::tls::Tls;
use sluice_rpc::tls::stream::{Refusals, incoming};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tracing::{info, warn};

/// How long open streams may take to deliver what was sent before the process ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a JobManager process is started with.
#[derive(Debug, Clone)]
pub struct JobManagerArgs {
    /// The manifest file.
    pub manifest: PathBuf,
    /// The job; its namespace, name and uid come from the controller, not from the manifest (N1).
    pub job: JobId,
    /// Its generation (N2).
    pub generation: Generation,
    /// Revision of the spec.
    pub revision: u64,
    /// What to start from (N3).
    pub directive: Directive,
    /// The failures that the controller's status holds (F1).
    pub failures: FailureCounts,
    /// Where TaskManagers, controller and command line connect.
    pub rpc_bind: SocketAddr,
    /// The certificate with which it is asked and believed; plain connections without.
    pub tls_directory: Option<PathBuf>,
    /// Where status and metrics are served.
    pub rest_bind: SocketAddr,
    /// Where the exit record is written.
    pub termination_message: Option<PathBuf>,
    /// Changes what the process logs.
    pub logs: LogSwitch,
    /// Who watches the steps that it takes.
    pub steps: Steps,
}

/// Runs a JobManager until its job ends or another generation takes over.
///
/// Must be called within a tokio runtime.
pub async fn run_job_manager(args: JobManagerArgs) -> ExitRecord {
    let record = run(&args).await.unwrap_or_else(|failure| edge::exit_of_failure(&failure));
    info!(kind = ?record.kind, reason = %record.reason, "the JobManager ends: {}", record.message);
    if let Some(path) = &args.termination_message {
        edge::write_termination_message(path, &record);
    }
    record
}

async fn run(args: &JobManagerArgs) -> Result<ExitRecord, Failure> {
    let manifest = job::read_manifest(&args.manifest)?;
    let job = job::build_job(&manifest, &args.job)?;
    let storage = store::open_storage(&job.options)?;
    let tls = edge::open_tls(args.tls_directory.as_deref(), "--rpc-bind", &args.rpc_bind.to_string())?;
    let listener = TcpListener::bind(args.rpc_bind).await.map_err(|error| {
        let text = format!("--rpc-bind: cannot listen on {}: {error}; choose another address or port", args.rpc_bind);
        Failure::user("AddressInUse", text)
    })?;
    let config = DriverConfig {
        master: master_config(args, &job, storage.uri.clone()),
        program: job.program.clone(),
        storage,
        patience: Patience::WaitForStore,
        steps: args.steps.clone(),
    };
    let (driver, handle) = Driver::new(config);
    let views = Views {
        role: "jobmanager",
        status: Some(handle.status()),
        history: Some(handle.history()),
        tasks: None,
        ready: handle.ready_check(),
    };
    let _rest = RestServer::start(args.rest_bind, views)
        .await
        .map_err(|error| Failure::user("AddressInUse", error.to_string()))?;
    let server = serve(listener, &handle, &args.job, args.generation, tls, &args.logs);
    drop(handle);
    let record = driver.run().await;
    // The streams end by themselves now that the control loop is gone; what was sent is still delivered.
    if tokio::time::timeout(DRAIN_TIMEOUT, server).await.is_err() {
        warn!("connections were still open after {DRAIN_TIMEOUT:?}");
    }
    Ok(record)
}

fn master_config(args: &JobManagerArgs, job: &JobDescription, storage_uri: Option<String>) -> JobMasterConfig {
    JobMasterConfig {
        job: args.job.clone(),
        generation: args.generation,
        process: ProcessId(edge::random_id()),
        revision: args.revision,
        directive: args.directive.clone(),
        graph: job.program.graph.clone(),
        options: job.options.clone(),
        storage_uri,
        probed: None,
        failures: args.failures.clone(),
        planted: Planted::default(),
    }
}

/// Serves both services until the control loop ends; with `tls` each to those roles only that it is for.
pub(crate) fn serve(
    listener: TcpListener,
    handle: &DriverHandle,
    job: &JobId,
    generation: Generation,
    tls: Option<Arc<Tls>>,
    logs: &LogSwitch,
) -> tokio::task::JoinHandle<()> {
    let logs = LogFilters::new(logs.clone());
    let refusals = Arc::new(Refusals::default());
    let gateway = sessions::Gateway::new(handle.clone(), Arc::clone(&refusals), logs.clone());
    let control = control::Control::new(handle.clone(), job.clone(), generation, Arc::clone(&refusals), logs);
    let router = sluice_rpc::transport::server()
        .add_service(sluice_rpc::gateway::service(gateway))
        .add_service(sluice_rpc::control::service(control));
    let ended = handle.ended();
    let incoming = incoming(listener, tls, refusals);
    tokio::spawn(async move {
        if let Err(error) = router.serve_with_incoming_shutdown(incoming, ended.cancelled_owned()).await {
            warn!("the RPC server ended: {error}");
        }
    })
}
