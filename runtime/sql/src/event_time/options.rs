//! The options of a table that speak of its watermarks: they are ours, no connector sees them.

use crate::catalog::Table;
use crate::error::{SqlError, SqlErrorKind, nearest};
use crate::parse::OptionDefinition;
use crate::settings::duration;
use crate::translate::Statement;
use sluice_engine::event_time::alignment::WatermarkAlignment;
use sluice_protocol::TimeSpan;

const PREFIX: &str = "scan.watermark.";
const IDLE_TIMEOUT: &str = "scan.watermark.idle-timeout";
const GROUP: &str = "scan.watermark.alignment.group";
const MAX_DRIFT: &str = "scan.watermark.alignment.max-drift";
const UPDATE_INTERVAL: &str = "scan.watermark.alignment.update-interval";
const ALL: [&str; 4] = [IDLE_TIMEOUT, GROUP, MAX_DRIFT, UPDATE_INTERVAL];

/// How often TaskManagers are told of each other's sources, unless a table says otherwise.
const DEFAULT_UPDATE_INTERVAL: TimeSpan = TimeSpan::from_secs(1);

/// Whether an option of WITH is one of these.
pub(crate) fn is_time_option(key: &str) -> bool {
    key.starts_with(PREFIX)
}

/// What the options of a table say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SourceTime {
    /// A split that gave no row for so long is idle.
    pub(crate) idle_timeout: Option<TimeSpan>,
    /// Whom the source waits for.
    pub(crate) alignment: Option<WatermarkAlignment>,
}

impl SourceTime {
    /// As declared, or as SET says for all tables.
    pub(crate) fn of(statement: &Statement<'_>, table: &Table) -> Result<Self, SqlError> {
        for option in table.definition.options.iter().filter(|option| is_time_option(&option.key)) {
            let key = option.key.as_str();
            if !ALL.contains(&key) {
                let message = format!("option '{key}' does not exist{}", nearest(key, ALL));
                return Err(wrong(statement, table, option, &message));
            }
            if table.definition.watermark.is_none() {
                let message = format!("'{key}' needs WATERMARK FOR in CREATE TABLE");
                return Err(wrong(statement, table, option, &message));
            }
        }
        let for_all = statement.insert.settings.idle_timeout.map(TimeSpan::from);
        let idle_timeout = duration_of(statement, table, IDLE_TIMEOUT)?.or(for_all);
        Ok(Self { idle_timeout: idle_timeout.filter(|timeout| timeout.0 > 0), alignment: alignment(statement, table)? })
    }
}

fn alignment(statement: &Statement<'_>, table: &Table) -> Result<Option<WatermarkAlignment>, SqlError> {
    let max_drift = duration_of(statement, table, MAX_DRIFT)?;
    let update_interval = duration_of(statement, table, UPDATE_INTERVAL)?;
    let Some(group) = option(table, GROUP) else {
        return match option(table, MAX_DRIFT).or_else(|| option(table, UPDATE_INTERVAL)) {
            None => Ok(None),
            Some(lonely) => {
                let message = format!("option '{}' needs '{GROUP}', the name of a group of sources", lonely.key);
                Err(wrong(statement, table, lonely, &message))
            }
        };
    };
    let Some(max_drift) = max_drift else {
        let message = format!("option '{GROUP}' needs '{MAX_DRIFT}': how far the source may be ahead of its group");
        return Err(wrong(statement, table, group, &message));
    };
    let update_interval = update_interval.unwrap_or(DEFAULT_UPDATE_INTERVAL);
    if update_interval.0 == 0 {
        let at = option(table, UPDATE_INTERVAL).unwrap_or(group);
        return Err(wrong(statement, table, at, &format!("option '{UPDATE_INTERVAL}' must be more than 0")));
    }
    Ok(Some(WatermarkAlignment { group: group.value.clone(), max_drift, update_interval }))
}

fn option<'a>(table: &'a Table, key: &str) -> Option<&'a OptionDefinition> {
    table.definition.options.iter().find(|option| option.key == key)
}

fn duration_of(statement: &Statement<'_>, table: &Table, key: &str) -> Result<Option<TimeSpan>, SqlError> {
    let Some(option) = option(table, key) else { return Ok(None) };
    match duration(&option.value) {
        Ok(duration) => Ok(Some(TimeSpan::from(duration))),
        Err(message) => Err(wrong(statement, table, option, &format!("option '{key}' is no duration: {message}"))),
    }
}

fn wrong(statement: &Statement<'_>, table: &Table, option: &OptionDefinition, message: &str) -> SqlError {
    let message = format!("table '{}': {message}", table.name());
    statement.text.error(SqlErrorKind::Connector, option.key_at, message)
}
