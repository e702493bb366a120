//! The values of chart `sluice`, told once in its `values.yaml`, as `values.schema.json` and as the chart's README.
//!
//! A comment above a key says what it means; a line `# @schema {…}` there adds to the schema that its default implies.
//! A map whose schema speaks of `additionalProperties` is one value; any other map has exactly the keys it shows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::Generated;

const CHART: &str = "charts/sluice";

/// One key of `values.yaml`.
struct Entry {
    path: Vec<String>,
    comment: String,
    schema: Map<String, Value>,
    default: Value,
}

impl Entry {
    fn is_group(&self) -> bool {
        self.default.is_object() && !self.schema.contains_key("additionalProperties")
    }
}

/// `values.schema.json`: Helm refuses values that do not fit it.
pub(super) fn generate_schema(root: &Path) -> Result<Generated> {
    let schema = schema(&entries(&read(root)?)?)?;
    let text = format!("{}\n", serde_json::to_string_pretty(&schema)?);
    Ok(generated("values.schema.json", text))
}

/// `README.md`.
pub(super) fn generate_readme(root: &Path) -> Result<Generated> {
    Ok(generated("README.md", readme(&entries(&read(root)?)?)))
}

fn generated(name: &'static str, text: String) -> Generated {
    Generated { directory: PathBuf::from(CHART), extension: name, files: BTreeMap::from([(name.to_owned(), text)]) }
}

fn read(root: &Path) -> Result<String> {
    let path = root.join(CHART).join("values.yaml");
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// All keys down to those whose value is one value.
fn entries(text: &str) -> Result<Vec<Entry>> {
    let defaults: Value = serde_norway::from_str(text).context("values.yaml is not YAML")?;
    let mut entries: Vec<Entry> = Vec::new();
    let (mut comment, mut schema) = (Vec::new(), Map::new());
    let mut above: Vec<String> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if let Some(extra) = trimmed.strip_prefix("# @schema ") {
            schema = serde_json::from_str(extra).with_context(|| format!("values.yaml:{}: @schema", number + 1))?;
        } else if let Some(words) = trimmed.strip_prefix("# ") {
            comment.push(words.to_owned());
        } else if let Some((key, _)) = trimmed.split_once(':') {
            above.truncate((line.len() - trimmed.len()) / 2);
            let parent = entries.iter().find(|entry| entry.path == above);
            above.push(key.to_owned());
            if parent.is_some_and(|parent| !parent.is_group()) {
                continue;
            }
            let pointer = format!("/{}", above.join("/"));
            let default = defaults.pointer(&pointer).cloned();
            let default = default.with_context(|| format!("values.yaml:{}: {key} has an odd place", number + 1))?;
            let (comment, schema) = (std::mem::take(&mut comment).join(" "), std::mem::take(&mut schema));
            let entry = Entry { path: above.clone(), comment, schema, default };
            let is_told = entry.is_group() || !entry.comment.is_empty();
            ensure!(is_told, "values.yaml:{}: say in a comment above {key} what it means", number + 1);
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn schema(entries: &[Entry]) -> Result<Value> {
    let mut root = json!({
        "$schema": "https://json-schema.org/draft-07/schema#",
        "title": "Values of the chart sluice",
        "type": "object",
        "additionalProperties": false,
        "properties": {"global": {"type": "object", "description": "Helm's own"}},
    });
    for entry in entries {
        let mut place = &mut root;
        for key in &entry.path {
            let properties = place.as_object_mut().context("a schema is an object")?;
            let properties = properties.entry("properties").or_insert_with(|| json!({}));
            place = properties.as_object_mut().context("properties are an object")?.entry(key).or_insert(Value::Null);
        }
        *place = schema_of(entry);
    }
    Ok(root)
}

fn schema_of(entry: &Entry) -> Value {
    let kind = match entry.default {
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::String(_) | Value::Null => "string",
    };
    let mut schema = entry.schema.clone();
    schema.insert("type".to_owned(), json!(kind));
    if entry.is_group() {
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
    if !entry.comment.is_empty() {
        schema.insert("description".to_owned(), json!(entry.comment));
    }
    Value::Object(schema)
}

fn readme(entries: &[Entry]) -> String {
    let mut text = include_str!("chart_readme.md").to_owned();
    for entry in entries.iter().filter(|entry| !entry.is_group()) {
        let default = entry.default.to_string();
        let row = format!("| `{}` | `{default}` | {} |\n", entry.path.join("."), entry.comment.replace('|', "\\|"));
        text.push_str(&row);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: &str = "\
# How many.
# @schema {\"minimum\": 1}
replicas: 2

image:
  # Without a tag.
  repository: a/b
# Of the container.
# @schema {\"additionalProperties\": true}
resources:
  requests: {cpu: 20m}
";

    #[test]
    fn comments_and_defaults_make_the_schema_and_the_table() {
        let entries = entries(VALUES).unwrap();
        let schema = schema(&entries).unwrap();
        assert_eq!(
            schema["properties"]["replicas"],
            json!({"type": "integer", "minimum": 1, "description": "How many."})
        );
        assert_eq!(schema["properties"]["image"]["additionalProperties"], json!(false));
        assert_eq!(schema["properties"]["image"]["properties"]["repository"]["type"], json!("string"));
        assert_eq!(schema["properties"]["resources"]["additionalProperties"], json!(true));
        assert!(schema["properties"]["resources"].get("properties").is_none());
        let table = readme(&entries);
        assert!(table.contains("| `image.repository` | `\"a/b\"` | Without a tag. |\n"), "{table}");
        assert!(!table.contains("resources.requests"), "{table}");
    }

    #[test]
    fn a_value_without_a_word_is_refused() {
        let error = entries("a: 1\n").err().unwrap().to_string();
        assert!(error.contains("values.yaml:1") && error.contains("above a"), "{error}");
    }
}
