//! What a batch changes of the first rows of its partitions.

use super::entries::Entries;
use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::operator::Collector;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, UInt8Array, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use std::iter::repeat_n;
use std::sync::Arc;

/// Rows that are emitted at once.
const CHUNK: usize = 4096;

/// Changes of all partitions of a batch.
pub(super) struct Changes {
    has_number: bool,
    limit: usize,
    emit_update_before: bool,
    rows: Vec<u32>,
    kinds: Vec<u8>,
    numbers: Vec<i64>,
}

impl Changes {
    pub(super) fn new(has_number: bool, limit: u64, emit_update_before: bool) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { has_number, limit, emit_update_before, rows: Vec::new(), kinds: Vec::new(), numbers: Vec::new() }
    }

    /// Adds those of one partition, whose entries are given in order.
    pub(super) fn compare(&mut self, entries: &Entries, partition: &[u32]) {
        let before = partition.iter().flat_map(|entry| repeat_n(*entry, count(entries.get(*entry).before)));
        let after = partition.iter().flat_map(|entry| repeat_n(*entry, count(entries.get(*entry).after)));
        let (before, after) = (before.take(self.limit), after.take(self.limit));
        if self.has_number || self.limit == 1 {
            self.compare_places(entries, before, after);
        } else {
            self.compare_rows(entries, before, after);
        }
    }

    /// Place by place.
    fn compare_places(
        &mut self,
        entries: &Entries,
        mut before: impl Iterator<Item = u32>,
        mut after: impl Iterator<Item = u32>,
    ) {
        for place in 1.. {
            match (before.next(), after.next()) {
                (None, None) => return,
                (Some(before), Some(after)) if before == after => {}
                (Some(before), Some(after)) => {
                    if self.emit_update_before {
                        self.push(entries, before, RowKind::UpdateBefore, place);
                    }
                    self.push(entries, after, RowKind::UpdateAfter, place);
                }
                (Some(before), None) => self.push(entries, before, RowKind::Delete, place),
                (None, Some(after)) => self.push(entries, after, RowKind::Insert, place),
            }
        }
    }

    /// Those that leave, then those that enter: both go through the partition in its order.
    fn compare_rows(&mut self, entries: &Entries, before: impl Iterator<Item = u32>, after: impl Iterator<Item = u32>) {
        let (before, after) = (before.collect::<Vec<_>>(), after.collect::<Vec<_>>());
        let runs = |places: &[u32]| -> hashbrown::HashMap<u32, usize> {
            let mut runs = hashbrown::HashMap::new();
            places.iter().for_each(|entry| *runs.entry(*entry).or_default() += 1);
            runs
        };
        for (these, others, kind) in [(&before, &after, RowKind::Delete), (&after, &before, RowKind::Insert)] {
            let mut others = runs(others);
            for entry in these {
                match others.get_mut(entry) {
                    Some(left) if *left > 0 => *left -= 1,
                    _ => self.push(entries, *entry, kind, 0),
                }
            }
        }
    }

    /// Adds a row that comes out at this place.
    pub(super) fn insert(&mut self, row: u32, place: i64) {
        if usize::try_from(place).is_ok_and(|place| place <= self.limit) {
            self.rows.push(row);
            self.kinds.push(RowKind::Insert as u8);
            self.numbers.push(place);
        }
    }

    fn push(&mut self, entries: &Entries, entry: u32, kind: RowKind, place: i64) {
        self.rows.push(entries.get(entry).row);
        self.kinds.push(kind as u8);
        self.numbers.push(place);
    }

    /// Emits all; `columns` are those of the entries.
    pub(super) fn emit(
        self,
        columns: &[ArrayRef],
        output: &SchemaRef,
        out: &mut dyn Collector,
    ) -> Result<(), TaskError> {
        let mut start = 0;
        while start < self.rows.len() {
            let mut end = (start + CHUNK).min(self.rows.len());
            // A pair stays in one batch.
            end += usize::from(end < self.rows.len() && self.kinds[end - 1] == RowKind::UpdateBefore as u8);
            let (rows, kinds, numbers) = (&self.rows[start..end], &self.kinds[start..end], &self.numbers[start..end]);
            start = end;
            let rows = UInt32Array::from_iter_values(rows.iter().copied());
            let mut taken = columns.iter().map(|column| taken(column, &rows)).collect::<Result<Vec<_>, _>>();
            if let (true, Ok(taken)) = (self.has_number, &mut taken) {
                taken.push(Arc::new(Int64Array::from(numbers.to_vec())));
            }
            let rows = taken.and_then(|taken| RecordBatch::try_new(SchemaRef::clone(output), taken));
            let rows = rows.map_err(|error| TaskError::Internal(format!("changes of a rank: {error}")))?;
            let all_inserts = kinds.iter().all(|kind| *kind == RowKind::Insert as u8);
            let kinds = (!all_inserts).then(|| UInt8Array::from(kinds.to_vec()));
            out.collect(Batch { rows, kinds });
        }
        Ok(())
    }
}

fn count(count: i64) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// Views are copied together, since otherwise every batch would keep, and send, the text of all.
fn taken(column: &ArrayRef, rows: &UInt32Array) -> Result<ArrayRef, ArrowError> {
    let taken = take(column, rows, None)?;
    Ok(match taken.data_type() {
        DataType::Utf8View => Arc::new(taken.as_string_view().gc()),
        DataType::BinaryView => Arc::new(taken.as_binary_view().gc()),
        _ => taken,
    })
}
