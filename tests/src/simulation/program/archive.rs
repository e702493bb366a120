//! A sink that commits with checkpoints: an archive of events, in which each row must be once (S1-S6, K3).

use super::column;
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::sink::{
    AcceptedKinds, Commit, CommitError, Committer, CommitterContext, DeliveryGuarantee, PreCommit, Sink, SinkContext,
    SinkFactory, Staged, TransactionId, Transactional, TwoPhaseCommitSink,
};
use sluice_protocol::Run;
use sluice_protocol::state::Committable;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Split and position of an event.
pub type Row = (i64, i64);

/// The outside: what is staged by name, and what readers see.
#[derive(Debug, Default)]
pub struct Rows {
    staged: BTreeMap<String, Vec<Row>>,
    committed: BTreeSet<String>,
    /// What readers see.
    pub visible: BTreeSet<Row>,
    /// A row that readers saw twice.
    pub doubled: Option<Row>,
}

/// Outlives all processes.
pub type Archive = Arc<Mutex<Rows>>;

struct Writer {
    archive: Archive,
    name: String,
    rows: Vec<Row>,
}

impl TwoPhaseCommitSink for Writer {
    fn open(&mut self, _: SinkContext) -> Result<(), TaskError> {
        Ok(())
    }

    fn begin(&mut self, transaction: &TransactionId) -> Result<(), TaskError> {
        self.name = transaction.to_string();
        Ok(())
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        self.rows.extend(column(&batch, 2).into_iter().zip(column(&batch, 3)));
        Ok(())
    }

    fn pre_commit(&mut self) -> Result<PreCommit, TaskError> {
        let mut archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        archive.staged.insert(self.name.clone(), std::mem::take(&mut self.rows));
        Ok(PreCommit::Staged(vec![Staged { version: 1, expires_at: None, bytes: self.name.clone().into_bytes() }]))
    }
}

struct ArchiveCommitter {
    archive: Archive,
    context: CommitterContext,
}

fn name_in(committable: &Committable) -> String {
    String::from_utf8_lossy(&committable.bytes).into_owned()
}

impl Committer for ArchiveCommitter {
    fn commit(&mut self, committable: &Committable) -> Result<Commit, CommitError> {
        let name = name_in(committable);
        let mut archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        if archive.committed.contains(&name) {
            return Ok(Commit::AlreadyCommitted);
        }
        let rows = archive.staged.remove(&name);
        for row in rows.ok_or_else(|| CommitError::Lost(format!("nothing is known of {name}")))? {
            if !archive.visible.insert(row) {
                archive.doubled.get_or_insert(row);
            }
        }
        archive.committed.insert(name);
        Ok(Commit::Committed)
    }

    fn abort(&mut self, older_than: Run, spared: &[Committable]) -> Result<u64, CommitError> {
        let spared: BTreeSet<String> = spared.iter().map(name_in).collect();
        let CommitterContext { job, sink } = &self.context;
        let mut archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        let before = archive.staged.len();
        let is_older = |name: &str| TransactionId::is_older(name, job, sink, older_than);
        archive.staged.retain(|name, _| spared.contains(name) || !is_older(name));
        Ok((before - archive.staged.len()) as u64)
    }
}

pub(super) struct ArchiveSink(pub(super) Archive);

impl SinkFactory for ArchiveSink {
    fn create(&self) -> Result<Box<dyn Sink>, TaskError> {
        let archive = Arc::clone(&self.0);
        Ok(Box::new(Transactional::new(Writer { archive, name: String::new(), rows: vec![] })))
    }

    fn accepted_kinds(&self) -> AcceptedKinds {
        AcceptedKinds::InsertOnly
    }

    fn guarantee(&self) -> DeliveryGuarantee {
        DeliveryGuarantee::ExactlyOnce
    }

    fn committer(&self, context: CommitterContext) -> Result<Option<Box<dyn Committer>>, TaskError> {
        Ok(Some(Box::new(ArchiveCommitter { archive: Arc::clone(&self.0), context })))
    }
}
