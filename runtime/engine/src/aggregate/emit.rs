//! The net changes of a batch, as a changelog batch.

use super::accumulate::{Accumulator, SumKind};
use super::values::{Values, texts};
use super::{Call, Plan, ROWS};
use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::state::TouchedKeys;
use crate::state::file::decimal_of;
use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array, RecordBatch, UInt8Array, UInt32Array,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::{cast, take};
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

    /// With TTL a touched group is emitted also when its row is as it was, so that whoever keeps it downstream keeps it as
    /// long (as in Flink).
    pub(super) fn find(
        &mut self,
        plan: &Plan,
        touched: &TouchedKeys,
        (old, new): (&[u64], &[u64]),
        values: &[Option<Values>],
    ) {
        self.kinds.clear();
        self.firsts.clear();
        self.values.clear();
        let words = plan.layout.words;
        let groups = old.chunks_exact(words).zip(new.chunks_exact(words));
        for (slot, (key, (old, new))) in (0_u32..).zip(touched.keys.iter().zip(groups)) {
            match (old[ROWS] as i64 > 0, new[ROWS] as i64 > 0) {
                (false, true) => self.push(RowKind::Insert, key.first, 2 * slot + 1),
                (true, false) => self.push(RowKind::Delete, key.first, 2 * slot),
                (true, true)
                    if plan.ttl.is_some() || differs(plan, old, new) || texts_differ(values, slot as usize) =>
                {
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
        (old, new): (&[u64], &[u64]),
        values: &[Option<Values>],
    ) -> Result<Batch, TaskError> {
        let internal = |error| TaskError::Internal(format!("changes of a GROUP BY do not make a batch: {error}"));
        let firsts = UInt32Array::from(std::mem::take(&mut self.firsts));
        let mut columns = Vec::with_capacity(plan.output.fields().len());
        for key in &plan.keys {
            columns.push(canonical(take(input.column(*key), &firsts, None).map_err(internal)?));
        }
        let source = Source { values: &self.values, words: plan.layout.words, old, new };
        for (call, kept) in plan.calls.iter().zip(values) {
            columns.push(source.column(&call.accumulator, kept.as_ref())?);
        }
        let rows = RecordBatch::try_new(SchemaRef::clone(&plan.output), columns).map_err(internal)?;
        let all_inserts = self.kinds.iter().all(|kind| *kind == RowKind::Insert as u8);
        let kinds = std::mem::take(&mut self.kinds);
        let kinds = (!all_inserts).then(|| UInt8Array::new(ScalarBuffer::from(kinds), None));
        Ok(Batch { rows, kinds })
    }
}

/// What has changed of touched groups that keep numbers only; `None`: nothing.
pub(crate) fn changes(
    plan: &Plan,
    input: &RecordBatch,
    touched: &TouchedKeys,
    words: (&[u64], &[u64]),
) -> Result<Option<Batch>, TaskError> {
    let values: Vec<Option<Values>> = plan.calls.iter().map(|_| None).collect();
    let mut changes = Changes::default();
    changes.find(plan, touched, words, &values);
    if changes.is_empty() { Ok(None) } else { changes.take_batch(plan, input, words, &values).map(Some) }
}

fn differs(plan: &Plan, old: &[u64], new: &[u64]) -> bool {
    plan.calls.iter().any(|call| call.accumulator.differs(old, new))
}

fn texts_differ(values: &[Option<Values>], slot: usize) -> bool {
    values.iter().flatten().any(|values| values.before.get(slot) != values.after.get(slot))
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

/// The results of groups whose accumulators stand one after the other, a column per call.
pub(crate) fn results(calls: &[Call], groups: &[u64], words: usize) -> Result<Vec<ArrayRef>, TaskError> {
    let values: Vec<u32> = (0..groups.len() / words).map(|slot| 2 * slot as u32 + 1).collect();
    let source = Source { values: &values, words, old: &[], new: groups };
    calls.iter().map(|call| source.column(&call.accumulator, None)).collect()
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

    /// The accumulators of the group of each emitted row.
    fn groups(&self) -> impl Iterator<Item = &[u64]> + Clone {
        self.values.iter().map(|value| {
            let accumulators = if value % 2 == 1 { self.new } else { self.old };
            &accumulators[(value / 2) as usize * self.words..][..self.words]
        })
    }

    fn column(&self, accumulator: &Accumulator, kept: Option<&Values>) -> Result<ArrayRef, TaskError> {
        Ok(match accumulator {
            Accumulator::Count => self.bigints(ROWS, None),
            Accumulator::CountRows { word } | Accumulator::CountColumn { word, .. } => self.bigints(*word, None),
            Accumulator::Sum { kind, word, average: Some(result), .. } => {
                averages(*kind, self.groups().map(|group| &group[*word..]), result)?
            }
            Accumulator::Sum { kind, word, .. } => {
                let (word, nulls) = (*word, self.nulls(Accumulator::values_word(*kind, *word)));
                match *kind {
                    SumKind::Integer => self.bigints(word, nulls),
                    SumKind::Float => Arc::new(Float64Array::new(self.word(word).map(f64::from_bits).collect(), nulls)),
                    SumKind::Decimal { scale } => self.decimals(word, nulls, scale),
                }
            }
            Accumulator::Extremum(extremum) => extremum.results(self.groups())?,
            Accumulator::Text { result, .. } => {
                let extremum = |value: &u32| {
                    let values = kept.map(|kept| if value % 2 == 1 { &kept.after } else { &kept.before })?;
                    values.get((value / 2) as usize)?.as_deref()
                };
                texts(self.values.iter().map(extremum), result)?
            }
        })
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

/// Sums divided by their counts, which stand behind them: towards zero for integers, rounded half up for decimals, as in
/// Flink. NULL without values.
fn averages<'a>(
    kind: SumKind,
    groups: impl Iterator<Item = &'a [u64]> + Clone,
    result: &DataType,
) -> Result<ArrayRef, TaskError> {
    let count = |group: &[u64], at: usize| Some(group[at] as i64).filter(|count| *count != 0);
    let array: ArrayRef = match kind {
        SumKind::Integer => {
            Arc::new(groups.map(|group| Some((group[0] as i64).wrapping_div(count(group, 1)?))).collect::<Int64Array>())
        }
        SumKind::Float => {
            let mean = |group: &[u64]| Some(f64::from_bits(group[0]) / count(group, 1)? as f64);
            Arc::new(groups.map(mean).collect::<Float64Array>())
        }
        SumKind::Decimal { scale } => {
            let DataType::Decimal128(_, finer) = result else {
                return Err(TaskError::Internal(format!("an average of decimals was planned as {result}")));
            };
            let factor = 10_i128.pow(u32::try_from(finer - scale).unwrap_or(0));
            let mean = |group: &[u64]| {
                let count = i128::from(count(group, 2)?);
                rounded_quotient(decimal_of(group).checked_mul(factor)?, count)
            };
            Arc::new(groups.map(mean).collect::<Decimal128Array>().with_data_type(result.clone()))
        }
    };
    if array.data_type() == result {
        return Ok(array);
    }
    cast(&array, result).map_err(|error| TaskError::Internal(format!("the result of AVG: {error}")))
}

fn rounded_quotient(sum: i128, count: i128) -> Option<i128> {
    let (quotient, rest) = (sum.checked_div(count)?, sum.checked_rem(count)?);
    let is_half = rest.unsigned_abs() * 2 >= count.unsigned_abs();
    Some(if is_half { quotient + sum.signum() * count.signum() } else { quotient })
}
