//! The line on a terminal that tells how a local job is doing, not drawn where standard error is no terminal; above it,
//! and in logs, what goes wrong.

use crate::narrator::Narrator;
use crate::output;
use crate::run::Painter;
use sluice_node::edge::now;
use sluice_node::metrics::TaskMetrics;
use sluice_protocol::graph::JobGraph;
use sluice_protocol::status::{JobState, JobStatus};
use sluice_protocol::{Timestamp, VertexId};
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Back to the first column, and nothing right of it.
const CLEAR_LINE: &str = "\r\x1b[2K";

/// The line.
pub(crate) struct Progress {
    /// `None` where it is not shown, or no more.
    gauge: Arc<Mutex<Option<Gauge>>>,
}

impl Progress {
    /// Shows nothing yet.
    pub(crate) fn new(graph: &JobGraph) -> Self {
        let gauge = std::io::stderr().is_terminal().then(|| Gauge::new(graph));
        Self { gauge: Arc::new(Mutex::new(gauge)) }
    }

    /// What draws the line and tells the news.
    pub(crate) fn painter(&self) -> Painter {
        let gauge = Arc::clone(&self.gauge);
        let mut narrator = Narrator::default();
        Box::new(move |status, tasks| {
            let mut gauge = gauge.lock().unwrap_or_else(PoisonError::into_inner);
            for line in narrator.news(status, now()) {
                show(&format!("{}{line}\n", if gauge.is_some() { CLEAR_LINE } else { "" }));
            }
            if let Some(gauge) = gauge.as_mut() {
                show(&format!("{CLEAR_LINE}{}", output::fitted(&gauge.line(status, tasks))));
            }
        })
    }

    /// Wipes the line; nothing is drawn from now on.
    pub(crate) fn close(&self) {
        if self.gauge.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            show(CLEAR_LINE);
        }
    }
}

/// A terminal that went away is no reason to end the job.
fn show(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Measures a job while it runs, and puts it into a line.
pub(crate) struct Gauge {
    sources: BTreeSet<u32>,
    read: Reading,
}

impl Gauge {
    pub(crate) fn new(graph: &JobGraph) -> Self {
        let sources = graph.vertices.iter().map(|vertex| vertex.id).filter(|id| graph.is_source(*id));
        Self { sources: sources.map(|VertexId(id)| id).collect(), read: Reading { at: now(), rows: 0, rate: 0.0 } }
    }

    /// The line.
    pub(crate) fn line(&mut self, status: &JobStatus, tasks: &[TaskMetrics]) -> String {
        let of_sources = tasks.iter().filter(|task| self.sources.contains(&task.vertex));
        self.read = self.read.next(now(), of_sources.map(|task| task.rows_in).sum());
        describe(status, self.read.rate, self.read.at)
    }
}

#[derive(Clone, Copy)]
struct Reading {
    at: Timestamp,
    rows: u64,
    rate: f64,
}

impl Reading {
    /// A later reading; counters begin anew with every attempt. The rate is smoothed over about a second.
    fn next(self, at: Timestamp, rows: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let (seconds, gained) = (at.since(self.at).0 as f64 / 1000.0, rows.saturating_sub(self.rows) as f64);
        if seconds <= 0.0 {
            return self;
        }
        let weight = seconds.min(1.0);
        Self { at, rows, rate: self.rate * (1.0 - weight) + gained / seconds * weight }
    }
}

fn describe(status: &JobStatus, rate: f64, now: Timestamp) -> String {
    let mut parts = vec![format!("{} {}", word(status.state), output::age(now, status.since))];
    if status.state == JobState::Running {
        parts.push(format!("{} rows/s", output::count(rate)));
    } else if let Some(cause) = cause(status) {
        parts.push(cause.to_owned());
    } else if !status.message.is_empty() {
        parts.push(status.message.clone());
    }
    parts.push(match &status.last_checkpoint {
        Some(last) => {
            let age = output::age(now, last.completed_at);
            format!("checkpoint {} ({age} ago, {})", last.id, output::bytes(last.bytes))
        }
        None => "no checkpoint yet".to_owned(),
    });
    if status.failed_checkpoints_in_a_row > 0 {
        parts.push(format!("{} failed checkpoints in a row", status.failed_checkpoints_in_a_row));
    }
    parts.push(format!("restarts {}", status.failed_attempts));
    parts.join("  ")
}

/// Why it is starting once more, for as long as it does: what keeps a job from running is to be seen, not its next try.
fn cause(status: &JobStatus) -> Option<&str> {
    let last = status.failures.first().filter(|_| status.state == JobState::Restarting)?;
    Some(last.failure.message.as_str()).filter(|message| !message.is_empty())
}

fn word(state: JobState) -> String {
    format!("{state:?}").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::{Reading, describe};
    use sluice_protocol::failure::{Failure, FailureRecord};
    use sluice_protocol::status::{CheckpointInfo, JobState, JobStatus};
    use sluice_protocol::{CheckpointId, Run, Timestamp};

    #[test]
    fn the_line_tells_state_rate_checkpoint_and_restarts() {
        let last = CheckpointInfo {
            id: CheckpointId(7),
            completed_at: Timestamp(58_000),
            bytes: 2048,
            ..CheckpointInfo::default()
        };
        let status = JobStatus {
            state: JobState::Running,
            since: Timestamp(10_000),
            last_checkpoint: Some(last),
            failed_attempts: 1,
            ..JobStatus::default()
        };
        let line = describe(&status, 12_345.0, Timestamp(60_000));
        assert_eq!(line, "RUNNING 50s  12.3 k rows/s  checkpoint 7 (2s ago, 2.0 KiB)  restarts 1");
        let waiting = JobStatus { state: JobState::Restarting, message: "in 3 s".to_owned(), ..JobStatus::default() };
        let line = describe(&waiting, 0.0, Timestamp(0));
        assert_eq!(line, "RESTARTING 0s  in 3 s  no checkpoint yet  restarts 0");
    }

    #[test]
    fn what_keeps_a_job_from_running_is_shown_during_the_next_try_too() {
        let failure =
            Failure::external("Unavailable", "topic 'views' does not exist on the Kafka brokers at kafka:9092");
        let (at, run) = (Timestamp(0), Run::default());
        let status = JobStatus {
            state: JobState::Restarting,
            message: "deploying tasks".to_owned(),
            failures: vec![FailureRecord { at, run, task_manager: None, subtask: None, failure }],
            ..JobStatus::default()
        };
        let line = describe(&status, 0.0, Timestamp(2_000));
        assert!(
            line.starts_with("RESTARTING 2s  topic 'views' does not exist on the Kafka brokers at kafka:9092"),
            "{line}"
        );
    }

    #[test]
    fn a_rate_follows_the_counter_and_survives_a_new_attempt() {
        let mut reading = Reading { at: Timestamp(0), rows: 0, rate: 0.0 };
        for second in 1..=10 {
            reading = reading.next(Timestamp(second * 1000), second * 500);
        }
        assert!((reading.rate - 500.0).abs() < 1.0, "{}", reading.rate);
        reading = reading.next(Timestamp(11_000), 0);
        assert!(reading.rate.abs() < 1.0, "{}", reading.rate);
    }
}
