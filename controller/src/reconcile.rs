//! One pass over one StreamJob: the steps in their order, and what happens when one fails.

use crate::apply::{ApplyError, apply, create_program, write_finalizer, write_status};
use crate::build::names;
use crate::context::Context;
use crate::facts::{Facts, Rejection, Role};
use crate::metrics::STREAM_JOB;
use crate::observe::{confirm, job_manager_target, observe};
use crate::passes::Action;
use crate::plan::{Finalizer, Occurrence, Plan, plan};
use crate::status::reason::listed;
use crate::status::{Due, build_status, due};
use crate::streams::Target;
use crate::unreadable;
use crate::watches::WatchedJob;
use kube::Resource;
use sluice_crds::{StreamJob, StreamJobState};
use sluice_protocol::{TimeSpan, Timestamp};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A pass without any cause, against what nobody thought of.
const RESYNC: Duration = Duration::from_secs(300);
/// A pass that takes longer is given up and tried again.
const PASS: Duration = Duration::from_secs(60);
/// When a JobManager that has not heard what it was asked is asked again, if nothing else happens.
const ASK_AGAIN: TimeSpan = TimeSpan::from_secs(5);
/// After a failure that has no longer waits of its own.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    /// Facts could not be read.
    #[error("cannot observe: {0}")]
    Observe(#[source] kube::Error),
    /// The plan could not be carried out.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// It took too long.
    #[error("the pass took longer than {} s; the API server or a JobManager does not answer", PASS.as_secs())]
    TimedOut,
}

impl ReconcileError {
    fn name(&self) -> &'static str {
        match self {
            Self::Observe(_) => "ObserveError",
            Self::Apply(error) => error.name(),
            Self::TimedOut => "TimedOut",
        }
    }
}

/// One pass, and what follows when it fails.
pub(crate) async fn make_pass(job: Arc<WatchedJob>, context: Arc<Context>) -> Action {
    let ended = reconcile(Arc::clone(&job), Arc::clone(&context)).await;
    ended.unwrap_or_else(|error| retry(job, &error, context))
}

/// One pass, timed.
pub(crate) async fn reconcile(job: Arc<WatchedJob>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let began = Instant::now();
    let ended = tokio::time::timeout(PASS, reconcile_watched(&job, &context)).await;
    context.metrics.observe_pass(STREAM_JOB, began.elapsed());
    ended.unwrap_or(Err(ReconcileError::TimedOut))
}

async fn reconcile_watched(job: &WatchedJob, context: &Context) -> Result<Action, ReconcileError> {
    match &job.0 {
        Ok(job) if job.metadata.deletion_timestamp.is_some() && !has_finalizer(job) => Ok(Action::await_change()),
        // The watch is about to bring what was written, which starts the next pass.
        Ok(job) if context.outdated.holds(&uid(job), &version(job)) => Ok(Action::requeue(RETRY)),
        Ok(job) => match context.backoff.remaining(&uid(job), spec_generation(job), crate::time::now()) {
            // What woke this pass is looked at then.
            Some(wait) => Ok(Action::requeue(wait.as_duration())),
            None => reconcile_job(job, context).await.inspect(|_| {
                context.backoff.forget(&uid(job));
                context.metrics.count_pass(STREAM_JOB, "ok");
            }),
        },
        Err(invalid) => {
            let message = format!("the StreamJob cannot be read: {}; is its CRD of another version?", invalid.error);
            tracing::warn!(name = invalid.metadata.name, "{message}");
            context.metrics.count_unreadable(STREAM_JOB);
            let occurrence = Occurrence::new(true, "Unreadable", message);
            context.events.tell_of(&job.object_ref(&()), &[occurrence]).await;
            unreadable::delete(job, context).await
        }
    }
}

/// When a failed pass is tried again.
fn retry(job: Arc<WatchedJob>, error: &ReconcileError, context: Arc<Context>) -> Action {
    let ReconcileError::Apply(error) = error else {
        context.metrics.count_pass(STREAM_JOB, error.name());
        tracing::warn!(name = job.meta().name, "{error}");
        return Action::requeue(RETRY);
    };
    if error.is_conflict() {
        context.metrics.count_pass(STREAM_JOB, "Conflict");
        return after_conflict(&context, &*job);
    }
    context.metrics.count_pass(STREAM_JOB, error.name());
    tracing::warn!(name = job.meta().name, "{error}");
    let occurrence = Occurrence::new(true, error.name(), error.to_string());
    let wait = context.backoff.failed(&uid(&*job), spec_generation(&*job), rejection(error), crate::time::now());
    context.events.tell_beside(job.object_ref(&()), vec![occurrence]);
    Action::requeue(wait.as_duration())
}

/// The cache is about to catch up.
pub(crate) fn after_conflict(context: &Context, object: &impl Resource) -> Action {
    Action::requeue(context.backoff.conflicted(&uid(object), &version(object)).as_duration())
}

pub(crate) fn uid(job: &impl Resource) -> String {
    job.meta().uid.clone().unwrap_or_default()
}

fn version(job: &impl Resource) -> String {
    job.meta().resource_version.clone().unwrap_or_default()
}

fn spec_generation(job: &impl Resource) -> i64 {
    job.meta().generation.unwrap_or_default()
}

async fn reconcile_job(job: &StreamJob, context: &Context) -> Result<Action, ReconcileError> {
    let (facts, plan) = decide(job, context).await?;
    context.streams.follow(&names::job_id(job), target(&facts, &plan));
    match plan.finalizer {
        // The StreamJob that comes back with it makes the next pass.
        Some(Finalizer::Put) if !context.planted.no_finalizer => {
            write_finalizer(&context.client, job, names::FINALIZER, true).await?;
            context.outdated.note(&uid(job), &version(job));
            return Ok(Action::await_change());
        }
        Some(Finalizer::Remove) => {
            apply(context, job, &plan, None).await?;
            write_finalizer(&context.client, job, names::FINALIZER, false).await?;
            // No later pass could tell it.
            context.events.tell_beside(job.object_ref(&()), plan.events);
            return Ok(Action::await_change());
        }
        Some(Finalizer::Put) | None => {}
    }
    let mut writer = StatusWriter { context, job: Cow::Borrowed(job), facts: &facts };
    let remember = !plan.memory.decides_like(&facts.memory);
    if let Err(error) = create_program(context, job, &plan).await {
        if !error.is_conflict() {
            let unchanged = Plan { memory: facts.memory.clone(), ..plan };
            writer.write_if_due(&with_problem(&unchanged, Some(rejection(&error)))).await?;
        }
        return Err(error.into());
    }
    if context.planted.acts_before_intent {
        carry_out(context, job, &facts, &plan).await?;
    }
    if remember {
        // What was refused before is wrong until it goes through.
        let refused = context.backoff.why(&uid(job), spec_generation(job));
        writer.write(&with_problem(&plan, refused)).await?;
        count_restarts(context, &plan);
    }
    let carried_out = carry_out(context, job, &facts, &plan).await;
    if let Err(error) = carried_out {
        if facts.deleting && error.is_namespace_going() {
            return let_go(context, &writer.job, facts.clone()).await;
        }
        if !error.is_conflict() {
            let mut told = with_problem(&plan, Some(rejection(&error)));
            if let Some(index) = error.unused_index(&plan.create) {
                told.memory.next_task_manager = index;
            }
            writer.write_if_due(&told).await?;
        }
        return Err(error.into());
    }
    let due = writer.write_if_due(&plan).await?;
    if due == Due::Now || remember {
        context.events.tell_beside(job.object_ref(&()), occurrences(&facts, &plan));
    }
    let renewal = carried_out.ok().flatten();
    Ok(next_pass_of(&facts, &plan, due, renewal))
}

/// Each once: what is remembered with them is written, and the next pass starts from it.
fn count_restarts(context: &Context, plan: &Plan) {
    for (cause, times) in &plan.restarts {
        context.metrics.count_restarts(listed(cause, "").0.as_str(), *times);
    }
}

/// Certificates first, where pods are made that need them, then the plan; pods that run have theirs, so that one which
/// cannot be renewed holds up no other work. Returns when certificates are due, or a JobManager is to be asked again.
pub(crate) async fn carry_out(
    context: &Context,
    job: &StreamJob,
    facts: &Facts,
    plan: &Plan,
) -> Result<Option<Timestamp>, ApplyError> {
    let makes = !plan.create.is_empty();
    let speaks = facts.pods.iter().any(|pod| pod.tls && pod.ended.is_none());
    // A Secret that goes with its namespace is not made again, unless there is no other way to ask for the job's end.
    let is_done = facts.deleting && context.certificates.of(&uid(job)).is_some();
    let mut renewal = Ok(None);
    if makes || (speaks && !is_done) {
        // What is remembered may be wrong where the JobManager does not believe it.
        let doubtful = facts.stream_problem.as_ref().is_some_and(|problem| problem.certificate.is_some());
        renewal = context.certificates.ensure(&context.client, job, makes || doubtful).await.map(Some);
    }
    if makes && renewal.is_err() {
        return renewal;
    }
    let plain = facts.pods.iter().find(|pod| pod.role == Role::JobManager && !pod.tls && pod.ended.is_none());
    let is_heard = apply(context, job, plan, plain.map(|pod| pod.generation)).await?;
    let again = (!is_heard).then(|| facts.now.plus(ASK_AGAIN));
    renewal.map(|renewal| [renewal, again].into_iter().flatten().min())
}

/// The namespace goes too, and with it all pods: a closer cannot be made, and nothing is waited for.
async fn let_go(context: &Context, job: &StreamJob, facts: Facts) -> Result<Action, ReconcileError> {
    let plan = plan(&Facts { namespace_goes: true, ..facts });
    apply(context, job, &plan, None).await?;
    write_finalizer(&context.client, job, names::FINALIZER, false).await?;
    Ok(Action::await_change())
}

/// Writes statuses of one pass, each over the one before.
struct StatusWriter<'a> {
    context: &'a Context,
    job: Cow<'a, StreamJob>,
    facts: &'a Facts,
}

impl StatusWriter<'_> {
    async fn write(&mut self, plan: &Plan) -> Result<(), ApplyError> {
        let status = build_status(&self.job, self.facts, plan);
        if self.context.planted.overwrites_status {
            self.job.to_mut().metadata.resource_version = None;
        }
        let written = write_status(&self.context.client, &*self.job, &status).await?;
        // One that changed nothing has the version that it had.
        if version(&written) != version(&*self.job) {
            self.context.outdated.note(&uid(&*self.job), &version(&*self.job));
        }
        self.job = Cow::Owned(written);
        self.context.metrics.count_status_write(STREAM_JOB);
        Ok(())
    }

    async fn write_if_due(&mut self, plan: &Plan) -> Result<Due, ApplyError> {
        let status = build_status(&self.job, self.facts, plan);
        let due = due(self.job.status.as_ref(), &status, self.facts.now);
        if due == Due::Now {
            self.write(plan).await?;
        }
        Ok(due)
    }
}

fn rejection(error: &ApplyError) -> Rejection {
    Rejection { reason: error.name().to_owned(), message: error.to_string() }
}

/// The plan, telling what the API server has refused where nothing else is wrong.
fn with_problem(plan: &Plan, refused: Option<Rejection>) -> Plan {
    let mut plan = plan.clone();
    let view = &mut plan.view;
    if let (None, Some(refused)) = (&view.degraded, refused) {
        if !view.ready {
            view.reason.clone_from(&refused.reason);
            view.message.clone_from(&refused.message);
        }
        view.degraded = Some(refused);
    }
    plan
}

fn has_finalizer(job: &StreamJob) -> bool {
    job.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::FINALIZER)
}

/// A plan that acts rests on pods as they are, not as a cache remembers them.
async fn decide(job: &StreamJob, context: &Context) -> Result<(Facts, Plan), ReconcileError> {
    let facts = observe(context, job).await.map_err(ReconcileError::Observe)?;
    let first = plan(&facts);
    if !first.acts() && first.memory.decides_like(&facts.memory) {
        return Ok((facts, first));
    }
    let facts = confirm(context, job, facts).await.map_err(ReconcileError::Observe)?;
    let plan = plan(&facts);
    Ok((facts, plan))
}

/// The JobManager to follow: that of the generation that is remembered after the plan, while its pod lives.
pub(crate) fn target(facts: &Facts, plan: &Plan) -> Option<Target> {
    job_manager_target(facts).filter(|target| target.generation == plan.memory.generation)
}

/// What the plan tells, and a change of the state or of what is wrong: of each attempt once, so that no event counts
/// what happened to an earlier one.
fn occurrences(facts: &Facts, plan: &Plan) -> Vec<Occurrence> {
    let mut occurrences = plan.events.clone();
    let view = &plan.view;
    let changed = view.state != facts.told.state || view.reason != facts.told.reason;
    if let (true, Some(state)) = (changed, view.state) {
        let warning = view.degraded.is_some();
        let reason = if warning { view.reason.clone() } else { format!("{state:?}") };
        let message = describe_change(state, plan);
        if !occurrences.iter().any(|other| other.reason == reason || other.message == message) {
            let attempt = facts.report.as_ref().map(|report| report.attempt).unwrap_or_default();
            let action = format!("Generation{}Attempt{attempt}", plan.memory.generation);
            occurrences.push(Occurrence { action, ..Occurrence::new(warning, &reason, message) });
        }
    }
    occurrences.extend(new_problem(facts, plan).filter(|problem| {
        !occurrences.iter().any(|other| other.reason == problem.reason || other.message.contains(&problem.message))
    }));
    occurrences
}

/// What has become wrong with a job whose state stays what it was: nobody looks at the conditions of one that runs.
fn new_problem(facts: &Facts, plan: &Plan) -> Option<Occurrence> {
    let wrong = plan.view.degraded.as_ref()?;
    let is_told = facts.told.degraded.as_ref().is_some_and(|told| told.reason == listed(&wrong.reason, "").0.as_str());
    let action = format!("Generation{}", plan.memory.generation);
    (!is_told).then(|| Occurrence { action, ..Occurrence::new(true, &wrong.reason, wrong.message.clone()) })
}

fn describe_change(state: StreamJobState, plan: &Plan) -> String {
    let words = if plan.view.message.is_empty() { describe(state) } else { &plan.view.message };
    match (state, &plan.memory.restored_from) {
        (StreamJobState::Running, Some(checkpoint)) => format!("{words}, restored from checkpoint {}", checkpoint.id),
        _ => words.to_owned(),
    }
}

const fn describe(state: StreamJobState) -> &'static str {
    match state {
        StreamJobState::Starting => "the job starts",
        StreamJobState::Running => "all tasks run",
        StreamJobState::Restarting => "the job restarts",
        StreamJobState::Finishing => "all input was read",
        StreamJobState::Stopping => "the job stops",
        StreamJobState::Finished => "all results are out",
        StreamJobState::Suspended => "the job is suspended",
        StreamJobState::Cancelled => "the job was cancelled",
        StreamJobState::Failed => "the job has failed",
        StreamJobState::Invalid => "the job waits for a change of its spec",
    }
}

/// The time until the next pass: at `at`, or when nothing else causes one.
pub(crate) fn next_pass(now: Timestamp, at: Option<Timestamp>) -> Action {
    let wait = at.map_or(RESYNC, |at| at.since(now).as_duration().max(Duration::from_millis(10)));
    Action::requeue(wait.min(RESYNC))
}

fn next_pass_of(facts: &Facts, plan: &Plan, due: Due, renewal: Option<Timestamp>) -> Action {
    let status = match due {
        Due::At(at) => Some(at),
        Due::Never | Due::Now => None,
    };
    // Long enough after the first sign for the planner to call a pod, or its node, lost.
    let looks = facts
        .pods
        .iter()
        .filter_map(|pod| pod.unready_since)
        .flat_map(|since| [6, 21, 31].map(|seconds| since.plus(TimeSpan::from_secs(seconds))));
    let unready = looks.filter(|at| *at > facts.now).min();
    next_pass(facts.now, [plan.wake_at, status, unready, renewal].into_iter().flatten().min())
}

#[cfg(test)]
mod tests;
