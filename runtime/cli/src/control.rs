//! Commands to a running job: `sluice savepoint`, `stop`, `cancel` and `checkpoint trigger`.
//!
//! They talk to the control endpoint of a JobManager, which is named by its address or found by its job on a cluster
//! ([`endpoint`]), and wait for the answer in its status, which outlives the connection and the JobManager: an
//! interrupted wait is taken up again by the same request id. Savepoints and checkpoints have a deadline; past that of
//! `cancel` and `stop --without-savepoint` only the wait is over: the job goes on ending.

pub(crate) mod endpoint;

use crate::error::CommandError;
use crate::output;
use clap::{Args, Subcommand};
use endpoint::{JobArguments, Reached};
use futures::StreamExt as _;
use sluice_node::edge::{now, random_id};
use sluice_protocol::failure::Failure;
use sluice_protocol::job_master::{Command, SavepointRequest};
use sluice_protocol::ledger::SavepointKind;
use sluice_protocol::status::{JobState, JobStatus, RequestState};
use sluice_protocol::{JobId, TimeSpan};
use sluice_rpc::control::ControlError;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long a lost JobManager is looked for beyond the time that the request may take.
const GRACE: Duration = Duration::from_secs(30);

/// Between two tries to reach a JobManager that does not answer.
const PAUSE: Duration = Duration::from_millis(500);

const SAVEPOINT_EXAMPLES: &str = "\
Examples:
  sluice savepoint                                      of the job at localhost:6123, to checkpointing.savepointStorage
  sluice savepoint -n streams pageviews                 of a job on the kubeconfig's cluster
  sluice savepoint --to s3://archive/savepoints --timeout 30m
  sluice savepoint --request-id nightly-2026-11-29      asked again, it is not taken twice
  sluice savepoint dispose s3://archive/savepoints/default/pageviews-6f1c/3-50

`sluice run` prints the address of its control endpoint for --jobmanager.";

const STOP_EXAMPLES: &str = "\
Examples:
  sluice stop                                  with a savepoint; nothing fires, the job can be resumed from it
  sluice stop -n streams pageviews             a job on the kubeconfig's cluster, which then stays stopped only if its
                                               StreamJob says so: state: Suspended
  sluice stop --drain                          ends sources and operators and fires their timers first; not to be resumed
  sluice stop --savepoint-to file:///backup
  sluice stop --without-savepoint              with a last checkpoint only";

const LOG_LEVEL_EXAMPLES: &str = "\
Examples:
  sluice log-level debug
  sluice log-level debug -n streams pageviews
  sluice log-level info,sluice_node=trace,librdkafka=debug
  sluice log-level info,aws_config=error                what processes begin with

It lasts until a process ends: a new JobManager or TaskManager begins with RUST_LOG; a TaskManager that joins is told.";

/// How a request is named and how long it may take.
#[derive(Debug, Args)]
pub(crate) struct RequestArguments {
    #[command(flatten)]
    job: JobArguments,
    /// Names the request: asked again under this id, it is not carried out twice, and its answer is shown
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// How long it may take; past that the job runs on without it (without a savepoint: it goes on ending)
    #[arg(long, value_name = "SPAN", default_value = "10m")]
    timeout: TimeSpan,
}

/// Arguments of `savepoint`.
#[derive(Debug, Args)]
#[command(after_help = SAVEPOINT_EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct SavepointArguments {
    #[command(subcommand)]
    command: Option<SavepointCommand>,
    /// Where it goes: s3://… or file:///…
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<String>,
    #[command(flatten)]
    request: RequestArguments,
}

/// What else can be done with savepoints.
#[derive(Debug, Subcommand)]
pub(crate) enum SavepointCommand {
    /// Remove a savepoint of the running job, unless the job depends on it
    #[command(after_help = "Examples:\n  sluice savepoint dispose s3://archive/savepoints/default/pageviews-6f1c/3-50")]
    Dispose(DisposeArguments),
}

/// Arguments of `savepoint dispose`.
#[derive(Debug, Args)]
pub(crate) struct DisposeArguments {
    /// The savepoint's directory or its _metadata
    #[arg(value_name = "PATH")]
    path: String,
    #[command(flatten)]
    job: JobArguments,
}

/// Arguments of `stop`.
#[derive(Debug, Args)]
#[command(after_help = STOP_EXAMPLES)]
pub(crate) struct StopArguments {
    /// End sources and operators first, firing what timers there are: for a job that will not be resumed
    #[arg(long, conflicts_with = "without_savepoint")]
    drain: bool,
    /// Where the savepoint goes: s3://… or file:///…
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "without_savepoint")]
    savepoint_to: Option<String>,
    /// Take a last checkpoint only
    #[arg(long)]
    without_savepoint: bool,
    #[command(flatten)]
    request: RequestArguments,
}

/// Arguments of `cancel`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sluice cancel\n  sluice cancel -n streams pageviews --timeout 5m\n  sluice cancel --jobmanager localhost:41233"
)]
pub(crate) struct CancelArguments {
    #[command(flatten)]
    job: JobArguments,
    /// How long to wait for the end; past that the job goes on ending by itself
    #[arg(long, value_name = "SPAN", default_value = "2m")]
    timeout: TimeSpan,
}

/// Arguments of `log-level`.
#[derive(Debug, Args)]
#[command(after_help = LOG_LEVEL_EXAMPLES)]
pub(crate) struct LogLevelArguments {
    /// What is logged from now on, as in RUST_LOG: error, warn, info, debug or trace, alone or for a part
    #[arg(value_name = "FILTER")]
    filter: String,
    #[command(flatten)]
    job: JobArguments,
}

/// Arguments of `checkpoint trigger`.
#[derive(Debug, Args)]
pub(crate) struct TriggerArguments {
    #[command(flatten)]
    request: RequestArguments,
}

/// Takes a savepoint, or disposes of one.
pub(crate) async fn savepoint(arguments: SavepointArguments) -> Result<u8, CommandError> {
    if let Some(SavepointCommand::Dispose(DisposeArguments { path, job })) = arguments.command {
        let id = new_id();
        let command = Command::Dispose { id: id.clone(), path };
        let path = Asked::new(&job, id, TimeSpan::from_secs(60)).await?.carry_out(&command).await?;
        output::complain(&format!("disposed of {path}"));
        return Ok(0);
    }
    let path = take_savepoint(arguments.request, SavepointKind::Savepoint, arguments.to).await?;
    output::print(&format!("{path}\n"));
    Ok(0)
}

/// Stops a job.
pub(crate) async fn stop(arguments: StopArguments) -> Result<u8, CommandError> {
    if arguments.without_savepoint {
        return end(&arguments.request.job, &Command::Stop, arguments.request.timeout).await;
    }
    let kind = if arguments.drain { SavepointKind::Drain } else { SavepointKind::Stop };
    let path = take_savepoint(arguments.request, kind, arguments.savepoint_to).await?;
    output::complain("stopped with the savepoint");
    output::print(&format!("{path}\n"));
    Ok(0)
}

/// Cancels a job.
pub(crate) async fn cancel(arguments: CancelArguments) -> Result<u8, CommandError> {
    end(&arguments.job, &Command::Cancel, arguments.timeout).await
}

/// Changes what the JobManager and all its TaskManagers log.
pub(crate) async fn log_level(arguments: LogLevelArguments) -> Result<u8, CommandError> {
    let reached = arguments.job.reach().await?;
    let (client, job, generation) = reached.connect().await?;
    client.set_log_level(generation, &arguments.filter).await.map_err(|error| reached.explained(error))?;
    output::complain(&format!("the processes of job {job} log '{}' now", arguments.filter));
    Ok(0)
}

/// Takes a checkpoint now.
pub(crate) async fn trigger(arguments: TriggerArguments) -> Result<u8, CommandError> {
    let RequestArguments { job, request_id, timeout } = arguments.request;
    let id = request_id.unwrap_or_else(new_id);
    let command = Command::TriggerCheckpoint { id: id.clone() };
    let path = Asked::new(&job, id, timeout).await?.carry_out(&command).await?;
    output::print(&format!("{path}\n"));
    Ok(0)
}

async fn take_savepoint(
    request: RequestArguments,
    kind: SavepointKind,
    directory: Option<String>,
) -> Result<String, CommandError> {
    let RequestArguments { job, request_id, timeout } = request;
    let id = request_id.unwrap_or_else(new_id);
    let directory = directory.map(|place| crate::checkpoint::place::address_of(&place)).transpose()?;
    let command = Command::Savepoint(SavepointRequest { id: id.clone(), kind, directory, timeout });
    Asked::new(&job, id, timeout).await?.carry_out(&command).await
}

/// Ids that begin with the time sort by age, so that one that was forgotten is known to be old.
fn new_id() -> String {
    format!("{}-{}", now().0, random_id().chars().take(8).collect::<String>())
}

/// A request that is waited for.
struct Asked {
    reached: Reached,
    id: String,
    deadline: Instant,
    job: Option<JobId>,
}

impl Asked {
    async fn new(job: &JobArguments, id: String, timeout: TimeSpan) -> Result<Self, CommandError> {
        let deadline = Instant::now() + timeout.as_duration() + GRACE;
        let reached = timeout_at(deadline, job.reach()).await;
        let late = |_| CommandError::Late(format!("the JobManager was not found within {timeout}; nothing was asked"));
        Ok(Self { reached: reached.map_err(late)??, id, deadline, job: None })
    }

    /// Asks and waits, also across JobManagers of the same job. Returns where the result lies.
    async fn carry_out(mut self, command: &Command) -> Result<String, CommandError> {
        let mut lost = "the JobManager has not answered in time".to_owned();
        loop {
            match timeout_at(self.deadline, self.ask(command)).await {
                Ok(Err(error)) if self.job.is_some() && is_between_job_managers(&error) => lost = error.to_string(),
                Ok(answer) => return answer,
                Err(_) => break,
            }
            if Instant::now() > self.deadline {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(CommandError::Usage(format!(
            "{lost}; request '{}' may have been carried out: ask again with --request-id {} to learn of it",
            self.id, self.id
        )))
    }

    async fn ask(&mut self, command: &Command) -> Result<String, CommandError> {
        let (client, job, generation) = self.reached.connect().await?;
        if self.job.as_ref().is_some_and(|asked| *asked != job) {
            return Err(self.reached.is_anothers(&job).into());
        }
        self.job = Some(job.clone());
        let explained = |error| self.reached.explained(error);
        let mut statuses = client.watch(&job, generation).await.map_err(explained)?;
        client.execute(generation, &self.id, command).await.map_err(explained)?;
        while let Some(status) = statuses.next().await {
            if let Some(answer) = self.answer_in(&status.map_err(explained)?) {
                return answer;
            }
        }
        Err(self.reached.ended())
    }

    fn answer_in(&self, status: &JobStatus) -> Option<Result<String, CommandError>> {
        let request = status.requests.iter().find(|request| request.id == self.id)?;
        match request.state {
            RequestState::Pending => None,
            RequestState::Completed => Some(Ok(request.path.clone().unwrap_or_default())),
            RequestState::Failed => {
                let failure = request.failure.clone();
                let unknown = || Failure::user("RequestFailed", "the JobManager gave no reason");
                Some(Err(CommandError::Job(failure.unwrap_or_else(unknown))))
            }
        }
    }
}

/// A JobManager that is lost is followed by another one, which is asked again.
const fn is_between_job_managers(error: &CommandError) -> bool {
    match error {
        CommandError::Control(error) => matches!(error, ControlError::Unreachable { .. }),
        CommandError::Cluster(error) => error.is_between_job_managers(),
        _ => false,
    }
}

/// Ends a job and waits until it has.
async fn end(job: &JobArguments, command: &Command, timeout: TimeSpan) -> Result<u8, CommandError> {
    let deadline = Instant::now() + timeout.as_duration();
    let found = timeout_at(deadline, async {
        let reached = job.reach().await?;
        let connection = reached.connect().await?;
        Ok::<_, CommandError>((reached, connection))
    });
    let late = |_| CommandError::Late(format!("the JobManager was not found within {timeout}; nothing was asked"));
    let (reached, (client, job, generation)) = found.await.map_err(late)??;
    let mut last = JobState::Running;
    let ended = timeout_at(deadline, async {
        let explained = |error| reached.explained(error);
        let mut statuses = client.watch(&job, generation).await.map_err(explained)?;
        client.execute(generation, &new_id(), command).await.map_err(explained)?;
        last = JobState::Stopping;
        while let Some(status) = statuses.next().await {
            match status {
                Ok(status) => last = status.state,
                Err(_) if last.is_terminal() => break,
                Err(error) => return Err(explained(error)),
            }
            if last.is_terminal() {
                break;
            }
        }
        Ok::<(), CommandError>(())
    });
    match ended.await {
        Ok(ended) => ended?,
        Err(_) => return Err(not_ended(&job, last, timeout)),
    }
    output::complain(&format!("job {job} is {}", format!("{last:?}").to_lowercase()));
    Ok(u8::from(!last.is_terminal()))
}

/// A job that was told to end and has not yet.
fn not_ended(job: &JobId, last: JobState, timeout: TimeSpan) -> CommandError {
    let told = match last {
        JobState::Running => "may have been told to end",
        _ => "was told to end, and goes on ending",
    };
    CommandError::Late(format!(
        "job {job} is not at its end after {timeout}: it is {} (a job waits for its last checkpoint and for the commits of its \
         sinks). It {told}: see its status on port 8081 for what it waits for, or wait longer with --timeout; `sluice cancel` \
         takes no last checkpoint",
        format!("{last:?}").to_lowercase()
    ))
}
