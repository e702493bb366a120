//! What the controller counts, in Prometheus' format. `docs/metrics.md` lists all of it; a test compares the two.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

/// Labels of an object's kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

impl From<&str> for Kind {
    fn from(kind: &str) -> Self {
        Self { kind: kind.to_owned() }
    }
}

/// Labels of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pass {
    kind: &'static str,
    outcome: String,
}

/// Labels of a write.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// Labels of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    verb: &'static str,
    code: String,
}

/// Labels of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: String,
}

/// Labels of a restart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: String,
}

/// The controller's metrics.
pub struct Metrics {
    registry: Registry,
    passes: Family<Pass, Counter>,
    durations: Family<Kind, Histogram>,
    queue: Family<Kind, Gauge>,
    api_requests: Family<Call, Counter>,
    status_writes: Family<Kind, Counter>,
    events: Family<Outcome, Counter>,
    generations: Counter,
    restarts: Family<Cause, Counter>,
    unreadable: Family<Kind, Counter>,
    watch_errors: Family<Kind, Counter>,
    leader: Gauge,
    streams: Gauge,
    jobs: Family<State, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("sluice_controller"),
            passes: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            queue: Family::default(),
            api_requests: Family::default(),
            status_writes: Family::default(),
            events: Family::default(),
            generations: Counter::default(),
            restarts: Family::default(),
            unreadable: Family::default(),
            watch_errors: Family::default(),
            leader: Gauge::<i64, AtomicI64>::default(),
            streams: Gauge::default(),
            jobs: Family::default(),
        };
        metrics.register();
        metrics
    }
}

/// Buckets of passes, in seconds.
const DURATIONS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// A pass over a StreamJob.
pub(crate) const STREAM_JOB: &str = "StreamJob";
/// A pass over a Savepoint.
pub(crate) const SAVEPOINT: &str = "Savepoint";
/// A pass over the periodic savepoints of a StreamJob.
pub(crate) const SCHEDULE: &str = "SavepointSchedule";

impl Metrics {
    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("reconciles", "Passes by kind and outcome: ok, or the error's name", self.passes.clone());
        registry.register("reconcile_duration_seconds", "How long passes took", self.durations.clone());
        registry.register(
            "queue_depth",
            "Objects that wait for their pass while others have theirs",
            self.queue.clone(),
        );
        let api_requests = self.api_requests.clone();
        registry.register("api_requests", "Calls of the API server; code none: no answer", api_requests);
        registry.register("status_writes", "Statuses written", self.status_writes.clone());
        registry.register("events", "Kubernetes events by what became of them", self.events.clone());
        registry.register("generations", "JobManager pods started", self.generations.clone());
        registry.register("restarts", "Restarts of jobs, each once, by cause", self.restarts.clone());
        registry.register("unreadable_objects", "Objects that could not be read, as seen", self.unreadable.clone());
        registry.register("watch_errors", "Failures of watches, each tried again", self.watch_errors.clone());
        registry.register("leader", "Whether this replica leads", self.leader.clone());
        registry.register("status_streams", "Status streams that are up", self.streams.clone());
        registry.register("stream_jobs", "StreamJobs by state", self.jobs.clone());
    }

    /// A pass ended: `ok`, or an error's name.
    pub fn count_pass(&self, kind: &'static str, outcome: &str) {
        self.passes.get_or_create(&Pass { kind, outcome: outcome.to_owned() }).inc();
    }

    /// How long a pass took.
    pub fn observe_pass(&self, kind: &str, took: Duration) {
        self.durations.get_or_create(&kind.into()).observe(took.as_secs_f64());
    }

    /// So many objects wait for a pass.
    pub fn set_queue(&self, kind: &str, objects: usize) {
        self.queue.get_or_create(&kind.into()).set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    /// The API server was called.
    pub fn count_api_request(&self, verb: &'static str, code: &str) {
        self.api_requests.get_or_create(&Call { verb, code: code.to_owned() }).inc();
    }

    /// A status was written.
    pub fn count_status_write(&self, kind: &str) {
        self.status_writes.get_or_create(&kind.into()).inc();
    }

    /// An event was `written`, `failed` to be, or was `limited`.
    pub fn count_event(&self, outcome: &'static str) {
        self.events.get_or_create(&Outcome { outcome }).inc();
    }

    /// A JobManager pod was started.
    pub fn count_generation(&self) {
        self.generations.inc();
    }

    /// A job has restarted so many times.
    pub fn count_restarts(&self, cause: &str, times: u64) {
        self.restarts.get_or_create(&Cause { cause: cause.to_owned() }).inc_by(times);
    }

    /// An object could not be read.
    pub fn count_unreadable(&self, kind: &str) {
        self.unreadable.get_or_create(&kind.into()).inc();
    }

    /// A watch failed.
    pub fn count_watch_error(&self, kind: &str) {
        self.watch_errors.get_or_create(&kind.into()).inc();
    }

    /// Whether this replica leads.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// What is looked at when the metrics are asked for: streams that are up, and the state of each StreamJob.
    pub fn set_seen(&self, streams: usize, states: &[String]) {
        self.streams.set(i64::try_from(streams).unwrap_or(i64::MAX));
        self.jobs.clear();
        for state in states {
            self.jobs.get_or_create(&State { state: state.clone() }).inc();
        }
    }

    /// All metrics as text.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests;
