//! `sluice jobmanager` and `sluice taskmanager`: the processes in a job's pods, with the flags that the controller
//! gives them. All they do is in sluice-node.

use crate::error::CommandError;
use crate::signals::Signals;
use crate::size::parse_size;
use clap::Args;
use sluice_node::logs::LogSwitch;
use sluice_node::steps::Steps;
use sluice_node::{JobManagerArgs, TaskManagerArgs};
use sluice_protocol::failure::ExitRecord;
use sluice_protocol::job_master::{Directive, StartFrom};
use sluice_protocol::restart::FailureCounts;
use sluice_protocol::{Generation, JobId, TaskManagerId};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// What a shell reports of a process that SIGTERM ended.
const TERMINATED: u8 = 143;

/// How long a TaskManager may take to leave: less than its pod's grace period.
const LEAVE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(27);

/// Which job a process belongs to.
#[derive(Debug, Args)]
struct JobArguments {
    /// The StreamJob manifest
    #[arg(long, value_name = "FILE", default_value = "/etc/sluice/job.yaml")]
    manifest: PathBuf,
    /// Namespace of the StreamJob
    #[arg(long)]
    namespace: String,
    /// Name of the StreamJob
    #[arg(long)]
    name: String,
    /// uid of the StreamJob
    #[arg(long)]
    uid: String,
    /// The JobManager's generation, counted by the controller
    #[arg(long)]
    generation: u64,
    /// ca.crt, tls.crt and tls.key of this process, read again when they change; without it connections are plain
    #[arg(long, value_name = "DIRECTORY", env = "SLUICE_TLS_DIRECTORY")]
    tls_directory: Option<PathBuf>,
}

impl JobArguments {
    fn job(&self) -> JobId {
        JobId { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }
}

/// Be the JobManager of a job.
#[derive(Debug, Args)]
#[command(
    after_help = "What to start from is the JSON of a directive in SLUICE_DIRECTIVE; without it the job's latest \
                  checkpoint, or nothing where there is no ledger yet.\n\nExamples:\n  sluice jobmanager --manifest \
                  job.yaml --namespace default --name pageviews --uid 1 --generation 1"
)]
pub(crate) struct JobManagerArguments {
    #[command(flatten)]
    job: JobArguments,
    /// Revision of the spec
    #[arg(long, default_value_t = 1)]
    revision: u64,
    /// What to start from, as JSON
    #[arg(long, env = "SLUICE_DIRECTIVE", value_name = "JSON", value_parser = parse_directive)]
    directive: Option<Directive>,
    /// Failures counted so far, as JSON
    #[arg(long, env = "SLUICE_FAILURES", value_name = "JSON", value_parser = parse_failures)]
    failures: Option<FailureCounts>,
    /// Where TaskManagers and the controller connect
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:6123")]
    rpc_bind: SocketAddr,
    /// Port of status, metrics and probes
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    rest_port: u16,
    /// Where the reason of the end is written for Kubernetes
    #[arg(long, value_name = "FILE")]
    termination_message: Option<PathBuf>,
}

/// Be a TaskManager of a job.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sluice taskmanager --manifest job.yaml --namespace default --name pageviews --uid 1 \
                  --generation 1 --id tm-0 --job-manager localhost:6123 --data-advertise localhost:6121"
)]
pub(crate) struct TaskManagerArguments {
    #[command(flatten)]
    job: JobArguments,
    /// This TaskManager's name; never used again within a generation
    #[arg(long)]
    id: String,
    /// Where the JobManager listens
    #[arg(long, value_name = "HOST:PORT")]
    job_manager: String,
    /// Subtasks of each vertex that run here at once
    #[arg(long, default_value_t = 1)]
    slots: u32,
    /// Where other TaskManagers connect
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:6121")]
    data_bind: String,
    /// What other TaskManagers connect to; the bound address when absent
    #[arg(long, value_name = "HOST:PORT")]
    data_advertise: Option<String>,
    /// Memory that the process may use: a number of bytes, or such as 512Mi or 2G; its cgroup's limit when absent
    #[arg(long, value_name = "SIZE", env = "SLUICE_MEMORY", value_parser = parse_size)]
    memory: Option<u64>,
    /// Port of status, metrics and probes
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    rest_port: u16,
    /// Where the reason of the end is written for Kubernetes
    #[arg(long, value_name = "FILE")]
    termination_message: Option<PathBuf>,
}

fn parse_directive(text: &str) -> Result<Directive, String> {
    serde_json::from_str(text).map_err(|error| {
        format!("no directive: {error}; expected JSON such as {{\"id\":\"r1\",\"seen\":0,\"start\":\"continue\"}}")
    })
}

fn parse_failures(text: &str) -> Result<FailureCounts, String> {
    serde_json::from_str(text).map_err(|error| format!("no counts of failures: {error}"))
}

fn plain_start(revision: u64) -> Directive {
    Directive { id: format!("r{revision}"), seen: 0, start: StartFrom::Continue }
}

fn rest_bind(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
}

/// Runs a process until it ends by itself, or is told to end: then it is gone at once, as if it was killed, and the job
/// goes on without it.
async fn until_told(process: impl Future<Output = ExitRecord>) -> Result<u8, CommandError> {
    let mut signals = Signals::new()?;
    tokio::select! {
        record = process => Ok(record.kind.code()),
        () = signals.next() => Ok(TERMINATED),
    }
}

/// Runs until the job ends or another generation takes over.
pub(crate) async fn run_job_manager(arguments: JobManagerArguments, logs: LogSwitch) -> Result<u8, CommandError> {
    let process = sluice_node::run_job_manager(JobManagerArgs {
        job: arguments.job.job(),
        generation: Generation(arguments.job.generation),
        manifest: arguments.job.manifest,
        tls_directory: arguments.job.tls_directory,
        revision: arguments.revision,
        directive: arguments.directive.unwrap_or_else(|| plain_start(arguments.revision)),
        failures: arguments.failures.unwrap_or_default(),
        rpc_bind: arguments.rpc_bind,
        rest_bind: rest_bind(arguments.rest_port),
        termination_message: arguments.termination_message,
        logs,
        steps: Steps::default(),
    });
    until_told(process).await
}

/// Runs until the JobManager says that the job has ended, or is gone for good. Told to end, it leaves in order; told
/// again, or when that takes too long, at once.
pub(crate) async fn run_task_manager(arguments: TaskManagerArguments, logs: LogSwitch) -> Result<u8, CommandError> {
    let (leave, told) = tokio::sync::watch::channel(false);
    let arguments = TaskManagerArgs {
        job: arguments.job.job(),
        generation: Generation(arguments.job.generation),
        manifest: arguments.job.manifest,
        tls_directory: arguments.job.tls_directory,
        id: TaskManagerId(arguments.id),
        job_manager: arguments.job_manager,
        slots: arguments.slots,
        data_bind: arguments.data_bind,
        data_advertise: arguments.data_advertise,
        rest_bind: rest_bind(arguments.rest_port),
        termination_message: arguments.termination_message,
        memory: arguments.memory,
        logs,
        steps: Steps::default(),
    };
    let mut signals = Signals::new()?;
    let process = sluice_node::run_task_manager(arguments, told);
    tokio::pin!(process);
    tokio::select! {
        record = &mut process => return Ok(record.kind.code()),
        () = signals.next() => {}
    }
    // The process holds the other end for as long as it lives.
    let _ = leave.send(true);
    tokio::select! {
        _ = &mut process => {}
        () = signals.next() => {}
        () = tokio::time::sleep(LEAVE_TIMEOUT) => {}
    }
    Ok(TERMINATED)
}
