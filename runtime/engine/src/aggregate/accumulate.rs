//! The aggregates: their words, and how a batch adds to them.
//!
//! `words` is the width of a group's accumulators, `slots[row]` the position of the row's group in them.

use super::ROWS;
use super::extremum::Extremum;
use crate::batch::{Batch, RowKind};
use crate::error::TaskError;
use crate::state::AccumulatorColumn;
use crate::state::file::{decimal_of, decimal_words};
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Field, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type,
};

/// Whether each row counts or is retracted.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// +1, −1, or 0 for a row that is left out, per row; empty: all +1.
    pub(crate) signs: Vec<i64>,
}

impl Signs {
    pub(super) fn set(&mut self, batch: &Batch) {
        self.signs.clear();
        if let Some(kinds) = &batch.kinds {
            let retracts = |kind: u8| kind == RowKind::UpdateBefore as u8 || kind == RowKind::Delete as u8;
            self.signs.extend(kinds.values().iter().map(|kind| if retracts(*kind) { -1 } else { 1 }));
        }
    }

    /// These signs, of rows whose flag is true; 0 for the others.
    pub(crate) fn filter(&mut self, signs: &Self, flags: &ArrayRef) {
        let flags = flags.as_boolean();
        self.signs.clear();
        self.signs.extend(
            (0..flags.len()).map(|row| if flags.is_valid(row) && flags.value(row) { signs.of_row(row) } else { 0 }),
        );
    }

    pub(super) fn of_row(&self, row: usize) -> i64 {
        self.signs.get(row).copied().unwrap_or(1)
    }
}

/// How values of one kind are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SumKind {
    Integer,
    Float,
    Decimal { scale: i8 },
}

/// One aggregate of a plan.
#[derive(Debug, Clone)]
pub(crate) enum Accumulator {
    /// The rows of the group, which are counted in any case.
    Count,
    /// Some of the rows: COUNT(*) with a FILTER.
    CountRows {
        word: usize,
    },
    CountColumn {
        column: usize,
        word: usize,
    },
    /// The sum in one or two words, then the number of values in it.
    Sum {
        kind: SumKind,
        column: usize,
        word: usize,
        /// Its quotient by the number of values, of this type, is the result: AVG.
        average: Option<DataType>,
    },
    /// MIN or MAX of what fits in words; where its values are kept, [`super::values`] looks for another one when it goes.
    Extremum(Extremum),
    /// MIN or MAX of text or bytes, which stands among its kept values ([`super::values`]).
    Text {
        most: bool,
        result: DataType,
    },
}

impl Accumulator {
    pub(super) fn sum(field: &Field, column: usize, word: usize, is_average: bool) -> Result<Self, TaskError> {
        let kind = match field.data_type() {
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => SumKind::Integer,
            DataType::Float32 | DataType::Float64 => SumKind::Float,
            DataType::Decimal128(_, scale) => SumKind::Decimal { scale: *scale },
            other => {
                let (name, function) = (field.name(), if is_average { "AVG" } else { "SUM" });
                return Err(TaskError::BadProgram(format!(
                    "{function} needs a number, but column '{name}' is {other}; cast it to BIGINT, DOUBLE or DECIMAL"
                )));
            }
        };
        let average = is_average.then(|| average_type(field.data_type()));
        Ok(Self::Sum { kind, column, word, average })
    }

    pub(super) const fn words(&self) -> usize {
        match self {
            Self::Count | Self::Text { .. } => 0,
            Self::CountRows { .. } | Self::CountColumn { .. } => 1,
            Self::Sum { kind, .. } => kind.words() + 1,
            Self::Extremum(extremum) => extremum.words() + 1,
        }
    }

    pub(super) const fn is_nullable(&self) -> bool {
        matches!(self, Self::Sum { .. } | Self::Extremum(_) | Self::Text { .. })
    }

    pub(super) fn result_type(&self) -> DataType {
        match self {
            Self::Sum { average: Some(result), .. } | Self::Text { result, .. } => result.clone(),
            Self::Sum { kind, .. } => kind.stored_type(),
            Self::Extremum(extremum) => extremum.result.clone(),
            _ => DataType::Int64,
        }
    }

    /// The word that counts the values of a sum.
    pub(super) const fn values_word(kind: SumKind, word: usize) -> usize {
        word + kind.words()
    }

    /// The columns of the state. What another program could not go on from has another name: of DISTINCT values, of an
    /// average, of an extremum whose values are kept.
    pub(super) fn stored_columns(&self, name: &str, keeps_values: bool) -> Vec<AccumulatorColumn> {
        let suffix = if keeps_values { "$distinct" } else { "" };
        match self {
            Self::Count | Self::Text { .. } => Vec::new(),
            Self::CountRows { word } => vec![super::bigint(&format!("{name}$filtered"), *word)],
            Self::CountColumn { word, .. } => vec![super::bigint(&format!("{name}{suffix}"), *word)],
            Self::Sum { kind, word, average, .. } => {
                let values = Self::values_word(*kind, *word);
                let middle = if average.is_some() { "$sum" } else { "" };
                let (name, data_type) = (format!("{name}{middle}{suffix}"), kind.stored_type());
                let counted = super::bigint(&format!("{name}$values"), values);
                vec![AccumulatorColumn { name, data_type, word: *word, null_while_zero: Some(values) }, counted]
            }
            Self::Extremum(extremum) => extremum.stored_columns(name, keeps_values),
        }
    }

    /// Adds a batch.
    pub(crate) fn add(
        &self,
        new: &mut [u64],
        words: usize,
        slots: &[u32],
        signs: &Signs,
        rows: &RecordBatch,
    ) -> Result<(), TaskError> {
        match self {
            Self::Count | Self::Text { .. } => {}
            Self::CountRows { word } => count(new, words, *word, slots, signs),
            Self::CountColumn { column, word } => count_values(new, words, *word, slots, signs, rows.column(*column)),
            Self::Sum { kind, column, word, .. } => {
                let array = rows.column(*column);
                count_values(new, words, Self::values_word(*kind, *word), slots, signs, array);
                add_sum(new, words, *word, slots, signs, array)?;
            }
            Self::Extremum(extremum) => extremum.add(new, words, slots, signs, rows.column(extremum.column))?,
        }
        Ok(())
    }

    /// Adds groups, that stand one after the other, to those of `into` at `slots`: what both have seen. The number of rows
    /// is not its.
    pub(crate) fn merge(&self, into: &mut [u64], words: usize, slots: &[u32], groups: &[u64]) {
        let groups = slots.iter().map(|slot| *slot as usize * words).zip(groups.chunks_exact(words));
        let add = |into: &mut [u64], from: &[u64], word: usize| into[word] = into[word].wrapping_add(from[word]);
        match self {
            Self::Count | Self::Text { .. } => {}
            Self::CountRows { word } | Self::CountColumn { word, .. } => {
                groups.for_each(|(at, from)| add(&mut into[at..at + words], from, *word));
            }
            Self::Sum { kind, word, .. } => {
                let (word, values) = (*word, Self::values_word(*kind, *word));
                for (at, from) in groups {
                    let into = &mut into[at..at + words];
                    add(into, from, values);
                    match kind {
                        SumKind::Integer => add(into, from, word),
                        SumKind::Float => {
                            into[word] = (f64::from_bits(into[word]) + f64::from_bits(from[word])).to_bits();
                        }
                        SumKind::Decimal { .. } => {
                            let sum = decimal_of(&into[word..values]).wrapping_add(decimal_of(&from[word..values]));
                            into[word..values].copy_from_slice(&decimal_words(sum));
                        }
                    }
                }
            }
            Self::Extremum(extremum) => groups.for_each(|(at, from)| extremum.merge(&mut into[at..at + words], from)),
        }
    }

    /// Whether groups that were added can be taken away again and leave no trace: sums of floats would drift, and of an
    /// extremum that goes the next one is not known.
    pub(crate) const fn is_retractable(&self) -> bool {
        match self {
            Self::Count | Self::CountRows { .. } | Self::CountColumn { .. } => true,
            Self::Sum { kind, .. } => !matches!(kind, SumKind::Float),
            Self::Extremum(_) | Self::Text { .. } => false,
        }
    }

    /// Takes groups away that [`Accumulator::merge`] has added, where that can be done.
    pub(crate) fn retract(&self, from: &mut [u64], words: usize, slots: &[u32], groups: &[u64]) {
        let groups = slots.iter().map(|slot| *slot as usize * words).zip(groups.chunks_exact(words));
        let take = |from: &mut [u64], group: &[u64], word: usize| from[word] = from[word].wrapping_sub(group[word]);
        match self {
            Self::CountRows { word } | Self::CountColumn { word, .. } => {
                groups.for_each(|(at, group)| take(&mut from[at..at + words], group, *word));
            }
            Self::Sum { kind, word, .. } => {
                let (word, values) = (*word, Self::values_word(*kind, *word));
                for (at, group) in groups {
                    let from = &mut from[at..at + words];
                    take(from, group, values);
                    if let SumKind::Decimal { .. } = kind {
                        let rest = decimal_of(&from[word..values]).wrapping_sub(decimal_of(&group[word..values]));
                        from[word..values].copy_from_slice(&decimal_words(rest));
                    } else {
                        take(from, group, word);
                    }
                }
            }
            Self::Count | Self::Extremum(_) | Self::Text { .. } => {}
        }
    }

    /// Whether the result differs.
    pub(super) fn differs(&self, old: &[u64], new: &[u64]) -> bool {
        match self {
            Self::Count => old[ROWS] != new[ROWS],
            Self::CountRows { word } | Self::CountColumn { word, .. } => old[*word] != new[*word],
            Self::Sum { kind, word, average, .. } => {
                let values = Self::values_word(*kind, *word);
                let was_null = old[values] == 0;
                let sum_differs = old[*word..values] != new[*word..values];
                let counts_differ = average.is_some() && old[values] != new[values];
                was_null != (new[values] == 0) || (!was_null && (sum_differs || counts_differ))
            }
            Self::Extremum(extremum) => extremum.differs(old, new),
            // Its values are no words: they are compared where they are kept.
            Self::Text { .. } => false,
        }
    }
}

/// Flink's type of an average.
fn average_type(argument: &DataType) -> DataType {
    match argument {
        DataType::Decimal128(_, scale) => DataType::Decimal128(DECIMAL128_MAX_PRECISION, (*scale).max(6)),
        other => other.clone(),
    }
}

impl SumKind {
    const fn words(self) -> usize {
        match self {
            Self::Decimal { .. } => 2,
            _ => 1,
        }
    }

    const fn stored_type(self) -> DataType {
        match self {
            Self::Integer => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Decimal { scale } => DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale),
        }
    }
}

/// Counts rows.
pub(crate) fn count(new: &mut [u64], words: usize, word: usize, slots: &[u32], signs: &Signs) {
    if signs.signs.is_empty() {
        for slot in slots {
            let count = &mut new[*slot as usize * words + word];
            *count = count.wrapping_add(1);
        }
        return;
    }
    for (slot, sign) in slots.iter().zip(&signs.signs) {
        let count = &mut new[*slot as usize * words + word];
        *count = count.wrapping_add(*sign as u64);
    }
}

fn count_values(new: &mut [u64], words: usize, word: usize, slots: &[u32], signs: &Signs, array: &dyn Array) {
    // A column of the type NULL has only logical ones.
    let Some(nulls) = array.logical_nulls().filter(|nulls| nulls.null_count() > 0) else {
        return count(new, words, word, slots, signs);
    };
    for (row, slot) in slots.iter().enumerate() {
        if nulls.is_valid(row) {
            let count = &mut new[*slot as usize * words + word];
            *count = count.wrapping_add(signs.of_row(row) as u64);
        }
    }
}

fn add_sum(
    new: &mut [u64],
    words: usize,
    word: usize,
    slots: &[u32],
    signs: &Signs,
    array: &ArrayRef,
) -> Result<(), TaskError> {
    let integer =
        |sum: &mut [u64], value: i64, sign: i64| sum[0] = sum[0].wrapping_add(value.wrapping_mul(sign) as u64);
    let float = |sum: &mut [u64], value: f64, sign: i64| {
        sum[0] = (f64::from_bits(sum[0]) + if sign < 0 { -value } else { value }).to_bits();
    };
    let decimal = |sum: &mut [u64], value: i128, sign: i64| {
        let added = decimal_of(sum).wrapping_add(value.wrapping_mul(i128::from(sign)));
        sum.copy_from_slice(&decimal_words(added));
    };
    match array.data_type() {
        DataType::Int64 => add_each::<Int64Type, 1>(new, words, word, slots, signs, array, integer),
        DataType::Int32 => {
            add_each::<Int32Type, 1>(new, words, word, slots, signs, array, |sum, v, sign| {
                integer(sum, v.into(), sign)
            });
        }
        DataType::Int16 => {
            add_each::<Int16Type, 1>(new, words, word, slots, signs, array, |sum, v, sign| {
                integer(sum, v.into(), sign)
            });
        }
        DataType::Int8 => {
            add_each::<Int8Type, 1>(new, words, word, slots, signs, array, |sum, v, sign| integer(sum, v.into(), sign));
        }
        DataType::Float64 => add_each::<Float64Type, 1>(new, words, word, slots, signs, array, float),
        DataType::Float32 => {
            add_each::<Float32Type, 1>(new, words, word, slots, signs, array, |sum, v, sign| {
                float(sum, v.into(), sign)
            });
        }
        DataType::Decimal128(..) => add_each::<Decimal128Type, 2>(new, words, word, slots, signs, array, decimal),
        other => return Err(TaskError::Internal(format!("a SUM was planned over another type than {other}"))),
    }
    Ok(())
}

/// Adds the values of a column, NULLs left out, to sums of `N` words. Monomorphic: no call and no match per row.
fn add_each<T: ArrowPrimitiveType, const N: usize>(
    new: &mut [u64],
    words: usize,
    word: usize,
    slots: &[u32],
    signs: &Signs,
    array: &ArrayRef,
    add: impl Fn(&mut [u64], T::Native, i64),
) {
    let array: &PrimitiveArray<T> = array.as_primitive();
    let place = |slot: u32| slot as usize * words + word;
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    if nulls.is_none() && signs.signs.is_empty() {
        for (slot, value) in slots.iter().zip(array.values()) {
            let at = place(*slot);
            add(&mut new[at..at + N], *value, 1);
        }
        return;
    }
    for (row, (slot, value)) in slots.iter().zip(array.values()).enumerate() {
        let sign = signs.of_row(row);
        if sign != 0 && nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            let at = place(*slot);
            add(&mut new[at..at + N], *value, sign);
        }
    }
}
