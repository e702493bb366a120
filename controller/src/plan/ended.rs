//! Pods that have ended and are still there: what they said is read, and remembered before they go (C2).
//!
//! The last few stay, so that their logs can be read. One whose sidecars run on holds what it asked of its node: it goes
//! once they have had the time to end by themselves.

use super::{Planner, reference};
use crate::facts::{PodFacts, Role};
use sluice_protocol::{Generation, TimeSpan, Timestamp};

/// Ended pods that are kept, so that their logs can be read.
const KEPT: usize = 3;
/// How long other containers may take to end behind the main one. Of a TaskManager that has ended longer ago nothing is
/// learnt of how soon the next one may follow.
const LINGERS: TimeSpan = TimeSpan::from_secs(60);

impl Planner<'_> {
    /// Of generations before the current one: their ends are in status, since the generation that followed is.
    pub(super) fn remove_ended_of_earlier(&mut self) {
        let known = self.facts.memory.generation;
        let mut ended: Vec<_> = self.facts.pods.iter().filter(|pod| pod.generation < known && is_left(pod)).collect();
        // A JobManager's log tells more than those of its TaskManagers.
        ended.sort_by_key(|pod| (pod.generation, pod.role == Role::JobManager, ended_at(pod)));
        self.remove_but_the_last(&ended);
    }

    /// TaskManagers of the generation that runs, but for those that count as there.
    pub(super) fn remove_ended_task_managers(&mut self, is_there: impl Fn(&PodFacts) -> bool) {
        let known = self.facts.memory.generation;
        let is_its = |pod: &&PodFacts| is_task_manager_of(pod, known) && is_left(pod) && !is_there(pod);
        let mut ended: Vec<_> = self.facts.pods.iter().filter(is_its).collect();
        ended.sort_by_key(|pod| ended_at(pod));
        self.remove_but_the_last(&ended);
    }

    /// Of a job that rests: that it has ended is in status. A helper's end is read by who waits for it.
    pub(super) fn remove_ended_of_rest(&mut self) {
        self.remove_ended_of_earlier();
        let (known, has_helper) = (self.facts.memory.generation, self.plan.memory.helper.is_some());
        let is_done = |pod: &&PodFacts| pod.generation == known && !(has_helper && pod.role == Role::JobManager);
        self.facts.pods.iter().filter(is_done).for_each(|pod| self.remove_lingering(pod));
    }

    fn remove_but_the_last(&mut self, ended: &[&PodFacts]) {
        let (doomed, kept) = ended.split_at(ended.len().saturating_sub(KEPT));
        self.plan.delete.extend(doomed.iter().map(|pod| reference(pod)));
        kept.iter().for_each(|pod| self.remove_lingering(pod));
    }

    fn remove_lingering(&mut self, pod: &PodFacts) {
        let due = ended_at(pod).plus(LINGERS);
        match pod.lingers && is_left(pod) {
            true if self.facts.now < due => self.wake_at(due),
            true => self.plan.delete.push(reference(pod)),
            false => {}
        }
    }
}

fn is_task_manager_of(pod: &PodFacts, generation: Generation) -> bool {
    pod.generation == generation && pod.role != Role::JobManager
}

/// Whether it has ended and nobody removes it yet.
const fn is_left(pod: &PodFacts) -> bool {
    pod.ended.is_some() && !pod.terminating
}

fn ended_at(pod: &PodFacts) -> Timestamp {
    pod.ended.as_ref().map(|end| end.at).unwrap_or_default()
}
