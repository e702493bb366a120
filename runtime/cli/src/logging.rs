//! Log lines on standard error: coloured on a terminal, plain in a pipe, JSON on request.

use clap::ValueEnum;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The forms of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// Begins to log. `quiet` commands, those a person waits for, log warnings only unless `RUST_LOG` says otherwise.
pub(crate) fn start(format: LogFormat, quiet: bool) {
    // What fails with the S3 client's credentials is told once by the error itself, in a sentence; what fails in a task,
    // by the command that runs it.
    let default =
        if quiet { "warn,aws_config=error,sluice_node::task_manager::worker=error" } else { "info,aws_config=error" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start, in a test, keeps the first.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
