//! JSON_VALUE and JSON_EXISTS, with paths of keys and positions: `$.a.b[0]`, `$['a b']`.
//!
//! What is no JSON, or not there, or no scalar, gives NULL, as Flink's defaults `NULL ON EMPTY NULL ON ERROR`.

use super::own::{Definition, Form, Kind, rows, text_rows, texts};
use arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion_common::{Result, exec_datafusion_err, plan_err};
use serde_json::Value;
use std::sync::Arc;

/// All of them.
pub(super) static DEFINITIONS: &[Definition] = &[
    Definition {
        name: "json_value",
        forms: &[Form { parameters: &[Kind::Text, Kind::Text], result: Kind::Text }],
        check: check_path,
        evaluate: json_value,
    },
    Definition {
        name: "json_exists",
        forms: &[Form { parameters: &[Kind::Text, Kind::Text], result: Kind::Boolean }],
        check: check_path,
        evaluate: json_exists,
    },
];

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Position(usize),
}

fn check_path(constants: &[Option<&str>]) -> Result<()> {
    match constants.get(1).copied().flatten() {
        Some(text) if path(text).is_none() => {
            plan_err!("'{text}' is not supported as a JSON path: write keys and positions, such as '$.a.b[0]'")
        }
        _ => Ok(()),
    }
}

/// `$.key`, `$['key']`, `$[0]` and what they lead to; `lax` before it is what is done.
fn path(text: &str) -> Option<Vec<Step>> {
    let text = text.trim();
    let text = text.strip_prefix("lax ").unwrap_or(text).trim_start();
    let mut rest = text.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let key = &after[..end];
            let is_plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
            steps.push(is_plain.then(|| Step::Key(key.to_owned()))?);
            rest = &after[end..];
        } else {
            let after = rest.strip_prefix('[')?;
            let end = after.find(']')?;
            let inner = after[..end].trim();
            let quoted = inner.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\''));
            let quoted = quoted.or_else(|| inner.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')));
            steps.push(match quoted {
                Some(key) => Step::Key(key.to_owned()),
                None => Step::Position(inner.parse().ok()?),
            });
            rest = &after[end + 1..];
        }
    }
    Some(steps)
}

fn find<'a>(value: &'a Value, steps: &[Step]) -> Option<&'a Value> {
    steps.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Position(position) => value.get(position),
    })
}

/// The paths of a batch: mostly one.
fn paths(columns: &[ArrayRef]) -> Result<Vec<Option<Vec<Step>>>> {
    let texts = texts(&columns[1]);
    let mut last: Option<(&str, Vec<Step>)> = None;
    let of_row = |row: usize| {
        if texts.is_null(row) {
            return Ok(None);
        }
        let text = texts.value(row);
        match &last {
            Some((known, steps)) if *known == text => Ok(Some(steps.clone())),
            _ => {
                let steps = path(text).ok_or_else(|| exec_datafusion_err!("'{text}' is not a JSON path"))?;
                last = Some((text, steps.clone()));
                Ok(Some(steps))
            }
        }
    };
    (0..texts.len()).map(of_row).collect()
}

fn json_value(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (documents, paths) = (texts(&columns[0]), paths(columns)?);
    text_rows(columns, |row| {
        let document: Value = serde_json::from_str(documents.value(row)).ok()?;
        match find(&document, paths[row].as_ref()?)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    })
}

fn json_exists(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (documents, paths) = (texts(&columns[0]), paths(columns)?);
    let found = rows(columns, |row| {
        let document: Value = match serde_json::from_str(documents.value(row)) {
            Ok(document) => document,
            Err(_) => return Some(false),
        };
        Some(find(&document, paths[row].as_ref()?).is_some())
    });
    Ok(Arc::new(found.collect::<BooleanArray>()))
}

#[cfg(test)]
mod tests {
    use super::{Step, path};

    #[test]
    fn paths_of_keys_and_positions() {
        let key = |key: &str| Step::Key(key.to_owned());
        assert_eq!(path("$"), Some(vec![]));
        assert_eq!(path("$.a[0].b"), Some(vec![key("a"), Step::Position(0), key("b")]));
        assert_eq!(path("lax $['a b'][\"c\"]"), Some(vec![key("a b"), key("c")]));
        for wrong in ["", "a", "$.", "$..a", "$.*", "$[*]", "$[-1]", "$.a[", "strict $.a"] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }
}
