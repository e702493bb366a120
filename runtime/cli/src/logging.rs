//! Log lines on standard error: coloured on a terminal, plain in a pipe, JSON on request. What is logged can be changed
//! while the process runs.

use clap::ValueEnum;
use sluice_node::logs::LogSwitch;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

/// The forms of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// Begins to log. `quiet` commands, those a person waits for, log warnings only unless `RUST_LOG` says otherwise.
pub(crate) fn start(format: LogFormat, quiet: bool) -> LogSwitch {
    // What fails with the S3 client's credentials is told once by the error itself, in a sentence; what fails in a task,
    // by the command that runs it.
    let default =
        if quiet { "warn,aws_config=error,sluice_node::task_manager::worker=error" } else { "info,aws_config=error" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start, in a test, keeps the first.
    match format {
        LogFormat::Text => {
            let builder = builder.with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
            let switch = switch(builder.reload_handle());
            let _ = builder.try_init();
            switch
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let switch = switch(builder.reload_handle());
            let _ = builder.try_init();
            switch
        }
    }
}

fn switch<S: 'static>(handle: Handle<EnvFilter, S>) -> LogSwitch {
    LogSwitch::new(move |filter| {
        let parsed = EnvFilter::try_new(filter).map_err(|error| {
            format!("'{filter}' is no log filter: {error}; expected such as info or info,sluice_node=debug")
        })?;
        handle.reload(parsed).map_err(|error| format!("what is logged cannot be changed: {error}"))
    })
}
