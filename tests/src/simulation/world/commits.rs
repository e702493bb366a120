//! Committing and aborting transactions, by the sinks' own code: slow, sometimes without an answer, and done for whoever
//! asked, also when that has died meanwhile.

use super::{Event, LIMIT, World};
use sluice_engine::sink::committer::{abort_leftovers, commit_all};
use sluice_protocol::commit::{CommitHandle, CommitId, CommitOutcome, Leftovers};
use sluice_protocol::job_master::Event as MasterEvent;
use std::sync::PoisonError;

use crate::simulation::controller::job;

impl World {
    pub(super) fn commit_later(&mut self, index: usize, id: CommitId, handles: Vec<CommitHandle>) {
        let delay = self.rng.u64(1..60);
        self.schedule(delay, Event::Commit(index, id, handles));
    }

    pub(super) fn abort_later(&mut self, index: usize, id: CommitId, leftovers: Leftovers) {
        let delay = self.rng.u64(1..60);
        self.schedule(delay, Event::Abort(index, id, leftovers));
    }

    pub(super) fn commit(&mut self, index: usize, id: CommitId, handles: &[CommitHandle]) {
        let retry = || CommitOutcome::Retry("the archive did not answer".to_owned());
        let fate = self.rng.u32(..100);
        let mut outcomes: Vec<_> = handles.iter().map(|_| retry()).collect();
        // In every other world most fail, so that handles wait for several checkpoints; some that fail had their effect.
        let (fails, half_fails) = match self.scenario.seed % 2 {
            _ if self.now > LIMIT / 2 => (0, 0),
            0 => (70, 75),
            _ => (5, 10),
        };
        if fate >= fails {
            let program = self.program(&self.scenario.layouts[0]);
            let committed = commit_all(&program, &job(self.job_managers[index].epoch), handles);
            if let Some(CommitOutcome::Lost(what)) = committed.iter().find(|one| matches!(one, CommitOutcome::Lost(_)))
            {
                self.violate(format!("S1: what a complete checkpoint staged is gone: {what}"));
            }
            if fate >= half_fails {
                outcomes = committed;
            }
        }
        let doubled = self.archive.lock().unwrap_or_else(PoisonError::into_inner).doubled;
        if let Some(row) = doubled {
            self.violate(format!("K1: readers of the archive see row {row:?} twice"));
        }
        let delay = self.rng.u64(1..60);
        self.schedule(delay, Event::Master(index, MasterEvent::Committed { id, outcomes }));
    }

    pub(super) fn abort(&mut self, index: usize, id: CommitId, leftovers: &Leftovers) {
        let failure = if self.rng.u32(..10) == 0 {
            Some("the archive did not answer".to_owned())
        } else {
            abort_leftovers(&self.program(&self.scenario.layouts[0]), leftovers)
        };
        let delay = self.rng.u64(1..60);
        self.schedule(delay, Event::Master(index, MasterEvent::LeftoversAborted { id, failure }));
    }

    /// An end that could not wait any longer leaves to a later start what it had not committed (L6): that is what is done here.
    pub(super) fn commit_what_is_left(&self) -> Result<(), String> {
        let handles = self.check.left_at_end(&self.store)?;
        let program = self.program(&self.scenario.layouts[0]);
        let committed = commit_all(&program, &job(self.epoch), &handles);
        match committed.iter().find(|one| **one != CommitOutcome::Settled) {
            None => Ok(()),
            Some(outcome) => Err(format!("L6: what the end left cannot be committed: {outcome:?}")),
        }
    }

    /// The job has ended: readers see each row before its last checkpoint once, and nothing else (K1, K3, L6).
    pub(super) fn check_archive(&self) -> Result<(), String> {
        if !self.scenario.shape.archive {
            return Ok(());
        }
        let archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = &self.check.last_archived;
        let missing: Vec<_> = expected.difference(&archive.visible).take(5).collect();
        let more: Vec<_> = archive.visible.difference(expected).take(5).collect();
        if missing.is_empty() && more.is_empty() {
            return Ok(());
        }
        Err(format!(
            "K3: at the end readers of the archive miss {missing:?}, and see {more:?} that no checkpoint holds"
        ))
    }
}
