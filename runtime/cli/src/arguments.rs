//! The command line as a whole, and the step from a command to its exit code.

use crate::checkpoint::CheckpointCommand;
use crate::cluster::list::ListArguments;
use crate::cluster::logs::LogsArguments;
use crate::control::{CancelArguments, LogLevelArguments, SavepointArguments, StopArguments};
use crate::demo::DemoArguments;
use crate::error::CommandError;
use crate::logging::{self, LogFormat};
use crate::plan::{PlanArguments, ValidateArguments};
use crate::processes::{JobManagerArguments, TaskManagerArguments};
use crate::run::RunArguments;
use crate::{checkpoint, cluster, control, demo, output, plan, processes, run};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use sluice_node::logs::LogSwitch;
use std::future::Future;
use std::process::ExitCode;

/// Streaming jobs with exactly-once state: run them here, look into their checkpoints.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, propagate_version = true, max_term_width = 110)]
pub(crate) struct Arguments {
    /// How log lines are written to standard error. What is logged is chosen by RUST_LOG, such as
    /// RUST_LOG=info or RUST_LOG=sluice_node=debug.
    #[arg(long, global = true, value_name = "FORMAT", env = "SLUICE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a job in this process
    Run(RunArguments),
    /// Run the page-view job on generated input for about 20 seconds
    Demo(DemoArguments),
    /// Check a manifest and its SQL without running anything
    Validate(ValidateArguments),
    /// Show what a job's SQL becomes: vertices, operators and their ids, edges
    Plan(PlanArguments),
    /// List checkpoints and look into them
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Take a savepoint of a running job, or dispose of one
    Savepoint(SavepointArguments),
    /// Stop a running job with a savepoint
    Stop(StopArguments),
    /// Cancel a running job
    Cancel(CancelArguments),
    /// Change what the processes of a running job log
    LogLevel(LogLevelArguments),
    /// List jobs
    List(ListArguments),
    /// Show the logs of a job's pods
    Logs(LogsArguments),
    /// Print what makes a shell complete commands and options
    Completion(CompletionArguments),
    /// Be the JobManager of a job (started by the controller)
    #[command(name = "jobmanager")]
    JobManager(JobManagerArguments),
    /// Be a TaskManager of a job (started by the controller)
    #[command(name = "taskmanager")]
    TaskManager(TaskManagerArguments),
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  source <(sluice completion bash)\n  sluice completion zsh > \"${fpath[1]}/_sluice\"\n  sluice \
                  completion fish > ~/.config/fish/completions/sluice.fish"
)]
struct CompletionArguments {
    /// For which
    #[arg(value_name = "SHELL")]
    shell: clap_complete::Shell,
}

/// Does what the command line says.
pub(crate) fn execute(arguments: Arguments) -> ExitCode {
    let quiet = !matches!(arguments.command, Command::JobManager(_) | Command::TaskManager(_));
    let logs = logging::start(arguments.log_format, quiet);
    match dispatch(arguments.command, logs) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::complain(&format!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(command: Command, logs: LogSwitch) -> Result<u8, CommandError> {
    match command {
        Command::Run(arguments) => block_on(run::run(arguments, logs)),
        Command::Demo(arguments) => block_on(demo::run(arguments)),
        Command::Validate(arguments) => plan::validate(&arguments),
        Command::Plan(arguments) => block_on(async move { plan::plan(&arguments).await }),
        Command::Checkpoint(command) => block_on(checkpoint::run(command)),
        Command::Savepoint(arguments) => block_on(control::savepoint(arguments)),
        Command::Stop(arguments) => block_on(control::stop(arguments)),
        Command::LogLevel(arguments) => block_on(control::log_level(arguments)),
        Command::Cancel(arguments) => block_on(control::cancel(arguments)),
        Command::List(arguments) => block_on(cluster::list::list(arguments)),
        Command::Logs(arguments) => block_on(cluster::logs::logs(arguments)),
        Command::Completion(arguments) => {
            let mut script = Vec::new();
            clap_complete::generate(arguments.shell, &mut Arguments::command(), "sluice", &mut script);
            output::print(&String::from_utf8_lossy(&script));
            Ok(0)
        }
        Command::JobManager(arguments) => block_on(processes::run_job_manager(arguments, logs)),
        Command::TaskManager(arguments) => block_on(processes::run_task_manager(arguments, logs)),
    }
}

/// Runs a command on threads for control and I/O; threads that compute are made where tasks run (design §3).
fn block_on(command: impl Future<Output = Result<u8, CommandError>>) -> Result<u8, CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("control").build();
    let runtime = runtime.map_err(|source| CommandError::Io { what: "starting threads".to_owned(), source })?;
    let result = runtime.block_on(command);
    // Blocking work that hangs, in a file system for one, must not keep a process that has said its last word.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        let mut open = vec![Arguments::command()];
        while let Some(command) = open.pop() {
            let children: Vec<_> =
                command.get_subcommands().filter(|child| child.get_name() != "help").cloned().collect();
            if children.is_empty() {
                let help = command.clone().render_long_help().to_string();
                assert!(help.contains("Example"), "`{}` has no examples:\n{help}", command.get_name());
            }
            open.extend(children);
        }
    }

    #[test]
    fn processes_take_the_flags_that_the_controller_gives() {
        let job_manager = "sluice jobmanager --manifest /etc/sluice/job.yaml --namespace ns --name pv --uid u --generation 3 \
                           --revision 2 --rpc-bind 0.0.0.0:6123 --rest-port 8081 --termination-message /dev/termination-log \
                           --tls-directory /etc/sluice-tls";
        let task_manager = "sluice taskmanager --manifest /etc/sluice/job.yaml --namespace ns --name pv --uid u \
                            --generation 3 --id pv-3-tm-0 --job-manager pv-jm:6123 --slots 2 --data-bind 0.0.0.0:6121 \
                            --data-advertise 10.0.0.7:6121 --rest-port 8081 --tls-directory /etc/sluice-tls";
        for line in [job_manager, task_manager] {
            Arguments::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
