//! Tests that cross crates and need no cluster (design §11): the seeded simulation, and jobs as
//! plain processes with a real broker and a real S3 server.
//!
//! - [`simulation`]: the protocol under a seed. - [`harness`]: real services and processes. - [`backpressure`]: a job with a
//!   slow sink.

// A test's helper panics: that is how a test fails.
#![expect(clippy::expect_used, clippy::print_stdout, clippy::print_stderr, reason = "helpers of tests")]

pub mod backpressure;
pub mod harness;
pub mod simulation;
