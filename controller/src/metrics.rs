//! What the controller counts, in Prometheus' format.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Labels of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: String,
}

/// Labels of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: String,
}

/// The controller's metrics.
pub struct Metrics {
    registry: Registry,
    passes: Family<Outcome, Counter>,
    status_writes: Counter,
    generations: Counter,
    streams: Gauge,
    jobs: Family<State, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sluice_controller");
        let (passes, status_writes, generations) = (Family::default(), Counter::default(), Counter::default());
        let (streams, jobs) = (Gauge::default(), Family::default());
        registry.register("passes", "Passes over a StreamJob by outcome: ok, or the error's name", passes.clone());
        registry.register("status_writes", "Status writes", status_writes.clone());
        registry.register("generations", "JobManager pods started", generations.clone());
        registry.register("status_streams", "Status streams that are up", streams.clone());
        registry.register("stream_jobs", "StreamJobs by state", jobs.clone());
        Self { registry, passes, status_writes, generations, streams, jobs }
    }
}

impl Metrics {
    /// A pass ended: `ok`, or an error's name.
    pub fn count_pass(&self, outcome: &str) {
        self.passes.get_or_create(&Outcome { outcome: outcome.to_owned() }).inc();
    }

    /// A status was written.
    pub fn count_status_write(&self) {
        self.status_writes.inc();
    }

    /// A JobManager pod was started.
    pub fn count_generation(&self) {
        self.generations.inc();
    }

    /// All metrics as text; the gauges show what is passed in.
    #[must_use]
    pub fn encode(&self, streams: usize, states: &[String]) -> String {
        self.streams.set(i64::try_from(streams).unwrap_or(i64::MAX));
        self.jobs.clear();
        for state in states {
            self.jobs.get_or_create(&State { state: state.clone() }).inc();
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_with_their_labels() {
        let metrics = Metrics::default();
        metrics.count_pass("ok");
        let text = metrics.encode(2, &["Running".to_owned(), "Running".to_owned(), "Failed".to_owned()]);
        assert!(text.contains(r#"sluice_controller_passes_total{outcome="ok"} 1"#), "{text}");
        assert!(text.contains(r#"sluice_controller_stream_jobs{state="Running"} 2"#), "{text}");
        let text = metrics.encode(0, &[]);
        assert!(!text.contains("Running"), "{text}");
    }
}
