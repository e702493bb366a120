//! Functions over strings, with Flink's rules: positions begin with 1, characters are counted, not bytes.

use super::own::{Definition, Form, Kind, fine, rows, text_rows, texts, whole};
use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Int32Array, ListBuilder, StringBuilder};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use datafusion_common::{Result, exec_datafusion_err, plan_err};
use md5::Md5;
use regex::Regex;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

const fn form(parameters: &'static [Kind], result: Kind) -> Form {
    Form { parameters, result }
}

const TEXT_WHOLE: &[Kind] = &[Kind::Text, Kind::Whole];
const TEXT_TEXT: &[Kind] = &[Kind::Text, Kind::Text];
const TEXT_TEXT_TEXT: &[Kind] = &[Kind::Text, Kind::Text, Kind::Text];
const TEXT_TEXT_WHOLE: &[Kind] = &[Kind::Text, Kind::Text, Kind::Whole];
const TEXT_WHOLE_TEXT: &[Kind] = &[Kind::Text, Kind::Whole, Kind::Text];

/// All of them.
pub(super) static DEFINITIONS: &[Definition] = &[
    Definition {
        name: "substring",
        forms: &[form(TEXT_WHOLE, Kind::Text), form(&[Kind::Text, Kind::Whole, Kind::Whole], Kind::Text)],
        check: fine,
        evaluate: substring,
    },
    Definition {
        name: "substr",
        forms: &[form(TEXT_WHOLE, Kind::Text), form(&[Kind::Text, Kind::Whole, Kind::Whole], Kind::Text)],
        check: fine,
        evaluate: substring,
    },
    Definition { name: "left", forms: &[form(TEXT_WHOLE, Kind::Text)], check: fine, evaluate: left },
    Definition { name: "right", forms: &[form(TEXT_WHOLE, Kind::Text)], check: fine, evaluate: right },
    Definition {
        name: "locate",
        forms: &[form(TEXT_TEXT, Kind::Int), form(TEXT_TEXT_WHOLE, Kind::Int)],
        check: fine,
        evaluate: locate,
    },
    Definition {
        name: "overlay",
        forms: &[
            form(TEXT_TEXT_WHOLE, Kind::Text),
            form(&[Kind::Text, Kind::Text, Kind::Whole, Kind::Whole], Kind::Text),
        ],
        check: fine,
        evaluate: overlay,
    },
    Definition { name: "lpad", forms: &[form(TEXT_WHOLE_TEXT, Kind::Text)], check: fine, evaluate: lpad },
    Definition { name: "rpad", forms: &[form(TEXT_WHOLE_TEXT, Kind::Text)], check: fine, evaluate: rpad },
    Definition { name: "split_index", forms: &[form(TEXT_TEXT_WHOLE, Kind::Text)], check: fine, evaluate: split_index },
    Definition { name: "split", forms: &[form(TEXT_TEXT, Kind::Texts)], check: fine, evaluate: split },
    Definition { name: "regexp", forms: &[form(TEXT_TEXT, Kind::Boolean)], check: check_expression, evaluate: regexp },
    Definition {
        name: "regexp_extract",
        forms: &[form(TEXT_TEXT, Kind::Text), form(TEXT_TEXT_WHOLE, Kind::Text)],
        check: check_expression,
        evaluate: regexp_extract,
    },
    Definition {
        name: "regexp_replace",
        forms: &[form(TEXT_TEXT_TEXT, Kind::Text)],
        check: check_expression,
        evaluate: regexp_replace,
    },
    Definition { name: "md5", forms: HASHED, check: fine, evaluate: |columns| hash::<Md5>(columns) },
    Definition { name: "sha224", forms: HASHED, check: fine, evaluate: |columns| hash::<Sha224>(columns) },
    Definition { name: "sha256", forms: HASHED, check: fine, evaluate: |columns| hash::<Sha256>(columns) },
    Definition { name: "sha384", forms: HASHED, check: fine, evaluate: |columns| hash::<Sha384>(columns) },
    Definition { name: "sha512", forms: HASHED, check: fine, evaluate: |columns| hash::<Sha512>(columns) },
    Definition { name: "to_base64", forms: HASHED, check: fine, evaluate: to_base64 },
    Definition { name: "from_base64", forms: &[form(&[Kind::Text], Kind::Text)], check: fine, evaluate: from_base64 },
];

const HASHED: &[Form] = &[form(&[Kind::Bytes], Kind::Text)];

fn substring(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let text = texts(&columns[0]);
    text_rows(columns, |row| {
        let length = columns.get(2).map_or(i64::MAX, |lengths| whole(lengths, row));
        part(text.value(row), whole(&columns[1], row), length)
    })
}

/// From a position on, counted from 1, or from the end when it is negative; NULL for a negative length.
fn part(text: &str, position: i64, length: i64) -> Option<String> {
    let length = usize::try_from(length).ok()?;
    let distance = usize::try_from(position.unsigned_abs()).unwrap_or(usize::MAX);
    let start = match position {
        1.. => distance - 1,
        0 => 0,
        _ => match text.chars().count().checked_sub(distance) {
            Some(start) => start,
            None => return Some(String::new()),
        },
    };
    Some(text.chars().skip(start).take(length).collect())
}

fn left(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let text = texts(&columns[0]);
    text_rows(columns, |row| {
        let length = usize::try_from(whole(&columns[1], row)).unwrap_or(0);
        Some(text.value(row).chars().take(length).collect())
    })
}

fn right(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let text = texts(&columns[0]);
    text_rows(columns, |row| {
        let length = usize::try_from(whole(&columns[1], row)).unwrap_or(0);
        let all = text.value(row).chars().count();
        Some(text.value(row).chars().skip(all.saturating_sub(length)).collect())
    })
}

/// The position of the first text in the second from a position on; 0 when it is not there.
fn locate(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (wanted, text) = (texts(&columns[0]), texts(&columns[1]));
    let found = rows(columns, |row| {
        let from = columns.get(2).map_or(1, |positions| whole(positions, row));
        Some(position(wanted.value(row), text.value(row), from))
    });
    Ok(Arc::new(found.collect::<Int32Array>()))
}

fn position(wanted: &str, text: &str, from: i64) -> i32 {
    let Some(skipped) = from.checked_sub(1).and_then(|skipped| usize::try_from(skipped).ok()) else { return 0 };
    let Some(start) = text.char_indices().map(|(index, _)| index).chain([text.len()]).nth(skipped) else { return 0 };
    match text[start..].find(wanted) {
        Some(found) => i32::try_from(skipped + text[start..start + found].chars().count() + 1).unwrap_or(i32::MAX),
        None => 0,
    }
}

/// Puts a text over a part of another, which is left as it is when the position is outside.
fn overlay(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (text, other) = (texts(&columns[0]), texts(&columns[1]));
    text_rows(columns, |row| {
        let (text, other) = (text.value(row), other.value(row));
        let all = text.chars().count();
        let Some(start) = usize::try_from(whole(&columns[2], row)).ok().filter(|start| (1..=all).contains(start))
        else {
            return Some(text.to_owned());
        };
        let given = columns.get(3).map(|lengths| whole(lengths, row));
        let length = given.map_or(other.chars().count(), |length| usize::try_from(length).unwrap_or(0));
        let mut made: String = text.chars().take(start - 1).chain(other.chars()).collect();
        if length > 0 {
            made.extend(text.chars().skip(start - 1 + length));
        }
        Some(made)
    })
}

fn lpad(columns: &[ArrayRef]) -> Result<ArrayRef> {
    pad(columns, |text, filling| filling + text)
}

fn rpad(columns: &[ArrayRef]) -> Result<ArrayRef> {
    pad(columns, |text, filling| text.to_owned() + &filling)
}

/// The most characters that LPAD and RPAD make of a row, so that a mistaken length does not exhaust the memory.
const LONGEST: usize = 1 << 24;

fn pad(columns: &[ArrayRef], put: fn(&str, String) -> String) -> Result<ArrayRef> {
    let (text, with) = (texts(&columns[0]), texts(&columns[2]));
    text_rows(columns, |row| {
        let length = usize::try_from(whole(&columns[1], row)).ok().filter(|length| *length <= LONGEST)?;
        let (text, with) = (text.value(row), with.value(row));
        if with.is_empty() {
            return None;
        }
        let kept: String = text.chars().take(length).collect();
        let missing = length - kept.chars().count();
        Some(put(&kept, with.chars().cycle().take(missing).collect()))
    })
}

/// The part at an index, counted from 0; NULL when there is none.
fn split_index(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (text, separator) = (texts(&columns[0]), texts(&columns[1]));
    text_rows(columns, |row| {
        let index = usize::try_from(whole(&columns[2], row)).ok()?;
        let (text, separator) = (text.value(row), separator.value(row));
        if text.is_empty() {
            return None;
        }
        if separator.is_empty() {
            return text.split(char::is_whitespace).nth(index).map(str::to_owned);
        }
        text.split(separator).nth(index).map(str::to_owned)
    })
}

/// All parts; every character when the separator is empty.
fn split(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (text, separator) = (texts(&columns[0]), texts(&columns[1]));
    let mut lists = ListBuilder::new(StringBuilder::new());
    for row in 0..text.len() {
        if text.is_null(row) || separator.is_null(row) {
            lists.append_null();
            continue;
        }
        if separator.value(row).is_empty() {
            let characters = text.value(row).chars();
            characters.for_each(|character| lists.values().append_value(character.encode_utf8(&mut [0; 4])));
        } else {
            text.value(row).split(separator.value(row)).for_each(|part| lists.values().append_value(part));
        }
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}

/// A regular expression that is given as a constant must be one.
fn check_expression(constants: &[Option<&str>]) -> Result<()> {
    match constants.get(1).copied().flatten().map(Regex::new) {
        Some(Err(error)) => {
            let reason = error.to_string();
            plan_err!("not a regular expression: {}", reason.lines().last().unwrap_or_default())
        }
        _ => Ok(()),
    }
}

/// Regular expressions of one batch, each compiled once.
#[derive(Default)]
struct Expressions(HashMap<String, Regex>);

impl Expressions {
    fn compile_all(columns: &[ArrayRef]) -> Result<Self> {
        let mut compiled = Self::default();
        for expression in texts(&columns[1]).iter().flatten() {
            if !compiled.0.contains_key(expression) {
                let regex = Regex::new(expression)
                    .map_err(|_| exec_datafusion_err!("'{expression}' is not a regular expression"))?;
                compiled.0.insert(expression.to_owned(), regex);
            }
        }
        Ok(compiled)
    }

    fn get(&self, expression: &str) -> Option<&Regex> {
        self.0.get(expression)
    }
}

fn regexp(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let compiled = Expressions::compile_all(columns)?;
    let (text, expression) = (texts(&columns[0]), texts(&columns[1]));
    let matches = rows(columns, |row| Some(compiled.get(expression.value(row))?.is_match(text.value(row))));
    Ok(Arc::new(matches.collect::<BooleanArray>()))
}

/// A group of the first match, 0 for all of it; NULL when nothing matches or there is no such group.
fn regexp_extract(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let compiled = Expressions::compile_all(columns)?;
    let (text, expression) = (texts(&columns[0]), texts(&columns[1]));
    text_rows(columns, |row| {
        let group = columns.get(2).map_or(0, |groups| whole(groups, row));
        let captures = compiled.get(expression.value(row))?.captures(text.value(row))?;
        captures.get(usize::try_from(group).ok()?).map(|found| found.as_str().to_owned())
    })
}

/// All matches replaced; the replacement stands for itself.
fn regexp_replace(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let compiled = Expressions::compile_all(columns)?;
    let (text, expression, with) = (texts(&columns[0]), texts(&columns[1]), texts(&columns[2]));
    text_rows(columns, |row| {
        let regex = compiled.get(expression.value(row))?;
        Some(regex.replace_all(text.value(row), regex::NoExpand(with.value(row))).into_owned())
    })
}

fn hash<H: Digest>(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let bytes: &BinaryArray = columns[0].as_binary();
    text_rows(columns, |row| {
        let mut text = String::new();
        for byte in H::digest(bytes.value(row)).as_slice() {
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    })
}

fn to_base64(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let bytes: &BinaryArray = columns[0].as_binary();
    text_rows(columns, |row| Some(STANDARD.encode(bytes.value(row))))
}

/// NULL for what is no base64 of a text.
fn from_base64(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let text = texts(&columns[0]);
    text_rows(columns, |row| String::from_utf8(STANDARD.decode(text.value(row)).ok()?).ok())
}
