//! Checkpoints behind a sink that is far slower than its source: aligned ones take as long as the queues hold, unaligned
//! ones do not, and with a timeout they end soon after it.

// A test's helper panics: that is how a test fails.
#![expect(clippy::expect_used, clippy::print_stdout, reason = "helpers of tests")]

use serde_json::json;
use sluice_tests::backpressure::{Measured, run};
use std::time::Duration;

/// A hundredth of what the source makes. The queues hold about 260,000 rows: 13 seconds of it.
const SINK_ROWS_PER_SECOND: u32 = 20_000;

/// What an aligned checkpoint takes at least.
const QUEUED_SECONDS: f64 = 10.0;

async fn measure(checkpointing: serde_json::Value, checkpoints: usize) -> Measured {
    let measured = run(SINK_ROWS_PER_SECOND, checkpointing, checkpoints, Duration::from_secs(60)).await;
    let measured = measured.expect("checkpoints complete");
    println!("{measured:?}");
    measured
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unaligned_checkpoint_does_not_wait_for_a_slow_sink() {
    let aligned = measure(json!({}), 1).await;
    assert!(aligned.seconds[0] > QUEUED_SECONDS, "the queues hold too little to show anything: {aligned:?}");
    assert_eq!(aligned.in_flight_bytes, 0);
    let unaligned = measure(json!({"unaligned": true}), 3).await;
    assert!(unaligned.seconds.iter().all(|seconds| *seconds < 1.0), "{unaligned:?}");
    assert!(unaligned.in_flight_bytes > 1_000_000, "{unaligned:?}");
    let timed = measure(json!({"unaligned": true, "alignmentTimeout": "1s"}), 2).await;
    assert!(timed.seconds.iter().all(|seconds| (0.9..2.0).contains(seconds)), "{timed:?}");
    assert!(timed.in_flight_bytes > 1_000_000, "{timed:?}");
}
