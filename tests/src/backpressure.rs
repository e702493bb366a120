//! A job whose sink is far slower than its source, and how long its checkpoints take.
//!
//! One process, real threads, checkpoints in a directory: a source at full speed → GROUP BY → a `blackhole` at a rate.
//! The queues between hold a fixed number of bytes, so the rate of the sink says for how many seconds.

use sluice_node::local::{LocalRun, LocalStart, run_local};
use sluice_node::logs::LogSwitch;
use sluice_protocol::CheckpointId;
use sluice_protocol::options::{CheckpointingSpec, JobOptions};
use sluice_protocol::status::CheckpointInfo;
use sluice_sql::PlanOptions;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What is measured of a run.
#[derive(Debug, Default, Clone)]
pub struct Measured {
    /// Seconds from trigger to completion of each checkpoint, in order.
    pub seconds: Vec<f64>,
    /// Most bytes that were in flight in a checkpoint.
    pub in_flight_bytes: u64,
    /// Rows that the sink was given in all.
    pub rows: u64,
}

#[derive(Default)]
struct Seen {
    checkpoints: BTreeMap<CheckpointId, f64>,
    in_flight_bytes: u64,
    rows: u64,
}

fn sql(rate: u32) -> String {
    format!(
        "CREATE TABLE numbers (k BIGINT, v BIGINT) WITH ('connector'='datagen', 'rows-per-second'='1000000000', \
         'fields.k.min'='0', 'fields.k.max'='99999', 'fields.v.min'='0', 'fields.v.max'='1000'); \
         CREATE TABLE slow (k BIGINT, c BIGINT, s BIGINT, PRIMARY KEY (k) NOT ENFORCED) \
         WITH ('connector'='blackhole', 'rows-per-second'='{rate}'); \
         INSERT INTO slow SELECT k, COUNT(*) AS c, SUM(v) AS s FROM numbers GROUP BY k;"
    )
}

/// Runs the job with a checkpoint each second until `checkpoints` are complete or the time is up. `checkpointing` holds
/// more fields of the manifest's block.
///
/// # Errors
/// When the program is wrong, or the job ends by itself.
pub async fn run(
    sink_rows_per_second: u32,
    checkpointing: serde_json::Value,
    checkpoints: usize,
    at_most: Duration,
) -> anyhow::Result<Measured> {
    let directory = std::env::temp_dir().join(crate::harness::unique("sluice-backpressure"));
    let mut block = serde_json::json!({"interval": "1s", "timeout": "10m"});
    if let (Some(block), Some(more)) = (block.as_object_mut(), checkpointing.as_object()) {
        block.extend(more.clone());
    }
    let checkpointing: CheckpointingSpec = serde_json::from_value(block)?;
    let options = JobOptions { parallelism: 2, checkpointing: Some(checkpointing), ..JobOptions::default() };
    let plan = PlanOptions { parallelism: 2, max_parallelism: options.max_parallelism };
    let catalog = sluice_connectors::catalog();
    let program = sluice_sql::plan(&sql(sink_rows_per_second), &plan, &catalog)?;
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let abandon = CancellationToken::new();
    let run = LocalRun {
        namespace: "default".to_owned(),
        name: "backpressure".to_owned(),
        program,
        options,
        start: LocalStart::Empty,
        start_timeout: None,
        checkpoint_directory: directory.clone(),
        rest_bind: None,
        control: None,
        on_status: watch(Arc::clone(&seen), checkpoints, abandon.clone()),
        stop: CancellationToken::new(),
        abandon: abandon.clone(),
        memory: None,
        logs: LogSwitch::default(),
    };
    let running = tokio::spawn(run_local(run));
    if tokio::time::timeout(at_most, abandon.cancelled()).await.is_err() {
        abandon.cancel();
    }
    let record = running.await?;
    tokio::fs::remove_dir_all(&directory).await.ok();
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    anyhow::ensure!(!seen.checkpoints.is_empty(), "no checkpoint within {at_most:?}: {record:?}");
    let seconds = seen.checkpoints.values().copied().collect();
    Ok(Measured { seconds, in_flight_bytes: seen.in_flight_bytes, rows: seen.rows })
}

/// Notes every checkpoint, and ends the run when there are enough.
fn watch(seen: Arc<Mutex<Seen>>, enough: usize, abandon: CancellationToken) -> sluice_node::local::OnStatus {
    Box::new(move |status, tasks| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(CheckpointInfo { id, triggered_at, completed_at, .. }) = &status.last_checkpoint {
            #[expect(clippy::cast_precision_loss, reason = "a span of time")]
            let seconds = completed_at.since(*triggered_at).0 as f64 / 1000.0;
            seen.checkpoints.insert(*id, seconds);
        }
        seen.in_flight_bytes = seen.in_flight_bytes.max(tasks.iter().map(|task| task.in_flight_bytes).sum());
        seen.rows = tasks.iter().filter(|task| task.name.contains("Sink")).map(|task| task.rows_out).sum();
        if seen.checkpoints.len() >= enough {
            abandon.cancel();
        }
    })
}
