//! The binary `sluice-controller`: arguments in, exit code out.

use clap::Parser;
use sluice_controller::{Arguments, run};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    arguments.start_logging();
    run(arguments).await
}
