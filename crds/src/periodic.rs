//! Periodic savepoints of a StreamJob: how often, and how many are kept.

use crate::schedule::Schedule;
use crate::spec::StreamJobSpec;
use crate::validate::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_protocol::TimeSpan;
use sluice_protocol::options::CheckpointingSpec;

/// Savepoints closer to each other would do nothing but savepoints.
const MIN_INTERVAL: TimeSpan = TimeSpan::from_secs(10);

/// Savepoints that are taken by themselves, each as a Savepoint object. Exactly one of interval and schedule is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeriodicSavepointsSpec {
    /// Time between two, such as `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<TimeSpan>,
    /// Cron schedule in UTC, such as `0 3 * * *`. What was missed while the job did not run is made up for once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Below which they go; checkpointing.savepointStorage when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// How long each may take.
    #[serde(default = "default_timeout")]
    pub timeout: TimeSpan,
    /// Whether the files of a savepoint are removed when its object is deleted, also by historyLimit.
    #[serde(default)]
    pub dispose_on_delete: bool,
    /// Which Savepoint objects are kept. The newest completed one always is.
    #[serde(default)]
    pub history_limit: HistoryLimit,
}

/// Which periodic Savepoint objects are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HistoryLimit {
    /// Completed ones, at most; and as many, but at most three, that failed.
    #[serde(default = "default_count")]
    pub count: u32,
    /// Older ones are deleted, such as `7d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<TimeSpan>,
}

impl Default for HistoryLimit {
    fn default() -> Self {
        Self { count: default_count(), age: None }
    }
}

const fn default_timeout() -> TimeSpan {
    TimeSpan::from_secs(600)
}

const fn default_count() -> u32 {
    10
}

/// What is wrong with `spec.savepoints`.
pub(crate) fn validate_savepoints(spec: &StreamJobSpec) -> Vec<Problem> {
    let Some(savepoints) = &spec.savepoints else { return Vec::new() };
    let problem = |field: &str, message: String| Problem { field: format!("spec.savepoints{field}"), message };
    let mut problems = Vec::new();
    match (&savepoints.interval, &savepoints.schedule) {
        (Some(_), Some(_)) => {
            problems.push(problem("", "interval and schedule exclude each other; keep one".to_owned()));
        }
        (None, None) => {
            problems.push(problem(
                "",
                "says not when; set interval, such as 1h, or schedule, such as '0 3 * * *'".to_owned(),
            ));
        }
        (Some(interval), None) if *interval < MIN_INTERVAL => {
            problems.push(problem(".interval", format!("is {interval}, must be at least {MIN_INTERVAL}")));
        }
        (None, Some(schedule)) => {
            let error = schedule.parse::<Schedule>().err();
            problems.extend(error.map(|error| problem(".schedule", error.to_string())));
        }
        (Some(_), None) => {}
    }
    if savepoints.history_limit.count == 0 {
        problems.push(problem(
            ".historyLimit.count",
            "must be at least 1: the newest completed one is always kept".to_owned(),
        ));
    }
    if spec.checkpointing.is_none() {
        problems
            .push(problem("", "needs checkpointing, which is absent: without it the job stores no state".to_owned()));
    } else if savepoints.directory.is_none()
        && spec.checkpointing.as_ref().and_then(CheckpointingSpec::savepoint_root).is_none()
    {
        let message = "checkpointing.storage is JobManager, where a savepoint would not outlive the job: set \
                       savepoints.directory or checkpointing.savepointStorage";
        problems.push(problem(".directory", message.to_owned()));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_manifest;
    use serde_json::{Value, json};

    fn problems(savepoints: &Value, checkpointing: &Value) -> Vec<String> {
        let mut spec = json!({"program": {"sql": "a"}, "savepoints": savepoints});
        if !checkpointing.is_null() {
            spec["checkpointing"] = checkpointing.clone();
        }
        let manifest = json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "job"}, "spec": spec,
        });
        let spec = parse_manifest(&manifest.to_string()).expect("reads").spec;
        crate::validate(&spec).iter().map(Problem::to_string).collect()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let stored = json!({"interval": "2s", "storage": "s3://b/p"});
        assert_eq!(problems(&json!({"interval": "1h"}), &stored), [""; 0]);
        assert_eq!(problems(&json!({"schedule": "0 3 * * *", "historyLimit": {"age": "7d"}}), &stored), [""; 0]);
        for (savepoints, checkpointing, words) in [
            (json!({"interval": "1h", "schedule": "0 3 * * *"}), &stored, "interval and schedule exclude each other"),
            (json!({}), &stored, "says not when"),
            (json!({"interval": "1s"}), &stored, "spec.savepoints.interval: is 1s, must be at least 10s"),
            (
                json!({"schedule": "3 o'clock"}),
                &stored,
                "spec.savepoints.schedule: '3 o'clock' has not the five fields",
            ),
            (json!({"interval": "1h", "historyLimit": {"count": 0}}), &stored, "must be at least 1"),
            (json!({"interval": "1h"}), &Value::Null, "needs checkpointing"),
            (
                json!({"interval": "1h"}),
                &json!({"interval": "2s"}),
                "spec.savepoints.directory: checkpointing.storage is",
            ),
        ] {
            let found = problems(&savepoints, checkpointing);
            assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
        }
    }
}
