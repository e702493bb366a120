//! The first half of the exactly-once sink: rows into a transaction, and its handle (S1-S3).
//!
//! One producer for each transactional id of a small pool ([`slots`]). A transaction is written by one of them, and its
//! producer rests until a complete checkpoint is without the handle; meanwhile others take over. The writer never ends a
//! transaction that is not settled: that is the committer's.
//!
//! [`slots`]: super::slots

use super::committer::{HANDLE_VERSION, handle_of};
use super::options::SinkOptions;
use super::sink::{HIGH_WATER, Writing};
use super::slots::{Keeper, Ready, Slot};
use sluice_engine::batch::Batch;
use sluice_engine::error::TaskError;
use sluice_engine::operator::Clock;
use sluice_engine::sink::{PreCommit, SinkContext, Staged, TransactionId, TwoPhaseCommitSink};
use sluice_protocol::Timestamp;
use sluice_protocol::state::Committable;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A subtask's writer.
pub(super) struct TransactionalWriter {
    options: Arc<SinkOptions>,
    keeper: Option<Keeper>,
    /// Begun, and empty. All take turns: an id that rests for days is forgotten by the brokers.
    ready: VecDeque<Slot>,
    current: Option<Slot>,
    clock: Option<Clock>,
    /// When the current transaction had sent nothing yet: the coordinator's time of its start is by another clock (S4).
    begun_at: Timestamp,
    is_describing: bool,
    /// Staged and not settled, by transactional id.
    resting: BTreeMap<String, Slot>,
}

impl TransactionalWriter {
    pub(super) const fn new(options: Arc<SinkOptions>) -> Self {
        Self {
            options,
            keeper: None,
            ready: VecDeque::new(),
            current: None,
            clock: None,
            begun_at: Timestamp(0),
            is_describing: false,
            resting: BTreeMap::new(),
        }
    }

    fn keeper(&mut self) -> Result<&mut Keeper, TaskError> {
        self.keeper.as_mut().ok_or_else(|| TaskError::Internal("a Kafka sink was used before it was opened".to_owned()))
    }

    /// Takes what the keeper has made ready, and has it make more when none is left.
    fn look_for_slots(&mut self) -> Result<(), TaskError> {
        let keeper = self.keeper()?;
        let mut found = Vec::new();
        while let Some(slot) = keeper.take_ready()? {
            found.push(slot);
        }
        self.ready.extend(found);
        if self.ready.is_empty() {
            self.keeper()?.prepare_one();
        }
        Ok(())
    }

    fn writing(&mut self) -> Result<&mut Writing, TaskError> {
        let slot = self.current.as_mut();
        slot.map(|slot| &mut slot.writing)
            .ok_or_else(|| TaskError::Internal("a Kafka sink was written to outside of a transaction".to_owned()))
    }

    /// The handle of what was written; all of it has arrived.
    fn stage(&mut self, described: &Ready) -> Result<Vec<Staged>, TaskError> {
        let (handle, timeout) = described.to_handle(&self.options)?;
        let bytes = serde_json::to_vec(&handle).map_err(|error| TaskError::Internal(error.to_string()))?;
        if let Some(slot) = self.current.take() {
            self.resting.insert(slot.id.clone(), slot);
        }
        Ok(vec![Staged { version: HANDLE_VERSION, expires_at: Some(self.begun_at.plus(timeout)), bytes }])
    }
}

impl TwoPhaseCommitSink for TransactionalWriter {
    fn open(&mut self, context: SinkContext) -> Result<(), TaskError> {
        let (keeper, first) = Keeper::open(Arc::clone(&self.options), &context)?;
        self.keeper = Some(keeper);
        self.clock = Some(context.clock);
        self.ready.push_back(first);
        // The second is made while the first is written to.
        self.keeper()?.prepare_one();
        Ok(())
    }

    fn begin(&mut self, _: &TransactionId) -> Result<(), TaskError> {
        self.look_for_slots()?;
        let Some(slot) = self.ready.pop_front() else {
            return Err(TaskError::Internal("a Kafka sink was written to while it had no room".to_owned()));
        };
        self.current = Some(slot);
        self.begun_at = self.clock.as_ref().map_or(Timestamp(0), |clock| clock());
        self.look_for_slots()
    }

    fn write(&mut self, batch: Batch) -> Result<(), TaskError> {
        // A barrier that was given up may have asked already: what was found then is not all.
        self.is_describing = false;
        let options = Arc::clone(&self.options);
        let writing = self.writing()?;
        writing.backlog.push_back((batch, 0));
        writing.advance(&options)
    }

    fn is_writable(&mut self) -> Result<bool, TaskError> {
        if self.current.is_none() {
            self.look_for_slots()?;
            if self.ready.is_empty() {
                self.keeper()?.wait(Instant::now())?;
            }
            return Ok(!self.ready.is_empty());
        }
        let options = Arc::clone(&self.options);
        let writing = self.writing()?;
        writing.advance(&options)?;
        Ok(writing.backlog.is_empty() && writing.pending() < HIGH_WATER)
    }

    fn pre_commit(&mut self) -> Result<PreCommit, TaskError> {
        let options = Arc::clone(&self.options);
        let writing = self.writing()?;
        if !writing.has_arrived(&options)? {
            return Ok(PreCommit::Pending);
        }
        if !writing.has_sent() {
            self.ready.extend(self.current.take());
            return Ok(PreCommit::Staged(Vec::new()));
        }
        if !self.is_describing {
            self.is_describing = true;
            let id = self.current.as_ref().map(|slot| slot.id.clone()).unwrap_or_default();
            self.keeper()?.describe(id);
        }
        let Some(described) = self.keeper()?.take_described()? else { return Ok(PreCommit::Pending) };
        self.is_describing = false;
        self.stage(&described).map(PreCommit::Staged)
    }

    fn settled(&mut self, handle: &Committable) {
        let slot = handle_of(handle).ok().and_then(|handle| self.resting.remove(&handle.transactional_id));
        if let (Some(slot), Some(keeper)) = (slot, &mut self.keeper) {
            keeper.renew(slot);
        }
    }
}

impl Drop for TransactionalWriter {
    /// Nothing is committed or aborted (S1). The producer that may be writing ends here: when a task has ended, what it left
    /// open lies with the brokers, where an abort finds it. Producers end slowly, so the others do elsewhere.
    fn drop(&mut self) {
        drop(self.current.take());
        if let Some(keeper) = &self.keeper {
            let resting = std::mem::take(&mut self.resting);
            let ready = std::mem::take(&mut self.ready);
            keeper.end(ready.into_iter().chain(resting.into_values()).collect());
        }
    }
}
