//! Reading the options of a table: known names, required ones, values.
//!
//! Every error names the option and its value, says what is allowed, and what to do. Values of options whose names
//! speak of secrets are never part of a message ([`shown`]).

use crate::{format, secrets};
use sluice_engine::table::{DEAD_LETTER, TableDescriptor, TableError};
use std::str::FromStr;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The option that every table has.
pub(crate) const CONNECTOR: &str = "connector";

/// What a connector knows of option names.
pub(crate) struct Known<'a> {
    /// Options that are read. `#` stands for a column's name: `fields.#.kind`.
    pub(crate) names: &'a [&'a str],
    /// What options of formats begin with: nothing, `value.`, `key.`; empty where a connector has no formats.
    pub(crate) formats: &'a [&'a str],
    /// Whether `properties.*` is passed on to a client.
    pub(crate) properties: bool,
    /// Options that Flink has and Sluice has not, each with what to do instead.
    pub(crate) refused: &'a [(&'a str, &'a str)],
}

/// The options of one table, all of them known.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a> {
    table: &'a TableDescriptor,
}

impl<'a> Options<'a> {
    /// Refuses unknown options, those that are not offered, and repeated ones.
    pub(crate) fn new(table: &'a TableDescriptor, known: &Known<'_>) -> Result<Self, TableError> {
        for (position, option) in table.options.iter().enumerate() {
            let key = option.key.as_str();
            if table.options[..position].iter().any(|earlier| earlier.key == key) {
                return Err(error(table, Some(key), format!("the option '{key}' is given twice; keep one of them")));
            }
            if let Some((_, reason)) = known.refused.iter().find(|(name, _)| *name == key) {
                return Err(error(table, Some(key), format!("the option '{key}' is not supported: {reason}")));
            }
            secrets::check(table, option)?;
            if !is_known(table, known, key)? {
                return Err(unknown(table, known, key));
            }
        }
        Ok(Self { table })
    }

    /// The table.
    pub(crate) const fn table(&self) -> &'a TableDescriptor {
        self.table
    }

    /// The value as written.
    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        self.table.option(key)
    }

    /// The value of an option that must be there; `purpose` says what for.
    pub(crate) fn required(&self, key: &str, purpose: &str) -> Result<&'a str, TableError> {
        match self.text(key).map(str::trim) {
            None => Err(self.error(key, format!("the option '{key}' is missing; it says {purpose}"))),
            Some("") => Err(self.error(key, format!("the option '{key}' is empty; it says {purpose}"))),
            Some(value) => Ok(value),
        }
    }

    /// Refuses what says nothing of a table that is written to.
    pub(crate) fn check_written(&self) -> Result<(), TableError> {
        match self.text(DEAD_LETTER) {
            None => Ok(()),
            Some(_) => Err(self.error(
                DEAD_LETTER,
                "the option 'dead-letter' is for tables that are read; remove it, and declare a table of its own for \
                 reading what is written here",
            )),
        }
    }

    /// A number or whatever else reads itself from text.
    pub(crate) fn parse<T: FromStr>(&self, key: &str, allowed: &str) -> Result<Option<T>, TableError> {
        self.text(key).map(|value| value.trim().parse().map_err(|_| self.wrong(key, value, allowed))).transpose()
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>, TableError> {
        self.choice(key, &[("true", true), ("false", false)])
    }

    /// One of several words.
    pub(crate) fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>, TableError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(value.trim())) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                Err(self.wrong(key, value, &format!("one of {}", list(&names))))
            }
        }
    }

    /// A span of time: `500 ms`, `10s`, `5 min`, `1 h`.
    pub(crate) fn duration(&self, key: &str) -> Result<Option<Duration>, TableError> {
        self.text(key)
            .map(|value| {
                duration(value)
                    .ok_or_else(|| self.wrong(key, value, "a number and a unit, such as 500 ms, 10 s, 5 min or 1 h"))
            })
            .transpose()
    }

    /// An error about an option.
    pub(crate) fn error(&self, key: &str, message: impl Into<String>) -> TableError {
        error(self.table, Some(key), message)
    }

    /// An error about an option's value.
    pub(crate) fn wrong(&self, key: &str, value: &str, allowed: &str) -> TableError {
        self.error(key, format!("the option '{key}' is {}, but it must be {allowed}", shown(key, value)))
    }
}

fn is_known(table: &TableDescriptor, known: &Known<'_>, key: &str) -> Result<bool, TableError> {
    if key == CONNECTOR || known.names.contains(&key) || (known.properties && key.starts_with("properties.")) {
        return Ok(true);
    }
    if key == DEAD_LETTER && !known.formats.is_empty() {
        return Ok(true);
    }
    let of_format = |prefix: &&str| key.strip_prefix(*prefix).is_some_and(|bare| format::OPTIONS.contains(&bare));
    if known.formats.iter().any(of_format) {
        return Ok(true);
    }
    let Some((prefix, column, suffix)) = split_column(key) else { return Ok(false) };
    let pattern = format!("{prefix}.#.{suffix}");
    if !known.names.contains(&pattern.as_str()) {
        return Ok(false);
    }
    if table.schema.field_with_name(column).is_ok() {
        return Ok(true);
    }
    let columns: Vec<&str> = table.schema.fields().iter().map(|field| field.name().as_str()).collect();
    let hint = nearest(column, columns.iter().copied()).map(|near| format!(" Did you mean '{near}'?"));
    Err(error(
        table,
        Some(key),
        format!(
            "the option '{key}' speaks of a column '{column}' that the table does not have.{} The columns are {}",
            hint.unwrap_or_default(),
            list(&columns)
        ),
    ))
}

/// `fields.a.b.kind` as (`fields`, `a.b`, `kind`).
fn split_column(key: &str) -> Option<(&str, &str, &str)> {
    let (prefix, rest) = key.split_once('.')?;
    let (column, suffix) = rest.rsplit_once('.')?;
    Some((prefix, column, suffix))
}

fn unknown(table: &TableDescriptor, known: &Known<'_>, key: &str) -> TableError {
    let mut names: Vec<&str> = known.names.to_vec();
    names.push(CONNECTOR);
    let of_formats =
        known.formats.iter().flat_map(|prefix| format::OPTIONS.iter().map(move |option| format!("{prefix}{option}")));
    let of_formats: Vec<String> = of_formats.collect();
    names.extend(of_formats.iter().map(String::as_str));
    names.extend((!known.formats.is_empty()).then_some(DEAD_LETTER));
    if known.properties {
        names.push("properties.*");
    }
    names.sort_unstable();
    let hint = nearest(key, names.iter().copied()).map(|near| format!("; did you mean '{near}'?"));
    let hint = hint.unwrap_or_else(|| ".".to_owned());
    let connector = table.option(CONNECTOR).unwrap_or_default();
    error(
        table,
        Some(key),
        format!("connector '{connector}' has no option '{key}'{hint} Its options are {}", list(&names)),
    )
}

/// An error about a table, and about one of its options when `key` is given.
pub(crate) fn error(table: &TableDescriptor, key: Option<&str>, message: impl Into<String>) -> TableError {
    TableError { table: table.name.clone(), option: key.map(str::to_owned), message: message.into() }
}

/// Names in quotes, with commas between.
pub(crate) fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

/// The name most like a mistyped one, when one is like it at all.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&lower, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}

/// A value as it may stand in a message: quoted, or left out when the option's name speaks of a secret.
pub(crate) fn shown(key: &str, value: &str) -> String {
    if is_secret(key) { "set to a value that is not shown here".to_owned() } else { format!("'{value}'") }
}

/// Whether the option's value must never be printed.
pub(crate) fn is_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    ["password", "secret", "jaas", "token", "credential", "ssl.key.pem", "ssl.keystore.key", "oauthbearer.config"]
        .iter()
        .any(|word| key.contains(word))
}

/// A span of time as Flink writes it: a number, perhaps a space, a unit.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim().to_lowercase().as_str() {
        "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1000,
        "m" | "min" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit).map(Duration::from_millis)
}
