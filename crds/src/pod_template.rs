//! The strict reading of `podTemplate`, and what it may not touch ([`protected`]). The CRD leaves it open (a full PodTemplateSpec would make the CRD half a
//! megabyte), so what is unknown or of a wrong type is found here, with its path.

pub mod protected;

use crate::validate::Problem;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a `podTemplate`; `field` is its place in the manifest, for messages.
///
/// # Errors
/// A field that a PodTemplateSpec does not have, or a value of a wrong type, with its path.
pub fn decode_pod_template(field: &str, value: &Value) -> Result<PodTemplateSpec, Problem> {
    decode_strictly(field, value)
}

/// What is wrong with a `podTemplate` for pods whose main container is `main`: it cannot be read, or it touches what is
/// the controller's.
#[must_use]
pub fn validate_pod_template(field: &str, main: &str, value: &Value) -> Vec<Problem> {
    match decode_pod_template(field, value) {
        Ok(template) => protected::check(field, main, &template),
        Err(problem) => vec![problem],
    }
}

/// Reads a Kubernetes type, refusing fields that it does not have.
pub(crate) fn decode_strictly<T: DeserializeOwned + Serialize>(field: &str, value: &Value) -> Result<T, Problem> {
    let decoded: T = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { field.to_owned() } else { format!("{field}.{path}") };
        Problem { field: place, message: error.inner().to_string() }
    })?;
    let known = serde_json::to_value(&decoded)
        .map_err(|error| Problem { field: field.to_owned(), message: error.to_string() })?;
    match unknown_field(field, value, &known) {
        Some(place) => Err(Problem { field: place, message: "is not a field that Kubernetes knows here".to_owned() }),
        None => Ok(decoded),
    }
}

/// The first field of `given` that reading and writing lost. Empty values are lost rightly.
fn unknown_field(place: &str, given: &Value, known: &Value) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(name, value)| {
            let place = format!("{place}.{name}");
            match known.get(name) {
                Some(known) => unknown_field(&place, value, known),
                None if is_empty(value) => None,
                None => Some(place),
            }
        }),
        (Value::Array(given), Value::Array(known)) => given
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(index, (given, known))| unknown_field(&format!("{place}[{index}]"), given, known)),
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
