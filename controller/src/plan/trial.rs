//! A revision's trial: until it is stable, and what happens when it never is (docs/operator.md).

use super::fate::{Fate, UNREACHABLE};
use super::revision::is_directory_of;
use super::{Planner, View, rejection};
use crate::facts::{GivenUp, Program, Rejection, Stable, Stop, Trial};
use sluice_crds::{StopCause, StreamJobState};
use sluice_protocol::job_master::{Command, Directive, StartFrom};
use sluice_protocol::status::{JobState, JobStatus};
use sluice_protocol::{Attempt, Generation, TimeSpan};

/// How long a new leader may take to hear the JobManagers.
const TAKE_OVER: TimeSpan = TimeSpan::from_secs(10);

/// Why a program cannot go on from what it was given.
const UNREADABLE: [&str; 3] = ["SnapshotIncompatible", "SnapshotNotFound", "SnapshotUnreadable"];

/// Whether a place is a checkpoint, and no savepoint.
pub(super) fn is_checkpoint(place: &str) -> bool {
    place.rsplit('/').next().is_some_and(|name| name.starts_with("chk-"))
}

/// What the stable revision left: the oldest that a later one pinned. The pin of an upgrade before it may be there still,
/// since its release is a command that comes when it comes.
fn left_by(report: &JobStatus, stable: u64) -> Option<&String> {
    let JobStatus { pinned, pinned_by, .. } = report;
    if pinned_by.is_empty() {
        return pinned.first();
    }
    let is_later = |holder: &str| {
        let revision = holder.strip_prefix("revision ").and_then(|number| number.parse::<u64>().ok());
        revision.is_none_or(|revision| revision > stable)
    };
    pinned.iter().zip(pinned_by).find(|(_, holder)| is_later(holder)).map(|(snapshot, _)| snapshot)
}

impl Planner<'_> {
    /// Whether the wanted spec is the one that was given up for the stable one. Any edit tries it anew, also one of what no
    /// job is restarted for: a longer deadline may be all that it needed.
    pub(super) fn is_given_up(&self, program: &Program) -> bool {
        let Some(given_up) = &self.plan.memory.rolled_back else { return false };
        if given_up.spec_generation > 0 && given_up.spec_generation != self.facts.spec_generation {
            return false;
        }
        match &self.facts.given_up {
            Some(spec) => super::change::classify(spec, &program.spec) == super::change::Change::Nothing,
            None => given_up.program == program.config_map,
        }
    }

    /// Follows the run of a revision on trial, and ends the trial when it is stable.
    pub(super) fn watch_trial(&mut self) {
        let Some(report) = &self.facts.report else { return };
        let run = (report.generation, report.attempt);
        if report.generation != self.plan.memory.generation || report.attempt == Attempt(0) {
            return;
        }
        let Some(trial) = self.plan.memory.trial.clone() else { return self.settle_older() };
        let before = if (trial.generation, trial.attempt) == run {
            trial.checkpoints_before
        } else if report.attempt == Attempt(1) {
            0
        } else {
            report.completed_checkpoints
        };
        let completed = report.completed_checkpoints.saturating_sub(before);
        let stability = &self.facts.lifecycle.stability;
        let stable = self.plan.memory.stable.as_ref().map_or(0, |stable| stable.revision);
        let pinned = left_by(report, stable).filter(|_| trial.snapshot.as_deref().is_none_or(is_checkpoint));
        let snapshot = pinned.cloned().or_else(|| trial.snapshot.clone());
        let needed = stability.effective_checkpoints(self.checkpointing());
        let (runs, due) = (report.state == JobState::Running, report.since.plus(stability.duration));
        self.plan.memory.trial =
            Some(Trial { generation: run.0, attempt: run.1, checkpoints_before: before, snapshot, ..trial });
        if runs && self.facts.now < due {
            self.wake_at(due);
        } else if runs && completed >= u64::from(needed) {
            self.settle();
        } else if runs && self.facts.connected {
            self.ask_for_checkpoint(run, completed);
        }
    }

    /// Nobody waits for a checkpoint that its interval makes rare: one is asked for.
    fn ask_for_checkpoint(&mut self, (generation, attempt): (Generation, Attempt), completed: u64) {
        let interval = self.checkpointing().map(|checkpointing| checkpointing.interval);
        if interval.is_some_and(|interval| interval > self.facts.lifecycle.stability.duration) {
            // Another id after one that failed: what was asked for once is not asked for again.
            let failed = self.facts.report.as_ref().map_or(0, |report| report.failed_checkpoints);
            let id = format!("stability-{generation}-{attempt}-{completed}-{failed}");
            self.plan.command = Some(Command::TriggerCheckpoint { id });
        }
    }

    /// The revision is stable.
    pub(super) fn settle(&mut self) {
        let memory = &mut self.plan.memory;
        if memory.trial.take().is_some() {
            let (revision, program) = (memory.revision, memory.program.clone());
            memory.stable = Some(Stable { revision, program });
            self.tell(false, "Stable", format!("revision {revision} is stable"));
        }
    }

    /// What ran before there were trials is as good as stable.
    fn settle_older(&mut self) {
        let memory = &mut self.plan.memory;
        if memory.stable.is_none() {
            memory.stable = Some(Stable { revision: memory.revision, program: memory.program.clone() });
        }
    }

    /// What is told while all tasks run and the revision is on trial.
    pub(super) fn on_trial(&self, view: View) -> View {
        if !view.ready || self.plan.memory.trial.is_none() {
            return view;
        }
        let stability = &self.facts.lifecycle.stability;
        let checkpoints = stability.effective_checkpoints(self.checkpointing());
        let message = format!(
            "all tasks run; ready after {} without a restart and {checkpoints} checkpoints in it",
            stability.duration
        );
        View { ready: false, progressing: true, reason: "Stabilizing".to_owned(), message, ..view }
    }

    /// Whether the revision on trial has had its time, and there is a stable one to return to.
    pub(super) fn is_overdue(&mut self) -> bool {
        if !self.can_roll_back() {
            return false;
        }
        let checkpointing = self.checkpointing();
        let stability = &self.facts.lifecycle.stability;
        let (deadline, least) = (stability.effective_deadline(checkpointing), stability.least(checkpointing));
        let Some(due) = self.plan.memory.trial.as_ref().map(|trial| trial.since.plus(deadline)) else { return false };
        // Who has just begun to lead has seen nothing of the trial: what runs well has the time to show it.
        let due = due.max(self.facts.leading_since.plus(least).plus(TAKE_OVER));
        if self.facts.now < due {
            self.wake_at(due);
            return false;
        }
        self.knows_the_job()
    }

    /// Whether it is known how the job is: its JobManager tells it now, or there is none that could. One that has never
    /// been heard is not waited for without an end.
    fn knows_the_job(&mut self) -> bool {
        let tells = self.facts.connected && self.facts.report.is_some();
        let can_tell = matches!(self.fate(), Fate::Alive(pod) if pod.started);
        if tells || !can_tell {
            return true;
        }
        let patience = self.facts.leading_since.plus(UNREACHABLE);
        if self.facts.now < patience {
            self.wake_at(patience);
        }
        self.facts.unreachable_since.is_none() && self.facts.now >= patience
    }

    pub(super) fn can_roll_back(&self) -> bool {
        let memory = &self.plan.memory;
        let is_other = |stable: &Stable| stable.program != memory.program;
        self.facts.lifecycle.stability.rollback
            && memory.trial.is_some()
            && memory.stable.as_ref().is_some_and(is_other)
            && self.facts.stable.is_some()
    }

    /// The revision on trial was stopped to be given up, unless that was said before.
    pub(super) fn roll_back_stopped(&mut self) {
        let revision = self.plan.memory.revision;
        if self.plan.memory.rolled_back.as_ref().is_none_or(|given_up| given_up.revision != revision) {
            let checkpointing = self.checkpointing();
            let deadline = self.facts.lifecycle.stability.effective_deadline(checkpointing);
            let message = format!("it was not stable within {deadline} (stability.deadline): {}", self.last_trouble());
            self.give_up(&rejection("NotStable", message));
        }
        let stop = self.rollback_stop();
        self.begin_stable(&stop);
    }

    fn last_trouble(&self) -> String {
        let report = self.facts.report.as_ref();
        let failure = report.and_then(|report| report.failures.first()).map(|record| record.failure.message.clone());
        let generation = self.facts.memory.generation;
        let problem = || {
            let mut pods = self.facts.pods.iter().filter(|pod| pod.generation == generation);
            pods.find_map(|pod| pod.problem.as_ref().map(|problem| problem.message.clone()))
        };
        failure
            .or_else(problem)
            .or_else(|| self.facts.told.failure.clone())
            .unwrap_or_else(|| self.facts.told.message.clone())
    }

    /// Gives the revision on trial up for the last stable one, once a closer has fenced what may have begun elsewhere (C3).
    /// A JobManager that has said why it ended needs none.
    fn roll_back(&mut self, cause: &Rejection) {
        let has_said_why = matches!(self.fate(), Fate::Exited(_));
        self.give_up(cause);
        let stop = self.rollback_stop();
        if has_said_why || !self.may_have_begun_elsewhere(&stop) {
            return self.begin_stable(&stop);
        }
        self.plan.memory.stop = Some(stop.clone());
        self.end_unreachable(&stop, cause);
    }

    fn rollback_stop(&self) -> Stop {
        let savepoint = self.plan.memory.trial.as_ref().and_then(|trial| trial.snapshot.clone());
        Stop { since: self.facts.now, cause: StopCause::RollBack, savepoint_request: None, savepoint }
    }

    fn give_up(&mut self, cause: &Rejection) {
        let memory = &mut self.plan.memory;
        let (Some(stable), revision) = (&memory.stable, memory.revision) else { return };
        let message =
            format!("revision {revision} was given up: {}; revision {} runs again", cause.message, stable.revision);
        memory.rolled_back = Some(GivenUp {
            revision,
            program: memory.program.clone(),
            reason: cause.reason.clone(),
            message: message.clone(),
            at: self.facts.now,
            spec_generation: self.facts.spec_generation,
        });
        self.tell(true, "RolledBack", message);
    }

    /// Runs the last stable spec again, as a revision of its own.
    fn begin_stable(&mut self, stop: &Stop) {
        let (Some(stable), Some(spec)) = (self.plan.memory.stable.clone(), self.facts.stable.clone()) else { return };
        self.begin_revision(&Program { spec, config_map: stable.program }, Some(stop));
    }

    /// The job has ended by a failure: a revision on trial is given up for the stable one, and a rolled-back one that
    /// cannot read the newest checkpoint starts from the snapshot before the upgrade (K7).
    pub(super) fn fail(&mut self, state: StreamJobState, reason: &str, message: &str) {
        if self.facts.deleting {
            return self.end(state, reason, message);
        }
        if self.can_roll_back() {
            return self.roll_back(&rejection(reason, message.to_owned()));
        }
        match self.earlier_snapshot(reason) {
            Some(snapshot) => self.restore_earlier(snapshot),
            None => self.end(state, reason, message),
        }
    }

    fn earlier_snapshot(&self, reason: &str) -> Option<String> {
        let memory = &self.plan.memory;
        let snapshot = memory.trial.as_ref()?.snapshot.clone()?;
        let is_latest = match &memory.directive.as_ref()?.start {
            StartFrom::ResumeLatest => true,
            // The job's directory in the storage that is left.
            StartFrom::Path { from, .. } => is_directory_of(from, &self.facts.directory),
            _ => false,
        };
        (memory.rolled_back.is_some() && is_latest && UNREADABLE.contains(&reason)).then_some(snapshot)
    }

    fn restore_earlier(&mut self, snapshot: String) {
        let memory = &mut self.plan.memory;
        let seen = memory.ledger_entry;
        let id = format!("{}-rollback", memory.revision);
        let start =
            StartFrom::Path { from: snapshot.clone(), allow_non_restored_state: false, abandon_sinks: Vec::new() };
        memory.directive = Some(Directive { id, seen, start });
        let words = format!("; output since the snapshot {snapshot} is written again");
        if let Some(given_up) = &mut memory.rolled_back {
            given_up.message.push_str(&words);
        }
        self.tell(
            true,
            "OutputWrittenAgain",
            format!("the newest checkpoint cannot be read by the stable revision{words}"),
        );
        self.next_generation("RolledBack", "the snapshot before the upgrade is restored");
    }

    /// What a rolled-back job says of itself for as long as the spec is the one that was given up.
    pub(super) fn rolled_back(&self) -> Option<Rejection> {
        let given_up = self.plan.memory.rolled_back.as_ref()?;
        Some(rejection(
            "RolledBack",
            format!("{} ({}); the next change of the spec is tried anew", given_up.message, given_up.reason),
        ))
    }

    /// Forgets what was given up once another spec is wanted.
    pub(super) fn forget_given_up(&mut self) {
        if self.facts.program.as_ref().is_ok_and(|program| !self.is_given_up(program)) {
            self.plan.memory.rolled_back = None;
        }
    }
}
