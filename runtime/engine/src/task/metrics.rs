//! What a task counts. Written by the task alone, read by anyone.

use crate::batch::Batch;
use crate::channel::QueueGauge;
use crate::source::{Source, SplitLag};
use sluice_protocol::{CheckpointId, TimeSpan, Timestamp};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How often a source is asked how far behind it is.
const LAG_INTERVAL: TimeSpan = TimeSpan::from_secs(1);

/// Counters of one task since it began. Times in milliseconds; busy, idle and back-pressured add up to its age.
#[derive(Debug, Default)]
pub struct TaskMetrics {
    /// Rows read.
    pub rows_in: AtomicU64,
    /// Bytes of these rows in memory.
    pub bytes_in: AtomicU64,
    /// Records that the source could not read and passed over.
    pub malformed_records: AtomicU64,
    /// Rows written to output edges or the sink.
    pub rows_out: AtomicU64,
    /// Bytes of these rows in memory; of several output edges once.
    pub bytes_out: AtomicU64,
    /// Time spent working.
    pub busy_ms: AtomicU64,
    /// Time spent without input.
    pub idle_ms: AtomicU64,
    /// Time spent without room in an output (B4).
    pub back_pressured_ms: AtomicU64,
    /// The last checkpoint for which state was frozen; 0: none.
    pub last_cut: AtomicU64,
    /// The watermark that was last passed on, in milliseconds since 1970; 0: none.
    pub watermark: AtomicU64,
    /// Rows that were dropped because they came too late, or had no time.
    pub late_rows: AtomicU64,
    /// The queues of its input edges.
    pub inputs: Vec<QueueGauge>,
    /// The queues of its output edges.
    pub outputs: Vec<QueueGauge>,
    /// How far behind its source is.
    lag: Mutex<Vec<SplitLag>>,
}

impl TaskMetrics {
    /// How far behind the end of each split its source was a moment ago.
    #[must_use]
    pub fn lag(&self) -> Vec<SplitLag> {
        self.lag.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What reached the end of a chain.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// Rows that operators have dropped as late since the task began.
    pub(super) late: u64,
}

/// What a task does between two steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Activity {
    Busy,
    #[default]
    Idle,
    BackPressured,
}

/// Books time and rows.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) metrics: Arc<TaskMetrics>,
    activity: Activity,
    since: Option<Timestamp>,
    lag_asked: Option<Timestamp>,
}

impl Meter {
    /// Of a task with these queues.
    pub(super) fn new(inputs: Vec<QueueGauge>, outputs: Vec<QueueGauge>) -> Self {
        let metrics = Arc::new(TaskMetrics { inputs, outputs, ..TaskMetrics::default() });
        Self { metrics, ..Self::default() }
    }

    /// Asks the source how far behind it is, now and then.
    pub(super) fn ask_lag(&mut self, source: &dyn Source, now: Timestamp) {
        if self.lag_asked.is_none_or(|asked| now >= asked.plus(LAG_INTERVAL)) {
            self.lag_asked = Some(now);
            *self.metrics.lag.lock().unwrap_or_else(PoisonError::into_inner) = source.lag();
        }
    }

    /// Books the time since the last call on what was done meanwhile.
    pub(super) fn pass(&mut self, now: Timestamp) {
        let passed = self.since.map_or(0, |since| now.since(since).0);
        self.since = Some(now);
        if passed > 0 {
            let counter = match self.activity {
                Activity::Busy => &self.metrics.busy_ms,
                Activity::Idle => &self.metrics.idle_ms,
                Activity::BackPressured => &self.metrics.back_pressured_ms,
            };
            counter.fetch_add(passed, Ordering::Relaxed);
        }
    }

    pub(super) const fn now_doing(&mut self, activity: Activity) {
        self.activity = activity;
    }

    pub(super) fn at_watermark(&self, watermark: i64) {
        let known = u64::try_from(watermark).ok().filter(|_| watermark < i64::MAX);
        self.metrics.watermark.store(known.unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn cut(&self, checkpoint: CheckpointId) {
        self.metrics.last_cut.store(checkpoint.0, Ordering::Relaxed);
    }

    pub(super) fn read(&self, batch: &Batch) {
        self.metrics.rows_in.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.metrics.bytes_in.fetch_add(batch.bytes() as u64, Ordering::Relaxed);
    }

    pub(super) fn passed_over(&self, records: u64) {
        self.metrics.malformed_records.store(records, Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, Written { rows, bytes, late }: Written) {
        self.metrics.late_rows.store(late, Ordering::Relaxed);
        self.metrics.rows_out.fetch_add(rows, Ordering::Relaxed);
        self.metrics.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }
}
