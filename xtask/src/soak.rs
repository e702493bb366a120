//! `cargo soak`: the simulation with many more seeds than CI runs, starting from one that the clock gives.
//!
//! A seed that fails prints itself; the simulation's own header says how to replay it.

use std::time::Duration;

use anyhow::Result;

use crate::{process, verify, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many seeds to run
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
    /// The first seed; by default one that differs from run to run
    #[arg(long)]
    first: Option<u64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let first = arguments.first.unwrap_or_else(unused_seed);
    println!("simulating seeds {first} to {}", first.saturating_add(arguments.seeds));
    let mut command = workspace::cargo("test");
    command.args(["--workspace", "--profile", workspace::PROFILE]);
    for target in verify::targets::find()?.simulation {
        command.args(["--test", &target]);
    }
    command.env("SLUICE_SIM_SEEDS", arguments.seeds.to_string()).env("SLUICE_SIM_FIRST", first.to_string());
    process::run(command.args(["--", "--nocapture"]))
}

/// Millions since 1970 in milliseconds: runs that start apart don't overlap for long.
#[expect(clippy::disallowed_methods, reason = "a tool at the edge: only the choice of seeds depends on the clock")]
fn unused_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    now.as_secs() * 1_000
}
