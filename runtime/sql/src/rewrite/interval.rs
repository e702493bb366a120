//! Intervals of several units, as `INTERVAL '1 02:03:04.5' DAY TO SECOND`, in the one form that DataFusion reads:
//! `INTERVAL '1 DAY 2 HOUR …'`. Precisions say only how many digits a text may have, and go.

use super::constant;
use datafusion_sql::sqlparser::ast::{DateTimeField, Expr, Interval, Spanned, Value, ValueWithSpan};

/// The units that may stand together, the longest first.
const CALENDAR: &[DateTimeField] = &[DateTimeField::Year, DateTimeField::Month];
const CLOCK: &[DateTimeField] =
    &[DateTimeField::Day, DateTimeField::Hour, DateTimeField::Minute, DateTimeField::Second];

/// The interval in that form; `None` when it has no unit, or when its text does not fit its units.
pub(crate) fn plain(interval: &Interval) -> Option<Interval> {
    let Interval { value, leading_field, leading_precision: _, last_field, fractional_seconds_precision: _ } = interval;
    let bare = Interval { leading_precision: None, fractional_seconds_precision: None, ..interval.clone() };
    let first = leading_field.as_ref()?;
    let text = constant(value)?;
    let Some(last) = last_field else { return is_number(text).then_some(bare) };
    let written = Value::SingleQuotedString(in_words(text, first, last)?);
    let value = Box::new(Expr::Value(ValueWithSpan { value: written, span: value.span() }));
    Some(Interval { value, leading_field: None, last_field: None, ..bare })
}

/// `1`, `-1` or `0.5`.
fn is_number(text: &str) -> bool {
    let text = text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    [whole, fraction].iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Each number with its unit behind it.
fn in_words(text: &str, first: &DateTimeField, last: &DateTimeField) -> Option<String> {
    let units = between(CALENDAR, first, last).or_else(|| between(CLOCK, first, last))?;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text),
    };
    let parts: Vec<&str> = match first {
        DateTimeField::Year => digits.split('-').collect(),
        DateTimeField::Day => {
            let (days, clock) = digits.split_once(' ')?;
            std::iter::once(days).chain(clock.split(':')).collect()
        }
        _ => digits.split(':').collect(),
    };
    let is_whole = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let fits = |(part, unit): (&&str, &DateTimeField)| match (unit, part.split_once('.')) {
        (DateTimeField::Second, Some((whole, rest))) => is_whole(whole) && is_whole(rest),
        _ => is_whole(part),
    };
    let are_right = parts.len() == units.len() && parts.iter().zip(units).all(fits);
    let words = parts.iter().zip(units).map(|(part, unit)| format!("{sign}{part} {unit}"));
    are_right.then(|| words.collect::<Vec<_>>().join(" "))
}

fn between<'a>(units: &'a [DateTimeField], first: &DateTimeField, last: &DateTimeField) -> Option<&'a [DateTimeField]> {
    let place = |wanted| units.iter().position(|unit| unit == wanted);
    let (first, last) = (place(first)?, place(last)?);
    (first < last).then(|| &units[first..=last])
}

#[cfg(test)]
mod tests {
    use super::*;
    use DateTimeField::{Day, Hour, Minute, Month, Second, Year};

    #[test]
    fn each_number_gets_its_unit() {
        let words = |text, first, last| in_words(text, &first, &last);
        assert_eq!(words("1 02:03:04.5", Day, Second).as_deref(), Some("1 DAY 02 HOUR 03 MINUTE 04.5 SECOND"));
        assert_eq!(words("-1:30", Hour, Minute).as_deref(), Some("-1 HOUR -30 MINUTE"));
        assert_eq!(words("2-3", Year, Month).as_deref(), Some("2 YEAR 3 MONTH"));
        assert_eq!(words("1 02", Day, Hour).as_deref(), Some("1 DAY 02 HOUR"));
        for (text, first, last) in [
            ("1", Hour, Minute),
            ("1:2:3", Hour, Minute),
            ("a:1", Hour, Minute),
            ("1:", Hour, Minute),
            ("1.5:1", Minute, Second),
        ] {
            assert_eq!(words(text, first, last), None, "{text}");
        }
        assert_eq!(words("1:1", Minute, Hour), None);
        assert_eq!(words("1-1", Month, Day), None);
    }
}
