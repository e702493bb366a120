//! MIN and MAX of values that fit in words: numbers, booleans, dates and times.
//!
//! A group holds the extremum (one word, two for a decimal) and whether there is one. Zeros are one value (0.0) and NaNs
//! are one, which is more than all others, so that the result does not depend on the order of rows.

use super::accumulate::Signs;
use crate::error::TaskError;
use crate::state::AccumulatorColumn;
use crate::state::file::{decimal_of, decimal_words};
use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Field, Float64Type, Int64Type};
use std::cmp::Ordering;
use std::sync::Arc;

/// How values stand in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Integer,
    Float,
    Decimal,
}

#[derive(Debug, Clone)]
pub(crate) struct Extremum {
    /// MAX, not MIN.
    most: bool,
    pub(super) column: usize,
    word: usize,
    form: Form,
    /// The type of argument and result.
    pub(super) result: DataType,
}

impl Extremum {
    /// `None`: values of this type do not fit in words.
    pub(super) fn new(most: bool, field: &Field, column: usize, word: usize) -> Option<Self> {
        let form = match field.data_type() {
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Boolean => Form::Integer,
            DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => Form::Integer,
            DataType::Timestamp(..) => Form::Integer,
            DataType::Float32 | DataType::Float64 => Form::Float,
            DataType::Decimal128(..) => Form::Decimal,
            _ => return None,
        };
        Some(Self { most, column, word, form, result: field.data_type().clone() })
    }

    pub(super) const fn words(&self) -> usize {
        if matches!(self.form, Form::Decimal) { 2 } else { 1 }
    }

    /// The word that says whether there is one.
    const fn flag(&self) -> usize {
        self.word + self.words()
    }

    /// A wider integer or float goes on from the state of a narrower one.
    fn stored_type(&self) -> DataType {
        match &self.result {
            DataType::Int8 | DataType::Int16 | DataType::Int32 => DataType::Int64,
            DataType::Float32 => DataType::Float64,
            other => other.clone(),
        }
    }

    pub(super) fn stored_columns(&self, name: &str, keeps_values: bool) -> Vec<AccumulatorColumn> {
        let function = if self.most { "max" } else { "min" };
        let name = format!("{name}${function}");
        let flag = super::bigint(&format!("{name}${}", if keeps_values { "kept" } else { "there" }), self.flag());
        let (data_type, null_while_zero) = (self.stored_type(), Some(self.flag()));
        vec![AccumulatorColumn { name, data_type, word: self.word, null_while_zero }, flag]
    }

    pub(super) fn differs(&self, old: &[u64], new: &[u64]) -> bool {
        let flag = self.flag();
        old[flag] != new[flag] || (new[flag] != 0 && old[self.word..flag] != new[self.word..flag])
    }

    /// Forgets the extremum of a group.
    pub(super) fn clear(&self, group: &mut [u64]) {
        group[self.word..=self.flag()].fill(0);
    }

    /// Takes the values of rows that count and are not NULL.
    pub(super) fn add(
        &self,
        new: &mut [u64],
        words: usize,
        slots: &[u32],
        signs: &Signs,
        array: &ArrayRef,
    ) -> Result<(), TaskError> {
        let values = Values::of(array, self.form)?;
        for (row, slot) in slots.iter().enumerate() {
            if signs.of_row(row) > 0 && values.is_valid(row) {
                let group = &mut new[*slot as usize * words..][..words];
                self.offer(group, values.words(row));
            }
        }
        Ok(())
    }

    /// Takes the extremum of another group.
    pub(super) fn merge(&self, into: &mut [u64], from: &[u64]) {
        if from[self.flag()] != 0 {
            let second = if self.words() == 2 { from[self.word + 1] } else { 0 };
            self.offer(into, [from[self.word], second]);
        }
    }

    /// Whether the value of each row is its group's extremum: a NULL is not.
    pub(super) fn holds<'a>(&'a self, array: &ArrayRef) -> Result<impl Fn(&[u64], usize) -> bool + use<'a>, TaskError> {
        let values = Values::of(array, self.form)?;
        Ok(move |group: &[u64], row: usize| {
            let value = values.words(row);
            values.is_valid(row) && group[self.flag()] != 0 && group[self.word..self.flag()] == value[..self.words()]
        })
    }

    #[inline]
    fn offer(&self, group: &mut [u64], value: [u64; 2]) {
        let flag = self.flag();
        let is_better = group[flag] == 0 || {
            let wanted = if self.most { Ordering::Greater } else { Ordering::Less };
            self.compare(&value, &group[self.word..flag]) == wanted
        };
        if is_better {
            group[self.word..flag].copy_from_slice(&value[..self.words()]);
            group[flag] = 1;
        }
    }

    fn compare(&self, left: &[u64], right: &[u64]) -> Ordering {
        match self.form {
            Form::Integer => (left[0] as i64).cmp(&(right[0] as i64)),
            Form::Float => f64::from_bits(left[0]).total_cmp(&f64::from_bits(right[0])),
            Form::Decimal => decimal_of(left).cmp(&decimal_of(right)),
        }
    }

    /// The results of groups, each by its words.
    pub(super) fn results<'a>(&self, groups: impl Iterator<Item = &'a [u64]> + Clone) -> Result<ArrayRef, TaskError> {
        let nulls: NullBuffer = groups.clone().map(|group| group[self.flag()] != 0).collect();
        let word = |group: &[u64]| group[self.word];
        let array: ArrayRef = match self.form {
            Form::Integer => Arc::new(Int64Array::new(groups.map(|group| word(group) as i64).collect(), Some(nulls))),
            Form::Float => {
                Arc::new(Float64Array::new(groups.map(|group| f64::from_bits(word(group))).collect(), Some(nulls)))
            }
            Form::Decimal => {
                let values = groups.map(|group| decimal_of(&group[self.word..])).collect();
                Arc::new(Decimal128Array::new(values, Some(nulls)).with_data_type(self.result.clone()))
            }
        };
        if array.data_type() == &self.result {
            return Ok(array);
        }
        cast(&array, &self.result).map_err(|error| TaskError::Internal(format!("the result of MIN or MAX: {error}")))
    }
}

/// Values as words.
struct Values {
    array: ArrayRef,
    form: Form,
}

impl Values {
    fn of(array: &ArrayRef, form: Form) -> Result<Self, TaskError> {
        let wanted = match form {
            Form::Integer => DataType::Int64,
            Form::Float => DataType::Float64,
            Form::Decimal => array.data_type().clone(),
        };
        let cast = |array: &ArrayRef| {
            cast(array, &wanted).map_err(|error| TaskError::Internal(format!("the argument of MIN or MAX: {error}")))
        };
        let array = if *array.data_type() == wanted { Arc::clone(array) } else { cast(array)? };
        Ok(Self { array, form })
    }

    fn is_valid(&self, row: usize) -> bool {
        self.array.is_valid(row)
    }

    #[inline]
    fn words(&self, row: usize) -> [u64; 2] {
        match self.form {
            Form::Integer => [self.array.as_primitive::<Int64Type>().value(row) as u64, 0],
            Form::Float => {
                let value = self.array.as_primitive::<Float64Type>().value(row);
                let one = if value.is_nan() { f64::NAN } else { value + 0.0 };
                [one.to_bits(), 0]
            }
            Form::Decimal => decimal_words(self.array.as_primitive::<Decimal128Type>().value(row)),
        }
    }
}
