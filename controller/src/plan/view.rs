//! What a plan tells: the state, and what the conditions say.

use super::Planner;
use super::revision::spec_warnings;
use crate::facts::{Facts, PodFacts, Rejection, StreamProblem};
use sluice_crds::StreamJobState;
use sluice_protocol::job_master::TOLD_ONCE;
use sluice_protocol::status::{JobState, JobStatus};
use sluice_protocol::{TimeSpan, Timestamp};
use sluice_rpc::tls::{CertificateProblem, EXPIRED};

/// A stream that is down for longer is told of; a JobManager that restarts is not that slow.
const SILENT: TimeSpan = TimeSpan::from_secs(10);

/// So is one that never came up; who begins to lead opens those of all jobs at once.
const UNHEARD: TimeSpan = TimeSpan::from_secs(60);

/// A pod whose containers are not created after this time is told of.
const SLOW: TimeSpan = TimeSpan::from_secs(30);

/// What is told of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// State.
    pub state: Option<StreamJobState>,
    /// CamelCase reason of the state.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// Whether all tasks run.
    pub ready: bool,
    /// Whether the job is on its way to another state.
    pub progressing: bool,
    /// What is wrong, when something is.
    pub degraded: Option<Rejection>,
    /// When the JobManager restarts the tasks, while it waits for it.
    pub next_restart_at: Option<Timestamp>,
}

impl View {
    pub(super) fn progressing(state: StreamJobState, reason: &str, message: &str) -> Self {
        Self {
            state: Some(state),
            reason: reason.to_owned(),
            message: message.to_owned(),
            progressing: true,
            ..Self::default()
        }
    }

    pub(crate) fn ended(state: StreamJobState, reason: &str, message: &str) -> Self {
        let wrong = matches!(state, StreamJobState::Failed | StreamJobState::Invalid);
        Self {
            state: Some(state),
            reason: reason.to_owned(),
            message: message.to_owned(),
            degraded: wrong.then(|| Rejection { reason: reason.to_owned(), message: message.to_owned() }),
            ..Self::default()
        }
    }
}

impl Planner<'_> {
    /// What a living JobManager reports, with what Kubernetes and validation have to add.
    pub(super) fn running_view(&self) -> View {
        let mut view = match &self.facts.report {
            Some(report) => self.reported_view(report),
            None => self
                .retained_view()
                .unwrap_or_else(|| View::progressing(self.state_without_report(), "Starting", "the JobManager starts")),
        };
        let generation = self.facts.memory.generation;
        let problem = || {
            let mut pods = self.facts.pods.iter().filter(|pod| pod.generation == generation && pod.is_alive());
            pods.find_map(|pod| pod.problem.clone().or_else(|| self.is_created_slowly(pod)))
        };
        let rejected = || self.facts.program.as_ref().err().cloned();
        view = self.on_trial(view);
        view.degraded = view
            .degraded
            .or_else(problem)
            .or_else(|| self.held.clone())
            .or_else(rejected)
            .or_else(|| self.unknown_program())
            .or_else(|| self.rolled_back());
        if self.silent_since().is_some_and(|since| self.facts.now.since(since) >= self.patience()) {
            let why = self.facts.stream_problem.as_ref().map(|why| format!(": {}", why.message)).unwrap_or_default();
            let known = match self.facts.report {
                Some(_) => "what is told is what it reported last",
                None => "nothing is known of how the job is",
            };
            let message = format!("the JobManager's status stream is down; {known}{why}");
            view.ready = false;
            view.degraded = Some(Rejection { reason: "JobManagerUnreachable".to_owned(), message });
        }
        // Waiting does not help: it is told at once.
        let has_expired = |why: &&StreamProblem| why.certificate == Some(CertificateProblem::Expired);
        if let Some(why) = self.facts.stream_problem.as_ref().filter(has_expired) {
            view.ready = false;
            view.degraded = Some(Rejection { reason: EXPIRED.to_owned(), message: why.message.clone() });
        }
        if let (false, Some(wrong)) = (view.ready, &view.degraded) {
            view.reason.clone_from(&wrong.reason);
            view.message.clone_from(&wrong.message);
        }
        view
    }

    /// How long a silent JobManager is not told of.
    pub(super) const fn patience(&self) -> TimeSpan {
        if self.facts.unreachable_since.is_some() { SILENT } else { UNHEARD }
    }

    /// Who has just begun to lead has not heard the JobManagers that were up before: what was told of a job that ran holds
    /// until they have had the time to speak.
    fn retained_view(&self) -> Option<View> {
        let Facts { told, leading_since, now, memory, .. } = self.facts;
        let was_up = self.job_manager()?.ready_since? < *leading_since;
        let ran = told.generation == memory.generation && told.state == Some(StreamJobState::Running);
        (was_up && ran && now.since(*leading_since) < UNHEARD).then(|| View {
            state: told.state,
            reason: told.reason.clone(),
            message: told.message.clone(),
            ready: told.ready,
            progressing: !told.ready,
            degraded: told.degraded.clone(),
            next_restart_at: None,
        })
    }

    /// The kubelet says in an event alone what a volume lacks.
    fn is_created_slowly(&self, pod: &PodFacts) -> Option<Rejection> {
        let waits = !pod.started && self.facts.now.since(pod.created_at) >= SLOW;
        let message = format!(
            "pod {}: has waited for more than {SLOW} for its image, or for a Secret or ConfigMap that a volume names; `kubectl \
             describe pod {}` tells",
            pod.name, pod.name
        );
        waits.then(|| Rejection { reason: "ContainerCreating".to_owned(), message })
    }

    /// When a pod that starts is next looked at.
    pub(super) fn next_slow_start(&self) -> Option<Timestamp> {
        let starting = self.facts.pods.iter().filter(|pod| pod.is_alive() && !pod.started);
        starting.map(|pod| pod.created_at.plus(SLOW)).filter(|at| *at > self.facts.now).min()
    }

    /// Before the JobManager's stream is up, a job that was restarting still is.
    fn state_without_report(&self) -> StreamJobState {
        match self.facts.told.state {
            Some(StreamJobState::Restarting | StreamJobState::Running) => self.starting_again(),
            _ => StreamJobState::Starting,
        }
    }

    /// A job restarts when it has run or failed before, under this revision; else it starts.
    pub(super) fn starting_again(&self) -> StreamJobState {
        let has_failed = self.plan.memory.failures.total() > 0;
        if self.has_run() || has_failed { StreamJobState::Restarting } else { StreamJobState::Starting }
    }

    fn reported_view(&self, report: &JobStatus) -> View {
        let state = match report.state {
            JobState::Starting if report.attempt.0 > 1 => StreamJobState::Restarting,
            JobState::Starting => StreamJobState::Starting,
            JobState::Running => StreamJobState::Running,
            JobState::Restarting => StreamJobState::Restarting,
            JobState::Finishing => StreamJobState::Finishing,
            // The pod's exit record tells the end; until it is there the job is about to end.
            JobState::Stopping | JobState::Stopped | JobState::Cancelled | JobState::Failed => StreamJobState::Stopping,
            JobState::Finished => StreamJobState::Finishing,
        };
        let ready = report.state == JobState::Running;
        View {
            state: Some(state),
            reason: format!("{state:?}"),
            message: report.message.clone(),
            ready,
            progressing: !ready,
            degraded: self.reported_problem(report),
            next_restart_at: report.next_restart_at,
        }
    }

    fn reported_problem(&self, report: &JobStatus) -> Option<Rejection> {
        let failing = report.failed_checkpoints_in_a_row;
        if failing > 0 {
            let message = format!("the last {failing} checkpoints have failed: {}", report.message);
            return Some(Rejection { reason: "CheckpointsFail".to_owned(), message });
        }
        if report.state == JobState::Restarting {
            let failure = &report.failures.first()?.failure;
            return Some(Rejection { reason: failure.reason.clone(), message: failure.message.clone() });
        }
        // What the spec says in vain, that operators are new or that output is written again, was told when the revision
        // began, and is nothing that is wrong with the job.
        let of_spec = self.spec().map(spec_warnings).unwrap_or_default();
        let is_told = |reason: &str| TOLD_ONCE.contains(&reason) || of_spec.iter().any(|(told, _)| *told == reason);
        let notice = report.notices.iter().find(|notice| !is_told(&notice.reason))?;
        Some(Rejection { reason: notice.reason.clone(), message: notice.message.clone() })
    }
}
