//! Splits batches by key group: a counting sort over the rows' targets and one `take` per target.

use crate::batch::Batch;
use crate::error::TaskError;
use crate::keys::HashedKeys;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt8Array, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, UInt8Type};
use arrow::error::ArrowError;
use sluice_protocol::KeyGroup;
use sluice_protocol::key_group;

pub(super) struct HashPartitioner {
    keys: Vec<usize>,
    max_parallelism: u16,
    /// The channel of each key group.
    channel_of: Vec<u32>,
    hashed: HashedKeys,
    targets: Vec<u32>,
    /// Per channel: where its next row goes in the sorted order.
    cursors: Vec<u32>,
}

impl HashPartitioner {
    pub(super) fn new(keys: Vec<usize>, channels: usize, max_parallelism: u16) -> Self {
        let parallelism = u32::try_from(channels).unwrap_or(u32::MAX);
        let channel_of = (0..max_parallelism)
            .map(|group| key_group::owner(KeyGroup(group), parallelism, max_parallelism).0)
            .collect();
        let cursors = vec![0; channels];
        Self { keys, max_parallelism, channel_of, hashed: HashedKeys::default(), targets: Vec::new(), cursors }
    }

    /// The rows of each channel that gets any; the batch itself when all rows go to one.
    pub(super) fn split(&mut self, batch: Batch) -> Result<Vec<(usize, Batch)>, TaskError> {
        self.hash(&batch.rows)?;
        let counts = self.count();
        if let Some(only) = counts.iter().position(|count| *count as usize == batch.len()) {
            return Ok(vec![(only, batch)]);
        }
        let order = self.sort(&counts);
        let mut pieces = Vec::with_capacity(counts.len());
        let mut start = 0;
        for (channel, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let rows = order.slice(start, *count as usize);
            start += *count as usize;
            let piece = take_rows(&batch, &rows)
                .map_err(|error| TaskError::Internal(format!("rows cannot be picked from a batch: {error}")))?;
            pieces.push((channel, piece));
        }
        Ok(pieces)
    }

    fn hash(&mut self, rows: &RecordBatch) -> Result<(), TaskError> {
        match self.keys.as_slice() {
            [key] if rows.column(*key).data_type() == &DataType::Int64 => {
                self.hashed.hash_bigint(rows.column(*key));
                Ok(())
            }
            keys => self.hashed.encode(rows, keys),
        }
    }

    fn count(&mut self) -> Vec<u32> {
        let mut counts = vec![0_u32; self.cursors.len()];
        self.targets.clear();
        self.targets.extend(self.hashed.hashes.iter().map(|hash| {
            let target = self.channel_of[usize::from(key_group::of_hash(*hash, self.max_parallelism).0)];
            counts[target as usize] += 1;
            target
        }));
        counts
    }

    fn sort(&mut self, counts: &[u32]) -> UInt32Array {
        let mut start = 0;
        for (cursor, count) in self.cursors.iter_mut().zip(counts) {
            *cursor = start;
            start += count;
        }
        let mut order = vec![0_u32; self.targets.len()];
        for (row, target) in (0_u32..).zip(&self.targets) {
            let cursor = &mut self.cursors[*target as usize];
            order[*cursor as usize] = row;
            *cursor += 1;
        }
        UInt32Array::from(order)
    }
}

fn take_rows(batch: &Batch, rows: &UInt32Array) -> Result<Batch, ArrowError> {
    let columns = batch.rows.columns().iter().map(|column| take_column(column, rows)).collect::<Result<Vec<_>, _>>()?;
    let kinds = batch.kinds.as_ref().map(|kinds| take(kinds, rows, None)).transpose()?;
    let kinds: Option<UInt8Array> = kinds.map(|kinds| kinds.as_primitive::<UInt8Type>().clone());
    Ok(Batch { rows: RecordBatch::try_new(batch.rows.schema(), columns)?, kinds })
}

/// Views are copied together, since otherwise every piece would keep, and send, the text of the whole batch.
fn take_column(column: &ArrayRef, rows: &UInt32Array) -> Result<ArrayRef, ArrowError> {
    let taken = take(column, rows, None)?;
    Ok(match taken.data_type() {
        DataType::Utf8View => std::sync::Arc::new(taken.as_string_view().gc()),
        DataType::BinaryView => std::sync::Arc::new(taken.as_binary_view().gc()),
        _ => taken,
    })
}
