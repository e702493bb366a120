//! `sluice`: runs jobs on one machine, is the process in a job's pods, and looks into checkpoints.
//!
//! It owns words and terminals: arguments, messages, progress. What a command does is done elsewhere: jobs run in
//! sluice-node, manifests are read by sluice-crds, SQL is planned by sluice-sql. Results go to standard output,
//! everything else to standard error; exit codes are those of
//! [`ExitKind`](sluice_protocol::failure::ExitKind::code).
//!
//! The map: [`arguments`] is the whole command line; [`run`], [`demo`], [`processes`], [`plan`], [`checkpoint`],
//! [`control`] and [`cluster`] are its commands; [`progress`] is the line on a terminal; [`output`] and [`logging`]
//! write, [`signals`] listens, [`size`] reads sizes; [`error`] is what went wrong.

mod arguments;
mod checkpoint;
mod cluster;
mod control;
mod demo;
mod error;
mod logging;
mod narrator;
mod output;
mod plan;
mod processes;
mod progress;
mod run;
mod signals;
mod size;

use std::process::ExitCode;

fn main() -> ExitCode {
    arguments::execute(clap::Parser::parse())
}
