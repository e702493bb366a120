//! A sink at a hundredth of its source's rate, queues that hold more than ten seconds of it: how long checkpoints take.

use anyhow::Result;
use serde_json::json;
use sluice_tests::backpressure::run;
use std::time::Duration;

/// The queues hold about 260,000 rows; the source makes over two million a second.
const SINK_ROWS_PER_SECOND: u32 = 20_000;

pub(crate) fn print() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let at_most = Duration::from_secs(180);
    let measure =
        |checkpointing, checkpoints| runtime.block_on(run(SINK_ROWS_PER_SECOND, checkpointing, checkpoints, at_most));
    let aligned = measure(json!({}), 1)?;
    let unaligned = measure(json!({"unaligned": true}), 5)?;
    let timed = measure(json!({"unaligned": true, "alignmentTimeout": "1s"}), 3)?;
    println!(
        "# aligned {:?} s, unaligned {:?} s, with alignmentTimeout 1 s {:?} s",
        aligned.seconds, unaligned.seconds, timed.seconds
    );
    println!("# {:.1} MB in flight", unaligned.in_flight_bytes as f64 / 1e6);
    let longest = |seconds: &[f64]| seconds.iter().copied().fold(0.0, f64::max);
    println!("backpressure_aligned_seconds {:.2} s", longest(&aligned.seconds));
    println!("backpressure_unaligned_seconds {:.2} s", longest(&unaligned.seconds));
    println!("backpressure_timeout_seconds {:.2} s", longest(&timed.seconds));
    Ok(())
}
