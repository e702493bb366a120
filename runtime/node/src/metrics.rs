//! Metrics in Prometheus' text form, made at each scrape from the job's status and the tasks' own counters.
//!
//! Tasks count in atomics that belong to them; nothing here is on their path.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use sluice_protocol::history::{CheckpointDetails, CheckpointHistory, RecordState};
use sluice_protocol::message::CheckpointMetrics;
use sluice_protocol::status::JobStatus;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What `/metrics` is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The tasks of a process as they are now.
pub type TaskView = Arc<dyn Fn() -> Vec<TaskMetrics> + Send + Sync>;

/// One subtask's counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskMetrics {
    /// Its vertex.
    pub vertex: u32,
    /// The vertex's name.
    pub name: String,
    /// Its subtask.
    pub subtask: u32,
    /// Rows taken from its inputs, or read by its source.
    pub rows_in: u64,
    /// Records that its source could not read and passed over.
    #[serde(default)]
    pub malformed_records: u64,
    /// Rows given to its outputs, or written by its sink.
    pub rows_out: u64,
    /// Bytes of the rows taken, in memory.
    pub bytes_in: u64,
    /// Bytes of the rows given, in memory; of several output edges once.
    pub bytes_out: u64,
    /// Milliseconds spent working.
    pub busy_ms: u64,
    /// Milliseconds without input.
    pub idle_ms: u64,
    /// Milliseconds without room in an output.
    pub back_pressured_ms: u64,
    /// The time less the watermark that it last passed on, in milliseconds; none without one.
    pub watermark_lag_ms: Option<u64>,
    /// Rows that it dropped because they came too late, or had no time.
    #[serde(default)]
    pub late_rows: u64,
    /// Checkpoints it has acknowledged.
    pub checkpoints: u64,
    /// Checkpoints it has declined.
    pub declined: u64,
    /// Bytes of state in the last one, what was in flight included.
    pub state_bytes: u64,
    /// Bytes of batches in the last one that its barrier overtook.
    pub in_flight_bytes: u64,
    /// Milliseconds from the first barrier of the last one to its last.
    pub alignment_ms: u64,
    /// Milliseconds from the trigger of the last one to its acknowledgement.
    pub checkpoint_ms: u64,
    /// Bytes that wait in its input queues.
    pub input_queued_bytes: u64,
    /// Bytes that wait in its output queues.
    pub output_queued_bytes: u64,
    /// Records of each split that its source has not read yet, where it knows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lag: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SplitLabels {
    vertex: u32,
    name: String,
    subtask: u32,
    split: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TaskLabels {
    vertex: u32,
    name: String,
    subtask: u32,
}

/// The text of a scrape.
///
/// # Errors
/// When it cannot be formatted.
pub fn render(
    status: Option<&JobStatus>,
    history: Option<&CheckpointHistory>,
    tasks: &[TaskMetrics],
) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("sluice");
    if let Some(status) = status {
        register_job(&mut registry, status);
    }
    let is_complete = |one: &&CheckpointDetails| one.record.state == RecordState::Completed;
    if let Some(last) = history.and_then(|history| history.iter().rev().find(is_complete)) {
        register_checkpoint(&mut registry, &last.record.metrics);
    }
    if !tasks.is_empty() {
        register_tasks(&mut registry, tasks);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn register_job(registry: &mut Registry, status: &JobStatus) {
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    let checkpoint = status.last_checkpoint.clone().unwrap_or_default();
    gauge("job_generation", "Generation of the JobManager", status.generation.0);
    gauge("job_attempt", "Attempt within the generation", u64::from(status.attempt.0));
    gauge("job_tasks", "Tasks of the job", u64::from(status.tasks));
    gauge("job_tasks_running", "Tasks that run", u64::from(status.tasks_running));
    gauge("job_task_managers", "Registered TaskManagers", status.task_managers.len() as u64);
    gauge("job_last_checkpoint_id", "Id of the last completed checkpoint", checkpoint.id.0);
    gauge("job_last_checkpoint_bytes", "Bytes of state in the last completed checkpoint", checkpoint.bytes);
    gauge(
        "job_last_checkpoint_duration_milliseconds",
        "From the trigger of the last completed checkpoint to its ledger entry",
        checkpoint.completed_at.since(checkpoint.triggered_at).0,
    );
    gauge(
        "job_last_checkpoint_completed_timestamp_milliseconds",
        "When the last completed checkpoint was completed",
        checkpoint.completed_at.0,
    );
    gauge("job_failed_checkpoints_in_a_row", "Since the last completed one", status.failed_checkpoints_in_a_row);
    gauge("job_pending_checkpoints", "Checkpoints under way", status.pending_checkpoints.len() as u64);
    let mut counter = |name: &str, help: &str, value: u64| {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    };
    counter("job_checkpoints_completed", "Checkpoints completed by this generation", status.completed_checkpoints);
    counter("job_checkpoints_failed", "Checkpoints failed in this generation", status.failed_checkpoints);
    counter(
        "job_commits_lost",
        "Staged transactions of sinks that this generation found lost: their rows are in no result",
        status.lost_commits,
    );
    counter("job_restarts", "Failed attempts under this revision of the spec", status.failed_attempts);
    let state = Family::<[(&str, String); 1], Gauge>::default();
    state.get_or_create(&[("state", format!("{:?}", status.state))]).set(1);
    registry.register("job_state", "The job's state", state);
}

/// The parts of the last completed checkpoint: the longest times of any subtask, the sums of sizes.
fn register_checkpoint(registry: &mut Registry, metrics: &CheckpointMetrics) {
    let CheckpointMetrics { start_delay_ms, alignment_ms, sync_ms, async_ms, bytes, full_bytes, in_flight_bytes } =
        *metrics;
    let gauges = [
        ("start_delay_milliseconds", "From the trigger to the first barrier", start_delay_ms),
        ("alignment_milliseconds", "From the first barrier to the last", alignment_ms),
        ("sync_milliseconds", "In the task's thread", sync_ms),
        ("async_milliseconds", "Writing and uploading", async_ms),
        ("stored_bytes", "Stored for it; of an incremental one, what has changed", bytes),
        ("full_bytes", "All the state that it holds", full_bytes),
        ("in_flight_bytes", "Rows that its barriers have overtaken", in_flight_bytes),
    ];
    for (name, help, value) in gauges {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(format!("job_last_checkpoint_{name}"), help, gauge);
    }
}

fn register_tasks(registry: &mut Registry, tasks: &[TaskMetrics]) {
    type Read = fn(&TaskMetrics) -> u64;
    let counters: [(&str, &str, Read); 11] = [
        ("task_rows_in", "Rows taken from inputs or read by the source", |task| task.rows_in),
        ("task_malformed_records", "Records that the source could not read and passed over", |task| {
            task.malformed_records
        }),
        ("task_rows_out", "Rows given to outputs or written by the sink", |task| task.rows_out),
        ("task_bytes_in", "Bytes of the rows taken, in memory", |task| task.bytes_in),
        ("task_bytes_out", "Bytes of the rows given, in memory; of several output edges once", |task| task.bytes_out),
        ("task_busy_milliseconds", "Time spent working", |task| task.busy_ms),
        ("task_idle_milliseconds", "Time without input", |task| task.idle_ms),
        ("task_back_pressured_milliseconds", "Time without room in an output", |task| task.back_pressured_ms),
        ("task_late_rows_dropped", "Rows dropped because they came too late, or had no time", |task| task.late_rows),
        ("task_checkpoints_acknowledged", "Checkpoints acknowledged", |task| task.checkpoints),
        ("task_checkpoints_declined", "Checkpoints declined", |task| task.declined),
    ];
    for (name, help, read) in counters {
        let family = Family::<TaskLabels, Counter>::default();
        for task in tasks {
            family.get_or_create(&labels(task)).inc_by(read(task));
        }
        registry.register(name, help, family);
    }
    let lag = Family::<TaskLabels, Gauge>::default();
    for (task, millis) in tasks.iter().filter_map(|task| Some((task, task.watermark_lag_ms?))) {
        lag.get_or_create(&labels(task)).set(i64::try_from(millis).unwrap_or(i64::MAX));
    }
    registry.register("task_watermark_lag_milliseconds", "The time less the watermark last passed on", lag);
    let gauges: [(&str, &str, Read); 6] = [
        ("task_input_queue_bytes", "Bytes that wait in the input queues", |task| task.input_queued_bytes),
        ("task_output_queue_bytes", "Bytes that wait in the output queues", |task| task.output_queued_bytes),
        ("task_state_bytes", "Bytes of state in the last checkpoint", |task| task.state_bytes),
        ("task_in_flight_bytes", "Bytes that the last checkpoint's barrier overtook", |task| task.in_flight_bytes),
        ("task_alignment_milliseconds", "From first to last barrier of the last checkpoint", |task| task.alignment_ms),
        ("task_checkpoint_milliseconds", "From trigger to acknowledgement of the last one", |task| task.checkpoint_ms),
    ];
    for (name, help, read) in gauges {
        let family = Family::<TaskLabels, Gauge>::default();
        for task in tasks {
            family.get_or_create(&labels(task)).set(i64::try_from(read(task)).unwrap_or(i64::MAX));
        }
        registry.register(name, help, family);
    }
    register_lag(registry, tasks);
}

/// Per split: what is read by a task that is slow looks unlike what one partition alone is behind with.
fn register_lag(registry: &mut Registry, tasks: &[TaskMetrics]) {
    let family = Family::<SplitLabels, Gauge>::default();
    for task in tasks {
        let TaskLabels { vertex, name, subtask } = labels(task);
        for (split, records) in &task.lag {
            let labels = SplitLabels { vertex, name: name.clone(), subtask, split: split.clone() };
            family.get_or_create(&labels).set(i64::try_from(*records).unwrap_or(i64::MAX));
        }
    }
    registry.register("source_lag_records", "Records of a split that its source has not read yet", family);
}

fn labels(task: &TaskMetrics) -> TaskLabels {
    TaskLabels { vertex: task.vertex, name: task.name.clone(), subtask: task.subtask }
}
