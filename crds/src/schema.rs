//! The CustomResourceDefinitions as they are installed: the derived schemas, made fit for the API server, with the
//! rules that it can check itself.
//!
//! Derived schemas say types and fields. What is added here: ranges, exclusive options (CEL), number formats that
//! Kubernetes knows, and short descriptions where the derived ones would be larger than all the rest.

mod rules;
mod savepoint;

use crate::savepoint::Savepoint;
use crate::spec::StreamJob;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use serde_json::{Value, json};
use sluice_protocol::restart::WINDOW_LIMIT;

/// Every CustomResourceDefinition of Sluice.
///
/// # Panics
/// Never for the types of this crate; the test that compares with the checked-in files runs this code.
#[must_use]
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    vec![adjusted(&StreamJob::crd(), &stream_job()), adjusted(&Savepoint::crd(), &savepoint::adjustments())]
}

/// What is added to a derived schema. Places are paths of property names.
struct Adjustments {
    /// Whole schemas of places; the description is kept.
    replacements: Vec<(&'static str, Value)>,
    /// Keywords that replace or complete the derived ones.
    keywords: Vec<(&'static str, Value)>,
    /// What the API server checks by itself.
    rules: &'static [Rule],
    /// What rules look at with `has`: it must not be null.
    not_null: &'static [&'static str],
    /// The scale subresource, where there is one.
    scale: Option<Value>,
}

fn stream_job() -> Adjustments {
    Adjustments {
        replacements: replacements(),
        keywords: keywords(),
        rules: rules::STREAM_JOB,
        not_null: rules::NOT_NULL,
        scale: Some(scale()),
    }
}

fn adjusted(derived: &CustomResourceDefinition, adjustments: &Adjustments) -> CustomResourceDefinition {
    let mut crd = serde_json::to_value(derived).unwrap_or_default();
    if let Some(schema) = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        adjust(schema, adjustments);
    }
    let subresources = crd.pointer_mut("/spec/versions/0/subresources").and_then(Value::as_object_mut);
    if let (Some(subresources), Some(scale)) = (subresources, &adjustments.scale) {
        subresources.insert("scale".to_owned(), scale.clone());
    }
    #[expect(clippy::expect_used, reason = "the value was a CustomResourceDefinition and keeps its shape")]
    serde_json::from_value(crd).expect("an adjusted CRD is a CRD")
}

/// `kubectl scale` and autoscalers set the parallelism; they count TaskManager pods.
fn scale() -> Value {
    json!({
        "specReplicasPath": ".spec.parallelism",
        "statusReplicasPath": ".status.parallelism",
        "labelSelectorPath": ".status.selector",
    })
}

/// A CEL rule at a place in the schema; the place is a path of property names.
struct Rule {
    at: &'static str,
    rule: &'static str,
    message: &'static str,
}

/// Keywords that replace or complete the derived ones at a place.
fn keywords() -> Vec<(&'static str, Value)> {
    let storage = "^(JobManager|file:///.+|s3://[^/]+(/.*)?)$";
    vec![
        ("spec/parallelism", json!({"minimum": 1, "maximum": 32768})),
        ("spec/maxParallelism", json!({"minimum": 1, "maximum": 32768})),
        ("spec/program/sql", json!({"minLength": 1})),
        ("spec/checkpointing/maxConcurrent", json!({"minimum": 1})),
        ("spec/checkpointing/retained", json!({"minimum": 1, "maximum": sluice_protocol::ledger::MAX_RETAINED})),
        ("spec/checkpointing/storage", json!({"pattern": storage})),
        ("spec/checkpointing/savepointStorage", json!({"pattern": "^(file:///.+|s3://[^/]+(/.*)?)$"})),
        ("spec/checkpointing/storageOptions/endpoint", json!({"pattern": "^https?://.+"})),
        ("spec/restartStrategy/failureRate/maxFailures", json!({"minimum": 1, "maximum": WINDOW_LIMIT - 1})),
        ("spec/restartStrategy/exponentialDelay/attempts", json!({"maximum": WINDOW_LIMIT - 1})),
        ("spec/restartStrategy/exponentialDelay/multiplier", json!({"minimum": 1})),
        ("spec/restartStrategy/exponentialDelay/jitter", json!({"maximum": 1})),
        ("spec/restore/from", json!({"pattern": "^(file:///.+|s3://[^/]+/.+)$"})),
        ("spec/restore/abandonSinks", json!({"maxItems": 64})),
        ("spec/savepoints/directory", json!({"pattern": "^(file:///.+|s3://[^/]+(/.*)?)$"})),
        ("spec/savepoints/historyLimit/count", json!({"minimum": 1, "maximum": 1000})),
        ("spec/taskManager/slots", json!({"minimum": 1, "maximum": 32768})),
    ]
}

/// Places whose whole schema is replaced, keeping the description.
fn replacements() -> Vec<(&'static str, Value)> {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let tolerable = json!({"x-kubernetes-int-or-string": true, "default": 0});
    vec![
        ("spec/checkpointing/tolerableFailures", tolerable),
        ("spec/restartStrategy/none", json!({"type": "object"})),
        ("spec/jobManager/podTemplate", open.clone()),
        ("spec/taskManager/podTemplate", open.clone()),
        ("spec/jobManager/resources", resources()),
        ("spec/taskManager/resources", resources()),
        ("status/directive", open),
    ]
}

/// `ResourceRequirements` in the form that Kubernetes publishes, without the page-long text on quantities.
fn resources() -> Value {
    let quantity = json!({
        "x-kubernetes-int-or-string": true,
        "pattern": "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$",
        "anyOf": [{"type": "integer"}, {"type": "string"}],
    });
    let quantities = json!({"type": "object", "additionalProperties": quantity});
    let claim = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Of an entry of the pod's resourceClaims."},
            "request": {"type": "string", "description": "Which of its requests; all when absent."},
        },
        "required": ["name"],
    });
    let described = |description: &str| {
        let mut quantities = quantities.clone();
        quantities["description"] = json!(description);
        quantities
    };
    json!({
        "type": "object",
        "properties": {
            "claims": {
                "type": "array", "items": claim, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "description": "Resources of spec.resourceClaims that the container uses.",
            },
            "limits": described("What it may use at most, such as cpu, memory and ephemeral-storage."),
            "requests": described("What is set aside for it on its node."),
        },
    })
}

fn adjust(schema: &mut Value, adjustments: &Adjustments) {
    for (place, replacement) in &adjustments.replacements {
        if let Some(at) = property(schema, place) {
            let description = at.get("description").cloned();
            *at = replacement.clone();
            if let (Some(object), Some(description)) = (at.as_object_mut(), description) {
                object.insert("description".to_owned(), description);
            }
        }
    }
    for (place, words) in &adjustments.keywords {
        if let (Some(Value::Object(at)), Value::Object(words)) = (property(schema, place), words) {
            at.extend(words.clone());
        }
    }
    for Rule { at, rule, message } in adjustments.rules {
        let at = property(schema, at).and_then(Value::as_object_mut);
        let rules = at.map(|at| at.entry("x-kubernetes-validations").or_insert_with(|| json!([])));
        if let Some(Value::Array(rules)) = rules {
            rules.push(json!({ "rule": rule, "message": message }));
        }
    }
    for place in adjustments.not_null {
        if let Some(Value::Object(at)) = property(schema, place) {
            at.remove("nullable");
        }
    }
    merge_by_type(schema);
    known_formats(schema);
}

/// The property at a path of names, where `""` is the schema itself.
fn property<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('/').filter(|name| !name.is_empty()).try_fold(schema, |at, name| at.get_mut("properties")?.get_mut(name))
}

/// Conditions are a map by type for server-side apply.
fn merge_by_type(schema: &mut Value) {
    if let Some(Value::Object(conditions)) = property(schema, "status/conditions") {
        conditions.insert("x-kubernetes-list-type".to_owned(), json!("map"));
        conditions.insert("x-kubernetes-list-map-keys".to_owned(), json!(["type"]));
    }
}

/// The API server warns of number formats it does not know: unsigned ones become a signed one with a range.
fn known_formats(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some((format, maximum)) = object.get("format").and_then(Value::as_str).and_then(signed) {
                object.insert("format".to_owned(), json!(format));
                object.entry("minimum").or_insert(json!(0));
                if let Some(maximum) = maximum {
                    object.entry("maximum").or_insert(json!(maximum));
                }
            }
            object.values_mut().for_each(known_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(known_formats),
        _ => {}
    }
}

fn signed(format: &str) -> Option<(&'static str, Option<u64>)> {
    match format {
        "uint8" => Some(("int32", Some(u64::from(u8::MAX)))),
        "uint16" => Some(("int32", Some(u64::from(u16::MAX)))),
        "uint32" => Some(("int64", Some(u64::from(u32::MAX)))),
        "uint64" => Some(("int64", None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
