//! The binary `sluice-controller`: arguments in, exit code out.

use clap::Parser;
use sluice_controller::{Arguments, run};

/// Two threads, however many cores a node has: passes wait for the API server, and each thread's heap is memory.
#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    arguments.start_logging();
    run(arguments).await
}
