//! A table on disk as it was when it was frozen, and its files.

use super::space::{Keyspaces, failed};
use super::{DiskChanges, GROUP_BYTES, PERIOD_BYTES, read_value};
use crate::error::TaskError;
use crate::operator::{OperatorState, SnapshotWriter, TakePiece, WriteOptions};
use crate::state::TableLayout;
use crate::state::file::{FileWriter, ROW_GROUP_ROWS, Rows};
use crate::state::history::{History, Plan};
use fjall::{Iter, Readable as _, Snapshot, UserKey};
use sluice_protocol::CheckpointId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Rows that are written at once.
const CHUNK_ROWS: usize = ROW_GROUP_ROWS / 4;

/// A table as it was when it was frozen.
pub(super) struct FrozenDiskTable {
    pub(super) name: Arc<str>,
    pub(super) layout: Arc<TableLayout>,
    pub(super) rows: u64,
    pub(super) checkpoint: CheckpointId,
    pub(super) snapshot: Snapshot,
    pub(super) keyspaces: Arc<Keyspaces>,
    pub(super) history: Arc<History<DiskChanges>>,
}

impl SnapshotWriter for FrozenDiskTable {
    fn write(&self, options: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError> {
        let plan = self.history.plan(self.checkpoint, options, self.rows, &self.layout);
        let mut writer = FileWriter::new(&self.name, &self.layout, &plan, take);
        let mut chunk = Chunk { width: self.layout.words, ..Chunk::default() };
        match &plan {
            Plan::Whole => self.write_whole(&plan, &mut chunk, &mut writer)?,
            Plan::Delta { changes, .. } => {
                let periods = changes.iter().flat_map(|changes| changes.periods.clone()).collect();
                self.write_delta(&plan, periods, &mut chunk, &mut writer)?;
            }
        }
        chunk.write(&plan, &mut writer)?;
        writer.finish()?;
        let layers = vec![History::layers(&self.history, &self.name, self.checkpoint, plan)];
        self.keyspaces.collect_garbage()?;
        Ok(OperatorState { layers, ..OperatorState::default() })
    }
}

impl FrozenDiskTable {
    fn write_whole(
        &self,
        plan: &Plan<DiskChanges>,
        chunk: &mut Chunk,
        writer: &mut FileWriter<'_>,
    ) -> Result<(), TaskError> {
        for row in self.snapshot.iter(&self.keyspaces.rows) {
            let (key, value) = row.into_inner().map_err(failed)?;
            chunk.push(key, Some(&value))?;
            if chunk.keys.len() == CHUNK_ROWS {
                chunk.write(plan, writer)?;
            }
        }
        Ok(())
    }

    fn write_delta(
        &self,
        plan: &Plan<DiskChanges>,
        periods: Vec<u64>,
        chunk: &mut Chunk,
        writer: &mut FileWriter<'_>,
    ) -> Result<(), TaskError> {
        let mut changed = ChangedKeys::new(&self.snapshot, &self.keyspaces, periods)?;
        while let Some(key) = changed.next()? {
            let value = self.snapshot.get(&self.keyspaces.rows, &key).map_err(failed)?;
            chunk.push(key, value.as_deref())?;
            if chunk.keys.len() == CHUNK_ROWS {
                chunk.write(plan, writer)?;
            }
        }
        Ok(())
    }
}

/// Rows that are about to be written.
#[derive(Default)]
struct Chunk {
    width: usize,
    keys: Vec<UserKey>,
    words: Vec<u64>,
    deleted: Vec<bool>,
}

impl Chunk {
    fn push(&mut self, key: UserKey, value: Option<&[u8]>) -> Result<(), TaskError> {
        let start = self.words.len();
        self.words.resize(start + self.width, 0);
        if let Some(value) = value {
            read_value(value, &mut self.words[start..])?;
        }
        self.keys.push(key);
        self.deleted.push(value.is_none());
        Ok(())
    }

    fn write(&mut self, plan: &Plan<DiskChanges>, writer: &mut FileWriter<'_>) -> Result<(), TaskError> {
        let mut rows = Rows::new(false, plan.kind());
        let words = self.words.chunks_exact(self.width);
        for ((key, words), deleted) in self.keys.iter().zip(words).zip(&self.deleted) {
            let Some((group, key)) = key.split_first_chunk::<GROUP_BYTES>() else {
                return Err(TaskError::Internal("a key of keyed state on disk is cut off".to_owned()));
            };
            let group = u16::from_be_bytes(*group);
            if *deleted {
                rows.push_deleted_encoded(group, key, words);
            } else {
                rows.push_encoded(group, key, words);
            }
        }
        writer.write(&mut rows)?;
        drop(rows);
        self.keys.clear();
        self.words.clear();
        self.deleted.clear();
        Ok(())
    }
}

/// The keys that any of some periods changed, in order and each once.
struct ChangedKeys {
    periods: Vec<Iter>,
    heads: BinaryHeap<Reverse<(UserKey, usize)>>,
}

impl ChangedKeys {
    fn new(snapshot: &Snapshot, keyspaces: &Keyspaces, periods: Vec<u64>) -> Result<Self, TaskError> {
        let periods = periods.iter().map(|period| snapshot.prefix(&keyspaces.changes, period.to_be_bytes())).collect();
        let mut changed = Self { periods, heads: BinaryHeap::new() };
        for index in 0..changed.periods.len() {
            changed.advance(index)?;
        }
        Ok(changed)
    }

    fn advance(&mut self, index: usize) -> Result<(), TaskError> {
        if let Some(change) = self.periods[index].next() {
            let key = change.key().map_err(failed)?;
            self.heads.push(Reverse((UserKey::from(&key[PERIOD_BYTES..]), index)));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<UserKey>, TaskError> {
        let Some(Reverse((key, index))) = self.heads.pop() else { return Ok(None) };
        self.advance(index)?;
        while let Some(Reverse((other, index))) = self.heads.peek() {
            if *other != key {
                break;
            }
            let index = *index;
            self.heads.pop();
            self.advance(index)?;
        }
        Ok(Some(key))
    }
}
