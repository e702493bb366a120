//! Limits on effective values: what the schema cannot say, checked alike by `sluice run`, by the processes of a job
//! and by the controller. Pure.
//!
//! An option that this version takes but cannot obey is refused by name rather than ignored.

use crate::periodic::validate_savepoints;
use crate::pod_template::{decode_strictly, validate_pod_template};
use crate::spec::StreamJobSpec;
use k8s_openapi::api::core::v1::ResourceRequirements;
use sluice_protocol::TimeSpan;
use sluice_protocol::ledger::MAX_RETAINED;
use sluice_protocol::options::{CheckpointingMode, CheckpointingSpec, FailureRate, RestartStrategySpec};
use sluice_protocol::restart::RestartPolicy;
use std::fmt;

/// Something in a manifest that must be changed before the job can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where: a path such as `spec.checkpointing.interval`.
    pub field: String,
    /// What is wrong with its value, what was expected, and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

const MAX_PARALLELISM: u32 = 32_768;
const MIN_INTERVAL: TimeSpan = TimeSpan::from_millis(10);
const MIN_HEARTBEAT_TIMEOUT: TimeSpan = TimeSpan::from_millis(500);
const MAX_NAME: usize = 40;

/// Everything that is wrong with a spec, in the order of the manifest; empty when it can run.
#[must_use]
pub fn validate(spec: &StreamJobSpec) -> Vec<Problem> {
    let mut problems = Problems::default();
    validate_program(spec, &mut problems);
    validate_parallelism(spec, &mut problems);
    if let Some(restore) = &spec.restore {
        validate_uri("spec.restore.from", &restore.from, "a checkpoint, a savepoint or a job directory", &mut problems);
    }
    if let Some(checkpointing) = &spec.checkpointing {
        validate_checkpointing(checkpointing, &mut problems);
    }
    if let Some(strategy) = &spec.restart_strategy {
        validate_restart_strategy(strategy, &mut problems);
    }
    validate_stability(spec, &mut problems);
    validate_pods(spec, &mut problems);
    problems.0.extend(validate_savepoints(spec));
    problems.0
}

/// What a spec that can run says in vain: for a person to know, not for a refusal.
#[must_use]
pub fn warnings(spec: &StreamJobSpec) -> Vec<Problem> {
    let of_checkpointing = spec.checkpointing.iter().flat_map(CheckpointingSpec::warnings);
    of_checkpointing.map(|(_, message)| Problem { field: "spec.checkpointing".to_owned(), message }).collect()
}

/// A StreamJob's name: pods `<name>-<generation>-tm-<n>` and the Service `<name>-jm` must be legal names too.
///
/// # Errors
/// The rule that the name breaks.
pub fn validate_name(name: &str) -> Result<(), Problem> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if starts && !name.ends_with('-') && name.chars().all(legal) && name.len() <= MAX_NAME {
        return Ok(());
    }
    Err(Problem {
        field: "metadata.name".to_owned(),
        message: format!(
            "'{name}' must be at most {MAX_NAME} characters of a-z, 0-9 and '-', start with a letter and end with a \
             letter or digit"
        ),
    })
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(Problem { field: field.to_owned(), message: message.into() });
    }

    fn refuse_unless(&mut self, holds: bool, field: &str, message: impl Into<String>) {
        if !holds {
            self.add(field, message);
        }
    }
}

fn validate_program(spec: &StreamJobSpec, problems: &mut Problems) {
    match (&spec.program.sql, &spec.program.sql_from) {
        (None, None) => problems.add("spec.program", "names no program; set sql, or sqlFrom for SQL in a ConfigMap"),
        (Some(_), Some(_)) => problems.add("spec.program", "sql and sqlFrom exclude each other; keep one"),
        (Some(sql), None) if sql.trim().is_empty() => {
            problems.add("spec.program.sql", "is empty; write SQL statements, the last an INSERT INTO … SELECT …");
        }
        _ => {}
    }
}

fn validate_parallelism(spec: &StreamJobSpec, problems: &mut Problems) {
    let (parallelism, most) = (spec.parallelism, spec.max_parallelism);
    problems.refuse_unless(parallelism >= 1, "spec.parallelism", "must be at least 1");
    problems.refuse_unless(
        (1..=MAX_PARALLELISM).contains(&most),
        "spec.maxParallelism",
        format!("is {most}, must be from 1 to {MAX_PARALLELISM}"),
    );
    problems.refuse_unless(
        parallelism <= most,
        "spec.parallelism",
        format!("is {parallelism} and greater than maxParallelism, which is {most}; lower the one or raise the other"),
    );
    problems.refuse_unless(spec.task_manager.slots >= 1, "spec.taskManager.slots", "must be at least 1");
}

fn validate_checkpointing(checkpointing: &CheckpointingSpec, problems: &mut Problems) {
    let CheckpointingSpec { interval, timeout, max_concurrent, retained, storage, .. } = checkpointing;
    problems.refuse_unless(
        *interval >= MIN_INTERVAL,
        "spec.checkpointing.interval",
        format!("is {interval}, must be at least {MIN_INTERVAL}"),
    );
    problems.refuse_unless(
        *timeout >= MIN_INTERVAL,
        "spec.checkpointing.timeout",
        format!("is {timeout}, must be at least {MIN_INTERVAL}"),
    );
    problems.refuse_unless(*max_concurrent >= 1, "spec.checkpointing.maxConcurrent", "must be at least 1");
    problems.refuse_unless(
        (1..=MAX_RETAINED).contains(retained),
        "spec.checkpointing.retained",
        format!("is {retained}, must be at least 1 and at most {MAX_RETAINED}: each ledger entry lists them all"),
    );
    if !checkpointing.is_in_memory() {
        validate_uri("spec.checkpointing.storage", storage, "where checkpoints are kept, or JobManager", problems);
    }
    if let Some(savepoints) = &checkpointing.savepoint_storage {
        validate_uri("spec.checkpointing.savepointStorage", savepoints, "where savepoints are kept", problems);
    }
    validate_storage_options(checkpointing, problems);
    validate_alignment(checkpointing, problems);
}

fn validate_storage_options(checkpointing: &CheckpointingSpec, problems: &mut Problems) {
    let Some(options) = &checkpointing.storage_options else { return };
    let places = [Some(&checkpointing.storage), checkpointing.savepoint_storage.as_ref()];
    problems.refuse_unless(
        places.into_iter().flatten().any(|place| place.starts_with("s3://")),
        "spec.checkpointing.storageOptions",
        format!("apply to s3:// storage only, and storage is {}; remove them", checkpointing.storage),
    );
    if let Some(endpoint) = &options.endpoint {
        problems.refuse_unless(
            endpoint.starts_with("http://") || endpoint.starts_with("https://"),
            "spec.checkpointing.storageOptions.endpoint",
            format!("'{endpoint}' must be a URL that starts with http:// or https://"),
        );
    }
}

/// What contradicts the way barriers go, on effective values: each message names both fields and what to do.
fn validate_alignment(checkpointing: &CheckpointingSpec, problems: &mut Problems) {
    let CheckpointingSpec { mode, unaligned, alignment_timeout, max_concurrent, .. } = checkpointing;
    problems.refuse_unless(
        !unaligned || *mode == CheckpointingMode::ExactlyOnce,
        "spec.checkpointing.unaligned",
        "is true, but mode is AtLeastOnce, under which no channel waits for a barrier: set mode to ExactlyOnce, or \
         unaligned to false",
    );
    problems.refuse_unless(
        !unaligned || checkpointing.effective_max_concurrent() == 1,
        "spec.checkpointing.unaligned",
        format!(
            "is true, but maxConcurrent is {max_concurrent}: rows that one barrier has overtaken cannot be in two \
             checkpoints; set maxConcurrent to 1, or unaligned to false"
        ),
    );
    problems.refuse_unless(
        *unaligned || *alignment_timeout == TimeSpan::default(),
        "spec.checkpointing.alignmentTimeout",
        format!(
            "is {alignment_timeout}, but unaligned is false, so no barrier ever overtakes: set unaligned to true, or remove \
             alignmentTimeout"
        ),
    );
}

fn validate_restart_strategy(strategy: &RestartStrategySpec, problems: &mut Problems) {
    if let Err(error) = RestartPolicy::from_spec(Some(strategy), true) {
        problems.add("spec.restartStrategy", error.to_string());
    }
    if let Some(FailureRate { max_failures, interval, .. }) = &strategy.failure_rate {
        problems.refuse_unless(
            *max_failures >= 1,
            "spec.restartStrategy.failureRate.maxFailures",
            "must be at least 1",
        );
        problems.refuse_unless(
            *interval > TimeSpan::default(),
            "spec.restartStrategy.failureRate.interval",
            "must be longer than 0s",
        );
    }
}

/// A deadline that no job can keep would roll every change back.
fn validate_stability(spec: &StreamJobSpec, problems: &mut Problems) {
    let least = spec.stability.least(spec.checkpointing.as_ref());
    if let Some(deadline) = spec.stability.deadline {
        problems.refuse_unless(
            deadline > least,
            "spec.stability.deadline",
            format!(
                "is {deadline}, but stability.duration and stability.checkpoints at checkpointing.interval take {least} \
                 even without any trouble: raise the deadline, or lower one of the others"
            ),
        );
    }
}

fn validate_pods(spec: &StreamJobSpec, problems: &mut Problems) {
    let timeout = spec.task_manager.heartbeat_timeout;
    problems.refuse_unless(
        timeout >= MIN_HEARTBEAT_TIMEOUT,
        "spec.taskManager.heartbeatTimeout",
        format!("is {timeout}, must be at least {MIN_HEARTBEAT_TIMEOUT}"),
    );
    let pods = [
        ("spec.jobManager", "jobmanager", &spec.job_manager.pod_template, &spec.job_manager.resources),
        ("spec.taskManager", "taskmanager", &spec.task_manager.pod_template, &spec.task_manager.resources),
    ];
    for (field, main, template, resources) in pods {
        let place = format!("{field}.podTemplate");
        let template = template.iter().flat_map(|template| validate_pod_template(&place, main, template));
        problems.0.extend(template);
        validate_resources(field, resources.as_ref(), problems);
    }
}

fn validate_resources(field: &str, resources: Option<&ResourceRequirements>, problems: &mut Problems) {
    let Some(resources) = resources else { return };
    for (kind, quantities) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, quantity) in quantities.iter().flatten() {
            problems.refuse_unless(
                is_quantity(&quantity.0),
                &format!("{field}.resources.{kind}.{name}"),
                format!("'{}' is not a quantity; write a number such as 500m, 2, 512Mi or 4Gi", quantity.0),
            );
        }
    }
}

/// A Kubernetes quantity that is not negative: digits with an optional fraction, then a suffix or an exponent.
fn is_quantity(text: &str) -> bool {
    let text = text.strip_prefix('+').unwrap_or(text);
    let number = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number);
    let exponent = || {
        let power = suffix.strip_prefix(['e', 'E'])?;
        power.strip_prefix(['+', '-']).unwrap_or(power).parse::<u16>().ok()
    };
    let suffixes = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    number.parse::<f64>().is_ok() && (suffixes.contains(&suffix) || exponent().is_some())
}

fn validate_uri(field: &str, uri: &str, what: &str, problems: &mut Problems) {
    let bucket = uri.strip_prefix("s3://").map(|rest| rest.split('/').next().unwrap_or_default());
    let legal = match bucket {
        Some(bucket) => !bucket.is_empty(),
        None => uri.strip_prefix("file:///").is_some_and(|path| !path.is_empty()),
    };
    problems.refuse_unless(
        legal,
        field,
        format!("'{uri}' must be {what}, written s3://bucket/path or file:///absolute/path"),
    );
}

/// Checks a value of a Kubernetes type as it was written, before serde dropped what it does not know.
pub(crate) fn check_resources(field: &str, value: &serde_json::Value) -> Option<Problem> {
    decode_strictly::<ResourceRequirements>(field, value).err()
}

#[cfg(test)]
mod tests;
