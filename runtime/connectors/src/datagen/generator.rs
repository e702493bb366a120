//! Columns from row numbers: a counter-based generator, no state.
//!
//! Random numbers are SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) of the
//! column's seed and the row's number. They are part of what users may compare between runs: do not change them.

use crate::json::timestamp;
use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    RecordBatch, RecordBatchOptions, StringArray, StringBuilder,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::kernels::nullif::nullif;
use arrow::datatypes::{SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use sluice_engine::error::TaskError;
use sluice_protocol::key_group;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

/// The columns of a table.
#[derive(Debug, Clone)]
pub(super) struct Columns(pub(super) Vec<Column>);

/// One column.
#[derive(Debug, Clone)]
pub(super) struct Column {
    /// Seed of this column alone.
    pub(super) seed: u64,
    /// Share of nulls, as a bound on a random number; 0 without nulls.
    pub(super) null_below: u64,
    /// The values.
    pub(super) values: Values,
}

/// Integer types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// TINYINT.
    Tiny,
    /// SMALLINT.
    Small,
    /// INT.
    Int,
    /// BIGINT.
    Big,
}

/// How a column's values are made of row numbers.
#[derive(Debug, Clone)]
pub(super) enum Values {
    /// Whole numbers from `min` on, `span` of them (at most 2^64).
    RandomInteger { width: Width, min: i64, span: u128 },
    /// `start` + row number.
    SequenceInteger { width: Width, start: i64 },
    /// Uniform in [min, max).
    RandomDouble { single: bool, min: f64, max: f64 },
    /// `start` + row number.
    SequenceDouble { single: bool, start: f64 },
    /// Unscaled values from `min` on, `span` of them.
    RandomDecimal { precision: u8, scale: i8, min: i128, span: u128 },
    /// Either.
    RandomBoolean,
    /// Hexadecimal digits.
    RandomText { length: usize },
    /// One of these.
    ChosenText { values: Vec<String> },
    /// `start` + row number, as text.
    SequenceText { start: i64 },
    /// At most `max_past` milliseconds before now.
    PastTimestamp { unit: TimeUnit, zone: Option<Arc<str>>, max_past: u64 },
    /// `start` + row number × `step`, in milliseconds since the epoch.
    SequenceTimestamp { unit: TimeUnit, zone: Option<Arc<str>>, start: i64, step: i64 },
}

/// The finaliser of SplitMix64.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The random number of a row.
#[inline]
const fn random(seed: u64, row: u64) -> u64 {
    mix(seed.wrapping_add(row.wrapping_add(1).wrapping_mul(GAMMA)))
}

/// The seed of a column: by name, so that a query that reads fewer columns, or in another order, sees the same values.
pub(super) fn column_seed(seed: u64, name: &str) -> u64 {
    mix(mix(seed.wrapping_add(GAMMA)) ^ key_group::hash(name.as_bytes()))
}

/// A random number scaled to `[0, span)`, by multiplication.
#[inline]
const fn scale(random: u64, span: u128) -> u64 {
    ((random as u128 * span) >> 64) as u64
}

/// A random number as a fraction in [0, 1).
#[inline]
#[expect(clippy::cast_precision_loss, reason = "53 bits fit a double")]
const fn fraction(random: u64) -> f64 {
    (random >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

impl Columns {
    /// The rows with these numbers, in this order.
    pub(super) fn generate(&self, schema: &SchemaRef, rows: &[Range<u64>], now: u64) -> Result<RecordBatch, TaskError> {
        let count = rows.iter().map(|range| range.end - range.start).sum::<u64>();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let put_together = || -> Result<RecordBatch, ArrowError> {
            let arrays = self.0.iter().map(|column| column.generate(rows, count, now)).collect::<Result<_, _>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(count));
            RecordBatch::try_new_with_options(schema.clone(), arrays, &options)
        };
        put_together().map_err(|error| TaskError::Internal(format!("generated rows cannot be put together: {error}")))
    }
}

/// A value per row number.
fn fill<T>(rows: &[Range<u64>], count: usize, value: impl Fn(u64) -> T) -> Vec<T> {
    let mut values = Vec::with_capacity(count);
    for range in rows {
        values.extend(range.clone().map(&value));
    }
    values
}

impl Column {
    fn generate(&self, rows: &[Range<u64>], count: usize, now: u64) -> Result<ArrayRef, ArrowError> {
        let array = self.values(rows, count, now)?;
        if self.null_below == 0 {
            return Ok(array);
        }
        let seed = mix(self.seed);
        let nulls = fill(rows, count, |row| random(seed, row) < self.null_below);
        nullif(&array, &BooleanArray::new(BooleanBuffer::from(nulls), None::<NullBuffer>))
    }

    #[expect(clippy::cast_precision_loss, reason = "a sequence of doubles is as exact as doubles are")]
    #[expect(clippy::cast_possible_truncation, reason = "FLOAT asks for it")]
    fn values(&self, rows: &[Range<u64>], count: usize, now: u64) -> Result<ArrayRef, ArrowError> {
        let seed = self.seed;
        Ok(match &self.values {
            Values::RandomInteger { width, min, span } => {
                let (min, span) = (*min, *span);
                integers(*width, rows, count, move |row| min.wrapping_add_unsigned(scale(random(seed, row), span)))
            }
            Values::SequenceInteger { width, start } => {
                let start = *start;
                integers(*width, rows, count, move |row| start.wrapping_add_unsigned(row))
            }
            Values::RandomDouble { single, min, max } => {
                let (min, width) = (*min, max - min);
                let value = move |row| min + width * fraction(random(seed, row));
                if *single {
                    Arc::new(Float32Array::from(fill(rows, count, |row| value(row) as f32)))
                } else {
                    Arc::new(Float64Array::from(fill(rows, count, value)))
                }
            }
            Values::SequenceDouble { single: true, start } => {
                Arc::new(Float32Array::from(fill(rows, count, |row| (start + row as f64) as f32)))
            }
            Values::SequenceDouble { single: false, start } => {
                Arc::new(Float64Array::from(fill(rows, count, |row| start + row as f64)))
            }
            Values::RandomDecimal { precision, scale, min, span } => {
                let low = mix(seed);
                let value = |row| {
                    let wide = (u128::from(random(seed, row)) << 64) | u128::from(random(low, row));
                    min.wrapping_add_unsigned(wide % *span)
                };
                let array = Decimal128Array::from(fill(rows, count, value));
                Arc::new(array.with_precision_and_scale(*precision, *scale)?)
            }
            Values::RandomBoolean => {
                let values = fill(rows, count, |row| random(seed, row) >> 63 == 1);
                Arc::new(BooleanArray::new(BooleanBuffer::from(values), None))
            }
            Values::RandomText { length } => Arc::new(random_text(seed, *length, rows, count)),
            Values::ChosenText { values } => Arc::new(chosen_text(seed, values, rows, count)),
            Values::SequenceText { start } => Arc::new(sequence_text(*start, rows, count)),
            Values::PastTimestamp { unit, zone, max_past } => {
                let span = u128::from(*max_past) + 1;
                let now = i64::try_from(now).unwrap_or(i64::MAX);
                let millis = |row| now.saturating_sub_unsigned(scale(random(seed, row), span));
                timestamp::to_array(&timestamps(*unit, rows, count, millis), *unit, zone.clone())
            }
            Values::SequenceTimestamp { unit, zone, start, step } => {
                let millis = |row| start.wrapping_add(step.wrapping_mul(i64::try_from(row).unwrap_or(i64::MAX)));
                timestamp::to_array(&timestamps(*unit, rows, count, millis), *unit, zone.clone())
            }
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the options keep the values within the type")]
fn integers(width: Width, rows: &[Range<u64>], count: usize, value: impl Fn(u64) -> i64) -> ArrayRef {
    match width {
        Width::Tiny => Arc::new(Int8Array::from(fill(rows, count, |row| value(row) as i8))),
        Width::Small => Arc::new(Int16Array::from(fill(rows, count, |row| value(row) as i16))),
        Width::Int => Arc::new(Int32Array::from(fill(rows, count, |row| value(row) as i32))),
        Width::Big => Arc::new(Int64Array::from(fill(rows, count, value))),
    }
}

/// Milliseconds in another unit.
fn timestamps(unit: TimeUnit, rows: &[Range<u64>], count: usize, millis: impl Fn(u64) -> i64) -> Int64Array {
    Int64Array::from(match unit {
        TimeUnit::Second => fill(rows, count, |row| millis(row).div_euclid(1000)),
        TimeUnit::Millisecond => fill(rows, count, millis),
        TimeUnit::Microsecond => fill(rows, count, |row| millis(row).saturating_mul(1000)),
        TimeUnit::Nanosecond => fill(rows, count, |row| millis(row).saturating_mul(1_000_000)),
    })
}

fn random_text(seed: u64, length: usize, rows: &[Range<u64>], count: usize) -> StringArray {
    let mut builder = StringBuilder::with_capacity(count, count * length);
    let mut text = String::with_capacity(length + 16);
    for row in rows.iter().cloned().flatten() {
        text.clear();
        let mut word = random(seed, row);
        while text.len() < length {
            // Writing to a String cannot fail.
            let _ = write!(text, "{word:016x}");
            word = mix(word.wrapping_add(GAMMA));
        }
        builder.append_value(&text[..length]);
    }
    builder.finish()
}

fn chosen_text(seed: u64, values: &[String], rows: &[Range<u64>], count: usize) -> StringArray {
    let span = values.len() as u128;
    let longest = values.iter().map(String::len).max().unwrap_or(0);
    let mut builder = StringBuilder::with_capacity(count, count * longest);
    for row in rows.iter().cloned().flatten() {
        let choice = usize::try_from(scale(random(seed, row), span)).unwrap_or(0);
        builder.append_value(&values[choice]);
    }
    builder.finish()
}

fn sequence_text(start: i64, rows: &[Range<u64>], count: usize) -> StringArray {
    let mut builder = StringBuilder::with_capacity(count, count * 8);
    for row in rows.iter().cloned().flatten() {
        // Writing to a builder of strings cannot fail.
        let _ = write!(builder, "{}", start.wrapping_add_unsigned(row));
        builder.append_value("");
    }
    builder.finish()
}
