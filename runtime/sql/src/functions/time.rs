//! Functions over dates and times. The session's time zone is UTC, so TIMESTAMP and TIMESTAMP_LTZ are computed alike.

use super::own::{Definition, Form, Kind, fine, rows, text_rows, texts, whole};
use super::pattern::{Pattern, parse_standard};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Date32Array, Int64Array, TimestampMicrosecondArray};
use arrow::array::{Int32Array, TimestampMillisecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit, TimestampMicrosecondType};
use chrono::{DateTime, Datelike, Days, Months, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike};
use datafusion_common::{Result, exec_datafusion_err, plan_err};
use std::sync::Arc;

const fn form(parameters: &'static [Kind], result: Kind) -> Form {
    Form { parameters, result }
}

/// All of them.
pub(super) static DEFINITIONS: &[Definition] = &[
    Definition {
        name: "date_format",
        forms: &[form(&[Kind::Moment, Kind::Text], Kind::Text), form(&[Kind::Text, Kind::Text], Kind::Text)],
        check: check_pattern,
        evaluate: date_format,
    },
    Definition {
        name: "to_timestamp",
        forms: &[form(&[Kind::Text], Kind::Timestamp), form(&[Kind::Text, Kind::Text], Kind::Timestamp)],
        check: check_pattern,
        evaluate: to_timestamp,
    },
    Definition {
        name: "to_timestamp_ltz",
        forms: &[
            form(&[Kind::Whole, Kind::Whole], Kind::Local),
            form(&[Kind::Text], Kind::Local),
            form(&[Kind::Text, Kind::Text], Kind::Local),
        ],
        check: check_pattern,
        evaluate: to_timestamp_ltz,
    },
    Definition {
        name: "to_date",
        forms: &[form(&[Kind::Text], Kind::Date), form(&[Kind::Text, Kind::Text], Kind::Date)],
        check: check_pattern,
        evaluate: to_date,
    },
    Definition {
        name: "from_unixtime",
        forms: &[form(&[Kind::Whole], Kind::Text), form(&[Kind::Whole, Kind::Text], Kind::Text)],
        check: check_pattern,
        evaluate: from_unixtime,
    },
    Definition {
        name: "unix_timestamp",
        forms: &[form(&[Kind::Text], Kind::Whole), form(&[Kind::Text, Kind::Text], Kind::Whole)],
        check: check_pattern,
        evaluate: unix_timestamp,
    },
    Definition {
        name: "extract",
        forms: &[form(&[Kind::Text, Kind::Moment], Kind::Whole)],
        check: check_part,
        evaluate: extract,
    },
    Definition {
        name: "floor_to",
        forms: &[form(&[Kind::Text, Kind::Moment], Kind::As(1))],
        check: check_rounding,
        evaluate: |columns| rounded(columns, false),
    },
    Definition {
        name: "ceil_to",
        forms: &[form(&[Kind::Text, Kind::Moment], Kind::As(1))],
        check: check_rounding,
        evaluate: |columns| rounded(columns, true),
    },
    Definition {
        name: "timestamp_diff",
        forms: &[form(&[Kind::Text, Kind::Moment, Kind::Moment], Kind::Int)],
        check: check_step,
        evaluate: timestamp_diff,
    },
    Definition {
        name: "timestamp_add",
        forms: &[form(&[Kind::Text, Kind::Whole, Kind::Moment], Kind::As(2))],
        check: check_step,
        evaluate: timestamp_add,
    },
    Definition { name: "printed", forms: &[form(&[Kind::Printed], Kind::Text)], check: fine, evaluate: printed },
];

const PARTS: [&str; 14] = [
    "YEAR",
    "QUARTER",
    "MONTH",
    "WEEK",
    "DAY",
    "DOY",
    "DOW",
    "HOUR",
    "MINUTE",
    "SECOND",
    "MILLISECOND",
    "MICROSECOND",
    "EPOCH",
    "ISODOW",
];
const ROUNDINGS: [&str; 8] = ["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"];

fn check_unit(constants: &[Option<&str>], known: &[&str]) -> Result<()> {
    match constants.first().copied().flatten() {
        Some(unit) if known.contains(&unit) => Ok(()),
        Some(unit) => plan_err!("the unit {unit} is not supported here: it is one of {}", known.join(", ")),
        None => plan_err!("the unit must be written as a word, one of {}", known.join(", ")),
    }
}

fn check_part(constants: &[Option<&str>]) -> Result<()> {
    check_unit(constants, &PARTS)
}

fn check_rounding(constants: &[Option<&str>]) -> Result<()> {
    check_unit(constants, &ROUNDINGS)
}

fn check_step(constants: &[Option<&str>]) -> Result<()> {
    check_unit(constants, &ROUNDINGS)
}

/// The pattern is always the second argument.
fn check_pattern(constants: &[Option<&str>]) -> Result<()> {
    match constants.get(1).copied().flatten().map(Pattern::new) {
        Some(Err(message)) => plan_err!("{message}"),
        _ => Ok(()),
    }
}

/// The patterns of a batch: mostly one.
struct Patterns {
    last: Option<(String, Pattern)>,
}

impl Patterns {
    const fn new() -> Self {
        Self { last: None }
    }

    fn get(&mut self, text: &str) -> Option<&Pattern> {
        if self.last.as_ref().is_none_or(|(known, _)| known != text) {
            self.last = Some((text.to_owned(), Pattern::new(text).ok()?));
        }
        self.last.as_ref().map(|(_, pattern)| pattern)
    }
}

/// Times in microseconds; NULL stays.
fn moments(column: &ArrayRef) -> Result<TimestampMicrosecondArray> {
    let timestamps = cast(column, &DataType::Timestamp(TimeUnit::Microsecond, None))?;
    Ok(timestamps.as_primitive::<TimestampMicrosecondType>().clone())
}

fn time_of(microseconds: i64) -> Option<NaiveDateTime> {
    DateTime::from_timestamp_micros(microseconds).map(|time| time.naive_utc())
}

/// Reads times by the pattern in the second column, or as Flink writes them.
fn parsed(columns: &[ArrayRef], standard: fn(&str) -> Option<NaiveDateTime>) -> Vec<Option<NaiveDateTime>> {
    let text = texts(&columns[0]);
    let mut patterns = Patterns::new();
    rows(columns, |row| match columns.get(1) {
        Some(pattern) => patterns.get(texts(pattern).value(row))?.parse(text.value(row)),
        None => standard(text.value(row)),
    })
    .collect()
}

fn date_format(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let given = columns[0].data_type();
    let times = if *given == DataType::Utf8 { None } else { Some(moments(&columns[0])?) };
    let pattern = texts(&columns[1]);
    let mut patterns = Patterns::new();
    text_rows(columns, |row| {
        let time = match &times {
            Some(times) => time_of(times.value(row)),
            None => parse_standard(texts(&columns[0]).value(row)),
        };
        Some(patterns.get(pattern.value(row))?.format(&time?))
    })
}

fn milliseconds(times: Vec<Option<NaiveDateTime>>) -> TimestampMillisecondArray {
    times.into_iter().map(|time| time.map(|time| time.and_utc().timestamp_millis())).collect()
}

fn to_timestamp(columns: &[ArrayRef]) -> Result<ArrayRef> {
    Ok(Arc::new(milliseconds(parsed(columns, parse_standard))))
}

/// Times in milliseconds that a number may say, as in Flink: of the years 0 to 9999.
const NUMBERED_TIMES: std::ops::RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_799_999;

/// Of a number: seconds for precision 0, milliseconds for 3, else NULL. So is a time that cannot be meant, such as microseconds
/// taken for milliseconds: as the time of a row it would end event time for all others.
fn to_timestamp_ltz(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let made = if *columns[0].data_type() == DataType::Utf8 {
        milliseconds(parsed(columns, parse_standard))
    } else {
        let value = rows(columns, |row| match whole(&columns[1], row) {
            0 => whole(&columns[0], row).checked_mul(1000),
            3 => Some(whole(&columns[0], row)),
            _ => None,
        });
        value.map(|value| value.filter(|value| NUMBERED_TIMES.contains(value))).collect()
    };
    Ok(Arc::new(made.with_timezone("UTC")))
}

fn to_date(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let days = parsed(columns, parse_standard).into_iter().map(|time| time.map(|time| days_of(time.date())));
    Ok(Arc::new(days.collect::<Date32Array>()))
}

fn days_of(date: NaiveDate) -> i32 {
    date.signed_duration_since(NaiveDate::default()).num_days().try_into().unwrap_or_default()
}

fn from_unixtime(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let mut patterns = Patterns::new();
    text_rows(columns, |row| {
        let pattern = columns.get(1).map_or("yyyy-MM-dd HH:mm:ss", |pattern| texts(pattern).value(row));
        let time = DateTime::from_timestamp(whole(&columns[0], row), 0)?.naive_utc();
        Some(patterns.get(pattern)?.format(&time))
    })
}

fn unix_timestamp(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let times = parsed(columns, parse_standard).into_iter();
    Ok(Arc::new(times.map(|time| time.map(|time| time.and_utc().timestamp())).collect::<Int64Array>()))
}

fn extract(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (unit, times) = (texts(&columns[0]), moments(&columns[1])?);
    let parts = rows(columns, |row| part(unit.value(row), time_of(times.value(row))?));
    Ok(Arc::new(parts.collect::<Int64Array>()))
}

fn part(unit: &str, time: NaiveDateTime) -> Option<i64> {
    let small = match unit {
        "YEAR" => return Some(i64::from(time.year())),
        "EPOCH" => return Some(time.and_utc().timestamp()),
        "QUARTER" => time.quarter(),
        "MONTH" => time.month(),
        "WEEK" => time.iso_week().week(),
        "DAY" => time.day(),
        "DOY" => time.ordinal(),
        "DOW" => time.weekday().number_from_sunday(),
        "ISODOW" => time.weekday().number_from_monday(),
        "HOUR" => time.hour(),
        "MINUTE" => time.minute(),
        "SECOND" => time.second(),
        "MILLISECOND" => time.nanosecond() / 1_000_000,
        "MICROSECOND" => time.nanosecond() / 1000,
        _ => return None,
    };
    Some(i64::from(small))
}

/// FLOOR and CEIL to a unit; weeks begin on Sunday, as in Flink.
fn rounded(columns: &[ArrayRef], up: bool) -> Result<ArrayRef> {
    let (unit, times) = (texts(&columns[0]), moments(&columns[1])?);
    let made = rows(columns, |row| {
        let (unit, time) = (unit.value(row), time_of(times.value(row))?);
        let floor = floor(unit, time)?;
        let rounded = if up && floor != time { stepped(unit, 1, floor)? } else { floor };
        Some(rounded.and_utc().timestamp_micros())
    });
    back(made.collect(), columns[1].data_type())
}

/// Microseconds as the type that they came from.
fn back(times: TimestampMicrosecondArray, data_type: &DataType) -> Result<ArrayRef> {
    Ok(cast(&(Arc::new(times) as ArrayRef), data_type)?)
}

fn floor(unit: &str, time: NaiveDateTime) -> Option<NaiveDateTime> {
    let date = time.date();
    let day = match unit {
        "YEAR" => NaiveDate::from_ymd_opt(date.year(), 1, 1)?,
        "QUARTER" => NaiveDate::from_ymd_opt(date.year(), date.month0() / 3 * 3 + 1, 1)?,
        "MONTH" => NaiveDate::from_ymd_opt(date.year(), date.month(), 1)?,
        "WEEK" => date.checked_sub_days(Days::new(date.weekday().num_days_from_sunday().into()))?,
        "DAY" => date,
        "HOUR" => return Some(date.and_time(NaiveTime::from_hms_opt(time.hour(), 0, 0)?)),
        "MINUTE" => return Some(date.and_time(NaiveTime::from_hms_opt(time.hour(), time.minute(), 0)?)),
        "SECOND" => return Some(date.and_time(NaiveTime::from_hms_opt(time.hour(), time.minute(), time.second())?)),
        _ => return None,
    };
    Some(day.and_time(NaiveTime::MIN))
}

/// How long a unit is: months have no fixed number of seconds.
enum Length {
    Months(i64),
    Seconds(i64),
}

fn length(unit: &str) -> Option<Length> {
    Some(match unit {
        "YEAR" => Length::Months(12),
        "QUARTER" => Length::Months(3),
        "MONTH" => Length::Months(1),
        "WEEK" => Length::Seconds(604_800),
        "DAY" => Length::Seconds(86_400),
        "HOUR" => Length::Seconds(3600),
        "MINUTE" => Length::Seconds(60),
        "SECOND" => Length::Seconds(1),
        _ => return None,
    })
}

/// A time that many units later; the last day of a month where the day does not exist.
fn stepped(unit: &str, steps: i64, time: NaiveDateTime) -> Option<NaiveDateTime> {
    match length(unit)? {
        Length::Months(each) => {
            let months = steps.checked_mul(each)?;
            let count = Months::new(u32::try_from(months.unsigned_abs()).ok()?);
            if months < 0 { time.checked_sub_months(count) } else { time.checked_add_months(count) }
        }
        Length::Seconds(each) => time.checked_add_signed(TimeDelta::try_seconds(steps.checked_mul(each)?)?),
    }
}

/// Whole units from the first time to the second.
fn timestamp_diff(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (unit, from, to) = (texts(&columns[0]), moments(&columns[1])?, moments(&columns[2])?);
    let mut made = Vec::with_capacity(from.len());
    for units in rows(columns, |row| units_between(unit.value(row), time_of(from.value(row))?, time_of(to.value(row))?))
    {
        let fits = |units: i64| {
            i32::try_from(units).map_err(|_| exec_datafusion_err!("TIMESTAMPDIFF gives {units}, which is no INT"))
        };
        made.push(units.map(fits).transpose()?);
    }
    Ok(Arc::new(Int32Array::from(made)))
}

fn units_between(unit: &str, from: NaiveDateTime, to: NaiveDateTime) -> Option<i64> {
    Some(match length(unit)? {
        Length::Months(each) => months_between(from, to) / each,
        Length::Seconds(each) => to.signed_duration_since(from).num_seconds() / each,
    })
}

fn months_between(from: NaiveDateTime, to: NaiveDateTime) -> i64 {
    let number = |time: NaiveDateTime| i64::from(time.year()) * 12 + i64::from(time.month0());
    let within = |time: NaiveDateTime| (time.day(), time.time());
    let months = number(to) - number(from);
    match months {
        1.. if within(to) < within(from) => months - 1,
        ..=-1 if within(to) > within(from) => months + 1,
        _ => months,
    }
}

fn timestamp_add(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (unit, times) = (texts(&columns[0]), moments(&columns[2])?);
    let made = rows(columns, |row| {
        let time = stepped(unit.value(row), whole(&columns[1], row), time_of(times.value(row))?)?;
        Some(time.and_utc().timestamp_micros())
    });
    back(made.collect(), columns[2].data_type())
}

/// What CAST to STRING makes of booleans and times: `TRUE`, `2024-03-05 17:08:09.123`, `17:08:09`.
fn printed(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let column = &columns[0];
    match column.data_type() {
        DataType::Boolean => {
            let values: &BooleanArray = column.as_boolean();
            text_rows(columns, |row| Some(if values.value(row) { "TRUE" } else { "FALSE" }.to_owned()))
        }
        DataType::Timestamp(unit, _) => {
            let digits = match unit {
                TimeUnit::Second => "",
                TimeUnit::Millisecond => "%.3f",
                TimeUnit::Microsecond => "%.6f",
                TimeUnit::Nanosecond => "%.9f",
            };
            let format = format!("%Y-%m-%d %H:%M:%S{digits}");
            let nanoseconds = *unit == TimeUnit::Nanosecond;
            let precise = cast(column, &DataType::Timestamp(TimeUnit::Nanosecond, None)).ok().filter(|_| nanoseconds);
            let times = moments(column)?;
            text_rows(columns, |row| {
                let time = match &precise {
                    Some(precise) => {
                        let nanoseconds =
                            precise.as_primitive::<arrow::datatypes::TimestampNanosecondType>().value(row);
                        DateTime::from_timestamp_nanos(nanoseconds).naive_utc()
                    }
                    None => time_of(times.value(row))?,
                };
                Some(time.format(&format).to_string())
            })
        }
        _ => Ok(cast(column, &DataType::Utf8)?),
    }
}
