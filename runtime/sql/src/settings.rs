//! `SET 'key' = 'value'`: what a program may set in its text, for the statements after it.
//!
//! A key of Flink's whose place is the StreamJob's spec is refused with that place; no key is ignored.

use crate::error::{SourceText, SqlError, SqlErrorKind, nearest};
use datafusion_sql::sqlparser::tokenizer::Location;
use std::time::Duration;

const STATE_TTL: &str = "table.exec.state.ttl";
const PARALLELISM: &str = "parallelism.default";
const IDLE_TIMEOUT: &str = "table.exec.source.idle-timeout";
const ALLOW_LATENESS: &str = "table.exec.emit.allow-lateness";
const LATE_ROWS: &str = "table.exec.window-aggregate.late-rows";
const REUSE_SOURCE: &str = "table.optimizer.reuse-source-enabled";

/// Keys of Flink's that are something else here.
const ELSEWHERE: [(&str, &str); 11] = [
    ("pipeline.name", "the job's name is the StreamJob's: metadata.name"),
    ("pipeline.max-parallelism", "it is in the StreamJob's spec: maxParallelism"),
    ("execution.checkpointing.interval", "it is in the StreamJob's spec: checkpointing.interval"),
    ("execution.checkpointing.mode", "it is in the StreamJob's spec: checkpointing.mode"),
    ("execution.checkpointing.timeout", "it is in the StreamJob's spec: checkpointing.timeout"),
    ("execution.checkpointing.min-pause", "it is in the StreamJob's spec: checkpointing.minPause"),
    ("execution.checkpointing.dir", "it is in the StreamJob's spec: checkpointing.storage"),
    ("state.backend.type", "it is in the StreamJob's spec: stateBackend"),
    ("restart-strategy.type", "it is in the StreamJob's spec: restartStrategy"),
    ("execution.runtime-mode", "every job is a streaming job"),
    ("table.local-time-zone", "the session's time zone is UTC"),
];

/// What holds for a statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// How long state that is not touched is kept; none: for ever.
    pub(crate) state_ttl: Option<Duration>,
    /// Subtasks per vertex, and where that was said.
    pub(crate) parallelism: Option<(u32, Location)>,
    /// A source's split that gave no row for so long is idle; none: never.
    pub(crate) idle_timeout: Option<Duration>,
    /// For how long behind the watermark a row still changes the result of its window; none: not at all.
    pub(crate) allowed_lateness: Option<Duration>,
    /// The table that rows which are later still go to, and where that was said.
    pub(crate) late_rows: Option<(String, Location)>,
    /// Every place in FROM reads its table itself, as jobs from before tables were shared do.
    pub(crate) scans_alone: bool,
}

impl Settings {
    /// Takes a SET; `is_late` when an INSERT INTO stands before it.
    pub(crate) fn set(
        &mut self,
        text: SourceText<'_>,
        (key, key_at): (&str, Location),
        (value, value_at): (&str, Location),
        is_late: bool,
    ) -> Result<(), SqlError> {
        match key {
            LATE_ROWS => self.late_rows = Some((value.to_owned(), value_at)).filter(|(table, _)| !table.is_empty()),
            STATE_TTL | IDLE_TIMEOUT | ALLOW_LATENESS => {
                let duration = duration(value).map_err(|message| {
                    text.error(SqlErrorKind::Invalid, value_at, format!("'{key}' is no duration: {message}"))
                })?;
                let duration = Some(duration).filter(|duration| !duration.is_zero());
                match key {
                    STATE_TTL => self.state_ttl = duration,
                    ALLOW_LATENESS => self.allowed_lateness = duration,
                    _ => self.idle_timeout = duration,
                }
            }
            PARALLELISM | REUSE_SOURCE if is_late => {
                let message = format!("'{key}' holds for the whole job: write it before the first INSERT INTO");
                return Err(text.error(SqlErrorKind::Invalid, key_at, message));
            }
            PARALLELISM => {
                let Some(parallelism) = value.trim().parse().ok().filter(|number| *number > 0) else {
                    let message = format!("'{key}' must be a whole number from 1 on, not '{value}'");
                    return Err(text.error(SqlErrorKind::Invalid, value_at, message));
                };
                self.parallelism = Some((parallelism, value_at));
            }
            REUSE_SOURCE => {
                let Ok(reuses) = value.trim().to_lowercase().parse::<bool>() else {
                    let message = format!("'{key}' must be true or false, not '{value}'");
                    return Err(text.error(SqlErrorKind::Invalid, value_at, message));
                };
                self.scans_alone = !reuses;
            }
            other => return Err(unknown(text, other, key_at)),
        }
        Ok(())
    }
}

fn unknown(text: SourceText<'_>, key: &str, at: Location) -> SqlError {
    if let Some((_, advice)) = ELSEWHERE.iter().find(|(known, _)| *known == key) {
        return text.error(SqlErrorKind::Unsupported, at, format!("'{key}' cannot be set here: {advice}"));
    }
    let own = [STATE_TTL, PARALLELISM, REUSE_SOURCE, IDLE_TIMEOUT, ALLOW_LATENESS, LATE_ROWS];
    let known = ELSEWHERE.iter().map(|(known, _)| *known).chain(own);
    text.error(SqlErrorKind::Invalid, at, format!("the key '{key}' does not exist{}", nearest(key, known)))
}

/// A duration as Flink writes it: `1 d`, `36h`, `10 min`, `5 s`, `0`; a number alone is milliseconds.
pub(crate) fn duration(value: &str) -> Result<Duration, String> {
    let value = value.trim();
    let digits = value.len() - value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = value.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("'{value}' does not begin with a whole number"))?;
    let milliseconds = match unit.trim().to_lowercase().as_str() {
        "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1000,
        "m" | "min" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        other => return Err(format!("'{other}' is no unit of time: use ms, s, min, h or d")),
    };
    number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(|| format!("'{value}' is too long"))
}

#[cfg(test)]
mod tests {
    use super::duration;
    use std::time::Duration;

    #[test]
    fn durations_are_written_as_in_flink() {
        let milliseconds = |value| duration(value).map(|duration| duration.as_millis());
        assert_eq!(milliseconds("1 d"), Ok(86_400_000));
        assert_eq!(milliseconds("36h"), Ok(129_600_000));
        assert_eq!(milliseconds("10 min"), Ok(600_000));
        assert_eq!(milliseconds(" 5s "), Ok(5000));
        assert_eq!(milliseconds("250"), Ok(250));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("1 month").unwrap_err().contains("month"));
        assert!(duration("h").is_err() && duration("-1 s").is_err() && duration("18446744073709551615 d").is_err());
    }
}
