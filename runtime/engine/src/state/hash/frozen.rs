//! A table in memory as it was when it was frozen, and its files.

use super::TableChanges;
use super::changes::{Mask, ShardChanges};
use crate::error::TaskError;
use crate::operator::{OperatorState, SnapshotWriter, TakePiece, WriteOptions};
use crate::state::TableLayout;
use crate::state::arena::frozen_key;
use crate::state::file::{FileWriter, ROW_GROUP_ROWS, Rows};
use crate::state::history::{History, Plan};
use crate::state::shard::{CHUNK_ROWS, FrozenShard};
use sluice_protocol::state::KeyedStateKind;
use sluice_protocol::{CheckpointId, KeyGroupRange};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// A table as it was when it was frozen.
pub(super) struct FrozenTable {
    pub(super) name: Arc<str>,
    pub(super) layout: Arc<TableLayout>,
    pub(super) bigint: bool,
    pub(super) key_groups: KeyGroupRange,
    pub(super) shards: Vec<FrozenShard>,
    pub(super) checkpoint: CheckpointId,
    pub(super) history: Arc<History<TableChanges>>,
}

impl SnapshotWriter for FrozenTable {
    fn write(&self, options: &WriteOptions, take: TakePiece<'_>) -> Result<OperatorState, TaskError> {
        let rows = self.shards.iter().map(|shard| shard.rows as u64).sum();
        let plan = self.history.plan(self.checkpoint, options, rows, &self.layout);
        let mut writer = FileWriter::new(&self.name, &self.layout, &plan, take);
        match &plan {
            Plan::Whole => self.write_whole(&mut writer)?,
            Plan::Delta { changes, .. } => self.write_delta(changes, &mut writer)?,
        }
        writer.finish()?;
        let layers = vec![History::layers(&self.history, &self.name, self.checkpoint, plan)];
        Ok(OperatorState { layers, ..OperatorState::default() })
    }
}

impl FrozenTable {
    fn write_whole(&self, writer: &mut FileWriter<'_>) -> Result<(), TaskError> {
        let mut rows = self.no_rows(KeyedStateKind::Full);
        for (group, shard) in (self.key_groups.start..).zip(&self.shards) {
            for (number, words) in rows_of(shard, self.layout.words + 1).enumerate() {
                self.push(&mut rows, group, shard, number, words);
                if rows.len() == ROW_GROUP_ROWS {
                    writer.write(&mut rows)?;
                }
            }
        }
        writer.write(&mut rows)
    }

    fn write_delta(&self, changes: &[Arc<TableChanges>], writer: &mut FileWriter<'_>) -> Result<(), TaskError> {
        let zeros = vec![0; self.layout.words];
        for (index, (group, shard)) in (self.key_groups.start..).zip(&self.shards).enumerate() {
            let mut merged = ShardChanges::default();
            changes.iter().filter_map(|changes| changes.shards.get(index)).for_each(|one| merged.append(one));
            let mut rows = self.no_rows(KeyedStateKind::Delta);
            let mut gone = Gone::new(&merged);
            for (number, words) in written_rows(shard, self.layout.words + 1, &merged.written) {
                gone.is_there(shard, self.bigint, number, words[0]);
                self.push(&mut rows, group, shard, number, words);
            }
            gone.push_to(&mut rows, group, &zeros);
            writer.write(&mut rows)?;
        }
        Ok(())
    }

    fn no_rows(&self, kind: KeyedStateKind) -> Rows<'_> {
        Rows::new(self.bigint, kind)
    }

    #[inline]
    fn push<'a>(&'a self, rows: &mut Rows<'a>, group: u16, shard: &'a FrozenShard, number: usize, words: &'a [u64]) {
        if self.bigint {
            let is_null = shard.null_row.is_some_and(|null| null as usize == number);
            rows.push_bigint(group, (!is_null).then_some(words[0] as i64), &words[1..]);
        } else {
            rows.push_encoded(group, frozen_key(&shard.arena, words[0]), &words[1..]);
        }
    }
}

/// Removed keys of a key group that are not there again.
struct Gone<'a> {
    words: BTreeSet<u64>,
    null: bool,
    encoded: HashSet<&'a [u8]>,
}

impl<'a> Gone<'a> {
    fn new(changes: &'a ShardChanges) -> Self {
        let removed = &changes.removed;
        Self {
            words: removed.words.iter().copied().collect(),
            null: removed.null,
            encoded: removed.encoded().collect(),
        }
    }

    fn is_there(&mut self, shard: &FrozenShard, bigint: bool, number: usize, key: u64) {
        if !bigint {
            if !self.encoded.is_empty() {
                self.encoded.remove(frozen_key(&shard.arena, key));
            }
        } else if shard.null_row.is_some_and(|null| null as usize == number) {
            self.null = false;
        } else if !self.words.is_empty() {
            self.words.remove(&key);
        }
    }

    fn push_to(&self, rows: &mut Rows<'a>, group: u16, zeros: &'a [u64]) {
        let bigints = self.words.iter().map(|word| Some(*word as i64)).chain(self.null.then_some(None));
        bigints.for_each(|key| rows.push_deleted_bigint(group, key, zeros));
        self.encoded.iter().for_each(|key| rows.push_deleted_encoded(group, key, zeros));
    }
}

fn rows_of(shard: &FrozenShard, width: usize) -> impl Iterator<Item = &[u64]> {
    shard.chunks.iter().flat_map(move |chunk| chunk.chunks_exact(width))
}

/// The rows at noted positions, as far as there are any.
fn written_rows<'a>(
    shard: &'a FrozenShard,
    width: usize,
    written: &'a [Mask],
) -> impl Iterator<Item = (usize, &'a [u64])> {
    shard.chunks.iter().zip(written).enumerate().flat_map(move |(index, (chunk, mask))| {
        let positions = (0..CHUNK_ROWS).filter(|position| mask[position / 64] >> (position % 64) & 1 == 1);
        positions.filter_map(move |position| {
            let words = chunk.get(position * width..(position + 1) * width)?;
            Some((index * CHUNK_ROWS + position, words))
        })
    })
}
