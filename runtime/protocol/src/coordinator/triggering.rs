//! When the next checkpoint is triggered, and what for (K4, K5).

use super::pending::Pending;
use super::{CheckpointCoordinator, Ordered, Output, PendingSavepoint};
use crate::ledger::Ends;
use crate::message::{Alignment, Barrier};
use crate::time::Timestamp;

/// What the next trigger is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Periodic,
    Requested(Ends),
    Savepoint(Ends),
}

impl CheckpointCoordinator {
    /// Whether a savepoint waits for the checkpoints under way, and a failed one for the next (K5).
    pub(super) fn excludes_savepoints(&self) -> bool {
        matches!(self.settings.alignment(), Alignment::Unaligned { .. })
    }

    fn wish(&self) -> (Timestamp, Wish) {
        let pause_over = self.last_completed_at.map(|at| at.plus(self.settings.min_pause)).unwrap_or_default();
        let periodic = (self.next_periodic.max(self.hold_until).max(pause_over), Wish::Periodic);
        let requested = self.requested.map(|ends| (self.hold_until, Wish::Requested(ends)));
        match (requested, &self.savepoint) {
            (Some(last), _) if self.requested != Some(Ends::None) => last,
            (_, Some(_)) if self.checkpoint_first => (self.hold_until, Wish::Requested(Ends::None)),
            (_, Some(ordered)) => {
                let savepoint = (self.hold_until.max(ordered.hold_until), Wish::Savepoint(ordered.order.ends));
                // Between two tries of it checkpoints go on.
                [Some(savepoint), requested, Some(periodic)]
                    .into_iter()
                    .flatten()
                    .min_by_key(|(at, _)| *at)
                    .unwrap_or(periodic)
            }
            (requested, None) => requested.unwrap_or(periodic),
        }
    }

    /// How many may be under way already. None is triggered behind one that ends the job or a savepoint: entries stand in
    /// the order of ids (K2). Nor behind an unaligned one (K5), whatever options are obeyed since.
    fn has_room(&self, wish: Wish) -> bool {
        if self.overlapping_savepoints && matches!(wish, Wish::Savepoint(_)) {
            return !self.pending.values().any(|one| one.savepoint.is_some());
        }
        let goes_alone = match wish {
            Wish::Periodic => false,
            Wish::Requested(ends) => ends != Ends::None,
            Wish::Savepoint(ends) => ends != Ends::None || self.excludes_savepoints(),
        };
        let room = if goes_alone { 1 } else { self.settings.effective_max_concurrent() as usize };
        let is_unaligned = |one: &Pending| matches!(one.alignment, Alignment::Unaligned { .. });
        let is_last = |one: &Pending| one.ends != Ends::None || one.savepoint.is_some() || is_unaligned(one);
        self.pending.len() < room && !self.pending.values().any(is_last)
    }

    /// When the next one may be triggered, as far as time decides, and what for.
    pub(super) fn next_trigger(&self) -> Option<(Timestamp, Wish)> {
        if !self.active || self.unrecorded_failures > 0 || self.commits_behind {
            return None;
        }
        let (at, wish) = self.wish();
        self.has_room(wish).then_some((at, wish))
    }

    pub(super) fn trigger(&mut self, wish: Wish, now: Timestamp) -> Output {
        let id = self.last_id.next();
        self.last_id = id;
        self.next_periodic = now.plus(self.settings.interval);
        if self.requested == Some(Ends::None) {
            self.requested = None;
        }
        let (ends, ordered) = match wish {
            Wish::Periodic => (Ends::None, None),
            Wish::Requested(ends) => (ends, None),
            Wish::Savepoint(ends) => (ends, self.savepoint.as_ref()),
        };
        let savepoint = ordered.map(|Ordered { order, .. }| PendingSavepoint {
            request: order.request.clone(),
            directory: format!("{}{id}", order.directory_prefix),
        });
        // Behind the last row nothing is to be overtaken, and the job ends without what would be.
        let is_aligned = savepoint.is_some() || ends == Ends::Finish;
        let alignment = if is_aligned { Alignment::Aligned } else { self.settings.alignment() };
        self.drained |= savepoint.is_some() && ends == Ends::Finish;
        let directory = savepoint.as_ref().map(|savepoint| savepoint.directory.as_str().into());
        let barrier = Barrier { alignment, ends, savepoint: directory, ..Barrier::aligned(id, now, self.base) };
        self.pending.insert(id, Pending::new(&barrier, self.settings.timeout, self.tasks.clone(), savepoint));
        Output::Trigger(barrier)
    }
}
