//! `cargo soak`: the simulation with many more seeds than CI runs.
//!
//! A seed that fails prints itself and how to replay it.

use anyhow::Result;

use crate::verify::targets;
use crate::{process, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many seeds to run, from 0
    #[arg(default_value_t = 100_000)]
    seeds: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut command = workspace::cargo("test");
    command.args(["--workspace", "--profile", workspace::PROFILE]);
    for target in targets::find()?.simulation {
        command.args(["--test", &target]);
    }
    command.env("SLUICE_SIM_SEEDS", arguments.seeds.to_string());
    process::run(command.args(["--", "--nocapture", "seeds"]))
}
