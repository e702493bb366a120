//! Step 2: the spec that would run, frozen (C3), or why it cannot. Pure.
//!
//! Frozen means: SQL inlined, and nothing in it that only the controller obeys (the desired state, how a change is
//! carried out, periodic savepoints).

use crate::build::names;
use crate::facts::{Program, Rejection};
use kube::ResourceExt;
use sha2::{Digest, Sha256};
use sluice_crds::{
    DeletionSpec, Problem, StabilitySpec, StreamJob, StreamJobSpec, UpgradeSpec, to_yaml, validate as validate_spec,
    validate_name,
};
use sluice_protocol::options::{ConfigMapKeyRef, DesiredState, ProgramSpec};

/// What was found where `program.sqlFrom` points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SqlText {
    /// The text.
    Found(String),
    /// There is no such ConfigMap.
    NoConfigMap,
    /// It has no such key.
    NoKey,
}

/// The frozen spec with the name of its ConfigMap, or the first reason why there is none; `sql` is what was found
/// for `program.sqlFrom`.
///
/// # Errors
/// [`Rejection`] with reason `InvalidSpec` or `ProgramNotFound`, naming every field that is wrong.
pub fn validate_program(job: &StreamJob, sql: Option<SqlText>) -> Result<Program, Rejection> {
    let name = job.name_any();
    let mut problems = validate_spec(&job.spec);
    problems.extend(validate_name(&name).err());
    if !problems.is_empty() {
        let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
        return Err(Rejection { reason: "InvalidSpec".to_owned(), message: lines.join("; ") });
    }
    let spec = freeze(job, sql)?;
    let text = frozen_manifest(&name, &job.namespace().unwrap_or_default(), &spec)?;
    Ok(Program { config_map: names::program(&name, &hash(&text)), spec })
}

fn freeze(job: &StreamJob, sql: Option<SqlText>) -> Result<StreamJobSpec, Rejection> {
    let mut spec = job.spec.clone();
    spec.state = DesiredState::Running;
    spec.savepoints = None;
    spec.upgrade = UpgradeSpec::default();
    spec.stability = StabilitySpec::default();
    spec.deletion = DeletionSpec::default();
    if let Some(from) = &job.spec.program.sql_from {
        let text = inline(&from.config_map_key_ref, sql.unwrap_or(SqlText::NoConfigMap))?;
        spec.program = ProgramSpec { sql: Some(text), sql_from: None };
    }
    Ok(spec)
}

fn inline(key: &ConfigMapKeyRef, sql: SqlText) -> Result<String, Rejection> {
    let ConfigMapKeyRef { name, key } = key;
    let message = match sql {
        SqlText::Found(text) if text.trim().is_empty() => {
            format!("key '{key}' of ConfigMap '{name}' is empty; write SQL")
        }
        SqlText::Found(text) => return Ok(text),
        SqlText::NoConfigMap => format!("there is no ConfigMap '{name}' in the StreamJob's namespace; create it"),
        SqlText::NoKey => format!("ConfigMap '{name}' has no key '{key}'; add it or name another"),
    };
    Err(Rejection {
        reason: "ProgramNotFound".to_owned(),
        message: format!("spec.program.sqlFrom.configMapKeyRef: {message}"),
    })
}

/// What only the controller obeys: a process of an older version would refuse a field that it does not know.
const NOT_OF_THE_JOB: [&str; 3] = ["upgrade", "stability", "deletion"];

/// The text of `job.yaml`: what every process of the revision reads.
///
/// # Errors
/// The spec cannot be written as YAML.
pub fn frozen_manifest(name: &str, namespace: &str, spec: &StreamJobSpec) -> Result<String, Rejection> {
    let mut job = StreamJob::new(name, spec.clone());
    job.metadata.namespace = Some(namespace.to_owned());
    let unreadable = |message: String| Rejection { reason: "InvalidSpec".to_owned(), message };
    let mut manifest = serde_json::to_value(&job).map_err(|error| unreadable(error.to_string()))?;
    if let Some(spec) = manifest.get_mut("spec").and_then(serde_json::Value::as_object_mut) {
        spec.retain(|field, _| !NOT_OF_THE_JOB.contains(&field.as_str()));
    }
    to_yaml(&manifest).map_err(|error| unreadable(error.to_string()))
}

/// The first 10 hexadecimal digits of SHA-256.
fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(spec: serde_json::Value) -> StreamJob {
        serde_json::from_value(json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob",
            "metadata": {"name": "pv", "namespace": "ns", "uid": "u"}, "spec": spec,
        }))
        .expect("is a StreamJob")
    }

    fn from_config_map() -> StreamJob {
        job(json!({"program": {"sqlFrom": {"configMapKeyRef": {"name": "sql", "key": "pv.sql"}}}}))
    }

    #[test]
    fn the_text_of_a_config_map_is_inlined() {
        let found = Some(SqlText::Found("INSERT INTO a SELECT * FROM b;".to_owned()));
        let program = validate_program(&from_config_map(), found).expect("is right");
        let inline = validate_program(&job(json!({"program": {"sql": "INSERT INTO a SELECT * FROM b;"}})), None);
        assert_eq!(program, inline.expect("is right"));
    }

    #[test]
    fn suspending_is_not_another_program() {
        let running = job(json!({"program": {"sql": "a"}}));
        let suspended = job(json!({"program": {"sql": "a"}, "state": "Suspended"}));
        assert_eq!(validate_program(&running, None), validate_program(&suspended, None));
        let stored = json!({"interval": "2s", "storage": "s3://b/p"});
        let plain = job(json!({"program": {"sql": "a"}, "checkpointing": stored}));
        let saved = job(json!({"program": {"sql": "a"}, "checkpointing": stored, "savepoints": {"interval": "1h"}}));
        assert_eq!(validate_program(&plain, None), validate_program(&saved, None));
        let other_ways = json!({
            "program": {"sql": "a"}, "upgrade": {"mode": "LastState"}, "stability": {"duration": "1m"},
            "deletion": {"savepoint": true},
        });
        assert_eq!(validate_program(&running, None), validate_program(&job(other_ways), None));
        let other = job(json!({"program": {"sql": "b"}}));
        assert_ne!(validate_program(&running, None), validate_program(&other, None));
    }

    #[test]
    fn a_frozen_manifest_holds_what_the_job_obeys_and_reads_back() {
        let program = validate_program(&job(json!({"program": {"sql": "a"}})), None).expect("is right");
        let text = frozen_manifest("pv", "ns", &program.spec).expect("is written");
        for field in NOT_OF_THE_JOB {
            assert!(!text.contains(&format!("{field}:")), "{text}");
        }
        assert_eq!(sluice_crds::parse_manifest(&text).expect("is read").spec, program.spec);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (found, words) in [
            (SqlText::NoConfigMap, "there is no ConfigMap 'sql'"),
            (SqlText::NoKey, "has no key 'pv.sql'"),
            (SqlText::Found(" ".to_owned()), "key 'pv.sql' of ConfigMap 'sql' is empty"),
        ] {
            let rejection = validate_program(&from_config_map(), Some(found)).expect_err("is refused");
            assert_eq!(rejection.reason, "ProgramNotFound");
            assert!(rejection.message.contains(words), "{}", rejection.message);
        }
        let wrong = job(json!({"program": {"sql": "a"}, "parallelism": 200}));
        let rejection = validate_program(&wrong, None).expect_err("is refused");
        assert_eq!(rejection.reason, "InvalidSpec");
        assert!(rejection.message.starts_with("spec.parallelism: is 200"), "{}", rejection.message);
    }
}
