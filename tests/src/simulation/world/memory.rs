//! Worlds whose checkpoints lie in the JobManager's memory: no ledger, and no fence (L7).
//!
//! What must hold: each complete checkpoint is a cut of the input by what its tasks have told, and ids rise; an attempt restores
//! the latest; once the JobManager is lost nothing is deployed any more, not even empty; and the store is asked for nothing.

use super::{Process, World};
use crate::simulation::program::Events;
use crate::simulation::program::cut::Cut;
use crate::simulation::store::ROOT;
use sluice_protocol::message::{Deployment, FromTaskManager};
use sluice_protocol::store::StoreOperation;

impl World {
    /// Whether a JobManager may ask the store for this: of checkpoints that lie in its memory, nothing.
    pub(super) fn may_ask(&self, process: Process, operation: &StoreOperation) -> Result<(), String> {
        let key = match operation {
            StoreOperation::PutIfAbsent { key, .. } | StoreOperation::Get { key } => Some(key),
            StoreOperation::List { prefix, .. } | StoreOperation::ListUploads { prefix } => Some(prefix),
            StoreOperation::Delete { keys } => keys.first(),
            StoreOperation::AbortUploads { uploads } => uploads.first().map(|upload| &upload.key),
        };
        let is_elsewhere = key.is_some_and(|key| key.starts_with(ROOT));
        if is_elsewhere || !self.scenario.in_memory {
            return Ok(());
        }
        Err(format!("L7: {process:?} asks the store for {operation:?}, but its checkpoints lie in its memory"))
    }

    /// A task tells its state: it becomes part of a checkpoint, if that comes to be complete.
    pub(super) fn note_acknowledged(&mut self, message: &FromTaskManager) {
        if let FromTaskManager::Acknowledge { run, checkpoint, subtask, state, .. } = message
            && self.scenario.in_memory
        {
            let of = self.acknowledged.entry((run.generation.0, *checkpoint)).or_default();
            of.insert(*subtask, state.clone());
        }
    }

    /// A JobManager has decided something: is a checkpoint complete?
    pub(super) fn check_memory(&mut self, index: usize) {
        if self.scenario.in_memory
            && let Err(what) = self.note_completed(index)
        {
            self.violate(what);
        }
    }

    fn note_completed(&mut self, index: usize) -> Result<(), String> {
        let one = &self.job_managers[index];
        let Some(id) = one.status().last_checkpoint.as_ref().map(|last| last.id) else { return Ok(()) };
        let before = one.completed.as_ref().map(|(before, _)| *before);
        if before == Some(id) {
            return Ok(());
        }
        if before > Some(id) {
            return Err(format!("K2: checkpoint {id} after {before:?}"));
        }
        let states = self.acknowledged.get(&(one.generation, id)).cloned().unwrap_or_default();
        let operators: Vec<_> = states.values().flat_map(|state| state.operators.clone()).collect();
        let in_flight: Vec<_> = states.values().flat_map(|state| state.in_flight.clone()).collect();
        let cut = Cut::put_together(id, &operators, &in_flight, ("", &|_| None))?;
        let events = Events::new(&self.scenario);
        let at_least_once = self.check.at_least_once;
        cut.verify(&events, at_least_once).map_err(|what| format!("checkpoint {id} in memory {what}"))?;
        self.job_managers[index].completed = Some((id, cut.positions.clone()));
        self.check.note_in_memory(&cut);
        Ok(())
    }

    /// A JobManager deploys tasks.
    pub(super) fn check_deployment(&mut self, index: usize, deployment: &Deployment) {
        if self.scenario.in_memory
            && let Err(what) = self.restores_latest(index, deployment)
        {
            self.violate(what);
        }
    }

    fn restores_latest(&self, index: usize, deployment: &Deployment) -> Result<(), String> {
        let (one, run) = (&self.job_managers[index], deployment.run);
        if one.generation > 1 {
            return Err(format!("L7: {run} is deployed, although the memory that held the checkpoints is lost"));
        }
        for task in &deployment.tasks {
            let subtask = task.subtask;
            let (Some((id, positions)), Some(state)) = (&one.completed, &task.restore) else {
                if one.completed.is_some() != task.restore.is_some() {
                    let found = task.restore.is_some();
                    return Err(format!("K1: {subtask} of {run} restores: {found}; complete is {:?}", one.completed));
                }
                continue;
            };
            for split in state.operators.iter().flat_map(|operator| &operator.splits) {
                let (number, found) = (split.split.parse().unwrap_or(u32::MAX), split.state["position"].as_u64());
                let expected = positions.get(&number).copied();
                if found != expected {
                    let what = format!("restores split {number} at {found:?}, checkpoint {id} holds {expected:?}");
                    return Err(format!("K1: {subtask} of {run} {what}"));
                }
            }
        }
        Ok(())
    }
}
