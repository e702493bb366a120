//! Constants as SQL has them.

use arrow::array::Array;
use arrow::datatypes::{DataType, IntervalMonthDayNano};
use datafusion_common::ScalarValue;
use std::fmt::Write as _;

/// Milliseconds, microseconds and nanoseconds of a second.
const DIGITS: [(i64, usize); 3] = [(1_000_000, 3), (1_000, 6), (1, 9)];

/// Nanoseconds of the units of an interval, the longest first.
const UNITS: [(i64, &str); 3] = [(3_600_000_000_000, "HOUR"), (60_000_000_000, "MINUTE"), (SECOND, "SECOND")];
const SECOND: i64 = 1_000_000_000;

/// A constant as a query would say it.
pub(super) fn sql(value: &ScalarValue) -> String {
    if value.is_null() {
        return "NULL".to_owned();
    }
    match value {
        ScalarValue::Boolean(Some(value)) => if *value { "TRUE" } else { "FALSE" }.to_owned(),
        ScalarValue::IntervalMonthDayNano(Some(value)) => interval(*value),
        ScalarValue::Binary(Some(bytes)) => {
            bytes.iter().fold("X'".to_owned(), |mut text, byte| {
                let _ = write!(text, "{byte:02X}");
                text
            }) + "'"
        }
        ScalarValue::List(list) => {
            let values = list.value(0);
            let elements = (0..values.len()).map(|index| ScalarValue::try_from_array(&values, index));
            let elements = elements.map(|element| element.map_or_else(|_| "?".to_owned(), |element| sql(&element)));
            format!("ARRAY[{}]", elements.collect::<Vec<_>>().join(", "))
        }
        _ => of_type(value),
    }
}

/// What is written as text behind the name of its type, or as it is.
fn of_type(value: &ScalarValue) -> String {
    let text = match value.cast_to(&DataType::Utf8) {
        Ok(ScalarValue::Utf8(Some(text))) => text,
        _ => value.to_string(),
    };
    let text = text.replace('\'', "''");
    match value.data_type() {
        DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8 => format!("'{text}'"),
        DataType::Date32 => format!("DATE '{text}'"),
        DataType::Time32(_) | DataType::Time64(_) => format!("TIME '{text}'"),
        DataType::Timestamp(_, None) => format!("TIMESTAMP '{}'", text.replace('T', " ")),
        DataType::Timestamp(_, Some(_)) => format!("TIMESTAMP_LTZ '{}'", text.replace('T', " ")),
        _ => text,
    }
}

/// `INTERVAL '1' DAY`, or a sum of such.
fn interval(value: IntervalMonthDayNano) -> String {
    let IntervalMonthDayNano { months, days, nanoseconds } = value;
    let mut parts = Vec::new();
    match months {
        0 => {}
        months if months % 12 == 0 => parts.push(format!("INTERVAL '{}' YEAR", months / 12)),
        months => parts.push(format!("INTERVAL '{months}' MONTH")),
    }
    if days != 0 {
        parts.push(format!("INTERVAL '{days}' DAY"));
    }
    if nanoseconds != 0 || parts.is_empty() {
        parts.push(match UNITS.iter().find(|(unit, _)| nanoseconds != 0 && nanoseconds % unit == 0) {
            Some((unit, name)) => format!("INTERVAL '{}' {name}", nanoseconds / unit),
            None => format!("INTERVAL '{}' SECOND", seconds(nanoseconds)),
        });
    }
    parts.join(" + ")
}

/// With as many digits after the point as it needs: none, three, six or nine.
fn seconds(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (whole, rest) = (nanoseconds.unsigned_abs() / SECOND as u64, (nanoseconds % SECOND).abs());
    match DIGITS.iter().find(|(unit, _)| rest != 0 && rest % unit == 0) {
        Some((unit, width)) => format!("{sign}{whole}.{:0width$}", rest / unit),
        None => format!("{sign}{whole}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_read_as_they_are_written() {
        let text = |months, days, nanoseconds| interval(IntervalMonthDayNano { months, days, nanoseconds });
        assert_eq!(text(0, 0, 3_600_000_000_000), "INTERVAL '1' HOUR");
        assert_eq!(text(0, 0, 300_000_000_000), "INTERVAL '5' MINUTE");
        assert_eq!(text(0, 0, 90_000_000_000), "INTERVAL '90' SECOND");
        assert_eq!(text(0, 0, -1_500_000_000), "INTERVAL '-1.500' SECOND");
        assert_eq!(text(0, 0, 1_000), "INTERVAL '0.000001' SECOND");
        assert_eq!(text(0, 0, 0), "INTERVAL '0' SECOND");
        assert_eq!(text(0, 2, 0), "INTERVAL '2' DAY");
        assert_eq!(text(14, 0, 0), "INTERVAL '14' MONTH");
        assert_eq!(text(24, 1, SECOND), "INTERVAL '2' YEAR + INTERVAL '1' DAY + INTERVAL '1' SECOND");
    }
}
