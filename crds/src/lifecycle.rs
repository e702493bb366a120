//! How a StreamJob goes from one spec to another, when a spec counts as good, and how it ends (docs/operator.md).
//!
//! Only the controller obeys these: none of them is known to the job's processes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_protocol::TimeSpan;
use sluice_protocol::options::CheckpointingSpec;

/// How the job is stopped, and what it starts from, when its spec changes so that it must be redeployed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpgradeSpec {
    /// Savepoint: stop with a savepoint and start from it. LastState: stop with a last checkpoint and start from the latest
    /// one. Stateless: start empty.
    #[serde(default)]
    pub mode: UpgradeMode,
    /// What happens when no savepoint can be taken. None: the job runs on and the new spec waits. LastState: the job starts
    /// from its latest checkpoint.
    #[serde(default)]
    pub fallback: UpgradeFallback,
    /// The oldest checkpoint that fallback LastState may start from, by the time since it was completed; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_checkpoint_age: Option<TimeSpan>,
    /// How long a savepoint may take; checkpointing.timeout when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub savepoint_timeout: Option<TimeSpan>,
    /// With mode Savepoint: state that no operator of the new program takes is dropped instead of refusing the start.
    #[serde(default)]
    pub allow_non_restored_state: bool,
}

/// How a job is stopped for another spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum UpgradeMode {
    /// With a savepoint.
    #[default]
    Savepoint,
    /// With a last checkpoint.
    LastState,
    /// Its state is given up.
    Stateless,
}

/// What follows when no savepoint can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum UpgradeFallback {
    /// The new spec waits.
    #[default]
    None,
    /// As with mode LastState.
    LastState,
}

/// When a changed spec counts as good, and what happens when it does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StabilitySpec {
    /// Checkpoints that the job must complete without a restart in between; none are waited for without checkpointing.
    #[serde(default = "one")]
    pub checkpoints: u32,
    /// Time for which all tasks must run without a restart.
    #[serde(default = "half_a_minute")]
    pub duration: TimeSpan,
    /// Time from the start of the new spec to being stable; when absent 5 minutes and what duration and checkpoints take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<TimeSpan>,
    /// Whether the last stable spec runs again when the new one is not stable in time or fails.
    #[serde(default = "yes")]
    pub rollback: bool,
    /// Whether a job whose tasks run, but which completes no checkpoint for longer than its failures could explain, is
    /// restarted; each time spends one restart of restartStrategy. Without it the job is only told to be degraded.
    #[serde(default)]
    pub restart_stuck: bool,
}

impl Default for StabilitySpec {
    fn default() -> Self {
        Self { checkpoints: one(), duration: half_a_minute(), deadline: None, rollback: true, restart_stuck: false }
    }
}

impl StabilitySpec {
    /// Checkpoints that are waited for, in effect.
    #[must_use]
    pub fn effective_checkpoints(&self, checkpointing: Option<&CheckpointingSpec>) -> u32 {
        if checkpointing.is_some() { self.checkpoints } else { 0 }
    }

    /// What a job without any trouble needs to be stable, once its tasks run: a checkpoint is triggered by its interval.
    #[must_use]
    pub fn least(&self, checkpointing: Option<&CheckpointingSpec>) -> TimeSpan {
        let interval = checkpointing.map_or(0, |checkpointing| checkpointing.interval.0.max(checkpointing.min_pause.0));
        let checkpoints = u64::from(self.effective_checkpoints(checkpointing)).saturating_mul(interval);
        TimeSpan(self.duration.0.max(checkpoints))
    }

    /// The deadline, in effect.
    #[must_use]
    pub fn effective_deadline(&self, checkpointing: Option<&CheckpointingSpec>) -> TimeSpan {
        let slack = TimeSpan::from_secs(300);
        self.deadline.unwrap_or(TimeSpan(slack.0.saturating_add(self.least(checkpointing).0)))
    }
}

/// What happens before a deleted StreamJob is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeletionSpec {
    /// Stop with a savepoint, which stays, instead of cancelling the job.
    #[serde(default)]
    pub savepoint: bool,
    /// How long the job may take to end; after that its pods are removed.
    #[serde(default = "two_minutes")]
    pub timeout: TimeSpan,
}

impl Default for DeletionSpec {
    fn default() -> Self {
        Self { savepoint: false, timeout: two_minutes() }
    }
}

const fn one() -> u32 {
    1
}
const fn yes() -> bool {
    true
}
const fn half_a_minute() -> TimeSpan {
    TimeSpan::from_secs(30)
}
const fn two_minutes() -> TimeSpan {
    TimeSpan::from_secs(120)
}
