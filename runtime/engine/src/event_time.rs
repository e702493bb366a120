//! Event time: what a watermark says, how several become one, and what is kept of it (protocol.md W1, W2).
//!
//! A watermark w of a stream says that no row with a time at or before w is to come. Callers rely on: what
//! [`combine`] gives is a bound for all inputs that are neither idle nor ended; [`KeyGroupWatermarks`] is the watermark of
//! an operator as its state; [`source`] makes watermarks of rows.
//!
//! The flow: a source's rows give a watermark per split ([`source::SourceWatermarks`]), the least of them goes through the
//! chain ([`crate::operator::Operator::watermark`]) and as [`crate::channel::Frame::Watermark`] into every channel, where it
//! keeps its place; the gate of the next task combines its channels, and so on. Sources of a group wait for each other
//! ([`alignment`]).

pub mod alignment;
mod key_groups;
pub mod source;
#[cfg(test)]
mod tests;

pub use key_groups::KeyGroupWatermarks;
pub use source::WatermarkStrategy;

use serde::{Deserialize, Serialize};

/// What a channel or a split says of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatermarkStatus {
    /// No row at or before it is to come; milliseconds since 1970, `i64::MIN` before anything is known.
    pub watermark: i64,
    /// Nothing comes for now: others need not wait for it.
    pub idle: bool,
}

impl WatermarkStatus {
    /// Before anything is known: it counts as active (W2).
    pub const UNKNOWN: Self = Self { watermark: i64::MIN, idle: false };
}

impl Default for WatermarkStatus {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// What inputs say together: the least watermark of the active ones; of inputs that are all idle the greatest, whatever
/// the order in which they fell silent. `None` when there are none; those that have ended are not to be among them.
#[must_use]
pub fn combine(inputs: impl Iterator<Item = WatermarkStatus>) -> Option<WatermarkStatus> {
    inputs.reduce(|one, other| match (one.idle, other.idle) {
        (false, true) => one,
        (true, false) => other,
        (false, false) => WatermarkStatus { watermark: one.watermark.min(other.watermark), idle: false },
        (true, true) => WatermarkStatus { watermark: one.watermark.max(other.watermark), idle: true },
    })
}
