//! One simulated world: the API server, the object store, pods with their processes, and what was seen of them.
//!
//! Everything runs in one thread, as tasks of one runtime whose clock leaps (`libc.c`). Nobody holds the state while it
//! waits for anything.

use crate::api_server::{Answer, ApiServer, Call, Refusal};
use crate::check::Check;
use crate::job_manager::JobManager;
use crate::kubelet::{self, Signal};
use crate::scenario::Scenario;
use crate::store::ObjectStore;
use crate::task_manager::TaskManager;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// One world; cheap to clone.
#[derive(Clone)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
    /// The last resourceVersion, for watches.
    pub(crate) version: Arc<watch::Sender<u64>>,
    /// How often all watches were broken.
    pub(crate) breaks: Arc<watch::Sender<u64>>,
    start: Instant,
    tracing: bool,
}

/// Its state.
pub(crate) struct State {
    pub(crate) scenario: Scenario,
    pub(crate) rng: fastrand::Rng,
    pub(crate) api: ApiServer,
    pub(crate) store: ObjectStore,
    pub(crate) check: Check,
    pub(crate) job_managers: BTreeMap<String, JobManager>,
    pub(crate) task_managers: BTreeMap<String, TaskManager>,
    /// The kubelet's ear for each pod, by uid.
    pub(crate) pods: BTreeMap<String, mpsc::UnboundedSender<Signal>>,
    pub(crate) addresses: u32,
    pub(crate) sessions: u64,
    /// Whether things go wrong.
    pub(crate) is_faulty: bool,
    /// Until when calls of the API server fail.
    pub(crate) api_away_until: u64,
    /// Until when the store does not answer.
    pub(crate) store_away_until: u64,
    /// Until when changes reach watches late.
    pub(crate) watches_lag_until: u64,
    /// The next delete that a replica sends is on its way for so long.
    pub(crate) delete_held_for: Option<u64>,
    pub(crate) violation: Option<String>,
}

impl World {
    pub(crate) fn new(scenario: Scenario, tracing: bool) -> Self {
        let rng = fastrand::Rng::with_seed(scenario.seed);
        let state = State {
            check: Check::default(),
            rng,
            api: ApiServer::default(),
            store: ObjectStore::default(),
            job_managers: BTreeMap::new(),
            task_managers: BTreeMap::new(),
            pods: BTreeMap::new(),
            addresses: 0,
            sessions: 0,
            is_faulty: true,
            api_away_until: 0,
            store_away_until: 0,
            watches_lag_until: 0,
            delete_held_for: None,
            violation: None,
            scenario,
        };
        let (version, breaks) = (Arc::new(watch::Sender::new(0)), Arc::new(watch::Sender::new(0)));
        Self { state: Arc::new(Mutex::new(state)), version, breaks, start: Instant::now(), tracing }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the beginning.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>8} {}", self.now(), what());
        }
    }

    pub(crate) fn violate(&self, what: String) {
        self.trace(|| format!("VIOLATION {what}"));
        self.lock().violation.get_or_insert(what);
    }

    /// Draws from a range of milliseconds.
    pub(crate) fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.lock().rng.u64(range)
    }

    pub(crate) async fn pause(&self, range: std::ops::Range<u64>) {
        let millis = self.draw(range);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// The moment at which a call takes effect.
    pub(crate) fn carry_out(&self, call: &Call) -> Answer {
        let answer = self.change(|state| state.api.call(call));
        if call.method != "GET" && call.resource != "leases" && call.resource != "events" {
            self.trace(|| {
                let code = answer
                    .as_ref()
                    .map_or_else(|refusal| format!("{} {}", refusal.code, refusal.reason), |_| "ok".to_owned());
                let sub = call.subresource.as_deref().unwrap_or_default();
                format!("{} {} {} {sub}: {code}", call.method, call.resource, call.key().2)
            });
        }
        answer
    }

    /// Changes objects, and lets all know who must: checks, watches, kubelets.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let seconds = k8s_openapi::jiff::Timestamp::now().as_second();
        let at = self.now();
        let (result, written) = {
            let mut state = self.lock();
            state.api.now = seconds;
            let result = change(&mut state);
            let written = std::mem::take(&mut state.api.written);
            for one in &written {
                if let Err(what) = state.check.on_written(at, one) {
                    state.violation.get_or_insert(what);
                }
            }
            let version = state.api.version();
            self.version.send_if_modified(|last| std::mem::replace(last, version) != version);
            (result, written)
        };
        for one in written.into_iter().filter(|one| one.key.0 == "pods") {
            kubelet::on_pod(self, &one);
        }
        result
    }

    /// A call by a person or by a part of Kubernetes: at once, and never refused by the network.
    pub(crate) fn ask(&self, call: &Call) -> Answer {
        self.carry_out(call)
    }

    /// Deletes what nobody owns any more, now and then.
    pub(crate) async fn collect_garbage(self) {
        loop {
            self.pause(300..3000).await;
            self.change(|state| state.api.collect_garbage());
        }
    }
}

/// What the API server says when it is busy or broken.
pub(crate) fn unwell(rng: &mut fastrand::Rng) -> Refusal {
    match rng.u32(..3) {
        0 => Refusal::new(429, "TooManyRequests", "the server has received too many requests"),
        1 => Refusal::new(500, "InternalError", "etcdserver: request timed out"),
        _ => Refusal::new(503, "ServiceUnavailable", "the server is currently unable to handle the request"),
    }
}
