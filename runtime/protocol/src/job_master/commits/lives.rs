//! How long sinks' targets keep what is staged, against how long a checkpoint may take (S4): said before anything is refused or
//! lost.

use super::super::JobMaster;
use crate::commit::{COMMIT_ALLOWANCE, SinkLife, StagedLife};
use crate::options::CheckpointingSpec;
use crate::time::TimeSpan;

/// Notice that a slow checkpoint's output would be refused.
pub(super) const SHORT: &str = "TransactionTimeoutShort";

/// Notice that the target does not say how long it keeps what is staged.
pub(super) const UNKNOWN: &str = "TransactionTimeoutUnknown";

impl JobMaster {
    /// The targets of all sinks that commit with checkpoints have answered.
    pub(in super::super) fn on_lives(&mut self, lives: Vec<SinkLife>) {
        self.commits.lives = lives;
        self.note_lives();
    }

    /// Says of which sinks what is staged may be gone too soon, by the options that are obeyed.
    pub(in super::super) fn note_lives(&mut self) {
        self.status.notices.retain(|notice| notice.reason != SHORT && notice.reason != UNKNOWN);
        let Some(settings) = &self.config.options.checkpointing else { return };
        let short: Vec<_> = self.commits.lives.iter().filter_map(|one| too_short(one, settings)).collect();
        let unknown = self.commits.lives.iter().filter_map(|SinkLife { sink, life }| match life {
            StagedLife::Unknown(why) => Some(format!("sink '{sink}': {why}")),
            _ => None,
        });
        for (reason, messages) in [(SHORT, short), (UNKNOWN, unknown.collect())] {
            if !messages.is_empty() {
                self.set_notice(reason, messages.join("; "));
            }
        }
    }
}

/// What is wrong with the life of what a sink stages, if anything.
fn too_short(SinkLife { sink, life }: &SinkLife, settings: &CheckpointingSpec) -> Option<String> {
    let StagedLife::Limited { span, by } = life else { return None };
    let (interval, timeout) = (settings.interval, settings.timeout);
    let needed = TimeSpan(interval.0.saturating_add(timeout.0).saturating_add(COMMIT_ALLOWANCE.0));
    (*span < needed).then(|| {
        format!(
            "sink '{sink}': its transactions time out after {span} ({by}), less than the interval of checkpoints ({interval}), \
             their timeout ({timeout}) and a commit ({COMMIT_ALLOWANCE}) together: a slow checkpoint would be refused and its \
             output written again. Give transactions at least {needed}, and as long as the job may be away, or shorten \
             checkpointing.timeout"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(interval: u64, timeout: u64) -> CheckpointingSpec {
        let written = serde_json::json!({"interval": format!("{interval}s"), "timeout": format!("{timeout}s")});
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn s4_what_is_staged_must_outlive_interval_timeout_and_commit() {
        let life = |seconds| SinkLife {
            sink: "out".into(),
            life: StagedLife::Limited { span: TimeSpan::from_secs(seconds), by: "the broker's limit".to_owned() },
        };
        assert_eq!(too_short(&life(625), &settings(10, 600)), None);
        let said = too_short(&life(624), &settings(10, 600)).unwrap();
        let numbers = ["10m24s (the broker's limit)", "(10s)", "(10m)", "(15s)", "at least 10m25s"];
        assert!(numbers.iter().all(|number| said.contains(number)), "{said}");
        let unlimited = SinkLife { sink: "out".into(), life: StagedLife::Unlimited };
        assert_eq!(too_short(&unlimited, &settings(1, 1)), None);
    }
}
