//! xtask: the project's own commands, run through the aliases in `.cargo/config.toml`.
//!
//! Owns what a developer and CI call: tests in order, images, generated files, figures, the test cluster and the
//! services of tests. It may not hold anything that ships. Each subcommand is a module of the same name; what several
//! need (running a program, where things lie) is in [`process`] and [`workspace`].

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks on its standard output")]

mod generate;
mod process;
mod workspace;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tests, images, generated files and figures of Sluice")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the files that are made from others: protobuf code, CRDs and the chart's copy of them
    Generate(generate::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Generate(arguments) => generate::run(&arguments),
    }
}
