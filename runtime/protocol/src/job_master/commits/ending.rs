//! What comes before a terminal entry: all is committed, no task stages more, nothing is left open (L6); or the deadline is past,
//! and the entry says what is left.
//!
//! Callers rely on: what an end leaves uncommitted stays in the last complete checkpoint, which is retained, so that a later
//! start can commit it.

use super::super::journal::EndKind;
use super::super::{JobMaster, Phase};
use super::Commits;
use crate::commit::{CommitHandle, CommitId, UnsettledOutput};
use crate::ids::OperatorUid;
use crate::ledger::EntryKind;
use crate::ledger::append::backoff;
use crate::time::{TimeSpan, Timestamp};
use std::collections::BTreeMap;

/// How long an end waits for tasks that were told to end.
const TASKS_PATIENCE: TimeSpan = TimeSpan::from_secs(10);

/// How long an end that somebody wants waits for sinks to commit what is staged. A closer has a minute in all.
const SETTLING_PATIENCE: TimeSpan = TimeSpan::from_secs(30);

/// How much longer it waits for the last abort.
const ABORT_PATIENCE: TimeSpan = TimeSpan::from_secs(10);

/// Tries to abort leftovers before the terminal entry goes without.
const ABORT_TRIES: u32 = 5;

/// So many sinks are named of those whose output an end leaves uncommitted.
const SINKS: usize = 8;

/// So many bytes of the reason are kept for which the last abort has failed.
const REASON_BYTES: usize = 300;

/// The last abort, before a terminal entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Closing {
    #[default]
    Due,
    Waiting {
        until: Timestamp,
        tries: u32,
    },
    UnderWay {
        id: CommitId,
        tries: u32,
    },
    /// Nothing is open any more, or this is why that is not sure.
    Done {
        failure: Option<String>,
    },
}

impl Commits {
    /// The end of all input waits for its commits as long as it takes: nobody wants the job to end without its results.
    pub(in super::super) fn begin_end(&mut self, kind: &EndKind, is_wanted: bool, now: Timestamp) {
        self.ending_since = Some(now);
        if *kind != EndKind::Finished || is_wanted {
            self.settle_in_time(now);
        }
    }

    /// Somebody wants the end.
    pub(in super::super) fn settle_in_time(&mut self, now: Timestamp) {
        self.settle_by.get_or_insert(now.plus(SETTLING_PATIENCE));
    }

    pub(super) fn wakeups_at_end(&self) -> impl Iterator<Item = Timestamp> {
        let is_over = self.ending_since.is_none() || self.terminal_queued;
        let tasks = self.ending_since.filter(|_| self.closing == Closing::Due).map(|since| since.plus(TASKS_PATIENCE));
        let abort = if let Closing::Waiting { until, .. } = self.closing { Some(until) } else { None };
        let given_up = self.settle_by.map(|by| by.plus(ABORT_PATIENCE));
        [tasks, abort, self.settle_by, given_up].into_iter().flatten().filter(move |_| !is_over)
    }

    fn is_overdue(&self, now: Timestamp) -> bool {
        self.settle_by.is_some_and(|by| by <= now)
    }
}

impl JobMaster {
    /// Whether the terminal entry may go: all is committed, no task stages more, nothing is left open (L6); or it is time. Says
    /// so once.
    pub(in super::super) fn is_settled_for_end(&mut self) -> bool {
        if self.commits.terminal_queued {
            return false;
        }
        if self.has_transactional_sinks() && !self.journal.in_memory && !self.has_closed_sinks() {
            return false;
        }
        self.commits.terminal_queued = true;
        true
    }

    fn has_closed_sinks(&mut self) -> bool {
        // An entry under way may complete a checkpoint with further handles.
        let is_idle = !self.journal.appender.is_busy() && self.journal.queue.is_empty();
        let waits = !self.commits.unsettled.is_empty() && !self.commits.is_overdue(self.now);
        if !is_idle || waits || self.tasks_may_stage() {
            return false;
        }
        if self.commits.loading {
            // Nothing is aborted: what is not known cannot be spared.
            return self.commits.is_overdue(self.now);
        }
        let is_given_up = self.commits.settle_by.is_some_and(|by| by.plus(ABORT_PATIENCE) <= self.now);
        let tries = match self.commits.closing {
            Closing::Done { .. } => return true,
            Closing::UnderWay { .. } => return is_given_up,
            Closing::Waiting { until, .. } if until > self.now => return false,
            Closing::Waiting { tries, .. } => tries,
            Closing::Due => 0,
        };
        // All attempts of this generation are over.
        let id = self.ask_for_abort(self.attempt.next());
        self.commits.closing = Closing::UnderWay { id, tries: tries + 1 };
        false
    }

    /// The answer to the last abort, if it is that.
    pub(super) fn on_last_abort(&mut self, answered: CommitId, failure: Option<String>) {
        let Closing::UnderWay { id, tries } = self.commits.closing else { return };
        if id != answered {
            return;
        }
        let again = failure.is_some() && tries < ABORT_TRIES && !self.commits.is_overdue(self.now);
        self.commits.closing = if again {
            let pause = backoff(tries, TimeSpan(200), TimeSpan::from_secs(5), &mut *self.random);
            Closing::Waiting { until: self.now.plus(pause), tries }
        } else {
            Closing::Done { failure }
        };
    }

    fn tasks_may_stage(&self) -> bool {
        let is_patient = self.commits.ending_since.is_none_or(|since| since.plus(TASKS_PATIENCE) > self.now);
        // Tasks that have finished have nothing open.
        let has_finished = matches!(self.phase, Phase::Ending(EndKind::Finished));
        is_patient && !has_finished && self.task_managers.host_tasks()
    }

    /// What an entry of this kind leaves uncommitted, if it ends the job.
    pub(in super::super) fn unsettled_behind(&self, kind: &EntryKind) -> Vec<UnsettledOutput> {
        match ends_job(kind) {
            true if self.has_unread() => named(self.config.graph.transactional_sinks().map(|sink| (sink, 0, None))),
            true => summary(self.commits.unsettled.iter()),
            false => Vec::new(),
        }
    }

    /// Why an entry of this kind, if it ends the job, may leave transactions open that are in no checkpoint: the last abort
    /// has failed, has no answer, or did not take place.
    pub(in super::super) fn left_open_behind(&self, kind: &EntryKind) -> Option<String> {
        if !ends_job(kind) || !self.has_transactional_sinks() || self.journal.in_memory {
            return None;
        }
        let why = match &self.commits.closing {
            _ if self.commits.loading => "the last checkpoint could not be read, which tells what must be spared",
            Closing::Done { failure } => failure.as_deref()?,
            _ => "there was no answer in time",
        };
        Some(why[..why.floor_char_boundary(REASON_BYTES)].to_owned())
    }

    /// Whether the last complete checkpoint holds what is not committed, or may.
    pub(in super::super) fn has_unsettled(&self) -> bool {
        !self.commits.unsettled.is_empty() || self.has_unread()
    }

    /// Whether it is not known what the last complete checkpoint holds.
    fn has_unread(&self) -> bool {
        self.commits.loading && self.has_transactional_sinks()
    }

    /// What an end waits for.
    pub(in super::super) fn end_progress(&self) -> String {
        if self.commits.terminal_queued || !self.has_unsettled() {
            return "recording the end".to_owned();
        }
        let what = if self.has_unread() {
            "the last checkpoint to be read, which tells what is staged".to_owned()
        } else {
            format!("{} to be committed", describe(&summary(self.commits.unsettled.iter()), self.now))
        };
        let until = self.commits.settle_by.map(|by| format!(", for {} at most", by.since(self.now)));
        format!("waiting for {what}{}", until.unwrap_or_default())
    }
}

const fn ends_job(kind: &EntryKind) -> bool {
    matches!(
        kind,
        EntryKind::Stopped | EntryKind::Finished { .. } | EntryKind::Cancelled { .. } | EntryKind::Failed { .. }
    )
}

/// Handles by their sinks.
pub(super) fn summary<'a>(handles: impl Iterator<Item = &'a CommitHandle>) -> Vec<UnsettledOutput> {
    let mut sinks: BTreeMap<&OperatorUid, (u64, Option<Timestamp>)> = BTreeMap::new();
    for CommitHandle { sink, committable, .. } in handles {
        let (transactions, until) = sinks.entry(sink).or_default();
        *transactions += 1;
        *until = [*until, committable.expires_at].into_iter().flatten().min();
    }
    named(sinks.into_iter().map(|(sink, (transactions, until))| (sink, transactions, until)))
}

/// As many of them as are named; the last tells how many are not.
fn named<'a>(mut sinks: impl Iterator<Item = (&'a OperatorUid, u64, Option<Timestamp>)>) -> Vec<UnsettledOutput> {
    let first = sinks.by_ref().take(SINKS);
    let all = |(sink, transactions, until): (&OperatorUid, _, _)| {
        let sink = sink.clone();
        UnsettledOutput { sink, transactions, until, more_sinks: 0 }
    };
    let mut named: Vec<_> = first.map(all).collect();
    if let Some(last) = named.last_mut() {
        last.more_sinks = u64::try_from(sinks.count()).unwrap_or(u64::MAX);
    }
    named
}

/// The same for people.
pub(in super::super) fn describe(unsettled: &[UnsettledOutput], now: Timestamp) -> String {
    let one = |UnsettledOutput { sink, transactions, until, more_sinks }: &UnsettledOutput| {
        let until = match until {
            Some(until) if *until > now => format!(" (kept by its target for {} more)", rounded(until.since(now))),
            Some(_) => " (its target may have given them up)".to_owned(),
            None => String::new(),
        };
        let transactions =
            if *transactions == 0 { "an unknown number of".to_owned() } else { transactions.to_string() };
        let more = if *more_sinks == 0 { String::new() } else { format!(", and those of {more_sinks} more sinks") };
        format!("{transactions} staged transactions of sink '{sink}'{until}{more}")
    };
    unsettled.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What it means that something may be open.
pub(in super::super) fn describe_left_open(why: &str) -> String {
    format!(
        "what its sinks had begun and not staged could not be aborted ({why}): until their target gives it up by itself, or a \
         later start aborts it, readers may have to wait for it"
    )
}

fn rounded(span: TimeSpan) -> TimeSpan {
    TimeSpan::from_secs(span.0.div_ceil(1000))
}
