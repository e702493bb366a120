//! Keys with several sessions: all but one of them stand in a table of their own.
//!
//! The sessions of such a key are put together in memory for a batch ([`MoreSessions::load`]), changed, and divided again
//! ([`MoreSessions::give_back`], [`MoreSessions::store`]). A key with one session, which is nearly each, is changed in place.

use super::{Plan, Session, as_times, merge};
use crate::aggregate::ROWS;
use crate::error::TaskError;
use crate::operator::{OperatorContext, RestoredKeyed, SnapshotWriter};
use crate::state::prefix::{FoundRows, Prefixes};
use crate::state::{Fate, KeyedTable, TableLayout, TouchedKeys};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::Schema;
use sluice_protocol::CheckpointId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The name of the state.
pub(super) const STATE_NAME: &str = "more-sessions";

/// Bytes of the start of a session at the end of an encoded key.
const START_BYTES: usize = 8;

/// A key of the batch with several sessions.
#[derive(Debug, Default)]
struct Several {
    sessions: Vec<Session>,
    /// Starts of those that the table holds.
    stored: BTreeSet<i64>,
}

/// The table, and the keys of the batch that have several sessions.
pub(super) struct MoreSessions {
    table: Box<dyn KeyedTable>,
    /// By slot.
    keys: BTreeMap<usize, Several>,
    prefixes: Prefixes,
    found: FoundRows,
    hashed: TouchedKeys,
    words: Vec<u64>,
}

impl MoreSessions {
    pub(super) fn open(
        context: &OperatorContext,
        layout: &Arc<TableLayout>,
        files: &[RestoredKeyed],
    ) -> Result<Self, TaskError> {
        let mut table = context.keyed_table(STATE_NAME, Arc::clone(layout))?;
        table.restore(&context.uid, files)?;
        Ok(Self {
            table,
            keys: BTreeMap::new(),
            prefixes: Prefixes::default(),
            found: FoundRows::default(),
            hashed: TouchedKeys::default(),
            words: Vec::new(),
        })
    }

    /// Puts the sessions of these keys together. `words` are the rows of `sessions`.
    pub(super) fn load(
        &mut self,
        plan: &Plan,
        (rows, key_columns): (&RecordBatch, &[usize]),
        touched: &TouchedKeys,
        slots: &[usize],
        words: &[u64],
    ) -> Result<(), TaskError> {
        self.keys.clear();
        if slots.is_empty() {
            return Ok(());
        }
        let firsts: Vec<u32> = slots.iter().map(|slot| touched.keys[*slot].first).collect();
        let keys = self.keys_of(rows, key_columns, &firsts, vec![0; slots.len()])?;
        let columns: Vec<usize> = (0..keys.num_columns()).collect();
        self.hashed.hash(self.table.layout(), &keys, &columns)?;
        self.prefixes.clear();
        for row in 0..slots.len() as u32 {
            self.prefixes.number(&self.hashed, row);
        }
        self.table.find_by_prefix(&self.prefixes, &mut self.found)?;
        self.table.load(&self.found.touched, &mut self.words);
        let at = plan.words();
        for slot in slots {
            let row = &words[slot * at.all..][..at.all];
            let sessions = vec![session_of(plan, row)];
            self.keys.insert(*slot, Several { sessions, stored: BTreeSet::new() });
        }
        let width = plan.more.words;
        let ranges = self.found.ranges(self.prefixes.len());
        for (slot, range) in slots.iter().zip(ranges) {
            let Some(several) = self.keys.get_mut(slot) else { continue };
            for position in range {
                let row = &self.words[position * width..][..width];
                let start = start_of(self.found.key(position))?;
                several.stored.insert(start);
                let words = row[..width - 1].to_vec();
                several.sessions.push(Session { start, end: row[width - 1] as i64, words });
            }
        }
        Ok(())
    }

    /// Puts a segment among the sessions of its key. False: it joins none, and is over.
    pub(super) fn place(
        &mut self,
        plan: &Plan,
        row: &mut [u64],
        slot: usize,
        (start, end, words): (i64, i64, &[u64]),
        is_over: bool,
    ) -> bool {
        let (at, calls) = (plan.words(), &plan.calls.calls);
        if let Some(several) = self.keys.get_mut(&slot) {
            return several.place(plan, (start, end, words), is_over);
        }
        let (own_start, own_end) = (row[at.start] as i64, row[at.end] as i64);
        if row[ROWS] == 0 {
            if !is_over {
                row[..words.len()].copy_from_slice(words);
                (row[at.start], row[at.end]) = (start as u64, end as u64);
            }
            return !is_over;
        }
        if own_start <= end && start <= own_end {
            merge(calls, row, words);
            (row[at.start], row[at.end]) = (own_start.min(start) as u64, own_end.max(end) as u64);
            return true;
        }
        if is_over {
            return false;
        }
        let sessions = vec![session_of(plan, row), Session { start, end, words: words.to_vec() }];
        self.keys.insert(slot, Several { sessions, stored: BTreeSet::new() });
        true
    }

    /// Takes the sessions of a key that are over at this watermark; returns the least end of those that are left.
    pub(super) fn take_over(
        &mut self,
        plan: &Plan,
        row: &mut [u64],
        slot: usize,
        watermark: i64,
        mut over: impl FnMut(i64, i64, &[u64]),
    ) -> i64 {
        let at = plan.words();
        let is_over = |end: i64| end.saturating_sub(1) <= watermark;
        let Some(several) = self.keys.get_mut(&slot) else {
            let (start, end) = (row[at.start] as i64, row[at.end] as i64);
            if !is_over(end) {
                return end;
            }
            over(start, end, &row[..at.start]);
            row.fill(0);
            return i64::MAX;
        };
        several.sessions.retain(|session| {
            if is_over(session.end) {
                over(session.start, session.end, &session.words);
            }
            !is_over(session.end)
        });
        several.sessions.iter().map(|session| session.end).min().unwrap_or(i64::MAX)
    }

    /// Gives each key of the batch one of its sessions back into its row.
    pub(super) fn give_back(&mut self, plan: &Plan, words: &mut [u64]) {
        let at = plan.words();
        for (slot, several) in &mut self.keys {
            let row = &mut words[slot * at.all..][..at.all];
            // The last one is most likely to go on.
            several.sessions.sort_by_key(|session| session.start);
            let Some(last) = several.sessions.pop() else {
                row.fill(0);
                continue;
            };
            row[..at.start].copy_from_slice(&last.words);
            (row[at.start], row[at.end]) = (last.start as u64, last.end as u64);
            row[at.more] = several.sessions.len() as u64;
        }
    }

    /// Stores what is left of the sessions of the batch's keys.
    pub(super) fn store(
        &mut self,
        rows: &RecordBatch,
        key_columns: &[usize],
        touched: &TouchedKeys,
    ) -> Result<(), TaskError> {
        let (mut firsts, mut starts, mut words, mut fates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let width = self.table.layout().words;
        for (slot, several) in std::mem::take(&mut self.keys) {
            let mut gone = several.stored;
            for session in &several.sessions {
                gone.remove(&session.start);
                firsts.push(touched.keys[slot].first);
                starts.push(session.start);
                words.extend_from_slice(&session.words);
                words.push(session.end as u64);
                fates.push(Fate::Write);
            }
            for start in gone {
                firsts.push(touched.keys[slot].first);
                starts.push(start);
                words.resize(words.len() + width, 0);
                fates.push(Fate::Remove);
            }
        }
        if firsts.is_empty() {
            return Ok(());
        }
        let keys = self.keys_of(rows, key_columns, &firsts, starts)?;
        let columns: Vec<usize> = (0..keys.num_columns()).collect();
        self.table.touch(&keys, &columns, &mut self.hashed)?;
        self.table.store(&self.hashed, &words, &fates)
    }

    pub(super) fn freeze(&mut self, checkpoint: CheckpointId) -> Result<Box<dyn SnapshotWriter>, TaskError> {
        self.table.freeze(checkpoint)
    }

    /// The keys of these rows, with starts of sessions behind them.
    fn keys_of(
        &self,
        rows: &RecordBatch,
        key_columns: &[usize],
        firsts: &[u32],
        starts: Vec<i64>,
    ) -> Result<RecordBatch, TaskError> {
        let internal = |error| TaskError::Internal(format!("the keys of sessions do not make a batch: {error}"));
        let fields = &self.table.layout().keys;
        let firsts = UInt32Array::from(firsts.to_vec());
        let taken = key_columns.iter().map(|key| take(rows.column(*key), &firsts, None));
        let mut columns = taken.collect::<Result<Vec<ArrayRef>, _>>().map_err(internal)?;
        columns.push(as_times(&Int64Array::from(starts), fields[columns.len()].data_type())?);
        let nullable = fields.iter().map(|field| field.clone().with_nullable(true)).collect::<Vec<_>>();
        RecordBatch::try_new(Arc::new(Schema::new(nullable)), columns).map_err(internal)
    }
}

impl Several {
    fn place(&mut self, plan: &Plan, (start, end, words): (i64, i64, &[u64]), is_over: bool) -> bool {
        if is_over && !self.sessions.iter().any(|session| session.meets(start, end)) {
            return false;
        }
        let mut made = Session { start, end, words: words.to_vec() };
        // Each that is taken in may reach another one.
        while let Some(position) = self.sessions.iter().position(|session| session.meets(made.start, made.end)) {
            let other = self.sessions.swap_remove(position);
            merge(&plan.calls.calls, &mut made.words, &other.words);
            made.start = made.start.min(other.start);
            made.end = made.end.max(other.end);
        }
        self.sessions.push(made);
        true
    }
}

/// The session in a row of `sessions`.
fn session_of(plan: &Plan, row: &[u64]) -> Session {
    let at = plan.words();
    Session { start: row[at.start] as i64, end: row[at.end] as i64, words: row[..at.start].to_vec() }
}

/// The start in the encoded key of a session.
fn start_of(key: &[u8]) -> Result<i64, TaskError> {
    let bytes = key.last_chunk::<START_BYTES>();
    let broken = || TaskError::Internal("the key of a session does not end with its start".to_owned());
    bytes.map(|bytes| i64::from_le_bytes(*bytes)).ok_or_else(broken)
}
