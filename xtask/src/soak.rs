//! `cargo soak`: the simulations with many more seeds than CI runs, or the tests on a cluster or those that kill processes in
//! their long form.
//!
//! A seed that fails prints itself and how to replay it.

use anyhow::Result;

use crate::verify::{suites, targets};
use crate::{process, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many seeds to run, from 0
    #[arg(default_value_t = 100_000)]
    seeds: u64,
    /// Instead of simulations, all tests on a cluster, those that CI runs a part of in whole
    #[arg(long, conflicts_with = "seeds")]
    cluster: bool,
    /// Instead of simulations, the tests with a real broker whose processes are killed, with many more kills
    #[arg(long, conflicts_with_all = ["seeds", "cluster"])]
    kills: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.cluster {
        return suites::soak_on_cluster();
    }
    if arguments.kills {
        return suites::soak_kills();
    }
    let mut command = workspace::cargo("test");
    command.args(["--workspace", "--profile", workspace::PROFILE]);
    for target in targets::find()?.simulation {
        command.args(["--test", &target]);
    }
    command.env("SLUICE_SIM_SEEDS", arguments.seeds.to_string());
    process::run(command.args(["--", "--nocapture", "seeds"]))
}
