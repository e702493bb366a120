//! The options of the format, under the prefix that the connector gives them: `json.` beside `format`,
//! `value.json.` beside `value.format`.

use super::timestamp::TimestampFormat;
use crate::options::Options;
use sluice_engine::table::TableError;

/// How messages are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonOptions {
    /// A field that cannot be read becomes null, a message that cannot be read is skipped.
    pub(crate) ignore_parse_errors: bool,
    /// A message without one of the columns is an error; else the column is null.
    pub(crate) fail_on_missing_field: bool,
    /// How timestamps are written.
    pub(crate) timestamp_format: TimestampFormat,
}

/// Reads what stands under a prefix such as `json` or `value.json`.
pub(crate) fn read(options: &Options<'_>, prefix: &str) -> Result<JsonOptions, TableError> {
    let ignore_key = format!("{prefix}.ignore-parse-errors");
    let missing_key = format!("{prefix}.fail-on-missing-field");
    let ignore_parse_errors = options.boolean(&ignore_key)?.unwrap_or(false);
    let fail_on_missing_field = options.boolean(&missing_key)?.unwrap_or(false);
    if ignore_parse_errors && fail_on_missing_field {
        return Err(options.error(
            &missing_key,
            format!(
                "the options '{missing_key}' and '{ignore_key}' contradict each other; only one of them can be true"
            ),
        ));
    }
    let standard = [("SQL", TimestampFormat::Sql), ("ISO-8601", TimestampFormat::Iso8601)];
    let timestamp_format =
        options.choice(&format!("{prefix}.timestamp-format.standard"), &standard)?.unwrap_or(TimestampFormat::Sql);
    Ok(JsonOptions { ignore_parse_errors, fail_on_missing_field, timestamp_format })
}
