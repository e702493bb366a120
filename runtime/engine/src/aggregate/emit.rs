//! The net changes of a batch, as a changelog batch.

use super::accumulate::{Accumulator, SumKind};
use super::{Plan, ROWS};
use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::state::TouchedKeys;
use crate::state::file::decimal_of;
use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array, RecordBatch, UInt8Array, UInt32Array,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Float32Type, Float64Type, SchemaRef};
use std::sync::Arc;

/// Rows to be emitted: of which group, as it was or as it is, and what they say. Reused from batch to batch.
#[derive(Debug, Default)]
pub(super) struct Changes {
    kinds: Vec<u8>,
    /// Per row: an input row that has the key.
    firsts: Vec<u32>,
    /// Per row: the group's slot, doubled, plus 1 when its new values are meant.
    values: Vec<u32>,
}

impl Changes {
    pub(super) const fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    pub(super) fn find(&mut self, plan: &Plan, touched: &TouchedKeys, old: &[u64], new: &[u64]) {
        self.kinds.clear();
        self.firsts.clear();
        self.values.clear();
        let words = plan.layout.words;
        let groups = old.chunks_exact(words).zip(new.chunks_exact(words));
        for (slot, (key, (old, new))) in (0_u32..).zip(touched.keys.iter().zip(groups)) {
            match (old[ROWS] as i64 > 0, new[ROWS] as i64 > 0) {
                (false, true) => self.push(RowKind::Insert, key.first, 2 * slot + 1),
                (true, false) => self.push(RowKind::Delete, key.first, 2 * slot),
                (true, true) if plan.accumulators.iter().any(|accumulator| accumulator.differs(old, new)) => {
                    if plan.emit_update_before {
                        self.push(RowKind::UpdateBefore, key.first, 2 * slot);
                    }
                    self.push(RowKind::UpdateAfter, key.first, 2 * slot + 1);
                }
                _ => {}
            }
        }
    }

    #[inline]
    fn push(&mut self, kind: RowKind, first: u32, value: u32) {
        self.kinds.push(kind as u8);
        self.firsts.push(first);
        self.values.push(value);
    }

    /// The rows: keys are taken from the input, values from the accumulators.
    pub(super) fn take_batch(
        &mut self,
        plan: &Plan,
        input: &RecordBatch,
        old: &[u64],
        new: &[u64],
    ) -> Result<Batch, TaskError> {
        let internal = |error| TaskError::Internal(format!("changes of a GROUP BY do not make a batch: {error}"));
        let firsts = UInt32Array::from(std::mem::take(&mut self.firsts));
        let mut columns = Vec::with_capacity(plan.output.fields().len());
        for key in &plan.keys {
            columns.push(canonical(take(input.column(*key), &firsts, None).map_err(internal)?));
        }
        let source = Source { values: &self.values, words: plan.layout.words, old, new };
        columns.extend(plan.accumulators.iter().map(|accumulator| source.column(accumulator)));
        let rows = RecordBatch::try_new(SchemaRef::clone(&plan.output), columns).map_err(internal)?;
        let all_inserts = self.kinds.iter().all(|kind| *kind == RowKind::Insert as u8);
        let kinds = std::mem::take(&mut self.kinds);
        let kinds = (!all_inserts).then(|| UInt8Array::new(ScalarBuffer::from(kinds), None));
        Ok(Batch { rows, kinds })
    }
}

/// Floats that are one key look alike in every change of its group: one zero, one NaN (F3).
fn canonical(keys: ArrayRef) -> ArrayRef {
    match keys.data_type() {
        DataType::Float64 => {
            let one = |value: f64| if value.is_nan() { f64::NAN } else { value + 0.0 };
            Arc::new(keys.as_primitive::<Float64Type>().unary::<_, Float64Type>(one))
        }
        DataType::Float32 => {
            let one = |value: f32| if value.is_nan() { f32::NAN } else { value + 0.0 };
            Arc::new(keys.as_primitive::<Float32Type>().unary::<_, Float32Type>(one))
        }
        DataType::Utf8View => Arc::new(keys.as_string_view().gc()),
        DataType::BinaryView => Arc::new(keys.as_binary_view().gc()),
        _ => keys,
    }
}

/// The accumulators that rows are made of.
struct Source<'a> {
    values: &'a [u32],
    words: usize,
    old: &'a [u64],
    new: &'a [u64],
}

impl Source<'_> {
    /// The word of each emitted row.
    fn word(&self, word: usize) -> impl Iterator<Item = u64> {
        self.values.iter().map(move |value| {
            let accumulators = if value % 2 == 1 { self.new } else { self.old };
            accumulators[(value / 2) as usize * self.words + word]
        })
    }

    fn nulls(&self, word: usize) -> Option<NullBuffer> {
        if self.word(word).all(|values| values != 0) {
            return None;
        }
        Some(self.word(word).map(|values| values != 0).collect())
    }

    fn column(&self, accumulator: &Accumulator) -> ArrayRef {
        match *accumulator {
            Accumulator::Count => self.bigints(ROWS, None),
            Accumulator::CountColumn { word, .. } => self.bigints(word, None),
            Accumulator::Sum { kind, word, .. } => {
                let nulls = self.nulls(Accumulator::values_word(kind, word));
                match kind {
                    SumKind::Integer => self.bigints(word, nulls),
                    SumKind::Float => Arc::new(Float64Array::new(self.word(word).map(f64::from_bits).collect(), nulls)),
                    SumKind::Decimal { scale } => self.decimals(word, nulls, scale),
                }
            }
        }
    }

    fn bigints(&self, word: usize, nulls: Option<NullBuffer>) -> ArrayRef {
        Arc::new(Int64Array::new(self.word(word).map(|word| word as i64).collect(), nulls))
    }

    /// A sum of more than 38 digits is NULL.
    fn decimals(&self, word: usize, nulls: Option<NullBuffer>, scale: i8) -> ArrayRef {
        let limit = 10_i128.pow(u32::from(DECIMAL128_MAX_PRECISION));
        let sums: Vec<i128> =
            self.word(word).zip(self.word(word + 1)).map(|(low, high)| decimal_of(&[low, high])).collect();
        let fits: NullBuffer = sums.iter().map(|sum| -limit < *sum && *sum < limit).collect();
        let array = Decimal128Array::new(sums.into(), NullBuffer::union(nulls.as_ref(), Some(&fits)));
        Arc::new(array.with_data_type(DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale)))
    }
}
