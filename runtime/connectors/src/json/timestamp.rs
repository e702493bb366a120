//! Timestamps without a zone as text, in the two standards of `json.timestamp-format.standard`:
//! `2024-01-01 12:00:00.123` (SQL) and `2024-01-01T12:00:00.123` (ISO-8601, a trailing `Z` allowed).

use arrow::array::{ArrayRef, Int64Array, PrimitiveArray};
use arrow::datatypes::{
    ArrowTimestampType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use std::sync::Arc;

/// Which standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimestampFormat {
    /// A space between date and time. The default.
    Sql,
    /// A `T` between date and time.
    Iso8601,
}

impl TimestampFormat {
    const fn separator(self) -> u8 {
        match self {
            Self::Sql => b' ',
            Self::Iso8601 => b'T',
        }
    }

    /// An example, for messages.
    pub(crate) const fn example(self) -> &'static str {
        match self {
            Self::Sql => "'2024-01-01 12:00:00.123' (SQL)",
            Self::Iso8601 => "'2024-01-01T12:00:00.123' (ISO-8601)",
        }
    }
}

/// Two digits.
fn two(text: &[u8]) -> Option<i64> {
    match text {
        [tens @ b'0'..=b'9', units @ b'0'..=b'9'] => Some(i64::from(tens - b'0') * 10 + i64::from(units - b'0')),
        _ => None,
    }
}

/// Nanoseconds since the epoch.
pub(crate) fn parse(text: &str, format: TimestampFormat) -> Option<i128> {
    let text = text.as_bytes();
    let text = if format == TimestampFormat::Iso8601 { text.strip_suffix(b"Z").unwrap_or(text) } else { text };
    if text.len() < 16 || text[4] != b'-' || text[7] != b'-' || text[10] != format.separator() || text[13] != b':' {
        return None;
    }
    let year = two(&text[0..2])? * 100 + two(&text[2..4])?;
    let (month, day) = (two(&text[5..7])?, two(&text[8..10])?);
    let (hour, minute) = (two(&text[11..13])?, two(&text[14..16])?);
    let (second, nanos) = seconds(&text[16..])?;
    let in_range = (1..=12).contains(&month) && day >= 1 && day <= days_in_month(year, month);
    if !in_range || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
}

/// `:12.345` as (12, 345000000); nothing as (0, 0), since the standards allow seconds to be left out.
fn seconds(text: &[u8]) -> Option<(i64, i64)> {
    if text.is_empty() {
        return Some((0, 0));
    }
    if text.len() < 3 || text[0] != b':' {
        return None;
    }
    let second = two(&text[1..3])?;
    let fraction = match &text[3..] {
        [] => return Some((second, 0)),
        [b'.', digits @ ..] if (1..=9).contains(&digits.len()) => digits,
        _ => return None,
    };
    let mut nanos = 0;
    for position in 0..9 {
        let digit = match fraction.get(position) {
            Some(digit @ b'0'..=b'9') => i64::from(digit - b'0'),
            None => 0,
            Some(_) => return None,
        };
        nanos = nanos * 10 + digit;
    }
    Some((second, nanos))
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar (Howard Hinnant: "chrono-compatible low-level date
/// algorithms").
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`].
pub(crate) const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days - era * 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + if month <= 2 { 1 } else { 0 }, month, day)
}

/// Writes a date.
pub(crate) fn write_date(out: &mut Vec<u8>, days: i64) {
    let (year, month, day) = civil_from_days(days);
    push(out, format_args!("{year:04}-{month:02}-{day:02}"));
}

/// Writes a time of day: seconds always, a fraction without trailing zeros when there is one.
pub(crate) fn write_time(out: &mut Vec<u8>, nanos_of_day: i64) {
    let (seconds, nanos) = (nanos_of_day / 1_000_000_000, nanos_of_day % 1_000_000_000);
    push(out, format_args!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60));
    if nanos > 0 {
        push(out, format_args!(".{nanos:09}"));
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

/// Writes a timestamp.
pub(crate) fn write(out: &mut Vec<u8>, nanos: i128, format: TimestampFormat) {
    const DAY: i128 = 86_400_000_000_000;
    write_date(out, i64::try_from(nanos.div_euclid(DAY)).unwrap_or(i64::MAX));
    out.push(format.separator());
    write_time(out, i64::try_from(nanos.rem_euclid(DAY)).unwrap_or(0));
}

fn push(out: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    // Writing to a Vec cannot fail.
    let _ = out.write_fmt(arguments);
}

/// A column of timestamps whose values count `unit`; with a zone they are instants.
pub(crate) fn to_array(values: &Int64Array, unit: TimeUnit, zone: Option<Arc<str>>) -> ArrayRef {
    fn with_zone<T: ArrowTimestampType>(values: &Int64Array, zone: Option<Arc<str>>) -> ArrayRef {
        let values: PrimitiveArray<T> = values.reinterpret_cast();
        Arc::new(values.with_timezone_opt(zone))
    }
    match unit {
        TimeUnit::Second => with_zone::<TimestampSecondType>(values, zone),
        TimeUnit::Millisecond => with_zone::<TimestampMillisecondType>(values, zone),
        TimeUnit::Microsecond => with_zone::<TimestampMicrosecondType>(values, zone),
        TimeUnit::Nanosecond => with_zone::<TimestampNanosecondType>(values, zone),
    }
}
