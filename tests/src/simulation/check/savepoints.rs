//! Savepoints as the store sees them (K4, K5, K6).

use super::{Check, name};
use crate::simulation::people::SAVEPOINTS;
use crate::simulation::program::cut::Cut;
use crate::simulation::store::{ObjectStore, ROOT};
use sluice_protocol::ledger::{
    CheckpointKey, Ends, Entry, EntryKind, Fold, RetainedCheckpoint, SavepointKind, TakenSavepoint,
};
use sluice_protocol::message::{Alignment, Barrier};
use sluice_protocol::metadata::Metadata;
use sluice_protocol::paths::parse_savepoint;
use sluice_protocol::state::StateData;
use sluice_protocol::{JobId, Run, SubtaskId, SubtaskIndex, VertexId};

impl Check {
    /// An entry about savepoints is about to stand: `fold` is what stood before it.
    pub(super) fn check_savepoints(&mut self, entry: &Entry, fold: &Fold, store: &ObjectStore) -> Result<(), String> {
        if fold.has_stopped_with_savepoint() && !is_behind_the_end(&entry.kind) {
            let message = format!("K4: {} behind the checkpoint that the job ends with", name(&entry.kind));
            return Err(message);
        }
        match &entry.kind {
            EntryKind::SavepointRequested { id, .. } => {
                let is_known = fold.requests.iter().any(|request| request.id == *id);
                if is_known { Err(format!("K4: request {id} is taken twice")) } else { Ok(()) }
            }
            EntryKind::Checkpoint { .. } if self.given_up == Some(run_of(entry)) => Err(format!(
                "K4: the tasks of {} go on, although their sources have ended for a drain that was given up",
                run_of(entry)
            )),
            EntryKind::Checkpoint { checkpoint, savepoint: Some(savepoint), ends, .. } => {
                self.coverage.savepoints += 1;
                self.coverage.drains += u64::from(*ends == Ends::Finish);
                self.check_taken(fold, checkpoint, savepoint, *ends, store)
            }
            EntryKind::Savepoint { id, path } => {
                let is_its =
                    fold.requests.iter().any(|request| request.id == *id && request.taken.as_ref() == Some(path));
                if is_its {
                    Ok(())
                } else {
                    Err(format!("K4: request {id} is answered with {path}, which was not taken for it"))
                }
            }
            EntryKind::SavepointFailed { id, .. } => {
                self.coverage.failed_savepoints += 1;
                let request = fold.requests.iter().find(|request| request.id == *id && request.result.is_none());
                match request {
                    Some(request) if request.taken.is_none() => {
                        if request.kind == SavepointKind::Drain && self.draining.contains(&run_of(entry)) {
                            self.coverage.given_up_drains += 1;
                            self.given_up = Some(run_of(entry));
                        }
                        Ok(())
                    }
                    // What was staged before it was not committed in time: then the job goes on. It may be by the moment at
                    // which the entry stands.
                    Some(request)
                        if self.events.shape.archive
                            && request.kind != SavepointKind::Drain
                            && entry.time >= request.deadline =>
                    {
                        Ok(())
                    }
                    Some(_) => Err(format!("K4: request {id} has failed, but its checkpoint stands")),
                    None => Err(format!("K4: request {id} is not open, and has failed")),
                }
            }
            EntryKind::Disposed { path } => {
                self.coverage.disposals += 1;
                if self.restore.as_ref().is_some_and(|restore| path.ends_with(restore)) {
                    return Err(format!("K7: {path} is disposed of, but a restart restores it"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn check_taken(
        &self,
        fold: &Fold,
        checkpoint: &RetainedCheckpoint,
        savepoint: &TakenSavepoint,
        ends: Ends,
        store: &ObjectStore,
    ) -> Result<(), String> {
        let TakenSavepoint { request, path } = savepoint;
        let Some(open) = fold.requests.iter().find(|known| known.id == *request && known.result.is_none()) else {
            return Err(format!("K4: savepoint {path} was taken for request {request}, which is not open"));
        };
        if open.kind.ends() != ends {
            return Err(format!("K4: request {request} is a {:?}, its checkpoint ends with {ends:?}", open.kind));
        }
        let expected = self.read_checkpoint(checkpoint.key.generation, checkpoint.key.id, store)?;
        let found = read_savepoint(path, store)?;
        if found == expected {
            return Ok(());
        }
        Err(format!("K4: savepoint {path} is another cut than its checkpoint: {found:?}, not {expected:?}"))
    }

    /// A barrier is sent while these checkpoints are under way, itself among them.
    ///
    /// # Errors
    /// When savepoints and unaligned checkpoints are not kept apart (K5), or the last checkpoint would wait for rows.
    pub fn on_trigger(
        &mut self,
        run: Run,
        barrier: &Barrier,
        (pending, tasks): (usize, u32),
        alignment: Alignment,
    ) -> Result<(), String> {
        let generation = run.generation.0;
        self.bases.insert((generation, barrier.checkpoint), barrier.base);
        let first = SubtaskId { vertex: VertexId(0), index: SubtaskIndex(0) };
        let finished = self.finished.range((run, first)..).take_while(|(of, _)| *of == run).count();
        if barrier.ends == Ends::Finish && barrier.savepoint.is_none() && finished < tasks as usize {
            return Err(format!(
                "B1: the last checkpoint {} is triggered when {finished} of {tasks} tasks are done with their input",
                barrier.checkpoint
            ));
        }
        if barrier.savepoint.is_some() {
            self.savepoint_barriers.insert((generation, barrier.checkpoint));
            if barrier.ends == Ends::Finish {
                self.draining.insert(run);
            }
            if barrier.alignment != Alignment::Aligned {
                return Err(format!("K5: savepoint {} is {:?}", barrier.checkpoint, barrier.alignment));
            }
            if matches!(alignment, Alignment::Unaligned { .. }) && pending > 1 {
                return Err(format!(
                    "K5: savepoint {} is triggered beside an unaligned checkpoint",
                    barrier.checkpoint
                ));
            }
        }
        Ok(())
    }

    /// An object of a savepoint is about to be removed.
    pub(super) fn check_savepoint_delete(&self, key: &str) -> Result<(), String> {
        let Some(of) = parse(&self.job, key) else { return Ok(()) };
        let is_live = self.fold().savepoints.iter().any(|savepoint| savepoint.key == of);
        let has_ended = self.fold().state.is_terminal();
        let is_restore =
            !has_ended && self.restore.as_ref().is_some_and(|restore| key.starts_with(&format!("{restore}/")));
        if is_live || is_restore {
            return Err(format!("K6: {key} is removed, but the savepoint lives"));
        }
        Ok(())
    }
}

/// Where savepoints of the job lie, with a trailing slash.
pub(super) fn directory(job: &JobId) -> String {
    format!("{SAVEPOINTS}/{job}/")
}

/// The checkpoint with which a savepoint was taken, from the key of one of its objects.
pub(super) fn parse(job: &JobId, key: &str) -> Option<CheckpointKey> {
    parse_savepoint(&directory(job), key)
}

/// What may follow a checkpoint that the job was asked to end with.
fn is_behind_the_end(kind: &EntryKind) -> bool {
    matches!(
        kind,
        EntryKind::Savepoint { .. }
            | EntryKind::Stopped
            | EntryKind::CheckpointFailed { .. }
            | EntryKind::SavepointRequested { .. }
            | EntryKind::Started { cause: sluice_protocol::ledger::StartCause::Close, .. }
    )
}

/// Positions and counts of a savepoint, from its own files alone.
fn read_savepoint(path: &str, store: &ObjectStore) -> Result<Cut, String> {
    let directory = path.strip_prefix(&format!("{ROOT}/")).ok_or_else(|| format!("K4: {path} lies elsewhere"))?;
    let key = format!("{directory}/_metadata");
    let bytes = store.get(&key).ok_or_else(|| format!("K4: {key} is missing when its entry stands"))?;
    let metadata = Metadata::from_bytes(bytes, &key).map_err(|error| error.to_string())?;
    let mut handles = metadata.operators.iter().flat_map(|operator| &operator.keyed);
    let is_foreign =
        |data: &StateData| matches!(data, StateData::File { path, .. } if path.contains('/') || path.contains("://"));
    if let Some(foreign) = handles.find(|handle| is_foreign(&handle.data)) {
        return Err(format!("K4: savepoint {path} refers to {:?}", foreign.data));
    }
    super::read_snapshot(&metadata, directory, store)
}

const fn run_of(entry: &Entry) -> Run {
    Run { generation: entry.generation, attempt: entry.attempt }
}
