//! Conversions between the protocol's time and Kubernetes', and the one place where the controller reads a clock.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff;
use sluice_protocol::Timestamp;

/// The time now.
#[must_use]
pub fn now() -> Timestamp {
    from_jiff(jiff::Timestamp::now())
}

/// With Kubernetes' resolution of a second.
#[must_use]
pub fn to_time(at: Timestamp) -> Time {
    Time(to_jiff(at))
}

/// With sub-second resolution.
#[must_use]
pub fn to_micro_time(at: Timestamp) -> MicroTime {
    MicroTime(to_jiff(at))
}

/// To the second, as part of a name: `20261130-030000`, in UTC.
#[must_use]
pub fn compact(at: Timestamp) -> String {
    to_jiff(at).strftime("%Y%m%d-%H%M%S").to_string()
}

/// From Kubernetes' time.
#[must_use]
pub fn from_time(at: &Time) -> Timestamp {
    from_jiff(at.0)
}

/// From Kubernetes' time.
#[must_use]
pub fn from_micro_time(at: &MicroTime) -> Timestamp {
    from_jiff(at.0)
}

fn to_jiff(at: Timestamp) -> jiff::Timestamp {
    i64::try_from(at.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok()).unwrap_or_default()
}

fn from_jiff(at: jiff::Timestamp) -> Timestamp {
    Timestamp(u64::try_from(at.as_millisecond()).unwrap_or_default())
}
