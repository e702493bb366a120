//! Reading a manifest: one YAML document to a [`StreamJob`], refusing what it does not know, with the place.
//!
//! Callers can rely on: what is returned has the kind and version of a StreamJob, a legal name, and no field that
//! was silently dropped. Limits on values are [`crate::validate`]'s.

use crate::spec::{StreamJob, StreamJobSpec};
use crate::validate::{check_resources, validate_name};
use crate::{GROUP, VERSION};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a text is not a StreamJob. All are the user's to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not YAML, or not one document.
    #[error("the manifest is not one YAML document: {message}")]
    Syntax {
        /// The reader's words, with line and column.
        message: String,
    },
    /// Another kind or version.
    #[error("the manifest holds {found}, expected kind StreamJob of {GROUP}/{VERSION}")]
    WrongKind {
        /// What it says it is.
        found: String,
    },
    /// A field that does not exist.
    #[error("line {line}: {path} is not a field of a StreamJob; {hint}")]
    UnknownField {
        /// Its path.
        path: String,
        /// Its line, from 1.
        line: usize,
        /// The nearest known name, or the known names.
        hint: String,
    },
    /// A value of a wrong type or form, or a field that is missing.
    #[error("line {line}: {path}: {message}")]
    Invalid {
        /// The path of the value.
        path: String,
        /// Its line, from 1.
        line: usize,
        /// What was expected.
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    api_version: Option<String>,
    kind: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    #[serde(rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    metadata: ObjectMeta,
    spec: StreamJobSpec,
    #[serde(default, rename = "status")]
    _status: Option<IgnoredAny>,
}

/// Reads one StreamJob from the text of one YAML (or JSON) document.
///
/// # Errors
/// See [`ManifestError`]; each names the path and the line where there is one.
pub fn parse_manifest(text: &str) -> Result<StreamJob, ManifestError> {
    check_kind(text)?;
    let reader = serde_norway::Deserializer::from_str(text);
    let document: Document = serde_path_to_error::deserialize(reader).map_err(|error| explain(text, &error))?;
    check_kubernetes_types(text)?;
    let name = document.metadata.name.clone().unwrap_or_default();
    validate_name(&name).map_err(|problem| ManifestError::Invalid {
        line: line_of(text, "name", 1).unwrap_or(1),
        path: problem.field,
        message: problem.message,
    })?;
    let mut job = StreamJob::new(&name, document.spec);
    job.metadata = document.metadata;
    Ok(job)
}

/// Writes a Kubernetes object as YAML.
///
/// # Errors
/// The object's own serialisation fails.
pub fn to_yaml<T: Serialize>(object: &T) -> Result<String, serde_norway::Error> {
    // Through JSON, whose numbers and keys are what Kubernetes means by YAML.
    let mut value = serde_json::to_value(object).map_err(<serde_norway::Error as serde::ser::Error>::custom)?;
    write_whole_numbers(&mut value);
    serde_norway::to_string(&value)
}

/// Kubernetes' types hold limits as floating point: `1.0` is written `1`.
fn write_whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|n| number.is_f64() && n.fract() == 0.0 && n.abs() < 9e15);
            if let Some(whole) = whole {
                *value = Value::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(write_whole_numbers),
        _ => {}
    }
}

fn check_kind(text: &str) -> Result<(), ManifestError> {
    let syntax = |error: serde_norway::Error| ManifestError::Syntax { message: error.to_string() };
    let tree: serde_norway::Value = serde_norway::from_str(text).map_err(syntax)?;
    let Kind { api_version, kind } = serde_norway::from_value(tree)
        .map_err(|_| ManifestError::WrongKind { found: "no object with apiVersion and kind".to_owned() })?;
    let named = |value: Option<String>, what: &str| value.unwrap_or_else(|| format!("no {what}"));
    let (api_version, kind) = (named(api_version, "apiVersion"), named(kind, "kind"));
    if kind == "StreamJob" && api_version == format!("{GROUP}/{VERSION}") {
        return Ok(());
    }
    Err(ManifestError::WrongKind { found: format!("kind {kind} of {api_version}") })
}

/// Types of Kubernetes drop unknown fields without a word, so they are compared with what was written.
fn check_kubernetes_types(text: &str) -> Result<(), ManifestError> {
    let tree: Value =
        serde_norway::from_str(text).map_err(|error| ManifestError::Syntax { message: error.to_string() })?;
    for owner in ["jobManager", "taskManager"] {
        let Some(resources) = tree.pointer(&format!("/spec/{owner}/resources")) else { continue };
        if let Some(problem) = check_resources(&format!("spec.{owner}.resources"), resources) {
            let last = problem.field.rsplit('.').next().unwrap_or_default();
            let line = line_of(text, last, line_of(text, owner, 1).unwrap_or(1)).unwrap_or(1);
            return Err(ManifestError::Invalid { path: problem.field, line, message: problem.message });
        }
    }
    Ok(())
}

fn explain(text: &str, error: &serde_path_to_error::Error<serde_norway::Error>) -> ManifestError {
    let path = error.path().to_string();
    let start = error.inner().location().map_or(1, |location| location.line());
    let message = error.inner().to_string();
    if let Some((field, known)) = unknown_field(&message) {
        let path = match path.as_str() {
            "." => field.to_owned(),
            path if path == field || path.ends_with(&format!(".{field}")) => path.to_owned(),
            path => format!("{path}.{field}"),
        };
        let line = line_of(text, field, start).unwrap_or(start);
        return ManifestError::UnknownField { path, line, hint: hint(field, &known) };
    }
    let last = path.rsplit('.').next().unwrap_or_default().split('[').next().unwrap_or_default();
    let line = line_of(text, last, start).unwrap_or(start);
    ManifestError::Invalid { message: without_place(&message, &path), path, line }
}

/// Takes serde's message for an unknown field apart: the field, and the names that would do.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let at = message.find("unknown field `")?;
    let mut quoted = message[at..].split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

fn hint(field: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&field.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 2.max(name.len() / 3))
        .min_by_key(|(distance, _)| *distance);
    match near {
        Some((_, name)) => format!("did you mean {name}?"),
        None if known.is_empty() => "nothing can stand here; remove it".to_owned(),
        None => format!("expected one of {}", known.join(", ")),
    }
}

/// The reader puts path and line around its words; both are said separately.
fn without_place(message: &str, path: &str) -> String {
    let message = match message.split_once(": ") {
        Some((prefix, rest)) if path.starts_with(prefix) => rest,
        _ => message,
    };
    match message.rfind(" at line ") {
        Some(at) => message[..at].to_owned(),
        None => message.to_owned(),
    }
}

/// The first line from `start` (from 1) that has `key:`, outside of comments.
fn line_of(text: &str, key: &str, start: usize) -> Option<usize> {
    if key.is_empty() {
        return None;
    }
    let names = [format!("{key}:"), format!("\"{key}\":"), format!("'{key}':")];
    let is_name = |line: &str| {
        let code = line.split(" #").next().unwrap_or(line);
        names.iter().any(|name| {
            code.match_indices(name.as_str()).any(|(at, _)| {
                code[..at].chars().next_back().is_none_or(|before| before.is_whitespace() || "{,".contains(before))
            })
        })
    };
    text.lines().enumerate().skip(start.saturating_sub(1)).find(|(_, line)| is_name(line)).map(|(index, _)| index + 1)
}

#[cfg(test)]
mod tests;
