//! The options of a table that speak of its watermarks: they are ours, no connector sees them.

use crate::catalog::Table;
use crate::error::{SqlError, SqlErrorKind, nearest};
use crate::settings::duration;
use crate::translate::Statement;
use sluice_protocol::TimeSpan;

const PREFIX: &str = "scan.watermark.";
const ALIGNMENT: &str = "scan.watermark.alignment.";
const IDLE_TIMEOUT: &str = "scan.watermark.idle-timeout";

/// Whether an option of WITH is one of these.
pub(crate) fn is_time_option(key: &str) -> bool {
    key.starts_with(PREFIX)
}

/// What the options of a table say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SourceTime {
    /// A split that gave no row for so long is idle.
    pub(crate) idle_timeout: Option<TimeSpan>,
}

impl SourceTime {
    /// As declared, or as SET says for all tables.
    pub(crate) fn of(statement: &Statement<'_>, table: &Table) -> Result<Self, SqlError> {
        let mut time = Self { idle_timeout: statement.insert.settings.idle_timeout.map(crate::translate::time_span) };
        for option in table.definition.options.iter().filter(|option| is_time_option(&option.key)) {
            let wrong = |message: String| statement.text.error(SqlErrorKind::Connector, option.key_at, message);
            let name = table.name();
            if table.definition.watermark.is_none() {
                let message = format!("table '{name}': '{}' needs WATERMARK FOR in CREATE TABLE", option.key);
                return Err(wrong(message));
            }
            match option.key.as_str() {
                IDLE_TIMEOUT => {
                    let duration = duration(&option.value).map_err(|message| {
                        wrong(format!("table '{name}': option '{}' is no duration: {message}", option.key))
                    })?;
                    time.idle_timeout = Some(crate::translate::time_span(duration));
                }
                other if other.starts_with(ALIGNMENT) => {
                    let text = "watermark alignment between sources is not supported yet: leave it out";
                    return Err(wrong(format!("table '{name}': option '{other}': {text}")));
                }
                other => {
                    let near = nearest(other, [IDLE_TIMEOUT]);
                    return Err(wrong(format!("table '{name}': option '{other}' does not exist{near}")));
                }
            }
        }
        time.idle_timeout = time.idle_timeout.filter(|timeout| timeout.0 > 0);
        Ok(time)
    }
}
