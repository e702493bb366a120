//! `cargo figures [NAME…]`: every figure of the project, a line each: `name value unit`, with what it was measured
//! on before them. Not timed tests: nothing here passes or fails.
//!
//! "Per core" means per CPU second (user and system) of the job's processes, so that a shared or slow machine
//! changes little. Ratios are taken within one run, the two sides in turn.

#![expect(clippy::print_stdout, clippy::print_stderr, clippy::expect_used, reason = "a program that prints figures")]

mod backpressure;
mod data_plane;
mod filter_project;
mod groupby;
mod join;
mod kafka_json;
mod parquet_sink;
mod recovery;
mod start;
mod state;

use anyhow::Result;
use std::process::ExitCode;

/// A figure's name, and what prints it.
type Figure = (&'static [&'static str], fn() -> Result<()>);

const FIGURES: &[Figure] = &[
    (
        &[
            "groupby_rows_per_core",
            "groupby_checkpoint_ratio",
            "aligned_checkpoint_ratio",
            "unaligned_checkpoint_ratio",
        ],
        groupby::print,
    ),
    (
        &["backpressure_unaligned_seconds", "backpressure_aligned_seconds", "backpressure_timeout_seconds"],
        backpressure::print,
    ),
    (&["filter_project_rows_per_core"], filter_project::print),
    (&["join_rows_per_core"], join::print),
    (&["kafka_json_rows_per_core"], kafka_json::print),
    (&["parquet_sink_mb_per_core"], parquet_sink::print),
    (&["data_plane_tls_ratio"], data_plane::print),
    (&["local_start_seconds"], start::print),
    (&["kill_to_output_seconds", "taskmanager_idle_rss_mb"], recovery::print),
    (&["checkpoint_pause_p99_ms", "incremental_bytes_ratio", "incremental_time_ratio"], state::print_checkpoints),
    (&["restore_mb_per_core"], state::print_restore),
    (&["disk_state_rss_mb"], state::print_disk),
];

/// Fails when a wanted figure could not be measured.
fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut code = ExitCode::SUCCESS;
    for unknown in wanted.iter().filter(|name| !FIGURES.iter().any(|(names, _)| names.contains(&name.as_str()))) {
        eprintln!("no figure '{unknown}' here; there are: {}", names().join(", "));
        code = ExitCode::FAILURE;
    }
    println!("# {}", sluice_tests::harness::measure::machine());
    for (names, print) in FIGURES {
        if (wanted.is_empty() || names.iter().any(|name| wanted.iter().any(|other| other == name)))
            && let Err(error) = print()
        {
            eprintln!("{}: {error:#}", names.join(", "));
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn names() -> Vec<&'static str> {
    FIGURES.iter().flat_map(|(names, _)| names.iter().copied()).collect()
}
