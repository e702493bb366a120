//! The options of `datagen`: Flink's, and `seed`, `fields.#.values` and timestamps in sequence beside them.

use super::generator::{Column, Columns, Values, Width, column_seed};
use crate::json::timestamp::{self, TimestampFormat};
use crate::options::{Known, Options};
use arrow::datatypes::{DataType, Field, TimeUnit};
use sluice_engine::table::{TableDescriptor, TableError};
use std::sync::Arc;

const KNOWN: Known<'static> = Known {
    names: &[
        "rows-per-second",
        "number-of-rows",
        "seed",
        "fields.#.kind",
        "fields.#.min",
        "fields.#.max",
        "fields.#.max-past",
        "fields.#.length",
        "fields.#.values",
        "fields.#.start",
        "fields.#.end",
        "fields.#.step",
        "fields.#.null-rate",
    ],
    formats: &[],
    properties: false,
    refused: &[("scan.parallelism", "a source runs with the parallelism of the job; remove it")],
};

/// From this many rows a second on there is no throttle.
const UNTHROTTLED: u64 = 1_000_000_000;
const DEFAULT_ROWS_PER_SECOND: u64 = 10_000;
const DEFAULT_LENGTH: usize = 100;

/// What does not concern a single column.
#[derive(Debug, Clone)]
pub(super) struct DatagenOptions {
    /// Rows a second over all subtasks; `None`: as fast as possible.
    pub(super) rows_per_second: Option<u64>,
    /// How many rows there are; `None`: no end.
    pub(super) number_of_rows: Option<u64>,
}

/// Reads and checks all.
pub(super) fn read(table: &TableDescriptor) -> Result<(DatagenOptions, Columns), TableError> {
    let options = Options::new(table, &KNOWN)?;
    let rate = options.parse("rows-per-second", "a whole number above 0")?.unwrap_or(DEFAULT_ROWS_PER_SECOND);
    if rate == 0 {
        return Err(options.wrong("rows-per-second", "0", "a whole number above 0"));
    }
    let seed: u64 = options.parse("seed", "a whole number")?.unwrap_or(0);
    let mut number_of_rows: Option<u64> = options.parse("number-of-rows", "a whole number")?;
    let mut columns = Vec::with_capacity(table.schema.fields().len());
    for field in table.schema.fields() {
        let column = ColumnOptions { options, field };
        column.refuse_misplaced()?;
        let (values, length) = if column.is_sequence()? { column.sequence()? } else { (column.random()?, None) };
        if let Some(length) = length {
            number_of_rows = Some(number_of_rows.map_or(length, |rows| rows.min(length)));
        }
        columns.push(Column { seed: column_seed(seed, field.name()), null_below: column.null_below()?, values });
    }
    let rows_per_second = (rate < UNTHROTTLED).then_some(rate);
    Ok((DatagenOptions { rows_per_second, number_of_rows }, Columns(columns)))
}

/// The options of one column.
struct ColumnOptions<'a> {
    options: Options<'a>,
    field: &'a Field,
}

impl ColumnOptions<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("fields.{}.{suffix}", self.field.name())
    }

    fn is_sequence(&self) -> Result<bool, TableError> {
        let kind = self.options.choice(&self.key("kind"), &[("random", false), ("sequence", true)])?;
        Ok(kind.unwrap_or(false))
    }

    /// Options of the other kind, or of another type, would silently do nothing.
    fn refuse_misplaced(&self) -> Result<(), TableError> {
        let sequence = self.is_sequence()?;
        let text = matches!(self.field.data_type(), DataType::Utf8);
        let time = matches!(self.field.data_type(), DataType::Timestamp(..));
        let number = !text && !time && !matches!(self.field.data_type(), DataType::Boolean);
        let rules = [
            ("min", !sequence && number, "random numbers"),
            ("max", !sequence && number, "random numbers"),
            ("max-past", !sequence && time, "random timestamps"),
            ("length", !sequence && text, "random strings"),
            ("values", !sequence && text, "random strings"),
            ("start", sequence, "sequences (kind 'sequence')"),
            ("end", sequence && !time, "sequences (kind 'sequence') of numbers and strings"),
            ("step", sequence && time, "sequences (kind 'sequence') of timestamps"),
        ];
        for (suffix, allowed, whom) in rules {
            let key = self.key(suffix);
            if !allowed && self.options.text(&key).is_some() {
                let column = self.field.name();
                return Err(self.options.error(
                    &key,
                    format!("the option '{key}' is only for {whom}, which column '{column}' is not; remove it"),
                ));
            }
        }
        Ok(())
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of 2^64, checked to be in [0, 1]"
    )]
    fn null_below(&self) -> Result<u64, TableError> {
        let key = self.key("null-rate");
        let allowed = "a share between 0 and 1";
        let Some(rate) = self.options.parse::<f64>(&key, allowed)? else { return Ok(0) };
        if !(0.0..=1.0).contains(&rate) {
            return Err(self.options.wrong(&key, &rate.to_string(), allowed));
        }
        if rate > 0.0 && !self.field.is_nullable() {
            return Err(self
                .options
                .error(&key, format!("the option '{key}' cannot be above 0: the column is NOT NULL")));
        }
        Ok((rate * 18_446_744_073_709_551_616.0) as u64)
    }

    fn random(&self) -> Result<Values, TableError> {
        match self.field.data_type() {
            DataType::Float32 => self.random_double(true, f64::from(f32::MIN), f64::from(f32::MAX)),
            DataType::Float64 => self.random_double(false, f64::MIN, f64::MAX),
            DataType::Decimal128(precision, scale) => self.random_decimal(*precision, *scale),
            DataType::Boolean => Ok(Values::RandomBoolean),
            DataType::Utf8 => self.random_text(),
            DataType::Timestamp(unit, zone) => {
                let past = self.options.duration(&self.key("max-past"))?.unwrap_or_default();
                let max_past = u64::try_from(past.as_millis()).unwrap_or(u64::MAX);
                Ok(Values::PastTimestamp { unit: *unit, zone: zone.clone(), max_past })
            }
            other => self.random_integer(other),
        }
    }

    fn random_integer(&self, data_type: &DataType) -> Result<Values, TableError> {
        let (width, low, high) = self.integer(data_type)?;
        let (min_key, max_key) = (self.key("min"), self.key("max"));
        let allowed = format!("a whole number from {low} to {high}");
        let min = self.bounded(&min_key, low, high, &allowed)?.unwrap_or(low);
        let max =
            self.bounded(&max_key, min, high, &format!("a whole number from {min} (the least value) to {high}"))?;
        let span = max.unwrap_or(high).abs_diff(min);
        Ok(Values::RandomInteger { width, min, span: u128::from(span) + 1 })
    }

    fn bounded(&self, key: &str, low: i64, high: i64, allowed: &str) -> Result<Option<i64>, TableError> {
        match self.options.parse::<i64>(key, allowed)? {
            Some(value) if !(low..=high).contains(&value) => Err(self.options.wrong(key, &value.to_string(), allowed)),
            value => Ok(value),
        }
    }

    fn integer(&self, data_type: &DataType) -> Result<(Width, i64, i64), TableError> {
        match data_type {
            DataType::Int8 => Ok((Width::Tiny, i64::from(i8::MIN), i64::from(i8::MAX))),
            DataType::Int16 => Ok((Width::Small, i64::from(i16::MIN), i64::from(i16::MAX))),
            DataType::Int32 => Ok((Width::Int, i64::from(i32::MIN), i64::from(i32::MAX))),
            DataType::Int64 => Ok((Width::Big, i64::MIN, i64::MAX)),
            _ => Err(self.unsupported()),
        }
    }

    fn unsupported(&self) -> TableError {
        crate::options::error(
            self.options.table(),
            Some(crate::options::CONNECTOR),
            format!(
                "connector 'datagen' cannot generate column '{}': its type is none of TINYINT, SMALLINT, INT, BIGINT, \
                 FLOAT, DOUBLE, DECIMAL, BOOLEAN, STRING, TIMESTAMP and TIMESTAMP_LTZ",
                self.field.name()
            ),
        )
    }

    fn random_double(&self, single: bool, low: f64, high: f64) -> Result<Values, TableError> {
        let key = self.key("max");
        // Half of the range by default, so that its width is a number.
        let min = self.options.parse(&self.key("min"), "a number")?.unwrap_or(low / 2.0);
        let max = self.options.parse(&key, "a number")?.unwrap_or(high / 2.0);
        let width: f64 = max - min;
        if !width.is_finite() || width < 0.0 {
            return Err(self.options.wrong(&key, &max.to_string(), &format!("a number not below {min}")));
        }
        Ok(Values::RandomDouble { single, min, max })
    }

    fn random_decimal(&self, precision: u8, scale: i8) -> Result<Values, TableError> {
        let key = self.key("max");
        let limit = 10_i128.checked_pow(u32::from(precision)).unwrap_or(i128::MAX) - 1;
        let unscaled = |key: &str, otherwise: i128| -> Result<i128, TableError> {
            let Some(text) = self.options.text(key) else { return Ok(otherwise) };
            let allowed = format!("a number of DECIMAL({precision}, {scale})");
            let parsed = arrow::compute::kernels::cast_utils::parse_decimal::<arrow::datatypes::Decimal128Type>(
                text.trim(),
                precision,
                scale,
            );
            parsed.map_err(|_| self.options.wrong(key, text, &allowed))
        };
        let min = unscaled(&self.key("min"), -limit)?;
        let max = unscaled(&key, limit)?;
        if max < min {
            let value = self.options.text(&key).unwrap_or_default();
            return Err(self.options.wrong(&key, value, "at least the least value"));
        }
        Ok(Values::RandomDecimal { precision, scale, min, span: max.abs_diff(min) + 1 })
    }

    fn random_text(&self) -> Result<Values, TableError> {
        let (values_key, length_key) = (self.key("values"), self.key("length"));
        if let Some(text) = self.options.text(&values_key) {
            let values: Vec<String> = text.split(',').map(|value| value.trim().to_owned()).collect();
            if self.options.text(&length_key).is_some() {
                let message =
                    format!("the option '{length_key}' does nothing beside '{values_key}'; remove one of them");
                return Err(self.options.error(&length_key, message));
            }
            return Ok(Values::ChosenText { values });
        }
        let allowed = "a whole number from 1 to 1000000";
        let length = self.options.parse::<usize>(&length_key, allowed)?.unwrap_or(DEFAULT_LENGTH);
        if !(1..=1_000_000).contains(&length) {
            return Err(self.options.wrong(&length_key, &length.to_string(), allowed));
        }
        Ok(Values::RandomText { length })
    }

    /// The values and how many there are.
    fn sequence(&self) -> Result<(Values, Option<u64>), TableError> {
        if let DataType::Timestamp(unit, zone) = self.field.data_type() {
            return self.timestamp_sequence(*unit, zone.clone()).map(|values| (values, None));
        }
        let data_type = self.field.data_type();
        let (low, high) = match data_type {
            DataType::Utf8 | DataType::Float64 | DataType::Float32 => (i64::MIN, i64::MAX),
            other => self.integer(other).map(|(_, low, high)| (low, high))?,
        };
        let (start_key, end_key) = (self.key("start"), self.key("end"));
        self.options.required(&start_key, "where the sequence starts")?;
        self.options.required(&end_key, "where the sequence ends")?;
        let allowed = format!("a whole number from {low} to {high}");
        let start = self.bounded(&start_key, low, high, &allowed)?.unwrap_or(low);
        let end = self.bounded(&end_key, start, high, &format!("a whole number from {start} (the start) to {high}"))?;
        let length = end.unwrap_or(high).abs_diff(start).saturating_add(1);
        #[expect(clippy::cast_precision_loss, reason = "a sequence of doubles is as exact as doubles are")]
        let values = match data_type {
            DataType::Utf8 => Values::SequenceText { start },
            DataType::Float32 => Values::SequenceDouble { single: true, start: start as f64 },
            DataType::Float64 => Values::SequenceDouble { single: false, start: start as f64 },
            other => Values::SequenceInteger { width: self.integer(other)?.0, start },
        };
        Ok((values, Some(length)))
    }

    fn timestamp_sequence(&self, unit: TimeUnit, zone: Option<Arc<str>>) -> Result<Values, TableError> {
        let key = self.key("start");
        let text = self.options.required(&key, "the timestamp of the first row")?;
        let nanos = timestamp::parse(text, TimestampFormat::Sql)
            .ok_or_else(|| self.options.wrong(&key, text, "a timestamp such as 2024-01-01 00:00:00"))?;
        let start = i64::try_from(nanos.div_euclid(1_000_000)).unwrap_or(i64::MAX);
        let step_key = self.key("step");
        let step =
            self.options.duration(&step_key)?.map_or(1, |step| i64::try_from(step.as_millis()).unwrap_or(i64::MAX));
        Ok(Values::SequenceTimestamp { unit, zone, start, step })
    }
}
