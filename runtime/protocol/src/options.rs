//! The options of a StreamJob's spec that the runtime obeys: an option exists once, here (design §8).
//!
//! The types are both the manifest's (serde, schemars) and the runtime's. Limits that span several options
//! are checked on effective values by `validate`, which names every field that takes part.

use crate::ids::OperatorUid;
use crate::message::Alignment;
use crate::time::TimeSpan;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;

/// What a job computes. Exactly one field is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProgramSpec {
    /// SQL statements, each ended by a semicolon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql: Option<String>,
    /// SQL statements kept in a ConfigMap of the StreamJob's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql_from: Option<SqlFrom>,
}

/// Where SQL text is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SqlFrom {
    /// A key of a ConfigMap.
    pub config_map_key_ref: ConfigMapKeyRef,
}

/// A key of a ConfigMap in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigMapKeyRef {
    /// The ConfigMap's name.
    pub name: String,
    /// The key in it.
    pub key: String,
}

/// Consistency that a checkpoint promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CheckpointingMode {
    /// Barriers are aligned: every row counts once in the state.
    #[default]
    ExactlyOnce,
    /// Nothing is blocked at barriers: after a restore rows may count twice.
    AtLeastOnce,
}

/// What becomes of the checkpoints when the job is cancelled or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Retention {
    /// They stay.
    #[default]
    RetainOnCancellation,
    /// They are removed on cancel and normal end, and kept on failure.
    DeleteOnCancellation,
}

/// How many checkpoints in a row may fail before the job fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TolerableFailures {
    /// This many; 0: the first one fails the job.
    Count(u32),
    /// Any number.
    Unlimited(Unlimited),
}

impl Default for TolerableFailures {
    fn default() -> Self {
        Self::Count(0)
    }
}

/// The word `Unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unlimited {
    /// Without a limit.
    Unlimited,
}

/// How checkpoints are taken and kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointingSpec {
    /// Time between two triggers.
    pub interval: TimeSpan,
    /// ExactlyOnce or AtLeastOnce.
    #[serde(default)]
    pub mode: CheckpointingMode,
    /// A checkpoint that takes longer has failed.
    #[serde(default = "default_timeout")]
    pub timeout: TimeSpan,
    /// Least time between the completion of a checkpoint and the next trigger; above 0 it makes maxConcurrent 1.
    #[serde(default)]
    pub min_pause: TimeSpan,
    /// Checkpoints under way at once, at most.
    #[serde(default = "one")]
    pub max_concurrent: u32,
    /// Failed checkpoints in a row that the job survives: a number, or Unlimited.
    #[serde(default)]
    pub tolerable_failures: TolerableFailures,
    /// Barriers overtake queued rows, which become part of the checkpoint.
    #[serde(default)]
    pub unaligned: bool,
    /// With unaligned: start aligned, turn unaligned after this time; 0s starts unaligned.
    #[serde(default)]
    pub alignment_timeout: TimeSpan,
    /// What becomes of checkpoints at the job's end.
    #[serde(default)]
    pub retention: Retention,
    /// How many completed checkpoints are kept.
    #[serde(default = "one")]
    pub retained: u32,
    /// `s3://bucket/path`, `file:///path`, or `JobManager` (kept in its memory, for trying out; the default).
    #[serde(default = "default_storage")]
    pub storage: String,
    /// Where savepoints go when a request names no place; `savepoints` below `storage` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub savepoint_storage: Option<String>,
    /// How the object store is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_options: Option<StorageOptions>,
}

impl CheckpointingSpec {
    /// Checkpoints under way at once, in effect: a pause between them makes it one.
    #[must_use]
    pub const fn effective_max_concurrent(&self) -> u32 {
        if self.min_pause.0 > 0 || self.max_concurrent == 0 { 1 } else { self.max_concurrent }
    }

    /// What the barriers of periodic checkpoints do where rows are queued before them. Those of savepoints are aligned
    /// whatever the options say (K5).
    #[must_use]
    pub const fn alignment(&self) -> Alignment {
        match self.mode {
            CheckpointingMode::AtLeastOnce => Alignment::AtLeastOnce,
            CheckpointingMode::ExactlyOnce if self.unaligned => Alignment::Unaligned { after: self.alignment_timeout },
            CheckpointingMode::ExactlyOnce => Alignment::Aligned,
        }
    }

    /// What is obeyed otherwise than written, each as a reason and a sentence.
    #[must_use]
    pub fn warnings(&self) -> Vec<(&'static str, String)> {
        let Self { min_pause, max_concurrent, .. } = self;
        let is_overruled = min_pause.0 > 0 && *max_concurrent > 1;
        let message = || {
            format!(
                "checkpointing.maxConcurrent is {max_concurrent}, but minPause {min_pause} makes it 1: a pause between two \
                 checkpoints leaves no room for two at once; remove one of both"
            )
        };
        is_overruled.then(|| ("MaxConcurrentOverruled", message())).into_iter().collect()
    }

    /// These options with what a running job can take over from `wanted` without a restart: all but what its tasks were
    /// built for and where its checkpoints are.
    #[must_use]
    pub fn reconfigured(&self, wanted: &Self) -> Self {
        Self {
            mode: self.mode,
            storage: self.storage.clone(),
            storage_options: self.storage_options.clone(),
            ..wanted.clone()
        }
    }

    /// Where savepoints go when a request names no place: `savepointStorage`, else `savepoints` below the storage of
    /// checkpoints. `None` with storage `JobManager`: a request must name one then.
    #[must_use]
    pub fn savepoint_root(&self) -> Option<String> {
        let below = || (!self.is_in_memory()).then(|| format!("{}/savepoints", self.storage.trim_end_matches('/')));
        self.savepoint_storage.clone().or_else(below)
    }

    /// Whether checkpoints are kept in the JobManager's memory, and die with it (L7).
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.storage == IN_JOB_MANAGER
    }
}

/// What `storage` says when checkpoints are kept in the JobManager's memory.
pub const IN_JOB_MANAGER: &str = "JobManager";

/// How an S3 store is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageOptions {
    /// URL of an S3-compatible server; AWS's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The region; from the environment when absent, else us-east-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The bucket goes into the path instead of the host name.
    #[serde(default)]
    pub path_style: bool,
    /// A Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN); without it the
    /// process's environment or web identity is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<String>,
}

/// Where state lives while the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum StateBackend {
    /// In memory.
    #[default]
    Hash,
    /// In an embedded store on the local disk of each TaskManager: larger than memory, and slower.
    Disk,
}

/// What happens after a failure. Exactly one field is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestartStrategySpec {
    /// A number of attempts with a fixed delay before each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_delay: Option<FixedDelay>,
    /// Restart while failures are rarer than a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_rate: Option<FailureRate>,
    /// Restart after delays that grow while the job keeps failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exponential_delay: Option<ExponentialDelay>,
    /// The first failure ends the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<NoRestart>,
}

/// Restarts a number of times, after a fixed delay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FixedDelay {
    /// Restarts before the job fails.
    #[serde(default = "default_attempts")]
    pub attempts: u32,
    /// Time before each restart.
    #[serde(default = "one_second")]
    pub delay: TimeSpan,
}

/// More than `maxFailures` within the sliding `interval` fail the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureRate {
    /// Failures that the interval may hold.
    #[serde(default = "one")]
    pub max_failures: u32,
    /// The sliding interval.
    #[serde(default = "one_minute")]
    pub interval: TimeSpan,
    /// Time before each restart.
    #[serde(default = "one_second")]
    pub delay: TimeSpan,
}

/// Restarts after a delay that grows with each failure, until the job has run for `resetAfter` without one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExponentialDelay {
    /// Time before the first restart.
    #[serde(default = "one_second")]
    pub initial_backoff: TimeSpan,
    /// The longest time before a restart.
    #[serde(default = "one_minute")]
    pub max_backoff: TimeSpan,
    /// What the time grows by with each failure; at least 1.
    #[serde(default = "one_and_a_half")]
    pub multiplier: Decimal,
    /// The share of the time by which it varies up or down, so that jobs do not restart in step; from 0 to 1.
    #[serde(default = "one_tenth")]
    pub jitter: Decimal,
    /// After this time without a failure the next one counts as the first again.
    #[serde(default = "one_hour")]
    pub reset_after: TimeSpan,
    /// Restarts before the job fails, counted since the last reset; without a limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

/// A number that is not negative, in thousandths: `1.5` is 1500.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Decimal(pub u32);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        let thousandths = (number * 1000.0).round();
        if !(0.0..=f64::from(u32::MAX)).contains(&thousandths) {
            return Err(de::Error::custom(format!("{number} is out of range: write a number from 0 to 4000000")));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies within the range of u32")]
        Ok(Self(thousandths as u32))
    }
}

impl JsonSchema for Decimal {
    fn schema_name() -> Cow<'static, str> {
        "Decimal".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0 })
    }
}

/// No options: written `none: {}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoRestart {}

/// What a start restores instead of the job's own latest checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestoreSpec {
    /// A checkpoint, a savepoint, or a job directory (its latest): `s3://…/chk-50` or `…/chk-50/_metadata`.
    pub from: String,
    /// State that no operator takes is dropped instead of refusing the start.
    #[serde(default)]
    pub allow_non_restored_state: bool,
    /// Sinks, by their ids, whose output is given up as far as it is staged and not committed: their target is gone for good.
    /// Its rows are in no result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub abandon_sinks: Vec<OperatorUid>,
    /// Raise it to restore once more from the same place.
    #[serde(default)]
    pub nonce: u64,
}

/// Whether the job should run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum DesiredState {
    /// It runs.
    #[default]
    Running,
    /// It is stopped and keeps its state.
    Suspended,
}

const fn one() -> u32 {
    1
}
const fn default_attempts() -> u32 {
    2_147_483_647
}
const fn one_second() -> TimeSpan {
    TimeSpan::from_secs(1)
}
const fn one_minute() -> TimeSpan {
    TimeSpan::from_secs(60)
}
const fn one_hour() -> TimeSpan {
    TimeSpan::from_secs(3600)
}
const fn one_and_a_half() -> Decimal {
    Decimal(1500)
}
const fn one_tenth() -> Decimal {
    Decimal(100)
}
const fn default_timeout() -> TimeSpan {
    TimeSpan::from_secs(600)
}
fn default_storage() -> String {
    IN_JOB_MANAGER.to_owned()
}

impl Default for FixedDelay {
    fn default() -> Self {
        Self { attempts: default_attempts(), delay: one_second() }
    }
}

impl Default for ExponentialDelay {
    fn default() -> Self {
        Self {
            initial_backoff: one_second(),
            max_backoff: one_minute(),
            multiplier: one_and_a_half(),
            jitter: one_tenth(),
            reset_after: one_hour(),
            attempts: None,
        }
    }
}

impl Default for FailureRate {
    fn default() -> Self {
        Self { max_failures: one(), interval: one_minute(), delay: one_second() }
    }
}

/// The options of a job that every process of it obeys: the spec without what only Kubernetes needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOptions {
    /// Subtasks per vertex.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u16,
    /// Slots per TaskManager.
    pub slots: u32,
    /// Checkpoints; none when absent.
    pub checkpointing: Option<CheckpointingSpec>,
    /// Restarts; `None` takes the default of the mode (design §8).
    pub restart_strategy: Option<RestartStrategySpec>,
    /// State backend.
    pub state_backend: StateBackend,
    /// Silence after which a TaskManager counts as lost; half of it and the TaskManager gives up by itself (N4).
    pub heartbeat_timeout: TimeSpan,
    /// Rows that linger in an output are sent after this time.
    pub buffer_timeout: TimeSpan,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            parallelism: 1,
            max_parallelism: 128,
            slots: 1,
            checkpointing: None,
            restart_strategy: None,
            state_backend: StateBackend::Hash,
            heartbeat_timeout: TimeSpan::from_secs(10),
            buffer_timeout: TimeSpan::from_millis(100),
        }
    }
}
