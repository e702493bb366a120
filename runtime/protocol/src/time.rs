//! Points of time and spans of time: what decisions compare, and how a manifest writes them.
//!
//! Decisions never read a clock; safety assumes nothing of it (docs/protocol.md).

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This much later.
    #[must_use]
    pub fn plus(self, span: TimeSpan) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The span since `earlier`; zero when that lies in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> TimeSpan {
        TimeSpan(self.0.saturating_sub(earlier.0))
    }
}

/// A span of time in milliseconds, written `500ms`, `2s`, `10m`, `1h`, `1d` or a sequence such as `1m30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeSpan(pub u64);

impl TimeSpan {
    /// Whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    /// Milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// As the standard library's type.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<Duration> for TimeSpan {
    /// Whole milliseconds, as many as can be counted.
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A span of time that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a span of time; write a number and a unit, such as 500ms, 2s, 10m, 1h or 1m30s")]
pub struct InvalidTimeSpan(pub String);

impl FromStr for TimeSpan {
    type Err = InvalidTimeSpan;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidTimeSpan(text.to_owned());
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total = 0_u64;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
            let number: u64 = rest[..digits].parse().map_err(|_| invalid())?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            let factor = UNITS.iter().find(|(unit, _)| *unit == &rest[..letters]).ok_or_else(invalid)?.1;
            total = number.checked_mul(factor).and_then(|part| total.checked_add(part)).ok_or_else(invalid)?;
            rest = &rest[letters..];
        }
        Ok(Self(total))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, factor) in UNITS {
            if rest >= factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for TimeSpan {
    fn schema_name() -> Cow<'static, str> {
        "TimeSpan".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$" })
    }
}
