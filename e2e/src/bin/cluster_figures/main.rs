//! `cargo figures [NAME…]` on a cluster: a line for each figure, `name value unit`. Not timed tests: nothing here passes
//! or fails.
//!
//! The controller under measurement is a process beside the cluster, of the build that the images carry.

#![expect(clippy::print_stdout, reason = "a program that prints figures")]
#![expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures")]

mod latency;
mod memory;
mod setting;
mod thousand;

use sluice_tests::harness::measure::{Figure, print_wanted};
use std::process::ExitCode;

const FIGURES: &[Figure] = &[
    (&["controller_rss_mb"], memory::print),
    (
        &["failure_to_status_seconds", "taskmanager_kill_to_output_seconds", "jobmanager_kill_to_running_seconds"],
        latency::print,
    ),
    (
        &[
            "controller_1000_rss_mb",
            "controller_1000_idle_cores",
            "spec_to_pods_p99_seconds",
            "status_writes_per_change",
            "list_calls_after_start",
        ],
        thousand::print,
    ),
];

fn main() -> ExitCode {
    print_wanted(FIGURES)
}
