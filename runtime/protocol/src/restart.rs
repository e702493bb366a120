//! Whether and when a failed job runs again: one policy over one set of failure counts (docs/protocol.md, F1).
//!
//! Pure and stateless: the [`FailureCounts`] are the state, kept in the ledger's fold and in the StreamJob's
//! status, and merged by maximum. The JobManager records its failed attempts, the controller records lost
//! JobManagers; both then ask [`RestartPolicy::on_failure`]. Callers rely on: recording the same loss twice
//! counts once, merging is commutative and idempotent, and a failure before a planned restart joins it.

use crate::ids::{Attempt, Generation};
use crate::options::{Decimal, ExponentialDelay, FailureRate, FixedDelay, RestartStrategySpec};
use crate::time::{TimeSpan, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Failures that the window of a windowed policy holds at most (F1); `failureRate.maxFailures` must be below it.
pub const WINDOW_LIMIT: usize = 64;

/// Generations counted one by one; older ones are summed (F1).
const GENERATIONS_LIMIT: usize = 16;

/// What happens after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// The first failure ends the job.
    None,
    /// A number of restarts, each after a fixed delay.
    FixedDelay {
        /// Restarts before the job fails.
        attempts: u32,
        /// Time before each.
        delay: TimeSpan,
    },
    /// Restarts unless more than `max_failures` fall into the sliding interval.
    FailureRate {
        /// Failures that the interval may hold.
        max_failures: u32,
        /// The interval.
        interval: TimeSpan,
        /// Time before each restart.
        delay: TimeSpan,
    },
    /// Restarts after delays that grow while failures follow each other within `reset_after`.
    ExponentialDelay {
        /// Time before the first restart.
        initial: TimeSpan,
        /// The longest time before a restart.
        max: TimeSpan,
        /// What the time grows by.
        multiplier: Decimal,
        /// The share of it by which it varies.
        jitter: Decimal,
        /// Time without a failure that begins a new count.
        reset_after: TimeSpan,
        /// Restarts before the job fails; without a limit when absent.
        attempts: Option<u32>,
    },
}

/// The answer of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartDecision {
    /// Run again, not before this time.
    RestartAt(Timestamp),
    /// The policy is spent: the job has failed.
    GiveUp {
        /// Which limit was passed, as a sentence to follow the root cause.
        reason: String,
    },
}

/// A restart strategy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRestartStrategy {
    /// More than one strategy is set.
    #[error(
        "restartStrategy sets {found}; exactly one of fixedDelay, failureRate, exponentialDelay and none may be set: remove \
         the others"
    )]
    Ambiguous {
        /// The names of those that are set.
        found: String,
    },
    /// The block is there, but empty.
    #[error(
        "restartStrategy is empty; set one of fixedDelay, failureRate, exponentialDelay and none, or remove it for the \
         default"
    )]
    Empty,
    /// The window cannot hold so many failures.
    #[error("restartStrategy.failureRate.maxFailures is {found}; at most {} failures can be followed: lower it", WINDOW_LIMIT - 1)]
    WindowTooLarge {
        /// The value.
        found: u32,
    },
    /// The window cannot hold so many failures.
    #[error(
        "restartStrategy.exponentialDelay.attempts is {found}; at most {} failures can be followed: lower it, or remove it \
         for no limit",
        WINDOW_LIMIT - 1
    )]
    TooManyAttempts {
        /// The value.
        found: u32,
    },
    /// Delays that contradict each other.
    #[error("restartStrategy.exponentialDelay.{field} {problem}")]
    Backoff {
        /// Which option.
        field: &'static str,
        /// What is wrong with it, and what to do.
        problem: String,
    },
}

impl RestartPolicy {
    /// The policy of a spec. Without one: `fixedDelay` with its defaults when the job takes checkpoints, else
    /// `none` (design §8).
    ///
    /// # Errors
    /// When not exactly one strategy is set, or its window is larger than [`WINDOW_LIMIT`].
    pub fn from_spec(spec: Option<&RestartStrategySpec>, checkpointing: bool) -> Result<Self, InvalidRestartStrategy> {
        let Some(spec) = spec else {
            return Ok(if checkpointing { Self::fixed_delay(&FixedDelay::default()) } else { Self::None });
        };
        match (&spec.fixed_delay, &spec.failure_rate, &spec.exponential_delay, &spec.none) {
            (Some(fixed), None, None, None) => Ok(Self::fixed_delay(fixed)),
            (None, Some(rate), None, None) => Self::failure_rate(rate),
            (None, None, Some(exponential), None) => Self::exponential_delay(exponential),
            (None, None, None, Some(_)) => Ok(Self::None),
            (None, None, None, None) => Err(InvalidRestartStrategy::Empty),
            (fixed, rate, exponential, none) => {
                let set = [
                    ("fixedDelay", fixed.is_some()),
                    ("failureRate", rate.is_some()),
                    ("exponentialDelay", exponential.is_some()),
                    ("none", none.is_some()),
                ];
                let names: Vec<_> = set.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
                Err(InvalidRestartStrategy::Ambiguous { found: names.join(" and ") })
            }
        }
    }

    fn exponential_delay(spec: &ExponentialDelay) -> Result<Self, InvalidRestartStrategy> {
        let ExponentialDelay { initial_backoff, max_backoff, multiplier, jitter, reset_after, attempts } = spec;
        let wrong = |field, problem: String| Err(InvalidRestartStrategy::Backoff { field, problem });
        if max_backoff < initial_backoff {
            let problem =
                format!("is {max_backoff}, shorter than initialBackoff, which is {initial_backoff}: raise it");
            return wrong("maxBackoff", problem);
        }
        if *multiplier < Decimal(1000) {
            return wrong("multiplier", format!("is {multiplier}, must be at least 1: delays do not shrink"));
        }
        if *jitter > Decimal(1000) {
            return wrong("jitter", format!("is {jitter}, must be from 0 to 1: it is a share of the delay"));
        }
        if reset_after <= max_backoff {
            let problem = format!("is {reset_after}, must be longer than maxBackoff, which is {max_backoff}: raise it");
            return wrong("resetAfter", problem);
        }
        if let Some(found) = attempts.filter(|attempts| *attempts as usize >= WINDOW_LIMIT) {
            return Err(InvalidRestartStrategy::TooManyAttempts { found });
        }
        Ok(Self::ExponentialDelay {
            initial: *initial_backoff,
            max: *max_backoff,
            multiplier: *multiplier,
            jitter: *jitter,
            reset_after: *reset_after,
            attempts: *attempts,
        })
    }

    const fn fixed_delay(fixed: &FixedDelay) -> Self {
        Self::FixedDelay { attempts: fixed.attempts, delay: fixed.delay }
    }

    fn failure_rate(rate: &FailureRate) -> Result<Self, InvalidRestartStrategy> {
        if rate.max_failures as usize >= WINDOW_LIMIT {
            return Err(InvalidRestartStrategy::WindowTooLarge { found: rate.max_failures });
        }
        Ok(Self::FailureRate { max_failures: rate.max_failures, interval: rate.interval, delay: rate.delay })
    }

    /// Records a failure and decides. While a restart is planned for later than `now`, the failure joins it:
    /// nothing is counted and the plan stands.
    pub fn on_failure(
        &self,
        counts: &mut FailureCounts,
        failure: CountedFailure,
        planned: Option<Timestamp>,
        now: Timestamp,
    ) -> RestartDecision {
        if let Some(at) = planned.filter(|at| *at > now) {
            return RestartDecision::RestartAt(at);
        }
        counts.record(failure, now);
        self.decide(counts, now)
    }

    /// What follows from failures already recorded, the last of them at `now`.
    #[must_use]
    pub fn decide(&self, counts: &FailureCounts, now: Timestamp) -> RestartDecision {
        match *self {
            Self::None => RestartDecision::GiveUp { reason: "the restart strategy is none".to_owned() },
            Self::FixedDelay { attempts, delay } => {
                let failures = counts.total();
                if failures > u64::from(attempts) {
                    let reason =
                        format!("restartStrategy.fixedDelay allows {attempts} restarts; this was failure {failures}");
                    return RestartDecision::GiveUp { reason };
                }
                RestartDecision::RestartAt(now.plus(delay))
            }
            Self::FailureRate { max_failures, interval, delay } => {
                let failures = counts.within(interval, now);
                if failures > max_failures as usize {
                    let reason = format!(
                        "restartStrategy.failureRate allows {max_failures} failures in {interval}; there were {failures}"
                    );
                    return RestartDecision::GiveUp { reason };
                }
                RestartDecision::RestartAt(now.plus(delay))
            }
            Self::ExponentialDelay { initial, max, multiplier, jitter, reset_after, attempts } => {
                let failures = counts.in_a_row(reset_after);
                if let Some(attempts) = attempts.filter(|attempts| failures > *attempts as usize) {
                    let reason = format!(
                        "restartStrategy.exponentialDelay allows {attempts} restarts; this was failure {failures} without \
                         {reset_after} between two"
                    );
                    return RestartDecision::GiveUp { reason };
                }
                let delay = grown(initial, max, multiplier, failures);
                RestartDecision::RestartAt(now.plus(varied(delay, jitter, counts).min(max)))
            }
        }
    }
}

/// `initial` × `multiplier` for each failure after the first, at most `max`.
fn grown(initial: TimeSpan, max: TimeSpan, multiplier: Decimal, failures: usize) -> TimeSpan {
    let mut delay = initial;
    for _ in 1..failures {
        if delay >= max {
            break;
        }
        delay = TimeSpan(delay.0.saturating_mul(u64::from(multiplier.0)) / 1000);
    }
    delay.min(max)
}

/// The delay, up to a share of it longer or shorter. The failure it follows decides by how much, so that the JobManager and
/// the controller agree without randomness.
fn varied(delay: TimeSpan, jitter: Decimal, counts: &FailureCounts) -> TimeSpan {
    let last = counts.window.iter().max_by_key(|failure| failure.at);
    let seed = last.map_or(0, |last| last.at.0 ^ last.generation.0.rotate_left(40));
    // Finalizer of SplitMix64.
    let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let share = (mixed ^ (mixed >> 31)) % 2001;
    let range = delay.0.saturating_mul(u64::from(jitter.0)) / 1000;
    TimeSpan(delay.0 - range + range.saturating_mul(share) / 1000)
}

/// What counts as one failure (F1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedFailure {
    /// An attempt failed: recorded by the JobManager, once per attempt.
    Attempt(Generation, Attempt),
    /// A JobManager was lost: recorded by the controller, once per generation.
    JobManager(Generation),
}

/// The failures of a job under one revision of its spec (F1).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureCounts {
    /// The revision; another one starts a new count.
    pub revision: u64,
    /// Generations up to this one are summed in `older`; 0 = none.
    pub summed_through: Generation,
    /// Failures of the summed generations.
    pub older: u64,
    /// Later generations, in order.
    pub generations: Vec<GenerationFailures>,
    /// The last failures with their times, in order of (generation, attempt), at most [`WINDOW_LIMIT`].
    pub window: Vec<WindowedFailure>,
}

/// The failures of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GenerationFailures {
    /// Which.
    pub generation: Generation,
    /// Its failed attempts.
    pub attempts: u64,
    /// Whether its JobManager was lost, which counts one more.
    #[serde(default)]
    pub job_manager_lost: bool,
}

impl GenerationFailures {
    const fn total(&self) -> u64 {
        self.attempts + self.job_manager_lost as u64
    }
}

/// One failure with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WindowedFailure {
    /// In which generation.
    pub generation: Generation,
    /// Which attempt; absent when the JobManager was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// When.
    pub at: Timestamp,
}

impl FailureCounts {
    /// No failures under this revision.
    #[must_use]
    pub fn new(revision: u64) -> Self {
        Self { revision, ..Self::default() }
    }

    /// All failures.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.older + self.generations.iter().map(GenerationFailures::total).sum::<u64>()
    }

    /// Whether a JobManager was lost under this revision, as far as the last generations tell.
    #[must_use]
    pub fn has_lost_job_manager(&self) -> bool {
        self.generations.iter().any(|counts| counts.job_manager_lost)
    }

    /// Failures whose time lies within `interval` before `now`.
    #[must_use]
    pub fn within(&self, interval: TimeSpan, now: Timestamp) -> usize {
        self.window.iter().filter(|failure| now.since(failure.at) < interval).count()
    }

    /// The last failures between which there was never a time of `quiet`: at most as many as the window holds.
    #[must_use]
    pub fn in_a_row(&self, quiet: TimeSpan) -> usize {
        let mut times: Vec<_> = self.window.iter().map(|failure| failure.at).collect();
        times.sort_unstable();
        let gaps = times.windows(2).rev().take_while(|pair| pair[1].since(pair[0]) < quiet);
        if times.is_empty() { 0 } else { 1 + gaps.count() }
    }

    /// Counts a failure; one that is counted already changes nothing.
    pub fn record(&mut self, failure: CountedFailure, at: Timestamp) {
        let (generation, attempt) = match failure {
            CountedFailure::Attempt(generation, attempt) => (generation, Some(attempt)),
            CountedFailure::JobManager(generation) => (generation, None),
        };
        if generation <= self.summed_through || self.is_recorded(generation, attempt) {
            return;
        }
        let counts = self.of_generation(generation);
        if attempt.is_some() {
            counts.attempts += 1;
        } else {
            counts.job_manager_lost = true;
        }
        self.window.push(WindowedFailure { generation, attempt, at });
        self.bound();
    }

    /// Takes the larger of both counts, failure by failure: what the ledger holds and what status holds. Another
    /// revision wins only when it is newer, and then wholly.
    pub fn merge(&mut self, other: &Self) {
        if other.revision != self.revision {
            if other.revision > self.revision {
                self.clone_from(other);
            }
            return;
        }
        let through = self.summed_through.max(other.summed_through);
        self.older = self.total_through(through).max(other.total_through(through));
        self.summed_through = through;
        self.generations.retain(|counts| counts.generation > through);
        for theirs in other.generations.iter().filter(|counts| counts.generation > through) {
            let ours = self.of_generation(theirs.generation);
            ours.attempts = ours.attempts.max(theirs.attempts);
            ours.job_manager_lost |= theirs.job_manager_lost;
        }
        for theirs in &other.window {
            match self
                .window
                .iter_mut()
                .find(|ours| (ours.generation, ours.attempt) == (theirs.generation, theirs.attempt))
            {
                Some(ours) => ours.at = ours.at.max(theirs.at),
                None => self.window.push(*theirs),
            }
        }
        self.bound();
    }

    fn is_recorded(&self, generation: Generation, attempt: Option<Attempt>) -> bool {
        let in_window =
            self.window.iter().any(|failure| (failure.generation, failure.attempt) == (generation, attempt));
        let lost = || self.generations.iter().any(|counts| counts.generation == generation && counts.job_manager_lost);
        in_window || (attempt.is_none() && lost())
    }

    fn total_through(&self, through: Generation) -> u64 {
        let counted = self.generations.iter().filter(|counts| counts.generation <= through);
        self.older + counted.map(GenerationFailures::total).sum::<u64>()
    }

    fn of_generation(&mut self, generation: Generation) -> &mut GenerationFailures {
        let position = match self.generations.binary_search_by_key(&generation, |counts| counts.generation) {
            Ok(position) => position,
            Err(position) => {
                self.generations.insert(position, GenerationFailures { generation, ..GenerationFailures::default() });
                position
            }
        };
        &mut self.generations[position]
    }

    fn bound(&mut self) {
        while self.generations.len() > GENERATIONS_LIMIT {
            let oldest = self.generations.remove(0);
            self.older += oldest.total();
            self.summed_through = oldest.generation;
        }
        self.window.sort_unstable_by_key(|failure| (failure.generation, failure.attempt.is_none(), failure.attempt));
        let surplus = self.window.len().saturating_sub(WINDOW_LIMIT);
        self.window.drain(..surplus);
    }
}

#[cfg(test)]
mod tests;
