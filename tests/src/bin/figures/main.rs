//! `cargo figures [NAME…]`: every figure of the project, a line each: `name value unit`, with what it was measured
//! on before them. Not timed tests: nothing here passes or fails.
//!
//! "Per core" means per CPU second (user and system) of the job's processes, so that a shared or slow machine
//! changes little. Ratios are taken within one run, the two sides in turn.

#![expect(clippy::print_stdout, clippy::expect_used, reason = "a program that prints figures")]

mod backpressure;
mod data_plane;
mod exactly_once;
mod filter_project;
mod groupby;
mod join;
mod kafka_json;
mod parquet_sink;
mod recovery;
mod start;
mod state;
mod windows;

use sluice_tests::harness::measure::{Figure, print_wanted};
use std::process::ExitCode;

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
    (&["hop_rows_per_core", "hop_tumble_ratio"], windows::print_slices),
    (&["session_rows_per_core"], windows::print_sessions),
    (&["kafka_json_rows_per_core"], kafka_json::print),
    (&["exactly_once_ratio"], exactly_once::print_ratio),
    (&["visible_after_interval_p99_ms", "kill_to_committed_seconds"], exactly_once::print_visible),
    (&["parquet_sink_mb_per_core"], parquet_sink::print),
    (&["data_plane_tls_ratio"], data_plane::print),
    (&["local_start_seconds"], start::print),
    (&["kill_to_output_seconds", "taskmanager_idle_rss_mb"], recovery::print),
    (&["checkpoint_pause_p99_ms", "incremental_bytes_ratio", "incremental_time_ratio"], state::print_checkpoints),
    (&["restore_mb_per_core"], state::print_restore),
    (&["disk_state_rss_mb"], state::print_disk),
];

fn main() -> ExitCode {
    print_wanted(FIGURES)
}
