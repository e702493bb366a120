//! The CRDs are small, structural, and the same as the checked-in files.

use super::*;
use crate::to_yaml;
use std::path::Path;

fn all() -> [(Value, Adjustments); 2] {
    let mut crds = all_crds().into_iter().map(|crd| serde_json::to_value(crd).expect("is serialisable"));
    [super::stream_job(), savepoint::adjustments()].map(|adjustments| (crds.next().expect("one each"), adjustments))
}

fn schema_of(crd: &mut Value) -> &mut Value {
    crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").expect("has a schema")
}

#[test]
fn every_rule_and_keyword_finds_its_place() {
    for (mut crd, Adjustments { replacements, keywords, rules, not_null, scale: _ }) in all() {
        let schema = schema_of(&mut crd);
        let places = rules.iter().map(|rule| rule.at).chain(not_null.iter().copied());
        for place in places.chain(keywords.iter().map(|(at, _)| *at)).chain(replacements.iter().map(|(at, _)| *at)) {
            assert!(property(schema, place).is_some(), "no property {place}");
        }
    }
}

#[test]
fn each_crd_is_small_and_as_checked_in() {
    for crd in all_crds() {
        let name = crd.metadata.name.clone().expect("has a name");
        let text = to_yaml(&crd).expect("is serialisable");
        assert!(text.len() < 100_000, "{name} has {} bytes", text.len());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml"));
        let checked_in = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(checked_in == text, "{} is not what the types say; run `cargo xtask generate`", file.display());
    }
}

/// What the API server refuses or warns of: open or closed additionalProperties beside properties, types inside
/// `anyOf`, unknown formats, properties without a type.
#[test]
fn the_schema_is_structural() {
    fn walk(place: &str, schema: &Value) {
        let Some(object) = schema.as_object() else { panic!("{place} is not an object") };
        assert_ne!(object.get("additionalProperties"), Some(&json!(false)), "{place}");
        assert!(!(object.contains_key("properties") && object.contains_key("additionalProperties")), "{place}");
        let typed = object.contains_key("type") || object.contains_key("x-kubernetes-int-or-string");
        assert!(typed, "{place} has no type: {schema}");
        assert!(!object.contains_key("oneOf") && !object.contains_key("$ref"), "{place}: {schema}");
        let choice = object.contains_key("anyOf");
        assert!(!choice || object.contains_key("x-kubernetes-int-or-string"), "{place}: {schema}");
        if let Some(format) = object.get("format").and_then(Value::as_str) {
            assert!(["int32", "int64", "date-time"].contains(&format), "{place}: {format}");
        }
        for (name, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            walk(&format!("{place}/{name}"), property);
        }
        for inner in ["items", "additionalProperties"].into_iter().filter_map(|key| object.get(key)) {
            walk(&format!("{place}/*"), inner);
        }
    }
    for (mut crd, _) in all() {
        walk("", schema_of(&mut crd));
    }
}

#[test]
fn names_columns_and_subresource() {
    let columns = [
        &["State", "Ready", "Restarts", "Checkpoint", "Checkpointed", "Revision", "Age", "Message"] as &[&str],
        &["Job", "Kind", "Phase", "Path", "Size", "Took", "Age", "Message"],
    ];
    for (((crd, _), short_name), columns) in all().iter().zip(["sj", "sp"]).zip(columns) {
        let names = &crd["spec"]["names"];
        assert_eq!(names["shortNames"], json!([short_name]));
        assert_eq!(names["categories"], json!(["sluice"]));
        let version = &crd["spec"]["versions"][0];
        assert!(version["subresources"]["status"].is_object());
        let written = version["additionalPrinterColumns"].as_array().expect("has columns");
        assert_eq!(written.iter().map(|column| &column["name"]).collect::<Vec<_>>(), columns);
    }
}

/// `kubectl explain` says something of each field.
#[test]
fn every_field_is_described() {
    fn walk(place: &str, schema: &Value) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let place = format!("{place}.{name}");
            let described = property["description"].as_str().is_some_and(|text| !text.trim().is_empty());
            assert!(described, "{place} has no description");
            walk(&place, property);
        }
        for inner in ["items", "additionalProperties"].into_iter().filter_map(|key| schema.get(key)) {
            walk(&format!("{place}[]"), inner);
        }
    }
    for (mut crd, _) in all() {
        walk("", schema_of(&mut crd));
    }
}

/// An option with a default shows it: `kubectl get -o yaml` holds what is obeyed.
#[test]
fn defaults_are_visible() {
    for ((mut crd, _), places) in all().into_iter().zip([
        &["parallelism", "maxParallelism", "state", "stateBackend", "checkpointing/timeout", "taskManager/slots"]
            as &[&str],
        &["kind", "timeout", "backoffLimit", "disposeOnDelete"],
    ]) {
        let schema = schema_of(&mut crd);
        for place in places {
            let at = property(schema, &format!("spec/{place}")).expect("is there");
            assert!(at.get("default").is_some(), "{place} shows no default");
        }
    }
}

mod rules;
