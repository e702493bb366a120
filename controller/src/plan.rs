//! Step 3: facts to a plan. Pure: no client, no clock, no randomness.
//!
//! A job is in one of four situations, told by its status: it is being deleted ([`Planner::delete`]), it has no
//! generation yet ([`Planner::first`]), it has ended and rests until its spec changes ([`Planner::rest`]), or it is active
//! ([`Planner::active`]). An active one runs, is being stopped (to be suspended, or because its spec changed), or has lost
//! its JobManager. docs/operator.md tells the phases of a change.
//!
//! The files: `change` the class of a change; `fate` what became of the JobManager; `active` what follows; `hold` whether
//! a change begins, or waits; `stop` its first phase; `stopped` what follows; `close` the pods that end a job in the place of
//! its JobManager; `revision` new revisions, generations and directives (N2, N3); `trial` until a revision is stable, and
//! back; `deletion` the end; `dispose` savepoints after it; `ended` pods that have ended; `view` what is told.

mod active;
pub mod change;
mod close;
mod deletion;
mod dispose;
mod ended;
mod fate;
mod hold;
mod revision;
mod stop;
mod stopped;
mod trial;
mod view;

use crate::facts::{Facts, Memory, PodFacts, Program, Rejection, Role, Stop};
use change::{Change, classify};
use fate::Fate;
use sluice_crds::{StopCause, StreamJobSpec, StreamJobState, UsedRestore};
use sluice_protocol::failure::ExitRecord;
use sluice_protocol::job_master::{Command, NOTHING_BEGUN, STARTS_EMPTY, StartFrom, TOLD_ONCE};
use sluice_protocol::options::{DesiredState, RestoreSpec};
use sluice_protocol::status::{JobState, JobStatus};
use sluice_protocol::{Generation, Timestamp};
use std::collections::BTreeMap;

pub use deletion::DELETION_REQUEST;
pub use view::View;

/// Places of `restore` that are remembered as used.
const USED_RESTORES: usize = 16;

/// What is to be done about one StreamJob.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What to remember; written before anything else is done when it differs from what was remembered (C2).
    pub memory: Memory,
    /// What to tell.
    pub view: View,
    /// The frozen program to keep in a ConfigMap.
    pub program: Option<Program>,
    /// The generation that the Service must select.
    pub service: Option<Generation>,
    /// Pods to create, built from this spec.
    pub create: Vec<PodPlan>,
    /// The frozen spec that pods are built from.
    pub spec: Option<StreamJobSpec>,
    /// Pods to delete.
    pub delete: Vec<ObjectIdentity>,
    /// ConfigMaps of revisions that nothing runs any more.
    pub delete_programs: Vec<ObjectIdentity>,
    /// What to ask of the JobManager of `memory.generation`.
    pub command: Option<Command>,
    /// The JobManager that was just found to be lost.
    pub lost: Option<LostJobManager>,
    /// Restarts that no pass before has seen, by cause: counted when what is remembered is written.
    pub restarts: BTreeMap<String, u64>,
    /// What becomes of the finalizer: put before anything is made, removed as the last thing.
    pub finalizer: Option<Finalizer>,
    /// When to look again at the latest.
    pub wake_at: Option<Timestamp>,
    /// What happened, for events.
    pub events: Vec<Occurrence>,
}

impl Plan {
    /// Whether it changes Kubernetes objects or what is remembered, so that it must rest on live facts.
    #[must_use]
    pub fn acts(&self) -> bool {
        let Self { program, service, create, delete, delete_programs, finalizer, .. } = self;
        let deletes = !delete.is_empty() || !delete_programs.is_empty() || finalizer.is_some();
        program.is_some() || service.is_some() || !create.is_empty() || deletes
    }
}

/// A JobManager that is lost, when it is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostJobManager {
    /// Its generation.
    pub generation: Generation,
    /// How it was lost.
    pub cause: Rejection,
    /// Whose fault, in the words of [`sluice_protocol::failure::Fault`].
    pub fault: &'static str,
    /// Its pod, when that is known.
    pub pod: Option<String>,
}

/// What becomes of the finalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalizer {
    /// It is put: the job will have something to end.
    Put,
    /// It is removed: nothing of the job runs any more.
    Remove,
}

/// A pod to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlan {
    /// What for.
    pub role: Role,
    /// Its generation.
    pub generation: Generation,
    /// Its revision.
    pub revision: u64,
    /// The ConfigMap with the frozen manifest.
    pub config_map: String,
    /// JSON of the directive (N3).
    pub directive: String,
    /// JSON of the failures counted under this revision (F1).
    pub failures: String,
    /// The image.
    pub image: String,
}

/// An object to delete: exactly this one, not another of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// Name.
    pub name: String,
    /// uid.
    pub uid: String,
    /// The resourceVersion that it must still have, where what is used again changes it.
    pub version: Option<String>,
}

/// Something that an event tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occurrence {
    /// Whether it is a warning.
    pub warning: bool,
    /// CamelCase.
    pub reason: String,
    /// What tells it from another of the same reason: those with the same action are counted as one event.
    pub action: String,
    /// A sentence.
    pub message: String,
}

impl Occurrence {
    /// One that is counted when it happens again.
    #[must_use]
    pub fn new(warning: bool, reason: &str, message: String) -> Self {
        Self { warning, reason: reason.to_owned(), action: "Reconcile".to_owned(), message }
    }
}

/// Decides.
#[must_use]
pub fn plan(facts: &Facts) -> Plan {
    let mut planner = Planner::new(facts);
    planner.absorb_report();
    planner.absorb_exit();
    planner.note_job_manager_pod();
    planner.absorb_savepoint();
    match facts.told.state {
        _ if facts.deleting => planner.delete(),
        _ if facts.memory.generation == Generation(0) => planner.first(),
        Some(state) if state.is_terminal() => planner.rest(state),
        _ => planner.active(),
    }
    planner.put_finalizer();
    planner.plan
}

struct Planner<'a> {
    facts: &'a Facts,
    plan: Plan,
    /// Why a change is not carried out now.
    held: Option<Rejection>,
}

impl<'a> Planner<'a> {
    fn new(facts: &'a Facts) -> Self {
        let plan = Plan {
            memory: facts.memory.clone(),
            view: View::default(),
            program: None,
            service: None,
            create: Vec::new(),
            spec: None,
            delete: Vec::new(),
            delete_programs: Vec::new(),
            command: None,
            finalizer: None,
            lost: None,
            restarts: BTreeMap::new(),
            wake_at: None,
            events: Vec::new(),
        };
        Self { facts, plan, held: None }
    }

    /// What the JobManager reported is remembered where decisions rest on it.
    fn absorb_report(&mut self) {
        let Some(report) = &self.facts.report else { return };
        if self.probes() {
            return;
        }
        let memory = &mut self.plan.memory;
        memory.ledger_entry = memory.ledger_entry.max(report.ledger_entry);
        if report.last_checkpoint.is_some() {
            memory.last_checkpoint.clone_from(&report.last_checkpoint);
        }
        if report.attempt.0 == 0 {
            return;
        }
        memory.restored_from.clone_from(&report.restored_from);
        memory.foreign_snapshot.clone_from(&report.foreign_snapshot);
        let is_first = memory.started_revision < memory.revision;
        self.note_started();
        let memory = &mut self.plan.memory;
        let before = memory.failures.total();
        if report.failure_counts.revision == memory.revision {
            memory.failures.merge(&report.failure_counts);
        }
        let failed = memory.failures.total().saturating_sub(before);
        self.note_restarts_in_place(report, failed);
        for notice in report.notices.iter().filter(|notice| is_first && TOLD_ONCE.contains(&notice.reason.as_str())) {
            self.tell(notice.reason != STARTS_EMPTY, &notice.reason, notice.message.clone());
        }
    }

    /// Failures that are new, each followed by a restart but for the one that ends the job.
    fn note_restarts_in_place(&mut self, report: &JobStatus, failed: u64) {
        let restarted = failed.saturating_sub(u64::from(report.state == JobState::Failed));
        let mut causes = report.failures.iter().map(|record| record.failure.reason.as_str());
        let mut cause = "Unlisted";
        for _ in 0..restarted {
            // Of more failures than it tells, the oldest one stands for the rest.
            cause = causes.next().unwrap_or(cause);
            self.note_restart(cause);
        }
    }

    fn note_restart(&mut self, cause: &str) {
        *self.plan.restarts.entry(cause.to_owned()).or_default() += 1;
    }

    /// Whether a helper finds out what became of a revision of which nothing was heard: what it writes itself tells nothing of
    /// that, only its exit record does.
    fn probes(&self) -> bool {
        let memory = &self.plan.memory;
        let is_first_seen = memory.directive.as_ref().is_some_and(|directive| directive.seen == 0);
        memory.helper.is_some() && memory.started_revision < memory.revision && is_first_seen
    }

    /// The revision's directive was carried out.
    fn note_started(&mut self) {
        let memory = &mut self.plan.memory;
        let is_first = memory.started_revision < memory.revision;
        memory.started_revision = memory.revision;
        if let Some(used) = self.facts.frozen.as_ref().and_then(|frozen| frozen.restore.as_ref()).filter(|_| is_first) {
            remember_restore(memory, used);
        }
    }

    /// What the JobManager said at its end counts like a report: the last one may not have arrived (N3).
    fn absorb_exit(&mut self) {
        let (generation, probes) = (self.plan.memory.generation, self.probes());
        let is_current = |pod: &&PodFacts| pod.role == Role::JobManager && pod.generation == generation;
        let pods = self.facts.pods.iter().filter(is_current);
        let records = pods.filter_map(|pod| pod.ended.as_ref()?.record.as_ref());
        let counts =
            |record: &&ExitRecord| record.reason != NOTHING_BEGUN && (!probes || stop::is_terminal(record.kind));
        let entries = records.filter(counts).filter_map(|record| record.ledger_entry);
        if let Some(entry) = entries.max() {
            let memory = &mut self.plan.memory;
            memory.ledger_entry = memory.ledger_entry.max(entry);
        }
    }

    /// Before a job has anything to end, the StreamJob is held back from vanishing without it.
    fn put_finalizer(&mut self) {
        if !self.facts.deleting && !self.facts.has_finalizer && !self.plan.create.is_empty() {
            self.plan.finalizer = Some(Finalizer::Put);
        }
    }

    fn note_job_manager_pod(&mut self) {
        let generation = self.facts.memory.generation;
        let pod = self.facts.pods.iter().find(|pod| pod.role == Role::JobManager && pod.generation == generation);
        if let (None, Some(pod)) = (&self.plan.memory.job_manager_pod, pod) {
            self.plan.memory.job_manager_pod = Some(pod.uid.clone());
        }
    }

    /// A job that has no generation yet.
    fn first(&mut self) {
        match (&self.facts.program, self.facts.desired) {
            (_, DesiredState::Suspended) => self.end(StreamJobState::Suspended, "Suspended", "it has not been started"),
            (Err(rejection), _) => self.end(StreamJobState::Invalid, &rejection.reason, &rejection.message),
            (Ok(program), _) => self.begin_revision(program, None),
        }
    }

    /// A job that has ended: its spec may start it again.
    fn rest(&mut self, state: StreamJobState) {
        let Facts { desired, program, told, .. } = self.facts;
        // What the spec suspended, it resumes; what a person stopped through the JobManager starts as what has ended.
        let resumed = state == StreamJobState::Suspended && told.reason == "Suspended";
        let was_rejected = state == StreamJobState::Invalid && is_rejection(&told.reason);
        match (desired, program) {
            (DesiredState::Running, Ok(program)) if self.is_changed() || resumed || was_rejected => {
                match self.forgets_state() {
                    Some(wrong) => {
                        self.stay(state);
                        self.hold(wrong);
                        self.plan.view.degraded = self.held.take();
                    }
                    None => {
                        self.plan.memory.rolled_back = None;
                        self.start_again(state, program);
                    }
                }
            }
            (DesiredState::Running, Err(rejection)) if resumed || was_rejected => {
                self.end(StreamJobState::Invalid, &rejection.reason, &rejection.message);
            }
            (DesiredState::Suspended, _) if state != StreamJobState::Suspended || told.reason != "Suspended" => {
                let message = format!("it was {state:?} before: {}", told.message);
                self.end(StreamJobState::Suspended, "Suspended", &message);
            }
            _ => self.stay(state),
        }
    }

    /// The wanted spec of a job that has ended. What has failed without a word, and is left for another storage, a closer
    /// ends first (C3): its ledger may have begun, and be written still.
    fn start_again(&mut self, state: StreamJobState, program: &Program) {
        let (since, cause) = (self.facts.now, StopCause::Upgrade);
        let stop = Stop { since, cause, savepoint_request: None, savepoint: None };
        let has_said_why = matches!(self.fate(), Fate::Exited(_));
        if state != StreamJobState::Failed || has_said_why || !self.may_have_begun_elsewhere(&stop) {
            return self.begin_revision(program, None);
        }
        self.plan.memory.stop = Some(stop.clone());
        self.end_unreachable(&stop, &rejection("JobManagerLost", self.facts.told.message.clone()));
    }

    /// Nothing has changed: a helper may be at work.
    fn stay(&mut self, state: StreamJobState) {
        let Facts { told, .. } = self.facts;
        if self.closes_failed() || self.dispose() {
            self.plan.view = View::ended(state, &told.reason, &told.message);
            return;
        }
        let helper = self.plan.memory.helper.take();
        self.end(state, &told.reason, &told.message);
        self.plan.memory.helper = helper;
        self.remove_ended_of_rest();
        self.plan.view.degraded = self.unknown_program().or(self.plan.view.degraded.take());
    }

    /// Whether the spec asks for something else than the revision that runs, or ran.
    fn is_changed(&self) -> bool {
        self.change() != Change::Nothing
    }

    /// What the spec asks for, compared with the revision that runs.
    fn change(&self) -> Change {
        match (&self.facts.program, &self.facts.frozen) {
            (Err(_), _) => Change::Nothing,
            (Ok(program), _) if self.is_given_up(program) => Change::Nothing,
            (Ok(program), Some(frozen)) => match classify(frozen, &program.spec) {
                // Undoing an edit must not jump back to where the job came from once.
                Change::Restore if self.is_restore_used(&program.spec) => {
                    let restore = frozen.restore.clone();
                    classify(frozen, &StreamJobSpec { restore, ..program.spec.clone() })
                }
                change => change,
            },
            (Ok(program), None) if program.config_map == self.facts.memory.program => Change::Nothing,
            // What cannot be compared is no reason to touch a job: after an upgrade of the operator it could be all jobs.
            (Ok(_), None) if self.facts.frozen_problem.is_some() => Change::Nothing,
            (Ok(_), None) => Change::Upgrade,
        }
    }

    /// Why it cannot be told whether the spec has changed, where it seems to have.
    fn unknown_program(&self) -> Option<Rejection> {
        let Rejection { reason, message } = self.facts.frozen_problem.clone()?;
        let seems_changed =
            self.facts.program.as_ref().is_ok_and(|program| program.config_map != self.facts.memory.program);
        let message = format!(
            "{message}; whether the spec has changed cannot be told, and the job is left as it is: to run the spec all the \
             same, set state: Suspended and then Running"
        );
        seems_changed.then_some(Rejection { reason, message })
    }

    /// The job has ended and stays so until its spec changes.
    fn end(&mut self, state: StreamJobState, reason: &str, message: &str) {
        self.plan.memory.next_restart_at = None;
        self.plan.memory.stop = None;
        self.plan.memory.helper = None;
        self.plan.memory.held = None;
        self.plan.memory.trial = None;
        self.delete_pods(|_| true);
        self.plan.view = View::ended(state, reason, message);
    }

    /// Deletes the living pods that `which` says, none of a generation that is newer than the one read (C2).
    fn delete_pods(&mut self, which: impl Fn(&PodFacts) -> bool) {
        let known = self.facts.memory.generation;
        for pod in self.facts.pods.iter().filter(|pod| pod.is_alive() && pod.generation <= known && which(pod)) {
            let pod = reference(pod);
            if !self.plan.delete.contains(&pod) {
                self.plan.delete.push(pod);
            }
        }
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.plan.wake_at = Some(self.plan.wake_at.map_or(at, |other| other.min(at)));
    }

    /// Tells something of the current generation.
    fn tell(&mut self, warning: bool, reason: &str, message: String) {
        let action = format!("Generation{}", self.plan.memory.generation);
        self.plan.events.push(Occurrence { action, ..Occurrence::new(warning, reason, message) });
    }
}

fn reference(pod: &PodFacts) -> ObjectIdentity {
    ObjectIdentity { name: pod.name.clone(), uid: pod.uid.clone(), version: None }
}

/// Remembers what a revision was started from, when that is what its `restore` says.
fn remember_restore(memory: &mut Memory, restore: &RestoreSpec) {
    let used = UsedRestore { from: restore.from.clone(), nonce: restore.nonce };
    let start = memory.directive.as_ref().map(|directive| &directive.start);
    let is_from = matches!(start, Some(StartFrom::Path { from, .. }) if *from == used.from);
    if is_from && !memory.used_restores.contains(&used) {
        memory.used_restores.push(used);
        let surplus = memory.used_restores.len().saturating_sub(USED_RESTORES);
        memory.used_restores.drain(..surplus);
    }
}

/// Whether a reason is one of validation's: those go away without a change of the spec when a ConfigMap appears.
fn is_rejection(reason: &str) -> bool {
    matches!(reason, "InvalidSpec" | "ProgramNotFound")
}

fn rejection(reason: &str, message: String) -> Rejection {
    Rejection { reason: reason.to_owned(), message }
}

#[cfg(test)]
pub(crate) mod tests;
