//! The files of checkpoints as the store sees them: what a checkpoint may refer to, what may be removed, and what must
//! have been (K2, K6, L4).

use super::Check;
use crate::simulation::store::{ObjectStore, relative};
use sluice_protocol::ledger::Entry;
use sluice_protocol::metadata::Metadata;
use sluice_protocol::state::KeyedStateKind;
use sluice_protocol::store::UnfinishedUpload;
use sluice_protocol::{CheckpointId, ProcessId, Run};
use std::collections::BTreeSet;

impl Check {
    /// Remembers the files of a completed checkpoint, and how many deltas are among them.
    pub(super) fn note_files(&mut self, entry: &Entry, id: CheckpointId, store: &ObjectStore) -> Result<(), String> {
        let generation = entry.generation;
        let directory = self.paths.checkpoint_directory(generation, id);
        let key = self.paths.metadata(generation, id);
        let bytes = store.get(&key).ok_or_else(|| format!("K2: {key} is missing when its entry stands"))?;
        let metadata = Metadata::from_bytes(bytes, &key).map_err(|error| error.to_string())?;
        let handles = metadata.operators.iter().flat_map(|operator| &operator.keyed);
        self.coverage.deltas += handles.filter(|handle| handle.kind == KeyedStateKind::Delta).count() as u64;
        let files: BTreeSet<String> = metadata.files(&directory).collect();
        self.check_files(id, metadata.run, &files)?;
        self.files.insert(directory.clone(), files);
        self.completed.insert(id, directory);
        Ok(())
    }

    /// A checkpoint refers only to files of its base and of its own attempt, so to none of a foreign snapshot (K6, K7).
    fn check_files(&self, id: CheckpointId, run: Run, files: &BTreeSet<String>) -> Result<(), String> {
        let base = self.bases.get(&(run.generation.0, id)).copied().flatten();
        let of_base = base.and_then(|base| self.files.get(self.completed.get(&base)?));
        // Their names hold checkpoint and run (K2).
        let is_own = |file: &String| {
            let name = file.rsplit('/').next().unwrap_or_default();
            self.paths.parse_shared(file).is_some() && name.split('-').nth(1) == Some(&run.to_string())
        };
        match files.iter().find(|file| !is_own(file) && of_base.is_none_or(|of_base| !of_base.contains(*file))) {
            None => Ok(()),
            Some(file) => Err(format!(
                "K6: checkpoint {id} of run {run} refers to {file}, which is neither its own nor of its base {base:?}"
            )),
        }
    }

    /// A delete is about to take effect.
    ///
    /// # Errors
    /// When the object must stay.
    pub fn on_delete(&mut self, key: &str) -> Result<(), String> {
        let fold = self.fold();
        if let Some(number) = self.paths.parse_ledger_entry(key) {
            if number >= fold.trimmed_below || self.first_entries.contains(&number) {
                return Err(format!("L4: entry {number} is removed, the bound is {}", fold.trimmed_below));
            }
            self.coverage.trimmed += 1;
        }
        let retained = fold.retained.iter().map(|one| self.paths.checkpoint_directory(one.key.generation, one.key.id));
        // When the job has ended, nothing restarts any more.
        let restore = self.restore.clone().filter(|_| !fold.state.is_terminal());
        let needed: BTreeSet<String> = retained.chain(restore).collect();
        let refers = |directory: &&String| {
            let former = self.former.as_ref().filter(|former| former.restore.as_ref() == Some(*directory));
            let files = self.files.get(*directory).or(former.map(|former| &former.files));
            files.is_some_and(|files| files.contains(key))
        };
        if let Some(directory) = needed.iter().find(refers) {
            return Err(format!("K6: {key} is removed, but {directory} refers to it"));
        }
        if let Some(directory) = needed.iter().find(|directory| key == format!("{directory}/_metadata")) {
            return Err(format!("K6: {key} is removed, but {directory} may be restored"));
        }
        if let Some((generation, id)) = self.paths.parse_checkpoint(key)
            && needed.contains(&self.paths.checkpoint_directory(generation, id))
        {
            return Err(format!("K6: {key} is removed, but checkpoint {id} is retained"));
        }
        self.check_savepoint_delete(key)
    }

    /// Some time after the job has ended, and its last JobManager had the time to clean up: the store holds what the
    /// ledger reaches, and else only what was uploaded after that JobManager had looked (K6).
    ///
    /// # Errors
    /// What nobody removed.
    pub fn on_quiet(&mut self, store: &ObjectStore) -> Result<(), String> {
        let fold = self.fold();
        let retained: BTreeSet<_> = fold.retained.iter().map(|one| (one.key.generation, one.key.id)).collect();
        let directories = retained.iter().map(|(generation, id)| self.paths.checkpoint_directory(*generation, *id));
        let referred_to: BTreeSet<&String> =
            directories.filter_map(|directory| self.files.get(&directory)).flatten().collect();
        let swept_at = self.swept_at.unwrap_or(u64::MAX);
        let own = [format!("{}/", self.paths.directory()), super::savepoints::directory(&self.job)];
        let is_own = |key: &&String| own.iter().any(|own| key.starts_with(own));
        for key in store.keys().filter(is_own).filter(|key| !self.owns_entry(key)) {
            let of_retained = self.paths.parse_checkpoint(key).is_some_and(|checkpoint| retained.contains(&checkpoint));
            let is_reached = of_retained || referred_to.contains(key);
            let (is_reached, swept_at) = match super::savepoints::parse(&self.job, key) {
                Some(of) => (fold.keeps_savepoint(of, true), self.savepoints_swept_at.unwrap_or(u64::MAX)),
                None => (is_reached, swept_at),
            };
            if !is_reached && self.puts.get(key).is_none_or(|put| *put <= swept_at) {
                return Err(format!("K6: nobody has removed {key}, the ledger reaches {retained:?}"));
            }
        }
        self.check_uploads(store)?;
        self.coverage.swept += 1;
        Ok(())
    }

    /// An upload was begun.
    pub fn on_upload(&mut self, upload: &UnfinishedUpload) {
        self.effects += 1;
        self.uploads.insert(upload.clone(), self.effects);
    }

    /// A listing of uploads took effect, and its caller will hear of it.
    pub fn on_list_uploads(&mut self, process: &ProcessId, prefix: &str) {
        if !self.has_ended(process) {
            return;
        }
        if prefix.trim_end_matches('/') == self.paths.directory() {
            self.uploads_swept_at.0 = Some(self.effects);
        }
        if relative(prefix) == super::savepoints::directory(&self.job) {
            self.uploads_swept_at.1 = Some(self.effects);
        }
    }

    /// An unfinished upload to this key is about to be given up.
    ///
    /// # Errors
    /// When whoever is to finish it lives, as far as the ledger tells.
    pub fn on_abort(&mut self, key: &str) -> Result<(), String> {
        let of = self.paths.parse_checkpoint(key).or_else(|| self.paths.parse_shared(key));
        let of_savepoint = || super::savepoints::parse(&self.job, key).map(|one| (one.generation, one.id));
        let Some((generation, id)) = of.or_else(of_savepoint) else { return Ok(()) };
        let fold = self.fold();
        let is_open = generation == fold.generation && id > fold.last_checkpoint && !fold.state.is_terminal();
        if is_open || generation > fold.generation {
            return Err(format!("K6: the upload of {key} is given up, but checkpoint {id} may be under way"));
        }
        self.coverage.given_up_uploads += 1;
        Ok(())
    }

    /// The same of uploads: none is left that was there when the last JobManager looked.
    fn check_uploads(&self, store: &ObjectStore) -> Result<(), String> {
        let (of_job, of_savepoints) = self.uploads_swept_at;
        let places = [
            (format!("{}/", self.paths.directory()), of_job),
            (super::savepoints::directory(&self.job), of_savepoints),
        ];
        for upload in store.uploads() {
            let place = places.iter().find(|(prefix, _)| upload.key.starts_with(prefix));
            let swept_at = place.and_then(|(_, swept_at)| *swept_at);
            let begun_at = self.uploads.get(upload);
            if swept_at.zip(begun_at).is_some_and(|(swept_at, begun_at)| *begun_at <= swept_at) {
                return Err(format!("K6: nobody has given up the unfinished upload of {}", upload.key));
            }
        }
        Ok(())
    }
}
