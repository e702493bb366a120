//! One status stream per JobManager: what it reports, and the way to ask it for something.
//!
//! A change in a report triggers a pass; nothing is polled. A stream that breaks is opened again, with backoff, for
//! as long as a pass wants it; what its loss means is the planner's to say (C1).

use crate::certificates::Certificates;
use crate::connection::{Connection, Connector};
use crate::facts::StreamProblem;
use crate::leader::Leadership;
use crate::time::now;
use kube::runtime::reflector::ObjectRef;
use sluice_crds::StreamJob;
use sluice_protocol::job_master::Command;
use sluice_protocol::status::JobStatus;
use sluice_protocol::{Generation, JobId, Timestamp};
use sluice_rpc::control::ControlError;
use sluice_rpc::tls::CertificateProblem;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LAST_BACKOFF: Duration = Duration::from_secs(5);

/// Where a JobManager answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Which.
    pub generation: Generation,
    /// `host:port`.
    pub address: String,
    /// Whether it asks for a certificate and has one.
    pub tls: bool,
}

/// Tells which StreamJob has news.
pub type Trigger = UnboundedSender<ObjectRef<StreamJob>>;

/// All streams.
pub struct Streams {
    jobs: Mutex<HashMap<JobId, Followed>>,
    trigger: Trigger,
    connector: Arc<dyn Connector>,
    leadership: Arc<Leadership>,
    leading_since: Mutex<Timestamp>,
    certificates: Arc<Certificates>,
}

struct Followed {
    target: Target,
    since: Timestamp,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

/// What is known of one stream.
#[derive(Debug, Clone, Default)]
pub struct StreamView {
    /// The last report.
    pub report: Option<JobStatus>,
    /// Whether the stream is up.
    pub connected: bool,
    /// Since when it is down, having been up.
    pub unreachable_since: Option<Timestamp>,
    /// Since when it is tried at this address.
    pub tried_since: Option<Timestamp>,
    /// Why it could not be opened when it was last tried.
    pub why: Option<StreamProblem>,
}

#[derive(Default)]
struct State {
    report: Option<JobStatus>,
    client: Option<Arc<dyn Connection>>,
    unreachable_since: Option<Timestamp>,
    why: Option<StreamProblem>,
}

impl State {
    /// What stays known when the JobManager is to answer elsewhere.
    fn of_another_address(&mut self) -> Self {
        let was_up = self.client.is_some();
        let unreachable_since = self.unreachable_since.or_else(|| was_up.then(now));
        Self { report: self.report.take(), unreachable_since, ..Self::default() }
    }

    /// Whether it should be up and is not: it was up, or was tried in vain.
    const fn is_down(&self) -> bool {
        self.unreachable_since.is_some() || (self.report.is_none() && self.client.is_none() && self.why.is_some())
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Streams {
    /// No streams; news go to `trigger`, and nothing is asked without `leadership`.
    #[must_use]
    pub fn new(
        trigger: Trigger,
        connector: Arc<dyn Connector>,
        leadership: Arc<Leadership>,
        certificates: Arc<Certificates>,
    ) -> Self {
        Self { jobs: Mutex::default(), trigger, connector, leadership, leading_since: Mutex::default(), certificates }
    }

    /// Follows a JobManager, in place of an earlier one. With `None` the stream is closed, and its last report stays.
    pub fn follow(&self, job: &JobId, target: Option<Target>) {
        let mut jobs = lock(&self.jobs);
        match (jobs.get(job), target) {
            (Some(followed), None) => {
                followed.task.abort();
                let mut state = lock(&followed.state);
                state.client = None;
                state.unreachable_since = None;
            }
            (Some(followed), Some(target)) if followed.target == target && !followed.task.is_finished() => {}
            (_, Some(target)) => {
                let kept = jobs.remove(job).filter(|followed| followed.target.generation == target.generation);
                let state = kept.map(|followed| lock(&followed.state).of_another_address()).unwrap_or_default();
                let state = Arc::new(Mutex::new(state));
                let stream = Stream {
                    job: job.clone(),
                    target: target.clone(),
                    state: Arc::clone(&state),
                    trigger: self.trigger.clone(),
                };
                let task = tokio::spawn(stream.follow(Arc::clone(&self.connector), Arc::clone(&self.certificates)));
                jobs.insert(job.clone(), Followed { target, since: now(), state, task });
            }
            (None, None) => {}
        }
    }

    /// Forgets a StreamJob that is gone.
    pub fn forget(&self, job: &JobId) {
        self.certificates.forget(&job.uid);
        lock(&self.jobs).remove(job);
    }

    /// What is known of a generation's stream.
    #[must_use]
    pub fn view(&self, job: &JobId, generation: Generation) -> StreamView {
        let jobs = lock(&self.jobs);
        let Some(followed) = jobs.get(job).filter(|followed| followed.target.generation == generation) else {
            return StreamView::default();
        };
        let state = lock(&followed.state);
        StreamView {
            report: state.report.clone(),
            connected: state.client.is_some(),
            unreachable_since: state.unreachable_since,
            tried_since: Some(followed.since),
            why: state.why.clone(),
        }
    }

    /// Whether most of at least three streams are down (C1).
    #[must_use]
    pub fn mostly_unreachable(&self) -> bool {
        let jobs = lock(&self.jobs);
        let down = jobs.values().filter(|followed| lock(&followed.state).is_down()).count();
        let up = jobs.values().filter(|followed| lock(&followed.state).client.is_some()).count();
        down + up >= 3 && down > up
    }

    /// This replica leads from now on: it has heard nothing of what was before.
    pub fn lead(&self, now: Timestamp) {
        *lock(&self.leading_since) = now;
    }

    /// Since when this replica leads.
    #[must_use]
    pub fn leading_since(&self) -> Timestamp {
        *lock(&self.leading_since)
    }

    /// Forgets all: this replica does not lead any more.
    pub fn clear(&self) {
        self.certificates.clear();
        lock(&self.jobs).clear();
    }

    /// How many streams are up.
    #[must_use]
    pub fn connected(&self) -> usize {
        lock(&self.jobs).values().filter(|followed| lock(&followed.state).client.is_some()).count()
    }

    /// Asks the JobManager of `generation` for something; repeated with the same id it is done once. Nothing is
    /// asked while its stream is down, or by a replica that does not lead.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub async fn execute(
        &self,
        job: &JobId,
        generation: Generation,
        request_id: &str,
        command: &Command,
    ) -> Result<bool, ControlError> {
        let client = {
            let jobs = lock(&self.jobs);
            let followed = jobs.get(job).filter(|followed| followed.target.generation == generation);
            followed.and_then(|followed| lock(&followed.state).client.clone())
        };
        match client.filter(|_| self.leadership.is_leading()) {
            Some(client) => client.execute(generation, request_id, command).await,
            None => Ok(false),
        }
    }
}

/// One stream, as its task holds it.
struct Stream {
    job: JobId,
    target: Target,
    state: Arc<Mutex<State>>,
    trigger: Trigger,
}

impl Stream {
    /// Follows it for as long as somebody wants it.
    async fn follow(self, connector: Arc<dyn Connector>, certificates: Arc<Certificates>) {
        let Self { job, target, .. } = &self;
        let mut backoff = FIRST_BACKOFF;
        loop {
            match self.follow_once(&*connector, &certificates).await {
                Ok(()) => backoff = FIRST_BACKOFF,
                Err(error) => {
                    tracing::debug!(%job, generation = %target.generation, "status stream: {error}");
                    lock(&self.state).why = Some(problem_of(&error));
                }
            }
            let was_up = {
                let mut state = lock(&self.state);
                let was_up = state.client.take().is_some();
                if was_up {
                    state.unreachable_since = Some(now());
                }
                was_up
            };
            if was_up {
                self.notify();
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(LAST_BACKOFF);
        }
    }

    async fn follow_once(&self, connector: &dyn Connector, certificates: &Certificates) -> Result<(), ControlError> {
        let Self { job, target, .. } = self;
        let tls = certificates.of(&job.uid).filter(|_| target.tls);
        if target.tls && tls.is_none() {
            let message = "there is no certificate for this job yet".to_owned();
            let (address, problem) = (target.address.clone(), CertificateProblem::NotBelieved);
            return Err(ControlError::Certificate { address, problem, message });
        }
        let client = connector.connect(job, &target.address, tls).await?;
        let mut reports = client.watch(&self.job, self.target.generation).await?;
        while let Some(report) = reports.next().await {
            let report = report?;
            let news = {
                let mut state = lock(&self.state);
                // It counts as up from its first word: the report of an earlier stream may be long out of date.
                let news = state.client.is_none() || state.report.as_ref().map(essence) != Some(essence(&report));
                state.client.get_or_insert_with(|| Arc::clone(&client));
                state.unreachable_since = None;
                state.why = None;
                state.report = Some(report);
                news
            };
            if news {
                self.notify();
            }
        }
        Ok(())
    }

    fn notify(&self) {
        // The receiver is gone only when the controller ends.
        let _ = self.trigger.send(ObjectRef::new(&self.job.name).within(&self.job.namespace));
    }
}

fn problem_of(error: &ControlError) -> StreamProblem {
    let certificate = match error {
        ControlError::Certificate { problem, .. } => Some(*problem),
        _ => None,
    };
    StreamProblem { certificate, message: error.to_string() }
}

/// A report without what changes all the time and decides nothing.
fn essence(report: &JobStatus) -> JobStatus {
    let mut essence = report.clone();
    essence.pending_checkpoints.clear();
    essence.completed_checkpoints = 0;
    for task_manager in &mut essence.task_managers {
        task_manager.last_heard = Timestamp::default();
    }
    essence
}

/// A panic elsewhere must not stop the controller: the maps are whole at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
