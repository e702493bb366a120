//! When a schedule is due: the five fields of cron, in UTC. Pure.
//!
//! Written by hand, since what is needed of cron is this page and a library brings a calendar with it. As cron has it: a
//! day fits when the day of the month fits and the day of the week does; where both are restricted, either is enough.

use k8s_openapi::jiff;
use sluice_protocol::Timestamp;
use std::str::FromStr;

const MINUTE: u64 = 60_000;
const DAY: u64 = 24 * 60 * MINUTE;
/// 29 February is at most eight years away.
const HORIZON_DAYS: u64 = 8 * 366;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A cron schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day that fits by either of both is enough.
    either_day: bool,
}

/// A schedule that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    /// Not five fields.
    #[error(
        "'{0}' has not the five fields minute, hour, day of month, month and day of week; write one such as '0 3 * * *' \
         (every day at 03:00 UTC)"
    )]
    Fields(String),
    /// A field that cannot be read, or out of range.
    #[error("{field} '{text}' is not a number from {from} to {to}, a name, a range, a list, a step or *")]
    Field {
        /// Which.
        field: &'static str,
        /// What it says.
        text: String,
        /// The least number.
        from: u32,
        /// The greatest.
        to: u32,
    },
    /// Right in form, but of a day that no year has.
    #[error("'{0}' is never due")]
    Never(String),
}

struct Field {
    name: &'static str,
    from: u32,
    to: u32,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", from: 0, to: 59, names: &[] },
    Field { name: "hour", from: 0, to: 23, names: &[] },
    Field { name: "day of month", from: 1, to: 31, names: &[] },
    Field { name: "month", from: 1, to: 12, names: &MONTHS },
    Field { name: "day of week", from: 0, to: 7, names: &WEEKDAYS },
];

impl FromStr for Schedule {
    type Err = InvalidSchedule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            other => other,
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let words: [&str; 5] = words.try_into().map_err(|_| InvalidSchedule::Fields(text.to_owned()))?;
        let mut sets = [0; 5];
        for ((set, word), field) in sets.iter_mut().zip(words).zip(&FIELDS) {
            *set = field.parse(word)?;
        }
        let [minutes, hours, days, months, weekdays] = sets;
        let either_day = !words[2].starts_with('*') && !words[4].starts_with('*');
        // 7 is Sunday too.
        let weekdays = (weekdays | (weekdays >> 7)) & 0x7f;
        let schedule = Self { minutes, hours, days, months, weekdays, either_day };
        schedule.next_after(Timestamp(0)).map(|_| schedule).ok_or_else(|| InvalidSchedule::Never(text.to_owned()))
    }
}

impl Field {
    /// The set of numbers that a field names, as bits.
    fn parse(&self, text: &str) -> Result<u64, InvalidSchedule> {
        let Self { name: field, from, to, .. } = *self;
        let invalid = || InvalidSchedule::Field { field, text: text.to_owned(), from, to };
        let mut set = 0;
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                Some((range, step)) => {
                    (range, Some(step.parse::<u32>().ok().filter(|step| *step > 0).ok_or_else(invalid)?))
                }
                None => (part, None),
            };
            let (first, last) = match range.split_once('-') {
                _ if range == "*" => (from, if to == 7 { 6 } else { to }),
                Some((first, last)) => {
                    (self.number(first).ok_or_else(invalid)?, self.number(last).ok_or_else(invalid)?)
                }
                None => {
                    let first = self.number(range).ok_or_else(invalid)?;
                    (first, if step.is_some() { to } else { first })
                }
            };
            if first > last {
                return Err(invalid());
            }
            set |= (first..=last).step_by(step.unwrap_or(1) as usize).fold(0, |set, number| set | 1_u64 << number);
        }
        Ok(set)
    }

    fn number(&self, text: &str) -> Option<u32> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let number = match named {
            Some(index) => u32::try_from(index).ok()? + self.from,
            None => text.parse().ok()?,
        };
        (self.from..=self.to).contains(&number).then_some(number)
    }
}

impl Schedule {
    /// The first minute after `at` that is due.
    #[must_use]
    pub fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        let first = (at.0 / MINUTE + 1) * MINUTE;
        (0..=HORIZON_DAYS).find_map(|days| {
            let day = first / DAY + days;
            let from = if days == 0 { (first % DAY) / MINUTE } else { 0 };
            if !self.fits_day(day) {
                return None;
            }
            let fits = |minute: &u64| self.hours >> (minute / 60) & 1 == 1 && self.minutes >> (minute % 60) & 1 == 1;
            let minute = (from..DAY / MINUTE).find(fits)?;
            Some(Timestamp(day * DAY + minute * MINUTE))
        })
    }

    /// Whether a day fits, counted from 1 January 1970, a Thursday.
    fn fits_day(&self, day: u64) -> bool {
        let start = i64::try_from(day * DAY).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
        let Some(date) = start.map(|start| start.to_zoned(jiff::tz::TimeZone::UTC).date()) else { return false };
        let in_month = self.days >> date.day() & 1 == 1;
        let in_week = self.weekdays >> ((day + 4) % 7) & 1 == 1;
        let fits = if self.either_day { in_month || in_week } else { in_month && in_week };
        self.months >> date.month() & 1 == 1 && fits
    }
}

#[cfg(test)]
mod tests;
