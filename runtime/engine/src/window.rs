//! Windows: aggregation per key and window (GROUP BY window_start, window_end), and window table functions.
//!
//! Time is cut into *slices*, so that each row is counted once, whatever windows it belongs to: a HOP has slices as long as
//! its slide, a CUMULATE as long as its step, a TUMBLE as long as its size ([`kind`]). A window is the union of its slices;
//! when it fires, their accumulators are merged, key group by key group ([`aggregate`]); what it shares with the window before
//! is not merged again where that can be had exactly. A window fires once, when the
//! watermark has come to its end less 1 ms, and says `+I`; so what it emits is insert-only, unless lateness is allowed. A row is late when all its
//! windows have fired; late rows, and rows without a time, are dropped and counted, unless [`LateRows`] says otherwise.
//!
//! The state, version 1: each slice is a table of its own, `slice_<start>_<end>` (milliseconds), keyed as the query is;
//! a slice that is over goes as a whole, and one that nothing is added to any more is stored once. `fired` is a list of
//! ranges of key groups with the end of the last window that has fired, `watermarks` one of their watermarks (W1, B4).
//!
//! [`session`] aggregates sessions, which have no slices. [`table_function`] adds the columns of windows to rows.

pub mod aggregate;
pub mod kind;
mod merge;
mod output;
mod progress;
pub mod session;
pub mod table_function;
#[cfg(test)]
mod tests;

pub use aggregate::{LATE, LateRows, WindowAggregateFactory, WindowAggregateSpec};
pub use kind::{RowTime, WindowKind};
pub use session::{SessionAggregateFactory, SessionAggregateSpec};
pub use table_function::WindowTableFunctionFactory;
