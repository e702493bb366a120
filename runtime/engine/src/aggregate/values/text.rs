//! MIN and MAX of text or bytes, which do not fit in words: the extremum of a group is one of its kept values.
//!
//! What comes is compared with the extremum of its group; only when that one goes are the group's values looked through
//! for the next ([`Values::find`]). The extremum of groups seen lately is remembered ([`Recent`]); that of another group
//! is found among its values first. Each batch of a group renews the extremum's time to live, so that it lives as long as
//! the group: as the words of other aggregates do.

use super::Values;
use crate::aggregate::accumulate::Signs;
use crate::error::TaskError;
use crate::keys::decode::{decode, stored_type};
use crate::state::{Fate, TouchedKeys};
use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of extrema that are remembered, with the keys of their groups.
const REMEMBERED: usize = 16 << 20;

/// What an entry takes besides its bytes, roughly.
const ENTRY: usize = 96;

/// The encoded extremum of groups seen lately, by their encoded keys; `None`: the group has none. Derived from the table,
/// so it is in no snapshot.
#[derive(Debug, Default)]
pub(super) struct Recent {
    extrema: HashMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

impl Recent {
    fn get(&self, group: &[u8]) -> Option<Option<&[u8]>> {
        self.extrema.get(group).map(|extremum| extremum.as_deref())
    }

    /// Forgets all first when it holds too much.
    fn set(&mut self, group: &[u8], extremum: Option<&[u8]>) {
        let size = |extremum: Option<&[u8]>| extremum.map_or(0, <[u8]>::len);
        if self.bytes > REMEMBERED {
            *self = Self::default();
        }
        self.bytes += size(extremum);
        if let Some(known) = self.extrema.get_mut(group) {
            self.bytes -= size(known.as_deref());
            *known = extremum.map(<[u8]>::to_vec);
        } else {
            self.bytes += group.len() + ENTRY;
            self.extrema.insert(group.to_vec(), extremum.map(<[u8]>::to_vec));
        }
    }
}

impl Values {
    /// Counts the values, and finds the extremum of each group before the batch and after it. `lives`: whether a group is
    /// there before the batch.
    pub(in crate::aggregate) fn count_text(
        &mut self,
        (most, alone): (bool, bool),
        rows: &RecordBatch,
        groups: &TouchedKeys,
        signs: &Signs,
        lives: impl Fn(usize) -> bool,
    ) -> Result<(), TaskError> {
        self.touched.hash(&self.plan.layout, rows, &self.plan.columns)?;
        self.recall(most, groups, lives)?;
        self.tally(rows, signs, &mut Signs::default())?;
        let bereft = self.compare_with_extrema(most, groups);
        if alone {
            self.keep_extrema_only(groups);
        }
        self.store()?;
        self.find_next_extrema(most, groups, &bereft)?;
        if alone {
            self.remove_replaced(groups)?;
        }
        for (group, extremum) in groups.keys.iter().zip(&self.after) {
            self.recent.set(self.touched.split(group.first).0, extremum.as_deref());
        }
        self.renew_extrema(groups)
    }

    /// Sets what the extrema were.
    fn recall(&mut self, most: bool, groups: &TouchedKeys, lives: impl Fn(usize) -> bool) -> Result<(), TaskError> {
        self.prefixes.clear();
        self.before.clear();
        let mut unknown = Vec::new();
        for (slot, group) in groups.keys.iter().enumerate() {
            let known = if lives(slot) { self.recent.get(self.touched.split(group.first).0) } else { Some(None) };
            self.before.push(known.flatten().map(<[u8]>::to_vec));
            if known.is_none() {
                self.prefixes.number(&self.touched, group.first);
                unknown.push(slot);
            }
        }
        for (slot, extremum) in unknown.iter().zip(self.find_extrema(most)?) {
            self.before[*slot] = extremum;
        }
        Ok(())
    }

    /// Lets the values that came be the extrema where they are better; returns the groups whose extremum has gone.
    fn compare_with_extrema(&mut self, most: bool, groups: &TouchedKeys) -> Vec<usize> {
        self.after.clone_from(&self.before);
        let mut bereft = Vec::new();
        let entries = self.words.chunks_exact(self.plan.layout.words).zip(&self.written);
        for (key, (entry, written)) in self.touched.keys.iter().zip(entries) {
            let group = groups.slots[key.first as usize] as usize;
            let value = self.touched.split(key.first).1;
            if entry[0] == 0 && self.before[group].as_deref() == Some(value) {
                bereft.push(group);
            } else if entry[0] != 0 && *written && is_better(most, value, self.after[group].as_deref()) {
                self.after[group] = Some(value.to_vec());
            }
        }
        bereft
    }

    /// Of the values that came only the extrema are to be stored.
    fn keep_extrema_only(&mut self, groups: &TouchedKeys) {
        let entries = self.words.chunks_exact_mut(self.plan.layout.words);
        for (key, entry) in self.touched.keys.iter().zip(entries) {
            let group = groups.slots[key.first as usize] as usize;
            if self.after[group].as_deref() != Some(self.touched.split(key.first).1) {
                entry[0] = 0;
            }
        }
    }

    /// Looks for the next extremum of groups whose own has gone.
    fn find_next_extrema(&mut self, most: bool, groups: &TouchedKeys, bereft: &[usize]) -> Result<(), TaskError> {
        self.prefixes.clear();
        for group in bereft {
            self.prefixes.number(&self.touched, groups.keys[*group].first);
        }
        for (group, extremum) in bereft.iter().zip(self.find_extrema(most)?) {
            self.after[*group] = extremum;
        }
        Ok(())
    }

    /// Removes the extrema that others have replaced.
    fn remove_replaced(&mut self, groups: &TouchedKeys) -> Result<(), TaskError> {
        self.prefixes.clear();
        let is_replaced = |group: &usize| self.before[*group].is_some() && self.before[*group] != self.after[*group];
        let replaced: Vec<usize> = (0..groups.keys.len()).filter(is_replaced).collect();
        if replaced.is_empty() {
            return Ok(());
        }
        for group in &replaced {
            self.prefixes.number(&self.touched, groups.keys[*group].first);
        }
        self.find()?;
        let fate = |row: usize| {
            let group = replaced[self.found.touched.keys[row].first as usize];
            if self.after[group].as_deref() == Some(self.value(row)) { Fate::Keep } else { Fate::Remove }
        };
        self.fates = (0..self.found.len()).map(fate).collect();
        self.table.store(&self.found.touched, &self.words, &self.fates)
    }

    /// With a TTL: the extrema are written now, as their groups are.
    fn renew_extrema(&mut self, groups: &TouchedKeys) -> Result<(), TaskError> {
        if self.ttl.is_none() {
            return Ok(());
        }
        let extremum = |(group, extremum): (&crate::state::Touched, &Option<Vec<u8>>)| {
            Some([self.touched.split(group.first).0, extremum.as_deref()?].concat())
        };
        let keys: Vec<Vec<u8>> = groups.keys.iter().zip(&self.after).filter_map(extremum).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let field = |key: &Field| Field::new(key.name(), stored_type(key.data_type()), true);
        let fields: Vec<Field> = self.plan.layout.keys.iter().map(field).collect();
        let types: Vec<DataType> = fields.iter().map(|field| field.data_type().clone()).collect();
        let columns: Vec<usize> = (0..fields.len()).collect();
        let arrays = decode(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>(), &types)?;
        let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .map_err(|error| TaskError::Internal(format!("values of MIN or MAX make no rows: {error}")))?;
        self.table.touch(&rows, &columns, &mut self.touched)?;
        self.table.load(&self.touched, &mut self.words);
        self.written.clear();
        self.written.resize(self.touched.keys.len(), true);
        self.store()
    }

    /// The encoded value of a found row.
    fn value(&self, row: usize) -> &[u8] {
        let prefix = self.prefixes.bytes(self.found.touched.keys[row].first as usize).len();
        &self.found.key(row)[prefix..]
    }

    /// The extremum of each noted group among its values.
    fn find_extrema(&mut self, most: bool) -> Result<Vec<Option<Vec<u8>>>, TaskError> {
        if self.prefixes.is_empty() {
            return Ok(Vec::new());
        }
        self.find()?;
        let mut best: Vec<Option<usize>> = vec![None; self.prefixes.len()];
        let living = self.living();
        for (row, found) in self.found.touched.keys.iter().enumerate().filter(|(row, _)| living.of_row(*row) > 0) {
            let best = &mut best[found.first as usize];
            if is_better(most, self.value(row), best.map(|best| self.value(best))) {
                *best = Some(row);
            }
        }
        Ok(best.into_iter().map(|row| row.map(|row| self.value(row).to_vec())).collect())
    }
}

/// Whether an encoded text is better than another, by their bytes, which stand behind a tag and a length.
fn is_better(most: bool, value: &[u8], other: Option<&[u8]>) -> bool {
    const TEXT: usize = 5;
    let wanted = if most { Ordering::Greater } else { Ordering::Less };
    other.is_none_or(|other| value.get(TEXT..).cmp(&other.get(TEXT..)) == wanted)
}
