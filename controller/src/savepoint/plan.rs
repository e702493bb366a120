//! Facts to a plan for one Savepoint. Pure.
//!
//! `Pending` until the job runs; then the request gets its id, which is written to the status before the JobManager is
//! asked, and `InProgress` until the answer is in its report. A request is repeated under its id until the report shows
//! it, so neither a lost call nor a lost JobManager loses it, and none is carried out twice (K4). Every wait has an end.

use super::facts::{Facts, JobFacts};
use crate::plan::Occurrence;
use crate::time::{from_micro_time, to_micro_time};
use sluice_crds::{SavepointPhase, SavepointStatus, SnapshotKind, StreamJobState};
use sluice_protocol::failure::{Failure, Fault};
use sluice_protocol::job_master::{Command, SavepointRequest};
use sluice_protocol::ledger::SavepointKind;
use sluice_protocol::status::{CheckpointInfo, RequestState, RequestStatus};
use sluice_protocol::{Generation, TimeSpan, Timestamp};

/// How long a StreamJob is waited for that is not there yet: it may be in the same `kubectl apply`.
const JOB_GRACE: TimeSpan = TimeSpan::from_secs(60);
/// How often a JobManager is asked again until its report shows the request.
const ASK_AGAIN: TimeSpan = TimeSpan::from_secs(2);
/// How long the answer may take beyond the timeout: a lost JobManager is replaced meanwhile.
const ANSWER_GRACE: TimeSpan = TimeSpan::from_secs(300);
/// Before the first repetition; doubled by each.
const FIRST_BACKOFF: TimeSpan = TimeSpan::from_secs(10);
/// Between two repetitions at most.
const LAST_BACKOFF: TimeSpan = TimeSpan::from_secs(360);

/// Why a Savepoint is where it is: the reasons of its conditions and events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There is no StreamJob of that name yet.
    JobNotFound,
    /// The StreamJob does not run yet.
    JobNotRunning,
    /// The JobManager cannot be reached now.
    JobManagerUnreachable,
    /// The JobManager was asked.
    Requested,
    /// A try has failed and is repeated.
    Retrying,
    /// It is there.
    Succeeded,
    /// Trying again does not help.
    Refused,
    /// Too many tries have failed.
    BackoffLimitExceeded,
    /// It took too long.
    DeadlineExceeded,
    /// The StreamJob was deleted.
    JobGone,
    /// The StreamJob has ended.
    JobEnded,
}

/// What is to be done about one Savepoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What to remember and tell, but for the conditions; written before anything is asked.
    pub status: SavepointStatus,
    /// Why; `None` when nothing is decided any more.
    pub reason: Option<Reason>,
    /// What to ask of the JobManager.
    pub ask: Option<Ask>,
    /// When to look again at the latest.
    pub wake_at: Option<Timestamp>,
}

impl Plan {
    /// What an event tells, when the phase or the number of failures has changed.
    #[must_use]
    pub fn occurrence(&self, before: &SavepointStatus) -> Option<Occurrence> {
        let reason = self.reason?;
        let SavepointStatus { phase, failures, message, .. } = &self.status;
        if *phase == before.phase && *failures == before.failures {
            return None;
        }
        let warning =
            matches!(phase, Some(SavepointPhase::Failed | SavepointPhase::Abandoned)) || reason == Reason::Retrying;
        Some(Occurrence::new(warning, &format!("{reason:?}"), message.clone().unwrap_or_default()))
    }
}

/// Something to ask of a JobManager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Whose.
    pub generation: Generation,
    /// The request's id.
    pub id: String,
    /// What.
    pub command: Command,
}

/// Decides.
#[must_use]
pub fn plan(facts: &Facts) -> Plan {
    let status = SavepointStatus { observed_generation: Some(facts.generation), ..facts.status.clone() };
    let mut planner = Planner { facts, plan: Plan { status, reason: None, ask: None, wake_at: None } };
    match facts.status.phase.unwrap_or_default() {
        SavepointPhase::Pending => planner.pending(),
        SavepointPhase::InProgress => planner.in_progress(),
        SavepointPhase::Completed | SavepointPhase::Failed | SavepointPhase::Abandoned => {}
    }
    planner.plan
}

struct Planner<'a> {
    facts: &'a Facts,
    plan: Plan,
}

impl Planner<'_> {
    /// The job does not run yet, or a try is to be repeated.
    fn pending(&mut self) {
        let Facts { now, created_at, spec, status, job, .. } = self.facts;
        let Some(job) = job.as_ref().filter(|job| !self.is_another(job)) else { return self.without_job() };
        self.plan.status.job_uid = Some(job.uid.clone());
        if job.state.is_some_and(StreamJobState::is_terminal) {
            return self.abandon_ended(job);
        }
        let next_try = status.next_try_at.as_ref().map(from_micro_time);
        let deadline = next_try.unwrap_or_default().max(*created_at).plus(spec.timeout);
        if *now >= deadline {
            let message = format!("StreamJob '{}' was not Running for {}: {}", spec.job, spec.timeout, describe(job));
            return self.end(SavepointPhase::Failed, Reason::DeadlineExceeded, message);
        }
        if let Some(at) = next_try.filter(|at| at > now) {
            let error = status.error.clone().unwrap_or_default();
            self.tell(SavepointPhase::Pending, Reason::Retrying, format!("it is tried again after a failure: {error}"));
            return self.wake_at(at);
        }
        if job.state != Some(StreamJobState::Running) {
            let message = format!("waits for StreamJob '{}' to be Running: {}", spec.job, describe(job));
            self.tell(SavepointPhase::Pending, Reason::JobNotRunning, message);
            return self.wake_at(deadline);
        }
        if !job.connected {
            let message = format!("the JobManager of StreamJob '{}' cannot be reached now", spec.job);
            self.tell(SavepointPhase::Pending, Reason::JobManagerUnreachable, message);
            return self.wake_at(deadline);
        }
        self.begin(job);
    }

    fn is_another(&self, job: &JobFacts) -> bool {
        self.facts.status.job_uid.as_ref().is_some_and(|uid| *uid != job.uid)
    }

    fn without_job(&mut self) {
        let Facts { now, created_at, spec, status, .. } = self.facts;
        if status.job_uid.is_some() {
            let message = format!("StreamJob '{}' was deleted before the snapshot was taken", spec.job);
            return self.end(SavepointPhase::Abandoned, Reason::JobGone, message);
        }
        let deadline = created_at.plus(JOB_GRACE.min(spec.timeout));
        if *now >= deadline {
            let message = format!("there is no StreamJob '{}' in this namespace", spec.job);
            return self.end(SavepointPhase::Abandoned, Reason::JobNotFound, message);
        }
        let message = format!("waits for StreamJob '{}', which is not there", spec.job);
        self.tell(SavepointPhase::Pending, Reason::JobNotFound, message);
        self.wake_at(deadline);
    }

    fn abandon_ended(&mut self, job: &JobFacts) {
        let message = format!(
            "StreamJob '{}' has ended, and only a running job can take a snapshot: {}",
            self.facts.spec.job,
            describe(job)
        );
        self.end(SavepointPhase::Abandoned, Reason::JobEnded, message);
    }

    /// Ids begin with the time, so that the ledger can tell one that it has forgotten from one that is new.
    fn begin(&mut self, job: &JobFacts) {
        let Facts { now, uid, spec, .. } = self.facts;
        let id = format!("{}-{uid}", now.0);
        self.plan.status.request_id = Some(id.clone());
        self.plan.status.triggered_at = Some(to_micro_time(*now));
        self.plan.status.next_try_at = None;
        let message = format!("asked of the JobManager of generation {} of StreamJob '{}'", job.generation, spec.job);
        self.tell(SavepointPhase::InProgress, Reason::Requested, message);
        self.ask(job, id);
    }

    fn ask(&mut self, job: &JobFacts, id: String) {
        let Facts { now, spec, .. } = self.facts;
        let command = match spec.kind {
            SnapshotKind::Checkpoint => Command::TriggerCheckpoint { id: id.clone() },
            SnapshotKind::Savepoint => Command::Savepoint(SavepointRequest {
                id: id.clone(),
                kind: SavepointKind::Savepoint,
                directory: spec.directory.clone(),
                timeout: spec.timeout,
            }),
        };
        self.plan.ask = Some(Ask { generation: job.generation, id, command });
        self.wake_at(now.plus(ASK_AGAIN));
    }

    /// The JobManager was asked, or is about to be.
    fn in_progress(&mut self) {
        let Facts { now, spec, status, job, .. } = self.facts;
        let (Some(id), Some(since)) = (status.request_id.clone(), status.triggered_at.as_ref().map(from_micro_time))
        else {
            // Not as this controller writes it: asked anew.
            return self.tell(SavepointPhase::Pending, Reason::Retrying, "its request was not noted".to_owned());
        };
        let job = job.as_ref().filter(|job| !self.is_another(job));
        let answer = job.and_then(|job| job.answer(&id)).cloned();
        match (job, answer) {
            (None, _) => return self.without_job(),
            (_, Some(answer)) if answer.state != RequestState::Pending => return self.answered(answer),
            (Some(job), _) if job.state.is_some_and(StreamJobState::is_terminal) => return self.abandon_ended(job),
            (Some(job), None) if job.connected => self.ask(job, id),
            _ => {}
        }
        let deadline = since.plus(spec.timeout).plus(ANSWER_GRACE);
        if *now >= deadline {
            let message = format!(
                "no answer within {} and {ANSWER_GRACE} more; the job's ledger may hold the snapshot all the same: look \
                 with `sluice checkpoint list`",
                spec.timeout
            );
            return self.end(SavepointPhase::Failed, Reason::DeadlineExceeded, message);
        }
        self.plan.reason = Some(Reason::Requested);
        self.wake_at(deadline);
    }

    fn answered(&mut self, answer: RequestStatus) {
        match (answer.state, answer.path) {
            (RequestState::Completed, Some(path)) => self.complete(path, answer.snapshot),
            _ => self.failed(&answer.failure.unwrap_or_else(|| {
                Failure::user("NoReason", "the JobManager gave up and did not say why; its log may".to_owned())
            })),
        }
    }

    fn complete(&mut self, path: String, snapshot: Option<CheckpointInfo>) {
        let message = format!("taken: {path}");
        self.end(SavepointPhase::Completed, Reason::Succeeded, message);
        let asked_at = self.facts.status.triggered_at.as_ref().map(from_micro_time);
        let status = &mut self.plan.status;
        status.path = Some(path);
        status.error = None;
        status.duration = asked_at.map(|at| self.facts.now.since(at).to_string());
        if let Some(CheckpointInfo { triggered_at, completed_at, bytes, .. }) =
            snapshot.filter(|it| it.completed_at.0 > 0)
        {
            status.bytes = Some(bytes);
            status.size = Some(human_size(bytes));
            status.triggered_at = Some(to_micro_time(triggered_at));
            status.completed_at = Some(to_micro_time(completed_at));
            status.duration = Some(completed_at.since(triggered_at).to_string());
        }
    }

    /// What passes by itself is tried again, without being counted where nothing was tried.
    fn failed(&mut self, failure: &Failure) {
        let Facts { now, spec, status, .. } = self.facts;
        let error = format!("{}: {}", failure.reason, failure.message);
        self.plan.status.error = Some(error.clone());
        if matches!(failure.reason.as_str(), "JobEnding" | "JobEnded" | "TooManyRequests") {
            return self.try_again(now.plus(FIRST_BACKOFF), &error);
        }
        let failures = status.failures.unwrap_or_default().saturating_add(1);
        self.plan.status.failures = Some(failures);
        if failure.reason == "SavepointExpired" {
            self.end(SavepointPhase::Failed, Reason::DeadlineExceeded, error);
        } else if failure.fault == Fault::User {
            self.end(SavepointPhase::Failed, Reason::Refused, error);
        } else if failures > spec.backoff_limit {
            let message = format!("{failures} tries have failed, the last with {error}");
            self.end(SavepointPhase::Failed, Reason::BackoffLimitExceeded, message);
        } else {
            let backoff = FIRST_BACKOFF.0 << (failures - 1).min(8);
            self.try_again(now.plus(TimeSpan(backoff).min(LAST_BACKOFF)), &error);
        }
    }

    fn try_again(&mut self, at: Timestamp, error: &str) {
        self.plan.status.next_try_at = Some(to_micro_time(at));
        self.plan.status.request_id = None;
        self.plan.status.triggered_at = None;
        self.tell(SavepointPhase::Pending, Reason::Retrying, format!("it is tried again after a failure: {error}"));
        self.wake_at(at);
    }

    fn end(&mut self, phase: SavepointPhase, reason: Reason, message: String) {
        self.tell(phase, reason, message);
        self.plan.ask = None;
        self.plan.wake_at = None;
        let status = &mut self.plan.status;
        status.next_try_at = None;
        status.completed_at = Some(to_micro_time(self.facts.now));
        if phase != SavepointPhase::Completed && status.error.is_none() {
            status.error.clone_from(&status.message);
        }
    }

    fn tell(&mut self, phase: SavepointPhase, reason: Reason, message: String) {
        self.plan.status.phase = Some(phase);
        self.plan.status.message = Some(message);
        self.plan.reason = Some(reason);
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.plan.wake_at = Some(self.plan.wake_at.map_or(at, |other| other.min(at)));
    }
}

fn describe(job: &JobFacts) -> String {
    match (job.state, job.message.as_str()) {
        (None, _) => "it has not been started".to_owned(),
        (Some(state), "") => format!("it is {state:?}"),
        (Some(state), message) => format!("it is {state:?}: {message}"),
    }
}

/// With a unit of powers of 1024 and at most one digit after the point.
fn human_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let Some(unit) = (1..=units.len()).rev().find(|power| bytes >> (10 * power) > 0) else {
        return format!("{bytes}B");
    };
    let tenths = u128::from(bytes) * 10 / (1 << (10 * unit));
    let fraction = if tenths % 10 == 0 { String::new() } else { format!(".{}", tenths % 10) };
    format!("{}{fraction}{}", tenths / 10, units[unit - 1])
}

#[cfg(test)]
pub(crate) mod tests;
