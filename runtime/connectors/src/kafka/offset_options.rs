//! Where to start and where to stop, as options: `scan.startup.*` and `scan.bounded.*`.

use crate::options::Options;
use sluice_engine::table::TableError;
use std::collections::BTreeMap;

/// Offsets by partition.
pub(super) type SpecificOffsets = BTreeMap<i32, i64>;

/// Where to begin without state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Startup {
    /// The oldest record.
    Earliest,
    /// The next record.
    Latest,
    /// The group's committed offset.
    GroupOffsets,
    /// The first record with this timestamp or a later one, in milliseconds since the epoch.
    Timestamp(i64),
    /// The next record to read, by partition; others begin at the group's committed or the earliest offset.
    SpecificOffsets(SpecificOffsets),
}

/// Where to end: the first record that is not read any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// The end of the partition when the source opened.
    Latest,
    /// The group's committed offset when the source opened.
    GroupOffsets,
    /// The first record with this timestamp or a later one.
    Timestamp(i64),
    /// By partition; others have no end.
    SpecificOffsets(SpecificOffsets),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Earliest,
    Latest,
    GroupOffsets,
    Timestamp,
    SpecificOffsets,
    Unbounded,
}

const STARTUP: [(&str, Mode); 5] = [
    ("earliest-offset", Mode::Earliest),
    ("latest-offset", Mode::Latest),
    ("group-offsets", Mode::GroupOffsets),
    ("timestamp", Mode::Timestamp),
    ("specific-offsets", Mode::SpecificOffsets),
];

const BOUNDED: [(&str, Mode); 5] = [
    ("unbounded", Mode::Unbounded),
    ("latest-offset", Mode::Latest),
    ("group-offsets", Mode::GroupOffsets),
    ("timestamp", Mode::Timestamp),
    ("specific-offsets", Mode::SpecificOffsets),
];

/// `scan.startup.*`; the default is `group-offsets`.
pub(super) fn read_startup(options: &Options<'_>, topics: Option<usize>, group: bool) -> Result<Startup, TableError> {
    let mode = options.choice("scan.startup.mode", &STARTUP)?.unwrap_or(Mode::GroupOffsets);
    refuse_misplaced(options, "scan.startup", mode)?;
    Ok(match mode {
        Mode::Earliest => Startup::Earliest,
        Mode::Latest | Mode::Unbounded => Startup::Latest,
        Mode::GroupOffsets => {
            require_group(options, "scan.startup.mode", group)?;
            Startup::GroupOffsets
        }
        Mode::Timestamp => Startup::Timestamp(read_timestamp(options, "scan.startup.timestamp-millis")?),
        Mode::SpecificOffsets => {
            Startup::SpecificOffsets(read_specific(options, "scan.startup.specific-offsets", topics)?)
        }
    })
}

/// `scan.bounded.*`; the default is `unbounded`.
pub(super) fn read_bounded(
    options: &Options<'_>,
    topics: Option<usize>,
    group: bool,
) -> Result<Option<Stop>, TableError> {
    let mode = options.choice("scan.bounded.mode", &BOUNDED)?.unwrap_or(Mode::Unbounded);
    refuse_misplaced(options, "scan.bounded", mode)?;
    Ok(match mode {
        Mode::Unbounded | Mode::Earliest => None,
        Mode::Latest => Some(Stop::Latest),
        Mode::GroupOffsets => {
            require_group(options, "scan.bounded.mode", group)?;
            Some(Stop::GroupOffsets)
        }
        Mode::Timestamp => Some(Stop::Timestamp(read_timestamp(options, "scan.bounded.timestamp-millis")?)),
        Mode::SpecificOffsets => {
            Some(Stop::SpecificOffsets(read_specific(options, "scan.bounded.specific-offsets", topics)?))
        }
    })
}

fn refuse_misplaced(options: &Options<'_>, prefix: &str, mode: Mode) -> Result<(), TableError> {
    for (suffix, of, name) in [
        ("timestamp-millis", Mode::Timestamp, "timestamp"),
        ("specific-offsets", Mode::SpecificOffsets, "specific-offsets"),
    ] {
        let key = format!("{prefix}.{suffix}");
        if mode != of && options.text(&key).is_some() {
            let message =
                format!("the option '{key}' is only read with '{prefix}.mode' = '{name}'; remove one of them");
            return Err(options.error(&key, message));
        }
    }
    Ok(())
}

fn require_group(options: &Options<'_>, mode_key: &str, group: bool) -> Result<(), TableError> {
    if group {
        return Ok(());
    }
    let message = format!(
        "the option '{mode_key}' is 'group-offsets'{}, which needs the group's name: set 'properties.group.id', or \
         choose another mode such as '{}'",
        if options.text(mode_key).is_none() { " by default" } else { "" },
        if mode_key == "scan.startup.mode" { "scan.startup.mode' = 'earliest-offset" } else { "latest-offset" }
    );
    Err(options.error("properties.group.id", message))
}

fn read_timestamp(options: &Options<'_>, key: &str) -> Result<i64, TableError> {
    let value = options.required(key, "the timestamp, in milliseconds since 1970-01-01 UTC")?;
    match value.parse() {
        Ok(millis) if millis >= 0 => Ok(millis),
        _ => Err(options.wrong(key, value, "a number of milliseconds since 1970-01-01 UTC")),
    }
}

/// `partition:0,offset:42;partition:1,offset:300`.
fn read_specific(options: &Options<'_>, key: &str, topics: Option<usize>) -> Result<SpecificOffsets, TableError> {
    let value = options.required(key, "the offsets, such as 'partition:0,offset:42;partition:1,offset:300'")?;
    if topics != Some(1) {
        let given =
            topics.map_or("'topic-pattern' may mean any number".to_owned(), |topics| format!("'topic' lists {topics}"));
        return Err(options.error(key, format!("the option '{key}' is only for a single topic, but {given}")));
    }
    let wrong =
        || options.wrong(key, value, "of the form 'partition:0,offset:42;partition:1,offset:300', each partition once");
    let mut offsets = SpecificOffsets::new();
    for part in value.split(';').filter(|part| !part.trim().is_empty()) {
        let (partition, offset) = part.split_once(',').ok_or_else(wrong)?;
        let partition = partition.trim().strip_prefix("partition:").and_then(|text| text.parse::<i32>().ok());
        let offset = offset.trim().strip_prefix("offset:").and_then(|text| text.parse::<i64>().ok());
        match (partition, offset) {
            (Some(partition), Some(offset)) if partition >= 0 && offset >= 0 => {
                if offsets.insert(partition, offset).is_some() {
                    return Err(wrong());
                }
            }
            _ => return Err(wrong()),
        }
    }
    if offsets.is_empty() { Err(wrong()) } else { Ok(offsets) }
}
