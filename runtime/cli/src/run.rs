//! `sluice run`: a job in this process, from the same manifest as on a cluster.
//!
//! Ctrl-C stops the job cleanly, with a last checkpoint; a second one ends the process at once, which the job survives
//! as it survives any kill.

use crate::checkpoint::place::address_of;
use crate::error::CommandError;
use crate::output;
use crate::plan::{job_of, warn};
use crate::progress::Progress;
use crate::signals::Signals;
use crate::size::parse_size;
use clap::Args;
use sluice_crds::StreamJob;
use sluice_node::logs::LogSwitch;
use sluice_node::metrics::TaskMetrics;
use sluice_node::{JobDescription, LocalRun, LocalStart, build_job, read_manifest, run_local};
use sluice_protocol::failure::{ExitKind, ExitRecord, Failure, Fault};
use sluice_protocol::options::RestoreSpec;
use sluice_protocol::status::JobStatus;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Where checkpoints go when neither the manifest nor the command line names a place.
const DEFAULT_CHECKPOINT_DIRECTORY: &str = "sluice-checkpoints";

/// How long a stop may take beyond the timeouts of its checkpoints; without checkpoints, at all.
const STOP_MARGIN: Duration = Duration::from_secs(30);

/// What a shell reports of a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

const EXAMPLES: &str = "\
Examples:
  sluice run job.yaml
  sluice run job.yaml --resume                       go on where the last run of this job ended, however it ended
  sluice run job.yaml -s ./sluice-checkpoints/default/pageviews-6f1c/1/chk-50
  RUST_LOG=info sluice run job.yaml --rest-port 0    show the log; take any free port

While it runs, http://localhost:8081/status and /metrics tell more.";

/// Run a job in this process.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArguments {
    /// A StreamJob manifest
    #[arg(value_name = "MANIFEST")]
    manifest: PathBuf,
    /// Go on from the latest checkpoint of this job's last run here
    #[arg(long, conflicts_with = "from_snapshot")]
    resume: bool,
    /// Restore this checkpoint or savepoint: its directory or its _metadata, a path or an address
    #[arg(short = 's', long, value_name = "PLACE")]
    from_snapshot: Option<String>,
    /// With -s: drop state that no operator of the program takes
    #[arg(short = 'n', long, requires = "from_snapshot")]
    allow_non_restored_state: bool,
    /// With -s: give up what this sink has staged and not committed, since its target is gone for good; may be repeated
    #[arg(long, requires = "from_snapshot", value_name = "UID")]
    abandon_sink: Vec<String>,
    /// Port of status and metrics; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    rest_port: u16,
    /// Port of the control endpoint, for `sluice savepoint`, `stop` and `cancel`; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    control_port: u16,
    /// End when the checkpoint storage, a topic, a broker or a file of the snapshot is still out of reach after so long
    /// and no task has run yet; 0 waits for ever, as a job on a cluster does
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    start_timeout: u64,
    /// Store checkpoints below this directory, whatever the manifest says
    #[arg(long, value_name = "DIRECTORY")]
    checkpoint_dir: Option<PathBuf>,
    /// Memory that the process may use: a number of bytes, or such as 512Mi or 2G; its cgroup's limit or the machine's memory
    /// when absent
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Subtasks per vertex, whatever the manifest says
    #[arg(long, value_name = "N")]
    parallelism: Option<u32>,
}

/// Where a local run stores checkpoints when its manifest names no place.
pub(crate) fn default_checkpoint_storage() -> Result<String, CommandError> {
    address_of(DEFAULT_CHECKPOINT_DIRECTORY)
}

/// Runs the job to its end.
pub(crate) async fn run(arguments: RunArguments, logs: LogSwitch) -> Result<u8, CommandError> {
    let manifest = adapted(read_manifest(&arguments.manifest)?, &arguments)?;
    let job = build_job(&manifest, &job_of(&manifest))?;
    warn(&manifest);
    if manifest.spec.savepoints.is_some() {
        output::complain(
            "note: spec.savepoints is obeyed on a cluster alone, and no savepoint is taken by itself here: take one with \
             `sluice savepoint`",
        );
    }
    let progress = Progress::new(&job.program.graph);
    let rest_bind = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.rest_port));
    let switches = Switches::default();
    let start = if arguments.resume { LocalStart::Resume } else { start_of(&job) };
    let control = control_endpoint(arguments.control_port)?;
    let mut run = local_run(job, start, Some(rest_bind), &switches, progress.painter());
    run.control = Some(control);
    run.memory = arguments.memory;
    run.logs = logs;
    run.start_timeout = (arguments.start_timeout > 0).then(|| Duration::from_secs(arguments.start_timeout));
    let end = drive(run, &switches).await?;
    progress.close();
    conclude(&end, &format!("sluice run {} --resume", arguments.manifest.display()));
    Ok(end.code())
}

/// Listens for commands, and says where.
fn control_endpoint(port: u16) -> Result<TcpListener, CommandError> {
    let failed = |source| CommandError::Io { what: format!("--control-port {port}: listening"), source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    output::complain(&format!("control endpoint: {address} (sluice savepoint --jobmanager {address})"));
    Ok(listener)
}

/// The manifest with what the command line says otherwise.
fn adapted(mut manifest: StreamJob, arguments: &RunArguments) -> Result<StreamJob, CommandError> {
    let spec = &mut manifest.spec;
    if let Some(parallelism) = arguments.parallelism {
        spec.parallelism = parallelism;
    }
    if let Some(place) = &arguments.from_snapshot {
        let allow_non_restored_state = arguments.allow_non_restored_state;
        let abandon_sinks = arguments.abandon_sink.iter().map(|uid| uid.as_str().into()).collect();
        let from = address_of(place)?;
        spec.restore = Some(RestoreSpec { from, allow_non_restored_state, abandon_sinks, nonce: 0 });
    }
    match (&mut spec.checkpointing, &arguments.checkpoint_dir) {
        (_, None) => {}
        (Some(checkpointing), Some(directory)) => checkpointing.storage = address_of(&directory.to_string_lossy())?,
        (None, Some(_)) => {
            return Err(CommandError::Usage(
                "--checkpoint-dir: the manifest has no spec.checkpointing, so no checkpoints are taken; add `checkpointing: \
                 {interval: 10s}` to its spec"
                    .to_owned(),
            ));
        }
    }
    Ok(manifest)
}

/// What a run that does not resume starts from.
fn start_of(job: &JobDescription) -> LocalStart {
    match &job.restore {
        None => LocalStart::Empty,
        Some(RestoreSpec { from, allow_non_restored_state, abandon_sinks, .. }) => LocalStart::Snapshot {
            from: from.clone(),
            allow_non_restored_state: *allow_non_restored_state,
            abandon_sinks: abandon_sinks.clone(),
        },
    }
}

/// What shows the status: given each one, and the counters of the tasks.
pub(crate) type Painter = Box<dyn FnMut(&JobStatus, &[TaskMetrics]) + Send>;

/// A run in this process.
pub(crate) fn local_run(
    job: JobDescription,
    start: LocalStart,
    rest_bind: Option<SocketAddr>,
    switches: &Switches,
    on_status: Painter,
) -> LocalRun {
    LocalRun {
        namespace: job.job.namespace,
        name: job.job.name,
        program: job.program,
        options: job.options,
        start,
        start_timeout: None,
        checkpoint_directory: PathBuf::from(DEFAULT_CHECKPOINT_DIRECTORY),
        rest_bind,
        control: None,
        on_status,
        stop: switches.stop.clone(),
        abandon: switches.abandon.clone(),
        memory: None,
        logs: LogSwitch::default(),
    }
}

/// How a run is ended from outside.
#[derive(Default)]
pub(crate) struct Switches {
    stop: CancellationToken,
    abandon: CancellationToken,
}

/// How a local run ended.
pub(crate) enum End {
    /// The job ended.
    Job(ExitRecord),
    /// A second Ctrl-C ended the process.
    Abandoned,
    /// The stop took longer than this.
    Overdue(Duration),
}

impl End {
    /// The process's exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Job(record) => record.kind.code(),
            Self::Abandoned => INTERRUPTED,
            Self::Overdue(_) => ExitKind::Internal.code(),
        }
    }
}

/// Waits for the job's end, passing on Ctrl-C and SIGTERM.
pub(crate) async fn drive(run: LocalRun, switches: &Switches) -> Result<End, CommandError> {
    let mut signals = Signals::new()?;
    let patience = stop_timeout(&run);
    let mut ended = tokio::spawn(run_local(run));
    let joined = |result: Result<ExitRecord, tokio::task::JoinError>| {
        result.map(End::Job).map_err(|error| Failure::restart("Panicked", Fault::Internal, error.to_string()).into())
    };
    tokio::select! {
        result = &mut ended => return joined(result),
        () = signals.next() => {}
    }
    output::complain("\nstopping with a last checkpoint; Ctrl-C again ends at once");
    switches.stop.cancel();
    let end = tokio::select! {
        result = &mut ended => return joined(result),
        () = signals.next() => End::Abandoned,
        () = tokio::time::sleep(patience) => End::Overdue(patience),
    };
    switches.abandon.cancel();
    // What the job still wants to say is not waited for: the person has asked twice.
    let _ = tokio::time::timeout(Duration::from_millis(100), &mut ended).await;
    Ok(end)
}

/// How long a stop may take: a store that takes nothing, such as a full disk, would hold it up for ever.
fn stop_timeout(run: &LocalRun) -> Duration {
    let checkpoint = run.options.checkpointing.as_ref().map(|checkpointing| checkpointing.timeout);
    // Its own checkpoint may have to wait for one that is under way.
    checkpoint.map_or(Duration::ZERO, |timeout| Duration::from_millis(timeout.0) * 2) + STOP_MARGIN
}

/// Says how it ended; `resume` is the command that goes on.
pub(crate) fn conclude(end: &End, resume: &str) {
    match end {
        End::Job(record) => match record.kind {
            ExitKind::Finished => output::complain("finished: all input was read and all results are out"),
            ExitKind::Stopped => output::complain(&format!("stopped: {}\nresume with: {resume}", record.message)),
            _ => output::complain(&format!("error: {}: {}", record.reason, record.message)),
        },
        End::Abandoned => output::complain(&format!("ended at once; resume with: {resume}")),
        End::Overdue(timeout) => output::complain(&format!(
            "error: the job did not stop within {} s; its last completed checkpoint stands\nresume with: {resume}",
            timeout.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{RunArguments, adapted};
    use clap::{Args, Command, FromArgMatches};
    use sluice_crds::{StreamJob, parse_manifest};

    fn arguments(line: &str) -> RunArguments {
        let command = RunArguments::augment_args(Command::new("run"));
        let matches = command.try_get_matches_from(format!("run {line}").split_whitespace()).unwrap();
        RunArguments::from_arg_matches(&matches).unwrap()
    }

    fn manifest(checkpointing: &str) -> StreamJob {
        let head =
            "apiVersion: sluice.dev/v1alpha1\nkind: StreamJob\nmetadata: {name: pv}\nspec:\n  program: {sql: x}\n";
        parse_manifest(&format!("{head}  parallelism: 3\n{checkpointing}")).unwrap()
    }

    #[test]
    fn the_command_line_wins_over_the_manifest() {
        let line = "job.yaml --parallelism 2 --checkpoint-dir /tmp/here -s s3://b/chk-5 -n";
        let adapted =
            adapted(manifest("  checkpointing: {interval: 1s, storage: 's3://b/c'}\n"), &arguments(line)).unwrap();
        assert_eq!(adapted.spec.parallelism, 2);
        assert_eq!(adapted.spec.checkpointing.unwrap().storage, "file:///tmp/here");
        let restore = adapted.spec.restore.unwrap();
        assert_eq!((restore.from.as_str(), restore.allow_non_restored_state), ("s3://b/chk-5", true));
    }

    #[test]
    fn a_directory_without_checkpoints_is_refused() {
        let error = adapted(manifest(""), &arguments("job.yaml --checkpoint-dir /tmp/here")).unwrap_err();
        assert!(error.to_string().contains("--checkpoint-dir"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
