//! xtask: the project's own commands, run through the aliases in `.cargo/config.toml`.
//!
//! Owns what a developer and CI call: tests in order, images, generated files, figures, the test cluster and the
//! services of tests. It may not hold anything that ships. Each subcommand is a module of its name; what several need
//! is in [`process`] (running a program), [`workspace`] (where things lie) and [`services`] (brokers, stores, clusters).

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks on its standard output")]

mod figures;
mod generate;
mod image;
mod process;
mod services;
mod soak;
mod verify;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tests, images, generated files and figures of Sluice")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests and checks, in order of cost; the first failure ends the run
    Verify(verify::Arguments),
    /// Print the project's figures, each as `name value unit`
    Figures(figures::Arguments),
    /// Run the simulation for long, with seeds that were not tried before
    Soak(soak::Arguments),
    /// Build the images without Docker, as archives
    Image(image::Arguments),
    /// Write the files that are made from others: protobuf code, CRDs, the charts' copies, schema and README
    Generate(generate::Arguments),
    /// Bring a real single-node Kubernetes up or down, without Docker
    Testbed {
        /// What to do with it
        direction: Direction,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Direction {
    Up,
    Down,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // All causes and no backtrace: what went wrong is in the programs that were called.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Figures(arguments) => figures::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Testbed { direction: Direction::Up } => process::run(workspace::script("e2e/testbed/up.sh")),
        Command::Testbed { direction: Direction::Down } => process::run(workspace::script("e2e/testbed/down.sh")),
    }
}
