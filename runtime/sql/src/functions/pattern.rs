//! Patterns of dates and times as Java writes them: `yyyy-MM-dd HH:mm:ss.SSS`, `dd.MM.yy`, `EEE, d MMM`, `hh:mm a`.
//!
//! One list of items both formats and parses. A letter that is not known is refused, never copied.

use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, Timelike};
use std::fmt::Write as _;

/// A pattern, ready to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Item>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Text(String),
    /// A letter and how often it stands there.
    Field(char, usize),
}

/// What was parsed so far.
struct Parsed {
    year: i32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
    nanosecond: u32,
    half: Option<u32>,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

impl Pattern {
    /// Reads a pattern; the error names what is not supported.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let mut items = Vec::new();
        let mut rest = text.chars().peekable();
        while let Some(letter) = rest.next() {
            if letter == '\'' {
                let quoted: String = std::iter::from_fn(|| rest.next_if(|c| *c != '\'')).collect();
                if rest.next().is_none() {
                    return Err(format!("the pattern '{text}' has a quote without an end"));
                }
                items.push(Item::Text(if quoted.is_empty() { "'".to_owned() } else { quoted }));
            } else if letter.is_ascii_alphabetic() {
                let mut count = 1;
                while rest.next_if_eq(&letter).is_some() {
                    count += 1;
                }
                if !matches!(
                    (letter, count),
                    ('y' | 'u', 1 | 2 | 4)
                        | ('M' | 'E', 1..=4)
                        | ('d' | 'H' | 'h' | 'm' | 's', 1..=2)
                        | ('S', 1..=9)
                        | ('a', 1)
                        | ('D', 1..=3)
                ) {
                    let field = letter.to_string().repeat(count);
                    return Err(format!("the pattern '{text}' has '{field}', which is not supported"));
                }
                items.push(Item::Field(letter, count));
            } else {
                items.push(Item::Text(letter.to_string()));
            }
        }
        Ok(Self(items))
    }

    /// Writes a time.
    pub(super) fn format(&self, time: &NaiveDateTime) -> String {
        let mut text = String::new();
        for item in &self.0 {
            match item {
                Item::Text(literal) => text.push_str(literal),
                Item::Field(letter, count) => field(&mut text, time, *letter, *count),
            }
        }
        text
    }

    /// Reads a time; what the pattern does not have is 1970-01-01 00:00:00.
    pub(super) fn parse(&self, text: &str) -> Option<NaiveDateTime> {
        let mut parsed =
            Parsed { year: 1970, month: 1, day: 1, hour: 0, minute: 0, second: 0, nanosecond: 0, half: None };
        let mut rest = text;
        for (index, item) in self.0.iter().enumerate() {
            match item {
                Item::Text(literal) => rest = rest.strip_prefix(literal.as_str())?,
                Item::Field(letter, count) => {
                    let is_followed = matches!(self.0.get(index + 1), Some(Item::Field(..)));
                    rest = parsed.field(rest, *letter, *count, is_followed)?;
                }
            }
        }
        if rest.is_empty() { parsed.finish() } else { None }
    }
}

fn field(text: &mut String, time: &NaiveDateTime, letter: char, count: usize) {
    let number = match letter {
        'y' | 'u' if count == 2 => time.year().rem_euclid(100).unsigned_abs(),
        'y' | 'u' => time.year().unsigned_abs(),
        'M' if count >= 3 => return text.push_str(name(&MONTHS, time.month0(), count)),
        'E' => return text.push_str(name(&DAYS, time.weekday().num_days_from_monday(), count)),
        'M' => time.month(),
        'd' => time.day(),
        'D' => time.ordinal(),
        'H' => time.hour(),
        'h' => time.hour12().1,
        'm' => time.minute(),
        's' => time.second(),
        'a' => return text.push_str(if time.hour() < 12 { "AM" } else { "PM" }),
        _ => {
            let digits = format!("{:09}", time.nanosecond());
            return text.push_str(&digits[..count]);
        }
    };
    let _ = write!(text, "{number:0count$}");
}

fn name<'a>(names: &[&'a str], index: u32, count: usize) -> &'a str {
    let name = names.get(index as usize).copied().unwrap_or_default();
    if count >= 4 { name } else { name.get(..3).unwrap_or(name) }
}

impl Parsed {
    /// Takes a field from the front; returns what is left.
    fn field<'a>(&mut self, text: &'a str, letter: char, count: usize, is_followed: bool) -> Option<&'a str> {
        match letter {
            'M' if count >= 3 => {
                let (index, rest) = take_name(text, &MONTHS, count)?;
                self.month = index + 1;
                return Some(rest);
            }
            'E' => return take_name(text, &DAYS, count).map(|(_, rest)| rest),
            'a' => {
                let half = text.get(..2)?.to_uppercase();
                self.half = Some(["AM", "PM"].iter().position(|known| *known == half)? as u32);
                return text.get(2..);
            }
            _ => {}
        }
        let most = match letter {
            'y' | 'u' if count == 2 => 2,
            'y' | 'u' => 4,
            'S' => count,
            'D' => 3,
            _ => 2,
        };
        let most = if is_followed { count } else { most };
        let least = if matches!(letter, 'S') || count == 1 { 1 } else { count };
        let length = text.bytes().take(most).take_while(u8::is_ascii_digit).count();
        let (digits, rest) = text.split_at_checked(length).filter(|_| length >= least)?;
        let number: u32 = digits.parse().ok()?;
        match letter {
            'y' | 'u' if count == 2 => self.year = 2000 + i32::try_from(number).ok()?,
            'y' | 'u' => self.year = i32::try_from(number).ok()?,
            'M' => self.month = number,
            'd' => self.day = number,
            'H' | 'h' => self.hour = number,
            'm' => self.minute = number,
            's' => self.second = number,
            'S' => self.nanosecond = number * 10_u32.pow(9 - u32::try_from(length).ok()?),
            _ => return None,
        }
        Some(rest)
    }

    fn finish(self) -> Option<NaiveDateTime> {
        let hour = match self.half {
            Some(half) if (1..=12).contains(&self.hour) => self.hour % 12 + 12 * half,
            Some(_) => return None,
            None => self.hour,
        };
        let date = NaiveDate::from_ymd_opt(self.year, self.month, self.day)?;
        Some(date.and_time(NaiveTime::from_hms_nano_opt(hour, self.minute, self.second, self.nanosecond)?))
    }
}

fn take_name<'a>(text: &'a str, names: &[&str], count: usize) -> Option<(u32, &'a str)> {
    let index = names.iter().position(|known| {
        let known = if count >= 4 { known } else { &known[..3] };
        text.get(..known.len()).is_some_and(|start| start.eq_ignore_ascii_case(known))
    })?;
    let length = if count >= 4 { names[index].len() } else { 3 };
    Some((u32::try_from(index).ok()?, &text[length..]))
}

/// `yyyy-MM-dd`, with `HH:mm`, `:ss` and a fraction if there are any.
pub(super) fn parse_standard(text: &str) -> Option<NaiveDateTime> {
    let text = text.trim();
    let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
    let date = NaiveDate::parse_from_str(date, "%Y-%m-%d").ok()?;
    let time = ["%H:%M:%S%.f", "%H:%M"].iter().find_map(|format| NaiveTime::parse_from_str(time, format).ok())?;
    Some(date.and_time(time))
}

#[cfg(test)]
mod tests {
    use super::{Pattern, parse_standard};

    #[test]
    fn what_is_formatted_is_parsed_back() {
        let time = parse_standard("2024-03-05 17:08:09.123456").unwrap();
        for (pattern, text) in [
            ("yyyy-MM-dd HH:mm:ss.SSSSSS", "2024-03-05 17:08:09.123456"),
            ("d.M.yy", "5.3.24"),
            ("yyyyMMddHHmmss", "20240305170809"),
            ("EEE, d MMMM yyyy hh:mm a", "Tue, 5 March 2024 05:08 PM"),
            ("yyyy-MM-dd'T'HH''mm", "2024-03-05T17'08"),
        ] {
            let pattern = Pattern::new(pattern).unwrap();
            assert_eq!(pattern.format(&time), text);
            let back = pattern.parse(text).unwrap_or_else(|| panic!("{text} is not parsed"));
            assert_eq!(pattern.format(&back), text);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let pattern = Pattern::new("yyyy-MM-dd").unwrap();
        for text in ["2024-13-01", "2024-02-30", "2024-1-01", "2024-01-01 ", "x", "", "+024-01-01"] {
            assert_eq!(pattern.parse(text), None, "{text}");
        }
        assert!(Pattern::new("yyyy-MM-dd XXX").unwrap_err().contains("'XXX'"));
        assert!(Pattern::new("yyyy 'of").is_err());
        assert_eq!(parse_standard("2024-02-30"), None);
    }
}
